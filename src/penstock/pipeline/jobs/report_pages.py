"""Render what-if and audit reports as pages."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from penstock.model.principals import Petnames
from penstock.pipeline.audit import AuditReport, ReportTable, reason
from penstock.pipeline.outputs import pages
from penstock.pipeline.whatif import PolicyComparison, VisibilityChange, listed
from penstock.trust.capabilities import Right


def whatif_html(
    comparison: PolicyComparison,
    *,
    names: Petnames | None = None,
    title: str = "What changes",
    at: datetime | None = None,
) -> str:
    """Return a comparison of two policies as a page; `names` is for display, `at` when it was made.

    Raises `MalformedError` (`value.zone`, `value.range`) when `at` is not an instant.
    """
    shown = pages.PrincipalNames(names)
    sides = {
        right: replace(comparison, changes=tuple(c for c in comparison.changes if c.right is right))
        for right in _SECTIONS
    }
    seen = sides[Right.SUBSCRIBE]
    facts = {
        "events in the history": comparison.events,
        "readers compared": len(comparison.readers),
        "readers who gain": len({change.reader for change in seen.gains}),
        "readers who lose": len({change.reader for change in seen.losses}),
    }
    if comparison.publishers:
        facts["publishers compared"] = len(comparison.publishers)
    parts = [_changes(right, part.changes, shown) for right, part in sides.items() if part.changes]
    if not comparison.changes:
        text = "On this history every reader sees the same under both policies, and every publisher may publish it."
        parts.append(pages.section("Nothing changes", text))
    if comparison.unknown:
        text = f"The history does not tell: {', '.join(comparison.unknown)}. Rights that ask for it count as not given."
        parts.append(pages.section("What is not known", text))
    if comparison.closed:
        text = f"No key is held for: {', '.join(comparison.closed)}. All their values count as empty."
        parts.append(pages.section("What stays closed", text))
    if comparison.passed_over:
        other = ", ".join(f"{reader.name} ({reader.type.name})" for reader in comparison.passed_over)
        parts.append(pages.section("Not compared", f"Subscribers to types that this history does not hold: {other}."))
    if comparison.unknown_type:
        text = f"{comparison.unknown_type:,} events are of types that neither policy has: nobody is given those."
        parts.append(pages.section("Of unknown types", text))
    footer = f"{pages.made(at)}Policies: before {comparison.before}, after {comparison.after}."
    return pages.page(title, f"{comparison.events:,} events under two policies", facts, parts, footer)


#: the figure, the title and the text of a section, and who it is about
_SECTIONS: Final = {
    Right.SUBSCRIBE: (
        "f1",
        "Who gains and who loses what",
        "On how many events a reader gets to see what it did not see before, and the other way round.",
        "subscriber",
    ),
    Right.PUBLISH: (
        "f2",
        "Who may publish what",
        "On how many events a publisher may put in what it could not before, and the other way round.",
        "publisher",
    ),
}


def _changes(right: Right, changes: Sequence[VisibilityChange], names: pages.PrincipalNames) -> str:
    figure, title, text, who = _SECTIONS[right]

    def name(change: VisibilityChange) -> str:
        known = change.reader.name
        return names.principal(known) if change.right is Right.PUBLISH else known

    shown = listed(changes)
    largest = sorted(shown, key=lambda one: -(one[0].gained + one[0].lost))
    bars = [(f"{name(change)}: {what}", change.lost, change.gained) for change, what in largest]
    rows = [
        (
            name(change),
            names.principal(str(change.reader.principal)),
            change.reader.type.name,
            what,
            change.gained,
            change.lost,
            ", ".join((*change.gained_samples, *change.lost_samples)),
        )
        for change, what in shown
    ]
    columns = (who, "principal", "type", "what", "gained", "lost", "for example")
    return pages.section(
        title,
        text,
        pages.diverging(figure, "Events on which something is lost (left) or gained (right)", bars)
        + pages.legend(("a", "gained"), ("b", "lost")),
        pages.table("Every change, with some of the events that it concerns", columns, rows),
    )


def audit_html(
    report: AuditReport, *, names: Petnames | None = None, title: str = "Decisions", at: datetime | None = None
) -> str:
    """Return an audit as a page; `names` is for display, `at` when it was made.

    Raises `MalformedError` (`value.zone`, `value.range`) when `at` is not an instant.
    """
    shown = pages.PrincipalNames(names)
    refused = sum(pages.number(row[2]) + pages.number(row[3]) for row in report.over_time.rows)
    facts = {
        "decisions": report.decisions,
        "refused" + (" (of those shown)" if report.over_time.more else ""): refused,
        "rights used" + (", at least" if report.rights_used.more else ""): len(report.rights_used.rows),
    }
    if report.rights_unused is not None:
        facts["rights not used"] = len(report.rights_unused.rows)

    def part(title: str, text: str, table: ReportTable, figure: str = "") -> str:
        rows = [
            tuple(shown.cell(name, cell) for name, cell in zip(table.columns, row, strict=True)) for row in table.rows
        ]
        more = " There is more than is shown." if table.more else ""
        caption = f"{title}, in numbers" if figure else title
        return pages.section(
            title, text, figure, pages.table(f"{caption}.{more}", table.columns, rows) if rows else "<p>None.</p>"
        )

    over = [
        (row[0], tuple(map(pages.number, row[1:]))) for row in report.over_time.rows if isinstance(row[0], datetime)
    ]
    flows = [
        (f"{shown.cell('', row[0])} → {shown.cell('', row[1])}: {row[2]}", pages.number(row[4]))
        for row in report.flows.rows
    ]
    hot = [
        (
            f"{shown.principal(str(row['principal']))}: {row['action']}, {reason(row['code'])}",
            pages.number(row["decisions"]),
        )
        for row in report.refusals.as_dicts()
    ]
    kept = [
        (f"{shown.principal(str(row['principal']))}: {row['action']}, {row['effect']}", pages.number(row["events"]))
        for row in report.kept_back.as_dicts()
    ]
    slow = [
        (f"{row[0]}, {share} %", round(float(str(row[at])))) for row in report.durations.rows for share, at in _SHARES
    ]
    effects = pages.legend(("a", "permit"), ("b", "deny"), ("c", "indeterminate"))
    parts = [
        part(
            "Decisions over time",
            "How many requests were permitted, denied, or could not be decided.",
            report.over_time,
            pages.columns("f1", "Decisions by period: permitted, denied, indeterminate", over, report.width) + effects,
        ),
        part(
            "Refusals",
            "Where refused requests pile up.",
            _reasoned(report.refusals),
            pages.bars("f2", "Refused requests", hot, "b"),
        ),
        part(
            "Events kept back",
            "Where events did not pass: a permission (permit) does not cover them, or the request was refused.",
            report.kept_back,
            pages.bars("f6", "Events that did not pass", kept, "b"),
        ),
        part(
            "Flows between domains",
            "Events that passed, from the owner's domain to the reader's, and from the publisher's to the owner's.",
            report.flows,
            pages.bars("f3", "Events that passed from one domain to another", flows, "a"),
        ),
        part("Rights that were used", "The credentials that permissions rested on.", report.rights_used),
    ]
    if report.rights_unused is not None:
        text = "Credentials that no permission rested on in this period: candidates for not being renewed."
        parts.append(part("Rights that were not used", text, report.rights_unused))
    parts += [
        _revoked(report, shown, part),
        part("Requests", "Who asked for what.", report.requests_made),
        part(
            "Time taken",
            "Percentiles of the time that a decision took.",
            report.durations,
            pages.bars("f4", "Microseconds that a decision took, by action and percentile", slow, "a"),
        ),
        part("Slowest decisions", "Those that took longest.", report.slowest),
    ]
    since = "the beginning" if report.since is None else pages.moment(report.since)
    until = "the end" if report.until is None else pages.moment(report.until)
    return pages.page(title, f"From {since} to {until} (UTC)", facts, parts, pages.made(at))


def _revoked(
    report: AuditReport, names: pages.PrincipalNames, part: Callable[[str, str, ReportTable, str], str]
) -> str:
    title = "Time to revoke"
    if not report.revocations.rows:
        return pages.section(title, "There were no revocations in this period.")
    text = "From when an owner ordered a revocation to when the last broker had carried it out."
    bars = [
        (f"{names.principal(str(row[0]))}, {share}", round(float(str(row[at]))))
        for row in report.revocations.rows
        for share, at in _TO_REVOKE
    ]
    figure = pages.bars("f5", "Microseconds that a revocation took, by owner", bars, "a")
    return part(title, text, report.revocations, figure)


def _reasoned(refusals: ReportTable) -> ReportTable:
    """Return refusals with a reason in each row, also where there is no code."""
    code = refusals.columns.index("code")
    rows = [(*row[:code], reason(row[code]), *row[code + 1 :]) for row in refusals.rows]
    return replace(refusals, rows=tuple(rows))


_SHARES: Final = ((50, 2), (90, 3), (99, 4))
_TO_REVOKE: Final = (("median", 3), ("95 %", 4), ("longest", 5))
