"""Describe rules, conflicts and steps: in plain sentences, as facts for JSON, and in the notation of paper 1.

The notation is `rule(A1, [P1, P2], {(company, A), (role, engineer)})`. The function for publishers comes first if it is
not TRUE. A function that is not an attribute list is written in the selector language. Both can be parsed again.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Final, TypeAlias

from penstock.errors import MalformedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.tree import TreeScope
from penstock.model.values import Scalar, Value
from penstock.moderator.base.base import RuleBase
from penstock.moderator.rules import steps
from penstock.moderator.rules.rules import (
    AttributeList,
    Bound,
    Conflict,
    ConflictKind,
    ListEntry,
    Party,
    PublishRule,
    Rule,
    RuleFunction,
)
from penstock.moderator.rules.steps import Add, Logged, RuleState, RuleStatus, StateSubscriberRule, Step, SubscriberRule
from penstock.moderator.settlement.addition import Plan
from penstock.moderator.settlement.proposals import Resolution
from penstock.selector import ALWAYS, Selector, parse

Named: TypeAlias = Callable[[Principal], str]
"""Returns the name of a principal."""

_ENTRY: Final = re.compile(r"\(\s*([^\s,()]+)\s*,\s*(?:(min|max)\s*,\s*)?('[^']*'|[^\s,()'][^,()']*)\)")
_LIST: Final = re.compile(rf"\{{\s*{_ENTRY.pattern}(?:\s*,\s*{_ENTRY.pattern})*\s*\}}")
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)


def parse_function(text: str) -> Selector:
    """Read a function: a list as the paper writes it, or a condition in the selector language.

    >>> parse_function("{(role, engineer), (age, max, 18)}").text
    "age <= 18 AND role = 'engineer'"
    >>> parse_function("age <= 18 or role = 'engineer'").text
    "age <= 18 OR role = 'engineer'"

    Raises `MalformedError` (`moderator.list`, and what `AttributeList` raises), and what `parse` raises.
    """
    if not text.lstrip().startswith("{"):
        return parse(text)
    if re.fullmatch(r"\{\s*\}", text.strip()) is None and _LIST.fullmatch(text.strip()) is None:
        raise MalformedError(
            "moderator.list",
            "this is not an attribute list",
            hint="write {(role, engineer), (age, max, 18)}, or a condition such as `role = 'engineer' AND age <= 18`",
        )
    found = (
        ListEntry(name, _parsed_value(value), Bound(bound or Bound.IS)) for name, bound, value in _ENTRY.findall(text)
    )
    return AttributeList(tuple(found)).selector


def _parsed_value(written: str) -> Value:
    if written.startswith("'"):
        return written[1:-1]
    word = written.strip()
    number = _NUMBER.fullmatch(word)
    if number is not None:
        return float(word) if number[1] else int(word)
    return {"true": True, "false": False}.get(word, word)


def function_text(selector: Selector) -> str:
    """Return a function as the paper writes it."""
    listed = AttributeList.from_selector(selector)
    return selector.text if listed is None else str(listed)


def part_texts(parts: Iterable[Selector]) -> tuple[str, ...]:
    """Return the texts of a function's parts, each as a list entry if possible."""
    return tuple(function_text(part).strip("{}") for part in parts)


def rule_text(rules: Sequence[PublishRule], named: Named, head: str = "rule") -> str:
    """Return the text of rules on one event type that state the same functions, as one rule of all publishers."""
    first = rules[0]
    publishers = sorted({named(publisher) for rule in rules for publisher in rule.publishers})
    fnc_p = "" if first.fnc_p == ALWAYS else f"{function_text(first.fnc_p)}, "
    return f"{head}({first.event.name}, [{', '.join(publishers)}], {fnc_p}{function_text(first.fnc_s)})"


def entry_text(entry: Logged, named: Named) -> str:
    """Return an entry of the log: `modified_rule(…)` or `rejected_rule(…)`."""
    return rule_text(entry.rules, named, f"{entry.kind}_rule")


# ----------------------------------------------------------------------------------------------------------------------
# Conflicts, proposals and steps as plain data, for scenarios and programs.


Facts = dict[str, object]
"""Plain data, by name."""


