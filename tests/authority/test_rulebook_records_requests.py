"""Requests are signed in one form, whatever they ask for."""

import pytest
from tests.authority.kit import K1, NOW
from tests.moderator.kit import P1, P2, event, rule
from tests.trust.kit import refused

from penstock.authority.rulebook_records import ModeratorRequest
from penstock.codec.sexp import canonical, parse_canonical
from penstock.crypto import digest
from penstock.moderator.rules.rules import SubscribeRule
from penstock.moderator.rules.steps import (
    Add,
    AddType,
    Leave,
    MoveType,
    Pass,
    RemoveType,
    RenameType,
    Request,
    Resolve,
    Return,
    StateSubscriberRule,
    Strategy,
    Undo,
    WithdrawRule,
)
from penstock.trust.signed import parse_signed, read_signed, sign_value

REQUESTS: list[Request] = [
    Add(rule("r1", "A1", "role = 'engineer'")),
    StateSubscriberRule(SubscribeRule("s1", event("A1"), P1, P1)),
    Resolve("r1", Strategy.DELETE, frozenset({P1, P2})),
    WithdrawRule("r1"),
    Pass(),
    Leave(P1),
    Return(P1),
    AddType(event("B"), event("A1")),
    AddType(event("B")),
    MoveType(event("A1")),
    MoveType(event("A1"), event("A2"), Strategy.ADD, frozenset({P2})),
    RenameType(event("A1"), event("B")),
    RemoveType(event("A1")),
    Undo(3),
    Undo(3, replay=True),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_any_request_is_read_back(request_: Request) -> None:
    asked = ModeratorRequest(bytes(32), P1, 4, NOW, request_, "because")
    read = parse_signed(sign_value(asked, K1).to_bytes(), ModeratorRequest).verify()
    assert read.value == asked
    assert "engineer" not in repr(read)


@pytest.mark.parametrize(
    ("old", "new"), [(b"(4:undo1:3)", b"(4:undo2:03)"), (b"(3:why7:because)", b""), (b"6:serial1:4", b"6:serial1:x")]
)
def test_another_form_is_none(old: bytes, new: bytes) -> None:
    asked = ModeratorRequest(bytes(32), P1, 4, NOW, Undo(3), "because")
    octets = canonical(asked.to_sexp())
    assert octets.count(old) == 1
    body = parse_canonical(octets.replace(old, new))
    signature = (b"signature", (b"hash", b"sha256", digest(body)), K1.public.to_sexp(), K1.sign(canonical(body)))
    with refused("evolution.malformed"):
        read_signed((b"sequence", body, signature), ModeratorRequest)
