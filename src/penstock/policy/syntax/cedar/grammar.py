"""Parse policies in Cedar 4 (https://docs.cedarpolicy.com/policies/syntax-grammar.html).

    @id("nurses")
    permit (principal in Group::"nurses", action == Action::"read", resource is Record)
    when { principal has ward && principal.ward == "east" }
    unless { context has emergency && context.emergency };

What no XACML policy can say is refused here by its name (`cedar.construct`): templates, records as values,
attributes of entities that are not in the request, extension functions, tags. Arithmetic is calculated if its operands
are literals. Otherwise it can overflow, and is refused (`cedar.can-err`).
"""

import re
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn, TypeAlias

from penstock.errors import did_you_mean
from penstock.model.values import INTEGER_MAX, INTEGER_MIN
from penstock.policy.language.policies import RuleEffect
from penstock.policy.limits import POLICY_LIMITS, PolicyLimits
from penstock.policy.syntax.builder import check_depth
from penstock.policy.syntax.text.tokens import (
    COMMENT,
    END,
    NAME,
    NUMBER,
    SIGN,
    TEXT,
    PolicyTextError,
    PolicyToken,
    TokenReader,
    after_space,
    problem,
    split_tokens,
)

PRINCIPAL, ACTION, RESOURCE, CONTEXT = VARIABLES = ("principal", "action", "resource", "context")
#: methods of sets
METHODS: Final = ("contains", "containsAll", "containsAny", "isEmpty")
_RESERVED: Final = frozenset({"true", "false", "if", "then", "else", "in", "is", "like", "has", "__cedar"})
_TOKEN: Final = re.compile(
    rf"""(?P<{COMMENT}>//[^\n]*)
    |(?P<{NAME}>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<{NUMBER}>[0-9]+)
    |(?P<{TEXT}>"(?:[^"\\]|\\.)*")
    |(?P<{SIGN}>&&|\|\||==|!=|<=|>=|::|[-+*!<>(){{}}\[\],.;:@?])
    """,
    re.ASCII | re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(?:u\{([0-9A-Fa-f]{1,6})\}|x([0-7][0-9A-Fa-f])|(.))", re.DOTALL)
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "0": "\0", "'": "'", '"': '"'}
#: characters that XML does not have
_UNWRITABLE: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_OR, _AND, _RELATION, _SUM, _PRODUCT = range(1, 6)
_LEVELS: Final = {
    "||": _OR, "&&": _AND, "==": _RELATION, "!=": _RELATION, "<": _RELATION, "<=": _RELATION, ">": _RELATION,
    ">=": _RELATION, "in": _RELATION, "has": _RELATION, "like": _RELATION, "is": _RELATION, "+": _SUM, "-": _SUM,
    "*": _PRODUCT,
}  # fmt: skip
#: as many `!` or `-` as Cedar allows before an operand
_SIGNS: Final = 4
#: other words that Cedar has, and why they are refused
_REFUSED: Final = {
    **dict.fromkeys(("decimal", "ip", "datetime", "duration"), "extension functions are not compiled"),
    **dict.fromkeys(("hasTag", "getTag"), "tags are not attributes of requests"),
    **dict.fromkeys(
        (
            "lessThan", "lessThanOrEqual", "greaterThan", "greaterThanOrEqual", "isIpv4", "isIpv6", "isLoopback",
            "isMulticast", "isInRange", "offset", "durationSince", "toDate", "toTime", "toMilliseconds", "toSeconds",
            "toMinutes", "toHours", "toDays",
        ),
        "methods of extension types are not compiled",
    ),
}  # fmt: skip


# --- what is parsed ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CedarLiteral:
    """A boolean, an integer of 64 bits or a string."""

    at: int
    value: bool | int | str


@dataclass(frozen=True, slots=True)
class CedarEntity:
    """An entity by its type and id."""

    at: int
    type: str
    id: str


@dataclass(frozen=True, slots=True)
class CedarPath:
    """A variable, or an attribute below it."""

    at: int
    variable: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ".".join((self.variable, *self.names))


@dataclass(frozen=True, slots=True)
class CedarHas:
    """Whether an attribute is present, in a variable or in a record that is present."""

    at: int
    of: CedarPath
    path: CedarPath


