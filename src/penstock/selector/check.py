"""Check a selector against the kinds of its attributes: SQL's static typing, with five kinds.

Kinds never mix, except integers with floats. Booleans can be tested and compared with = and <> only; timestamps
can be compared; numbers can be computed with; strings can be compared, matched and joined. NULL goes everywhere.
"""

from typing import Final, NoReturn

from penstock.errors import SelectorError
from penstock.model.values import Kind, Schema
from penstock.selector.ast import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Compare,
    Comparison,
    Concat,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Term,
)

NUMBERS: Final = frozenset([Kind.INTEGER, Kind.FLOAT])

_EQUALITY: Final = frozenset([Comparison.EQ, Comparison.NE])


def check_condition(root: Condition, schema: Schema, text: str, *, null_missing: bool) -> None:
    """Check a tree whose positions refer to `text`.

    Raises `SelectorError`: `selector.unknown-attribute`, `selector.type`.
    """
    _Checker(schema, text, null_missing=null_missing).condition(root)


class _Checker:
    def __init__(self, schema: Schema, text: str, *, null_missing: bool) -> None:
        self.schema = schema
        self.text = text
        self.null_missing = null_missing

    def condition(self, node: Condition) -> None:
        match node:
            case Attribute() | Literal():
                kind = self.term(node)
                if kind not in (Kind.BOOLEAN, None):
                    self.fail(
                        node, f"{kind.phrase} stands where a condition must", "compare it, or use a boolean attribute"
                    )
            case Compare(operator, left, right):
                self.comparable(operator, left, right)
            case Between(value, low, high):
                self.comparable(Comparison.GE, value, low)
                self.comparable(Comparison.LE, value, high)
            case In(value, items):
                for item in items:
                    self.comparable(Comparison.EQ, value, item)
            case Like(value):
                self.expect(value, frozenset([Kind.STRING]), "LIKE matches strings")
            case IsNull(value):
                self.term(value)
            case Not(operand):
                self.condition(operand)
            case And(operands) | Or(operands):
                for operand in operands:
                    self.condition(operand)

    def comparable(self, operator: Comparison, left: Term, right: Term) -> None:
        first, second = self.term(left), self.term(right)
        if Kind.BOOLEAN in (first, second) and operator not in _EQUALITY:
            culprit = left if first is Kind.BOOLEAN else right
            self.fail(culprit, "a boolean has no order", "compare it with = or <>, or use it as a condition")
        if first is None or second is None or first is second or {first, second} <= NUMBERS:
            return
        self.fail(
            right, f"{first.phrase} cannot be compared with {second.phrase}", f"compare it with {first.phrase} or NULL"
        )

    def term(self, node: Term) -> Kind | None:
        """Return the kind of a term; None where it is always null."""
        match node:
            case Literal(_, kind):
                return kind
            case Attribute(name):
                return self.attribute(node, name)
            case Negate(operand):
                return self.expect(operand, NUMBERS, "minus takes a number")
            case Arithmetic(operator, left, right):
                hint = f"{operator} takes numbers" + ("; strings are joined with ||" if operator == "+" else "")
                kinds = (self.expect(left, NUMBERS, hint), self.expect(right, NUMBERS, hint))
                return None if None in kinds else Kind.FLOAT if Kind.FLOAT in kinds else Kind.INTEGER
            case Concat(left, right):
                strings = frozenset([Kind.STRING])
                kinds = (
                    self.expect(left, strings, "|| joins strings"),
                    self.expect(right, strings, "|| joins strings"),
                )
                return None if None in kinds else Kind.STRING

    def attribute(self, node: Attribute, name: str) -> Kind | None:
        spec = self.schema.get(name)
        if spec is not None:
            return spec.kind
        if self.null_missing:
            return None
        known = ", ".join(sorted(self.schema)[:12])
        raise SelectorError(
            "selector.unknown-attribute",
            f"there is no attribute `{name}`",
            text=self.text,
            position=node.at,
            hint=f"the attributes are: {known}" if known else "there are no attributes here",
            attribute=name,
        )

    def expect(self, node: Term, kinds: frozenset[Kind], hint: str) -> Kind | None:
        kind = self.term(node)
        if kind is not None and kind not in kinds:
            self.fail(node, f"{kind.phrase} does not go here", hint)
        return kind

    def fail(self, node: Term, message: str, hint: str) -> NoReturn:
        raise SelectorError("selector.type", message, text=self.text, position=node.at, hint=hint)
