"""The promises of the guard, over random types, versions, restrictions, filters, events and environments.

Each is checked against `reference.py`, which says the same without compiling anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.guard import reference
from tests.guard.strategies import (
    GUARDS,
    HOSTILE,
    Family,
    environments,
    events,
    exclusive,
    families,
    restrictions,
    selectors,
    transits,
    values,
)

from penstock.errors import MalformedError, RefusedError
from penstock.guard import ANYTIME, Branch, Delivery, Publication, Restriction, Rules
from penstock.model import Event, EventType, Scalar, TransitEvent
from penstock.model.events import EventRows
from penstock.selector import ALWAYS, Selector
from penstock.trust.capabilities import Right

RULES = Rules(GUARDS)
often = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Scene:
    """A subscriber of one version, an event on its way to it, and what the broker knows."""

    family: Family
    reader: EventType
    event: TransitEvent
    env: Mapping[str, Scalar]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    family = draw(families())
    reader = draw(st.sampled_from(family.types))
    return Scene(family, reader, draw(transits(family, reader)), draw(environments()))


def shown(event: Event | None) -> dict[str, str] | None:
    """Return what is visible, in a form in which NaN equals NaN and 1 is not True."""
    if event is None:
        return None
    return {name: repr(value) for name, value in event.values.items() if value is not None}


def see(restriction: Restriction, scene: Scene, question: Selector = ALWAYS) -> dict[str, str] | None:
    return shown(Delivery(restriction, scene.reader, question, RULES)(scene.event, scene.env))


def held(restriction: Restriction, scene: Scene) -> list[object]:
    found = reference.holding(restriction.branches, scene.reader, scene.event.values, scene.env, GUARDS)
    return [id(branch) for branch in found]


@often
@given(st.data())
def test_nothing_is_revealed_that_no_holding_branch_lists(data: st.DataObject) -> None:
    scene = data.draw(scenes())
    restriction = data.draw(restrictions(scene.family, Right.SUBSCRIBE))
    question = data.draw(st.just(ALWAYS) | selectors(scene.reader.schema))
    seen = see(restriction, scene, question)
    found = reference.holding(restriction.branches, scene.reader, scene.event.values, scene.env, GUARDS)
    if not found:
        assert seen is None
    for name in seen or ():
        attribute = scene.reader.by_name[name].id
        assert any(branch.attributes is None or attribute in branch.attributes for branch in found)
        assert seen == see(restriction, scene)


@often
@given(st.data())
def test_hidden_values_change_nothing_whatever_is_asked(data: st.DataObject) -> None:
    scene = data.draw(scenes())
    restriction = data.draw(restrictions(scene.family, Right.SUBSCRIBE))
    if data.draw(st.booleans()):
        # The policy may itself look at what it hides; then the same branches must hold for the promise to bind.
        open_ = (replace(b, where=ALWAYS, forced=(), guards=frozenset(), when=ANYTIME) for b in restriction.branches)
        restriction = Restriction.of(open_)
    question = data.draw(selectors(scene.reader.schema))
    found = reference.holding(restriction.branches, scene.reader, scene.event.values, scene.env, GUARDS)
    row = dict(scene.event.values)
    for attribute, spec in scene.family.ids.items():
        if not any(reference.lists(branch, attribute) for branch in found):
            row[attribute] = data.draw(values(spec) | st.sampled_from(HOSTILE))  # type: ignore[assignment]  # the fault
    other = replace(scene, event=replace(scene.event, values=row))
    if held(restriction, other) == held(restriction, scene):
        assert see(restriction, other, question) == see(restriction, scene, question)
    # The same in other words: the filter reads NULL in the place of what is hidden.
    view = see(restriction, scene)
    if view is not None:
        whole = scene.event.to_event(scene.reader)
        asked = reference.true(question.nullify(scene.reader.by_name.keys() - view.keys()), whole.values)
        assert see(restriction, scene, question) == (view if asked else None)


@often
@given(st.data())
def test_intersection_shows_what_both_show(data: st.DataObject) -> None:
    scene = data.draw(scenes())
    one, two = (data.draw(restrictions(scene.family, Right.SUBSCRIBE)) for _ in range(2))
    both, left, right = see(one & two, scene), see(one, scene), see(two, scene)
    if left is None or right is None:
        assert both is None
    else:
        assert both == {name: value for name, value in left.items() if name in right}


@often
@given(st.data())
def test_union_shows_what_either_shows(data: st.DataObject) -> None:
    scene = data.draw(scenes())
    one, two = (data.draw(restrictions(scene.family, Right.SUBSCRIBE)) for _ in range(2))
    both, left, right = see(one | two, scene), see(one, scene), see(two, scene)
    if left is None and right is None:
        assert both is None
    else:
        assert both == {**(left or {}), **(right or {})}


@often
@given(st.data())
def test_delivery_is_what_the_plan_says(data: st.DataObject) -> None:
    scene = data.draw(scenes())
    restriction = data.draw(restrictions(scene.family, Right.SUBSCRIBE))
    question = data.draw(st.just(ALWAYS) | selectors(scene.reader.schema))
    expected = reference.deliver(
        restriction.branches, scene.event, scene.reader, question, env=scene.env, guards=GUARDS
    )
    delivered = Delivery(restriction, scene.reader, question, RULES)(scene.event, scene.env)
    assert shown(delivered) == (None if expected is None else shown(Event(scene.reader, expected)))
    if delivered is not None:
        assert delivered.values.keys() == scene.reader.by_name.keys()
        assert (delivered.type, delivered.id, delivered.time) == (scene.reader, scene.event.id, scene.event.time)
        # What is delivered is an event of the reader's version, whoever sent it.
        Event.of(scene.reader, delivered.values)


@often
@given(st.data())
def test_the_formula_says_when_an_attribute_is_shown(data: st.DataObject) -> None:
    scene = data.draw(scenes())
    plain = data.draw(restrictions(scene.family, Right.SUBSCRIBE, plain=True)).for_type(scene.reader, Right.SUBSCRIBE)
    view = see(plain, scene)
    whole = shown(scene.event.to_event(scene.reader)) or {}
    assert reference.true(plain.formula(), scene.event.values) is (view is not None)
    for attribute in scene.reader.attributes:
        told = reference.true(plain.formula(attribute.id), scene.event.values)
        assert (attribute.name in (view or {})) is (told and attribute.name in whole)


@often
@given(st.data())
def test_the_formula_excludes_what_is_never_shown(data: st.DataObject) -> None:
    scene = data.draw(scenes())
    restriction = data.draw(restrictions(scene.family, Right.SUBSCRIBE))
    for name in see(restriction, scene) or ():
        assert reference.true(restriction.formula(scene.reader.by_name[name].id), scene.event.values)


def send(restriction: Restriction, event: Event, env: Mapping[str, Scalar]) -> TransitEvent | str:
    try:
        return Publication(restriction, event.type, RULES)(event, env)
    except RefusedError as error:
        return error.code


@often
@given(st.data())
def test_publishing_is_what_the_plan_says(data: st.DataObject) -> None:
    family = data.draw(families())
    event = data.draw(st.sampled_from(family.types).flatmap(events))
    env = data.draw(environments())
    restriction = data.draw(restrictions(family, Right.PUBLISH) | exclusive(event.type, Right.PUBLISH))
    sent = send(restriction, event, env)
    match reference.publish(restriction.branches, event, env, GUARDS):
        case None:
            assert sent == "guard.not-permitted"
        case reference.AMBIGUOUS:
            assert sent == "guard.ambiguous-forced"
        case expected:
            assert isinstance(sent, TransitEvent)
            assert {a: repr(v) for a, v in sent.values.items()} == {a: repr(v) for a, v in expected.items()}  # type: ignore[union-attr]  # the last case is of values
            assert (sent.key, sent.ancestors) == (event.type.key, event.type.ancestors)


@often
@given(st.data())
def test_what_goes_out_is_granted_as_it_goes_out(data: st.DataObject) -> None:
    family = data.draw(families())
    event = data.draw(st.sampled_from(family.types).flatmap(events))
    env = data.draw(environments())
    rights = restrictions(family, Right.PUBLISH) | exclusive(event.type, Right.PUBLISH)
    restriction = data.draw(rights).for_type(event.type, Right.PUBLISH)
    sent = send(restriction, event, env)
    if isinstance(sent, str):
        return
    row = sent.values
    own = {str(attribute) for attribute in event.type.by_id}
    good = [
        branch
        for branch in restriction.branches
        if reference.passes(branch, row, env, GUARDS)
        and all(reference.equal(row.get(a), value) for a, value in branch.forced if a in own)
    ]
    assert good
    assert row.keys() <= own
    for attribute in event.type.attributes:
        value = row.get(attribute.id)
        if value is not None:
            able = [branch for branch in good if reference.lists(branch, attribute.id)]
            assert able
            # It is the publisher's own value, or one that a right forces.
            assert value is event[attribute.name] or any(
                reference.equal(value, forced) for b in able for a, forced in b.forced if a == attribute.id
            )
    Event.of(event.type, {a.name: row.get(a.id) for a in event.type.attributes})


@often
@given(st.data())
def test_one_right_forces_its_values_whatever_is_said(data: st.DataObject) -> None:
    family = data.draw(families())
    event = data.draw(st.sampled_from(family.types).flatmap(events))
    env = data.draw(environments())
    some = data.draw(restrictions(family, Right.PUBLISH))
    for branch in some.branches:
        sent = send(Restriction.of([branch]), event, env)
        if isinstance(sent, TransitEvent):
            assert all(reference.equal(sent.values.get(a), v) for a, v in branch.forced if a in event.type.by_id)
            assert reference.true(branch.where, sent.values)


@often
@given(st.data())
def test_intersection_publishes_no_more_than_either(data: st.DataObject) -> None:
    family = data.draw(families())
    event = data.draw(st.sampled_from(family.types).flatmap(events))
    env = data.draw(environments())
    one, two = (Restriction(data.draw(restrictions(family, Right.PUBLISH)).branches[:1]) for _ in range(2))
    both = send(one & two, event, env)
    if isinstance(both, TransitEvent):
        # What goes out under both goes out unchanged under each.
        again = Event(event.type, {a.name: both.values.get(a.id) for a in event.type.attributes})
        for alone in (one, two):
            passed = send(alone, again, env)
            assert isinstance(passed, TransitEvent)
            assert {a: repr(v) for a, v in passed.values.items()} == {a: repr(v) for a, v in both.values.items()}


def as_row(event: Event) -> list[Scalar]:
    return [event.id, event.time, *event.values.values()]


@often
@given(st.data())
def test_the_loop_shows_rows_as_events_are_shown_one_by_one(data: st.DataObject) -> None:
    family = data.draw(families())
    reader = data.draw(st.sampled_from(family.types))
    below = [one for one in family.types if reader.key in (one.key, *one.ancestors)]
    source = data.draw(st.sampled_from(below))
    sent = data.draw(st.lists(events(source), max_size=3))
    env = data.draw(environments())
    restriction = data.draw(restrictions(family, Right.SUBSCRIBE))
    question = data.draw(st.just(ALWAYS) | selectors(reader.schema))
    problems: list[tuple[str, tuple[str, ...]]] = []
    rules = replace(RULES, on_problem=lambda *problem: problems.append(problem))
    delivery = Delivery(restriction, reader, question, rules)
    plain = [seen for event in sent if (seen := delivery(event.to_transit(), env)) is not None]
    expected, known = [repr(as_row(seen)) for seen in plain], problems.copy()
    problems.clear()
    assert [repr(row) for row in delivery.for_rows(source)([as_row(event) for event in sent], env)] == expected
    assert problems == known


@often
@given(st.data())
def test_the_loop_shows_arrived_rows_as_events_are_shown_one_by_one(data: st.DataObject) -> None:
    family = data.draw(families())
    reader = data.draw(st.sampled_from(family.types))
    first = data.draw(transits(family, reader))
    others = data.draw(st.lists(transits(family, reader), max_size=2))
    rows: list[Mapping[str, Scalar]] = [first.values, *(one.values for one in others)]
    layout = tuple(data.draw(st.permutations(sorted({name for row in rows for name in row}))))
    sent = EventRows(first.key, first.ancestors, layout, [["", None, *map(row.get, layout)] for row in rows])
    env = data.draw(environments())
    restriction = data.draw(restrictions(family, Right.SUBSCRIBE))
    question = data.draw(st.just(ALWAYS) | selectors(reader.schema))
    problems: list[tuple[str, tuple[str, ...]]] = []
    rules = replace(RULES, on_problem=lambda *problem: problems.append(problem))
    delivery = Delivery(restriction, reader, question, rules)
    plain = [seen for event in sent if (seen := delivery(event, env)) is not None]
    expected, known = [repr(as_row(seen)) for seen in plain], problems.copy()
    problems.clear()
    assert [repr(row) for row in delivery.for_arrivals(sent)(sent.rows, env)] == expected
    assert problems == known


@often
@given(st.data())
def test_the_loop_admits_rows_as_events_are_admitted_one_by_one(data: st.DataObject) -> None:
    family = data.draw(families())
    written = data.draw(st.sampled_from(family.types))
    listed = data.draw(st.none() | st.frozensets(st.sampled_from([a.id for a in written.attributes])))
    publication = Publication(Restriction((Branch(action=Right.PUBLISH, attributes=listed),)), written, RULES)
    if publication.admit is None:
        return
    stated: st.SearchStrategy[dict[str, Scalar]] = st.fixed_dictionaries(
        {a.name: st.none() | values(a.spec) | st.sampled_from(HOSTILE) for a in written.attributes}
    )
    rows: list[list[Scalar]] = [["", None, *one.values()] for one in data.draw(st.lists(stated, max_size=4))]

    def plain(row: list[Scalar]) -> list[Scalar] | None:
        try:
            event = Event(written, dict(zip(written.by_name, row[2:], strict=True)))
            sent = publication(event, {})
        except MalformedError:
            return None
        return ["", None, *(sent.values.get(a.id) for a in written.attributes)]

    expected = [repr(found) for row in rows if (found := plain(row)) is not None]
    most = data.draw(st.sampled_from((0, 100, 1 << 20)))
    assert [repr(row) for row in publication.admit(rows, most, plain)] == expected
