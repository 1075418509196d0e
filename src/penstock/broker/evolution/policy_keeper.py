"""Policy evolution at one broker: what it knows of owners' policies, and whether it may go on by it (section 6.2, 6.3).

A plain state machine. Whoever drives it tells it what comes, and carries out what it returns, in order:

1. Policy events are taken from anybody: the owner's signature and the chain say what they are worth. `Changed` says
   what holds now; once that is enforced the driver says so (`enforced`), and only then is it acknowledged.
2. A time-stamp is taken from its signer, or from a neighbour that is trusted with the owner's types and signed for this
   broker. It says how far the owner is, and for how long that is good. Its signer is the owner, or somebody who holds
   the right `stamp`; one whose signer does not (yet) is held and does not count, until `weigh` finds that it does.
3. A broker that has not enforced all that the owner has signed, whose last stamp is over, or whose owner forked its
   policy delivers none of the owner's types and asks for its policy again. `delivers` is asked with each delivery, so
   that no tick has to come in time.

None of this is for clients: what they would learn of it is who was granted what.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.crypto import SigningKey
from penstock.errors import LimitError, PenstockError, RefusedError
from penstock.guard.agreements import Announced
from penstock.model.instants import in_utc
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.trust.caches import CertificateCache
from penstock.trust.credentials import CertificateVerifier, Credentials
from penstock.trust.event_types import UnverifiedType
from penstock.trust.policy_events import BEGINNING, Acknowledgement, CarriedStamp, HopStamp, PolicyEvent, TimeStamp
from penstock.trust.policy_state import PolicyState, Revocations, read_snapshot, write_snapshot
from penstock.trust.signed import SignedValue, UnverifiedValue, sign_value
from penstock.trust.validity import earliest

# ----------------------------------------------------------------------------------------------------------------------
# What a broker knows of one owner's policy: the chain that it has applied, and how far the owner says that it goes.
#
# The rules, in the order in which they are asked:
#
# 1. What the owner signed twice under one number, or on top of something else than what came before, is a fork. The two
#    statements that show it are kept, and nothing of that owner counts from then on: which of two policies holds,
#    nobody can know.
# 2. Events are applied in the order of their numbers, whenever and however often they come; those that wait for one
#    that is missing wait. What is older than what was applied changes nothing.
# 3. A checkpoint needs nothing that came before it.
# 4. What the owner says exists and is not enforced here, leaves the broker behind: every number that it signed counts,
#    in an event or in a time-stamp, before anything else in it is looked at.
# 5. A time-stamp of somebody else than the owner counts while its signer is authorised, and while its head is that of
#    the event under its number. One that does not count is held: credentials may come later than the stamp that rests
#    on them. A signer who is authorised no longer takes back with its stamps whatever they said.


_EVER: Final = datetime.max.replace(tzinfo=UTC)


class Reason(StrEnum):
    """Why a broker does not deliver an owner's types."""

    FORKED = "forked"
    BEHIND = "behind"
    UNSTAMPED = "unstamped"
    SILENT = "silent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Fork:
    """Two statements of an owner that cannot both be true: two events, or an event and a time-stamp."""

    number: int
    events: tuple[SignedValue[PolicyEvent], ...]
    stamp: SignedValue[TimeStamp] | None = None


@dataclass(slots=True)
class _Held:
    """The last time-stamp of one signer, and the highest number in any of them."""

    stamp: SignedValue[TimeStamp]
    number: int
    #: whether it ever counted; what never did is worth no place on the disk
    counted: bool = False


