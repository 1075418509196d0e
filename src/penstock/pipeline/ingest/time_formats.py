"""Formats of timestamps in a mapping file, as regular expressions that rewrite a text into one that Spark reads.

A format is strict: digits that are not there are not guessed. It is `iso`, `unix`, `unix-ms`, `unix-us`, or a text with
directives:

    %Y      four digits of the year           %H %M %S     two digits of hour, minute and second
    %m %d   two digits of month and day       %f           one to nine digits of a fraction of the second
    %-m %-d %-H                               one or two digits
    %z      `Z`, `+01:00` or `+0100`          %%           a percent sign

Each directive stands at most once, and year, month and day stand in every format.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from penstock.errors import MalformedError

_YEAR, _MONTH, _DAY = "([0-9]{4})", "(0[1-9]|1[0-2])", "(0[1-9]|[12][0-9]|3[01])"
_HOUR, _MINUTE = "([01][0-9]|2[0-3])", "([0-5][0-9])"
_FRACTION: Final = "([0-9]{1,9})"
#: as far as zones go in Java, which is farther than they go on Earth
_ZONE: Final = "(Z|[+-](?:(?:0[0-9]|1[0-7]):[0-5][0-9]|18:00))"
_LOOSE_ZONE: Final = "(Z|[+-](?:(?:0[0-9]|1[0-7]):?[0-5][0-9]|18:?00))"
_DIRECTIVES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "%Y": ("year", _YEAR),
        "%m": ("month", _MONTH),
        "%-m": ("month", "(0?[1-9]|1[0-2])"),
        "%d": ("day", _DAY),
        "%-d": ("day", "(0?[1-9]|[12][0-9]|3[01])"),
        "%H": ("hour", _HOUR),
        "%-H": ("hour", "([01]?[0-9]|2[0-3])"),
        "%M": ("minute", _MINUTE),
        "%S": ("second", _MINUTE),
        "%f": ("fraction", _FRACTION),
        "%z": ("zone", _LOOSE_ZONE),
    }
)
_PIECE: Final = re.compile(r"%-?[A-Za-z%]|%|[^%]", re.ASCII | re.DOTALL)
_LENGTH: Final = 64
_DATE: Final = f"{_YEAR}-{_MONTH}-{_DAY}"


@dataclass(frozen=True, slots=True)
class Rewriting:
    """One shape of a timestamp: an expression for the whole text, and what it becomes, up to the zone.

    `zoned` says whether the zone is part of it.
    """

    pattern: str
    replacement: str
    zoned: bool


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """One format: the shapes of its text, or else a number of units of so many microseconds since 1970."""

    text: str
    rewritings: tuple[Rewriting, ...] = ()
    unit: int = 0
    number: str = ""


RFC3339: Final = TimeFormat(
    "rfc3339",
    (Rewriting(f"{_DATE}[T ]{_HOUR}:{_MINUTE}:{_MINUTE}(\\.[0-9]{{1,9}})?{_ZONE}", "$1-$2-$3T$4:$5:$6$7$8", True),),
)
"""What JSON uses. No mapping can name it."""

ISO: Final = TimeFormat(
    "iso",
    (
        *RFC3339.rewritings,
        Rewriting(f"{_DATE}[T ]{_HOUR}:{_MINUTE}:{_MINUTE}(\\.[0-9]{{1,9}})?", "$1-$2-$3T$4:$5:$6$7", False),
        Rewriting(f"{_DATE}[T ]{_HOUR}:{_MINUTE}{_ZONE}", "$1-$2-$3T$4:$5:00$6", True),
        Rewriting(f"{_DATE}[T ]{_HOUR}:{_MINUTE}", "$1-$2-$3T$4:$5:00", False),
        Rewriting(_DATE, "$1-$2-$3T00:00:00", False),
    ),
)
_NAMED: Final[Mapping[str, TimeFormat]] = MappingProxyType(
    {
        "iso": ISO,
        "unix": TimeFormat("unix", unit=1_000_000, number="-?[0-9]{1,12}(?:\\.[0-9]{1,9})?"),
        "unix-ms": TimeFormat("unix-ms", unit=1_000, number="-?[0-9]{1,15}"),
        "unix-us": TimeFormat("unix-us", unit=1, number="-?[0-9]{1,18}"),
    }
)


def time_format(text: str) -> TimeFormat:
    """Read a format.

    >>> time_format("%d.%m.%Y").rewritings[0].replacement
    '$3-$2-$1T00:00:00'

    Raises `MalformedError` (`mapping.format`).
    """
    if text in _NAMED:
        return _NAMED[text]
    parts: list[str] = []
    groups: dict[str, str] = {}
    for piece in _PIECE.findall(text[: _LENGTH + 1]):
        if piece == "%%" or (len(piece) == 1 and piece != "%"):
            parts.append(re.escape("%" if piece == "%%" else piece))
            continue
        if piece not in _DIRECTIVES:
            raise _problem(text, f"`{piece}` is not a directive of a time format")
        name, pattern = _DIRECTIVES[piece]
        if name in groups:
            raise _problem(text, f"the {name} stands twice in a time format")
        groups[name] = f"${len(groups) + 1}"
        parts.append(pattern)
    missing = [name for name in ("year", "month", "day") if name not in groups]
    if missing or len(text) > _LENGTH:
        raise _problem(text, f"a time format lacks the {missing[0]}" if missing else "a time format is too long")
    for finer, coarser in (("minute", "hour"), ("second", "minute"), ("fraction", "second")):
        if finer in groups and coarser not in groups:
            raise _problem(text, f"a time format has the {finer} and not the {coarser}")
    clock = ":".join(groups.get(name, "00") for name in ("hour", "minute", "second"))
    fraction = f".{groups['fraction']}" if "fraction" in groups else ""
    replacement = f"{groups['year']}-{groups['month']}-{groups['day']}T{clock}{fraction}{groups.get('zone', '')}"
    return TimeFormat(text, (Rewriting("".join(parts), replacement, "zone" in groups),))


def _problem(text: str, message: str) -> MalformedError:
    return MalformedError(
        "mapping.format",
        message,
        hint="write `iso`, `unix`, `unix-ms`, `unix-us`, or something like `%d.%m.%Y %H:%M:%S`",
        format=text[:_LENGTH],
    )
