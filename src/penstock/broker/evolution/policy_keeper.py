"""Policy evolution at one broker: the owners' policies that it knows, and whether it may deliver (section 6.2, 6.3).

A pure state machine. The driver passes in what arrives, and carries out the returned outputs in order:

1. Policy events are accepted from anybody, because the owner signs and chains them. `Changed` has the new policy. Once
   that is enforced the driver calls `enforced`, and only then it is acknowledged.
2. A time-stamp is accepted from its signer, or from a neighbour that may carry the owner's types and signed it for
   this broker. It states the owner's last event, and until when that is valid. Its signer is the owner or has the
   right `stamp`. A stamp of another signer is held and does not count, until `weigh` finds that the signer may.
3. A broker delivers none of an owner's types if it has not enforced all that the owner has signed, if its last stamp
   has expired, or if the owner forked its policy. It then asks for the owner's policy again.

Clients see none of this: they would learn who was granted what.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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
# One owner's policy at a broker: the chain that it has applied, and the last number that the owner has signed.
#
# The rules, in the order in which they are applied:
#
# 1. Two different statements of the owner under one number, or one that does not follow its predecessor, are a fork.
#    The two statements that prove it are kept, and nothing of that owner counts from then on: nobody can know which of
#    the two policies is valid.
# 2. Events are applied in the order of their numbers, whenever and however often they arrive. Events after a missing
#    one wait. Events that are older than the last applied one change nothing.
# 3. A checkpoint needs no earlier events.
# 4. A broker is behind if it has not enforced every number that the owner has signed, in an event or a time-stamp. That
#    number counts before anything else in the statement is examined.
# 5. A time-stamp of another signer than the owner counts while the signer is authorised, and while its head matches the
#    event with its number. One that does not count is held, because the signer's credentials may arrive later. If a
#    signer loses its authorisation, its stamps no longer count.


class Reason(StrEnum):
    """Why a broker does not deliver an owner's types."""

    FORKED = "forked"
    BEHIND = "behind"
    UNSTAMPED = "unstamped"
    SILENT = "silent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Fork:
    """Two contradictory statements of an owner: two events, or an event and a time-stamp."""

    number: int
    events: tuple[SignedValue[PolicyEvent], ...]
    stamp: SignedValue[TimeStamp] | None = None


@dataclass(slots=True)
class _Held:
    """The last time-stamp of one signer, and the highest number in any of them."""

    stamp: SignedValue[TimeStamp]
    number: int
    #: whether it ever counted; one that never did is not stored
    counted: bool = False


