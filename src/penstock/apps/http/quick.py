"""One question of AuthZEN, for the usual case: read, turned into facts and decided with as little ado as can be.

What comes of it is what `Deciding.evaluation` comes to, or nothing, and then that has to be asked: for what is no
question, for members that AuthZEN does not know, escaped characters, properties within properties and lists of what
are no texts, and for what policies have no straight answer to (`penstock.policy.straight`).
"""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Annotated, Final, TypeAlias

from msgspec import UNSET, Meta, MsgspecError, Struct, UnsetType
from msgspec.json import Decoder, Encoder

from penstock.apps.http.authzen import (
    KEY_ACTION_ID,
    KEY_RESOURCE_ID,
    KEY_RESOURCE_TYPE,
    KEY_SUBJECT_ID,
    KEY_SUBJECT_TYPE,
    RESERVED,
    TYPES,
    tell,
)
from penstock.apps.http.entities import Entities, Properties
from penstock.errors import EvaluationError, MalformedError
from penstock.policy.datatypes import DataType, Value
from penstock.policy.expressions import Designator
from penstock.policy.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT, Key
from penstock.policy.results import Decision
from penstock.policy.straight import Involved, Straight

_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_Flat: TypeAlias = dict[str, str | bool | int | float | list[str] | None] | UnsetType | None
_Facts: TypeAlias = dict[Key, tuple[Value, ...]]


class QuickEntity(Struct, gc=False):
    """A subject or a resource."""

    type: _Text
    id: _Text
    properties: _Flat = UNSET


class QuickAction(Struct, gc=False):
    """What is to be done."""

    name: _Text
    properties: _Flat = UNSET


class QuickQuestion(Struct, gc=False):
    """A question."""

    subject: QuickEntity
    action: QuickAction
    resource: QuickEntity
    context: _Flat = UNSET


_decode: Final[Callable[[bytes], QuickQuestion]] = Decoder(QuickQuestion).decode
_encode: Final[Callable[[QuickQuestion], bytes]] = Encoder().encode


def read_quickly(data: bytes) -> QuickQuestion | None:
    """Read a question, if it is of the usual form."""
    if b"\\" in data:
        return None
    try:
        found = _decode(data)
    except (MsgspecError, UnicodeDecodeError):
        return None
    # Without escapes each text has two quotation marks: names that stand there twice, or are not known, are lost.
    return found if data.count(b'"') == _encode(found).count(b'"') else None


class _Side:
    """What policies may want to know of the subjects, resources, actions or circumstances of questions."""

    __slots__ = ("names",)

    def __init__(self, category: str, wanted: Collection[Designator]) -> None:
        kinds: Mapping[DataType, type] = {of_type: kind for kind, of_type in TYPES.items()}
        #: keys by their names, and by what the values are in JSON
        self.names: dict[str, dict[type, Key]] = {}
        for one in wanted:
            if one.category == category and one.of in kinds:
                self.names.setdefault(one.id, {})[kinds[one.of]] = one.key

    def tell(self, facts: _Facts, properties: _Flat, known: _Facts | None) -> bool:
        """Add to the facts what a bundle knows, and what a question says; whether that can be said so shortly."""
        if known:
            facts.update(known)
        if not properties:
            return True
        if not RESERVED.isdisjoint(properties):
            return False
        for name, value in properties.items():
            keys = self.names.get(name)
            if keys is None:
                continue
            if known:
                # What the question says goes before it, whatever the type.
                for before in keys.values():
                    facts.pop(before, None)
            values, kind = (tuple(value), str) if isinstance(value, list) else ((value,), type(value))
            key = keys.get(kind)
            if key is not None:
                facts[key] = values
        return True


class _Known(dict[tuple[str, str], _Facts | None]):
    """What a bundle knows of entities, worked out when it is wanted first; none where it is not so simple."""

    def __init__(self, category: str, entities: Mapping[str, Mapping[str, Properties]]) -> None:
        super().__init__()
        self._category = category
        self._entities = entities

    def __missing__(self, which: tuple[str, str]) -> _Facts | None:
        of_type, name = which
        properties = self._entities.get(of_type, _NOBODY).get(name)
        if not properties:
            return _NOTHING
        self[which] = found = self._told(properties)
        return found

    def _told(self, properties: Properties) -> _Facts | None:
        facts: _Facts = {}
        try:
            tell(facts, self._category, properties)
        except MalformedError:
            return None
        nested = any(isinstance(value, dict) for value in properties.values())
        return None if nested else facts


_NOBODY: Final[Mapping[str, Properties]] = {}
_NOTHING: Final[_Facts] = {}


class Quick:
    """See the module. It is that of one bundle."""

    __slots__ = ("_action", "_actions", "_ask", "_context", "_resource", "_resources", "_subject", "_subjects")

    def __init__(self, ask: Straight, entities: Entities, wanted: Collection[Designator]) -> None:
        self._ask = ask
        self._subject, self._resource = _Side(SUBJECT, wanted), _Side(RESOURCE, wanted)
        self._action, self._context = _Side(ACTION, wanted), _Side(ENVIRONMENT, wanted)
        self._subjects = _Known(SUBJECT, entities.subjects)
        self._resources = _Known(RESOURCE, entities.resources)
        self._actions = _Known(ACTION, {"": entities.actions})

    def decide(self, question: QuickQuestion, now: datetime) -> Decision | None:
        """Return the decision, if it is a simple one: Permit, Deny or NotApplicable, and nothing to do besides."""
        facts = self._facts(question)
        if facts is None:
            return None
        try:
            return self._ask(facts, now)
        except (EvaluationError, Involved):
            return None

    def _facts(self, question: QuickQuestion) -> _Facts | None:
        subject, action, resource = question.subject, question.action, question.resource
        facts: _Facts = {
            KEY_SUBJECT_ID: (subject.id,),
            KEY_SUBJECT_TYPE: (subject.type,),
            KEY_RESOURCE_ID: (resource.id,),
            KEY_RESOURCE_TYPE: (resource.type,),
            KEY_ACTION_ID: (action.name,),
        }
        known = self._subjects[subject.type, subject.id]
        if known is None or (
            (known or subject.properties) and not self._subject.tell(facts, subject.properties, known)
        ):
            return None
        known = self._resources[resource.type, resource.id]
        if known is None or (
            (known or resource.properties) and not self._resource.tell(facts, resource.properties, known)
        ):
            return None
        known = self._actions["", action.name]
        if known is None or ((known or action.properties) and not self._action.tell(facts, action.properties, known)):
            return None
        if question.context and not self._context.tell(facts, question.context, None):
            return None
        return facts
