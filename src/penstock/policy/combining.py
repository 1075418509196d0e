"""Combining algorithms (XACML 3.0, appendix C): one decision from the decisions of rules or policies.

An algorithm receives children, which are evaluated when it asks for them, and asks for no more than it needs. The
result depends on the decisions and their order. The obligations and advice of children that agree with the result are
part of it (section 7.18).

`STANDARD` is the table of the standard's algorithms, each as a function and as a decision tuple. `overrides(D)` is
deny-overrides, `overrides(P)` permit-overrides, `unless(P)` deny-unless-permit, `unless(D)` permit-unless-deny, `first`
first-applicable, `only_one` only-one-applicable, `on_permit_second` on-permit-apply-second. `legacy_…` are the
algorithms from before XACML 3.0.

A decision tuple (paper 4, section 4.1.1.3) states for each decision when it is the result. Each element is an
expression over sequences of decisions, or a constraint on how many of each there are:

    P:  NA* P .*            P:  #P > 0 and #D = 0 and #IN = 0
    D:  NA* D .*            D:  #D > 0
    NA: NA*                 NA: none
    IN: NA* IN .*           IN: #D = 0 and #IN > 0

It is an error if two elements accept the same sequence. A sequence that no element accepts is Indeterminate, and
reported as a gap. With the letters IN_P, IN_D and IN_DP instead of IN, errors are distinguished as in the standard, in
the input and in the result.

`rule_algorithm` and `policy_algorithm` find an algorithm by its id. An id can contain priorities; then only the
applicable children with the highest priority count (paper 4, section 4.1.1.3):

    urn:penstock:priorities:2,1,1:urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:deny-overrides

gives the first policy priority 2 and the others priority 1. `combined` combines decisions that others have made.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from typing import Final, Generic, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote

from penstock.errors import LimitError, MalformedError, RefusedError, did_you_mean
from penstock.model.values import AttributeSpec, Kind, Ranged, Schema
from penstock.policy.language.results import (
    NOT_APPLICABLE,
    PROCESSING_ERROR,
    DecisionStatus,
    PolicyOutcome,
    Response,
    Result,
    XacmlDecision,
)
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

P, D, NA = XacmlDecision.PERMIT, XacmlDecision.DENY, XacmlDecision.NOT_APPLICABLE
IN_P, IN_D, IN_DP = XacmlDecision.INDETERMINATE_P, XacmlDecision.INDETERMINATE_D, XacmlDecision.INDETERMINATE_DP


C_contra = TypeVar("C_contra", contravariant=True)
C = TypeVar("C")


class Child(Protocol[C_contra]):
    """A rule, a policy or a policy set that can be evaluated in a context."""

    def evaluate(self, context: C_contra, /) -> PolicyOutcome:
        """Return its outcome."""

    def applies(self, context: C_contra, /) -> bool | PolicyOutcome:
        """Return whether its target matches, or the outcome if that is not known."""


class CombiningAlgorithm(Protocol):
    """A combining algorithm."""

    def __call__(self, children: Sequence[Child[C]], context: C, /) -> PolicyOutcome:
        """Return the combined outcome of children."""


def gathered(decision: XacmlDecision, outcomes: Iterable[PolicyOutcome]) -> PolicyOutcome:
    """Return a decision with the obligations and advice of children that agree, and the status if it failed."""
    outcomes = [*outcomes]
    same = [one for one in outcomes if one.decision is decision]
    applicable = tuple(name for one in outcomes for name in one.applicable)
    if decision.indeterminate:
        spoiled = next((one for one in outcomes if one.decision.indeterminate), None)
        status = DecisionStatus(PROCESSING_ERROR) if spoiled is None else spoiled.status
        return PolicyOutcome(decision, status, applicable=applicable)
    return PolicyOutcome(
        decision,
        obligations=tuple(told for one in same for told in one.obligations),
        advice=tuple(told for one in same for told in one.advice),
        applicable=applicable,
    )


def _asked(children: Sequence[Child[C]], context: C, enough: Callable[[XacmlDecision], bool]) -> list[PolicyOutcome]:
    """Return the outcomes of children in order, up to the first that is enough."""
    outcomes: list[PolicyOutcome] = []
    for child in children:
        outcomes.append(child.evaluate(context))
        if enough(outcomes[-1].decision):
            break
    return outcomes


def overrides(strong: XacmlDecision) -> CombiningAlgorithm:
    """C.2, C.4: the strong decision wins; if an error could have been it, the result is Indeterminate."""
    weak = P if strong is D else D
    strong_spoiled, weak_spoiled = (IN_D, IN_P) if strong is D else (IN_P, IN_D)

    def combine(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
        outcomes = _asked(children, context, lambda decision: decision is strong)
        seen = {one.decision for one in outcomes}
        if strong in seen:
            return gathered(strong, outcomes)
        if IN_DP in seen or (strong_spoiled in seen and (weak_spoiled in seen or weak in seen)):
            return gathered(IN_DP, outcomes)
        for decision in (strong_spoiled, weak, weak_spoiled):
            if decision in seen:
                return gathered(decision, outcomes)
        return gathered(NA, outcomes)

    return combine


def unless(strong: XacmlDecision) -> CombiningAlgorithm:
    """C.6, C.7: the strong decision if any child makes it, otherwise the other one."""
    other = D if strong is P else P

    def combine(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
        outcomes = _asked(children, context, lambda decision: decision is strong)
        return gathered(strong if any(one.decision is strong for one in outcomes) else other, outcomes)

    return combine


def first(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
    """C.8: the first child that is applicable."""
    outcomes = _asked(children, context, lambda decision: decision is not NA)
    return gathered(outcomes[-1].decision if outcomes else NA, outcomes)


def only_one(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
    """C.9: the only child whose target matches; more than one is an error."""
    chosen: Child[C] | None = None
    for child in children:
        applies = child.applies(context)
        if isinstance(applies, PolicyOutcome):
            return PolicyOutcome(IN_DP, applies.status)
        if applies:
            if chosen is not None:
                return PolicyOutcome(IN_DP, DecisionStatus(PROCESSING_ERROR, "more than one policy is applicable"))
            chosen = child
    return NOT_APPLICABLE if chosen is None else chosen.evaluate(context)


def on_permit_second(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
    """Apply the second child if the first permits; otherwise the third, if there is one."""
    if len(children) not in (2, 3):
        return PolicyOutcome(
            IN_DP, DecisionStatus(PROCESSING_ERROR, "on-permit-apply-second combines two or three policies")
        )
    first = children[0].evaluate(context)
    if first.decision is P:
        return _after(first, children[1].evaluate(context))
    if first.decision in (IN_P, IN_DP):
        # It is not known which of the others would be applied.
        return _either(first, children[1:], context)
    return _after(first, NOT_APPLICABLE if len(children) == 2 else children[2].evaluate(context))


def _after(first: PolicyOutcome, outcome: PolicyOutcome) -> PolicyOutcome:
    """Return the outcome of a later child; the first one was applicable too (section 5.48)."""
    return replace(outcome, applicable=(*first.applicable, *outcome.applicable)) if first.applicable else outcome


def _either(first: PolicyOutcome, children: Sequence[Child[C]], context: C) -> PolicyOutcome:
    outcomes = [child.evaluate(context) for child in children]
    decisions = {one.decision for one in outcomes} | ({NA} if len(outcomes) == 1 else set())
    permits = bool(decisions & {P, IN_P, IN_DP})
    denies = bool(decisions & {D, IN_D, IN_DP})
    applicable = tuple(name for one in (first, *outcomes) for name in one.applicable)
    if not permits and not denies:
        return PolicyOutcome(NA, applicable=applicable)
    return PolicyOutcome(
        IN_DP if permits and denies else IN_P if permits else IN_D, first.status, applicable=applicable
    )


# --- before 3.0 ------------------------------------------------------------------------------------------------------


def legacy_rules(strong: XacmlDecision) -> CombiningAlgorithm:
    """C.10, C.12: rules before XACML 3.0; a rule that fails counts by its effect."""
    weak, spoiled = (P, IN_D) if strong is D else (D, IN_P)

    def combine(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
        outcomes = _asked(children, context, lambda decision: decision is strong)
        seen = {one.decision for one in outcomes}
        if strong in seen:
            return gathered(strong, outcomes)
        if spoiled in seen or IN_DP in seen:
            return gathered(spoiled if IN_DP not in seen else IN_DP, outcomes)
        if weak in seen:
            return gathered(weak, outcomes)
        failed = next((one.decision for one in outcomes if one.decision.indeterminate), None)
        return gathered(NA if failed is None else failed, outcomes)

    return combine


def legacy_deny_policies(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
    """C.11: policies before XACML 3.0; a policy that fails denies."""
    outcomes = _asked(children, context, lambda decision: decision is D or decision.indeterminate)
    seen = {one.decision for one in outcomes}
    if any(one is D or one.indeterminate for one in seen):
        return gathered(D, outcomes)
    return gathered(P if P in seen else NA, outcomes)


def legacy_permit_policies(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
    """C.13: policies before XACML 3.0; a policy that fails is an error if none permits or denies."""
    outcomes = _asked(children, context, lambda decision: decision is P)
    seen = {one.decision for one in outcomes}
    for decision in (P, D):
        if decision in seen:
            return gathered(decision, outcomes)
    return gathered(IN_DP if any(one.indeterminate for one in seen) else NA, outcomes)


# ----------------------------------------------------------------------------------------------------------------------
# Regular expressions over decisions, as automata: does one accept a sequence, and do two accept a common one?
#
#     NA* P .*        any number of NotApplicable, then Permit, then anything
#     (P | D)+        at least one decision, only Permit and Deny
#     none            no sequence at all
#
# Letters are decisions; `|`, `*`, `+`, `?` and brackets have their usual meaning, and a dot is any decision.


_WORD: Final = re.compile(r"\s*(?:([A-Za-z_]+)|(Σ|∅|[()|*+?.]))", re.ASCII)
_ANY: Final = ("Σ", ".")
_NO_SEQUENCE: Final = ("∅", "none")


@dataclass(slots=True)
class _Part:
    """A part of a nondeterministic automaton: its first and its last state."""

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
            raise _wrong(f"unexpected `{self._words[-1]}` after the end of the expression")
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
    """Return the words of an expression in reverse order."""
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
        """Return whether the expression accepts a sequence of decisions."""
        state = 0
        for letter in sequence:
            state = self.steps[state][letter]
        return state in self.accepting


def find(automata: Sequence[Automaton], accepting: "frozenset[int] | range") -> tuple[str, ...] | None:
    """Return a shortest sequence that the given number of automata accept, if there is one."""
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
# The combining algorithms of XACML 3.0 (appendix C) and before, as decision tuples with extended letters. They are not
# used to decide: they are the paper's description of each algorithm, and tests compare the functions above with them.


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
#: C.9: the algorithm uses targets to find applicable children; here their decisions are used
ONLY_ONE_TUPLE: Final = {
    "P": "NA* P NA*", "D": "NA* D NA*", "NA": "NA*", "IN_P": "NA* IN_P NA*", "IN_D": "NA* IN_D NA*",
    "IN_DP": "NA* IN_DP .* | NA* (P | D | IN_P | IN_D) NA* (P | D | IN_P | IN_D | IN_DP) .*",
}  # fmt: skip


def on_permit_second_tuple() -> Elements:
    """Two or three children: the second if the first permits, otherwise the third; either if that is not known."""
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
# Decision tuples (paper 4, section 4.1.1.3): for each decision, when it is the result.


PLAIN: Final = ("P", "D", "NA", "IN")
EXTENDED: Final = ("P", "D", "NA", "IN_P", "IN_D", "IN_DP")
PREFIX: Final = "urn:penstock:decision-tuple:"
"""The first part of a decision tuple's id; the elements follow, encoded as in a URL query: `P=%23P%20%3E%200&…`."""

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
#: the highest count of one decision that is considered
_MOST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TupleGap:
    """Decisions that no element accepts, or that two accept: a sequence, or any sequence with these counts."""

    elements: tuple[str, ...]
    witness: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.witness) or "no decision at all"


