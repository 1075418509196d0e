"""A smaller alphabet for the solver's strings, in which a question has the same answer.

z3 knows fewer characters than Unicode has, and counts surrogates among them. Only the order of characters and
equality with those that the question names can matter, so the named ones are numbered in order, and each gap between
two of them keeps as many characters as the question has comparisons (a comparison is settled by one pair of
characters, so no more can be told apart), or all if there are fewer. Strings that answer the question in one
alphabet then exist in the other.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

#: z3's characters are 0 to this.
_LAST_CODE: Final = 0x2FFFF
_LAST: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class _Gap:
    """Codes from `code` on stand for characters from `rank` on; ranks count characters without the surrogates."""

    code: int
    rank: int


class Alphabet:
    """A numbering of characters: `encode` text of the question, `decode` text of the solver.

    Raises `OverflowError` when the question names too many characters.
    """

    def __init__(self, named: Iterable[str], comparisons: int) -> None:
        ranks = sorted({_rank(character) for character in named})
        self._codes: dict[int, int] = {}
        self._gaps: list[_Gap] = []
        keep = comparisons + 2
        code = start = 0
        for rank in ranks:
            size = min(rank - start, keep)
            self._gaps.append(_Gap(code, _example(start, rank - start, size)))
            code += size
            self._codes[rank] = code
            self._gaps.append(_Gap(code, rank))
            code += 1
            start = rank + 1
        rest = _rank(chr(_LAST)) + 1 - start
        if code + min(rest, keep) > _LAST_CODE + 1:
            raise OverflowError("the selectors name too many characters for the solver")
        size = min(rest, _LAST_CODE + 1 - code)
        self._gaps.append(_Gap(code, _example(start, rest, size)))
        #: the number of codes, and whether z3 has more that must be ruled out
        self.size = code + size
        self.bounded = self.size <= _LAST_CODE

    def encode(self, text: str) -> list[int]:
        """Return the codes of a text of the question."""
        return [self._codes[_rank(character)] for character in text]

    def decode(self, codes: Iterable[int]) -> str:
        """Return a text that stands in the same order to those of the question."""
        return "".join(self._character(code) for code in codes)

    def _character(self, code: int) -> str:
        # Of several entries with one code the last counts: the others are empty gaps.
        gap = self._gaps[bisect_right(self._gaps, code, key=lambda entry: entry.code) - 1]
        rank = gap.rank + code - gap.code
        return chr(rank if rank < _SURROGATES.start else rank + len(_SURROGATES))


def _rank(character: str) -> int:
    point = ord(character)
    return point if point < _SURROGATES.start else point - len(_SURROGATES)


def _example(start: int, available: int, size: int) -> int:
    """Choose where in a gap the kept characters lie: printable ones read better in a witness."""
    for friendly in (ord("a"), ord("A"), ord(" ")):
        if start <= friendly and friendly + size <= start + available:
            return friendly
    return start
