"""What rules demand that their publishers did not state, and for whose sake."""

from tests.moderator.kit import P2, P3, event, rule
from tests.moderator.life import add, base_of, resolve

from penstock.moderator.base.tables import imposed_on, stated_by
from penstock.moderator.rules.conflicts import RuleFunction
from penstock.moderator.rules.steps import Delta, RuleChange, RuleState, RuleStatus
from penstock.selector import parse


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
    # It is stated elsewhere too, which is no reason for it here.
    add(base, rule("n", "A2", "company = 'A'", of=[P3]))
    known = base.standing("r")
    delta = Delta(rules={"r": RuleChange(known, RuleState(known.stated, RuleStatus.WITHDRAWN))})
    assert [*base.unfounded(delta)] == []
    base.change(delta)
    assert [*base.unfounded(delta)] == [((RuleFunction.S, parse("company = 'A'")), frozenset({"p"}))]
    assert base.on(event("A10"))[0].id == "p"
