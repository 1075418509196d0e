"""Expressions of the text form: operators between, functions before, and one value where a bag has one.

    or            one of many                       and           all of many
    not           the opposite                      == != < <= > >= in
    + -           sums, texts joined                * / %         products, quotients, remainders

Where one value is wanted and an attribute stands, which is a bag, it must have one value, and that is meant.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.policy.language.datatypes import (
    BOOLEAN,
    DOUBLE,
    INTEGER,
    STRING,
    XPATH,
    DataType,
    Function,
    XPathExpression,
    data_type,
)
from penstock.policy.language.expressions import (
    HIGHER_ORDER,
    ContentSelector,
    Designator,
    PolicyLiteral,
    function_of,
)
from penstock.policy.language.functions import V1, V3
from penstock.policy.syntax.builder import (
    ApplyNode,
    BagNode,
    OperatorNode,
    Place,
    Term,
    ValueNode,
    VariableNode,
)
from penstock.policy.syntax.text.names import CATEGORY, MANY, bag_function, function_id, operator_function
from penstock.policy.syntax.text.tokens import NAME, NUMBER, TEXT, PolicyToken, Words, problem

_OR, _AND, _NOT, _COMPARED, _SUM, _PRODUCT = range(1, 7)
LEVELS: Final = {
    "or": _OR, "and": _AND, "==": _COMPARED, "!=": _COMPARED, "<": _COMPARED, "<=": _COMPARED, ">": _COMPARED,
    ">=": _COMPARED, "in": _COMPARED, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT,
}  # fmt: skip
NOT_LEVEL: Final = _NOT
NOT: Final = function_of(f"{V1}not")


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
    #: those of the policy around that are defined already
    variables: set[str] = field(default_factory=set)

    def condition(self) -> tuple[Place, Term]:
        """Read what is true or false, and return where it is."""
        return self.words.place(self.words.token.at), self.expression()

    def expression(self, level: int = _OR, depth: int = 1) -> Term:
        """Read an expression, up to the first operator that binds less than a level."""
        self.words.check_depth(depth)
        found = self._negated(depth) if level <= _NOT and self._negates() else self._operand(depth)
        grown, compared = depth, False
        signs: list[PolicyToken] = []
        others: list[Term] = []
        while self.words.sees(*LEVELS) and LEVELS[self.words.token.text] >= level:
            sign = self.words.take()
            mine = LEVELS[sign.text]
            if mine == _COMPARED and compared:
                raise problem("xacml.syntax", "comparisons do not follow one another", self.words.text, sign.at)
            compared = mine == _COMPARED
            other = self.expression(mine + 1, depth + 1)
            if not signs or sign.text != signs[-1].text or sign.text not in MANY:
                found, signs, others = self._joined(found, signs, others), [], []
                grown += 1
                self.words.check_depth(grown)
            signs.append(sign)
            others.append(other)
        return self._joined(found, signs, others)

    def _joined(self, first: Term, signs: list[PolicyToken], others: list[Term]) -> Term:
        """Return operands with the same sign between them."""
        if not signs:
            return first
        sign, places = signs[0].text, tuple(self.words.place(one.at) for one in signs)
        function = partial(operator_function, "==" if sign == "!=" else sign)
        found = OperatorNode(places, (first, *others), function, bag_last=sign == "in")
        return ApplyNode(places[0], NOT.id, (found,)) if sign == "!=" else found

    def _negates(self) -> bool:
        return self.words.sees("not")

    def _negated(self, depth: int) -> Term:
        sign = self.words.take()
        return ApplyNode(self.words.place(sign.at), NOT.id, (self.expression(_NOT, depth + 1),))

    def _operand(self, depth: int) -> Term:
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

    def literal(self) -> ValueNode | PolicyLiteral:
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
            if of_type is XPATH:
                raise problem("xacml.value", "a path is written with `xpath`", words.text, start.at)
            return ValueNode(words.place(start.at), text, of_type)
        minus = "-" if words.taken("-") else ""
        if words.token.kind != NUMBER:
            words.wrong("a value")
        number = words.take().text
        return ValueNode(words.place(start.at), minus + number, INTEGER if number.isdigit() else DOUBLE)

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

    def _variable(self, name: str, token: PolicyToken) -> VariableNode:
        if name not in self.variables:
            raise problem("xacml.variable", f"no variable is called `{name[:80]}`", self.words.text, token.at)
        return VariableNode(self.words.place(token.at), name)

    # --- functions --------------------------------------------------------------------------------------------------

    def _bag(self, depth: int) -> BagNode:
        start = self.words.expect("[")
        found = self._listed("]", lambda: self.expression(_OR, depth + 1))
        if not found:
            hint = "write one of no values as string-bag()"
            raise problem("xacml.arguments", "a list has values in it", self.words.text, start.at, hint)
        return BagNode(self.words.place(start.at), tuple(found), bag_function)

    def _listed(self, end: str, read: Callable[[], Term]) -> list[Term]:
        found: list[Term] = []
        while not self.words.sees(end):
            found.append(read())
            if not self.words.taken(","):
                break
        self.words.expect(end)
        return found

    def _call(self, depth: int) -> ApplyNode:
        token = self.words.token
        name = self.words.quoted() if token.kind == TEXT else self.words.take().text
        self.words.expect("(")
        place, last = self.words.place(token.at), f"{V3}{name.rpartition(':')[2]}"
        if last in HIGHER_ORDER:
            return ApplyNode(place, last, self._function_and_more(depth))
        return ApplyNode(place, function_id(name), tuple(self._listed(")", lambda: self.expression(_OR, depth + 1))))

    def _function_and_more(self, depth: int) -> tuple[Term | Function, ...]:
        function = self.function()
        more = self._listed(")", lambda: self.expression(_OR, depth + 1)) if self.words.taken(",") else []
        if not more:
            self.words.taken(")")
        return function, *more

    def function(self) -> Function:
        """Read a function that another takes."""
        self.words.expect("function")
        token = self.words.token
        with self.words.at(token.at):
            if token.kind not in (NAME, TEXT):
                self.words.wrong("a function")
            return function_of(function_id(self.words.quoted() if token.kind == TEXT else self.words.take().text))
