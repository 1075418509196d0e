"""Answers of the moderator's commands: sentences, tables and diffs for people, plain data for programs."""

from collections.abc import Iterator, Mapping, Sequence

from penstock.apps.cli.moderator.sources import Cast, RuleSource
from penstock.apps.cli.shared.describe import instant_text, validity_data, validity_text, value_text
from penstock.apps.cli.shared.terminal import Shown, TreeLine, diff_lines, fact_table, grid_table, trees
from penstock.model.names import TypeKey
from penstock.moderator.base.base import RuleBase
from penstock.moderator.base.records import kind_of
from penstock.moderator.descriptions import (
    by_event,
    conflict_facts,
    conflict_sentences,
    function_text,
    outcome,
    plan_facts,
    proposal_facts,
    request_sentence,
    resolution_meaning,
    resolution_sentence,
    returning,
    rule_sentence,
    rule_text,
)
from penstock.moderator.rules.rules import Conflict, PublishRule, Rule
from penstock.moderator.rules.steps import Add, Rooted, RuleChange, RuleState, RuleStatus, Step, SubscriberRule
from penstock.moderator.settlement.addition import Plan
from penstock.moderator.settlement.proposals import Resolution, Revision
from penstock.trust.validity import ALWAYS

Data = dict[str, object]
"""Plain data of an answer."""

#: the legend below diffs and tables
_WORDS = "fnc_s: what subscribers must satisfy; fnc_p: what publishers must satisfy; TRUE: everybody does"
_MANY = 20
_ROWS = 500


# --- rules and conflicts --------------------------------------------------------------------------------------------


def rule_data(rule: Rule, cast: Cast) -> Data:
    """Return a rule as plain data."""
    data: Data = {
        "id": rule.id,
        "event": rule.event.name,
        "owner": str(rule.event.owner),
        "owner_name": cast.show(rule.event.owner),
        "stated_by": str(rule.stated_by),
        "by": cast.show(rule.stated_by),
    }
    if isinstance(rule, PublishRule):
        data |= {"publishers": [str(publisher) for publisher in rule.publishers], "fnc_s": rule.fnc_s.text}
    else:
        data["subscriber"] = str(rule.subscriber)
    return {**data, "fnc_p": rule.fnc_p.text, **validity_data(rule.validity)}


def show_rule_conflicts(rule: PublishRule, conflicts: Sequence[Conflict], source: RuleSource) -> Iterator[Shown]:
    """Yield a rule and its conflicts, for people."""
    where = f" (line {source.lines[rule.id]})" if source.lines.get(rule.id) else ""
    yield f"✗ {rule.id}{where}: {rule_sentence(rule, source.cast.show)}"
    yield from show_conflicts(rule, conflicts, source)


def show_conflicts(rule: PublishRule, conflicts: Sequence[Conflict], source: RuleSource) -> Iterator[Shown]:
    """Yield the conflicts of a rule, for people."""
    for conflict in conflicts[:_MANY]:
        first, *rest = conflict_sentences(rule, conflict, source.base.tree.scope)
        yield f"  {first}"
        for sentence in rest:
            yield f"    {sentence}"
    if len(conflicts) > _MANY:
        yield f"  and {len(conflicts) - _MANY:,} more; -o json has them all"


def conflicts_data(rule: PublishRule, conflicts: Sequence[Conflict], source: RuleSource) -> Data:
    """Return the conflicts of a rule as plain data."""
    sentences = [[*conflict_sentences(rule, conflict, source.base.tree.scope)] for conflict in conflicts]
    facts = zip(conflict_facts(conflicts), sentences, strict=True)
    line = source.lines.get(rule.id)
    return {
        "rule": rule.id,
        **({"line": line} if line else {}),
        "conflicts": [{**fact, "sentences": words} for fact, words in facts],
    }


# --- proposals -------------------------------------------------------------------------------------------------------


