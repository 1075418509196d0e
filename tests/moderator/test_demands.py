"""What rules demand that their publishers did not state, and for whose sake."""

from tests.moderator.kit import P2, P3, event, rule
from tests.moderator.life import add, base_of, resolve

from penstock.moderator.conflicts import Function
from penstock.moderator.deltas import Change, Delta, Standing, Status
from penstock.moderator.demands import imposed_on, stated_by
from penstock.selector import parse


def test_what_was_stated_is_not_imposed_however_it_is_written() -> None:
    stated = rule("a", "A1", "18 <= age AND role = 'manager'")
    demands = {(Function.S, parse(part)) for part in ("age >= 18", "role = 'manager'")}
    assert demands <= stated_by(stated)
    same = rule("a", "A1", "age >= 18 AND role = 'manager'")
    assert imposed_on(Standing(stated, Status.IN_FORCE, same)) == frozenset()
    more = rule("a", "A1", "age >= 18 AND role = 'manager' AND company = 'A'")
    assert imposed_on(Standing(stated, Status.IN_FORCE, more)) == {(Function.S, parse("company = 'A'"))}
    assert imposed_on(Standing(stated, Status.REJECTED)) == frozenset()


def test_a_demand_is_unfounded_where_no_rule_that_has_to_do_with_it_states_it() -> None:
    base = base_of()
    add(base, rule("p", "A10", "role = 'manager'"), rule("r", "A1", "company = 'A'", of=[P2]))
    resolve(base, "r")
    # It is stated elsewhere too, which is no reason for it here.
    add(base, rule("n", "A2", "company = 'A'", of=[P3]))
    known = base.standing("r")
    delta = Delta(rules={"r": Change(known, Standing(known.stated, Status.WITHDRAWN))})
    assert [*base.unfounded(delta)] == []
    base.change(delta)
    assert [*base.unfounded(delta)] == [((Function.S, parse("company = 'A'")), frozenset({"p"}))]
    assert base.on(event("A10"))[0].id == "p"
