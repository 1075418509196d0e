"""What a broker knows of one owner's policy: the chain that it has applied, and how far the owner says that it goes.

The rules, in the order in which they are asked:

1. What the owner signed twice under one number, or on top of something else than what came before, is a fork. The two
   statements that show it are kept, and nothing of that owner counts from then on: which of two policies holds, nobody
   can know.
2. Events are applied in the order of their numbers, whenever and however often they come; those that wait for one that
   is missing wait. What is older than what was applied changes nothing.
3. A checkpoint needs nothing that came before it.
4. What the owner says exists and is not enforced here, leaves the broker behind: every number that it signed counts,
   in an event or in a time-stamp, before anything else in it is looked at.
5. A time-stamp of somebody else than the owner counts while its signer is authorised, and while its head is that of the
   event under its number. One that does not count is held: credentials may come later than the stamp that rests on
   them. A signer who is authorised no longer takes back with its stamps whatever they said.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from penstock.errors import LimitError, PenstockError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.principals import Principal
from penstock.trust.credentials import CertificateVerifier
from penstock.trust.policy_events import BEGINNING, PolicyEvent
from penstock.trust.policy_state import PolicyState
from penstock.trust.signed import SignedValue
from penstock.trust.stamps import TimeStamp

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

    def __init__(self, owner: Principal, verifier: CertificateVerifier, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self.owner = owner
        self.state = PolicyState()
        #: from the last checkpoint, or from the first event
        self.events: list[SignedValue[PolicyEvent]] = []
        self.pending: dict[int, SignedValue[PolicyEvent]] = {}
        #: what was left out although the owner signed it, to be told to the operator
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
        """Go by the time-stamps of these, and of the owner, from now on; and of nobody else."""
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
                state = state.after(event.value, self._verifier, limits=self._limits)
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
