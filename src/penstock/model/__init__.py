"""Frozen values that everything else speaks about: names, principals, types, events, profiles, instants.

- `names` has the names of types, attributes and networks, each of which begins with its owner.
- `principals` has public keys and quorums, petnames for them, and domains: organisations and their principals.
- `types` has type definitions and resolved event types, and compares two versions of a type.
- `tree` has the tree of event types and the reach of rights in it.
- `topics` has topics, types for plain messages.
- `events` has events, in a version of their type and in transit.
- `event_classes` maps a program's own classes to event types.
- `values` has the kinds of attribute values and their domains.
- `profiles` has attribute–value pairs that describe publishers and subscribers.
- `instants` reads and writes dates and times.
"""

from penstock.model.events import Event as Event
from penstock.model.events import TransitEvent as TransitEvent
from penstock.model.instants import format_date as format_date
from penstock.model.instants import parse_date as parse_date
from penstock.model.instants import parse_instant as parse_instant
from penstock.model.names import AttributeId as AttributeId
from penstock.model.names import NetworkName as NetworkName
from penstock.model.names import TypeKey as TypeKey
from penstock.model.names import TypeName as TypeName
from penstock.model.principals import Domain as Domain
from penstock.model.principals import Petnames as Petnames
from penstock.model.principals import Principal as Principal
from penstock.model.profiles import Profile as Profile
from penstock.model.profiles import ProfileSchema as ProfileSchema
from penstock.model.profiles import alphabetic as alphabetic
from penstock.model.profiles import numeric as numeric
from penstock.model.tree import TreeScope as TreeScope
from penstock.model.tree import TypeTree as TypeTree
from penstock.model.types import Attribute as Attribute
from penstock.model.types import AttributeChange as AttributeChange
from penstock.model.types import AttributeDefinition as AttributeDefinition
from penstock.model.types import EventType as EventType
from penstock.model.types import Operation as Operation
from penstock.model.types import Sealing as Sealing
from penstock.model.types import TypeDefinition as TypeDefinition
from penstock.model.types import changes as changes
from penstock.model.values import AttributeSpec as AttributeSpec
from penstock.model.values import Enumerated as Enumerated
from penstock.model.values import Kind as Kind
from penstock.model.values import Ranged as Ranged
from penstock.model.values import Scalar as Scalar
from penstock.model.values import Schema as Schema
from penstock.model.values import Value as Value
