"""A consent is to one thing: what comes of a request, and not the way that leads there."""

from datetime import timedelta

import pytest
from tests.moderator.kit import P1, P2, event, rule
from tests.moderator.life import NOW, add, base_of
from tests.trust.kit import key, refused

from penstock.codec.sexp import parse_canonical
from penstock.moderator.base.base import RuleBase
from penstock.moderator.rules.steps import Add, Forward, MoveType, Note, Resolve, Strategy, WithdrawRule
from penstock.moderator.settlement.consents import Consent, request_digest, resolution_digest, subject_of
from penstock.moderator.settlement.proposals import find
from penstock.moderator.settlement.undo import plan
from penstock.trust.signed import read_signed, sign_value

ENGINEERS, AT_A = "role = 'engineer'", "company = 'A'"
ALL = frozenset({P1, P2})


def colliding(*more: str) -> RuleBase:
    base = base_of()
    add(base, rule("a", "A1", ENGINEERS), *(rule(rule_id, "A1", ENGINEERS) for rule_id in more))
    add(base, rule("b", "A1", AT_A, of=[P2]), rule("c", "A2", AT_A, of=[P2]))
    return base


def subject(base: RuleBase, request: Forward) -> bytes:
    return subject_of(plan(base, request, Note(P1, NOW)).step)


@pytest.mark.parametrize("poll", [None, bytes(range(1, 33))])
def test_it_is_read_back(poll: bytes | None) -> None:
    consent = Consent(bytes(32), key(11).principal, bytes(range(32)), 7, NOW + timedelta(days=1), poll)
    read = read_signed(parse_canonical(sign_value(consent, key(11)).to_bytes()), Consent).verify()
    assert read.value == consent
    with refused("evolution.wrong-key"):
        sign_value(consent, key(12))


def test_it_is_to_the_forms_that_a_proposal_shows() -> None:
    base = colliding()
    proposed = find(base, base.standings["b"].stated, Strategy.DELETE)
    assert proposed is not None
    asked = Resolve("b", Strategy.DELETE, ALL)
    assert subject(base, asked) == resolution_digest("b", Strategy.DELETE, proposed.forms)


def test_who_agrees_is_no_part_of_what_is_agreed_to() -> None:
    base = colliding()
    assert subject(base, Resolve("b", Strategy.ADD)) == subject(base, Resolve("b", Strategy.ADD, ALL))
    moved = [MoveType(event("A1"), event("A2"), Strategy.ADD, consents) for consents in (frozenset(), ALL)]
    assert len({subject(base, each) for each in moved}) == 1


def test_what_comes_of_it_is() -> None:
    one, other = colliding(), colliding("d")
    for request in (Resolve("b", Strategy.DELETE, ALL), MoveType(event("A1"), event("A2"), Strategy.ADD)):
        assert subject(one, request) != subject(other, request)
    ways = [Resolve("b", Strategy.DELETE, ALL), Resolve("b", Strategy.ADD), Resolve("b", Strategy.FOLLOW, ALL)]
    assert len({subject(one, way) for way in ways}) == len(ways)


def test_other_requests_are_what_they_say() -> None:
    base = colliding()
    stated = Add(rule("e", "A3"))
    assert subject(base, stated) == request_digest(stated)
    assert request_digest(WithdrawRule("a")) != request_digest(WithdrawRule("b"))
