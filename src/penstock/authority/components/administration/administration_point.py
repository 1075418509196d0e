"""PAPs: they admit components to a domain, configure and reconfigure them, and end their roles (paper 4, 4.1).

    async with AdministrationComponent(fabric, key, AdministrationSettings(domain="bank", id="pap1", …)) as pap:
        await pap.reconfigure({"DR(1)": row})       # returns when it is announced; `base_time` says when all applied it
        await pap.change_roles([SetFact(…)])        # facts and appointments change; roles that relied on them end

A domain can have several PAPs. One owns CONF (exclusive ownership); it alone answers requests to join and writes R* and
APOL. It writes to CONF first, which proves that it still owns it, and then to the others. The other PAPs follow what is
on CONF, so all have the same state (see `registry`). When the owner does not do what has to be done, another PAP claims
CONF after the lease, catches up, and goes on.

The ends of roles are written to CONF under a key of their own, which PAPs of partner domains read: roles there that
rest on them end too.

If the domain has a lease, the owner of CONF gives all components a lease of their configuration, again and again (see
`ConfigurationLease`), and no reconfiguration has an expected time before the leases end that were given before. Before
an administrator's reconfiguration it recalls them, so that they end soon if all components answer.

JOIN, CONF, R* and A* keep all samples. The owner of CONF discards requests to join that are answered or were too many
(see `admission`). From time to time it writes the whole state of the domain to CONF, and what newcomers must know to
R*, and discards what was there before the last time.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, Self, TypeAlias

from penstock.authority.components.administration.admission import JoinAdmission
from penstock.authority.components.administration.registry import (
    ENDED_TOGETHER,
    AdministrationSettings,
    DomainRegistry,
)
from penstock.authority.components.exchange.certificates import administrator_certificate
from penstock.authority.components.exchange.reports import CauseReports
from penstock.authority.components.exchange.samples import (
    NOT_APPLIED,
    SILENT,
    WITHDRAWALS_KEY,
    AppliedTime,
    BaseTime,
    ComponentSample,
    Configuration,
    ConfigurationLease,
    Departure,
    DomainCheckpoint,
    JoinRequest,
    LeaseReturned,
    PolicyApplied,
    ReconfigurationPlan,
    RoleConfiguration,
    SampleContent,
    SpecifiedPolicy,
    Withdrawal,
    join_id,
    read_sample,
    sample_bytes,
    sample_key,
)
from penstock.authority.components.exchange.topic_keys import FIXED_NUMBER
from penstock.authority.components.exchange.topics import (
    COMPACTED,
    REPLIES,
    REQUESTS,
    WATCHED,
    ComponentKind,
    TopicInstance,
    TopicKind,
    applied_topic,
    qos_of,
    topic_name,
)
from penstock.authority.components.exchange.verification import RoutineRefusedError, SampleVerifier, VerifiedSample
from penstock.authority.components.points.component import STARVED, starved
from penstock.authority.decisions.decision_point import Note, quiet
from penstock.authority.limits import CLOCK_LOOK
from penstock.codec.sexp import canonical
from penstock.crypto import PublicKey, Signer
from penstock.errors import FailedError, LimitError, MalformedError, PenstockError, RefusedError
from penstock.fabric import Callback, Clock, Fabric, Publisher, RandomBytes, Sample, SystemClock, TopicSubscription
from penstock.fabric.envelope import MICROSECONDS
from penstock.fabric.limits import FABRIC_HISTORY
from penstock.fabric.port import LEASE, close_all
from penstock.fabric.qos import FOREVER
from penstock.fabric.tasks import in_background, report, waited_for
from penstock.roles.engine import EndSession, RoleChange, change_to_sexp

_JOIN: Final = TopicInstance(TopicKind.JOIN)
_CONF: Final = TopicInstance(TopicKind.CONF)
_SPOL: Final = TopicInstance(TopicKind.SPOL)
_APOL: Final = TopicInstance(TopicKind.APOL)
#: requests to join that are discarded together, and the seconds after which fewer are
JOINS_DISCARDED: Final = 1_000
JOIN_KEPT: Final = 1.0
#: samples of an A* topic that are kept if components have a lease
A_KEPT: Final = FABRIC_HISTORY // 4
#: seconds in which components must answer that they have returned their leases
RECALL: Final = 1.0
ConfContent: TypeAlias = (
    Configuration | ReconfigurationPlan | Withdrawal | BaseTime | ConfigurationLease | DomainCheckpoint
)


@dataclass(frozen=True, slots=True)
class _ConfWrite:
    """A sample for CONF, and who writes it: its content and time, and its bytes before and after they were sealed."""

    publisher: Publisher
    content: ConfContent
    time: float
    data: bytes
    sealed: bytes
    key: str


class AdministrationComponent:
    """A PAP. See the module."""

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        fabric: Fabric,
        key: Signer,
        settings: AdministrationSettings,
        *,
        clock: Clock | None = None,
        random: RandomBytes = secrets.token_bytes,
        note: Note = quiet,
    ) -> None:
        if key.principal not in settings.administrators:
            raise RefusedError(
                "component.certificate",
                f"{key.principal.short} is not an administrator of `{settings.domain}`",
                hint="name it in the files of all components",
            )
        self.settings = settings
        self.registry = DomainRegistry(settings)
        #: refused samples by error code
        self.counts: Counter[str] = Counter()
        self._fabric = fabric
        self._key = key
        self._clock = clock or SystemClock()
        self._random = random
        self._note = CauseReports(note, self._clock.steady)
        run = f"run-{random(8).hex()}"
        self._certificate = administrator_certificate(key, settings.domain, settings.id, run)
        self._verifier = SampleVerifier(settings.domain, settings.administrators, settings.levels.lifespan)
        self._partners = {
            name: SampleVerifier(name, who, settings.levels.lifespan) for name, who in settings.partners.items()
        }
        #: the writer of CONF while this PAP owns it, and the one for which it has done what a new owner has to do
        self._owned: Publisher | None = None
        self._prepared: Publisher | None = None
        #: reconfigurations that this PAP has announced on all their topics
        self._announced: set[int] = set()
        #: what follows on R* from what is on CONF already, and is not written there yet
        self._owed: list[tuple[TopicInstance, SampleContent]] = []
        #: readers of a role's topics are made one by one
        self._following = asyncio.Lock()
        #: what was written to CONF last, if nobody has said whether it is there
        self._unsure: _ConfWrite | None = None
        self._publishers: dict[TopicInstance, Publisher] = {}
        self._readers: dict[str, TopicSubscription] = {}
        #: topics that were declared, with their named instances, and the rows of the table that this was done for
        self._declared: set[TopicInstance] = set()
        self._followed: dict[str, RoleConfiguration] = {}
        self._admission = JoinAdmission()
        #: the last samples of JOIN and A* that were handled, and how many requests to join since some were discarded
        self._handled: dict[TopicInstance, Sample] = {}
        self._joins = 0
        self._heard: Counter[TopicInstance] = Counter()
        #: samples since the last checkpoint
        self._load = 0
        #: the last sample of CONF, and the last one before the last checkpoint; the same of R* topics
        self._conf_last: Sample | None = None
        self._before: dict[TopicInstance, Sample] = {}
        #: the time of a sample on CONF that is ahead of this PAP's clock: nothing is followed before
        self._ahead: float | None = None
        #: a sample on CONF came that was not followed for this reason
        self._unread = False
        #: runs of PAPs with this id: this one, and those that were reported
        self._twins = {run}
        self._lock = asyncio.Lock()
        self._last_number = 0
        self._timer: asyncio.Task[None] | None = None
        self._due: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._closed = False
        #: ends of sessions and of partners' credentials that this PAP makes known if it owns CONF, each with a reason
        self._changes: list[tuple[RoleChange, str]] = []
        #: which component writes as which writer of the fabric to its A* topic, and the record of its role
        self._written_by: dict[tuple[TopicInstance, bytes], tuple[str, str]] = {}
        #: when this PAP last ran, while components have to apply something: by `Clock.steady`, and by its clock
        self._ran: tuple[float, float] | None = None
        #: the number of the recall of leases that is under way, and the components that have not answered it
        self._recall: int | None = None
        self._unreturned: set[str] = set()
        #: when all leases end that components have, after so many were given: earlier ones were returned
        self._returned = (0, 0.0)

    # ------------------------------------------------------------------------------------------------------------------
    # What an extension overrides.

    async def policy_specified(self, sample: VerifiedSample) -> None:
        """Handle a policy that a PSP has specified."""

    def extension(self) -> bytes:
        """Return what an extension adds to a checkpoint."""
        return b""

    def extend(self, extension: bytes) -> None:
        """Take over what an extension has added to a checkpoint. Raises `MalformedError`."""

    # ------------------------------------------------------------------------------------------------------------------
    # Start and end.

    async def __aenter__(self) -> Self:
        await self.join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    @property
    def owns(self) -> bool:
        """Whether this PAP owned CONF when it last wrote there."""
        return self._owned is not None

    def now(self) -> float:
        """Return the seconds since 1970 of the component's clock."""
        return self._clock.now()

    async def join(self) -> None:
        """Declare the topics of the domain, catch up with CONF, and begin to answer requests to join.

        Raises as `Fabric.declare` and `subscribe`. A PAP that could not join is closed.
        """
        self._closed, self._owned, self._prepared, self._unsure = False, None, None, None
        try:
            await self._open()
        except BaseException:
            # What has begun to read would go on administering.
            await self.close()
            raise

    async def _open(self) -> None:
        for instance in (_JOIN, _CONF, _SPOL, _APOL):
            await self._declare(instance)
        await self._catch_up()
        await self._read(_CONF, self._hear_conf)
        await self._follow_table()
        await self._read(_SPOL, partial(self._hear, _SPOL))
        for partner in self._partners:
            name = topic_name(partner, _CONF)
            await self._fabric.declare(name, qos_of(TopicKind.CONF, self.settings.levels))
            self._readers[name] = await self._fabric.subscribe(
                name,
                keys=[WITHDRAWALS_KEY],
                callback=partial(self._guarded, _CONF, partial(self._hear_partner, partner)),
            )
        await self._read(_JOIN, self._hear_join)
        await self._act()
        if self.settings.levels.lease != FOREVER:
            self._begin("leases", self._give_leases())

    async def leave(self) -> None:
        """Stop, and give up CONF to another PAP."""
        await self.close()

    async def close(self) -> None:
        """Close all topics."""
        # While they are closed, samples still come.
        self._closed = True
        me = asyncio.current_task()
        for task in [*self._tasks, *([self._timer] if self._timer else ())]:
            if task is not me:
                task.cancel()
        while self._readers:
            await close_all((self._readers.pop(next(iter(self._readers))),), self._note)
        unsure = self._unsure.publisher if self._unsure else None
        await close_all((*self._publishers.values(), self._owned, unsure), self._note)
        self._publishers, self._owned, self._unsure = {}, None, None
        self._declared, self._followed, self._due, self._owed = set(), {}, None, []
        self._note.close()

    async def _declare(self, instance: TopicInstance) -> None:
        await self._fabric.declare(
            topic_name(self.settings.domain, instance), qos_of(instance.kind, self.settings.levels)
        )

    async def _read(self, instance: TopicInstance, callback: Callback) -> None:
        name = topic_name(self.settings.domain, instance)
        leased = instance.kind in WATCHED and self.settings.levels.lease != FOREVER
        self._readers[name] = await self._fabric.subscribe(
            name,
            callback=partial(self._guarded, instance, callback),
            on_writer=partial(self._watch, instance) if leased else None,
        )
        if self._closed:
            await self._readers.pop(name).close()

    async def _guarded(self, instance: TopicInstance, callback: Callback, sample: Sample) -> None:
        """Handle a sample; one that fails must not end the component."""
        try:
            await callback(sample)
        except PenstockError as error:
            self._refuse(error)
        except Exception as error:  # noqa: BLE001  # whatever it is, the next sample must be read
            report(f"component {self.settings.id}", error)
        if instance.kind in COMPACTED and instance != _CONF:
            self._handled[instance] = sample
            if instance == _JOIN:
                self._joins += 1
                self._discard_joins()
            else:
                self._load += 1
                self._heard[instance] += 1

    async def _follow_table(self) -> None:
        """Declare the topics of roles that have changed, and read the apply times of their components."""
        async with self._following:
            for role, row in list(self.registry.table.items()):
                if self._followed.get(role) is not row:
                    await self._follow_row(row)
                    self._followed[role] = row

    async def _follow_row(self, row: RoleConfiguration) -> None:
        topics, applied = row.topics, applied_topic(ComponentKind(row.kind))
        for instance in sorted((topics.write | topics.read) - self._declared):
            await self._declare(instance)
            if instance.kind in REQUESTS | REPLIES:
                # Other components may have no right to make what a fabric needs for named instances.
                name = topic_name(self.settings.domain, instance)
                await (await self._fabric.publisher(name, instance=self.settings.id)).close()
            if instance.kind is applied and topic_name(self.settings.domain, instance) not in self._readers:
                await self._read(instance, partial(self._hear, instance))
            self._declared.add(instance)

    # ------------------------------------------------------------------------------------------------------------------
    # What an administrator does.

    async def reconfigure(
        self, roles: Mapping[str, RoleConfiguration | None], *, expected: float | None = None, reason: str = ""
    ) -> int:
        """Announce other configurations of roles; a role without one ends. Return the configuration number.

        It is not expected before components' leases of the configuration in force have ended, nor before an earlier
        reconfiguration is.

        Raises `RefusedError`: `fabric.not-owner` if another PAP owns CONF, and as `RoleConfiguration.topics`; and
        `LimitError` (`component.limit`).
        """
        for row in roles.values():
            if row is not None:
                _ = row.topics
        await self._recall_leases()
        async with self._lock:
            await self._claim()
            try:
                self.registry.check_size(roles)
                number = self.registry.number + 1
                await self._commit(ReconfigurationPlan(number, self.earliest(expected), dict(roles), reason=reason))
                with self._again_if_failing():
                    await self._follow_table()
                    await self._announce(number)
            finally:
                await self._give_lease()
        await self._act()
        return number

    async def change_roles(self, changes: Iterable[RoleChange], *, reason: str = "") -> None:
        """Apply changes of roles, facts and appointments; the roles that end are withdrawn.

        Raises `RefusedError`: `fabric.not-owner`, and what `RoleEngine.check` raises.
        """
        wanted = tuple(changes)
        async with self._lock:
            await self._claim()
            for change in wanted:
                self.registry.engine.check(change)
            await self._commit(ReconfigurationPlan(role_changes=_written(wanted), reason=reason))
        await self._act()

    def expected_time(self, number: int) -> float | None:
        """Return the expected time of a reconfiguration; None if all have applied it."""
        progress = self.registry.progress.get(number)
        return None if progress is None else progress.plan.expected

    async def base_time(self, number: int) -> float:
        """Wait until all components have applied a reconfiguration or lost their roles, and return the base time."""
        while number not in self.registry.finished:
            await self._changed.wait()
        return self.registry.finished[number]

    async def write_applied(self, record: PolicyApplied) -> None:
        """Tell a PSP what became of its policy. Raises `RefusedError` (`fabric.not-owner`)."""
        async with self._lock:
            await self._claim()
            await self._commit(ReconfigurationPlan(reason=f"policy `{record.policy}` of `{record.id}`"))
            await self._write(_APOL, record)

    # ------------------------------------------------------------------------------------------------------------------
    # Samples.

    async def _hear_join(self, sample: Sample) -> None:
        self._take_join(sample)
        await self._act()

    def _take_join(self, sample: Sample) -> None:
        """Take in a request to join, in the order of what it costs. Raises `PenstockError`."""
        self._admission.check_size(sample.data)
        asked = read_sample(sample.data).sample
        if isinstance(asked.content, JoinRequest) and not self.registry.knows(asked):
            principal = PublicKey(asked.content.key).principal
            self._admission.take(principal, self.now(), known=self.registry.expects(principal))
            self.registry.request(self._verifier.verify_join(sample.data, _JOIN, sample.key, self.now()))

    async def _hear_conf(self, sample: Sample) -> None:
        try:
            self._follow(sample, live=True)
        except RefusedError as error:
            if error.code == "component.copy":  # what this PAP has written, or read when it caught up
                return
            raise
        await self._follow_table()
        self._schedule()

    def _follow(self, sample: Sample, *, live: bool) -> None:
        if self._ahead is not None:
            self._unread = True  # it is read again when this PAP catches up
            return
        data = self.registry.opened(str(_CONF), sample.data)
        try:
            found = self._verifier.verify(data, _CONF, sample.key, sample.writer, self.now())
        except RefusedError as error:
            if error.code == "component.late":
                self._check_clock(data, sample)
            raise
        if live and found.writer.id == self.settings.id and found.writer.record not in self._twins:
            self._twins.add(found.writer.record)
            self._note(
                RefusedError(
                    "component.id-taken",
                    f"another PAP runs as `{self.settings.id}`",
                    hint="give each PAP of a domain an id of its own",
                    component=self.settings.id,
                )
            )
        self._apply(found.record, found.time, sample)
        self._wake()

    def _check_clock(self, data: bytes, sample: Sample) -> None:
        """Stop following CONF if a genuine sample there is from the future. Raises `RefusedError`."""
        now = self.now()
        found = self._verifier.verify(data, _CONF, sample.key, sample.writer, now, again=True, ahead=True)
        self._ahead = time = found.time
        self._begin("clock", self._catch_up_later(time))
        raise self._behind(time)

    def _behind(self, time: float) -> RefusedError:
        return RefusedError(
            "component.clock",
            f"the clock of `{self.settings.id}` is {time - self.now():.0f} s behind that of another PAP",
            hint="set the clocks of all PAPs right; this one does nothing until then",
        )

    def _apply(self, content: SampleContent, time: float, sample: Sample | None) -> None:
        """Follow a content of CONF, and remember where it is."""
        if isinstance(content, DomainCheckpoint) and content.part == 1 and self._conf_last is not None:
            self._before[_CONF] = self._conf_last
        self._load = 0 if isinstance(content, DomainCheckpoint) else self._load + 1
        self._conf_last = sample or self._conf_last
        self._excuse()  # before there is something else to apply
        state = self.registry.follow(content, time)
        if isinstance(content, Withdrawal):
            for component, record in content.records.items():
                self._verifier.end(component, record, content.honest_until(component, time))
        elif state is not None:
            for component, record in state.last_ended.items():
                self._verifier.end(component, record, time)
            self.extend(state.extension)

    async def _hear(self, instance: TopicInstance, sample: Sample) -> None:
        await self._take(instance, sample)
        await self._act()

    async def _take(self, instance: TopicInstance, sample: Sample, *, again: bool = False) -> None:
        """Take in a sample of A* or SPOL. Raises `PenstockError`."""
        data = self.registry.opened(str(instance), sample.data)
        found = self._verifier.verify(data, instance, sample.key, sample.writer, self.now(), again=again)
        record = found.record
        if instance.kind in WATCHED:
            self._written_by[instance, sample.writer] = found.writer.id, found.writer.record
        if isinstance(record, AppliedTime):
            if not record.time <= found.time:
                message = f"`{found.writer.id}` says that it will apply reconfiguration {record.number} later"
                raise RefusedError("component.apply-time", message, component=found.writer.id)
            self.registry.applied(found.writer.id, record.number, record.time)
        elif isinstance(record, LeaseReturned):
            if record.grant == self._recall:
                self._unreturned.discard(found.writer.id)
                self._wake()
        elif isinstance(record, Departure):
            self._changes.append((EndSession(found.writer.record), ""))
        elif isinstance(record, SpecifiedPolicy):
            await self.policy_specified(found)

    async def _hear_partner(self, partner: str, sample: Sample) -> None:
        found = self._partners[partner].verify(sample.data, _CONF, sample.key, sample.writer, self.now())
        if isinstance(found.record, Withdrawal):
            for record in found.record.records.values():
                self._changes += [(one, "") for one in self.registry.partner_ended(partner, record)]
            await self._act()

    def _watch(self, instance: TopicInstance, source: bytes, there: bool) -> None:
        """End the role of a component whose lease has run out, unless it comes back before that is known."""
        if there:
            _, record = self._written_by.get((instance, source), ("", ""))
            self._changes = [one for one in self._changes if one != (EndSession(record), SILENT)]
            return
        component, record = self._written_by.pop((instance, source), ("", ""))
        member = self.registry.members.get(component)
        if (
            member is None
            or member.certificate.record != record
            or instance not in member.certificate.topics.write
            or any(change == EndSession(record) for change, _ in self._changes)
        ):
            return  # it has left, or writes another topic now
        self._note(
            RefusedError(
                SILENT,
                f"`{component}` has not been heard for {self.settings.levels.lease:g} s and loses its role",
                hint="it joins again by itself if it still runs",
                component=component,
            )
        )
        self._changes.append((EndSession(record), SILENT))
        self._begin(f"{component} is silent", self._act())

    def _refuse(self, error: PenstockError) -> None:
        self.counts[error.code] += 1
        if not isinstance(error, RoutineRefusedError):
            self._note(error)

    # ------------------------------------------------------------------------------------------------------------------
    # Actions of the owner of CONF.

    async def _act(self) -> None:
        """Do the work that there is, if this PAP owns CONF or can claim it; otherwise look again after the lease."""
        async with self._lock:
            if self._closed:
                return
            began, due = self.now(), self.registry.due()
            if due is not None and due < began:
                self.registry.pass_time(began)
            try:
                if self._has_work():
                    await self._claim()
                    await self._work()
            except PenstockError as error:
                if error.code == "fabric.not-owner":
                    await self._give_up()
                    self._begin("waiting for CONF", self._look_again())
                elif error.code == "component.clock":
                    self._refuse(error)
                    self._begin("waiting for the clock", self._look_again())
                else:
                    self._refuse(error)
                    if self._unsure is not None:
                        self._begin("waiting for the fabric", self._look_again())
        self._wake()
        due = self.registry.due()
        # What was due before and still is could not be done.
        self._schedule(LEASE if due is not None and due < began else 0.0)

    def _has_work(self) -> bool:
        registry = self.registry
        self._excuse()
        self._changes = [one for one in self._changes if registry.can_end(one[0])]  # not done by another PAP
        return bool(
            registry.waiting
            or self._unsure is not None
            or self._is_behind()
            or self._changes
            or registry.endings
            or registry.overdue(self.now())
            or registry.rekey_due(self.now())
            or (self._owned is not None and self._is_loaded())
            or any(progress.base is not None for progress in registry.progress.values())
        )

    async def _work(self) -> None:
        registry = self.registry
        # Whoever has not heard of a reconfiguration yet is not late.
        await self._announce_rest()
        await self._settle_debts()
        # Roles that end, because a component leaves, is too slow, or has lost a role elsewhere.
        self._excuse()  # claiming CONF takes time
        for component in registry.overdue(self.now()):
            self._note(
                RefusedError(
                    NOT_APPLIED,
                    f"`{component}` has not applied a reconfiguration in time and loses its role",
                    hint="it joins again by itself if it still runs",
                    component=component,
                )
            )
            self._changes.append((EndSession(registry.members[component].certificate.record), NOT_APPLIED))
        while self._changes:
            change, reason = self._changes[0]
            if registry.can_end(change):
                await self._commit(
                    ReconfigurationPlan(role_changes=_written((change,)), reason=reason or type(change).__name__)
                )
            self._changes = [one for one in self._changes if one[0] != change]
        # Newcomers.
        for join in list(registry.waiting.values()):
            try:
                answer = registry.answer(join, self._key, self.now(), self._random)
            except Exception as error:  # noqa: BLE001  # a fault of ours: the others must be answered
                report(f"component {self.settings.id}: a request to join could not be decided", error)
                answer = registry.refusal(join, "component.internal")
            if answer.refusal:
                self._note(
                    RefusedError(
                        "component.rejected",
                        f"`{join.id}` may not join `{self.settings.domain}`: {answer.refusal}",
                        component=join.id,
                        reason=answer.refusal,
                    )
                )
            try:
                await self._commit(answer)
            except LimitError as error:  # of too many policies; the others must not wait for it
                self._refuse(error)
                await self._commit(registry.refusal(join, error.code))
            if self._is_loaded():
                await self._compact()
        if registry.rekey_due(self.now()):
            number = registry.number + 1
            await self._commit(ReconfigurationPlan(number, self.earliest(), reason="new topic keys", rekey=True))
            await self._announce(number)
        while registry.endings:
            some = dict(islice(registry.endings.items(), ENDED_TOGETHER))
            missed = {component: code for component, code in registry.missed.items() if component in some}
            ended = Withdrawal(some, missed)
            await self._commit(ended)
            self._owed += [(instance, ended) for instance in registry.reconfiguration_topics()]
            await self._settle_debts()
        for number in [one for one, progress in registry.progress.items() if progress.base is not None]:
            base = registry.progress[number].base if number in registry.progress else None
            if base is not None:
                topics = registry.announced_topics(number)
                await self._commit(BaseTime(number, base))
                self._owed += [(instance, BaseTime(number, base)) for instance in topics]
                await self._settle_debts()
        if self._is_loaded():
            await self._compact()

    def _unannounced(self) -> list[int]:
        # When all have applied a reconfiguration, PSPs may still need its keys.
        waiting = [one for one, progress in self.registry.progress.items() if progress.base is None or progress.rekeyed]
        return [one for one in waiting if one not in self._announced]

    def _is_behind(self) -> bool:
        """Return whether this PAP owns CONF, and has not done everything that the owner must have done."""
        return self._owned is not None and (
            self._owned is not self._prepared or bool(self._unannounced()) or bool(self._owed)
        )

    async def _announce_rest(self) -> None:
        for number in self._unannounced():
            try:
                await self._announce(number)
            except RefusedError as error:
                if error.code == "fabric.not-owner":
                    raise
                # One topic is refused: nobody else waits for those that read it longer than the patience.
                self._refuse(error)

    async def _settle_debts(self) -> None:
        with self._again_if_failing():
            for owed in [*self._owed]:
                try:
                    await self._write(*owed)
                    self._owed.remove(owed)
                except RefusedError as error:
                    if error.code == "fabric.not-owner":
                        raise
                    self._refuse(error)
        if self._owed:
            self._begin("finishing what was begun", self._finish())

    @contextmanager
    def _again_if_failing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if self._owned is not None:
                # Nobody else does what the owner of CONF has begun.
                self._begin("finishing what was begun", self._finish())
            raise

    async def _finish(self) -> None:
        # Components lose their roles if they do not hear of a reconfiguration in time.
        await self._clock.sleep(CLOCK_LOOK)
        try:
            await self._follow_table()
        except PenstockError as error:
            self._refuse(error)
            if self._owned is not None or self._unsure is not None:
                self._begin("finishing what was begun", self._finish())
        await self._act()

    async def _announce(self, number: int) -> None:
        """Announce a reconfiguration on all topics that it concerns, as long as no other PAP ends it."""
        with self._again_if_failing():
            await self._announce_on(number)
        progress = self.registry.progress.get(number)
        if progress is not None and number not in self._announced:
            # Its components may hear of it only now.
            progress.starved = max(progress.starved, self.now() - progress.plan.expected)
        self._announced = {number, *(self._announced & self.registry.progress.keys())}

    async def _announce_on(self, number: int, only: TopicInstance | None = None) -> None:
        """Announce a reconfiguration on one topic, or on all that it concerns."""
        registry = self.registry
        for keys in [*self.registry.new_topic_keys(number, self._random)] if only is None else ():
            await self._write(_APOL, keys)
        for instance in sorted(registry.progress[number].opened) if number in registry.progress else ():
            # A newcomer that reads this topic must know which certificates are over.
            for standing in self.registry.standing() if only is None else ():
                await self._write(instance, standing)
        known = number in registry.progress
        for instance in [only] if only is not None else registry.announced_topics(number) if known else []:
            if number not in registry.progress:
                return
            announcement = self._next_number(self.now())
            for part in self.registry.reconfigurations(number, instance, self._key, self._random, announcement):
                await self._write(instance, part)

    # ------------------------------------------------------------------------------------------------------------------
    # Leases of configurations.

    def earliest(self, expected: float | None = None) -> float:
        """Return the expected time of a reconfiguration that is announced now: as said, but not before leases end.

        It is not before that of an earlier one either: components apply them in order.
        """
        seen, end = self._returned
        if seen != self.registry.leases_seen:
            end = self.registry.lease_end
        before = [one.plan.expected for one in self.registry.progress.values()]
        return max(self.now() + self.settings.notice if expected is None else float(expected), end, *before)

    async def _give_leases(self) -> None:
        """Give leases so often that one can be late, and that no other PAP can claim CONF meanwhile."""
        while self._readers:
            if self._recall is None:
                async with self._lock:
                    try:
                        if self._lease_holders():
                            await self._claim()
                            await self._give_lease()
                            if self._is_loaded():
                                await self._compact()
                    except PenstockError as error:
                        if error.code == "fabric.not-owner":
                            self._owned = None
                        else:
                            self._refuse(error)
            await self._clock.sleep(min(self.settings.levels.lease / 3, LEASE / 2))

    def _lease_holders(self) -> set[str]:
        if self.settings.levels.lease == FOREVER:
            return set()
        return {id_ for id_, one in self.registry.members.items() if one.reconfigured_by is not None}

    async def _give_lease(self, until: float | None = None) -> None:
        """Give all components a lease of the newest configuration; with `until`, recall earlier ones.

        It is written to CONF first: so nobody gives a lease that the next owner does not know of.
        """
        if not self._lease_holders():
            return
        given = ConfigurationLease(
            self.registry.number,
            self.registry.grants + 1,
            self.now() + self.settings.levels.lease if until is None else until,
            until is not None,
        )
        await self._commit(given)
        for instance in self.registry.reconfiguration_topics():
            await self._write(instance, given)
            self._load += 1

    async def _recall_leases(self) -> None:
        """Let leases end soon, if all components answer in time; otherwise they end when they end."""
        async with self._lock:
            if not self._lease_holders() or self._recall is not None:
                return
            await self._claim()
            until = self.now() + 2 * RECALL
            self._unreturned, self._recall = self._lease_holders(), self.registry.grants + 1
            try:
                await self._give_lease(until)
            except BaseException:
                self._recall = None
                raise
            seen = self.registry.leases_seen
        timer = waited_for(self._clock.sleep(RECALL))
        try:
            while self._unreturned and not timer.done():
                changed = waited_for(self._changed.wait())
                await asyncio.wait((changed, timer), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            if not self._unreturned:
                self._returned = seen, until
        finally:
            timer.cancel()
            self._recall = None

    # ------------------------------------------------------------------------------------------------------------------
    # Compaction.

    def _is_loaded(self) -> bool:
        return self._load > self.settings.compact_after + 4 * len(self.registry.members)

    async def _compact(self) -> None:
        """Write the state of the domain to CONF and R*, and discard what was there before the last time."""
        handled = {} if self._changes else dict(self._handled)
        if _CONF in self._before:
            await self._discard(_CONF, self._before.pop(_CONF))
        parts = self.registry.checkpoint(self._next_number(self.now()), self.extension())
        for part in parts:
            await self._commit(part)
        for standing in self.registry.standing():  # for partner domains, and for those who look at this one
            await self._commit(Withdrawal(standing.records, standing.missed))
        self._load = 0
        leased = self.settings.levels.lease != FOREVER
        for instance, sample in handled.items():
            # The checkpoint has what followed from it. With a lease, it also says who writes there.
            if instance != _JOIN and (not leased or self._heard[instance] > A_KEPT):
                self._heard[instance] = 0
                await self._discard(instance, sample)
        for instance in self.registry.reconfiguration_topics():
            last = self._publishers[instance].last if instance in self._publishers else None
            for standing in self.registry.standing():
                await self._write(instance, standing)
            for number, progress in list(self.registry.progress.items()):
                if instance in progress.routes.values():
                    await self._announce_on(number, instance)
            if instance in self._before:
                await self._discard(instance, self._before.pop(instance))
            if last is not None:
                self._before[instance] = last
        self._owed = [owed for owed in self._owed if isinstance(owed[1], BaseTime)]

    async def _discard(self, instance: TopicInstance, through: Sample) -> None:
        await self._fabric.discard(topic_name(self.settings.domain, instance), through)

    def _discard_joins(self) -> None:
        if self._owned is not None and not self.registry.waiting:
            self._begin("discarding requests to join", self._discard_handled_joins())

    async def _discard_handled_joins(self) -> None:
        while self._joins:
            if self._joins < JOINS_DISCARDED:
                await self._clock.sleep(JOIN_KEPT)
            if not self.owns or self.registry.waiting:
                return
            self._joins = 0
            try:
                await self._discard(_JOIN, self._handled[_JOIN])
            except PenstockError as error:
                self._refuse(error)

    async def _claim(self) -> None:
        """Claim CONF, catch up with what was written there, and announce what an earlier owner may not have announced.

        What this PAP has written without an answer is written again first.

        Raises `RefusedError` (`fabric.not-owner`), and as `Publisher.publish`.
        """
        if self._owned is not None and self._owned is self._prepared:
            return
        self._prepared = None
        if self._unsure is not None:
            await self._put(self._unsure)
        elif self._owned is None:
            self._owned = await self._fabric.publisher(
                topic_name(self.settings.domain, _CONF), strength=self.settings.strength
            )
        with self._again_if_failing():
            await self._prepare()
        self._prepared = self._owned

    async def _prepare(self) -> None:
        """Do what a new owner of CONF has to do. Raises as `_claim`, and `RefusedError` (`component.clock`)."""
        await self._catch_up()
        if self._ahead is not None:
            await self._give_up()
            raise self._behind(self._ahead)
        # What this PAP has read before it followed CONF so far may have meant nothing to it.
        for instance in sorted(one for one in self._declared if one.kind in COMPACTED):
            if topic_name(self.settings.domain, instance) in self._readers:
                for sample in await self._fabric.state(topic_name(self.settings.domain, instance)):
                    await self._again(instance, sample)
        for sample in await self._fabric.state(topic_name(self.settings.domain, _JOIN)):
            await self._again(_JOIN, sample)
        # An earlier owner may not have announced all.
        self._announced.clear()
        await self._announce_rest()

    async def _again(self, instance: TopicInstance, sample: Sample) -> None:
        try:
            if instance == _JOIN:
                self._take_join(sample)
            else:
                await self._take(instance, sample, again=True)
        except PenstockError as error:
            self.counts[error.code] += 1  # it is reported when it is read

    async def _give_up(self) -> None:
        owned, self._owned = self._owned, None
        await close_all((owned,), self._refuse)

    async def _catch_up_later(self, time: float) -> None:
        while (left := time - self.now()) > 0:
            await self._clock.sleep(min(left + 1 / MICROSECONDS, CLOCK_LOOK))  # somebody may set the clock right before
        while True:
            try:
                async with self._lock:
                    if self._ahead is not None:
                        await self._catch_up()
                if self._ahead is None:
                    await self._follow_table()
                break
            except FailedError as error:
                # This PAP would do nothing any more if it did not try again.
                self._note(error)
                await self._clock.sleep(CLOCK_LOOK)
        self._schedule()
        if self._ahead is not None:  # what was written later is from the future still
            self._begin("clock", self._catch_up_later(self._ahead))

    async def _catch_up(self) -> None:
        conf = topic_name(self.settings.domain, _CONF)
        self._unread = False
        samples = await self._fabric.state(conf)
        while self._unread:
            self._unread = False
            samples = await self._fabric.state(conf)
        self._ahead = None
        for sample in samples:
            try:
                self._follow(sample, live=False)
            except PenstockError as error:
                if error.code != "component.copy":
                    self._refuse(error)

    async def _commit(self, content: ConfContent) -> None:
        """Write to CONF, and follow it here too. Raises `RefusedError` (`fabric.not-owner`)."""
        if self._unsure is not None:
            raise FailedError("fabric.unreachable", "it is not known whether CONF has what was written there last")
        if self._owned is None:
            raise RefusedError("fabric.not-owner", "another PAP owns CONF")
        time = self.now()
        data, sample = self._signed(_CONF, content, time)
        sealed = self._sealed(_CONF, content, data)
        await self._put(_ConfWrite(self._owned, content, time, data, sealed, sample_key(sample)))

    async def _put(self, one: _ConfWrite) -> None:
        """Write to CONF what may be there already: then all readers drop the copy. Raises as `Publisher.publish`."""
        try:
            await one.publisher.publish(one.sealed, key=one.key)
        except RefusedError:
            self._owned = self._unsure = None
            raise
        except (FailedError, asyncio.CancelledError):
            # It may still get there, also after what is written next. Others would follow both, and this PAP would not.
            self._owned, self._unsure = None, one
            raise
        self._owned, self._unsure = one.publisher, None
        # The same sample comes back, and is a copy then.
        try:
            self._verifier.verify(one.data, _CONF, one.key, b"", one.time)
        except PenstockError as error:
            if error.code == "component.copy":
                return  # it came back before
            raise
        self._apply(one.content, one.time, one.publisher.last)

    async def _write(self, instance: TopicInstance, content: SampleContent) -> None:
        publisher = self._publishers.get(instance)
        if publisher is None:
            if instance not in self._declared:  # of a role that is gone
                await self._declare(instance)
            name = topic_name(self.settings.domain, instance)
            publisher = self._publishers[instance] = await self._fabric.publisher(name, strength=self.settings.strength)
        data, sample = self._signed(instance, content, self.now())
        try:
            await publisher.publish(self._sealed(instance, content, data), key=sample_key(sample))
        except RefusedError as error:
            if error.code == "fabric.not-owner":
                # Another PAP has written here since: this one claims the topic again when it writes next.
                await close_all((self._publishers.pop(instance, None),), self._refuse)
            raise

    def _sealed(self, instance: TopicInstance, content: SampleContent, data: bytes) -> bytes:
        """Seal a sample, if the domain seals its topics; on CONF, only the plans and the state of PAPs."""
        keys = self.registry.keys
        if keys is None or (instance == _CONF and not isinstance(content, ReconfigurationPlan | DomainCheckpoint)):
            return data
        number = FIXED_NUMBER if instance == _CONF else self.registry.key_numbers[0]
        return keys.seal(str(instance), number, data, self._random)

    def _signed(self, instance: TopicInstance, content: SampleContent, time: float) -> tuple[bytes, ComponentSample]:
        settings, number = self.settings, self._next_number(time)
        sample = ComponentSample(
            settings.domain, str(instance), settings.id, number, time, self.registry.number, content
        )
        return sample_bytes(sample, self._certificate, self._key), sample

    def _next_number(self, time: float) -> int:
        self._last_number = max(self._last_number + 1, round(time * MICROSECONDS))
        return self._last_number

    # ------------------------------------------------------------------------------------------------------------------
    # Time.

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _schedule(self, pause: float = 0.0) -> None:
        """Have one timer, for the first of what is due, after a pause."""
        due, waits = self.registry.due(), any(one.waiting for one in self.registry.progress.values())
        # A timer that began when nobody was waited for does not look at the clock.
        if (due == self._due and (self._ran is not None or not waits)) or not self._readers or self._closed:
            return
        if self._timer is not None and self._timer is not asyncio.current_task():
            self._timer.cancel()
        self._due = due
        self._timer = (
            None if due is None else in_background(f"{self.settings.id}: timer", self._sleep_until(due, pause))
        )

    def _excuse(self) -> bool:
        """Return whether components have to apply something, and give them what they did not have of their time.

        That is while this process did not run, which shows as long as `_sleep_until` looks often, and what the clock
        was set forward.
        """
        waited = [one for one in self.registry.progress.values() if one.waiting]
        if not waited:
            self._ran = None
            return False
        if self._ran is not None:
            before, self._ran = self._ran, (self._clock.steady(), self.now())
            passed, gone = (now - then for now, then in zip(self._ran, before, strict=True))
            starving = passed > CLOCK_LOOK + STARVED
            for one in waited:
                # A step forward to a time before the expected one takes nothing away.
                late = max(0.0, self._ran[1] - one.plan.expected)
                one.stepped += round(min(gone - passed, late), 3)
                one.starved += passed if starving else 0.0
            if starving:
                self._note(starved(self.settings.id, passed))
        return True

    async def _sleep_until(self, due: float, pause: float) -> None:
        steady = self._clock.steady
        self._ran = self._ran or (steady(), self.now())
        rested = steady() + pause
        while self.now() <= due or steady() < rested:
            often, left = self._excuse(), max(due - self.now(), rested - steady()) + 1 / MICROSECONDS
            await self._clock.sleep(min(left, CLOCK_LOOK) if often else left)
        # Not in this task: what is done can make something else due, which replaces the timer.
        self._due, self._timer = None, None
        self._begin("acting in time", self._act())

    async def _look_again(self) -> None:
        await self._clock.sleep(LEASE + 1 / MICROSECONDS)
        # Another owner discards requests that it has dealt with.
        if self._owned is None and self._unsure is None and self.registry.waiting:
            try:
                left = await self._fabric.state(topic_name(self.settings.domain, _JOIN))
            except PenstockError as error:
                self._refuse(error)
                self._begin("waiting for CONF", self._look_again())
                return
            self.registry.keep_waiting(set(map(_join_of, left)))
        await self._act()

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        me, name = asyncio.current_task(), f"{self.settings.id}: {name}"
        if self._closed or any(task.get_name() == name and not task.done() for task in self._tasks if task is not me):
            work.close()
            return
        task = in_background(name, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _join_of(sample: Sample) -> bytes:
    try:
        return join_id(read_sample(sample.data).sample)
    except MalformedError:
        return b""


def _written(changes: Iterable[RoleChange]) -> tuple[bytes, ...]:
    return tuple(canonical(change_to_sexp(change)) for change in changes)
