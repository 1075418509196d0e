"""Policy updates and heartbeats of a decision point, by which caches of its answers stay consistent.

    (policy-update    (point <principal>) (began <date>) (number <n>) (previous <bytes>) (time <date>) (policy <text>)
                      [(before <revision>)] [(after <revision>)] (changes <change> …))
    (policy-heartbeat (point <principal>) (began <date>) (number <n>) (head <bytes>) (time <date>)
                      (policies <policy> …))
    (update-result    (cache <principal>) (point <principal>) (update <digest>) (time <date>) (dropped <n>) (kept <n>)
                      [(lost)])
    <change>  (role-permission (role <text>) (action <text>) (type <text>) (id <text>) [(granted)])
              (resources [(type <text>)] [(prefix <text>)] [(exact)])
    <policy>  (policy (id <text>) (revision <text>) (changed <date>))

Updates are numbered from 1, and chained: `previous` is the digest of the update before, and 32 zero bytes in the first
one. A point begins a chain when it starts, and the chain that began last counts. A heartbeat has the number and the
digest of the last update, and the revisions of all policies. A cache that has both missed nothing until then.

`UpdateAuthor` is the point's side. `UpdateFollower` is a cache's side: a state machine whose rules are

1. Only a heartbeat makes it follow a chain: one that began later than the last, or the same with a higher number.
2. An update counts if it is the next of the chain. Copies and older ones are ignored.
3. A gap, a heartbeat with a higher number, or other revisions than expected: everything is dropped, and what the
   heartbeat says counts.
4. Two updates with the same number: everything is dropped, and nothing counts until the point begins another chain.
5. The cache can be used while the last heartbeat is younger than `max_age`, both by the date in it and by a steady
   clock since it was heard. Heartbeats must have increasing dates, and at most `max_age` ahead of the clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Final, TypeAlias

from penstock.authority.decisions.messages import TEXT, AccessAnswer, PolicyRevision
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.limits import ANSWER_BYTES, ANSWER_POLICIES, AUTHORITY_LIMITS, UPDATE_CHANGES, AuthorityLimits
from penstock.codec.sexp import OMITTED, Named
from penstock.crypto import Signer
from penstock.errors import LimitError
from penstock.fabric import Fabric, Qos
from penstock.model.principals import Principal
from penstock.trust.limits import POLICY_NUMBER
from penstock.trust.policy_events import BEGINNING
from penstock.trust.signed import (
    DIGEST,
    Claim,
    SignedValue,
    StatementRecord,
    UnverifiedValue,
    count_form,
    malformed,
    parse_signed,
    sign_value,
)

# ----------------------------------------------------------------------------------------------------------------------
# The statements.


@dataclass(frozen=True, slots=True)
class RolePermissionChange(StatementRecord):
    """A role got or lost the permission to perform an action on a resource."""

    HEAD: ClassVar = b"role-permission"
    role: Annotated[str, TEXT]
    action: Annotated[str, TEXT]
    resource_type: Annotated[str, TEXT, Named(b"type")]
    resource_id: Annotated[str, TEXT, Named(b"id")]
    granted: bool = False


@dataclass(frozen=True, slots=True)
class ResourceChange(StatementRecord):
    """Anything may have changed for resources of a type, or of all, whose ids begin so, or are so."""

    HEAD: ClassVar = b"resources"
    resource_type: Annotated[str, TEXT, Named(b"type"), OMITTED] = ""
    prefix: Annotated[str, TEXT, OMITTED] = ""
    #: whether only the resource whose id is the prefix is meant
    exact: bool = False

    def matches(self, resource_type: str, resource_id: str) -> bool:
        """Return whether a resource is one of these."""
        return self.resource_type in ("", resource_type) and (
            resource_id == self.prefix if self.exact else resource_id.startswith(self.prefix)
        )


PolicyChange: TypeAlias = RolePermissionChange | ResourceChange
EVERYTHING: Final = (ResourceChange(),)


def concerns(change: PolicyChange, question: AccessQuestion) -> bool:
    """Return whether a question may have another answer after a change."""
    resource = question.resource
    if isinstance(change, ResourceChange):
        return change.matches(resource.type, resource.id)
    return (change.action, change.resource_type, change.resource_id) == (question.action.id, resource.type, resource.id)


@dataclass(frozen=True, slots=True)
class PolicyUpdate(Claim):
    """A change of one policy. `before` is None for a new policy, `after` for one that was removed."""

    HEAD: ClassVar = b"policy-update"
    ORDER: ClassVar = ("point", "began", "number", "previous", "time", "policy", "before", "after", "changes")
    SIGNER: ClassVar = "point"
    point: Principal
    began: datetime
    number: Annotated[int, count_form(POLICY_NUMBER, least=1)]
    previous: Annotated[bytes, DIGEST] = field(repr=False)
    time: datetime
    policy: Annotated[str, TEXT]
    changes: tuple[PolicyChange, ...]
    before: Annotated[str, TEXT] | None = None
    after: Annotated[str, TEXT] | None = None

    def verify_fields(self) -> None:
        """Raise `MalformedError` for an impossible position in a chain or for no change, `LimitError` for too many."""
        if (self.number == 1) is not (self.previous == BEGINNING):
            raise malformed("updates are counted from 1, and the first follows nothing")
        if self.before == self.after:
            raise malformed("an update leads to another revision")
        if len(self.changes) > UPDATE_CHANGES:
            raise LimitError(
                "pdp.limit", f"an update has more than {UPDATE_CHANGES} changes", hint="name the resources instead"
            )


@dataclass(frozen=True, slots=True)
class PolicyHeartbeat(Claim):
    """At `time` this was the point's last update, and these were the revisions of its policies."""

    HEAD: ClassVar = b"policy-heartbeat"
    SIGNER: ClassVar = "point"
    point: Principal
    began: datetime
    number: int
    head: Annotated[bytes, DIGEST] = field(repr=False)
    time: datetime
    policies: tuple[PolicyRevision, ...]

    def verify_fields(self) -> None:
        """Raise `MalformedError` for a head without updates, and the other way round, and for a policy twice."""
        if (self.number == 0) is not (self.head == BEGINNING):
            raise malformed("only a heartbeat before the first update has an empty head")
        if len(self.policies) > ANSWER_POLICIES or len(self.revisions) < len(self.policies):
            raise malformed(f"more than {ANSWER_POLICIES} policies, or one of them twice")

    @property
    def revisions(self) -> dict[str, str]:
        """The revision of each policy."""
        return {policy.id: policy.revision for policy in self.policies}


