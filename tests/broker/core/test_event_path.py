"""The event path: events that come as rows reach the same readers, with the same values, as one by one."""

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.sports import AGENCY, LIBRARY_TYPES, NEWS, NOW, PDA, SOCCER, Node, grant
from tests.budget import examples

from penstock.broker.local.requests import Given, Subscribe
from penstock.broker.routing.outputs import RowDeliveries
from penstock.model.events import EventRows
from penstock.selector import ALWAYS, parse
from penstock.trust.capabilities import BoundSelector, Right
from penstock.trust.certificates import Certificate

if TYPE_CHECKING:
    from penstock.model.values import Scalar

SPORT = LIBRARY_TYPES[SOCCER.name]
IDS = tuple(str(attribute.id) for attribute in SPORT.attributes)
RIGHTS: tuple[list[Certificate], ...] = (
    [grant(PDA, NEWS, Right.SUBSCRIBE)],
    [grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"])],
    [
        grant(
            PDA,
            SOCCER,
            Right.SUBSCRIBE,
            attributes=["goals", "agency"],
            where=[BoundSelector(parse("headline = 'a'"), {"headline": SPORT.by_name["headline"].id})],
        )
    ],
    [grant(PDA, SOCCER, Right.SUBSCRIBE), grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["location"])],
    [],
)
FILTERS = (None, "headline = 'a'", "location IS NULL", "goals > 1")
CELLS: st.SearchStrategy[Any] = st.sampled_from([None, "a", "b", "é", 1, 2, 1.5, True, NOW])


def reading(rights: list[Certificate], filters: tuple[str | None, ...]) -> Node:
    made = Node()
    made.policy(*rights)
    made.connect(PDA)
    for place, text in enumerate(filters):
        about = SOCCER if text is not None and "goals" in text else NEWS
        selector = ALWAYS if text is None else parse(text)
        made.run(made.broker.subscribe(made.now, "pda", str(place), about.name, selector))
    return made


def keys_of(made: Node) -> list[str]:
    """Return the keys of subscriptions, and for each one that it had before: what matches that is asked about again."""
    keys = [output.key for output in made.routed if isinstance(output, Subscribe)]
    return [*keys, *(f"{key.partition('.')[0]}.before" for key in keys)]


def counted(made: Node) -> list[tuple[str, str]]:
    session = made.broker.session("pda")
    return [(recorded.record.id, repr(counts)) for recorded, counts in session.tally.take()]


def told(given: list[Given]) -> list[str]:
    return [repr((one.session, one.subscription, one.type.name, one.rows)) for one in given]


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_rows_are_delivered_as_events_are_one_by_one(data: st.DataObject) -> None:
    made = reading(data.draw(st.sampled_from(RIGHTS)), data.draw(st.sampled_from([FILTERS[:1], FILTERS[1:], FILTERS])))
    keys = keys_of(made)
    layout = tuple(data.draw(st.permutations(IDS))[: data.draw(st.integers(0, len(IDS)))])
    rows: list[list[Scalar]] = data.draw(
        st.lists(st.tuples(st.just("id"), st.just(NOW), *(CELLS for _ in layout)).map(list), min_size=1, max_size=5)
    )
    found = [tuple(data.draw(st.lists(st.sampled_from(keys), unique=True))) if keys else () for _ in rows]
    events = EventRows(SPORT.key, SPORT.ancestors, layout, rows)
    arrived = RowDeliveries(found, events)
    assert arrived == [(names, event) for names, event in zip(found, events, strict=True) if names]
    if not len(arrived):
        return
    if data.draw(st.booleans()):
        made.broker.suspend(AGENCY.principal)
    delivered_alike(made, arrived)


def delivered_alike(made: Node, arrived: RowDeliveries) -> list[str]:
    """Deliver rows one by one and together; return what readers get."""
    expected = told(made.path.deliver([*arrived], NOW)), counted(made), made.broker.held_back
    while made.path._arrivals(arrived.events) is None:
        assert (told(made.path.deliver(arrived, NOW)), counted(made)) == expected[:2]
    made.broker.held_back = 0
    assert (told(made.path.deliver(arrived, NOW)), counted(made), made.broker.held_back) == expected
    return expected[0]


def test_rows_that_a_reader_may_not_see_are_counted_and_values_that_do_not_fit_are_hidden() -> None:
    made = reading(RIGHTS[2], (None,))
    key = keys_of(made)[-1]
    rows = [["1", NOW, "a", 1], ["2", NOW, "b", 2], ["3", NOW, "a", "x"], ["4", NOW, None, 4]]
    layout = str(SPORT.by_name["headline"].id), str(SPORT.by_name["goals"].id)
    events = EventRows(SPORT.key, SPORT.ancestors, layout, rows)
    (seen,) = delivered_alike(made, RowDeliveries([(key,)] * 4, events))
    assert "'1'" in seen
    assert "'3'" in seen
    assert not any(text in seen for text in ("'2'", "'4'", "'x'"))


def test_a_publisher_that_varies_what_it_leaves_out_and_whom_it_reaches_takes_little_memory() -> None:
    made = reading(RIGHTS[0], tuple(f"headline = '{number}'" for number in range(4)))
    keys = [output.key for output in made.routed if isinstance(output, Subscribe)]
    for number in range(200):
        layout = (*IDS, *(f"{SPORT.key}#other{place}" for place in range(number)))
        events = EventRows(SPORT.key, SPORT.ancestors, layout, [["", NOW, *[None] * len(layout)]] * 300)
        groups = [tuple(keys[:count]) for count in range(1, 5)]
        assert len(made.path.deliver(RowDeliveries([groups[place % 4] for place in range(300)], events), NOW)) == 4
        readers = made.path._arrivals(events)
        assert readers is not None
        loops = {(id(one.receiver.view), id(one.show)) for group in groups for one in readers[group]}
        # However many groups of readers there are, each of them has one loop.
        assert len(loops) == 4
    assert len(made.path._arrived) <= 64
