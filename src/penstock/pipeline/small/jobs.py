"""The jobs ingest, admit and deliver, and views, on small local inputs: the results that Spark's jobs have.

Each reads and computes everything first, and writes then: where it finds that only Spark can do it (`NotSmallError`),
nothing was written.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.guard import Delivery, Effect, EventCounts, Publication, Rules, environment
from penstock.model.events import Event, TransitEvent
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Kind, Scalar
from penstock.pipeline.commits import (
    BATCH,
    DECISIONS,
    EVENTS,
    JOB,
    OF_UNKNOWN_TYPE,
    QUARANTINED,
    RECORDS,
    REFUSED,
    UNKNOWN_TYPE,
    Said,
    check_sum,
    read_note,
)
from penstock.pipeline.enforce.manifest import (
    POLICY,
    PROGRAM,
    ROWS,
    SUBSCRIBER,
    VIEWS,
    Layout,
    Manifest,
    ReaderView,
    asked_programs,
    manifests_of,
    no_view,
    policy_mark,
    reader_views,
    subscribers_of,
)
from penstock.pipeline.enforce.policy import PipelinePolicy, Program, RecordingPolicy, Subscriber
from penstock.pipeline.event_columns import (
    FILE,
    INGESTED,
    METADATA,
    ORIGINAL,
    POSITION,
    REASON,
    SOURCE,
    TYPE,
    WORDS,
    attributes_of,
)
from penstock.pipeline.ingest.mapping import BoundMapping
from penstock.pipeline.ingest.texts import RecordError
from penstock.pipeline.limits import RECORD_PRINCIPALS
from penstock.pipeline.quarantine import FETCHED, QuarantinedRecord, QuarantineSummary, safe_text
from penstock.pipeline.small.folders import (
    ARROW,
    STORED,
    NotSmallError,
    SmallOutput,
    by_ids,
    complete,
    count_rows,
    partition_name,
    partitions,
    read_commits,
    read_lines,
    read_rows,
    stored_files,
    write_lines,
    write_rows,
)
from penstock.pipeline.small.records import (
    Records,
    check_types,
    read_envelopes,
    read_table,
    type_names,
)
from penstock.selector import ALWAYS
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType

SMALL_BYTES: Final = 8 << 20
"""Bytes of the largest text that is ingested here. Beyond, Spark needs less time in spite of its start."""
SMALL_EVENTS: Final = 50_000
"""Events that are admitted or delivered here, at most."""
SMALL_WORK: Final = 1_000_000
"""Events times programs that are delivered here, at most."""
SMALL_PROGRAMS: Final = 100
"""Programs that are delivered here, at most: each has a folder."""
_FILES: Final = 1_000
_COMPRESSED: Final = frozenset({".gz", ".bz2", ".snappy", ".lz4", ".zst", ".zstd", ".deflate", ".xz"})
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_STRING, _TIMESTAMP = ARROW[Kind.STRING], ARROW[Kind.TIMESTAMP]
_QUARANTINE: Final = (
    (REASON, _STRING),
    (WORDS, _STRING),
    (FILE, _STRING),
    (POSITION, ARROW[Kind.INTEGER]),
    (ORIGINAL, pa.binary()),
    (INGESTED, _TIMESTAMP),
)
_REFUSALS: Final = ((TYPE, _STRING), *STORED, (REASON, _STRING))
Row: TypeAlias = tuple[object, ...]


def local_path(text: str) -> Path:
    """Return a path of this machine. Raises `NotSmallError` for any other, and for a pattern."""
    if _SCHEME.match(text) or any(sign in text for sign in "*?[]{}\\"):
        raise NotSmallError("the path is not one of this machine")
    return Path(text).absolute()


def input_files(path: Path) -> list[Path]:
    """Return the files of an input. Raises `NotSmallError` for one that is large, or that only Spark can list."""
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    files = [file for file in files if not file.name.startswith(("_", "."))]
    if not files or len(files) > _FILES or not all(file.is_file() for file in files):
        raise NotSmallError("the input is not a file or a folder of files")
    if any(file.suffix.lower() in _COMPRESSED for file in files):
        raise NotSmallError("the input is compressed")
    if sum(file.stat().st_size for file in files) > SMALL_BYTES:
        raise NotSmallError(f"the input is larger than {SMALL_BYTES >> 20} MiB")
    return files


# ----------------------------------------------------------------------------------------------------------------------
# Ingest.


@dataclass(frozen=True, slots=True)
class SmallIngest:
    """The job `ingest`: CloudEvents of some types, or tables by a mapping."""

    path: Path
    types: tuple[EventType, ...]
    bound: BoundMapping | None
    now: Callable[[], datetime]

    def run(self, out: Path, *, overwrite: bool) -> Said:
        """Ingest, and return the description of the batch. Raises `FailedError` (`pipeline.lost`), `NotSmallError`."""
        files = input_files(self.path)
        types = self.types if self.bound is None else (self.bound.event_type,)
        check_types(types)
        attributes = attributes_of(types)
        good: list[Row] = []
        bad: list[Row] = []
        read = 0
        at = self.now()
        for record in self._records(files):
            read += 1
            try:
                event = record.read()
            except RecordError as problem:
                bad.append((problem.code, problem.words, record.file, record.position, record.original, at))
                continue
            values = {event.event_type.by_name[name].id: value for name, value in event.values.items()}
            own = (values.get(attribute.id) for attribute in attributes)
            good.append((str(event.event_type.name), event.id, event.time, event.source, *own))
        output = SmallOutput(out, "ingest", str(self.path), (EVENTS, QUARANTINED))
        common = output.open(files=str(self.path), overwrite=overwrite)
        output.write(EVENTS, [(TYPE, _STRING), *STORED, *by_ids(attributes)], good)
        output.write(QUARANTINED, _QUARANTINE, bad)
        counts = {"read": read, "events": _stored(output, EVENTS), "quarantined": _stored(output, QUARANTINED)}
        if read != counts["events"] + counts["quarantined"]:
            raise FailedError("ingest.lost", f"{read} records were read, and other numbers came out")
        said: Said = {"counts": counts, "reasons": _most(row[0] for row in bad)}
        output.commit({**said, **common})
        return said

    def _records(self, files: Sequence[Path]) -> Records:
        if self.bound is not None:
            return read_table(files, self.bound)
        names = type_names(self.types)
        return (record for file in files for record in read_envelopes(file, names))


def _stored(output: SmallOutput, part: str) -> int:
    return count_rows(stored_files(output.part(part)))


def _most(values: Iterable[object]) -> dict[str, int]:
    """Count values, the most frequent first."""
    counted = Counter(map(str, values))
    return dict(sorted(counted.items(), key=lambda one: (-one[1], one[0])))


# ----------------------------------------------------------------------------------------------------------------------
# Admit and deliver.


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event that another job has written: the name of its version, its metadata, and its values by attribute id."""

    type: str
    id: str
    time: datetime | None
    source: str
    values: Mapping[str, Scalar]

    @property
    def metadata(self) -> Row:
        """The metadata, in the order of the columns."""
        return self.id, self.time, self.source


