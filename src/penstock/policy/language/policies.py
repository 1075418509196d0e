"""Policies: rules, policies and policy sets, each with a target, obligations and advice (section 5); and expressions.

Expressions (section 5.25 and following) are values, attributes that are looked up, and functions of them. Each has the
kind of its result, which is checked when a policy is read: a policy in force cannot fail because an argument has the
wrong type.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from itertools import chain
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

from penstock.errors import MalformedError, did_you_mean
from penstock.policy.language.datatypes import BOOLEAN, Bag, DataType, Function, Kind, Value
from penstock.policy.language.functions import FUNCTIONS, V1, V3, WITHIN, kinds_text
from penstock.policy.language.requests import Key, key_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PolicyLiteral:
    """A literal value in the policy."""

    value: Value
    gives: DataType


@dataclass(frozen=True, slots=True)
class Designator:
    """An attribute of the request, by its name: a bag of all its values of one type."""

    category: str
    id: str
    of: DataType
    issuer: str | None = None
    must_be_present: bool = False

    @property
    def key(self) -> Key:
        """The attribute, regardless of its issuer."""
        return key_of(self.category, self.id, self.of)

    @property
    def gives(self) -> Bag:
        """A bag."""
        return Bag(self.of)


@dataclass(frozen=True, slots=True)
class ContentSelector:
    """The values that a path selects in the content of a category: a bag of one type."""

    category: str
    path: str
    of: DataType
    must_be_present: bool = False
    #: an attribute whose value is the path of the context node
    context: str | None = None
    prefixes: tuple[tuple[str, str], ...] = ()
    version: str = ""

    @property
    def gives(self) -> Bag:
        """A bag."""
        return Bag(self.of)


@dataclass(frozen=True, slots=True)
class Apply:
    """A function and its arguments."""

    function: Function
    arguments: "tuple[Expression, ...]"

    @property
    def gives(self) -> Kind:
        """The function's result kind."""
        return self.function.gives


@dataclass(frozen=True, slots=True)
class Reference:
    """A variable of the policy, resolved when it is evaluated."""

    id: str
    gives: Kind


class HigherOrder:
    """Names of the higher-order functions (A.3.12), and how many of their arguments can be bags."""

    ANY_OF: Final = "any-of"
    ALL_OF: Final = "all-of"
    ANY_OF_ANY: Final = "any-of-any"
    ALL_OF_ANY: Final = "all-of-any"
    ANY_OF_ALL: Final = "any-of-all"
    ALL_OF_ALL: Final = "all-of-all"
    MAP: Final = "map"


@dataclass(frozen=True, slots=True)
class ApplyEach:
    """A higher-order function, which applies a function to values in bags."""

    name: str
    function: Function
    arguments: "tuple[Expression, ...]"

    @property
    def gives(self) -> Kind:
        """A boolean, or a bag of the inner function's results."""
        inner = self.function.gives
        return Bag(inner) if self.name == HigherOrder.MAP and isinstance(inner, DataType) else BOOLEAN


@dataclass(frozen=True, slots=True)
class ApplyPath:
    """A function that looks into the request: the number of nodes of a path, or the decision on another request."""

    name: str
    arguments: "tuple[Expression, ...]"

    @property
    def gives(self) -> Kind:
        """An integer or a boolean."""
        return WITHIN[self.name].gives


Expression: TypeAlias = PolicyLiteral | Designator | ContentSelector | Apply | ApplyEach | ApplyPath | Reference

#: higher-order functions, by id
HIGHER_ORDER: Final = {
    f"{version}{name}": name
    for version in (V1, V3)
    for name in ("any-of", "all-of", "any-of-any", "all-of-any", "any-of-all", "all-of-all", "map")
}
#: functions with other names before 3.0
_BEFORE: Final = {f"{V1}{name}": function for name, function in WITHIN.items() if name.startswith("xpath-")}


def function_of(function_id: str) -> Function:
    """Return a function that can be applied to values. Raises `MalformedError` (`xacml.function`)."""
    found = FUNCTIONS.get(function_id) or _BEFORE.get(function_id)
    if found is None:
        words = sorted({one.rpartition(":")[2] for one in FUNCTIONS})
        hint = did_you_mean(function_id.rpartition(":")[2], words)
        raise MalformedError("xacml.function", f"`{function_id[:120]}` is not a function of XACML 3.0", hint=hint)
    return found


def apply(function_id: str, arguments: Sequence["Expression | Function"]) -> "Apply | ApplyEach | ApplyPath":
    """Return a function applied to arguments; one of them can be a function.

    Raises `MalformedError` (`xacml.function`, `xacml.arguments`; `xacml.value` for a pattern that can match nothing).
    """
    if function_id in HIGHER_ORDER:
        return _apply_each(HIGHER_ORDER[function_id], arguments)
    plain = _plain(arguments, function_id)
    function = function_of(function_id)
    kinds = tuple(argument.gives for argument in plain)
    if not function.accepts(kinds):
        raise _unsuitable(function.name, kinds)
    if function.check is not None and isinstance(plain[0], PolicyLiteral):
        function.check(plain[0].value)
    return ApplyPath(function.name, plain) if function.within else Apply(function, plain)


