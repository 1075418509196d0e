"""Policies: rules, policies and policy sets, each with a target, obligations and advice (section 5)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from itertools import chain
from types import MappingProxyType
from typing import Final, TypeAlias

from penstock.errors import MalformedError
from penstock.policy.language.datatypes import DataType, Function, Value
from penstock.policy.language.expressions import ContentSelector, Designator, Expression

_VERSION: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,15}", re.ASCII)
_PATTERN: Final = re.compile(r"(([0-9]{1,9}|\*)\.){0,15}([0-9]{1,9}|\*|\+)", re.ASCII)


class RuleEffect(StrEnum):
    """What a rule says where it holds."""

    PERMIT = "Permit"
    DENY = "Deny"


@dataclass(frozen=True, slots=True)
class Match:
    """A value, and an attribute of which one value must match it."""

    function: Function
    value: Value
    of: DataType
    attribute: Designator | ContentSelector

    def __post_init__(self) -> None:
        if self.function.check is not None:
            self.function.check(self.value)


AllOf: TypeAlias = tuple[Match, ...]
AnyOf: TypeAlias = tuple[AllOf, ...]
Target: TypeAlias = tuple[AnyOf, ...]
"""All of the outer, one of the middle, all of the inner; an empty target matches everything."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an obligation says about one attribute; a bag gives as many values as it has."""

    id: str
    expression: Expression
    category: str | None = None
    issuer: str | None = None


@dataclass(frozen=True, slots=True)
class Duty:
    """An obligation, which has to be met, or an advice, which may be: on which effect, and with which attributes."""

    id: str
    on: RuleEffect
    assignments: tuple[Assignment, ...] = ()


@dataclass(frozen=True, slots=True)
class Duties:
    """The obligations and advice of a rule, a policy or a policy set."""

    obligations: tuple[Duty, ...] = ()
    advice: tuple[Duty, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: where its target matches and its condition holds, its effect."""

    id: str
    effect: RuleEffect
    target: Target = ()
    condition: Expression | None = None
    duties: Duties = Duties()
    description: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules, and how what they say is combined."""

    id: str
    version: str
    combining: str
    rules: tuple[Rule, ...]
    target: Target = ()
    variables: Mapping[str, Expression] = field(default_factory=lambda: MappingProxyType({}))
    duties: Duties = Duties()
    issuer: str | None = None
    description: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_version(self.version)


@dataclass(frozen=True, slots=True)
class PolicyReference:
    """A policy, or a policy set, that is to be found elsewhere by its id and the versions that suit."""

    id: str
    to_set: bool
    version: str | None = None
    earliest: str | None = None
    latest: str | None = None

    def __post_init__(self) -> None:
        for pattern in (self.version, self.earliest, self.latest):
            if pattern is not None and not _PATTERN.fullmatch(pattern):
                raise MalformedError("xacml.version", f"`{pattern[:80]}` does not say which versions suit")

    def suits(self, version: str) -> bool:
        """Say whether a version is one of those that are meant (section 5.13)."""
        if self.version is not None and not _like(version, self.version):
            return False
        key = version_key(version)
        if self.earliest is not None and not _like(version, self.earliest) and key < version_key(self.earliest):
            return False
        return self.latest is None or _like(version, self.latest) or key <= version_key(self.latest)


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Policies, policy sets and references to some, and how what they say is combined."""

    id: str
    version: str
    combining: str
    members: "tuple[Policy | PolicySet | PolicyReference, ...]"
    target: Target = ()
    duties: Duties = Duties()
    issuer: str | None = None
    description: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_version(self.version)


Root: TypeAlias = Policy | PolicySet


def versioned(root: Root) -> str:
    """Return a name for one version of a policy set: within itself is what is within that version, and not another."""
    return f"{root.version} {root.id}"


def inner_policies(root: Root) -> Iterator[Root]:
    """Yield a policy and all that stand in it, from the outside to the inside."""
    yield root
    for member in root.members if isinstance(root, PolicySet) else ():
        if not isinstance(member, PolicyReference):
            yield from inner_policies(member)


def check_issuers(root: Root) -> None:
    """Check that whoever loads a policy answers for it (section 5.2). Raises `MalformedError` (`xacml.issuer`).

    Whether somebody else may issue one is for XACML's administration profile to say, which is not there.
    """
    if root.issuer is not None:
        raise MalformedError(
            "xacml.issuer",
            f"policy `{root.id[:120]}` has an issuer, and nobody here can say whether it may issue it",
            hint="decide whether you trust it; if you do, take the issuer out of your copy",
        )
    for member in root.members if isinstance(root, PolicySet) else ():
        if not isinstance(member, PolicyReference):
            check_issuers(member)


def check_version(version: str) -> None:
    """Check that a version is numbers with dots between. Raises `MalformedError` (`xacml.version`)."""
    if not _VERSION.fullmatch(version):
        raise MalformedError(
            "xacml.version", f"`{version[:80]}` is not a version", hint="write numbers with dots between"
        )


def version_key(version: str) -> tuple[int, ...]:
    """Return how a version compares with others; of a pattern, its numbers up to the first that is left open."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _like(version: str, pattern: str) -> bool:
    parts, wanted = version.split("."), pattern.split(".")
    if wanted[-1] == "+":
        wanted.pop()
        parts = parts[: len(wanted)]
    return len(parts) == len(wanted) and all(
        one == "*" or (part.isdigit() and int(part) == int(one)) for part, one in zip(parts, wanted, strict=True)
    )


def designators(part: object) -> Iterator[Designator]:
    """Yield the attributes that policies, or a part of one, may ask for; what they refer to is not looked at."""
    if isinstance(part, Designator):
        yield part
    elif isinstance(part, Mapping):
        yield from chain.from_iterable(map(designators, part.values()))
    elif isinstance(part, Sequence) and not isinstance(part, str | bytes):
        yield from chain.from_iterable(map(designators, part))
    elif is_dataclass(part):
        yield from chain.from_iterable(designators(getattr(part, one.name)) for one in fields(part))