def conflict_facts(conflicts: Iterable[Conflict]) -> list[Facts]:
    """Return a conflict as plain data: the rules, the attributes, and a witness."""
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
    """Return a proposal as plain data: its changes, and how many subscribers gain and lose."""
    return {
        "strategy": str(resolution.strategy),
        "touched": resolution.touched,
        "relaxed": sorted(named(publisher) for publisher in resolution.relaxed),
        "gained": resolution.gained,
        "lost": resolution.lost,
        "diff": resolution.diff(),
    }


def plan_facts(base: RuleBase, planned: Plan, named: Named) -> Facts:
    """Return the result of a request as plain data; `base` can be the rule base before or after the step."""
    step = planned.step
    used = {entry.place for entry in step.restored}
    return {
        "outcome": outcome(base, planned),
        "restored": [entry_text(entry, named) for entry in step.restored],
        "logged": [entry_text(entry, named) for entry in step.delta.logged],
        "dropped": [entry_text(entry, named) for entry in step.delta.dropped if entry.place not in used],
    }


def outcome(base: RuleBase, planned: Plan) -> str:
    """Return the outcome of a request in one word."""
    if planned.resolution is not None:
        return "resolved"
    standing = stated_by(base, planned.step)
    if standing is None:
        return "done"
    as_stated = standing.status is RuleStatus.IN_FORCE and (
        isinstance(standing, SubscriberRule) or standing.form == standing.stated
    )
    return "accepted" if as_stated else str(standing.status)


def stated_by(base: RuleBase, step: Step) -> RuleState | SubscriberRule | None:
    """Return the status of the rule that a step stated; None if it stated none."""
    match step.request:
        case Add(rule):
            change = step.delta.rules.get(rule.id)
            return base.standings.get(rule.id) if change is None else change.after
        case StateSubscriberRule(wish):
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
    stated: dict[str, RuleState | SubscriberRule] = {**base.standings, **base.wishes}
    return sorted(rule_id for rule_id, each in stated.items() if each.status is RuleStatus.WAITING)


def log_facts(base: RuleBase, named: Named) -> list[str]:
    """Return the whole log of rules that were changed or rejected, oldest first."""
    return [entry_text(entry, named) for entry in reversed([*base.history])]


def returning(base: RuleBase, named: Named) -> list[str]:
    """Return the log entries that can be restored, oldest first, without rules that were withdrawn or have ended."""
    over = (RuleStatus.WITHDRAWN, RuleStatus.ENDED)
    entries = (
        replace(entry, rules=tuple(rule for rule in entry.rules if base.standings[rule.id].status not in over))
        for entry in reversed([*base.history])
    )
    return [entry_text(entry, named) for entry in entries if entry.rules]


def plain_values(values: Mapping[str, object]) -> Facts:
    """Return values as plain data, by attribute name."""
    return {
        name: value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
        for name, value in sorted(values.items())
    }


# ----------------------------------------------------------------------------------------------------------------------
# Rules, conflicts and steps in plain sentences, for people who read neither selectors nor the paper.


_WHO: Final = {RuleFunction.P: "publishers", RuleFunction.S: "subscribers"}
_BOUNDS: Final = {Bound.IS: "", Bound.MIN: "at least ", Bound.MAX: "at most "}
_WHERE: Final = {
    ConflictKind.SAME: "on the same event type",
    ConflictKind.UP: "above it",
    ConflictKind.DOWN: "below it",
}
_REACH: Final = {
    TreeScope.UPWARD: "whoever may have a type has to be allowed all types above it",
    TreeScope.DOWNWARD: "whoever may have a type has to be allowed all types below it",
}


def rule_sentence(rule: Rule, named: Named) -> str:
    """Describe the demands of a rule.

    `acme: only subscribers with role engineer and age at least 18 receive Line.Press.`
    """
    who, event = named(rule.stated_by), rule.event.name
    if not isinstance(rule, PublishRule):
        subscriber = named(rule.subscriber)
        speaks = "" if rule.subscriber == rule.stated_by else f"{who}: "
        publishers_wanted = "any publisher" if rule.fnc_p == ALWAYS else f"publishers {condition(rule.fnc_p)}"
        return f"{speaks}{subscriber} wants {event} from {publishers_wanted}."
    publishers = listed(named(publisher) for publisher in rule.publishers)
    speaks = publishers if rule.publishers == (rule.stated_by,) else f"{publishers} (stated by {who})"
    receive = (
        f"all subscribers receive {event}"
        if rule.fnc_s == ALWAYS
        else f"only subscribers {condition(rule.fnc_s)} receive {event}"
    )
    publish = "" if rule.fnc_p == ALWAYS else f", and only publishers {condition(rule.fnc_p)} publish it"
    return f"{speaks}: {receive}{publish}."


