"""What a bundle knows of subjects, resources and actions: `entities.json`.

About what it knows, a bundle is believed before a question, which anybody may have written. A property that it has for
an entity, or for another of the same type, is not taken from a question about that entity; what it has for a subject is
not taken from a question about any subject of that type. `trust_properties` believes a question before the bundle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from penstock.apps.http.limits import SERVICE_LIMITS, ServiceLimits
from penstock.authority.decisions.questions import Properties, flattened
from penstock.errors import LimitError, MalformedError
from penstock.policy.language.requests import ACTION, RESOURCE, SUBJECT
from penstock.policy.syntax.json.requests import Json, read_json

_NONE: Final[frozenset[str]] = frozenset()
_CODE: Final = "pdp.entities"


@dataclass(frozen=True)
class Entities:
    """Properties of entities by type and id, and of actions by name; all of them flat (`flattened`)."""

    subjects: Mapping[str, Mapping[str, Properties]] = field(default_factory=dict)
    resources: Mapping[str, Mapping[str, Properties]] = field(default_factory=dict)
    actions: Mapping[str, Properties] = field(default_factory=dict)
    #: whether properties in a question take precedence over these
    trust_properties: bool = False

    @cached_property
    def by_category(self) -> Mapping[str, Mapping[str, Mapping[str, Properties]]]:
        """The same by category, type and id; actions have no type."""
        return {SUBJECT: self.subjects, RESOURCE: self.resources, ACTION: {"": self.actions}}

    @cached_property
    def _names(self) -> Mapping[tuple[str, str], frozenset[str]]:
        return {
            (category, of_type): frozenset(name for properties in those.values() for name in properties)
            for category, types in self.by_category.items()
            for of_type, those in types.items()
        }

    def owned(self, category: str, of_type: str, name: str) -> frozenset[str]:
        """Return the names of the properties of an entity that are not taken from a question."""
        names = self._names.get((category, of_type), _NONE)
        if self.trust_properties or not names:
            return _NONE
        return names if category == SUBJECT or name in self.by_category[category][of_type] else _NONE

    def properties(self, category: str, of_type: str, name: str, said: Properties) -> Properties:
        """Return the properties of an entity, of which a question says some; all of them flat."""
        known = self.by_category[category].get(of_type, {}).get(name)
        if self.trust_properties:
            return {**known, **said} if known else said
        owned = self.owned(category, of_type, name)
        if not owned:
            return said
        return {**{one: value for one, value in said.items() if one not in owned}, **(known or {})}


def read_entities(data: bytes, limits: ServiceLimits = SERVICE_LIMITS, *, trust_properties: bool = False) -> Entities:
    """Read entities. Raises `MalformedError` (`xacml.json`, `pdp.entities`), `LimitError` (`pdp.limit`)."""
    found = read_json(data, limits)
    if not isinstance(found, dict) or found.keys() - {"subjects", "resources", "actions"}:
        raise _wrong("it is not an object of `subjects`, `resources` and `actions`")
    if sum(len(those) for those in found.values() if isinstance(those, list)) > limits.pdp_entities:
        raise LimitError("pdp.limit", f"a bundle knows more than {limits.pdp_entities} entities")
    actions = {
        _text(one, "name"): _properties(one) for one in _objects(found.get("actions", []), {"name", "properties"})
    }
    subjects, resources = (_by_type(found.get(name, [])) for name in ("subjects", "resources"))
    return Entities(subjects, resources, actions, trust_properties)


def _by_type(found: Json) -> Mapping[str, Mapping[str, Properties]]:
    known: dict[str, dict[str, Properties]] = {}
    for one in _objects(found, {"type", "id", "properties"}):
        same, name = known.setdefault(_text(one, "type"), {}), _text(one, "id")
        if name in same:
            raise _wrong(f"`{name[:80]}` is given twice")
        same[name] = _properties(one)
    return known


def _objects(found: Json, members: set[str]) -> Sequence[Mapping[str, Json]]:
    if not isinstance(found, list):
        raise _wrong("a list is wanted")
    chosen = [one for one in found if isinstance(one, dict) and not one.keys() - members]
    if len(chosen) != len(found):
        raise _wrong(f"an entity is an object of {', '.join(f'`{one}`' for one in sorted(members))}")
    return chosen


def _text(one: Mapping[str, Json], name: str) -> str:
    found = one.get(name)
    if not isinstance(found, str):
        raise _wrong(f"an entity has no `{name}` that is a text")
    return found


def _properties(one: Mapping[str, Json]) -> Properties:
    found = one.get("properties", {})
    if not isinstance(found, dict):
        raise _wrong("properties are an object")
    return flattened(found, _CODE)


def _wrong(message: str) -> MalformedError:
    return MalformedError(_CODE, message)