class _Meaning(Protocol):
    """The meaning of a tuple's elements."""

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
    """Elements that are constraints on the number of decisions of each kind."""

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
            raise RefusedError("combining.undecided", "it could not be decided whether elements of the tuple overlap")
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
            raise MalformedError("combining.elements", f"a tuple must have the elements {', '.join(letters)}")
        whole = {letter: elements.get(letter, "").strip() for letter in letters}
        counted = any("#" in text for text in whole.values())
        made = cls(whole, _Counts(whole, limits) if counted else _Sequences(whole))
        for pair in combinations(letters, 2):
            witness = made._meaning.common(pair)
            if witness is not None:
                raise RefusedError(
                    "combining.overlap",
                    f"{' and '.join(pair)} both accept: {TupleGap(pair, witness)}",
                    hint="change one of them to exclude it",
                    witness=witness,
                )
        return made

    @property
    def id(self) -> str:
        """The id of this tuple as a combining algorithm."""
        return PREFIX + "&".join(f"{name}={quote(text, safe='')}" for name, text in self.elements.items() if text)

    @classmethod
    def of_id(cls, name: str) -> "DecisionTuple":
        """Read a tuple from its id. Raises as `of`."""
        pairs = parse_qsl(name.removeprefix(PREFIX), keep_blank_values=True)
        if not name.startswith(PREFIX) or not pairs or len(dict(pairs)) != len(pairs):
            raise MalformedError("combining.elements", "the id of a tuple must name each element once")
        return cls.of(dict(pairs))

    def result(self, decisions: Iterable[XacmlDecision]) -> XacmlDecision | None:
        """Return the result of decisions; None if no element accepts them."""
        sequence = [_letter(decision, self.elements) for decision in decisions]
        accepted = self._meaning.accepted(sequence)
        return _RESULTS[accepted[0]] if accepted else None

    def gap(self) -> TupleGap | None:
        """Return decisions that no element accepts: their result is Indeterminate. Raises as `of`."""
        witness = self._meaning.uncovered()
        return None if witness is None else TupleGap((), witness)

    def combine(self, children: Sequence[Child[C]], context: C, /) -> PolicyOutcome:
        """Combine children by this tuple."""
        outcomes = [child.evaluate(context) for child in children]
        return gathered(self.result(one.decision for one in outcomes) or XacmlDecision.INDETERMINATE_DP, outcomes)


