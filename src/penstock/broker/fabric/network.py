"""A network of brokers on a fabric: local brokers at the edges, and servers between them that nobody has to trust.

There are no links between brokers. An event that a client publishes goes to the topic of its type, h(owner ‖ name). A
broker reads the topics of the types that its clients want, and of their sub-types that it knows. Its router matches the
events that arrive against the clients' subscriptions. Brokers announce themselves on a topic of the network. Statements
about policy have their own topics, which keep the current ones for brokers that start later.

A sample is checked in this order. A sample that fails is refused, counted and reported to the operator:

1. It can be parsed, and is not too old, nor older than this broker, nor from the future.
2. Its origin signed it, for this network and this topic.
3. Its origin is in the network, and it and this broker may carry the type.
4. Its number is higher than all that came from there before; what is missing before it is counted.
5. It holds what it says, of that origin, sealed if its type is. What a sealed block holds is for the router to open.

The fabric may drop, delay and withhold samples. Dropped events are noticed when the next one arrives. Withheld policy
is noticed by the owner's time-stamps, as with links. Publishers do not learn that nobody wants their events (no
quenching).
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from penstock.broker.blinding import renamed
from penstock.broker.core.core import Core
from penstock.broker.core.event_path import WriteBudget
from penstock.broker.evolution.statements import (
    ACKNOWLEDGEMENT,
    PolicyBook,
    Statement,
    is_reserved,
    reserved_types,
    unwrap,
    wrap,
)
from penstock.broker.fabric.members import FabricMembers, SignedSample, Succession, check_future
from penstock.broker.fabric.topics import (
    STATE,
    Composed,
    EventWriting,
    StateWriting,
    Take,
    TopicReader,
    events_qos,
)
from penstock.broker.routing.membership import SignedProof, type_digest
from penstock.broker.sealing.blocks import SealedPublications, not_sealed
from penstock.broker.wire.plain_trees import malformed
from penstock.broker.wire.publications import Publications, blocks
from penstock.codec.wire import decode, encode
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.fabric import Fabric, Sample
from penstock.fabric.limits import FABRIC_BYTES
from penstock.fabric.tasks import in_background, keep_running
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.trust.policy_events import Acknowledgement, CarriedStamp, TimeStamp
from penstock.trust.signed import SignedValue, UnverifiedValue

# ----------------------------------------------------------------------------------------------------------------------
# The body of a sample of events: a sealed block, or plaintext events where the operator allows that.
#
# Everybody who runs or reaches a fabric can read its samples. So events of sealed types cross it in sealed blocks only,
# without plaintext beside them. Events of other types cross it only if the operator has said that everybody may read
# them. Statements about policy and keys are public, and signed or wrapped themselves.


_KINDS: Final = {kind.KIND: kind for kind in (Publications, SealedPublications)}


def write_body(block: Publications) -> bytes:
    """Return the bytes of a block for a fabric."""
    return encode([block.KIND, block.to_tree()])


def read_body(raw: bytes) -> Publications:
    """Read the bytes of a block from a fabric. Raises `MalformedError`, `LimitError`."""
    match decode(raw):
        case [str(kind), tree] if kind in _KINDS:
            block = _KINDS[kind].from_tree(tree)
        case _:
            malformed("a sample of events")
    if isinstance(block, SealedPublications) and block.beside:
        malformed("plaintext beside a sealed block, on a fabric")
    return block


# ----------------------------------------------------------------------------------------------------------------------
# The network.


#: the share of a sample that columns of events may take; header, seal and signature take the rest
_COLUMNS: Final = 0.75
#: seconds that a starting broker waits for answers about policy before clients may connect
_ANSWERING: Final = 5.0
_LOOK: Final = 0.005
#: seconds before they are asked again
_ASKING: Final = 1.0
#: seconds before a reconciliation that failed is tried again
_AGAIN: Final = 0.5
#: the period in which brokers check that the servers still keep all policy
_RESTATING: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSettings:
    """Settings of a network on a fabric; times are seconds. All brokers have to agree on `fresh` and `durable`."""

    fabric: Fabric
    #: whether events of unsealed types cross it too: everybody who runs or reaches the fabric can read them
    unsafe_plaintext: bool = False
    #: between two signs of life, and until a broker without one is forgotten
    renewal: float = 10.0
    absence: float = 30.0
    #: how old events may be when they come
    fresh: float = 60.0
    #: for how long events are kept for brokers that were away; 0 for not at all
    durable: float = 0.0


def topic_of(key: TypeKey) -> str:
    """Return the topic of a type in all its versions: h(owner ‖ name), in hexadecimal digits.

    Of a blinded type that is the name that its label makes, or whoever runs the servers would find it by trying.
    """
    return type_digest(key).hex()


class FabricNetwork:
    """See the module. It also carries statements about policy (`PolicyNetwork`), to and from `book`.

    The core calls it with what clients publish, and when their interests change (`FabricPort`).
    """

    def __init__(self, core: Core, settings: FabricSettings, book: PolicyBook, outbox: WriteBudget) -> None:
        self._core = core
        self._settings = settings
        self._fabric = settings.fabric
        self._proof = SignedProof(core.settings.key, core.settings.network, core.settings.limits)
        self._began = core.now()
        self._members = FabricMembers(
            core, self._proof, self._write_state, renewal=settings.renewal, absence=settings.absence
        )
        self._events = events_qos(settings.fresh, settings.durable)
        self._succession = Succession(core.settings.limits)
        self._started = False
        #: by topic
        self._states: dict[str, TopicReader] = {}
        self._readings: dict[TypeKey, TopicReader] = {}
        self._writings: dict[TypeKey, EventWriting] = {}
        self._state_writings: dict[str, StateWriting] = {}
        self._closing: set[asyncio.Task[None]] = set()
        #: types whose events were withheld from the fabric, which is reported once
        self._kept_back: set[TypeKey] = set()
        self._due: asyncio.Handle | None = None
        self._book = book
        self._missed = asyncio.Event()
        self._reconciling: list[asyncio.Task[None]] = []
        self._restated = core.now()
        self._outbox = outbox

    # Running.

    async def start(self) -> None:
        """Read which brokers are there and what owners have said, then announce this broker.

        Returns when the other brokers have answered, or after `_ANSWERING`. Until they have, nothing is delivered.
        Raises what the fabric raises.
        """
        self._states = {self._members.topic: self._state(self._members.topic, self._members.hear), **self._states}
        ready: set[str] = set()
        # Statements may make the broker follow further owners, whose topics are read too.
        while waiting := [topic for topic in self._states if topic not in ready]:
            for topic in waiting:
                await self._states[topic].load()
                self._states[topic].start()
            ready.update(waiting)
        self._started = True
        self._miss()
        self._reconciling = [
            keep_running("reconciling policy", self._keep_reconciled),
            keep_running("answering about policy", self._keep_answering),
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWERING):
                while self._core.local.held:
                    await asyncio.sleep(_LOOK)
        self.interests_changed()

    async def stop(self) -> None:
        """Send what waits, say goodbye, and stop."""
        patience = self._core.settings.limits.link_goodbye / 1000
        if self._due is not None:
            self._due.cancel()
        self._started = False
        for task in self._reconciling:
            task.cancel()
        await asyncio.gather(*self._reconciling, return_exceptions=True)
        await asyncio.gather(*(writing.close(patience) for writing in self._writings.values()))
        # After the goodbye, nobody accepts samples of this broker: it comes last.
        self._members.leave()
        await asyncio.gather(*(writing.close(patience) for writing in self._state_writings.values()))
        readings = (*self._readings.values(), *self._states.values())
        await asyncio.gather(*(reading.close() for reading in readings), *self._closing)

    def tick(self) -> None:
        """Announce this broker if that is due, and forget brokers that have gone or lost their rights."""
        if self._started:
            self._members.appear()
            if self._core.now() - self._restated > _RESTATING:
                self._members.asked.set()
        self._members.tick()

    def brokers(self) -> list[Principal]:
        """Return the brokers of the network, this one among them."""
        return self._members.all()

    def reads(self, key: TypeKey) -> bool:
        """Say whether events of a type that are published now will arrive here."""
        trees = self._core.labels.trees(key)
        return bool(trees) and all(tree in self._readings and self._readings[tree].up for tree in trees)

    # Events that come.

    def interests_changed(self) -> None:
        """Soon read the topics that clients want now. Several changes at a time cause one update."""
        if self._started and self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._read_wanted)

    def _read_wanted(self) -> None:
        self._due = None
        wanted = set(self._wanted())
        for key in wanted - self._readings.keys():
            reading = self._readings[key] = TopicReader(
                self._fabric, topic_of(key), self._events, partial(self._hear, key), self._note
            )
            reading.start()
        for key in self._readings.keys() - wanted:
            task = in_background("leaving a topic", self._readings.pop(key).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _wanted(self) -> Iterator[TypeKey]:
        now, library, labels = self._core.now(), self._core.library, self._core.labels
        for key in self._core.router.wanted():
            below = {verified.event_type.key for verified in library.below(key, now)}
            yield from (tree for one in (key, *below) for tree in labels.trees(one))

    async def _hear(self, key: TypeKey, sample: Sample) -> None:
        """Check a sample of events as the module says, and give the events to the router."""
        core, topic = self._core, topic_of(key)
        # (1) it reads, and is of now
        told = SignedSample.from_bytes(sample.data)
        if told.origin == core.principal:
            return
        self._check_time(told, core.begin())
        # (2) its origin signed it
        told.verify(topic, self._proof)
        # (3) its origin may
        await self._members.look_for(self._fabric, told.origin)
        self._check_trust(told.origin, key)
        # (4) it has not been before
        core.counts["missing"] += self._succession.take(topic, told)
        # (5) it holds what it says
        block = read_body(told.body)
        if (block.type, block.origin, block.incarnation) != (key, told.origin, told.incarnation) or block.retain:
            malformed("a sample holds what it does not say")
        self._check_sealed(block)
        core.settle(core.router.arrived(block))

    def _check_time(self, told: SignedSample, now: datetime) -> None:
        check_future(self._core, told, now)
        skew, settings = self._core.settings.trust.skew, self._settings
        oldest = now - timedelta(seconds=settings.durable or settings.fresh)
        if not settings.durable:
            # A broker that has just started does not know earlier samples, so that they could be replayed.
            oldest = max(oldest, self._began)
        if told.time < oldest - skew:
            raise RefusedError("network.late", f"a sample of {told.origin.short} is too old")

    def _check_trust(self, origin: Principal, key: TypeKey) -> None:
        core = self._core
        if origin not in self._members or not core.admitted(origin):
            raise RefusedError("network.unknown", f"{origin.short} is not a broker of the network")
        if not (core.may_route(key, origin) and core.may_route(key, core.principal)):
            raise RefusedError(
                "network.untrusted",
                f"{origin.short} and this broker do not both carry `{key.name}`",
                hint="the owner grants `route` to brokers that it trusts",
            )

    def _note(self, error: PenstockError) -> None:
        self._core.counts[error.code] += 1
        self._core.note(error)

    # Events that go.

    def spread(self, events: tuple[TransitEvent, ...]) -> None:
        """Send events of one type that clients of this broker have published to the other brokers."""
        core, key = self._core, events[0].key
        if core.labels.blinds(key):
            key = core.labels.in_use(key)
            events = tuple(renamed(events, key))
        if not core.may_route(key, core.principal):
            core.counts["not carried"] += len(events)
            return
        if not self._may_cross(key):
            core.counts["not carried"] += len(events)
            if key not in self._kept_back:
                self._kept_back.add(key)
                self._note(_unsealed(key))
            return
        writing = self._writings.get(key)
        if writing is None:
            writing = self._writings[key] = EventWriting(
                self._fabric, topic_of(key), self._events, self._note, composer=_Composer(self, key), room=self._outbox
            )
        writing.put(events)

    def _seals(self, key: TypeKey) -> bool:
        return self._core.sealing.seals(key)

    def _may_cross(self, key: TypeKey) -> bool:
        return self._settings.unsafe_plaintext or is_reserved(key.name) or self._seals(key)

    def _check_sealed(self, block: Publications) -> None:
        sealed = isinstance(block, SealedPublications)
        if not sealed and any(map(self._seals, (block.type, *block.ancestors))):
            raise not_sealed(block.type)
        if not sealed and not self._may_cross(block.type):
            raise _unsealed(block.type)

    def sign(self, topic: str, block: Publications, number: int) -> Composed:
        """Return a block as a signed sample of a topic."""
        now = self._core.now()
        body = write_body(block)
        made = SignedSample(self._core.principal, self._members.incarnation, number, now, body)
        return Composed(made.sign(topic, self._proof).to_bytes(), len(block.events), now)

    def parts(self, events: tuple[TransitEvent, ...], first: int) -> Iterator[Publications]:
        """Yield events as blocks that fit into samples, sealed if their type is.

        Raises `LimitError` (`route.event-size`), and what sealing raises.
        """
        # Blocks are sealed by the time that was last asked for.
        self._core.now()
        limits = self._core.settings.limits
        limits = replace(limits, route_block_bytes=min(limits.route_block_bytes, int(FABRIC_BYTES * _COLUMNS)))
        for block in blocks(self._core.principal, self._members.incarnation, first, events):
            for part in block.parts(limits):
                if self._seals(part.type):
                    yield from SealedPublications.sealing_all(part, self._core.sealing, limits)
                else:
                    yield part

    def is_fresh(self, sample: Composed) -> bool:
        """Say whether readers would still accept a sample."""
        most = self._settings.durable or self._settings.fresh
        return self._core.now() - sample.time <= timedelta(seconds=most)

    def lose(self, events: int) -> None:
        """Count events that were published here and will not reach other brokers."""
        self._core.counts["lost"] += events

    # Statements about policy.

    def is_compared(self, owner: Principal) -> bool:  # noqa: ARG002  # the same for all owners
        """Return True: topics are read before clients are served, so it is known how far an owner's chain goes."""
        return True

    def follow(self, owner: Principal) -> None:
        """Read the topics about an owner's policy."""
        for key in reserved_types(owner):
            reading = self._states[topic_of(key)] = self._state(topic_of(key), partial(self._hear_policy, key))
            if self._started:
                reading.start()

    def ask_again(self, owner: Principal) -> None:
        """Read again what the topics of an owner keep."""
        for key in reserved_types(owner):
            if self._started:
                self._states[topic_of(key)].again()

    def publish(self, statement: Statement) -> None:
        """Write a statement to the topic of its kind, under its slot."""
        retained = wrap(statement)
        block = Publications(self._core.principal, self._members.incarnation, (0,), (retained.event,), 0, retained.slot)
        self._write_state(topic_of(retained.event.key), retained.slot, write_body(block))

    def stamped(self, stamp: SignedValue[TimeStamp]) -> None:
        """Write an owner's stamp to its topic."""
        self.publish(CarriedStamp(stamp.unverified()))

    def neighbours(self) -> Iterable[Principal]:
        """Return nobody: there are no links."""
        return ()

    def hand_on(self, peer: Principal, stamp: bytes) -> None:
        """Do nothing: there are no links."""

    async def _hear_policy(self, key: TypeKey, sample: Sample) -> None:
        """Pass a statement about policy to the book, which verifies its signatures."""
        block = read_body(sample.data)
        if block.type != key or block.retain != sample.key or len(block.events) != 1:
            raise MalformedError("message.malformed", "a statement about policy is on the wrong topic or key")
        if key.name == ACKNOWLEDGEMENT:
            # It counts only if its broker is known, whose announcement may arrive later.
            await self._members.look_for(self._fabric, Principal.parse(sample.key))
        self._book.arrived(self._core.begin(), block.events[0])

    # Policy that the servers have lost.
    #
    # A broker that starts, or whose reading of these topics was interrupted, may have missed statements, and the
    # servers may have lost some. It writes what it knows, asks the others to do the same, and delivers nothing until
    # all of them have answered or are forgotten, and it has read the topics again.

    def _miss(self) -> None:
        if self._started:
            self._core.local.hold(held=True)
            self._missed.set()

    async def _keep_reconciled(self) -> None:
        while True:
            await self._missed.wait()
            self._missed.clear()
            done = False
            try:
                await self._restate()
                self._members.ask()
                await self._answers()
                for reading in list(self._states.values()):
                    await reading.load()
                done = True
            except PenstockError as error:
                self._note(error)
            finally:
                # Also after an unexpected error, which starts this task again: nothing is delivered until it is done.
                if not done:
                    self._missed.set()
            if not done:
                await asyncio.sleep(_AGAIN)
            elif not self._missed.is_set():
                self._core.local.hold(held=False)

    async def _answers(self) -> None:
        """Wait until all brokers that were asked have answered or are forgotten."""
        while self._members.waiting:
            self._members.heard.clear()
            try:
                async with asyncio.timeout(_ASKING):
                    await self._members.heard.wait()
            except TimeoutError:
                self._members.ask_again()

    async def _keep_answering(self) -> None:
        while True:
            await self._members.asked.wait()
            self._members.asked.clear()
            try:
                await self._restate()
                self._members.answer()
            except PenstockError as error:
                # Who asked asks again until it is answered.
                self._note(error)
                self._members.asked.set()
                await asyncio.sleep(_AGAIN)

    async def _restate(self) -> None:
        """Write the statements that this broker knows and the topics do not keep. Raises what the fabric raises."""
        self._restated = self._core.now()
        known: dict[str, dict[str, Statement]] = {}
        for statement in self._book.statements():
            retained = wrap(statement)
            known.setdefault(topic_of(retained.event.key), {})[retained.slot] = statement
        for topic, statements in known.items():
            if topic not in self._states:
                continue
            for sample in await self._states[topic].kept():
                if sample.key in statements and _says_as_much(sample, statements[sample.key]):
                    del statements[sample.key]
            for statement in statements.values():
                self.publish(statement)
            if statements:
                await self._state_writings[topic].written()

    # Topics that keep the current state.

    def _state(self, topic: str, take: Take) -> TopicReader:
        return TopicReader(self._fabric, topic, STATE, take, self._note, missed=self._miss)

    def _write_state(self, topic: str, key: str, data: bytes) -> None:
        writing = self._state_writings.get(topic)
        if writing is None:
            writing = self._state_writings[topic] = StateWriting(self._fabric, topic, self._note)
        writing.put(key, data)


