"""An event type goes elsewhere in the tree, with all below it and with the rules on them.

Rules that moved may collide with those above their new place. That is known before anything is done, and so are the
ways out: the same as for a rule that is stated anew, for all rules that would collide. Nothing is moved unless somebody
chooses one of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.errors import RefusedError
from penstock.model.profiles import Profile
from penstock.model.tree import TypeTree
from penstock.moderator.adding import DEFAULT_CUSTOMS, Customs, Plan, check_agreed
from penstock.moderator.base import Draft, RuleBase
from penstock.moderator.conflicts import Conflict
from penstock.moderator.deltas import Change, Delta, LoggedAs, Rooted, Standing, Status
from penstock.moderator.detect_naive import find_conflicts
from penstock.moderator.propose import Resolution, Revision, weigh
from penstock.moderator.removal import bring_back
from penstock.moderator.resolution import resolve
from penstock.moderator.rules import PublishRule
from penstock.moderator.steps import MoveType, Note, Step, Strategy


def plan_move(base: RuleBase, request: MoveType, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan a move, and the way out that was chosen if rules would collide.

    Raises `MalformedError` (`moderator.unknown-type`, `type.cycle`), `LimitError` (`type.limit`), `RefusedError`:
    `moderator.conflict` when rules would collide and no way out was chosen, `moderator.unresolved` when the one that
    was chosen leads nowhere (both have the field `proposals`), `moderator.consent`.
    """
    found = tuple(conflict for _, conflicts in collisions(base, request) for conflict in conflicts)
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
            f"rules in force would collide if `{request.event.name}` were moved there",
            hint="choose one of the proposals",
            conflicts=found,
            proposals=propose_move(base, request, customs.subscribers),
        )
    with base.draft() as draft:
        _settle(draft, request, request.strategy)
        restored = bring_back(draft, note.when, customs)
        return Plan(Step(base.next_number, note, request, draft.delta, restored), found, resolution)


def collisions(base: RuleBase, request: MoveType) -> tuple[tuple[PublishRule, tuple[Conflict, ...]], ...]:
    """Return the rules that would collide after a move, each with what it would collide with; those above come first.

    Only rules in the subtree that moves can collide, and only with those on its new path to the root.

    Raises as `plan_move`, but for `RefusedError`.
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
    """Return all ways in which a move could be done though rules would collide, the one that changes least first.

    Of strategies that come to the same, the first is named. Raises as `collisions`.
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


def _settle(draft: Draft, request: MoveType, strategy: Strategy | None) -> bool:
    """Move a type, and settle what collides; say whether there is a way.

    (1) The rules that would collide go, and (2) their type is moved. (3) They are stated again where they are now, one
    after the other, each resolved in the way that was chosen. (4) What they and others stated before is logged.
    """
    base = draft.base
    # (1) What stays does not collide: within the subtree nothing has changed.
    moving = [rule for rule, _ in collisions(base, request)]
    stated = {rule.id: base.standings[rule.id].stated for rule in moving}
    draft.stand({rule_id: Standing(rule, Status.REJECTED) for rule_id, rule in stated.items()})
    # (2) So that this brings no conflict about.
    here = Rooted(base.tree.parents[request.event])
    draft.change(Delta(types={request.event: Change(here, Rooted(request.parent))}))
    # (3) Those above come first, since what they state then is what those below are held against.
    for rule in moving:
        forms = None if strategy is None else resolve(base, rule, strategy)
        if forms is None:
            return False
        draft.stand({key: Standing(base.standings[key].stated, Status.IN_FORCE, form) for key, form in forms.items()})
    # (4) It may come back when the reason is gone.
    for rules in _replaced(draft):
        draft.log(LoggedAs.MODIFIED, rules)
    return True


def _forms(draft: Draft) -> Mapping[str, PublishRule]:
    """Return the forms that a draft puts in force."""
    changed = ((key, change.after) for key, change in draft.delta.rules.items())
    return {key: after.form for key, after in changed if after is not None and after.form is not None}


def _replaced(draft: Draft) -> list[tuple[PublishRule, ...]]:
    """Return what was in force on the event types whose rules have changed, by event type."""
    changed = {
        key: change.before.form
        for key, change in draft.delta.rules.items()
        if change.before is not None and change.before.form is not None
    }
    events = sorted({form.event for form in changed.values()})
    return [tuple(changed.get(rule.id, rule) for rule in draft.base.on(event)) for event in events]
