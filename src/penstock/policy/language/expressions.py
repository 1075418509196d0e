"""Expressions of policies (section 5.25 and following): values, attributes that are looked up, and functions of them.

Each knows the kind of what it gives, which is checked when a policy is read: no policy that is in force can fail
because an argument is of the wrong type.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.errors import MalformedError
from penstock.policy.language.datatypes import BOOLEAN, Bag, DataType, Function, Kind, Value
from penstock.policy.language.functions import FUNCTIONS, V1, V3, WITHIN, kinds_text
from penstock.policy.language.requests import Key, key_of


@dataclass(frozen=True, slots=True)
class PolicyLiteral:
    """A value that stands in the policy."""

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
        """Which attribute is meant, whoever has issued it."""
        return key_of(self.category, self.id, self.of)

    @property
    def gives(self) -> Bag:
        """A bag."""
        return Bag(self.of)


@dataclass(frozen=True, slots=True)
class ContentSelector:
    """What a path finds in the content of a category: a bag of values of one type."""

    category: str
    path: str
    of: DataType
    must_be_present: bool = False
    #: an attribute whose value is a path to where this one begins
    context: str | None = None
    prefixes: tuple[tuple[str, str], ...] = ()
    version: str = ""

    @property
    def gives(self) -> Bag:
        """A bag."""
        return Bag(self.of)


@dataclass(frozen=True, slots=True)
class Apply:
    """A function, and what it is applied to."""

    function: Function
    arguments: "tuple[Expression, ...]"

    @property
    def gives(self) -> Kind:
        """What the function gives."""
        return self.function.gives


@dataclass(frozen=True, slots=True)
class Reference:
    """A variable that the policy defines; what it stands for is found where it is evaluated."""

    id: str
    gives: Kind


class HigherOrder:
    """Names of the functions that take a function (A.3.12), and how many of their arguments may be bags."""

    ANY_OF: Final = "any-of"
    ALL_OF: Final = "all-of"
    ANY_OF_ANY: Final = "any-of-any"
    ALL_OF_ANY: Final = "all-of-any"
    ANY_OF_ALL: Final = "any-of-all"
    ALL_OF_ALL: Final = "all-of-all"
    MAP: Final = "map"


@dataclass(frozen=True, slots=True)
class ApplyEach:
    """A function that takes a function, which it applies to values in bags."""

    name: str
    function: Function
    arguments: "tuple[Expression, ...]"

    @property
    def gives(self) -> Kind:
        """Truth, or a bag of what the inner function gives."""
        inner = self.function.gives
        return Bag(inner) if self.name == HigherOrder.MAP and isinstance(inner, DataType) else BOOLEAN


@dataclass(frozen=True, slots=True)
class ApplyPath:
    """A function that looks into the request: how many nodes a path finds in it, or whether another is permitted."""

    name: str
    arguments: "tuple[Expression, ...]"

    @property
    def gives(self) -> Kind:
        """A number, or truth."""
        return WITHIN[self.name].gives


Expression: TypeAlias = PolicyLiteral | Designator | ContentSelector | Apply | ApplyEach | ApplyPath | Reference

#: functions that take a function, by their ids
HIGHER_ORDER: Final = {
    f"{version}{name}": name
    for version in (V1, V3)
    for name in ("any-of", "all-of", "any-of-any", "all-of-any", "any-of-all", "all-of-all", "map")
}
#: what was called otherwise before 3.0
_BEFORE: Final = {f"{V1}{name}": function for name, function in WITHIN.items() if name.startswith("xpath-")}


def function_of(function_id: str) -> Function:
    """Return a function that can be applied to values. Raises `MalformedError` (`xacml.function`)."""
    found = FUNCTIONS.get(function_id) or _BEFORE.get(function_id)
    if found is None:
        raise MalformedError("xacml.function", f"`{function_id[:120]}` is not a function of XACML 3.0")
    return found


def apply(function_id: str, arguments: Sequence["Expression | Function"]) -> "Apply | ApplyEach | ApplyPath":
    """Return a function applied to arguments, of which one may be a function.

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
        raise MalformedError("xacml.arguments", f"`{name}` takes no function")
    return tuple(argument for argument in arguments if not isinstance(argument, Function))


def _apply_each(name: str, arguments: Sequence["Expression | Function"]) -> ApplyEach:
    if not arguments or not isinstance(arguments[0], Function):
        raise MalformedError("xacml.arguments", f"the first argument of `{name}` is a function")
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
