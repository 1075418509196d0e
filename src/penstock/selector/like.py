"""LIKE patterns: `%` matches any run of characters, `_` matches one, everything else matches itself.

A pattern is cut at its `%` into segments. The first segment is tied to the start, the last to the end, and each
one between is taken where it is first found: the leftmost choice leaves the most room, so that nothing ever needs
to be tried twice and a hostile pattern costs no more than its length times that of the text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Segment: TypeAlias = tuple[str | None, ...]
"""Characters, with None for `_`."""
#: stands for `%` where one pattern is read as the text of another
_RUN: Final = ""


class PatternError(ValueError):
    """The escape character precedes a character that needs no escape, or is not one character."""


@dataclass(frozen=True, slots=True)
class LikePattern:
    """A pattern cut at its `%`; one segment means that there is none."""

    segments: tuple[Segment, ...]

    def matches(self, text: str) -> bool:
        """Return whether the whole of `text` fits the pattern."""
        return self._matches(text)

    def covers(self, other: "LikePattern") -> bool:
        """Return whether every text that matches `other` certainly matches this pattern. False can mean "not found".

        >>> parse_pattern("%a%", None).covers(parse_pattern("b_a%", None))
        True
        """
        first, *rest = other.segments
        return self._matches([*first, *(token for segment in rest for token in (_RUN, *segment))])

    def _matches(self, text: Sequence[str | None]) -> bool:
        first, *rest = self.segments
        if not rest:
            return len(text) == len(first) and _fits(first, text, 0)
        *middle, last = rest
        end = len(text) - len(last)
        if len(first) > end or not _fits(first, text, 0) or not _fits(last, text, end):
            return False
        position = len(first)
        for segment in middle:
            position = _find(segment, text, position, end)
            if position < 0:
                return False
            position += len(segment)
        return True


def parse_pattern(pattern: str, escape: str | None) -> LikePattern:
    """Cut a pattern into segments.

    >>> parse_pattern("a%b_", None).matches("a--bc")
    True

    Raises `PatternError`.
    """
    if escape is not None and len(escape) != 1:
        raise PatternError("the escape is one character")
    segments: list[Segment] = []
    current: list[str | None] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape):
                raise PatternError("the escape character stands before %, _ or itself")
            current.append(escaped)
        elif character == "%":
            segments.append(tuple(current))
            current = []
        else:
            current.append(None if character == "_" else character)
    segments.append(tuple(current))
    # A run of % means the same as one.
    inner = [segment for segment in segments[1:-1] if segment]
    return LikePattern((segments[0], *inner, segments[-1]) if len(segments) > 1 else (segments[0],))


def _fits(segment: Segment, text: Sequence[str | None], position: int) -> bool:
    return all(
        text[position + index] != _RUN if expected is None else text[position + index] == expected
        for index, expected in enumerate(segment)
    )


def _find(segment: Segment, text: Sequence[str | None], start: int, end: int) -> int:
    for position in range(start, end - len(segment) + 1):
        if _fits(segment, text, position):
            return position
    return -1


Shape: TypeAlias = Literal["equal", "prefix", "suffix", "part", "general"]


def compile_pattern(pattern: str, escape: str | None) -> tuple[Shape, object]:
    """Return the fastest way to match: a shape, and the string or (for "general") the function that it needs.

    >>> compile_pattern("NOK%", None)
    ('prefix', 'NOK')

    Raises `PatternError`.
    """
    segments = parse_pattern(pattern, escape).segments
    if not any(None in segment for segment in segments):
        first, *rest = ("".join(character or "" for character in segment) for segment in segments)
        match rest:
            case []:
                return "equal", first
            case [""]:
                return "prefix", first
            case [last] if not first:
                return "suffix", last
            case [middle, ""] if not first:
                return "part", middle
    # An atomic group is never reopened, so the leftmost match of each segment stands and nothing backtracks.
    first_part, *others = (_expression(segment) for segment in segments)
    if not others:
        return "general", re.compile(first_part, re.DOTALL).fullmatch
    middle_parts = "".join(f"(?>.*?{part})" for part in others[:-1])
    return "general", re.compile(f"{first_part}{middle_parts}.*{others[-1]}", re.DOTALL).fullmatch


def _expression(segment: Segment) -> str:
    return "".join("." if character is None else re.escape(character) for character in segment)
