"""How events stand in a Spark frame.

    typed events    @id  @time  @source  and a column for each attribute of one version, by name
    transit events  @id  @time  @source  and a column for each attribute id: no version, as between brokers

`@id` and `@source` (the publisher's principal) are strings, `@time` is a timestamp. No attribute can have such a name.
"""

from collections.abc import Iterable, Iterator
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

from penstock.model.types import Attribute, EventType
from penstock.model.values import Kind
from penstock.pipeline.columns import Source, literal

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
    return F.col(f"`{name}`")


def metadata() -> list[Column]:
    """Return the columns that every frame of events has."""
    return [quoted(name) for name in METADATA]


def _metadata_fields() -> list[StructField]:
    return [StructField(ID, StringType()), StructField(TIME, TimestampType()), StructField(SOURCE, StringType())]


def typed_schema(event_type: EventType) -> StructType:
    """Return the schema of a frame of typed events."""
    own = [StructField(a.name, _TYPES[a.spec.kind]) for a in event_type.attributes]
    return StructType([*_metadata_fields(), *own])


def attributes_of(types: Iterable[EventType]) -> Iterator[Attribute]:
    """Yield each attribute of some types once, in order; of two versions the first that has it."""
    seen: set[str] = set()
    for event_type in types:
        for attribute in event_type.attributes:
            if attribute.id not in seen:
                seen.add(attribute.id)
                yield attribute


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
    wanted = list(attributes_of([event_type] if types is None else types))
    columns = [(quoted(own[a.id].name) if a.id in own else literal(None, a.spec.kind)).alias(str(a.id)) for a in wanted]
    return events.select(*metadata(), *columns)


def transit_sources(types: Iterable[EventType]) -> dict[str, Source]:
    """Return where the attributes of some types stand in a frame of transit events."""
    return {str(a.id): Source(quoted(a.id), a.spec.kind) for a in attributes_of(types)}
