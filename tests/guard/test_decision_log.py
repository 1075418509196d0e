"""The decision log: everything that decides can be written down and read back, and nothing else is read."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.guard.london import BAG, BILLING, MALLORY, NETWORK, NOW, SUSPECT, V8516, ask, ask_network

from penstock.errors import LimitError, MalformedError
from penstock.guard import Decision, DecisionProblem, Effect, EventRequest, NetworkRequest
from penstock.guard.decision_log import (
    DECIDED,
    ENFORCED,
    DecisionRecord,
    EventCounts,
    from_cloud_event,
    read_record,
    record,
)
from penstock.guard.limits import RECORD_BYTES
from penstock.model import NetworkName, Principal, TypeName
from penstock.trust.capabilities import Right

REQUEST = EventRequest(BILLING.principal, Right.SUBSCRIBE, V8516, NOW)
PERMITTED = record(
    REQUEST,
    ask(BILLING, Right.SUBSCRIBE),
    id="d-1",
    source="ccs-broker",
    at=NOW,
    took=timedelta(microseconds=137),
    revision="policy:abc",
    domain="CCS",
    owner_domain="PITO",
)

ENFORCEMENT = PERMITTED.enforced(id="d-2", at=NOW + timedelta(hours=1), counts=EventCounts(passed=3, refused=4))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
counts = st.integers(0, 2**63 - 1)
principals = st.binary(min_size=32, max_size=32).map(Principal)
types = st.builds(TypeName, principals, st.sampled_from(["T", "org.plant.Reading"]), st.sampled_from(["0", "7f3a"]))
networks = st.builds(NetworkName, principals, st.sampled_from(["N", "UK Police Network"]))
asked = st.one_of(
    st.tuples(st.sampled_from([right for right in Right if not right.on_network]), types),
    st.tuples(st.sampled_from([right for right in Right if right.on_network]), networks),
)


@st.composite
def records(draw: st.DrawFn) -> DecisionRecord:
    action, resource = draw(asked)
    effect = draw(st.sampled_from(Effect))
    passing = counts if effect is Effect.PERMIT else st.just(0)
    made = DecisionRecord(
        id=draw(texts.filter(bool)),
        source=draw(st.sampled_from(["broker", "ed25519:abc", "/a?b#c%20d"])),
        time=draw(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(0))]))),
        principal=draw(principals),
        action=action,
        resource=resource,
        effect=effect,
        because=tuple(draw(st.lists(texts, max_size=3))),
        errors=tuple(draw(st.lists(st.sampled_from(["cert.expired", "guard.online-test"]), max_size=2))),
        revision=draw(texts),
        took=draw(counts),
        domain=draw(st.none() | texts),
        owner_domain=draw(st.none() | texts),
    )
    if draw(st.booleans()):
        return made
    counted = draw(st.builds(EventCounts, passing, counts))
    return made.enforced(id=draw(texts.filter(lambda text: text not in ("", made.id))), at=made.time, counts=counted)


@given(records())
def test_what_is_written_is_read_back(written: DecisionRecord) -> None:
    line = written.to_json()
    assert "\n" not in line
    assert read_record(line) == written
    assert read_record(line.encode()) == written
    assert read_record(line).to_json() == line


def test_a_record_is_a_cloud_event() -> None:
    event: dict[str, Any] = PERMITTED.to_cloud_event()
    data = event.pop("data")
    assert event == {
        "specversion": "1.0",
        "id": "d-1",
        "source": "ccs-broker",
        "type": DECIDED,
        "time": "2026-05-01T12:00:00.000000Z",
        "datacontenttype": "application/json",
    }
    assert data["principal"] == str(BILLING.principal)
    assert (data["domain"], data["owner-domain"]) == ("CCS", "PITO")
    assert (data["effect"], data["took"], data["revision"], data["errors"]) == ("permit", 137, "policy:abc", [])
    assert data["resource"] == {
        "kind": "type",
        "owner": str(V8516.event_type.name.owner),
        "name": "uk.gov.pito.Numberplate",
        "version": "8516",
    }
    assert data["because"]
    assert all(item.startswith("cert:") for item in data["because"])


def test_an_enforcement_counts_events() -> None:
    event: dict[str, Any] = ENFORCEMENT.to_cloud_event()
    assert (event["type"], event["id"], event["time"]) == (ENFORCED, "d-2", "2026-05-01T13:00:00.000000Z")
    data = event["data"]
    assert (data.pop("decision"), data.pop("passed"), data.pop("refused")) == ("d-1", 3, 4)
    assert data == PERMITTED.to_cloud_event()["data"], "the rest is the decision"


def test_a_decision_about_a_network_names_it() -> None:
    request = NetworkRequest(MALLORY.principal, Right.CONNECT, NETWORK, NOW)
    found = record(
        request,
        ask_network(MALLORY, Right.CONNECT, BAG),
        id="1",
        source="b",
        at=NOW,
        took=timedelta(0),
        revision="",
    )
    assert found.resource == NETWORK
    assert found.effect is not Effect.PERMIT


def test_messages_and_values_stay_out() -> None:
    problem = DecisionProblem("selector.type", f"does not fit: {SUSPECT}", "cert:x")
    decision = Decision(Effect.INDETERMINATE, errors=(problem, problem))
    found = record(REQUEST, decision, id="1", source="b", at=NOW, took=timedelta(0), revision="")
    assert found.errors == ("selector.type",)
    assert SUSPECT not in found.to_json()
    smith = ask(BILLING, Right.SUBSCRIBE)
    assert SUSPECT not in record(REQUEST, smith, id="1", source="b", at=NOW, took=timedelta(0), revision="").to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""},
        {"source": ""},
        {"source": "two words"},
        {"source": "50%"},
        {"action": Right.CONNECT},
        {"resource": NETWORK},
        {"errors": ("the plate AE05 XYZ does not fit",)},
        {"took": -1},
        {"took": 2**63},
        {"counts": EventCounts(1, 0)},
        {"decision": "d-0"},
        {"decision": "d-1", "counts": EventCounts(1, 0)},
        {"decision": "", "counts": EventCounts(1, 0)},
        {"decision": "d-0", "counts": EventCounts(-1, 0)},
        {"decision": "d-0", "counts": EventCounts(1, 0), "effect": Effect.DENY},
        {"decision": "\ud800", "counts": EventCounts(1, 0)},
        {"revision": "\ud800"},
        {"because": ("\ud800",)},
    ],
)
def test_what_cannot_be_logged_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedError) as caught:
        replace(PERMITTED, **change)
    assert caught.value.code == "log.field"


def test_a_moment_has_a_zone() -> None:
    with pytest.raises(MalformedError) as caught:
        replace(PERMITTED, time=datetime(2026, 5, 1))  # noqa: DTZ001  # the fault
    assert caught.value.code == "value.zone"


GOOD: dict[str, Any] = PERMITTED.to_cloud_event()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "log.json"),
        ("{", "log.json"),
        ('{"id":1,"id":2}', "log.json"),
        ('{"id":NaN}', "log.json"),
        ("[" * 100_000, "log.json"),
        ("1" * 5_000, "log.json"),
        (b"\xff\xfe\xfa", "log.json"),
        ("[]", "log.envelope"),
        ("{}", "log.envelope"),
        (" " * (RECORD_BYTES + 1), "log.limit"),
    ],
)
def test_what_is_no_record_is_not_read(text: str | bytes, code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        read_record(text)
    assert caught.value.code == code
    assert isinstance(caught.value, LimitError) is (code == "log.limit")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"specversion": "0.3"}, "log.envelope"),
        ({"type": "io.penstock.other"}, "log.envelope"),
        ({"type": []}, "log.envelope"),
        ({"datacontenttype": "text/plain"}, "log.envelope"),
        ({"Not-A-Name": 1}, "log.envelope"),
        ({"id": 1}, "log.field"),
        ({"time": "2026-05-01"}, "log.field"),
        ({"time": "2026-05-01T12:00:00"}, "log.field"),
        ({"time": "2026-13-01T12:00:00Z"}, "log.field"),
        ({"data": []}, "log.field"),
        ({"type": ENFORCED}, "log.field"),
    ],
)
def test_an_envelope_that_is_not_ours_is_not_read(change: dict[str, object], code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        from_cloud_event(GOOD | change)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "change",
    [
        {"value": "AE05 XYZ"},
        {"passed": 1},
        {"principal": "billing"},
        {"action": "destroy"},
        {"action": "connect"},
        {"effect": "maybe"},
        {"because": "cert:a"},
        {"because": [1]},
        {"errors": ["No Code"]},
        {"took": True},
        {"took": 1.5},
        {"took": -1},
        {"domain": None},
        {"resource": "ed25519:abc/T@0"},
        {"resource": {"kind": "network", "owner": str(BILLING.principal), "name": "N"}},
        {"resource": {"kind": "type", "owner": str(BILLING.principal), "name": "T"}},
        {"resource": {"kind": "type", "owner": str(BILLING.principal), "name": "T", "version": "0", "more": 1}},
        {"resource": {"kind": "type", "owner": str(BILLING.principal), "name": "9", "version": "0"}},
    ],
)
def test_a_part_that_is_wrong_is_not_read(change: dict[str, object]) -> None:
    with pytest.raises(MalformedError) as caught:
        from_cloud_event(GOOD | {"data": GOOD["data"] | change})
    assert caught.value.code == "log.field"


COUNTED: dict[str, Any] = ENFORCEMENT.to_cloud_event()


@pytest.mark.parametrize("name", sorted(COUNTED["data"].keys() - {"domain", "owner-domain"}))
def test_no_part_may_be_missing(name: str) -> None:
    data = {key: value for key, value in COUNTED["data"].items() if key != name}
    assert from_cloud_event(COUNTED) == ENFORCEMENT
    with pytest.raises(MalformedError) as caught:
        from_cloud_event(COUNTED | {"data": data})
    assert caught.value.code == "log.field"


def test_extensions_of_the_envelope_are_passed_over() -> None:
    assert from_cloud_event(GOOD | {"traceparent": "00-a-b-01", "subject": "x"}) == PERMITTED
    assert read_record(json.dumps(GOOD)) == PERMITTED
