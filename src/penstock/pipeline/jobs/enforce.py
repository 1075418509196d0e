"""The jobs `admit` and `deliver`: what publishers may put in, and what readers get out, recorded."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import StructType

from penstock.errors import RefusedError
from penstock.guard import EventCounts
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.pipeline.commits import DECISIONS, EVENTS, OF_UNKNOWN_TYPE, RECORDS, REFUSED, UNKNOWN_TYPE
from penstock.pipeline.enforce.admit import REASON, admit, admit_shared
from penstock.pipeline.enforce.deliver import PROGRAM, Delivered, deliver, deliver_parts, is_known
from penstock.pipeline.enforce.layout import Layout, open_rows, store_rows, stored_rows
from penstock.pipeline.enforce.manifest import ROWS, SUBSCRIBER, VIEWS, Manifest, no_view
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber
from penstock.pipeline.enforce.policy import RecordingPolicy as RecordingPolicy
from penstock.pipeline.frames import SOURCE, attributes_of, literal, metadata, quoted, transit_schema
from penstock.pipeline.ingest.event_frames import TYPE, WORDS
from penstock.pipeline.ingest.ingest import AGAIN, Ingested
from penstock.pipeline.ingest.records import FILE, ORIGINAL, POSITION
from penstock.pipeline.jobs.ingest import LATEST, event_rows, latest_event, once_in, stored_schema
from penstock.pipeline.limits import RECORD_PRINCIPALS
from penstock.pipeline.outputs import Output, Said, Streaming, check_sum, commits, complete, follow, named, read_part
from penstock.pipeline.sealed.log import ATTRIBUTES, CLOSED, SEALED, KeyFiles, closed, names_said, read_log
from penstock.pipeline.sealed.reader import sealed_events
from penstock.pipeline.sealed.signers import SignerPolicy
from penstock.pipeline.shared_columns import are_many, parts_in
from penstock.pipeline.tables.addresses import RowSource, SinkRows
from penstock.pipeline.tables.columns import event_rows_of
from penstock.selector import ALWAYS
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType


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
        good, bad = self._parts(events)
        # Parts of many types have columns of their own.
        return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), good), bad

    def _parts(self, events: DataFrame, there: Collection[str] | None = None) -> tuple[list[DataFrame], DataFrame]:
        """Return the events that are admitted, and the refusals.

        Events of many types are in parts. Types that are not `there` have none (default: all are).
        """
        known = {str(verified.event_type.name): verified for verified in self.desk.policy.types}
        if are_many(self.desk.types):
            parts = []
            for part in parts_in(self.desk.types, there):
                own = events.where(quoted(TYPE).between(str(part[0].name), str(part[-1].name)))
                found = admit_shared(own, [known[str(one.name)] for one in part], self.desk.policy)
                parts.append((found.events, found.refused))
        else:
            versions = [self._version(events, verified) for verified in known.values()]
            good = reduce(DataFrame.unionByName, [part[0] for part in versions])
            parts = [(good, reduce(DataFrame.unionByName, [part[1] for part in versions]))]
        other = events.where(~is_known(self.desk.types))
        unknown = other.select(quoted(TYPE), *metadata(), F.lit(UNKNOWN_TYPE).alias(REASON))
        return [part[0] for part in parts], reduce(DataFrame.unionByName, [unknown, *(part[1] for part in parts)])

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
        there = {key[0]: count for key, count in _by(events, TYPE).items()} if are_many(self.desk.types) else None
        parts, bad = self._parts(events, there)
        if self.dedupe is not None:
            # Events are compared with those of all types.
            good, again = self._once(self.planned(events)[0], batch, output, self.dedupe)
            parts, bad = [good], bad.unionByName(again)
        output.write(parts[0], EVENTS, batch, *parts[1:])
        spark = output.spark
        stored = spark.read.schema(parts[0].schema).parquet(output.part(EVENTS, batch))
        # Stored rows are counted: the events, and the refusals by their reasons.
        passed, read = _by(stored, TYPE, SOURCE), events.count() if there is None else sum(there.values())
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
        kept = _by(decided, TYPE, SOURCE, most=most + 1) if why else {}
        self._record(passed, dict(list(kept.items())[:most]))
        counts[RECORDS] = _write_records(self.desk, output, batch)
        reasons = {key[0]: count for key, count in why.items()}
        said: Said = {"all publishers recorded": len(kept) <= most, CLOSED: list(self.closed(spark))}
        if self.dedupe is not None:
            said[LATEST] = latest_event(output, batch)
        return {"counts": counts, "reasons": reasons, **said}

    def _once(self, good: DataFrame, batch: int, output: Output, within: timedelta) -> tuple[DataFrame, DataFrame]:
        """Return the admitted events that are there for the first time, and the others as refusals."""
        # Events have no place in a file any more: those of one id and time are in the order of their values.
        none = {REASON: "string", WORDS: "string", FILE: "string", POSITION: "bigint", ORIGINAL: "binary"}
        tagged = good.select("*", *(F.lit(None).cast(kind).alias(name) for name, kind in none.items()))
        found = once_in(Ingested(tagged, self.types), batch, output, within).tagged
        first = found.where(quoted(REASON).isNull()).select(*map(quoted, good.columns))
        again = found.where(quoted(REASON).isNotNull())
        return first, again.select(quoted(TYPE), *metadata(), quoted(REASON))

    def rows(self, output: Output, batch: int, said: Said) -> SinkRows:  # noqa: ARG002  # as all jobs
        """Return the admitted events."""
        return event_rows(output, batch, self.types)

    def _record(self, passed: Mapping[tuple[str, ...], int], kept: Mapping[tuple[str, ...], int]) -> None:
        types = {str(verified.event_type.name): verified for verified in self.desk.policy.types}
        for key in sorted(passed.keys() | kept.keys()):
            name, source = key
            if name in types:
                counts = EventCounts(passed.get(key, 0), kept.get(key, 0))
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
        return tuple(part.rows for part in self._deliver(events))

    def _deliver(
        self, events: DataFrame, there: Collection[str] | None = None, *, own_filters: bool = True
    ) -> list[Delivered]:
        policy = self.desk.policy
        if self.layout is not Layout.PROGRAM:
            return [deliver(events, self.types, policy, own_filters=own_filters, reader=self.reader)]
        return deliver_parts(events, self.types, policy, own_filters=own_filters, reader=self.reader, there=there)

    def _subscribers(self) -> list[Subscriber]:
        return [one for one in self.desk.policy.subscribers if self.reader in (None, one.name)]

    def _shown(self, events: DataFrame, there: Collection[str]) -> dict[str, int]:
        """Count the events that rights show to readers with a filter of their own; no other readers."""
        if all(subscriber.selector == ALWAYS for subscriber in self._subscribers()):
            return {}
        rights = self._deliver(events, there, own_filters=False)
        counts = sum((Counter(_by(part.rows, PROGRAM)) for part in rights), Counter[tuple[str, ...]]())
        return {name: counts[(str(one.number),)] for one in rights[0].programs for name in one.readers}

    def _of_each_type(self, read: Mapping[str, int]) -> Counter[TypeKey]:
        """Count the events of each type: of its own versions, and of the types that extend it."""
        found = Counter[TypeKey]()
        for event_type in self.types:
            for key in {event_type.key, *event_type.ancestors}:
                found[key] += read.get(str(event_type.name), 0)
        return found


def no_layout() -> RefusedError:
    """Return the error for a layout that tables cannot be written from."""
    return RefusedError("tables.layout", "tables are written from rows that readers share", hint="leave out --layout")


def _judge(policy: PipelinePolicy) -> SignerPolicy:
    """Return the policy that decides whose signatures count."""
    return SignerPolicy(policy.of_brokers(), policy.types)


def _write_records(desk: RecordingPolicy, output: Output, batch: int) -> int:
    """Write the records since the last batch, as lines; return how many."""
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
