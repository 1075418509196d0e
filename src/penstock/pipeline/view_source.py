"""`penstock`: what a reader may see of files, as a Python Data Source of Spark.

    register(spark)
    options = {"policy": "policy.toml", "reader": "firm", "mapping": "mapping.toml"}
    spark.read.format("penstock").options(**options).load("readings")

The path is the output of `penstock pipeline ingest` or `admit`, or a folder of Parquet files, partitioned or not. With
the options `ring` and `kek`, the paths of key files, it is a sealed log; attributes without a key are null. Tasks read
files with Arrow, and show each event by `penstock.guard.Delivery`, as a live broker does. What the program of the
reader and the filters of the query need is pushed down to partitions and row groups. It is for tools that can only
name a source: on a DataFrame, `view` gives the same rows in native expressions, which is faster.

A stream follows the batches of the job whose output it reads. Its offset is the number of a batch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.dataset as pd  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from penstock.errors import FailedError, MalformedError, RefusedError, did_you_mean
from penstock.guard import Delivery, Rules, environment, environment_schema
from penstock.model.events import Event
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import AttributeSpec, Kind, Scalar, Value, kind_of
from penstock.pipeline.commits import COMMITS, EVENTS, read_commit
from penstock.pipeline.enforce.manifest import reader_program
from penstock.pipeline.enforce.policy import Program, load_policy
from penstock.pipeline.enforce.pushdown import necessary
from penstock.pipeline.frames import ID, METADATA, SOURCE, TIME, PatternForm, form_of, spark_type
from penstock.pipeline.ingest.event_frames import TYPE
from penstock.pipeline.ingest.mapping import BoundMapping, FromColumn, Origin
from penstock.pipeline.sealed.log import HEAD, HEADER, SEALED, KeyFiles, check_copies
from penstock.pipeline.sealed.reader import BlockReader
from penstock.pipeline.sealed.signers import Grant, SignerPolicy
from penstock.pipeline.views import read_bound_mapping, visible_attributes
from penstock.selector.ast import (
    And,
    AttributeReference,
    Compare,
    ComparisonOperator,
    Condition,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
)

NAME: Final = "penstock"
_OPTIONS: Final = frozenset({"path", "policy", "reader", "mapping", "ids", "ring", "kek"})
_BLOCKS: Final = 1_000
"""Blocks of a sealed log that are read from a file at a time. Each can be megabytes."""
_BATCH: Final = "@batch"


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """What is read, and who reads it: the options of the source, looked up on the driver."""

    path: str
    policy_file: str
    program: Program
    #: the types, the zone and the facts of the policy
    known: tuple[EventType, ...]
    zone: tzinfo
    facts: Mapping[str, Value]
    bound: BoundMapping | None = None
    ids: bool = False
    #: the columns that the names of folders hold; None if they were not looked up
    folders: Any = None
    #: the files of the keys, if it is a sealed log
    keys: KeyFiles | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "ViewRequest":
        """Read the options.

        Raises `MalformedError` (`view.option`, `view.keys`, `view.files`), `RefusedError` (`view.remote`),
        `FailedError` (`pipeline.no-input`), as `view`, and as `KeyFiles.read`.
        """
        given = dict(options)
        for name in given:
            if name not in _OPTIONS:
                hint = did_you_mean(name, _OPTIONS, f"there are: {', '.join(sorted(_OPTIONS))}")
                raise MalformedError("view.option", f"the source `{NAME}` has no option `{name[:80]}`", hint=hint)
        for name in ("path", "policy", "reader"):
            if name not in given:
                raise MalformedError(
                    "view.option",
                    f"the source `{NAME}` needs `{name}`",
                    hint='write `spark.read.format("penstock").option("policy", …).option("reader", …).load(path)`',
                )
        policy = load_policy(given["policy"], datetime.now(UTC))
        program = reader_program(policy, given["reader"])
        bound = read_bound_mapping(given["mapping"], policy) if "mapping" in given else None
        path = given["path"].removeprefix("file://").removeprefix("file:")
        if "://" in path:
            raise RefusedError(
                "view.remote",
                f"the source `{NAME}` reads files of this machine, and `{path[:80]}` is elsewhere",
                hint="use `penstock.spark.view(spark.read.parquet(path), policy, reader=…)`",
            )
        known = tuple(one.event_type for one in policy.types)
        ids = given.get("ids", "false").lower() == "true"
        keys = _keys(given)
        found = cls(path, given["policy"], program, known, policy.zone, dict(policy.facts), bound, ids, keys=keys)
        if not Path(path).exists():
            raise FailedError(
                "pipeline.no-input", f"there is nothing at `{path}`", hint="check the path; it is one of this machine"
            )
        found.check_keys()
        if not found.is_output:
            try:
                found = replace(found, folders=found.named_folders())
                found.check()
            except pa.ArrowInvalid as error:
                raise MalformedError(
                    "view.files",
                    f"`{path}` has files that are not Parquet",
                    hint="read them with `spark.read`, and use `penstock.spark.view`, which takes any DataFrame",
                ) from error
        return found

    def check_keys(self) -> None:
        """Check that keys are given for a sealed log, and only for one. Raises `MalformedError` (`view.keys`)."""
        if self.keys is not None and not (self.is_output and Path(self.path, SEALED).is_dir()):
            raise MalformedError(
                "view.keys",
                f"`{self.path}` is not a sealed log, or a mapping is given for it",
                hint="leave `ring` and `kek` out, or load what `penstock pipeline seal` wrote, without a mapping",
            )
        if self.keys is None and self.is_output and not Path(self.path, EVENTS).is_dir():
            raise MalformedError(
                "view.keys",
                f"`{self.path}` has no events that can be read without keys",
                hint="give `ring` and `kek` if it is a sealed log, or load what `penstock pipeline ingest` wrote",
            )

    def check(self) -> None:
        """Check that the files have the columns that are read. Raises `MalformedError` (`mapping.column`)."""
        (event_type,) = self.types()
        there = {field.name: field.type for field in self.files().schema}
        for name, origin in self.origins(event_type).items():
            column = origin.column if isinstance(origin, FromColumn) else origin
            text = name in (ID, SOURCE) or (
                name in event_type.by_name and event_type.by_name[name].spec.kind is Kind.STRING
            )
            if not isinstance(column, str) or (column == name and name in METADATA and name not in there):
                continue
            if column not in there or (not text and pa.types.is_string(there[column])):
                raise MalformedError(
                    "mapping.column",
                    f"column `{column[:80]}` for `{name}` is {'text' if column in there else 'not there'}",
                    hint="`penstock.spark.view` converts texts, and takes columns by name",
                )

    @property
    def is_output(self) -> bool:
        """Whether the path is the output of a job."""
        return self.bound is None and Path(self.path, COMMITS).is_dir()

    def columns(self) -> dict[str, str]:
        """Return the columns of the view, with what each of them holds: an attribute's id, or metadata."""
        shown = visible_attributes(self.program)
        found: dict[str, str] = {}
        taken = {a.name.lower() for a in shown}
        for name in self.program.metadata:
            column = self._metadata_column(name)
            if column is not None:
                found[name if self.ids or column.lower() in taken else column] = name
        return found | {str(a.id) if self.ids else a.name: str(a.id) for a in shown}

    def _metadata_column(self, name: str) -> str | None:
        if self.is_output:
            return name
        if self.bound is None:
            return name if name in self.files().schema.names else None
        mapping = self.bound.mapping
        origin = {ID: mapping.id, TIME: mapping.time, SOURCE: mapping.source}[name]
        return origin.column if isinstance(origin, FromColumn) else None

    @property
    def schema(self) -> StructType:
        """The schema of the view."""
        by_id = {str(a.id): spark_type(a.spec.kind) for a in self.program.event_type.attributes}
        kinds = {ID: StringType(), TIME: TimestampType(), SOURCE: StringType(), **by_id}
        return StructType([StructField(name, kinds[of]) for name, of in self.columns().items()])

    def files(self, batches: Iterable[int] | None = None) -> Any:
        """Return the files, as a dataset of Arrow; of an output, those of complete batches."""
        if not self.is_output:
            return pd.dataset(self.path, format="parquet", partitioning=self.partitioning)
        wanted = self.batches() if batches is None else batches
        part = EVENTS if self.keys is None else SEALED
        folders = [Path(self.path, part, f"{_BATCH}={batch}") for batch in wanted]
        return pd.dataset([str(file) for folder in folders for file in sorted(folder.glob("*.parquet"))])

    @property
    def partitioning(self) -> Any:
        """How the names of folders are read."""
        return "hive" if self.folders is None else pd.partitioning(self.folders, flavor="hive")

    def named_folders(self) -> Any:
        """Return the columns in the names of folders: a text where they hold one, and in all files alike.

        Arrow would take `region=01` for a number, and in each file that a task reads alone for something else.
        """
        (event_type,) = self.types()
        texts = {ID, SOURCE} | {a.name for a in event_type.attributes if a.spec.kind is Kind.STRING}
        origins = [origin for name, origin in self.origins(event_type).items() if name in texts]
        columns = {origin.column if isinstance(origin, FromColumn) else origin for origin in origins}
        files = self.files()
        inside = {name for file in files.get_fragments() for name in file.physical_schema.names}
        named = [one for one in files.partitioning.schema if one.name not in inside]
        return pa.schema([one.with_type(pa.string()) if one.name in columns else one for one in named])

    def batches(self) -> list[int]:
        """Return the numbers of the complete batches of an output."""
        lines = [line for file in Path(self.path, COMMITS).rglob("part-*") for line in file.read_text().splitlines()]
        return sorted({read_commit(line)[0] for line in lines if line})

    def tasks(self, files: Sequence[str]) -> list["ViewedFiles"]:
        """Return a task for each of some files. Raises as `closed_log` if a sealed log has a block twice."""
        grants: tuple[Grant, ...] = ()
        if self.keys is not None and files:
            read = (pq.ParquetFile(file).iter_batches(columns=[HEADER]) for file in files)
            headers = [one for batches in read for batch in batches for one in batch.column(HEADER).to_pylist()]
            check_copies(headers)
            if any(one.signed for one in self.known):
                # Tasks receive who may sign, and not the policy.
                policy = load_policy(self.policy_file, datetime.now(UTC))
                grants = SignerPolicy(policy, policy.types).grants_of(headers, self.keys)
        return [ViewedFiles((file,), grants) for file in files] or [ViewedFiles(())]

    def types(self) -> tuple[EventType, ...]:
        """Return the versions that rows can be of."""
        if self.bound is not None:
            return (self.bound.event_type,)
        return self.known if self.is_output else (self.program.event_type,)

    def origins(self, event_type: EventType) -> dict[str, Origin | str]:
        """Return where the metadata and attributes of a version stand, by `@id` to `@source` and by name."""
        if self.bound is not None:
            mapping = self.bound.mapping
            return {ID: mapping.id, TIME: mapping.time, SOURCE: mapping.source, **mapping.attributes}
        own = {a.name: str(a.id) if self.is_output else a.name for a in event_type.attributes}
        return {**{name: name for name in METADATA}, **own}


