"""An audit of components says who asked what, whose answer counted, who disagreed, and what was missing."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.component_audit import SAMPLE, SAMPLES, ComponentAudit, audit_components, read_samples

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def at(seconds: float) -> str:
    return (NOON + timedelta(seconds=seconds)).isoformat()


def line(kind: str, writer: str, number: int, seconds: float, *, log: str = "log", **more: Any) -> str:
    """Return a line as a log point writes it."""
    data = {
        "domain": "bank",
        "topic": f"{kind}_1",
        "kind": kind,
        "writer": writer,
        "principal": f"ed25519:{writer}",
        "role": "ER(1)" if kind == "DREQ" else "XR(1)",
        "home": "partner" if writer == "pdp-3" else "bank",
        "number": number,
        "configuration": 1,
        "heard": at(seconds),
        **more,
    }
    event = {"specversion": "1.0", "id": f"bank/{kind}_1/{writer}/{number}", "source": f"urn:x:{log}", "type": SAMPLE}
    return json.dumps({**event, "time": at(seconds), "data": data})


def question(number: int, seconds: float, who: str = "alice", **more: Any) -> str:
    subject, resource = {"type": "customer", "id": who}, {"type": "account", "id": "a-1"}
    return line("DREQ", "atm", number, seconds, subject=subject, action="withdraw", resource=resource, **more)


def reply(writer: str, to: int, seconds: float, effect: str, **more: Any) -> str:
    more = {"status": "", "rests": [{"id": "p", "revision": "1", "changed": at(-60)}], **more}
    return line("DREP", writer, to + 1_000, seconds, requester="atm", request=to, effect=effect, **more)


def asks(writer: str, number: int, seconds: float) -> str:
    return line("IREQ", writer, number, seconds, names=["balance"])


def informs(writer: str, to: int, seconds: float, *names: str) -> str:
    return line("IREP", writer, to + 1_000, seconds, requester="pdp-1", request=to, names=[*names])


LINES = [
    question(1, 0),
    question(1, 0.001, log="log-2"),  # a second log point has logged it too
    asks("pdp-1", 11, 0.01),
    informs("accounts", 11, 0.03, "balance"),
    informs("slow", 11, 0.41, "balance"),
    reply("pdp-1", 1, 0.1, "Permit"),
    reply("pdp-2", 1, 0.2, "Deny"),
    reply("pdp-3", 1, 0.05, "Deny", configuration=2),  # of another configuration: it does not count
    question(2, 10),
    reply("pdp-2", 2, 10.2, "Deny"),
    question(3, 20, "bob"),
    asks("pdp-1", 12, 20.01),
    informs("slow", 12, 20.11),  # knows nothing of bob
    reply("pdp-1", 3, 20.4, "Indeterminate", status="missing"),
    question(4, 30),
    line("QPEP", "atm", 9, 0, names=["account/withdraw"]),
]
CUT = LINES[0][:40]


@pytest.fixture(scope="module")
def lines(session: SparkSession) -> DataFrame:
    return session.createDataFrame([(one,) for one in [*LINES, CUT, '{"a": 1}']], "value string")


@pytest.fixture(scope="module")
def report(lines: DataFrame) -> ComponentAudit:
    return audit_components(lines)


def rows(report: ComponentAudit, name: str, *columns: str) -> list[tuple[object, ...]]:
    return [tuple(row[column] for column in columns) for row in report.tables()[name].as_dicts()]


def test_a_sample_counts_once_and_other_lines_are_set_aside(lines: DataFrame, report: ComponentAudit) -> None:
    samples, bad = read_samples(lines)
    assert samples.schema.names == SAMPLES.names
    assert sorted(row.reason for row in bad.collect()) == ["log.envelope", "log.json"]
    assert (report.samples, report.quarantined) == (len(LINES) - 1, 2)


def test_who_asked_what(report: ComponentAudit) -> None:
    found = rows(report, "asked", "requester", "subject", "action", "resource", "permitted", "refused", "undecided")
    assert found == [
        ("atm", "customer:alice", "withdraw", "account:a-1", 1, 1, 1),
        ("atm", "customer:bob", "withdraw", "account:a-1", 0, 0, 1),
    ]


def test_whose_answer_counted(report: ComponentAudit) -> None:
    found = rows(report, "answers", "replier", "home", "answers", "counted", "outdated", "longest")
    assert found == [
        ("pdp-1", "bank", 2, 2, 0, 400_000),
        ("pdp-2", "bank", 2, 1, 0, 200_000),
        ("pdp-3", "partner", 1, 0, 1, 50_000),
    ]


def test_disagreements(report: ComponentAudit) -> None:
    found = rows(report, "disagreements", "subject", "effect", "said")
    assert found == [("customer:alice", "Permit", ["pdp-1: Permit", "pdp-2: Deny"])]


def test_slow_information_points(report: ComponentAudit) -> None:
    found = rows(report, "information", "replier", "answers", "attributes", "p50", "longest")
    assert found == [("slow", 2, 1, 250_000.0, 400_000), ("accounts", 1, 1, 20_000.0, 20_000)]


def test_decisions_without_information(report: ComponentAudit) -> None:
    found = rows(report, "uninformed", "decider", "decisions", "indeterminate", "asked", "unanswered")
    assert found == [("pdp-1", 2, 1, 2, 1)]


def test_refusals_by_subject(report: ComponentAudit) -> None:
    assert rows(report, "refusals", "subject", "refusals") == [("customer:alice", 1)]


def test_the_caller_says_how_answers_are_combined_in_a_period(lines: DataFrame) -> None:
    def last(role: str, answers: Sequence[Mapping[str, object]]) -> tuple[str | None, list[str]]:
        assert role == "ER(1)"
        return (str(answers[-1]["effect"]), [str(answers[-1]["replier"])]) if answers else (None, [])

    found = audit_components(lines, last, since=NOON, until=NOON + timedelta(seconds=5))
    assert rows(found, "refusals", "subject", "refusals") == [("customer:alice", 1)]
    assert [(row[0], row[1]) for row in rows(found, "answers", "replier", "counted")] == [
        ("pdp-1", 0), ("pdp-2", 1), ("pdp-3", 0)
    ]  # fmt: skip
    assert found.as_dict()["until"] == at(5)
