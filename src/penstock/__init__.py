"""Penstock: access control for publish/subscribe systems that several organisations share.

Owners sign their event types; domains hold capabilities and delegate them; a local broker turns whatever
authority a client can show into one value, a `Restriction`, and enforces it on every event.

The public API is what `__all__` lists here and in `penstock.errors`, `penstock.selector`, `penstock.spark` and
`penstock.testing`: docs/reference/api.md says what that promises. Everything else is internal, and can change in any
version. Names are imported when they are first used, so that `import penstock` is fast.

- `apps` has what people run, `authority` the moderator's signed rule book, `broker` the broker network.
- `pipeline` enforces policy on Spark, `fabric` carries topics, `store` keeps ledgers and files.
- `guard` decides and enforces, `moderator` finds conflicts between rules, `policy` evaluates XACML, `roles` runs OASIS.
- `trust` verifies certificates and types, `crypto` signs and seals, `codec` converts values to bytes.
- `selector` parses and compares conditions on events, `model` has the values that all of them use.
- `simulate` runs components in virtual time, `testing` has a network for tests of programs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.broker.client.client import Client as Client
    from penstock.broker.client.client import Feed as Feed
    from penstock.broker.client.client import RightNotice as RightNotice
    from penstock.broker.client.client import Subscription as Subscription
    from penstock.broker.client.client import connect as connect
    from penstock.crypto import SigningKey as SigningKey
    from penstock.errors import EvaluationError as EvaluationError
    from penstock.errors import FailedError as FailedError
    from penstock.errors import LimitError as LimitError
    from penstock.errors import MalformedError as MalformedError
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import RefusedError as RefusedError
    from penstock.errors import SelectorError as SelectorError
    from penstock.fabric.nats_login import NatsLogin as NatsLogin
    from penstock.guard import CapabilityAuthority as CapabilityAuthority
    from penstock.guard import Decision as Decision
    from penstock.guard import DecisionRecord as DecisionRecord
    from penstock.guard import Delivery as Delivery
    from penstock.guard import Effect as Effect
    from penstock.guard import EventCounts as EventCounts
    from penstock.guard import EventRequest as EventRequest
    from penstock.guard import NetworkRequest as NetworkRequest
    from penstock.guard import Publication as Publication
    from penstock.guard import Recorder as Recorder
    from penstock.guard import Restriction as Restriction
    from penstock.guard import decide as decide
    from penstock.guard import environment as environment
    from penstock.guard.decision_log import read_record as read_record
    from penstock.model import AttributeDefinition as AttributeDefinition
    from penstock.model import AttributeId as AttributeId
    from penstock.model import AttributeSpec as AttributeSpec
    from penstock.model import Domain as Domain
    from penstock.model import Enumerated as Enumerated
    from penstock.model import Event as Event
    from penstock.model import EventType as EventType
    from penstock.model import Kind as Kind
    from penstock.model import NetworkName as NetworkName
    from penstock.model import Petnames as Petnames
    from penstock.model import Principal as Principal
    from penstock.model import Ranged as Ranged
    from penstock.model import Sealing as Sealing
    from penstock.model import TypeDefinition as TypeDefinition
    from penstock.model import TypeName as TypeName
    from penstock.model.event_classes import EventField as EventField
    from penstock.model.event_classes import event as event
    from penstock.store import DecisionFile as DecisionFile
    from penstock.store.files.client_files import load_credentials as load_credentials
    from penstock.store.files.client_files import load_key as load_key
    from penstock.store.files.client_files import load_type as load_type
    from penstock.store.files.name_book import NameBook as NameBook
    from penstock.store.files.name_book import load_names as load_names
    from penstock.trust import BROKER_RIGHTS as BROKER_RIGHTS
    from penstock.trust import Authorisation as Authorisation
    from penstock.trust import Certificate as Certificate
    from penstock.trust import Credentials as Credentials
    from penstock.trust import Right as Right
    from penstock.trust import UnverifiedType as UnverifiedType
    from penstock.trust import Validity as Validity
    from penstock.trust import VerifiedType as VerifiedType
    from penstock.trust import event_tag as event_tag
    from penstock.trust import issue as issue
    from penstock.trust import network_tag as network_tag
    from penstock.trust import read_credentials as read_credentials
    from penstock.trust import read_type as read_type
    from penstock.trust import sign_type as sign_type
    from penstock.trust import verify_type as verify_type
    from penstock.trust.refusals import RightChange as RightChange

__version__ = "0.2.0"
__all__ = [
    "BROKER_RIGHTS",
    "AttributeDefinition",
    "AttributeId",
    "AttributeSpec",
    "Authorisation",
    "CapabilityAuthority",
    "Certificate",
    "Client",
    "Credentials",
    "Decision",
    "DecisionFile",
    "DecisionRecord",
    "Delivery",
    "Domain",
    "Effect",
    "Enumerated",
    "EvaluationError",
    "Event",
    "EventCounts",
    "EventField",
    "EventRequest",
    "EventType",
    "FailedError",
    "Feed",
    "Kind",
    "LimitError",
    "MalformedError",
    "NameBook",
    "NatsLogin",
    "NetworkName",
    "NetworkRequest",
    "PenstockError",
    "Petnames",
    "Principal",
    "Publication",
    "Ranged",
    "Recorder",
    "RefusedError",
    "Restriction",
    "Right",
    "RightChange",
    "RightNotice",
    "Sealing",
    "SelectorError",
    "SigningKey",
    "Subscription",
    "TypeDefinition",
    "TypeName",
    "UnverifiedType",
    "Validity",
    "VerifiedType",
    "connect",
    "decide",
    "environment",
    "event",
    "event_tag",
    "issue",
    "load_credentials",
    "load_key",
    "load_names",
    "load_type",
    "network_tag",
    "read_credentials",
    "read_record",
    "read_type",
    "sign_type",
    "verify_type",
]

#: the modules that names are imported from when they are first used
_HOMES: Final = {
    "penstock.broker.client.client": ("Client", "Feed", "RightNotice", "Subscription", "connect"),
    "penstock.crypto": ("SigningKey",),
    "penstock.errors": (
        "EvaluationError",
        "FailedError",
        "LimitError",
        "MalformedError",
        "PenstockError",
        "RefusedError",
        "SelectorError",
    ),
    "penstock.fabric.nats_login": ("NatsLogin",),
    "penstock.guard": (
        "CapabilityAuthority",
        "Decision",
        "DecisionRecord",
        "Delivery",
        "Effect",
        "EventCounts",
        "EventRequest",
        "NetworkRequest",
        "Publication",
        "Recorder",
        "Restriction",
        "decide",
        "environment",
    ),
    "penstock.model": (
        "AttributeDefinition",
        "AttributeId",
        "AttributeSpec",
        "Domain",
        "Enumerated",
        "Event",
        "EventType",
        "Kind",
        "NetworkName",
        "Petnames",
        "Principal",
        "Ranged",
        "Sealing",
        "TypeDefinition",
        "TypeName",
    ),
    "penstock.model.event_classes": ("EventField", "event"),
    "penstock.store.files.client_files": ("load_credentials", "load_key", "load_type"),
    "penstock.store.files.name_book": ("NameBook", "load_names"),
    "penstock.trust": (
        "Authorisation",
        "BROKER_RIGHTS",
        "Certificate",
        "Credentials",
        "Right",
        "UnverifiedType",
        "Validity",
        "VerifiedType",
        "event_tag",
        "issue",
        "network_tag",
        "read_credentials",
        "read_type",
        "sign_type",
        "verify_type",
    ),
    "penstock.trust.refusals": ("RightChange",),
    "penstock.store": ("DecisionFile",),
    "penstock.guard.decision_log": ("read_record",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(home), name)
            return found
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
