"""The layer below every component (the paper's AL layer): it joins, opens topics, signs, verifies and reconfigures.

    component = DecisionComponent(fabric, key, ComponentSettings(domain="bank", id="pdp1", …))
    async with component:            # the conf process (Figure 6): JOIN, then CONF, then the topics of its list
        …                            # the layer calls `received` for each verified sample
                                     # leaving: `leaving`, and a word to the PAPs

**The reconf process** (Figure 7). A reconfiguration arrives on the component's R* topic with an expected time. Requests
that are sent after it wait until the component has applied the reconfiguration. It does so at the expected time, and
writes its apply time to its A* topic. `configurations` says which configuration serves which request.

**The lease of a configuration.** A component that has not heard of a reconfiguration must not work by the old one after
the expected time. So if the domain has a lease, PAPs say again and again until when nothing can change without the
component knowing (`ConfigurationLease`). It sends no request, and serves none that was sent, after that time: they wait
for the PAPs' next word. What waits for LS is refused (`component.lease`).

A component at rest has one task for each topic that it reads and no timer. Whatever is refused is passed to `note`.
"""

import asyncio
import math
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self

import msgspec

from penstock.authority.components.exchange.certificates import ComponentCertificate
from penstock.authority.components.exchange.reports import CauseReports
from penstock.authority.components.exchange.samples import (
    NOT_APPLIED,
    SILENT,
    AppliedTime,
    BaseTime,
    ComponentSample,
    Configuration,
    ConfigurationLease,
    DecisionReply,
    Departure,
    InformationReply,
    JoinRequest,
    LeaseReturned,
    NewTopicKeys,
    Reconfiguration,
    RequiredNames,
    SampleContent,
    Withdrawal,
    join_id,
    sample_bytes,
    sample_key,
)
from penstock.authority.components.exchange.topic_keys import FIXED_NUMBER, HeldTopicKeys, open_private
from penstock.authority.components.exchange.topics import (
    LEASED,
    REPLIES,
    REQUESTS,
    WATCHED,
    ComponentKind,
    TopicInstance,
    TopicKind,
    TopicLevels,
    applied_topic,
    check_component_name,
    component_key,
    qos_of,
    topic_name,
)
from penstock.authority.components.exchange.topics_lists import TopicsList
from penstock.authority.components.exchange.verification import RoutineRefusedError, SampleVerifier, VerifiedSample
from penstock.authority.components.points.configurations import (
    WAITING,
    ConfigurationTimeline,
    ReconfigurationParts,
)
from penstock.authority.decisions.decision_point import Note, quiet
from penstock.authority.limits import CLOCK_LOOK, PEP_QUESTIONS, POINT_SKEW
from penstock.crypto import Signer
from penstock.crypto.hpke import SealingKey
from penstock.errors import FailedError, PenstockError, RefusedError
from penstock.fabric import (
    FOREVER,
    Clock,
    Fabric,
    KeyChoice,
    Publisher,
    RandomBytes,
    Sample,
    SystemClock,
    TopicSubscription,
)
from penstock.fabric.envelope import MICROSECONDS
from penstock.fabric.port import DEFAULT_INSTANCE, close_all
from penstock.fabric.tasks import in_background, report, waited_for
from penstock.model.principals import Principal

#: seconds after which a request to join that waits is reported, again and again
JOIN_WAITS: Final = 10.0
#: seconds later than it should that a process runs, if it is starved
STARVED: Final = 2.0
#: seconds before a component joins again that has lost its role again so soon: the first pause doubles
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
#: components that one component replies to at a time, without opening a writer again
REPLIED_TO: Final = 10_000
#: requests of one writer that wait for a reconfiguration: as many as an enforcement point may have open; and of all
HELD_OF_ONE: Final = PEP_QUESTIONS
HELD: Final = 2 * HELD_OF_ONE
#: bytes of samples that wait for topic keys. Anybody can write what looks like one
HELD_BYTES: Final = 16 << 20
_BETWEEN_TWO: Final = REQUESTS | REPLIES
#: what a component says whose role a PAP has ended because it missed it, and that it joins again
_MISSED: Final = {
    NOT_APPLIED: ("it has not applied a reconfiguration in time", True),
    SILENT: ("its lease has run out", True),
}
_JOIN: Final = TopicInstance(TopicKind.JOIN)
_CONF: Final = TopicInstance(TopicKind.CONF)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSettings:
    """What the file of a component says. Raises `MalformedError` (`component.name`)."""

    domain: str
    id: str
    kind: ComponentKind
    #: the role that it asks for, as `ER(1)`
    role: str
    #: who can be a PAP of the domain
    administrators: frozenset[Principal]
    #: certificates that may satisfy the rules of the role, as bytes
    certificates: tuple[bytes, ...] = ()
    #: the values of Table 3 for JOIN and CONF; the domain's PAPs say the others
    levels: TopicLevels = field(default_factory=TopicLevels)
    #: opens the fabric for JOIN and CONF, as a user that may use nothing else; without, the component's own is used
    joining: Callable[[], AbstractAsyncContextManager[Fabric]] | None = None

    def __post_init__(self) -> None:
        check_component_name(self.domain)
        check_component_name(self.id)


