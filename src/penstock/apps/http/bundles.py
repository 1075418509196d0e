"""Policy bundles: one policy in a file, or a folder of them, with a revision that is what stands in it.

A folder has `root.xml`, which decides; further `*.xml`, to which it may refer; and perhaps `entities.json`: subjects,
resources and actions that are known, with their properties. Searches look among them, and what a request does not say
of one of them is taken from there.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Final, TypeAlias

from penstock.apps.http.journal import Decided
from penstock.errors import FailedError, LimitError, MalformedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.policy.compiled import CompiledPolicy
from penstock.policy.expressions import Designator
from penstock.policy.json_requests import Json, read_json
from penstock.policy.policies import PolicyReference, Root
from penstock.policy.repository import Repository
from penstock.policy.requests import ENVIRONMENT
from penstock.policy.xml_policies import read_policy
from penstock.store.files import read_file, within

ROOT: Final = "root.xml"
ENTITIES: Final = "entities.json"
_CLOCK: Final = "urn:oasis:names:tc:xacml:1.0:environment:current-"
Properties: TypeAlias = Mapping[str, Json]
Stamp: TypeAlias = tuple[tuple[str, int, int], ...]
"""The files of a bundle, with when they were written and their sizes."""


@dataclass(frozen=True, slots=True)
class Entities:
    """What is known: properties by type and id, and those of actions by name."""

    subjects: Mapping[str, Mapping[str, Properties]] = field(default_factory=dict)
    resources: Mapping[str, Mapping[str, Properties]] = field(default_factory=dict)
    actions: Mapping[str, Properties] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bundle:
    """All that one decision goes by. It never changes: another revision is another bundle."""

    revision: str
    policy: CompiledPolicy
    sources: Repository
    entities: Entities
    #: whether no policy asks what time it is: then the same question has the same answer as long as this bundle decides
    timeless: bool = False
    #: answers that were given, by endpoint and question
    answers: dict[tuple[str, bytes], tuple[bytes, tuple[Decided, ...]]] = field(default_factory=dict)


class _Known(Repository):
    """Policies of a bundle, which do not change: what a reference means is found once."""

    def __init__(self, policies: Iterable[Root]) -> None:
        super().__init__(policies)
        self._meant: dict[PolicyReference, Root] = {}

    def policy(self, reference: PolicyReference) -> Root:
        found = self._meant.get(reference)
        if found is None:
            found = self._meant[reference] = super().policy(reference)
        return found


def stamp(path: Path) -> Stamp:
    """Return what tells whether a bundle may have changed. Raises `FailedError` (`pdp.bundle`)."""
    try:
        found = []
        for file in _files(path):
            status = file.stat()
            found.append((file.name, status.st_mtime_ns, status.st_size))
        return tuple(found)
    except OSError as error:
        raise FailedError("pdp.bundle", f"`{path}` cannot be read: {error.strerror}") from error


def load(path: Path, limits: Limits = DEFAULT_LIMITS) -> Bundle:
    """Read a bundle that nobody changes meanwhile.

    Raises `FailedError` (`pdp.bundle`, `pdp.bundle-changing`), `MalformedError` and `LimitError` for what is in it.
    """
    before = stamp(path)
    data = {name: read_file(str(path / name if path.is_dir() else path)) for name, _, _ in before}
    if stamp(path) != before:
        raise FailedError("pdp.bundle-changing", f"`{path}` was changed while it was read", hint="try again")
    return build(data, ROOT if path.is_dir() else path.name, limits)


def build(files: Mapping[str, bytes], root: str = ROOT, limits: Limits = DEFAULT_LIMITS) -> Bundle:
    """Make a bundle of files by their names. Raises `MalformedError`, `LimitError`."""
    if root not in files:
        raise MalformedError("pdp.bundle", f"a bundle has no `{root}`", hint="it is the policy that decides")
    policies = {name: _policy(name, data, limits) for name, data in files.items() if name != ENTITIES}
    entities = Entities()
    if ENTITIES in files:
        with within(ENTITIES):
            entities = _entities(read_json(files[ENTITIES], limits), limits)
    others = _Known(policy for name, policy in policies.items() if name != root)
    timeless = not any(_asks_time(policy) for policy in policies.values())
    return Bundle(_revision(files), CompiledPolicy(policies[root], others), others, entities, timeless)


def _asks_time(part: object) -> bool:
    """Say whether an attribute of the environment that a service has by itself is in a part of a policy."""
    if isinstance(part, Designator):
        return part.category == ENVIRONMENT and part.id.startswith(_CLOCK)
    if isinstance(part, Mapping):
        return any(_asks_time(one) for one in part.values())
    if isinstance(part, Sequence) and not isinstance(part, str | bytes):
        return any(_asks_time(one) for one in part)
    if is_dataclass(part):
        return any(_asks_time(getattr(part, one.name)) for one in fields(part))
    return False


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    return sorted(one for one in path.iterdir() if one.suffix == ".xml" or one.name == ENTITIES)


def _policy(name: str, data: bytes, limits: Limits) -> Root:
    with within(name):
        return read_policy(data, limits=limits)


def _revision(files: Mapping[str, bytes]) -> str:
    """Return a name for what stands in a bundle: the same files have the same."""
    digests = [[name, hashlib.sha256(data).hexdigest()] for name, data in sorted(files.items())]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:16]


def _entities(found: Json, limits: Limits) -> Entities:
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
