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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from penstock.apps.http.entities import RESOURCE_TYPE, SUBJECT_TYPE, Entities, Properties, flattened
from penstock.errors import MalformedError
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
from penstock.policy.syntax.json.requests import OBJECT, Json, JsonObject

KEY_SUBJECT_ID: Final = key_of(SUBJECT, SUBJECT_ID, STRING)
KEY_SUBJECT_TYPE: Final = key_of(SUBJECT, SUBJECT_TYPE, STRING)
KEY_RESOURCE_ID: Final = key_of(RESOURCE, RESOURCE_ID, STRING)
KEY_RESOURCE_TYPE: Final = key_of(RESOURCE, RESOURCE_TYPE, STRING)
KEY_ACTION_ID: Final = key_of(ACTION, ACTION_ID, STRING)
#: what values of JSON are
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
    """May this subject do this to that?"""

    subject: Entity
    action: Entity
    resource: Entity
    context: Properties


def read_question(found: Mapping[str, Json], defaults: Mapping[str, Json] | None = None) -> AuthzenQuestion:
    """Read a question; what it lacks is taken whole from the defaults. Raises `MalformedError` (`pdp.request`)."""
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
    """Read what is said of the circumstances. Raises `MalformedError` (`pdp.request`)."""
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