def _says_as_much(sample: Sample, statement: Statement) -> bool:
    """Say whether a topic keeps this statement, or a later stamp or acknowledgement in its place."""
    try:
        (event,) = read_body(sample.data).events
        kept = unwrap(event, sample.key)
    except (PenstockError, ValueError):
        return False
    if isinstance(kept, CarriedStamp) and isinstance(statement, CarriedStamp):
        return kept.stamp.value.time >= statement.stamp.value.time and _is_signed(kept.stamp)
    if isinstance(kept, CarriedStamp) or isinstance(statement, CarriedStamp):
        return False
    if isinstance(kept.value, Acknowledgement) and isinstance(statement.value, Acknowledgement):
        return kept.value.time >= statement.value.time and _is_signed(kept)
    return kept.to_sexp() == statement.to_sexp()


def _is_signed(value: UnverifiedValue[Any]) -> bool:
    try:
        value.verify()
    except PenstockError:
        return False
    return True


def _unsealed(key: TypeKey) -> RefusedError:
    return RefusedError(
        "network.plaintext",
        f"events of `{key.name}` are not sealed, and do not cross this fabric",
        hint='let the owner seal the type; or, if everybody on the fabric may read them, `plaintext = "unsafe"`',
    )


class _Composer:
    """Numbers the samples of one topic, and the events in them."""

    def __init__(self, network: FabricNetwork, key: TypeKey) -> None:
        self._network = network
        self._topic = topic_of(key)
        self._samples = 0
        self._events = 0

    def compose(self, events: tuple[TransitEvent, ...]) -> Iterator[Composed]:
        """Yield samples that hold these events."""
        for block in self._network.parts(events, self._events + 1):
            self._events += len(block.events)
            self._samples += 1
            yield self._network.sign(self._topic, block, self._samples)

    def is_fresh(self, sample: Composed) -> bool:
        """Say whether readers would still take a sample."""
        return self._network.is_fresh(sample)

    def lose(self, events: int) -> None:
        """Count events that will not be sent, and skip a sample number so that readers notice it."""
        self._samples += 1
        self._network.lose(events)