class PolicyLog:
    """One owner's policy events and time-stamps, as far as this broker knows them."""

    def __init__(self, owner: Principal, verifier: CertificateVerifier, *, limits: BrokerLimits) -> None:
        self.owner = owner
        self.state = PolicyState()
        #: from the last checkpoint, or from the first event
        self.events: list[SignedValue[PolicyEvent]] = []
        self.pending: dict[int, SignedValue[PolicyEvent]] = {}
        #: signed events that could not be applied, for the operator
        self.unusable: list[tuple[int, PenstockError]] = []
        #: of the stamps that count, the one that expires last
        self.stamp: SignedValue[TimeStamp] | None = None
        #: whether any stamp ever counted here: from then on stamps are required
        self.stamped = False
        self.fork: Fork | None = None
        #: the highest signed number that is known here, and the last enforced one
        self.known = 0
        self.enforced = 0
        self._events_known = 0
        self._held: dict[Principal, _Held] = {}
        self._authorised: frozenset[Principal] = frozenset()
        #: the event with the highest number that is known: it proves how far the chain goes
        self.top: SignedValue[PolicyEvent] | None = None
        #: whether the broker knows how far the chain goes, as far as it can without time-stamps
        self.learned = True
        self._verifier = verifier
        self._limits = limits
        self._sizes: dict[int, int] = {}
        self._bytes = 0

    @property
    def applied(self) -> int:
        """The number of the last applied event."""
        return self.events[-1].value.number if self.events else 0

    def digest_at(self, number: int) -> bytes | None:
        """Return the digest of an applied event; None if it was forgotten or was not applied."""
        if number == 0:
            return BEGINNING
        first = self.events[0].value.number if self.events else 1
        return self.events[number - first].digest if first <= number <= self.applied else None

    def has(self, number: int, digest: bytes) -> bool:
        """Return whether an event would change nothing: it is known, or older than all kept events."""
        if self.fork is not None or number == 0 or (self.events and number < self.events[0].value.number):
            return True
        known = self._event_at(number)
        if known is None and self.top is not None and self.top.value.number == number:
            # An event that could not be applied.
            known = self.top
        return known is not None and known.digest == digest

    # Events and stamps.

    def take_event(self, event: SignedValue[PolicyEvent]) -> None:
        """Process an event.

        If its certificates do not verify, or it exceeds a bound, it is left out, and the broker is behind until a
        checkpoint replaces it.
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
        """Process a time-stamp. An old one still proves how far the owner's chain went.

        `kept` is for one that counted before this broker restarted, even if its signer is not known yet.
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
        """Count the time-stamps of these signers and of the owner from now on, and no others."""
        if signers != self._authorised:
            self._authorised = signers
            self._weigh()

    def forget_future(self, latest: datetime) -> None:
        """Forget time-stamps of the future: the clock was wrong when they were accepted, and has been corrected."""
        for signer in [one for one, held in self._held.items() if held.stamp.value.time > latest]:
            held = self._held.pop(signer)
            if signer == self.owner:
                self._events_known = max(self._events_known, held.number)
            self._weigh()

    def counting(self) -> list[SignedValue[TimeStamp]]:
        """Return the last time-stamp of each signer whose stamps count."""
        return [held.stamp for held in self._held.values() if self._counts(held)]

    @property
    def delegated(self) -> bool:
        """Whether a stamp of another signer than the owner is held."""
        return any(signer != self.owner for signer in self._held)

    def signers(self) -> set[Principal]:
        """Return the signers besides the owner whose stamps count, or once did."""
        return {signer for signer, held in self._held.items() if held.counted and signer != self.owner}

    def _counts(self, held: _Held) -> bool:
        value = held.stamp.value
        if value.by is None:
            return True
        found = self._event_at(value.number)
        return value.by in self._authorised and (found is None or found.digest == value.head)

    def _weigh(self) -> None:
        """Compute which stamps count, and what follows from them."""
        counting = [held for held in self._held.values() if self._counts(held)]
        for held in counting:
            held.counted = True
        self.stamped |= bool(counting)
        self.known = max([self._events_known, *(held.number for held in counting)])
        if self.fork is None:
            self.stamp = max((held.stamp for held in counting), key=lambda stamp: stamp.value.until, default=None)

    def _make_room(self, signer: Principal) -> None:
        """Drop a signer that is not authorised if there are too many."""
        if len(self._held) < self._limits.policy_stampers or signer == self.owner:
            return
        others = [one for one in self._held if one != self.owner and one not in self._authorised]
        if not others:
            raise LimitError(
                "evolution.stampers",
                f"more than {self._limits.policy_stampers} principals sign time-stamps for {self.owner.short}",
                hint="let the owner revoke `stamp` from some of them",
            )
        del self._held[min(others, key=lambda one: self._held[one].counted)]

    def _contradicts(self, event: SignedValue[PolicyEvent]) -> bool:
        """Record a fork if an event contradicts a known statement; return whether the policy is forked."""
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
        """Apply what can be applied: the latest whole checkpoint, and then one event after the other."""
        checkpoints = sorted(n for n, event in self.pending.items() if event.value.checkpoint is not None)
        for number in reversed(checkpoints):
            if number > self.applied:
                self._extend(self._unit(number))
        while unit := self._unit(self.applied + 1):
            self._extend(unit)

    def _unit(self, number: int) -> list[SignedValue[PolicyEvent]]:
        """Return a waiting event with all others of the checkpoint that it starts; nothing if one is missing."""
        first = self.pending.get(number)
        if first is None:
            return []
        found = [self.pending.get(number + step) for step in range((first.value.checkpoint or 0) + 1)]
        whole = [event for event in found if event is not None]
        return whole if len(whole) == len(found) else []

    def _extend(self, unit: list[SignedValue[PolicyEvent]]) -> None:
        """Apply events that belong together, or leave all of them out."""
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
                    hint="let the owner sign a checkpoint",
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
        """If too much waits, keep the next events and the last: the others can be requested again."""
        over = sum(self._sizes.values()) - self._limits.policy_pending_bytes
        for number in sorted(self.pending, reverse=True)[1:] if over > 0 else ():
            over -= self._sizes[number]
            self._drop(number)
            if over <= 0:
                break

    # Freshness and storage.

    def bound(self, *, strict: bool) -> bool:
        """Return whether this broker stops by itself if the owner's stamps do not arrive."""
        return strict or self.stamped or self.state.stamps_required

    def staleness(self, now: datetime, reached: int, *, strict: bool) -> Reason | None:
        """Return why a broker that has reached a number must not deliver the owner's types; None if it may."""
        if self.fork is not None:
            return Reason.FORKED
        if reached < self.known:
            return Reason.BEHIND
        if self.stamp is None and self.bound(strict=strict):
            return Reason.UNSTAMPED
        if self.stamp is None:
            return None if self.learned else Reason.UNKNOWN
        return Reason.SILENT if now > self.stamp.value.until else None

    def all_events(self) -> Iterator[SignedValue[PolicyEvent]]:
        """Yield the events that must survive a restart, in the order in which they can be processed again."""
        yield from self.events
        yield from self.pending.values()
        if self.top is not None and self.top.value.number not in self.pending and self.top.value.number > self.applied:
            yield self.top
        if self.fork is not None:
            yield from self.fork.events

    def all_stamps(self) -> Iterator[SignedValue[TimeStamp]]:
        """Yield the time-stamps that must survive a restart: the last of each signer that counts, or once did."""
        yield from (held.stamp for held in self._held.values() if held.counted)
        if self.fork is not None and self.fork.stamp is not None:
            yield self.fork.stamp


