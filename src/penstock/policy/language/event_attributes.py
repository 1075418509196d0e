"""The attributes by which policies refer to events: the subject, the event type, each event, and the environment.

| category    | attribute                                            | what it is                                   |
|-------------|------------------------------------------------------|----------------------------------------------|
| subject     | `subject-id`                                         | the principal                                |
|             | `urn:penstock:subject:domain`                        | where it is at home, innermost first         |
|             | `urn:penstock:subject:role`                          | names by certificates: `issuer/name`         |
|             | `urn:penstock:subject:owner-role`                    | those by the owner of the type: `name`       |
|             | `urn:penstock:subject:right`                         | rights on the type by certificates           |
| resource    | `resource-id`                                        | the type: `owner/name@version`               |
|             | `urn:penstock:type:owner`, `…:name`, `…:version`     | the parts of that                            |
|             | `urn:penstock:type:domain`                           | where its owner is at home                   |
|             | `urn:penstock:type:ancestor`                         | the types that it extends: `owner/name`      |
|             | `urn:penstock:type:attribute`                        | the names of its attributes                  |
|             | `urn:penstock:attribute:name`, `…:id`                | which attribute is asked about               |
|             | `urn:penstock:event:` and the name or id of one      | its value in an event; none where it is null |
| action      | `action-id`                                          | the right: `publish`, `subscribe`            |
| environment | `current-time`, `current-date`, `current-dateTime`   | when an event passes                         |
|             | `urn:penstock:environment:` and a name               | what brokers know besides: `hour`, facts     |

All are strings except event values, which have the type of their kind. An attribute keeps its id when it is renamed.
All names of an attribute in any known version count, so that nobody can evade a policy by asking for an older version.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isnan, nan
from types import MappingProxyType
from typing import Final

from penstock.model.instants import in_utc
from penstock.model.principals import Principal
from penstock.model.types import Attribute, EventType
from penstock.model.values import Kind, Scalar, kind_of
from penstock.model.values import Value as EventValue
from penstock.policy.language.datatypes import BOOLEAN, DATE_TIME, DOUBLE, INTEGER, STRING, DataType, Value
from penstock.policy.language.requests import (
    ACTION,
    ACTION_ID,
    ENVIRONMENT,
    RESOURCE,
    RESOURCE_ID,
    SUBJECT,
    SUBJECT_ID,
    Facts,
    Key,
    key_of,
)
from penstock.policy.language.times import DateTime, parts_of
from penstock.trust.capabilities import Right

_URN: Final = "urn:penstock:"
SUBJECT_DOMAIN: Final = f"{_URN}subject:domain"
SUBJECT_ROLE: Final = f"{_URN}subject:role"
SUBJECT_OWNER_ROLE: Final = f"{_URN}subject:owner-role"
SUBJECT_RIGHT: Final = f"{_URN}subject:right"
TYPE_OWNER: Final = f"{_URN}type:owner"
TYPE_NAME: Final = f"{_URN}type:name"
TYPE_VERSION: Final = f"{_URN}type:version"
TYPE_DOMAIN: Final = f"{_URN}type:domain"
TYPE_ANCESTOR: Final = f"{_URN}type:ancestor"
TYPE_ATTRIBUTE: Final = f"{_URN}type:attribute"
ATTRIBUTE_NAME: Final = f"{_URN}attribute:name"
ATTRIBUTE_ID: Final = f"{_URN}attribute:id"
#: the prefix of the names and ids of an event's attributes
EVENT: Final = f"{_URN}event:"
#: the prefix of the names of brokers' facts
ENVIRONMENT_FACT: Final = f"{_URN}environment:"

_TYPES: Final[Mapping[Kind, DataType]] = {
    Kind.STRING: STRING,
    Kind.INTEGER: INTEGER,
    Kind.FLOAT: DOUBLE,
    Kind.BOOLEAN: BOOLEAN,
    Kind.TIMESTAMP: DATE_TIME,
}


def data_type_of(kind: Kind) -> DataType:
    """Return the policy data type of a kind."""
    return _TYPES[kind]


def policy_value(value: EventValue) -> Value:
    """Return an event's value as a policy value."""
    if isinstance(value, float) and isnan(value):
        # There is one NaN object, so that bags find it by identity.
        return nan
    return DateTime(*parts_of(in_utc(value)), 0) if isinstance(value, datetime) else value


