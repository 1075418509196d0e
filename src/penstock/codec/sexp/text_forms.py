r"""Reading any of the three forms (RFC 9804, sections 4 to 7), and writing the transport form.

Where the grammar is ambiguous, or readers are known to differ, this reader does the following.

- Braces: a `{base64}` block stands for a whole value, never for an element of a list (7.1 and 7.3 have it
  only at the top), and what it holds is canonical. Offsets of errors inside count in the decoded bytes.
- Base64: white space is ignored, missing padding is accepted (4.5 allows it), too much of it is not, and bits
  that the padding drops must be zero, so that no two texts that differ in them read the same (RFC 4648, 3.5).
- A length before a quoted, hexadecimal or base64 string must be the true length of the bytes.
- A quoted string has printable ASCII and the escapes of 7.1 only; an octal escape above \377 is not a byte.
- Tokens are taken as long as they go: `foo3:abc` is one token.
"""

import binascii
import re

from penstock.codec.limits import CODEC_LIMITS, CodecLimits
from penstock.codec.sexp.canonical import (
    LENGTH_DIGITS,
    Hinted,
    SExp,
    above,
    canonical,
    parse_canonical,
    syntax,
    trailing,
    truncated,
)

# ----------------------------------------------------------------------------------------------------------------------
# The advanced form for people: one line where it fits, otherwise an element a line.
#
# Each atom takes the most readable form it has: a token, else a quoted string where it is printable text, else
# hexadecimal while it is short, else base64. `parse` gives the same value back.


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
        return f"[{_atom(atom.hint)}]{_atom(atom.data)}"
    if _TOKEN.fullmatch(atom):
        return atom.decode("ascii")
    if _TEXT.fullmatch(atom):
        return f'"{atom.decode("ascii").translate(_ESCAPED)}"'
    if len(atom) <= _HEXADECIMAL:
        return f"#{atom.hex()}#"
    return f"|{binascii.b2a_base64(atom, newline=False).decode('ascii')}|"


# ----------------------------------------------------------------------------------------------------------------------
# Reading any of the three forms (RFC 9804, sections 4 to 7), and writing the transport form.


_WHITESPACE = b" \t\v\r\n\f"
_BLANK = re.compile(rb"[ \t\v\r\n\f]*")
_DECIMAL = re.compile(rb"0|[1-9][0-9]*")
_PRINTABLE = re.compile(rb"[ !#-\[\]-~]*")
_ESCAPE = re.compile(rb"\\(?:([?abfnrtv\"'\\])|([0-7]{3})|x([0-9A-Fa-f]{2})|\r\n|\n\r|\r|\n)")
_ESCAPE_SO_FAR = re.compile(rb"\\(?:[0-7]{0,2}|x[0-9A-Fa-f]?)\Z")
_BASE64 = re.compile(rb"([A-Za-z0-9+/]*)(={0,2})")
_NAMED = dict(zip(b"?abfnrtv\"'\\", b"?\a\b\f\n\r\t\v\"'\\", strict=True))

_VALUE_HINT = 'write an atom as a token, "text", #hex#, |base64| or LENGTH:octets, and a list as (…)'


def parse(data: bytes, *, limits: CodecLimits = CODEC_LIMITS) -> SExp:
    """Read one value in canonical, transport or advanced form; white space may surround it.

    Raises MalformedError `sexp.truncated`, `sexp.syntax` or `sexp.trailing`, and LimitError `sexp.limit`;
    each has the field `offset`.

    >>> parse(b'(tag (foo "hi there" #00ff#))')
    (b'tag', (b'foo', b'hi there', b'\\x00\\xff'))
    """
    if len(data) > limits.sexp_bytes:
        raise above(limits.sexp_bytes, "bytes", limits.sexp_bytes)
    value, position = _read(data, _skip(data, 0), limits)
    position = _skip(data, position)
    if position != len(data):
        raise trailing(position)
    return value


def parse_many(data: bytes, *, limits: CodecLimits = CODEC_LIMITS) -> list[SExp]:
    """Read a file of any number of values, each in any form, with white space around them.

    The limits on S-expressions hold for each value, `file_bytes` and `file_values` for the file. Raises as `parse`
    does.
    """
    if len(data) > limits.file_bytes:
        raise above(limits.file_bytes, "bytes in one file", limits.file_bytes)
    values: list[SExp] = []
    position = _skip(data, 0)
    while position < len(data):
        if len(values) == limits.file_values:
            raise above(position, "values in one file", limits.file_values)
        value, position = _read(data, position, limits)
        values.append(value)
        position = _skip(data, position)
    return values


def transport(value: SExp) -> bytes:
    """Return the canonical form as base64 in braces, for channels that carry only text (RFC 9804, 6.3).

    >>> transport((b"a", b"b", b"c"))
    b'{KDE6YTE6YjE6Yyk=}'
    """
    return b"{%b}" % binascii.b2a_base64(canonical(value), newline=False)


def _skip(data: bytes, position: int) -> int:
    match = _BLANK.match(data, position)
    return match.end() if match else position


