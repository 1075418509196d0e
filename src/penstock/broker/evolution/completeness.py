"""When a revocation is complete: which brokers enforce it, which stop by themselves, and which to wait for.

Policy event N is complete for a set of brokers when each of them has acknowledged N or a later event, or cannot
deliver any more without it. A broker that uses time-stamps (its acknowledgements say so) stops as soon as the last
stamp before N has expired on its clock:

    deadline(N) = latest of (time of N, heard(s, N) of each stamper s) + longest period + skew

because the owner's stamps before N have no later time than N. A stamper signs for the owner: its stamps before N have
no later time than its first statement about N or a later number, heard(s, N). A stamp of N stops every broker that has
not enforced N. The longest period is that of all stamps before N, and of all stamps of each stamper, because not all
of a stamper's stamps arrive here. While a stamper has not mentioned N, there is no deadline: it may still sign stamps
before N. A stamper whose right has ended with event R does not count for brokers that have acknowledged R. `skew`
bounds the difference between any two clocks.
docs/explanation/policy-evolution.md has the argument in full.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.broker.limits import BrokerLimits
from penstock.codec.limits import wide
from penstock.codec.sexp import canonical, parse_canonical
from penstock.errors import LimitError, RefusedError
from penstock.model.principals import Principal
from penstock.trust.caches import Recent
from penstock.trust.certificates import Authorisation, Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.policy_events import Acknowledgement, PolicyEvent, TimeStamp
from penstock.trust.signed import SignedValue, malformed, read_signed
from penstock.trust.tags import Tag, intersect

# ----------------------------------------------------------------------------------------------------------------------
# The brokers that have been seen in the network, and until when each of them is waited for.
#
# 1. A broker counts from when it is first seen with its rights: by a link somewhere, or by an acknowledgement.
# 2. A broker that goes away may still deliver where nobody sees it. It counts while its rights last, by its last
#    credentials.
# 3. A broker whose rights have expired or were revoked does not count. If it uses time-stamps, it is waited for until
#    its last stamp has expired, because it stops delivering only then.
# 4. A principal that was never seen with the rights of a broker takes no space.
# 5. After a restart a broker still waits for those that it has seen: they are stored with their credentials, and with
#    their last acknowledgement, which says whether they stop by themselves.


_NOTHING: Final = Credentials()
_HEAD: Final = b"brokers-seen"


@dataclass(slots=True)
class SeenBroker:
    """One broker: its last credentials, since when it is known, and since when it is away."""

    credentials: Credentials
    since: datetime
    away: datetime | None = None
    #: owners whose types it may carry: None while it may, then since when it may not
    trusted: dict[Principal, datetime | None] = field(default_factory=dict)


class BrokerRoster:
    """The other brokers that have been seen in the network."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._seen: dict[Principal, SeenBroker] = {}

    def __contains__(self, broker: Principal) -> bool:
        return broker in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    def __iter__(self) -> Iterator[Principal]:
        return iter(tuple(self._seen))

    def get(self, broker: Principal) -> SeenBroker | None:
        """Return what is known about a broker."""
        return self._seen.get(broker)

    def credentials(self, broker: Principal) -> Credentials:
        """Return a broker's last credentials; none if it was never seen."""
        seen = self._seen.get(broker)
        return _NOTHING if seen is None else seen.credentials

    def saw(self, now: datetime, broker: Principal, credentials: Credentials) -> None:
        """Record that a broker is in the network, and its credentials."""
        known = self._seen.get(broker)
        if known is not None:
            known.away = None
            known.credentials = credentials if len(credentials) else known.credentials
        elif len(self._seen) < self._limits.network_brokers:
            self._seen[broker] = SeenBroker(credentials, now)

    def heard_of(self, now: datetime, broker: Principal, credentials: Credentials = _NOTHING) -> None:
        """Record a broker that may be away, and its credentials."""
        if broker not in self._seen and len(self._seen) < self._limits.network_brokers:
            self._seen[broker] = SeenBroker(credentials, now, now)

    def gone(self, now: datetime, present: Iterable[Principal]) -> None:
        """Record that all other brokers are away."""
        here = set(present)
        for broker, seen in self._seen.items():
            if broker not in here and seen.away is None:
                seen.away = now

    def judge(
        self,
        now: datetime,
        owner: Principal,
        trusts: Callable[[Principal], bool],
        brokers: Iterable[Principal] | None = None,
    ) -> None:
        """Record which of all or some brokers may carry an owner's types now, and which may not any longer."""
        for broker in self if brokers is None else brokers:
            seen = self._seen.get(broker)
            if seen is None:
                continue
            if trusts(broker):
                seen.trusted[owner] = None
            elif owner in seen.trusted:
                seen.trusted[owner] = seen.trusted[owner] or now

    def trusted(self, owner: Principal) -> frozenset[Principal]:
        """Return the brokers that may carry an owner's types, as of the last `judge`."""
        return frozenset(
            broker for broker, seen in self._seen.items() if owner in seen.trusted and seen.trusted[owner] is None
        )

    def ended(self, owner: Principal) -> Mapping[Principal, datetime]:
        """Return the brokers that may not carry an owner's types any longer, and since when."""
        ends = ((broker, seen.trusted.get(owner)) for broker, seen in self._seen.items())
        return {broker: end for broker, end in ends if end is not None}

    def forget(self, broker: Principal) -> None:
        """Forget a broker."""
        self._seen.pop(broker, None)

    # Storage.

    def to_bytes(self, said: Iterable[SignedValue[Acknowledgement]]) -> bytes:
        """Return what must survive a restart: the brokers, their credentials, and their acknowledgements (`said`)."""
        seen = ((str(broker).encode(), one.credentials.to_bytes()) for broker, one in sorted(self._seen.items()))
        return canonical((_HEAD, (b"seen", *seen), (b"said", *(one.to_sexp() for one in said))))

    def restore(
        self, now: datetime, data: bytes, read: Callable[[bytes], Credentials]
    ) -> Iterator[SignedValue[Acknowledgement]]:
        """Restore what `to_bytes` returned; yield the verified acknowledgements.

        Raises `MalformedError` and `RefusedError` as `read` and the signatures do.
        """
        # This broker wrote it, so its length is trusted.
        match parse_canonical(data, limits=wide(len(data))):
            case (head, (b"seen", *seen), (b"said", *said)) if head == _HEAD:
                pass
            case _:
                raise malformed("not the brokers that a broker has seen")
        for entry in seen:
            match entry:
                case (bytes(broker), bytes(credentials)):
                    self.heard_of(now, Principal.parse(broker.decode()), read(credentials))
                case _:
                    raise malformed("a broker that was seen")
        for statement in said:
            acknowledgement = read_signed(statement, Acknowledgement).verify()
            value = acknowledgement.value
            if value.broker in self._seen:
                # If its rights have ended meanwhile, the next `judge` finds that.
                self._seen[value.broker].trusted[value.owner] = None
            yield acknowledgement


