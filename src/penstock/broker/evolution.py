"""Policy evolution at one broker: what it knows of owners' policies, and whether it may go on by it (section 6.2, 6.3).

A plain state machine. Whoever drives it tells it what comes, and carries out what it returns, in order:

1. Policy events are taken from anybody: the owner's signature and the chain say what they are worth. `Changed` says
   what holds now; once that is enforced the driver says so (`enforced`), and only then is it acknowledged.
2. A time-stamp is taken from its signer, or from a neighbour that is trusted with the owner's types and signed for this
   broker. It says how far the owner is, and for how long that is good. Its signer is the owner, or somebody who holds
   the right `stamp`; one whose signer does not (yet) is held and does not count, until `weigh` finds that it does.
3. A broker that has not enforced all that the owner has signed, whose last stamp is over, or whose owner forked its
   policy delivers none of the owner's types and asks for its policy anew. `delivers` is asked with each delivery, so
   that no tick has to come in time.

None of this is for clients: what they would learn of it is who was granted what.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from penstock.broker.policy_log import Fork, PolicyLog, Reason
from penstock.broker.sessions import earliest
from penstock.crypto import SigningKey
from penstock.errors import LimitError, RefusedError
from penstock.guard.agreed_authority import Announced
from penstock.model.instants import in_utc
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.trust.caches import CertificateCache
from penstock.trust.credentials import CertificateVerifier, Credentials
from penstock.trust.event_types import UnverifiedType
from penstock.trust.policy_events import PolicyEvent
from penstock.trust.policy_state import PolicyState
from penstock.trust.revocations import Revocations
from penstock.trust.signed import SignedValue, UnverifiedValue, sign_value
from penstock.trust.snapshots import read_snapshot, write_snapshot
from penstock.trust.stamps import Acknowledgement, CarriedStamp, HopStamp, TimeStamp

NO_SKEW: Final = timedelta()


@dataclass(frozen=True, slots=True)
class Changed:
    """An owner's policy is now another: to be enforced, and then told with `enforced`."""

    owner: Principal
    number: int
    state: PolicyState
    installed: tuple[UnverifiedType, ...] = field(default=(), repr=False)
    removed: tuple[TypeName, ...] = ()


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """To be sent to the owner, and to whoever waits for a revocation to be complete; the snapshot is written first."""

    acknowledgement: SignedValue[Acknowledgement]


@dataclass(frozen=True, slots=True)
class Stale:
    """The owner's types are not delivered any more."""

    owner: Principal
    reason: Reason


@dataclass(frozen=True, slots=True)
class Fresh:
    """The owner's types are delivered again."""

    owner: Principal


@dataclass(frozen=True, slots=True)
class Resubscribe:
    """To ask for the owner's policy and time-stamps anew, by another way if there is one."""

    owner: Principal


@dataclass(frozen=True, slots=True)
class Forked:
    """To the operator, and to all who rely on the owner: two statements that cannot both be true."""

    owner: Principal
    fork: Fork


@dataclass(frozen=True, slots=True)
class Unusable:
    """To the operator: a policy event that the owner signed and nobody can apply."""

    owner: Principal
    number: int
    code: str
    message: str


Output: TypeAlias = Changed | Acknowledge | Stale | Fresh | Resubscribe | Forked | Unusable

Trusts: TypeAlias = Callable[[datetime, Principal, Principal], bool]
"""Says whether a broker goes by what an owner says: whether stamps may come from it. `Core.goes_by`."""

Stampers: TypeAlias = Callable[[datetime, Principal], frozenset[Principal]]
"""Returns who may sign time-stamps for an owner now. `Overlay.stampers`."""


def nobody_else(_now: datetime, _owner: Principal) -> frozenset[Principal]:
    """Return nobody: owners sign their time-stamps themselves."""
    return frozenset()


