"""What jobs answer: how much each subscriber was given, and the decisions that took longest."""

import re

import pytest
from tests.trust.kit import NOW

from penstock.apps.cli.pipeline.done import Done, comparison_answer
from penstock.apps.cli.pipeline.output import done_answer, report_answer
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Petnames, Principal
from penstock.pipeline.audit import DURATIONS, SLOWEST, AuditReport, ReportTable
from penstock.pipeline.comparison import (
    AffectedReader,
    PolicyComparison,
    VisibilityChange,
)
from penstock.pipeline.jobs.reports import Audit

JOB = Audit("in", name="deliver")
NOTHING = ReportTable((), ())


def lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_a_summary_names_those_who_were_given_the_most(capsys: pytest.CaptureFixture[str]) -> None:
    delivered = {f"reader-{number}": 1_000 - number for number in range(13)}
    done = Done({"read": 5}, {}, 1, 1.0, 1, delivered=delivered)
    done_answer(JOB, "out", done).render()
    found = lines(capsys)
    assert ["reader-0", "1,000"] in found
    assert ["reader-9", "991"] in found
    assert not [line for line in found if "reader-10" in line]
    assert ["and", "2,967", "events", "to", "3", "other", "subscribers"] in found
    assert done_answer(JOB, "out", done).as_data()["delivered"] == delivered
    done_answer(JOB, "out", Done({"read": 5}, {}, 1, 1.0, 1)).render()
    assert not [line for line in lines(capsys) if "subscriber" in line]


def test_a_summary_says_who_has_no_rights(capsys: pytest.CaptureFixture[str]) -> None:
    done = Done({"read": 5}, {}, 1, 1.0, 1, delivered={"ann": 5, "bob": 0, "cid": 0}, without_rights=("cid",))
    done_answer(JOB, "out", done).render()
    shown = capsys.readouterr().out
    assert {("bob", "0"), ("cid", "0")} < {tuple(line.split()) for line in shown.splitlines()}
    assert "without rights: cid; `penstock explain` says what is missing" in shown
    assert done_answer(JOB, "out", done).as_data()["without_rights"] == ["cid"]


def test_who_opened_nothing_is_not_told_of_values(capsys: pytest.CaptureFixture[str]) -> None:
    for events, told in ((3, "all its values are empty"), (0, "no event was opened")):
        counts = {"read": 9, "events": events, "sealed": 9 - events, "quarantined": 0}
        done_answer(Audit("in", name="unseal"), "out", Done(counts, {}, 1, 1.0, 1, ("plate",))).render()
        assert f"no key for plate: {told}" in capsys.readouterr().out.splitlines()


def test_what_did_not_open_comes_with_where_it_is_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    reasons = {"seal.unknown-key": 2, "seal.cannot-open": 1}
    counts = {"read": 9, "events": 3, "sealed": 4, "quarantined": 2, "blocks": 4}
    done_answer(Audit("in", name="unseal"), "out", Done(counts, reasons, 1, 1.0, 1)).render()
    shown = capsys.readouterr().out
    assert "seal.unknown-key, blocks  2" in shown
    assert "`penstock pipeline unseal out`" in shown
    assert "out/quarantine" in shown
    assert "docs/how-to/seal-files.md" in shown
    done_answer(
        Audit("in", name="unseal"), "out", Done({**counts, "sealed": 0, "quarantined": 0}, {}, 1, 1.0, 1)
    ).render()
    assert capsys.readouterr().out.splitlines()[-1] == "wrote out"


def test_a_report_shows_the_decisions_that_took_longest(capsys: pytest.CaptureFixture[str]) -> None:
    slow = ReportTable(tuple(SLOWEST.names), (("d1", NOW, "broker", "somebody", "subscribe", "T@0", "deny", 4_321),))
    report = AuditReport(None, None, 1, NOTHING, None, NOTHING, NOTHING, NOTHING, NOTHING, slow, NOTHING)
    report_answer(report, None, Petnames({})).render()
    found = lines(capsys)
    assert ["slowest"] in found
    assert any({"d1", "somebody", "4,321"} <= {*line} for line in found)


def test_numbers_in_a_report_are_written_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    taken = ReportTable(tuple(DURATIONS.names), (("subscribe", 12_345, 2621.600000000001, 3000.0, 0.1 + 0.2, 4_000),))
    report = AuditReport(None, None, 1, NOTHING, None, NOTHING, NOTHING, NOTHING, taken, NOTHING, NOTHING)
    report_answer(report, None, Petnames({})).render()
    assert ["subscribe", "12,345", "2,621.6", "3,000", "0.3", "4,000"] in lines(capsys)


def test_a_change_of_whole_events_is_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    owner = Principal(bytes(32))
    key = TypeKey(owner, "org.plant.Reading")
    reader = AffectedReader("statistics", owner, key)
    events = {"": 5, "region": 5, "sensor": 5, "value": 4}
    changes = tuple(
        VisibilityChange(reader, AttributeId(owner, key.name, name) if name else None, name, gained, 0, ("e1",))
        for name, gained in events.items()
    )
    comparison_answer(PolicyComparison("a", "b", 9, (reader,), changes), None, Petnames({})).render()
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("statistics")]
    assert [re.split(r"\s{2,}", line)[2:4] for line in shown] == [
        ["whole events with region, sensor", "5"],
        ["value", "4"],
    ]
