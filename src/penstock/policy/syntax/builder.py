"""Build policies from what the readers of XML, JSON and text have parsed, and check them.

A reader parses its own form into the nodes of this module. It refuses what its form does not have, and resolves names
that only its form has. `Builder` does the rest for all forms: it reads values, checks kinds of arguments, variables,
versions and combining algorithms, and says in each error where it is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeAlias

from penstock.errors import LimitError, MalformedError
from penstock.policy.combining import policy_algorithm, rule_algorithm
from penstock.policy.language.datatypes import BOOLEAN, Bag, DataType, Function, Kind, read_value
from penstock.policy.language.policies import (
    HIGHER_ORDER,
    Apply,
    ApplyEach,
    ApplyPath,
    Assignment,
    ContentSelector,
    Designator,
    Duties,
    Duty,
    Expression,
    Match,
    Policy,
    PolicyLiteral,
    PolicyReference,
    PolicySet,
    Reference,
    Root,
    Rule,
    RuleEffect,
    Target,
    apply,
    function_of,
)
from penstock.policy.limits import PolicyLimits


class Place(Protocol):
    """The place of a node in its document."""

    def located(self, error: MalformedError) -> MalformedError:
        """Return an error with this place; the same error if it has a place already."""


@contextmanager
def at(place: Place) -> Iterator[None]:
    """Add the place to errors."""
    try:
        yield
    except MalformedError as error:
        located = place.located(error)
        if located is error:
            raise
        raise located from None


def placed(error: MalformedError, where: str, **fields: object) -> MalformedError:
    """Return an error whose message begins with the place, and which has fields for it."""
    kind = LimitError if isinstance(error, LimitError) else MalformedError
    return kind(error.code, f"{where}: {error.message}", hint=error.hint, **{**error.fields, **fields})


def check_depth(depth: int, limits: PolicyLimits) -> None:
    """Check the nesting depth. Raises `LimitError` (`xacml.limit`)."""
    if depth > limits.policy_depth:
        raise LimitError("xacml.limit", f"the policy is nested more than {limits.policy_depth} deep")


# --- what readers parse into ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ValueNode:
    """A value as written, and its type; paths are literals."""

    at: Place
    text: str
    of: DataType


@dataclass(frozen=True, slots=True)
class VariableNode:
    """A variable of the enclosing policy."""

    at: Place
    name: str


@dataclass(frozen=True, slots=True)
class ApplyNode:
    """A function, by its id, and its arguments."""

    at: Place
    function: str
    arguments: "tuple[Term | Function, ...]"


@dataclass(frozen=True, slots=True)
class OperatorNode:
    """Operands with the same operator between them; their types determine the function."""

    #: the place of each operator; there is one fewer than operands
    places: tuple[Place, ...]
    operands: "tuple[Term, ...]"
    #: the function for the type of the first operand
    function: Callable[[Kind], Function]
    #: `in`: the second operand is a bag
    bag_last: bool = False


@dataclass(frozen=True, slots=True)
class BagNode:
    """Values in a list; the type of the first one determines the bag function."""

    at: Place
    values: "tuple[Term, ...]"
    function: Callable[[Kind], Function]


AttributeTerm: TypeAlias = Designator | ContentSelector
Term: TypeAlias = ValueNode | PolicyLiteral | AttributeTerm | VariableNode | ApplyNode | OperatorNode | BagNode


@dataclass(frozen=True, slots=True)
class MatchNode:
    """A function, by its id, the value that it takes, and an attribute of which one value must match."""

    at: Place
    function: str
    value: ValueNode | PolicyLiteral
    attribute: AttributeTerm


TargetNode: TypeAlias = tuple[tuple[tuple[MatchNode, ...], ...], ...]
"""As `Target`."""


@dataclass(frozen=True, slots=True)
class AssignmentNode:
    """An attribute of an obligation."""

    at: Place
    id: str
    expression: Term
    category: str | None = None
    issuer: str | None = None


@dataclass(frozen=True, slots=True)
class DutyNode:
    """An obligation, which is required, or an advice, which is not."""

    id: str
    on: RuleEffect
    required: bool
    assignments: tuple[AssignmentNode, ...]


@dataclass(frozen=True, slots=True)
class RuleNode:
    """A rule."""

    at: Place
    id: str
    effect: RuleEffect
    target: TargetNode = ()
    condition: tuple[Place, Term] | None = None
    duties: tuple[DutyNode, ...] = ()
    description: str = ""


@dataclass(frozen=True, slots=True)
class DefinitionNode:
    """A variable and its expression."""

    at: Place
    name: str
    expression: Term


@dataclass(frozen=True, slots=True)
class ReferenceNode:
    """A reference to a policy, or a policy set, that is elsewhere."""

    at: Place
    id: str
    to_set: bool
    version: str | None = None
    earliest: str | None = None
    latest: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyNode:
    """A policy, which has rules and definitions, or a policy set, which has members."""

    at: Place
    id: str
    version: str
    combining: str
    target: TargetNode = ()
    rules: tuple[RuleNode, ...] = ()
    definitions: tuple[DefinitionNode, ...] = ()
    #: `None` for a policy
    members: "tuple[PolicyNode | ReferenceNode, ...] | None" = None
    duties: tuple[DutyNode, ...] = ()
    issuer: str | None = None
    description: str = ""
    #: the place of the combining algorithm, if it is not that of the policy
    combining_at: Place | None = None


# --- building ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Builder:
    """Builds policies from nodes. Raises `MalformedError` (`xacml.*`, `combining.*`) and `LimitError` (`xacml.limit`).

    A variable can be used before it is defined; a form that does not allow this refuses it while reading.
    """

    limits: PolicyLimits
    #: in the text form, a bag can be used as one value: then it must have exactly one
    unwraps: Callable[[DataType], Function] | None = None
    _definitions: Mapping[str, DefinitionNode] = field(default_factory=dict)
    _variables: dict[str, Expression] = field(default_factory=dict)
    #: the depth of each variable's expression, including referenced variables
    _depths: dict[str, int] = field(default_factory=dict)
    #: variables that are being built, to detect cycles
    _open: list[str] = field(default_factory=list)

    def root(self, node: PolicyNode) -> Root:
        """Return the policy or the policy set of a node."""
        with at(node.at):
            with at(node.combining_at or node.at):
                (rule_algorithm if node.members is None else policy_algorithm)(node.combining)
            self._define(node.definitions)
            target, duties = self._target(node.target), self._duties(node.duties)
            if node.members is None:
                rules, variables = tuple(map(self._rule, node.rules)), MappingProxyType(self._variables)
                return Policy(
                    node.id, node.version, node.combining, rules, target, variables, duties, node.issuer,
                    node.description,
                )  # fmt: skip
            members = tuple(map(self._member, node.members))
            return PolicySet(
                node.id, node.version, node.combining, members, target, duties, node.issuer, node.description
            )

    def _member(self, node: PolicyNode | ReferenceNode) -> Root | PolicyReference:
        if isinstance(node, PolicyNode):
            return self.root(node)
        with at(node.at):
            return PolicyReference(node.id, node.to_set, node.version, node.earliest, node.latest)

    def _rule(self, node: RuleNode) -> Rule:
        with at(node.at):
            condition = None if node.condition is None else self._condition(*node.condition)
            target, duties = self._target(node.target), self._duties(node.duties)
            return Rule(node.id, node.effect, target, condition, duties, node.description)

    def _condition(self, place: Place, term: Term) -> Expression:
        with at(place):
            found = self._one(self._expression(term))
            if found.gives is not BOOLEAN:
                raise MalformedError("xacml.arguments", f"a condition must be a boolean, not {found.gives}")
            return found

    # --- targets, obligations and advice --------------------------------------------------------------------------

    def _target(self, node: TargetNode) -> Target:
        return tuple(tuple(tuple(map(self._match, all_of)) for all_of in any_of) for any_of in node)

    def _match(self, node: MatchNode) -> Match:
        with at(node.at):
            function, literal, attribute = function_of(node.function), self._literal(node.value), node.attribute
            if not function.accepts((literal.gives, attribute.of)) or function.gives is not BOOLEAN:
                message = f"`{function.name}` does not match {attribute.of} with {literal.gives}"
                raise MalformedError("xacml.arguments", message)
            return Match(function, literal.value, literal.gives, attribute)

    def _duties(self, nodes: Iterable[DutyNode]) -> Duties:
        found: dict[bool, list[Duty]] = {True: [], False: []}
        for node in nodes:
            found[node.required].append(Duty(node.id, node.on, tuple(map(self._assignment, node.assignments))))
        return Duties(tuple(found[True]), tuple(found[False]))

    def _assignment(self, node: AssignmentNode) -> Assignment:
        with at(node.at):
            return Assignment(node.id, self._expression(node.expression), node.category, node.issuer)

    # --- variables --------------------------------------------------------------------------------------------------

    def _define(self, nodes: tuple[DefinitionNode, ...]) -> None:
        """Build the variables of a policy; those of an earlier policy are dropped."""
        self._definitions, self._variables, self._depths = {}, {}, {}
        for node in nodes:
            if node.name in self._definitions:
                with at(node.at):
                    raise MalformedError("xacml.variable", "two variables have the same name")
            self._definitions[node.name] = node
        for node in nodes:
            self._variable(node.name)

    def _variable(self, name: str) -> Expression:
        known = self._variables.get(name)
        if known is not None:
            return known
        if name in self._open:
            raise MalformedError("xacml.variable", f"variable `{name[:80]}` needs itself")
        if name not in self._definitions:
            raise MalformedError("xacml.variable", f"no variable is called `{name[:80]}`")
        self._open.append(name)
        check_depth(len(self._open), self.limits)
        node = self._definitions[name]
        with at(node.at):
            found = self._expression(node.expression)
        self._variables[name], self._depths[name] = found, self._depth(found)
        self._open.pop()
        return found

    def _depth(self, expression: Expression) -> int:
        match expression:
            case Apply(_, arguments) | ApplyPath(_, arguments) | ApplyEach(_, _, arguments):
                return 1 + max(map(self._depth, arguments), default=0)
            case Reference(name):
                return 1 + self._depths[name]
        return 1

    # --- expressions ------------------------------------------------------------------------------------------------

    def _expression(self, term: Term) -> Expression:
        """Return the expression of a term, and check its depth including variables."""
        found = self._term(term)
        check_depth(self._depth(found), self.limits)
        return found

    def _term(self, term: Term) -> Expression:
        match term:
            case ValueNode() | PolicyLiteral():
                return self._literal(term)
            case VariableNode(place, name):
                with at(place):
                    return Reference(name, self._variable(name).gives)
            case ApplyNode(place, function, arguments):
                built = [one if isinstance(one, Function) else self._term(one) for one in arguments]
                with at(place):
                    return apply(function, self._suited(function, built))
            case OperatorNode():
                return self._operator(term)
            case BagNode(place, values, function_for):
                inside = [self._one(self._term(one)) for one in values]
                with at(place):
                    return apply(function_for(inside[0].gives).id, inside)
        return term

    def _literal(self, node: ValueNode | PolicyLiteral) -> PolicyLiteral:
        if isinstance(node, PolicyLiteral):
            return node
        with at(node.at):
            return PolicyLiteral(read_value(node.text, node.of), node.of)

    def _one(self, expression: Expression) -> Expression:
        """Return an expression for one value, if this form converts bags."""
        kind = expression.gives
        if self.unwraps is None or not isinstance(kind, Bag):
            return expression
        return apply(self.unwraps(kind.of).id, [expression])

    def _suited(self, function_id: str, arguments: list[Expression | Function]) -> list[Expression | Function]:
        """Convert arguments to the kinds of a function."""
        if self.unwraps is None or function_id in HIGHER_ORDER:
            return arguments
        function = function_of(function_id)
        return [
            self._one(one) if not isinstance(one, Function) and isinstance(function.kind_at(place), DataType) else one
            for place, one in enumerate(arguments)
        ]

    def _operator(self, node: OperatorNode) -> Expression:
        first = self._one(self._term(node.operands[0]))
        rest = [self._term(one) for one in node.operands[1:]]
        if not node.bag_last:
            rest = [self._one(one) for one in rest]
        with at(node.places[0]):
            function = node.function(first.gives).id
            found = apply(function, [first, rest[0]])
        for place, other in zip(node.places[1:], rest[1:], strict=True):
            # One by one, so that an error names the place of its operator.
            with at(place):
                apply(function, [first, other])
        return found if len(rest) == 1 else apply(function, [first, *rest])
