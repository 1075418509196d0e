"""What people read: who is concerned, over what, and what a step was about."""

from dataclasses import replace

import pytest
from tests.moderator.kit import P1, P2, WORKFLOW, event, rule, words

from penstock.model.principals import Principal
from penstock.model.tree import TreeScope
from penstock.moderator.descriptions import conflict_sentences, request_sentence, rule_sentence, standing_sentence
from penstock.moderator.detection.detector import find_conflicts
from penstock.moderator.rules import steps
from penstock.moderator.rules.rules import Conflict, ConflictKind, Mode, RuleFunction, SubscribeRule
from penstock.moderator.rules.steps import RuleState, RuleStatus, SubscriberRule
from penstock.selector import parse

WORDS = words(WORKFLOW)
RULE = rule("r1", "A1", "role = 'engineer' AND age >= 18", "company = 'A'")
WISH = SubscribeRule("s1", event("A1"), P2, P2, parse("licensed"))


def named(principal: Principal) -> str:
    return {P1: "P1", P2: "P2"}.get(principal, principal.short)


def test_rules() -> None:
    assert rule_sentence(RULE, named) == (
        "P1: only subscribers with age at least 18 and role engineer receive A1, "
        "and only publishers with company A publish it."
    )
    assert rule_sentence(rule("r", "A1", of=(P1, P2)), named) == "P1 and P2 (stated by P1): all subscribers receive A1."
    formula = rule("r", "A1", "role = 'engineer' OR age > 60")
    assert rule_sentence(formula, named) == "P1: only subscribers who satisfy role = 'engineer' OR age > 60 receive A1."
    assert rule_sentence(WISH, named) == "P2 wants A1 from publishers with licensed true."
    assert rule_sentence(replace(WISH, stated_by=P1), named).startswith("P1: P2 wants A1 from ")


def test_conflicts() -> None:
    above, same, below = rule("up", "ActivityX", "company = 'A'"), rule("r2", "A1", "company = 'A'"), rule("low", "A10")
    (up,) = find_conflicts(rule("r1", "A1", "role = 'engineer'"), [above], WORDS)
    told = [*conflict_sentences(rule("r1", "A1", "role = 'engineer'"), up, TreeScope.UPWARD)]
    assert told == [
        "r1 on A1 conflicts with rule up on ActivityX, above it, in what it demands of subscribers.",
        "r1 does not demand company A, which rule up does.",
        "For example, somebody with company B and role engineer could receive A1 by r1, but not ActivityX by rule up.",
        "The scope is upward: whoever may have a type has to be allowed all types above it.",
    ]
    (equal,) = find_conflicts(rule("r1", "A1"), [same], WORDS)
    assert "Rules on one event type have to say the same." in [*conflict_sentences(RULE, equal, TreeScope.UPWARD)]
    (down,) = find_conflicts(rule("r1", "A1", fnc_p="licensed"), [below], WORDS)
    sentences = [*conflict_sentences(rule("r1", "A1", fnc_p="licensed"), down, TreeScope.UPWARD)]
    assert sentences[1] == "r1 demands licensed true, which rule low does not."
    assert "could publish A10 by rule low, but not A1 by r1." in sentences[2]


def test_conflicts_without_somebody_to_show() -> None:
    listed = Conflict(event("A1"), ("a", "b"), ConflictKind.SAME, RuleFunction.S)
    assert any("Nobody is concerned" in line for line in conflict_sentences(RULE, listed, TreeScope.UPWARD))
    unknown = replace(listed, certain=False)
    assert any("not found out in time" in line for line in conflict_sentences(RULE, unknown, TreeScope.UPWARD))
    many = replace(listed, rules=tuple(f"r{number}" for number in range(8)), missing=(parse("age > 3"),))
    told = [*conflict_sentences(RULE, many, TreeScope.UPWARD)]
    assert told[1] == "r1 does not demand age > 3, which rules r0, r1, r2, r3, r4 and 3 others do."
    assert Mode.ALGORITHM in Mode


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (steps.Add(RULE), "state r1 on A1"),
        (steps.StateSubscriberRule(WISH), "state s1 on A1"),
        (steps.Resolve("r1", steps.Strategy.ADD), "resolve r1 by add-attributes"),
        (steps.WithdrawRule("r1"), "withdraw r1"),
        (steps.Pass(), "let time pass"),
        (steps.Leave(P1), "let P1 leave"),
        (steps.Return(P2), "let P2 come back"),
        (steps.AddType(event("B"), None), "add B as a root"),
        (steps.AddType(event("B"), event("A1")), "add B below A1"),
        (steps.MoveType(event("A2"), event("A1")), "move A2 below A1"),
        (steps.RenameType(event("A2"), event("B")), "rename A2 to B"),
        (steps.RemoveType(event("A2")), "remove A2 from the tree"),
        (steps.Undo(3, replay=True), "undo step 3 and replay what came later"),
    ],
)
def test_requests(request_: steps.Request, said: str) -> None:
    assert request_sentence(request_, named) == said


def test_every_status_is_told() -> None:
    told = {
        standing_sentence(SubscriberRule(WISH, status)) for status in RuleStatus if status is not RuleStatus.REJECTED
    }
    assert len(told) == len(RuleStatus) - 1
    changed = RuleState(RULE, RuleStatus.IN_FORCE, replace(RULE, fnc_s=parse("age >= 18")))
    assert standing_sentence(changed) == "It is in force, in another form than it was stated:"
    assert standing_sentence(RuleState(RULE, RuleStatus.REJECTED)).startswith("It was rejected")