class PolicyLog:
    """See the module."""

    def __init__(self, owner: Principal, verifier: CertificateVerifier, *, limits: BrokerLimits) -> None:
        self.owner = owner
        self.state = PolicyState()
        #: from the last checkpoint, or from the first event
        self.events: list[SignedValue[PolicyEvent]] = []
        self.pending: dict[int, SignedValue[PolicyEvent]] = {}
        #: what was left out although the owner signed it, for the operator
        self.unusable: list[tuple[int, PenstockError]] = []
        #: of the stamps that count, the one that lasts longest
        self.stamp: SignedValue[TimeStamp] | None = None
        #: whether any stamp ever counted here: from then on they are needed
        self.stamped = False
        self.fork: Fork | None = None
        #: the highest number that is signed, as far as is known here, and that which is enforced
        self.known = 0
        self.enforced = 0
        self._events_known = 0
        self._held: dict[Principal, _Held] = {}
        self._authorised: frozenset[Principal] = frozenset()
        #: the event with the highest number that the owner has signed: whoever shows it shows how far the chain goes
        self.top: SignedValue[PolicyEvent] | None = None
        #: whether it is known how far the chain goes, as far as a broker can know that without time-stamps
        self.learned = True
        self._verifier = verifier
        self._limits = limits
        self._sizes: dict[int, int] = {}
        self._bytes = 0

    @property
    def applied(self) -> int:
        """The number of the last event that the state rests on."""
        return self.events[-1].value.number if self.events else 0

    def digest_at(self, number: int) -> bytes | None:
        """Return the digest of an event that was applied; None where it was forgotten or is not here."""
        if number == 0:
            return BEGINNING
        first = self.events[0].value.number if self.events else 1
        return self.events[number - first].digest if first <= number <= self.applied else None

    def has(self, number: int, digest: bytes) -> bool:
        """Say whether an event would change nothing: it is here, or it is older than all that is kept."""
        if self.fork is not None or number == 0 or (self.events and number < self.events[0].value.number):
            return True
        known = self._event_at(number)
        if known is None and self.top is not None and self.top.value.number == number:
            # It could not be applied.
            known = self.top
        return known is not None and known.digest == digest

    # What the owner says.

    def take_event(self, event: SignedValue[PolicyEvent]) -> None:
        """Take in an event.

        One with certificates that do not verify, or beyond a bound, is left out, and the broker behind until a
        checkpoint goes past it.
        """
        number = event.value.number
        self._events_known = max(self._events_known, number)
        if self.fork is None and not self._contradicts(event) and (self.top is None or number > self.top.value.number):
            self.top = event
        if self.fork is None and number > self.applied:
            self.pending[number] = event
            self._sizes[number] = len(event.to_bytes())
            self._apply()
            self._forget_far()
        self._weigh()

    def take_stamp(self, stamp: SignedValue[TimeStamp], *, kept: bool = False) -> None:
        """Take in a time-stamp; one that is older than the last still says how far the owner was.

        `kept` is for one that counted before this broker started again, whether its signer is known by now or not.
        Raises `LimitError` (`evolution.stampers`).
        """
        value, found = stamp.value, self._event_at(stamp.value.number)
        held = self._held.get(value.signer)
        if held is None:
            self._make_room(value.signer)
            held = self._held[value.signer] = _Held(stamp, value.number)
        held.number = max(held.number, value.number)
        held.counted |= kept
        self.stamped |= kept
        if value.by is None and self.fork is None and found is not None and found.digest != value.head:
            self.fork = Fork(value.number, (found,), stamp)
        elif value.time > held.stamp.value.time:
            held.stamp = stamp
        self._weigh()

    def authorise(self, signers: frozenset[Principal]) -> None:
        """Accept the time-stamps of these, and of the owner, from now on; and of nobody else."""
        if signers != self._authorised:
            self._authorised = signers
            self._weigh()

    def forget_future(self, latest: datetime) -> None:
        """Forget time-stamps that lie in the future: the clock was wrong when they were taken, and is set right."""
        for signer in [one for one, held in self._held.items() if held.stamp.value.time > latest]:
            held = self._held.pop(signer)
            if signer == self.owner:
                self._events_known = max(self._events_known, held.number)
            self._weigh()

    def counting(self) -> list[SignedValue[TimeStamp]]:
        """Return the last time-stamps of all whose stamps count."""
        return [held.stamp for held in self._held.values() if self._counts(held)]

    @property
    def delegated(self) -> bool:
        """Whether a stamp is held that somebody else than the owner has signed."""
        return any(signer != self.owner for signer in self._held)

    def signers(self) -> set[Principal]:
        """Return everybody besides the owner whose stamps count, or once did."""
        return {signer for signer, held in self._held.items() if held.counted and signer != self.owner}

    def _counts(self, held: _Held) -> bool:
        value = held.stamp.value
        if value.by is None:
            return True
        found = self._event_at(value.number)
        return value.by in self._authorised and (found is None or found.digest == value.head)

    def _weigh(self) -> None:
        """Work out which stamps count, and what they say."""
        counting = [held for held in self._held.values() if self._counts(held)]
        for held in counting:
            held.counted = True
        self.stamped |= bool(counting)
        self.known = max([self._events_known, *(held.number for held in counting)])
        if self.fork is None:
            self.stamp = max((held.stamp for held in counting), key=lambda stamp: stamp.value.until, default=None)

    def _make_room(self, signer: Principal) -> None:
        """Let one give way who was never authorised, or is so no longer, where there are too many."""
        if len(self._held) < self._limits.policy_stampers or signer == self.owner:
            return
        others = [one for one in self._held if one != self.owner and one not in self._authorised]
        if not others:
            raise LimitError(
                "evolution.stampers",
                f"more than {self._limits.policy_stampers} sign time-stamps for {self.owner.short}",
                hint="the owner revokes `stamp` from some of them",
            )
        del self._held[min(others, key=lambda one: self._held[one].counted)]

    def _contradicts(self, event: SignedValue[PolicyEvent]) -> bool:
        """Note a fork where an event and something that is here cannot both be true."""
        value = event.value
        same, before, after = (self._event_at(value.number + step) for step in (0, -1, 1))
        held = self._held.get(self.owner)
        stamp = None if held is None else held.stamp
        if same is not None and same.digest != event.digest:
            self.fork = Fork(value.number, (same, event))
        elif before is not None and before.digest != value.previous:
            self.fork = Fork(value.number, (before, event))
        elif after is not None and after.value.previous != event.digest:
            self.fork = Fork(value.number, (event, after))
        elif stamp is not None and stamp.value.number == value.number and stamp.value.head != event.digest:
            self.fork = Fork(value.number, (event,), stamp)
        return self.fork is not None

    def _event_at(self, number: int) -> SignedValue[PolicyEvent] | None:
        first = self.events[0].value.number if self.events else 1
        if first <= number <= self.applied:
            return self.events[number - first]
        return self.pending.get(number)

    def _apply(self) -> None:
        """Apply what can be: the latest checkpoint that is whole, and then one after the other."""
        checkpoints = sorted(n for n, event in self.pending.items() if event.value.checkpoint is not None)
        for number in reversed(checkpoints):
            if number > self.applied:
                self._extend(self._unit(number))
        while unit := self._unit(self.applied + 1):
            self._extend(unit)

    def _unit(self, number: int) -> list[SignedValue[PolicyEvent]]:
        """Return an event that waits, with all that belong to the checkpoint that it begins; nothing if one lacks."""
        first = self.pending.get(number)
        if first is None:
            return []
        found = [self.pending.get(number + step) for step in range((first.value.checkpoint or 0) + 1)]
        whole = [event for event in found if event is not None]
        return whole if len(whole) == len(found) else []

    def _extend(self, unit: list[SignedValue[PolicyEvent]]) -> None:
        """Apply events that hold together, or leave them out."""
        if not unit:
            return
        checkpoint = unit[0].value.checkpoint is not None
        size = sum(self._sizes[event.value.number] for event in unit) + (0 if checkpoint else self._bytes)
        state = self.state
        try:
            if size > self._limits.policy_log_bytes:
                raise LimitError(
                    "evolution.limit",
                    f"the policy events of one owner take more than {self._limits.policy_log_bytes} bytes",
                    hint="the owner signs a checkpoint",
                )
            for event in unit:
                state = state.after(event.value, self._verifier)
        except PenstockError as error:
            self.unusable.append((unit[0].value.number, error))
            for event in unit:
                self._drop(event.value.number)
            return
        if checkpoint:
            self.events.clear()
        self.events += unit
        self.state, self._bytes = state, size
        for waiting in [waiting for waiting in self.pending if waiting <= self.applied]:
            self._drop(waiting)

    def _drop(self, number: int) -> None:
        del self.pending[number], self._sizes[number]

    def _forget_far(self) -> None:
        """Of what waits, keep what is next and the last: whoever asks again gets the rest."""
        over = sum(self._sizes.values()) - self._limits.policy_pending_bytes
        for number in sorted(self.pending, reverse=True)[1:] if over > 0 else ():
            over -= self._sizes[number]
            self._drop(number)
            if over <= 0:
                break

    # What follows from it.

    def bound(self, *, strict: bool) -> bool:
        """Say whether this broker stops by itself where the owner's stamps fail to come."""
        return strict or self.stamped or self.state.stamps_required

    def staleness(self, now: datetime, reached: int, *, strict: bool) -> Reason | None:
        """Say why a broker that has reached a number is not to deliver the owner's types; None where it is."""
        if self.fork is not None:
            return Reason.FORKED
        if reached < self.known:
            return Reason.BEHIND
        if self.stamp is None and self.bound(strict=strict):
            return Reason.UNSTAMPED
        if self.stamp is None:
            return None if self.learned else Reason.UNKNOWN
        return Reason.SILENT if now > self.stamp.value.until else None

    def fresh_until(self, *, strict: bool) -> datetime | None:
        """Return until when the owner's types may be delivered if nothing more comes; None where they may not be."""
        if self.staleness(_EVER, self.enforced, strict=strict) not in (None, Reason.SILENT):
            return None
        return _EVER if self.stamp is None else self.stamp.value.until

    def all_events(self) -> Iterator[SignedValue[PolicyEvent]]:
        """Yield the events that must not be forgotten, in the order in which they can be taken in again."""
        yield from self.events
        yield from self.pending.values()
        if self.top is not None and self.top.value.number not in self.pending and self.top.value.number > self.applied:
            yield self.top
        if self.fork is not None:
            yield from self.fork.events

    def all_stamps(self) -> Iterator[SignedValue[TimeStamp]]:
        """Yield the time-stamps that must not be forgotten: of all who sign them, or once did."""
        yield from (held.stamp for held in self._held.values() if held.counted)
        if self.fork is not None and self.fork.stamp is not None:
            yield self.fork.stamp


