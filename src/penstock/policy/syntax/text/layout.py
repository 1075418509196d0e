"""The text form laid out: lines stay as they are cut, and are indented and spaced as all others are."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from penstock.policy.limits import POLICY_LIMITS, PolicyLimits
from penstock.policy.syntax.text.expressions import LEVELS
from penstock.policy.syntax.text.names import KEYWORDS
from penstock.policy.syntax.text.tokens import COMMENT, END, NAME, NUMBER, SIGN, TEXT, PolicyToken, tokens

_INDENT: Final = "    "
_OPEN: Final = ("{", "(", "[")
_CLOSE: Final = ("}", ")", "]")
#: what a line begins with that goes on with the one before
_CONTINUED: Final = ("clause", *LEVELS)


def lay_out(text: str, *, limits: PolicyLimits = POLICY_LIMITS) -> str:
    """Return a text laid out; it means what it meant, and comments stay where they are.

    >>> print(lay_out('policy  p{apply deny-overrides   // none\\n\\n\\n rule r{permit}\\n }'), end="")
    policy p { apply deny-overrides  // none
    <BLANKLINE>
        rule r { permit }
    }

    Raises `PolicyTextError` (`xacml.syntax`) where it has no words, `LimitError` (`xacml.limit`).
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
    """Yield the words of each line, and whether an empty one is before it."""
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
    """Say whether a value begins after a word, so that a minus there belongs to the number after it."""
    if before is None:
        return True
    return _text(before) in KEYWORDS or (before.kind == SIGN and before.text not in _CLOSE)
