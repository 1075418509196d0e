"""When a revocation is complete: at whom it is enforced, who stops by himself, and whom to wait for.

Policy event N is complete for a set of brokers when each of them has acknowledged N or a later one, or cannot deliver
any more without it. The second holds for a broker that goes by time-stamps (it says so when it acknowledges) as soon as
the last stamp that does not speak of N is over on its clock:

    deadline(N) = latest of (time of N, heard(s, N) of each stamper s) + longest period + skew

because the owner's stamps before N carry no later time than N, those of a stamper, who signs for the owner, no later
time than its first word on N or a later number, heard(s, N), and a stamp that speaks of N stops whoever has not
enforced it. The longest period is that of all stamps before N, and of all stamps of each stamper: not all of them come
to whoever asks, and a stamper's are good for as long as it says. While a stamper has not spoken of N, there is no
deadline: it may still sign stamps that do not speak of N. A stamper whose right has ended with event R counts no longer
for brokers that have acknowledged R. `skew` bounds the difference between any two clocks.
docs/explanation/policy-evolution.md has the argument in full.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from penstock.errors import LimitError, RefusedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.principals import Principal
from penstock.trust.caches import Recent
from penstock.trust.policy_events import PolicyEvent
from penstock.trust.signed import SignedValue
from penstock.trust.stamps import Acknowledgement, TimeStamp


class Progress(StrEnum):
    """How far one broker is. The first two count as done."""

    ACKNOWLEDGED = "acknowledged"
    RUN_OUT = "run-out"
    WAITING = "waiting"
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True)
class Standing:
    """One broker and one policy event: since when it is done, or until when to wait at the latest; None if unknown."""

    broker: Principal
    progress: Progress
    at: datetime | None = None

    @property
    def done(self) -> bool:
        """Whether this broker delivers nothing more that the event forbids."""
        return self.progress in (Progress.ACKNOWLEDGED, Progress.RUN_OUT)


@dataclass(frozen=True, slots=True)
class Completion:
    """One policy event and all brokers that are trusted. `at` is there once it is complete."""

    number: int
    brokers: tuple[Standing, ...]
    at: datetime | None = None

    @property
    def complete(self) -> bool:
        """Whether all are done. Of no brokers nothing is known: that is not complete."""
        return self.at is not None


@dataclass(frozen=True, slots=True)
class _Event:
    digest: bytes
    time: datetime


@dataclass(frozen=True, slots=True)
class _Word:
    """One acknowledgement, when it was signed, and when it came."""

    number: int
    head: bytes
    time: datetime
    came: datetime


@dataclass(slots=True)
class _Acknowledged:
    """What one broker says: rising numbers, up to its last word; that may go back, where it lost what it knew."""

    words: list[_Word] = field(default_factory=list)
    last: datetime | None = None
    #: the last word itself, for others
    statement: SignedValue[Acknowledgement] | None = None
    stamped: bool = False


class Completeness:
    """Follows the policy events of one owner. Takes in verified statements only."""

    def __init__(self, owner: Principal, *, skew: timedelta, limits: Limits = DEFAULT_LIMITS) -> None:
        self._owner = owner
        self._skew = skew
        self._limits = limits
        self._events: Recent[int, _Event] = Recent(limits.cache_entries)
        #: by the number of the head that they speak of: the longest period, and the latest time
        self._stamps: dict[int, tuple[int, datetime]] = {}
        self._brokers: dict[Principal, _Acknowledged] = {}
        #: of those who stamp for the owner: by number, when they first stamped it
        self._stampers: dict[Principal, dict[int, datetime]] = {}
        #: the longest period of each
        self._periods: dict[Principal, int] = {}
        #: with which event they lost the right to
        self._ended: dict[Principal, int] = {}

    def published(self, event: SignedValue[PolicyEvent]) -> None:
        """Take in a policy event. Raises `RefusedError` (`evolution.other-owner`)."""
        self._check(event.value.owner)
        self._events.put(event.value.number, _Event(event.digest, event.value.time))

    def stamped(self, stamp: SignedValue[TimeStamp]) -> None:
        """Take in a time-stamp. Raises `RefusedError` (`evolution.other-owner`)."""
        self._check(stamp.value.owner)
        value = stamp.value
        period, time = self._stamps.get(value.number, (value.period, value.time))
        self._stamps[value.number] = max(period, value.period), max(time, value.time)
        if value.by is not None:
            self._periods[value.by] = max(value.period, self._periods.get(value.by, 0))
            said = self._stampers.setdefault(value.by, {})
            said[value.number] = min(said.get(value.number, value.time), value.time)
            if len(said) > self._limits.cache_entries:
                # Its next one says as much of all earlier events, only later.
                del said[min(said)]
        if len(self._stamps) > self._limits.cache_entries:
            # Two become one that counts for more events: deadlines only become later.
            first, second = sorted(self._stamps)[:2]
            longest, latest = self._stamps.pop(second)
            period, time = self._stamps[first]
            self._stamps[first] = max(period, longest), max(time, latest)

    def acknowledged(self, now: datetime, acknowledgement: SignedValue[Acknowledgement]) -> None:
        """Take in an acknowledgement.

        Raises `RefusedError` (`evolution.other-owner`), `LimitError` (`evolution.limit`).
        """
        value = acknowledgement.value
        self._check(value.owner)
        if value.broker not in self._brokers and len(self._brokers) >= self._limits.network_brokers:
            raise LimitError("evolution.limit", f"more than {self._limits.network_brokers} brokers acknowledge")
        known = self._brokers.setdefault(value.broker, _Acknowledged())
        if known.last is not None and value.time <= known.last:
            return
        known.last, known.stamped, known.statement = value.time, value.stamped, acknowledgement
        kept = [word for word in known.words if word.number < value.number or (word.number, word.head) == _of(value)]
        if not kept or kept[-1].number < value.number:
            kept.append(_Word(value.number, value.head, value.time, now))
        known.words = kept[-self._limits.policy_acknowledgements :]

    def stamps_for(self, stamper: Principal) -> None:
        """Take in that somebody stamps for the owner, or once did and may not have stopped."""
        self._stampers.setdefault(stamper, {})

    def stamps_again(self, stampers: Iterable[Principal]) -> None:
        """Take in that some may stamp for the owner now, whatever was before."""
        for stamper in stampers:
            self._ended.pop(stamper, None)

    def stamps_no_longer(self, number: int, stampers: Iterable[Principal]) -> None:
        """Take in that a policy event has ended somebody's right to stamp for the owner."""
        for stamper in stampers:
            self.stamps_for(stamper)
            self._ended.setdefault(stamper, number)

    def statements(self) -> Iterator[SignedValue[Acknowledgement]]:
        """Yield the last acknowledgement of each broker."""
        return (known.statement for known in self._brokers.values() if known.statement is not None)

    def last(self, broker: Principal) -> datetime | None:
        """Return when a broker has signed its last acknowledgement."""
        known = self._brokers.get(broker)
        return None if known is None else known.last

    def stops(self, broker: Principal, ended: datetime) -> datetime | None:
        """Return when a broker whose rights ended has stopped by itself; None if it does not go by time-stamps.

        It gets no stamp after that. Those before carry no later time, each by its own clock.
        """
        known = self._brokers.get(broker)
        if known is None or not known.stamped or not self._stamps:
            return None
        longest = max(period for period, _ in self._stamps.values())
        return ended + timedelta(milliseconds=longest) + 2 * self._skew

    def goes_by_stamps(self, broker: Principal) -> bool:
        """Say whether a broker has said that it delivers nothing without time-stamps."""
        known = self._brokers.get(broker)
        return known is not None and known.stamped

    def forget(self, broker: Principal) -> None:
        """Forget what a broker has acknowledged."""
        self._brokers.pop(broker, None)

    def of(
        self,
        now: datetime,
        number: int,
        brokers: Iterable[Principal],
        stopping: Mapping[Principal, datetime] = MappingProxyType({}),
        stampers: Iterable[Principal] = (),
    ) -> Completion:
        """Say how far a policy event is with these brokers: those that are trusted with the owner's types.

        `stopping` are those that are not trusted any longer, and when each of them has stopped by itself at the latest.
        `stampers` are brokers that may stamp for the owner, besides all that were seen to.

        Raises `RefusedError` (`evolution.unknown-number`).
        """
        if self._events.get(number) is None:
            raise RefusedError("evolution.unknown-number", f"policy event {number} is not known here")
        for stamper in stampers:
            self.stamps_for(stamper)
        trusted = sorted(set(brokers))
        standings = tuple(self._standing(now, number, broker) for broker in trusted)
        standings += tuple(self._standing(now, number, one, stopping[one]) for one in sorted(stopping.keys() - trusted))
        times = [standing.at for standing in standings if standing.done and standing.at is not None]
        complete = bool(standings) and len(times) == len(standings)
        return Completion(number, standings, max(times) if complete else None)

    def deadline(self, number: int, acknowledged: int = 0) -> datetime | None:
        """Return when a broker that goes by stamps stops without this event; None where no stamp tells.

        `acknowledged` is the last that the broker enforces: those whose right ended before cannot keep it going.
        """
        event = self._events.get(number)
        earlier = [stamp for head, stamp in self._stamps.items() if head < number]
        stampers = [one for one in self._stampers if one not in self._ended or self._ended[one] > acknowledged]
        heard = [self._heard(stamper, number) for stamper in stampers]
        if event is None or not earlier or None in heard:
            return None
        # Not all stamps of a stamper come here, and its later ones are good for as long as its earlier ones.
        period = max(*(period for period, _ in earlier), *(self._periods[stamper] for stamper in stampers), 0)
        # An owner whose stamps go back after the event is at fault; waiting for them too costs nothing.
        last = max(event.time, *(time for _, time in earlier), *filter(None, heard))
        return last + timedelta(milliseconds=period) + self._skew

    def _heard(self, stamper: Principal, number: int) -> datetime | None:
        """Return when, on its own clock, a stamper first spoke of an event or a later one; None if it never did.

        None, too, where none of its stamps has come: nobody knows how long they are good.
        """
        if stamper not in self._periods:
            return None
        stamped = [time for head, time in self._stampers[stamper].items() if head >= number]
        known = self._brokers.get(stamper)
        words = [] if known is None else [word.time for word in known.words if word.number >= number]
        return min((*stamped, *words), default=None)

    def _standing(self, now: datetime, number: int, broker: Principal, stops: datetime | None = None) -> Standing:
        known = self._brokers.get(broker)
        if known is None:
            return Standing(broker, Progress.WAITING)
        if any(self._diverges(word) for word in known.words):
            return Standing(broker, Progress.DIVERGED)
        for word in known.words[bisect_left(known.words, number, key=lambda word: word.number) :]:
            event = self._events.get(word.number)
            if event is not None and event.digest == word.head:
                return Standing(broker, Progress.ACKNOWLEDGED, word.came)
        deadline = stops
        if deadline is None and known.stamped and known.words:
            deadline = self.deadline(number, known.words[-1].number)
        if deadline is None:
            return Standing(broker, Progress.WAITING)
        return Standing(broker, Progress.RUN_OUT if now > deadline else Progress.WAITING, deadline)

    def _diverges(self, word: _Word) -> bool:
        """Say whether a broker enforces another policy than the owner's own record has."""
        event = self._events.get(word.number)
        return event is not None and event.digest != word.head

    def _check(self, owner: Principal) -> None:
        if owner != self._owner:
            raise RefusedError("evolution.other-owner", f"this is about {owner.short}, not {self._owner.short}")


def _of(value: Acknowledgement) -> tuple[int, bytes]:
    return value.number, value.head