def granting(
    certificates: Iterable[Certificate], brokers: Iterable[Principal], request: Tag
) -> dict[Principal, list[str]]:
    """Return, for each broker, the ids of the certificates that may grant it the requested right.

    They are those that name the broker itself: without all of them, no chain leads to it.
    """
    found: dict[Principal, list[str]] = {broker: [] for broker in brokers}
    for certificate in certificates:
        statement = certificate.statement
        subject = statement.subject
        if not isinstance(subject, Principal) or subject not in found or certificate.id in found[subject]:
            continue
        if not isinstance(statement, Authorisation) or intersect(statement.tag, request) is not None:
            found[subject].append(certificate.id)
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Progress and completeness of policy events.


class BrokerProgress(StrEnum):
    """The progress of one broker. The first two count as done."""

    ACKNOWLEDGED = "acknowledged"
    RUN_OUT = "run-out"
    WAITING = "waiting"
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True)
class EventProgress:
    """One broker's progress with one policy event: since when it is done, or its deadline; None if unknown."""

    broker: Principal
    progress: BrokerProgress
    at: datetime | None = None

    @property
    def done(self) -> bool:
        """Whether this broker no longer delivers anything that the event forbids."""
        return self.progress in (BrokerProgress.ACKNOWLEDGED, BrokerProgress.RUN_OUT)


@dataclass(frozen=True, slots=True)
class Completion:
    """The progress of one policy event with all trusted brokers. `at` is set once it is complete."""

    number: int
    brokers: tuple[EventProgress, ...]
    at: datetime | None = None

    @property
    def complete(self) -> bool:
        """Whether all brokers are done. Without any broker, it is not complete."""
        return self.at is not None


@dataclass(frozen=True, slots=True)
class _Event:
    digest: bytes
    time: datetime


class _Word(NamedTuple):
    """One acknowledgement, when it was signed, and when it arrived."""

    number: int
    head: bytes
    time: datetime
    came: datetime


@dataclass(slots=True)
class _Acknowledged:
    """One broker's acknowledgements: rising numbers, except that the last may go back after a loss of state."""

    words: list[_Word] = field(default_factory=list)
    last: datetime | None = None
    #: the last acknowledgement itself, for others
    statement: SignedValue[Acknowledgement] | None = None
    stamped: bool = False