def show_proposals(candidate: str, proposals: Sequence[Resolution], source: RuleSource) -> Iterator[Shown]:
    """Yield proposals as diffs, the one that changes least first."""
    counted = bool(source.customs.subscribers)
    for number, resolution in enumerate(proposals, 1):
        said = resolution_sentence(resolution, candidate, source.cast.show, counted=counted)
        yield f"{number}. {resolution.strategy}: {said}"
        for sentence in resolution_meaning(resolution, source.cast.show):
            yield f"   {sentence}"
        for revision in resolution.revisions[:_MANY]:
            yield from show_revision(revision)
        if len(resolution.revisions) > _MANY:
            yield f"   and {len(resolution.revisions) - _MANY:,} more rules; -o json has them all"
    if proposals:
        yield _WORDS


def show_revision(revision: Revision) -> Iterator[Shown]:
    """Yield the removed and added lines of a rule, in colour."""
    yield f"   {revision.before.id} on {revision.before.event.name}"
    yield from diff_lines(f"     {line}" for line in revision.diff())


def proposal_data(resolution: Resolution, cast: Cast) -> Data:
    """Return a proposal as plain data."""
    return {
        **proposal_facts(resolution, cast.show),
        "means": [*resolution_meaning(resolution, cast.show)],
        "revisions": [
            {"before": rule_data(each.before, cast), "after": rule_data(each.after, cast)}
            for each in resolution.revisions
        ],
    }


# --- steps ----------------------------------------------------------------------------------------------------------


def show_plan(plan: Plan, source: RuleSource, *, done: bool) -> Iterator[Shown]:
    """Yield the result of a request, applied or planned."""
    step, cast = plan.step, source.cast
    said = outcome(source.base, plan)
    mark = "✗" if said == "rejected" else "✓"
    head = f"step {step.number}" if done else f"would be step {step.number}"
    yield f"{mark} {head}: {request_sentence(step.request, cast.show)}: {said}"
    if said == "rejected" and isinstance(step.request, Add) and isinstance(step.request.rule, PublishRule):
        yield from show_conflicts(step.request.rule, plan.conflicts, source)
        yield f"  `penstock moderator propose {step.request.rule.id}` shows proposals"
    yield from show_changes(step, cast)
    for rule, conflicts in newly_rejected(plan, source.base):
        yield from show_conflicts(rule, conflicts, source)
        yield f"  `penstock moderator propose {rule.id}` shows proposals"


def newly_rejected(plan: Plan, base: RuleBase) -> Iterator[tuple[PublishRule, Sequence[Conflict]]]:
    """Yield rules that a step rejects besides, for example when a publisher returns, with their conflicts."""
    for _, change in sorted(plan.step.delta.rules.items()):
        after = change.after
        if after is None or after.status is not RuleStatus.REJECTED or isinstance(plan.step.request, Add):
            continue
        if change.before is None or change.before.status is not RuleStatus.REJECTED:
            yield after.stated, base.detector.conflicts(after.stated)


def show_changes(step: Step, cast: Cast) -> Iterator[Shown]:
    """Yield the changes of a step: types, publishers, and rules as diffs."""
    for event, hung in sorted(step.delta.types.items()):
        yield f"  {_type_change(event, hung)}"
    for publisher, away in sorted(step.delta.away.items()):
        yield f"  {cast.show(publisher)} {'is away' if away.after else 'is back'}"
    changed = sorted(step.delta.rules.items())
    for rule_id, change in changed[:_MANY]:
        yield f"  {rule_id} on {_event_of(change).name}: {_statuses(change)}"
        yield from diff_lines(f"    {line}" for line in form_diff(change))
    for rule_id, wished in sorted(step.delta.wishes.items()):
        yield f"  {rule_id}: {_statuses(wished)}"
    if len(changed) > _MANY:
        yield f"  and {len(changed) - _MANY:,} more rules; -o json has them all"
    for entry in step.restored:
        yield f"  back from the log: {rule_text(entry.rules, cast.show)}"


def plan_data(plan: Plan, source: RuleSource, *, written: bool) -> Data:
    """Return the result of a request as plain data."""
    facts = plan_facts(source.base, plan, source.cast.show)
    return {
        "written": written,
        **step_data(plan.step, source.cast),
        **facts,
        "conflicts": conflict_facts(plan.conflicts),
        "rejected": [conflicts_data(rule, found, source) for rule, found in newly_rejected(plan, source.base)],
        "resolution": None if plan.resolution is None else proposal_facts(plan.resolution, source.cast.show),
    }


