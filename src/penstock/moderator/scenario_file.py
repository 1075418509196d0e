"""Scenarios as plain data, such as a YAML file holds: a rule base (`rule_file`), and steps with what is expected."""

from collections.abc import Callable, Mapping
from typing import Final

from penstock.model.principals import Principal
from penstock.moderator import steps
from penstock.moderator.file_tables import Form, Table
from penstock.moderator.rule_file import RuleReader
from penstock.moderator.scenario import Scenario, ScenarioStep

SCENARIO: Final = Form("moderator.scenario", "docs/reference/moderator-scenario.md")
#: who changes the tree and lets time pass
MODERATOR: Final = "moderator"
#: what can be expected of a step
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
    """Reads one scenario from top to bottom; rules are known by their ids once they were stated."""

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

    def _step(self, table: Table) -> ScenarioStep:
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

    def add(self, table: Table, key: str) -> tuple[steps.Request, Principal]:
        rule = self.publish_rule(table.table(key))
        self._stated[rule.id] = rule.stated_by
        return steps.Add(rule), rule.stated_by

    def subscribe(self, table: Table, key: str) -> tuple[steps.Request, Principal]:
        rule = self.subscribe_rule(table.table(key))
        self._stated[rule.id] = rule.stated_by
        return steps.Subscribe(rule), rule.stated_by

    def resolve(self, table: Table, key: str) -> tuple[steps.Request, Principal]:
        table = table.table(key)
        rule_id = table.take("rule", str)
        strategy = table.choice("strategy", steps.Strategy)
        consents = self._consents(table)
        table.done()
        return steps.Resolve(rule_id, strategy, consents), self.principal(MODERATOR)

    def _consents(self, table: Table) -> frozenset[Principal]:
        with table.at("consents"):
            return frozenset(map(self.principal, table.texts("consents")))

    def withdraw(self, table: Table, key: str) -> tuple[steps.Request, Principal]:
        rule_id = table.take(key, str)
        stated_by = self._stated.get(rule_id)
        return steps.Withdraw(rule_id), self.principal(MODERATOR) if stated_by is None else stated_by

    def time(self, table: Table, key: str) -> tuple[steps.Request, Principal]:
        self._now = self.instant(table, key)
        return steps.Pass(), self.principal(MODERATOR)

    def leave(self, table: Table, key: str) -> tuple[steps.Request, Principal]:
        publisher = self.who(table, key)
        return steps.Leave(publisher), publisher

    def come_back(self, table: Table, key: str) -> tuple[steps.Request, Principal]:
        publisher = self.who(table, key)
        return steps.Return(publisher), publisher

    def tree(self, table: Table, key: str) -> tuple[steps.Request, Principal]:
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

    def undo(self, table: Table, key: str) -> tuple[steps.Request, Principal]:
        table = table.table(key)
        request = steps.Undo(table.take("step", int), table.take("replay", bool, False))
        table.done()
        return request, self.principal(MODERATOR)


#: what can be asked for
REQUESTS: Final[Mapping[str, Callable[[_Reader, Table, str], tuple[steps.Request, Principal]]]] = {
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
