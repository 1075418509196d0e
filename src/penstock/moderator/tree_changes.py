"""Event types are added, moved, renamed and removed while rules are in force (future work in paper 1, section VIII).

A new type, and one that goes, can bring no conflict about: of the types that remain, no two stand in another relation
than before. A move can: see `moves`.
"""

from collections.abc import Iterable
from dataclasses import replace

from penstock.errors import MalformedError
from penstock.model.names import TypeKey
from penstock.moderator.adding import DEFAULT_CUSTOMS, Customs, Plan
from penstock.moderator.base import Draft, RuleBase
from penstock.moderator.deltas import Change, Delta, Logged, Rooted, Standing, Status, Wish
from penstock.moderator.moves import plan_move
from penstock.moderator.removal import take_out
from penstock.moderator.rules import PublishRule
from penstock.moderator.steps import AddType, MoveType, Note, RemoveType, RenameType, Step, TreeChange


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


def _add(request: AddType, draft: Draft) -> tuple[Logged, ...]:
    _check_new(draft.base, request.event)
    if request.parent is not None:
        draft.base.detector.vocabulary.check_type(request.parent)
    draft.change(Delta(types={request.event: Change(None, Rooted(request.parent))}))
    return ()


def _rename(request: RenameType, draft: Draft) -> tuple[Logged, ...]:
    base = draft.base
    base.detector.vocabulary.check_type(request.event)
    _check_new(base, request.to)
    types: dict[TypeKey, Change[Rooted]] = {
        request.event: Change(Rooted(base.tree.parents[request.event]), None),
        request.to: Change(None, Rooted(base.tree.parents[request.event])),
    }
    for child in base.tree.children[request.event]:
        types[child] = Change(Rooted(request.event), Rooted(request.to))
    rules = {
        rule_id: Change(standing, _standing_on(standing, request.to))
        for rule_id, standing in base.standings.items()
        if standing.stated.event == request.event
    }
    log = {
        entry.place: Change(entry, replace(entry, rules=_on(entry.rules, request.to)))
        for entry in base.history.on(request.event)
    }
    wishes = {
        rule_id: Change(wish, Wish(replace(wish.stated, event=request.to), wish.status))
        for rule_id, wish in base.wishes.items()
        if wish.stated.event == request.event
    }
    draft.change(Delta(rules=rules, types=types, log=log, wishes=wishes))
    return ()


def _remove(request: RemoveType, draft: Draft, note: Note, customs: Customs) -> tuple[Logged, ...]:
    base = draft.base
    base.detector.vocabulary.check_type(request.event)
    for entry in base.history.on(request.event):
        draft.drop(entry)
    going = {
        rule_id: Status.ENDED
        for rule_id, standing in base.standings.items()
        if standing.stated.event == request.event and standing.status is not Status.ENDED
    }
    draft.wish(
        {
            rule_id: Wish(wish.stated, Status.ENDED)
            for rule_id, wish in base.wishes.items()
            if wish.stated.event == request.event
        }
    )
    restored = take_out(draft, going, note.when, customs)
    parent = base.tree.parents[request.event]
    types: dict[TypeKey, Change[Rooted]] = {
        child: Change(Rooted(request.event), Rooted(parent)) for child in base.tree.children[request.event]
    }
    types[request.event] = Change(Rooted(parent), None)
    draft.change(Delta(types=types))
    return restored


def _standing_on(standing: Standing, event: TypeKey) -> Standing:
    form = None if standing.form is None else replace(standing.form, event=event)
    return Standing(replace(standing.stated, event=event), standing.status, form)


def _on(rules: Iterable[PublishRule], event: TypeKey) -> tuple[PublishRule, ...]:
    return tuple(replace(rule, event=event) for rule in rules)


def _check_new(base: RuleBase, event: TypeKey) -> None:
    if event in base.tree:
        raise MalformedError(
            "moderator.known-type", f"there is an event type `{event.name}` already", hint="choose another name"
        )