def read_events(path: Path, types: Sequence[EventType]) -> list[StoredEvent]:
    """Return the events of all complete batches.

    Raises `FailedError` (`pipeline.no-input`), `NotSmallError` for too many, or for a sealed log.
    """
    files = [file for batch in complete(path) for file in stored_files(path / EVENTS / f"{BATCH}={batch}")]
    if not (path / EVENTS).is_dir():
        raise NotSmallError("the folder has no events")
    if count_rows(files) > SMALL_EVENTS:
        raise NotSmallError(f"there are more than {SMALL_EVENTS:,} events")
    check_types(types)
    attributes = attributes_of(types)
    names = [str(attribute.id) for attribute in attributes]
    found = []
    for name, identity, time, source, *values in read_rows(files, [(TYPE, _STRING), *STORED, *by_ids(attributes)]):
        own = {one: value for one, value in zip(names, values, strict=True) if value is not None}
        found.append(StoredEvent(str(name), str(identity), time, str(source), own))
    return found


def environment_at(policy: PipelinePolicy, time: datetime | None) -> Mapping[str, Scalar]:
    """Return the environment of an event; parts of a time that has no date in the policy's zone are null."""
    if time is None:
        return policy.facts
    try:
        return environment(time, facts=policy.facts, zone=policy.zone)
    except MalformedError:
        return {**policy.facts, "time": time}


