"""Which requests a decision point can resolve, as keys of the topic of requests.

A request's key has three parts: the resource's type, its id, and the subject with the action. Each is 16 bytes of a
SHA-256 in base64, so that any text fits into a key. Two texts with the same part only cause a request that a point
reads in vain. A point subscribes to

- patterns: a resource type, or one resource (`resources`);
- exact tuples of subject, action and resource (`tuples`);
- what the targets of its policies cover (`covered`), which it derives again when the policies change.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Final, TypeAlias

from penstock.authority.decisions.questions import KEY_RESOURCE_ID, KEY_RESOURCE_TYPE, AccessQuestion, Entity
from penstock.authority.limits import POINT_KEYS
from penstock.errors import PenstockError
from penstock.fabric import KeyChoice, KeysUnder
from penstock.policy.engine.index import necessary
from penstock.policy.engine.lookup import PolicySources
from penstock.policy.language.policies import Policy, PolicyReference, PolicySet, Root, Target

Coverage: TypeAlias = frozenset[KeyChoice] | None
"""The keys of the requests that a point can resolve; None for all."""

_PART_BYTES: Final = 16
_KEPT_TEXT: Final = 512
#: algorithms for which nothing is applicable if no member is. With only-one-applicable, a target that fails is enough
PLAIN_ALGORITHMS: Final = ("deny-overrides", "permit-overrides", "first-applicable")


def _part(*texts: str) -> str:
    # Whoever sends requests can name anything: long texts are not kept.
    return _kept_part(*texts) if sum(map(len, texts)) <= _KEPT_TEXT else _new_part(*texts)


def _new_part(*texts: str) -> str:
    # Lengths keep two texts apart.
    data = b"".join(b"%d:%b" % (len(raw), raw) for raw in (text.encode() for text in texts))
    return urlsafe_b64encode(sha256(data).digest()[:_PART_BYTES]).decode().rstrip("=")


_kept_part: Final = lru_cache(16_384)(_new_part)


def request_key(question: AccessQuestion) -> str:
    """Return the key of requests with this question."""
    subject, resource = question.subject, question.resource
    tuple_ = _part(subject.type, subject.id, question.action.id)
    return f"{_part(resource.type)}/{_part(resource.id)}/{tuple_}"


def answer_key(digest: bytes) -> str:
    """Return the key of answers to the question with this digest."""
    return urlsafe_b64encode(digest).decode().rstrip("=")


def resources(*patterns: tuple[str, str | None]) -> Coverage:
    """Return the coverage of resources by type and id; without an id, of all resources of the type."""
    return frozenset(
        KeysUnder(_part(kind) if name is None else f"{_part(kind)}/{_part(name)}") for kind, name in patterns
    )


def tuples(exact: Iterable[tuple[Entity, str, Entity]]) -> Coverage:
    """Return the coverage of exact tuples of a subject, the name of an action, and a resource."""
    return frozenset(request_key(AccessQuestion.of(subject, action, resource)) for subject, action, resource in exact)


def covered(root: Root, sources: PolicySources) -> Coverage:
    """Return the coverage of a policy: no request outside of it is applicable."""
    found = _covered(root, sources)
    return None if found is None or len(found) > POINT_KEYS else frozenset(found)


def _covered(root: Root, sources: PolicySources) -> set[KeyChoice] | None:
    own = _of_target(root.target)
    if own is not None:
        return own
    if not root.combining.endswith(PLAIN_ALGORITHMS):
        return None
    found: set[KeyChoice] = set()
    for member in root.members if isinstance(root, PolicySet) else root.rules:
        below: set[KeyChoice] | None
        if isinstance(member, PolicyReference):
            try:
                below = _covered(sources.policy(member), sources)
            except PenstockError:
                return None  # it makes decisions Indeterminate
        elif isinstance(member, Policy | PolicySet):
            below = _covered(member, sources)
        else:
            below = _of_target(member.target)
        if below is None or len(found) > POINT_KEYS:
            return None
        found |= below
    return found


def _of_target(target: Target) -> set[KeyChoice] | None:
    needed = {attribute.key: [*map(str, values)] for attribute, values in necessary(target).items()}
    kinds, names = needed.get(KEY_RESOURCE_TYPE), needed.get(KEY_RESOURCE_ID)
    if kinds is None:
        return None
    if names is None or len(kinds) * len(names) > POINT_KEYS:
        return set(resources(*((kind, None) for kind in kinds)) or ())
    return set(resources(*((kind, name) for kind in kinds for name in names)) or ())
