"""The canonical form (RFC 9804, 6.2 and 7.2): the one byte form that is hashed and signed.

    c-sexp   = c-string / "(" *c-sexp ")"
    c-string = [ "[" verbatim "]" ] verbatim

Exactly one spelling per value: no white space, no other string form, no leading zero in a length. So
`canonical` of what `parse_canonical` returned gives the same bytes back.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from penstock.codec.limits import CODEC_LIMITS, CodecLimits
from penstock.errors import LimitError, MalformedError

# ----------------------------------------------------------------------------------------------------------------------
# S-expressions in memory, and helpers for reading them.


@dataclass(frozen=True, slots=True)
class Hinted:
    """An atom with a display hint, `[hint]data`; equal only to one with the same hint (RFC 9804, 4.7)."""

    hint: bytes
    data: bytes


SExp: TypeAlias = bytes | Hinted | tuple["SExp", ...]


def head(value: SExp) -> bytes | None:
    """Return the first atom of a list, which names its kind; None if there is none.

    >>> head((b"tag", (b"*",)))
    b'tag'
    """
    if type(value) is tuple and value and type(value[0]) is bytes:
        return value[0]
    return None


def field(value: SExp, name: bytes) -> tuple[SExp, ...] | None:
    """Return the one element of a list that is itself a list headed `name`, or None.

    Raises MalformedError `sexp.duplicate` if there are two: the meaning must not depend on the reader.

    >>> field((b"cert", (b"issuer", b"k1"), (b"subject", b"k2")), b"subject")
    (b'subject', b'k2')
    """
    found: tuple[SExp, ...] | None = None
    if type(value) is tuple:
        for element in value:
            if type(element) is tuple and element and element[0] == name:
                if found is not None:
                    raise MalformedError(
                        "sexp.duplicate",
                        f"the field `{name.decode('ascii', 'backslashreplace')}` occurs twice",
                        hint="keep one of the two fields",
                        field=name,
                    )
                found = element
    return found


def text(value: SExp) -> str:
    """Return an atom as text. Raises MalformedError `sexp.text` unless it is an atom of strict UTF-8."""
    if not isinstance(value, bytes):
        raise MalformedError(
            "sexp.text",
            "text was expected here, not a list or an atom with a display hint",
            hint="write a plain atom",
        )
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError(
            "sexp.text",
            f"the atom is not UTF-8 text (byte {error.start})",
            hint="write text as UTF-8",
            offset=error.start,
        ) from None


def truncated(offset: int, what: str) -> MalformedError:
    """Return the error for input that ends inside `what`."""
    return MalformedError(
        "sexp.truncated", f"the input ends inside {what}", hint="pass the whole S-expression", offset=offset
    )


def syntax(offset: int, what: str, hint: str) -> MalformedError:
    """Return the error for bytes that no S-expression has at this place."""
    return MalformedError("sexp.syntax", f"{what} at byte {offset}", hint=hint, offset=offset)


def trailing(offset: int) -> MalformedError:
    """Return the error for bytes behind the value."""
    return MalformedError(
        "sexp.trailing",
        f"there is more input behind the S-expression, from byte {offset}",
        hint="pass exactly one S-expression",
        offset=offset,
    )


def above(offset: int, what: str, limit: int) -> LimitError:
    """Return the error for input above a limit."""
    return LimitError(
        "sexp.limit",
        f"more than {limit} {what}",
        hint="split the input, or raise the limit where the input is trusted",
        offset=offset,
        limit=limit,
    )


# ----------------------------------------------------------------------------------------------------------------------
# The canonical form.


#: a length has at most this many digits; more cannot be the length of anything in memory
LENGTH_DIGITS = 18

#: lists inside each other that are written by recursion, which is quicker
_SHALLOW = 16
_SEQUENCE = b"(8:sequence"
_OPEN, _CLOSE, _HINT, _HINT_END, _COLON, _ZERO, _NINE = b"()[]:09"


def parse_canonical(data: bytes, *, limits: CodecLimits = CODEC_LIMITS) -> SExp:
    """Read one value in canonical form and nothing behind it.

    Raises MalformedError `sexp.truncated`, `sexp.syntax` or `sexp.trailing`, and LimitError `sexp.limit`;
    each has the field `offset`.

    >>> parse_canonical(b"(3:tag(3:foo))")
    (b'tag', (b'foo',))
    """
    if len(data) > limits.sexp_bytes:
        raise above(limits.sexp_bytes, "bytes", limits.sexp_bytes)
    value, position = _read(data, 0, limits)
    if position != len(data):
        raise trailing(position)
    return value


def parse_elements(data: bytes, *, limits: CodecLimits = CODEC_LIMITS) -> Iterator[tuple[SExp, bytes]]:
    """Yield the elements of lists in canonical form that begin with `sequence`, and the values between such lists.

    Each comes with its bytes, and is read only when it is requested, so that the reader of a large input from a
    stranger can stop in between. Raises as `parse_canonical`. The limits apply to each element.
    """
    position, inside = 0, False
    while position < len(data):
        if inside and data[position] == _CLOSE:
            inside = False
            position += 1
        elif not inside and data.startswith(_SEQUENCE, position):
            inside = True
            position += len(_SEQUENCE)
        else:
            value, end = _read(data, position, limits)
            if end - position > limits.sexp_bytes:
                raise above(position, "bytes", limits.sexp_bytes)
            yield value, data[position:end]
            position = end
    if inside:
        raise truncated(position, "a list")


def _read(data: bytes, position: int, limits: CodecLimits) -> tuple[SExp, int]:
    """Read the value that begins at a position; return it, and where it ends."""
    size = len(data)
    room, depth = limits.sexp_nodes, limits.sexp_depth
    items: list[SExp] = []
    stack: list[list[SExp]] = []
    while position < size:
        octet = data[position]
        if octet == _CLOSE:
            if not stack:
                raise _unexpected(data, position)
            closed = tuple(items)
            items = stack.pop()
            items.append(closed)
            position += 1
        else:
            room -= 1
            if room < 0:
                raise above(position, "atoms and lists", limits.sexp_nodes)
            if octet == _OPEN:
                if len(stack) == depth:
                    raise above(position, "lists inside each other", depth)
                stack.append(items)
                items = []
                position += 1
                continue
            if octet == _HINT:
                hint, position = _hint(data, position)
                atom, position = _verbatim(data, position)
                items.append(Hinted(hint, atom))
            # Inlined from `_verbatim` for lengths of one digit: most atoms of certificates have one.
            elif _ZERO <= octet <= _NINE and data.startswith(b":", position + 1):
                start = position + 2
                position = start + octet - _ZERO
                if position > size:
                    raise truncated(size, "an atom")
                items.append(data[start:position])
            else:
                atom, position = _verbatim(data, position)
                items.append(atom)
        if not stack:
            return items[0], position
    raise truncated(size, "a list" if stack else "the value")


def canonical(value: SExp) -> bytes:
    """Return the canonical form.

    >>> canonical((b"icon", Hinted(b"image/bitmap", b"xxx")))
    b'(4:icon[12:image/bitmap]3:xxx)'
    """
    return _shallow(value, _SHALLOW) or _deep(value)


def _shallow(node: SExp, room: int) -> bytes:
    """Return the canonical form of a value without display hints and with few lists inside each other, or nothing."""
    if type(node) is bytes:
        return b"%d:%b" % (len(node), node)
    if type(node) is not tuple or not room:
        return b""
    parts = [b"%d:%b" % (len(part), part) if type(part) is bytes else _shallow(part, room - 1) for part in node]
    return b"(%b)" % b"".join(parts) if all(parts) else b""


def _deep(value: SExp) -> bytes:
    """Return the canonical form of any value. Nothing here recurses."""
    out: list[bytes] = []
    # None represents a closing parenthesis that is still to be written.
    stack: list[SExp | None] = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, bytes):
            out.append(b"%d:%b" % (len(node), node))
        elif isinstance(node, tuple):
            out.append(b"(")
            stack.append(None)
            stack.extend(reversed(node))
        elif node is None:
            out.append(b")")
        else:
            out.append(b"[%d:%b]%d:%b" % (len(node.hint), node.hint, len(node.data), node.data))
    return b"".join(out)


def _hint(data: bytes, position: int) -> tuple[bytes, int]:
    if position + 1 == len(data):
        raise truncated(len(data), "a display hint")
    hint, end = _verbatim(data, position + 1)
    if end == len(data):
        raise truncated(end, "a display hint")
    if data[end] != _HINT_END:
        raise syntax(end, "a display hint is not closed", "write a display hint as `[LENGTH:octets]`")
    if end + 1 == len(data):
        raise truncated(end + 1, "an atom with a display hint")
    return hint, end + 1


def _verbatim(data: bytes, position: int) -> tuple[bytes, int]:
    colon = data.find(b":", position, position + LENGTH_DIGITS + 1)
    digits = data[position:colon] if colon >= 0 else b""
    # `isdigit` of bytes accepts ASCII digits only. `int` alone would accept signs, blanks and underscores.
    if not digits.isdigit() or (digits[0] == _ZERO and len(digits) > 1):
        raise _unexpected(data, position)
    start = colon + 1
    end = start + int(digits)
    if end > len(data):
        raise truncated(len(data), "an atom")
    return data[start:end], end


def _unexpected(data: bytes, position: int) -> MalformedError:
    """Say why no value starts at `position`."""
    digits = data[position : position + LENGTH_DIGITS + 1]
    if digits.isdigit() and not (digits[0] == _ZERO and len(digits) > 1):
        if len(digits) > LENGTH_DIGITS:
            return above(position, "digits in a length", LENGTH_DIGITS)
        return truncated(len(data), "a length")
    if digits[:1].isdigit():
        return syntax(position, "not a length", "write a length in decimal, without leading zeros, then `:`")
    return syntax(
        position,
        f"unexpected byte 0x{data[position]:02x}",
        "the canonical form has only `(`, `)`, `[hint]` and `LENGTH:octets`, without white space",
    )
