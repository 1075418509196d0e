"""Restrictions as values: union, intersection, equality, formulas, and how they are shown."""

import json
import pickle
from datetime import UTC, datetime, timedelta

import pytest
from tests.guard.london import LOCATION, NOW, PITO, PLATE, TIMESTAMP, TYPE, V4799

from penstock.errors import MalformedError
from penstock.guard import ANYTIME, NOTHING, Branch, Restriction, TypeScope, When
from penstock.guard.restriction import force
from penstock.model import TypeKey
from penstock.selector import ALWAYS, NEVER, evaluate, parse
from penstock.trust.capabilities import Right
from penstock.trust.tags import parse_tag
from penstock.trust.validity import Validity

READ, WRITE = Right.SUBSCRIBE, Right.PUBLISH


def branch(**fields: object) -> Branch:
    return Branch(**{"action": READ, **fields})  # type: ignore[arg-type]  # the tests choose the fields


def test_equal_branches_become_one_that_rests_on_both() -> None:
    both = Restriction.of([branch(because=("cert:a", "cert:b"))]) | Restriction.of([branch(because=("cert:c",))])
    assert [b.because for b in both.branches] == [("cert:a", "cert:b", "cert:c")]
    assert both.because == ("cert:a", "cert:b", "cert:c")


def test_branches_that_differ_are_never_merged() -> None:
    one = branch(attributes=frozenset({PLATE}), where=parse("x = 1"))
    two = branch(attributes=frozenset({LOCATION}), where=parse("y = 1"))
    assert (Restriction.of([one]) | Restriction.of([two])).branches == (one, two)


@pytest.mark.parametrize("value", [True, 1.0])
def test_one_and_true_and_one_point_zero_are_three_forced_values(value: float) -> None:
    # Python calls them equal.
    one, other = branch(forced=((PLATE, 1),)), branch(forced=((PLATE, value),))
    assert one == other
    assert len(Restriction.of([one, other]).branches) == 2
    assert one.intersect(other) is None


def test_an_attribute_is_forced_once() -> None:
    with pytest.raises(MalformedError) as caught:
        branch(forced=((PLATE, "a"), (PLATE, "b")))
    assert caught.value.code == "guard.forced-twice"


def test_intersection_takes_both_sides_of_every_field() -> None:
    spring = Validity.between(NOW, NOW + timedelta(days=30))
    one = branch(
        attributes=frozenset({PLATE, LOCATION}),
        forced=force({PLATE: "X"}),
        where=parse("a = 1"),
        guards=frozenset({"g"}),
        when=When(spring, parse("hour > 8")),
        source=False,
        because=("cert:1",),
    )
    two = branch(
        attributes=frozenset({LOCATION, TIMESTAMP}),
        forced=force({LOCATION: "Y"}),
        where=parse("b = 1"),
        guards=frozenset({"h"}),
        when=When(Validity.between(None, NOW + timedelta(days=7)), parse("rate < 3")),
        because=("cert:2", "cert:1"),
    )
    both = one.intersect(two)
    assert both == branch(
        attributes=frozenset({LOCATION}),
        forced=force({PLATE: "X", LOCATION: "Y"}),
        where=parse("a = 1 AND b = 1"),
        guards=frozenset({"g", "h"}),
        when=When(Validity.between(NOW, NOW + timedelta(days=7)), parse("hour > 8 AND rate < 3")),
        source=False,
    )
    assert both.because == ("cert:1", "cert:2")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (branch(), branch(action=WRITE)),
        (branch(forced=((PLATE, "X"),)), branch(forced=((PLATE, "Y"),))),
        (branch(types=TypeScope((b"a",))), branch(types=TypeScope((b"b",)))),
        (
            branch(when=When(Validity.between(None, NOW))),
            branch(when=When(Validity.between(NOW + timedelta(seconds=1)))),
        ),
    ],
)
def test_what_has_nothing_in_common_intersects_to_nothing(one: Branch, two: Branch) -> None:
    assert one.intersect(two) is None
    assert Restriction.of([one]) & Restriction.of([two]) == NOTHING