def step_data(step: Step, cast: Cast) -> Data:
    """Return a step as plain data."""
    return {
        "number": step.number,
        "when": value_text(step.note.when),
        "who": str(step.note.who),
        "by": cast.show(step.note.who),
        "why": step.note.why,
        "request": request_sentence(step.request, cast.show),
        "kind": kind_of(step.request),
        "rules": [
            {"id": rule_id, "before": _side(change.before, cast), "after": _side(change.after, cast)}
            for rule_id, change in sorted(step.delta.rules.items())
        ],
        "subscriptions": [
            {
                "id": rule_id,
                "before": None if change.before is None else _wish(change.before, cast),
                "after": None if change.after is None else _wish(change.after, cast),
            }
            for rule_id, change in sorted(step.delta.wishes.items())
        ],
        "types": [
            {
                **event_data(event),
                "before": None if change.before is None else _hung(change.before),
                "after": None if change.after is None else _hung(change.after),
            }
            for event, change in sorted(step.delta.types.items())
        ],
        "away": {cast.show(who): bool(change.after) for who, change in sorted(step.delta.away.items())},
        "restored": [rule_text(entry.rules, cast.show) for entry in step.restored],
    }


def event_data(event: TypeKey) -> Data:
    """Return the name of an event type as plain data."""
    return {"name": event.name, "owner": str(event.owner)}


def _hung(rooted: Rooted) -> Data:
    return {"parent": None if rooted.parent is None else event_data(rooted.parent)}


def form_diff(change: RuleChange[RuleState]) -> Iterator[str]:
    """Yield the removed and added lines of a rule that stays in force or comes into force."""
    before = None if change.before is None else change.before.form
    after = None if change.after is None else change.after.form
    if before is None and after is not None and change.after is not None:
        before = change.after.stated
    if before is not None and after is not None:
        yield from Revision(before, after).diff()


def _side(standing: RuleState | None, cast: Cast) -> Data | None:
    if standing is None:
        return None
    form = None if standing.form is None else rule_data(standing.form, cast)
    return {"status": str(standing.status), "stated": rule_data(standing.stated, cast), "form": form}


def _wish(wish: SubscriberRule, cast: Cast) -> Data:
    return {"status": str(wish.status), "stated": rule_data(wish.stated, cast)}


def _statuses(change: RuleChange[RuleState] | RuleChange[SubscriberRule]) -> str:
    before = "new" if change.before is None else str(change.before.status)
    after = "gone" if change.after is None else str(change.after.status)
    return f"{before} → {after}" if before != after else f"{after}, changed"


def _event_of(change: RuleChange[RuleState]) -> TypeKey:
    side = change.after or change.before
    if side is None:
        raise ValueError("a change has a state before or after")
    return side.stated.event


def _type_change(event: TypeKey, change: RuleChange[Rooted]) -> str:
    def place(side: Rooted) -> str:
        return "a root" if side.parent is None else f"below {side.parent.name}"

    if change.after is None:
        return f"{event.name} is gone"
    if change.before is None:
        return f"{event.name} is new, {place(change.after)}"
    return f"{event.name} is {place(change.after)} now, and was {place(change.before)}"


# --- the whole state ------------------------------------------------------------------------------------------------


