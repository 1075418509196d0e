"""Revocations in the decision log: what was carried out can be written down and read back, and nothing else is read."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.guard.london import NOW, V8516

from penstock.errors import MalformedError
from penstock.guard.decision_log import DECIDED, REVOKED, RevocationRecord, read_record, read_revocation

REVOCATION = RevocationRecord(
    id="r-1",
    source="ccs-broker",
    time=NOW + timedelta(seconds=2),
    owner=V8516.event_type.name.owner,
    revocation="revocation-7",
    because=("cert:a", "cert:b"),
    ordered=NOW,
)


def test_a_revocation_is_a_cloud_event_too() -> None:
    event: dict[str, Any] = REVOCATION.to_cloud_event()
    assert (event["type"], event["id"], event["time"]) == (REVOKED, "r-1", "2026-05-01T12:00:02.000000Z")
    assert event["data"] == {
        "owner": str(V8516.event_type.name.owner),
        "revocation": "revocation-7",
        "because": ["cert:a", "cert:b"],
        "ordered": "2026-05-01T12:00:00.000000Z",
    }
    assert REVOCATION.took == timedelta(seconds=2)
    assert read_revocation(REVOCATION.to_json()) == REVOCATION
    with pytest.raises(MalformedError) as caught:
        read_record(REVOCATION.to_json())
    assert caught.value.code == "log.envelope"


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""},
        {"source": "two words"},
        {"revocation": ""},
        {"revocation": "\ud800"},
        {"because": ()},
        {"because": ("\ud800",)},
        {"ordered": NOW + timedelta(seconds=3)},
    ],
)
def test_what_cannot_be_a_revocation_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedError) as caught:
        replace(REVOCATION, **change)
    assert caught.value.code == "log.field"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"type": DECIDED}, "log.envelope"),
        ({"data": []}, "log.field"),
        ({"owner": "pito"}, "log.field"),
        ({"because": "cert:a"}, "log.field"),
        ({"ordered": "2026-05-01"}, "log.field"),
        ({"ordered": 5}, "log.field"),
        ({"effect": "permit"}, "log.field"),
        ({"revocation": None}, "log.field"),
    ],
)
def test_what_is_no_revocation_is_not_read(change: dict[str, Any], code: str) -> None:
    event: dict[str, Any] = REVOCATION.to_cloud_event()
    inside = {name: value for name, value in change.items() if name not in event}
    outside = {name: value for name, value in change.items() if name in event}
    with pytest.raises(MalformedError) as caught:
        read_revocation(json.dumps({**event, "data": {**event["data"], **inside}, **outside}))
    assert caught.value.code == code
