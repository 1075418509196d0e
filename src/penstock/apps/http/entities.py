"""What a bundle knows of subjects, resources and actions: `entities.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.errors import LimitError, MalformedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.policy.json_requests import Json, read_json

Properties: TypeAlias = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Entities:
    """What is known: properties by type and id, and those of actions by name."""

    subjects: Mapping[str, Mapping[str, Properties]] = field(default_factory=dict)
    resources: Mapping[str, Mapping[str, Properties]] = field(default_factory=dict)
    actions: Mapping[str, Properties] = field(default_factory=dict)


def read_entities(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Entities:
    """Read entities. Raises `MalformedError` (`xacml.json`, `pdp.entities`), `LimitError` (`pdp.limit`)."""
    found = read_json(data, limits)
    if not isinstance(found, dict) or found.keys() - {"subjects", "resources", "actions"}:
        raise _wrong("it is no object of `subjects`, `resources` and `actions`")
    if sum(len(those) for those in found.values() if isinstance(those, list)) > limits.pdp_entities:
        raise LimitError("pdp.limit", f"a bundle knows more than {limits.pdp_entities} entities")
    actions = {
        _text(one, "name"): _properties(one) for one in _objects(found.get("actions", []), {"name", "properties"})
    }
    return Entities(_by_type(found.get("subjects", [])), _by_type(found.get("resources", [])), actions)


def _by_type(found: Json) -> Mapping[str, Mapping[str, Properties]]:
    known: dict[str, dict[str, Properties]] = {}
    for one in _objects(found, {"type", "id", "properties"}):
        same, name = known.setdefault(_text(one, "type"), {}), _text(one, "id")
        if name in same:
            raise _wrong(f"`{name[:80]}` stands there twice")
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
    return found


def _wrong(message: str) -> MalformedError:
    return MalformedError("pdp.entities", message)
