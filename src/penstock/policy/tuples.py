"""Decision tuples (paper 4, section 4.1.1.3): a combining algorithm that says for each decision when it comes.

Each element is an expression over sequences of decisions (`sequences`), or a constraint on how many of each there are:

    P:  NA* P .*            P:  #P > 0 and #D = 0 and #IN = 0
    D:  NA* D .*            D:  #D > 0
    NA: NA*                 NA: none
    IN: NA* IN .*           IN: #D = 0 and #IN > 0

No two elements may accept the same: that is an error. What none accepts is Indeterminate, and told as a gap. With the
letters IN_P, IN_D and IN_DP in place of IN, errors are told apart as the standard does, and so are results.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Final, Protocol, TypeVar
from urllib.parse import parse_qsl, quote

from penstock.errors import MalformedError, RefusedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.values import AttributeSpec, Kind, Ranged, Schema
from penstock.policy.combine import Algorithm, Child, gathered
from penstock.policy.results import Decision, Outcome
from penstock.policy.sequences import Automaton, find
from penstock.selector import NEVER, Selector, Verdict, compile_selector, conjunction, negation, parse, satisfiable

C = TypeVar("C")

PLAIN: Final = ("P", "D", "NA", "IN")
EXTENDED: Final = ("P", "D", "NA", "IN_P", "IN_D", "IN_DP")
PREFIX: Final = "urn:penstock:decision-tuple:"
"""How the id of such an algorithm begins; the elements follow as in an address: `P=%23P%20%3E%200&…`."""

_RESULTS: Final = {
    "P": Decision.PERMIT,
    "D": Decision.DENY,
    "NA": Decision.NOT_APPLICABLE,
    "IN": Decision.INDETERMINATE_DP,
    "IN_P": Decision.INDETERMINATE_P,
    "IN_D": Decision.INDETERMINATE_D,
    "IN_DP": Decision.INDETERMINATE_DP,
}
_LETTERS: Final = {decision: letter for letter, decision in _RESULTS.items() if letter != "IN"}
_COUNT: Final = re.compile(r"#(IN_DP|IN_P|IN_D|IN|NA|P|D)\b")
_NONE: Final = ("", "none", "∅")
#: as many decisions of one kind as are thought of at most
_MOST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Gap:
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

    def __init__(self, elements: Mapping[str, str], limits: Limits) -> None:
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
        if answer.verdict is Verdict.UNKNOWN:
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
    def of(cls, elements: Mapping[str, str], *, limits: Limits = DEFAULT_LIMITS) -> "DecisionTuple":
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
                    f"{' and '.join(pair)} both accept: {Gap(pair, witness)}",
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

    def result(self, decisions: Iterable[Decision]) -> Decision | None:
        """Return what decisions come to; none where no element accepts them."""
        sequence = [_letter(decision, self.elements) for decision in decisions]
        accepted = self._meaning.accepted(sequence)
        return _RESULTS[accepted[0]] if accepted else None

    def gap(self) -> Gap | None:
        """Return decisions that no element accepts: they come to Indeterminate. Raises as `of`."""
        witness = self._meaning.uncovered()
        return None if witness is None else Gap((), witness)

    def combine(self, children: Sequence[Child[C]], context: C, /) -> Outcome:
        """Combine as an algorithm does."""
        outcomes = [child.evaluate(context) for child in children]
        return gathered(self.result(one.decision for one in outcomes) or Decision.INDETERMINATE_DP, outcomes)


def _letter(decision: Decision, elements: Mapping[str, str]) -> str:
    found = _LETTERS[decision]
    return found if found in elements else "IN"


@lru_cache(maxsize=256)
def tuple_algorithm(name: str) -> Algorithm:
    """Return the algorithm that an id says. Raises as `DecisionTuple.of`."""
    return DecisionTuple.of_id(name).combine
