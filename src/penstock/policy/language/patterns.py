"""Match XML Schema patterns in bounded time.

A requester must not be able to choose a text on which a pattern takes indefinitely long. Patterns with few ways to
match are left to `re`, which backtracks; any other becomes an automaton whose paths are followed simultaneously.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from penstock.errors import EvaluationError
from penstock.policy.language.datatypes import failed
from penstock.policy.limits import POLICY_DEPTH, POLICY_LIMITS, POLICY_PATTERN, PolicyLimits

#: the translation of `$` by `translate_pattern`: the very end, not before a line feed
_END: Final = r"$(?!\n\Z)"
_GROUP: Final = "(?:"
#: one character in `re` syntax: a class, an escape, or itself
_ONE: Final = re.compile(r"\[\^?(?:\\.|[^\\\]])(?:\\.|[^\\\]])*\]|\\.|[^\\()|*+?{\[^$]", re.DOTALL)
_TIMES: Final = re.compile(r"(?:([*+?])|\{([0-9]{1,6})(?:(,)([0-9]{1,6})?)?\})\??", re.ASCII)
#: the most backtracking steps of `re`
_TRIES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _One:
    """One character of a set."""

    fits: "re.Pattern[str]"


@dataclass(frozen=True, slots=True)
class _Edge:
    """The beginning or the end of the text."""

    end: bool


@dataclass(frozen=True, slots=True)
class _Row:
    """A sequence."""

    parts: "tuple[_Part, ...]"


@dataclass(frozen=True, slots=True)
class _Either:
    """An alternative."""

    parts: "tuple[_Part, ...]"


@dataclass(frozen=True, slots=True)
class _Again:
    """A repetition, with an optional upper bound."""

    part: "_Part"
    least: int
    most: int | None


_Part: TypeAlias = _One | _Edge | _Row | _Either | _Again
_Step: TypeAlias = "re.Pattern[str] | bool | tuple[int, ...] | None"
"""A character to read, an edge (True is the end), the next steps, or None for a match."""


@dataclass(frozen=True, slots=True)
class XmlPattern:
    """A parsed pattern."""

    quick: "re.Pattern[str]"
    #: the exponent by which the steps of `re` grow with the text's length; None if the growth is not polynomial
    power: int | None
    steps: Sequence[_Step]
    #: a cache of characters, and whether they fit
    _fitting: "dict[tuple[re.Pattern[str], str], bool]" = field(default_factory=dict, compare=False)

    def found_in(self, text: str, limits: PolicyLimits = POLICY_LIMITS) -> bool:
        """Return whether it matches somewhere in a text. Raises `EvaluationError` (`xacml.processing`)."""
        if len(text) > limits.policy_matched:
            raise failed("a text is too long for a pattern")
        if self.power is not None and (len(text) + 2) ** (self.power + 1) <= _TRIES:
            return self.quick.search(text) is not None
        if len(text) * len(self.steps) > limits.policy_matching:
            raise failed("a text is too long for a pattern with so many ways to match")
        return self._walked(text)

    def _walked(self, text: str) -> bool:
        now: set[int] = set()
        for place in range(len(text) + 1):
            # A match can begin anywhere.
            reached = self._reached({*now, 0}, first=place == 0, last=place == len(text))
            if reached is None:
                return True
            if place < len(text):
                now = {step + 1 for step, fits in reached if self._fits(fits, text[place])}
        return False

    def _reached(self, begun: set[int], *, first: bool, last: bool) -> "list[tuple[int, re.Pattern[str]]] | None":
        """Return the steps that wait for a character; None if the end of the pattern was reached."""
        waiting, left, seen = [], [*begun], set(begun)
        while left:
            number = left.pop()
            step = self.steps[number]
            following: tuple[int, ...] = ()
            match step:
                case None:
                    return None
                case bool():
                    following = (number + 1,) if (last if step else first) else ()
                case tuple():
                    following = step
                case _:
                    waiting.append((number, step))
            left += [one for one in following if one not in seen]
            seen.update(following)
        return waiting

    def _fits(self, fits: "re.Pattern[str]", character: str) -> bool:
        known = self._fitting.get((fits, character))
        if known is None:
            if len(self._fitting) > 4_096:
                self._fitting.clear()
            known = self._fitting[fits, character] = fits.fullmatch(character) is not None
        return known


@lru_cache(1_024)
def read_pattern(text: str) -> XmlPattern:
    """Read a pattern of XML Schema. Raises `EvaluationError` (`xacml.processing`)."""
    # A tenth of a second to import, which policies without patterns do not need.
    from elementpath.regex import RegexError, translate_pattern  # noqa: PLC0415

    if len(text) > POLICY_PATTERN:
        raise failed("a pattern is too long")
    try:
        python = translate_pattern(text, anchors=True, back_references=False)
        quick = re.compile(python)
    except (RegexError, re.error, ValueError, OverflowError, RecursionError):
        raise _wrong() from None
    reader = _Reader(python)
    part = reader.whole()
    return XmlPattern(quick, _power(part), [*_steps(part, POLICY_LIMITS)])


def _wrong() -> EvaluationError:
    return failed("a pattern cannot be read")


class _Reader:
    """Parses the output of `translate_pattern`: groups, classes, escapes, edges and repetitions."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> _Part:
        part = self._either(0)
        if self._at < len(self._text):
            raise _wrong()
        return part

    def _take(self, word: str) -> bool:
        taken = self._text.startswith(word, self._at)
        self._at += len(word) if taken else 0
        return taken

    def _either(self, depth: int) -> _Part:
        if depth > POLICY_DEPTH:
            raise failed("a pattern is nested too deeply")
        parts = [self._row(depth)]
        while self._take("|"):
            parts.append(self._row(depth))
        return parts[0] if len(parts) == 1 else _Either(tuple(parts))

    def _row(self, depth: int) -> _Part:
        parts: list[_Part] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._times(self._atom(depth)))
        return parts[0] if len(parts) == 1 else _Row(tuple(parts))

    def _atom(self, depth: int) -> _Part:
        if self._take(_END):
            return _Edge(end=True)
        if self._take("^"):
            return _Edge(end=False)
        if self._take(_GROUP):
            part = self._either(depth + 1)
            if not self._take(")"):
                raise _wrong()
            return part
        found = _ONE.match(self._text, self._at)
        if found is None:
            raise _wrong()
        self._at = found.end()
        return _One(re.compile(found[0], re.DOTALL))

    def _times(self, part: _Part) -> _Part:
        found = _TIMES.match(self._text, self._at)
        if found is None:
            return part
        self._at = found.end()
        sign, least, several, most = found.groups()
        match sign:
            case "*":
                return _Again(part, 0, None)
            case "+":
                return _Again(part, 1, None)
            case "?":
                return _Again(part, 0, 1)
        bound = int(least) if several is None else None if most is None else int(most)
        return _Again(part, int(least), bound)


