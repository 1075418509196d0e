"""The result of a job of `penstock pipeline`, whichever engine ran it, and how it is printed."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Final

from penstock.apps.cli.shared.commands import CommandAnswer
from penstock.apps.cli.shared.describe import counted, instant_text
from penstock.apps.cli.shared.files import check_target, write_bytes
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.terminal import Shown, grid_table
from penstock.errors import RefusedError
from penstock.model.principals import Petnames, Principal
from penstock.pipeline.commits import CLOSED, TO, Said, add_up, names_said
from penstock.pipeline.comparison import FailOn, PolicyComparison, VisibilityChange, closed_remarks, fails_on, listed
from penstock.pipeline.enforce.manifest import WITHOUT_RIGHTS
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.pages import number_text
from penstock.pipeline.quarantine import QuarantinedRecord, QuarantineSummary
from penstock.trust.capabilities import Right

_UNSEAL: Final = "unseal"
_WIDE: Final = 80
#: jobs whose quarantine does not contain records, and what they do with blocks
_CLOSED: Final = {"seal": "sealed", _UNSEAL: "opened"}
#: subscribers in a summary; JSON has all of them
_READERS: Final = 10


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a run: sums over the whole output, and the rows and seconds of this run."""

    counts: Mapping[str, int]
    reasons: Mapping[str, int]
    batches: int
    seconds: float
    rate: int
    #: attributes of a sealed log that are null because their keys are missing
    closed: tuple[str, ...] = ()
    #: events for each subscriber, those with the most first
    delivered: Mapping[str, int] = field(default_factory=dict)
    #: subscribers who may see nothing, by the policy of the last batch
    without_rights: tuple[str, ...] = ()
    #: rows in each table that the main rows also go to
    to: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, said: Sequence[Said], batches: int, seconds: float, rate: int) -> "Done":
        """Return the result of a run from all commits of its output."""
        reasons, delivered, to = (_most(said, name) for name in ("reasons", "delivered", TO))
        refused = said[-1].get(WITHOUT_RIGHTS) if said else None
        without = tuple(map(str, refused)) if isinstance(refused, list) else ()
        closed = names_said(said, CLOSED)
        return cls(add_up(said), reasons, batches, seconds, rate, closed, delivered, without, to)


def _most(said: Iterable[Said], name: str) -> dict[str, int]:
    """Add up one table of numbers over all batches, the largest first."""
    sums: dict[str, int] = {}
    for one in said:
        found = one.get(name)
        for key, count in found.items() if isinstance(found, dict) else ():
            sums[str(key)] = sums.get(str(key), 0) + int(count)
    return dict(sorted(sums.items(), key=lambda pair: (-pair[1], pair[0])))


def done_data(done: Done) -> dict[str, object]:
    """Return the result as plain data."""
    return {
        "counts": dict(done.counts),
        "reasons": dict(done.reasons),
        "closed": list(done.closed),
        **({"delivered": dict(done.delivered)} if done.delivered else {}),
        **({"without_rights": list(done.without_rights)} if done.without_rights else {}),
        "batches": done.batches,
        "seconds": round(done.seconds, 3),
        "rows_per_second": done.rate,
    }


def job_answer(job: str, out: str, done: Done, columns: Sequence[str] = ()) -> CommandAnswer:
    """Return the answer for a job that has run; `columns` are those that a mapping needs."""
    return CommandAnswer({"job": job, "out": out, **done_data(done)}, _show_done(job, out, done, columns))


def _show_done(job: str, out: str, done: Done, columns: Sequence[str]) -> Iterator[Shown]:
    rows = [(name, f"{count:,}") for name, count in done.counts.items()]
    # Blocks that do not open are counted as blocks: the number of their events is not known.
    of = ", blocks" if job == _UNSEAL else ""
    rows += [(f"  {reason}{of}", f"{count:,}") for reason, count in done.reasons.items()]
    yield grid_table((job, "rows"), rows)
    yield from _show_delivered(done.delivered)
    if some := done.without_rights:
        more = f" and {len(some) - _READERS:,} more" if len(some) > _READERS else ""
        yield f"without rights: {', '.join(some[:_READERS])}{more}; `penstock explain` says what is missing"
    yield f"{_sum(job, done)}; {done.seconds:.1f} s{f', {done.rate:,} rows/s' if done.rate else ''}"
    yield from closed_remarks(done.closed, done.counts.get("events", done.counts.get("read", 0)))
    yield f"wrote {out}"
    yield from (f"wrote {counted(count, 'row')} to {name}" for name, count in done.to.items())
    yield from _advice(job, out, done, columns)


