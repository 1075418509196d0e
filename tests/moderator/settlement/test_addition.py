"""Stating rules and choosing proposals: what is refused, and that nothing is changed then."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.moderator.kit import P1, P2, P3, rule
from tests.moderator.life import NOW, add, ask, base_of, in_force, resolve

from penstock.errors import PenstockError
from penstock.moderator.base.base import RuleBase
from penstock.moderator.rules.steps import Add, Note, Request, Resolve, RuleStatus, Strategy, WithdrawRule
from penstock.moderator.settlement.addition import Customs, plan_add
from penstock.trust.validity import OnlineTest, Validity

ENGINEER = rule("a", "A1", "role = 'engineer'")
WORKER = rule("w", "A1", "role = 'worker'", of=[P2])
MACHINE = rule("m", "A1", "machine = 'M'", of=[P2])


def refused(base: RuleBase, request: Request, **how: object) -> PenstockError:
    before = base.image()
    with pytest.raises(PenstockError) as raised:
        ask(base, request, **how)  # type: ignore[arg-type]  # as `ask` has them
    assert base.image() == before
    return raised.value


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Add(rule("a", "A1", "role = 'engineer'")), "moderator.duplicate-id"),
        (Add(rule("w", "A1", of=[P3])), "moderator.duplicate-id"),
        (Add(rule("n", "Nowhere")), "moderator.unknown-type"),
        (Add(rule("n", "A1", "role = 'engineer' AND role = 'worker'")), "moderator.contradiction"),
        (Add(replace(rule("n", "A1"), validity=Validity.between(None, NOW - timedelta(1)))), "moderator.period"),
        (
            Add(replace(rule("n", "A1"), validity=Validity(online=(OnlineTest("crl", (b"online", b"crl")),)))),
            "moderator.period",
        ),
        (Resolve("nobody", Strategy.ADD), "moderator.unknown-rule"),
        (Resolve("a", Strategy.ADD), "moderator.not-rejected"),
        (Resolve("w", Strategy.ADD), "moderator.unresolved"),
        (Resolve("w", Strategy.FOLLOW), "moderator.consent"),
        (WithdrawRule("nobody"), "moderator.unknown-rule"),
    ],
)
def test_what_is_refused(request_: Request, code: str) -> None:
    base = base_of()
    add(base, ENGINEER, WORKER)
    assert refused(base, request_).code == code


def test_nobody_speaks_for_another_publisher() -> None:
    base = base_of()
    assert refused(base, Add(ENGINEER), who=P2).code == "moderator.not-yours"
    add(base, ENGINEER)
    assert refused(base, WithdrawRule("a"), who=P2).code == "moderator.not-yours"


def test_what_is_refused_names_the_ways_that_are_open() -> None:
    base = base_of()
    add(base, ENGINEER, WORKER)
    proposals = refused(base, Resolve("w", Strategy.ADD)).fields["proposals"]
    assert [each.strategy for each in proposals] == [Strategy.FOLLOW, Strategy.DELETE]  # type: ignore[attr-defined]  # fields of errors have no types
    assert refused(base, Resolve("w", Strategy.DELETE, frozenset({P2}))).fields["publishers"] == (P1,)


def test_customs_are_tried_at_once_but_relax_nothing() -> None:
    base = base_of()
    add(base, ENGINEER)
    assert ask(base, Add(MACHINE), Customs(Strategy.DELETE)).resolution is None
    assert base.standing("m").status is RuleStatus.REJECTED
    assert ask(base, Add(MACHINE), Customs(Strategy.ADD)).resolution is not None
    assert in_force(base) == dict.fromkeys("am", "{(machine, M), (role, engineer)}")
    assert [entry.kind for entry in base.history] == ["modified", "modified"]


def test_a_rule_that_was_relaxed_once_needs_no_new_consent_to_be_tightened() -> None:
    base = base_of()
    add(base, ENGINEER, MACHINE)
    resolve(base, "m", Strategy.DELETE, P1, P2)
    assert in_force(base) == {"a": "TRUE", "m": "TRUE"}
    add(base, rule("c", "A1", "company = 'A'", of=[P3]))
    resolve(base, "c", Strategy.ADD)
    assert in_force(base) == dict.fromkeys("acm", "{(company, A)}")


def test_a_rule_that_is_stated_anew_is_not_what_the_log_has_of_it() -> None:
    base = base_of()
    add(base, ENGINEER, MACHINE)
    ask(base, WithdrawRule("m"))
    assert not [*base.history]
    add(base, replace(MACHINE, fnc_s=ENGINEER.fnc_s))
    assert in_force(base) == dict.fromkeys("am", "{(role, engineer)}")
    ask(base, WithdrawRule("a"))
    assert in_force(base) == {"m": "{(role, engineer)}"}


def test_planning_twice_gives_the_same_and_applying_twice_is_stale() -> None:
    base = base_of()
    note = Note(P1, NOW)
    plans = [plan_add(base, ENGINEER, note), plan_add(base, ENGINEER, note)]
    assert plans[0] == plans[1]
    base.apply(plans[0].step)
    with pytest.raises(PenstockError) as raised:
        base.apply(plans[1].step)
    assert raised.value.code == "moderator.stale"
