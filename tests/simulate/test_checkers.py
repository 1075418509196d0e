"""Each checker finds what must not be in a log, and nothing in a log where all is well."""

from typing import Any

import pytest

from penstock.simulate.checkers import CHECKERS, check
from penstock.simulate.simulation import Entry

Notes = list[tuple[str, str, dict[str, Any]]]

POLICY = ("pap", "policy", {"version": "v1", "answers": (("u1", "Permit"), ("u2", "Deny"))})
NEWER = ("pap", "policy", {"version": "v2", "answers": (("u1", "Deny"), ("u2", "Deny"))})
RIGHT = {"reader": "ann", "topic": "alarms"}
EVENT = {**RIGHT, "event": "e1", "shown": ("a",)}
ALLOWED = ("b1", "decided", {**RIGHT, "shows": ("a", "b")})
GROUP = {"group": "g"}

#: for each checker: notes in order, of which the last one is wrong
CASES: dict[str, Notes] = {
    "no_delivery_after_revocation": [ALLOWED, ("owner", "revoked", RIGHT), ("b1", "delivered", EVENT)],
    "only_allowed_deliveries": [ALLOWED, ("b1", "delivered", {**EVENT, "shown": ("a", "c")})],
    "no_acknowledged_change_lost": [
        ("p1", "acknowledged", {"of": "book", "change": "c1"}),
        ("p1", "holds", {"of": "book", "changes": ("c2",)}),
    ],
    "events_once": [ALLOWED, ("b1", "delivered", EVENT), ("b1", "delivered", EVENT)],
    "decisions_by_policies_in_force": [
        POLICY,
        NEWER,
        ("pap", "policy-ended", {"version": "v1"}),
        ("pep", "answered", {"request": "u1", "effect": "Permit", "asked": 3.0}),
    ],
    "recycled_answers_equal": [
        POLICY,
        NEWER,
        ("pep", "recycled", {"request": "u1", "effect": "Permit", "version": "v2"}),
    ],
    "key_groups_closed": [
        ("m", "joined", {**GROUP, "member": "ann", "epoch": 2}),
        ("m", "left", {**GROUP, "member": "ann", "epoch": 4}),
        ("b1", "sealed", {**GROUP, "block": "x", "epoch": 4}),
        ("b2", "opened", {**GROUP, "block": "x", "member": "ann"}),
    ],
    "no_mixed_configurations": [("pep", "decision", {"request": "r1", "configurations": ("v1", "v2")})],
    "no_role_outlives_conditions": [
        ("gate", "condition", {"name": "on-duty ann", "holds": False}),
        ("gate", "role", {"holder": "ann", "role": "nurse", "conditions": ("employed ann", "on-duty ann")}),
    ],
    "no_access_after_statement": [
        ("gate", "statement", {"of": "lab", "until": 100.0, "number": 0}),
        ("gate", "access", {"of": "lab", "credential": "c1", "clock": 100.5}),
    ],
    "suspended_requests_end": [("pep", "asked", {"request": "r1"})],
    "replicas_converge": [
        ("p1", "replica", {"of": "book", "state": "a"}),
        ("p2", "replica", {"of": "book", "state": "b"}),
    ],
    "joins_end": [("pep", "joining", {"component": "pep"})],
}
#: what is right instead of the last note
RIGHT_END: dict[str, Notes] = {
    "no_delivery_after_revocation": [("owner", "granted", RIGHT), ("b1", "delivered", EVENT)],
    "only_allowed_deliveries": [("b1", "delivered", EVENT)],
    "no_acknowledged_change_lost": [("p1", "holds", {"of": "book", "changes": ("c1", "c2")})],
    "events_once": [("b1", "delivered", {**EVENT, "event": "e2"}), ("b1", "delivered", {**EVENT, "session": "new"})],
    "decisions_by_policies_in_force": [("pep", "answered", {"request": "u1", "effect": "Permit", "asked": 1.5})],
    "recycled_answers_equal": [("pep", "recycled", {"request": "u1", "effect": "Deny", "version": "v2"})],
    "key_groups_closed": [
        ("b1", "sealed", {**GROUP, "block": "y", "epoch": 3}),
        ("b2", "opened", {**GROUP, "block": "y", "member": "ann"}),
    ],
    "no_mixed_configurations": [("pep", "decision", {"request": "r1", "configurations": ("v2", "v2")})],
    "no_role_outlives_conditions": [
        ("gate", "condition", {"name": "on-duty ann", "holds": True}),
        ("gate", "role", {"holder": "ann", "role": "nurse", "conditions": ("employed ann", "on-duty ann")}),
    ],
    "no_access_after_statement": [("gate", "access", {"of": "lab", "credential": "c1", "clock": 100.0})],
    "suspended_requests_end": [("pep", "asked", {"request": "r1"}), ("pep", "ended", {"request": "r1"})],
    "replicas_converge": [("p2", "replica", {"of": "book", "state": "a"})],
    "joins_end": [("pep", "joining", {"component": "pep"}), ("pep", "fault", {"fault": "crash"})],
}


