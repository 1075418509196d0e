"""Settings of a node."""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, timedelta, tzinfo

from penstock.broker.evolution.policy_keeper import StampSettings
from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.overlay import CLOSED, UnsafeOpen
from penstock.broker.sealing.blocks import LINGERING, Lingering
from penstock.broker.wire.transports import Address
from penstock.crypto.keys import RandomBytes, SigningKey
from penstock.crypto.sealer import SealerSettings as SealSettings
from penstock.fabric.nats_login import NatsLogin
from penstock.guard import NO_AGREEMENTS, Agreements, Rules
from penstock.guard.decision import Authority
from penstock.guard.policies import NO_POLICIES, Policies
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustSettings:
    """Which brokers are trusted with which types, and how owners' time-stamps are checked."""

    unsafe_open: UnsafeOpen = CLOSED
    #: the largest difference between any two clocks of the network
    skew: timedelta = timedelta(seconds=1)
    #: whether events of an owner without time-stamps are withheld; if not, a broker that is cut off may deliver them
    strict: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings of a node. Port 0 uses any free port."""

    key: SigningKey = field(repr=False)
    network: NetworkName
    host: str = "127.0.0.1"
    port: int = 0
    peers: tuple[Address, ...] = ()
    #: NATS servers through which clients and brokers can also connect
    nats: NatsLogin | None = None
    #: credentials that the broker uses; it shows those that its own rights depend on to everybody
    credentials: Credentials = field(default_factory=Credentials)
    types: tuple[UnverifiedType, ...] = ()
    #: agreements on who publishes and who subscribes, besides those that owners announce
    agreements: Agreements = NO_AGREEMENTS
    #: the domain's policies for its clients
    policies: Policies = NO_POLICIES
    #: further sources of authority, such as roles; `Core.roles_changed` says whose answers have changed
    others: tuple[Authority, ...] = ()
    #: called before a client's request to publish or subscribe is decided, for sources that must ask others
    prepare: Callable[[Principal, Right, TypeName], Awaitable[None]] | None = None
    #: who may see the state of the broker
    operators: frozenset[Principal] = frozenset()
    rules: Rules | None = None
    zone: tzinfo = UTC
    trust: TrustSettings = field(default_factory=TrustSettings)
    #: how this broker signs time-stamps for owners that let it do so
    stamps: StampSettings = field(default_factory=StampSettings)
    #: how long events of sealed types wait for others to be sealed with, and how many are sealed together
    sealing: Lingering = LINGERING
    #: the algorithm for sealing, and how lengths are hidden
    seals: SealSettings = field(default_factory=SealSettings)
    limits: BrokerLimits
    random: RandomBytes = secrets.token_bytes
