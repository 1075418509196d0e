"""The secondary decision point beside an enforcement point: it answers by itself where it can (paper 3, section 3.4.2).

    async with SecondaryPoint(fabric, key, may_decide, log) as secondary:
        found = secondary.answer(question)         # None: ask, and then
        secondary.learn(question, signed_answer)

`AnswerCache` is the part without a clock or a network: a recycler and a follower of updates for each decision point.

1. A decision point is followed after its first answer that the enforcement point believed. Updates and heartbeats of
   others are dropped before their signatures are verified.
2. The answers of a point are used while its last heartbeat is younger than `max_age`, and while it may decide about the
   resource, which is checked again each second.
3. Where two points have other revisions of the same policy, only those with the later change answer.
4. If the clock jumps against a steady one, everything is dropped, and the next heartbeats are waited for.

Every recycled answer is in the log before it is returned. If it cannot be recorded, nothing is answered.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from typing import Final, Self, TypeAlias

from penstock.authority.decisions.messages import AccessAnswer, AnswerEffect
from penstock.authority.decisions.questions import AccessQuestion, Entity
from penstock.authority.decisions.recycling import (
    CachedAnswer,
    ChangeReport,
    Learning,
    Recycled,
    Recycler,
    RecyclingRule,
)
from penstock.authority.decisions.updates import (
    FollowResult,
    PolicyHeartbeat,
    PolicyUpdate,
    UpdateFollower,
    UpdateResult,
    UpdateTopics,
    read_update,
)
from penstock.authority.limits import AUTHORITY_LIMITS, AuthorityLimits
from penstock.crypto import Signer
from penstock.errors import PenstockError, RefusedError
from penstock.fabric import Clock, Fabric, Publisher, Sample, SystemClock
from penstock.fabric.tasks import keep_running
from penstock.guard.decision_log import ANSWERED
from penstock.model.principals import Principal
from penstock.store.files.appended_lines import AppendedLines
from penstock.trust.signed import SignedValue, sign_value

MAX_AGE: Final = 5.0
"""Seconds after which a point without heartbeats is not used any more."""
#: seconds for which a right to decide is believed without looking at certificates again
_RIGHT_AGE: Final = 1.0
#: seconds by which a clock may differ from a steady one before it counts as a jump
_JUMP: Final = 1.0

MayDecide: TypeAlias = Callable[[Principal, Entity, datetime], bool]
"""Returns whether a principal may decide about a resource now."""
Note: TypeAlias = Callable[[PenstockError], None]
"""Receives errors and alarms."""


def quiet(_error: PenstockError) -> None:
    """Ignore the error."""


# ----------------------------------------------------------------------------------------------------------------------
# The cache.


@dataclass(eq=False, slots=True)
class _Followed:
    """A decision point: its answers, its updates, and whether another point has newer policies."""

    recycler: Recycler
    follower: UpdateFollower
    behind: bool = False
    #: the policies and their revision, as members of a log record
    because: str = ""
    #: resources about which it may decide, by type the ids, and when that was found out
    resources: dict[str, set[str]] = field(default_factory=dict)
    number: int = 0
    since: float = float("-inf")


Record: TypeAlias = Callable[[AccessQuestion, Recycled, str, float], None]
"""Receives a question, its recycled answer, the policies it is based on as members of a log record, and the time."""


class AnswerCache:
    """The cached answers of several decision points; see the module. Times are in seconds."""

    def __init__(
        self, may_decide: MayDecide, *, max_age: float = MAX_AGE, limits: AuthorityLimits = AUTHORITY_LIMITS
    ) -> None:
        self._may_decide = may_decide
        self._max_age = max_age
        self._limits = limits
        #: those that answered last are last
        self._points: dict[Principal, _Followed] = {}
        #: how often the clock jumped
        self.jumps = 0
        #: the clock minus the steady clock
        self._offset: float | None = None

    def __len__(self) -> int:
        return sum(len(followed.recycler) for followed in self._points.values())

    def cached(self) -> Iterator[CachedAnswer]:
        """Yield all cached answers."""
        for followed in self._points.values():
            yield from followed.recycler.cached()

    def policies(self, point: Principal) -> dict[str, str]:
        """Return the revisions of a point's policies."""
        followed = self._points.get(point)
        return {} if followed is None else dict(followed.follower.revisions)

    def answer(
        self, question: AccessQuestion, now: float, steady: float, record: Record | None = None
    ) -> Recycled | None:
        """Return the answer that follows from cached ones, or None if a decision point must be asked.

        An answer is recorded before it is returned. Raises what recording raises.
        """
        if self._offset is None or not -_JUMP < now - steady - self._offset < _JUMP:
            self.notice_jump(now, steady)
            return None
        for point, followed in self._points.items():
            follower = followed.follower
            # As `is_fresh`, without a call.
            if followed.behind or now >= follower.until or steady >= follower.until_steady:
                continue
            found = followed.recycler.answer(question, now)
            if found is not None:
                resource = question.resource
                known = followed.resources.get(resource.type)
                if (
                    known is None or resource.id not in known or now - followed.since >= _RIGHT_AGE
                ) and not self._allowed(point, followed, resource, now):
                    continue
                if record is not None:
                    record(question, found, followed.because, now)
                return found
        return None

    def _allowed(self, point: Principal, followed: _Followed, resource: Entity, now: float) -> bool:
        """Return whether the point may decide about a resource, and remember if it may."""
        if now - followed.since >= _RIGHT_AGE or followed.number >= self._limits.recycling_entries:
            followed.resources.clear()
            followed.since, followed.number = now, 0
        if not self._may_decide(point, resource, datetime.fromtimestamp(now, UTC)):
            return False
        followed.resources.setdefault(resource.type, set()).add(resource.id)
        followed.number += 1
        return True

    def learn(self, question: AccessQuestion, signed: SignedValue[AccessAnswer], now: float, steady: float) -> Learning:
        """Keep an answer that the enforcement point believes, of a point whose updates are followed."""
        if self.notice_jump(now, steady):
            return Learning(False, "the clock jumped")
        point = signed.value.point
        followed = self._points.pop(point, None)
        if followed is None:
            if len(self._points) >= self._limits.recycling_points:
                del self._points[next(iter(self._points))]
            # A set extends to resources for which the point was not asked: its right is checked when it is used.
            followed = _Followed(Recycler(self._limits), UpdateFollower(self._max_age))
        self._points[point] = followed
        if not followed.follower.is_fresh(now, steady):
            return Learning(False, "there is no fresh heartbeat of the decision point")
        return followed.recycler.learn(question, signed.value, now)

    def wants(self, value: PolicyUpdate | PolicyHeartbeat) -> bool:
        """Return whether a statement that is not verified yet could matter."""
        followed = self._points.get(value.point)
        return followed is not None and followed.follower.could_follow(value)

    def take(
        self, signed: SignedValue[PolicyUpdate | PolicyHeartbeat], now: float, steady: float
    ) -> tuple[FollowResult, ChangeReport | None]:
        """Follow an update or a heartbeat that was verified. Return what it meant and what it did to the cache."""
        self.notice_jump(now, steady)
        followed = self._points.get(signed.value.point)
        if followed is None:
            return FollowResult.NOTHING, None
        report: ChangeReport | None = None
        recycler, follower = followed.recycler, followed.follower
        if isinstance(signed.value, PolicyUpdate):
            result = follower.take_update(signed)  # type: ignore[arg-type]  # an update
        else:
            result = follower.take_heartbeat(signed, now, steady)  # type: ignore[arg-type]  # a heartbeat
        if result is FollowResult.NEXT and isinstance(signed.value, PolicyUpdate):
            report = recycler.change(signed.value)
        elif result is not FollowResult.NOTHING:
            report = ChangeReport(len(recycler), 0, lost=True)
            recycler.clear()
            if result is FollowResult.JOIN:
                recycler.follow(follower.revisions)
        if result is not FollowResult.NOTHING:
            followed.because = because_of(follower.revisions)
            self._compare()
        return result, report

    def _compare(self) -> None:
        """Find the points with older or incomparable revisions of a policy that another one has."""
        latest: dict[str, datetime] = {}
        known: dict[str, set[str]] = {}
        for followed in self._points.values():
            for name, (revision, changed) in followed.follower.policies.items():
                latest[name] = max(changed, latest.get(name, changed))
                known.setdefault(name, set()).add(revision)
        newest = {
            name: {
                one.follower.policies[name][0]
                for one in self._points.values()
                if name in one.follower.policies and one.follower.policies[name][1] == changed
            }
            for name, changed in latest.items()
        }
        for followed in self._points.values():
            followed.behind = any(
                len(known[name]) > 1 and newest[name] != {revision}
                for name, (revision, _) in followed.follower.policies.items()
            )

    def notice_jump(self, now: float, steady: float) -> bool:
        """Drop everything if the clock has jumped. Return whether it has."""
        first = self._offset is None
        if self._offset is not None and -_JUMP < now - steady - self._offset < _JUMP:
            return False
        self._offset = now - steady
        for followed in self._points.values():
            followed.recycler.clear()
            followed.follower.lose()
            followed.since = float("-inf")
        self.jumps += not first
        return not first


