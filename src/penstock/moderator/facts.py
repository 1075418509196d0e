"""What conflicts, ways out and steps come to, as plain data: for scenarios, and for programs that ask."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import groupby

from penstock.model.names import TypeKey
from penstock.moderator.adding import Plan
from penstock.moderator.base import RuleBase
from penstock.moderator.conflicts import Conflict
from penstock.moderator.deltas import Standing, Status, Wish
from penstock.moderator.notation import Named, entry_text, part_texts, rule_text
from penstock.moderator.propose import Resolution
from penstock.moderator.rules import PublishRule
from penstock.moderator.steps import Add, Step, Subscribe

Facts = dict[str, object]
"""Plain data, by name."""


def conflict_facts(conflicts: Iterable[Conflict]) -> list[Facts]:
    """Tell what collides, over which attributes, and for whom."""
    return [
        {
            "kind": str(conflict.kind),
            "event": conflict.event.name,
            "with": [*conflict.rules],
            "function": str(conflict.function),
            "missing": [*part_texts(conflict.missing)],
            "extra": [*part_texts(conflict.extra)],
            "attributes": [*conflict.attributes],
            "witness": None if conflict.witness is None else plain_values(conflict.witness.values),
            "admitted_by": None if conflict.admitted_by is None else str(conflict.admitted_by),
            "certain": conflict.certain,
        }
        for conflict in conflicts
    ]


def proposal_facts(resolution: Resolution, named: Named) -> Facts:
    """Tell what a way out changes, and for whom."""
    return {
        "strategy": str(resolution.strategy),
        "touched": resolution.touched,
        "relaxed": sorted(named(publisher) for publisher in resolution.relaxed),
        "gained": resolution.gained,
        "lost": resolution.lost,
        "diff": resolution.diff(),
    }


def plan_facts(base: RuleBase, planned: Plan, named: Named) -> Facts:
    """Tell what a request comes to; `base` may be that before the step, or after it."""
    step = planned.step
    used = {entry.place for entry in step.restored}
    return {
        "outcome": outcome(base, planned),
        "restored": [entry_text(entry, named) for entry in step.restored],
        "logged": [entry_text(entry, named) for entry in step.delta.logged],
        "dropped": [entry_text(entry, named) for entry in step.delta.dropped if entry.place not in used],
    }


def outcome(base: RuleBase, planned: Plan) -> str:
    """Say in a word what a request comes to."""
    if planned.resolution is not None:
        return "resolved"
    standing = stated_by(base, planned.step)
    if standing is None:
        return "done"
    as_stated = standing.status is Status.IN_FORCE and (isinstance(standing, Wish) or standing.form == standing.stated)
    return "accepted" if as_stated else str(standing.status)


def stated_by(base: RuleBase, step: Step) -> Standing | Wish | None:
    """Return how the rule stands after a step that stated it; None where the step stated none."""
    match step.request:
        case Add(rule):
            change = step.delta.rules.get(rule.id)
            return base.standings.get(rule.id) if change is None else change.after
        case Subscribe(wish):
            wished = step.delta.wishes.get(wish.id)
            return base.wishes.get(wish.id) if wished is None else wished.after
        case _:
            return None


def in_force(base: RuleBase, named: Named) -> list[str]:
    """Return the rules in force, those on one event type together, ordered by their text."""
    return sorted(rule_text(rules, named) for _, rules in by_event(base.detector.rules.values()))


def by_event(rules: Iterable[PublishRule]) -> list[tuple[TypeKey, list[PublishRule]]]:
    """Return rules by their event types, both in order."""
    ordered = sorted(rules, key=lambda rule: (rule.event, rule.id))
    return [(event, [*group]) for event, group in groupby(ordered, key=lambda rule: rule.event)]


def waiting(base: RuleBase) -> list[str]:
    """Return the ids of the rules whose periods have not begun."""
    stated: dict[str, Standing | Wish] = {**base.standings, **base.wishes}
    return sorted(rule_id for rule_id, each in stated.items() if each.status is Status.WAITING)


def log_facts(base: RuleBase, named: Named) -> list[str]:
    """Return the whole log of rules that were changed or rejected, oldest first."""
    return [entry_text(entry, named) for entry in reversed([*base.history])]


def returning(base: RuleBase, named: Named) -> list[str]:
    """Return what may come back, oldest first, without the rules that were withdrawn or have ended."""
    over = (Status.WITHDRAWN, Status.ENDED)
    entries = (
        replace(entry, rules=tuple(rule for rule in entry.rules if base.standings[rule.id].status not in over))
        for entry in reversed([*base.history])
    )
    return [entry_text(entry, named) for entry in entries if entry.rules]


def plain_values(values: Mapping[str, object]) -> Facts:
    """Return values as a program can read them, by the names of their attributes."""
    return {
        name: value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
        for name, value in sorted(values.items())
    }
