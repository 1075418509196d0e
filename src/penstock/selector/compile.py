"""Compile a selector to a Python function with the meaning of `evaluate`, dozens of times as fast.

The generated code handles the regular case: attributes that are null or of the expected kind, and results that fit.
Whatever else turns up — a NaN, an overflow, a value of another kind — leaves it for `evaluate`, which gives the
exact answer: the error, or the truth value if another operand decides. So speed never changes the meaning.

Each AND and OR becomes one function that returns as soon as an operand decides; NOT is pushed down to the
predicates, which four-valued logic allows. Names and constants of the selector come in through the globals of that
code: no text of the user's is ever formatted into it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final, TypeAlias

from penstock.errors import EvaluationError
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Kind, Scalar, Schema
from penstock.selector.ast import (
    And,
    Arithmetic,
    AttributeReference,
    Between,
    Compare,
    ComparisonOperator,
    Concat,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Operator,
    Or,
    Term,
    walk,
)
from penstock.selector.evaluate import calculate, compare, concat, evaluate, in_utc, negate, read
from penstock.selector.like import compile_pattern
from penstock.selector.selector import Selector

# ----------------------------------------------------------------------------------------------------------------------
# Which kind each attribute of a selector will have, as far as the schema or the selector itself tells.
#
# This is a guess that steers code generation, no type check: code that meets another kind at run time says so.


class Loose(Enum):
    """Properties of a term of unknown kind."""

    NUMBER = auto()
    ANYTHING = auto()


Expected: TypeAlias = Kind | Loose


def expect_attributes(root: Condition, schema: Schema | None) -> dict[str, Expected]:
    """Return what to expect of each attribute: from the schema, else from how it is used."""
    guesses: dict[str, Expected] = {}
    if schema is not None:
        guesses.update({name: spec.kind for name, spec in schema.items()})

    def note(term: Term, expected: Expected) -> None:
        if isinstance(term, AttributeReference) and expected is not Loose.ANYTHING:
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
    if isinstance(node, AttributeReference):
        guesses.setdefault(node.name, Kind.BOOLEAN)


def _usage(other: Term) -> Expected:
    """Return how a term is used that is compared with `other`."""
    match other:
        case Literal(_, Kind.INTEGER | Kind.FLOAT) | Negate() | Arithmetic():
            return Loose.NUMBER
        case Literal(_, kind) if kind is not None:
            return kind
        case Concat():
            return Kind.STRING
        case _:
            return Loose.ANYTHING


# ----------------------------------------------------------------------------------------------------------------------
# Generate Python for the terms of a selector: load attributes, check what they hold, compute.


_NUMBERS: Final = (Kind.INTEGER, Kind.FLOAT, Loose.NUMBER)

#: Pairs of kinds that Python compares as the language does, once each operand is known to be of its kind.
COMPATIBLE: Final = frozenset(
    [(kind, kind) for kind in (Kind.STRING, Kind.BOOLEAN, Kind.TIMESTAMP)]
    + [(left, right) for left in _NUMBERS for right in _NUMBERS]
)


class Irregular(Exception):  # noqa: N818  # never seen outside: it leaves generated code for the interpreter
    """The row does not fit the generated code; the interpreter decides."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A piece of generated code that holds a value: a name. `expected` is None if it is always null."""

    code: str
    expected: Expected | None
    nullable: bool
    #: the Python test that it is a value of its kind, where the code has not made it yet
    pending: str = ""

    @property
    def null(self) -> str:
        """The Python test for null; empty where it never is."""
        if self.expected is None:
            return "True"
        return f"{self.code} is None" if self.nullable else ""


def regular(code: str, expected: Expected) -> str:
    """Return the Python test that `code` is a proper value of its kind; empty where a test alone cannot tell."""
    match expected:
        case Kind.STRING:
            return f"type({code}) is str"
        case Kind.BOOLEAN:
            return f"type({code}) is bool"
        case Kind.INTEGER:
            return f"type({code}) is int"
        case Kind.FLOAT:
            # Only a NaN differs from itself.
            return f"type({code}) is float and {code} == {code}"
        case Loose.NUMBER:
            integer = f"type({code}) is int and {INTEGER_MIN} <= {code} <= {INTEGER_MAX}"
            return f"{regular(code, Kind.FLOAT)} or {integer}"
        case Kind.TIMESTAMP | Loose.ANYTHING:
            return ""