def condition(function: Selector) -> str:
    """Describe who satisfies a function: `with role engineer and age at least 18`, or the condition itself."""
    found = AttributeList.from_selector(function)
    if found is None:
        return f"who satisfy {function.text}"
    return f"with {listed(_entry(entry) for entry in found.entries)}"


def part(selector: Selector) -> str:
    """Describe the demand of a part of a function."""
    found = AttributeList.from_selector(selector)
    return selector.text if found is None else listed(_entry(entry) for entry in found.entries)


def person(values: Mapping[str, Scalar]) -> str:
    """Describe somebody by a profile.

    >>> person({"role": "engineer", "age": 41, "night": None})
    'age 41 and role engineer'
    """
    known = [f"{name} {_value(value)}" for name, value in sorted(values.items()) if value is not None]
    return listed(known) if known else "nothing known"


def conflict_sentences(candidate: PublishRule, conflict: Conflict, scope: TreeScope) -> Iterator[str]:
    """Describe what a candidate conflicts with, over what, and for which profile."""
    rules = f"{'rule' if len(conflict.rules) == 1 else 'rules'} {listed(_some(conflict.rules))}"
    do = "does" if len(conflict.rules) == 1 else "do"
    where = f"{rules} on {conflict.event.name}, {_WHERE[conflict.kind]}"
    about = _WHO[conflict.function]
    yield f"{candidate.id} on {candidate.event.name} conflicts with {where}, in what it demands of {about}."
    if conflict.missing:
        yield f"{candidate.id} does not demand {_parts(conflict.missing)}, which {rules} {do}."
    if conflict.extra:
        yield f"{candidate.id} demands {_parts(conflict.extra)}, which {rules} {do} not."
    yield from _witness(candidate, conflict, rules)
    if conflict.kind is not ConflictKind.SAME:
        yield f"The scope is {scope}: {_REACH[scope]}."
    else:
        yield "Rules on one event type have to say the same."


def _witness(candidate: PublishRule, conflict: Conflict, rules: str) -> Iterator[str]:
    verb = "publish" if conflict.function is RuleFunction.P else "receive"
    if not conflict.certain:
        yield "Whether anybody is concerned was not found out in time, so it counts as a conflict."
    elif conflict.witness is None or conflict.admitted_by is None:
        yield "Nobody is concerned: they admit the same people, but the lists differ."
    else:
        mine = (candidate.id, candidate.event.name)
        theirs = (rules, conflict.event.name)
        yes, no = (mine, theirs) if conflict.admitted_by is Party.CANDIDATE else (theirs, mine)
        yield (
            f"For example, somebody with {person(conflict.witness.values)} could {verb} {yes[1]} by {yes[0]}, "
            f"but not {no[1]} by {no[0]}."
        )


def resolution_sentence(resolution: Resolution, candidate: str, named: Named, *, counted: bool) -> str:
    """Describe the effect of a proposal."""
    ways = {
        steps.Strategy.FOLLOW: f"{candidate} alone changes, to what the others allow",
        steps.Strategy.ADD: "all involved demand what any of them demands",
        steps.Strategy.DELETE: "all involved keep only what they have in common",
    }
    touched = {0: "no rule in force changes", 1: "1 rule in force changes"}.get(
        resolution.touched, f"{resolution.touched:,} rules in force change"
    )
    consent = (
        f"; {listed(sorted(map(named, resolution.relaxed)))} must agree to demand less" if resolution.relaxed else ""
    )
    people = f"; of the subscribers known, {_people(resolution)}" if counted else ""
    return f"{ways[resolution.strategy]}: {touched}{people}{consent}"