@dataclass(frozen=True, slots=True)
class CedarLike:
    """Whether a string matches a pattern: texts with a wildcard between each two."""

    at: int
    of: "CedarExpression"
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CedarIs:
    """Whether an entity has a type."""

    at: int
    of: "CedarExpression"
    type: str


@dataclass(frozen=True, slots=True)
class CedarNot:
    """The opposite."""

    at: int
    of: "CedarExpression"


@dataclass(frozen=True, slots=True)
class CedarRelation:
    """Two operands with `==`, `!=`, `<`, `<=`, `>`, `>=` or `in` between them."""

    at: int
    sign: str
    left: "CedarExpression"
    right: "CedarExpression"


@dataclass(frozen=True, slots=True)
class CedarJunction:
    """Operands with `&&` or `||` between them."""

    at: int
    sign: str
    operands: "tuple[CedarExpression, ...]"


@dataclass(frozen=True, slots=True)
class CedarConditional:
    """One of two expressions."""

    at: int
    test: "CedarExpression"
    then: "CedarExpression"
    otherwise: "CedarExpression"


@dataclass(frozen=True, slots=True)
class CedarSet:
    """Values in a list."""

    at: int
    values: "tuple[CedarExpression, ...]"


@dataclass(frozen=True, slots=True)
class CedarCall:
    """A method of a set; `isEmpty` has no argument."""

    at: int
    of: "CedarExpression"
    method: str
    argument: "CedarExpression | None"