def _power(part: _Part) -> int | None:
    """Return an upper bound of the exponent by which the ways to match a text grow with its length."""
    match part:
        case _One() | _Edge():
            return 0
        case _Row(parts):
            powers = [_power(one) for one in parts]
            return None if None in powers else sum(one or 0 for one in powers)
        case _Either(parts):
            powers = [_power(one) for one in parts]
            return None if None in powers else 1 + max(one or 0 for one in powers)
        case _Again(inner, least, most):
            once = _power(inner)
            if least == most:
                return None if once is None else once * least
            # Nested repetitions multiply.
            return 1 if once == 0 else None if most != 1 or once is None else once + 1


def _steps(part: _Part, limits: PolicyLimits) -> Iterator[_Step]:
    made: list[_Step] = []
    _add(made, part, limits)
    yield from made
    yield None


def _add(made: list[_Step], part: _Part, limits: PolicyLimits) -> None:
    if len(made) > limits.policy_matched:
        raise failed("a pattern has too many parts")
    match part:
        case _One(fits):
            made.append(fits)
        case _Edge(end):
            made.append(end)
        case _Row(parts):
            for one in parts:
                _add(made, one, limits)
        case _Either(parts):
            _add_either(made, parts, limits)
        case _Again(inner, least, most):
            for _ in range(least):
                _add(made, inner, limits)
            if most is None:
                start = len(made)
                made.append(())
                _add(made, inner, limits)
                made.append((start,))
                made[start] = (start + 1, len(made))
            else:
                _add_up_to(made, inner, most - least, limits)


def _add_either(made: list[_Step], parts: Sequence[_Part], limits: PolicyLimits) -> None:
    ends, start = [], len(made)
    made.append(())
    begins = []
    for one in parts:
        begins.append(len(made))
        _add(made, one, limits)
        ends.append(len(made))
        made.append(())
    made[start] = tuple(begins)
    for end in ends:
        made[end] = (len(made),)


def _add_up_to(made: list[_Step], inner: _Part, times: int, limits: PolicyLimits) -> None:
    skips = []
    for _ in range(times):
        skips.append(len(made))
        made.append(())
        _add(made, inner, limits)
    for one in skips:
        made[one] = (one + 1, len(made))
