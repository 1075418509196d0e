"""The rule base changes as a whole, or not at all."""

import pytest
from tests.moderator.kit import P1, P2, WORKFLOW, event, rule
from tests.moderator.life import add, base_of

from penstock.errors import PenstockError
from penstock.moderator.rules.steps import Delta, Rooted, RuleChange, RuleState, RuleStatus

ENGINEER = rule("a", "A1", "role = 'engineer'")
WORKER = rule("w", "A10", "role = 'worker'", of=[P2])


def stands(rule_: object) -> RuleState:
    return RuleState(rule_, RuleStatus.IN_FORCE, rule_)  # type: ignore[arg-type]  # a rule


@pytest.mark.parametrize(
    ("delta", "code"),
    [
        (
            Delta(rules={"x": RuleChange(None, stands(rule("x", "A12"))), "w": RuleChange(None, stands(WORKER))}),
            "conflict",
        ),
        (Delta(rules={"a": RuleChange(None, stands(ENGINEER))}), "stale"),
        (Delta(types={event("A1"): RuleChange(None, Rooted(None))}), "stale"),
        (Delta(away={P1: RuleChange(True, None)}), "stale"),
        (Delta(types={event("A10"): RuleChange(Rooted(event("A1")), None)}), "in-use"),
        (Delta(rules={"x": RuleChange(None, stands(rule("x", "A2")))}, away={P1: RuleChange(None, True)}), "away"),
        # The move is refused, and what it had put elsewhere is where it was.
        (
            Delta(
                types={
                    event("A20"): RuleChange(None, Rooted(None)),
                    event("A11"): RuleChange(Rooted(event("A1")), Rooted(event("A2"))),
                }
            ),
            "conflict",
        ),
    ],
)
def test_nothing_is_half_done(delta: Delta, code: str) -> None:
    base = base_of()
    add(base, ENGINEER, rule("k", "A10", "role = 'engineer'"), rule("l", "A11", "role = 'engineer'"))
    add(base, rule("n", "A2", "company = 'A'", of=[P2]))
    before = base.image()
    with pytest.raises(PenstockError) as raised:
        base.change(delta)
    assert raised.value.code == f"moderator.{code}"
    assert base.image() == before
    assert base.tree == WORKFLOW
    # The detector is as before, and knows that nothing conflicts.
    assert [*base.detector.review()] == []
    assert base.detector.conflicts(WORKER)
    assert not base.detector.conflicts(rule("z", "A12", "role = 'engineer'"))
