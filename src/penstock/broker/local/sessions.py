"""The clients of a local broker: their identities, their requests, and how much of the broker they use.

Bounds are on principals, not on sessions: connecting twice gives nobody twice as much.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.broker.local.effective_requests import Basis, Offer, Permitted, SubscriptionPart, permitted
from penstock.broker.local.requests import ClientRequest, Detail, Verb
from penstock.broker.wire.entries import Filter
from penstock.errors import LimitError, PenstockError, RefusedError
from penstock.guard import Authority, EventCounts, PublicationRate, Recorded
from penstock.model.events import Event, Typed
from penstock.model.names import TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Scalar
from penstock.trust.credentials import Credentials
from penstock.trust.refusals import LackedRight, RevokedCertificate


@dataclass(slots=True)
class DecisionTally:
    """Events that passed or were kept back under decisions, until they are written down."""

    counted: dict[str, tuple[Recorded, list[int]]] = field(default_factory=dict)

    def count(self, recorded: Recorded, *, passed: int = 0, refused: int = 0) -> None:
        """Count events."""
        entry = self.counted.get(recorded.record.id)
        if entry is None:
            entry = self.counted[recorded.record.id] = (recorded, [0, 0])
        entry[1][0] += passed
        entry[1][1] += refused

    def take(self) -> Iterable[tuple[Recorded, EventCounts]]:
        """Return what was counted, and begin again."""
        counted, self.counted = self.counted, {}
        return [(recorded, EventCounts(passed, refused)) for recorded, (passed, refused) in counted.values()]


Path: TypeAlias = tuple[TypeKey, tuple[TypeKey, ...], Filter]
"""An entry in the router: a type, its ancestors if they matter, and a filter."""


@dataclass(frozen=True, slots=True)
class KnownRight:
    """The right to a request as its client knows it: the code if nothing is permitted, and otherwise what is."""

    code: str = ""
    permitted: Permitted = frozenset()


@dataclass(slots=True)
class SessionSubscription:
    """A subscription: the original request, and the effective one. `keys` are its entries in the router."""

    ticket: str
    session: "Session"
    asked: ClientRequest
    detail: Detail = field(default_factory=Detail)
    keys: dict[Path, str] = field(default_factory=dict)
    parts: dict[TypeKey, SubscriptionPart] = field(default_factory=dict)
    #: what the parts are derived from, if there are any
    basis: Basis | None = None
    #: why the effective request could not be worked out, and what the client knows of its right if it watches that
    problem: PenstockError | None = None
    told: "KnownRight | None" = None

    def part_of(self, event: Typed) -> SubscriptionPart | None:
        """Return the part that an event belongs to: that of its nearest ancestor."""
        part = self.parts.get(event.key)
        if part is not None:
            return part
        return next((self.parts[key] for key in event.ancestors if key in self.parts), None)

    def came_by(self, part: SubscriptionPart, keys: Collection[str]) -> bool:
        """Say whether an event that the router found these keys for has passed the filter of a part."""
        return self.keys.get((part.type, (), part.filter)) in keys

    def empty(self) -> None:
        """Remove the effective request."""
        self.parts, self.basis = {}, None

    def paths(self) -> list[Path]:
        """Return the entries that the router must have."""
        return [(part.type, (), part.filter) for part in self.parts.values()]

    def permitted(self) -> Permitted:
        """Return what the effective request permits."""
        return permitted((key, part.restriction) for key, part in self.parts.items())


@dataclass(slots=True)
class SessionAdvertisement:
    """An advertisement: the original request, and the effective one. `keys` are its entries in the router."""

    ticket: str
    session: "Session"
    asked: ClientRequest
    detail: Detail = field(default_factory=Detail)
    keys: dict[Path, str] = field(default_factory=dict)
    offers: dict[TypeName, Offer] = field(default_factory=dict)
    #: the keys that nobody subscribes to, and whether the client knows that these are all
    unwanted: set[str] = field(default_factory=set)
    quiet: bool = False
    #: why the effective request could not be worked out, and what the client knows of its right if it watches that
    problem: PenstockError | None = None
    told: "KnownRight | None" = None
    #: what the last event was published under, since the next one mostly is of the same type
    _last: tuple[EventType, Offer, str] | None = None

    def offer_of(self, event_type: EventType) -> tuple[Offer, str] | None:
        """Return the offer that events of a type come under, and the key that announces it."""
        if self._last is not None and self._last[0] is event_type:
            return self._last[1:]
        offer = self.offers.get(event_type.name)
        if offer is None:
            return None
        key = self.keys[offer.type.key, offer.type.ancestors, offer.filter]
        self._last = event_type, offer, key
        return offer, key

    def forget(self) -> None:
        """Look for offers again: they, or their keys, have changed."""
        self._last = None

    def empty(self) -> None:
        """Remove the effective request."""
        self.offers = {}
        self.forget()

    def paths(self) -> list[Path]:
        """Return the entries that the router must have."""
        return [(offer.type.key, offer.type.ancestors, offer.filter) for offer in self.offers.values()]

    def permitted(self) -> Permitted:
        """Return what the effective request permits."""
        return permitted((name, offer.publication.restriction) for name, offer in self.offers.items())


Held: TypeAlias = SessionSubscription | SessionAdvertisement
"""An active request."""


@dataclass(slots=True)
class Usage:
    """How much of a broker one principal uses, in all its sessions."""

    sessions: int = 0
    subscriptions: int = 0
    advertisements: int = 0
    rate: PublicationRate = field(default_factory=PublicationRate)


@dataclass(slots=True)
class Session:
    """A client that is connected. `answers` are remembered until something changes or a date passes."""

    id: str
    principal: Principal
    credentials: Credentials
    usage: Usage
    authorities: tuple[Authority, ...] = ()
    answers: dict[tuple[str, str], Recorded] = field(default_factory=dict)
    until: datetime | None = None
    held: dict[str, Held] = field(default_factory=dict)
    tally: DecisionTally = field(default_factory=DecisionTally)
    #: its revoked certificates that a missing right depends on, remembered like the answers
    revoked: dict[LackedRight, tuple[RevokedCertificate, ...]] = field(default_factory=dict)
    #: whether its client learns when the right to a request changes
    watches: bool = False


@dataclass(slots=True)
class Usages:
    """How much of a broker all principals use, and the bounds for each of them."""

    limits: BrokerLimits
    by_principal: dict[Principal, Usage] = field(default_factory=dict)

    def connect(self, principal: Principal, credentials: Credentials) -> Usage:
        """Count a session. Raises `LimitError` (`broker.sessions`, `broker.credentials`)."""
        usage = self.by_principal.get(principal) or Usage()
        if usage.sessions >= self.limits.client_sessions:
            raise LimitError(
                "broker.sessions", f"at most {self.limits.client_sessions} sessions at a time", hint="close one"
            )
        self.check_credentials(credentials)
        self.by_principal[principal] = usage
        usage.sessions += 1
        return usage

    def disconnect(self, principal: Principal) -> None:
        """Count a session that is over."""
        self.by_principal[principal].sessions -= 1

    def forget(self, now: datetime) -> None:
        """Forget who has left, a minute after its last event: connecting again does not help to publish more."""
        for principal, usage in list(self.by_principal.items()):
            if not usage.sessions and not usage.rate.at(now):
                del self.by_principal[principal]

    def check_credentials(self, credentials: Credentials) -> None:
        """Check how much a client discloses. Raises `LimitError` (`broker.credentials`)."""
        if len(credentials) > self.limits.client_certificates:
            raise LimitError(
                "broker.credentials",
                f"at most {self.limits.client_certificates} certificates",
                hint="disclose only what is needed",
            )

    def check_request(self, usage: Usage, verb: Verb) -> None:
        """Check that there is room for a request. Raises `LimitError`."""
        if verb is Verb.SUBSCRIBE and usage.subscriptions >= self.limits.client_subscriptions:
            raise LimitError(
                "broker.subscriptions", f"at most {self.limits.client_subscriptions} subscriptions", hint="end one"
            )
        if verb is Verb.ADVERTISE and usage.advertisements >= self.limits.client_advertisements:
            raise LimitError(
                "broker.advertisements", f"at most {self.limits.client_advertisements} advertisements", hint="end one"
            )

    def check_size(self, event: Event) -> None:
        """Check the size of an event. Raises `LimitError` (`broker.event-size`)."""
        values = event.values.values()
        size = len(event.id) + 8 * len(values) + sum([len(value) for value in values if value.__class__ is str])
        most = self.limits.client_event_bytes
        if 4 * size > most and size + _beyond_ascii(values) > most:
            raise LimitError("broker.event-size", f"an event has at most {most} bytes", hint="send less in one")

    def count(self, usage: Usage, now: datetime) -> None:
        """Count an event. Raises `RefusedError` (`broker.rate`)."""
        if usage.rate.at(now) >= self.limits.client_rate:
            raise RefusedError(
                "broker.rate", f"at most {self.limits.client_rate} events in a minute", hint="publish more slowly"
            )
        usage.rate.note(now)


def _beyond_ascii(values: Iterable[Scalar]) -> int:
    """Return how many bytes text may take in addition to one for each character."""
    return sum(3 * len(value) for value in values if isinstance(value, str) and not value.isascii())
