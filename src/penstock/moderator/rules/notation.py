"""Rules and log entries in the notation of paper 1: `rule(A1, [P1, P2], {(company, A), (role, engineer)})`.

What publishers must satisfy stands in front where it is more than TRUE, and a function that is not an attribute list is
written in the selector language. Both can be read back.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from penstock.errors import MalformedError
from penstock.model.principals import Principal
from penstock.model.values import Value
from penstock.moderator.rules.lists import AttributeList, Bound, ListEntry
from penstock.moderator.rules.rules import PublishRule
from penstock.moderator.rules.steps import Logged
from penstock.selector import ALWAYS, Selector, parse

Named: TypeAlias = Callable[[Principal], str]
"""How principals are called."""

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
            "that is not an attribute list",
            hint="write {(role, engineer), (age, max, 18)}, or a condition such as `role = 'engineer' AND age <= 18`",
        )
    found = (ListEntry(name, _value(value), Bound(bound or Bound.IS)) for name, bound, value in _ENTRY.findall(text))
    return AttributeList(tuple(found)).selector


def _value(written: str) -> Value:
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