@dataclass(slots=True)
class _Overlap:
    """An old and a new reader of one topic, or several in a row, of which two get the same samples."""

    #: which reader was the first to get a sample and when, by its writer and number
    first: OrderedDict[tuple[object, object], tuple[int, float]] = field(default_factory=OrderedDict)
    #: when no sample is valid any more that two of them get
    until: float = math.inf


@dataclass(frozen=True, slots=True, eq=False)
class _Early:
    """A genuine sample from the future, and the reader that got it."""

    found: VerifiedSample
    reader: int
    sample: Sample

    def is_before(self, later: VerifiedSample) -> bool:
        """Return whether the writer of a sample wrote this one to the same topic before."""
        one, writer = self.found, later.writer
        same = (one.instance, one.writer.id, one.writer.record) == (later.instance, writer.id, writer.record)
        return same and one.number < later.number


class Component:
    """A component of a domain: the base of all kinds. See the module."""

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        fabric: Fabric,
        key: Signer,
        settings: ComponentSettings,
        *,
        clock: Clock | None = None,
        random: RandomBytes = secrets.token_bytes,
        note: Note = quiet,
        beside: Collection["Component"] = (),
    ) -> None:
        self.settings = settings
        #: other components with the same key: roles that they have active when this one joins are shown to the PAP
        self.beside = beside
        #: refused samples by error code
        self.counts: Counter[str] = Counter()
        self._fabric = fabric
        self._key = key
        self._clock = clock or SystemClock()
        self._random = random
        self._note = CauseReports(note, self._clock.steady)
        self._timeline: ConfigurationTimeline | None = None
        #: until when it may work without another word of the PAPs, and the number of the last one
        self._lease_end = math.inf
        self._grant = 0
        self._certificate: ComponentCertificate | None = None
        self._verifier = SampleVerifier(settings.domain, settings.administrators, settings.levels.lifespan)
        #: topic keys are sealed to this key, and to no other component
        self._box = SealingKey(random)
        self._keys: HeldTopicKeys | None = None
        #: samples under keys that a reconfiguration will bring
        self._unopened: list[tuple[TopicInstance, int, Sample]] = []
        self._unopened_bytes = 0
        #: genuine samples of topics that keep them from the future: this clock may be behind
        self._early: list[_Early] = []
        self._early_timer: asyncio.Task[None] | None = None
        #: what is kept on topics for those who join later, to be written again under new keys
        self._standing: dict[TopicInstance, RequiredNames] = {}
        self._publishers: dict[TopicInstance, Publisher] = {}
        #: writers of replies, by the component that they are for
        self._repliers: OrderedDict[tuple[TopicInstance, str], Publisher] = OrderedDict()
        self._readers: dict[TopicInstance, TopicSubscription] = {}
        #: readers are numbered, to tell an old one of a topic from a new one
        self._subscribed = 0
        self._overlaps: dict[TopicInstance, _Overlap] = {}
        self._last_number = 0
        #: requests of this component by number: when they were sent
        self._sent: OrderedDict[int, float] = OrderedDict()
        #: what was last read of each writer of the fabric, on topics with a lease, and of those that have gone
        self._last_of: dict[tuple[TopicInstance, bytes], VerifiedSample] = {}
        self._gone: OrderedDict[tuple[TopicInstance, bytes], VerifiedSample] = OrderedDict()
        #: when it last joined, and how long it waits before it joins again
        self._joined_time = 0.0
        self._pause = 0.0
        self._held: list[VerifiedSample] = []
        self._held_of: Counter[str] = Counter()
        self._applied = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reconfiguring = False
        #: whether its topics are open, and it can ask
        self.joined = False
        self._parts = ReconfigurationParts(settings.id)
        self._joined_at = 0

    # ------------------------------------------------------------------------------------------------------------------
    # What kinds of components override.

    async def received(self, sample: VerifiedSample) -> None:
        """Handle a verified sample of a topic that the component reads. Long work belongs into a task."""

    async def prepare(self, configuration: Configuration) -> None:
        """Prepare a configuration that will be in force at its expected time."""

    async def configured(self, configuration: Configuration) -> None:
        """Work by a configuration that is in force now: after joining, and after each reconfiguration."""

    async def superseded(self, numbers: list[int]) -> None:
        """Ask again: these requests were sent after the expected time, but under the old configuration."""

    async def departed(self, component: str) -> None:
        """Handle that another component has crashed or closed: a writer of QPEP or QPDP, if these have a lease."""

    async def returned(self, sample: VerifiedSample) -> None:
        """Handle that such a component is back, which last wrote this: it was only slow, or this component was."""

    async def leaving(self) -> None:
        """Say goodbye before the topics are closed."""

    async def lost(self, error: PenstockError) -> None:
        """Handle the loss of the role. All topics are closed. If a PAP missed the component, it joins again then."""

    def keys_of(self, instance: TopicInstance) -> Collection[KeyChoice] | None:
        """Return the content filter of a topic: the keys to read, or None for all."""
        own = instance.kind is TopicKind.APOL and self.settings.kind is not ComponentKind.PLP
        return [component_key(self.settings.domain, self.settings.id)] if own else None

    def requesters_of(self, instance: TopicInstance) -> Collection[str] | None:
        """Return whose requests, or replies to which component, are read of a topic: ids, or None for all.

        On the fabric, the requests of each component and the replies to them are a named instance of the topic. What is
        not read here is not sent here.
        """
        own = instance.kind in REPLIES and self.settings.kind is not ComponentKind.PLP
        return [self.settings.id] if own else None

    # ------------------------------------------------------------------------------------------------------------------
    # The state.

    @property
    def configuration(self) -> Configuration | None:
        """The configuration in force; None before joining and after leaving."""
        return None if self._timeline is None else self._timeline.current

    @property
    def number(self) -> int:
        """The configuration number in force; 0 without a configuration."""
        return 0 if self._timeline is None else self._timeline.number

    @property
    def certificate(self) -> ComponentCertificate | None:
        """The certificate of the configuration in force."""
        return self._certificate

    def now(self) -> float:
        """Return the seconds since 1970 of the component's clock."""
        return self._clock.now()

    def next_number(self) -> int:
        """Return the number of the next sample. Numbers grow, also over restarts."""
        self._last_number = max(self._last_number + 1, round(self.now() * MICROSECONDS))
        return self._last_number

    # ------------------------------------------------------------------------------------------------------------------
    # The conf process.

    async def __aenter__(self) -> Self:
        await self.join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def join(self) -> None:
        """Join the domain: request a role, wait for the configuration, and open the topics of its list.

        Raises `RefusedError`: `component.rejected`, with the code of the reason in the field `reason`,
        `component.joined`; and as `Fabric.declare`, `publisher` and `subscribe`.
        """
        if self._timeline is not None:
            raise RefusedError("component.joined", f"component `{self.settings.id}` has joined already")
        self._keys = None
        self._verifier.begin_again()
        async with nullcontext(self._fabric) if self.settings.joining is None else self.settings.joining() as fabric:
            configuration, answered = await self._request_configuration(fabric)
            while configuration.refusal == "component.copy":
                # The domain knows a later request of this component, from before a restart.
                message = f"the clock of `{self.settings.id}` is behind what it was when it last joined"
                self._note(RefusedError("component.clock", message, hint="set the clock right; it joins then"))
                await self._sleep(JOIN_WAITS)
                configuration, answered = await self._request_configuration(fabric)
        if configuration.refusal:
            raise RefusedError(
                "component.rejected",
                f"domain `{self.settings.domain}` refuses role `{self.settings.role}` to `{self.settings.id}`: "
                f"{configuration.refusal}",
                hint="ask the administrator which certificates the role needs",
                reason=configuration.refusal,
            )
        self._certificate = self._certificate_in(configuration)
        configuration = self._open_configuration(configuration)
        self._timeline = ConfigurationTimeline(configuration, self._certificate.role_name)
        self._joined_at, self._joined_time = configuration.number, self.now()
        self._lease_end = answered + configuration.lease if configuration.lease else math.inf
        self._grant = configuration.grant
        self._verifier.lifespan = configuration.lifespan
        self._verifier.lease = configuration.lease or FOREVER
        try:
            await self._open(self._certificate.topics, configuration.levels)
            await self.prepare(configuration)
            await self.configured(configuration)
            if configuration.lease:
                kind = applied_topic(self.settings.kind)
                if kind is not None:  # PAPs learn which writer of the fabric this component is
                    await self.write(kind, AppliedTime(configuration.number, self.now()))
                self._begin("saying that it is alive", self._stay_alive(configuration.lease / 3))
            self.joined = True
        except BaseException:
            await self.close()
            raise

    async def _request_configuration(self, fabric: Fabric) -> tuple[Configuration, float]:
        """Return the answer of a PAP, and its time."""
        settings = self.settings
        names = [topic_name(settings.domain, instance) for instance in (_JOIN, _CONF)]
        for name, instance in zip(names, (_JOIN, _CONF), strict=True):
            await fabric.declare(name, qos_of(instance.kind, settings.levels))
        request = JoinRequest(
            self._key.public.raw,
            settings.kind,
            settings.role,
            settings.certificates,
            tuple(
                one.configuration.certificate
                for one in self.beside
                if one.configuration is not None and one.settings.domain == settings.domain
            ),
            self._box.public,
        )
        asked = ComponentSample(settings.domain, str(_JOIN), settings.id, self.next_number(), self.now(), 0, request)
        ids = {join_id(asked)}
        answer: asyncio.Future[tuple[Configuration, float]] = asyncio.get_running_loop().create_future()
        #: answers that are genuine and from the future: this clock is behind
        early: list[tuple[float, Sample]] = []

        async def hear(sample: Sample) -> None:
            try:
                found = self._verifier.verify(sample.data, _CONF, sample.key, sample.writer, self.now())
                if isinstance(found.record, Configuration) and found.record.join in ids and not answer.done():
                    if found.record.certificate:
                        self._certificate_in(found.record)
                    answer.set_result((found.record, found.time))
            except PenstockError as error:
                self._refuse(error)
                if error.code == "component.late" and len(early) < HELD:
                    with suppress(PenstockError):
                        found = self._verifier.verify(
                            sample.data, _CONF, sample.key, sample.writer, self.now(), again=True, ahead=True
                        )
                        early.append((found.time, sample))

        key = component_key(settings.domain, settings.id)
        async with (
            await fabric.publisher(names[0]) as publisher,
            await fabric.subscribe(names[1], keys=[key], callback=hear),
        ):
            while not answer.done():
                # A PAP drops what comes while too much comes, so a request is repeated until it is answered.
                if asked.time > self.now():
                    # This clock was ahead, and was set right: no PAP believes the time before it has come.
                    asked = msgspec.structs.replace(asked, number=self.next_number(), time=self.now())
                    ids.add(join_id(asked))
                try:
                    await publisher.publish(sample_bytes(asked, b"", self._key), key=sample_key(asked))
                except RefusedError as error:
                    if error.code != "fabric.full":
                        raise
                    self._note(error)
                timer = waited_for(self._sleep(JOIN_WAITS))
                await asyncio.wait((answer, timer), return_when=asyncio.FIRST_COMPLETED)
                timer.cancel()
                for one in [one for one in early if one[0] <= self.now() + POINT_SKEW]:
                    early.remove(one)
                    await hear(one[1])
                if not answer.done():
                    self._note(
                        RefusedError(
                            "component.join-waits",
                            f"component `{settings.id}` waits for domain `{settings.domain}` to admit it",
                            hint="start a PAP of the domain, or see what it reports",
                        )
                    )
            return answer.result()

    def _open_configuration(self, configuration: Configuration) -> Configuration:
        """Return a configuration with what was sealed to this component alone, and take its topic keys.

        Raises `RefusedError` (`keys.unopened`), `MalformedError` (`component.sample`).
        """
        if not configuration.private:
            return configuration
        private = open_private(configuration.private, self._box, self.settings.domain, self.settings.id)
        self._keys = HeldTopicKeys(self.settings.domain)
        self._keys.put(private.keys)
        self._keys.number = max(private.keys, default=FIXED_NUMBER)
        for component, record in private.ended.items():
            self._verifier.end(component, record, self.now())
        return msgspec.structs.replace(
            configuration,
            combining=private.combining,
            priorities=private.priorities,
            policies=private.policies,
            private=b"",
        )

    def _certificate_in(self, configuration: Configuration) -> ComponentCertificate:
        """Return the certificate in a configuration of this component. Raises `RefusedError`."""
        settings = self.settings
        found = self._verifier.certificates.verify(configuration.certificate, datetime.fromtimestamp(self.now(), UTC))
        if (found.id, found.kind, found.principal) != (settings.id, settings.kind, self._key.principal):
            raise RefusedError("component.certificate", f"the configuration of `{settings.id}` is for `{found.id}`")
        return found

    async def _open(self, topics: TopicsList, levels: TopicLevels) -> None:
        for instance in sorted(topics.write - self._publishers.keys()):
            name = topic_name(self.settings.domain, instance)
            await self._fabric.declare(name, qos_of(instance.kind, levels))
            own = self.settings.id if instance.kind in REQUESTS else ""
            self._publishers[instance] = await self._fabric.publisher(name, instance=own)
        for instance in sorted(topics.read - self._readers.keys()):
            await self._fabric.declare(topic_name(self.settings.domain, instance), qos_of(instance.kind, levels))
            await self._subscribe(instance)

    async def _subscribe(self, instance: TopicInstance) -> None:
        self._subscribed += 1
        leased = instance.kind in LEASED and self.configuration is not None and self.configuration.lease
        self._readers[instance] = await self._fabric.subscribe(
            topic_name(self.settings.domain, instance),
            keys=self.keys_of(instance),
            instances=self.requesters_of(instance) if instance.kind in _BETWEEN_TWO else DEFAULT_INSTANCE,
            callback=partial(self._hear, instance, self._subscribed),
            on_writer=partial(self._watch, instance) if leased else None,
        )

    async def _stay_alive(self, period: float) -> None:
        while self._timeline is not None:
            await self._sleep(period)
            for instance, publisher in list(self._publishers.items()):
                if instance.kind in WATCHED:
                    try:
                        if instance in self._standing:  # signed again: readers do not count what is older than a lease
                            await self.write(instance.kind, self._standing[instance], instance=instance.number)
                        else:
                            await publisher.alive()
                    except PenstockError as error:
                        self._note(error)

    def _watch(self, instance: TopicInstance, source: bytes, there: bool) -> None:
        which = instance, source
        last = (self._gone if there else self._last_of).pop(which, None)
        if last is None:
            return
        if not there:
            if any(
                place[0] == instance and one.writer.id == last.writer.id and one.number > last.number
                for place, one in self._last_of.items()
            ):
                return  # somebody else wrote again what the component had written
            self._gone[which] = last
            if len(self._gone) > REPLIED_TO:
                self._gone.popitem(last=False)
            self._begin(f"{last.writer.id} is gone", self.departed(last.writer.id))
            return
        self._last_of[which] = last
        self._begin(f"{last.writer.id} is back", self._welcome(last))

    async def _welcome(self, last: VerifiedSample) -> None:
        try:
            self._verifier.check(last)
            await self.returned(last)
        except PenstockError as error:
            self._refuse(error)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, and report if this process was kept from running for much longer."""
        due = self._clock.steady() + seconds
        await self._clock.sleep(seconds)
        late = self._clock.steady() - due
        if late > STARVED:
            self._note(starved(self.settings.id, late))

    async def reread(self, kind: TopicKind) -> None:
        """Read what `requesters_of` says now of all topics of a kind, and lose nothing that has arrived.

        Raises as `Fabric.subscribe`.
        """
        for instance in [one for one in self._readers if one.kind is kind]:
            reader, wanted = self._readers[instance], self.requesters_of(instance)
            if wanted is None or not reader.read_instances(wanted):
                # First the new one: a sample that comes twice is recognised as a copy.
                overlap = self._overlaps.setdefault(instance, _Overlap())
                overlap.until = math.inf
                await self._subscribe(instance)
                await reader.drain()
                overlap.until = self.now() + self._verifier.lifespan + POINT_SKEW

    async def leave(self) -> None:
        """Leave the domain: the role ends."""
        if self._timeline is not None:
            try:
                await self.leaving()
                kind = applied_topic(self.settings.kind) or TopicKind.SPOL
                await self.write(kind, Departure())
            except PenstockError as error:
                self._note(error)
        await self.close()

    async def close(self) -> None:
        """Close all topics without a word, as a crash does."""
        self.joined = False
        self._timeline = None
        self._certificate = None
        self._resume()
        me = asyncio.current_task()
        for task in list(self._tasks):
            if task is not me:
                task.cancel()
        await close_all((*self._readers.values(), *self._publishers.values(), *self._repliers.values()), self._note)
        self._repliers.clear()
        self._readers, self._publishers, self._held, self._held_of = {}, {}, [], Counter()
        self._keys, self._unopened, self._unopened_bytes, self._standing = None, [], 0, {}
        self._early = []
        self._overlaps, self._last_of = {}, {}
        self._gone.clear()
        self._note.close()

    # ------------------------------------------------------------------------------------------------------------------
    # Writing.

    async def write(
        self,
        kind: TopicKind,
        record: SampleContent,
        *,
        instance: int | None = None,
        number: int | None = None,
        under: VerifiedSample | None = None,
    ) -> ComponentSample:
        """Sign a sample and write it to a topic of the write-list: the given instance, or the first.

        With `under`, it belongs to a request: it has the request's configuration, and a further request has its time.
        Other requests wait while a reconfiguration is due.

        Raises `RefusedError`: `component.not-joined`, `component.outside-list`, `component.lease`; `LimitError`
        (`component.limit`); and as `Publisher.publish`.
        """
        asks = kind in REQUESTS and under is None
        if asks:
            await self._until_it_may_ask()
        timeline = self._timeline
        if timeline is None:
            raise RefusedError("component.not-joined", f"component `{self.settings.id}` has not joined a domain")
        configuration, written_under, sent = timeline.current, timeline.number, self.now()
        if under is not None and under.configuration is not None:
            configuration, written_under = under.configuration, under.written_under
            sent = under.time if kind in REQUESTS else sent
        chosen = self._instance(kind, instance, under)
        number = self.next_number() if number is None else number
        sample = ComponentSample(
            self.settings.domain, str(chosen), self.settings.id, number, sent, written_under, record
        )
        if asks:
            self._sent[number] = sent
            while next(iter(self._sent.values())) < sent - configuration.lifespan:
                self._sent.popitem(last=False)
        data = sample_bytes(sample, configuration.certificate, self._key)
        if self._keys is not None:
            data = self._keys.seal(str(chosen), self._keys.number, data, self._random)
        if isinstance(record, RequiredNames):
            self._standing[chosen] = record
        to = record.id if isinstance(record, DecisionReply | InformationReply) else None
        publisher = self._publishers[chosen] if to is None else await self._publisher_to(chosen, to)
        await publisher.publish(data, key=sample_key(sample))
        return sample

    async def _until_it_may_ask(self) -> None:
        """Wait until no reconfiguration is due, and the lease of the configuration has not run out.

        Raises `RefusedError` (`component.lease`) if it has for LS.
        """
        began = self._clock.steady()
        while (timeline := self._timeline) is not None:
            now, since = self.now(), timeline.current.since
            if timeline.suspends(now):
                await self._applied.wait()
                continue
            if since <= now <= self._lease_end:
                return
            left = since - now
            if now > self._lease_end:
                error, left = self._unconfirmed(), began + timeline.current.lifespan - self._clock.steady()
                self._note(error)
                if left <= 0:
                    raise error
            waits: list[asyncio.Future[Any]] = [
                waited_for(self._applied.wait()),
                waited_for(self._sleep(min(left, CLOCK_LOOK))),
            ]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in waits:
                one.cancel()

    def _unconfirmed(self) -> RefusedError:
        return RefusedError(
            "component.lease",
            f"`{self.settings.id}` has not heard from a PAP of `{self.settings.domain}` that its configuration is in "
            "force, and neither asks nor answers",
            hint="start a PAP of the domain, or see why this component does not hear it",
            component=self.settings.id,
        )

    async def _publisher_to(self, instance: TopicInstance, requester: str) -> Publisher:
        """Return the writer of replies to one component."""
        found = self._repliers.get((instance, requester))
        if found is None:
            name = topic_name(self.settings.domain, instance)
            found = self._repliers[instance, requester] = await self._fabric.publisher(name, instance=requester)
            if len(self._repliers) > REPLIED_TO:
                _, oldest = self._repliers.popitem(last=False)
                await oldest.close()
        self._repliers.move_to_end((instance, requester))
        return found

    def _instance(self, kind: TopicKind, number: int | None, under: VerifiedSample | None) -> TopicInstance:
        if number is None and under is not None and TopicInstance(kind, under.instance.number) in self._publishers:
            number = under.instance.number  # a reply goes to the instance of its request
        for instance in self._publishers:
            if instance.kind is kind and number in (None, instance.number):
                return instance
        raise RefusedError(
            "component.outside-list",
            f"component `{self.settings.id}` cannot write {kind}{'' if number is None else f'_{number}'}",
            hint="its role's topics-list does not have it",
            component=self.settings.id,
        )

    # ------------------------------------------------------------------------------------------------------------------
    # Reading.

    async def _hear(self, instance: TopicInstance, reader: int, sample: Sample) -> None:
        await self._hear_early()
        await self._hear_now(instance, reader, sample)

    async def _hear_now(self, instance: TopicInstance, reader: int, sample: Sample, *, overtaken: bool = False) -> None:
        data = sample.data
        try:
            data = sample.data if self._keys is None else self._keys.open(str(instance), sample.data)
            if self._early and not overtaken and instance.kind not in _BETWEEN_TWO:
                await self._hear_overtaken(instance, sample, data)
            found = self._verifier.verify(data, instance, sample.key, sample.writer, self.now(), ahead=overtaken)
            if (overlap := self._overlaps.get(instance)) is not None:
                overlap.first[found.writer.id, found.number] = reader, self.now()
                self._forget_overlap(instance, overlap)
            if instance.kind in LEASED:
                self._last_of[instance, sample.writer] = found
            await self._handle(found)
        except PenstockError as error:
            if error.code == "component.key-missing" and self._hold(
                instance, reader, sample, error.fields.get("number")
            ):
                return
            if error.code == "component.copy" and self._came_twice(instance, reader, error):
                return
            if error.code == "component.late" and instance.kind not in _BETWEEN_TWO:
                self._keep_early(instance, reader, sample, data)
            self._refuse(error)
        except Exception as error:  # noqa: BLE001  # one sample must not end a component
            report(f"component {self.settings.id}", error)

    def _keep_early(self, instance: TopicInstance, reader: int, sample: Sample, data: bytes) -> None:
        """Keep a genuine sample from the future until its time comes: its writer does not write it again."""
        if len(self._early) >= HELD or any(one.sample.data == sample.data for one in self._early):
            return
        with suppress(PenstockError):
            found = self._verifier.verify(data, instance, sample.key, sample.writer, self.now(), again=True, ahead=True)
            self._early.append(_Early(found, reader, sample))
            if self._early_timer is None or self._early_timer.done():
                self._early_timer = self._begin("waiting for the clock", self._wait_for_clock())

    async def _wait_for_clock(self) -> None:
        while self._early:
            left = max(0.0, min(one.found.time for one in self._early) - POINT_SKEW - self.now())
            await self._clock.sleep(min(left + 1 / MICROSECONDS, CLOCK_LOOK))
            await self._hear_early()

    async def _hear_early(self) -> None:
        """Read the samples whose time has come, in order. What comes meanwhile comes after them."""
        while due := next((one for one in self._early if one.found.time <= self.now() + POINT_SKEW), None):
            self._early.remove(due)
            await self._hear_now(due.found.instance, due.reader, due.sample)

    async def _hear_overtaken(self, instance: TopicInstance, sample: Sample, data: bytes) -> None:
        """Read what is kept that this sample's writer wrote before it: its clock was ahead, and was set right.

        Afterwards it would be a copy. Leases and what components require are dropped: the writer says them again, and
        with a time in the future they would last too long. Raises as `SampleVerifier.verify`.
        """
        later = self._verifier.verify(data, instance, sample.key, sample.writer, self.now(), again=True)
        while before := next((one for one in self._early if one.is_before(later)), None):
            self._early.remove(before)
            if instance.kind not in LEASED and not isinstance(before.found.record, ConfigurationLease):
                await self._hear_now(instance, before.reader, before.sample, overtaken=True)

    def _came_twice(self, instance: TopicInstance, reader: int, error: PenstockError) -> bool:
        """Return whether the copy is a sample that another reader of the topic got before, and count it then."""
        overlap = self._overlaps.get(instance)
        which = error.fields.get("component"), error.fields.get("number")
        if overlap is None or overlap.first.get(which, (reader, 0.0))[0] == reader:
            return False
        del overlap.first[which]
        self.counts[error.code] += 1
        return True

    def _forget_overlap(self, instance: TopicInstance, overlap: _Overlap) -> None:
        """Forget samples that are not valid any more, and all of them when there is one reader again."""
        now = self.now()
        if overlap.until < now:
            del self._overlaps[instance]
        while overlap.first and next(iter(overlap.first.values()))[1] + self._verifier.lifespan + POINT_SKEW < now:
            overlap.first.popitem(last=False)

    def _hold(self, instance: TopicInstance, reader: int, sample: Sample, number: object) -> bool:
        """Keep a sample under a newer key until the key comes; return whether nothing is wrong with it."""
        keys = self._keys
        if not isinstance(number, int) or keys is None or keys.has(number):
            return False
        if number < keys.number:
            # Topics that keep samples have some from before this component joined. Others have written them again.
            return instance.kind not in _BETWEEN_TWO
        size = self._unopened_bytes + len(sample.data)
        if len(self._unopened) >= HELD or size > HELD_BYTES or number > self.number + WAITING:
            return False
        self._unopened.append((instance, reader, sample))
        self._unopened_bytes = size
        return True

    async def _handle(self, found: VerifiedSample) -> None:
        timeline = self._timeline
        if timeline is None:
            return
        record, kind = found.record, found.instance.kind
        if isinstance(record, ConfigurationLease):
            await self._prolong(timeline, record)
        elif isinstance(record, Reconfiguration | BaseTime | Withdrawal):
            await self._administer(timeline, record, found.time, found.writer.record)
        elif isinstance(record, NewTopicKeys):
            if record.id == self.settings.id:
                await self._take_keys(record.private, record.number)
        elif self.settings.kind is ComponentKind.PLP:
            await self.received(found)  # it logs what others may refuse
        elif kind in REQUESTS:
            await self._serve(timeline, found)
        elif kind in REPLIES:
            configuration = timeline.kept(found.written_under)
            if configuration is None:
                message = "a reply belongs to no configuration that is kept"
                raise RoutineRefusedError("component.old-configuration", message)
            if isinstance(record, DecisionReply | InformationReply) and (record.domain, record.id) != (
                self.settings.domain,
                self.settings.id,
            ):
                # Anybody can write a genuine reply again, where another component reads.
                raise RefusedError("component.misdirected", f"a reply to `{record.id[:40]}` is not for this component")
            await self.received(replace(found, configuration=configuration))
        else:
            await self.received(found)

    async def _serve(self, timeline: ConfigurationTimeline, found: VerifiedSample) -> None:
        configuration = timeline.serving(found.written_under, found.time)
        if configuration is timeline.current and found.time > self._lease_end:
            self._note(self._unconfirmed())
            configuration = None
        if configuration is not None:
            await self.received(replace(found, configuration=configuration))
            return
        if self._held and self._is_over(self._held[0]):
            self._held = [one for one in self._held if not self._is_over(one)]
            self._held_of = Counter(one.writer.id for one in self._held)
        if len(self._held) >= HELD or self._held_of[found.writer.id] >= HELD_OF_ONE:
            raise RefusedError("component.flood", "too many requests wait for a reconfiguration")
        self._held.append(found)
        self._held_of[found.writer.id] += 1

    def _is_over(self, request: VerifiedSample) -> bool:
        return request.time + self._verifier.lifespan + POINT_SKEW < self.now()

    async def _release(self) -> None:
        """Look again at the requests that wait."""
        held, self._held, self._held_of = self._held, [], Counter()
        for found in held:
            timeline = self._timeline
            if timeline is None:
                return
            try:
                if not self._is_over(found):
                    self._verifier.check(found)
                    await self._serve(timeline, found)
            except PenstockError as error:
                self._refuse(error)
            except Exception as error:  # noqa: BLE001  # one sample must not end a component
                report(f"component {self.settings.id}", error)

    def _refuse(self, error: PenstockError) -> None:
        self.counts[error.code] += 1
        if not isinstance(error, RoutineRefusedError):
            self._note(error)

    # ------------------------------------------------------------------------------------------------------------------
    # The reconf process.

    async def _administer(
        self,
        timeline: ConfigurationTimeline,
        record: Reconfiguration | BaseTime | Withdrawal,
        time: float,
        writer: str,
    ) -> None:
        if isinstance(record, Reconfiguration):
            whole = None
            if record.number <= self._joined_at:
                # From before this component joined: only the ends of others' certificates matter.
                self._replace(record)
            else:
                whole = self._parts.add(record, writer)
            if whole is not None and timeline.plan(whole):
                await self._take_keys(whole.private.get(self.settings.id))
                if not self._reconfiguring:
                    self._reconfiguring = True
                    self._begin("reconfiguring", self._reconfigure())
        elif isinstance(record, BaseTime):
            timeline.base(record.number, record.time)
            if self._keys is not None and self._keys.has(record.number):
                self._keys.settle(record.number)
            await self._release()
        else:
            for component, ended in record.records.items():
                self._verifier.end(component, ended, record.honest_until(component, time))
            for component, number in record.replaced.items():
                self._verifier.replace(component, number)
            mine = self._certificate
            if mine is not None and record.records.get(mine.id) == mine.record:
                await self._lose(*_MISSED.get(record.missed.get(mine.id, ""), ("its role has ended", False)))

    async def _prolong(self, timeline: ConfigurationTimeline, lease: ConfigurationLease) -> None:
        """Work until a lease ends, if all reconfigurations before it are known; it ends earlier ones if it says so."""
        if lease.grant <= self._grant:
            return  # from before this component joined, or of a PAP that has lost CONF since
        self._grant = lease.grant
        if lease.recall:
            self._lease_end = min(self._lease_end, lease.until)
            kind = applied_topic(self.settings.kind)
            if kind is not None:
                await self.write(kind, LeaseReturned(lease.grant))
        elif lease.number <= timeline.known:
            self._lease_end = max(self._lease_end, lease.until)
            self._resume()
            await self._release()

    async def _take_keys(self, private: bytes | None, number: int = FIXED_NUMBER) -> None:
        """Take new topic keys, write under those of this number, and look again at the samples that wait for them."""
        if private is None or self._keys is None:
            return
        found = open_private(private, self._box, self.settings.domain, self.settings.id).keys
        self._keys.put(found)
        if number > self._keys.number:
            self._keys.number = number
            self._keys.settle(min(found))
        waiting, self._unopened, self._unopened_bytes = self._unopened, [], 0
        for one in waiting:
            await self._hear(*one)

    def _replace(self, record: Reconfiguration) -> None:
        for component in record.withdrawn:
            self._verifier.replace(component, record.number)

    async def _reconfigure(self) -> None:
        """Apply the reconfigurations that have arrived, one after the other, each at its expected time."""
        try:
            while (timeline := self._timeline) is not None and (pending := timeline.pending) is not None:
                after = timeline.after()
                if after is not timeline.current:
                    certificate = self._certificate_in(after)
                    await self.prepare(after)
                    await self._open(certificate.topics, after.levels)
                while self.now() < pending.expected:
                    await self._sleep(min(pending.expected - self.now(), CLOCK_LOOK))
                if self.settings.id in pending.withdrawn and self.settings.id not in pending.certificates:
                    await self._lose("a reconfiguration has taken its role")
                    return
                await self._apply(timeline, pending, after)
        except PenstockError as error:
            # Without an apply time the PAP ends the role: nothing works under a configuration that it does not have.
            self._refuse(error)
        finally:
            self._reconfiguring = False

    async def _apply(self, timeline: ConfigurationTimeline, pending: Reconfiguration, after: Configuration) -> None:
        applied = self.now()
        timeline.apply(applied)
        self._certificate = self._certificate_in(after)
        self._verifier.lifespan = after.lifespan
        self._replace(pending)
        if self._keys is not None and self._keys.has(pending.number):
            self._keys.number = pending.number
            for instance, names in list(self._standing.items()):
                if instance in self._publishers:
                    await self.write(instance.kind, names, instance=instance.number)
        await self.configured(after)
        self._resume()
        kind = applied_topic(self.settings.kind)
        if kind is not None:
            await self.write(kind, AppliedTime(pending.number, applied))
        await self._release()
        late = [number for number, sent in self._sent.items() if sent > pending.expected and sent <= applied]
        if late:
            # Not here: asking again may have to wait for the next reconfiguration, which this task applies.
            self._begin("asking again", self.superseded(late))
        self._begin("an old configuration", self._retire(after.lifespan))

    def _resume(self) -> None:
        """Let requests look again whether they must wait."""
        self._applied.set()
        self._applied = asyncio.Event()

    async def _retire(self, lifespan: float) -> None:
        """Close the topics of the old configuration when no request needs it."""
        await self._clock.sleep(lifespan + POINT_SKEW)
        timeline = self._timeline
        if timeline is None or self._certificate is None:
            return
        timeline.forget(self.now())
        await self._release()
        kept = [self._certificate.topics]
        for one in timeline.all_kept():
            with suppress(RefusedError):  # its role has ended by its date
                kept.append(self._certificate_in(one).topics)
        for instance in sorted(self._publishers.keys() - {one for topics in kept for one in topics.write}):
            await self._publishers.pop(instance).close()
        for instance in sorted(self._readers.keys() - {one for topics in kept for one in topics.read}):
            await self._readers.pop(instance).close()

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = in_background(f"{self.settings.id}: {name}", work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _lose(self, why: str, again: bool = False) -> None:
        error = RefusedError(
            "component.role-lost",
            f"component `{self.settings.id}` has left domain `{self.settings.domain}`: {why}",
            hint="it joins again by itself" if again else "ask an administrator of the domain",
            component=self.settings.id,
        )
        await self.close()
        self._refuse(error)
        await self.lost(error)
        if again:
            self._begin("joining again", self._join_again())

    async def _join_again(self) -> None:
        """Join again, not more often than every pause, until the domain refuses it."""
        while True:
            soon = self.now() < self._joined_time + LONGEST_PAUSE
            self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * self._pause)) if soon else 0.0
            if self._pause:
                await self._sleep(self._pause)
            try:
                await self.join()
            except PenstockError as error:
                self._refuse(error)
                if error.code == "component.rejected":
                    return
                self._joined_time = self.now()
                continue
            message = f"component `{self.settings.id}` has joined domain `{self.settings.domain}` again"
            self._note(RefusedError("component.rejoined", message, component=self.settings.id))
            return


def starved(component: str, seconds: float) -> FailedError:
    """Return the report that the process of a component was kept from running."""
    return FailedError(
        "component.starved",
        f"the process of component `{component}` was kept from running",
        hint="let fewer processes run on its machine: others may take it for crashed",
        component=component,
        seconds=round(seconds, 1),
    )