def test_all_attributes_is_the_unit_of_intersection() -> None:
    some = branch(attributes=frozenset({PLATE}))
    assert some.intersect(branch()) == some == branch().intersect(some)
    assert NOTHING & Restriction.of([some]) == NOTHING
    assert NOTHING | Restriction.of([some]) == Restriction.of([some])


def test_intersection_distributes_over_branches() -> None:
    a, b, c = (branch(attributes=frozenset({PLATE}), where=parse(f"{x} = 1")) for x in "abc")
    one, other = Restriction.of([a, b]), Restriction.of([c])
    assert {found.where.text for found in (one & other).branches} == {"a = 1 AND c = 1", "b = 1 AND c = 1"}


def test_a_scope_covers_names_patterns_and_sub_trees() -> None:
    owner = str(PITO.principal).encode()
    assert TypeScope().covers(TYPE)
    assert TypeScope((owner, b"uk.gov.pito.Numberplate", b"8516")).covers(TYPE)
    assert not TypeScope((owner, b"uk.gov.pito.Numberplate", b"8516")).covers(V4799.event_type)
    assert TypeScope(parse_tag((owner, (b"*", b"glob", b"uk.gov.*")))).covers(TYPE)
    assert TypeScope(within=frozenset({TYPE.key})).covers(TYPE)
    elsewhere = TypeKey(PITO.principal, "uk.gov.pito.Arrest")
    assert not TypeScope(within=frozenset({elsewhere})).covers(TYPE)
    both = TypeScope(within=frozenset({elsewhere})).intersect(TypeScope(within=frozenset({TYPE.key})))
    assert both == TypeScope(within=frozenset({elsewhere, TYPE.key}))


def test_a_restriction_speaks_about_one_action_on_one_type() -> None:
    mine, other = branch(), branch(action=WRITE)
    foreign = branch(types=TypeScope((b"ed25519:someone",)))
    assert Restriction.of([mine, other, foreign]).for_type(TYPE, READ).branches == (mine,)


def test_the_formula_of_one_attribute_has_the_branches_that_list_it() -> None:
    plates = branch(attributes=frozenset({PLATE}), where=parse("x = 1"))
    places = branch(attributes=frozenset({LOCATION}), forced=((PLATE, "A"),))
    restriction = Restriction.of([plates, places])
    assert restriction.formula(PLATE).text == "x = 1"
    assert evaluate(restriction.formula(LOCATION), {PLATE: "A"}) is True
    assert evaluate(restriction.formula(LOCATION), {PLATE: "B", "x": 1}) is False
    assert restriction.formula(TIMESTAMP) == NEVER
    assert NOTHING.formula() == NEVER
    assert Restriction.of([branch()]).formula() == ALWAYS


def test_a_restriction_is_plain_data_with_names_where_they_are_known() -> None:
    moment = datetime(2026, 1, 31, 9, tzinfo=UTC)
    shown = branch(
        attributes=frozenset({PLATE, TIMESTAMP}),
        forced=force({TIMESTAMP: moment}),
        where=parse(f"\"{PLATE}\" LIKE 'AE%'"),
        guards=frozenset({"court-order"}),
        when=When(Validity.between(None, NOW), parse("hour < 17")),
        because=("cert:1",),
    )
    plain = Restriction.of([shown]).as_dict(TYPE)
    assert plain == {
        "branches": [
            {
                "action": "subscribe",
                "attributes": ["numberplate", "timestamp"],
                "forced": {"timestamp": "2026-01-31T09:00:00+00:00"},
                "where": "numberplate LIKE 'AE%'",
                "guards": ["court-order"],
                "when": "hour < 17",
                "until": "2026-05-01_12:00:00",
                "because": ["cert:1"],
            }
        ]
    }
    assert json.loads(json.dumps(plain)) == plain
    assert Restriction.of([branch()]).as_dict() == {
        "branches": [{"action": "subscribe", "attributes": "*", "because": []}]
    }


def test_a_restriction_survives_pickling() -> None:
    restriction = Restriction.of([branch(attributes=frozenset({PLATE}), where=parse("x = 1"), when=ANYTIME)])
    again = pickle.loads(pickle.dumps(restriction))  # noqa: S301  # our own bytes
    assert again == restriction
    assert again.for_type(TYPE, READ) == restriction
