"""The solver's alphabet keeps the order of characters and the identity of those that are named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.selector.solver import Alphabet

CHARACTERS = st.characters(exclude_categories=["Cs"]) | st.sampled_from(
    "\x00a\ud7ff\ue000\U0002ffff\U00030000\U0010ffff"
)


@settings(deadline=None, max_examples=examples(150))
@given(st.text(CHARACTERS, max_size=12), st.integers(0, 20), st.data())
def test_keeps_order(named: str, comparisons: int, data: st.DataObject) -> None:
    alphabet = Alphabet(named, comparisons)
    assert alphabet.decode(alphabet.encode(named)) == named
    codes = data.draw(st.lists(st.integers(0, alphabet.size - 1), max_size=20))
    codes += alphabet.encode(named)
    by_code = sorted(set(codes))
    decoded = [alphabet.decode([code]) for code in by_code]
    assert decoded == sorted(decoded)
    assert len(set(decoded)) == len(decoded)
    assert all(not 0xD800 <= ord(character) < 0xE000 for character in decoded)
    assert alphabet.bounded is (alphabet.size <= 0x2FFFF)


def test_every_gap_keeps_characters() -> None:
    alphabet = Alphabet("ac", 3)
    low, high = alphabet.encode("ac")
    assert high - low == 2
    assert alphabet.decode([low + 1]) == "b"
    assert low == 5
    assert not Alphabet("", 0).bounded
    assert Alphabet("\U0010ffff", 0).bounded


def test_too_many_characters() -> None:
    with pytest.raises(OverflowError):
        Alphabet(map(chr, range(0x20, 0x100000, 0x1000)), 1_000)
