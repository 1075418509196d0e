"""Explanations: why active, why not, what is missing, and what would be lost."""

import pytest
from tests.roles.test_engine import COURT, MET, NOON, SMITH, order, started

from penstock.errors import RefusedError
from penstock.roles.engine import ActivateRole, Appoint, OpenSession, SetFact
from penstock.roles.explain import explain_activation, lost_with


def test_what_is_missing_and_then_why_it_is_active() -> None:
    engine = started()
    engine.apply(OpenSession("s", SMITH))
    engine.apply(order())
    found = explain_activation(engine, "s", "tracker", ("AB 1",))
    [attempt] = found.attempts
    assert [one.satisfied for one in attempt.conditions] == [False, True, False]
    assert [one.condition for one in attempt.missing] == ["role detective", f"fact assigned({SMITH}, C7)"]
    assert attempt.missing[1].reason == "it is unknown"
    assert "no rule is satisfied" in next(found.lines())
    engine.apply(Appoint("badge", SMITH, MET, (7,)))
    engine.apply(ActivateRole("s", "detective"))
    engine.apply(SetFact("assigned", True, (str(SMITH), "C7")))
    assert next(explain_activation(engine, "s", "tracker", (None,)).lines()) == "tracker(_) can be activated"
    record = engine.apply(ActivateRole("s", "tracker", ("AB 1",))).record
    found = explain_activation(engine, "s", "tracker", ("AB 1",))
    assert found.record == record
    assert all(one.satisfied and one.member for one in found.attempts[0].conditions)
    assert "record 1 of" in found.attempts[0].conditions[1].reason


def test_what_would_be_lost() -> None:
    engine = started()
    engine.apply(OpenSession("s", SMITH))
    badge = engine.apply(Appoint("badge", SMITH, MET, (7,))).record
    assert badge is not None
    engine.apply(ActivateRole("s", "detective"))
    engine.apply(order())
    engine.apply(SetFact("assigned", True, (str(SMITH), "C7")))
    engine.apply(ActivateRole("s", "tracker", ("AB 1",)))
    assert [one.name for one in lost_with(engine, badge.support)] == ["detective", "tracker"]
    assert [one.name for one in lost_with(engine, ("fact", "assigned", (str(SMITH), "C7")))] == ["tracker"]
    assert [one.name for one in lost_with(engine, ("credential", COURT, "1"))] == ["tracker"]
    assert lost_with(engine, ("credential", COURT, "2")) == ()


def test_selectors_say_with_which_values_they_are_not_true() -> None:
    engine = started()
    engine.apply(OpenSession("s", SMITH))
    first, second = explain_activation(engine, "s", "chief", ("x",)).attempts
    assert "w" in first.missing[1].reason
    assert second.missing[0].reason == "not true with {}; unknown: alert"
    assert explain_activation(engine, "s", "chief", ("a",)).attempts[0].line == first.line
    assert len(explain_activation(engine, "s", "chief", ("a",)).attempts) == 1


def test_cardinality_is_named() -> None:
    engine = started()
    engine.apply(OpenSession("s", SMITH))
    engine.apply(Appoint("badge", SMITH, MET, (1,)))
    engine.apply(ActivateRole("s", "chief", ("a",)))
    engine.apply(OpenSession("t", COURT))
    engine.apply(Appoint("badge", COURT, MET, (1,)))
    found = explain_activation(engine, "t", "chief", ("a",))
    assert "1 principals have" in found.refused
    assert engine.now == NOON


def test_a_session_must_be_open() -> None:
    with pytest.raises(RefusedError) as caught:
        explain_activation(started(), "none", "detective", ())
    assert caught.value.code == "role.session"