def _keys(options: Mapping[str, str]) -> KeyFiles | None:
    """Return the key files. They are read here too, so that errors in them are not reported by a task."""
    ring, kek = options.get("ring"), options.get("kek")
    if ring is None and kek is None:
        return None
    if ring is None or kek is None:
        raise MalformedError(
            "view.keys", "a sealed log is read with a key ring and its key", hint="give both options, `ring` and `kek`"
        )
    found = KeyFiles(ring, kek)
    found.read()
    return found


class PenstockDataSource(DataSource):
    """The source. Options are `policy`, `reader`, `mapping`, `ids`, `ring` and `kek`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the view. Raises as `ViewRequest.of`."""
        return ViewRequest.of(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # it is always the view's own
        """Return the reader of everything that is there."""
        return ViewReader(ViewRequest.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # Spark's name
        """Return the reader of batches as they are complete. Raises `MalformedError` (`view.option`)."""
        request = ViewRequest.of(self.options)
        if not request.is_output:
            raise MalformedError(
                "view.option",
                f"`{request.path}` is not the output of a job, and only that can be followed",
                hint="read the files with `spark.readStream.parquet`, and use `penstock.spark.view`",
            )
        return ViewStreamReader(request)


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("penstock")` known to a session, which may know it already.

    Filters of queries are pushed down to Python sources in this session from then on.
    """
    # Without it, Spark refuses sources that take filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        spark.dataSource.register(PenstockDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


@dataclass(frozen=True, slots=True)
class ViewedFiles(InputPartition):
    """The files of one task, and the folder below which their names say what their partitions are."""

    files: tuple[str, ...]
    #: who may sign the blocks of a sealed log
    grants: tuple[Grant, ...] = ()


class ViewReader(DataSourceReader):
    """Reads all files that may have rows for the reader."""

    def __init__(self, request: ViewRequest) -> None:
        self._request = request
        self._asked: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Keep the filters that files can decide. Spark asks all of them again: a value may be hidden."""
        columns = self._request.columns()
        self._asked += [found for one in filters if (found := _pushed(one, columns)) is not None]
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return a task for each file that partitions do not rule out."""
        files = self._request.files()
        needed = _Pruning(self._request, files.schema).expression(self._asked)
        found = files.get_fragments(filter=needed) if needed is not None else files.get_fragments()
        return self._request.tasks([fragment.path for fragment in found])

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that the reader may see."""
        return _rows(self._request, partition, self._asked)


class ViewStreamReader(DataSourceStreamReader):
    """Follows the complete batches of an output."""

    def __init__(self, request: ViewRequest) -> None:
        self._request = request

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Return the offset before all batches."""
        return {"batch": -1}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Return the last complete batch."""
        return {"batch": max(self._request.batches(), default=-1)}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        """Return a task for each file of the batches between two offsets."""
        new = [batch for batch in self._request.batches() if start["batch"] < batch <= end["batch"]]
        return self._request.tasks(self._request.files(new).files)

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that the reader may see."""
        return _rows(self._request, partition, [])

    def commit(self, end: Mapping[str, int]) -> None:
        """Keep nothing: offsets are the numbers of batches."""


def _rows(request: ViewRequest, partition: InputPartition, asked: Sequence[Condition]) -> Iterator[tuple[Any, ...]]:
    if not isinstance(partition, ViewedFiles) or not partition.files:
        return
    files = pd.dataset(
        list(partition.files),
        format=pd.ParquetFileFormat(coerce_int96_timestamp_unit="us"),
        partitioning=None if request.is_output else request.partitioning,
        partition_base_dir=None if request.is_output else request.path,
    )
    program = request.program
    rules = Rules(environment=environment_schema({n: AttributeSpec(kind_of(v)) for n, v in request.facts.items()}))
    give = Delivery(program.restriction, program.event_type, program.selector, rules)
    versions = {str(one.name): (one, request.origins(one)) for one in request.types()}
    (first, *_) = versions
    line = {n for n, (one, _) in versions.items() if program.event_type.key in (one.key, *one.ancestors)}
    shown = list(request.columns().values())
    for batch in _stored(request, files, partition.grants, asked):
        for row in batch.to_pylist():
            version = row.get(TYPE) if request.is_output else first
            if version not in line:
                continue
            event_type, origins = versions[version]
            try:
                values = {name: _value(row, origin) for name, origin in origins.items()}
                told = {name: values.pop(name) for name in METADATA}
                _check_metadata(told, shown)
                moment = told[TIME]
                event = Event.of(event_type, _kinds(event_type, values), id=str(told[ID] or "-"), time=moment)
                around = (
                    request.facts if moment is None else environment(moment, facts=request.facts, zone=request.zone)
                )
                seen = give(event.to_transit(), around)
            except MalformedError:
                # Not an event of its type: nobody sees it.
                continue
            if seen is not None:
                by_id = {str(a.id): seen.values[a.name] for a in program.event_type.attributes}
                yield tuple(told[name] if name in told else by_id[name] for name in shown)


def _stored(request: ViewRequest, files: Any, grants: tuple[Grant, ...], asked: Sequence[Condition]) -> Iterator[Any]:
    """Yield the rows of files as jobs store them. Raises as `closed_log` if a sealed log does not open."""
    names = files.schema.names
    if request.keys is None:
        yield from files.to_batches(filter=_Pruning(request, files.schema).expression(asked), columns=names)
        return
    reading = BlockReader.of(request.keys, request.types(), [name for name in names if name not in HEAD])
    blocks = files.to_batches(columns=[*HEAD, *reading.wanted], batch_size=_BLOCKS, batch_readahead=1)
    yield from replace(reading, grants=grants).stored(blocks)


def _check_metadata(told: Mapping[str, Any], shown: Sequence[str]) -> None:
    """Check what the data says of an event itself. Raises `MalformedError`."""
    if ID in shown and not (isinstance(told[ID], str) and told[ID]):
        raise MalformedError("ingest.id", "the id is absent or no text")
    if TIME in shown and not isinstance(told[TIME], datetime):
        raise MalformedError("ingest.time", "the time is absent")
    if SOURCE in shown:
        Principal.parse(str(told[SOURCE]))


def _value(row: Mapping[str, Any], origin: Origin | str) -> Any:
    """Return a value of a row, in UTC if it is a time that files keep in it."""
    if isinstance(origin, str):
        found = row.get(origin)
    elif isinstance(origin, FromColumn):
        found = row.get(origin.column)
        if isinstance(found, str):
            found = found.strip(" \t\r\n") if origin.reading.trim else found
            found = None if found in origin.reading.null else found
    else:
        return origin.value
    return found.replace(tzinfo=UTC) if isinstance(found, datetime) and found.tzinfo is None else found


def _kinds(event_type: EventType, values: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return values with whole numbers as real ones where the attribute is real."""
    real = {a.name for a in event_type.attributes if a.spec.kind is Kind.FLOAT}
    return {
        n: float(v) if n in real and type(v) in (int, Decimal) else v
        for n, v in values.items()
        if n in event_type.by_name
    }


# --- Push-down --------------------------------------------------------------------------------------------------------


_ARROW: Final = {
    Kind.STRING: pa.types.is_string,
    # Arrow stops at a large number without a sign that it compares with one that can have a sign.
    Kind.INTEGER: pa.types.is_signed_integer,
    Kind.FLOAT: pa.types.is_float64,
    Kind.BOOLEAN: pa.types.is_boolean,
}
_COMPARED: Final = {
    EqualTo: ComparisonOperator.EQ,
    GreaterThan: ComparisonOperator.GT,
    GreaterThanOrEqual: ComparisonOperator.GE,
    LessThan: ComparisonOperator.LT,
    LessThanOrEqual: ComparisonOperator.LE,
}


def _pushed(one: Filter, columns: Mapping[str, str]) -> Condition | None:
    """Return what a filter of the query needs, if it compares one column of the view."""
    operator = _COMPARED.get(type(one))
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1 or columns.get(attribute[0], TIME) in METADATA:
        return None
    known = AttributeReference(columns[attribute[0]])
    if isinstance(one, In):
        values = [_literal(value) for value in one.value]
        if not values or None in values:
            return None
        equations = tuple(Compare(ComparisonOperator.EQ, known, value) for value in values if value is not None)
        return Or(equations) if len(equations) > 1 else equations[0]
    value = _literal(getattr(one, "value", None))
    return None if operator is None or value is None else Compare(operator, known, value)


def _literal(value: object) -> Literal | None:
    # Real numbers and times are left to Spark, which has a zero of two signs and the session's zone.
    if isinstance(value, bool):
        return Literal(value, Kind.BOOLEAN)
    if isinstance(value, int):
        return Literal(value, Kind.INTEGER)
    return Literal(value, Kind.STRING) if isinstance(value, str) else None


class _Pruning:
    """Conditions over attribute ids as expressions of Arrow over the columns of files."""

    def __init__(self, request: ViewRequest, schema: Any) -> None:
        self._columns: dict[str, str] = {}
        kinds: dict[str, Kind] = {}
        for event_type in request.types():
            origins = request.origins(event_type)
            for a in event_type.attributes:
                origin = origins.get(a.name)
                column = origin.column if isinstance(origin, FromColumn) else origin
                as_is = not isinstance(origin, FromColumn) or not (origin.reading.trim or origin.reading.null)
                test = _ARROW.get(a.spec.kind)
                if not isinstance(column, str) or not as_is or test is None or column not in schema.names:
                    continue
                if test(schema.field(column).type):
                    self._columns[str(a.id)], kinds[str(a.id)] = column, a.spec.kind
        self._kinds = kinds
        self._needed = necessary(request.program, kinds)

    def expression(self, asked: Sequence[Condition]) -> Any:
        """Return what the reader's program and some filters need; None if that is nothing."""
        parts = [self._arrow(one) for one in (*([] if self._needed is None else [self._needed]), *asked)]
        known = [part for part in parts if part is not None]
        return reduce(lambda one, other: one & other, known) if known else None

    def _arrow(self, node: Condition) -> Any:
        match node:
            case And(operands):
                known = [part for part in map(self._arrow, operands) if part is not None]
                return reduce(lambda one, other: one & other, known) if known else None
            case Or(operands):
                parts = [self._arrow(operand) for operand in operands]
                return None if None in map(type_or_none, parts) else reduce(lambda one, other: one | other, parts)
            case Compare(operator, AttributeReference(name), Literal(value, kind)) if self._kinds.get(name) is kind:
                return _compare(operator, pd.field(self._columns[name]), value)
            case IsNull(AttributeReference(name)) if name in self._columns:
                return pd.field(self._columns[name]).is_null()
            case Not(IsNull(AttributeReference(name))) if name in self._columns:
                return pd.field(self._columns[name]).is_valid()
            case Literal():
                return pd.scalar(False)
            case Like(AttributeReference(name), pattern, escape) if name in self._columns:
                form, text = form_of(pattern, escape)
                if form is PatternForm.STARTS and text:
                    return pd.field(self._columns[name]) >= text
        return None


def type_or_none(part: object) -> type | None:
    """Return the type of an expression, which cannot be compared with None, or None."""
    return None if part is None else type(part)


def _compare(operator: ComparisonOperator, field: Any, value: Value | Scalar) -> Any:
    match operator:
        case ComparisonOperator.EQ:
            return field == value
        case ComparisonOperator.NE:
            return field != value
        case ComparisonOperator.LT:
            return field < value
        case ComparisonOperator.LE:
            return field <= value
        case ComparisonOperator.GT:
            return field > value
        case ComparisonOperator.GE:
            return field >= value
