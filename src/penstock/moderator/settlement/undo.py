"""Undo steps safely.

A step is undone by its inverse, which is another step: the log is append-only. That is possible if no later step has
changed the same things, and if the rules in force do not conflict without it; otherwise it is refused, and the later
steps are named. Nothing else changes, so that a step and its undoing cancel out, except that demands that nobody states
any more are deleted.

Alternatively the later steps are replayed: all are undone, and requested again on the state without the step. A rule
that was rejected because of the step can then be accepted.
"""

from collections.abc import Iterator, Mapping

from penstock.errors import PenstockError, RefusedError
from penstock.moderator.base.base import RuleBase, RuleBaseDraft
from penstock.moderator.rules.steps import (
    Add,
    Forward,
    Leave,
    MoveType,
    Note,
    Pass,
    Request,
    Resolve,
    Return,
    StateSubscriberRule,
    Step,
    Undo,
    WithdrawRule,
)
from penstock.moderator.settlement.addition import DEFAULT_CUSTOMS, Customs, Plan, plan_add, plan_resolve
from penstock.moderator.settlement.lifetimes import (
    plan_leave,
    plan_pass,
    plan_return,
    plan_subscribe,
    plan_unsubscribe,
    plan_withdraw,
    relieve,
)
from penstock.moderator.settlement.proposals import subject_of
from penstock.moderator.settlement.type_changes import plan_tree

# ----------------------------------------------------------------------------------------------------------------------
# Plans of all requests except `Undo`, which can replay other requests.


def plan(base: RuleBase, request: Forward, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan a request without changing anything. Raises errors of its kind of plan."""
    match request:
        case Add(rule):
            return plan_add(base, rule, note, customs)
        case StateSubscriberRule(rule):
            return plan_subscribe(base, rule, note)
        case Resolve():
            return plan_resolve(base, request, note, customs)
        case WithdrawRule(rule_id) if rule_id in base.wishes:
            return plan_unsubscribe(base, request, note, customs)
        case WithdrawRule():
            return plan_withdraw(base, request, note, customs)
        case Pass():
            return plan_pass(base, note, customs)
        case Leave(publisher):
            return plan_leave(base, publisher, note, customs)
        case Return(publisher):
            return plan_return(base, publisher, note, customs)
        case _:
            return plan_tree(base, request, note, customs)


# ----------------------------------------------------------------------------------------------------------------------
# Undoing steps.


def plan_request(base: RuleBase, request: Request, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan any request without changing anything. Raises errors of its kind of plan."""
    if isinstance(request, Undo):
        return plan_undo(base, request, note, customs)
    return plan(base, request, note, customs)


def plan_undo(base: RuleBase, request: Undo, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan the undoing of a step.

    Raises `MalformedError` (`moderator.unknown-step`), `RefusedError`: `moderator.undone`, `moderator.depends` (its
    field `steps` has the numbers of the later steps), `moderator.conflict`, `moderator.away`,
    `moderator.replay`.
    """
    step = base.step(request.number)
    if request.number in undone(base):
        raise RefusedError("moderator.undone", f"step {request.number} has been undone already")
    later = tuple(dependents(base, step))
    with base.draft() as draft:
        if request.replay:
            _replay(draft, step, customs)
        elif not later:
            draft.change(step.delta.inverse())
        else:
            raise RefusedError(
                "moderator.depends",
                f"later steps depend on step {step.number}",
                hint="undo these first, or replay them",
                steps=tuple(each.number for each in later),
            )
        # Delete demands that rules took on because of a rule that is gone now.
        while relieve(draft):
            pass
        planned = Plan(Step(base.next_number, note, request, draft.delta))
    base.check_away(planned.step.delta)
    return planned


def undone(base: RuleBase) -> Mapping[int, Step]:
    """Return the undone steps, and by which step; undoing an undo makes the first step effective again."""
    found: dict[int, Step] = {}
    for step in reversed(base.steps):
        if isinstance(step.request, Undo) and step.number not in found:
            found[step.request.number] = step
    return found


def dependents(base: RuleBase, step: Step) -> Iterator[Step]:
    """Yield the later steps that depend on a step, except undone ones."""
    void = _void(base)
    for later in base.steps[step.number :]:
        if later.number not in void and step.delta.bears(later.delta):
            yield later


def _void(base: RuleBase) -> frozenset[int]:
    """Return undone steps together with their undoings, if nothing was replayed: they cancel out."""
    void: set[int] = set()
    for number, undoing in undone(base).items():
        if undoing.delta == base.step(number).delta.inverse():
            void |= {number, undoing.number}
    return frozenset(void)


def _replay(draft: RuleBaseDraft, step: Step, customs: Customs) -> None:
    base = draft.base
    later = base.steps[step.number :]
    for each in (*reversed(later), step):
        draft.change(each.delta.inverse())
    void = _void(base)
    for each in later:
        if each.number in void:
            continue
        try:
            if isinstance(each.request, Undo):
                draft.change(base.step(each.request.number).delta.inverse())
            else:
                again = plan(base, each.request, each.note, customs).step
                _check_consents(each, again)
                draft.change(again.delta)
        except PenstockError as error:
            raise RefusedError(
                "moderator.replay",
                f"without step {step.number}, step {each.number} is not possible: {error.message}",
                hint="undo that one first",
                step=each.number,
            ) from error


def _check_consents(step: Step, again: Step) -> None:
    """Check that others agreed to the new result of a step: to the same forms, and not just to the proposal."""
    match step.request:
        case Resolve() | MoveType() as chosen:
            others = chosen.consents - {step.note.who}
            if others and subject_of(step) != subject_of(again):
                raise RefusedError("moderator.consent", "the result would differ from what was agreed to")
