"""What is pushed down holds for every event that live delivery shows, whatever the policy."""

import operator
from collections.abc import Mapping

from hypothesis import HealthCheck, given, settings
from tests.budget import examples
from tests.guard.strategies import Family
from tests.pipeline.enforce.test_deliver import cases
from tests.pipeline.policy_kit import SIGHTING, by_id, reader

from penstock.guard import Delivery, Restriction, environment
from penstock.model import EventType, Kind, TransitEvent
from penstock.model.values import Scalar
from penstock.pipeline.enforce.policy import Program
from penstock.pipeline.enforce.pushdown import NEVER, necessary, necessary_for, without_decided
from penstock.pipeline.event_columns import TIME
from penstock.selector import ALWAYS, Selector
from penstock.selector.ast import And, AttributeReference, Compare, Condition, IsNull, Like, Literal, Not, Or
from penstock.selector.like import parse_pattern

COMPARE = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def holds(node: Condition, values: Mapping[str, Scalar]) -> bool:
    """Ask a filter about raw values, as files do: what is null satisfies no comparison."""
    match node:
        case And(operands):
            return all(holds(one, values) for one in operands)
        case Or(operands):
            return any(holds(one, values) for one in operands)
        case Compare(sign, AttributeReference(name), Literal(value, _)):
            found = values.get(name)
            return found is not None and type(found) is type(value) and bool(COMPARE[sign](found, value))
        case Like(AttributeReference(name), pattern, escape):
            text = values.get(name)
            return isinstance(text, str) and parse_pattern(pattern, escape).matches(text)
        case IsNull(AttributeReference(name)):
            return values.get(name) is None
        case Not(IsNull(AttributeReference(name))):
            return values.get(name) is not None
        case Literal(value, _):
            return value is True
    raise AssertionError(node)


@settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(cases())
def test_what_is_shown_passes_the_filter(
    case: tuple[Family, list[tuple[EventType, Restriction, Selector]], list[TransitEvent]],
) -> None:
    family, readers, sent = case
    kinds = {str(a.id): a.spec.kind for one in family.types for a in one.attributes} | {str(TIME): Kind.TIMESTAMP}
    programs = [Program(n, restriction, of, own, ("",)) for n, (of, restriction, own) in enumerate(readers)]
    # So many that only bounds are left, which are weaker, and as they are.
    common = [necessary_for(programs * times, kinds) for times in (1, 9)]
    for program, (event_type, restriction, selector) in zip(programs, readers, strict=True):
        needed = necessary(program, kinds)
        give = Delivery(restriction, event_type, selector)
        rest = Delivery(without_decided(program, kinds).restriction, event_type, selector)
        for event in sent:
            assert event.time is not None
            values, around = {**event.values, TIME: event.time}, environment(event.time)
            shown = give(event, around)
            if shown is not None:
                assert all(holds(one, values) for one in (needed, *common) if one is not None), (needed, common)
            if needed is not None:
                assert shown == (rest(event, around) if holds(needed, values) else None), needed


def found(where: str) -> Condition | None:
    _, restriction, _ = reader(where)
    return necessary(
        Program(0, restriction, SIGHTING, ALWAYS, ("",)), {str(a.id): a.spec.kind for a in SIGHTING.attributes}
    )


def common(*where: str) -> Condition | None:
    programs = [Program(n, reader(text)[1], SIGHTING, ALWAYS, ("",)) for n, text in enumerate(where)]
    return necessary_for(programs, {str(a.id): a.spec.kind for a in SIGHTING.attributes})


def test_of_many_readers_the_bounds_are_pushed() -> None:
    assert common("plate = 'a'", "speed > 2") == by_id("plate = 'a' OR speed > 2").root
    ranges = [f"speed BETWEEN {n} AND {n + 3} AND plate = 'P{n % 2}' AND ratio > {n}" for n in range(5, 9)]
    bounds = by_id("plate = 'P0' OR plate = 'P1'").root, *(by_id(f"speed {one}").root for one in (">= 5", "<= 11"))
    assert isinstance(pushed := common(*ranges), And)
    assert {*pushed.operands} == {*bounds, by_id("ratio >= 5.0").root}
    assert common(*ranges, "plate = 'P0'") == bounds[0]
    assert common(*ranges, "speed = 2 OR ratio IS NULL") is None
    texts = common(*(f"plate = 'P{n:03}'" for n in range(300)))
    assert texts == by_id("plate >= 'P000' AND plate <= 'P299'").root
    assert common(*(f"speed = {n}" for n in range(1_001))) is None


def test_filters_do_not_distinguish_what_selectors_do_not() -> None:
    """Files tell 0.0 from -0.0, by bounds and by dictionaries."""
    assert found("ratio = 0.0") == by_id("ratio >= -5e-324 AND ratio <= 5e-324").root
    assert found("ratio >= 0") == by_id("ratio >= -5e-324").root
    assert found("ratio <= 0") == by_id("ratio <= 5e-324").root
    assert found("speed > 2.5") == by_id("speed >= 3").root
    assert found("speed = 2.5") == NEVER
    assert found("ratio < 9007199254740993") is None
    assert found("plate = 'a' OR speed + 1 > 2") is None
    assert found("plate = 'a' AND speed + 1 > 2") == by_id("plate = 'a'").root
