"""Add, move, rename and remove event types while rules are in force (future work in paper 1, section VIII).

Adding or removing a type cannot cause a conflict: the relations between the other types stay the same. A move can.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.errors import MalformedError, RefusedError
from penstock.model.names import TypeKey
from penstock.model.profiles import Profile
from penstock.model.tree import TypeTree
from penstock.moderator.base.base import RuleBase, RuleBaseDraft
from penstock.moderator.detection.detector import find_conflicts
from penstock.moderator.rules.rules import Conflict, PublishRule
from penstock.moderator.rules.steps import (
    AddType,
    Delta,
    Logged,
    LoggedAs,
    MoveType,
    Note,
    RemoveType,
    RenameType,
    Rooted,
    RuleChange,
    RuleState,
    RuleStatus,
    Step,
    Strategy,
    SubscriberRule,
    TreeChange,
)
from penstock.moderator.settlement.addition import DEFAULT_CUSTOMS, Customs, Plan, check_agreed
from penstock.moderator.settlement.lifetimes import bring_back, take_out
from penstock.moderator.settlement.proposals import Resolution, Revision, resolve, weigh

# ----------------------------------------------------------------------------------------------------------------------
# Moves: an event type, all types below it and the rules on them.
#
# Moved rules can conflict with rules above their new place. The conflicts are known in advance, and so are the
# proposals: the same as if all conflicting rules were stated again. Nothing is moved unless one of them is chosen.


def plan_move(base: RuleBase, request: MoveType, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan a move, and the proposal that was chosen if rules would conflict.

    Raises `MalformedError` (`moderator.unknown-type`, `type.cycle`), `LimitError` (`type.limit`), `RefusedError`:
    `moderator.conflict` if rules would conflict and no proposal was chosen, `moderator.unresolved` if the chosen one is
    not possible (both have the field `proposals`), `moderator.consent`.
    """
    found = tuple(conflict for _, conflicts in move_conflicts(base, request) for conflict in conflicts)
    resolution: Resolution | None = None
    if request.strategy is not None:
        resolution = _find(base, request, request.strategy, customs.subscribers)
        if resolution is None:
            raise RefusedError(
                "moderator.unresolved",
                f"`{request.event.name}` cannot be moved there by `{request.strategy}`",
                hint="choose another of the proposals",
                proposals=propose_move(base, request, customs.subscribers),
            )
        check_agreed(resolution, request.consents)
    elif found:
        raise RefusedError(
            "moderator.conflict",
            f"rules in force would conflict if `{request.event.name}` were moved there",
            hint="choose one of the proposals",
            conflicts=found,
            proposals=propose_move(base, request, customs.subscribers),
        )
    with base.draft() as draft:
        _settle(draft, request, request.strategy)
        restored = bring_back(draft, note.when, customs)
        return Plan(Step(base.next_number, note, request, draft.delta, restored), found, resolution)


def move_conflicts(base: RuleBase, request: MoveType) -> tuple[tuple[PublishRule, tuple[Conflict, ...]], ...]:
    """Return the rules that would conflict after a move, each with its conflicts; types above come first.

    Only rules in the subtree that moves can conflict, and only with those on its new path to the root.

    Raises as `plan_move`, except `RefusedError`.
    """
    base.detector.vocabulary.check_type(request.event)
    if request.parent is not None:
        base.detector.vocabulary.check_type(request.parent)
    tree = TypeTree.of({**base.tree.parents, request.event: request.parent}, base.tree.scope)
    vocabulary = replace(base.detector.vocabulary, tree=tree)
    above = [rule for over in tree.ancestors(request.event) for rule in base.on(over)]
    moving = [rule for under in tree.subtree(request.event) for rule in base.on(under)]
    found = ((rule, find_conflicts(rule, above, vocabulary, base.mode)) for rule in moving)
    return tuple((rule, conflicts) for rule, conflicts in found if conflicts)


def propose_move(base: RuleBase, request: MoveType, subscribers: Sequence[Profile] = ()) -> tuple[Resolution, ...]:
    """Return all proposals for a move after which rules would conflict, smallest change first.

    Of strategies with the same result, only the first is returned. Raises as `move_conflicts`.
    """
    found: list[Resolution] = []
    for strategy in Strategy:
        resolution = _find(base, request, strategy, subscribers)
        if resolution is not None and not any(other.revisions == resolution.revisions for other in found):
            found.append(resolution)
    return tuple(sorted(found, key=lambda resolution: resolution.order))


def _find(base: RuleBase, request: MoveType, strategy: Strategy, subscribers: Sequence[Profile]) -> Resolution | None:
    with base.draft() as draft:
        if not _settle(draft, request, strategy):
            return None
        forms = _forms(draft)
    ordered = sorted(forms.values(), key=lambda form: (form.event, form.id))
    revisions = [Revision(base.detector.rules[form.id], form) for form in ordered]
    return weigh(base, strategy, forms, revisions, subscribers)


