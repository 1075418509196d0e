"""Questions to decision points: may a subject perform an action on a resource? They have the members of AuthZEN 1.0.

| AuthZEN | attribute |
|---|---|
| `subject.id`, `resource.id`, `action.name` | `subject-id`, `resource-id`, `action-id` of XACML 1.0, strings |
| `subject.type`, `resource.type` | `urn:penstock:authzen:subject-type`, `...:resource-type`, strings |
| `properties` of each | attributes in the category of subjects, resources, actions, with the id that is their name |
| `context` | attributes of the environment, likewise |

A property is a string, a boolean, an integer or a double as JSON has it, a list a bag of them, null nothing; members of
an object have its name before theirs, with a dot.

A question has one written form: JSON in UTF-8 without spaces, members sorted by code point, and without empty
properties and contexts. Two questions are equal if they are written equally: `1`, `1.0` and `true` differ.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, Protocol, TypeAlias

from msgspec import MsgspecError
from msgspec.json import Decoder, Encoder

from penstock.authority.limits import QUESTION_BYTES, QUESTION_DEPTH, QUESTION_NAME
from penstock.errors import LimitError, MalformedError
from penstock.policy.language.datatypes import BOOLEAN, DOUBLE, INTEGER, STRING, DataType, Value
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
    Request,
    key_of,
)
from penstock.policy.language.requests import RESOURCE_TYPE as RESOURCE_TYPE
from penstock.policy.language.requests import SUBJECT_TYPE as SUBJECT_TYPE
from penstock.policy.syntax.json.requests import OBJECT, Json, JsonObject

Properties: TypeAlias = Mapping[str, Json]
#: names that no property may have, because they identify the entity
RESERVED: Final = frozenset({SUBJECT_ID, RESOURCE_ID, ACTION_ID, SUBJECT_TYPE, RESOURCE_TYPE})
KEY_SUBJECT_ID: Final = key_of(SUBJECT, SUBJECT_ID, STRING)
KEY_SUBJECT_TYPE: Final = key_of(SUBJECT, SUBJECT_TYPE, STRING)
KEY_RESOURCE_ID: Final = key_of(RESOURCE, RESOURCE_ID, STRING)
KEY_RESOURCE_TYPE: Final = key_of(RESOURCE, RESOURCE_TYPE, STRING)
KEY_ACTION_ID: Final = key_of(ACTION, ACTION_ID, STRING)
#: the data types of JSON values
TYPES: Final[Mapping[type, DataType]] = {str: STRING, bool: BOOLEAN, int: INTEGER, float: DOUBLE}
_CODE: Final = "pdp.request"
#: names that come again and again; others are forgotten
_key_of: Final = lru_cache(4_096)(key_of)
_encode: Final[Callable[[object], bytes]] = Encoder(order="sorted").encode
_decode: Final[Callable[[bytes], Any]] = Decoder().decode
#: the written form of questions without properties, of which every text is written as it is
_TEXT: Final = rb'"([ !#-\[\]-~]+)"'
_PLAIN: Final = re.compile(
    rb'\{"action":\{"name":%b\},"resource":\{"id":%b,"type":%b\},"subject":\{"id":%b,"type":%b\}\}' % ((_TEXT,) * 5)
)


@dataclass(frozen=True, slots=True)
class Entity:
    """A subject or a resource; an action has no type, and its name is its id."""

    type: str
    id: str
    properties: Properties = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """Return the entity as AuthZEN writes it, without empty properties."""
        found: dict[str, Json] = {"type": self.type, "id": self.id} if self.type else {"name": self.id}
        if self.properties:
            found["properties"] = dict(self.properties)
        return found


@dataclass(frozen=True, eq=False)
class AccessQuestion:
    """The question whether a subject may perform an action on a resource. Its properties must not be changed.

    >>> AccessQuestion.of(("user", "alice"), "read", ("document", "report-7")).text
    '{"action":{"name":"read"},"resource":{"id":"report-7","type":"document"},"subject":{"id":"alice","type":"user"}}'
    """

    subject: Entity
    action: Entity
    resource: Entity
    context: Properties = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        subject: tuple[str, str] | Entity,
        action: str | Entity,
        resource: tuple[str, str] | Entity,
        context: Properties | None = None,
    ) -> "AccessQuestion":
        """Return a question; a subject or a resource is a type and an id, or an `Entity` with properties."""
        return cls(
            subject if isinstance(subject, Entity) else Entity(*subject),
            action if isinstance(action, Entity) else Entity("", action),
            resource if isinstance(resource, Entity) else Entity(*resource),
            context or {},
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "AccessQuestion":
        """Read the written form, and no other. Raises `MalformedError` (`pdp.request`), `LimitError` (`pdp.limit`)."""
        if len(data) > QUESTION_BYTES:
            raise _too_long()
        plain = _PLAIN.fullmatch(data)
        if plain is not None:
            # Most questions: reading and writing JSON would take several times as long.
            name, resource, resource_type, subject, subject_type = (text.decode() for text in plain.groups())
            question = cls(Entity(subject_type, subject), Entity("", name), Entity(resource_type, resource))
            question.__dict__["written"] = data  # where `cached_property` keeps it
            return question
        try:
            found = _decode(data)
        except (MsgspecError, ValueError, RecursionError):
            raise _wrong("it is not JSON") from None
        if not isinstance(found, dict):
            raise _wrong("it is not an object")
        question = read_question(found)
        # Whatever was read twice, left out or written otherwise shows here.
        if question.written != data:
            raise _wrong("the question is not in canonical form, or has an unknown member")
        return question

    @cached_property
    def written(self) -> bytes:
        """The written form. Raises `MalformedError` (`pdp.request`), `LimitError` (`pdp.limit`)."""
        found: dict[str, Json] = {
            "subject": self.subject.to_json(),
            "action": self.action.to_json(),
            "resource": self.resource.to_json(),
        }
        if self.context:
            found["context"] = dict(self.context)
        try:
            data = _encode(found)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise _wrong("a property is not a JSON value") from None
        if b"null" in data and not all(map(_finite, found.values())):
            # The encoder writes NaN and the infinities as null.
            raise _wrong("a property is not a finite number")
        if len(data) > QUESTION_BYTES:
            raise _too_long()
        return data

    @property
    def is_plain(self) -> bool:
        """Whether it is written as a question without properties, of which every text is written as it is."""
        return _PLAIN.fullmatch(self.written) is not None

    @cached_property
    def text(self) -> str:
        """The written form as text, by which questions are compared."""
        return self.written.decode()

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of the written form, by which answers name their question."""
        return hashlib.sha256(self.written).digest()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, AccessQuestion) and self.text == other.text)

    def __hash__(self) -> int:
        return hash(self.text)

    def request(self, known: "EntityProperties | None" = None) -> Request:
        """Return the request that policies see. Raises `MalformedError` (`pdp.request`)."""
        return Request.of_facts(facts_of(self, known))


