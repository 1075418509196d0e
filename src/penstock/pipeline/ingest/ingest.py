"""Ingest: records of others become typed events, or go to quarantine with a reason. Nothing is lost in between.

Each source is three steps, of which only the first touches files:

    records   read_lines(spark.read, path)        read_csv(spark.read, path, mapping.csv)       read_parquet(…)
    ingest    ingest_envelopes(records, types)    ingest_table(records, mapping.bind(type))     the same
    run       run_ingest(ingested, write)         persists, writes, counts what is stored, raises when a record was lost

Types come in verified: `verify_type` is called once, on the driver. The steps are `DataFrame -> DataFrame`, in native
expressions, and for CSV in Arrow (`csv_columns`). So they work through Spark Connect and on streams; for streams, `run`
belongs into `foreachBatch`.

A record is good if `Event.of` would take it. Every other one is in quarantine under the first reason that was found:

    record      ingest.utf8  ingest.empty  ingest.json  ingest.text  ingest.duplicate-key  ingest.envelope
                ingest.header  ingest.csv  ingest.columns
    metadata    ingest.id  ingest.source  ingest.time  ingest.data  ingest.type
    attributes  ingest.unknown-attribute  ingest.kind  ingest.range  ingest.domain
    events      ingest.duplicate  ingest.late, if they are compared with others (`once`)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame, Observation, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.errors import FailedError, MalformedError
from penstock.model.types import EventType
from penstock.model.values import Kind
from penstock.pipeline.frames import (
    ID,
    METADATA,
    SOURCE,
    TIME,
    attributes_of,
    in_quotes,
    literal,
    quoted,
    unprinted,
)
from penstock.pipeline.ingest.csv_columns import RecordPlaces
from penstock.pipeline.ingest.event_frames import (
    INGESTED,
    QUARANTINE,
    REASON,
    TYPE,
    WORDS,
    kinds_of,
    tag,
    tag_csv,
    tag_shared,
)
from penstock.pipeline.ingest.formats import check_envelopes, check_shared, check_table, first_publishers
from penstock.pipeline.ingest.formats import files_lacking as files_lacking
from penstock.pipeline.ingest.mapping import BoundMapping, MappedFormat
from penstock.pipeline.ingest.records import FILE, NUMBER, ORIGINAL, POSITION
from penstock.pipeline.ingest.records import read_csv as read_csv
from penstock.pipeline.ingest.records import read_lines as read_lines
from penstock.pipeline.ingest.records import read_parquet as read_parquet
from penstock.pipeline.limits import NOTED_RECORDS
from penstock.pipeline.shared_columns import OF, SharedColumns, are_many
from penstock.trust.event_types import VerifiedType

_READ, _GOOD, _BAD = "read", "good", "bad"
_PLACE: Final = "@place"
_KNOWN_SOURCE, _KNOWN_ID = "@known source", "@known id"


@dataclass(frozen=True, slots=True)
class SeparateRecords:
    """Records of which each can be read without the others: what is enough to store events, and those at some places.

    `brief` has no columns of the quarantine but the reason, and the position where that is known without looking at
    other records, and has `@number`. Numbers are the same as long as Spark reads the input in the same parts. `some`
    may return more records than it was asked for.
    """

    brief: Callable[[], DataFrame]
    some: Callable[[RecordPlaces], DataFrame]


@dataclass(frozen=True, slots=True)
class Ingested:
    """The result of an ingest: events and quarantine.

    `tagged` has one row for each record; `good` and `bad` are its two parts. Where more than one of them is used,
    `tagged` is worth persisting, which `run_ingest` does. `store_ingest` reads records in the ways of `separate`.
    """

    tagged: DataFrame
    types: tuple[EventType, ...]
    #: the columns of the attributes, if many types share them
    shared: SharedColumns | None = None
    separate: SeparateRecords | None = None

    @property
    def bad(self) -> DataFrame:
        """The quarantine: reason, words, file, position, original bytes, time of ingest."""
        return self.tagged.where(quoted(REASON).isNotNull()).select(*map(quoted, QUARANTINE))

    @property
    def good(self) -> DataFrame:
        """The events of all types as they travel: `@id`, `@time`, `@source`, and a column for each attribute id."""
        return self._events().selectExpr(*map(in_quotes, METADATA), *self._attributes())

    @property
    def written(self) -> DataFrame:
        """The events as they travel, and in `@type` the version that each was written in, for whoever admits them."""
        return self._events().selectExpr(*map(in_quotes, (TYPE, *METADATA)), *self._attributes())

    def parts(self) -> list[DataFrame]:
        """Return what `written` returns, divided by types if these are many: each part has only its own columns."""
        shared = self.shared
        if shared is None:
            return [self.written]
        there = {str(row[0]) for row in self._events().select(quoted(TYPE)).distinct().collect()}
        return shared.parts(self._events(), self.types, there)

    def events(self, event_type: EventType) -> DataFrame:
        """Return the events that were written in one version, its attributes under their names.

        Raises `MalformedError` (`ingest.types`) when that version was not asked for.
        """
        if event_type not in self.types:
            raise MalformedError("ingest.types", f"`{event_type.name.name}` was not among the types of this ingest")
        places: Mapping[str, str] = {} if self.shared is None else self.shared.columns
        named = [quoted(places.get(a.id, a.id)).alias(a.name) for a in event_type.attributes]
        own = self._events().where(quoted(TYPE) == str(event_type.name))
        return own.select(*map(quoted, METADATA), *named)

    def _attributes(self) -> list[str]:
        if self.shared is None:
            return [in_quotes(a.id) for a in attributes_of(self.types)]
        return self.shared.spread(OF, self.shared.types, self.types)

    def _events(self) -> DataFrame:
        return self.tagged.where(quoted(REASON).isNull())


def ingest_envelopes(records: DataFrame, types: Iterable[VerifiedType], at: datetime) -> Ingested:
    """Read CloudEvents, one a record, of any of some versions; `at` is the time of ingest.

    `records` has the columns `@file`, `@position` and `@original` (`penstock.pipeline.ingest.records`). Raises
    `MalformedError` (`ingest.types`) for types that cannot stand in one frame; never for a record.
    """
    known = tuple(verified.event_type for verified in types)
    if not are_many(known):
        return _ingested(records, known, at, lambda some: tag(check_envelopes(some, known), at))
    kinds_of(known)
    shared = SharedColumns.of(known)
    return Ingested(tag_shared(check_shared(records, shared), at), known, shared)


def ingest_table(records: DataFrame, bound: BoundMapping, at: datetime, lacking: Sequence[str] = ()) -> Ingested:
    """Read rows of CSV or Parquet files by a mapping; `at` is the time of ingest.

    `lacking` are the Parquet files that lack a column of the mapping (`files_lacking`): Spark would make nulls of it. A
    CSV file says so itself. Raises `MalformedError` (`mapping.column`) for a Parquet column that no file has, or of a
    wrong type; never for a record.
    """
    types = (bound.event_type,)
    if bound.mapping.format is not MappedFormat.CSV:

        def tagged(some: DataFrame) -> DataFrame:
            return tag(check_table(some, bound, lacking), at)

        def quickly() -> DataFrame:
            return tag(check_table(records, bound, lacking, publishers=first_publishers(records, bound)), at)

        return _ingested(records, types, at, tagged, quickly)
    files = bound.mapping.csv.multiline
    separate = SeparateRecords(
        lambda: tag_csv(records, bound, at, brief=True),
        lambda places: _again(tag_csv(_among(records, places), bound, at, some=places if files else None), at),
    )
    return Ingested(tag_csv(records, bound, at), types, separate=separate)


def _ingested(
    records: DataFrame,
    types: tuple[EventType, ...],
    at: datetime,
    tagged: Callable[[DataFrame], DataFrame],
    quickly: Callable[[], DataFrame] | None = None,
) -> Ingested:
    """Return the result of an ingest in which each row is a record.

    `quickly` returns what `tagged` returns of all records, and may run a small job first.
    """
    whole = tagged(records)
    every = quickly or (lambda: whole)

    def some(places: RecordPlaces) -> DataFrame:
        if not all(places.values()):
            return _again(tagged(_among(records, places)), at)
        # Unlike a number, a position is known before any value of its row. Rows of other files are checked in vain.
        return _again(tagged(records.where(_is_in(POSITION, frozenset().union(*places.values())))), at)

    unneeded = [name for name in QUARANTINE if name not in (REASON, POSITION)]
    # The number is added last: below, Spark would read all that it knows of a row's file.
    return Ingested(whole, types, separate=SeparateRecords(lambda: _numbered(every().drop(*unneeded)), some))


def _again(tagged: DataFrame, at: datetime) -> DataFrame:
    """Return records that are read a second time: what Spark has compiled for this serves for the next run too."""
    moment = F.get(unprinted(tagged.sparkSession, [at], pa.timestamp("us", "UTC")), F.lit(0))
    return tagged.withColumn(INGESTED, moment)


def _numbered(rows: DataFrame) -> DataFrame:
    return rows.select("*", F.monotonically_increasing_id().alias(NUMBER))


def _among(records: DataFrame, places: RecordPlaces) -> DataFrame:
    return _numbered(records).where(_is_in(NUMBER, places))


def _is_in(column: str, numbers: Iterable[int]) -> str:
    # As one text: Python would tell Java each number in a call of its own.
    return f"`{column}` IN ({', '.join(map(str, numbers))})"


AGAIN: Final = ("ingest.duplicate", "ingest.late")
"""The reasons of events that are put aside because they were there before, or could have been."""


def once(ingested: Ingested, earlier: DataFrame | None = None, since: datetime | None = None) -> Ingested:
    """Put all but the first of several events with the same source and id into quarantine (`ingest.duplicate`).

    `earlier` are events that were ingested before. Events from before `since` are too old to be compared with those,
    and go to quarantine too (`ingest.late`). Which one is the first does not depend on when this is computed.
    """
    tagged, names, good = ingested.tagged, ingested.tagged.columns, quoted(REASON).isNull()
    late = F.lit(False) if since is None else F.coalesce(quoted(TIME) < literal(since, Kind.TIMESTAMP), F.lit(False))
    known = F.lit(False)
    if earlier is not None:
        keys = earlier.select(quoted(SOURCE).alias(_KNOWN_SOURCE), quoted(ID).alias(_KNOWN_ID)).distinct()
        tagged = tagged.join(
            keys, (quoted(SOURCE) == quoted(_KNOWN_SOURCE)) & (quoted(ID) == quoted(_KNOWN_ID)), "left"
        )
        known = quoted(_KNOWN_ID).isNotNull()
    # A record that is not an event has no id, and is not compared: otherwise all of them would be in one partition.
    apart = F.when(~good, F.xxhash64(quoted(ORIGINAL)))
    ids = (a.id for a in attributes_of(ingested.types)) if ingested.shared is None else ingested.shared.kinds
    values = F.xxhash64(*map(quoted, ids))
    order = Window.partitionBy(quoted(SOURCE), quoted(ID), apart).orderBy(
        late, quoted(TIME), quoted(FILE), quoted(POSITION), values
    )
    ranked = tagged.select("*", (known | (F.row_number().over(order) > 1)).alias("@again"), late.alias("@late"))
    problems = (
        (quoted("@again"), AGAIN[0], "an event with this source and id was there before"),
        (quoted("@late"), AGAIN[1], "the event is older than those that it can be compared with"),
    )
    found = {REASON: quoted(REASON), WORDS: quoted(WORDS)}
    for where, code, words in reversed(problems):
        found[REASON] = F.when(good & where, F.lit(code)).otherwise(found[REASON])
        found[WORDS] = F.when(good & where, F.lit(words)).otherwise(found[WORDS])
    columns = (found.get(name, quoted(name)).alias(name) for name in names)
    return replace(ingested, tagged=ranked.select(*columns), separate=None)


@dataclass(frozen=True, slots=True)
class RecordTally:
    """Numbers of records that were read, became events, and went to quarantine."""

    read: int
    good: int
    bad: int
    reasons: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.read:,} records = {self.good:,} good + {self.bad:,} in quarantine"


class StoredRecords(NamedTuple):
    """Stored records read back: events, and the quarantine with its reasons."""

    good: DataFrame
    bad: DataFrame


def reconcile(ingested: Ingested, stored: StoredRecords | None = None) -> RecordTally:
    """Count records, and what is stored of them, in one pass, and compare.

    Without `stored`, what there is to be stored is counted. Raises `FailedError` (`ingest.lost`) when a record is in
    neither part, or in both.
    """
    parts = StoredRecords(ingested.good, ingested.bad) if stored is None else stored
    return _tally(ingested.tagged, parts)


def _tally(read: DataFrame | int, stored: StoredRecords) -> RecordTally:
    """Count what is stored, and the records if they were not counted before, and compare."""
    none = F.lit("").alias(REASON)
    counted = stored.good.select(F.lit(_GOOD).alias("@part"), none).unionByName(
        stored.bad.select(F.lit(_BAD).alias("@part"), quoted(REASON))
    )
    if not isinstance(read, int):
        counted = counted.unionByName(read.select(F.lit(_READ).alias("@part"), none))
    rows = [(str(row[0]), str(row[1]), int(row[2])) for row in counted.groupBy("@part", REASON).count().collect()]

    def total(part: str) -> int:
        return sum(count for name, _, count in rows if name == part)

    reasons = tuple(
        sorted(((reason, count) for name, reason, count in rows if name == _BAD), key=lambda r: (-r[1], r[0]))
    )
    found = RecordTally(read if isinstance(read, int) else total(_READ), total(_GOOD), total(_BAD), reasons)
    if found.read != found.good + found.bad:
        raise FailedError(
            "ingest.lost",
            f"{found.read} records were read, and {found.good} + {found.bad} came out",
            hint="do not use the output of this run; read the input again",
            read=found.read,
            good=found.good,
            bad=found.bad,
        )
    return found


def run_ingest(ingested: Ingested, write: Callable[[Ingested], StoredRecords | None]) -> RecordTally:
    """Persist, let `write` store both parts, and count what is stored. Reads the input once.

    Where `write` cannot read back what it has written, and returns None, what it was given is counted. Raises what
    `write` raises, and `FailedError` (`ingest.lost`).
    """
    # Good records are kept as events, and not as bytes too.
    original = F.when(quoted(REASON).isNotNull(), quoted(ORIGINAL))
    tagged = ingested.tagged.withColumn(ORIGINAL, original)
    if ingested.shared is not None:
        # Each part then reads only its own rows of what is kept.
        tagged = tagged.sortWithinPartitions(quoted(OF))
    kept = replace(ingested, tagged=tagged.persist())
    try:
        return reconcile(kept, write(kept))
    finally:
        kept.tagged.unpersist()


def store_ingest(
    ingested: Ingested, events: Callable[[DataFrame], DataFrame], quarantine: Callable[[DataFrame], DataFrame]
) -> RecordTally:
    """Store events and quarantine, each by a function that returns what it has stored, and count it.

    Nothing is kept in between: records are counted while their events are stored, and only if some are bad is the input
    read a second time. It must be the same then, as files are. Where few are bad, only records in their places are
    checked again. Raises what the functions raise, and `FailedError` (`ingest.lost`).
    """
    separate, seen = ingested.separate, Observation()
    observed = [F.count(F.lit(1)).alias(_READ), F.count(quoted(REASON)).alias(_BAD)]
    if separate is None:
        frame = ingested.tagged.drop(*QUARANTINE[1:])
    else:
        frame = separate.brief()
        # Places alone: what is observed is in Spark's log of events. Of good records nothing goes that far.
        numbers = [quoted(name).cast("string") for name in (NUMBER, POSITION) if name in frame.columns]
        place = F.when(quoted(REASON).isNotNull(), F.concat_ws(":", *numbers))
        frame = frame.withColumn(_PLACE, place).drop(NUMBER, POSITION)
        noted = F.max_by(quoted(_PLACE), quoted(_PLACE), NOTED_RECORDS)
        observed.append(F.array_join(noted, ",").alias(_PLACE))
    # Filters are not moved below what observes, where they would compute every value a second time.
    good = events(replace(ingested, tagged=frame.observe(seen, *observed)).written)
    found = seen.get
    read, bad = int(found[_READ]), int(found[_BAD])
    if not bad:
        return _tally(read, StoredRecords(good, quarantine(ingested.bad.limit(0))))
    if separate is not None and bad <= NOTED_RECORDS:
        again = replace(ingested, tagged=separate.some(_places(found[_PLACE])))
        stored = StoredRecords(good, quarantine(again.bad))
        # If Spark has read the input in other parts than before, some are not found, and all records are checked again.
        with suppress(FailedError):
            return _tally(read, stored)
    return _tally(read, StoredRecords(good, quarantine(ingested.bad)))


def _places(noted: str) -> RecordPlaces:
    """Read what was noted of bad records."""
    found: dict[int, set[int]] = {}
    for one in noted.split(","):
        number, _, position = one.partition(":")
        found.setdefault(int(number), set()).update([int(position)] if position else [])
    return {number: frozenset(positions) for number, positions in found.items()}


def each_batch(
    ingest: Callable[[DataFrame], Ingested],
    write: Callable[[Ingested, int], StoredRecords | None],
    report: Callable[[RecordTally, int], None],
) -> Callable[[DataFrame, int], None]:
    """Return what `foreachBatch` calls: ingest, write and count each batch of a stream of records.

    `write` gets the number of the batch, which stays the same when a batch is repeated after a failure, so that it can
    overwrite what it wrote before.
    """

    def process(records: DataFrame, number: int) -> None:
        report(run_ingest(ingest(records), lambda ingested: write(ingested, number)), number)

    return process