def _read(data: bytes, position: int, limits: CodecLimits) -> tuple[SExp, int]:
    """Read the value that starts at `position`; return it and where it ends."""
    if data[position : position + 1] == b"{":
        return _braces(data, position, limits)
    begin = position
    room = limits.sexp_nodes
    items: list[SExp] = []
    stack: list[list[SExp]] = []
    while True:
        position = _skip(data, position)
        octet = data[position : position + 1]
        if not octet:
            raise truncated(position, "a list" if stack else "the value")
        if octet == b")":
            if not stack:
                raise syntax(position, "`)` without `(`", "balance the parentheses")
            closed = tuple(items)
            items = stack.pop()
            items.append(closed)
            position += 1
        else:
            room -= 1
            if room < 0:
                raise above(position, "atoms and lists", limits.sexp_nodes)
            if octet == b"(":
                if len(stack) == limits.sexp_depth:
                    raise above(position, "lists inside each other", limits.sexp_depth)
                stack.append(items)
                items = []
                position += 1
                continue
            atom, position = _hinted(data, position) if octet == b"[" else _string(data, position)
            items.append(atom)
        if position - begin > limits.sexp_bytes:
            raise above(begin + limits.sexp_bytes, "bytes", limits.sexp_bytes)
        if not stack:
            return items[0], position


def _braces(data: bytes, position: int, limits: CodecLimits) -> tuple[SExp, int]:
    end = data.find(b"}", position)
    if end < 0:
        raise truncated(len(data), "a `{…}` block")
    if end - position > 2 * limits.sexp_bytes:
        raise above(position, "bytes", 2 * limits.sexp_bytes)
    return parse_canonical(_base64(data[position + 1 : end], position), limits=limits), end + 1


def _hinted(data: bytes, position: int) -> tuple[Hinted, int]:
    hint, position = _string(data, _skip(data, position + 1))
    position = _skip(data, position)
    if position == len(data):
        raise truncated(position, "a display hint")
    if data[position : position + 1] != b"]":
        raise syntax(position, "a display hint is not closed", "write a display hint as `[hint]`")
    found, position = _string(data, _skip(data, position + 1))
    return Hinted(hint, found), position


def _string(data: bytes, position: int) -> tuple[bytes, int]:
    """Read one simple-string of the grammar."""
    if token := _TOKEN.match(data, position):
        return token.group(), token.end()
    start, length = position, None
    if decimal := _DECIMAL.match(data, position):
        position = decimal.end()
        if position - start > LENGTH_DIGITS:
            raise above(start, "digits in a length", LENGTH_DIGITS)
        length = int(decimal.group())
    kind = data[position : position + 1]
    if kind == b":":  # only with a length: a `:` without one starts a token
        end = position + 1 + (length or 0)
        if end > len(data):
            raise truncated(len(data), "an atom")
        return data[position + 1 : end], end
    if kind == b'"':
        found, end = _quoted(data, position + 1)
    elif kind in (b"#", b"|"):
        close = data.find(kind, position + 1)
        if close < 0:
            raise truncated(len(data), "a hexadecimal string" if kind == b"#" else "a base64 string")
        body, end = data[position + 1 : close], close + 1
        found = _hexadecimal(body, position) if kind == b"#" else _base64(body, position)
    elif not kind:
        raise truncated(position, "an atom")
    else:
        raise syntax(position, f"unexpected byte 0x{kind[0]:02x}", _VALUE_HINT)
    if length is not None and length != len(found):
        raise syntax(start, f"the length {length} is not that of the string, {len(found)},", "drop the length")
    return found, end


def _quoted(data: bytes, position: int) -> tuple[bytes, int]:
    pieces: list[bytes] = []
    while True:
        if run := _PRINTABLE.match(data, position):
            pieces.append(run.group())
            position = run.end()
        octet = data[position : position + 1]
        if octet == b'"':
            return b"".join(pieces), position + 1
        if not octet:
            raise truncated(position, "a quoted string")
        if octet != b"\\":
            raise syntax(
                position,
                f"byte 0x{octet[0]:02x} in a quoted string",
                "write it as `\\x` and two hexadecimal digits",
            )
        escape = _ESCAPE.match(data, position)
        if escape is None:
            if _ESCAPE_SO_FAR.match(data, position):
                raise truncated(len(data), "an escape")
            raise syntax(position, "unknown escape", 'use \\n, \\t, \\", \\\\, \\xHH, \\OOO or a line end')
        named, octal, hexadecimal = escape.groups()
        if named:
            pieces.append(bytes((_NAMED[named[0]],)))
        elif octal or hexadecimal:
            code = int(octal, 8) if octal else int(hexadecimal, 16)
            if code > 0xFF:
                raise syntax(position, "an octal escape above \\377", "one escape is one byte")
            pieces.append(bytes((code,)))
        position = escape.end()


def _hexadecimal(body: bytes, position: int) -> bytes:
    try:
        return binascii.unhexlify(body.translate(None, _WHITESPACE))
    except binascii.Error:
        raise syntax(position, "not a hexadecimal string", "write pairs of hexadecimal digits") from None


def _base64(body: bytes, position: int) -> bytes:
    match = _BASE64.fullmatch(body.translate(None, _WHITESPACE))
    if match is None:
        raise syntax(position, "not a base64 string", "use A-Z, a-z, 0-9, `+` and `/`, then at most two `=`")
    digits, padding = match.groups()
    missing = -len(digits) % 4
    if missing == 3 or len(padding) > missing:
        raise syntax(position, "base64 of an impossible length", "check for lost or added characters")
    found = binascii.a2b_base64(digits + b"=" * missing)
    if binascii.b2a_base64(found, newline=False)[: len(digits)] != digits:
        raise syntax(position, "base64 with stray bits before its padding", "encode the bytes again")
    return found
