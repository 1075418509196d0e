"""Compile targets and conditions to Python: the fast form of `EvaluationScope.value` and `target_matches`.

Each becomes one function of a context and its facts. Attributes are looked up when they are needed; functions that
Python has become Python operators; constants are computed beforehand, and common subexpressions once; everything else
is a call of the plain evaluator. If nothing fails, both give the same result.
"""

import operator
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, Final, TypeAlias

from penstock.errors import EvaluationError
from penstock.policy.engine.evaluate import EvaluationScope
from penstock.policy.engine.lookup import Context
from penstock.policy.language.datatypes import DOUBLE, Function, Value, XPathExpression
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import (
    AllOf,
    Apply,
    ApplyEach,
    ApplyPath,
    Designator,
    Expression,
    Match,
    PolicyLiteral,
    Reference,
    Target,
)
from penstock.policy.language.requests import Facts

Program: TypeAlias = Callable[[Context, Facts], Any]

_N_OF: Final = f"{V1}n-of"
#: a marker that no value is identical to
_UNKNOWN: Final = object()

_BUILTINS: Final[dict[str, Any]] = {"__builtins__": {"any": any, "len": len}}
_SIGNS: Final = {operator.eq: "==", operator.gt: ">", operator.ge: ">=", operator.lt: "<", operator.le: "<="}


class Writer:
    """Writes an expression as Python, and collects the objects that it uses."""

    def __init__(self, variables: Mapping[str, Expression], programs: dict[str, Program]) -> None:
        self.names: dict[str, object] = {}
        self._texts: dict[str, str] = {}
        self._repeated: dict[int, int] = {}
        self._kept: dict[int, str] = {}
        self._variables = variables
        self._programs = programs
        #: whether the code uses the context `C` and its facts `F`, and the context's memory `M`
        self.uses_context = False
        self.uses_memory = False

    def name(self, thing: object) -> str:
        """Return a variable name for an object; equal strings share one."""
        if isinstance(thing, str) and thing in self._texts:
            return self._texts[thing]
        name = f"n{len(self.names)}"
        self.names[name] = thing
        if isinstance(thing, str):
            self._texts[thing] = name
        return name

    def share(self, expression: Expression) -> None:
        """Compute common subexpressions of an expression once."""
        self._repeated = repeated(expression)

    def expression(self, expression: Expression) -> str:
        """Write an expression."""
        match expression:
            case PolicyLiteral(value):
                return self.name(value)
            case Designator(issuer=None):
                return self.bag(expression)
            case Apply():
                return self._once(expression) if self._repeated else self._constant_or_applied(expression)
            case Reference(name):
                return self._reference(name)
        return self._plainly(expression)

    def bag(self, attribute: Designator) -> str:
        """Write the look-up of an attribute from any issuer."""
        known = "designated" if attribute.must_be_present else "bag"
        self.uses_context = True
        return f"(F.get({self.name(attribute.key)}) or C.{known}({self.name(attribute)}))"

    def target(self, target: Target) -> str:
        """Write a target that is not empty."""
        return " and ".join(f"({' or '.join(f'({self._all(all_of)})' for all_of in any_of)})" for any_of in target)

    def _all(self, all_of: AllOf) -> str:
        return " and ".join(map(self._match, all_of))

    def _constant_or_applied(self, expression: Apply) -> str:
        constant = constant_of(expression)
        return self._apply(expression) if constant is None else self.name(constant[0])

    def _once(self, expression: Apply) -> str:
        same = self._repeated.get(id(expression))
        if same is None:
            return self._constant_or_applied(expression)
        if same not in self._kept:
            written = self._constant_or_applied(expression)
            # The variable is the marker until its value was computed.
            kept = f"k{len(self._kept)}"
            self.names[kept] = _UNKNOWN
            self._kept[same] = f"({kept} if {kept} is not {self.name(_UNKNOWN)} else ({kept} := {written}))"
        return self._kept[same]

    def _apply(self, expression: Apply) -> str:
        function, arguments = expression.function, expression.arguments
        if function.id == _N_OF:
            return self._plainly(expression)
        return self.call(function, arguments, [self.expression(argument) for argument in arguments])

    def call(self, function: Function, _arguments: Sequence[Expression], written: Sequence[str]) -> str:
        """Write the call of a function with arguments that are already written."""
        match function.id.removeprefix(V1):
            case "or":
                return f"({' or '.join(written)})" if written else "False"
            case "and":
                return f"({' and '.join(written)})" if written else "True"
            case "not":
                return f"(not {written[0]})"
        sign = _SIGNS.get(function.call) if len(written) == 2 and function.repeated is None else None
        if sign is not None:
            return f"({written[0]} {sign} {written[1]})"
        if function.id.endswith("-is-in") and function.takes[0] is not DOUBLE:
            return f"({written[0]} in {written[1]})"
        return f"{self.name(function.call)}({', '.join(written)})"

    def _reference(self, name: str) -> str:
        """Write a variable, which is computed once for each request."""
        program = self._programs.get(name)
        if program is None:
            self._programs[name] = program = condition_program(self._variables[name], self._variables, self._programs)
        # The value is stored under the program itself, of which there is one for each variable of a policy.
        known = self.name(program)
        self.uses_context = self.uses_memory = True
        return f"(M[{known}] if {known} in M else M.setdefault({known}, {known}(C, F)))"

    def _plainly(self, expression: Expression) -> str:
        variables = self._variables

        def value(context: Context) -> Value:
            return EvaluationScope(context, variables).value(expression)

        self.uses_context = True
        return f"{self.name(value)}(C)"

    def _match(self, match: Match) -> str:
        attribute = self.expression(match.attribute)
        if match.function.call is operator.eq:
            return f"({self.name(match.value)} in {attribute})"
        sign = _SIGNS.get(match.function.call)
        value = self.name(match.value)
        within = "C, " if match.function.within else ""
        self.uses_context |= match.function.within
        called = f"{self.name(match.function.call)}({within}{value}, one)"
        holds = called if sign is None else f"{value} {sign} one"
        return f"any([{holds} for one in {attribute}])"


