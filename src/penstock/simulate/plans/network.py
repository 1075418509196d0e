"""Try a network of brokers: how long a revocation takes, who still gets events, and what lost links do.

    report = simulate_network(tree(1000, 4))
    report.completions, report.last_deliveries

Each broker is a process with what decides about policy in production: `PolicyGossip`, which carries an owner's policy
and the acknowledgements over links, `PolicyKeeper`, which verifies and applies it, and `Completeness`, which says when
all brokers have. `SnapshotWriter` syncs snapshots to disks before they are acknowledged. Readers are at random brokers,
where events arrive at random times. An owner revokes their rights, some readers at a time.

Brokers note what they deliver to these readers, and the owner's broker notes when it knows that an order is complete.
All figures come from this log (`revocation_outcomes`), and the checker `no_delivery_after_revocation` reads it.

What is left out is what a revocation does not wait for: how brokers find and trust each other, and how events are
routed. Whole brokers are run by the world `brokers`; their cost grows with the cube of their number. A test compares
the times of both in networks of ten.
"""

import asyncio
import gc
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

from penstock.broker.evolution.completeness import Completeness
from penstock.broker.evolution.gossip import PolicyGossip
from penstock.broker.evolution.policy_keeper import Acknowledge, Changed, Output, PolicyKeeper
from penstock.broker.evolution.statements import Statement
from penstock.broker.limits import BrokerLimits
from penstock.broker.node.policies import SnapshotWriter
from penstock.codec.wire import Writable, decode, encode
from penstock.crypto import SigningKey
from penstock.errors import FailedError, MalformedError, PenstockError
from penstock.model.events import TransitEvent
from penstock.model.principals import Principal
from penstock.simulate.checkers import Log, no_delivery_after_revocation
from penstock.simulate.disk import DiskKeep
from penstock.simulate.network import Conditions, Latency, Pipe
from penstock.simulate.pure_work import shared_results
from penstock.simulate.simulation import Entry, ServiceTimes, Simulation
from penstock.store.files.strict_tables import Strict
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.policy_events import Acknowledgement, PolicyEvent, Revoke
from penstock.trust.policy_state import PolicyAuthor
from penstock.trust.signed import SignedValue, parse_signed

_FILE: Final = Strict.of("netplan.", "see docs/reference/trials.md")
#: virtual seconds: in which links come up, for which an order may take, and for which deliveries are noted before and
#: after it
_SETTLING: Final = 1.0
_LONGEST: Final = 60.0
_WATCH: Final = 0.1
#: seconds until a broker writes a snapshot again that its disk did not take, as its clock has it (`broker.node.node`)
_TICK: Final = 0.5
_MOST: Final = 5_000
#: the most seconds that a link of a plan can take for a message
_SLOWEST: Final = 10.0

# ----------------------------------------------------------------------------------------------------------------------
# Plans.


@dataclass(frozen=True, slots=True)
class PlannedLink:
    """A link between two brokers, of which the second calls the first; without a latency it has that of the network."""

    one: str
    other: str
    latency: Latency | None = None


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """The brokers of a network, and their links. Raises `MalformedError` (`netplan.value`)."""

    brokers: tuple[str, ...]
    links: tuple[PlannedLink, ...]

    def __post_init__(self) -> None:
        known, linked = frozenset(self.brokers), set[frozenset[str]]()
        for link in self.links:
            if link.one not in known or link.other not in known or link.one == link.other:
                message = f"there is no link between `{link.one[:80]}` and `{link.other[:80]}`"
                raise MalformedError("netplan.value", message, hint="name two different brokers of the plan")
            both = frozenset((link.one, link.other))
            if both in linked:
                message = f"there are two links between `{link.one[:80]}` and `{link.other[:80]}`"
                raise MalformedError("netplan.value", message, hint="write one of them")
            linked.add(both)
        if not 1 <= len(self.brokers) <= _MOST:
            raise MalformedError("netplan.value", f"a network has between 1 and {_MOST} brokers")

    def parts(self, without: Iterable[PlannedLink] = ()) -> list[set[str]]:
        """Return the parts of the network that are connected, the largest first, if some links are lost."""
        lost = frozenset(without)
        near: dict[str, list[str]] = {one: [] for one in self.brokers}
        for link in self.links:
            if link not in lost:
                near[link.one].append(link.other)
                near[link.other].append(link.one)
        found: list[set[str]] = []
        left = dict.fromkeys(self.brokers)
        while left:
            part, pending = set[str](), [next(iter(left))]
            while pending:
                one = pending.pop()
                if one not in part:
                    part.add(one)
                    pending += near[one]
            found.append(part)
            left = {one: None for one in left if one not in part}
        return sorted(found, key=len, reverse=True)


