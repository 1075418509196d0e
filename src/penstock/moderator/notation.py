"""Rules and log entries in the notation of paper 1: `rule(A1, [P1, P2], {(company, A), (role, engineer)})`.

What publishers must satisfy stands in front where it is more than TRUE, and a function that is no attribute list is
written in the selector language.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from penstock.model.principals import Principal
from penstock.moderator.deltas import Logged
from penstock.moderator.lists import AttributeList
from penstock.moderator.rules import PublishRule
from penstock.selector import ALWAYS, Selector

Named: TypeAlias = Callable[[Principal], str]
"""How principals are called."""


def function_text(selector: Selector) -> str:
    """Return a function as the paper writes it."""
    listed = AttributeList.from_selector(selector)
    return selector.text if listed is None else str(listed)


def part_texts(parts: Iterable[Selector]) -> tuple[str, ...]:
    """Return parts of a function, each as an entry of a list where it is one."""
    return tuple(function_text(part).strip("{}") for part in parts)


def rule_text(rules: Sequence[PublishRule], named: Named, head: str = "rule") -> str:
    """Return rules on one event type that state the same functions, as the common rule of their publishers."""
    first = rules[0]
    publishers = sorted({named(publisher) for rule in rules for publisher in rule.publishers})
    fnc_p = "" if first.fnc_p == ALWAYS else f"{function_text(first.fnc_p)}, "
    return f"{head}({first.event.name}, [{', '.join(publishers)}], {fnc_p}{function_text(first.fnc_s)})"


def entry_text(entry: Logged, named: Named) -> str:
    """Return an entry of the log: `modified_rule(…)` or `rejected_rule(…)`."""
    return rule_text(entry.rules, named, f"{entry.kind}_rule")
