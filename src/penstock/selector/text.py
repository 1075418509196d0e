"""Write a syntax tree as text that parses back to an equal tree."""

import re
from datetime import UTC, datetime
from typing import Final

from penstock.model.values import Scalar
from penstock.selector.ast import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Compare,
    Concat,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Node,
    Not,
    Or,
)

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
    """Say whether a bare word is a keyword; only ASCII is, since `str.upper` maps other letters onto it."""
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
    """Write a tree; operands that are no single word or call for it are put in parentheses."""
    match node:
        case Attribute(name):
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
    return render(node) if isinstance(node, Attribute | Literal) else f"({render(node)})"


def _loose(node: Node) -> str:
    # A predicate binds tighter than NOT, AND and OR. The AND of BETWEEN does not count as one.
    compound = isinstance(node, And | Or) or (
        isinstance(node, Not) and not isinstance(node.operand, Between | In | Like | IsNull)
    )
    return f"({render(node)})" if compound else render(node)