class TermWriter:
    """Writes statements that compute terms into local variables."""

    def __init__(
        self, expected: dict[str, Expected], namespace: dict[str, object], places: Mapping[str, int] | None
    ) -> None:
        self.expected = expected
        self.namespace = namespace
        self.places = places
        self.lines: list[str] = []
        self.loaded: dict[str, Operand] = {}
        self.variables = 0

    def variable(self) -> str:
        """Return a fresh local name."""
        self.variables += 1
        return f"v{self.variables}"

    def constant(self, value: object) -> str:
        """Put a value into the globals and return its name."""
        name = f"k{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def give_up(self) -> None:
        """Write that the interpreter must decide."""
        self.lines += ["if True:", "    raise Irregular"]

    def term(self, node: Term) -> Operand:
        """Write a term and return where its value is."""
        match node:
            case AttributeReference(name):
                if name not in self.loaded:
                    self.loaded[name] = self.load(name)
                return self.loaded[name]
            case Literal(None):
                return Operand("None", None, nullable=True)
            case Literal(value, kind):
                return Operand(self.constant(value), kind, nullable=False)
            case Negate(operand):
                return self.call("negate", self.term(operand))
            case Concat(left, right):
                return self.concat(self.term(left), self.term(right))
            case Arithmetic(operator, left, right):
                return self.arithmetic(operator, self.term(left), self.term(right))

    def load(self, name: str) -> Operand:
        """Write the reading of an attribute, and the check that it is null or of its kind."""
        operand = self.fetch(name)
        code = operand.code
        match operand.expected:
            case Loose.ANYTHING:
                self.lines.append(f"{code} = read({code})")
            case Kind.TIMESTAMP:
                self.lines += [f"if type({code}) is datetime:", f"    if {code}.tzinfo is not UTC:"]
                self.lines += [f"        {code} = in_utc({code})", f"elif {code} is not None:", "    raise Irregular"]
            case _:
                self.settle(operand)
        return replace(operand, pending="")

    def fetch(self, name: str) -> Operand:
        """Write the reading of an attribute; the check is pending."""
        code = self.variable()
        expected = self.expected.get(name, Loose.ANYTHING)
        if self.places is None:
            self.lines.append(f"{code} = row.get({self.constant(name)})")
        else:
            self.lines.append(f"{code} = row[{self.places[name]}]" if name in self.places else f"{code} = None")
        return Operand(code, expected, nullable=True, pending=regular(code, expected))

    def settle(self, operand: Operand) -> None:
        """Write the check that is pending."""
        if operand.pending:
            self.lines += [f"if not ({operand.pending}) and {operand.code} is not None:", "    raise Irregular"]

    def tested(self, node: Term) -> Operand:
        """Write a term whose outcome is decided next, so that one test can serve the check and the decision."""
        if not isinstance(node, AttributeReference) or node.name in self.loaded:
            return self.term(node)
        if not regular("", self.expected.get(node.name, Loose.ANYTHING)):
            return self.term(node)
        operand = self.fetch(node.name)
        self.loaded[node.name] = replace(operand, pending="")
        return operand

    def call(self, function: str, *operands: Operand, extra: str = "") -> Operand:
        """Write a call of one of the operators in scalar.py, which knows every case."""
        if any(operand.expected is None for operand in operands):
            return Operand("None", None, nullable=True)
        code = self.variable()
        self.lines.append(f"{code} = {function}({extra}{', '.join(operand.code for operand in operands)})")
        nullable = any(operand.nullable for operand in operands)
        kinds = {operand.expected for operand in operands}
        expected = Kind.INTEGER if kinds == {Kind.INTEGER} else Kind.FLOAT if kinds == {Kind.FLOAT} else Loose.NUMBER
        return Operand(code, expected, nullable)

    def concat(self, left: Operand, right: Operand) -> Operand:
        """Write `left || right`."""
        result = self.call("concat", left, right)
        return result if result.expected is None else Operand(result.code, Kind.STRING, result.nullable)

    def arithmetic(self, operator: Operator, left: Operand, right: Operand) -> Operand:
        """Write the operator itself where the kinds are known and a call where not."""
        kinds = {left.expected, right.expected}
        integers = kinds == {Kind.INTEGER} and operator is not Operator.DIVIDE
        floats = Kind.FLOAT in kinds and kinds <= {Kind.INTEGER, Kind.FLOAT}
        if not integers and not floats:
            return self.call("calculate", left, right, extra=self.constant(operator) + ", ")
        code = self.variable()
        nullable = left.nullable or right.nullable
        indent = ""
        if nullable:
            null = " or ".join(operand.null for operand in (left, right) if operand.nullable)
            self.lines += [f"if {null}:", f"    {code} = None", "else:"]
            indent = "    "
        if operator is Operator.DIVIDE:
            self.lines += [f"{indent}if not {right.code}:", f"{indent}    raise Irregular"]
        self.lines.append(f"{indent}{code} = {left.code} {operator} {right.code}")
        # An infinite operand may rightly give an infinity; the interpreter knows.
        low, high = (INTEGER_MIN, INTEGER_MAX) if integers else (-_LARGEST, _LARGEST)
        self.lines += [f"{indent}if not {low!r} <= {code} <= {high!r}:", f"{indent}    raise Irregular"]
        return Operand(code, Kind.INTEGER if integers else Kind.FLOAT, nullable)


