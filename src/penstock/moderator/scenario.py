"""Scenarios: a tree, profiles, steps, and what must have come of each step; docs/reference/moderator-scenario.md.

A scenario runs on the library alone. What a step came to is told in the notation of the paper, so that one can compare
it with the paper by eye.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from penstock.errors import PenstockError
from penstock.model.principals import Principal
from penstock.moderator.adding import Customs, Plan
from penstock.moderator.base import RuleBase
from penstock.moderator.conflicts import Mode
from penstock.moderator.facts import conflict_facts, in_force, log_facts, plan_facts, proposal_facts, waiting
from penstock.moderator.notation import Named
from penstock.moderator.propose import propose
from penstock.moderator.steps import Add, Note, Request
from penstock.moderator.undo import plan_request
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
            planned = plan_request(base, step.request, step.note, scenario.customs)
            facts |= _before(base, planned, step, scenario.customs, named)
            base.apply(planned.step)
            facts |= _after(base, planned, named)
        except PenstockError as error:
            facts |= {"outcome": "refused", "code": error.code}
            if error.code == "moderator.conflict":
                facts["conflicts"] = conflict_facts(error.fields["conflicts"])  # type: ignore[arg-type]  # ours
        facts |= {
            "rules": in_force(base, named),
            "log": log_facts(base, named),
        }
        yield Told(number, facts, tuple(_differences(step.expected, facts)))


def _before(base: RuleBase, planned: Plan, step: ScenarioStep, customs: Customs, named: Named) -> dict[str, object]:
    """Tell what was to be known before the step."""
    facts: dict[str, object] = {"conflicts": conflict_facts(planned.conflicts)}
    if isinstance(step.request, Add) and planned.conflicts and "proposals" in step.expected:
        found = propose(base, step.request.rule, customs.subscribers)
        facts["proposals"] = [proposal_facts(resolution, named) for resolution in found]
    return facts


def _after(base: RuleBase, planned: Plan, named: Named) -> dict[str, object]:
    """Tell what has come of the step."""
    return {
        **plan_facts(base, planned, named),
        "away": sorted(named(publisher) for publisher in base.away),
        "waiting": waiting(base),
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
