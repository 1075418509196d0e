"""What a quarantine shows of its records: reasons, and the beginnings of some. Nothing here needs Spark."""

from dataclasses import dataclass
from typing import Final

FETCHED: Final = 400
"""Bytes of a record that are looked at."""


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A record in quarantine: the reason, its place, its size, and its beginning as text that is safe to show."""

    reason: str
    words: str | None
    file: str | None
    position: int | None
    size: int
    text: str


@dataclass(frozen=True, slots=True)
class QuarantineSummary:
    """The quarantine: the number of records for each reason, the most frequent first, and samples."""

    reasons: dict[str, int]
    samples: tuple[QuarantinedRecord, ...]


def safe_text(data: bytes) -> str:
    r"""Return bytes as text; bytes that are not UTF-8 or not printable are escaped.

    >>> safe_text(b'caf\xc3\xa9 \xff\x1b[2J\n')
    'café \\xff\\x1b[2J\\n'
    """
    text = data.decode("utf-8", errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