def tree(brokers: int, fan_out: int) -> BrokerPlan:
    """Return a tree in which each broker has so many below it.

    >>> [(link.one, link.other) for link in tree(4, 2).links]
    [('b0', 'b1'), ('b0', 'b2'), ('b1', 'b3')]
    """
    names = [f"b{number}" for number in range(brokers)]
    links = (PlannedLink(names[(number - 1) // fan_out], names[number]) for number in range(1, brokers))
    return BrokerPlan(tuple(names), tuple(links))


def random_graph(brokers: int, degree: int, random: Random) -> BrokerPlan:
    """Return a connected random graph whose brokers have so many links on average, and at most twice as many."""
    names = [f"b{number}" for number in range(brokers)]
    links: dict[tuple[int, int], None] = {}
    degrees = [0] * brokers

    def join(one: int, other: int) -> None:
        if (
            one != other
            and (min(one, other), max(one, other)) not in links
            and max(degrees[one], degrees[other]) < (2 * degree)
        ):
            links[min(one, other), max(one, other)] = None
            degrees[one] += 1
            degrees[other] += 1

    for number in range(1, brokers):
        # Each joins one that is there already, so that all are connected.
        while not degrees[number]:
            join(random.randrange(number), number)
    wanted = min(brokers * degree // 2, brokers * (brokers - 1) // 2)
    for _ in range(100 * wanted):
        if len(links) >= wanted:
            break
        join(random.randrange(brokers), random.randrange(brokers))
    return BrokerPlan(tuple(names), tuple(PlannedLink(names[one], names[other]) for one, other in links))


def read_network_plan(data: str | bytes, seed: int = 0) -> BrokerPlan:
    """Read a network plan: `links`, or a `shape`.

    Raises `MalformedError`: `netplan.syntax`, `netplan.unknown-key`, `netplan.missing`,
    `netplan.value`.
    """
    table = _FILE.parse(data)
    _FILE.known("the network plan", table, ("shape", "brokers", "degree", "links"))
    if "shape" in table:
        shape = _FILE.text("shape", table["shape"])
        brokers = _whole("brokers", _FILE.needed("the network plan", table, "brokers"))
        degree = _whole("degree", table.get("degree", 4))
        match shape:
            case "tree":
                return tree(brokers, degree)
            case "random":
                return random_graph(brokers, degree, Random(f"graph {seed}"))  # noqa: S311  # it must be repeatable
        raise _FILE.wrong("shape", "`tree` or `random`")
    links: list[PlannedLink] = []
    written = _FILE.needed("the network plan", table, "links")
    for place, one in enumerate(written if isinstance(written, list) else [None]):
        where = f"links[{place}]"
        link = _FILE.table(where, one)
        _FILE.known(f"`{where}`", link, ("between", "latency"))
        between = _FILE.texts(f"{where}.between", _FILE.needed(f"`{where}`", link, "between"))
        if len(between) != 2:  # a link has two ends
            raise _FILE.wrong(f"{where}.between", "two brokers")
        bounds = link.get("latency")
        latency = None if bounds is None else _latency(f"{where}.latency", bounds)
        links.append(PlannedLink(between[0], between[1], latency))
    named = dict.fromkeys(name for link in links for name in (link.one, link.other))
    return BrokerPlan(tuple(named), tuple(links))


def _whole(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise _FILE.wrong(where, f"a whole number from 1 to {_MOST}")
    return value


def _latency(where: str, value: object) -> Latency:
    match value:
        case [int() | float() as least, int() | float() as most] if not (
            isinstance(least, bool) or isinstance(most, bool)
        ):
            # Comparisons with NaN are false.
            if 0 <= least <= most <= _SLOWEST:
                return Latency(float(least), float(most))
    raise _FILE.wrong(where, f"the least and the most seconds of a message, from 0 to {_SLOWEST:g}")


# ----------------------------------------------------------------------------------------------------------------------
# What is found.


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTrial:
    """How to try a network."""

    seed: int = 0
    times: ServiceTimes = field(default_factory=ServiceTimes)
    latency: Latency = field(default_factory=lambda: Latency(0.001, 0.005))
    #: the owner's broker; without, the first one of the plan
    owner: str | None = None
    #: readers whose rights are revoked, by how many orders at most, and the events a second for each of them
    readers: int = 20
    orders: int = 4
    rate: float = 200.0
    #: links that are lost when an order is given, and for how many seconds
    lost: tuple[PlannedLink, ...] = ()
    lost_for: float = 5.0


@dataclass(frozen=True, slots=True)
class RevocationOutcome:
    """One order to revoke: seconds until it is complete (None: not in a minute), and what its readers still got."""

    complete: float | None
    #: by reader: seconds after the order of its last delivery; 0 if it got nothing more
    last: Mapping[str, float]
    #: by reader: deliveries after the order
    after_order: Mapping[str, int]
    #: deliveries to these readers after the order was complete, as `no_delivery_after_revocation` finds them
    after_complete: int


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """What a trial of a network has found."""

    brokers: int
    links: int
    orders: tuple[RevocationOutcome, ...]
    #: how many brokers are connected with the owner's if the lost links are taken away, with the owner's itself
    reached: int
    messages: int
    trace: str

    @property
    def completions(self) -> list[float]:
        """Seconds from each order until it was complete, ordered."""
        return sorted(one.complete for one in self.orders if one.complete is not None)

    @property
    def last_deliveries(self) -> list[float]:
        """Seconds from the order until the last delivery to each reader, ordered."""
        return sorted(seconds for one in self.orders for seconds in one.last.values())

    @property
    def deliveries(self) -> list[int]:
        """Deliveries to each reader after the order, ordered."""
        return sorted(count for one in self.orders for count in one.after_order.values())

    @property
    def incomplete(self) -> int:
        """Orders that were never complete."""
        return sum(one.complete is None for one in self.orders)

    @property
    def after_complete(self) -> int:
        """Deliveries after an order was complete: there must be none."""
        return sum(one.after_complete for one in self.orders)

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "brokers": self.brokers,
            "links": self.links,
            "reached": self.reached,
            "complete": _summary(self.completions),
            "last delivery": _summary(self.last_deliveries),
            "incomplete": self.incomplete,
            "deliveries after the order": sum(self.deliveries),
            "deliveries to a reader": {
                "median": at_share(self.deliveries, 0.5),
                "p99": at_share(self.deliveries, 0.99),
                "most": at_share(self.deliveries, 1.0),
            },
            "deliveries after completion": self.after_complete,
            "messages": self.messages,
            "trace": self.trace,
        }


def at_share(ordered: Sequence[float], share: float) -> float:
    """Return the least value that a share of all does not exceed; 0 of none.

    >>> [at_share(range(1, 101), share) for share in (0.5, 0.99, 1.0)]
    [50, 99, 100]
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _summary(ordered: Sequence[float]) -> dict[str, float | None]:
    shares = {"median": 0.5, "p99": 0.99, "longest": 1.0}
    return {name: at_share(ordered, share) if ordered else None for name, share in shares.items()}


def revocation_outcomes(log: Log) -> tuple[RevocationOutcome, ...]:
    """Return what became of each order to revoke, from the log of a run.

    `ordered(readers)`, `delivered(reader, topic, event)`, and `revoked(reader, topic)` when the order is complete.
    """
    orders = [entry for entry in log if entry.kind == "ordered"]
    notes: dict[Any, list[Entry]] = {reader: [] for order in orders for reader in _readers(order)}
    for entry in log:
        if entry.kind in ("delivered", "revoked"):
            notes[entry.fields["reader"]].append(entry)
    return tuple(_outcome(order.at, {reader: notes[reader] for reader in _readers(order)}) for order in orders)


def _readers(order: Entry) -> tuple[str, ...]:
    readers: Any = order.fields["readers"]
    return tuple(readers)


def _outcome(ordered: float, notes: Mapping[str, Log]) -> RevocationOutcome:
    """Return what became of an order, with the notes about each of its readers."""
    complete = [entry.at - ordered for those in notes.values() for entry in those if entry.kind == "revoked"]
    delivered = {
        reader: [entry.at - ordered for entry in those if entry.kind == "delivered"] for reader, those in notes.items()
    }
    return RevocationOutcome(
        max(complete) if len(complete) == len(notes) else None,
        {reader: max(0.0, max(times, default=0.0)) for reader, times in delivered.items()},
        {reader: sum(seconds > 0 for seconds in times) for reader, times in delivered.items()},
        sum(1 for those in notes.values() for _ in no_delivery_after_revocation(those)),
    )


def simulate_network(plan: BrokerPlan, trial: NetworkTrial | None = None) -> NetworkReport:
    """Try a network, with revocations.

    Raises `MalformedError` (`netplan.value`) if the plan does not have the owner's broker, `FailedError`
    (`simulate.stalled`) if the network does not come together.
    """
    return _NetworkRun(plan, trial or NetworkTrial()).report()


# ----------------------------------------------------------------------------------------------------------------------
# The run.


_LIMITS: Final = BrokerLimits(network_brokers=2 * _MOST)
_TOPIC: Final = "Reading"


def _key(name: str) -> SigningKey:
    return SigningKey(hashlib.sha256(f"simulated {name}".encode()).digest())


_OWNER: Final = _key("owner")
_OWNER_ID: Final = _OWNER.principal


def _subscribing(who: SigningKey) -> Certificate:
    tag = event_tag(_OWNER_ID, _TOPIC, None, [Right.SUBSCRIBE])
    return issue(Authorisation(_OWNER_ID, who.principal, tag, False), _OWNER)


class PolicyBroker:
    """The part of a broker that is about policy, in a process of its own (`PolicyBook`)."""

    def __init__(self, run: "_NetworkRun", name: str) -> None:
        simulation = run.simulation
        self._run = run
        self.name = name
        self.key = _key(name)
        self._clock = simulation.clock(name)
        self.keeper = PolicyKeeper(self.key, lambda *_: True, limits=_LIMITS)
        disk = simulation.disk(name)
        self._writer = SnapshotWriter(
            DiskKeep(disk).save, lambda owner: self.keeper.snapshot(self._clock.date(), owner), disk.background()
        )
        self.completeness = Completeness(_OWNER_ID, skew=timedelta(), limits=_LIMITS)
        self.gossip = PolicyGossip(
            self,
            self._clock.date,
            self._clock.steady,
            lambda *_: True,
            self._send,
            soon=simulation.loop.call_soon,
            note=self._note,
            limits=_LIMITS,
        )
        self._pipes: dict[Principal, tuple[Pipe, PolicyBroker]] = {}
        #: certificates that are revoked here, and the brokers that have acknowledged each event
        self.revoked: frozenset[str] = frozenset()
        self.acknowledging: dict[int, int] = {}
        self.keeper.follow(self._clock.date(), _OWNER_ID)

    def link(self, other: "PolicyBroker") -> None:
        """Open a link. Both sides compare what they have."""
        self._pipes[other.key.principal] = self._run.simulation.network.pipe(self.name, other.name), other
        self.gossip.linked(other.key.principal)

    def hand_in(self, data: bytes) -> None:
        """Take a policy event of the owner."""
        event = parse_signed(data, PolicyEvent).verify()
        self.take_events(self._clock.date(), [event])
        self.gossip.publish(event.unverified())

    def _send(self, peer: Principal, message: Writable) -> None:
        pipe, other = self._pipes[peer]
        data = encode(message)
        pipe.put(data, other.hear, self.key.principal, data)

    def hear(self, peer: Principal, data: bytes) -> None:
        """Process a message of a neighbour."""
        match decode(data):
            case ["policy", *words]:
                self.gossip.heard(peer, words)

    def _note(self, error: PenstockError) -> None:
        self._run.simulation.note(self.name, "reported", code=error.code)

    def _carry_out(self, outputs: Iterable[Output]) -> None:
        now = self._clock.date()
        for output in outputs:
            match output:
                case Changed(owner, number, state):
                    for _ in self._run.readers_at(self.name):
                        # Each reader's request is decided again.
                        self._run.simulation.service("decide")
                    self.revoked = frozenset(state.revoked)
                    self._carry_out(self.keeper.enforced(now, owner, number))
                case Acknowledge(acknowledgement):
                    self._acknowledge(acknowledgement)

    def _acknowledge(self, acknowledgement: SignedValue[Acknowledgement]) -> None:
        """Acknowledge when the snapshot is safe on the disk. If the disk does not take it, try again later."""

        def done(error: PenstockError | None) -> None:
            if error is not None:
                self._note(error)
                self._run.simulation.loop.call_later(_TICK, self._acknowledge, acknowledgement)
                return
            self.take_acknowledgement(self._clock.date(), acknowledgement)
            self.gossip.publish(acknowledgement.unverified())

        self._writer.save(acknowledgement.value.owner, done)

    # The book of the gossip.

    def owners(self) -> Iterable[Principal]:
        """Return the only owner."""
        return (_OWNER_ID,)

    def carries(self, owner: Principal) -> bool:
        """Return whether it is the only owner."""
        return owner == _OWNER_ID

    def top(self, owner: Principal) -> SignedValue[PolicyEvent] | None:
        """Return the last event."""
        return self.keeper.top(owner)

    def applied(self, owner: Principal) -> int:
        """Return the number of the last event."""
        return self.keeper.known(owner)

    def has(self, owner: Principal, number: int, digest: bytes) -> bool:
        """Return whether an event is known."""
        return self.keeper.has(owner, number, digest)

    def events(self, owner: Principal) -> Sequence[SignedValue[PolicyEvent]]:
        """Return all events."""
        return self.keeper.log(owner)

    def fork(self, owner: Principal) -> Sequence[SignedValue[PolicyEvent]]:
        """Return the proof of a fork, of which there is none."""
        return self.keeper.fork(owner)

    def acknowledgements(self, owner: Principal) -> Iterable[SignedValue[Acknowledgement]]:
        """Return the last acknowledgement of each broker."""
        return self.completeness.statements() if self.carries(owner) else ()

    def acknowledged(self, owner: Principal, broker: Principal) -> datetime | None:  # noqa: ARG002  # the only owner
        """Return when a broker acknowledged last."""
        return self.completeness.last(broker)

    def statements(self) -> Iterable[Statement]:
        """Return nothing: only fabrics ask."""
        return ()

    def take_events(self, now: datetime, events: Sequence[SignedValue[PolicyEvent]]) -> None:
        """Apply verified events."""
        for event in events:
            self.completeness.published(event)
        self._carry_out(self.keeper.take(now, events))

    def take_acknowledgement(self, now: datetime, acknowledgement: SignedValue[Acknowledgement]) -> None:
        """Record a verified acknowledgement."""
        self.completeness.acknowledged(now, acknowledgement)
        number = acknowledgement.value.number
        self.acknowledging[number] = self.acknowledging.get(number, 0) + 1
        if self.name == self._run.home and self.acknowledging[number] >= len(self._run.plan.brokers):
            completion = self.completeness.of(now, number, self._run.principals)
            if completion.complete:
                self._run.completed(number)

    def arrived(self, now: datetime, event: TransitEvent) -> None:
        """Do nothing: only on fabrics."""

    def heard_stamp(self, peer: Principal, stamp: bytes) -> None:
        """Do nothing: the owner does not use stamps."""

    def linked(self, peer: Principal) -> None:
        """Do nothing: the owner does not use stamps."""

    def compared(self) -> None:
        """Do nothing: nobody waits for it."""


class _NetworkRun:
    def __init__(self, plan: BrokerPlan, trial: NetworkTrial) -> None:
        self.plan = plan
        self.trial = trial
        if trial.owner is not None and trial.owner not in plan.brokers:
            raise MalformedError("netplan.value", f"the owner's broker `{trial.owner[:80]}` does not exist")
        self.simulation = simulation = Simulation(trial.seed, trial.times)
        simulation.network.conditions = Conditions(trial.latency)
        for link in plan.links:
            if link.latency is not None:
                simulation.network.set_between(link.one, link.other, Conditions(link.latency))
        draw = simulation.random("readers")
        #: the owner's broker, and the broker of each reader
        self.home = plan.brokers[0] if trial.owner is None else trial.owner
        self.homes = {f"r{number}": draw.choice(plan.brokers) for number in range(trial.readers)}
        self.rights = {one: _subscribing(_key(one)).id for one in self.homes}
        self._at: dict[str, list[str]] = {}
        for reader, home in self.homes.items():
            self._at.setdefault(home, []).append(reader)
        self.principals = [_key(one).principal for one in plan.brokers]
        #: the readers whose deliveries are noted: they lose their rights soon, or have lost them
        self._noted: set[str] = set()
        #: the readers of orders that are not complete, by the number of the policy event
        self._pending: dict[int, Sequence[str]] = {}
        self._done = asyncio.Event()

    def readers_at(self, broker: str) -> Sequence[str]:
        """Return the readers of a broker."""
        return self._at.get(broker, ())

    def completed(self, number: int) -> None:
        """Note that an order is complete: the owner's broker knows it."""
        for reader in self._pending.pop(number, ()):
            self.simulation.note(self.home, "revoked", reader=reader, topic=_TOPIC)
        self._done.set()

    def report(self) -> NetworkReport:
        async def drive() -> None:
            for name in self.plan.brokers:
                self.simulation.start(name, _nothing())
            self.brokers = {name: PolicyBroker(self, name) for name in self.plan.brokers}
            for link in self.plan.links:
                one, other = self.brokers[link.one], self.brokers[link.other]
                for near, far in ((one, other), (other, one)):
                    await self.simulation.start(near.name, _call(near.link, far))
            for reader, home in self.homes.items():
                self.simulation.start(home, self._deliver(reader))
            await asyncio.sleep(_SETTLING)
            author, readers = PolicyAuthor(_OWNER), [*self.homes]
            orders = min(self.trial.orders, len(readers))
            for order in range(orders):
                await self._revoke(author, readers[order::orders])  # one after the other

        with _uncollected(), shared_results(), self.simulation:
            self.simulation.run(drive())
            for report in self.simulation.loop.reports:
                raise FailedError("simulate.failed", f"a broker failed: {report.get('exception') or report}")
        reached = next(part for part in self.plan.parts(self.trial.lost) if self.home in part)
        return NetworkReport(
            len(self.plan.brokers),
            len(self.plan.links),
            revocation_outcomes(self.simulation.log),
            len(reached),
            self.simulation.messages,
            self.simulation.trace,
        )

    async def _deliver(self, reader: str) -> None:
        """Deliver events to a reader as they arrive at its broker, until its right is revoked there."""
        home, right, random = self.homes[reader], self.rights[reader], self.simulation.random(f"events of {reader}")
        broker = self.brokers[home]
        for number in itertools.count(1):
            await asyncio.sleep(random.expovariate(self.trial.rate))
            if right in broker.revoked:
                continue
            self.simulation.service("deliver")
            if reader in self._noted:
                self.simulation.note(home, "delivered", reader=reader, topic=_TOPIC, event=f"{reader}.{number}")

    async def _revoke(self, author: PolicyAuthor, readers: Sequence[str]) -> None:
        """Revoke the rights of readers by one order, and wait until it is complete and deliveries can have ended."""
        simulation, network = self.simulation, self.simulation.network
        self._noted.update(readers)
        await asyncio.sleep(_WATCH)
        event = author.change(simulation.clock(self.home).date(), Revoke(tuple(self.rights[one] for one in readers)))
        heal = [network.partition([link.one], [link.other]) for link in self.trial.lost]
        if heal:
            simulation.loop.call_later(self.trial.lost_for, lambda: [undo() for undo in heal])
        number, ordered = author.number, simulation.time
        self._pending[number] = readers
        simulation.note("owner", "ordered", readers=tuple(readers))
        network.later(
            self.home, ordered + network.latency("owner", self.home), self.brokers[self.home].hand_in, event.to_bytes()
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST):
                while number in self._pending:
                    self._done.clear()
                    await self._done.wait()
        await asyncio.sleep(max(_WATCH, ordered + self.trial.lost_for + _WATCH - simulation.time if heal else 0.0))
        if self._pending.pop(number, None) is not None:
            # It is not complete in time, and more deliveries would show nothing else.
            self._noted.difference_update(readers)


async def _nothing() -> None:
    """Let a process be there."""


async def _call(function: Callable[..., object], *args: object) -> None:
    function(*args)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Do not search for garbage: millions of acknowledgements are kept until the end, and looked at again each time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
