"""Rules and event types as tables: Parquet, JSON lines or CSV, and what is wrong with their rows.

    rules   id  event  stated_by  [publishers]  [fnc_p]  [fnc_s]  [valid_from]  [valid_until]
    types   type  [parent]

`docs/reference/rule-tables.md` describes the columns. A row that is not a rule keeps its original and gets a reason.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType, TimestampType

from penstock.errors import MalformedError
from penstock.model.instants import in_utc
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.tree import TypeTree
from penstock.model.values import Kind
from penstock.moderator.limits import MODERATOR_ID_LENGTH, MODERATOR_PUBLISHERS
from penstock.moderator.rules.rules import PublishRule
from penstock.pipeline.conflicts.forms import key_of
from penstock.pipeline.frames import literal, quoted
from penstock.pipeline.ingest.mapping import CsvLayout
from penstock.pipeline.ingest.records import ORIGINAL as RECORD
from penstock.pipeline.ingest.records import PROBLEM, csv_columns, csv_records, csv_rows, is_one_json, place_text
from penstock.pipeline.outputs import reading
from penstock.pipeline.tables.addresses import RowSource
from penstock.selector import ALWAYS
from penstock.selector.limits import SELECTOR_LENGTH

_TEXT: Final = StringType()
_TEXTS: Final = ArrayType(_TEXT)
_BROKEN: Final = "@broken"
_ORIGINAL: Final = "original"
_WIDTHS: Final = 512
#: columns, whether they must be there
RULE_COLUMNS: Final = {
    "id": True,
    "event": True,
    "stated_by": True,
    "publishers": False,
    "fnc_p": False,
    "fnc_s": False,
    "valid_from": False,
    "valid_until": False,
}
TYPE_COLUMNS: Final = {"type": True, "parent": False}
RULES: Final = StructType(
    [StructField(name, _TEXTS if name == "publishers" else _TEXT) for name in RULE_COLUMNS]
    + [StructField(_ORIGINAL, _TEXT), StructField("problem", _TEXT)]
)
"""Rules as they were read; `problem` is a reason that is known already."""
TYPES: Final = StructType(
    [*(StructField(name, _TEXT) for name in TYPE_COLUMNS), StructField(_ORIGINAL, _TEXT), StructField("problem", _TEXT)]
)
QUARANTINE: Final = StructType([StructField(name, _TEXT) for name in ("reason", "words", "source", "original")])
"""Rows that are not rules or types: `source` says which of the two they should have been."""


class StorageFormat(StrEnum):
    """The format of a table."""

    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"

    @classmethod
    def of(cls, path: str) -> "StorageFormat":
        """Guess by the end of a path; a folder is Parquet."""
        ends = {".csv": cls.CSV, ".json": cls.JSON, ".jsonl": cls.JSON, ".ndjson": cls.JSON}
        return next((found for end, found in ends.items() if path.lower().rstrip("/").endswith(end)), cls.PARQUET)


@dataclass(frozen=True, slots=True)
class InputTable:
    """The location of a table: files in a format, or the source that an address means."""

    path: str
    format: StorageFormat
    stored: RowSource | None = None

    @classmethod
    def at(cls, path: str, written: StorageFormat | None = None, stored: RowSource | None = None) -> "InputTable":
        """Return the table at a path, or the one at an address. Raises `MalformedError` (`tables.mapping`)."""
        if stored is not None and (written is not None or stored.records):
            why = "has messages, which are not rows" if stored.records else "says its format itself"
            raise MalformedError("tables.mapping", f"`{stored.name}` {why}", hint="leave out --format, or give a table")
        return cls(path, written or StorageFormat.of(path), stored)

    @property
    def files(self) -> str | None:
        """The path of the files, if Spark can list them."""
        return self.path if self.stored is None else self.stored.files


def read_rules(spark: SparkSession, table: InputTable) -> DataFrame:
    """Return the rows of a table of rules (`RULES`). Raises `MalformedError` (`conflicts.column`)."""
    return _read(spark, table, RULE_COLUMNS, RULES)


def read_types(spark: SparkSession, table: InputTable) -> DataFrame:
    """Return the rows of a table of event types (`TYPES`). Raises `MalformedError` (`conflicts.column`)."""
    return _read(spark, table, TYPE_COLUMNS, TYPES)


def _read(spark: SparkSession, table: InputTable, columns: dict[str, bool], schema: StructType) -> DataFrame:
    if table.stored is not None:
        rows = _stored(table.stored.batch(spark))
    elif table.format is StorageFormat.JSON:
        rows = _json(spark, table.path, schema)
    elif table.format is StorageFormat.CSV:
        rows = _csv(spark, table.path, columns)
    else:
        # Otherwise the columns of one file would count for all, and rules in other files would lose values.
        rows = _stored(reading(spark).options(mergeSchema="true").parquet(table.path))
    kinds = {field.name: field.dataType for field in rows.schema}
    missing = [name for name, needed in columns.items() if needed and name not in kinds]
    if missing:
        raise MalformedError(
            "conflicts.column",
            f"`{table.path}` has no column `{missing[0]}`",
            hint="docs/reference/rule-tables.md lists the columns of both tables",
            column=missing[0],
        )
    found = [_typed(table, name, schema[name].dataType, kinds.get(name)).alias(name) for name in columns]
    broken = F.when(quoted(_BROKEN).isNotNull(), F.lit("conflicts.row"))
    return rows.select(*found, F.col(_ORIGINAL), broken.alias("problem"))


def _stored(frame: DataFrame) -> DataFrame:
    return frame.select(_as_json(frame.columns), F.lit(None).cast("string").alias(_BROKEN), "*")


def _json(spark: SparkSession, path: str, schema: StructType) -> DataFrame:
    lines = reading(spark).text(path)
    wanted = StructType([*schema.fields[:-2], StructField(_BROKEN, _TEXT)])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
    parsed = F.from_json("value", wanted, options)
    return (
        lines.where(F.length(F.trim("value")) > 0)
        .select(F.col("value").alias(_ORIGINAL), parsed.alias("row"))
        .select(_ORIGINAL, "row.*")
        # Of two objects in one line Spark reads the first.
        .withColumn(_BROKEN, F.when(~is_one_json(F.col(_ORIGINAL)), F.col(_ORIGINAL)).otherwise(quoted(_BROKEN)))
    )


def _csv(spark: SparkSession, path: str, columns: Iterable[str]) -> DataFrame:
    layout = CsvLayout()
    there = set(csv_columns(spark, path, layout))
    known = [name for name in columns if name in there]
    rows = csv_rows(csv_records(spark.read, path, layout), known)
    # Keep the place of a row: the rest of the table does not have it.
    line = F.concat(place_text(), F.lit(": "), F.rtrim(quoted(RECORD).cast("string"), F.lit("\r\n")))
    return rows.select(line.alias(_ORIGINAL), quoted(PROBLEM).alias(_BROKEN), *map(quoted, known))


def _as_json(names: Iterable[str]) -> Column:
    return F.to_json(F.struct(*map(quoted, names)), {"timeZone": "UTC"}).alias(_ORIGINAL)


def _typed(table: InputTable, name: str, wanted: DataType, found: DataType | None) -> Column:
    """Return a column as text, or as texts; other kinds cannot be read."""
    column = quoted(name)
    if found is None:
        return F.lit(None).cast(wanted)
    if wanted == _TEXTS and isinstance(found, StringType):
        parts = F.filter(F.split(column, r"\s*;\s*"), lambda part: part != "")
        return F.when(F.size(parts) > 0, parts)
    if isinstance(found, TimestampType) and name.startswith("valid_"):
        return F.date_format(F.to_utc_timestamp(column, F.current_timezone()), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
    if isinstance(found, StringType):
        return F.nullif(F.trim(column), F.lit(""))
    if found == wanted:
        return column
    raise MalformedError(
        "conflicts.column",
        f"column `{name}` of `{table.path}` holds {found.simpleString()[:80]}",
        hint="docs/reference/rule-tables.md lists the kinds of columns",
        column=name,
    )


# --- What is wrong with a row ----------------------------------------------------------------------------------------

_ID: Final = r"\A[A-Za-z0-9][A-Za-z0-9._:-]*\z"
_INSTANT: Final = r"\A\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)\z"


def check_rules(rows: DataFrame, at: datetime | None) -> DataFrame:
    """Return rules with the keys of their functions, the problem of each (`reason`), and whether it is in force.

    Only the row itself is checked, not other rules, the types, or the functions.
    """
    publishers = F.coalesce("publishers", F.array("stated_by"))
    begin, end = (_moment(F.col(name)) for name in ("valid_from", "valid_until"))
    unread = (F.col("valid_from").isNotNull() & begin.isNull()) | (F.col("valid_until").isNotNull() & end.isNull())
    wrong = [
        ("conflicts.row", F.col("problem").isNotNull()),
        ("moderator.rule", ~_yes(F.col("id").rlike(_ID))),
        ("moderator.limit", F.length("id") > MODERATOR_ID_LENGTH),
        ("moderator.rule", ~_name(F.col("stated_by"))),
        ("moderator.rule", (F.size(publishers) == 0) | F.exists(publishers, lambda name: ~_name(name))),
        ("moderator.rule", F.size(F.array_distinct(publishers)) < F.size(publishers)),
        ("moderator.limit", F.size(publishers) > MODERATOR_PUBLISHERS),
        ("moderator.unknown-type", F.col("event").isNull()),
        ("conflicts.period", unread),
        ("validity.empty", _yes(begin > end)),
        (
            "selector.limit",
            F.greatest(*map(F.length, (_function("fnc_p"), _function("fnc_s")))) > SELECTOR_LENGTH,
        ),
    ]
    holds = F.lit(True)
    if at is not None:
        now = literal(in_utc(at), Kind.TIMESTAMP)
        holds = F.coalesce(begin <= now, F.lit(True)) & F.coalesce(end >= now, F.lit(True))
    return rows.select(
        "id",
        "event",
        "stated_by",
        F.when(F.size(publishers) == 1, F.get(publishers, F.lit(0))).alias("alone"),
        _function("fnc_p").alias("fnc_p"),
        _function("fnc_s").alias("fnc_s"),
        key_of(_function("fnc_p")).alias("key_p"),
        key_of(_function("fnc_s")).alias("key_s"),
        _first(wrong).alias("reason"),
        holds.alias("in_force"),
        _ORIGINAL,
    )


def check_types(rows: DataFrame) -> DataFrame:
    """Return types, and the problem of each row by itself (`reason`)."""
    wrong = [
        ("conflicts.row", F.col("problem").isNotNull()),
        ("name.malformed", ~_name(F.col("type")) | (F.col("parent").isNotNull() & ~_name(F.col("parent")))),
        ("type.cycle", _yes(F.col("type") == F.col("parent"))),
    ]
    return rows.select("type", "parent", _first(wrong).alias("reason"), _ORIGINAL)


def _function(name: str) -> Column:
    return F.coalesce(name, F.lit(ALWAYS.text))


def _name(column: Column) -> Column:
    return _yes((F.length(column) > 0) & (F.length(column) <= _WIDTHS))


def _moment(written: Column) -> Column:
    return F.try_to_timestamp(F.when(written.rlike(_INSTANT), written))


def _yes(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


def _first(wrong: Sequence[tuple[str, Column]]) -> Column:
    return F.coalesce(*(F.when(found, F.lit(code)) for code, found in wrong))


# --- Rules that are at hand ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableNames:
    """Names of principals and event types in tables, which the rules of a table can use too."""

    who: Callable[[Principal], str] = str
    what: Callable[[TypeKey], str] = str


def rules_frame(spark: SparkSession, rules: Iterable[PublishRule], naming: TableNames | None = None) -> DataFrame:
    """Return rules in memory as rows (`RULES`)."""
    named = naming or TableNames()
    rows = [
        (
            rule.id,
            named.what(rule.event),
            named.who(rule.stated_by),
            [named.who(publisher) for publisher in rule.publishers],
            rule.fnc_p.text,
            rule.fnc_s.text,
            _written(rule.validity.starts),
            _written(rule.validity.ends),
            rule.id,
            None,
        )
        for rule in rules
    ]
    return spark.createDataFrame(rows, RULES)


def types_frame(spark: SparkSession, tree: TypeTree, naming: TableNames | None = None) -> DataFrame:
    """Return a tree in memory as rows (`TYPES`)."""
    what = (naming or TableNames()).what
    rows = [
        (what(event), None if parent is None else what(parent), what(event), None)
        for event, parent in tree.parents.items()
    ]
    return spark.createDataFrame(rows, TYPES)


def _written(instant: datetime | None) -> str | None:
    return None if instant is None else in_utc(instant).isoformat()
