"""Settings of a node."""

import secrets
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
from penstock.guard.policies import NO_POLICIES, Policies
from penstock.model.names import NetworkName
from penstock.model.principals import Principal
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustSettings:
    """Which brokers are trusted with which types, and how owners' time-stamps are taken."""

    unsafe_open: UnsafeOpen = CLOSED
    #: the most that any two clocks of the network differ
    skew: timedelta = timedelta(seconds=1)
    #: whether an owner without time-stamps is not delivered at all; without, a broker that is cut off may go on
    strict: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings of a node. Port 0 takes any that is free."""

    key: SigningKey = field(repr=False)
    network: NetworkName
    host: str = "127.0.0.1"
    port: int = 0
    peers: tuple[Address, ...] = ()
    #: NATS servers across which clients and brokers may come too
    nats: NatsLogin | None = None
    #: credentials that the broker uses; it shows everybody those that its own rights depend on
    credentials: Credentials = field(default_factory=Credentials)
    types: tuple[UnverifiedType, ...] = ()
    #: what was agreed on about who publishes and who subscribes, besides what owners announce
    agreements: Agreements = NO_AGREEMENTS
    #: what the domain says about its clients
    policies: Policies = NO_POLICIES
    #: who may look at the state of the broker
    operators: frozenset[Principal] = frozenset()
    rules: Rules | None = None
    zone: tzinfo = UTC
    trust: TrustSettings = field(default_factory=TrustSettings)
    #: how time-stamps are signed here for owners that let this broker do so
    stamps: StampSettings = field(default_factory=StampSettings)
    #: how long events of sealed types wait for others to be sealed with, and how many are sealed together
    sealing: Lingering = LINGERING
    #: with which algorithm that is done, and how lengths are hidden
    seals: SealSettings = field(default_factory=SealSettings)
    limits: BrokerLimits
    random: RandomBytes = secrets.token_bytes