# ----------------------------------------------------------------------------------------------------------------------
# The log.

_quoted: Final[Callable[[str], str]] = encode_basestring_ascii


class RecycledLog:
    """Writes recycled answers to a decision log (docs/reference/decision-log.md), one line each.

    `ids` is unique for each log. Raises `FailedError` (`log.write`).
    """

    def __init__(self, lines: AppendedLines, source: str, ids: str) -> None:
        self.lines = lines
        self._number = 0
        self._start = f'{{"specversion":"1.0","source":{_quoted(source)},"type":"{ANSWERED}",'
        self._start += f'"datacontenttype":"application/json","id":"{ids}-'
        #: the last millisecond that was written, and how
        self._since = self._until = 0.0
        self._time = ""

    def write(self, question: AccessQuestion, recycled: Recycled, because: str, now: float) -> None:
        """Append the record of an answer; see `Record`."""
        if not self._since <= now < self._until:
            moment = int(now * 1_000)
            self._since, self._until = moment / 1_000, (moment + 1) / 1_000
            date = datetime.fromtimestamp(moment / 1_000, UTC)
            self._time = f'","time":"{date.isoformat(timespec="milliseconds")}","data":{{"endpoint":"recycled/'
        self._number += 1
        subject, resource = question.subject, question.resource
        # `_value_` is the text of a member, which takes a fifth of the time of formatting the member.
        self.lines.write(
            f'{self._start}{self._number:x}{self._time}{recycled.rule._value_}","decision":"'
            f'{recycled.effect._value_}",{because},"subject":{{"type":{_quoted(subject.type)},"id":'
            f'{_quoted(subject.id)}}},"action":{_quoted(question.action.id)},"resource":{{"type":'
            f'{_quoted(resource.type)},"id":{_quoted(resource.id)}}}}}}}\n'.encode("ascii")
        )