def _show_delivered(delivered: Mapping[str, int]) -> Iterator[Shown]:
    """Yield the subscribers that received the most events, and the number of the others."""
    if not delivered:
        return
    yield ""
    yield grid_table(
        ("subscriber", "events"), [(name, f"{count:,}") for name, count in [*delivered.items()][:_READERS]]
    )
    if others := [*delivered.values()][_READERS:]:
        yield f"and {counted(sum(others), 'event')} to {counted(len(others), 'other subscriber')}"


def _advice(job: str, out: str, done: Done, columns: Sequence[str]) -> Iterator[str]:
    """Return hints: where to look at quarantined records, and what a header or a key ring lacks."""
    if job == _UNSEAL and done.counts.get("sealed"):
        yield f"what is still sealed waits for keys, in {out}/sealed: `penstock pipeline unseal {out}` opens it then"
    if not done.counts.get("quarantined"):
        return
    if job in _CLOSED:
        yield f"what cannot be {_CLOSED[job]} is in {out}/quarantine, as it is"
    if job == _UNSEAL:
        yield "docs/how-to/seal-files.md says what to do about each code"
    if job != "ingest":
        return
    if "ingest.header" in done.reasons and columns:
        needed = ", ".join(columns)
        yield f"ingest.header: the mapping needs the columns {needed}; the quarantine names what a file lacks"
    yield f"what does not fit is in quarantine: `penstock pipeline quarantine {out}` says why, and shows some"


def _sum(job: str, done: Done) -> str:
    counts = done.counts
    whole = counts.get("read", 0)
    if job == "ingest":
        events = counted(counts["events"], "event")
        return f"{counted(whole, 'record')} = {events} + {counts['quarantined']:,} in quarantine"
    if job == "admit":
        return f"{counted(whole, 'event')} = {counts['events']:,} admitted + {counts['refused']:,} refused"
    if job == "seal":
        return f"{counted(whole, 'event')} = {counts['sealed']:,} sealed + {counts['quarantined']:,} in quarantine"
    if job == _UNSEAL:
        kept = f"{counts['sealed']:,} still sealed + {counts['quarantined']:,} in quarantine"
        return f"{counted(whole, 'event')} = {counts['events']:,} opened + {kept}"
    if job == "evaluate":
        summed = " + ".join(f"{count:,} {word}" for word, count in counts.items() if word != "read")
        return f"{counted(whole, 'request')} = {summed}"
    return f"{counted(whole, 'event')} read"