# ----------------------------------------------------------------------------------------------------------------------
# The keeper of all owners' policies, and its outputs.


NO_SKEW: Final = timedelta()


@dataclass(frozen=True, slots=True)
class Changed:
    """Enforce an owner's new policy, and then call `enforced`."""

    owner: Principal
    number: int
    state: PolicyState
    installed: tuple[UnverifiedType, ...] = field(default=(), repr=False)
    removed: tuple[TypeName, ...] = ()


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Store the snapshot, and then send the acknowledgement to all brokers that follow the owner."""

    acknowledgement: SignedValue[Acknowledgement]


@dataclass(frozen=True, slots=True)
class Stale:
    """Stop delivering the owner's types."""

    owner: Principal
    reason: Reason


@dataclass(frozen=True, slots=True)
class Fresh:
    """Deliver the owner's types again."""

    owner: Principal


@dataclass(frozen=True, slots=True)
class Resubscribe:
    """Ask for the owner's policy and time-stamps again, over another path if there is one."""

    owner: Principal


@dataclass(frozen=True, slots=True)
class Forked:
    """Report a fork to the operator and to all who rely on the owner."""

    owner: Principal
    fork: Fork


@dataclass(frozen=True, slots=True)
class UnusableEvent:
    """Report to the operator a policy event that the owner signed but nobody can apply."""

    owner: Principal
    number: int
    code: str
    message: str


Output: TypeAlias = Changed | Acknowledge | Stale | Fresh | Resubscribe | Forked | UnusableEvent

Trusts: TypeAlias = Callable[[datetime, Principal, Principal], bool]
"""Returns whether a broker follows an owner, so that stamps may come from it. `Core.goes_by`."""

Stampers: TypeAlias = Callable[[datetime, Principal], frozenset[Principal]]
"""Returns the principals that may sign time-stamps for an owner now. `Overlay.stampers`."""


def nobody_else(_now: datetime, _owner: Principal) -> frozenset[Principal]:
    """Return nobody: owners sign their time-stamps themselves."""
    return frozenset()