def subject_facts(principal: Principal, **known: Iterable[str]) -> Facts:
    """Return the facts about a subject: `domain`, `role`, `owner_role` and `right`, as far as they are given."""
    found = {name: tuple(values) for name, values in known.items()}
    return _strings(
        SUBJECT,
        {
            SUBJECT_ID: (str(principal),),
            SUBJECT_DOMAIN: found.pop("domain", ()),
            SUBJECT_ROLE: found.pop("role", ()),
            SUBJECT_OWNER_ROLE: found.pop("owner_role", ()),
            SUBJECT_RIGHT: found.pop("right", ()),
        },
    )


def type_facts(event_type: EventType, domains: Iterable[str] = ()) -> Facts:
    """Return the facts about a type and its owner's domains."""
    name = event_type.name
    return _strings(
        RESOURCE,
        {
            RESOURCE_ID: (str(name),),
            TYPE_OWNER: (str(name.owner),),
            TYPE_NAME: (name.name,),
            TYPE_VERSION: (name.version,),
            TYPE_DOMAIN: tuple(domains),
            TYPE_ANCESTOR: tuple(map(str, event_type.ancestors)),
            TYPE_ATTRIBUTE: tuple(event_type.by_name),
        },
    )


def action_facts(right: Right) -> Facts:
    """Return the facts about a requested right."""
    return _strings(ACTION, {ACTION_ID: (str(right),)})


def environment_facts(environment: Mapping[str, Scalar]) -> Facts:
    """Return the facts about the instant at which an event is delivered."""
    return {
        key_of(ENVIRONMENT, f"{ENVIRONMENT_FACT}{name}", data_type_of(kind_of(value))): (policy_value(value),)
        for name, value in environment.items()
        if value is not None
    }


def _strings(category: str, values: Mapping[str, tuple[str, ...]]) -> Facts:
    return {key_of(category, name, STRING): those for name, those in values.items() if those}


@dataclass(frozen=True, slots=True)
class EventNames:
    """Policies' names for the attributes of a type: their names in all known versions, and their ids.

    If versions use one name for two attributes, the requested version counts, and among others the first.
    """

    attributes: Mapping[str, Attribute]

    def of(self, attribute: Attribute) -> Facts:
        """Return the facts if one attribute is requested."""
        names = tuple(name for name, one in self.attributes.items() if one.id == attribute.id and name != one.id)
        return _strings(RESOURCE, {ATTRIBUTE_NAME: names, ATTRIBUTE_ID: (str(attribute.id),)})

    def facts(self, values: Mapping[str, Scalar]) -> Facts:
        """Return the facts about an event with these values, by attribute id. Values of a wrong kind are left out."""
        found: dict[Key, tuple[Value, ...]] = {}
        for name, attribute in self.attributes.items():
            value = values.get(attribute.id)
            if value is not None and kind_of(value) is attribute.spec.kind:
                key = key_of(RESOURCE, f"{EVENT}{name}", data_type_of(attribute.spec.kind))
                found[key] = (policy_value(value),)
        return found


def event_names(event_type: EventType, versions: Iterable[EventType] = ()) -> EventNames:
    """Return the names of a type's attributes, in itself and in other known versions."""
    found: dict[str, Attribute] = {}
    for one in (event_type, *versions):
        for attribute in one.attributes:
            found.setdefault(attribute.name, attribute)
            found.setdefault(str(attribute.id), attribute)
    return EventNames(MappingProxyType(found))
