"""Questions of AuthZEN 1.0 as facts of XACML, and its answers.

| AuthZEN | attribute |
|---|---|
| `subject.id`, `resource.id`, `action.name` | `subject-id`, `resource-id`, `action-id` of XACML 1.0, strings |
| `subject.type`, `resource.type` | `urn:penstock:authzen:subject-type`, `...:resource-type`, strings |
| `properties` of each | attributes in the category of subjects, resources, actions, with the id that is their name |
| `context` | attributes of the environment, likewise |

A property is a string, a boolean, an integer or a double as JSON has it, a list a bag of them, null nothing; members of
an object have its name before theirs, with a dot. What a bundle knows of an entity goes before what a question says.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Final, TypeAlias

from msgspec import UNSET, Meta, MsgspecError, Struct, UnsetType
from msgspec.json import Decoder, Encoder

from penstock.apps.http.entities import RESERVED, RESOURCE_TYPE, SUBJECT_TYPE, Entities, Properties, flattened
from penstock.errors import MalformedError, PenstockError
from penstock.policy.engine.fast_path import Bags, FastPolicy, NoFastAnswer
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
    key_of,
)
from penstock.policy.language.results import Obligation, PolicyOutcome, XacmlDecision
from penstock.policy.syntax.json.requests import OBJECT, Json, JsonObject, read_json

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


@dataclass(frozen=True, slots=True)
class Entity:
    """A subject or a resource; an action has no type, and its name is its id."""

    type: str
    id: str
    properties: Properties


@dataclass(frozen=True, slots=True)
class AuthzenQuestion:
    """A question: whether a subject may perform an action on a resource."""

    subject: Entity
    action: Entity
    resource: Entity
    context: Properties


def read_question(found: Mapping[str, Json], defaults: Mapping[str, Json] | None = None) -> AuthzenQuestion:
    """Read a question; missing members are taken from the defaults. Raises `MalformedError` (`pdp.request`)."""
    whole = found if defaults is None else {**defaults, **found}
    return AuthzenQuestion(
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


def facts_of(question: AuthzenQuestion, known: Entities) -> Facts:
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
        said = flattened(entity.properties, _CODE)
        tell(facts, category, known.properties(category, entity.type, entity.id, said))
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


# --- answers ---------------------------------------------------------------------------------------------------------


def write_decision(outcome: PolicyOutcome) -> dict[str, Json]:
    """Return a decision: true for Permit alone. Its context has errors, obligations and advice."""
    decided: dict[str, Json] = {"decision": outcome.decision is XacmlDecision.PERMIT}
    context: dict[str, Json] = {}
    if outcome.decision.indeterminate:
        context["error"] = {"code": outcome.status.code, "message": outcome.status.message}
    for name, duties in (("obligations", outcome.obligations), ("advice", outcome.advice)):
        if duties:
            context[name] = [_write_duty(duty) for duty in duties]
    if context:
        decided["context"] = context
    return decided


def _write_duty(duty: Obligation) -> Json:
    assigned: list[Json] = [{"id": one.id, "value": one.of.write(one.value)} for one in duty.assigned]
    return {"id": duty.id, "attributes": assigned}


def refused(code: str, message: str) -> dict[str, Json]:
    """Return the answer to a question within others that cannot be decided."""
    return {"decision": False, "context": {"error": {"code": code, "message": message}}}


# --- reading ---------------------------------------------------------------------------------------------------------


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


def _wrong(message: str) -> MalformedError:
    return MalformedError(_CODE, message)


# ----------------------------------------------------------------------------------------------------------------------
# Answer one AuthZEN question by a fast policy (`penstock.policy.engine.fast_path`): read it straight into bags.


_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_Flat: TypeAlias = dict[str, str | bool | int | float | list[str] | None] | UnsetType | None


class PlainEntity(Struct, gc=False, forbid_unknown_fields=True):
    """A subject or a resource."""

    type: _Text
    id: _Text
    properties: _Flat = UNSET


class PlainAction(Struct, gc=False, forbid_unknown_fields=True):
    """Obligations and advice."""

    name: _Text
    properties: _Flat = UNSET


class PlainQuestion(Struct, gc=False, forbid_unknown_fields=True):
    """A question without anything unusual."""

    subject: PlainEntity
    action: PlainAction
    resource: PlainEntity
    context: _Flat = UNSET


_decode: Final[Callable[[bytes], PlainQuestion]] = Decoder(PlainQuestion).decode
_encode: Final[Callable[[PlainQuestion], bytes]] = Encoder().encode
#: a byte is looked for more quickly than bytes
_ESCAPE: Final = ord("\\")
_BLANK: Final = ord(" ")
_SPACES: Final = b" \t\r\n"
#: the attributes of every question, by their place among the bags
ALWAYS: Final = (KEY_SUBJECT_ID, KEY_SUBJECT_TYPE, KEY_RESOURCE_ID, KEY_RESOURCE_TYPE, KEY_ACTION_ID)
_Known: TypeAlias = Mapping[int, tuple[Value, ...]]
_NOTHING: Final[_Known] = {}
_NOWHERE: Final[Mapping[type, int]] = {}
_NO_NAMES: Final[frozenset[str]] = frozenset()


class _Side:
    """The attributes that policies use of the subjects, resources, actions or contexts of questions."""

    __slots__ = ("_all", "_category", "_names", "_places", "entities", "known")

    def __init__(self, category: str, places: Mapping[Key, int], entities: Entities) -> None:
        kinds = {of_type: kind for kind, of_type in TYPES.items()}
        #: places by name, and by data type in JSON; names that no property may have are missing
        self._names: dict[str, dict[type, int]] = {name: {} for name in RESERVED}
        for key, place in places.items():
            if key.category == category and key.of in kinds and key.id not in RESERVED:
                self._names.setdefault(key.id, {})[kinds[key.of]] = place
        self._category = category
        self._places = places
        self._all = entities
        self.entities = entities.by_category.get(category, {})
        #: properties from the bundle, by type and id, as far as they were used
        self.known: dict[tuple[str, str], _Known] = {}

    def find(self, of_type: str, name: str) -> _Known:
        """Return the bundle's properties of an entity."""
        properties = self.entities[of_type].get(name)
        if properties is None:
            return _NOTHING
        facts: dict[Key, tuple[Value, ...]] = {}
        tell(facts, self._category, properties)
        known = {self._places[key]: values for key, values in facts.items() if key in self._places}
        self.known[of_type, name] = known
        return known

    def tell(self, bags: Bags, of_type: str, name: str, properties: _Flat) -> bool:
        """Put the bundle's and the question's properties into the bags, and return whether there are floats.

        Raises `NoFastAnswer`.
        """
        for place, values in (self.known.get((of_type, name)) or self.find(of_type, name)).items():
            bags[place] = values
        return self.add(bags, of_type, name, properties)

    def add(self, bags: Bags, of_type: str, name: str, properties: _Flat) -> bool:
        """Add the question's properties to the bundle's, and return whether there are floats. Raises `NoFastAnswer`."""
        if self._all.trust_properties:
            # A property of the question, of any type, replaces that of the bundle.
            for one in properties or ():
                for place in self._names.get(one, _NOWHERE).values():
                    bags[place] = ()
        return self.say(bags, properties, self._all.owned(self._category, of_type, name) if properties else _NO_NAMES)

    def say(self, bags: Bags, properties: _Flat, owned: frozenset[str] = _NO_NAMES) -> bool:
        """Put the question's properties into the bags, and return whether there are floats. Raises `NoFastAnswer`.

        Properties that the bundle has do not count in the question.
        """
        if not properties:
            return False
        floats, names = False, self._names
        for name, value in properties.items():
            kind: type = type(value)
            values: tuple[Value, ...] = (value,)
            if isinstance(value, list):
                values, kind = tuple(value), str
            elif kind is float:
                floats = True
            if name in names:
                places = names[name]
                if not places:
                    raise NoFastAnswer
                if kind in places and name not in owned:
                    bags[places[kind]] = values
        return floats


