"""PLP: a log point logs what components ask and answer each other (paper 4, section 4.3), and audits feed decisions.

A log point logs each verified sample of the topics that its role reads: QPEP, DREQ, DREP, QPDP, IREQ and IREP. A record
is one CloudEvent in a line of JSON, of the type `io.penstock.component.sample`; docs/reference/component-log.md
describes it. It names subjects, actions, resources and attributes, but has no attribute's value.

**Files.** A log is a folder. Each start begins a new file, and so does a file that has become long. A record is handed
to the system before the next sample is handled: a process that is killed loses no sample that it had handled. The disk
is synced within `SYNC` seconds, and when the component leaves: a machine that fails loses no more than these. A record
that was cut off stays on a line of its own, which readers quarantine. Samples that the fabric delivers while no log
point runs are not logged; two log points of the same role log everything twice, and audits count it once.

`AuditAttributes` is a source of attributes for information points: what an audit of such logs has found
(`penstock pipeline audit-components --refusals FILE`).
"""

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from penstock.authority.components.exchange.samples import (
    AttributeQuery,
    DecisionReply,
    DecisionRequest,
    InformationReply,
    InformationRequest,
    RequiredNames,
)
from penstock.authority.components.exchange.topics import TopicKind
from penstock.authority.components.exchange.verification import VerifiedSample
from penstock.authority.components.information.sources import (
    AttributeSource,
    EntityTable,
    FoundAttribute,
    plain_value,
)
from penstock.authority.components.points.component import Component, ComponentSettings
from penstock.authority.decisions.decision_point import Note, quiet
from penstock.authority.limits import FACT_BYTES
from penstock.crypto import Signer
from penstock.errors import FailedError, MalformedError, PenstockError
from penstock.fabric import Clock, Fabric, RandomBytes
from penstock.guard.decision_log import cloud_event, json_line
from penstock.model.instants import parse_instant
from penstock.store.files.decision_file import DecisionFile
from penstock.store.files.files import read_file, reason, within

SAMPLE: Final = "io.penstock.component.sample"
#: seconds after which a record is on the disk
SYNC: Final = 1.0
#: bytes after which a file is followed by another
FILE_BYTES: Final = 64 << 20
LOGGED: Final = frozenset(
    {TopicKind.QPEP, TopicKind.DREQ, TopicKind.DREP, TopicKind.QPDP, TopicKind.IREQ, TopicKind.IREP}
)


@dataclass(frozen=True, slots=True)
class LoggedSample:
    """A sample as a log has it: who wrote it to which topic, when it was heard, and what it says."""

    line: str

    @classmethod
    def of(cls, log: ComponentSettings, sample: VerifiedSample, heard: float) -> "LoggedSample":
        """Return the record that a log point writes of a sample."""
        writer = sample.writer
        data: dict[str, object] = {
            "domain": log.domain,
            "topic": str(sample.instance),
            "kind": str(sample.instance.kind),
            "writer": writer.id,
            "principal": str(writer.principal),
            "role": writer.role_name,
            "home": writer.home,
            "number": sample.number,
            "configuration": sample.written_under,
            "heard": _written(heard),
            **_said(sample),
        }
        # The same record of another log point has the same id.
        id_ = f"{log.domain}/{sample.instance}/{writer.id}/{sample.number}"
        source = f"urn:penstock:component:{log.domain}:{log.id}"
        return cls(json_line(cloud_event(id_, source, SAMPLE, datetime.fromtimestamp(sample.time, UTC), data)))

    def to_json(self) -> str:
        """Return the record as a line of JSON."""
        return self.line


