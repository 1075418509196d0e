"""Tokens of the text form of policies with their positions, and short names of categories, functions and operators."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, NoReturn

from penstock.errors import LimitError, MalformedError, SelectorError
from penstock.policy.language.datatypes import DOUBLE, INTEGER, STRING, Bag, DataType, Function, Kind
from penstock.policy.language.functions import FUNCTIONS, V1, V2, V3
from penstock.policy.language.requests import ACTION, CATEGORIES, ENVIRONMENT, RESOURCE, SUBJECT
from penstock.policy.limits import POLICY_LIMITS, PolicyLimits
from penstock.policy.syntax.builder import at as located_at
from penstock.policy.syntax.builder import check_depth

_SUBJECTS: Final = SUBJECT.removesuffix("access-subject")
CATEGORY: Final[Mapping[str, str]] = {
    "subject": SUBJECT,
    "resource": RESOURCE,
    "action": ACTION,
    "environment": ENVIRONMENT,
    **{name: f"{_SUBJECTS}{name}" for name in CATEGORIES.values()},
}
CATEGORY_NAME: Final = {category: name for name, category in CATEGORY.items()}

#: keywords, which cannot be names of attributes and variables
KEYWORDS: Final = frozenset(
    {
        "namespace", "attribute", "policy", "policyset", "rule", "target", "clause", "condition", "permit", "deny",
        "on", "obligation", "advice", "apply", "reference", "variable", "description", "issuer", "version", "earliest",
        "latest", "category", "id", "type", "required", "and", "or", "not", "in", "true", "false", "function", "select",
        "xpath", "of", "context", "prefix",
    }
)  # fmt: skip

COMPARISONS: Final = {
    "==": "equal", "<": "less-than", "<=": "less-than-or-equal", ">": "greater-than", ">=": "greater-than-or-equal",
}  # fmt: skip
#: the operator with exchanged operands
FLIPPED: Final = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ARITHMETIC: Final = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "mod"}
_MEANT: Final = {**COMPARISONS, **_ARITHMETIC, "in": "is-in"}
#: operators that take more than two
MANY: Final = ("+", "*", "and", "or")


def _shortest(found: Mapping[str, object], orders: tuple[str, ...]) -> dict[str, str]:
    """Return ids by their last part; if several share it, the first prefix wins."""
    short: dict[str, str] = {}
    for beginning in orders:
        for one in found:
            if one.startswith(beginning):
                short.setdefault(one.rpartition(":")[2], one)
    return short


_FUNCTION: Final = _shortest(FUNCTIONS, (V1, V2, V3))


def function_id(name: str) -> str:
    """Return the id of a function with a short name; any other name is returned unchanged."""
    return _FUNCTION.get(name, name)


def short_name(function: Function) -> str | None:
    """Return the short name of a function; None for another version of the same name."""
    return function.name if _FUNCTION.get(function.name) == function.id else None


def operator_function(sign: str, of_type: Kind) -> Function:
    """Return the function of an operator for a type. Raises `MalformedError` (`xacml.arguments`)."""
    name = sign if sign in ("and", "or") else f"{of_type}-{_MEANT.get(sign)}"
    if (sign, of_type) == ("+", STRING):
        name = "string-concatenate"
    found = None if isinstance(of_type, Bag) else _FUNCTION.get(name)
    if found is None:
        raise MalformedError("xacml.arguments", f"`{sign}` is not defined for {of_type}")
    return FUNCTIONS[found]


def _operators() -> dict[Function, str]:
    found = {FUNCTIONS[f"{V1}{sign}"]: sign for sign in ("and", "or")}
    found[FUNCTIONS[f"{V2}string-concatenate"]] = "+"
    for short, one in _FUNCTION.items():
        of_type, _, name = short.partition("-")
        for sign, meant in (*COMPARISONS.items(), *_ARITHMETIC.items()):
            plain = sign in COMPARISONS or of_type in (INTEGER.name, DOUBLE.name)
            if name == meant and plain and FUNCTIONS[one].takes[0] in FUNCTIONS[one].takes[-1:]:
                found[FUNCTIONS[one]] = sign
    return found


OPERATORS: Final[Mapping[Function, str]] = _operators()


def one_and_only(of_type: DataType) -> Function:
    """Return the function that returns the only value of a bag."""
    return FUNCTIONS[_FUNCTION[f"{of_type}-one-and-only"]]


def bag_function(of_type: Kind) -> Function:
    """Return the function that puts values of a type into a bag."""
    return FUNCTIONS[_FUNCTION[f"{of_type}-bag"]]


def is_in(of_type: Kind) -> Function | None:
    """Return the function that tests whether a bag contains a value; paths have none."""
    found = _FUNCTION.get(f"{of_type}-is-in")
    return None if found is None else FUNCTIONS[found]


class PolicyTextError(SelectorError):
    """A policy in the text form cannot be read; `position` is an offset into `text`, and fields say line and column."""


@dataclass(frozen=True, slots=True)
class PolicyToken:
    """A word, a number, a text in quotes, a sign, a comment, or the end."""

    kind: str
    text: str
    at: int

    @property
    def end(self) -> int:
        """The end position."""
        return self.at + len(self.text)


NAME, NUMBER, TEXT, SIGN, COMMENT, END = "name", "number", "text", "sign", "comment", "end"
NAME_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[-.][A-Za-z0-9_]+)*", re.ASCII)
_TOKEN: Final = re.compile(
    rf"""(?P<{COMMENT}>//[^\n]*)
    |(?P<{NAME}>{NAME_PATTERN.pattern})
    |(?P<{NUMBER}>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    |(?P<{TEXT}>"(?:[^"\\\n]|\\[^\n])*")
    |(?P<{SIGN}>==|!=|<=|>=|[-+*/%<>=(){{}}\[\],:])
    """,
    re.ASCII | re.VERBOSE,
)
_SPACE: Final = re.compile(r"[ \t\r\n\ufeff]*")
_ESCAPE: Final = re.compile(r"\\(?:u\{([0-9A-Fa-f]{1,6})\}|(.))")
_HALF: Final = re.compile(r"[\ud800-\udfff]")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_LETTERS: Final = {letter: f"\\{name}" for name, letter in _ESCAPES.items()}


def problem(code: str, message: str, text: str, position: int, hint: str = "") -> PolicyTextError:
    """Return the error for a problem at a place."""
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    told = f"line {line}, column {column}: {message}"
    return PolicyTextError(code, told, text=text, position=position, hint=hint, line=line, column=column)


@dataclass(frozen=True, slots=True)
class TextPlace:
    """A position in a text as the place of an error."""

    text: str
    position: int

    def located(self, error: MalformedError) -> MalformedError:
        """Return an error with this place; the same error if it has a place already, or is about a limit."""
        if isinstance(error, PolicyTextError | LimitError):
            return error
        return problem(error.code, error.message, self.text, self.position, error.hint)


def tokens(text: str, *, limits: PolicyLimits = POLICY_LIMITS) -> list[PolicyToken]:
    """Return the words of a text, with comments, and its end.

    Raises `PolicyTextError` (`xacml.syntax`), `LimitError` (`xacml.limit`).
    """
    half = None if len(text) > limits.policy_bytes else _HALF.search(text)
    if half is not None:
        # It could not be encoded again.
        raise problem("xacml.syntax", "half of a surrogate pair", text, half.start())
    return split_tokens(text, _TOKEN, limits, _no_token)


def split_tokens(
    text: str, pattern: re.Pattern[str], limits: PolicyLimits, unexpected: Callable[[str, int], PolicyTextError]
) -> list[PolicyToken]:
    """Return the tokens of a text by a pattern with a group for each kind, and the end.

    Raises `LimitError` (`xacml.limit`), and what `unexpected` returns for a place where there is none.
    """
    if len(text) > limits.policy_bytes:
        raise LimitError("xacml.limit", f"the text is longer than {limits.policy_bytes} characters")
    found: list[PolicyToken] = []
    at = 0
    while True:
        at = after_space(text, at)
        if at == len(text):
            return [*found, PolicyToken(END, "", at)]
        match = pattern.match(text, at)
        if match is None or match.lastgroup is None:
            raise unexpected(text, at)
        found.append(PolicyToken(match.lastgroup, match[0].rstrip(), at))
        at = match.end()


def after_space(text: str, at: int) -> int:
    """Return the place after white space."""
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _no_token(text: str, at: int) -> PolicyTextError:
    if text[at] == '"':
        return problem("xacml.syntax", "a string must end on its line", text, at, "write a line's end as \\n")
    return problem("xacml.syntax", "unexpected character", text, at)


def unquoted(token: PolicyToken, text: str) -> str:
    """Return the content of a quoted string. Raises `PolicyTextError` (`xacml.syntax`)."""

    def meant(found: re.Match[str]) -> str:
        point, letter = found.groups()
        if point is not None and int(point, 16) <= 0x10FFFF and not 0xD800 <= int(point, 16) <= 0xDFFF:
            return chr(int(point, 16))
        if letter in _ESCAPES:
            return _ESCAPES[letter]
        place = token.at + 1 + found.start()
        raise problem(
            "xacml.syntax", "unknown escape sequence", text, place, r"write \" \\ \n \r \t or \u{hexadecimal digits}"
        )

    return _ESCAPE.sub(meant, token.text[1:-1])


def quoted(text: str) -> str:
    """Return a quoted string; characters that do not print are escaped."""
    return '"' + "".join(_letter(one) for one in text) + '"'


def _letter(letter: str) -> str:
    if letter in _LETTERS:
        return _LETTERS[letter]
    return letter if letter.isprintable() else f"\\u{{{ord(letter):x}}}"


# ----------------------------------------------------------------------------------------------------------------------
# Reading tokens one after the other, with the place in each error.


class TokenReader:
    """The tokens of a text without comments, one after the other. Every error has its place.

    `syntax` is the code of errors, and `reserved` has the words that are not names.
    """

    def __init__(self, text: str, found: Iterable[PolicyToken], *, syntax: str, reserved: frozenset[str]) -> None:
        self.text = text
        self._tokens = [one for one in found if one.kind != COMMENT]
        self._next = 0
        self._syntax = syntax
        self._reserved = reserved

    @property
    def token(self) -> PolicyToken:
        """The next one."""
        return self._tokens[self._next]

    def take(self) -> PolicyToken:
        """Consume and return the next token."""
        found = self.token
        self._next += found.kind != END
        return found

    def sees(self, *words: str) -> bool:
        """Return whether one of some words or signs comes next."""
        return self.token.kind in (NAME, SIGN) and self.token.text in words

    def taken(self, *words: str) -> bool:
        """Consume one of some words if it comes next."""
        found = self.sees(*words)
        if found:
            self.take()
        return found

    def expect(self, word: str) -> PolicyToken:
        """Consume a word or a sign that must come next."""
        if not self.sees(word):
            self.wrong(f"`{word}`")
        return self.take()

    def wrong(self, wanted: str, hint: str = "") -> NoReturn:
        """Raise the error that something else is expected here."""
        found = f"`{self.token.text[:80]}`" if self.token.kind != END else "the end"
        raise problem(self._syntax, f"expected {wanted}, found {found}", self.text, self.token.at, hint)

    def name(self, what: str) -> str:
        """Take a name, which is not a reserved word."""
        if self.token.kind != NAME or self.token.text in self._reserved:
            self.wrong(what)
        return self.take().text


class Words(TokenReader):
    """The tokens of a text in our language."""

    def __init__(self, text: str, limits: PolicyLimits) -> None:
        super().__init__(text, tokens(text, limits=limits), syntax="xacml.syntax", reserved=KEYWORDS)
        self.limits = limits

    def before(self, sign: str) -> bool:
        """Return whether a sign comes after the next word."""
        following = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        return following.kind == SIGN and following.text == sign

    def quoted(self, what: str = "a text in quotes") -> str:
        """Take a text in quotes."""
        if self.token.kind != TEXT:
            self.wrong(what)
        return unquoted(self.take(), self.text)

    def id(self, what: str) -> str:
        """Take a name, or any id in quotes."""
        return self.quoted() if self.token.kind == TEXT else self.name(what)

    def place(self, position: int) -> "TextPlace":
        """Return a position as the place of an error."""
        return TextPlace(self.text, position)

    def at(self, position: int) -> AbstractContextManager[None]:
        """Add the place to errors."""
        return located_at(self.place(position))

    def check_depth(self, depth: int) -> None:
        """Check the nesting depth. Raises `LimitError` (`xacml.limit`)."""
        check_depth(depth, self.limits)
