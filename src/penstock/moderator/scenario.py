"""Scenarios: a tree, profiles, steps, and what must have come of each step; docs/reference/moderator-scenario.md.

A scenario runs on the library alone. What a step came to is told in the notation of the paper, so that one can compare
it with the paper by eye.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

from penstock.errors import PenstockError
from penstock.model.principals import Principal
from penstock.moderator.adding import Customs, Plan
from penstock.moderator.base import RuleBase
from penstock.moderator.conflicts import Conflict, Mode
from penstock.moderator.deltas import Status
from penstock.moderator.notation import Named, entry_text, part_texts, rule_text
from penstock.moderator.propose import Resolution, propose
from penstock.moderator.requests import plan
from penstock.moderator.steps import Add, Note, Request, Undo
from penstock.moderator.undo import plan_undo
from penstock.moderator.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ScenarioStep:
    """A request, and what is expected of it, as far as the scenario says."""

    request: Request
    note: Note
    expected: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story: what there is at the beginning, and what is asked for then."""

    title: str
    source: str
    vocabulary: Vocabulary
    mode: Mode
    customs: Customs
    now: datetime
    names: Mapping[Principal, str]
    steps: Sequence[ScenarioStep]


@dataclass(frozen=True, slots=True)
class Told:
    """What a step came to, by the names under which it can be expected."""

    number: int
    facts: Mapping[str, object]
    #: what differs from what was expected: name, expected, found
    differences: tuple[tuple[str, object, object], ...]


def run(scenario: Scenario) -> Iterator[Told]:
    """Run a scenario, step by step. A request that is refused changes nothing, and the next one follows."""
    base = RuleBase(scenario.vocabulary, scenario.mode)
    named = _named(scenario.names)
    for number, step in enumerate(scenario.steps, 1):
        facts: dict[str, object] = {}
        try:
            planned = _plan(base, step, scenario.customs)
            facts |= _before(base, planned, step, scenario.customs, named)
            base.apply(planned.step)
            facts |= _outcome(base, planned, named)
        except PenstockError as error:
            facts |= {"outcome": "refused", "code": error.code}
            if error.code == "moderator.conflict":
                facts["conflicts"] = _conflicts(error.fields["conflicts"])  # type: ignore[arg-type]  # ours
        facts |= {
            "rules": in_force(base, named),
            "log": [entry_text(entry, named) for entry in reversed([*base.history])],
        }
        yield Told(number, facts, tuple(_differences(step.expected, facts)))


def in_force(base: RuleBase, named: Named) -> list[str]:
    """Return the rules in force, those on one event type together, ordered by their text."""
    rules = sorted(base.detector.rules.values(), key=lambda rule: (rule.event, rule.id))
    return sorted(rule_text([*group], named) for _, group in groupby(rules, key=lambda rule: rule.event))


def _plan(base: RuleBase, step: ScenarioStep, customs: Customs) -> Plan:
    if isinstance(step.request, Undo):
        return plan_undo(base, step.request, step.note, customs)
    return plan(base, step.request, step.note, customs)


def _before(base: RuleBase, planned: Plan, step: ScenarioStep, customs: Customs, named: Named) -> dict[str, object]:
    """Tell what was to be known before the step."""
    facts: dict[str, object] = {"conflicts": _conflicts(planned.conflicts)}
    if isinstance(step.request, Add) and planned.conflicts and "proposals" in step.expected:
        found = propose(base, step.request.rule, customs.subscribers)
        facts["proposals"] = [_proposal(resolution, named) for resolution in found]
    return facts


def _outcome(base: RuleBase, planned: Plan, named: Named) -> dict[str, object]:
    delta = planned.step.delta
    outcome = "done"
    if isinstance(planned.step.request, Add):
        standing = base.standing(planned.step.request.rule.id)
        outcome = "accepted" if standing.form == standing.stated else str(standing.status)
    if planned.resolution is not None:
        outcome = "resolved"
    used = {entry.place for entry in planned.step.restored}
    return {
        "outcome": outcome,
        "restored": [entry_text(entry, named) for entry in planned.step.restored],
        "logged": [entry_text(entry, named) for entry in delta.logged],
        "dropped": [entry_text(entry, named) for entry in delta.dropped if entry.place not in used],
        "away": sorted(named(publisher) for publisher in base.away),
        "waiting": sorted(rule_id for rule_id, each in base.standings.items() if each.status is Status.WAITING),
    }


def _conflicts(conflicts: Sequence[Conflict]) -> list[dict[str, object]]:
    return [
        {
            "kind": str(conflict.kind),
            "event": conflict.event.name,
            "with": [*conflict.rules],
            "function": str(conflict.function),
            "missing": [*part_texts(conflict.missing)],
            "extra": [*part_texts(conflict.extra)],
        }
        for conflict in conflicts
    ]


def _proposal(resolution: Resolution, named: Named) -> dict[str, object]:
    return {
        "strategy": str(resolution.strategy),
        "touched": resolution.touched,
        "relaxed": sorted(named(publisher) for publisher in resolution.relaxed),
        "gained": resolution.gained,
        "lost": resolution.lost,
        "diff": resolution.diff(),
    }


def _differences(expected: Mapping[str, object], found: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
    for name, wanted in expected.items():
        if not _agrees(wanted, found.get(name)):
            yield name, wanted, found.get(name)


def _agrees(wanted: object, found: object) -> bool:
    """Say whether what was found is what was wanted; of mappings, only what is wanted is compared."""
    match wanted, found:
        case dict(), dict():
            return all(key in found and _agrees(value, found[key]) for key, value in wanted.items())
        case list(), list():
            return len(wanted) == len(found) and all(map(_agrees, wanted, found))
        case str(), str():
            return wanted.strip() == found.strip()
        case _:
            return wanted == found


def _named(names: Mapping[Principal, str]) -> Named:
    return lambda principal: names.get(principal, principal.short)