@dataclass(frozen=True, slots=True)
class UpdateResult(Claim):
    """What an update did to a cache: how many answers it dropped and left, and whether the cache had lost track."""

    HEAD: ClassVar = b"update-result"
    SIGNER: ClassVar = "cache"
    cache: Principal
    point: Principal
    update: Annotated[bytes, DIGEST]
    time: datetime
    dropped: int
    kept: int
    lost: bool = False


def read_update(data: bytes) -> UnverifiedValue[PolicyUpdate | PolicyHeartbeat | UpdateResult]:
    """Read a signed update, heartbeat or result. Raises `MalformedError`, `LimitError`, `RefusedError`."""
    if len(data) > ANSWER_BYTES:
        raise LimitError("pdp.limit", f"an update is longer than {ANSWER_BYTES} bytes")
    kinds: tuple[type[PolicyUpdate | PolicyHeartbeat | UpdateResult], ...] = (
        PolicyUpdate, PolicyHeartbeat, UpdateResult,
    )  # fmt: skip
    return parse_signed(data, *kinds)


@dataclass(frozen=True, slots=True)
class UpdateTopics:
    """The topic of updates and heartbeats, and the topic of results, both with the point's digest as the key."""

    updates: str = "policy-updates"
    results: str = "update-results"

    async def declare(self, fabric: Fabric) -> None:
        """Declare both. Raises as `Fabric.declare`."""
        await fabric.declare(self.updates, _QOS)
        await fabric.declare(self.results, _QOS)


_QOS: Final = Qos(history=1_000)


# ----------------------------------------------------------------------------------------------------------------------
# The point's side.