_LARGEST: Final = 1.7976931348623157e308


# ----------------------------------------------------------------------------------------------------------------------
# Compile a selector to a Python function with the meaning of `evaluate`, dozens of times as fast.


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
    return _compiled(selector, schema, None, lambda row: evaluate(selector, row))  # type: ignore[return-value]  # of maps


CompiledRows: TypeAlias = Callable[[Sequence[Scalar]], bool | None]
"""A function from rows whose values stand in fixed places."""


def compile_for_rows(selector: Selector, places: Mapping[str, int], schema: Schema | None = None) -> CompiledRows:
    """Return `compile_selector` for rows that are sequences: `places` says where each attribute stands.

    An attribute without a place is null.

    >>> from penstock.selector import parse
    >>> compile_for_rows(parse("price > 24"), {"name": 0, "price": 1})(["tea", 25])
    True
    """
    known = [(name, places[name]) for name in selector.attributes if name in places]

    def interpreted(row: Sequence[Scalar]) -> bool | None:
        return evaluate(selector, {name: row[place] for name, place in known})

    return _compiled(selector, schema, places, interpreted)  # type: ignore[return-value]  # of rows


def _compiled(
    selector: Selector, schema: Schema | None, places: Mapping[str, int] | None, interpreted: Callable[..., bool | None]
) -> object:
    namespace: dict[str, object] = {
        "EvaluationError": EvaluationError,
        "Irregular": Irregular,
        "UTC": UTC,
        "calculate": calculate,
        "compare": compare,
        "concat": concat,
        "datetime": datetime,
        "evaluate": interpreted,
        "in_utc": in_utc,
        "negate": negate,
        "read": read,
        "__name__": __name__,
    }
    program = _Program(expect_attributes(selector.root, schema), namespace, places)
    source = program.write(selector.root)
    # The source is made of our own words and numbers only; see the module's docstring.
    exec(compile(source, "<selector>", "exec"), namespace)  # noqa: S102
    return namespace["select"]


class _Program:
    """The functions of one selector, innermost first."""

    def __init__(
        self, expected: dict[str, Expected], namespace: dict[str, object], places: Mapping[str, int] | None
    ) -> None:
        self.expected = expected
        self.namespace = namespace
        self.places = places
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
        super().__init__(program.expected, program.namespace, program.places)
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
            case AttributeReference() | Literal():
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

    def truth(self, node: AttributeReference | Literal, *, negated: bool) -> None:
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
        bounds = And(
            (
                Compare(ComparisonOperator.GE, node.value, node.low),
                Compare(ComparisonOperator.LE, node.value, node.high),
            )
        )
        if not (isinstance(node.low, Literal) and isinstance(node.high, Literal)):
            self.nested(bounds, negated=negated)
            return
        value, low, high = self.tested(node.value), self.term(node.low), self.term(node.high)
        if not _comparable(ComparisonOperator.LE, value, low) or not _comparable(ComparisonOperator.LE, value, high):
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
            and (item.kind is None or _comparable(ComparisonOperator.EQ, value, Operand("", item.kind, nullable=False)))
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
        equalities = tuple(Compare(ComparisonOperator.EQ, node.value, item) for item in node.items)
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
    ComparisonOperator.EQ: "==",
    ComparisonOperator.NE: "!=",
    ComparisonOperator.LT: "<",
    ComparisonOperator.LE: "<=",
    ComparisonOperator.GT: ">",
    ComparisonOperator.GE: ">=",
}


def _any_null(*operands: Operand) -> str:
    return " or ".join(operand.null for operand in operands if operand.null)


def _comparable(operator: ComparisonOperator, left: Operand, right: Operand) -> bool:
    """Return whether Python's own operator does what ours does on these operands."""
    if left.expected is Kind.BOOLEAN and operator not in (ComparisonOperator.EQ, ComparisonOperator.NE):
        return False
    return (left.expected, right.expected) in COMPATIBLE