def _letter(decision: XacmlDecision, elements: Mapping[str, str]) -> str:
    found = _LETTERS[decision]
    return found if found in elements else "IN"


@lru_cache(maxsize=256)
def tuple_algorithm(name: str) -> CombiningAlgorithm:
    """Return the algorithm of a decision tuple's id. Raises as `DecisionTuple.of`."""
    return DecisionTuple.of_id(name).combine


# ----------------------------------------------------------------------------------------------------------------------
# The table of the standard's algorithms (appendix C).


@dataclass(frozen=True, slots=True)
class StandardAlgorithm:
    """A combining algorithm of the standard."""

    #: its short name; algorithms that 3.0 has replaced end with "before 3.0"
    name: str
    combine: CombiningAlgorithm
    #: the same as a decision tuple
    elements: Elements
    ids: tuple[str, ...]
    #: the decisions of a child after which no other child is evaluated
    decisive: frozenset[XacmlDecision] = frozenset()
    #: the decision if nothing fails and no child is decisive; None for rare algorithms
    otherwise: XacmlDecision | None = None
    #: whether positions matter, and children that are not applicable
    by_place: bool = False
    #: whether only targets decide which children apply
    by_target: bool = False

    @property
    def plain(self) -> bool:
        """Whether the outcome of a single child is the result, and no applicable child means NotApplicable."""
        return self.otherwise is NA


