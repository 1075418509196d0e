"""Compile a selector to a Python function with the meaning of `evaluate`, dozens of times as fast.

The generated code handles the regular case: attributes that are null or of the expected kind, and results that fit.
Whatever else turns up — a NaN, an overflow, a value of another kind — leaves it for `evaluate`, which gives the
exact answer: the error, or the truth value if another operand decides. So speed never changes the meaning.

Each AND and OR becomes one function that returns as soon as an operand decides; NOT is pushed down to the
predicates, which four-valued logic allows. Names and constants of the selector come in through the globals of that
code: no text of the user's is ever formatted into it.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TypeAlias

from penstock.errors import EvaluationError
from penstock.model.values import Kind, Scalar, Schema
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
)
from penstock.selector.emit import COMPATIBLE, Irregular, Operand, TermWriter
from penstock.selector.evaluate import evaluate
from penstock.selector.expect import Expected, Loose, expect_attributes
from penstock.selector.like import compile_pattern
from penstock.selector.scalar import calculate, compare, concat, in_utc, negate, read
from penstock.selector.selector import Selector

Compiled: TypeAlias = Callable[[Mapping[str, Scalar]], bool | None]
"""A function from rows to truth values; it raises what `evaluate` raises."""


def compile_selector(selector: Selector, schema: Schema | None = None) -> Compiled:
    """Return a function with the meaning of `evaluate(selector, row)`.

    Kinds that the schema gives make it faster. Rows must then have passed the schema: an integer beyond 64 bits is
    not noticed. Without a schema, kinds are guessed from the selector, and a row that does not fit is slow, not
    wrong.

    >>> from penstock.selector import parse
    >>> compile_selector(parse("price > 24"))({"price": 25})
    True
    """
    namespace: dict[str, object] = {
        "EvaluationError": EvaluationError,
        "Irregular": Irregular,
        "UTC": UTC,
        "calculate": calculate,
        "compare": compare,
        "concat": concat,
        "datetime": datetime,
        "evaluate": lambda row: evaluate(selector, row),
        "in_utc": in_utc,
        "negate": negate,
        "read": read,
    }
    program = _Program(expect_attributes(selector.root, schema), namespace)
    source = program.write(selector.root)
    # The source is made of our own words and numbers only; see the module's docstring.
    exec(compile(source, "<selector>", "exec"), namespace)  # noqa: S102
    compiled: Compiled = namespace["select"]  # type: ignore[assignment]  # what the program defines
    return compiled


class _Program:
    """The functions of one selector, innermost first."""

    def __init__(self, expected: dict[str, Expected], namespace: dict[str, object]) -> None:
        self.expected = expected
        self.namespace = namespace
        self.functions: list[str] = []

    def write(self, root: Condition) -> str:
        """Return the source of all functions; the last is `select`."""
        body = self.block(root, negated=False)
        lines = [
            "def select(row):",
            "    try:",
            *(f"        {line}" for line in body),
            "    except (Irregular, EvaluationError):",
            "        return evaluate(row)",
        ]
        return "\n".join([*self.functions, *lines, ""])

    def block(self, node: Condition, *, negated: bool) -> list[str]:
        """Return the body of the function for a condition or its negation."""
        while isinstance(node, Not):
            node, negated = node.operand, not negated
        operands = node.operands if isinstance(node, And | Or) else (node,)
        # An AND returns at the first FALSE, an OR at the first TRUE; NOT turns one into the other.
        decisive = isinstance(node, Or) is not negated
        writer = _BlockWriter(self, decisive=decisive)
        for operand in operands:
            writer.add(operand, negated=negated)
        return writer.finish()

    def function(self, node: Condition, *, negated: bool) -> str:
        """Define a function for a nested condition and return its name."""
        body = self.block(node, negated=negated)
        name = f"part{len(self.functions)}"
        self.functions.append("\n".join([f"def {name}(row):", *(f"    {line}" for line in body)]))
        return name


class _BlockWriter(TermWriter):
    """Writes the body of one function: its operands one after the other."""

    def __init__(self, program: _Program, *, decisive: bool) -> None:
        super().__init__(program.expected, program.namespace)
        self.program = program
        self.decisive = decisive
        self.nullable = False

    def finish(self) -> list[str]:
        end = not self.decisive
        if not self.nullable:
            return [*self.lines, f"return {end}"]
        return ["null = False", *self.lines, f"return None if null else {end}"]

    def add(self, node: Condition, *, negated: bool) -> None:
        """Write one operand: return if it decides, remember if it is null."""
        while isinstance(node, Not):
            node, negated = node.operand, not negated
        match node:
            case And() | Or():
                self.nested(node, negated=negated)
            case Attribute() | Literal():
                self.truth(node, negated=negated)
            case Compare():
                self.comparison(node, negated=negated)
            case Between():
                self.between(node, negated=negated)
            case In():
                self.membership(node, negated=negated)
            case Like():
                self.like(node, negated=negated)
            case IsNull(value):
                operand = self.term(value)
                self.decide("", f"{operand.code} is {'not ' if negated else ''}None")

    def decide(self, null: str, true: str, pending: Operand | None = None) -> None:
        """Write the outcome of a predicate: `null` and `true` are Python tests, the first one tried first.

        With an operand whose check is pending, that check takes the place of the test for null.
        """
        test = true if self.decisive else f"not ({true})"
        self.nullable = self.nullable or bool(null)
        if pending is not None and pending.pending:
            self.lines += [f"if {pending.pending}:", f"    if {test}:", f"        return {self.decisive}"]
            self.lines += [f"elif {pending.code} is None:", "    null = True", "else:", "    raise Irregular"]
        elif null:
            self.lines += [f"if {null}:", "    null = True", f"elif {test}:", f"    return {self.decisive}"]
        else:
            self.lines += [f"if {test}:", f"    return {self.decisive}"]

    def nested(self, node: Condition, *, negated: bool) -> None:
        name = self.program.function(node, negated=negated)
        result = self.variable()
        self.lines.append(f"{result} = {name}(row)")
        self.decide(f"{result} is None", result)

    def truth(self, node: Attribute | Literal, *, negated: bool) -> None:
        operand = self.tested(node)
        if operand.expected not in (Kind.BOOLEAN, None):
            self.give_up()
        else:
            self.decide(operand.null, f"not {operand.code}" if negated else operand.code, operand)

    def comparison(self, node: Compare, *, negated: bool) -> None:
        if isinstance(node.left, Literal):
            node = Compare(node.operator.flipped, node.right, node.left)
        constant = isinstance(node.right, Literal) and node.right.value is not None
        left = self.tested(node.left) if constant else self.term(node.left)
        right = self.term(node.right)
        operator = node.operator.negated if negated else node.operator
        if left.expected is None or right.expected is None:
            self.decide("True", "True")
        elif Loose.ANYTHING in (left.expected, right.expected):
            result = self.variable()
            self.lines.append(f"{result} = compare({self.constant(operator)}, {left.code}, {right.code})")
            self.decide(f"{result} is None", result)
        elif not _comparable(operator, left, right):
            self.give_up()
        else:
            self.decide(_any_null(left, right), f"{left.code} {_PYTHON[operator]} {right.code}", left)

    def between(self, node: Between, *, negated: bool) -> None:
        bounds = And((Compare(Comparison.GE, node.value, node.low), Compare(Comparison.LE, node.value, node.high)))
        if not (isinstance(node.low, Literal) and isinstance(node.high, Literal)):
            self.nested(bounds, negated=negated)
            return
        value, low, high = self.tested(node.value), self.term(node.low), self.term(node.high)
        if not _comparable(Comparison.LE, value, low) or not _comparable(Comparison.LE, value, high):
            self.settle(value)
            self.nested(bounds, negated=negated)
            return
        test = f"{low.code} <= {value.code} <= {high.code}"
        self.decide(value.null, f"not ({test})" if negated else test, value)

    def membership(self, node: In, *, negated: bool) -> None:
        value = self.tested(node.value)
        items = [item for item in node.items if isinstance(item, Literal) and item.value is not None]
        nulls = any(isinstance(item, Literal) and item.value is None for item in node.items)
        hashable = value.expected not in (None, Loose.ANYTHING) and all(
            isinstance(item, Literal)
            and (item.kind is None or _comparable(Comparison.EQ, value, Operand("", item.kind, nullable=False)))
            for item in node.items
        )
        if not hashable:
            self.settle(value)
            self.call_equalities(node, negated=negated)
            return
        # Python's sets compare integers with floats exactly, as the language does.
        members = self.constant(frozenset(item.value for item in items))
        test = f"{value.code} in {members}"
        if nulls:
            self.settle(value)
            absent = f"{value.code} not in {members}"
            self.decide(absent, "False" if negated else "True")
        else:
            self.decide(value.null, f"not ({test})" if negated else test, value)

    def call_equalities(self, node: In, *, negated: bool) -> None:
        equalities = tuple(Compare(Comparison.EQ, node.value, item) for item in node.items)
        if len(equalities) == 1:
            self.comparison(equalities[0], negated=negated)
        else:
            self.nested(Or(equalities), negated=negated)

    def like(self, node: Like, *, negated: bool) -> None:
        value = self.tested(node.value)
        if value.expected is None:
            self.decide("True", "True")
            return
        if value.expected is not Kind.STRING:
            self.give_up()
            return
        test = self.pattern_test(value.code, node)
        self.decide(value.null, f"not ({test})" if negated else test, value)

    def pattern_test(self, code: str, node: Like) -> str:
        shape, argument = compile_pattern(node.pattern, node.escape)
        name = self.constant(argument)
        match shape:
            case "equal":
                return f"{code} == {name}"
            case "prefix":
                return f"{code}.startswith({name})"
            case "suffix":
                return f"{code}.endswith({name})"
            case "part":
                return f"{name} in {code}"
            case "general":
                return f"{name}({code}) is not None"


_PYTHON = {
    Comparison.EQ: "==",
    Comparison.NE: "!=",
    Comparison.LT: "<",
    Comparison.LE: "<=",
    Comparison.GT: ">",
    Comparison.GE: ">=",
}


def _any_null(*operands: Operand) -> str:
    return " or ".join(operand.null for operand in operands if operand.null)


def _comparable(operator: Comparison, left: Operand, right: Operand) -> bool:
    """Say whether Python's own operator does what ours does on these operands."""
    if left.expected is Kind.BOOLEAN and operator not in (Comparison.EQ, Comparison.NE):
        return False
    return (left.expected, right.expected) in COMPATIBLE
