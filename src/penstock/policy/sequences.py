"""Regular expressions over decisions, as automata: whether a sequence is one of them, and what two have in common.

    NA* P .*        any number of NotApplicable, then Permit, then anything
    (P | D)+        at least one, of Permit and Deny alone
    none            no sequence at all

Letters are decisions; what stands side by side comes one after the other; `|`, `*`, `+`, `?` and brackets mean what
they always mean, and a dot is any decision.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import LimitError, MalformedError
from penstock.model.limits import DEFAULT_LIMITS

_WORD: Final = re.compile(r"\s*(?:([A-Za-z_]+)|(Σ|∅|[()|*+?.]))", re.ASCII)
_ANY: Final = ("Σ", ".")
_NONE: Final = ("∅", "none")


@dataclass(slots=True)
class _Part:
    """A part of an automaton that is not deterministic: where it begins and where it ends."""

    begin: int
    end: int


class _Builder:
    """Builds an automaton from an expression, part by part."""

    def __init__(self, alphabet: frozenset[str]) -> None:
        self._alphabet = alphabet
        self.steps: list[dict[str, set[int]]] = []
        self.free: list[set[int]] = []
        self._words: list[str] = []

    def build(self, text: str) -> _Part:
        self._words = _words(text)
        part = self._choice()
        if self._words:
            raise _wrong(f"`{self._words[-1]}` stands where nothing can follow")
        return part

    def _state(self) -> int:
        if len(self.free) >= DEFAULT_LIMITS.policy_states:
            raise LimitError("combining.limit", "an expression over decisions is too long")
        self.steps.append({})
        self.free.append(set())
        return len(self.free) - 1

    def _choice(self) -> _Part:
        parts = [self._chain()]
        while self._words and self._words[-1] == "|":
            self._words.pop()
            parts.append(self._chain())
        if len(parts) == 1:
            return parts[0]
        whole = _Part(self._state(), self._state())
        for part in parts:
            self.free[whole.begin].add(part.begin)
            self.free[part.end].add(whole.end)
        return whole

    def _chain(self) -> _Part:
        whole = _Part(state := self._state(), state)
        while self._words and self._words[-1] not in ("|", ")"):
            part = self._repeated()
            self.free[whole.end].add(part.begin)
            whole = _Part(whole.begin, part.end)
        return whole

    def _repeated(self) -> _Part:
        part = self._letter()
        while self._words and self._words[-1] in ("*", "+", "?"):
            sign = self._words.pop()
            whole = _Part(self._state(), self._state())
            self.free[whole.begin].add(part.begin)
            self.free[part.end].add(whole.end)
            if sign != "+":
                self.free[whole.begin].add(whole.end)
            if sign != "?":
                self.free[part.end].add(part.begin)
            part = whole
        return part

    def _letter(self) -> _Part:
        word = self._words.pop()
        if word == "(":
            part = self._choice()
            if not self._words or self._words.pop() != ")":
                raise _wrong("a bracket is not closed")
            return part
        part = _Part(self._state(), self._state())
        if word in _NONE:
            return part
        letters = self._alphabet if word in _ANY else frozenset((word,)) & self._alphabet
        if not letters:
            raise _wrong(f"`{word}` is no decision")
        for letter in letters:
            self.steps[part.begin].setdefault(letter, set()).add(part.end)
        return part


def _words(text: str) -> list[str]:
    """Return the words of an expression, the first one last."""
    found, place = [], 0
    text = text.rstrip()
    while place < len(text):
        word = _WORD.match(text, place)
        if word is None:
            raise _wrong(f"`{text[place : place + 20]}` cannot be read")
        found.append(word[1] or word[2])
        place = word.end()
    return found[::-1]


def _wrong(message: str) -> MalformedError:
    return MalformedError("combining.expression", message)


@dataclass(frozen=True, slots=True)
class Automaton:
    """An expression over decisions. A state is a number; the first is 0."""

    steps: tuple[Mapping[str, int], ...]
    accepting: frozenset[int]

    @classmethod
    def of(cls, text: str, alphabet: Iterable[str]) -> "Automaton":
        """Read an expression. Raises `MalformedError` (`combining.expression`), `LimitError` (`combining.limit`)."""
        letters = frozenset(alphabet)
        builder = _Builder(letters)
        part = builder.build(text)

        def closed(states: Iterable[int]) -> frozenset[int]:
            seen, left = set(states), [*states]
            while left:
                for state in builder.free[left.pop()] - seen:
                    seen.add(state)
                    left.append(state)
            return frozenset(seen)

        numbers = {closed([part.begin]): 0}
        steps: list[dict[str, int]] = []
        for states in (waiting := [*numbers]):
            step = {}
            for letter in sorted(letters):
                following = closed({after for state in states for after in builder.steps[state].get(letter, ())})
                if following not in numbers:
                    if len(numbers) >= DEFAULT_LIMITS.policy_states:
                        raise LimitError("combining.limit", "an expression over decisions is too long")
                    numbers[following] = len(numbers)
                    waiting.append(following)
                step[letter] = numbers[following]
            steps.append(step)
        return cls(tuple(steps), frozenset(number for states, number in numbers.items() if part.end in states))

    def accepts(self, sequence: Iterable[str]) -> bool:
        """Say whether a sequence of decisions is one that is meant."""
        state = 0
        for letter in sequence:
            state = self.steps[state][letter]
        return state in self.accepting


def find(automata: Sequence[Automaton], accepting: "frozenset[int] | range") -> tuple[str, ...] | None:
    """Return a shortest sequence that as many automata accept as is said, if there is one."""
    begin = (0,) * len(automata)
    ways: dict[tuple[int, ...], tuple[str, ...]] = {begin: ()}
    for states in (waiting := [begin]):
        way = ways[states]
        if sum(state in one.accepting for one, state in zip(automata, states, strict=True)) in accepting:
            return way
        for letter in automata[0].steps[0]:
            following = tuple(one.steps[state][letter] for one, state in zip(automata, states, strict=True))
            if following not in ways:
                ways[following] = (*way, letter)
                waiting.append(following)
    return None