_RULE, _POLICY = "rule-combining-algorithm", "policy-combining-algorithm"


def _ids(version: str, *names: str, kinds: Sequence[str] = (_RULE, _POLICY)) -> tuple[str, ...]:
    return tuple(f"urn:oasis:names:tc:xacml:{version}:{kind}:{name}" for kind in kinds for name in names)


def _before(kind: str, name: str) -> tuple[str, ...]:
    """Return the ids of an algorithm from before XACML 3.0."""
    return (*_ids("1.0", name, kinds=[kind]), *_ids("1.1", f"ordered-{name}", kinds=[kind]))


STANDARD: Final = (
    StandardAlgorithm(
        "deny-overrides",
        overrides(D),
        overrides_tuple("D", "P"),
        _ids("3.0", "deny-overrides", "ordered-deny-overrides"),
        frozenset({D}),
        NA,
    ),
    StandardAlgorithm(
        "permit-overrides",
        overrides(P),
        overrides_tuple("P", "D"),
        _ids("3.0", "permit-overrides", "ordered-permit-overrides"),
        frozenset({P}),
        NA,
    ),
    StandardAlgorithm(
        "deny-unless-permit",
        unless(P),
        unless_tuple("P", "D"),
        _ids("3.0", "deny-unless-permit"),
        frozenset({P}),
        D,
    ),
    StandardAlgorithm(
        "permit-unless-deny",
        unless(D),
        unless_tuple("D", "P"),
        _ids("3.0", "permit-unless-deny"),
        frozenset({D}),
        P,
    ),
    StandardAlgorithm(
        "first-applicable",
        first,
        FIRST_TUPLE,
        _ids("1.0", "first-applicable"),
        frozenset({P, D, IN_P, IN_D, IN_DP}),
        NA,
    ),
    StandardAlgorithm(
        "only-one-applicable",
        only_one,
        ONLY_ONE_TUPLE,
        _ids("1.0", "only-one-applicable", kinds=[_POLICY]),
        by_target=True,
    ),
    StandardAlgorithm(
        "on-permit-apply-second",
        on_permit_second,
        on_permit_second_tuple(),
        _ids("3.0", "on-permit-apply-second", kinds=[_POLICY]),
        by_place=True,
    ),
    StandardAlgorithm(
        "deny-overrides of rules before 3.0",
        legacy_rules(D),
        legacy_rules_tuple("D", "P"),
        _before(_RULE, "deny-overrides"),
        frozenset({D}),
    ),
    StandardAlgorithm(
        "permit-overrides of rules before 3.0",
        legacy_rules(P),
        legacy_rules_tuple("P", "D"),
        _before(_RULE, "permit-overrides"),
        frozenset({P}),
    ),
    StandardAlgorithm(
        "deny-overrides of policies before 3.0",
        legacy_deny_policies,
        LEGACY_DENY_TUPLE,
        _before(_POLICY, "deny-overrides"),
        frozenset({D, IN_P, IN_D, IN_DP}),
    ),
    StandardAlgorithm(
        "permit-overrides of policies before 3.0",
        legacy_permit_policies,
        LEGACY_PERMIT_TUPLE,
        _before(_POLICY, "permit-overrides"),
        frozenset({P}),
    ),
)
"""The algorithms of the standard; of algorithms with the same name the newest comes first."""

