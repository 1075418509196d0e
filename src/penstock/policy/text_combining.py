"""Combining algorithms in the text form: by name or id, as a decision tuple, and with priorities.

apply deny-overrides
apply tuple { P "#P > 1" D "#P < 1 and #D > 0" }
apply deny-overrides priorities 2, 1, 1
"""

from penstock.errors import MalformedError, RefusedError
from penstock.policy.combining import policy_algorithm, rule_algorithm, split_priorities, with_priorities
from penstock.policy.policies import PolicySet, Root
from penstock.policy.text_names import POLICY_COMBINING, RULE_COMBINING
from penstock.policy.text_tokens import NAME, NUMBER, problem, quoted
from penstock.policy.text_words import Words
from penstock.policy.tuples import PREFIX, DecisionTuple


def read_combining(words: Words, *, rules: bool) -> str:
    """Read what follows `apply`, and return the id of the algorithm. Raises `PolicyTextError`."""
    start = words.token.at
    if words.sees("tuple") and words.before("{"):
        elements = _elements(words)
        try:
            with words.at(start):
                name = DecisionTuple.of(elements).id
        except RefusedError as error:
            raise problem(error.code, error.message, words.text, start, error.hint) from None
    else:
        name = words.id("a combining algorithm")
    known, check = (RULE_COMBINING, rule_algorithm) if rules else (POLICY_COMBINING, policy_algorithm)
    with words.at(start):
        found = known.get(name, name)
        check(found)
        if words.taken("priorities"):
            found = with_priorities(_priorities(words), found)
            check(found)
    return found


def _elements(words: Words) -> dict[str, str]:
    words.take()
    words.expect("{")
    found: dict[str, str] = {}
    while not words.taken("}"):
        start = words.token.at
        if words.token.kind != NAME:
            words.wrong("an element, or `}`")
        name = words.take().text
        with words.at(start):
            if name in found:
                raise MalformedError("combining.elements", f"there are two of `{name[:80]}`")
        found[name] = words.quoted()
    return found


def _priorities(words: Words) -> list[int]:
    found = []
    while True:
        sign = -1 if words.taken("-") else 1
        if words.token.kind != NUMBER or not words.token.text.isdecimal():
            words.wrong("a priority, which is an integer")
        found.append(sign * int(words.take().text))
        if not words.taken(","):
            return found


def written_combining(root: Root) -> str:
    """Return what follows `apply`. Raises `MalformedError` for what is no algorithm."""
    known, check = (
        (POLICY_COMBINING, policy_algorithm) if isinstance(root, PolicySet) else (RULE_COMBINING, rule_algorithm)
    )
    check(root.combining)
    priorities, name = split_priorities(root.combining)
    if any(one < 0 for one in priorities) or (priorities and with_priorities(priorities, name) != root.combining):
        return quoted(root.combining)
    short = name.rpartition(":")[2]
    text = short if known.get(short) == name else _tuple_text(name) or quoted(name)
    return f"{text} priorities {', '.join(map(str, priorities))}" if priorities else text


def _tuple_text(name: str) -> str | None:
    made = DecisionTuple.of_id(name) if name.startswith(PREFIX) else None
    if made is None or made.id != name:
        return None
    inside = " ".join(f"{element} {quoted(text)}" for element, text in made.elements.items() if text)
    return f"tuple {{ {inside} }}" if inside else None