def shown_value(value: object) -> object:
    """Return a value of a view as it is printed, for people and as JSON."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124  # NaN
        return str(value)
    return value


def view_answer(subscriber: str, columns: Sequence[str], rows: Sequence[Sequence[object]], whole: int) -> CommandAnswer:
    """Return the answer: the first rows of a view, and how many there are."""
    data = {
        "subscriber": subscriber,
        "rows": whole,
        "events": [dict(zip(columns, row, strict=True)) for row in rows],
    }
    table = grid_table(columns, [["" if value is None else str(value) for value in row] for row in rows])
    said = counted(whole, "event") if whole == len(rows) else f"{len(rows):,} of {counted(whole, 'event')}"
    return CommandAnswer(data, [table, said])


def quarantine_answer(found: QuarantineSummary) -> CommandAnswer:
    """Return the answer: the quarantined records, and why they are there."""
    data = {"reasons": found.reasons, "samples": [asdict(sample) for sample in found.samples]}
    return CommandAnswer(data, _show_quarantine(found))


def _show_quarantine(found: QuarantineSummary) -> Iterator[Shown]:
    if not found.reasons:
        yield "nothing is in quarantine"
        return
    yield grid_table(("reason", "records"), [(reason, f"{count:,}") for reason, count in found.reasons.items()])
    yield ""
    rows = [(s.reason, _where(s), s.words or "", _beginning(s)) for s in found.samples]
    yield grid_table(("reason", "where", "why", "record"), rows)
    yield f"{counted(sum(found.reasons.values()), 'record')} in quarantine"


def _where(sample: QuarantinedRecord) -> str:
    if sample.file is None:
        return ""
    name = sample.file.rpartition("/")[2]
    return name if sample.position is None else f"{name}:{sample.position}"


def _beginning(sample: QuarantinedRecord) -> str:
    if len(sample.text) <= _WIDE and sample.size <= _WIDE:
        return sample.text
    return f"{sample.text[:_WIDE]}… ({sample.size:,} bytes)"


# ----------------------------------------------------------------------------------------------------------------------
# Reports.


_PRINCIPAL: Final = re.compile(r"(?:ed25519|threshold):[a-z2-7]{51}[aq]", re.ASCII)
_CREDENTIAL: Final = re.compile(r"\bcert:[a-z2-7]{20,}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Page:
    """A report as an HTML file, if one is wanted."""

    file: str | None
    names: Petnames
    session: CommandSession
    overwrite: bool
    #: whether a stream replaces the page after each batch
    again: bool = False

    def check(self) -> None:
        """Check early that it can be written. Raises what `check_target` raises."""
        if self.file is not None:
            check_target(self.file, overwrite=self.overwrite)

    def put(self, made: Callable[..., str]) -> None:
        """Write what a function makes of the names and the time. Raises what `write_bytes` raises."""
        if self.file is not None:
            text = made(names=self.names, at=self.session.now)
            write_bytes(self.file, text.encode(), overwrite=self.overwrite or self.again)


def known(names: Petnames, *policies: PipelinePolicy) -> Petnames:
    """Return the reader's own petnames, and those of policies for other principals."""
    found: dict[Principal, str] = {}
    for some in (names, *(loaded.names for loaded in policies)):
        for principal, name in some.items():
            found.setdefault(principal, name)
    return Petnames(found)


def comparison_answer(
    found: PolicyComparison, done: Done | None, names: Petnames, fail_on: FailOn | None = None
) -> CommandAnswer:
    """Return the answer of what-if: who gains and who loses what. It is an error if that is forbidden."""
    error = None
    if fail_on is not None and fails_on(found, fail_on):
        words = f"the change does what --fail-on forbids: {fail_on}"
        error = RefusedError("whatif.changes", words, hint="see the table")
    data = {**found.as_dict(), **({} if done is None else {"run": done_data(done)})}
    return CommandAnswer(data, _show_comparison(found, names), error)


def _show_comparison(found: PolicyComparison, names: Petnames) -> Iterator[Shown]:
    for right, who in ((Right.SUBSCRIBE, "subscriber"), (Right.PUBLISH, "publisher")):
        rows = [
            (
                shown_cell(c.reader.name, names) if right is Right.PUBLISH else c.reader.name,
                c.reader.type.name,
                what,
                f"{c.gained:,}",
                f"{c.lost:,}",
                _samples(c),
            )
            for c, what in listed(found.changes)
            if c.right is right
        ]
        if rows:
            yield grid_table((who, "type", "attribute", "gains", "loses", "such as"), rows)
    if not found.changes:
        yield "nothing changes"
    yield from found.remarks()
    compared = f"{counted(len(found.readers), 'reader')} compared, and {counted(len(found.publishers), 'publisher')}"
    yield f"{counted(found.events, 'event')} under two policies, {compared}"


def _samples(change: VisibilityChange) -> str:
    return ", ".join((change.gained_samples or change.lost_samples)[:3])


def shown_cell(value: object, names: Petnames) -> str:
    """Return a value of a report as it is printed, with petnames for principals."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return instant_text(value)
    if isinstance(value, int | float):
        return number_text(value)
    text = _PRINCIPAL.sub(lambda found: names.show(Principal.parse(found[0])), str(value))
    return _CREDENTIAL.sub(lambda found: f"{found[0][:15]}…", text)
