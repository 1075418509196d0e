"""The job `evaluate`: what policies say of every row of a table of requests.

    evaluate    a table    ->  decided/  decisions/

`decided/` has the rows with the answers beside them, in a folder `@revision=…` that says by which policies, which Spark
and others read as a column; `decisions/`, where it is wanted, a record for each of them, as
the decision service writes them (docs/reference/decision-log.md).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import FailedError
from penstock.guard.decision_log import ANSWERED
from penstock.pipeline.commits import DECISIONS
from penstock.pipeline.conflicts.input import InputTable, StorageFormat
from penstock.pipeline.evaluate import DECISION, POLICIES, STATUS, RequestColumn, TablePolicies, evaluate
from penstock.pipeline.frames import quoted
from penstock.pipeline.ingest.mapping import CsvLayout
from penstock.pipeline.ingest.records import (
    ORIGINAL,
    PROBLEM,
    csv_columns,
    csv_records,
    csv_rows,
    is_one_json,
    line_text,
    place_text,
    read_lines,
)
from penstock.pipeline.outputs import (
    NO_ROW,
    STRICT,
    Output,
    Reader,
    Said,
    Streaming,
    arriving,
    check_sum,
    raise_in_task,
    reading,
)
from penstock.pipeline.tables.addresses import SinkRows
from penstock.policy.language.requests import ACTION, ACTION_ID, RESOURCE, RESOURCE_ID, SUBJECT, SUBJECT_ID
from penstock.policy.language.results import XacmlDecision

DECIDED: Final = "decided"
REVISION: Final = "@revision"
"""The column that says which policies have decided."""
WORDS: Final = tuple(dict.fromkeys(decision.plain for decision in XacmlDecision))
"""The decisions, as they are counted."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """The job. With `log`, an id of its own for each run, decisions are recorded."""

    table: InputTable
    columns: tuple[RequestColumn, ...]
    policies: TablePolicies
    clock: Callable[[], datetime]
    log: str | None = None
    #: nanoseconds, from any beginning
    timer: Callable[[], int] = time.perf_counter_ns
    name: str = "evaluate"
    parts: tuple[str, ...] = (DECIDED, DECISIONS)

    @property
    def source(self) -> str:
        """The name of the input."""
        return self.table.path if self.table.stored is None else self.table.stored.name

    @property
    def files(self) -> str | None:
        """Where the table is."""
        return self.table.files

    def _read(self, spark: SparkSession, streaming: Streaming | None) -> DataFrame:
        """Return requests. Those of a stream have the columns of the files that are there."""
        stored = self.table.stored
        if stored is not None:
            return stored.batch(spark) if streaming is None else stored.stream(spark, streaming)
        path = self.table.path
        reader: Reader = spark.read if streaming is None else spark.readStream.options(**arriving(streaming))
        match self.table.format:
            case StorageFormat.CSV:
                columns = csv_columns(spark, path, CsvLayout())
                rows = csv_rows(csv_records(reader, path, CsvLayout()), columns)
                return _whole(rows).select(*map(quoted, columns))
            case StorageFormat.JSON:
                # An invalid value counts for no column here, and is reported when it is read.
                known = reading(spark).options(mode="DROPMALFORMED").json(path).schema
                wanted = StructType([*known, StructField(PROBLEM, StringType())])
                text = line_text(quoted(ORIGINAL))
                row = F.from_json(text, wanted, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": PROBLEM})
                lines = read_lines(reader, path).where(F.length(F.trim(text)) > 0)
                bad = quoted("@row").getField(PROBLEM).isNotNull() | ~is_one_json(text)
                found = lines.withColumn("@row", row).withColumn(PROBLEM, F.when(bad, F.lit("not one JSON object")))
                return _whole(found).select(*(quoted("@row").getField(one.name).alias(one.name) for one in known))
        # Otherwise the columns of one file would count for all, and further columns of others would be ignored.
        merged = reading(spark).options(mergeSchema="true").parquet(path)
        if streaming is None:
            return merged
        return reader.schema(merged.schema).options(**STRICT).options(mergeSchema="true").parquet(path)

    def all(self, spark: SparkSession) -> DataFrame:
        """Return all requests."""
        return self._read(spark, None)

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return requests as files arrive, with the columns of those that are there.

        Raises `FailedError` (`pipeline.no-input`).
        """
        if self.files is not None and Path(self.files).is_file():
            raise FailedError(
                "pipeline.no-input",
                f"`{self.files}` is one file, and a stream reads the files that arrive in a folder",
                hint="pass the folder, or read the file without --stream",
            )
        return self._read(spark, streaming)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the requests of a batch."""
        return batch if self.table.stored is None else self.table.stored.arrived(batch)

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return the frames that would be computed."""
        return (evaluate(events, self.policies, self.columns, self.clock()),)

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Write answers and records, and count them. Raises `FailedError` (`pipeline.lost`)."""
        now, began = self.clock(), self.timer()
        found = evaluate(events, self.policies, self.columns, now)
        path = f"{output.part(DECIDED, batch)}/{REVISION}={self.policies.revision}"
        found.write.mode("overwrite").parquet(path)
        took = self.timer() - began
        stored = output.spark.read.schema(found.schema).parquet(path)
        told = stored.groupBy(quoted(DECISION), quoted(STATUS)).count().collect()
        by = {(str(row[0]), row[1]): int(row[2]) for row in told}
        counts = {word: sum(count for (said, _), count in by.items() if said == word) for word in WORDS}
        read = events.count()
        check_sum(read, counts)
        if self.log is not None:
            # Rows are decided many at a time, and each has the same share of it.
            share = took // max(read, 1) // 1_000
            lines = self._records(stored, f"{self.log}-{batch}", now, share)
            lines.write.mode("overwrite").text(output.part(DECISIONS, batch))
        reasons = {status: count for (_, status), count in by.items() if status is not None}
        return {"counts": {"read": read, **counts}, "reasons": reasons, "revision": self.policies.revision}

    def rows(self, output: Output, batch: int, said: Said) -> SinkRows:
        """Return the rows with the answers, and the revision of the policies in `@revision`."""
        stored = reading(output.spark).parquet(f"{output.part(DECIDED, batch)}/{REVISION}={said['revision']}")
        return SinkRows(stored.withColumn(REVISION, F.lit(said["revision"])))

    def _records(self, decided: DataFrame, run: str, now: datetime, took: int) -> DataFrame:
        """Return a CloudEvent for each decision, as a line: subject, action and resource, and no other attributes."""
        subject, action, resource = (
            self._text(category, name)
            for category, name in ((SUBJECT, SUBJECT_ID), (ACTION, ACTION_ID), (RESOURCE, RESOURCE_ID))
        )
        data = F.struct(
            F.lit(self.name).alias("endpoint"),
            quoted(DECISION).alias("decision"),
            self._because().alias("because"),
            F.lit(self.policies.revision).alias("revision"),
            F.lit(took).alias("took"),
            F.struct(F.lit("").alias("type"), subject.alias("id")).alias("subject"),
            action.alias("action"),
            F.struct(F.lit("").alias("type"), resource.alias("id")).alias("resource"),
            quoted(STATUS).alias("status"),
        )
        record = F.struct(
            F.lit("1.0").alias("specversion"),
            F.concat(F.lit(f"{run}-"), F.monotonically_increasing_id()).alias("id"),
            F.lit(f"penstock-pipeline/{self.name}").alias("source"),
            F.lit(ANSWERED).alias("type"),
            F.lit(now.isoformat()).alias("time"),
            F.lit("application/json").alias("datacontenttype"),
            data.alias("data"),
        )
        return decided.select(F.to_json(record).alias("value"))

    def _because(self) -> Column:
        """Return the policies that a decision rests on: those that applied, or the one that decides."""
        nothing, root = F.array().cast("array<string>"), F.array(F.lit(f"policy:{self.policies.root.id}"))
        ids = F.from_json(quoted(POLICIES), "array<string>")
        applied = F.transform(ids, lambda id_: F.concat(F.lit("policy:"), id_))
        applies = quoted(DECISION) != XacmlDecision.NOT_APPLICABLE.plain
        return F.when(applies, F.coalesce(applied, root)).otherwise(nothing)

    def _text(self, category: str, name: str) -> Column:
        """Return an attribute as text; empty if no column has it."""
        for one in self.columns:
            if (one.key.category, one.key.id) == (category, name):
                value = F.to_json(quoted(one.name)) if one.many and one.separator is None else quoted(one.name)
                return F.coalesce(value.cast("string"), F.lit(""))
        return F.lit("")


def _whole(rows: DataFrame) -> DataFrame:
    """Return rows without a `@problem`; a row with one stops the job, because its request is unknown."""
    failed = raise_in_task(NO_ROW, F.concat(place_text(), F.lit(": "), quoted(PROBLEM)))
    return rows.where(F.when(quoted(PROBLEM).isNull(), F.lit(True)).otherwise(failed.cast("boolean")))
