"""The words of the text form of policies, and where each stands."""

import re
from dataclasses import dataclass
from typing import Final

from penstock.errors import LimitError, SelectorError
from penstock.model.limits import DEFAULT_LIMITS, Limits


class PolicyTextError(SelectorError):
    """A policy in the text form cannot be read; `position` is an offset into `text`, and fields say line and column."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a number, a text in quotes, a sign, a comment, or the end."""

    kind: str
    text: str
    at: int

    @property
    def end(self) -> int:
        """Where it ends."""
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
    """Return the error of what is wrong at a place."""
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    told = f"line {line}, column {column}: {message}"
    return PolicyTextError(code, told, text=text, position=position, hint=hint, line=line, column=column)


def tokens(text: str, *, limits: Limits = DEFAULT_LIMITS) -> list[Token]:
    """Return the words of a text, with comments, and its end.

    Raises `PolicyTextError` (`xacml.syntax`), `LimitError` (`xacml.limit`).
    """
    if len(text) > limits.policy_bytes:
        raise LimitError("xacml.limit", f"the text is longer than {limits.policy_bytes} characters")
    half = _HALF.search(text)
    if half is not None:
        # It could not be written again.
        raise problem("xacml.syntax", "half of a letter", text, half.start())
    found: list[Token] = []
    at = 0
    while True:
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        if at == len(text):
            return [*found, Token(END, "", at)]
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise _no_token(text, at)
        found.append(Token(match.lastgroup, match[0].rstrip(), at))
        at = match.end()


def _no_token(text: str, at: int) -> PolicyTextError:
    if text[at] == '"':
        return problem("xacml.syntax", "a text does not end in its line", text, at, "write a line's end as \\n")
    return problem("xacml.syntax", "no word of a policy begins so", text, at)


def unquoted(token: Token, text: str) -> str:
    """Return what stands within quotes. Raises `PolicyTextError` (`xacml.syntax`)."""

    def meant(found: re.Match[str]) -> str:
        point, letter = found.groups()
        if point is not None and int(point, 16) <= 0x10FFFF and not 0xD800 <= int(point, 16) <= 0xDFFF:
            return chr(int(point, 16))
        if letter in _ESCAPES:
            return _ESCAPES[letter]
        place = token.at + 1 + found.start()
        raise problem("xacml.syntax", "no such letter", text, place, r"write \" \\ \n \r \t or \u{hexadecimal digits}")

    return _ESCAPE.sub(meant, token.text[1:-1])


def quoted(text: str) -> str:
    """Return a text within quotes; what does not print is written with digits."""
    return '"' + "".join(_letter(one) for one in text) + '"'


def _letter(letter: str) -> str:
    if letter in _LETTERS:
        return _LETTERS[letter]
    return letter if letter.isprintable() else f"\\u{{{ord(letter):x}}}"
