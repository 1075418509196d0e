"""Any request for something new, and the plan that comes of it; to undo (`undo`) asks for others again."""

from penstock.moderator.adding import DEFAULT_CUSTOMS, Customs, Plan, plan_add, plan_resolve
from penstock.moderator.base import RuleBase
from penstock.moderator.expiry import plan_leave, plan_pass, plan_return
from penstock.moderator.removal import plan_withdraw
from penstock.moderator.steps import Add, Forward, Leave, Note, Pass, Resolve, Return, Subscribe, Withdraw
from penstock.moderator.tree_changes import plan_tree
from penstock.moderator.wishes import plan_subscribe, plan_unsubscribe


def plan(base: RuleBase, request: Forward, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan what comes of a request; nothing is changed. Raises what the plan of its kind raises."""
    match request:
        case Add(rule):
            return plan_add(base, rule, note, customs)
        case Subscribe(rule):
            return plan_subscribe(base, rule, note)
        case Resolve():
            return plan_resolve(base, request, note, customs)
        case Withdraw(rule_id) if rule_id in base.wishes:
            return plan_unsubscribe(base, request, note, customs)
        case Withdraw():
            return plan_withdraw(base, request, note, customs)
        case Pass():
            return plan_pass(base, note, customs)
        case Leave(publisher):
            return plan_leave(base, publisher, note, customs)
        case Return(publisher):
            return plan_return(base, publisher, note, customs)
        case _:
            return plan_tree(base, request, note, customs)
