"""The columns of events in tables, under names that other tools read.

    event_type  event_id  event_time  event_source  [subscriber]  and a column for each attribute, by name

An attribute stands under the name that it has in the version of its own row, which `event_type` names. So the name of a
column never changes: where a version renames an attribute, its events use another column. An attribute that has one of
the names above, or `event_batch`, stands under `attribute_NAME`.

A table gets a further column for each further attribute. A column keeps its type: where a version, or another type,
has an attribute of the same name and another kind, writing is refused.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import BooleanType, DataType, LongType, StringType, StructField, StructType, TimestampType

from penstock.errors import MalformedError, RefusedError, did_you_mean
from penstock.model.types import Attribute, EventType
from penstock.pipeline.enforce.manifest import SUBSCRIBER
from penstock.pipeline.event_columns import ID, SOURCE, TIME, TYPE, attributes_of
from penstock.pipeline.frames import literal, quoted, spark_type
from penstock.pipeline.outputs import raise_in_task
from penstock.pipeline.shared_columns import are_many, part_of, parts_of
from penstock.pipeline.tables.addresses import SinkRows

PLAIN: Final = {
    TYPE: "event_type",
    ID: "event_id",
    TIME: "event_time",
    SOURCE: "event_source",
    SUBSCRIBER: "subscriber",
}
"""The columns of a table for what is not an attribute."""
BATCH_COLUMN: Final = "event_batch"
"""The column that says which batch of which output wrote a row, where the format of a table needs it."""
_RESERVED: Final = frozenset({*PLAIN.values(), BATCH_COLUMN})
_PARTITIONS: Final = (StringType, LongType, BooleanType)
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""What stands for null in the names of folders."""
_EMPTY: Final = "tables.partition"
_EVENTS: Final = "tables.events"


def column_name(attribute: Attribute) -> str:
    """Return the column of an attribute."""
    return f"attribute_{attribute.name}" if attribute.name.lower() in _RESERVED else attribute.name


def plain_rows(rows: SinkRows) -> DataFrame:
    """Return rows under the names that they have in tables.

    Raises `MalformedError` (`tables.column`) for two columns that differ only in case, and (`tables.kind`) for one that
    would hold values of two kinds.
    """
    plain = [(name, PLAIN.get(name, name.removeprefix("@"))) for name in rows.frame.columns]
    if not rows.types:
        _apart(new for _, new in plain)
        return rows.frame.select(*(quoted(old).alias(new) for old, new in plain))
    named = [quoted(old).alias(new) for old, new in plain if old in PLAIN]
    attributes = _by_name(rows.types)
    _apart([*_RESERVED, *attributes])

    def under_names(frame: DataFrame, types: Sequence[EventType]) -> DataFrame:
        own = {name: [one for one in found if one[0] in types] for name, found in attributes.items()}
        values = (
            _value(found, types) if found else literal(None, attributes[name][0][1].spec.kind)
            for name, found in own.items()
        )
        return frame.select(*named, *(value.alias(name) for name, value in zip(own, values, strict=True)))

    return in_parts(rows, under_names)


def in_parts(rows: SinkRows, made: Callable[[DataFrame, Sequence[EventType]], DataFrame]) -> DataFrame:
    """Return what is made of events: of those of many types by parts, each of which has only its own columns.

    An event of another version may be left out then. A sink has fewer rows than it was given in that case, and fails.
    """
    if not are_many(rows.types):
        return made(rows.frame, rows.types)
    also = [name for name in rows.frame.columns if name == SUBSCRIBER]
    return reduce(DataFrame.union, (made(part_of(rows.frame, part, *also), part) for part in parts_of(rows.types)))


def _by_name(types: Sequence[EventType]) -> dict[str, list[tuple[EventType, Attribute]]]:
    found: dict[str, list[tuple[EventType, Attribute]]] = {}
    for event_type in types:
        _apart(column_name(attribute) for attribute in event_type.attributes)
        for attribute in event_type.attributes:
            found.setdefault(column_name(attribute), []).append((event_type, attribute))
    for name, versions in found.items():
        first, kind = versions[0][0], versions[0][1].spec.kind
        for event_type, attribute in versions[1:]:
            if attribute.spec.kind is not kind:
                raise MalformedError(
                    "tables.kind",
                    f"`{name}` is a {kind} in {first.name} and a {attribute.spec.kind} in {event_type.name}",
                    hint="one column holds values of one kind: write the types into different tables",
                )
    return found


def _value(versions: Sequence[tuple[EventType, Attribute]], types: Sequence[EventType]) -> Column:
    """Return the attribute that has a name in the version of its row."""
    ids = dict.fromkeys(str(attribute.id) for _, attribute in versions)
    having = [one for one in types if any(str(a.id) in ids for a in one.attributes)]
    if len(ids) == 1 and len(having) == len(versions):
        return quoted(next(iter(ids)))
    parts = [
        F.when(quoted(TYPE).isin([str(t.name) for t, a in versions if str(a.id) == id_]), quoted(id_)) for id_ in ids
    ]
    return F.coalesce(*parts)