class Completeness:
    """Follows one owner's policy events. All statements must be verified."""

    def __init__(self, owner: Principal, *, skew: timedelta, limits: BrokerLimits) -> None:
        self._owner = owner
        self._skew = skew
        self._limits = limits
        self._events: Recent[int, _Event] = Recent(limits.cache_entries)
        #: by the number of the stamped event: the longest period, and the latest time
        self._stamps: dict[int, tuple[int, datetime]] = {}
        self._brokers: dict[Principal, _Acknowledged] = {}
        #: for each stamper, by number, when it first stamped that event
        self._stampers: dict[Principal, dict[int, datetime]] = {}
        #: the longest period of each stamper
        self._periods: dict[Principal, int] = {}
        #: whether each broker has acknowledged another policy than the owner's (a cache)
        self._diverging: dict[Principal, bool] = {}
        #: the event with which each former stamper lost its right
        self._ended: dict[Principal, int] = {}

    def published(self, event: SignedValue[PolicyEvent]) -> None:
        """Record a policy event. Raises `RefusedError` (`evolution.other-owner`)."""
        self._check(event.value.owner)
        self._diverging.clear()
        self._events.put(event.value.number, _Event(event.digest, event.value.time))

    def stamped(self, stamp: SignedValue[TimeStamp]) -> None:
        """Record a time-stamp. Raises `RefusedError` (`evolution.other-owner`)."""
        self._check(stamp.value.owner)
        value = stamp.value
        period, time = self._stamps.get(value.number, (value.period, value.time))
        self._stamps[value.number] = max(period, value.period), max(time, value.time)
        if value.by is not None:
            self._periods[value.by] = max(value.period, self._periods.get(value.by, 0))
            said = self._stampers.setdefault(value.by, {})
            said[value.number] = min(said.get(value.number, value.time), value.time)
            if len(said) > self._limits.cache_entries:
                # The next one counts for all earlier events, only later.
                del said[min(said)]
        if len(self._stamps) > self._limits.cache_entries:
            # Two are merged into one that counts for more events, so deadlines only become later.
            first, second = sorted(self._stamps)[:2]
            longest, latest = self._stamps.pop(second)
            period, time = self._stamps[first]
            self._stamps[first] = max(period, longest), max(time, latest)

    def acknowledged(self, now: datetime, acknowledgement: SignedValue[Acknowledgement]) -> None:
        """Record an acknowledgement.

        Raises `RefusedError` (`evolution.other-owner`), `LimitError` (`evolution.limit`).
        """
        value = acknowledgement.value
        self._check(value.owner)
        known = self._brokers.get(value.broker)
        if known is None:
            if len(self._brokers) >= self._limits.network_brokers:
                message = f"more than {self._limits.network_brokers} brokers acknowledge policy"
                raise LimitError("evolution.limit", message)
            known = self._brokers[value.broker] = _Acknowledged()
        self._diverging.pop(value.broker, None)
        if known.last is not None and value.time <= known.last:
            return
        known.last, known.stamped, known.statement = value.time, value.stamped, acknowledgement
        kept = [word for word in known.words if word.number < value.number or (word.number, word.head) == _of(value)]
        if not kept or kept[-1].number < value.number:
            kept.append(_Word(value.number, value.head, value.time, now))
        known.words = kept[-self._limits.policy_acknowledgements :]

    def stamps_for(self, stamper: Principal) -> None:
        """Record a principal that stamps for the owner, or once did and may not have stopped."""
        self._stampers.setdefault(stamper, {})

    def stamps_again(self, stampers: Iterable[Principal]) -> None:
        """Record principals that may stamp for the owner now, also if they lost the right before."""
        for stamper in stampers:
            self._ended.pop(stamper, None)

    def stamps_no_longer(self, number: int, stampers: Iterable[Principal]) -> None:
        """Record principals whose right to stamp for the owner a policy event has ended."""
        for stamper in stampers:
            self.stamps_for(stamper)
            self._ended.setdefault(stamper, number)

    def statements(self) -> Iterator[SignedValue[Acknowledgement]]:
        """Yield the last acknowledgement of each broker."""
        return (known.statement for known in self._brokers.values() if known.statement is not None)

    def last(self, broker: Principal) -> datetime | None:
        """Return when a broker signed its last acknowledgement."""
        known = self._brokers.get(broker)
        return None if known is None else known.last

    def stops(self, broker: Principal, ended: datetime) -> datetime | None:
        """Return when a broker stops by itself after its rights ended; None if it does not use time-stamps.

        It gets no stamps after that, and earlier ones have no later time, each by its own clock.
        """
        known = self._brokers.get(broker)
        if known is None or not known.stamped or not self._stamps:
            return None
        longest = max(period for period, _ in self._stamps.values())
        return ended + timedelta(milliseconds=longest) + 2 * self._skew

    def goes_by_stamps(self, broker: Principal) -> bool:
        """Return whether a broker's acknowledgements say that it delivers nothing without time-stamps."""
        known = self._brokers.get(broker)
        return known is not None and known.stamped

    def forget(self, broker: Principal) -> None:
        """Forget a broker's acknowledgements."""
        self._brokers.pop(broker, None)
        self._diverging.pop(broker, None)

    def of(
        self,
        now: datetime,
        number: int,
        brokers: Iterable[Principal],
        stopping: Mapping[Principal, datetime] = MappingProxyType({}),
        stampers: Iterable[Principal] = (),
    ) -> Completion:
        """Return the progress of a policy event with the brokers that may carry the owner's types.

        `stopping` are brokers that may not any longer, with the time by which each has stopped by itself. `stampers`
        are brokers that may stamp for the owner, besides all that were seen to.

        Raises `RefusedError` (`evolution.unknown-number`).
        """
        if self._events.get(number) is None:
            raise RefusedError("evolution.unknown-number", f"this broker does not know policy event {number}")
        for stamper in stampers:
            self.stamps_for(stamper)
        trusted = sorted(set(brokers))
        standings = tuple(self._standing(now, number, broker) for broker in trusted)
        standings += tuple(self._standing(now, number, one, stopping[one]) for one in sorted(stopping.keys() - trusted))
        times = [standing.at for standing in standings if standing.done and standing.at is not None]
        complete = bool(standings) and len(times) == len(standings)
        return Completion(number, standings, max(times) if complete else None)

    def deadline(self, number: int, acknowledged: int = 0) -> datetime | None:
        """Return when a broker that uses stamps stops without this event; None if that is unknown.

        `acknowledged` is the last event that the broker enforces: stampers whose right ended before do not count.
        """
        event = self._events.get(number)
        earlier = [stamp for head, stamp in self._stamps.items() if head < number]
        stampers = [one for one in self._stampers if one not in self._ended or self._ended[one] > acknowledged]
        heard = [self._heard(stamper, number) for stamper in stampers]
        if event is None or not earlier or None in heard:
            return None
        # Not all stamps of a stamper arrive here, and its later ones may be valid for as long as its earlier ones.
        period = max(*(period for period, _ in earlier), *(self._periods[stamper] for stamper in stampers), 0)
        # Stamps of earlier numbers with a later time are the owner's fault, but waiting for them too costs nothing.
        last = max(event.time, *(time for _, time in earlier), *filter(None, heard))
        return last + timedelta(milliseconds=period) + self._skew

    def _heard(self, stamper: Principal, number: int) -> datetime | None:
        """Return when a stamper first mentioned an event or a later one, on its own clock; None if it never did.

        Also None if none of its stamps has arrived, because their period is unknown.
        """
        if stamper not in self._periods:
            return None
        stamped = [time for head, time in self._stampers[stamper].items() if head >= number]
        known = self._brokers.get(stamper)
        words = [] if known is None else [word.time for word in known.words if word.number >= number]
        return min((*stamped, *words), default=None)

    def _standing(self, now: datetime, number: int, broker: Principal, stops: datetime | None = None) -> EventProgress:
        known = self._brokers.get(broker)
        if known is None:
            return EventProgress(broker, BrokerProgress.WAITING)
        if self._is_diverging(broker, known):
            return EventProgress(broker, BrokerProgress.DIVERGED)
        for word in known.words[bisect_left(known.words, number, key=lambda word: word.number) :]:
            event = self._events.get(word.number)
            if event is not None and event.digest == word.head:
                return EventProgress(broker, BrokerProgress.ACKNOWLEDGED, word.came)
        deadline = stops
        if deadline is None and known.stamped and known.words:
            deadline = self.deadline(number, known.words[-1].number)
        if deadline is None:
            return EventProgress(broker, BrokerProgress.WAITING)
        return EventProgress(broker, BrokerProgress.RUN_OUT if now > deadline else BrokerProgress.WAITING, deadline)

    def _is_diverging(self, broker: Principal, known: _Acknowledged) -> bool:
        """Return whether a broker has ever acknowledged another policy than the owner's."""
        found = self._diverging.get(broker)
        if found is None:
            found = self._diverging[broker] = any(self._diverges(word) for word in known.words)
        return found

    def _diverges(self, word: _Word) -> bool:
        event = self._events.get(word.number)
        return event is not None and event.digest != word.head

    def _check(self, owner: Principal) -> None:
        if owner != self._owner:
            raise RefusedError("evolution.other-owner", f"a statement is about {owner.short}, not {self._owner.short}")


def _of(value: Acknowledgement) -> tuple[int, bytes]:
    return value.number, value.head