class _Followed:
    """An owner's log, and the last outputs about it."""

    def __init__(self, log: PolicyLog) -> None:
        self.log = log
        self.told: Reason | None = None
        self.fork_told = False
        self.asked: datetime | None = None
        self.acknowledged: datetime | None = None
        #: the last event that is enforced completely, with its types
        self.whole = 0


class PolicyKeeper:
    """Keeps owners' policies, and says whether their types may be delivered.

    `skew` bounds the difference between any two clocks. With `strict`, types of an owner without time-stamps are not
    delivered at all, which suits a broker that may have lost its state. Otherwise such an owner does not use stamps,
    until the first one arrives or its policy requires them. `now` must never go back.
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

    # Statements and time.

    def follow(self, now: datetime, owner: Principal, *, learned: bool = True) -> list[Output]:
        """Start to follow an owner.

        A strict broker delivers none of its types until a stamp has arrived. A broker that has not `learned` how far
        the owner's chain goes waits until it has, or until a stamp has arrived.
        """
        if owner in self._owners:
            return []
        try:
            followed = self._follow(owner)
        except LimitError:
            # There is no room for the owner's statements.
            return [Stale(owner, Reason.UNSTAMPED if self._strict else Reason.UNKNOWN)]
        followed.log.learned = learned
        return list(self._tell(now, followed, 0))

    def learned(self, now: datetime, owner: Principal) -> list[Output]:
        """Record that this broker knows how far an owner's chain goes."""
        followed = self._owners.get(owner)
        if followed is None or followed.log.learned:
            return []
        followed.log.learned = True
        return list(self._tell(now, followed, followed.log.enforced))

    def unlearned(self) -> list[Principal]:
        """Return the owners whose chains may go further than this broker knows."""
        return [owner for owner, followed in self._owners.items() if not followed.log.learned]

    def receive(self, now: datetime, unverified: UnverifiedValue[PolicyEvent]) -> list[Output]:
        """Process a policy event: in any order, and as often as it arrives.

        Raises `RefusedError` (`evolution.wrong-key`, `key.bad-signature`), `LimitError` (`evolution.owners`).
        """
        return self.take(now, [unverified.verify()])

    def take(self, now: datetime, events: Sequence[SignedValue[PolicyEvent]]) -> list[Output]:
        """Process verified policy events of one owner. Raises `LimitError` (`evolution.owners`)."""
        return self._take(now, events[0].value.owner, events=events)

    def stamp(self, now: datetime, sender: Principal, carried: CarriedStamp) -> list[Output]:
        """Process a time-stamp from a neighbour, or from its signer.

        (1) Its signer signed it. (2) The sender may forward it, and signed it for this broker. (3) Neither is from the
        future: otherwise a wrong clock would let a broker deliver for longer than the owner wants. (4) Its signer is
        the owner, or may stamp for it. Otherwise it is held, and counts once the signer's credentials have arrived.

        Raises `RefusedError`: as `receive` does, `evolution.untrusted`, `evolution.not-for-us`, `evolution.future`.
        """
        stamp = carried.stamp.verify()
        times = [stamp.value.time]
        if sender not in (stamp.value.owner, stamp.value.signer):
            times.append(self._check_hop(now, sender, stamp, carried.hop))
        if max(times) - self._skew > in_utc(now):
            raise RefusedError(
                "evolution.future", "a time-stamp is from the future", hint="set the clocks, or allow for more skew"
            )
        return self._take(now, stamp.value.owner, stamps=[stamp])

    def _check_hop(
        self, now: datetime, sender: Principal, stamp: SignedValue[TimeStamp], hop: UnverifiedValue[HopStamp] | None
    ) -> datetime:
        if not self._trusts(now, stamp.value.owner, sender):
            raise RefusedError(
                "evolution.untrusted",
                f"{sender.short} may not carry the types of {stamp.value.owner.short}",
                hint="let the owner grant it `route`",
            )
        # Section 6.3: stamps "would need to be signed by its neighbouring brokers".
        said = None if hop is None else hop.verify().value
        if said is None or (said.stamp, said.sender, said.receiver) != (stamp.digest, sender, self._key.principal):
            raise RefusedError("evolution.not-for-us", f"{sender.short} did not sign this time-stamp for this broker")
        return said.time

    def weigh(self, now: datetime) -> list[Output]:
        """Recompute who may stamp for which owner, after credentials have changed."""
        said: list[Output] = []
        for owner, followed in self._owners.items():
            # A policy that is being enforced is recomputed when that is done.
            if followed.log.applied == followed.log.enforced:
                said += self._take(now, owner)
        return said

    def enforced(self, now: datetime, owner: Principal, number: int, *, whole: bool = True) -> list[Output]:
        """Record that the policy of a `Changed` is enforced from now on.

        It is acknowledged if it is the `whole` policy: if all types could be installed.
        """
        followed = self._owners.get(owner)
        if followed is None:
            return []
        log = followed.log
        log.enforced = max(log.enforced, min(number, log.applied))
        self._authorise(now, log)
        if not whole:
            return list(self._tell(now, followed, log.enforced))
        followed.whole = log.enforced
        return [*self._acknowledge(now, followed), *self._tell(now, followed, log.enforced)]

    def tick(self, now: datetime) -> tuple[list[Output], datetime | None]:
        """Process what is due; return the outputs, and when to call again at the latest."""
        said: list[Output] = []
        for followed in self._owners.values():
            followed.log.forget_future(in_utc(now) + self._skew)
            said += self._tell(now, followed, followed.log.enforced)
        return said, self.turns()

    def turns(self) -> datetime | None:
        """Return when to call `tick` at the latest."""
        turn: datetime | None = None
        for followed in self._owners.values():
            if followed.told is None and followed.log.stamp is not None:
                turn = earliest(turn, _after(followed.log.stamp.value.until))
            elif followed.asked is not None and followed.told is not Reason.FORKED:
                turn = earliest(turn, followed.asked + self._retry)
        return turn

    # State.

    def delivers(self, now: datetime, owner: Principal) -> bool:
        """Return whether the owner's types may be delivered now.

        Nodes follow `Stale` and `Fresh`. Tests compare these with this function, which reads the state alone.
        """
        followed = self._owners.get(owner)
        if followed is None:
            return not self._strict
        return followed.log.staleness(now, followed.log.enforced, strict=self._strict) is None

    def owners(self) -> Iterator[Principal]:
        """Yield the followed owners."""
        return iter(self._owners)

    def state(self, owner: Principal) -> PolicyState:
        """Return an owner's current policy, enforced or not."""
        return self._log(owner).state

    def known(self, owner: Principal) -> int:
        """Return the highest number that the owner has signed, as far as this broker knows."""
        return self._log(owner).known

    def log(self, owner: Principal) -> tuple[SignedValue[PolicyEvent], ...]:
        """Return the owner's events from the last checkpoint on, which other brokers need."""
        return tuple(self._log(owner).events)

    def follows(self, owner: Principal) -> bool:
        """Return whether an owner is followed. At most `BrokerLimits.policy_owners` are."""
        return owner in self._owners

    def fork(self, owner: Principal) -> tuple[SignedValue[PolicyEvent], ...]:
        """Return the events that prove an owner's fork; none if there is no fork."""
        fork = self._log(owner).fork
        return () if fork is None else fork.events

    def top(self, owner: Principal) -> SignedValue[PolicyEvent] | None:
        """Return the event with the highest known number, applied or not."""
        return self._log(owner).top

    def has(self, owner: Principal, number: int, digest: bytes) -> bool:
        """Return whether an event of the owner would change nothing, by its number and digest."""
        return self._log(owner).has(number, digest)

    def credentials(self) -> Credentials:
        """Return the credentials that owners have published and not revoked, without owners that forked."""
        bag = Credentials()
        for followed in self._owners.values():
            if followed.log.fork is None:
                bag += followed.log.state.credentials
        return bag

    def withdrawn(self) -> Credentials:
        """Return the last certificates that owners published and then revoked."""
        return Credentials(tuple(one for followed in self._owners.values() for one in followed.log.state.withdrawn))

    def revocations(self) -> Revocations:
        """Return the revocations by owner, also of owners that forked."""
        return Revocations({owner: followed.log.state.revoked for owner, followed in self._owners.items()})

    def announced(self) -> Iterator[Announced]:
        """Yield the agreements by owner, also of owners that forked, because agreements restrict."""
        for owner, followed in self._owners.items():
            state = followed.log.state
            if state.agreements:
                yield Announced(owner, state.agreements, state.profiles)

    def stamps(self, owner: Principal) -> list[SignedValue[TimeStamp]]:
        """Return the last counting time-stamp of each signer for an owner; none if the owner forked."""
        log = self._log(owner)
        return [] if log.fork is not None else log.counting()

    def kept_stamps(self, owner: Principal) -> list[SignedValue[TimeStamp]]:
        """Return the last time-stamp of each signer for an owner that counts, or once did."""
        return list(self._log(owner).all_stamps())

    def signers(self, owner: Principal) -> set[Principal]:
        """Return the principals besides an owner that sign time-stamps for it, or once did."""
        return self._log(owner).signers()

    def head(self, owner: Principal) -> tuple[int, bytes] | None:
        """Return number and digest of the last event, if it is enforced and no later one is known."""
        log = self._log(owner)
        digest = log.digest_at(log.enforced)
        if log.fork is not None or digest is None or log.enforced < log.known:
            return None
        return log.enforced, digest

    def hand_on(
        self, now: datetime, owner: Principal, receiver: Principal, signer: Principal | None = None
    ) -> CarriedStamp | None:
        """Return a signer's last stamp, signed for a neighbour. The default signer is the owner.

        None if no stamp counts, or the neighbour may not carry the owner's types.
        """
        found = [stamp for stamp in self.stamps(owner) if stamp.value.signer == (signer or owner)]
        if not found or not self._trusts(now, owner, receiver):
            return None
        hop = sign_value(HopStamp(found[0].digest, self._key.principal, receiver, in_utc(now)), self._key)
        return CarriedStamp(found[0].unverified(), hop.unverified())

    # Storage.

    def snapshot(self, now: datetime, owner: Principal) -> bytes:
        """Return what must survive a restart about an owner, signed by this broker."""
        log = self._log(owner)
        return write_snapshot(owner, log.all_events(), log.all_stamps(), in_utc(now), self._key)

    def restore(self, now: datetime, data: bytes) -> list[Output]:
        """Restore what `snapshot` returned, as if it arrived again: all signatures and the chain are verified.

        Raises what `read_snapshot` raises, and `LimitError` (`evolution.owners`).
        """
        owner, events, stamps = read_snapshot(data, self._key.principal)
        if events or stamps:
            # Continue from there: neighbours send later statements when they are linked.
            self._follow(owner).log.learned = True
        return self._take(now, owner, events=events, stamps=stamps, kept=True)

    def forget(self, owner: Principal) -> None:
        """Forget an owner with all its revocations, for an operator who has resolved a fork."""
        self._owners.pop(owner, None)

    # Internals.

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
        said: list[Output] = [UnusableEvent(owner, number, error.code, error.message) for number, error in log.unusable]
        log.unusable.clear()
        if log.applied != applied:
            said.append(_changed(log, before))
        elif log.bound(strict=self._strict) and not bound:
            # Others may rely from now on that this broker stops by itself.
            said += self._acknowledge(now, followed)
        # A policy that was just applied is about to be enforced, so the broker is not behind yet.
        return [*said, *self._tell(now, followed, log.applied if log.applied != applied else log.enforced)]

    def _authorise(self, now: datetime, log: PolicyLog) -> None:
        # Most owners have no stamps of other signers, so nothing needs to be computed.
        if log.delegated:
            log.authorise(self._stampers(now, log.owner))

    def _log(self, owner: Principal) -> PolicyLog:
        followed = self._owners.get(owner)
        return PolicyLog(owner, self._verifier, limits=self._limits) if followed is None else followed.log

    def _follow(self, owner: Principal) -> _Followed:
        followed = self._owners.get(owner)
        if followed is None:
            if len(self._owners) >= self._limits.policy_owners:
                raise LimitError("evolution.owners", f"this broker follows {self._limits.policy_owners} owners already")
            followed = self._owners[owner] = _Followed(PolicyLog(owner, self._verifier, limits=self._limits))
        return followed

    def _acknowledge(self, now: datetime, followed: _Followed) -> Iterator[Output]:
        log, last = followed.log, followed.acknowledged
        head = log.digest_at(followed.whole)
        if log.fork is None and head is not None:
            # The last acknowledgement counts, so times must rise.
            time = in_utc(now) if last is None else max(in_utc(now), last + datetime.resolution)
            followed.acknowledged = time
            stamped = log.bound(strict=self._strict)
            value = Acknowledgement(self._key.principal, log.owner, followed.whole, head, time, stamped)
            yield Acknowledge(sign_value(value, self._key))

    def _tell(self, now: datetime, followed: _Followed, reached: int) -> Iterator[Output]:
        """Yield what has changed for an owner since the last outputs; ask for its policy again while it is stale."""
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
    """Return the next later time, if there is one."""
    return instant + datetime.resolution if instant < datetime.max.replace(tzinfo=instant.tzinfo) else None


