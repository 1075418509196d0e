"""Which kind each attribute of a selector will have, as far as the schema or the selector itself tells.

This is a guess that steers code generation, no type check: code that meets another kind at run time says so.
"""

from enum import Enum, auto
from typing import TypeAlias

from penstock.model.values import Kind, Schema
from penstock.selector.ast import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Compare,
    Concat,
    Condition,
    In,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Term,
    walk,
)


class Loose(Enum):
    """What may be said of a term whose kind is not known."""

    NUMBER = auto()
    ANYTHING = auto()


Expected: TypeAlias = Kind | Loose


def expect_attributes(root: Condition, schema: Schema | None) -> dict[str, Expected]:
    """Return what to expect of each attribute: from the schema, else from how it is used."""
    guesses: dict[str, Expected] = {}
    if schema is not None:
        guesses.update({name: spec.kind for name, spec in schema.items()})

    def note(term: Term, expected: Expected) -> None:
        if isinstance(term, Attribute) and expected is not Loose.ANYTHING:
            guesses.setdefault(term.name, expected)

    for node in walk(root):
        match node:
            case Compare(_, left, right):
                note(left, _usage(right))
                note(right, _usage(left))
            case Between(value, low, high):
                note(value, _usage(low))
                note(value, _usage(high))
            case In(value, items):
                for item in items:
                    note(value, _usage(item))
            case Like(value):
                note(value, Kind.STRING)
            case Concat(left, right):
                note(left, Kind.STRING)
                note(right, Kind.STRING)
            case Arithmetic(_, left, right):
                note(left, Loose.NUMBER)
                note(right, Loose.NUMBER)
            case Negate(operand):
                note(operand, Loose.NUMBER)
            case And(operands) | Or(operands):
                for operand in operands:
                    _note_condition(operand, guesses)
            case Not(operand):
                _note_condition(operand, guesses)
            case _:
                pass
    _note_condition(root, guesses)
    return guesses


def _note_condition(node: Condition, guesses: dict[str, Expected]) -> None:
    if isinstance(node, Attribute):
        guesses.setdefault(node.name, Kind.BOOLEAN)


def _usage(other: Term) -> Expected:
    """Return what a term is that is compared with `other`."""
    match other:
        case Literal(_, Kind.INTEGER | Kind.FLOAT) | Negate() | Arithmetic():
            return Loose.NUMBER
        case Literal(_, kind) if kind is not None:
            return kind
        case Concat():
            return Kind.STRING
        case _:
            return Loose.ANYTHING
