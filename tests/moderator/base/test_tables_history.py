"""The stack of what may come back, and why entries do not."""

from tests.moderator.kit import P1, P2, P3, event, rule
from tests.moderator.life import NOW, add, ask, base_of, in_force, resolve

from penstock.moderator.base.base import RuleBase
from penstock.moderator.base.tables import History
from penstock.moderator.rules.steps import (
    AddType,
    Leave,
    Logged,
    LoggedAs,
    MoveType,
    Return,
    RuleChange,
    Undo,
    WithdrawRule,
)
from penstock.moderator.settlement.removal import fitting

ENTRY = Logged((1, 0), LoggedAs.REJECTED, (rule("r", "A1"),))


def written() -> History:
    history = History()
    history.change({ENTRY.place: RuleChange(None, ENTRY)})
    return history


def test_what_is_kept_out_is_looked_at_again_when_one_of_the_reasons_changes() -> None:
    for changed, looked_at in (("a", True), (P1, True), ("c", False)):
        history = written()
        assert [*history.open] == [ENTRY.place]
        history.keep_out(ENTRY, frozenset({"a", P1}))
        assert [*history.open] == []
        history.release([changed])
        assert bool(history.open) is looked_at


def test_what_is_known_of_an_entry_outlasts_a_draft() -> None:
    history = written()
    history.keep_out(ENTRY, frozenset({"a"}))
    history.change({ENTRY.place: RuleChange(ENTRY, None)})
    assert [*history] == [*history.open] == []
    history.change({ENTRY.place: RuleChange(None, ENTRY)})
    assert [*history.open] == []
    # Of another entry in its place nothing is known, and nothing once the reason has changed meanwhile.
    other = Logged(ENTRY.place, LoggedAs.REJECTED, (rule("s", "A1"),))
    history.change({ENTRY.place: RuleChange(ENTRY, other)})
    assert [*history.open] == [ENTRY.place]
    history.change({ENTRY.place: RuleChange(other, ENTRY)})
    history.keep_out(ENTRY, frozenset({"a"}))
    history.change({ENTRY.place: RuleChange(ENTRY, None)})
    history.release(["a"])
    history.change({ENTRY.place: RuleChange(None, ENTRY)})
    assert [*history.open] == [ENTRY.place]


def test_what_is_known_of_entries_that_are_gone_is_forgotten() -> None:
    history = History()
    for number in range(100):
        entry = Logged((number, 0), LoggedAs.REJECTED, (rule("r", "A1"),))
        history.change({entry.place: RuleChange(None, entry)})
        history.keep_out(entry, frozenset({"a"}))
        history.change({entry.place: RuleChange(entry, None)})
    assert len(history._kept_out) <= 20  # what it takes is not to be seen from outside


def two_kept_out() -> RuleBase:
    base = base_of()
    add(base, rule("a", "A1", "role = 'manager'"), rule("c", "A2", "role = 'manager'"))
    add(base, rule("b", "A1", "company = 'A'", of=[P2]), rule("d", "A2", "company = 'A'", of=[P3]))
    return base


def test_only_what_the_rule_that_goes_had_kept_out_is_looked_at() -> None:
    base = two_kept_out()
    assert [*base.history.open] == []
    base.history.release(["a"])
    assert [base.history.entries[place].rules[0].id for place in base.history.open] == ["b"]
    assert fitting(base, NOW) == []
    assert [*base.history.open] == []
    ask(base, WithdrawRule("a"))
    assert in_force(base) == {"b": "{(company, A)}", "c": "{(role, manager)}"}


def test_who_is_away_keeps_entries_out_until_it_is_back() -> None:
    base = two_kept_out()
    ask(base, Leave(P3))
    ask(base, WithdrawRule("c"))
    assert "d" not in in_force(base)
    assert [*base.history.open] == []
    ask(base, Return(P3))
    assert in_force(base)["d"] == "{(company, A)}"


def test_an_entry_waits_for_all_of_its_own_rules() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'manager'"), rule("b", "A1", "company = 'A'", of=[P2]))
    resolve(base, "b")
    add(base, rule("c", "A1", "machine = 'M'", of=[P3]))
    resolve(base, "c")
    # What a and b agreed on cannot come back while b is withdrawn.
    ask(base, WithdrawRule("b"))
    (agreed,) = (entry for entry in base.history if [rule.id for rule in entry.rules] == ["a", "b"])
    assert fitting(base, NOW) == []
    assert agreed.place not in base.history.open
    ask(base, Undo(base.next_number - 1))
    assert [len(entry.rules) for entry in ask(base, WithdrawRule("c")).step.restored] == [2]


def test_an_entry_that_is_in_force_waits_for_its_rules_to_change() -> None:
    base = base_of()
    add(base, rule("a", "A1"), rule("b", "A1", of=[P2]))
    entry = Logged((9, 0), LoggedAs.MODIFIED, base.on(event("A1")))
    base.history.change({entry.place: RuleChange(None, entry)})
    for rule_id in "ab":
        assert fitting(base, NOW) == []
        assert [*base.history.open] == []
        base.history.release([rule_id])
        assert [*base.history.open] == [entry.place]


def test_after_a_move_all_is_looked_at_and_after_a_new_type_nothing_is() -> None:
    base = two_kept_out()
    ask(base, AddType(event("A19"), event("A3")))
    assert [*base.history.open] == []
    ask(base, MoveType(event("A19"), event("A2")))
    assert len(base.history.open) == 2
