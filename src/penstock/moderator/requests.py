"""Any request, and the plan that comes of it; undoing stands apart (`undo`), since it asks for others again."""

from penstock.moderator.adding import DEFAULT_CUSTOMS, Customs, Plan, plan_add, plan_resolve
from penstock.moderator.base import RuleBase
from penstock.moderator.expiry import plan_leave, plan_pass, plan_return
from penstock.moderator.removal import plan_withdraw
from penstock.moderator.steps import Add, Leave, Note, Pass, Request, Resolve, Return, Undo, Withdraw
from penstock.moderator.tree_changes import plan_tree


def plan(base: RuleBase, request: Request, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan what comes of a request; nothing is changed. Raises what the plan of its kind raises."""
    match request:
        case Add(rule):
            return plan_add(base, rule, note, customs)
        case Resolve():
            return plan_resolve(base, request, note, customs)
        case Withdraw():
            return plan_withdraw(base, request, note, customs)
        case Pass():
            return plan_pass(base, note, customs)
        case Leave(publisher):
            return plan_leave(base, publisher, note, customs)
        case Return(publisher):
            return plan_return(base, publisher, note, customs)
        case Undo():
            raise NotImplementedError
        case _:
            return plan_tree(base, request, note, customs)