CedarExpression: TypeAlias = (
    CedarLiteral | CedarEntity | CedarPath | CedarHas | CedarLike | CedarIs | CedarNot | CedarRelation | CedarJunction
    | CedarConditional | CedarSet | CedarCall
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CedarScope:
    """What a policy says of a variable in its head: a type, and entities of which it is one or is in one."""

    type: str | None = None
    entities: tuple[CedarEntity, ...] | None = None
    #: `in`, not `==`
    within: bool = False


@dataclass(frozen=True, slots=True)
class CedarPolicy:
    """A policy: it permits or forbids."""

    at: int
    effect: RuleEffect
    annotations: tuple[tuple[str, str], ...]
    scopes: tuple[tuple[str, CedarScope], ...]
    #: each is true in `when`, and false in `unless`
    conditions: tuple[CedarExpression, ...]


# --- parsing ----------------------------------------------------------------------------------------------------------


def is_cedar(text: str) -> bool:
    """Return whether a text begins as one of Cedar, after comments: with `permit`, `forbid` or `@`."""
    at = 0
    while True:
        at = after_space(text, at)
        if not text.startswith("//", at):
            return re.compile(r"(?:permit|forbid)\b|@").match(text, at) is not None
        at = text.find("\n", at) + 1 or len(text)


def parse_cedar(text: str, *, limits: PolicyLimits = POLICY_LIMITS) -> list[CedarPolicy]:
    """Parse the policies of a text.

    Raises `PolicyTextError` with line and column (`cedar.syntax`, `cedar.construct`, `cedar.can-err`), `LimitError`
    (`xacml.limit`).
    """
    return _Parser(text, limits).policies()


class _Parser(TokenReader):
    """Parses policies from the outside to the inside."""

    def __init__(self, text: str, limits: PolicyLimits) -> None:
        found = split_tokens(text, _TOKEN, limits, partial(problem, "cedar.syntax", "unexpected character"))
        super().__init__(text, found, syntax="cedar.syntax", reserved=_RESERVED)
        self._limits = limits

    # --- tokens -----------------------------------------------------------------------------------------------------

    def _problem(self, code: str, message: str, at: int, hint: str = "") -> PolicyTextError:
        return problem(code, message, self.text, at, hint)

    def _type(self) -> str:
        names = [self.name("a type")]
        while self.taken("::"):
            names.append(self.name("a type"))
        return "::".join(names)

    def _quoted(self) -> str:
        """Take a text in quotes."""
        if self.token.kind != TEXT:
            self.wrong("a text in quotes")
        return self._unescaped(self.take(), wildcards=False)[0]

    def _unescaped(self, token: PolicyToken, *, wildcards: bool) -> tuple[str, ...]:
        """Return the content of a text in quotes, split at wildcards."""
        parts: list[list[str]] = [[]]
        at, inside = 0, token.text[1:-1]
        while at < len(inside):
            place = token.at + 1 + at
            if inside[at] == "\\":
                letter, length = self._escaped(inside, at, place, wildcards=wildcards)
            elif inside[at] == "*" and wildcards:
                parts.append([])
                at += 1
                continue
            else:
                letter, length = inside[at], 1
            if _UNWRITABLE.match(letter):
                message = f"the character U+{ord(letter):04X} cannot be in an XACML policy"
                raise self._problem("cedar.construct", message, place, "leave it out")
            parts[-1].append(letter)
            at += length
        return tuple(map("".join, parts))

    def _escaped(self, inside: str, at: int, place: int, *, wildcards: bool) -> tuple[str, int]:
        found = _ESCAPE.match(inside, at)
        if found is not None:
            point, byte, letter = found.groups()
            number = int(point or byte or "110000", 16)
            if number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF:
                return chr(number), len(found[0])
            if letter in _LETTERS:
                return _LETTERS[letter], 2
            if letter == "*" and wildcards:
                return "*", 2
        raise self._problem("cedar.syntax", "unknown escape sequence", place, r"write \n \r \t \\ \' \" \x41 or \u{41}")

    # --- policies ---------------------------------------------------------------------------------------------------

    def policies(self) -> list[CedarPolicy]:
        """Parse the whole text."""
        found = []
        while self.token.kind != END:
            found.append(self._policy())
        return found

    def _policy(self) -> CedarPolicy:
        annotations: dict[str, str] = {}
        while self.sees("@"):
            at = self.take().at
            # Cedar lets its own words be names of annotations.
            if self.token.kind != NAME:
                self.wrong("the name of an annotation")
            name = self.take().text
            if name in annotations:
                raise self._problem("cedar.syntax", f"annotation `{name[:80]}` is given twice", at)
            annotations[name] = ""
            if self.taken("("):
                annotations[name] = self._quoted()
                self.expect(")")
        at = self.token.at
        if not self.sees("permit", "forbid"):
            self.wrong("`permit`, `forbid` or an annotation")
        effect = RuleEffect.PERMIT if self.take().text == "permit" else RuleEffect.DENY
        self.expect("(")
        scopes = [(PRINCIPAL, self._scope(PRINCIPAL))]
        for variable in (ACTION, RESOURCE):
            self.expect(",")
            scopes.append((variable, self._scope(variable)))
        self.taken(",")
        self.expect(")")
        conditions = []
        while self.sees("when", "unless"):
            word = self.take()
            self.expect("{")
            found = self._expression()
            self.expect("}")
            conditions.append(found if word.text == "when" else CedarNot(word.at, found))
        self.expect(";")
        return CedarPolicy(at, effect, tuple(annotations.items()), tuple(scopes), tuple(conditions))

    def _scope(self, variable: str) -> CedarScope:
        self.expect(variable)
        if self.taken("=="):
            return CedarScope(None, (self._scoped(),))
        type_name = self._type() if variable != ACTION and self.taken("is") else None
        if not self.taken("in"):
            return CedarScope(type_name)
        if variable != ACTION or not self.taken("["):
            return CedarScope(type_name, (self._scoped(),), within=True)
        entities = []
        while not self.sees("]"):
            entities.append(self._scoped())
            if not self.taken(","):
                break
        self.expect("]")
        return CedarScope(None, tuple(entities), within=True)

    def _scoped(self) -> CedarEntity:
        if self.sees("?"):
            raise self._problem(
                "cedar.construct",
                "templates are not compiled",
                self.token.at,
                "link the template, and give the policy",
            )
        return self._entity(self.token.at, self.name("an entity"))

    def _entity(self, at: int, first: str) -> CedarEntity:
        """Parse an entity after the first part of its type."""
        names = [first]
        while True:
            self.expect("::")
            if self.token.kind == TEXT:
                return CedarEntity(at, "::".join(names), self._quoted())
            names.append(self.name("an id in quotes"))

    # --- expressions ------------------------------------------------------------------------------------------------

    def _expression(self, level: int = _OR, depth: int = 1) -> CedarExpression:
        """Parse an expression, up to the first operator with a lower precedence than `level`."""
        check_depth(depth, self._limits)
        if level == _OR and self.sees("if"):
            at = self.take().at
            test = self._expression(_OR, depth + 1)
            self.expect("then")
            then = self._expression(_OR, depth + 1)
            self.expect("else")
            return CedarConditional(at, test, then, self._expression(_OR, depth + 1))
        found = self._unary(depth)
        related = False
        while self.sees(*_LEVELS) and _LEVELS[self.token.text] >= level:
            sign = self.take()
            mine = _LEVELS[sign.text]
            if mine == _RELATION:
                if related:
                    raise self._problem("cedar.syntax", "relations cannot be chained", sign.at, "use parentheses")
                related = True
                found = self._relation(sign, found, depth)
            elif mine in (_OR, _AND):
                operands = [found, self._expression(mine + 1, depth + 1)]
                while self.taken(sign.text):
                    operands.append(self._expression(mine + 1, depth + 1))
                found, related = CedarJunction(sign.at, sign.text, tuple(operands)), False
            else:
                found = self._calculated(sign, found, self._expression(mine + 1, depth + 1))
        return found

    def _relation(self, sign: PolicyToken, left: CedarExpression, depth: int) -> CedarExpression:
        match sign.text:
            case "has":
                path = self._attributes(left, sign)
                return CedarHas(sign.at, CedarPath(path.at, path.variable, getattr(left, "names", ())), path)
            case "like":
                if self.token.kind != TEXT:
                    self.wrong("a pattern in quotes")
                return CedarLike(sign.at, left, self._unescaped(self.take(), wildcards=True))
            case "is":
                found: CedarExpression = CedarIs(sign.at, left, self._type())
                if self.sees("in"):
                    at = self.take().at
                    within = CedarRelation(at, "in", left, self._expression(_SUM, depth + 1))
                    found = CedarJunction(sign.at, "&&", (found, within))
                return found
        return CedarRelation(sign.at, sign.text, left, self._expression(_SUM, depth + 1))

    def _attributes(self, of: CedarExpression, sign: PolicyToken) -> CedarPath:
        """Parse the names after `has`."""
        if self.token.kind == TEXT:
            return self._below(of, self._quoted(), sign.at)
        found = self._below(of, self.name("an attribute"), sign.at)
        while self.taken("."):
            found = self._below(found, self.name("an attribute"), sign.at)
        return found

    def _below(self, of: CedarExpression, name: str, at: int) -> CedarPath:
        """Return the path to an attribute of something."""
        if not isinstance(of, CedarPath):
            hint = "only `principal`, `action`, `resource` and `context` have attributes"
            raise self._problem(
                "cedar.construct", f"`{name[:80]}` of a value is not an attribute of the request", at, hint
            )
        if not name or "." in name or name != " ".join(name.split()):
            hint = "rename it: a dot is put between the names of records and their members"
            raise self._problem(
                "cedar.construct", f"`{name[:80]}` cannot be the name of an attribute in XACML", at, hint
            )
        return CedarPath(of.at, of.variable, (*of.names, name))

    def _calculated(self, sign: PolicyToken, left: CedarExpression, right: CedarExpression) -> CedarLiteral:
        """Return the result of arithmetic with literals."""
        if not (isinstance(left, CedarLiteral) and isinstance(right, CedarLiteral)):
            message = f"`{sign.text}` can overflow, and Cedar then skips the policy"
            raise self._problem(
                "cedar.can-err", message, sign.at, "compare attributes with numbers, without arithmetic"
            )
        one, other = left.value, right.value
        if isinstance(one, bool | str) or isinstance(other, bool | str):
            raise self._problem("cedar.type", f"`{sign.text}` needs integers", sign.at)
        return self._integer({"+": one + other, "-": one - other, "*": one * other}[sign.text], sign.at)

    def _integer(self, value: int, at: int) -> CedarLiteral:
        if not INTEGER_MIN <= value <= INTEGER_MAX:
            raise self._problem("cedar.can-err", "an integer does not have 64 bits", at)
        return CedarLiteral(at, value)

    def _digits(self) -> int:
        # Cut off, it is still too large.
        return int((self.take().text.lstrip("0") or "0")[:40])

    def _unary(self, depth: int) -> CedarExpression:
        signs: list[PolicyToken] = []
        while self.sees("!", "-"):
            if signs and (self.token.text != signs[0].text or len(signs) == _SIGNS):
                self.wrong(f"at most {_SIGNS} of the same sign, and an operand")
            signs.append(self.take())
        if signs and signs[0].text == "-":
            return self._negative(signs, depth)
        found = self._member(depth)
        for sign in signs:
            found = CedarNot(sign.at, found)
        return found

    def _negative(self, signs: list[PolicyToken], depth: int) -> CedarExpression:
        at = signs[0].at
        if self.token.kind == NUMBER:
            # The smallest integer has no opposite.
            value = self._digits()
        else:
            found = self._member(depth)
            if not isinstance(found, CedarLiteral) or isinstance(found.value, bool | str):
                raise self._problem("cedar.can-err", "`-` can overflow, and Cedar then skips the policy", at)
            value = found.value
        for sign in signs:
            value = self._integer(-value, sign.at).value  # type: ignore[assignment]  # it is an integer
        return CedarLiteral(at, value)

    def _member(self, depth: int) -> CedarExpression:
        found = self._primary(depth)
        while self.sees(".", "["):
            at = self.token.at
            if self.taken("["):
                found = self._below(found, self._quoted(), at)
                self.expect("]")
                continue
            self.take()
            name = self.name("an attribute or a method")
            found = self._call(found, name, at, depth) if self.taken("(") else self._below(found, name, at)
        return found

    def _call(self, of: CedarExpression, name: str, at: int, depth: int) -> CedarCall:
        """Parse a method's arguments."""
        if name not in METHODS:
            self._refuse(name, at)
        arguments = self._listed(")", depth)
        if len(arguments) != (name != "isEmpty"):
            raise self._problem("cedar.syntax", f"`{name}` has {'no' if name == 'isEmpty' else 'one'} argument", at)
        return CedarCall(at, of, name, arguments[0] if arguments else None)

    def _refuse(self, name: str, at: int) -> NoReturn:
        """Raise the error for a function or method that is not compiled."""
        if name in _REFUSED:
            raise self._problem(
                "cedar.construct", f"`{name}`: {_REFUSED[name]}", at, "provide the result as an attribute"
            )
        hint = did_you_mean(name, (*METHODS, *_REFUSED))
        raise self._problem("cedar.construct", f"`{name[:80]}` is not a function or method of Cedar", at, hint)

    def _listed(self, end: str, depth: int) -> tuple[CedarExpression, ...]:
        found: list[CedarExpression] = []
        while not self.sees(end):
            found.append(self._expression(_OR, depth + 1))
            if not self.taken(","):
                break
        self.expect(end)
        return tuple(found)

    def _primary(self, depth: int) -> CedarExpression:
        token = self.token
        if self.taken("true", "false"):
            return CedarLiteral(token.at, token.text == "true")
        if token.kind == NUMBER:
            return self._integer(self._digits(), token.at)
        if token.kind == TEXT:
            return CedarLiteral(token.at, self._quoted())
        if self.taken("("):
            found = self._expression(_OR, depth + 1)
            self.expect(")")
            return found
        if self.taken("["):
            return CedarSet(token.at, self._listed("]", depth))
        if self.sees("{"):
            hint = "compare the members one by one"
            raise self._problem("cedar.construct", "records as values are not compiled", token.at, hint)
        if self.sees("?"):
            raise self._problem("cedar.construct", "templates are not compiled", token.at, "link the template first")
        name = self.name("an expression")
        if self.sees("::"):
            return self._entity(token.at, name)
        if self.sees("("):
            self._refuse(name, token.at)
        if name not in VARIABLES:
            raise self._problem("cedar.syntax", f"unknown name `{name[:80]}`", token.at, did_you_mean(name, VARIABLES))
        return CedarPath(token.at, name)
