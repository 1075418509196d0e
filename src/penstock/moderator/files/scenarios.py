"""Read and run scenarios, such as a YAML file contains: a rule base (`rule_file`), and steps with expected results."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from penstock.errors import PenstockError
from penstock.model.principals import Principal
from penstock.moderator.base.base import RuleBase
from penstock.moderator.descriptions import (
    Named,
    conflict_facts,
    in_force,
    log_facts,
    plan_facts,
    proposal_facts,
    waiting,
)
from penstock.moderator.files.rule_file import FileKind, RuleReader, StrictMapping
from penstock.moderator.rules import steps
from penstock.moderator.rules.rules import Mode
from penstock.moderator.rules.steps import Add, Note, Request
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.moderator.settlement.addition import Customs, Plan
from penstock.moderator.settlement.proposals import propose
from penstock.moderator.settlement.undo import plan_request

# ----------------------------------------------------------------------------------------------------------------------
# Scenarios: a tree, profiles, steps, and the expected result of each step (docs/reference/moderator-scenario.md).
#
# The result of a step is shown in the paper's notation, so that it can be compared with the paper by eye.


@dataclass(frozen=True, slots=True)
class ScenarioStep:
    """A request, and its expected results."""

    request: Request
    note: Note
    expected: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A rule base at the beginning, and a sequence of requests."""

    title: str
    source: str
    vocabulary: Vocabulary
    mode: Mode
    customs: Customs
    now: datetime
    names: Mapping[Principal, str]
    steps: Sequence[ScenarioStep]


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step, by the keys of expectations."""

    number: int
    facts: Mapping[str, object]
    #: differences from the expectations: name, expected, found
    differences: tuple[tuple[str, object, object], ...]


def run(scenario: Scenario) -> Iterator[StepResult]:
    """Run a scenario, step by step. A refused request changes nothing, and the next one follows."""
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
        yield StepResult(number, facts, tuple(_differences(step.expected, facts)))


def _before(base: RuleBase, planned: Plan, step: ScenarioStep, customs: Customs, named: Named) -> dict[str, object]:
    """Return the facts known before the step."""
    facts: dict[str, object] = {"conflicts": conflict_facts(planned.conflicts)}
    if isinstance(step.request, Add) and planned.conflicts and "proposals" in step.expected:
        found = propose(base, step.request.rule, customs.subscribers)
        facts["proposals"] = [proposal_facts(resolution, named) for resolution in found]
    return facts


def _after(base: RuleBase, planned: Plan, named: Named) -> dict[str, object]:
    """Return the results of the step."""
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
    """Return whether a result is the expected one; in mappings, only expected keys are compared."""
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


# ----------------------------------------------------------------------------------------------------------------------
# Reading scenarios.


SCENARIO: Final = FileKind("moderator.scenario", "docs/reference/moderator-scenario.md")
#: the author of changes of the tree, and of steps that pass time
MODERATOR: Final = "moderator"
#: the results that a step can expect
FACTS: Final = frozenset(
    {
        "outcome",
        "code",
        "conflicts",
        "proposals",
        "restored",
        "logged",
        "dropped",
        "rules",
        "log",
        "away",
        "waiting",
    }
)


def read_scenario(data: object) -> Scenario:
    """Read a scenario. Raises `MalformedError` (`moderator.scenario`), and what its parts raise."""
    return _Reader(data).scenario()


class _Reader(RuleReader):
    """Reads one scenario from top to bottom; a rule is known by its id after it was stated."""

    def __init__(self, data: object) -> None:
        super().__init__(data, "scenario", SCENARIO, {})
        self._stated: dict[str, Principal] = {}

    def scenario(self) -> Scenario:
        top = self.top
        title, source = top.take("title", str), top.take("source", str, "")
        self._now = now = self.instant(top, "now")
        listed = top.tables("steps", "step")
        rules = self.rule_base()
        top.done()
        self._stated = {request.rule.id: request.rule.stated_by for request in rules.stated}
        first = [ScenarioStep(request, steps.Note(request.rule.stated_by, now)) for request in rules.stated]
        read = [*first, *map(self._step, listed)]
        return Scenario(title, source, rules.vocabulary, rules.mode, rules.customs, now, self.names, read)

    # --- steps ------------------------------------------------------------------------------------------------

    def _step(self, table: StrictMapping) -> ScenarioStep:
        kinds = [key for key in table.names() if key in REQUESTS]
        if len(kinds) != 1:
            raise table.malformed(None, f"one of {', '.join(REQUESTS)}")
        request, asked_by = REQUESTS[kinds[0]](self, table, kinds[0])
        if table.has("at"):
            self._now = self.instant(table, "at")
        who = self.who(table, "who") if table.has("who") else asked_by
        note = steps.Note(who, self._now, table.take("why", str, ""))
        expected = table.take("expect", dict, {})
        unknown = sorted(set(expected) - FACTS)
        if unknown:
            raise table.malformed("expect", f"some of {', '.join(sorted(FACTS))}")
        table.done()
        return ScenarioStep(request, note, expected)

    def add(self, table: StrictMapping, key: str) -> tuple[steps.Request, Principal]:
        rule = self.publish_rule(table.table(key))
        self._stated[rule.id] = rule.stated_by
        return steps.Add(rule), rule.stated_by

    def subscribe(self, table: StrictMapping, key: str) -> tuple[steps.Request, Principal]:
        rule = self.subscribe_rule(table.table(key))
        self._stated[rule.id] = rule.stated_by
        return steps.StateSubscriberRule(rule), rule.stated_by

    def resolve(self, table: StrictMapping, key: str) -> tuple[steps.Request, Principal]:
        table = table.table(key)
        rule_id = table.take("rule", str)
        strategy = table.choice("strategy", steps.Strategy)
        consents = self._consents(table)
        table.done()
        return steps.Resolve(rule_id, strategy, consents), self.principal(MODERATOR)

    def _consents(self, table: StrictMapping) -> frozenset[Principal]:
        with table.at("consents"):
            return frozenset(map(self.principal, table.texts("consents")))

    def withdraw(self, table: StrictMapping, key: str) -> tuple[steps.Request, Principal]:
        rule_id = table.take(key, str)
        stated_by = self._stated.get(rule_id)
        return steps.WithdrawRule(rule_id), self.principal(MODERATOR) if stated_by is None else stated_by

    def time(self, table: StrictMapping, key: str) -> tuple[steps.Request, Principal]:
        self._now = self.instant(table, key)
        return steps.Pass(), self.principal(MODERATOR)

    def leave(self, table: StrictMapping, key: str) -> tuple[steps.Request, Principal]:
        publisher = self.who(table, key)
        return steps.Leave(publisher), publisher

    def come_back(self, table: StrictMapping, key: str) -> tuple[steps.Request, Principal]:
        publisher = self.who(table, key)
        return steps.Return(publisher), publisher

    def tree(self, table: StrictMapping, key: str) -> tuple[steps.Request, Principal]:
        table = table.table(key)
        event = self.event(table, "event")
        request: steps.Request
        match key:
            case "add-type":
                request = steps.AddType(event, self.parent(table, "parent"))
            case "move-type":
                strategy = table.choice("strategy", steps.Strategy) if table.has("strategy") else None
                request = steps.MoveType(event, self.parent(table, "parent"), strategy, self._consents(table))
            case "rename-type":
                request = steps.RenameType(event, self.event(table, "to"))
            case _:
                request = steps.RemoveType(event)
        table.done()
        return request, self.principal(MODERATOR)

    def undo(self, table: StrictMapping, key: str) -> tuple[steps.Request, Principal]:
        table = table.table(key)
        request = steps.Undo(table.take("step", int), table.take("replay", bool, False))
        table.done()
        return request, self.principal(MODERATOR)


#: the requests of a step, by key
REQUESTS: Final[Mapping[str, Callable[[_Reader, StrictMapping, str], tuple[steps.Request, Principal]]]] = {
    "add": _Reader.add,
    "subscribe": _Reader.subscribe,
    "resolve": _Reader.resolve,
    "withdraw": _Reader.withdraw,
    "pass": _Reader.time,
    "leave": _Reader.leave,
    "return": _Reader.come_back,
    "add-type": _Reader.tree,
    "move-type": _Reader.tree,
    "rename-type": _Reader.tree,
    "remove-type": _Reader.tree,
    "undo": _Reader.undo,
}
