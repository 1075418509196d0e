"""Decision tuples (paper 4, section 4.1.1.3): a combining algorithm that says for each decision when it comes.

Each element is an expression over sequences of decisions (`sequences`), or a constraint on how many of each there are:

    P:  NA* P .*            P:  #P > 0 and #D = 0 and #IN = 0
    D:  NA* D .*            D:  #D > 0
    NA: NA*                 NA: none
    IN: NA* IN .*           IN: #D = 0 and #IN > 0

No two elements may accept the same: that is an error. What none accepts is Indeterminate, and told as a gap. With the
letters IN_P, IN_D and IN_DP in place of IN, errors are distinguished as in the standard, and so are results.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Final, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote

from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.values import AttributeSpec, Kind, Ranged, Schema
from penstock.policy.combining.algorithms import Child, CombiningAlgorithm, gathered
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.policy.limits import POLICY_STATES
from penstock.selector import (
    NEVER,
    AnalysisVerdict,
    Selector,
    compile_selector,
    conjunction,
    negation,
    parse,
    satisfiable,
)
from penstock.selector.limits import SELECTOR_LIMITS, SelectorLimits

# ----------------------------------------------------------------------------------------------------------------------
# Regular expressions over decisions, as automata: whether a sequence is one of them, and what two have in common.
#
#     NA* P .*        any number of NotApplicable, then Permit, then anything
#     (P | D)+        at least one, of Permit and Deny alone
#     none            no sequence at all
#
# Letters are decisions; what stands side by side comes one after the other; `|`, `*`, `+`, `?` and brackets mean what
# they always mean, and a dot is any decision.


_WORD: Final = re.compile(r"\s*(?:([A-Za-z_]+)|(Σ|∅|[()|*+?.]))", re.ASCII)
_ANY: Final = ("Σ", ".")
_NO_SEQUENCE: Final = ("∅", "none")


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
        if len(self.free) >= POLICY_STATES:
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
        if word in _NO_SEQUENCE:
            return part
        letters = self._alphabet if word in _ANY else frozenset((word,)) & self._alphabet
        if not letters:
            raise _wrong(f"`{word}` is not a decision")
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
                    if len(numbers) >= POLICY_STATES:
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


# ----------------------------------------------------------------------------------------------------------------------
# The combining algorithms of XACML 3.0 (appendix C), and those before it, as decision tuples of extended letters. They
# decide nothing: they are what the paper says of each algorithm, and tests hold the functions in `algorithms` to it.


Elements: TypeAlias = Mapping[str, str]

_FAILED: Final = ("IN_P", "IN_D", "IN_DP")


def _none(*letters: str) -> str:
    return " and ".join(f"#{letter} = 0" for letter in letters)


def _some(*letters: str) -> str:
    return " or ".join(f"#{letter} > 0" for letter in letters)


_NOTHING: Final = _none("P", "D", *_FAILED)


def overrides_tuple(strong: str, weak: str) -> Elements:
    """C.2, C.4."""
    return {
        strong: f"#{strong} > 0",
        weak: f"#{strong} = 0 and #IN_DP = 0 and #IN_{strong} = 0 and #{weak} > 0",
        "NA": _NOTHING,
        f"IN_{strong}": f"#{strong} = 0 and #IN_DP = 0 and #IN_{strong} > 0 and #IN_{weak} = 0 and #{weak} = 0",
        f"IN_{weak}": f"#{strong} = 0 and #IN_DP = 0 and #IN_{strong} = 0 and #{weak} = 0 and #IN_{weak} > 0",
        "IN_DP": f"#{strong} = 0 and (#IN_DP > 0 or (#IN_{strong} > 0 and (#IN_{weak} > 0 or #{weak} > 0)))",
    }


def unless_tuple(strong: str, other: str) -> Elements:
    """C.6, C.7."""
    return {strong: f"#{strong} > 0", other: f"#{strong} = 0", "IN_DP": "none"}


def legacy_rules_tuple(strong: str, weak: str) -> Elements:
    """C.10, C.12."""
    spared = f"#{strong} = 0 and #IN_DP = 0 and #IN_{strong} = 0"
    return {
        strong: f"#{strong} > 0",
        "IN_DP": f"#{strong} = 0 and #IN_DP > 0",
        f"IN_{strong}": f"#{strong} = 0 and #IN_DP = 0 and #IN_{strong} > 0",
        weak: f"{spared} and #{weak} > 0",
        f"IN_{weak}": f"{spared} and #{weak} = 0 and #IN_{weak} > 0",
        "NA": _NOTHING,
    }


#: C.11
LEGACY_DENY_TUPLE: Final = {
    "D": _some("D", *_FAILED), "P": f"{_none('D', *_FAILED)} and #P > 0", "NA": _NOTHING, "IN_DP": "none",
}  # fmt: skip
#: C.13
LEGACY_PERMIT_TUPLE: Final = {
    "P": "#P > 0", "D": "#P = 0 and #D > 0", "IN_DP": f"#P = 0 and #D = 0 and ({_some(*_FAILED)})", "NA": _NOTHING,
}  # fmt: skip
#: C.8
FIRST_TUPLE: Final = {
    "P": "NA* P .*", "D": "NA* D .*", "NA": "NA*", "IN_P": "NA* IN_P .*", "IN_D": "NA* IN_D .*",
    "IN_DP": "NA* IN_DP .*",
}  # fmt: skip
#: C.9: which children are applicable, it asks of their targets; here it is what they say
ONLY_ONE_TUPLE: Final = {
    "P": "NA* P NA*", "D": "NA* D NA*", "NA": "NA*", "IN_P": "NA* IN_P NA*", "IN_D": "NA* IN_D NA*",
    "IN_DP": "NA* IN_DP .* | NA* (P | D | IN_P | IN_D) NA* (P | D | IN_P | IN_D | IN_DP) .*",
}  # fmt: skip


def on_permit_second_tuple() -> Elements:
    """Two or three: the second where the first permits, the third where it does not; either where that is not known."""
    not_first, unknown = "(D | NA | IN_D)", "(IN_P | IN_DP)"
    taken = {letter: f"P {letter} .? | {not_first} . {letter}" for letter in ("P", "D", "NA", *_FAILED)}
    permit, deny = "(P | IN_P)", "(D | IN_D)"

    def one_sided(side: str) -> str:
        return f"{unknown} ({side} | {side} NA | NA {side} | {side} {side})"

    return {
        "P": taken["P"],
        "D": taken["D"],
        "NA": f"{taken['NA']} | {not_first} . | {unknown} NA NA?",
        "IN_P": f"{taken['IN_P']} | {one_sided(permit)}",
        "IN_D": f"{taken['IN_D']} | {one_sided(deny)}",
        "IN_DP": (
            f"{taken['IN_DP']} | {unknown} (IN_DP .? | . IN_DP | {permit} {deny} | {deny} {permit})"
            " | .? | . . . . .*"
        ),
    }  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------------
# Decision tuples (paper 4, section 4.1.1.3): a combining algorithm that says for each decision when it comes.


C = TypeVar("C")

PLAIN: Final = ("P", "D", "NA", "IN")
EXTENDED: Final = ("P", "D", "NA", "IN_P", "IN_D", "IN_DP")
PREFIX: Final = "urn:penstock:decision-tuple:"
"""How the id of such an algorithm begins; the elements follow as in an address: `P=%23P%20%3E%200&…`."""

_RESULTS: Final = {
    "P": XacmlDecision.PERMIT,
    "D": XacmlDecision.DENY,
    "NA": XacmlDecision.NOT_APPLICABLE,
    "IN": XacmlDecision.INDETERMINATE_DP,
    "IN_P": XacmlDecision.INDETERMINATE_P,
    "IN_D": XacmlDecision.INDETERMINATE_D,
    "IN_DP": XacmlDecision.INDETERMINATE_DP,
}
_LETTERS: Final = {decision: letter for letter, decision in _RESULTS.items() if letter != "IN"}
_COUNT: Final = re.compile(r"#(IN_DP|IN_P|IN_D|IN|NA|P|D)\b")
_NONE: Final = ("", "none", "∅")
#: as many decisions of one kind as are thought of at most
_MOST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TupleGap:
    """Decisions that no element accepts, or that two do: a sequence, or any in which there are as many of each."""

    elements: tuple[str, ...]
    witness: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.witness) or "no decision at all"


class _Meaning(Protocol):
    """How the elements of a tuple are read."""

    def accepted(self, sequence: Sequence[str]) -> list[str]:
        """Return the elements that accept decisions."""

    def common(self, pair: tuple[str, str]) -> tuple[str, ...] | None:
        """Return decisions that two elements accept."""

    def uncovered(self) -> tuple[str, ...] | None:
        """Return decisions that no element accepts."""


class _Sequences:
    """Elements that are expressions over sequences."""

    def __init__(self, elements: Mapping[str, str]) -> None:
        self._automata = {letter: Automaton.of(text or "none", elements) for letter, text in elements.items()}

    def accepted(self, sequence: Sequence[str]) -> list[str]:
        return [letter for letter, one in self._automata.items() if one.accepts(sequence)]

    def common(self, pair: tuple[str, str]) -> tuple[str, ...] | None:
        return find([self._automata[letter] for letter in pair], frozenset((2,)))

    def uncovered(self) -> tuple[str, ...] | None:
        return find([*self._automata.values()], frozenset((0,)))


class _Counts:
    """Elements that are constraints on how many decisions of each kind there are."""

    def __init__(self, elements: Mapping[str, str], limits: SelectorLimits) -> None:
        self._limits = limits
        self._names = {letter: f"n_{letter}" for letter in elements}
        self._schema: Schema = dict.fromkeys(self._names.values(), AttributeSpec(Kind.INTEGER, Ranged(0, _MOST)))
        self._selectors = {letter: self._read(text) for letter, text in elements.items()}
        self._compiled = {letter: compile_selector(one, self._schema) for letter, one in self._selectors.items()}

    def _read(self, text: str) -> Selector:
        if text in _NONE:
            return NEVER
        found = parse(_COUNT.sub(lambda sign: f"n_{sign[1]}", text), limits=self._limits)
        found.check(self._schema)
        return found

    def accepted(self, sequence: Sequence[str]) -> list[str]:
        counts = {name: sequence.count(letter) for letter, name in self._names.items()}
        return [letter for letter, holds in self._compiled.items() if holds(counts)]

    def common(self, pair: tuple[str, str]) -> tuple[str, ...] | None:
        return self._witness(conjunction(*(self._selectors[letter] for letter in pair)))

    def uncovered(self) -> tuple[str, ...] | None:
        return self._witness(conjunction(*(negation(one) for one in self._selectors.values())))

    def _witness(self, selector: Selector) -> tuple[str, ...] | None:
        known = parse(" AND ".join(f"{name} IS NOT NULL" for name in self._names.values()))
        answer = satisfiable(conjunction(selector, known), self._schema, limits=self._limits)
        if answer.verdict is AnalysisVerdict.UNKNOWN:
            raise RefusedError("combining.undecided", "it is not known whether elements of the tuple overlap")
        if answer.witness is None:
            return None
        counts = {letter: int(str(answer.witness.get(name) or 0)) for letter, name in self._names.items()}
        return tuple(f"{count} of {letter}" for letter, count in counts.items() if count)


@dataclass(frozen=True)
class DecisionTuple:
    """A decision tuple. `of` reads one, and refuses elements that overlap."""

    elements: Mapping[str, str]
    _meaning: _Meaning = field(repr=False, compare=False)

    @classmethod
    def of(cls, elements: Mapping[str, str], *, limits: SelectorLimits = SELECTOR_LIMITS) -> "DecisionTuple":
        """Read a tuple.

        Raises `MalformedError` (`combining.elements`, `combining.expression`, and what selectors raise), `LimitError`,
        and `RefusedError` (`combining.overlap`, `combining.undecided`).
        """
        letters = EXTENDED if set(elements) & set(EXTENDED[3:]) else PLAIN
        if set(elements) - set(letters):
            raise MalformedError("combining.elements", f"a tuple has the elements {', '.join(letters)}")
        whole = {letter: elements.get(letter, "").strip() for letter in letters}
        counted = any("#" in text for text in whole.values())
        made = cls(whole, _Counts(whole, limits) if counted else _Sequences(whole))
        for pair in combinations(letters, 2):
            witness = made._meaning.common(pair)
            if witness is not None:
                raise RefusedError(
                    "combining.overlap",
                    f"{' and '.join(pair)} both accept: {TupleGap(pair, witness)}",
                    hint="let one of them exclude it",
                    witness=witness,
                )
        return made

    @property
    def id(self) -> str:
        """What names it wherever a combining algorithm is named."""
        return PREFIX + "&".join(f"{name}={quote(text, safe='')}" for name, text in self.elements.items() if text)

    @classmethod
    def of_id(cls, name: str) -> "DecisionTuple":
        """Read a tuple from its id. Raises as `of`."""
        pairs = parse_qsl(name.removeprefix(PREFIX), keep_blank_values=True)
        if not name.startswith(PREFIX) or not pairs or len(dict(pairs)) != len(pairs):
            raise MalformedError("combining.elements", "the id of a tuple names its elements, each once")
        return cls.of(dict(pairs))

    def result(self, decisions: Iterable[XacmlDecision]) -> XacmlDecision | None:
        """Return what decisions come to; none where no element accepts them."""
        sequence = [_letter(decision, self.elements) for decision in decisions]
        accepted = self._meaning.accepted(sequence)
        return _RESULTS[accepted[0]] if accepted else None

    def gap(self) -> TupleGap | None:
        """Return decisions that no element accepts: they come to Indeterminate. Raises as `of`."""
        witness = self._meaning.uncovered()
        return None if witness is None else TupleGap((), witness)

    def combine(self, children: Sequence[Child[C]], context: C, /) -> PolicyOutcome:
        """Combine as an algorithm does."""
        outcomes = [child.evaluate(context) for child in children]
        return gathered(self.result(one.decision for one in outcomes) or XacmlDecision.INDETERMINATE_DP, outcomes)


def _letter(decision: XacmlDecision, elements: Mapping[str, str]) -> str:
    found = _LETTERS[decision]
    return found if found in elements else "IN"


@lru_cache(maxsize=256)
def tuple_algorithm(name: str) -> CombiningAlgorithm:
    """Return the algorithm that an id says. Raises as `DecisionTuple.of`."""
    return DecisionTuple.of_id(name).combine
