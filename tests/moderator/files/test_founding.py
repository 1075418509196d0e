"""The founding of a rule base is read back as it was signed, and tells one rule base from all others."""

from dataclasses import replace

import pytest
from tests.moderator.kit import OWNER, P1, P2, WORKFLOW, event, words
from tests.moderator.life import NOW
from tests.trust.kit import key, refused

from penstock.model.names import TypeKey
from penstock.model.tree import TreeScope, TypeTree
from penstock.moderator.files.founding import Founding
from penstock.moderator.rules.rules import Mode
from penstock.moderator.rules.steps import Strategy
from penstock.moderator.settlement.addition import Tightening
from penstock.moderator.settlement.proposals import OLDEST
from penstock.trust.signed import parse_signed, sign_value

WORDS = words(WORKFLOW)
PLAIN = Founding("rules", OWNER, NOW, WORDS)
FULL = replace(
    PLAIN,
    vocabulary=words(TypeTree.of({**WORKFLOW.parents, TypeKey(P1, "Own"): event("A1")}, TreeScope.DOWNWARD)),
    mode=Mode.ALGORITHM,
    resolve=Strategy.FOLLOW,
    heuristic="oldest",
    known_publishers={P1: WORDS.publishers.profile({"company": "A", "licensed": True})},
    known_subscribers={P2: WORDS.subscribers.profile({"age": 30, "role": "worker"}), P1: WORDS.subscribers.profile({})},
    unsafe_unsigned=True,
    speakers=frozenset({P1, P2}),
    tightening=Tightening.POLL,
)


@pytest.mark.parametrize("founding", [PLAIN, FULL])
def test_it_is_read_back(founding: Founding) -> None:
    signed = sign_value(founding, key(1))
    read = parse_signed(signed.to_bytes(), Founding).verify()
    assert read.value == founding
    assert read.digest == founding.digest


def test_customs_are_what_plans_need() -> None:
    customs = FULL.customs
    assert (customs.resolve, customs.heuristic) == (Strategy.FOLLOW, OLDEST)
    assert (customs.speakers, customs.tightening) == (frozenset({P1, P2}), Tightening.POLL)
    assert sorted(len(profile.values) for profile in customs.subscribers) == [0, 2]


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAIN, name="others"),
        replace(PLAIN, moderator=P1),
        replace(PLAIN, mode=Mode.LITERAL),
        replace(PLAIN, unsafe_unsigned=True),
        replace(PLAIN, speakers=frozenset({P1})),
        replace(PLAIN, tightening=Tightening.POLL),
        replace(PLAIN, known_subscribers=FULL.known_subscribers),
        replace(PLAIN, vocabulary=FULL.vocabulary),
    ],
)
def test_another_one_is_another_rule_base(other: Founding) -> None:
    assert other.digest != PLAIN.digest


def test_there_are_five_heuristics() -> None:
    with refused("moderator.founding"):
        replace(PLAIN, heuristic="luckiest")


def test_others_are_not_changed_at_once_where_they_are_to_be_asked() -> None:
    for strategy in (Strategy.ADD, Strategy.DELETE):
        with refused("moderator.founding"):
            replace(PLAIN, resolve=strategy, tightening=Tightening.POLL)


def test_nobody_else_founds_it_and_no_profile_shows() -> None:
    with refused("evolution.wrong-key"):
        sign_value(PLAIN, key(11))
    assert "worker" not in repr(FULL)
