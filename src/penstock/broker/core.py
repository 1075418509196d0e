"""What the parts of a node share: who it is, what it knows, the time, and the exchange with its outputs carried out."""

import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from typing import Any, Final, TypeAlias

from penstock.broker.door import Sources
from penstock.broker.exchange import Exchange, Inward
from penstock.broker.library import Library
from penstock.broker.local import LocalBroker
from penstock.broker.outcomes import require
from penstock.broker.proofs import SignedProof
from penstock.broker.requests import Report
from penstock.broker.routing import Router
from penstock.broker.routing import Settings as RouterSettings
from penstock.crypto.keyfile import RandomBytes
from penstock.crypto.keys import SigningKey
from penstock.errors import PenstockError
from penstock.guard import CapabilityAuthority, NetworkRequest, Recorder, Rules
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import NetworkName
from penstock.model.principals import Principal
from penstock.trust.caches import CertificateCache
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials, read_credentials
from penstock.trust.event_types import UnverifiedType

Reported: TypeAlias = Callable[[Report | PenstockError], None]
Clock: TypeAlias = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where another broker listens; with a principal, that one and no other."""

    host: str
    port: int
    principal: Principal | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What a node goes by. Port 0 takes any that is free."""

    key: SigningKey = field(repr=False)
    network: NetworkName
    host: str = "127.0.0.1"
    port: int = 0
    peers: tuple[PeerAddress, ...] = ()
    #: what the broker discloses to everybody and goes by itself
    credentials: Credentials = field(default_factory=Credentials)
    types: tuple[UnverifiedType, ...] = ()
    #: who may look at the state of the broker
    operators: frozenset[Principal] = frozenset()
    rules: Rules | None = None
    zone: tzinfo = UTC
    router: RouterSettings = field(default_factory=RouterSettings)
    limits: Limits = DEFAULT_LIMITS
    random: RandomBytes = secrets.token_bytes


class Core:
    """See the module. Parts of the node say with `handle` which outputs are theirs to carry out."""

    def __init__(self, settings: NodeSettings, recorder: Recorder, clock: Clock, reported: Reported) -> None:
        self.settings = settings
        self.principal = settings.key.principal
        self.counts: Counter[str] = Counter()
        self.certificates = CertificateCache()
        self.library = Library(settings.network, certificates=self.certificates, limits=settings.limits)
        self._recorder = recorder
        self._clock = clock
        self._now = clock()
        self._reported = reported
        self._handlers: dict[type, Callable[[Any], None]] = {Report: self.note}
        self.sources = Sources(settings.credentials)
        local = LocalBroker(
            settings.network,
            recorder,
            self.library,
            self.sources,
            rules=settings.rules,
            zone=settings.zone,
            limits=settings.limits,
        )
        # A later start has a higher number. Should the clock have gone back, the neighbours ask for a higher one.
        incarnation = int(self._now.timestamp() * 1000)
        proved = replace(settings.router, proof=SignedProof(settings.key, settings.network, settings.limits))
        self.exchange = Exchange(local, Router(self.principal, incarnation, proved))

    @property
    def local(self) -> LocalBroker:
        """The local broker."""
        return self.exchange.local

    @property
    def router(self) -> Router:
        """The router."""
        return self.exchange.router

    def now(self) -> datetime:
        """Return the time, which never goes back."""
        self._now = max(self._now, self._clock())
        return self._now

    def handle(self, handlers: dict[type, Callable[[Any], None]]) -> None:
        """Let somebody carry out outputs of these classes."""
        self._handlers.update(handlers)

    def settle(self, outputs: Iterable[Inward]) -> None:
        """Do what the local broker and the router want done."""
        for output in self.exchange.settle(self._now, outputs):
            self._handlers[type(output)](output)

    def note(self, report: Report | PenstockError) -> None:
        """Let operators know."""
        self.counts["refused" if report.code else "accepted"] += 1
        self._reported(report)

    def read_bag(self, disclosed: bytes) -> Credentials:
        """Return credentials that a peer sent, verified. Raises `MalformedError` and `RefusedError` (`trust.*`)."""
        if not disclosed:
            return _NOTHING
        return read_credentials(disclosed, limits=self.settings.limits).verify(self.certificates)

    def require_connect(self, principal: Principal, bag: Credentials) -> None:
        """Check that a broker may be in the network. Raises `RefusedError` (`broker.not-permitted`)."""
        request = NetworkRequest(principal, Right.CONNECT, self.settings.network, self.now())
        known = CapabilityAuthority(self.sources.credentials + bag, self.sources.online, limits=self.settings.limits)
        decision = self._recorder.decide(request, (known, *self.sources.others), self.sources.revision).decision
        require(decision, Right.CONNECT, self.settings.network)


_NOTHING: Final = Credentials()
