"""An audit counts what a decision log says, and quarantines what is not a decision."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.guard.london import (
    BAG,
    BILLING,
    CAMERA,
    MALLORY,
    MET,
    NETWORK,
    NOW,
    SMITH,
    STATISTICS,
    TO_BILLING,
    TO_CAMERA,
    TO_CCS,
    TO_MET,
    TO_SMITH,
    TO_STATISTICS,
    V8516,
    ask,
    name,
)
from tests.pipeline.jobs_plant import interpreted
from tests.pipeline.rows import collected

from penstock.apps.http.journal import Decided as Answered
from penstock.apps.http.journal import DecisionContext, Journal
from penstock.crypto import SigningKey
from penstock.errors import MalformedError
from penstock.guard import EventRequest
from penstock.guard.decision_log import (
    DecisionRecord,
    EventCounts,
    RevocationRecord,
    read_record,
    read_revocation,
    record,
)
from penstock.model import NetworkName
from penstock.pipeline import audit as room
from penstock.pipeline.audit import audit, log_frame, read_log, within
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.frames import micros
from penstock.policy.language.results import MISSING_ATTRIBUTE, XacmlDecision
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials

DOMAIN = {BILLING: "CCS", STATISTICS: "CCS", CAMERA: "CCS", SMITH: "Met"}
HOUR = timedelta(hours=1)


def logged(number: int, who: SigningKey, right: Right, *, at: datetime = NOW, took: int = 10) -> DecisionRecord:
    return record(
        EventRequest(who.principal, right, V8516, NOW),
        ask(who, right),
        id=f"d{number}",
        source="broker",
        at=at,
        took=timedelta(microseconds=took),
        revision="policy:a",
        domain=DOMAIN.get(who),
        owner_domain="PITO",
    )


DECIDED = [
    logged(0, BILLING, Right.SUBSCRIBE, took=100),
    logged(1, BILLING, Right.SUBSCRIBE, at=NOW + HOUR, took=300),
    # Another of her credentials did not count; what her right keeps back is not for that reason.
    replace(logged(2, SMITH, Right.SUBSCRIBE, at=NOW + 2 * HOUR, took=20), errors=("cert.expired",)),
    logged(3, CAMERA, Right.PUBLISH, at=NOW + 2 * HOUR, took=30),
    logged(4, MALLORY, Right.SUBSCRIBE, took=50),
    logged(5, MALLORY, Right.SUBSCRIBE, at=NOW + HOUR, took=40),
    replace(
        logged(6, BILLING, Right.PUBLISH, at=NOW + 3 * HOUR - timedelta(microseconds=1), took=5),
        errors=("cert.expired", "cert.online-test"),
    ),
    replace(
        logged(7, BILLING, Right.PUBLISH, took=1), resource=NETWORK, action=Right.CONNECT, domain=None
    ),
]  # fmt: skip
ENFORCED = [
    DECIDED[number].enforced(id=f"e{place}", at=DECIDED[number].time, counts=counts)
    for place, (number, counts) in enumerate(
        [
            (1, EventCounts(30, 2)),
            (1, EventCounts(10, 0)),
            (2, EventCounts(1, 41)),
            (3, EventCounts(42, 0)),
            (4, EventCounts(0, 7)),
        ]
    )
]


def revoked(number: int, owner: SigningKey, order: str, seconds: float, *, broker: str = "broker") -> RevocationRecord:
    return RevocationRecord(
        id=f"r{number}",
        source=broker,
        time=NOW + timedelta(seconds=seconds),
        owner=owner.principal,
        revocation=order,
        because=(TO_BILLING.id,) if order == "o1" else (TO_SMITH.id, TO_MET.id),
        ordered=NOW,
    )


REVOKED = [
    # Two brokers carry out one order; it takes as long as the slower of them.
    revoked(0, MET, "o1", 1),
    revoked(1, MET, "o1", 3, broker="other"),
    revoked(2, MET, "o2", 5),
    revoked(3, CAMERA, "o1", 0.25),
]
RECORDS: list[DecisionRecord | RevocationRecord] = [*DECIDED, *ENFORCED, *REVOKED]
TYPE_TEXT = str(V8516.event_type.name)


@pytest.fixture(scope="module", autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


@pytest.fixture(scope="module")
def log(spark: SparkSession) -> DataFrame:
    return log_frame(spark, RECORDS).persist()


def rows(frame: DataFrame) -> set[tuple[object, ...]]:
    return {tuple(row) for row in collected(frame)}


def text(key: SigningKey) -> str:
    return str(key.principal)


def test_a_log_has_one_schema(spark: SparkSession, log: DataFrame) -> None:
    assert log.schema == room.DECISIONS
    lines = spark.createDataFrame([(r.to_json(),) for r in RECORDS], "value string")
    good, bad = read_log(lines)
    assert good.schema.simpleString() == room.DECISIONS.simpleString()
    assert {row.id: row for row in collected(good)} == {row.id: row for row in collected(log)}
    assert bad.count() == 0


def test_what_is_no_decision_goes_to_quarantine(spark: SparkSession) -> None:
    good: dict[str, Any] = ENFORCED[0].to_cloud_event()
    data: dict[str, Any] = good["data"]
    broken: list[tuple[str, str]] = [("", "log.json"), ("{", "log.json"), ("[]", "log.json"), ("null", "log.json")]
    changes: list[tuple[dict[str, Any], str]] = [
        ({"specversion": "0.3"}, "log.envelope"),
        ({"type": "io.penstock.other"}, "log.envelope"),
        ({"id": None}, "log.envelope"),
        ({"data": None}, "log.envelope"),
        ({"time": "yesterday"}, "log.field"),
        ({"time": "2026-05-01T12:00:00"}, "log.field"),
        ({"data": data | {"took": None}}, "log.field"),
        ({"data": data | {"took": "soon"}}, "log.json"),
        ({"data": data | {"effect": "maybe"}}, "log.field"),
        ({"data": data | {"action": "destroy"}}, "log.field"),
        ({"data": data | {"passed": None}}, "log.field"),
        ({"data": data | {"decision": None}}, "log.field"),
        ({"data": data | {"resource": {"kind": "type", "owner": "x", "name": "y"}}}, "log.field"),
    ]
    broken += [(json.dumps(good | change), code) for change, code in changes]
    # Two records in one line: neither counts, and neither is dropped in silence.
    broken.append((f"{json.dumps(good)}{json.dumps(good)}", "log.json"))
    revocation: dict[str, Any] = REVOKED[0].to_cloud_event()
    misordered: list[dict[str, Any]] = [
        {"owner": None},
        {"revocation": None},
        {"because": []},
        {"because": None},
        {"ordered": "soon"},
        {"ordered": None},
        {"ordered": "2027-01-01T00:00:00Z"},
    ]
    impossible = [json.dumps(revocation | {"data": revocation["data"] | change}) for change in misordered]
    broken += [(line, "log.field") for line in impossible]
    whole = [json.dumps(good), json.dumps(revocation)]
    lines = spark.createDataFrame([(line,) for line in [*whole, *(line for line, _ in broken)]], "value string")
    found, quarantined = read_log(lines)
    assert {row.id for row in found.collect()} == {"e0", "r0"}
    assert quarantined.schema.simpleString() == room.QUARANTINE.simpleString()
    assert {(row.line, row.reason) for row in quarantined.collect()} == set(broken)
    # What the log reader keeps out, the strict reader refuses too.
    for line, _ in broken:
        with pytest.raises(MalformedError):
            read_record(line)
    for line in impossible:
        with pytest.raises(MalformedError):
            read_revocation(line)


ASKING = DecisionContext("q", NOW, "/access/v1/evaluation", "rev", '["policy:todo"]', 90, "gateway", None)
ANSWERS = [
    Answered(XacmlDecision.PERMIT, ("user", "rick"), "can_read", ("todo", "1")),
    Answered(XacmlDecision.PERMIT, ("user", "rick"), "publish", ("", "all")),
    Answered(XacmlDecision.DENY, ("user", "beth"), "can_read", ("todo", "1")),
    Answered(XacmlDecision.DENY, ("user", "beth"), "can_read", ("todo", "1")),
    Answered(XacmlDecision.NOT_APPLICABLE, ("user", "beth"), "fly", ("todo", "1")),
    Answered(XacmlDecision.INDETERMINATE_DP, status=MISSING_ATTRIBUTE),
]


def test_answers_of_policies_are_audited_too(spark: SparkSession, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "log", "urn:penstock:pdp:0")
    journal.record(ASKING, ANSWERS[:5])
    journal.record(msgspec.structs.replace(ASKING, id="r", took=1_000), ANSWERS[5:])
    journal.close()
    whole = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    wrong = [whole[0] | {"data": whole[0]["data"] | change} for change in (
        {"because": None}, {"took": None}, {"decision": "Perhaps"}, {"subject": None}, {"resource": None}
    )]  # fmt: skip
    lines = spark.createDataFrame([(json.dumps(one),) for one in (*whole, *wrong)], "value string")
    good, bad = read_log(lines)
    assert [row.reason for row in bad.collect()] == ["log.field"] * len(wrong)
    log = good.persist()
    assert {row[:3] for row in rows(room.rights_used(log))} == {("policy:todo", 2, 0)}
    assert {row[:6] for row in rows(room.refusals(log))} == {
        ("user/beth", "can_read", "todo/1", "deny", "pdp.denied", 2),
        ("user/beth", "fly", "todo/1", "deny", "pdp.not-applicable", 1),
        (None, "", None, "indeterminate", "missing-attribute", 1),
    }
    assert [row.id for row in room.slowest(log, 1).collect()] == ["r-0"]
    taken = {(row[0], row[1], row[-1]) for row in rows(room.durations(log))}
    assert taken == {("can_read", 3, 18), ("", 1, 1_000), ("fly", 1, 18), ("publish", 1, 18)}
    assert rows(room.flows(log)) == set(), "an action of that name is not an event"
    log.unpersist()


def test_a_period_has_its_beginning_and_not_its_end(log: DataFrame) -> None:
    assert {row.id for row in within(log, NOW + HOUR, NOW + 2 * HOUR).collect()} == {"d1", "d5", "e0", "e1"}


def test_rights_that_were_used(log: DataFrame) -> None:
    found = room.rights_used(log)
    assert found.schema.simpleString() == room.RIGHTS_USED.simpleString()
    by_id = {row[0]: tuple(row[1:]) for row in collected(found)}
    assert by_id[TO_BILLING.id] == (2, 40, micros(NOW), micros(NOW + HOUR))
    assert by_id[TO_CCS.id] == (3, 82, micros(NOW), micros(NOW + 2 * HOUR))
    assert TO_STATISTICS.id not in by_id


def test_rights_that_were_not(log: DataFrame) -> None:
    member = name(MET, b"Met Brokers", SMITH.principal)
    policy = PipelinePolicy(Credentials.of(*BAG, member))
    assert rows(room.rights_unused(log, policy)) == {
        (
            TO_STATISTICS.id,
            str(TO_STATISTICS.statement.issuer),
            text(STATISTICS),
            "subscribe on uk.gov.pito.Numberplate",
        ),
        (member.id, text(MET), text(SMITH), "member of Met Brokers"),
    }
    early = {row.credential for row in room.rights_unused(within(log, until=NOW + HOUR), policy).collect()}
    assert early == {c.id for c in (TO_STATISTICS, TO_SMITH, TO_MET, TO_CAMERA, member)}
    assert room.rights_unused(log, PipelinePolicy(Credentials())).count() == 0


def test_requests_that_were_made(log: DataFrame) -> None:
    found = room.requests_made(log)
    assert found.schema.simpleString() == room.REQUESTS_MADE.simpleString()
    made = {tuple(row[:6]) for row in found.collect()}
    assert (text(BILLING), "subscribe", TYPE_TEXT, 2, 0, 40) in made
    assert (text(MALLORY), "subscribe", TYPE_TEXT, 0, 2, 0) in made
    assert (text(BILLING), "connect", str(NetworkName(NETWORK.owner, NETWORK.name)), 0, 1, 0) in made


def test_refusals_pile_up_where_they_do(log: DataFrame) -> None:
    found = room.refusals(log)
    assert found.schema.simpleString() == room.REFUSALS.simpleString()
    assert {tuple(row[:6]) for row in found.collect()} == {
        (text(MALLORY), "subscribe", TYPE_TEXT, "deny", None, 2),
        (text(BILLING), "publish", TYPE_TEXT, "deny", "cert.expired", 1),
        (text(BILLING), "publish", TYPE_TEXT, "deny", "cert.online-test", 1),
        (text(BILLING), "connect", str(NETWORK), "deny", None, 1),
    }
    assert room.reason(None) == "no credential"
    assert room.reason("cert.expired") == "cert.expired"


def test_events_that_did_not_pass_are_not_added_to_requests(log: DataFrame) -> None:
    found = room.kept_back(log)
    assert found.schema.simpleString() == room.KEPT_BACK.simpleString()
    assert {tuple(row[:5]) for row in found.collect()} == {
        (text(MALLORY), "subscribe", TYPE_TEXT, "deny", 7),
        (text(BILLING), "subscribe", TYPE_TEXT, "permit", 2),
        (text(SMITH), "subscribe", TYPE_TEXT, "permit", 41),
    }


def test_flows_between_domains(log: DataFrame) -> None:
    assert rows(room.flows(log)) == {
        ("PITO", "CCS", "subscribe", 2, 40),
        ("PITO", "Met", "subscribe", 1, 1),
        ("CCS", "PITO", "publish", 1, 42),
    }


def test_time_taken(log: DataFrame) -> None:
    found = {row.action: row for row in room.durations(log).collect()}
    assert (found["subscribe"].decisions, found["subscribe"].p50, found["subscribe"].longest) == (5, 50.0, 300)
    assert (found["subscribe"].p90, found["subscribe"].p99) == (220.0, 292.0), "to a tenth of a microsecond"
    assert [row.id for row in room.slowest(log, 2).collect()] == ["d1", "d0"]


def test_decisions_over_time(log: DataFrame) -> None:
    assert rows(room.over_time(log)) == {
        (micros(NOW), 1, 2, 0),
        (micros(NOW + HOUR), 1, 1, 0),
        (micros(NOW + 2 * HOUR), 2, 1, 0),
    }
    days = rows(room.over_time(log, timedelta(days=1)))
    assert days == {(micros(NOW.replace(hour=0)), 4, 4, 0)}
    with pytest.raises(MalformedError) as caught:
        room.over_time(log, timedelta(0))
    assert caught.value.code == "audit.width"


def test_time_to_revoke(log: DataFrame) -> None:
    found = room.revocations(log)
    assert found.schema.simpleString() == room.REVOCATIONS.simpleString()
    second = 1_000_000
    assert rows(found) == {
        (text(MET), 2, 3, 4.0 * second, 4.9 * second, 5 * second, micros(NOW) + 5 * second),
        (text(CAMERA), 1, 1, 0.25 * second, 0.25 * second, second // 4, micros(NOW) + second // 4),
    }
    report = audit(log, until=NOW + HOUR)
    assert [row[0] for row in report.revocations.rows] == [text(MET), text(CAMERA)]
    assert audit(log, since=NOW + HOUR).revocations.rows == ()


def test_an_audit_collects_what_a_report_shows(log: DataFrame) -> None:
    report = audit(log, PipelinePolicy(BAG), since=NOW, until=NOW + 3 * HOUR, top=2)
    assert report.decisions == 8
    assert len(report.refusals.rows) == 2
    assert report.refusals.more
    assert report.refusals.rows[0][:6] == (text(MALLORY), "subscribe", TYPE_TEXT, "deny", None, 2)
    assert [row[4] for row in report.kept_back.rows] == [41, 7]
    # With a policy, the rights that were used say who granted what to what key; of another policy, the ids are known.
    assert report.rights_used.columns[:4] == ("credential", "issuer", "subject", "right")
    assert ("publish, subscribe on uk.gov.pito.Numberplate", 3, 82) in {row[3:6] for row in report.rights_used.rows}
    assert None in {row[1] for row in audit(log, PipelinePolicy(Credentials.of(TO_CCS))).rights_used.rows}
    assert [row[0] for row in report.slowest.rows] == ["d1", "d0"]
    assert report.slowest.more
    assert report.rights_unused is not None
    assert [row[0] for row in report.rights_unused.rows] == [TO_STATISTICS.id]
    assert [row[0] for row in report.over_time.rows] == [NOW, NOW + HOUR, NOW + 2 * HOUR]
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["since"] == "2026-05-01T12:00:00+00:00"
    assert plain["flows"][0] == {"origin": "CCS", "target": "PITO", "action": "publish", "decisions": 1, "events": 42}
    assert plain["shortened"] == ["flows", "kept_back", "refusals", "requests_made", "rights_used", "slowest"]
    assert "rights_unused" not in audit(log, since=NOW + 9 * HOUR).as_dict()
    with pytest.raises(MalformedError) as caught:
        audit(log, top=0)
    assert caught.value.code == "audit.top"
    with pytest.raises(MalformedError) as caught:
        audit(log, since=datetime(2026, 5, 1))  # noqa: DTZ001  # the fault
    assert caught.value.code == "value.zone"


def test_moments_are_instants_whatever_the_session_says(spark: SparkSession) -> None:
    old = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    frame = log_frame(spark, [replace(DECIDED[0], time=old)])
    report = audit(frame, width=timedelta(minutes=1))
    assert report.over_time.rows == ((datetime(1969, 12, 31, 23, 59, tzinfo=UTC), 1, 0, 0),)
    assert report.slowest.rows[0][1] == old