class EntityProperties(Protocol):
    """What a decision point knows of entities by itself."""

    def properties(self, category: str, of_type: str, name: str, said: Properties) -> Properties:
        """Return the properties of an entity, of which a question says some; all of them flat."""
        ...


def facts_of(question: AccessQuestion, known: EntityProperties | None = None) -> Facts:
    """Return the facts that policies see. Raises `MalformedError` (`pdp.request`)."""
    subject, action, resource = question.subject, question.action, question.resource
    facts: dict[Key, tuple[Value, ...]] = {
        KEY_SUBJECT_ID: (subject.id,),
        KEY_SUBJECT_TYPE: (subject.type,),
        KEY_RESOURCE_ID: (resource.id,),
        KEY_RESOURCE_TYPE: (resource.type,),
        KEY_ACTION_ID: (action.id,),
    }
    for category, entity in ((SUBJECT, subject), (RESOURCE, resource), (ACTION, action)):
        said: Properties = flattened(entity.properties, _CODE)
        if known is not None:
            said = known.properties(category, entity.type, entity.id, said)
        tell(facts, category, said)
    tell(facts, ENVIRONMENT, flattened(question.context, _CODE))
    return facts


def tell(facts: dict[Key, tuple[Value, ...]], category: str, properties: Properties) -> None:
    """Add properties, which are flat, to the facts."""
    for name, value in properties.items():
        of_type = TYPES.get(type(value))
        if of_type is not None:
            facts[_key_of(category, name, of_type)] = (value,)
        elif isinstance(value, list):
            bags: dict[DataType, list[Value]] = {}
            for one in value:
                of_one = TYPES.get(type(one))
                bags.setdefault(of_one or OBJECT, []).append(one if of_one else JsonObject(json.dumps(one)))
            facts.update((_key_of(category, name, of_bag), tuple(bag)) for of_bag, bag in bags.items())