def _apart(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            raise MalformedError(
                "tables.column",
                f"`{seen[name.lower()]}` and `{name}` would be one column",
                hint="most tools do not tell capital from small letters: write the types into different tables",
            )
        seen[name.lower()] = name


def event_rows_of(table: DataFrame, types: Sequence[EventType], name: str) -> DataFrame:
    """Return the events of a table as they are stored by jobs: `@type`, metadata, and a column for each attribute id.

    Raises `RefusedError` (`tables.events`) for a table that is not one of events, (`tables.kind`) for a column of
    another type. A task fails (`tables.events`) at a row without metadata, or of a version whose columns are not there.
    """
    there = {one.name: one.dataType for one in table.schema}
    wanted: dict[str, DataType] = {
        PLAIN[TYPE]: StringType(),
        PLAIN[ID]: StringType(),
        PLAIN[TIME]: TimestampType(),
        PLAIN[SOURCE]: StringType(),
    }
    missing = [one for one in wanted if one not in there]
    if missing or PLAIN[SUBSCRIBER] in there:
        why = f"has no column `{missing[0]}`" if missing else "has rows for subscribers, one event in several of them"
        raise RefusedError(
            _EVENTS,
            f"`{name}` {why}, and is not a table of events",
            hint="give a table that `ingest` or `admit` wrote with --to, or read it with `ingest` and a mapping",
        )
    known = [one for one in types if all(column_name(a) in there for a in one.attributes)]
    kinds = {column_name(a): spark_type(a.spec.kind) for one in known for a in one.attributes}
    for column, kind in {**wanted, **kinds}.items():
        if there[column] != kind:
            raise RefusedError(
                "tables.kind",
                f"column `{column}` of `{name}` holds {there[column].simpleString()[:80]}, not {kind.simpleString()}",
                hint="read it with `ingest` and a mapping, which converts values",
            )
    lacking = [str(one.name) for one in types if one not in known]
    version = quoted(PLAIN[TYPE])
    broken = reduce(lambda one, other: one | other, (quoted(column).isNull() for column in wanted))
    failed = raise_in_task(_EVENTS, F.lit("a row has no metadata, or no columns for its version"))
    bad = broken | version.isin(lacking) if lacking else broken
    whole = table.where(F.when(bad, failed.cast("boolean")).otherwise(F.lit(True)))
    return whole.select(
        *(quoted(new).alias(old) for old, new in PLAIN.items() if old != SUBSCRIBER),
        *(_of_version(known, a).alias(str(a.id)) for a in attributes_of(types)),
    )


def _of_version(known: Sequence[EventType], attribute: Attribute) -> Column:
    """Return the column that an attribute has in the version of each row."""
    names = {one: one.by_id[attribute.id] for one in known if attribute.id in one.by_id}
    columns = dict.fromkeys(column_name(own) for own in names.values())
    if len(columns) == 1 and len(names) == len(known):
        # Whatever the version, so that a filter of the attribute reaches the files.
        return quoted(next(iter(columns)))
    parts = [
        F.when(
            quoted(PLAIN[TYPE]).isin([str(one.name) for one, own in names.items() if column_name(own) == column]),
            quoted(column),
        )
        for column in columns
    ]
    return F.coalesce(*parts) if parts else literal(None, attribute.spec.kind)


def added_columns(known: StructType, rows: StructType, name: str) -> list[StructField]:
    """Return the columns that a table lacks for some rows.

    Raises `RefusedError` (`tables.kind`) for a column of another type, and (`tables.column`) for one that differs only
    in case.
    """
    there = {field.name.lower(): field for field in known}
    added = []
    for field in rows:
        before = there.get(field.name.lower())
        if before is None:
            added.append(StructField(field.name, field.dataType))
        elif before.name != field.name:
            raise RefusedError(
                "tables.column",
                f"`{name}` has a column `{before.name}`, and `{field.name}` differs only in case",
                hint="write to another table",
            )
        elif before.dataType != field.dataType:
            raise RefusedError(
                "tables.kind",
                f"column `{field.name}` of `{name}` holds {before.dataType.simpleString()[:80]},"
                f" and would get {field.dataType.simpleString()[:80]}",
                hint="a column keeps its type: write to another table",
            )
    return added


def partitioned(frame: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return rows that can be written by partitions; a task fails (`tables.partition`) where one would have no name.

    A folder cannot say that a text is empty, or the name of the folder for null: it would be read back as null. Raises
    `MalformedError` (`tables.partition`).
    """
    for name in by:
        if name not in frame.columns:
            raise MalformedError(
                _EMPTY,
                f"there is no column `{name[:80]}` to partition by",
                hint=did_you_mean(name, frame.columns, f"there are: {', '.join(frame.columns)[:400]}"),
            )
        if not isinstance(frame.schema[name].dataType, _PARTITIONS):
            raise MalformedError(
                _EMPTY,
                f"`{name}` holds {frame.schema[name].dataType.simpleString()[:80]}, and is not partitioned by",
                hint="partition by texts, integers or booleans",
            )

    def checked(rows: DataFrame, name: str) -> DataFrame:
        empty = raise_in_task(_EMPTY, F.lit(f"`{name}` is empty, or {NO_VALUE}, in a row, which no folder can say"))
        value = F.when(quoted(name).isin("", NO_VALUE), empty.cast("string")).otherwise(quoted(name))
        return rows.withColumn(name, value)

    texts = [name for name in by if isinstance(frame.schema[name].dataType, StringType)]
    return reduce(checked, texts, frame)
