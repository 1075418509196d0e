"""Generate Python for the terms of a selector: load attributes, check what they hold, compute."""

from dataclasses import dataclass, replace
from typing import Final

from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Kind
from penstock.selector.ast import Arithmetic, Attribute, Concat, Literal, Negate, Operator, Term
from penstock.selector.expect import Expected, Loose

_NUMBERS: Final = (Kind.INTEGER, Kind.FLOAT, Loose.NUMBER)

#: Pairs of kinds that Python compares as the language does, once each operand is known to be of its kind.
COMPATIBLE: Final = frozenset(
    [(kind, kind) for kind in (Kind.STRING, Kind.BOOLEAN, Kind.TIMESTAMP)]
    + [(left, right) for left in _NUMBERS for right in _NUMBERS]
)


class Irregular(Exception):  # noqa: N818  # never seen outside: it leaves generated code for the interpreter
    """The row is not what the generated code was written for."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A piece of generated code that holds a value: a name. `expected` is None where it is always null."""

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

    def __init__(self, expected: dict[str, Expected], namespace: dict[str, object]) -> None:
        self.expected = expected
        self.namespace = namespace
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
            case Attribute(name):
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
        self.lines.append(f"{code} = row.get({self.constant(name)})")
        return Operand(code, expected, nullable=True, pending=regular(code, expected))

    def settle(self, operand: Operand) -> None:
        """Write the check that is pending."""
        if operand.pending:
            self.lines += [f"if not ({operand.pending}) and {operand.code} is not None:", "    raise Irregular"]

    def tested(self, node: Term) -> Operand:
        """Write a term whose outcome is decided next, so that one test can serve the check and the decision."""
        if not isinstance(node, Attribute) or node.name in self.loaded:
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