class UpdateAuthor:
    """Makes and signs the updates and heartbeats of one chain. Dates do not decrease, whatever the clock does."""

    def __init__(self, key: Signer, now: datetime, policies: Iterable[PolicyRevision]) -> None:
        self._key = key
        self._began = self._time = now
        self._number = 0
        self._head = BEGINNING
        self._policies = {policy.id: policy for policy in policies}

    def update(
        self, now: datetime, policy: str, after: PolicyRevision | None, changes: Iterable[PolicyChange]
    ) -> SignedValue[PolicyUpdate]:
        """Sign the next update: a policy has another revision now, or none. Raises as `sign_value`."""
        before = self._policies.get(policy)
        value = PolicyUpdate(
            self._key.principal,
            self._began,
            self._number + 1,
            self._head,
            self._advance(now),
            policy,
            tuple(changes),
            None if before is None else before.revision,
            None if after is None else after.revision,
        )
        signed = sign_value(value, self._key)
        self._number, self._head = value.number, signed.digest
        if after is None:
            self._policies.pop(policy, None)
        else:
            self._policies[policy] = after
        return signed

    def replace(
        self, now: datetime, policies: Iterable[PolicyRevision], changes: Iterable[PolicyChange]
    ) -> list[SignedValue[PolicyUpdate]]:
        """Sign an update for each policy that differs, each with all changes. Raises as `sign_value`."""
        wanted, listed = {policy.id: policy for policy in policies}, tuple(changes)
        differing = [
            name
            for name in sorted(wanted.keys() | self._policies.keys())
            if _revision(wanted.get(name)) != _revision(self._policies.get(name))
        ]
        return [self.update(now, name, wanted.get(name), listed) for name in differing]

    def heartbeat(self, now: datetime) -> SignedValue[PolicyHeartbeat]:
        """Sign a heartbeat for the last update. Raises as `sign_value`."""
        policies = tuple(self._policies.values())
        value = PolicyHeartbeat(
            self._key.principal, self._began, self._number, self._head, self._advance(now, least=_INSTANT), policies
        )
        return sign_value(value, self._key)

    def _advance(self, now: datetime, least: timedelta = timedelta()) -> datetime:
        self._time = max(self._time + least, now)
        return self._time


_INSTANT: Final = timedelta(microseconds=1)


def _revision(policy: PolicyRevision | None) -> str | None:
    return None if policy is None else policy.revision


# ----------------------------------------------------------------------------------------------------------------------
# The side of a cache.


class FollowResult(StrEnum):
    """What a statement means for a cache."""

    #: nothing: a copy, an old one, or one that says what is known
    NOTHING = "nothing"
    #: the update is the next one: drop what it affects
    NEXT = "next"
    #: drop everything, and follow the revisions of the heartbeat
    JOIN = "join"
    #: drop everything: updates are missing, or the point contradicts itself
    LOST = "lost"