def _plain(arguments: Sequence["Expression | Function"], name: str) -> tuple[Expression, ...]:
    if any(isinstance(argument, Function) for argument in arguments):
        raise MalformedError("xacml.arguments", f"`{name}` does not take a function")
    return tuple(argument for argument in arguments if not isinstance(argument, Function))


def _apply_each(name: str, arguments: Sequence["Expression | Function"]) -> ApplyEach:
    if not arguments or not isinstance(arguments[0], Function):
        raise MalformedError("xacml.arguments", f"the first argument of `{name}` must be a function")
    function, rest = arguments[0], _plain(arguments[1:], name)
    kinds = tuple(argument.gives for argument in rest)
    bags = sum(isinstance(kind, Bag) for kind in kinds)
    inner = tuple(kind.of if isinstance(kind, Bag) else kind for kind in kinds)
    one_bag = name in (HigherOrder.ANY_OF, HigherOrder.ALL_OF, HigherOrder.MAP)
    two_bags = name in (HigherOrder.ALL_OF_ANY, HigherOrder.ANY_OF_ALL, HigherOrder.ALL_OF_ALL)
    wrong = (one_bag and bags != 1) or (two_bags and (bags != 2 or len(rest) != 2)) or not rest
    truth = name == HigherOrder.MAP or function.gives is BOOLEAN
    if wrong or not truth or not function.accepts(inner) or isinstance(function.gives, Bag):
        raise _unsuitable(f"{name} of {function.name}", kinds)
    return ApplyEach(name, function, rest)


def _unsuitable(name: str, kinds: Sequence[Kind]) -> MalformedError:
    return MalformedError("xacml.arguments", f"`{name}` cannot be applied to {kinds_text(kinds)}")


_VERSION: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,15}", re.ASCII)
_PATTERN: Final = re.compile(r"(([0-9]{1,9}|\*)\.){0,15}([0-9]{1,9}|\*|\+)", re.ASCII)


class RuleEffect(StrEnum):
    """The effect of a rule."""

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
"""A conjunction of disjunctions of conjunctions; an empty target matches everything."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """An attribute of an obligation; a bag gives as many values as it has."""

    id: str
    expression: Expression
    category: str | None = None
    issuer: str | None = None


@dataclass(frozen=True, slots=True)
class Duty:
    """An obligation, which is required, or an advice, which is optional: for which effect, with which attributes."""

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
    """A rule: if its target matches and its condition is true, its effect."""

    id: str
    effect: RuleEffect
    target: Target = ()
    condition: Expression | None = None
    duties: Duties = Duties()
    description: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules, and their combining algorithm."""

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
    """A reference to a policy or a policy set by id and acceptable versions."""

    id: str
    to_set: bool
    version: str | None = None
    earliest: str | None = None
    latest: str | None = None

    def __post_init__(self) -> None:
        for pattern in (self.version, self.earliest, self.latest):
            if pattern is not None and not _PATTERN.fullmatch(pattern):
                raise MalformedError("xacml.version", f"`{pattern[:80]}` is not a version pattern")

    def suits(self, version: str) -> bool:
        """Return whether a version is acceptable (section 5.13)."""
        if self.version is not None and not _like(version, self.version):
            return False
        key = version_key(version)
        if self.earliest is not None and not _like(version, self.earliest) and key < version_key(self.earliest):
            return False
        return self.latest is None or _like(version, self.latest) or key <= version_key(self.latest)


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Policies, policy sets and references, and their combining algorithm."""

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
    """Return a name for one version of a policy set, to detect cycles: another version is another set."""
    return f"{root.version} {root.id}"


def inner_policies(root: Root) -> Iterator[Root]:
    """Yield a policy and all policies in it, outermost first."""
    yield root
    for member in root.members if isinstance(root, PolicySet) else ():
        if not isinstance(member, PolicyReference):
            yield from inner_policies(member)


def check_issuers(root: Root) -> None:
    """Check that a policy has no issuer, so that whoever loads it is responsible for it (section 5.2).

    XACML's administration profile, which decides who may issue policies, is not implemented. Raises `MalformedError`
    (`xacml.issuer`).
    """
    if root.issuer is not None:
        raise MalformedError(
            "xacml.issuer",
            f"policy `{root.id[:120]}` has an issuer, and Penstock cannot check whether it may issue it",
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
    """Return the sort key of a version; for a pattern, its numbers up to the first wildcard."""
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
    """Yield the attributes that policies, or parts of them, can use, without those of referenced policies."""
    return parts_of(part, Designator)


def parts_of(part: object, kind: type[T]) -> Iterator[T]:
    """Yield the parts of this kind in policies, or parts of them, without those of referenced policies."""
    if isinstance(part, kind):
        yield part
    elif isinstance(part, Mapping):
        yield from chain.from_iterable(parts_of(one, kind) for one in part.values())
    elif isinstance(part, Sequence) and not isinstance(part, str | bytes):
        yield from chain.from_iterable(parts_of(one, kind) for one in part)
    elif is_dataclass(part):
        yield from chain.from_iterable(parts_of(getattr(part, one.name), kind) for one in fields(part))
