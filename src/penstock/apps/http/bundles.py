"""Policy bundles: one policy in a file, or a folder of them, with a revision that is what stands in it.

A folder has `root.xml`, `root.json`, `root.policy` or `root.cedar`, which decides; further policies, to which it may
refer, in any of these forms; and perhaps `entities.json`: subjects, resources and actions that are known, with their
properties. Searches look among them, and what a request does not say of one of them is taken from there.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Final, TypeAlias

from penstock.apps.http.authzen import ALWAYS, Answer, fast_answers
from penstock.apps.http.entities import Entities, read_entities
from penstock.apps.http.journal import Decided
from penstock.apps.http.limits import SERVICE_LIMITS, ServiceLimits
from penstock.errors import EvaluationError, FailedError, MalformedError
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.fast_path import FastPolicy, NoFastAnswer
from penstock.policy.engine.lookup import Repository, check_policies
from penstock.policy.language.policies import Designator, PolicyReference, Root, designators
from penstock.policy.language.requests import ENVIRONMENT, Facts
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.policy.syntax.forms import read_policies
from penstock.store.files.files import read_file, within

_SUFFIXES: Final = (".xml", ".json", ".policy", ".cedar")
ROOTS: Final = tuple(f"root{suffix}" for suffix in _SUFFIXES)
ENTITIES: Final = "entities.json"
_CLOCK: Final = "urn:oasis:names:tc:xacml:1.0:environment:current-"
EPOCH: Final = datetime.fromtimestamp(0, UTC)
Stamp: TypeAlias = tuple[tuple[str, int, int], ...]
"""The files of a bundle, with when they were written and their sizes."""


@dataclass(frozen=True)
class Bundle:
    """Everything that a decision uses. It never changes: another revision is another bundle."""

    revision: str
    #: the policy that decides, as it was read and compiled
    root: Root
    policy: CompiledPolicy
    sources: Repository
    entities: Entities
    #: whether no policy uses the time: then the same question always has the same answer under this bundle
    timeless: bool = False
    #: the fast path for usual questions, and its function; other questions use `policy`
    fast: FastPolicy | None = None
    answer: Answer | None = None
    #: the policy that decides, as records name it: a list in JSON
    because: str = "[]"
    #: when its files were last modified
    changed: datetime = EPOCH
    #: answers that took longer, by endpoint and question
    answers: dict[tuple[str, bytes], tuple[bytes, tuple[Decided, ...]]] = field(default_factory=dict)

    @cached_property
    def header(self) -> bytes:
        """The revision as the value of a header."""
        return self.revision.encode()

    def ask(self, facts: Facts, now: datetime) -> PolicyOutcome:
        """Return the outcome of the policy, by the fast path if possible. Raises as `CompiledPolicy.ask`."""
        if self.fast is not None:
            try:
                return _SIMPLE[self.fast.decide(facts, now)]
            except (EvaluationError, NoFastAnswer):
                pass
        return self.policy.ask(facts, now)


_SIMPLE: Final = {
    one: PolicyOutcome(one) for one in (XacmlDecision.PERMIT, XacmlDecision.DENY, XacmlDecision.NOT_APPLICABLE)
}


class _Known(Repository):
    """The policies of a bundle. They do not change, so each reference is resolved once."""

    def __init__(self, policies: Sequence[Root]) -> None:
        super().__init__(policies)
        self.policies = policies
        self._meant: dict[PolicyReference, Root] = {}

    def policy(self, reference: PolicyReference) -> Root:
        found = self._meant.get(reference)
        if found is None:
            found = self._meant[reference] = super().policy(reference)
        return found


def stamp(path: Path) -> Stamp:
    """Return a value that changes when a bundle may have changed. Raises `FailedError` (`pdp.bundle`)."""
    try:
        found = []
        for file in _files(path):
            status = file.stat()
            found.append((file.name, status.st_mtime_ns, status.st_size))
        return tuple(found)
    except OSError as error:
        raise FailedError("pdp.bundle", f"`{path}` cannot be read: {error.strerror}") from error


def load(path: Path, limits: ServiceLimits = SERVICE_LIMITS, *, trust_properties: bool = False) -> Bundle:
    """Read a bundle that does not change meanwhile; `Entities` decides whose properties count.

    Raises `FailedError` (`pdp.bundle`, `pdp.bundle-changing`), `MalformedError` and `LimitError` for what is in it.
    """
    before = stamp(path)
    data = {name: read_file(str(path / name if path.is_dir() else path)) for name, _, _ in before}
    if stamp(path) != before:
        raise FailedError("pdp.bundle-changing", f"`{path}` was changed while it was read", hint="try again")
    bundle = build(data, None if path.is_dir() else path.name, limits, trust_properties=trust_properties)
    changed = max((written for _, written, _ in before), default=0) // 1_000
    return replace(bundle, changed=EPOCH + timedelta(microseconds=changed))


def build(
    files: Mapping[str, bytes],
    root: str | None = None,
    limits: ServiceLimits = SERVICE_LIMITS,
    *,
    trust_properties: bool = False,
) -> Bundle:
    """Make a bundle of files by their names. Raises `MalformedError`, `LimitError`.

    Of a text with several policies the first decides, where it is the root, and others may be referred to.
    """
    root = root or _root(files)
    first, *more = _policies(root, files[root], limits)
    names = [name for name in files if name not in (root, ENTITIES)]
    others = _Known([*more, *chain.from_iterable(_policies(name, files[name], limits) for name in names)])
    check_policies([first], others.policies)
    entities = Entities(trust_properties=trust_properties)
    if ENTITIES in files:
        with within(ENTITIES):
            entities = read_entities(files[ENTITIES], limits, trust_properties=trust_properties)
    fast = FastPolicy.of(first, others, *ALWAYS)
    return Bundle(
        _revision(files),
        first,
        CompiledPolicy(first, others),
        others,
        entities,
        timeless=not any(map(_asks_time, designators([first, *others.policies]))),
        fast=fast,
        answer=None if fast is None else fast_answers(fast, entities),
        because=json.dumps([f"policy:{first.id}"]),
    )


def _asks_time(wanted: Designator) -> bool:
    """Return whether it is an attribute of the environment that a service has by itself."""
    return wanted.category == ENVIRONMENT and wanted.id.startswith(_CLOCK)


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    return sorted(one for one in path.iterdir() if one.suffix in _SUFFIXES)


def _root(files: Mapping[str, bytes]) -> str:
    found = [name for name in ROOTS if name in files]
    if len(found) != 1:
        kinds = ", ".join(f"`{name}`" for name in ROOTS)
        raise MalformedError("pdp.bundle", f"a bundle has one of {kinds}", hint="it is the policy that decides")
    return found[0]


def _policies(name: str, data: bytes, limits: ServiceLimits) -> Sequence[Root]:
    with within(name):
        found = read_policies(data, limits=limits).policies
        if not found:
            raise MalformedError("pdp.bundle", "there is no policy in it")
    return found


def _revision(files: Mapping[str, bytes]) -> str:
    """Return the revision of a bundle: the same files have the same revision."""
    digests = [[name, hashlib.sha256(data).hexdigest()] for name, data in sorted(files.items())]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:16]