_BY_ID: Final = {name: one for one in STANDARD for name in one.ids}
RULE_ALGORITHMS: Final[Mapping[str, StandardAlgorithm]] = {id_: one for id_, one in _BY_ID.items() if _RULE in id_}
POLICY_ALGORITHMS: Final[Mapping[str, StandardAlgorithm]] = {id_: one for id_, one in _BY_ID.items() if _POLICY in id_}


def _short(ids: Mapping[str, object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in ids:
        found.setdefault(one.rpartition(":")[2], one)
    return found


RULE_COMBINING: Final[Mapping[str, str]] = _short(RULE_ALGORITHMS)
"""Ids of algorithms for rules, by short name: the newest with that name."""
POLICY_COMBINING: Final[Mapping[str, str]] = _short(POLICY_ALGORITHMS)
"""Ids of algorithms for policies, by short name."""


def standard(name: str) -> StandardAlgorithm | None:
    """Return the standard's algorithm with an id, for rules or for policies; None if there is none."""
    return RULE_ALGORITHMS.get(name) or POLICY_ALGORITHMS.get(name)


# ----------------------------------------------------------------------------------------------------------------------
# Ids with parameters: decision tuples and priorities.


PRIORITIES: Final = "urn:penstock:priorities:"
"""The first part of an id with priorities: they follow, and after a colon the id of the algorithm."""

_NUMBERS: Final = re.compile(r"-?[0-9]{1,9}(?:,-?[0-9]{1,9})*", re.ASCII)


def rule_algorithm(name: str) -> CombiningAlgorithm:
    """Return the algorithm that combines rules.

    Raises `MalformedError` (`xacml.combining`, `combining.priorities`), and as `DecisionTuple.of`.
    """
    return _algorithm(name, RULE_ALGORITHMS, rule_algorithm)


def policy_algorithm(name: str) -> CombiningAlgorithm:
    """Return the algorithm that combines policies. Raises as `rule_algorithm`."""
    return _algorithm(name, POLICY_ALGORITHMS, policy_algorithm)


def _algorithm(
    name: str, known: Mapping[str, StandardAlgorithm], inner: Callable[[str], CombiningAlgorithm]
) -> CombiningAlgorithm:
    if name.startswith(PRIORITIES):
        return _by_priority(name, inner)
    if name.startswith(PREFIX):
        return tuple_algorithm(name)
    found = known.get(name)
    if found is None:
        words = {one.rpartition(":")[2] for one in known}
        raise MalformedError(
            "xacml.combining",
            f"`{name[:120]}` is not a combining algorithm that can be used here",
            hint=did_you_mean(name.rpartition(":")[2], sorted(words), f"there are: {', '.join(sorted(words))}"),
        )
    return found.combine


def with_priorities(priorities: Sequence[int], name: str) -> str:
    """Return the id of an algorithm with priorities, one for each child, in order.

    >>> with_priorities([2, 1], "urn:example:any")
    'urn:penstock:priorities:2,1:urn:example:any'
    """
    return f"{PRIORITIES}{','.join(map(str, priorities))}:{name}"


def split_priorities(name: str) -> tuple[tuple[int, ...], str]:
    """Return the priorities in an id, None if there are none, and the id of the algorithm.

    Raises `MalformedError` (`combining.priorities`).
    """
    if not name.startswith(PRIORITIES):
        return (), name
    numbers, sign, inner = name.removeprefix(PRIORITIES).partition(":")
    if not sign or not _NUMBERS.fullmatch(numbers) or inner.startswith(PRIORITIES):
        raise MalformedError(
            "combining.priorities",
            "the id must contain priorities and an algorithm",
            hint=f"write {PRIORITIES}2,1:urn:…",
        )
    return tuple(map(int, numbers.split(","))), inner


def combined(name: str, outcomes: Sequence[PolicyOutcome], priorities: Sequence[int] | None = None) -> PolicyOutcome:
    """Combine decisions that others have made, by an algorithm for policies. Raises as `policy_algorithm`.

    >>> said = [PolicyOutcome(XacmlDecision.PERMIT), PolicyOutcome(XacmlDecision.DENY)]
    >>> name = "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:deny-overrides"
    >>> combined(name, said).decision.value, combined(name, said, [2, 1]).decision.value
    ('Deny', 'Permit')
    """
    combine = policy_algorithm(name if priorities is None else with_priorities(priorities, name))
    return combine([_Made(one) for one in outcomes], None)


def combined_responses(name: str, responses: Sequence[Response], priorities: Sequence[int] | None = None) -> Response:
    """Combine several responses to one request, result by result, with obligations and advice.

    Raises `MalformedError` (`combining.responses`) if they answer different numbers of requests, and as `combined`.
    """
    if len({len(one.results) for one in responses}) > 1:
        raise MalformedError("combining.responses", "the responses do not answer the same number of requests")
    return Response(
        [_result(name, those, priorities) for those in zip(*(one.results for one in responses), strict=True)]
    )


def _result(name: str, results: Sequence[Result], priorities: Sequence[int] | None) -> Result:
    said = [PolicyOutcome(one.decision, one.status, one.obligations, one.advice, one.policies) for one in results]
    found = combined(name, said, priorities)
    about = results[0].attributes
    return Result(found.decision, found.status, found.obligations, found.advice, about, found.applicable)


@dataclass(frozen=True, slots=True)
class _Made:
    """A child whose decision is given."""

    outcome: PolicyOutcome

    def evaluate(self, _context: object, /) -> PolicyOutcome:
        return self.outcome

    def applies(self, _context: object, /) -> bool | PolicyOutcome:
        decision = self.outcome.decision
        return (
            self.outcome if decision is XacmlDecision.INDETERMINATE_DP else decision is not XacmlDecision.NOT_APPLICABLE
        )


@dataclass(frozen=True, slots=True)
class _Asked(Generic[C]):
    """A child that was evaluated already."""

    child: Child[C]
    outcome: PolicyOutcome

    def evaluate(self, _context: C, /) -> PolicyOutcome:
        return self.outcome

    def applies(self, context: C, /) -> bool | PolicyOutcome:
        return self.child.applies(context)


@lru_cache(maxsize=256)
def _by_priority(name: str, known: Callable[[str], CombiningAlgorithm]) -> CombiningAlgorithm:
    priorities, inner = split_priorities(name)
    combine_those = known(inner)

    def combine(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
        if len(children) != len(priorities):
            message = f"{len(priorities)} priorities for {len(children)} children"
            return PolicyOutcome(XacmlDecision.INDETERMINATE_DP, DecisionStatus(PROCESSING_ERROR, message))
        asked: dict[int, _Asked[C]] = {}
        for level in sorted(set(priorities), reverse=True):
            places = [place for place, priority in enumerate(priorities) if priority == level]
            those = {place: _Asked(children[place], children[place].evaluate(context)) for place in places}
            if any(one.outcome.decision is not XacmlDecision.NOT_APPLICABLE for one in those.values()):
                return combine_those([*those.values()], context)
            asked |= those
        return combine_those([asked[place] for place in range(len(children))], context)

    return combine