def _changed(log: PolicyLog, before: PolicyState) -> Changed:
    old, new = before.types, log.state.types
    installed = tuple(definition for name, definition in new.items() if old.get(name) != definition)
    removed = tuple(name for name, definition in old.items() if new.get(name) != definition)
    return Changed(log.owner, log.applied, log.state, installed, removed)


# ----------------------------------------------------------------------------------------------------------------------
# Time-stamps that a broker signs: for its own principal's types, and for owners that grant it `stamp`.
#
# It signs the last enforced event of a policy, but not while it knows of a later one, or while the policy is forked.
# For each owner:
#
# 1. A stamp is due at regular intervals, and after each change. After a change it is sent immediately, but not sooner
#    than `_APART` after the last stamp: many changes in a second get one stamp. The interval counts from the last
#    stamp, not from the last change, because changes could otherwise delay stamps until the last one has expired.
# 2. The time of stamps never goes back, not even across restarts: the last stamp is stored. A stored stamp that is
#    further in the future than clocks may differ is from a wrong clock that has been corrected. No broker accepted it,
#    so it is forgotten.
# 3. A broker that starts and knows nothing of an owner assumes an empty policy only if it has never run before, or if
#    its stored policies of other owners show that nothing was lost (`begins`). Otherwise it may have lost its state,
#    and would stamp an old policy. It then waits until an event or a stamp of the owner arrives.
#
# A pure state machine: `due` returns the stamps to sign now, and when to ask again.