def log(notes: Notes) -> list[Entry]:
    return [Entry(float(number), process, kind, fields) for number, (process, kind, fields) in enumerate(notes)]


@pytest.mark.parametrize("checker", [checker.__name__ for checker in CHECKERS])
def test_a_checker_finds_what_is_wrong(checker: str) -> None:
    notes = CASES[checker]
    assert {found.checker for found in check(log(notes))} == {checker}
    assert check(log([*notes[:-1], *RIGHT_END[checker]])) == []


def test_what_was_promised_must_arrive() -> None:
    promised: Notes = [ALLOWED, ("b1", "promised", {"reader": "ann", "event": "e1"})]
    assert [found.message for found in check(log(promised))] == ["ann never got e1"]
    sent = ("b1", "delivered", EVENT)
    assert [found.message for found in check(log([*promised, sent]))] == ["ann never got e1"]
    got = ("ann", "received", {"reader": "ann", "event": "e1"})
    assert check(log([*promised, sent, got])) == []
    assert [found.message for found in check(log([*promised, sent, got, got]))] == ["ann got e1 twice"]


def test_a_client_knows_what_its_broker_has_forgotten() -> None:
    sent, crash = ("b1", "delivered", EVENT), ("b1", "fault", {"fault": "crash"})
    assert check(log([ALLOWED, sent, crash, ALLOWED, sent])) == []
    got = ("ann", "received", {"reader": "ann", "event": "e1"})
    found = check(log([ALLOWED, sent, got, crash, ALLOWED, sent, got]))
    assert [one.message for one in found] == ["ann got e1 twice"]
    assert [one.message for one in check(log([ALLOWED, sent, ("b2", *crash[1:]), sent]))] == ["ann got e1 twice"]
    # Another subscription may have what another one had.
    again = ("ann", "subscribed", {"reader": "ann"})
    assert check(log([ALLOWED, sent, got, crash, ALLOWED, again, sent, got])) == []


def test_a_broker_that_lost_its_right_gets_nothing_that_is_not_sealed() -> None:
    trusted = ("b2", "trusted", {**RIGHT, "event": "an event"})
    assert check(log([trusted])) == []
    found = check(log([trusted, ("owner", "revoked", RIGHT), trusted]))
    assert [one.checker for one in found] == ["no_delivery_after_revocation"]


def test_a_process_answers_for_its_own_decisions_alone() -> None:
    assert [found.checker for found in check(log([ALLOWED, ("b2", "delivered", EVENT)]))] == ["only_allowed_deliveries"]


def test_a_revoked_credential_gives_no_access() -> None:
    notes: Notes = [
        ("gate", "statement", {"of": "lab", "until": 100.0, "number": 0}),
        ("gate", "statement-ended", {"credential": "c1"}),
        ("gate", "access", {"of": "lab", "credential": "c2", "clock": 1.0}),
    ]
    assert check(log(notes)) == []
    revoked = ("gate", "access", {"of": "lab", "credential": "c1", "clock": 1.0})
    assert [found.checker for found in check(log([*notes, revoked]))] == ["no_access_after_statement"]


def test_a_statement_vouches_for_nothing_that_is_revoked_by_then() -> None:
    heard: Notes = [
        ("gate", "statement", {"of": "lab", "until": 100.0, "number": 0}),
        ("lab", "revocation", {"of": "lab", "number": 1, "credentials": ("c1",)}),
        ("gate", "statement", {"of": "lab", "until": 200.0, "number": 1}),
    ]

    def access(credential: str, clock: float) -> list[str]:
        entry = ("gate", "access", {"of": "lab", "credential": credential, "clock": clock})
        return [found.checker for found in check(log([*heard, entry]))]

    # The revocation itself has not arrived: what was said before counts until it ends.
    assert access("c1", 100.0) == access("c2", 200.0) == []
    assert access("c1", 100.1) == ["no_access_after_statement"]
