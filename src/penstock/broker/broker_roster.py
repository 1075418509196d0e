"""The brokers that have been seen in the network, and until when each of them is waited for.

1. A broker counts from when it is first seen with its rights: linked somewhere, or by an acknowledgement.
2. One that goes away may go on delivering where nobody sees it. It counts while its rights last; what it showed last
   says whether they do.
3. A broker whose rights are over, by date or because they were revoked, counts no longer. If it goes by time-stamps it
   is waited for until its last stamp is over, since it stops delivering then and not before.
4. Nobody else takes space: whoever was never seen with the rights of a broker is not here.
5. A broker that starts again still waits for those that it has seen: they are written down with what they showed, and
   with their last acknowledgement, which says whether they stop by themselves.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from penstock.codec.sexp import canonical, parse_canonical
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.principals import Principal
from penstock.trust.certificates import Authorisation, Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.signed import SignedValue, malformed, read_signed
from penstock.trust.stamps import Acknowledgement
from penstock.trust.tags import Tag, intersect

_NOTHING: Final = Credentials()
_HEAD: Final = b"brokers-seen"


@dataclass(slots=True)
class SeenBroker:
    """One broker: what it showed last, since when it is known, and since when it is away."""

    credentials: Credentials
    since: datetime
    away: datetime | None = None
    #: owners with whose types it was trusted: None while it is, then since when it is not
    trusted: dict[Principal, datetime | None] = field(default_factory=dict)


class BrokerRoster:
    """See the module. The broker itself is not in it."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
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
        """Return what a broker showed last; nothing if it was never seen."""
        seen = self._seen.get(broker)
        return _NOTHING if seen is None else seen.credentials

    def saw(self, now: datetime, broker: Principal, credentials: Credentials) -> None:
        """Record that a broker is in the network, and what it shows."""
        known = self._seen.get(broker)
        if known is not None:
            known.away = None
            known.credentials = credentials if len(credentials) else known.credentials
        elif len(self._seen) < self._limits.network_brokers:
            self._seen[broker] = SeenBroker(credentials, now)

    def heard_of(self, now: datetime, broker: Principal, credentials: Credentials = _NOTHING) -> None:
        """Record that there is a broker, which may be away, and what it has shown."""
        if broker not in self._seen and len(self._seen) < self._limits.network_brokers:
            self._seen[broker] = SeenBroker(credentials, now, now)

    def gone(self, now: datetime, present: Iterable[Principal]) -> None:
        """Record that all brokers but these are away."""
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
        """Record which of all or some brokers are trusted with an owner's types now, and which are not any longer."""
        for broker in self if brokers is None else brokers:
            seen = self._seen.get(broker)
            if seen is None:
                continue
            if trusts(broker):
                seen.trusted[owner] = None
            elif owner in seen.trusted:
                seen.trusted[owner] = seen.trusted[owner] or now

    def trusted(self, owner: Principal) -> frozenset[Principal]:
        """Return the brokers that were trusted with an owner's types when they were judged last."""
        return frozenset(
            broker for broker, seen in self._seen.items() if owner in seen.trusted and seen.trusted[owner] is None
        )

    def ended(self, owner: Principal) -> Mapping[Principal, datetime]:
        """Return the brokers that were trusted with an owner's types before, and since when they are not."""
        ends = ((broker, seen.trusted.get(owner)) for broker, seen in self._seen.items())
        return {broker: end for broker, end in ends if end is not None}

    def forget(self, broker: Principal) -> None:
        """Forget a broker."""
        self._seen.pop(broker, None)

    # What is kept.

    def to_bytes(self, said: Iterable[SignedValue[Acknowledgement]]) -> bytes:
        """Return what must not be forgotten: who was seen, what each showed, and what they acknowledged."""
        seen = ((str(broker).encode(), one.credentials.to_bytes()) for broker, one in sorted(self._seen.items()))
        return canonical((_HEAD, (b"seen", *seen), (b"said", *(one.to_sexp() for one in said))))

    def restore(
        self, now: datetime, data: bytes, read: Callable[[bytes], Credentials]
    ) -> Iterator[SignedValue[Acknowledgement]]:
        """Take in what `to_bytes` returned; yield the acknowledgements, verified.

        Raises `MalformedError` and `RefusedError` as `read` and the signatures do.
        """
        # It is this broker's own, however long it is.
        match parse_canonical(data, limits=replace(self._limits, sexp_bytes=len(data), sexp_nodes=len(data))):
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
                # Should its rights have ended meanwhile, that is noticed when it is judged.
                self._seen[value.broker].trusted[value.owner] = None
            yield acknowledgement


def granting(
    certificates: Iterable[Certificate], brokers: Iterable[Principal], request: Tag
) -> dict[Principal, list[str]]:
    """Return the certificates that may make each of some brokers what a request asks for, by id.

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