def _settle(draft: RuleBaseDraft, request: MoveType, strategy: Strategy | None) -> bool:
    """Move a type, and settle the conflicts; return whether that is possible.

    (1) The rules that would conflict are removed, and (2) the type is moved. (3) The rules are stated again, one after
    the other, each resolved by the chosen strategy. (4) The replaced forms are logged.
    """
    base = draft.base
    # (1) The remaining rules do not conflict: nothing has changed within the subtree.
    moving = [rule for rule, _ in move_conflicts(base, request)]
    stated = {rule.id: base.standings[rule.id].stated for rule in moving}
    draft.stand({rule_id: RuleState(rule, RuleStatus.REJECTED) for rule_id, rule in stated.items()})
    # (2) Therefore the move causes no conflict.
    here = Rooted(base.tree.parents[request.event])
    draft.change(Delta(types={request.event: RuleChange(here, Rooted(request.parent))}))
    # (3) Types above come first, because those below are compared with them.
    for rule in moving:
        forms = None if strategy is None else resolve(base, rule, strategy)
        if forms is None:
            return False
        draft.stand(
            {key: RuleState(base.standings[key].stated, RuleStatus.IN_FORCE, form) for key, form in forms.items()}
        )
    # (4) They can be restored when the reason is gone.
    for rules in _replaced(draft):
        draft.log(LoggedAs.MODIFIED, rules)
    return True


def _forms(draft: RuleBaseDraft) -> Mapping[str, PublishRule]:
    """Return the forms that a draft puts in force."""
    changed = ((key, change.after) for key, change in draft.delta.rules.items())
    return {key: after.form for key, after in changed if after is not None and after.form is not None}


def _replaced(draft: RuleBaseDraft) -> list[tuple[PublishRule, ...]]:
    """Return the forms that were in force on event types with changed rules, by event type."""
    changed = {
        key: change.before.form
        for key, change in draft.delta.rules.items()
        if change.before is not None and change.before.form is not None
    }
    events = sorted({form.event for form in changed.values()})
    return [tuple(changed.get(rule.id, rule) for rule in draft.base.on(event)) for event in events]


# ----------------------------------------------------------------------------------------------------------------------
# All changes of the tree.


def plan_tree(base: RuleBase, request: TreeChange, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan a change of the tree.

    Raises `MalformedError`: `moderator.unknown-type`, `moderator.known-type`, `LimitError` (`type.limit`); what
    `plan_move` raises.
    """
    if isinstance(request, MoveType):
        return plan_move(base, request, note, customs)
    with base.draft() as draft:
        match request:
            case AddType():
                restored = _add(request, draft)
            case RenameType():
                restored = _rename(request, draft)
            case _:
                restored = _remove(request, draft, note, customs)
        return Plan(Step(base.next_number, note, request, draft.delta, restored))


def _add(request: AddType, draft: RuleBaseDraft) -> tuple[Logged, ...]:
    _check_new(draft.base, request.event)
    if request.parent is not None:
        draft.base.detector.vocabulary.check_type(request.parent)
    draft.change(Delta(types={request.event: RuleChange(None, Rooted(request.parent))}))
    return ()


def _rename(request: RenameType, draft: RuleBaseDraft) -> tuple[Logged, ...]:
    base = draft.base
    base.detector.vocabulary.check_type(request.event)
    _check_new(base, request.to)
    types: dict[TypeKey, RuleChange[Rooted]] = {
        request.event: RuleChange(Rooted(base.tree.parents[request.event]), None),
        request.to: RuleChange(None, Rooted(base.tree.parents[request.event])),
    }
    for child in base.tree.children[request.event]:
        types[child] = RuleChange(Rooted(request.event), Rooted(request.to))
    rules = {
        rule_id: RuleChange(standing, _standing_on(standing, request.to))
        for rule_id, standing in base.standings.items()
        if standing.stated.event == request.event
    }
    log = {
        entry.place: RuleChange(entry, replace(entry, rules=_on(entry.rules, request.to)))
        for entry in base.history.on(request.event)
    }
    wishes = {
        rule_id: RuleChange(wish, SubscriberRule(replace(wish.stated, event=request.to), wish.status))
        for rule_id, wish in base.wishes.items()
        if wish.stated.event == request.event
    }
    draft.change(Delta(rules=rules, types=types, log=log, wishes=wishes))
    return ()


def _remove(request: RemoveType, draft: RuleBaseDraft, note: Note, customs: Customs) -> tuple[Logged, ...]:
    base = draft.base
    base.detector.vocabulary.check_type(request.event)
    for entry in base.history.on(request.event):
        draft.drop(entry)
    going = {
        rule_id: RuleStatus.ENDED
        for rule_id, standing in base.standings.items()
        if standing.stated.event == request.event and standing.status is not RuleStatus.ENDED
    }
    draft.wish(
        {
            rule_id: SubscriberRule(wish.stated, RuleStatus.ENDED)
            for rule_id, wish in base.wishes.items()
            if wish.stated.event == request.event
        }
    )
    restored = take_out(draft, going, note.when, customs)
    parent = base.tree.parents[request.event]
    types: dict[TypeKey, RuleChange[Rooted]] = {
        child: RuleChange(Rooted(request.event), Rooted(parent)) for child in base.tree.children[request.event]
    }
    types[request.event] = RuleChange(Rooted(parent), None)
    draft.change(Delta(types=types))
    return restored


def _standing_on(standing: RuleState, event: TypeKey) -> RuleState:
    form = None if standing.form is None else replace(standing.form, event=event)
    return RuleState(replace(standing.stated, event=event), standing.status, form)


def _on(rules: Iterable[PublishRule], event: TypeKey) -> tuple[PublishRule, ...]:
    return tuple(replace(rule, event=event) for rule in rules)


def _check_new(base: RuleBase, event: TypeKey) -> None:
    if event in base.tree:
        raise MalformedError(
            "moderator.known-type", f"there is an event type `{event.name}` already", hint="choose another name"
        )
