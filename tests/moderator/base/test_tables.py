"""What holds for any change of the tables, whoever made it."""

from dataclasses import replace

import pytest
from tests.moderator.kit import P1, P2, P3, WORKFLOW, event, rule
from tests.moderator.life import NOW, add, ask, base_of, in_force, resolve
from tests.trust.kit import refused

from penstock.moderator.base.base import RuleBase
from penstock.moderator.base.tables import History, Image, RuleTables, imposed_on, stated_by
from penstock.moderator.rules.rules import RuleFunction, SubscribeRule
from penstock.moderator.rules.steps import (
    AddType,
    Delta,
    Leave,
    Logged,
    LoggedAs,
    MoveType,
    Return,
    Rooted,
    RuleChange,
    RuleState,
    RuleStatus,
    SubscriberRule,
    Undo,
    WithdrawRule,
)
from penstock.moderator.settlement.lifetimes import fitting
from penstock.selector import parse

RULE = rule("a", "A1")
WANTED = SubscribeRule("s", event("A1"), P2, P2)
IN_FORCE, LEFT = RuleState(RULE, RuleStatus.IN_FORCE, RULE), RuleState(RULE, RuleStatus.LEFT)
STATED = Delta(rules={"a": RuleChange(None, IN_FORCE)})
WISHED = Delta(wishes={"s": RuleChange(None, SubscriberRule(WANTED, RuleStatus.IN_FORCE))})
GOING = {event("A1"): RuleChange(Rooted(event("ActivityX")), None)}


def tables(*deltas: Delta) -> RuleTables:
    """Return tables after some changes, each of which is checked."""
    found = RuleTables()
    for delta in deltas:
        found.check(delta, WORKFLOW)
        found.write(delta)
    return found


def test_what_was_written_can_be_taken_back() -> None:
    both = STATED.then(WISHED).then(Delta(away={P2: RuleChange(None, True)}))
    found = tables()
    found.write(both)
    assert (dict(found.rules), found.away) == ({"a": IN_FORCE}, {P2})
    found.write(both.inverse())
    assert (dict(found.rules), found.wishes, found.away) == ({}, {}, set())


def test_tables_are_those_of_an_image() -> None:
    entry = Logged((1, 0), LoggedAs.REJECTED, (RULE,))
    wishes = {"s": SubscriberRule(WANTED, RuleStatus.ENDED)}
    found = RuleTables.of(Image({"a": LEFT}, {}, {entry.place: entry}, frozenset({P1}), wishes))
    assert (dict(found.rules), found.wishes, found.away) == ({"a": LEFT}, wishes, {P1})
    assert [*found.history] == [entry]


@pytest.mark.parametrize(
    ("before", "delta", "code"),
    [
        # What should be changed is not there, or is something else.
        ((), STATED.inverse(), "moderator.stale"),
        ((), WISHED.inverse(), "moderator.stale"),
        ((STATED,), STATED, "moderator.stale"),
        ((), Delta(away={P1: RuleChange(True, None)}), "moderator.stale"),
        ((), Delta(types={event("B"): RuleChange(Rooted(None), None)}), "moderator.stale"),
        # A publisher's rule and a subscriber's with one id.
        (
            (STATED,),
            Delta(wishes={"a": RuleChange(None, SubscriberRule(replace(WANTED, id="a"), RuleStatus.ENDED))}),
            "id",
        ),
        ((WISHED,), Delta(rules={"s": RuleChange(None, RuleState(replace(RULE, id="s"), RuleStatus.LEFT))}), "id"),
        (
            (),
            STATED.then(
                Delta(wishes={"a": RuleChange(None, SubscriberRule(replace(WANTED, id="a"), RuleStatus.ENDED))})
            ),
            "id",
        ),
        # Rules, and the log, stay behind on a type that goes.
        ((STATED,), Delta(types=GOING), "moderator.in-use"),
        ((WISHED,), Delta(types=GOING), "moderator.in-use"),
        # Rules of somebody who is away, or leaves.
        ((Delta(away={P1: RuleChange(None, True)}),), STATED, "moderator.away"),
        ((Delta(away={P2: RuleChange(None, True)}),), WISHED, "moderator.away"),
        ((), WISHED.then(Delta(away={P2: RuleChange(None, True)})), "moderator.away"),
    ],
)
def test_what_does_not_fit_is_refused(before: tuple[Delta, ...], delta: Delta, code: str) -> None:
    found = tables(*before)
    with refused("moderator.duplicate-id" if code == "id" else code):
        found.check(delta, WORKFLOW)


def test_who_leaves_leaves_no_rule_in_force() -> None:
    leaving = Delta(away={P2: RuleChange(None, True)})
    with refused("moderator.away"):
        tables(WISHED).check_away(leaving)
    tables(STATED).check_away(leaving)
    resting = Delta(
        wishes={"s": RuleChange(SubscriberRule(WANTED, RuleStatus.IN_FORCE), SubscriberRule(WANTED, RuleStatus.LEFT))}
    )
    tables(WISHED).check_away(leaving.then(resting))


def test_an_ended_rule_lets_its_type_go() -> None:
    ended = Delta(rules={"a": RuleChange(IN_FORCE, RuleState(RULE, RuleStatus.ENDED))}, types=GOING)
    tables(STATED).check(ended, WORKFLOW)


def test_what_was_stated_is_not_imposed_however_it_is_written() -> None:
    stated = rule("a", "A1", "18 <= age AND role = 'manager'")
    demands = {(RuleFunction.S, parse(part)) for part in ("age >= 18", "role = 'manager'")}
    assert demands <= stated_by(stated)
    same = rule("a", "A1", "age >= 18 AND role = 'manager'")
    assert imposed_on(RuleState(stated, RuleStatus.IN_FORCE, same)) == frozenset()
    more = rule("a", "A1", "age >= 18 AND role = 'manager' AND company = 'A'")
    assert imposed_on(RuleState(stated, RuleStatus.IN_FORCE, more)) == {(RuleFunction.S, parse("company = 'A'"))}
    assert imposed_on(RuleState(stated, RuleStatus.REJECTED)) == frozenset()


def test_a_demand_is_unfounded_where_no_rule_that_has_to_do_with_it_states_it() -> None:
    base = base_of()
    add(base, rule("p", "A10", "role = 'manager'"), rule("r", "A1", "company = 'A'", of=[P2]))
    resolve(base, "r")
    # It is stated elsewhere too, which is not a reason for it here.
    add(base, rule("n", "A2", "company = 'A'", of=[P3]))
    known = base.standing("r")
    delta = Delta(rules={"r": RuleChange(known, RuleState(known.stated, RuleStatus.WITHDRAWN))})
    assert [*base.unfounded(delta)] == []
    base.change(delta)
    assert [*base.unfounded(delta)] == [((RuleFunction.S, parse("company = 'A'")), frozenset({"p"}))]
    assert base.on(event("A10"))[0].id == "p"


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