Head: TypeAlias = Callable[[Principal], tuple[int, bytes] | None]
"""Returns number and digest of an owner's last event, if it is enforced and no later one is known."""

#: the shortest time between two stamps for one owner
_APART: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StampSettings:
    """How a broker signs time-stamps for owners that let it."""

    #: for how long a stamp is valid, and how often one is signed
    period: timedelta = timedelta(seconds=30)
    every: timedelta = timedelta(seconds=10)
    #: whether to assume that an unknown owner's policy is empty, because the broker has never run before
    begins: bool = True


@dataclass(slots=True)
class _Last:
    time: datetime
    number: int


class StampIssuer:
    """Signs time-stamps when they are due."""

    def __init__(self, key: SigningKey, settings: StampSettings, head: Head, skew: timedelta) -> None:
        self._key = key
        self._skew = skew
        self._settings = settings
        #: whether to assume that an unknown owner's policy is empty
        self.begins = settings.begins
        self._head = head
        self._last: dict[Principal, _Last] = {}
        #: owners of which a statement was stored or has arrived
        self._known: set[Principal] = set()

    def heard(self, owner: Principal) -> None:
        """Record that a statement of an owner was stored or has arrived."""
        self._known.add(owner)

    def stamped(self, stamp: TimeStamp) -> None:
        """Record a counting stamp. The time of this broker's own stamps must not go back."""
        self.heard(stamp.owner)
        last = self._last.get(stamp.owner)
        if stamp.signer == self._key.principal and (last is None or last.time < stamp.time):
            self._last[stamp.owner] = _Last(stamp.time, stamp.number)

    def waits(self, owner: Principal) -> bool:
        """Return whether to sign nothing for an owner, because its policy may have been lost."""
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
