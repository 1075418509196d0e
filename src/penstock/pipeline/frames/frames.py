"""Represent events in a Spark frame.

    typed events    @id  @time  @source  and a column for each attribute of one version, by name
    transit events  @id  @time  @source  and a column for each attribute id: no version, as between brokers

`@id` and `@source` (the publisher's principal) are strings, `@time` is a timestamp. No attribute can have such a name.

To Spark, and to most that reads Parquet, `a` and `A` are one column. Types of which that would be two attributes are
refused (`pipeline.case`), whatever a session is set to: what is written has to be read elsewhere.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import MalformedError
from penstock.model.types import Attribute, EventType
from penstock.model.values import Kind
from penstock.pipeline.frames.columns import ColumnSource, literal

ID: Final = "@id"
TIME: Final = "@time"
SOURCE: Final = "@source"
METADATA: Final = (ID, TIME, SOURCE)

_TYPES: Final[dict[Kind, DataType]] = {
    Kind.STRING: StringType(),
    Kind.INTEGER: LongType(),
    Kind.FLOAT: DoubleType(),
    Kind.BOOLEAN: BooleanType(),
    Kind.TIMESTAMP: TimestampType(),
}


def spark_type(kind: Kind) -> DataType:
    """Return the type of a column that holds attributes of a kind."""
    return _TYPES[kind]


def quoted(name: str) -> Column:
    """Return a column by name, whatever characters the name has."""
    return F.col(in_quotes(name))


def in_quotes(name: str) -> str:
    """Return a name as SQL has it, so that nothing in it is taken for more than a name."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def metadata() -> list[Column]:
    """Return the columns that every frame of events has."""
    return [quoted(name) for name in METADATA]


def _metadata_fields() -> list[StructField]:
    return [StructField(ID, StringType()), StructField(TIME, TimestampType()), StructField(SOURCE, StringType())]


def typed_schema(event_type: EventType) -> StructType:
    """Return the schema of a frame of typed events. Raises `MalformedError` (`pipeline.case`)."""
    own = [StructField(a.name, _TYPES[a.spec.kind]) for a in attributes_of([event_type])]
    return StructType([*_metadata_fields(), *own])


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


def transit_schema(types: Iterable[EventType]) -> StructType:
    """Return the schema of a frame of transit events that some types, or versions of one, can stand in."""
    ids = [StructField(a.id, _TYPES[a.spec.kind]) for a in attributes_of(types)]
    return StructType([*_metadata_fields(), *ids])


def to_transit(events: DataFrame, event_type: EventType, types: Iterable[EventType] | None = None) -> DataFrame:
    """Turn typed events into transit events.

    With `types` the result has a column for every attribute of those, null where this version lacks it, so that frames
    of several versions can be joined with `unionByName`.
    """
    own = event_type.by_id
    wanted = attributes_of([event_type] if types is None else types)
    columns = [(quoted(own[a.id].name) if a.id in own else literal(None, a.spec.kind)).alias(str(a.id)) for a in wanted]
    return events.select(*metadata(), *columns)


def transit_sources(types: Iterable[EventType]) -> dict[str, ColumnSource]:
    """Return where the attributes of some types stand in a frame of transit events."""
    return {str(a.id): ColumnSource(quoted(a.id), a.spec.kind) for a in attributes_of(types)}