@dataclass(frozen=True, slots=True)
class SmallAdmit:
    """The job `admit`."""

    path: Path
    desk: RecordingPolicy

    def run(self, out: Path, *, overwrite: bool) -> Said:
        """Admit, and return the description of the batch. Raises as `read_events`, `FailedError` (`pipeline.lost`)."""
        policy, types = self.desk.policy, self.desk.types
        events = read_events(self.path, types)
        versions = {str(verified.event_type.name): verified for verified in policy.types}
        attributes = attributes_of(types)
        publications = StoredPublications(policy)
        good: list[Row] = []
        bad: list[Row] = []
        for event in events:
            verified = versions.get(event.type)
            admitted: TransitEvent | str = UNKNOWN_TYPE
            if verified is not None:
                admitted = publications.admit(event, verified)
            if isinstance(admitted, str):
                bad.append((event.type, *event.metadata, admitted))
            else:
                own = (admitted.values.get(attribute.id) for attribute in attributes)
                good.append((event.type, *event.metadata, *own))
        output = SmallOutput(out, "admit", str(self.path), (EVENTS, REFUSED, DECISIONS))
        common = output.open(files=f"{self.path}/{EVENTS}", overwrite=overwrite)
        output.write(EVENTS, [(TYPE, _STRING), *STORED, *by_ids(attributes)], good)
        output.write(REFUSED, _REFUSALS, bad)
        counts = {"read": len(events), "events": _stored(output, EVENTS), "refused": _stored(output, REFUSED)}
        check_sum(counts["read"], {name: counts[name] for name in ("events", "refused")})
        passed, kept = (Counter((str(row[0]), str(row[3])) for row in rows) for rows in (good, bad))
        known = sorted(kept.items(), key=lambda one: (-one[1], one[0]))
        self._record(passed, dict(known[:RECORD_PRINCIPALS]), versions)
        lines = self.desk.lines()
        write_lines(output.part(DECISIONS), lines)
        said: Said = {
            "counts": {**counts, RECORDS: len(lines)},
            "reasons": _most(row[-1] for row in bad),
            "all publishers recorded": len(known) <= RECORD_PRINCIPALS,
            "closed": [],
            "policies": [policy.revision],
        }
        output.commit({**said, **common})
        return said

    def _record(
        self,
        passed: Mapping[tuple[str, str], int],
        kept: Mapping[tuple[str, str], int],
        versions: Mapping[str, VerifiedType],
    ) -> None:
        for key in sorted(passed.keys() | kept.keys()):
            name, source = key
            if name in versions:
                counts = EventCounts(passed.get(key, 0), kept.get(key, 0))
                self.desk.policy.enforced(Principal.parse(source), Right.PUBLISH, versions[name], counts)


class StoredPublications:
    """What each publisher may publish of each version."""

    def __init__(self, policy: PipelinePolicy) -> None:
        self._policy = policy
        self._rules = Rules(environment=policy.environment)
        self._principals = {str(principal): principal for principal in policy.principals()}
        self._known: dict[tuple[str, str], Publication | None] = {}

    def admit(self, event: StoredEvent, verified: VerifiedType) -> TransitEvent | str:
        """Return an event as it may travel, or why it is refused. Raises `NotSmallError` for values that do not fit."""
        event_type = verified.event_type
        key = event.source, event.type
        if key not in self._known:
            self._known[key] = self._publication(event.source, verified)
        publication = self._known[key]
        if publication is None:
            return "guard.denied"
        named = {a.name: event.values.get(a.id) for a in event_type.attributes}
        try:
            stated = Event(event_type, named, event.id, event.time)
            return publication(stated, environment_at(self._policy, event.time))
        except RefusedError as error:
            return error.code
        except MalformedError:
            raise NotSmallError("a stored value does not fit its type") from None

    def allowed(self, verified: VerifiedType) -> dict[str, Publication]:
        """Return everybody who may publish a version, at some time and under some conditions."""
        found = {
            name: self._publication(name, verified)
            for name in dict.fromkeys((str(verified.event_type.name.owner), *self._principals))
        }
        return {name: publication for name, publication in found.items() if publication is not None}

    def _publication(self, source: str, verified: VerifiedType) -> Publication | None:
        owner = verified.event_type.name.owner
        principal = owner if source == str(owner) else self._principals.get(source)
        if principal is None:
            return None
        decision = self._policy.decide(principal, Right.PUBLISH, verified)
        if decision.effect is not Effect.PERMIT:
            return None
        return Publication(decision.restriction, verified.event_type, self._rules)


