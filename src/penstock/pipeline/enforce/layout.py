"""Store delivered rows, and open a reader's view of them.

    program      rows/@batch=N/@program=K/        rows by program, attributes under their ids; readers who share a
                                                  program share its rows. Of many programs: rows/@batch=N/, sorted
    subscriber   views/@subscriber=S/@batch=N/@policy=P/   a folder for each reader, attributes under the names of its
                                                  version; P is of the policy's revision, so that rows of a run that was
                                                  stopped and repeated by another policy do not count
    both         commits/@batch=N/                the manifest: who reads which program, in which version

Everything goes through Spark, so that a path may be any that Spark can write. The manifest is what a commit says of a
batch (`commits`), and is written last.

A view is in the version that the reader has in the last batch. Earlier batches may be of another policy; attributes are
then found by id.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import DataType, IntegerType, StringType, StructField, StructType, TimestampType

from penstock.model.values import Kind
from penstock.pipeline.enforce.deliver import VERSION, Delivered
from penstock.pipeline.enforce.manifest import (
    POLICY,
    PROGRAM,
    ROWS,
    SUBSCRIBER,
    VIEWS,
    Manifest,
    ReaderView,
    StoredAttribute,
    layout_named,
    manifests_of,
    no_view,
    policy_mark,
    reader_views,
)
from penstock.pipeline.enforce.manifest import WITHOUT_RIGHTS as WITHOUT_RIGHTS
from penstock.pipeline.enforce.manifest import Layout as Layout
from penstock.pipeline.enforce.programs import Program, table
from penstock.pipeline.event_columns import TYPE
from penstock.pipeline.frames import ID, METADATA, SOURCE, TIME, literal, metadata, quoted, spark_type
from penstock.pipeline.outputs import BATCH, commit, commits, is_not_found, kept, reading, replacing, withdraw

FOLDERS: Final = 100
"""More programs than this share one table: a task would write that many files at the same time."""
_WRITERS: Final = "spark.sql.maxConcurrentOutputFileWriters"
_PLACE: Final = (SUBSCRIBER, BATCH, POLICY)
_PLACED: Final = StructType(
    [StructField(SUBSCRIBER, StringType()), StructField(BATCH, IntegerType()), StructField(POLICY, StringType())]
)


# --- Writing ---------------------------------------------------------------------------------------------------------


def write_views(
    delivered: Delivered, path: str, *, layout: Layout | str = Layout.PROGRAM, revision: str = "", batch: int = 0
) -> Manifest:
    """Store the rows of all readers. A batch that was written before is replaced.

    Raises `MalformedError` (`layout.unknown`, `layout.subscriber` for a name that no folder can have or that stands
    twice).
    """
    manifest = store_rows(delivered, path, layout=layout, revision=revision, batch=batch)
    commit(delivered.rows.sparkSession, path, batch, manifest.as_dict())
    return manifest


def store_rows(
    delivered: Delivered, path: str, *, layout: Layout | str = Layout.PROGRAM, revision: str = "", batch: int = 0
) -> Manifest:
    """Store the rows of all readers, and return the manifest, not committed yet. Raises as `write_views`."""
    chosen = layout_named(layout)
    many = chosen is Layout.PROGRAM and len(delivered.programs) > FOLDERS
    manifest = Manifest(chosen, revision, reader_views(delivered.programs), many, delivered.without_rights)
    withdraw(delivered.rows.sparkSession, path, batch)
    if chosen is Layout.PROGRAM:
        _write_rows(delivered, path, batch, in_order=many)
    else:
        _write_folders(delivered, path, batch, revision)
    return manifest


def _write_rows(delivered: Delivered, output: str, batch: int, *, in_order: bool) -> None:
    path = f"{output}/{ROWS}/{BATCH}={batch}"
    with _evaluated(delivered, output, batch, several=delivered.shared is not None) as found:
        there = None if found.shared is None else _programs_in(found.rows)
        for number, rows in enumerate(found.parts(there)):
            # Sorted within each file, so that a reader skips the pages of others.
            part = rows.sortWithinPartitions(PROGRAM) if in_order else rows
            writer = part.write.mode("append") if number else replacing(part)
            if in_order:
                writer.parquet(path)
                continue
            # A file open for each program costs less than sorting all rows by program.
            with _writers(rows.sparkSession, max(1, len(delivered.programs))):
                writer.partitionBy(PROGRAM).parquet(path)


def _write_folders(delivered: Delivered, output: str, batch: int, revision: str) -> None:
    # Files of one job have the same columns, so versions are written together if these are the same for them.
    views: dict[tuple[tuple[str, str | None, Kind], ...], list[Program]] = {}
    for program in delivered.programs:
        views.setdefault(delivered.view(program.event_type), []).append(program)
    with _evaluated(delivered, output, batch, several=len(views) > 1) as found:
        there = _programs_in(found.rows) if len(views) > FOLDERS else None
        for view, programs in views.items():
            if there is not None and there.isdisjoint(program.number for program in programs):
                continue
            columns = [(literal(None, kind) if own is None else quoted(own)).alias(name) for name, own, kind in view]
            named = Delivered(found.rows, tuple(programs)).by_subscriber()
            place = [quoted(SUBSCRIBER), F.lit(batch).alias(BATCH), F.lit(policy_mark(revision)).alias(POLICY)]
            named = named.select(*place, *metadata(), *columns)
            # Only the folders of this batch are replaced: the others belong to earlier ones.
            writer = named.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
            with _writers(named.sparkSession, min(FOLDERS, sum(len(program.readers) for program in programs))):
                writer.partitionBy(SUBSCRIBER, BATCH, POLICY).parquet(f"{output}/{VIEWS}")


@contextmanager
def _evaluated(delivered: Delivered, path: str, batch: int, *, several: bool) -> Iterator[Delivered]:
    """Yield the deliveries, whose rows are kept meanwhile if several jobs read them."""
    if several and delivered.shared is not None:
        # Each part then reads only its own rows of what is kept.
        with kept(delivered.rows.sortWithinPartitions(VERSION), path, batch) as rows:
            yield replace(delivered, rows=rows)
        return
    rows = delivered.rows.persist() if several else delivered.rows
    try:
        yield replace(delivered, rows=rows)
    finally:
        if several:
            rows.unpersist()


def _programs_in(rows: DataFrame) -> set[int]:
    return {int(row[0]) for row in rows.select(quoted(PROGRAM)).distinct().collect()}


@contextmanager
def _writers(spark: SparkSession, count: int) -> Iterator[None]:
    before = spark.conf.get(_WRITERS, None)
    spark.conf.set(_WRITERS, str(count))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_WRITERS)
        else:
            spark.conf.set(_WRITERS, before)


# --- Reading ---------------------------------------------------------------------------------------------------------


def read_manifests(spark: SparkSession, path: str) -> dict[int, Manifest]:
    """Return the manifest of each complete batch.

    Raises `FailedError` (`layout.incomplete`) where there is none, and `MalformedError` (`layout.manifest`).
    """
    return manifests_of(path, commits(spark, path))


def open_view(spark: SparkSession, path: str, subscriber: str) -> DataFrame:
    """Return one reader's events, under the names of its version, from either layout.

    Raises `FailedError` (`layout.incomplete`), `MalformedError` (`layout.manifest`, `pipeline.unknown-subscriber`),
    `RefusedError` (`pipeline.no-rights`).
    """
    manifests = read_manifests(spark, path)
    theirs = {batch: manifest for batch, manifest in manifests.items() if subscriber in manifest.views}
    if not theirs:
        last = manifests[max(manifests)]
        raise no_view(subscriber, last.views, last.without_rights)
    version = theirs[max(theirs)].views[subscriber].attributes
    groups: dict[tuple[Layout, bool, str, ReaderView], list[int]] = {}
    for batch, manifest in theirs.items():
        kind = (manifest.layout, manifest.sorted, manifest.revision, manifest.views[subscriber])
        groups.setdefault(kind, []).append(batch)
    parts = [
        _rows(spark, path, view, batches, version)
        if layout is Layout.PROGRAM
        else _folder(spark, path, subscriber, view, version).where(_of(batches, revision)).drop(*_PLACE)
        for (layout, _, revision, view), batches in groups.items()
    ]
    return reduce(DataFrame.unionByName, parts)


def open_rows(
    spark: SparkSession, path: str, batch: int, views: Mapping[str, ReaderView], schema: StructType
) -> DataFrame:
    """Return the rows of a batch for some readers, from the layout by program.

    Each row says its reader and the reader's version (`@subscriber`, `@type`); attributes have their ids.
    """
    ids = [one.name for one in schema if one.name not in METADATA]
    columns = [quoted(SUBSCRIBER), quoted(TYPE), *metadata(), *map(quoted, ids)]
    if not views:
        own = StructType([StructField(SUBSCRIBER, StringType()), StructField(TYPE, StringType()), *schema])
        return spark.createDataFrame([], own).select(*columns)
    kinds = {PROGRAM: Kind.INTEGER, SUBSCRIBER: Kind.STRING, TYPE: Kind.STRING}
    readers = table(spark, kinds, [(view.program, name, view.type) for name, view in views.items()])
    readers = readers.select(quoted(PROGRAM).cast("int").alias(PROGRAM), quoted(SUBSCRIBER), quoted(TYPE))
    wanted = StructType([*schema, StructField(PROGRAM, IntegerType())])
    place = f"{path}/{ROWS}"
    rows = reading(spark).schema(wanted).option("basePath", place).parquet(f"{place}/{BATCH}={batch}")
    return rows.join(F.broadcast(readers), PROGRAM).select(*columns)


def stored_rows(spark: SparkSession, path: str, manifest: Manifest, batch: int) -> dict[str, int]:
    """Return the number of rows of a batch for each reader of a manifest; 0 for those without rights."""
    refused = dict.fromkeys(manifest.without_rights, 0)
    if not manifest.views:
        return refused
    if manifest.layout is Layout.PROGRAM:
        schema = StructType([StructField(PROGRAM, IntegerType())])
        rows = reading(spark).schema(schema).parquet(f"{path}/{ROWS}/{BATCH}={batch}")
        counts = {int(row[0]): int(row[1]) for row in rows.groupBy(quoted(PROGRAM)).count().collect()}
        return {name: counts.get(view.program, 0) for name, view in manifest.views.items()} | refused
    rows = _read_folders(spark, f"{path}/{VIEWS}", _PLACED).where(_of([batch], manifest.revision))
    found = {str(row[0]): int(row[1]) for row in rows.groupBy(quoted(SUBSCRIBER)).count().collect()}
    return {name: found.get(name, 0) for name in manifest.views} | refused


def _rows(
    spark: SparkSession, path: str, view: ReaderView, batches: Sequence[int], version: Sequence[StoredAttribute]
) -> DataFrame:
    schema = _schema({a.id: spark_type(a.kind) for a in version}, StructField(PROGRAM, IntegerType()))
    parts = [f"{path}/{ROWS}/{BATCH}={batch}" for batch in batches]
    rows = reading(spark).schema(schema).option("basePath", f"{path}/{ROWS}").parquet(*parts)
    rows = rows.where(quoted(PROGRAM) == view.program)
    return rows.select(*metadata(), *(quoted(a.id).alias(a.name) for a in version))


def _of(batches: Sequence[int], revision: str) -> Column:
    return quoted(BATCH).isin(list(batches)) & (quoted(POLICY) == policy_mark(revision))


def _folder(
    spark: SparkSession, path: str, subscriber: str, view: ReaderView, version: Sequence[StoredAttribute]
) -> DataFrame:
    then = {a.id: a.name for a in view.attributes}
    schema = _schema({then[a.id]: spark_type(a.kind) for a in version if a.id in then}, *_PLACED)
    rows = _read_folders(spark, f"{path}/{VIEWS}", schema).where(quoted(SUBSCRIBER) == subscriber)
    absent = F.lit(None)
    columns = [(quoted(then[a.id]) if a.id in then else absent.cast(spark_type(a.kind))).alias(a.name) for a in version]
    return rows.select(*map(quoted, _PLACE), *metadata(), *columns)


def _read_folders(spark: SparkSession, path: str, schema: StructType) -> DataFrame:
    try:
        rows = reading(spark).schema(schema).parquet(path)
        rows.columns  # noqa: B018  # through Spark Connect it is asked here whether the path exists
    except AnalysisException as error:
        # Nobody received anything, so there are no folders.
        if not is_not_found(error):
            raise
        return spark.createDataFrame([], schema)
    return rows


def _schema(attributes: Mapping[str, DataType], *place: StructField) -> StructType:
    kinds: dict[str, DataType] = {ID: StringType(), TIME: TimestampType(), SOURCE: StringType()}
    own = [StructField(name, kinds[name]) for name in METADATA]
    return StructType([*own, *(StructField(name, kind) for name, kind in attributes.items()), *place])
