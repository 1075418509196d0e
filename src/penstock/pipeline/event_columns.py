"""The columns of stored events and of the quarantine: their names and their order. Nothing here needs Spark."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from penstock.errors import MalformedError
from penstock.model.types import Attribute, EventType

ID: Final = "@id"
TIME: Final = "@time"
SOURCE: Final = "@source"
METADATA: Final = (ID, TIME, SOURCE)
FILE: Final = "@file"
POSITION: Final = "@position"
NUMBER: Final = "@number"
"""The row of the input that a record is, or is in, while a job runs."""
ORIGINAL: Final = "@original"
TYPE: Final = "@type"
REASON: Final = "@reason"
WORDS: Final = "@words"
INGESTED: Final = "@ingested"
QUARANTINE: Final = (REASON, WORDS, FILE, POSITION, ORIGINAL, INGESTED)
EARLIEST: Final = -62_135_596_800_000_000
LATEST: Final = 253_402_300_799_999_999
"""The instants that Python can name, in microseconds: the years 1 to 9999."""


def micros(moment: datetime) -> int:
    """Return microseconds since 1970, exactly."""
    return (moment - datetime.fromtimestamp(0, tz=moment.tzinfo)) // timedelta(microseconds=1)


def attributes_of(types: Iterable[EventType]) -> list[Attribute]:
    """Return each attribute of some types once, in order; of two versions the first that has it.

    Raises `MalformedError` (`pipeline.case`) where two names of one version, or two ids, differ in case alone.
    """
    found: list[Attribute] = []
    seen: dict[str, str] = {}
    for event_type in types:
        names: dict[str, str] = {}
        for attribute in event_type.attributes:
            _tell_apart(names, attribute.name, event_type)
            if _tell_apart(seen, attribute.id, event_type):
                found.append(attribute)
    return found


def _tell_apart(seen: dict[str, str], name: str, event_type: EventType) -> bool:
    """Take a name in, and say whether it is new."""
    known = seen.get(name.lower())
    if known is None:
        seen[name.lower()] = name
    elif known != name:
        raise MalformedError(
            "pipeline.case",
            f"`{known}` and `{name}` of {event_type.name} would be one column",
            hint="in the pipeline, names and UIDs have to differ in more than capital and small letters",
        )
    return known is None