# ----------------------------------------------------------------------------------------------------------------------
# Policy evolution at one broker: what it knows of owners' policies, and whether it may go on by it (section 6.2, 6.3).


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
    """To ask for the owner's policy and time-stamps again, by another way if there is one."""

    owner: Principal


@dataclass(frozen=True, slots=True)
class Forked:
    """To the operator, and to all who rely on the owner: two statements that cannot both be true."""

    owner: Principal
    fork: Fork


@dataclass(frozen=True, slots=True)
class UnusableEvent:
    """To the operator: a policy event that the owner signed and nobody can apply."""

    owner: Principal
    number: int
    code: str
    message: str


Output: TypeAlias = Changed | Acknowledge | Stale | Fresh | Resubscribe | Forked | UnusableEvent

Trusts: TypeAlias = Callable[[datetime, Principal, Principal], bool]
"""Says whether a broker follows an owner: whether stamps may come from it. `Core.goes_by`."""

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

    def __init__(  # noqa: PLR0913  # each argument is one part of a broker's configuration
        self,
        key: SigningKey,
        trusts: Trusts,
        *,
        stampers: Stampers = nobody_else,
        skew: timedelta = NO_SKEW,
        strict: bool = False,
        verifier: CertificateVerifier | None = None,
        limits: BrokerLimits,
    ) -> None:
        self._key = key
        self._trusts = trusts
        self._stampers = stampers
        self._skew = skew
        self._strict = strict
        self._verifier = verifier or CertificateCache(limits.cache_entries)
        self._limits = limits
        self._retry = timedelta(milliseconds=limits.policy_retry)
        self._owners: dict[Principal, _Followed] = {}

    # What comes.

    def follow(self, now: datetime, owner: Principal, *, learned: bool = True) -> list[Output]:
        """Record that types of an owner are here.

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
        """Record that it is known how far an owner's chain goes."""
        followed = self._owners.get(owner)
        if followed is None or followed.log.learned:
            return []
        followed.log.learned = True
        followed.until = followed.log.fresh_until(strict=self._strict)
        return list(self._tell(now, followed, followed.log.enforced))

    def unlearned(self) -> list[Principal]:
        """Return the owners for which it is not known how far their chains go."""
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
        """Recompute who may stamp for which owner: credentials have come or gone, or were revoked."""
        said: list[Output] = []
        for owner, followed in self._owners.items():
            # What is being enforced is asked when that is done.
            if followed.log.applied == followed.log.enforced:
                said += self._take(now, owner)
        return said

    def enforced(self, now: datetime, owner: Principal, number: int, *, whole: bool = True) -> list[Output]:
        """Record that what `Changed` said is enforced from now on.

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
        """Say whether an owner's policy is kept: beyond `BrokerLimits.policy_owners` it is not."""
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
        """Return what was revoked, by owner; of those that forked too."""
        return Revocations({owner: followed.log.state.revoked for owner, followed in self._owners.items()})

    def announced(self) -> Iterator[Announced]:
        """Yield agreements, by owner; of those that forked too, since they restrict."""
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
        """Take in what `snapshot` returned, as if it came again: every signature and the chain are verified.

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
        said: list[Output] = [UnusableEvent(owner, number, error.code, error.message) for number, error in log.unusable]
        log.unusable.clear()
        if log.applied != applied:
            said.append(_changed(log, before))
        elif log.bound(strict=self._strict) and not bound:
            # Whoever waits for this broker may count from now on that it stops by itself.
            said += self._acknowledge(now, followed)
        # What was applied a moment ago is about to be enforced: that alone is not news.
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


# ----------------------------------------------------------------------------------------------------------------------
# Time-stamps that a broker signs by itself: for its own principal's types, and for owners that grant it `stamp`.
#
# It signs the head of a policy that it has enforced, and none while it knows of a later one, or while the owner's
# policy is forked. For each owner:
#
# 1. A stamp is due every so often, and as soon as the head is another. After a change it goes out immediately, but no
#    sooner than `_APART` after the last one: an owner that changes its policy many times a second is stamped once for
#    many of them. It is counted from the last stamp, never from the last change, or changes would put stamps off until
#    the last one is over.
# 2. Time does not go back in what is signed here, across restarts either: the last stamp is kept. One that lies further
#    in the future than clocks may differ is from a clock that was wrong and has been set right. Nobody else took it, so
#    that it is forgotten.
# 3. A broker that starts and knows nothing of an owner begins with the empty policy only where it has never run before,
#    or what it has kept of others shows that nothing was lost (`begins`). Otherwise it may have lost what it knew, and
#    would vouch for a policy that is long over: it waits until an event or a stamp of the owner has come, from a
#    neighbour or from the owner.
#
# A plain state machine: `due` says what to sign now, and when to ask again.


Head: TypeAlias = Callable[[Principal], tuple[int, bytes] | None]
"""Returns number and digest of an owner's last event, where it is enforced and nothing later is known."""