def show_state(source: RuleSource) -> Iterator[Shown]:
    """Yield a rule base for people: the tree with the rules in force, and everything else."""
    base, cast = source.base, source.cast
    yield fact_table(
        [
            ("rules of", source.where),
            ("scope, mode", f"{base.tree.scope}, {base.mode}"),
            ("steps", f"{base.next_number - 1:,}"),
        ]
    )
    if len(base.tree.parents) <= _ROWS:
        yield from trees(_branches(base))
    else:
        yield f"{len(base.tree.parents):,} event types; -o json has them all"
    rows = [_row(rule_id, base.standings[rule_id], cast) for rule_id in sorted(base.standings)[:_ROWS]]
    if rows:
        yield grid_table(
            ("rule", "event", "by", "stands", "subscribers must have", "publishers must have", "valid"), rows
        )
        if any("TRUE" in row for row in rows):
            yield "TRUE: everybody"
    if len(base.standings) > _ROWS:
        yield f"and {len(base.standings) - _ROWS:,} more rules; -o json has them all"
    for rule_id, wish in sorted(base.wishes.items())[:_ROWS]:
        stands = "" if wish.status is RuleStatus.IN_FORCE else f" ({wish.status})"
        yield f"{rule_id}: {rule_sentence(wish.stated, cast.show)}{stands}"
    for publisher in sorted(base.away):
        yield f"{cast.show(publisher)} is away"
    entries = returning(base, cast.show)
    if entries:
        yield "may come back, oldest first:"
        for entry in entries[-_ROWS:]:
            yield f"  {entry}"


def _branches(base: RuleBase) -> list[TreeLine]:
    on = dict(by_event(base.detector.rules.values()))
    made: dict[TypeKey, TreeLine] = {}
    roots = sorted(event for event, parent in base.tree.parents.items() if parent is None)
    for event in (event for root in roots for event in base.tree.subtree(root)):
        rules = on.get(event, [])
        said = "" if not rules else f"  {function_text(rules[0].fnc_s)}  [{', '.join(rule.id for rule in rules)}]"
        made[event] = TreeLine(f"{event.name}{said}")
        parent = base.tree.parents[event]
        if parent is not None:
            made[parent].children.append(made[event])
    return [made[root] for root in roots]


def _row(rule_id: str, standing: RuleState, cast: Cast) -> tuple[str, ...]:
    rule = standing.form or standing.stated
    changed = standing.form is not None and standing.form != standing.stated
    return (
        rule_id,
        rule.event.name,
        cast.show(rule.stated_by),
        f"{standing.status}{', changed' if changed else ''}",
        function_text(rule.fnc_s),
        function_text(rule.fnc_p),
        "" if rule.validity == ALWAYS else validity_text(rule.validity),
    )


def state_data(source: RuleSource) -> Data:
    """Return a rule base as plain data."""
    base, cast = source.base, source.cast
    return {
        "where": source.where,
        "scope": str(base.tree.scope),
        "mode": str(base.mode),
        "steps": base.next_number - 1,
        "types": [{**event_data(event), **_hung(Rooted(parent))} for event, parent in base.tree.parents.items()],
        "rules": [_side(standing, cast) for _, standing in sorted(base.standings.items())],
        "in_force": sum(1 for standing in base.standings.values() if standing.status is RuleStatus.IN_FORCE),
        "subscriptions": [_wish(wish, cast) for _, wish in sorted(base.wishes.items())],
        "away": sorted(cast.show(publisher) for publisher in base.away),
        "log": returning(base, cast.show),
    }


def step_row(step: Step, cast: Cast, undone: Mapping[int, Step]) -> tuple[str, ...]:
    """Return a step as a row of a table."""
    void = f" (undone by {undone[step.number].number})" if step.number in undone else ""
    return (
        str(step.number),
        instant_text(step.note.when),
        cast.show(step.note.who),
        request_sentence(step.request, cast.show) + void,
        _came_to(step),
        step.note.why,
    )


def _came_to(step: Step) -> str:
    """Return a short summary of the changes of a step."""
    counts: dict[str, int] = {}
    changes: list[RuleChange[RuleState] | RuleChange[SubscriberRule]] = [
        *step.delta.rules.values(),
        *step.delta.wishes.values(),
    ]
    for change in changes:
        after = "gone" if change.after is None else str(change.after.status)
        before = None if change.before is None else str(change.before.status)
        key = "changed" if before == after else after
        counts[key] = counts.get(key, 0) + 1
    said = [f"{count:,} {what}" for what, count in sorted(counts.items())]
    said += [f"{len(step.restored):,} back from the log"] if step.restored else []
    return ", ".join(said)