class _Followed:
    """An owner's log, and what was said about it last."""

    def __init__(self, log: PolicyLog) -> None:
        self.log = log
        self.told: Reason | None = None
        self.fork_told = False
        self.asked: datetime | None = None
        #: until when its types may be delivered, as things are; kept, because every delivery asks
        self.until: datetime | None = None
        self.acknowledged: datetime | None = None
        #: the last event of which everything is enforced, types too
        self.whole = 0


class PolicyKeeper:
    """See the module.

    `skew` bounds the difference between any two clocks. With `strict` an owner without time-stamps is not delivered at
    all: right for a broker that may have lost what it knew; otherwise such an owner does not use them, until the first
    stamp comes or its policy requires them. `now` never goes back.
    """

    def __init__(  # noqa: PLR0913  # each argument is one of the things that a broker goes by
        self,
        key: SigningKey,
        trusts: Trusts,
        *,
        stampers: Stampers = nobody_else,
        skew: timedelta = NO_SKEW,
        strict: bool = False,
        verifier: CertificateVerifier | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._key = key
        self._trusts = trusts
        self._stampers = stampers
        self._skew = skew
        self._strict = strict
        self._verifier = verifier or CertificateCache()
        self._limits = limits
        self._retry = timedelta(milliseconds=limits.policy_retry)
        self._owners: dict[Principal, _Followed] = {}

    # What comes.

    def follow(self, now: datetime, owner: Principal, *, learned: bool = True) -> list[Output]:
        """Take note that types of an owner are here.

        A strict broker delivers none of them until a stamp has come; one that has not `learned` how far the owner's
        chain goes, until it has, or until a stamp has come.
        """
        if owner in self._owners:
            return []
        try:
            followed = self._follow(owner)
        except LimitError:
            # Nothing that the owner says can be kept.
            return [Stale(owner, Reason.UNSTAMPED if self._strict else Reason.UNKNOWN)]
        followed.log.learned = learned
        followed.until = followed.log.fresh_until(strict=self._strict)
        return list(self._tell(now, followed, 0))

    def learned(self, now: datetime, owner: Principal) -> list[Output]:
        """Take note that it is known how far an owner's chain goes."""
        followed = self._owners.get(owner)
        if followed is None or followed.log.learned:
            return []
        followed.log.learned = True
        followed.until = followed.log.fresh_until(strict=self._strict)
        return list(self._tell(now, followed, followed.log.enforced))

    def unlearned(self) -> list[Principal]:
        """Return the owners of whom it is not known how far their chains go."""
        return [owner for owner, followed in self._owners.items() if not followed.log.learned]

    def receive(self, now: datetime, unverified: UnverifiedValue[PolicyEvent]) -> list[Output]:
        """Take in a policy event: in any order, and as often as it comes.

        Raises `RefusedError` (`evolution.wrong-key`, `key.bad-signature`), `LimitError` (`evolution.owners`).
        """
        return self.take(now, [unverified.verify()])

    def take(self, now: datetime, events: Sequence[SignedValue[PolicyEvent]]) -> list[Output]:
        """Take in policy events of one owner that were verified. Raises `LimitError` (`evolution.owners`)."""
        return self._take(now, events[0].value.owner, events=events)

    def stamp(self, now: datetime, sender: Principal, carried: CarriedStamp) -> list[Output]:
        """Take in a time-stamp from a neighbour, or from whoever signed it.

        (1) Its signer signed it. (2) The sender may hand it on, and did so for this broker. (3) Neither lies in the
        future, or a clock that is wrong would keep a broker going for longer than the owner wants. (4) Its signer is
        the owner, or may stamp for it: otherwise it is held, and counts once the signer's credentials have come.

        Raises `RefusedError`: as `receive` does, `evolution.untrusted`, `evolution.not-for-us`, `evolution.future`.
        """
        stamp = carried.stamp.verify()
        times = [stamp.value.time]
        if sender not in (stamp.value.owner, stamp.value.signer):
            times.append(self._check_hop(now, sender, stamp, carried.hop))
        if max(times) - self._skew > in_utc(now):
            raise RefusedError(
                "evolution.future", "a time-stamp lies in the future", hint="set the clocks, or allow for more skew"
            )
        return self._take(now, stamp.value.owner, stamps=[stamp])

    def _check_hop(
        self, now: datetime, sender: Principal, stamp: SignedValue[TimeStamp], hop: UnverifiedValue[HopStamp] | None
    ) -> datetime:
        if not self._trusts(now, stamp.value.owner, sender):
            raise RefusedError(
                "evolution.untrusted",
                f"{sender.short} is not trusted with what {stamp.value.owner.short} owns",
                hint="the owner grants `route` to brokers that it trusts",
            )
        # Section 6.3: stamps "would need to be signed by its neighbouring brokers".
        said = None if hop is None else hop.verify().value
        if said is None or (said.stamp, said.sender, said.receiver) != (stamp.digest, sender, self._key.principal):
            raise RefusedError("evolution.not-for-us", f"{sender.short} did not sign this time-stamp for this broker")
        return said.time

    def weigh(self, now: datetime) -> list[Output]:
        """Ask again who may stamp for whom: credentials have come or gone, or were revoked."""
        said: list[Output] = []
        for owner, followed in self._owners.items():
            # What is being enforced is asked when that is done.
            if followed.log.applied == followed.log.enforced:
                said += self._take(now, owner)
        return said

    def enforced(self, now: datetime, owner: Principal, number: int, *, whole: bool = True) -> list[Output]:
        """Take note that what `Changed` said is enforced from now on.

        It is acknowledged if it is the `whole` of it: if no type could not be installed.
        """
        followed = self._owners.get(owner)
        if followed is None:
            return []
        log = followed.log
        log.enforced = max(log.enforced, min(number, log.applied))
        self._authorise(now, log)
        followed.until = log.fresh_until(strict=self._strict)
        if not whole:
            return list(self._tell(now, followed, log.enforced))
        followed.whole = log.enforced
        return [*self._acknowledge(now, followed), *self._tell(now, followed, log.enforced)]

    def tick(self, now: datetime) -> tuple[list[Output], datetime | None]:
        """Notice what has not come, and say when to call again at the latest."""
        said: list[Output] = []
        for followed in self._owners.values():
            followed.log.forget_future(in_utc(now) + self._skew)
            followed.until = followed.log.fresh_until(strict=self._strict)
            said += self._tell(now, followed, followed.log.enforced)
        return said, self.turns()

    def turns(self) -> datetime | None:
        """Return when to call `tick` at the latest, as things are; whoever wants to know only that asks here."""
        turn: datetime | None = None
        for followed in self._owners.values():
            if followed.told is None and followed.log.stamp is not None:
                turn = earliest(turn, _after(followed.log.stamp.value.until))
            elif followed.asked is not None and followed.told is not Reason.FORKED:
                turn = earliest(turn, followed.asked + self._retry)
        return turn

    # What is known.

    def delivers(self, now: datetime, owner: Principal) -> bool:
        """Say whether the owner's types may be delivered at this very moment."""
        followed = self._owners.get(owner)
        if followed is None:
            return not self._strict
        return followed.until is not None and now <= followed.until

    def owners(self) -> Iterator[Principal]:
        """Yield the owners whose policy is known."""
        return iter(self._owners)

    def state(self, owner: Principal) -> PolicyState:
        """Return what an owner's policy comes to, whether it is enforced already or not."""
        return self._log(owner).state

    def known(self, owner: Principal) -> int:
        """Return the highest number that the owner has signed, as far as is known here."""
        return self._log(owner).known

    def log(self, owner: Principal) -> tuple[SignedValue[PolicyEvent], ...]:
        """Return the owner's events from the last checkpoint on: what a broker that asks for them needs."""
        return tuple(self._log(owner).events)

    def follows(self, owner: Principal) -> bool:
        """Say whether an owner's policy is kept: beyond `Limits.policy_owners` it is not."""
        return owner in self._owners

    def fork(self, owner: Principal) -> tuple[SignedValue[PolicyEvent], ...]:
        """Return the events that show that an owner has forked its policy; none if it has not."""
        fork = self._log(owner).fork
        return () if fork is None else fork.events

    def top(self, owner: Principal) -> SignedValue[PolicyEvent] | None:
        """Return the event with the highest number that is known, whether it could be applied or not."""
        return self._log(owner).top

    def has(self, owner: Principal, number: int, digest: bytes) -> bool:
        """Say whether an event of the owner would change nothing, by its number and digest."""
        return self._log(owner).has(number, digest)

    def credentials(self) -> Credentials:
        """Return what all owners have published and not revoked; none of those that forked."""
        bag = Credentials()
        for followed in self._owners.values():
            if followed.log.fork is None:
                bag += followed.log.state.credentials
        return bag

    def revocations(self) -> Revocations:
        """Return what was revoked, by whom; of those that forked too."""
        return Revocations({owner: followed.log.state.revoked for owner, followed in self._owners.items()})

    def announced(self) -> Iterator[Announced]:
        """Yield what was agreed on, by whose word; of those that forked too, since it restricts."""
        for owner, followed in self._owners.items():
            state = followed.log.state
            if state.agreements:
                yield Announced(owner, state.agreements, state.profiles)

    def stamps(self, owner: Principal) -> list[SignedValue[TimeStamp]]:
        """Return the last time-stamps for an owner that count, one of each signer; none where the owner forked."""
        log = self._log(owner)
        return [] if log.fork is not None else log.counting()

    def kept_stamps(self, owner: Principal) -> list[SignedValue[TimeStamp]]:
        """Return the last time-stamps for an owner that count, or once did."""
        return list(self._log(owner).all_stamps())

    def signers(self, owner: Principal) -> set[Principal]:
        """Return everybody who signs time-stamps for an owner, or once did, besides the owner."""
        return self._log(owner).signers()

    def head(self, owner: Principal) -> tuple[int, bytes] | None:
        """Return number and digest of the last event, where that is enforced and nothing later is known."""
        log = self._log(owner)
        digest = log.digest_at(log.enforced)
        if log.fork is not None or digest is None or log.enforced < log.known:
            return None
        return log.enforced, digest

    def hand_on(
        self, now: datetime, owner: Principal, receiver: Principal, signer: Principal | None = None
    ) -> CarriedStamp | None:
        """Return a signer's last stamp, the owner's unless it is said, signed for a neighbour.

        None where there is none that counts, or the neighbour is not trusted.
        """
        found = [stamp for stamp in self.stamps(owner) if stamp.value.signer == (signer or owner)]
        if not found or not self._trusts(now, owner, receiver):
            return None
        hop = sign_value(HopStamp(found[0].digest, self._key.principal, receiver, in_utc(now)), self._key)
        return CarriedStamp(found[0].unverified(), hop.unverified())

    # What is kept.

    def snapshot(self, now: datetime, owner: Principal) -> bytes:
        """Return all that must not be forgotten about an owner, signed by this broker."""
        log = self._log(owner)
        return write_snapshot(owner, log.all_events(), log.all_stamps(), in_utc(now), self._key)

    def restore(self, now: datetime, data: bytes) -> list[Output]:
        """Take in what `snapshot` returned, as if it came anew: every signature and the chain are verified.

        Raises what `read_snapshot` raises, and `LimitError` (`evolution.owners`).
        """
        owner, events, stamps = read_snapshot(data, self._key.principal)
        if events or stamps:
            # It goes on where it was: what has been said since then, neighbours say when they are linked.
            self._follow(owner).log.learned = True
        return self._take(now, owner, events=events, stamps=stamps, kept=True)

    def forget(self, owner: Principal) -> None:
        """Forget an owner, for an operator who has settled a fork. With its revocations, so that care is needed."""
        self._owners.pop(owner, None)

    # What follows.

    def _take(
        self,
        now: datetime,
        owner: Principal,
        *,
        events: Iterable[SignedValue[PolicyEvent]] = (),
        stamps: Iterable[SignedValue[TimeStamp]] = (),
        kept: bool = False,
    ) -> list[Output]:
        followed = self._follow(owner)
        log = followed.log
        before, applied, bound = log.state, log.applied, log.bound(strict=self._strict)
        for event in events:
            log.take_event(event)
        for stamp in stamps:
            log.take_stamp(stamp, kept=kept)
        log.forget_future(in_utc(now) + self._skew)
        self._authorise(now, log)
        followed.until = log.fresh_until(strict=self._strict)
        said: list[Output] = [Unusable(owner, number, error.code, error.message) for number, error in log.unusable]
        log.unusable.clear()
        if log.applied != applied:
            said.append(_changed(log, before))
        elif log.bound(strict=self._strict) and not bound:
            # Whoever waits for this broker may count from now on that it stops by itself.
            said += self._acknowledge(now, followed)
        # What was applied a moment ago is about to be enforced: that alone is no news.
        return [*said, *self._tell(now, followed, log.applied if log.applied != applied else log.enforced)]

    def _authorise(self, now: datetime, log: PolicyLog) -> None:
        # Most owners are stamped by themselves or by nobody, and who else might does not matter.
        if log.delegated:
            log.authorise(self._stampers(now, log.owner))

    def _log(self, owner: Principal) -> PolicyLog:
        followed = self._owners.get(owner)
        return PolicyLog(owner, self._verifier, limits=self._limits) if followed is None else followed.log

    def _follow(self, owner: Principal) -> _Followed:
        followed = self._owners.get(owner)
        if followed is None:
            if len(self._owners) >= self._limits.policy_owners:
                raise LimitError("evolution.owners", f"the policies of {self._limits.policy_owners} owners are kept")
            followed = self._owners[owner] = _Followed(PolicyLog(owner, self._verifier, limits=self._limits))
        return followed

    def _acknowledge(self, now: datetime, followed: _Followed) -> Iterator[Output]:
        log, last = followed.log, followed.acknowledged
        head = log.digest_at(followed.whole)
        if log.fork is None and head is not None:
            # The last word counts, so that there must be a last one.
            time = in_utc(now) if last is None else max(in_utc(now), last + datetime.resolution)
            followed.acknowledged = time
            stamped = log.bound(strict=self._strict)
            value = Acknowledgement(self._key.principal, log.owner, followed.whole, head, time, stamped)
            yield Acknowledge(sign_value(value, self._key))

    def _tell(self, now: datetime, followed: _Followed, reached: int) -> Iterator[Output]:
        """Say what has become of an owner since it was last told; ask again while it is stale."""
        log = followed.log
        if log.fork is not None and not followed.fork_told:
            followed.fork_told = True
            yield Forked(log.owner, log.fork)
        reason = log.staleness(in_utc(now), reached, strict=self._strict)
        if reason is None and reached != log.enforced:
            return
        if reason is not followed.told:
            followed.told = reason
            yield Fresh(log.owner) if reason is None else Stale(log.owner, reason)
        if reason is None:
            followed.asked = None
        elif reason is not Reason.FORKED and (followed.asked is None or abs(now - followed.asked) >= self._retry):
            followed.asked = now
            yield Resubscribe(log.owner)


def _after(instant: datetime) -> datetime | None:
    """Return the first instant that is later, if there is one."""
    return instant + datetime.resolution if instant < datetime.max.replace(tzinfo=instant.tzinfo) else None


def _changed(log: PolicyLog, before: PolicyState) -> Changed:
    old, new = before.types, log.state.types
    installed = tuple(definition for name, definition in new.items() if old.get(name) != definition)
    removed = tuple(name for name, definition in old.items() if new.get(name) != definition)
    return Changed(log.owner, log.applied, log.state, installed, removed)
