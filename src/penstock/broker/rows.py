"""Events as they travel between clients and their broker: rows, many in one message."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol, TypeAlias

from penstock.codec.wire import Encoded, Wire, Writable, encode
from penstock.errors import LimitError, MalformedError
from penstock.model.limits import DEFAULT_LIMITS, Limits

_TEXT_LENGTH: Final = 4_096

Row: TypeAlias = list[Wire]
"""An event on the wire: id, time, values."""


class Message(Protocol):
    """What carries rows."""

    def to_tree(self) -> list[Writable]:
        """Return it as a plain tree."""


def row_of(values: Mapping[str, object], id: str, time: datetime | None) -> Row:  # noqa: A002  # as events call it
    """Return an event as it travels; the values are those of all attributes, in their order."""
    return [id, time, *values.values()]  # type: ignore[list-item]  # values of events are wire values


def write_rows(
    message: Callable[[Sequence[Row]], Message], rows: Sequence[Row], limits: Limits = DEFAULT_LIMITS
) -> list[Encoded]:
    """Return rows in one message, or in more of them where they are too large for one.

    Raises `LimitError` (`wire.limit`) for a row that is too large for any, `MalformedError` (`wire.value`).
    """
    try:
        return [encode(message(rows).to_tree(), limits=limits)]
    except LimitError:
        middle = len(rows) // 2
        if not middle:
            raise
        return [*write_rows(message, rows[:middle], limits), *write_rows(message, rows[middle:], limits)]


def read_rows(items: list[Wire]) -> list[Row]:
    """Read rows, as far as any event has them. Raises `MalformedError` (`protocol.malformed`)."""
    for item in items:
        if type(item) is not list or len(item) < 2:  # its id and time at least
            raise _malformed("a row")
        name, time = item[0], item[1]
        if type(name) is not str or len(name) > _TEXT_LENGTH or (time is not None and type(time) is not datetime):
            raise _malformed("the id or the time of an event")
    return items  # type: ignore[return-value]  # rows, as just seen


def _malformed(what: str) -> MalformedError:
    return MalformedError("protocol.malformed", f"not a message between a client and its broker: {what}")
