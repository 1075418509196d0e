"""Cut the text of a selector into tokens, and refuse everything that the language does not have.

This runs before the parser proper and is linear in the text. It settles what each word means, so that the parser
never sees a name, a string or a number of the user's: keywords of other SQL dialects cannot change the meaning.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final

from penstock.errors import SelectorError
from penstock.model.values import INTEGER_MAX
from penstock.selector.ast import AttributeReference, Literal, literal, reserved, too_large
from penstock.selector.limits import SelectorLimits


class TokenKind(Enum):
    """The role of a token in the grammar."""

    OPERAND = auto()
    OPERATOR = auto()
    WORD = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class SelectorToken:
    """A token; `text` is the operator or the keyword in capitals, `operand` is the value of an operand."""

    kind: TokenKind
    text: str
    at: int
    operand: AttributeReference | Literal | None = None


#: The one integer beyond 64 bits that may be written, directly after a minus.
MINUS_ONLY: Final = INTEGER_MAX + 1

_TOKEN: Final = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<comment>--|/\*)
    | (?P<string>'[^']*(?:''[^']*)*')
    | (?P<quoted>"[^"]*(?:""[^"]*)*")
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<word>[^\W\d]\w*)
    | (?P<operator><=|>=|<>|!=|\|\||[=<>+\-*/(),])
    """,
    re.VERBOSE,
)
_TIMESTAMP: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?([+-][0-9]{2}:[0-9]{2})?"
)
_UNSUPPORTED: Final = {
    ";": "a selector is one condition; leave the semicolon out",
    ".": "names have no qualifier; write a name that holds a dot in double quotes",
    "?": "there are no parameters; write the value as a literal",
    ":": "there are no parameters and no casts; write the value as a literal",
    "@": "there are no parameters; write the value as a literal",
    "$": "there are no parameters; write a name that holds a dollar sign in double quotes",
    "%": "the arithmetic operators are + - * /",
    "[": "there are no arrays; write other names in double quotes",
    "`": "write other names in double quotes",
    "{": "there are no templates",
}


def tokenize(text: str, limits: SelectorLimits) -> list[SelectorToken]:
    """Cut `text` into tokens, ending with an END token.

    Raises `LimitError` (`selector.limit`) and `SelectorError`: `selector.syntax`, `selector.unsupported`,
    `selector.literal`.
    """
    if len(text) > limits.selector_length:
        raise too_large("length", limits.selector_length, "split the selector")
    tokens = list(_fold_timestamps(text, _scan(text)))
    # Each node takes at most three tokens of its own (NOT BETWEEN AND), and two more for parentheses.
    if len(tokens) > 5 * limits.selector_nodes:
        raise too_large("nodes", limits.selector_nodes, "split the selector")
    return tokens


def _scan(text: str) -> Iterator[SelectorToken]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unknown_character(text, position)
        found = match.group()
        end = match.end()
        match match.lastgroup:
            case "string" | "quoted":
                yield _quoted(text, found, position)
            case "number":
                if end < len(text) and (text[end].isalnum() or text[end] in "_."):
                    raise SelectorError(
                        "selector.syntax",
                        f"`{found}` runs into what follows",
                        text=text,
                        position=position,
                        hint="numbers look like 12, 1.5 or 1e3; put a space after one",
                    )
                yield SelectorToken(TokenKind.OPERAND, found, position, _number(text, found, position))
            case "word":
                yield _word(found, position)
            case "operator":
                yield SelectorToken(TokenKind.OPERATOR, "<>" if found == "!=" else found, position)
            case "comment":
                raise SelectorError(
                    "selector.unsupported",
                    f"`{found}` starts a comment",
                    text=text,
                    position=position,
                    hint="selectors have no comments; put a space between two minus signs",
                )
            case _:
                pass
        position = end
    yield SelectorToken(TokenKind.END, "", len(text))


def _word(word: str, at: int) -> SelectorToken:
    if not reserved(word):
        return SelectorToken(TokenKind.OPERAND, word, at, AttributeReference(word, at))
    keyword = word.upper()
    match keyword:
        case "TRUE" | "FALSE":
            return SelectorToken(TokenKind.OPERAND, keyword, at, literal(keyword == "TRUE", at))
        case "NULL":
            return SelectorToken(TokenKind.OPERAND, keyword, at, literal(None, at))
        case _:
            return SelectorToken(TokenKind.WORD, keyword, at)


