"""Sealed filters against their oracles: networks that push no filter at all, and what coverage promises everywhere."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.network import NUMBER, filter_of, make_type
from tests.broker.sealed_kit import CAR, NOW, PLATE, SPEED, Line
from tests.budget import examples

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.filters import Covering
from penstock.broker.routing.outputs import Deliveries
from penstock.broker.sealing.blocks import Vault
from penstock.broker.sealing.filters import Column, KeyFilters, NoFilters
from penstock.broker.wire.entries import AnyFilter, Filter
from penstock.crypto.seal_keys import LiveKeys, column_scope
from penstock.crypto.wrapping import Secret
from penstock.errors import EvaluationError
from penstock.model.events import Event, TransitEvent
from penstock.model.names import TypeKey
from penstock.model.types import EventType, Sealing
from penstock.model.values import Scalar
from penstock.selector import Selector, evaluate

TRUCK = make_type("Truck", {"axles": NUMBER}, CAR)
TYPES = {"car": CAR, "truck": TRUCK}
SCOPES = [
    scope
    for of_type in TYPES.values()
    for scope in (str(of_type.key), *(column_scope(of_type.key, str(one.id)) for one in of_type.attributes))
]
TEXTS = [
    "speed > 3",
    "speed > 5",
    "speed < 4",
    "speed BETWEEN 2 AND 6 AND speed <> 4",
    "speed = 4 OR speed = 6",
    "speed IS NULL",
    "NOT speed = 4",
    "6 / speed > 1",
    "plate = 'x'",
    "plate LIKE 'x%' AND speed > 2",
    "plate = 'x' OR speed > 5",
    "plate = 'x' AND (plate = 'y' OR speed > 3)",
    "speed > 3 AND plate IS NOT NULL",
    "TRUE",
    # Two that nothing ever matches, and that need not be sent on.
    "speed > 4 AND speed < 4",
    "FALSE",
]


FILTERS = {(key, text): filter_of(of_type, text) for key, of_type in TYPES.items() for text in TEXTS}


def secret(scope: str, epoch: int) -> Secret:
    return Secret(hashlib.sha256(f"{scope} {epoch}".encode()).digest())


# Coverage.

COLUMNS = st.sampled_from([(attribute, epoch) for attribute in (PLATE, SPEED) for epoch in (1, 2)])


def filters(held: Iterable[tuple[str, int]]) -> KeyFilters:
    keys = LiveKeys()
    for scope, epoch in held:
        keys.begin(scope, epoch, secret(scope, epoch))
    return KeyFilters(keys, lambda _of_type: Sealing.ATTRIBUTE, limits=BrokerLimits())


def wants(found: KeyFilters, filter_: AnyFilter, columns: Collection[Column], values: Mapping[str, Scalar]) -> bool:
    if isinstance(filter_, Filter):
        return True
    return _true(found.open(CAR.key, filter_).where(columns), values)


def _true(selector: Selector, values: Mapping[str, Scalar]) -> bool:
    try:
        return evaluate(selector, values) is True
    except EvaluationError:
        return False


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_what_covers_another_at_one_broker_lets_as_much_through_at_every_other(data: st.DataObject) -> None:
    made = []
    for _ in range(2):
        epochs = [(attribute, data.draw(st.integers(1, 2))) for attribute in (PLATE, SPEED)]
        made.append(filters(epochs).seal(CAR.key, FILTERS["car", data.draw(st.sampled_from(TEXTS[:-2]))]))
    here, there = (filters(data.draw(st.sets(COLUMNS))) for _ in range(2))
    covering: Covering[int] = Covering(CAR.key, here, limits=BrokerLimits())
    for number, filter_ in enumerate(made):
        covering.put(number, filter_)
    sent = list(covering)
    columns = {(attribute, data.draw(st.integers(1, 2))) for attribute in (PLATE, SPEED)}
    plate, speed = data.draw(st.sampled_from(["x", "y", None])), data.draw(st.integers(0, 7) | st.none())
    values = {name: value for name, value in ((PLATE, plate), (SPEED, speed)) if value is not None}
    wanted = any(wants(there, filter_, columns, values) for filter_ in made)
    assert wanted == any(wants(there, filter_, columns, values) for filter_ in sent)


# Deliveries.


class Silent(NoFilters):
    """Tells nobody anything of a filter."""

    def seal(self, _of_type: TypeKey, _filter: Filter, /) -> AnyFilter:
        return Filter()


@dataclass
class Road(Line):
    """A line whose brokers tell each other nothing of filters, if `silent`."""

    silent: bool = False

    def vault(self, name: str) -> Vault:
        found = super().vault(name)
        if self.silent:
            found.filters = Silent()  # type: ignore[misc]  # a vault that is like any other, but for this
        return found

    def deliver(self, here: str, deliveries: Deliveries) -> None:
        # What waits for a key goes to whoever wants it when the key comes. Who has subscribed since it was published
        # gets it or not: that depends on whether anybody wanted it before.
        super().deliver(here, tuple(one for one in deliveries if any(map(partial(_was_there, one[1]), one[0]))))


def _was_there(event: TransitEvent, subscription: str) -> bool:
    """Say whether a subscription is older than an event: both are numbered by the step that made them."""
    return int(subscription.split()[1]) < int(event.id.split()[0])


@dataclass(frozen=True)
class Step:
    """Something that happens: what, at which broker, with which number, and about what."""

    what: str
    broker: int
    number: int
    about: str


NAMES = ("a", "b", "c", "d")


def steps(*kinds: str) -> st.SearchStrategy[Step]:
    brokers, numbers = st.integers(0, len(NAMES) - 1), st.integers(0, 99)
    return st.builds(Step, st.sampled_from(kinds), brokers, numbers, st.sampled_from(TEXTS))


SCRIPTS = st.tuples(
    st.lists(steps("subscribe"), min_size=1, max_size=4),
    st.lists(steps("subscribe", "publish", "publish", "begin", "begin", "leave", "unsubscribe"), max_size=10),
)
#: most brokers can read most; some lack a key, and some have none
HELD = st.one_of(
    st.just(SCOPES),
    st.just(SCOPES),
    st.sampled_from(SCOPES).map(lambda missing: [scope for scope in SCOPES if scope != missing]),
    st.just(list[str]()),
)


def do(road: Road, step: Step, count: int) -> None:
    name = NAMES[step.broker]
    if step.what == "subscribe":
        # Somebody without keys wants everything, and leaves nothing to be filtered.
        readers = [other for other in NAMES if any(road.rings[other].items())] or NAMES
        name = readers[step.broker % len(readers)]
    router, held = road.routers[name], road.rings[name]
    kind = ("car", "truck")[step.number % 2]
    of_type = TYPES[kind]
    scope = SCOPES[step.number % len(SCOPES)]
    match step.what:
        case "subscribe":
            road.run(name, router.subscribe(f"s {count}", of_type.key, FILTERS[kind, step.about]))
        case "unsubscribe" if count:
            taken = [key for key in (f"s {number}" for number in range(count)) if key in _subscribed(road, name)]
            road.run(name, router.unsubscribe(taken[step.number % len(taken)]) if taken else [])
        case "publish":
            road.run("p", road.routers["p"].publish(of_type.name.name, _events(of_type, step.number, count)))
        case "begin":
            # The publisher has every key first, and others when they hear of it.
            epoch = (road.rings["p"].current(scope) or 0) + step.number % 3 // 2
            for one in dict.fromkeys(("p", name)):
                road.rings[one].begin(scope, epoch, secret(scope, epoch))
                road.run(one, road.routers[one].keys_changed())
        case "leave":
            held.leave(scope)


def _subscribed(road: Road, name: str) -> Collection[str]:
    return road.routers[name]._forest.subscribed


def _events(of_type: EventType, number: int, count: int) -> list[TransitEvent]:
    rows = [(None, number % 8), ("x", (number + 3) % 8), ("y", None), ("x", 6)]
    return [
        Event.of(of_type, {"plate": plate, "speed": speed}, id=f"{count} {row}", time=NOW).to_transit()
        for row, (plate, speed) in enumerate(rows)
    ]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([Sealing.ATTRIBUTE, Sealing.ATTRIBUTE, Sealing.EVENT]),
    st.integers(0, len(NAMES)),
    st.lists(HELD, min_size=len(NAMES), max_size=len(NAMES)),
    SCRIPTS,
)
def test_deliveries_are_those_of_a_network_that_pushes_no_filter(
    sealing: Sealing, place: int, held: list[list[str]], script: tuple[list[Step], list[Step]]
) -> None:
    roads = []
    for silent in (False, True):
        order = [*NAMES[:place], "p", *NAMES[place:]]
        road = Road(dict.fromkeys(order, ()), sealing, silent=silent)
        for name, scopes in zip(("p", *NAMES), (SCOPES, *held), strict=True):
            for scope in scopes:
                road.rings[name].begin(scope, 1, secret(scope, 1))
        for of_type in TYPES.values():
            key = of_type.name.name
            road.run("p", road.routers["p"].advertise(key, of_type.key, of_type.ancestors))
        last = [Step("publish", 0, number, "TRUE") for number in (4, 5)]
        for count, step in enumerate([*script[0], *script[1], *last]):
            do(road, step, count)
        assert not road.cuts
        roads.append(road)
    pushing, oracle = roads
    assert _delivered(pushing) == _delivered(oracle)


def _delivered(road: Road) -> Counter[tuple[str, str, str]]:
    return Counter(
        (name, event.id, str(sorted(event.values.items())))
        for name, events in road.delivered.items()
        for event in events
    )
