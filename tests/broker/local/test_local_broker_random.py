"""A local broker against an oracle that decides again for each event."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.sports import (
    AGENCY,
    PDA,
    Node,
)
from tests.budget import examples
from tests.guard.strategies import GUARDS, NOON, Family, events, families, restrictions, selectors

from penstock.broker.limits import BrokerLimits
from penstock.broker.local.decisions import AuthoritySources
from penstock.broker.local.requests import Given, Refused
from penstock.broker.local.type_library import Library
from penstock.guard import Branch, Delivery, EventRequest, Request, Restriction, Rules, TypeScope, decide
from penstock.guard import environment as surroundings
from penstock.guard.decision import Ruling
from penstock.model import Event, EventType, TransitEvent, TypeKey, TypeName
from penstock.selector import ALWAYS, Selector
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType
from penstock.trust.validity import ALWAYS as FOREVER


class Shelf(Library):
    """Types that need no signature."""

    def __init__(self, types: Iterable[EventType]) -> None:
        super().__init__(limits=BrokerLimits())
        self.types = {
            one.name: VerifiedType(str(one.name), one, None, AGENCY.principal, FOREVER, ())  # type: ignore[arg-type]  # unused
            for one in types
        }

    def __contains__(self, name: TypeName) -> bool:
        return name in self.types

    def get(self, name: TypeName, now: datetime) -> VerifiedType:
        return self.types[name]

    def below(self, key: TypeKey, now: datetime) -> Iterable[VerifiedType]:  # type: ignore[override]  # as good
        found = [v for v in self.types.values() if key in (v.event_type.key, *v.event_type.ancestors)]
        return sorted(found, key=lambda v: len(v.event_type.ancestors))


@dataclass(frozen=True)
class Scripted:
    """A source that says what a test wants."""

    restriction: Restriction

    def rule(self, request: Request) -> Ruling:
        if not isinstance(request, EventRequest):
            return Ruling((Branch(action=request.action, attributes=frozenset()),))
        return Ruling(self.restriction.branches)


def naive(
    shelf: Shelf, source: Scripted, asked: tuple[EventType, Selector], event: TransitEvent, now: datetime
) -> Event | None:
    """Decide about every type that the event is of, at its time, and deliver what all of it shows together."""
    reader, selector = asked
    branches: list[Branch] = []
    for verified in shelf.below(reader.key, now):
        one = verified.event_type
        if one.key not in (event.key, *event.ancestors) or (one.key == reader.key and one != reader):
            continue
        decision = decide(EventRequest(PDA.principal, Right.SUBSCRIBE, verified, now), [source])
        ids = frozenset(one.by_id)
        branches += [
            replace(b, types=TypeScope(), attributes=ids if b.attributes is None else ids & b.attributes)
            for b in decision.restriction.branches
        ]
    return Delivery(Restriction(tuple(branches)), reader, selector, Rules(GUARDS))(event, surroundings(now, rate=0))


@st.composite
def writers(draw: st.DrawFn, family: Family, reader: EventType) -> TransitEvent:
    kinds = [one for one in family.types if reader.key in (one.key, *one.ancestors)]
    return draw(events(draw(st.sampled_from(kinds)))).to_transit()


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_session_receives_what_deciding_anew_for_each_event_would_give_it(data: st.DataObject) -> None:
    family = data.draw(families())
    shelf = Shelf(family.types)
    made = Node(library=shelf, rules=Rules(GUARDS), now=NOON)
    source = Scripted(data.draw(restrictions(family, Right.SUBSCRIBE)))
    made.run(made.broker.change(made.now, sources=AuthoritySources(others=(source,))))
    made.connect(PDA)
    asked: dict[str, tuple[EventType, Selector]] = {}
    for step in range(data.draw(st.integers(4, 12))):
        match data.draw(st.sampled_from(["event"] * 5 + ["subscribe"] * 2 + ["policy", "time"])):
            case "subscribe":
                reader = data.draw(st.sampled_from(family.types))
                selector = data.draw(st.just(ALWAYS) | selectors(reader.schema))
                said = made.run(made.broker.subscribe(made.now, "pda", str(step), reader.name, selector))
                if not any(isinstance(output, Refused) for output in said):
                    asked[str(step)] = reader, selector
            case "policy":
                source = Scripted(data.draw(restrictions(family, Right.SUBSCRIBE, plain=data.draw(st.booleans()))))
                assert made.run(made.broker.change(made.now, sources=AuthoritySources(others=(source,)))) == []
            case "time":
                made.now += data.draw(st.sampled_from([timedelta(hours=1), timedelta(days=1), timedelta(seconds=1)]))
                made.run(made.broker.tick(made.now)[0])
            case _:
                event = data.draw(writers(family, data.draw(st.sampled_from(family.types))))
                seen = {o.subscription: repr(o.events[0].values) for o in made.inject(event) if isinstance(o, Given)}
                wanted: dict[str, str] = {}
                for id_, pair in asked.items():
                    if pair[0].key in (event.key, *event.ancestors):
                        found = naive(shelf, source, pair, event, made.now)
                        wanted |= {} if found is None else {id_: repr(found.values)}
                assert seen == wanted