def _quoted(text: str, found: str, at: int) -> SelectorToken:
    mark = found[0]
    content = found[1:-1].replace(mark * 2, mark)
    _check_text(text, content, at)
    if mark == "'":
        return SelectorToken(TokenKind.OPERAND, found, at, literal(content, at))
    if not content:
        raise SelectorError(
            "selector.syntax", "a quoted name is empty", text=text, position=at, hint="strings take single quotes"
        )
    return SelectorToken(TokenKind.OPERAND, found, at, AttributeReference(content, at))


def _check_text(text: str, content: str, at: int) -> None:
    try:
        content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SelectorError(
            "selector.literal",
            "a string holds a lone surrogate",
            text=text,
            position=at,
            hint="use whole Unicode characters",
        ) from error


def _number(text: str, found: str, at: int) -> Literal:
    if any(mark in found for mark in ".eE"):
        real = float(found)
        if real in (float("inf"), float("-inf")):
            raise literal_error(text, at, f"`{_shorten(found)}` is too large for a float")
        return literal(real, at)
    # Python refuses to convert thousands of digits, and no integer of ours has more than 19.
    digits = found.lstrip("0") or "0"
    if len(digits) > 19 or int(digits) > MINUS_ONLY:
        raise literal_error(text, at, f"`{_shorten(found)}` does not fit into 64 bits")
    return literal(int(digits), at)


def literal_error(text: str, at: int, message: str) -> SelectorError:
    """Return the error for a number that cannot be held."""
    return SelectorError(
        "selector.literal",
        message,
        text=text,
        position=at,
        hint="integers lie between -9223372036854775808 and 9223372036854775807; floats are finite doubles",
    )


def _fold_timestamps(text: str, tokens: Iterator[SelectorToken]) -> Iterator[SelectorToken]:
    """Merge the word TIMESTAMP and the string after it into one literal."""
    previous: SelectorToken | None = None
    for token in tokens:
        if previous is not None:
            if _is_string(token) and _is_bare_name(text, previous):
                if previous.text.upper() != "TIMESTAMP":
                    raise SelectorError(
                        "selector.unsupported",
                        f"`{_shorten(previous.text)}` is not a prefix of a literal",
                        text=text,
                        position=previous.at,
                        hint="literals are 'text', 12, 1.5, TRUE, FALSE, NULL and TIMESTAMP '2026-01-31 09:00:00'",
                    )
                yield _timestamp(text, previous, token)
                previous = None
                continue
            yield previous
        previous = token
    if previous is not None:
        yield previous


def _is_string(token: SelectorToken) -> bool:
    return isinstance(token.operand, Literal) and isinstance(token.operand.value, str)


def _is_bare_name(text: str, token: SelectorToken) -> bool:
    return isinstance(token.operand, AttributeReference) and text[token.at] != '"'


def _timestamp(text: str, word: SelectorToken, token: SelectorToken) -> SelectorToken:
    content = token.text[1:-1]
    try:
        moment = datetime.fromisoformat(content if _TIMESTAMP.fullmatch(content) else "")
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise SelectorError(
            "selector.literal",
            "this is not a timestamp",
            text=text,
            position=token.at,
            hint="write it as 'YYYY-MM-DD hh:mm:ss', optionally with .ffffff and an offset such as +00:00",
        ) from error
    return SelectorToken(TokenKind.OPERAND, word.text, word.at, literal(moment, word.at))


def _unknown_character(text: str, at: int) -> SelectorError:
    character = text[at]
    if character in "'\"":
        return SelectorError(
            "selector.syntax", "this quote is never closed", text=text, position=at, hint="double a quote inside quotes"
        )
    if character in _UNSUPPORTED:
        return SelectorError(
            "selector.unsupported",
            f"`{character}` is not part of the language",
            text=text,
            position=at,
            hint=_UNSUPPORTED[character],
        )
    return SelectorError(
        "selector.syntax",
        f"unexpected character U+{ord(character):04X}",
        text=text,
        position=at,
        hint="write other names in double quotes and strings in single quotes",
    )


def _shorten(found: str) -> str:
    return found if len(found) <= 40 else found[:37] + "..."
