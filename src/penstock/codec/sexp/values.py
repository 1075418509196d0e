"""S-expressions in memory, and helpers for reading them."""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import LimitError, MalformedError


@dataclass(frozen=True, slots=True)
class Hinted:
    """An atom with a display hint, `[hint]octets`; equal only to one with the same hint (RFC 9804, 4.7)."""

    hint: bytes
    octets: bytes


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

    Raises MalformedError `sexp.duplicate` where there are two: which was meant must not depend on the reader.

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