def flattened(properties: Properties, code: str) -> dict[str, Json]:
    """Return properties without objects in them: their members have the name of the object before theirs, with a dot.

    Raises `MalformedError` with the code.
    """
    flat: dict[str, Json] = {}
    _flatten(flat, "", properties, 0, code)
    return flat


def _flatten(flat: dict[str, Json], prefix: str, properties: Properties, depth: int, code: str) -> None:
    if depth > QUESTION_DEPTH:
        raise MalformedError(code, "properties are nested too deeply")
    for name, value in properties.items():
        full = prefix + name
        if prefix and len(full) > QUESTION_NAME:
            # Otherwise a long name over many short ones would take far more room than the question.
            raise MalformedError(code, "the name of a property within others is too long")
        if full in RESERVED:
            raise MalformedError(code, f"no property may be called `{full}`")
        if isinstance(value, dict):
            _flatten(flat, f"{full}.", value, depth + 1, code)
        elif full in flat:
            raise MalformedError(code, f"property `{full[:80]}` is given twice")
        else:
            flat[full] = value


# ----------------------------------------------------------------------------------------------------------------------
# Reading the members of AuthZEN, as they come in requests over HTTP and over a fabric.


def read_question(found: Mapping[str, Json], defaults: Mapping[str, Json] | None = None) -> AccessQuestion:
    """Read a question; missing members are taken from the defaults. Raises `MalformedError` (`pdp.request`)."""
    whole = found if defaults is None else {**defaults, **found}
    return AccessQuestion(
        read_entity(whole, "subject"), read_action(whole), read_entity(whole, "resource"), read_context(whole)
    )


def read_entity(found: Mapping[str, Json], name: str, *, searched: bool = False) -> Entity:
    """Read a subject or a resource; one that is searched for has no id. Raises `MalformedError` (`pdp.request`)."""
    entity = _member(found, name)
    kind = _text(entity, "type", name)
    return Entity(kind, "" if searched else _text(entity, "id", name), _object(entity, "properties"))


def read_action(found: Mapping[str, Json]) -> Entity:
    """Read an action. Raises `MalformedError` (`pdp.request`)."""
    action = _member(found, "action")
    return Entity("", _text(action, "name", "action"), _object(action, "properties"))


def read_context(found: Mapping[str, Json]) -> Properties:
    """Read the context of a question. Raises `MalformedError` (`pdp.request`)."""
    return _object(found, "context")


def _member(found: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    value = found.get(name)
    if not isinstance(value, dict):
        raise _wrong(f"there is no `{name}` that is an object")
    return value


def _object(found: Mapping[str, Json], name: str) -> Properties:
    value = found.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(f"`{name}` is not an object")
    return value


def _text(found: Mapping[str, Json], name: str, of: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise _wrong(f"`{of}` has no `{name}` that is a text")
    return value


def _finite(value: Json) -> bool:
    return all(math.isfinite(one) for one in _numbers(value))


def _numbers(value: Json) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _numbers(one)


def _wrong(message: str) -> MalformedError:
    return MalformedError(_CODE, message)


def _too_long() -> LimitError:
    return LimitError("pdp.limit", f"a question is longer than {QUESTION_BYTES} bytes")