#: the least between two stamps for one owner
_APART: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StampSettings:
    """How a broker stamps for those who let it."""

    #: for how long a stamp is good, and how often one is signed
    period: timedelta = timedelta(seconds=30)
    every: timedelta = timedelta(seconds=10)
    #: whether a broker that knows nothing of an owner may take its policy to be empty: it has never run before
    begins: bool = True


@dataclass(slots=True)
class _Last:
    time: datetime
    number: int


class StampIssuer:
    """See the module."""

    def __init__(self, key: SigningKey, settings: StampSettings, head: Head, skew: timedelta) -> None:
        self._key = key
        self._skew = skew
        self._settings = settings
        #: whether a broker that knows nothing of an owner may take its policy to be empty
        self.begins = settings.begins
        self._head = head
        self._last: dict[Principal, _Last] = {}
        #: owners of which anything was kept or has come
        self._known: set[Principal] = set()

    def heard(self, owner: Principal) -> None:
        """Take in that something of an owner was kept or has come: it is known how far its policy is."""
        self._known.add(owner)

    def stamped(self, stamp: TimeStamp) -> None:
        """Take in a stamp that counts; of this broker's own, the time must not go back."""
        self.heard(stamp.owner)
        last = self._last.get(stamp.owner)
        if stamp.signer == self._key.principal and (last is None or last.time < stamp.time):
            self._last[stamp.owner] = _Last(stamp.time, stamp.number)

    def waits(self, owner: Principal) -> bool:
        """Say whether nothing is signed for an owner because nothing is known of it and it may have been."""
        return not self.begins and owner not in self._known

    def due(self, now: datetime, owners: frozenset[Principal]) -> tuple[list[SignedValue[TimeStamp]], datetime | None]:
        """Return the stamps that are due for these owners, and when to ask again if nothing changes."""
        signed: list[SignedValue[TimeStamp]] = []
        turn: datetime | None = None
        for owner in sorted(owners):
            head = None if self.waits(owner) else self._head(owner)
            if head is None:
                continue
            last = self._last.get(owner)
            if last is not None and last.time - self._skew <= now:
                wait = self._settings.every if last.number == head[0] else _APART
                if now < last.time + wait:
                    turn = earliest(turn, last.time + wait)
                    continue
            signed.append(self._sign(now, owner, head))
            self._last[owner] = _Last(in_utc(now), head[0])
            turn = earliest(turn, now + self._settings.every)
        return signed, turn

    def _sign(self, now: datetime, owner: Principal, head: tuple[int, bytes]) -> SignedValue[TimeStamp]:
        own = self._key.principal
        period = self._settings.period // timedelta(milliseconds=1)
        return sign_value(TimeStamp(owner, *head, in_utc(now), period, None if own == owner else own), self._key)
