"""Conditions taken apart, on the side where they are TRUE or on the side where they are FALSE."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from penstock.selector.ast import (
    And,
    Attribute,
    Between,
    Compare,
    Comparison,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Term,
)

Part = TypeVar("Part")


class Sides(ABC, Generic[Part]):
    """Reads a condition as a union of parts: NOT changes sides, and on the other side AND is OR."""

    def read(self, node: Condition, *, wanted: bool) -> list[Part]:
        """Return the parts on which a condition is TRUE, or with `wanted=False` those on which it is FALSE."""
        return self.parts(node, wanted=wanted)

    def parts(self, node: Condition, *, wanted: bool) -> list[Part]:
        """Return what `read` returns, unless that has more to do."""
        match node:
            case Literal(value):
                return [self.everything()] if value is wanted else []
            case Attribute(name):
                return self.truth(name, wanted=wanted)
            case Not(operand):
                return self.read(operand, wanted=not wanted)
            case And(operands):
                return self.junction(operands, wanted=wanted, every=wanted)
            case Or(operands):
                return self.junction(operands, wanted=wanted, every=not wanted)
            case Between(value, low, high):
                bounds = (Compare(Comparison.GE, value, low), Compare(Comparison.LE, value, high))
                return self.junction(bounds, wanted=wanted, every=wanted)
            case Compare():
                return self.comparison(node, wanted=wanted)
            case In():
                return self.membership(node, wanted=wanted)
            case Like():
                return self.like(node, wanted=wanted)
            case IsNull(value):
                return self.null(value, wanted=wanted)

    @abstractmethod
    def everything(self) -> Part:
        """Return the part that excludes nothing."""

    @abstractmethod
    def truth(self, name: str, *, wanted: bool) -> list[Part]:
        """Return where an attribute that is a condition itself has that value."""

    @abstractmethod
    def junction(self, operands: Iterable[Condition], *, wanted: bool, every: bool) -> list[Part]:
        """Return where every, or some, of the operands is on the wanted side."""

    @abstractmethod
    def comparison(self, node: Compare, *, wanted: bool) -> list[Part]:
        """Return where a comparison is on the wanted side."""

    @abstractmethod
    def membership(self, node: In, *, wanted: bool) -> list[Part]:
        """Return where a value is, or is not, among some."""

    @abstractmethod
    def like(self, node: Like, *, wanted: bool) -> list[Part]:
        """Return where a text fits a pattern, or does not."""

    @abstractmethod
    def null(self, value: Term, *, wanted: bool) -> list[Part]:
        """Return where a term is null, or is not."""