@dataclass(frozen=True, slots=True)
class SmallDeliver:
    """The job `deliver`."""

    path: Path
    desk: RecordingPolicy
    layout: Layout
    #: the only subscriber to deliver to (default: all)
    reader: str | None = None

    def run(self, out: Path, *, overwrite: bool) -> Said:
        """Deliver, and return the description of the batch. Raises as `read_events` and `asked_programs`."""
        policy, types = self.desk.policy, self.desk.types
        subscribers, programs = subscribers_of(policy, self.reader), asked_programs(policy, self.reader)
        events = read_events(self.path, types)
        if len(programs) > SMALL_PROGRAMS or len(programs) * len(events) > SMALL_WORK:
            raise NotSmallError("there are many readers with different rights")
        versions = {str(event_type.name): event_type for event_type in types}
        manifest = Manifest(
            self.layout, policy.revision, reader_views(programs), False, _without(subscribers, programs)
        )
        rows, shown = _delivered(policy, programs, events, versions)
        output = SmallOutput(out, "deliver", str(self.path), (ROWS, VIEWS, DECISIONS))
        common = output.open(files=f"{self.path}/{EVENTS}", overwrite=overwrite)
        self._write(output, programs, rows, policy.revision, types)
        counted = {name: len(rows[view.program]) for name, view in manifest.views.items()}
        counted |= dict.fromkeys(manifest.without_rights, 0)
        read = _most(event.type for event in events)
        for one in subscribers:
            key = one.type.event_type.key
            whole = sum(
                count
                for name, count in read.items()
                if name in versions and key in (versions[name].key, *versions[name].ancestors)
            )
            view = manifest.views.get(one.name)
            seen = shown[view.program] if view is not None else 0
            policy.enforced(
                one.principal, Right.SUBSCRIBE, one.type, EventCounts(counted.get(one.name, 0), whole - seen)
            )
        unknown = sum(count for name, count in read.items() if name not in versions)
        lines = self.desk.lines()
        write_lines(output.part(DECISIONS), lines)
        counts = {
            "read": len(events),
            OF_UNKNOWN_TYPE: unknown,
            "delivered": sum(counted.values()),
            RECORDS: len(lines),
        }
        reasons = {UNKNOWN_TYPE: unknown} if unknown else {}
        said: Said = {
            **manifest.as_dict(),
            "counts": counts,
            "reasons": reasons,
            "delivered": counted,
            "closed": [],
            "policies": [policy.revision],
        }
        output.commit({**said, **common})
        return said

    def _write(
        self,
        output: SmallOutput,
        programs: Sequence[Program],
        rows: Mapping[int, Sequence[tuple[Row, Mapping[str, Scalar]]]],
        revision: str,
        types: Sequence[EventType],
    ) -> None:
        if self.layout is Layout.PROGRAM:
            attributes = attributes_of(types)
            for program in programs:
                names = {str(a.id): a.name for a in program.event_type.attributes}
                own = [
                    (*meta, *(values.get(names.get(str(a.id), "")) for a in attributes))
                    for meta, values in rows[program.number]
                ]
                if own:
                    folder = output.part(ROWS) / f"{PROGRAM}={program.number}"
                    write_rows(folder, [*STORED, *by_ids(attributes)], own)
            # Readers look for the folder of the batch, also if nobody received anything.
            output.part(ROWS).mkdir(parents=True, exist_ok=True)
            return
        for program in programs:
            columns = [*STORED, *((a.name, ARROW[a.spec.kind]) for a in program.event_type.attributes)]
            own = [
                (*meta, *(values[a.name] for a in program.event_type.attributes))
                for meta, values in rows[program.number]
            ]
            for reader in program.readers if own else ():
                place = f"{SUBSCRIBER}={partition_name(reader)}/{BATCH}=0/{POLICY}={policy_mark(revision)}"
                write_rows(output.path / VIEWS / place, columns, own)


def _without(subscribers: Iterable[Subscriber], programs: Sequence[Program]) -> tuple[str, ...]:
    reading = {reader for program in programs for reader in program.readers}
    return tuple(one.name for one in subscribers if one.name not in reading)


def _delivered(
    policy: PipelinePolicy,
    programs: Sequence[Program],
    events: Sequence[StoredEvent],
    versions: Mapping[str, EventType],
) -> tuple[dict[int, list[tuple[Row, Mapping[str, Scalar]]]], dict[int, int]]:
    """Return the rows of each program, and how many events the rights alone show, before readers' own filters."""
    rules = Rules(environment=policy.environment)
    asked = [
        (
            program,
            Delivery(program.restriction, program.event_type, program.selector, rules),
            Delivery(program.restriction, program.event_type, ALWAYS, rules) if program.selector != ALWAYS else None,
        )
        for program in programs
    ]
    rows: dict[int, list[tuple[Row, Mapping[str, Scalar]]]] = {program.number: [] for program in programs}
    shown = dict.fromkeys(rows, 0)
    for event in events:
        version = versions.get(event.type)
        if version is None:
            continue
        line = (version.key, *version.ancestors)
        transit = TransitEvent(version.key, version.ancestors, event.values, event.id, event.time)
        now = environment_at(policy, event.time)
        for program, deliver, rights in asked:
            if program.event_type.key not in line:
                continue
            seen = deliver(transit, now)
            if seen is not None:
                told = event.metadata if SOURCE in program.metadata else (event.id, event.time, None)
                rows[program.number].append((told, seen.values))
            if seen is not None or (rights is not None and rights(transit, now) is not None):
                shown[program.number] += 1
    return rows, shown