def constant_of(expression: Expression) -> tuple[Value] | None:
    """Return the value of a constant expression; None if it is not constant, or fails."""
    match expression:
        case PolicyLiteral(value):
            return (value,)
        case Apply(function, arguments) if function.id != _N_OF:
            known: list[Value] = []
            for argument in arguments:
                found = constant_of(argument)
                if found is None:
                    return None
                known.append(found[0])
            with suppress(EvaluationError):
                return (function.call(*known),)
    return None


def repeated(expression: Expression) -> dict[int, int]:
    """Return the numbers of repeated subexpressions, by object id; equal subexpressions have the same number."""
    found = _Numbers()
    found.number(expression)
    return {which: number for which, number in found.seen.items() if found.counted[number] > 1}


class _Numbers:
    """Numbers expressions, equal ones alike, and counts function applications."""

    __slots__ = ("_known", "counted", "seen")

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}
        self.seen: dict[int, int] = {}
        self.counted: Counter[int] = Counter()

    def number(self, one: Expression) -> int:
        match one:
            case PolicyLiteral(XPathExpression(path, category, prefixes, version)):
                key: Hashable = (path, category, prefixes, version)
            case PolicyLiteral(value, of_type):
                # Equal values can be written differently, and functions can distinguish them.
                key = (of_type, of_type.write(value))
            case Apply(function, arguments):
                key = (function, *map(self.number, arguments))
            case ApplyEach(name, function, arguments):
                key = (name, function, *map(self.number, arguments))
            case ApplyPath(name, arguments):
                key = (name, *map(self.number, arguments))
            case _:
                key = one
        found = self._known.setdefault(key, len(self._known))
        if isinstance(one, Apply):
            self.seen[id(one)] = found
            self.counted[found] += 1
        return found


def condition_program(
    expression: Expression, variables: Mapping[str, Expression], programs: dict[str, Program]
) -> Program:
    """Return an expression as a function. It raises what evaluating the expression raises."""
    writer = Writer(variables, programs)
    writer.share(expression)
    return _built(writer, writer.expression(expression))


def target_program(target: Target) -> Program | None:
    """Return a target as a function; None if it matches everything.

    The function returns whether the target matches. If it raises, call `target_matches`.
    """
    if not target:
        return None
    writer = Writer({}, {})
    return _built(writer, writer.target(target))


def _built(writer: Writer, text: str) -> Program:
    memory = ["M = C.memory"] if writer.uses_memory else []
    program: Program = built("C, F", [*memory, f"return {text}"], writer.names)
    return program


def built(parameters: str, lines: Sequence[str], names: Mapping[str, object]) -> Callable[..., Any]:
    """Return a function with these lines, in which `names` are bound."""
    body = "".join(f" {line}\n" for line in lines)
    source = f"def program({parameters}{''.join(f', {name}' for name in names)}):\n{body}"
    return FunctionType(_code(source), _BUILTINS, "program", tuple(names.values()))


@lru_cache(maxsize=4096)
def _code(source: str) -> CodeType:
    """Compile a function's source; equal sources are compiled once, because constants are arguments."""
    module = compile(source, "<policy>", "exec")
    return next(constant for constant in module.co_consts if isinstance(constant, CodeType))