def because_of(revisions: dict[str, str]) -> str:
    """Return the policies that recycled answers are based on, and their revision, as members of a record in JSON."""
    names = ",".join(_quoted(f"policy:{name}") for name in sorted(revisions))
    revision = " ".join(revisions[name] for name in sorted(revisions))
    return f'"because":[{names}],"revision":{_quoted(revision)},"took":0'


# ----------------------------------------------------------------------------------------------------------------------
# The point.


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondarySettings:
    """Topics of updates, the age of heartbeats, clocks, and the receiver of errors and alarms."""

    topics: UpdateTopics = field(default_factory=UpdateTopics)
    max_age: float = MAX_AGE
    clock: Clock = field(default_factory=SystemClock)
    #: seconds of a clock that nobody sets
    steady: Callable[[], float] = time.monotonic
    note: Note = quiet
    limits: AuthorityLimits = AUTHORITY_LIMITS


class UpdatedCache:
    """A cache that follows updates over a fabric. `key` signs their results, which say what was dropped."""

    def __init__(self, fabric: Fabric, key: Signer, may_decide: MayDecide, settings: SecondarySettings) -> None:
        self.counts: Counter[str] = Counter()
        self.cache = AnswerCache(may_decide, max_age=settings.max_age, limits=settings.limits)
        self._settings = settings
        self._fabric = fabric
        self._key = key
        # The system's clock is asked directly, because each answer needs it.
        self._clock = time.time if type(settings.clock) is SystemClock else settings.clock.now
        self._steady = settings.steady
        self._writer: Publisher | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._joined = asyncio.Event()

    async def __aenter__(self) -> Self:
        topics = self._settings.topics
        await topics.declare(self._fabric)
        self._writer = await self._fabric.publisher(topics.results)
        self._tasks = [keep_running("following policy updates", self._follow)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writer is not None:
            await self._writer.close()

    async def followed(self, seconds: float) -> None:
        """Wait until a decision point that answered is followed, at most for this time of the event loop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._joined.wait()

    def find(self, question: AccessQuestion) -> Recycled | None:
        """Return the answer that follows from cached ones, or None. Nothing is recorded."""
        return self.cache.answer(question, self._clock(), self._steady())

    def learn(self, question: AccessQuestion, signed: SignedValue[AccessAnswer]) -> Learning:
        """Keep an answer that was verified, of a point that may decide, if it can be recycled."""
        learning = self.cache.learn(question, signed, self._clock(), self._steady())
        self.counts["learnt" if learning.kept else "not-learnt"] += 1
        if learning.contradiction:
            self._alarm(
                f"answers of {signed.value.point.short} contradict each other: "
                + ", ".join(f"{one.answer.effect} for {one.question.text[:200]}" for one in learning.contradiction[-2:])
            )
        return learning

    def _alarm(self, message: str) -> None:
        self.counts["alarms"] += 1
        self._settings.note(
            RefusedError("pep.contradiction", message, hint="the decision point is asked again; check what it declares")
        )

    async def _follow(self) -> None:
        async with await self._fabric.subscribe(self._settings.topics.updates) as samples:
            async for sample in samples:
                await self._hear(sample)

    async def _hear(self, sample: Sample) -> None:
        try:
            found = read_update(sample.data)
        except PenstockError as error:
            self.counts["malformed"] += 1
            self._settings.note(error)
            return
        if isinstance(found.value, UpdateResult) or not self.cache.wants(found.value):
            self.counts["ignored"] += 1
            return
        try:
            signed = found.verify()
        except RefusedError as error:
            self.counts["forged"] += 1
            self._settings.note(error)
            return
        value = signed.value
        result, report = self.cache.take(signed, self._clock(), self._steady())  # type: ignore[arg-type]  # no result
        self.counts[result.value] += 1
        if result is FollowResult.JOIN:
            self._joined.set()
        if result is FollowResult.LOST and not isinstance(value, UpdateResult):
            self._alarm(f"updates of {value.point.short} are missing, or two have the same number")
        if report is not None and isinstance(value, PolicyUpdate):
            await self._report(value, signed.digest, report)

    async def _report(self, update: PolicyUpdate, digest: bytes, report: ChangeReport) -> None:
        value = UpdateResult(
            self._key.principal,
            update.point,
            digest,
            datetime.fromtimestamp(self._clock(), UTC),
            report.dropped,
            report.kept,
            report.lost,
        )
        if self._writer is not None:
            try:
                await self._writer.publish(sign_value(value, self._key).to_bytes(), key=update.point.digest.hex())
            except PenstockError as error:
                self.counts["unsent"] += 1
                self._settings.note(error)


class SecondaryPoint(UpdatedCache):
    """See the module. Without a log, the caller records what is answered."""

    def __init__(
        self,
        fabric: Fabric,
        key: Signer,
        may_decide: MayDecide,
        log: RecycledLog | None,
        settings: SecondarySettings | None = None,
    ) -> None:
        super().__init__(fabric, key, may_decide, settings or SecondarySettings())
        self._log = log
        self._record = None if log is None else log.write

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if self._log is not None:
            self._tasks.append(keep_running("writing the decision log", self._sync))
        return self

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        if self._log is not None:
            self._log.lines.sync()
            self._log.lines.close()

    def answer(self, question: AccessQuestion) -> Recycled | None:
        """Return the answer that follows from cached ones, or None if a decision point must be asked.

        Raises `FailedError` (`log.write`) if the answer cannot be recorded, `MalformedError` (`pdp.request`).
        """
        return self.cache.answer(question, self._clock(), self._steady(), self._record)

    async def _sync(self) -> None:
        while self._log is not None:
            await self._settings.clock.sleep(1)
            with suppress(PenstockError):
                # An error closes the file: the next answer opens it again, or is refused.
                self._log.lines.sync()


# ----------------------------------------------------------------------------------------------------------------------
# For people.


def explain_recycled(question: AccessQuestion, recycled: Recycled) -> list[str]:
    """Return lines that say from which answers a recycled answer follows, and why."""
    subject, resource = question.subject, question.resource
    may = "may" if recycled.effect is AnswerEffect.PERMIT else "may not"
    first = (
        f"{recycled.effect}: {subject.type} {subject.id} {may} {question.action.id} {resource.type} {resource.id}, "
        f"recycled from {_counted(len(recycled.premises))}: {_RULES[recycled.rule]}"
    )
    lines = [first]
    if recycled.over:
        joined = " ≥ " if recycled.rule is RecyclingRule.PATH else ", "
        lines.append(f"  {_OVER[recycled.rule]}: {joined.join(recycled.over)}")
    for asked, answer in recycled.premises:
        roles = ""
        if answer.recycling is not None and answer.recycling.HEAD == b"roles":
            found = asked.subject.properties.get(getattr(answer.recycling, "attribute", ""), [])
            roles = f" with roles {', '.join(map(str, found))}" if isinstance(found, list) else f" with role {found}"
        policies = ", ".join(f"{policy.id} {policy.revision}" for policy in answer.rests_on)
        lines.append(
            f"  {answer.effect} for {asked.subject.type} {asked.subject.id}{roles}: {asked.action.id} "
            f"{asked.resource.type} {asked.resource.id}, by {answer.point.short} under {policies}, "
            f"issued {answer.issued:%Y-%m-%d %H:%M:%S}, until {answer.until:%H:%M:%S}"
        )
        if answer.holds_for is not None and recycled.rule is RecyclingRule.SET:
            lines.append(f"    it holds for every request with {answer.holds_for}")
    return lines


def _counted(number: int) -> str:
    return "one answer" if number == 1 else f"{number} answers"


_RULES: Final = {
    RecyclingRule.PRECISE: "the same question",
    RecyclingRule.REMAINDER: "a role of the subject has the permission",
    RecyclingRule.DENIED_ROLES: "no role of the subject has the permission",
    RecyclingRule.PATH: "labels along a path dominate each other",
    RecyclingRule.NEGATION: "one label does not dominate another, so these do not either",
    RecyclingRule.UNEQUAL: "two labels differ, so labels that are equal to them differ too",
    RecyclingRule.SET: "the answer holds for a set of requests",
}
_OVER: Final = {
    RecyclingRule.REMAINDER: "one of these roles has the permission",
    RecyclingRule.DENIED_ROLES: "roles without the permission",
    RecyclingRule.PATH: "labels that dominate each other",
    RecyclingRule.NEGATION: "labels along which the negation is carried over",
    RecyclingRule.UNEQUAL: "labels that are equal to the two that differ",
}
