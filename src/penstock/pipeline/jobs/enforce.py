"""The jobs `admit` and `deliver`: what publishers may put in, and what readers get out, recorded."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial, reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import RefusedError
from penstock.guard import EventCounts
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.pipeline.commits import DECISIONS, EVENTS, OF_UNKNOWN_TYPE, RECORDS, REFUSED, UNKNOWN_TYPE
from penstock.pipeline.enforce.admit import REASON, admit, admit_shared
from penstock.pipeline.enforce.deliver import PROGRAM, Delivered, deliver_shared, is_known
from penstock.pipeline.enforce.layout import Layout, open_rows, store_rows, stored_rows
from penstock.pipeline.enforce.manifest import ROWS, SUBSCRIBER, VIEWS, Manifest, no_view, subscribers_of
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber
from penstock.pipeline.enforce.policy import RecordingPolicy as RecordingPolicy
from penstock.pipeline.frames import SOURCE, attributes_of, literal, metadata, quoted, transit_schema
from penstock.pipeline.ingest.event_frames import TYPE, WORDS
from penstock.pipeline.ingest.ingest import AGAIN, Ingested
from penstock.pipeline.ingest.records import FILE, ORIGINAL, POSITION
from penstock.pipeline.jobs.ingest import LATEST, event_rows, latest_event, once_in, stored_schema
from penstock.pipeline.limits import RECORD_PRINCIPALS
from penstock.pipeline.outputs import (
    Output,
    Said,
    Streaming,
    check_sum,
    commits,
    complete,
    follow,
    kept,
    named,
    read_part,
)
from penstock.pipeline.sealed.log import ATTRIBUTES, CLOSED, SEALED, KeyFiles, closed, names_said, read_log
from penstock.pipeline.sealed.reader import sealed_events
from penstock.pipeline.sealed.signers import SignerPolicy
from penstock.pipeline.shared_columns import OF, are_many
from penstock.pipeline.tables.addresses import RowSource, SinkRows
from penstock.pipeline.tables.columns import event_rows_of
from penstock.selector import ALWAYS
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType

_COUNTED: Final = StructType([StructField(TYPE, StringType()), StructField(SOURCE, StringType())])


@dataclass(frozen=True, slots=True)
class OfEvents:
    """The common part of jobs that read events from another job."""

    path: str
    types: tuple[EventType, ...]
    #: the files of the keys, if it is a sealed log
    keys: KeyFiles | None = field(default=None, kw_only=True)
    #: the table, if the events are in one and not in the output of a job
    table: RowSource | None = field(default=None, kw_only=True)

    @property
    def source(self) -> str:
        """The name of the input."""
        return self.path if self.table is None else self.table.name

    @property
    def judge(self) -> SignerPolicy | None:
        """The policy that decides whose signatures count on blocks of a sealed log; without one, none do."""
        return None

    @property
    def files(self) -> str | None:
        """Where the events stand."""
        return self.table.files if self.table is not None else f"{self.path}/{EVENTS if self.keys is None else SEALED}"

    @property
    def schema(self) -> StructType:
        """Return the columns of events as they are stored."""
        return stored_schema(self.types)

    def all(self, spark: SparkSession) -> DataFrame:
        """Return the events of all complete batches. Raises `FailedError` (`pipeline.no-input`)."""
        if self.table is not None:
            return event_rows_of(self.table.batch(spark), self.types, self.table.name)
        return self._of(spark, complete(spark, self.path))

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return the commits of the other job as they arrive. Raises `FailedError` (`pipeline.no-input`)."""
        if self.table is not None:
            return self.table.stream(spark, streaming)
        return follow(spark, self.path, streaming)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the events of the batches that were committed."""
        if self.table is not None:
            return event_rows_of(self.table.arrived(batch), self.types, self.table.name)
        return self._of(batch.sparkSession, named(batch))

    def closed(self, spark: SparkSession) -> tuple[str, ...]:
        """Return the attributes of a sealed log that are null here, because no key of them is held."""
        if self.keys is None:
            return ()
        return closed(self.types, self.keys.read(), names_said(commits(spark, self.path).values(), ATTRIBUTES))

    def _of(self, spark: SparkSession, batches: list[int]) -> DataFrame:
        if self.keys is None:
            return read_part(spark, self.path, EVENTS, batches, self.schema)
        blocks = read_log(spark, self.path, batches)
        return sealed_events(blocks, self.types, self.keys, self.judge)


@dataclass(frozen=True, slots=True)
class Admit(OfEvents):
    """The job `admit`. Events of a version that the policy does not know are refused (`pipeline.unknown-type`)."""

    desk: RecordingPolicy
    #: compare admitted events with each other, and in a stream with those of earlier batches within this time
    dedupe: timedelta | None = field(default=None, kw_only=True)
    name: str = "admit"
    parts: tuple[str, ...] = (EVENTS, REFUSED, DECISIONS)

    @property
    def judge(self) -> SignerPolicy:
        """The policy that events are admitted by."""
        return _judge(self.desk.policy)

    def planned(self, events: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Return the events that are admitted, and the refusals."""
        if are_many(self.desk.types):
            found = admit_shared(events, self.desk.policy.types, self.desk.policy)
            # Parts of many types have columns of their own.
            good = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), found.parts())
            return good, found.refused.unionByName(self._unknown(events))
        return self._versions(events)

    def _versions(self, events: DataFrame) -> tuple[DataFrame, DataFrame]:
        versions = [self._version(events, verified) for verified in self.desk.policy.types]
        good, bad = (reduce(DataFrame.unionByName, part) for part in zip(*versions, strict=True))
        return good, self._unknown(events).unionByName(bad)

    def _unknown(self, events: DataFrame) -> DataFrame:
        """Return the events of versions that the policy does not know, as refusals."""
        other = events.select(quoted(TYPE), *metadata()).where(~is_known(self.desk.types))
        return other.select("*", F.lit(UNKNOWN_TYPE).alias(REASON))

    @contextmanager
    def _admitted(
        self, events: DataFrame, batch: int, output: Output
    ) -> Iterator[tuple[int, list[DataFrame], DataFrame]]:
        """Yield the number of events, those that are admitted, and the refusals.

        Those of many types are evaluated once, in shared columns, and kept while their parts are written.
        """
        if not are_many(self.desk.types):
            good, bad = self._versions(events)
            if self.dedupe is not None:
                compared = once_in(Ingested(_tagged(good), self.types), batch, output, self.dedupe).tagged
                bad = bad.unionByName(compared.where(quoted(REASON).isNotNull()).select(*map(quoted, bad.columns)))
                good = compared.where(quoted(REASON).isNull()).select(*map(quoted, good.columns))
            yield events.count(), [good], bad
            return
        there = {key[0]: count for key, count in _by(events, TYPE).items()}
        admitted = admit_shared(events, self.desk.policy.types, self.desk.policy, there)
        judged = admitted.judged
        if self.dedupe is not None:
            # Events are compared with those of all types.
            tagged = Ingested(_tagged(judged), admitted.shared.types, admitted.shared)
            judged = once_in(tagged, batch, output, self.dedupe).tagged.select(*map(quoted, judged.columns))
        # Each part then reads only its own rows of what is kept.
        with kept(judged.sortWithinPartitions(quoted(OF)), output.path, batch) as rows:
            found = replace(admitted, judged=rows)
            unknown = there.keys() - {str(one.name) for one in self.desk.types}
            bad = found.refused.unionByName(self._unknown(events)) if unknown else found.refused
            yield sum(there.values()), found.parts(there), bad

    def _version(self, events: DataFrame, verified: VerifiedType) -> tuple[DataFrame, DataFrame]:
        event_type = verified.event_type
        name = str(event_type.name)
        own = events.where(quoted(TYPE) == name)
        typed = own.select(*metadata(), *(quoted(a.id).alias(a.name) for a in event_type.attributes))
        found = admit(typed, verified, self.desk.policy)
        ids = [
            (quoted(a.id) if a.id in event_type.by_id else literal(None, a.spec.kind)).alias(str(a.id))
            for a in attributes_of(self.types)
        ]
        good = found.events.select(F.lit(name).alias(TYPE), *metadata(), *ids)
        return good, found.refused.select(F.lit(name).alias(TYPE), *metadata(), quoted(REASON))

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Write events, refusals and decisions. Raises `FailedError` (`pipeline.lost`)."""
        spark = output.spark
        with self._admitted(events, batch, output) as (read, parts, bad):
            output.write(parts[0], EVENTS, batch, *parts[1:])
            # Stored rows are counted: the events, and the refusals by their reasons.
            passed = _by(spark.read.schema(_COUNTED).parquet(output.part(EVENTS, batch)), TYPE, SOURCE)
            # Where all events were admitted, the refusals are only counted: that reads no more than rights ask about.
            whole = sum(passed.values()) == read and bad.count() == 0
            output.write(bad.limit(0) if whole else bad, REFUSED, batch)
            refused = spark.read.schema(bad.schema).parquet(output.part(REFUSED, batch))
        why = {} if whole else _by(refused, REASON)
        counts = {"read": read, "events": sum(passed.values()), "refused": sum(why.values())}
        check_sum(counts["read"], {name: counts[name] for name in ("events", "refused")})
        # Senders without rights can use any number of names. Events that came again were not refused by a decision.
        most = RECORD_PRINCIPALS
        decided = refused.where(~quoted(REASON).isin(*AGAIN))
        aside = _by(decided, TYPE, SOURCE, most=most + 1) if why else {}
        self._record(passed, dict(list(aside.items())[:most]))
        counts[RECORDS] = _write_records(self.desk, output, batch)
        reasons = {key[0]: count for key, count in why.items()}
        said: Said = {"all publishers recorded": len(aside) <= most, CLOSED: list(self.closed(spark))}
        if self.dedupe is not None:
            said[LATEST] = latest_event(output, batch)
        return {"counts": counts, "reasons": reasons, **said}

    def rows(self, output: Output, batch: int, said: Said) -> SinkRows:  # noqa: ARG002  # as all jobs
        """Return the admitted events."""
        return event_rows(output, batch, self.types)

    def _record(self, passed: Mapping[tuple[str, ...], int], aside: Mapping[tuple[str, ...], int]) -> None:
        types = {str(verified.event_type.name): verified for verified in self.desk.policy.types}
        for key in sorted(passed.keys() | aside.keys()):
            name, source = key
            if name in types:
                counts = EventCounts(passed.get(key, 0), aside.get(key, 0))
                self.desk.policy.enforced(Principal.parse(source), Right.PUBLISH, types[name], counts)


@dataclass(frozen=True, slots=True)
class DeliverJob(OfEvents):
    """The job `deliver`. Events of a version that the policy does not know go to nobody (`pipeline.unknown-type`)."""

    desk: RecordingPolicy
    layout: Layout = Layout.PROGRAM
    #: the only subscriber to deliver to (default: all; tables then have their names)
    reader: str | None = None
    name: str = "deliver"
    parts: tuple[str, ...] = (ROWS, VIEWS, DECISIONS)

    def __post_init__(self) -> None:
        # Before an output is begun: there would be nothing in it.
        self._subscribers()

    @property
    def judge(self) -> SignerPolicy:
        """The policy that events are delivered by."""
        return _judge(self.desk.policy)

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Write the deliveries and the decisions."""
        policy = self.desk.policy
        read = {key[0]: count for key, count in _by(events, TYPE).items()}
        delivered = self._deliver(events, read)
        manifest = store_rows(delivered, output.path, layout=self.layout, revision=policy.revision, batch=batch)
        rows = stored_rows(output.spark, output.path, manifest, batch)
        shown = rows | self._shown(events, read)
        of_type = self._of_each_type(read)
        for subscriber in self._subscribers():
            whole = of_type[subscriber.type.event_type.key]
            # Every event of the type is shown by the reader's right or kept back by it, whatever its filter asks for.
            counted = EventCounts(rows.get(subscriber.name, 0), whole - shown.get(subscriber.name, 0))
            policy.enforced(subscriber.principal, Right.SUBSCRIBE, subscriber.type, counted)
        known = {str(event_type.name) for event_type in self.types}
        unknown = sum(count for name, count in read.items() if name not in known)
        counts = {
            "read": sum(read.values()),
            OF_UNKNOWN_TYPE: unknown,
            "delivered": sum(rows.values()),
            RECORDS: _write_records(self.desk, output, batch),
        }
        reasons = {UNKNOWN_TYPE: unknown} if unknown else {}
        said: Said = {"counts": counts, "reasons": reasons, "delivered": rows, CLOSED: list(self.closed(output.spark))}
        return {**manifest.as_dict(), **said}

    def rows(self, output: Output, batch: int, said: Said) -> SinkRows:
        """Return what readers got, or the one reader, each in its own version.

        Raises `RefusedError` (`tables.layout`, `pipeline.policy-changed`), `MalformedError`
        (`pipeline.unknown-subscriber`).
        """
        manifest, policy = Manifest.from_dict(said), self.desk.policy
        if manifest.layout is not Layout.PROGRAM:
            raise no_layout()
        views = manifest.views
        if self.reader is not None:
            # A batch that was prepared before is perhaps of another run, which delivered to others.
            if self.reader not in (*views, *manifest.without_rights):
                raise no_view(self.reader, views, manifest.without_rights)
            views = {name: view for name, view in views.items() if name == self.reader}
        known = {str(one.name): one for one in (*self.types, *(s.type.event_type for s in policy.subscribers))}
        named = [view.type for view in views.values()]
        if not known.keys() >= {*named}:
            raise RefusedError(
                "pipeline.policy-changed",
                "a type is gone from the policy, and a batch that was not completed has events of it",
                hint="put the type back, and run the job again",
            )
        names = dict.fromkeys([*named, *(str(s.type.event_type.name) for s in self._subscribers())])
        types = tuple(known[name] for name in names)
        rows = open_rows(output.spark, output.path, batch, views, transit_schema(types))
        return SinkRows(rows if self.reader is None else rows.drop(SUBSCRIBER), types)

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return the frames that would be computed."""
        return tuple(self._deliver(events).parts())

    def _deliver(
        self, events: DataFrame, there: Collection[str] | None = None, *, own_filters: bool = True
    ) -> Delivered:
        policy = self.desk.policy
        return deliver_shared(events, self.types, policy, own_filters=own_filters, reader=self.reader, there=there)

    def _subscribers(self) -> tuple[Subscriber, ...]:
        return subscribers_of(self.desk.policy, self.reader)

    def _shown(self, events: DataFrame, there: Collection[str]) -> dict[str, int]:
        """Count the events that rights show to readers with a filter of their own; no other readers."""
        if all(subscriber.selector == ALWAYS for subscriber in self._subscribers()):
            return {}
        rights = self._deliver(events, there, own_filters=False)
        counts = Counter(_by(rights.rows, PROGRAM))
        return {name: counts[(str(one.number),)] for one in rights.programs for name in one.readers}

    def _of_each_type(self, read: Mapping[str, int]) -> Counter[TypeKey]:
        """Count the events of each type: of its own versions, and of the types that extend it."""
        found = Counter[TypeKey]()
        for event_type in self.types:
            for key in {event_type.key, *event_type.ancestors}:
                found[key] += read.get(str(event_type.name), 0)
        return found


def _tagged(admitted: DataFrame) -> DataFrame:
    """Return admitted events as an ingest has them, to be compared with others.

    They have no place in a file any more: those of one id and time are in the order of their values.
    """
    none = {REASON: "string", WORDS: "string", FILE: "string", POSITION: "bigint", ORIGINAL: "binary"}
    added = {name: F.lit(None).cast(kind) for name, kind in none.items() if name not in admitted.columns}
    return admitted.withColumns(added)


def no_layout() -> RefusedError:
    """Return the error for a layout that tables cannot be written from."""
    return RefusedError("tables.layout", "tables are written from rows that readers share", hint="leave out --layout")


def _judge(policy: PipelinePolicy) -> SignerPolicy:
    """Return the policy that decides whose signatures count."""
    return SignerPolicy(policy.of_brokers(), policy.types)


def _write_records(desk: RecordingPolicy, output: Output, batch: int) -> int:
    """Write the records since the last batch, as lines; return how many."""
    # A stream that is started again, because Python was late for a batch, does not decide again what it has decided.
    # So these must still be here then: nothing that a step does behind this starts Python.
    lines = desk.lines()
    output.write_lines(lines, DECISIONS, batch)
    return len(lines)


def _by(frame: DataFrame, *columns: str, most: int | None = None) -> dict[tuple[str, ...], int]:
    """Count rows by some columns, the most frequent first."""
    found = frame.groupBy(*(quoted(name) for name in columns)).count()
    if most is not None:
        found = found.orderBy(F.desc("count"), *(quoted(name) for name in columns)).limit(most)
    counted = {tuple(str(value) for value in row[:-1]): int(row[-1]) for row in found.collect()}
    # Here, because Spark would go through the rows once more to sort them.
    return dict(sorted(counted.items(), key=lambda one: (-one[1], one[0])))
