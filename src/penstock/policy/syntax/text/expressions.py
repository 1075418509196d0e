"""Expressions of the text form: operators between, functions before, and one value where a bag has one.

    or            one of many                       and           all of many
    not           the opposite                      == != < <= > >= in
    + -           sums, texts joined                * / %         products, quotients, remainders

Where one value is wanted and an attribute stands, which is a bag, it must have one value, and that is meant.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import MalformedError
from penstock.policy.language.datatypes import (
    BOOLEAN,
    DOUBLE,
    INTEGER,
    STRING,
    XPATH,
    Bag,
    DataType,
    Function,
    Kind,
    XPathExpression,
    data_type,
)
from penstock.policy.language.datatypes import read_value as read_typed
from penstock.policy.language.expressions import (
    Apply,
    ContentSelector,
    Designator,
    Expression,
    HigherOrder,
    PolicyLiteral,
    Reference,
    apply,
    function_of,
)
from penstock.policy.language.functions import V1, V3
from penstock.policy.syntax.text.names import (
    CATEGORY,
    MANY,
    bag_function,
    function_called,
    is_in,
    one_and_only,
    operator_function,
    wanted_kind,
)
from penstock.policy.syntax.text.tokens import NAME, NUMBER, TEXT, PolicyToken, Words, problem

_OR, _AND, _NOT, _COMPARED, _SUM, _PRODUCT = range(1, 7)
LEVELS: Final = {
    "or": _OR, "and": _AND, "==": _COMPARED, "!=": _COMPARED, "<": _COMPARED, "<=": _COMPARED, ">": _COMPARED,
    ">=": _COMPARED, "in": _COMPARED, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT,
}  # fmt: skip
NOT_LEVEL: Final = _NOT
NOT: Final = function_of(f"{V1}not")
_TAKE_FUNCTIONS: Final = frozenset(
    value for name, value in vars(HigherOrder).items() if name.isupper() and isinstance(value, str)
)


@dataclass(slots=True)
class Declared:
    """An attribute that has a name: where that was given, and whether anybody uses it."""

    attribute: Designator
    at: int
    used: bool = False


@dataclass(slots=True)
class Expressions:
    """Reads expressions, and knows the names that mean something where they stand."""

    words: Words
    attributes: dict[str, Declared] = field(default_factory=dict)
    variables: dict[str, Expression] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def condition(self) -> Expression:
        """Read what is true or false."""
        start = self.words.token.at
        found = one_of(self.expression())
        if found.gives is not BOOLEAN:
            message = f"a condition is true or false, and no {found.gives}"
            raise problem("xacml.arguments", message, self.words.text, start)
        return found

    def expression(self, level: int = _OR, depth: int = 1) -> Expression:
        """Read an expression, up to the first operator that binds less than a level."""
        self.words.check_depth(depth)
        found = self._negated(depth) if level <= _NOT and self._negates() else self._operand(depth)
        before, grown, compared = "", depth, False
        while self.words.sees(*LEVELS) and LEVELS[self.words.token.text] >= level:
            sign = self.words.take()
            mine = LEVELS[sign.text]
            if mine == _COMPARED and compared:
                raise problem("xacml.syntax", "comparisons do not follow one another", self.words.text, sign.at)
            compared = mine == _COMPARED
            other = self.expression(mine + 1, depth + 1)
            more = sign.text == before and sign.text in MANY
            grown += not more
            self.words.check_depth(grown)
            with self.words.at(sign.at):
                found = _joined(sign.text, found, other, more=more)
            before = sign.text
        return found

    def _negates(self) -> bool:
        return self.words.sees("not")

    def _negated(self, depth: int) -> Expression:
        sign = self.words.take()
        inner = self.expression(_NOT, depth + 1)
        with self.words.at(sign.at):
            return apply(NOT.id, [one_of(inner)])

    def _operand(self, depth: int) -> Expression:
        words = self.words
        token = words.token
        if words.taken("("):
            found = self.expression(_OR, depth + 1)
            words.expect(")")
            return found
        if words.sees("["):
            return self._bag(depth)
        if token.kind in (TEXT, NAME) and words.before("(") and not words.sees("variable"):
            return self._call(depth)
        if token.kind == TEXT:
            return self.literal()
        if token.kind == NUMBER or words.sees("-", "true", "false", "xpath"):
            return self.literal()
        if words.sees("select"):
            return self.selector()
        if words.taken("variable"):
            words.expect("(")
            name = words.quoted()
            words.expect(")")
            return self._variable(name, token)
        name = words.name("a value, an attribute, a variable or a function")
        return self._variable(name, token) if name in self.variables else self.designator(name, token)

    # --- values ---------------------------------------------------------------------------------------------------

    def literal(self) -> PolicyLiteral:
        """Read a value."""
        words = self.words
        start = words.token
        if words.taken("true", "false"):
            return PolicyLiteral(start.text == "true", BOOLEAN)
        if words.taken("xpath"):
            return self._path()
        if words.token.kind == TEXT:
            text = words.quoted()
            of_type = self.of_type() if words.taken(":") else STRING
            with words.at(start.at):
                if of_type is XPATH:
                    raise MalformedError("xacml.value", "a path is written with `xpath`")
                return PolicyLiteral(read_typed(text, of_type), of_type)
        minus = "-" if words.taken("-") else ""
        if words.token.kind != NUMBER:
            words.wrong("a value")
        number = words.take().text
        with words.at(start.at):
            of_type = INTEGER if number.isdigit() else DOUBLE
            return PolicyLiteral(of_type.read(minus + number), of_type)

    def of_type(self) -> DataType:
        """Read the name of a data type."""
        start = self.words.token
        with self.words.at(start.at):
            return data_type(self.words.id("a data type"))

    def category(self) -> str:
        """Read a category, by its short name or by its id."""
        words = self.words
        if words.token.kind == TEXT:
            return words.quoted()
        if words.token.text not in CATEGORY:
            words.wrong(f"a category in quotes or one of {', '.join(CATEGORY)}")
        return CATEGORY[words.take().text]

    def _path(self) -> PolicyLiteral:
        path = self.words.quoted().strip()
        self.words.expect("of")
        category = self.category()
        version = self._said("version") or ""
        return PolicyLiteral(XPathExpression(path, category, self._prefixes(), version), XPATH)

    def _said(self, word: str) -> str | None:
        return self.words.quoted() if self.words.taken(word) else None

    def _prefixes(self) -> tuple[tuple[str, str], ...]:
        found: dict[str, str] = {}
        while self.words.taken("prefix"):
            name = self.words.id("a prefix")
            self.words.expect("=")
            found[name] = self.words.quoted()
        return tuple(sorted(found.items()))

    # --- attributes and variables -----------------------------------------------------------------------------------

    def selector(self) -> ContentSelector:
        """Read what a path finds in content."""
        words = self.words
        words.expect("select")
        path = words.quoted().strip()
        words.expect(":")
        of_type = self.of_type()
        words.expect("of")
        category = self.category()
        required = words.taken("required")
        context = self._said("context")
        version = self._said("version") or ""
        return ContentSelector(category, path, of_type, required, context, self._prefixes(), version)

    def designator(self, name: str, token: PolicyToken) -> Designator:
        """Read what follows the name of an attribute."""
        words = self.words
        declared = self.attributes.get(name)
        if declared is None:
            hint = 'declare it before: attribute name { category = subject id = "…" type = string }'
            raise problem("xacml.attribute", f"nothing is called `{name[:80]}`", words.text, token.at, hint)
        declared.used = True
        meant = declared.attribute
        if not words.taken("["):
            return meant
        issuer, required = meant.issuer, meant.must_be_present
        while True:
            if words.taken("required"):
                required = True
            else:
                words.expect("issuer")
                issuer = words.quoted()
            if not words.taken(","):
                break
        words.expect("]")
        return Designator(meant.category, meant.id, meant.of, issuer, required)

    def _variable(self, name: str, token: PolicyToken) -> Reference:
        found = self.variables.get(name)
        if found is None:
            raise problem("xacml.variable", f"no variable is called `{name[:80]}`", self.words.text, token.at)
        self.used.add(name)
        return Reference(name, found.gives)

    # --- functions --------------------------------------------------------------------------------------------------

    def _bag(self, depth: int) -> Expression:
        start = self.words.expect("[")
        found = [one_of(one) for one in self._listed("]", lambda: self.expression(_OR, depth + 1))]
        of_type = found[0].gives if found else None
        if not isinstance(of_type, DataType):
            hint = "write one of no values as string-bag()"
            raise problem("xacml.arguments", "a list has values in it", self.words.text, start.at, hint)
        with self.words.at(start.at):
            return apply(bag_function(of_type).id, found)

    def _listed(self, end: str, read: Callable[[], Expression]) -> list[Expression]:
        found: list[Expression] = []
        while not self.words.sees(end):
            found.append(read())
            if not self.words.taken(","):
                break
        self.words.expect(end)
        return found

    def _call(self, depth: int) -> Expression:
        token = self.words.token
        name = self.words.quoted() if token.kind == TEXT else self.words.take().text
        self.words.expect("(")
        last = name.rpartition(":")[2]
        if last in _TAKE_FUNCTIONS:
            return self._call_each(f"{V3}{last}", token, depth)
        found = self._listed(")", lambda: self.expression(_OR, depth + 1))
        with self.words.at(token.at):
            function = function_called(name)
            return apply(function.id, [suited(one, wanted_kind(function, at)) for at, one in enumerate(found)])

    def _call_each(self, name: str, token: PolicyToken, depth: int) -> Expression:
        function = self.function()
        more = self._listed(")", lambda: self.expression(_OR, depth + 1)) if self.words.taken(",") else []
        if not more:
            self.words.taken(")")
        with self.words.at(token.at):
            return apply(name, [function, *more])

    def function(self) -> Function:
        """Read a function that another takes."""
        self.words.expect("function")
        token = self.words.token
        with self.words.at(token.at):
            if token.kind not in (NAME, TEXT):
                self.words.wrong("a function")
            return function_called(self.words.quoted() if token.kind == TEXT else self.words.take().text)


def one_of(expression: Expression) -> Expression:
    """Return an expression for one value: of a bag, the only one in it."""
    kind = expression.gives
    return apply(one_and_only(kind.of).id, [expression]) if isinstance(kind, Bag) else expression


def suited(expression: Expression, wanted: Kind | None) -> Expression:
    """Return an expression as something takes it."""
    return one_of(expression) if isinstance(wanted, DataType) else expression


def _joined(sign: str, left: Expression, right: Expression, *, more: bool) -> Expression:
    if sign == "in":
        return _found_in(one_of(left), right)
    if more and isinstance(left, Apply):
        return apply(left.function.id, [*left.arguments, one_of(right)])
    sides = [one_of(left), one_of(right)]
    if sign == "!=":
        return apply(NOT.id, [apply(operator_function("==", sides[0].gives).id, sides)])
    return apply(operator_function(sign, sides[0].gives).id, sides)


def _found_in(value: Expression, bag: Expression) -> Expression:
    function = is_in(value.gives) if isinstance(value.gives, DataType) else None
    if function is None:
        raise MalformedError("xacml.arguments", f"there is no `in` of {value.gives}")
    return apply(function.id, [value, bag])