def _written(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat()


def _said(one: VerifiedSample) -> dict[str, object]:
    """Return what a sample says, without the values of attributes."""
    match one.record:
        case RequiredNames(names=names):
            return {"names": [*names]}
        case DecisionRequest() as request:
            asked = request.asked
            return {
                "subject": {"type": asked.subject.type, "id": asked.subject.id},
                "action": asked.action.id,
                "resource": {"type": asked.resource.type, "id": asked.resource.id},
            }
        case DecisionReply() as reply:
            return {
                "requester": reply.id,
                "request": reply.number,
                "effect": str(reply.effect),
                "status": reply.status,
                "rests": [
                    {"id": policy.id, "revision": policy.revision, "changed": _written(policy.changed)}
                    for policy in reply.rests_on
                ],
                "obligations": [duty.id for duty in reply.obligations],
            }
        case InformationRequest() as request:
            return {"names": sorted({name for query in request.queries for name in query.names})}
        case InformationReply() as reply:
            return {"requester": reply.id, "request": reply.number, "names": sorted({f.name for f in reply.fields})}
    return {}


class LogComponent(Component):
    """A log point. See the module; `folder` is that of its log, and `file_bytes` the length of a file."""

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        fabric: Fabric,
        key: Signer,
        settings: ComponentSettings,
        folder: Path,
        *,
        file_bytes: int = FILE_BYTES,
        clock: Clock | None = None,
        random: RandomBytes = secrets.token_bytes,
        note: Note = quiet,
    ) -> None:
        super().__init__(fabric, key, settings, clock=clock, random=random, note=note)
        self.logged = 0
        self._folder = folder
        self._file_bytes = file_bytes
        self._file: DecisionFile | None = None
        self._written = 0
        self._syncing = False

    async def received(self, sample: VerifiedSample) -> None:
        """Log a sample. Raises `FailedError` (`log.write`), which is reported, if it cannot be stored."""
        if sample.instance.kind not in LOGGED:
            return
        record = LoggedSample.of(self.settings, sample, self.now())
        if self._file is None or self._written >= self._file_bytes:
            self._begin_file()
        file = self._file
        if file is not None:
            file.append(record)
            self._written += len(record.line)
            self.logged += 1
        if not self._syncing:
            self._syncing = True
            self._begin("syncing its log", self._sync_soon())

    def _begin_file(self) -> None:
        if self._file is not None:
            self._file.sync()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            message = f"`{self._folder}` cannot be a folder for a log: {reason(error)}"
            raise FailedError("log.write", message, hint="make room, or name another folder") from error
        begun = datetime.fromtimestamp(self.now(), UTC)
        self._file = DecisionFile(self._folder / f"{self.settings.id}-{begun:%Y%m%dT%H%M%S%fZ}.jsonl")
        self._written = 0

    async def _sync_soon(self) -> None:
        await self._clock.sleep(SYNC)
        self._syncing = False
        self._sync()

    def _sync(self) -> None:
        try:
            if self._file is not None:
                self._file.sync()
        except PenstockError as error:
            self._refuse(error)

    async def close(self) -> None:
        """Close all topics, and sync the log."""
        await super().close()
        self._syncing = False
        self._sync()
        self._file = None


# ----------------------------------------------------------------------------------------------------------------------
# What audits of logs say, as attributes.


class AuditAttributes(AttributeSource):
    """The result of an audit, as a file of JSON: `until`, and by entity the attributes that the audit has found.

    An entity that the audit has not found has 0 of everything. After `max_age` seconds, the result counts no more: then
    nothing is answered, so that decisions that need it are Indeterminate. The change time is the end of the audit.
    """

    def __init__(
        self, path: Path, table: EntityTable, clock: Clock, *, max_age: float = 3_600.0, every: float = 1.0
    ) -> None:
        super().__init__(table, clock)
        self._path = path
        self._max_age = max_age
        self._every = every
        self._due = -math.inf
        self._until = -math.inf
        self._entities: Mapping[str, Mapping[str, object]] = {}

    async def _read(self, query: AttributeQuery, wanted: Sequence[str]) -> Mapping[str, FoundAttribute]:
        now, steady = self._clock.now(), self._clock.steady()
        if steady >= self._due:
            with within(str(self._path)):
                self._until, self._entities = read_audit(read_file(str(self._path), FACT_BYTES))
            self._due = steady + self._every
        if now > self._until + self._max_age:
            raise FailedError("component.audit-old", f"the audit in `{self._path}` is too old", hint="run it again")
        found = self._entities.get(f"{query.type}:{query.id}", {})
        columns = self.table.attributes
        return {name: FoundAttribute(plain_value(found.get(columns[name], 0)), self._until) for name in wanted}


def read_audit(data: bytes) -> tuple[float, Mapping[str, Mapping[str, object]]]:
    """Read the result of an audit: its end in seconds since 1970, and attributes by `TYPE:ID`.

    Raises `MalformedError` (`component.source`).
    """
    try:
        found = json.loads(data)
        until = parse_instant(found["until"]).timestamp()
        return until, {entity: {**attributes} for entity, attributes in found["entities"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MalformedError):
        message = "it is not the result of an audit"
        hint = "write it with `penstock pipeline audit-components --refusals FILE`"
        raise MalformedError("component.source", message, hint=hint) from None