class UpdateFollower:
    """Follows the updates of one point; see the module. Statements were verified. Times are in seconds."""

    def __init__(self, max_age: float) -> None:
        self._max_age = max_age
        self._began: datetime | None = None
        #: the last update: number and digest
        self._number = 0
        self._head = BEGINNING
        #: the revision of each policy, and when it was changed
        self.policies: Mapping[str, tuple[str, datetime]] = {}
        #: the date of the last heartbeat, and when it ends by the clock and by the steady clock
        self._beat = self.until = self.until_steady = float("-inf")
        #: waits for a heartbeat, or for another chain
        self._lost = True
        self._forked = False

    @property
    def revisions(self) -> dict[str, str]:
        """The revision of each policy, as far as it was followed."""
        return {name: revision for name, (revision, _) in self.policies.items()}

    def could_follow(self, value: PolicyUpdate | PolicyHeartbeat) -> bool:
        """Return whether a statement, which may be forged, would be news."""
        if self._began is not None and value.began < self._began:
            return False
        if isinstance(value, PolicyHeartbeat):
            return value.time.timestamp() > self._beat
        return value.began == self._began and value.number >= self._number

    def is_fresh(self, now: float, steady: float) -> bool:
        """Return whether the cache can be used."""
        return now < self.until and steady < self.until_steady

    def lose(self) -> None:
        """Wait for the next heartbeat, because a clock jumped or a message was missed."""
        self._lost = True
        self.until = self.until_steady = float("-inf")

    def take_update(self, signed: SignedValue[PolicyUpdate]) -> FollowResult:
        """Return what an update means."""
        value = signed.value
        if self._began is None or value.began != self._began or self._forked:
            # Nothing is cached of another chain: its heartbeat will come.
            return FollowResult.NOTHING
        if value.number <= self._number:
            if value.number == self._number and signed.digest != self._head:
                self._forked = True
                self.lose()
                return FollowResult.LOST
            return FollowResult.NOTHING
        if self._lost:
            return FollowResult.NOTHING
        if value.number != self._number + 1 or value.previous != self._head:
            self._forked = value.number == self._number + 1
            self.lose()
            return FollowResult.LOST
        self._number, self._head = value.number, signed.digest
        policies = {name: known for name, known in self.policies.items() if name != value.policy}
        if value.after is not None:
            policies[value.policy] = (value.after, value.time)
        self.policies = policies
        return FollowResult.NEXT

    def take_heartbeat(self, signed: SignedValue[PolicyHeartbeat], now: float, steady: float) -> FollowResult:
        """Return what a heartbeat means, heard now."""
        value = signed.value
        date = value.time.timestamp()
        if date <= self._beat or date > now + self._max_age or now - date >= self._max_age:
            # A copy, one from a clock that is wrong, or one that was held back.
            return FollowResult.NOTHING
        if self._began is not None and value.began < self._began:
            return FollowResult.NOTHING
        same = value.began == self._began
        if same and (self._forked or value.number < self._number):
            return FollowResult.NOTHING
        if same and value.number == self._number and value.head != self._head:
            self._forked = True
            self.lose()
            return FollowResult.LOST
        self._beat, self.until, self.until_steady = date, date + self._max_age, steady + self._max_age
        if same and not self._lost and value.number == self._number and value.revisions == self.revisions:
            return FollowResult.NOTHING
        self._began, self._number, self._head = value.began, value.number, value.head
        self.policies = {policy.id: (policy.revision, policy.changed) for policy in value.policies}
        self._lost = self._forked = False
        return FollowResult.JOIN


class UpdateWatch:
    """Follows the updates of the points that answered, for those who ask again when an answer may have changed."""

    def __init__(self, max_age: float, limits: AuthorityLimits = AUTHORITY_LIMITS) -> None:
        self._most = limits.recycling_points
        self._max_age = max_age
        #: those that answered last are last
        self._followers: dict[Principal, UpdateFollower] = {}

    def is_old(self, answer: AccessAnswer, now: float, steady: float) -> bool:
        """Watch the point of an answer, and return whether the answer rests on other revisions than it announced."""
        follower = self._followers.pop(answer.point, None) or UpdateFollower(self._max_age)
        if len(self._followers) >= self._most:
            del self._followers[next(iter(self._followers))]
        self._followers[answer.point] = follower
        known = follower.revisions if follower.is_fresh(now, steady) else {}
        return any(known.get(policy.id, policy.revision) != policy.revision for policy in answer.rests_on)

    def take(self, data: bytes, now: float, steady: float) -> tuple[PolicyChange, ...]:
        """Return what an update or a heartbeat on the fabric may have changed.

        Raises `MalformedError`, `LimitError`, `RefusedError` for one that is not genuine.
        """
        found = read_update(data)
        follower = self._followers.get(found.value.point)
        if follower is None or isinstance(found.value, UpdateResult) or not follower.could_follow(found.value):
            return ()
        signed = found.verify()
        changes: tuple[PolicyChange, ...] = EVERYTHING
        if isinstance(found.value, PolicyUpdate):
            result = follower.take_update(signed)  # type: ignore[arg-type]  # an update
            if result is FollowResult.NEXT:
                changes = found.value.changes
        else:
            result = follower.take_heartbeat(signed, now, steady)  # type: ignore[arg-type]  # a heartbeat
        return () if result is FollowResult.NOTHING else changes
