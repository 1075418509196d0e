"""The syntax tree of a selector: frozen values, compared without their source positions.

Terms have a value, conditions have a truth value; an attribute or a literal can be either. `NOT IN`, `NOT LIKE`,
`NOT BETWEEN` and `IS NOT NULL` are `Not` around the plain form, so that there is one way to say each thing. A
negative number is a literal, not a `Negate`.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TypeAlias

from penstock.errors import LimitError
from penstock.model.values import Kind, Scalar, kind_of
from penstock.selector.limits import SelectorLimits


class ComparisonOperator(StrEnum):
    """A comparison operator, as it is written."""

    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    @property
    def flipped(self) -> "ComparisonOperator":
        """The operator with its operands exchanged."""
        return _FLIPPED[self]

    @property
    def negated(self) -> "ComparisonOperator":
        """The operator that holds exactly where this one does not, both operands having a value."""
        return _NEGATED[self]


_FLIPPED = {
    ComparisonOperator.EQ: ComparisonOperator.EQ,
    ComparisonOperator.NE: ComparisonOperator.NE,
    ComparisonOperator.LT: ComparisonOperator.GT,
    ComparisonOperator.LE: ComparisonOperator.GE,
    ComparisonOperator.GT: ComparisonOperator.LT,
    ComparisonOperator.GE: ComparisonOperator.LE,
}
_NEGATED = {
    ComparisonOperator.EQ: ComparisonOperator.NE,
    ComparisonOperator.NE: ComparisonOperator.EQ,
    ComparisonOperator.LT: ComparisonOperator.GE,
    ComparisonOperator.LE: ComparisonOperator.GT,
    ComparisonOperator.GT: ComparisonOperator.LE,
    ComparisonOperator.GE: ComparisonOperator.LT,
}


class Operator(StrEnum):
    """An arithmetic operator, as it is written."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"


def _position() -> int:
    return field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AttributeReference:
    """The value of an attribute; as a condition, a boolean attribute."""

    name: str
    at: int = _position()


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. The kind is part of the value: 1, 1.0 and TRUE are three constants. Null has none."""

    value: Scalar
    kind: Kind | None
    at: int = _position()


@dataclass(frozen=True, slots=True)
class Negate:
    """Unary minus."""

    operand: "Term"
    at: int = _position()


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`left + right` and its three siblings."""

    operator: Operator
    left: "Term"
    right: "Term"
    at: int = _position()


@dataclass(frozen=True, slots=True)
class Concat:
    """`left || right`."""

    left: "Term"
    right: "Term"
    at: int = _position()


@dataclass(frozen=True, slots=True)
class Compare:
    """`left = right` and its five siblings."""

    operator: ComparisonOperator
    left: "Term"
    right: "Term"
    at: int = _position()


@dataclass(frozen=True, slots=True)
class Between:
    """`value BETWEEN low AND high`, both ends included."""

    value: "Term"
    low: "Term"
    high: "Term"
    at: int = _position()


@dataclass(frozen=True, slots=True)
class In:
    """`value IN (items)`, at least one item."""

    value: "Term"
    items: tuple["Term", ...]
    at: int = _position()


@dataclass(frozen=True, slots=True)
class Like:
    """`value LIKE 'pattern' ESCAPE 'e'`."""

    value: "Term"
    pattern: str
    escape: str | None = None
    at: int = _position()


