"""Write policies in the text form so that reading them gives the same policies, and format texts.

Formatting keeps line breaks, and sets indentation and spaces.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby, pairwise
from types import MappingProxyType
from typing import Final

from penstock.policy.language.datatypes import (
    BOOLEAN,
    DOUBLE,
    INTEGER,
    STRING,
    Bag,
    DataType,
    Function,
    Value,
    XPathExpression,
)
from penstock.policy.language.policies import (
    AnyOf,
    Apply,
    ApplyEach,
    ApplyPath,
    Assignment,
    ContentSelector,
    Designator,
    Duties,
    Duty,
    Expression,
    Match,
    Policy,
    PolicyLiteral,
    PolicyReference,
    PolicySet,
    Reference,
    Root,
    Rule,
    RuleEffect,
    Target,
)
from penstock.policy.language.requests import Key
from penstock.policy.limits import POLICY_LIMITS, PolicyLimits
from penstock.policy.syntax.text.policies import LEVELS, NOT, NOT_LEVEL, written_combining
from penstock.policy.syntax.text.tokens import (
    CATEGORY_NAME,
    COMMENT,
    COMPARISONS,
    END,
    FLIPPED,
    KEYWORDS,
    MANY,
    NAME,
    NAME_PATTERN,
    NUMBER,
    OPERATORS,
    SIGN,
    TEXT,
    PolicyToken,
    bag_function,
    is_in,
    one_and_only,
    quoted,
    short_name,
    tokens,
)

_INDENT: Final = "    "
_OPEN: Final = ("{", "(", "[")
_CLOSE: Final = ("}", ")", "]")
#: words with which a continuation line begins
_CONTINUED: Final = ("clause", *LEVELS)


def lay_out(text: str, *, limits: PolicyLimits = POLICY_LIMITS) -> str:
    """Return a formatted text; its meaning does not change, and comments stay in place.

    >>> print(lay_out('policy  p{apply deny-overrides   // none\\n\\n\\n rule r{permit}\\n }'), end="")
    policy p { apply deny-overrides  // none
    <BLANKLINE>
        rule r { permit }
    }

    Raises `PolicyTextError` (`xacml.syntax`) if it is empty, `LimitError` (`xacml.limit`).
    """
    lines: list[str] = []
    depth = 0
    for blank, line in _lines(text, tokens(text, limits=limits)):
        if blank and lines:
            lines.append("")
        closing = _leading(line)
        inner = max(depth - closing, 0) + (_text(line[0]) in _CONTINUED)
        lines.append(_INDENT * inner + _spaced(line))
        depth = max(depth + _growth(line), 0)
    return "\n".join(lines) + "\n" if lines else ""


def _lines(text: str, found: list[PolicyToken]) -> Iterator[tuple[bool, list[PolicyToken]]]:
    """Yield the words of each line, and whether it follows an empty line."""
    line: list[PolicyToken] = []
    blank = False
    last = 0
    for token in found:
        breaks = text.count("\n", last, token.at)
        if line and (breaks or token.kind == END):
            yield blank, line
            line, blank = [], False
        blank = blank or breaks > 1
        line.append(token)
        last = token.end
    if line and line[0].kind != END:
        yield blank, line


def _text(token: PolicyToken) -> str:
    return token.text if token.kind in (SIGN, NAME) else ""


def _leading(line: list[PolicyToken]) -> int:
    count = 0
    for token in line:
        if _text(token) not in _CLOSE:
            break
        count += 1
    return count


def _growth(line: list[PolicyToken]) -> int:
    return sum((_text(token) in _OPEN) - (_text(token) in _CLOSE) for token in line)


def _spaced(line: list[PolicyToken]) -> str:
    written = line[0].text
    before: PolicyToken | None = None
    for left, right in pairwise(line):
        if right.kind == END:
            break
        written += _between(before, left, right) + right.text
        before = left
    return written


def _between(before: PolicyToken | None, left: PolicyToken, right: PolicyToken) -> str:
    if right.kind == COMMENT:
        return "  "
    one, other = _text(left), _text(right)
    if one in ("(", "[", ":") or other in (")", "]", ",", ":"):
        return ""
    if other in ("(", "["):
        called = left.kind == NAME and (one not in KEYWORDS or one == "variable")
        return "" if called or (other == "(" and left.kind == TEXT) else " "
    return "" if one == "-" and right.kind == NUMBER and _begins(before) else " "


def _begins(before: PolicyToken | None) -> bool:
    """Return whether a value can begin after a word, so that a minus belongs to the number after it."""
    if before is None:
        return True
    return _text(before) in KEYWORDS or (before.kind == SIGN and before.text not in _CLOSE)


_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_HIGHEST: Final = max(LEVELS.values()) + 1


def write_text(root: Root) -> str:
    """Return a policy or a policy set in the text form, with the attributes that it uses declared before it.

    Raises `MalformedError` for an unknown combining algorithm.
    """
    return PolicyTextWriter([root]).written(root)


def _parts(root: Root) -> Iterator[Policy | PolicySet | Rule]:
    yield root
    if isinstance(root, Policy):
        yield from root.rules
    else:
        for member in root.members:
            if not isinstance(member, PolicyReference):
                yield from _parts(member)


def _expressions(root: Root) -> Iterator[Expression]:
    """Yield all expressions of a policy, and all within them."""
    for part in _parts(root):
        found: list[Expression] = [match.attribute for any_of in part.target for every in any_of for match in every]
        for duty in (*part.duties.obligations, *part.duties.advice):
            found += [one.expression for one in duty.assignments]
        if isinstance(part, Policy):
            found += part.variables.values()
        elif isinstance(part, Rule) and part.condition is not None:
            found.append(part.condition)
        yield from inner(found)


def inner(expressions: Iterable[Expression]) -> Iterator[Expression]:
    """Yield expressions, and all within them."""
    waiting = [*expressions][::-1]
    while waiting:
        one = waiting.pop()
        yield one
        if isinstance(one, Apply | ApplyEach | ApplyPath):
            waiting += one.arguments[::-1]


def _is_name(text: str) -> bool:
    return NAME_PATTERN.fullmatch(text) is not None and text not in KEYWORDS


def _id(text: str) -> str:
    return text if _is_name(text) else quoted(text)


def _category(category: str) -> str:
    return CATEGORY_NAME.get(category) or quoted(category)


class PolicyTextWriter:
    """Writes policies, or parts of them, with given names of attributes, and with names that it finds for others."""

    def __init__(self, roots: Iterable[Root], names: Mapping[Key, str] = MappingProxyType({})) -> None:
        roots = [*roots]
        parts = chain.from_iterable(map(_parts, roots))
        variables = {name for part in parts if isinstance(part, Policy) for name in part.variables}
        #: the names of attributes
        self.names: dict[Key, str] = {}
        taken = {*variables, *KEYWORDS, *names.values()}
        for one in chain.from_iterable(map(_expressions, roots)):
            if isinstance(one, Designator) and one.key not in self.names:
                self.names[one.key] = names.get(one.key) or _free(one.id, taken)
                taken.add(self.names[one.key])

    def written(self, root: Root) -> str:
        """Return the text of a policy, with declarations of the attributes."""
        lines = [*self._declared()]
        return "\n".join([*lines, *([""] if lines else []), *self._root(root)]) + "\n"

    def _declared(self) -> Iterator[str]:
        for key, called in self.names.items():
            said = f"category = {_category(key.category)} id = {quoted(key.id)} type = {key.of.name}"
            yield f"attribute {called} {{ {said} }}"

    # --- policies ---------------------------------------------------------------------------------------------------

    def _root(self, root: Root) -> Iterator[str]:
        version = "" if root.version == "1.0" else f" version {quoted(root.version)}"
        yield f"{'policyset' if isinstance(root, PolicySet) else 'policy'} {_id(root.id)}{version} {{"
        yield from _indented(self._inside(root))
        yield "}"

    def _inside(self, root: Root) -> Iterator[str]:
        if root.description:
            yield f"description {quoted(root.description)}"
        if root.issuer is not None:
            yield f"issuer {quoted(root.issuer)}"
        yield f"apply {written_combining(root)}"
        yield from self._target(root.target)
        if isinstance(root, PolicySet):
            for member in root.members:
                yield ""
                yield from [_reference(member)] if isinstance(member, PolicyReference) else self._root(member)
        else:
            for name in in_order(root.variables):
                yield f"variable {_id(name)} = {self.expression(root.variables[name])}"
            for rule in root.rules:
                yield ""
                yield from self._rule(rule)
        duties = [*self._duties(root.duties)]
        yield from ["", *duties] if duties else []

    def _rule(self, rule: Rule) -> Iterator[str]:
        yield f"rule {_id(rule.id)} {{"
        yield from _indented(self._in_rule(rule))
        yield "}"

    def _in_rule(self, rule: Rule) -> Iterator[str]:
        if rule.description:
            yield f"description {quoted(rule.description)}"
        yield _effect(rule.effect)
        yield from self._target(rule.target)
        if rule.condition is not None:
            yield f"condition {self.condition(rule.condition)}"
        yield from self._duties(rule.duties)

    def _target(self, target: Target) -> Iterator[str]:
        for place, any_of in enumerate(target):
            yield f"{_INDENT if place else 'target '}clause {self.clause(any_of)}"

    def clause(self, any_of: AnyOf) -> str:
        """Return a clause of a target."""
        return " or ".join(" and ".join(self._match(match) for match in every) for every in any_of)

    def _match(self, match: Match) -> str:
        attribute, value = self.expression(match.attribute), _value(match.value, match.of)
        sign = OPERATORS.get(match.function)
        if sign in COMPARISONS:
            return f"{attribute} {FLIPPED[sign]} {value}"
        return f"{_function(match.function)}({value}, {attribute})"

    def _duties(self, duties: Duties) -> Iterator[str]:
        for word, listed in (("obligation", duties.obligations), ("advice", duties.advice)):
            for on, those in groupby(listed, key=lambda duty: duty.on):
                yield f"on {_effect(on)} {{"
                yield from _indented(line for duty in those for line in self._duty(word, duty))
                yield "}"

    def _duty(self, word: str, duty: Duty) -> Iterator[str]:
        if not duty.assignments:
            yield f"{word} {_id(duty.id)}"
            return
        yield f"{word} {_id(duty.id)} {{"
        yield from _indented(self._assignment(one) for one in duty.assignments)
        yield "}"

    def _assignment(self, one: Assignment) -> str:
        category = "" if one.category is None else f" category {_category(one.category)}"
        issuer = "" if one.issuer is None else f" issuer {quoted(one.issuer)}"
        return f"{_id(one.id)}{category}{issuer} = {self.expression(one.expression)}"

    # --- expressions ------------------------------------------------------------------------------------------------

    def condition(self, condition: Expression) -> str:
        """Return a boolean expression."""
        return self._suited(condition, BOOLEAN, 0)

    def expression(self, expression: Expression, level: int = 0) -> str:
        """Return an expression, in parentheses if it has a lower precedence than its context."""
        match expression:
            case PolicyLiteral(value, of_type):
                return _value(value, of_type)
            case Reference(name):
                return name if _is_name(name) else f"variable({quoted(name)})"
            case Designator():
                return self._designator(expression)
            case ContentSelector():
                return _selector(expression)
            case Apply(function, arguments):
                mine, text = self._applied(function, arguments)
                return f"({text})" if mine < level else text
            case ApplyEach(name, function, arguments):
                listed = [f"function {_function(function)}", *map(self.expression, arguments)]
                return f"{name}({', '.join(listed)})"
            case ApplyPath(name, arguments):
                return f"{name}({', '.join(map(self.expression, arguments))})"

    def _applied(self, function: Function, arguments: tuple[Expression, ...]) -> tuple[int, str]:
        """Return the precedence of the operator, and the text."""
        sign, count = OPERATORS.get(function), len(arguments)
        first = arguments[0] if arguments else None
        if sign is not None and (count == 2 or (count > 2 and sign in MANY)):
            return self._between(sign, function, arguments)
        if function is NOT and first is not None:
            if isinstance(first, Apply) and OPERATORS.get(first.function) == "==":
                return self._between("!=", first.function, first.arguments)
            return NOT_LEVEL, f"not {self._suited(first, BOOLEAN, NOT_LEVEL)}"
        if first is not None and isinstance(first.gives, DataType):
            if function is is_in(first.gives):
                left = self._suited(first, first.gives, LEVELS["in"] + 1)
                return LEVELS["in"], f"{left} in {self.expression(arguments[1], LEVELS['in'] + 1)}"
            if function is bag_function(first.gives):
                return _HIGHEST, f"[{', '.join(self._suited(one, first.gives, 0) for one in arguments)}]"
        listed = [self._suited(one, function.kind_at(at), 0) for at, one in enumerate(arguments)]
        return _HIGHEST, f"{_function(function)}({', '.join(listed)})"

    def _between(self, sign: str, function: Function, arguments: tuple[Expression, ...]) -> tuple[int, str]:
        mine = LEVELS[sign]
        sides = [self._suited(one, function.kind_at(at), mine + 1) for at, one in enumerate(arguments)]
        return mine, f" {sign} ".join(sides)

    def _suited(self, expression: Expression, wanted: object, level: int) -> str:
        """Return an expression; if one value is expected, `one-and-only` is left out."""
        match expression:
            case Apply(function, (only,)) if isinstance(wanted, DataType) and isinstance(only.gives, Bag):
                if function is one_and_only(only.gives.of):
                    return self.expression(only, level)
        return self.expression(expression, level)

    def _designator(self, one: Designator) -> str:
        more = ["required"] if one.must_be_present else []
        more += [] if one.issuer is None else [f"issuer {quoted(one.issuer)}"]
        return self.names[one.key] + (f"[{', '.join(more)}]" if more else "")


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"{_INDENT}{line}" if line else "" for line in lines)


def _free(name: str, taken: set[str]) -> str:
    last = re.split(r"[:/#.]", name.rstrip(":/#."))[-1]
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", last, flags=re.ASCII).strip("-")
    start = plain if NAME_PATTERN.fullmatch(plain) else f"a_{plain}".rstrip("-")
    count, found = 1, start
    while found in taken:
        count += 1
        found = f"{start}_{count}"
    return found


def in_order(variables: Mapping[str, Expression]) -> list[str]:
    """Return the names of variables, each after those that it uses."""
    found: dict[str, None] = {}
    waiting = [*variables][::-1]
    while waiting:
        name = waiting[-1]
        needed = [one.id for one in inner([variables[name]]) if isinstance(one, Reference) and one.id not in found]
        if name in found or not needed:
            found[waiting.pop()] = None
        else:
            waiting += needed
    return [*found]


def _effect(effect: RuleEffect) -> str:
    return "permit" if effect is RuleEffect.PERMIT else "deny"


def _reference(one: PolicyReference) -> str:
    wanted = {"version": one.version, "earliest": one.earliest, "latest": one.latest}
    more = "".join(f" {key} {quoted(value)}" for key, value in wanted.items() if value is not None)
    return f"reference {'policyset' if one.to_set else 'policy'} {_id(one.id)}{more}"


def _function(function: Function) -> str:
    short = short_name(function)
    return quoted(function.id) if short is None else f"{short} " if short in KEYWORDS else short


def _value(value: Value, of_type: DataType) -> str:
    if isinstance(value, XPathExpression):
        version = f" version {quoted(value.version)}" if value.version else ""
        return f"xpath {quoted(value.path)} of {_category(value.category)}{version}{_prefixes(value.prefixes)}"
    text = of_type.write(value)
    if of_type is STRING:
        return quoted(text)
    if of_type is BOOLEAN or (of_type in (INTEGER, DOUBLE) and _as_number(text, of_type)):
        return text
    return f"{quoted(text)}:{of_type.name}"


def _as_number(text: str, of_type: DataType) -> bool:
    return _NUMBER.fullmatch(text) is not None and text.lstrip("-").isdigit() is (of_type is INTEGER)


def _selector(one: ContentSelector) -> str:
    required = " required" if one.must_be_present else ""
    context = "" if one.context is None else f" context {quoted(one.context)}"
    version = f" version {quoted(one.version)}" if one.version else ""
    said = f"{required}{context}{version}{_prefixes(one.prefixes)}"
    return f"select {quoted(one.path)}:{one.of.name} of {_category(one.category)}{said}"


def _prefixes(prefixes: tuple[tuple[str, str], ...]) -> str:
    return "".join(f" prefix {_id(name)} = {quoted(uri)}" for name, uri in prefixes)