Answer: TypeAlias = Callable[[bytes, datetime], tuple[XacmlDecision, PlainQuestion] | None]
"""Returns the decision and the question, if both are plain ones.

The decision is Permit, Deny or NotApplicable, and nothing comes with it. For any other question there is nothing, and
`Deciding.evaluation` must be asked.
"""


def fast_answers(fast: FastPolicy, entities: Entities) -> Answer:
    """Return a function that answers questions by a policy, whose first places are `ALWAYS`, and the bundle."""
    places = fast.places
    subjects, resources, actions, context = (
        _Side(category, places, entities) for category in (SUBJECT, RESOURCE, ACTION, ENVIRONMENT)
    )
    #: whether anything is known of actions but their names
    acts = any(entities.actions.values())
    #: bags after those of `ALWAYS`: for unknown subjects, and for known ones that have asked before
    nothing: Bags = [()] * (len(places) - len(ALWAYS))
    of_subjects: dict[tuple[str, str], Bags] = {}
    known_subjects, known_resources = subjects.entities, resources.entities
    rest_of, say_of_resource, ask = of_subjects.get, resources.say, fast.ask

    def first_rest(of_type: str, name: str) -> Bags:
        """Return the bags after those of `ALWAYS` with a subject's properties; they are cached by subject."""
        rest = nothing.copy()
        known = subjects.find(of_type, name)
        for place, values in known.items():
            rest[place - len(ALWAYS)] = values
        if known:
            of_subjects[of_type, name] = rest
        return rest

    def more(bags: Bags, question: PlainQuestion) -> bool:
        """Add the properties of subjects, contexts and actions, and return whether there are floats."""
        subject, action = question.subject, question.action
        if subject.type in known_subjects:
            floats = subjects.add(bags, subject.type, subject.id, subject.properties)
        else:
            floats = subjects.say(bags, subject.properties)
        floats = context.say(bags, question.context) or floats
        if acts:
            return actions.tell(bags, "", action.name, action.properties) or floats
        return actions.say(bags, action.properties) or floats

    def answer(data: bytes, now: datetime) -> tuple[XacmlDecision, PlainQuestion] | None:
        if _ESCAPE in data:
            return None
        try:
            question = _decode(data)
            subject, action, resource = question.subject, question.action, question.resource
            who, of_subject, of_resource = subject.id, subject.type, resource.type
            rest, properties, floats = nothing, resource.properties, False
            if of_subject in known_subjects:
                rest = rest_of((of_subject, who)) or first_rest(of_subject, who)
            bags = [(who,), (of_subject,), (resource.id,), (of_resource,), (action.name,), *rest]
            if of_resource in known_resources:
                floats = resources.tell(bags, of_resource, resource.id, properties)
            elif properties is not UNSET:
                floats = say_of_resource(bags, properties)
            if (
                acts
                or action.properties is not UNSET
                or question.context is not UNSET
                or subject.properties is not UNSET
            ):
                floats = more(bags, question) or floats
            if floats:
                # Written again they may be longer: that no member is there twice, another reader says.
                read_json(data)
            else:
                # The decoder takes the last of members that are there twice. What was read is written again without
                # spaces around values. Nothing in it is longer than it was, since no characters are escaped. So it is
                # as long as the data but for spaces, or something was left out.
                again = _encode(question)
                if (_BLANK in again or len(again) != len(data) - data.count(_BLANK)) and (
                    len(again.translate(None, _SPACES)) != len(data.translate(None, _SPACES))
                ):
                    return None
            return ask(bags, now), question
        except (MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, PenstockError, NoFastAnswer):
            return None

    return answer
