"""Turn sqlglot's tree into our own, node by node; a node that is not on the list is refused."""

from typing import Final

from sqlglot import expressions as sql

from penstock.errors import SelectorError
from penstock.model.limits import Limits
from penstock.model.values import Kind
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
    Node,
    Not,
    Operator,
    Or,
    Term,
    flatten,
    literal,
    too_large,
)
from penstock.selector.lexer import MINUS_ONLY, literal_error
from penstock.selector.like import PatternError, parse_pattern

ALLOWED: Final = "after an operand: = <> < <= > >= + - * / || AND OR [NOT] BETWEEN, IN, LIKE, IS [NOT] NULL"
_COMPARISONS: Final[dict[type[sql.Expr], Comparison]] = {
    sql.EQ: Comparison.EQ,
    sql.NEQ: Comparison.NE,
    sql.LT: Comparison.LT,
    sql.LTE: Comparison.LE,
    sql.GT: Comparison.GT,
    sql.GTE: Comparison.GE,
}
_OPERATORS: Final[dict[type[sql.Expr], Operator]] = {
    sql.Add: Operator.ADD,
    sql.Sub: Operator.SUBTRACT,
    sql.Mul: Operator.MULTIPLY,
    sql.Div: Operator.DIVIDE,
}


class Converter:
    """Converts the runs of one selector; their operands are numbers that `add` gave."""

    def __init__(self, text: str, limits: Limits) -> None:
        self.text = text
        self.limits = limits
        #: what the numbers stand for: a node, or the items of an IN list
        self.operands: list[Node | tuple[Term, ...]] = []
        self.positions: list[int] = []

    def add(self, operand: Node | tuple[Term, ...], at: int) -> str:
        """Remember an operand and return its number."""
        self.operands.append(operand)
        self.positions.append(at)
        return str(len(self.operands) - 1)

    def convert(self, tree: sql.Expr, depth: int) -> Node:
        """Convert a tree that stands `depth` levels below its run.

        Raises what `parse_condition` does, except `selector.syntax`.
        """
        if depth > self.limits.selector_depth:
            raise too_large("depth", self.limits.selector_depth, "put fewer operators into one expression")
        kind = type(tree)
        if kind in (sql.Column, sql.Literal):
            operand = self.operands[self._number(tree)]
            if isinstance(operand, tuple):
                raise self._refuse("a list goes with IN only", self.positions[self._number(tree)], ALLOWED)
            return operand
        if kind in (sql.And, sql.Or):
            return self._convert_junction(tree, And if kind is sql.And else Or, depth)
        if kind is sql.Not:
            operand = self.condition(self.convert(tree.this, depth + 1))
            return Not(operand, operand.at)
        if kind is sql.Neg:
            return self._convert_minus(self.convert(tree.this, depth + 1))
        if kind in (sql.Like, sql.Escape):
            return self._convert_like(tree, depth)
        if kind is sql.Is and isinstance(tree.expression, sql.Null):
            value = self._part(tree, "this", depth)
            return IsNull(value, value.at)
        if kind is sql.In:
            value = self._part(tree, "this", depth)
            return In(value, self._items(tree), value.at)
        if kind is sql.Between:
            value = self._part(tree, "this", depth)
            return Between(value, self._part(tree, "low", depth), self._part(tree, "high", depth), value.at)
        if kind in _COMPARISONS:
            left = self._part(tree, "this", depth)
            return Compare(_COMPARISONS[kind], left, self._part(tree, "expression", depth), left.at)
        if kind in _OPERATORS:
            left = self._part(tree, "this", depth)
            return Arithmetic(_OPERATORS[kind], left, self._part(tree, "expression", depth), left.at)
        if kind is sql.DPipe:
            left = self._part(tree, "this", depth)
            return Concat(left, self._part(tree, "expression", depth), left.at)
        raise self._refuse("this form is not part of the language", self._first_position(tree), ALLOWED)

    def _convert_junction(self, tree: sql.Expr, kind: type[And] | type[Or], depth: int) -> Condition:
        # The chain leans to the left and may be long: follow it in a loop.
        operands: list[Condition] = []
        wanted = type(tree)
        while type(tree) is wanted:
            operands.append(self.condition(self.convert(tree.expression, depth + 1)))
            tree = tree.this
        operands.append(self.condition(self.convert(tree, depth + 1)))
        operands.reverse()
        return flatten(kind, operands, operands[0].at)

    def _convert_minus(self, operand: Node) -> Term:
        # The sign belongs to the number, so that the smallest integer can be written.
        if isinstance(operand, Literal) and operand.kind in (Kind.INTEGER, Kind.FLOAT):
            value = operand.value
            if isinstance(value, int | float) and value >= 0:
                return literal(-value, operand.at)
        return Negate(self.term(operand), operand.at)

    def _convert_like(self, tree: sql.Expr, depth: int) -> Condition:
        escape: str | None = None
        if type(tree) is sql.Escape:
            escape = self._string(tree.expression, "ESCAPE takes one character in quotes")
            like = tree.this
        else:
            like = tree
        if type(like) is not sql.Like:
            raise self._refuse("ESCAPE goes with LIKE only", self._first_position(tree), ALLOWED)
        value = self._part(like, "this", depth)
        pattern = self._string(like.expression, "the pattern of LIKE is a string literal")
        try:
            parse_pattern(pattern, escape)
        except PatternError as error:
            raise SelectorError(
                "selector.pattern",
                str(error),
                text=self.text,
                position=self._first_position(like.expression),
                hint="for example LIKE '50!%%' ESCAPE '!' finds what starts with 50%",
            ) from error
        node = Like(value, pattern, escape, value.at)
        return Not(node, value.at) if like.args.get("negate") else node

    def _string(self, tree: sql.Expr, hint: str) -> str:
        if type(tree) is sql.Literal:
            operand = self.operands[self._number(tree)]
            if isinstance(operand, Literal) and isinstance(operand.value, str):
                return operand.value
        raise self._refuse("a string literal must stand here", self._first_position(tree), hint)

    def _items(self, tree: sql.Expr) -> tuple[Term, ...]:
        expressions = tree.args.get("expressions") or []
        if len(expressions) == 1 and type(expressions[0]) in (sql.Column, sql.Literal):
            operand = self.operands[self._number(expressions[0])]
            if isinstance(operand, tuple):
                return operand
        raise self._refuse("IN takes a list in parentheses", self._first_position(tree), ALLOWED)

    def _part(self, tree: sql.Expr, name: str, depth: int) -> Term:
        return self.term(self.convert(tree.args[name], depth + 1))

    def term(self, node: Node) -> Term:
        """Take a node as a value; conditions have none (SQL-92, 8.2 <comparison predicate>)."""
        if isinstance(node, Attribute | Literal | Negate | Arithmetic | Concat):
            if isinstance(node, Literal) and node.kind is Kind.INTEGER and node.value == MINUS_ONLY:
                raise literal_error(self.text, node.at, f"`{node.value}` does not fit into 64 bits")
            return node
        raise self._refuse("a condition stands where a value must", node.at, "join conditions with AND, OR and NOT")

    def condition(self, node: Node) -> Condition:
        """Take a node as a condition."""
        if isinstance(node, Negate | Arithmetic | Concat) or (
            isinstance(node, Literal) and node.kind not in (Kind.BOOLEAN, None)
        ):
            raise SelectorError(
                "selector.type",
                "a value stands where a condition must",
                text=self.text,
                position=node.at,
                hint="compare it with something, for example with = or IS NULL",
            )
        return node

    def _number(self, tree: sql.Expr) -> int:
        # The name is a number that `add` made.
        return int(tree.this if type(tree) is sql.Literal else tree.this.this)

    def _first_position(self, tree: sql.Expr) -> int:
        found = [self.positions[self._number(part)] for part in tree.find_all(sql.Column, sql.Literal)]
        return min(found, default=0)

    def _refuse(self, message: str, at: int, hint: str) -> SelectorError:
        return SelectorError("selector.unsupported", message, text=self.text, position=at, hint=hint)