# ----------------------------------------------------------------------------------------------------------------------
# Views.


def view_rows(path: Path, subscriber: str) -> tuple[tuple[str, ...], list[Row]]:
    """Return the columns of a reader's view, and its rows by time and id.

    Raises `FailedError` (`layout.incomplete`), `MalformedError` (`layout.manifest`, `pipeline.unknown-subscriber`),
    `RefusedError` (`pipeline.no-rights`), and `NotSmallError` for a large output.
    """
    if not path.is_dir():
        raise NotSmallError("the folder does not exist on this machine")
    manifests = manifests_of(str(path), read_commits(path))
    theirs = {batch: manifest for batch, manifest in manifests.items() if subscriber in manifest.views}
    if not theirs:
        last = manifests[max(manifests)]
        raise no_view(subscriber, last.views, last.without_rights)
    version = theirs[max(theirs)].views[subscriber].attributes
    rows: list[Row] = []
    for batch, manifest in theirs.items():
        view = manifest.views[subscriber]
        files, names = _stored_view(path, subscriber, batch, manifest, view)
        if count_rows(files) + len(rows) > SMALL_EVENTS:
            raise NotSmallError("the view is large")
        columns = [(names.get(a.id, ""), ARROW[a.kind]) for a in version]
        rows += read_rows(files, [*STORED, *columns])
    rows.sort(key=lambda row: (row[1] is not None, row[1], row[0]))
    return (*METADATA, *(attribute.name for attribute in version)), rows


def _stored_view(
    path: Path, subscriber: str, batch: int, manifest: Manifest, view: ReaderView
) -> tuple[list[Path], dict[str, str]]:
    """Return the files of a reader's rows of a batch, and under which name each attribute id stands in them."""
    if manifest.layout is Layout.PROGRAM:
        if manifest.sorted:
            raise NotSmallError("the rows of many programs are in one table")
        folder = path / ROWS / f"{BATCH}={batch}" / f"{PROGRAM}={view.program}"
        return stored_files(folder), {a.id: a.id for a in view.attributes}
    own = partitions(path / VIEWS, SUBSCRIBER).get(subscriber)
    if own is None:
        return [], {}
    folder = own / f"{BATCH}={batch}" / f"{POLICY}={policy_mark(manifest.revision)}"
    return stored_files(folder), {a.id: a.name for a in view.attributes}


# ----------------------------------------------------------------------------------------------------------------------
# The quarantine.


def open_quarantine(path: Path, samples: int) -> QuarantineSummary:
    """Return the quarantine of an ingest, with at most this many samples of each reason.

    Raises `FailedError` (`pipeline.no-input`), and `NotSmallError` for a large one, or one of another job.
    """
    notes = read_lines(path / JOB)
    if not notes or read_note(notes[0]).get("job") != "ingest":
        raise NotSmallError("the folder is not the output of an ingest")
    files = [file for batch in complete(path) for file in stored_files(path / QUARANTINED / f"{BATCH}={batch}")]
    if count_rows(files) > SMALL_EVENTS:
        raise NotSmallError("the quarantine is large")
    rows: dict[str, list[QuarantinedRecord]] = {}
    found = read_rows(files, _QUARANTINE[:-1])
    for row in sorted(found, key=lambda one: (str(one[2]), one[3] is not None, one[3] or 0, one[4])):
        reason, words, file, position, original = row
        text = safe_text(original[:FETCHED])
        record = QuarantinedRecord(str(reason), words, file, position, len(original), text)
        rows.setdefault(record.reason, []).append(record)
    reasons = dict(sorted(((name, len(own)) for name, own in rows.items()), key=lambda one: (-one[1], one[0])))
    return QuarantineSummary(reasons, tuple(one for name in reasons for one in rows[name][:samples]))