@dataclass(frozen=True, slots=True)
class IsNull:
    """`value IS NULL`."""

    value: "Term"
    at: int = _position()


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT operand`."""

    operand: "Condition"
    at: int = _position()


@dataclass(frozen=True, slots=True)
class And:
    """Two or more conditions, none of them an `And`."""

    operands: tuple["Condition", ...]
    at: int = _position()


@dataclass(frozen=True, slots=True)
class Or:
    """Two or more conditions, none of them an `Or`."""

    operands: tuple["Condition", ...]
    at: int = _position()


Term: TypeAlias = AttributeReference | Literal | Negate | Arithmetic | Concat
Condition: TypeAlias = AttributeReference | Literal | Compare | Between | In | Like | IsNull | Not | And | Or
Node: TypeAlias = Term | Condition


def literal(value: Scalar, at: int = 0) -> Literal:
    """Wrap a constant; a timestamp is kept in the form that it was given, minus zero becomes zero.

    Raises `MalformedError` (`value.kind`) for anything that is not an attribute value.
    """
    if value is None:
        return Literal(None, None, at)
    # No operator of the language tells -0.0 from 0.0, and 0.0 is the one that reads back as it was written.
    return Literal(0.0 if isinstance(value, float) and value == 0 else value, kind_of(value), at)


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly below."""
    match node:
        case Negate(operand) | Not(operand):
            return (operand,)
        case Arithmetic(_, left, right) | Concat(left, right) | Compare(_, left, right):
            return (left, right)
        case Between(value, low, high):
            return (value, low, high)
        case In(value, items):
            return (value, *items)
        case Like(value) | IsNull(value):
            return (value,)
        case And(operands) | Or(operands):
            return operands
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and everything below, without recursion."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(children(current))


def check_size(root: Node, limits: SelectorLimits) -> None:
    """Check depth and number of nodes, without recursion, so that everything after may recurse.

    Raises `LimitError` (`selector.limit`).
    """
    pending = [(root, 1)]
    count = 0
    while pending:
        node, depth = pending.pop()
        count += 1
        if depth > limits.selector_depth:
            raise too_large("depth", limits.selector_depth, "put fewer levels of operators into one selector")
        if count > limits.selector_nodes:
            raise too_large("nodes", limits.selector_nodes, "split the selector")
        pending.extend((child, depth + 1) for child in children(node))


def too_large(what: str, bound: int, hint: str) -> LimitError:
    """Return the error for a selector beyond one of its limits."""
    return LimitError("selector.limit", f"the selector exceeds its limit of {bound} ({what})", hint=hint, limit=what)


def map_attributes(node: Node, change: Callable[[AttributeReference], Term]) -> Node:
    """Return the tree with each attribute replaced by what `change` makes of it."""

    def term(part: Term) -> Term:
        match part:
            case AttributeReference():
                return change(part)
            case Negate(operand):
                return replace(part, operand=term(operand))
            case Arithmetic(_, left, right) | Concat(left, right):
                return replace(part, left=term(left), right=term(right))
            case Literal():
                return part

    def condition(part: Condition) -> Condition:
        match part:
            case AttributeReference():
                changed = change(part)
                return changed if isinstance(changed, AttributeReference | Literal) else part
            case Compare(_, left, right):
                return replace(part, left=term(left), right=term(right))
            case Between(value, low, high):
                return replace(part, value=term(value), low=term(low), high=term(high))
            case In(value, items):
                return replace(part, value=term(value), items=tuple(term(item) for item in items))
            case Like(value) | IsNull(value):
                return replace(part, value=term(value))
            case Not(operand):
                return replace(part, operand=condition(operand))
            case And(operands) | Or(operands):
                return replace(part, operands=tuple(condition(operand) for operand in operands))
            case Literal():
                return part

    if isinstance(node, Negate | Arithmetic | Concat):
        return term(node)
    return condition(node)


def flatten(kind: type[And] | type[Or], operands: list[Condition], at: int) -> Condition:
    """Join conditions into one, taking in the operands of nested ones of the same kind."""
    flat: list[Condition] = []
    for operand in operands:
        if isinstance(operand, kind):
            flat.extend(operand.operands)
        else:
            flat.append(operand)
    return flat[0] if len(flat) == 1 else kind(tuple(flat), at)


# ----------------------------------------------------------------------------------------------------------------------
# Write a syntax tree as text that parses back to an equal tree.


#: Words that are never the name of an attribute, unless quoted.
RESERVED: Final = frozenset(
    [
        *("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"),
        # These open forms that are refused; reserving them lets the refusal say so.
        *("CASE", "CAST", "EXISTS", "SELECT"),
    ]
)

_BARE: Final = re.compile(r"[^\W\d]\w*")


def reserved(word: str) -> bool:
    """Return whether a bare word is a keyword; only ASCII is, since `str.upper` maps other letters onto it."""
    return word.isascii() and word.upper() in RESERVED


def write_name(name: str) -> str:
    """Write the name of an attribute, quoted where it must be."""
    if _BARE.fullmatch(name) and not reserved(name):
        return name
    return '"' + name.replace('"', '""') + '"'


def write_value(value: Scalar) -> str:
    """Write a constant."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case datetime():
            return f"TIMESTAMP '{value.astimezone(UTC).isoformat(sep=' ')}'"
        case _:
            return repr(value)


def render(node: Node) -> str:
    """Write a tree; put operands in parentheses unless they are a single word or need none."""
    match node:
        case AttributeReference(name):
            return write_name(name)
        case Literal(value):
            return write_value(value)
        case Negate(operand):
            # `--` would start a comment.
            return f"-({render(operand)})" if isinstance(operand, Negate | Literal) else f"-{_tight(operand)}"
        case Arithmetic(operator, left, right):
            return f"{_tight(left)} {operator} {_tight(right)}"
        case Concat(left, right):
            return f"{_tight(left)} || {_tight(right)}"
        case Compare(comparison, left, right):
            return f"{render(left)} {comparison} {render(right)}"
        case Not(Between() | In() | Like() | IsNull() as predicate):
            return _predicate(predicate, "NOT ")
        case Between() | In() | Like() | IsNull():
            return _predicate(node, "")
        case Not(operand):
            return f"NOT {_loose(operand)}"
        case And(operands):
            return " AND ".join(_loose(operand) for operand in operands)
        case Or(operands):
            return " OR ".join(_loose(operand) for operand in operands)


def _predicate(node: Between | In | Like | IsNull, negation: str) -> str:
    value = render(node.value)
    match node:
        case Between(_, low, high):
            return f"{value} {negation}BETWEEN {render(low)} AND {render(high)}"
        case In(_, items):
            return f"{value} {negation}IN ({', '.join(render(item) for item in items)})"
        case Like(_, pattern, escape):
            suffix = "" if escape is None else f" ESCAPE {write_value(escape)}"
            return f"{value} {negation}LIKE {write_value(pattern)}{suffix}"
        case IsNull():
            return f"{value} IS {negation}NULL"


def _tight(node: Node) -> str:
    return render(node) if isinstance(node, AttributeReference | Literal) else f"({render(node)})"


def _loose(node: Node) -> str:
    # A predicate binds tighter than NOT, AND and OR. The AND of BETWEEN does not count as one.
    compound = isinstance(node, And | Or) or (
        isinstance(node, Not) and not isinstance(node.operand, Between | In | Like | IsNull)
    )
    return f"({render(node)})" if compound else render(node)