def resolution_meaning(resolution: Resolution, named: Named, most: int = 5) -> Iterator[str]:
    """Describe who can publish and receive each event type after a proposal, and which rules that widens.

    `After this, everybody can receive Line from bolt: wider than line asks for.`
    """
    by_event = {
        revision.after.event: [each for each in resolution.revisions if each.after.event == revision.after.event]
        for revision in resolution.revisions
    }
    for event, revisions in [*by_event.items()][:most]:
        after = revisions[0].after
        publishers = listed(sorted({named(each) for revision in revisions for each in revision.after.publishers}))
        receive = (
            f"everybody can receive {event.name} from {publishers}"
            if after.fnc_s == ALWAYS
            else f"only subscribers {condition(after.fnc_s)} can receive {event.name} from {publishers}"
        )
        publish = ""
        if any(revision.before.fnc_p != revision.after.fnc_p for revision in revisions):
            publishers = "everybody" if after.fnc_p == ALWAYS else f"only publishers {condition(after.fnc_p)}"
            publish = f", and {publishers} can publish it"
        wider = [revision.before.id for revision in revisions if revision.before.id in resolution.wider]
        asks = f": wider than {listed(_some(wider))} {'asks' if len(wider) == 1 else 'ask'} for" if wider else ""
        yield f"After this, {receive}{publish}{asks}."
    if len(by_event) > most:
        yield f"{len(by_event) - most:,} more event types change in the same way."


def _people(resolution: Resolution) -> str:
    def some(number: int, verb: str) -> str:
        return f"none {verb}s" if not number else f"{number:,} {verb}{'s' if number == 1 else ''}"

    return f"{some(resolution.gained, 'gain')} and {some(resolution.lost, 'lose')} events"


def standing_sentence(standing: RuleState | SubscriberRule) -> str:
    """Describe the status of a rule."""
    match standing.status:
        case RuleStatus.IN_FORCE if isinstance(standing, SubscriberRule) or standing.form == standing.stated:
            return "It is in force as it was stated."
        case RuleStatus.IN_FORCE:
            return "It is in force, in another form than it was stated:"
        case RuleStatus.REJECTED:
            return "It was rejected, because it conflicts, and is in the log of what may come back."
        case RuleStatus.WAITING:
            return "It waits for its period to begin."
        case RuleStatus.WITHDRAWN:
            return "Whoever stated it took it back."
        case RuleStatus.ENDED:
            return "Its period is over, or its event type is gone."
        case RuleStatus.LEFT:
            return "It rests, because whoever stated it is away."


def request_sentence(request: steps.Request, named: Named) -> str:
    """Describe a request."""
    match request:
        case steps.Add(rule):
            return f"state {rule.id} on {rule.event.name}"
        case steps.StateSubscriberRule(wish):
            return f"state {wish.id} on {wish.event.name}"
        case steps.Resolve(rule_id, strategy):
            return f"resolve {rule_id} by {strategy}"
        case steps.WithdrawRule(rule_id):
            return f"withdraw {rule_id}"
        case steps.Pass():
            return "let time pass"
        case steps.Leave(publisher):
            return f"let {named(publisher)} leave"
        case steps.Return(publisher):
            return f"let {named(publisher)} come back"
        case steps.Undo(number, replay):
            return f"undo step {number}" + (" and replay what came later" if replay else "")
        case steps.RenameType(event, to):
            return f"rename {event.name} to {to.name}"
        case steps.RemoveType(event):
            return f"remove {event.name} from the tree"
        case steps.AddType(event, parent):
            return f"add {event.name} {_below(parent)}"
        case steps.MoveType(event, parent):
            return f"move {event.name} {_below(parent)}"


def _below(parent: object) -> str:
    return "as a root" if parent is None else f"below {getattr(parent, 'name', parent)}"


def listed(words: Iterable[str]) -> str:
    """Join words as in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    found = [*words]
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}" if found else "nobody"


def _some(rules: Sequence[str], most: int = 5) -> list[str]:
    return [*rules] if len(rules) <= most else [*rules[:most], f"{len(rules) - most:,} others"]


def _parts(parts: Iterable[Selector]) -> str:
    return listed(map(part, parts))


def _entry(entry: ListEntry) -> str:
    return f"{entry.name} {_BOUNDS[entry.bound]}{_value(entry.value)}"


def _value(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)
