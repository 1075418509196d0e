"""The advanced form for people: one line where it fits, otherwise an element a line.

Each atom takes the most readable form it has: a token, else a quoted string where it is printable text, else
hexadecimal while it is short, else base64. `parse` gives the same value back.
"""

import binascii
import re

from penstock.codec.sexp.values import Hinted, SExp

_TOKEN = re.compile(rb"[A-Za-z\-./_:*+=][A-Za-z0-9\-./_:*+=]*")
_TEXT = re.compile(rb"[ -~\t\n\r]*")
_ESCAPED = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"}

#: binary up to this many bytes is written in hexadecimal, which people compare by eye
_HEXADECIMAL = 20


def advanced(value: SExp, *, width: int = 100) -> str:
    """Return the value as text of lines no wider than `width`, where its atoms allow.

    >>> print(advanced((b"tag", (b"spend", (b"account", b"12 34"), b"\\x00\\xff")), width=36))
    (tag
     (spend (account "12 34") #00ff#))
    """
    words, starts, closes = _flatten(value)
    lines: list[str] = []
    line = ""
    broken = 0  # lists around this place that are spread over lines
    index = 0
    while index < len(words):
        word = words[index]
        if word == ")":
            line += word
            broken -= 1
            index += 1
            continue
        if line and not line.endswith("("):
            lines.append(line)
            # Deep values must not become ever wider: the indentation stops at half the width.
            line = " " * min(broken, width // 2)
        close = closes.get(index)
        if close is None:
            line += word
            index += 1
        elif len(line) + starts[close] + 1 - starts[index] <= width:
            line += _one_line(words, starts, index, close)
            index = close + 1
        else:
            line += word
            broken += 1
            index += 1
    lines.append(line)
    return "\n".join(lines)


def _flatten(value: SExp) -> tuple[list[str], list[int], dict[int, int]]:
    """Return the words of the value, the column of each if all stood in one line, and `(` → its `)`."""
    words: list[str] = []
    starts: list[int] = []
    closes: dict[int, int] = {}
    opened: list[int] = []
    column = 0
    stack: list[SExp | None] = [value]
    while stack:
        node = stack.pop()
        if node is None:
            word = ")"
            closes[opened.pop()] = len(words)
        else:
            if words and words[-1] != "(":
                column += 1
            if isinstance(node, tuple):
                word = "("
                opened.append(len(words))
                stack.append(None)
                stack.extend(reversed(node))
            else:
                word = _atom(node)
        words.append(word)
        starts.append(column)
        column += len(word)
    return words, starts, closes


def _one_line(words: list[str], starts: list[int], first: int, last: int) -> str:
    pieces: list[str] = []
    end = starts[first]
    for index in range(first, last + 1):
        pieces.append(" " * (starts[index] - end))
        pieces.append(words[index])
        end = starts[index] + len(words[index])
    return "".join(pieces)


def _atom(atom: bytes | Hinted) -> str:
    if isinstance(atom, Hinted):
        return f"[{_atom(atom.hint)}]{_atom(atom.octets)}"
    if _TOKEN.fullmatch(atom):
        return atom.decode("ascii")
    if _TEXT.fullmatch(atom):
        return f'"{atom.decode("ascii").translate(_ESCAPED)}"'
    if len(atom) <= _HEXADECIMAL:
        return f"#{atom.hex()}#"
    return f"|{binascii.b2a_base64(atom, newline=False).decode('ascii')}|"
