"""One root error. Each error carries a stable code, the facts, and what to do next.

    PenstockError
    ├── MalformedError      the input is not what it claims to be          exit status 2
    │   ├── LimitError      the input is larger or deeper than allowed
    │   └── SelectorError   a selector does not parse or does not type-check (points at the place)
    ├── RefusedError        the input is well-formed, and the answer is no  exit status 1
    │   └── EvaluationError a selector has no value on this row: overflow, division by zero, NaN
    └── FailedError         something outside (a file, a server) failed     exit status 3

Programs compare `code`, never the message. All codes are listed in docs/reference/errors.md.
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from itertools import islice
from typing import ClassVar, Final

__all__ = [
    "EvaluationError",
    "FailedError",
    "LimitError",
    "MalformedError",
    "PenstockError",
    "RefusedError",
    "SelectorError",
]


def printable(text: str) -> str:
    """Return the text with a replacement character for everything that does not print.

    >>> printable("two\\nlines")
    'two�lines'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


#: how many known words, and how much of each, are compared with one that is not known
_COMPARED: Final = 1_000
_COMPARED_LENGTH: Final = 120


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint with the known words that are most similar to an unknown one, or another hint if none is.

    >>> did_you_mean("strng", ["string", "integer"])
    'did you mean `string`?'
    >>> did_you_mean("x", ["string", "integer"], "it is one of string, integer")
    'it is one of string, integer'
    """
    words = {_compared(one): one for one in islice(known, _COMPARED)}
    near = get_close_matches(_compared(word), words, 2)
    shown = " or ".join(f"`{words[one][:_COMPARED_LENGTH]}`" for one in near)
    return f"did you mean {shown}?" if near else otherwise


def _compared(word: str) -> str:
    # What all options begin with would make any two of them similar.
    return word[:_COMPARED_LENGTH].lstrip("-").casefold()


def _revive(cls: type["PenstockError"], args: tuple[object, ...], state: dict[str, object]) -> "PenstockError":
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class PenstockError(Exception):
    """The root of everything Penstock raises on purpose.

    `code` is stable and dotted (`trust.expired`), `message` says what went wrong, `hint` what to do next, and
    `fields` holds the facts for programs. Secrets never go into any of them.
    """

    exit_status: ClassVar[int] = 3

    def __init__(self, code: str, message: str, *, hint: str = "", **fields: object) -> None:
        # Messages quote input, which must not be able to break a log line or a terminal.
        message = printable(message)
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.fields = fields
        if hint:
            # Python prints notes below a traceback, which is what a developer sees first.
            self.add_note(f"hint: {hint}")

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    def __reduce__(self) -> tuple[Callable[..., "PenstockError"], tuple[object, ...]]:
        # Errors cross process borders; the default would call the constructor with the message alone.
        return _revive, (type(self), self.args, self.__dict__)

    def as_dict(self) -> dict[str, object]:
        """Return the error as plain data, for `-o json` and for logs."""
        data: dict[str, object] = {"code": self.code, "message": self.message}
        if self.hint:
            data["hint"] = self.hint
        if self.fields:
            data["fields"] = {key: printable(str(value)) for key, value in self.fields.items()}
        return data


class MalformedError(PenstockError):
    """The input is not what it claims to be."""

    exit_status = 2


def expect(value: object, kind: type | tuple[type, ...], what: str, hint: str = "") -> None:
    """Check the type of an argument at a door that programs come through.

    Raises `MalformedError` (`argument.type`): what is of a wrong type would otherwise fail later, or silently grant
    nothing.
    """
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(k.__name__ for k in kinds)
        raise MalformedError("argument.type", f"{what}: expected {names}, found {type(value).__name__}", hint=hint)


class LimitError(MalformedError):
    """The input is larger, deeper or more numerous than `Limits` allows."""


class SelectorError(MalformedError):
    """A selector does not parse or does not type-check; `position` is an offset into `text`."""

    def __init__(self, code: str, message: str, *, text: str, position: int, hint: str = "", **fields: object) -> None:
        super().__init__(code, message, hint=hint, position=position, **fields)
        self.text = text
        self.position = position

    def pointer(self) -> str:
        """Return the line of the selector at fault with a caret under the place."""
        start = self.text.rfind("\n", 0, self.position) + 1
        end = self.text.find("\n", self.position)
        line = self.text[start : end if end >= 0 else len(self.text)]
        return f"{line}\n{' ' * (self.position - start)}^"


class RefusedError(PenstockError):
    """The input is well-formed, and the answer is no."""

    exit_status = 1

    @property
    def detail(self) -> object:
        """What was granted and which rights are missing, if the owner of the type lets the client ask; else None."""
        return self.fields.get("detail")


class EvaluationError(RefusedError):
    """A selector has no value on this row; enforced as a refusal."""


class FailedError(PenstockError):
    """Something outside Penstock failed: a file, a server, a tool."""

    exit_status = 3
