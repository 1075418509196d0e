"""Rows of sealed blocks are taken once, and what is forgotten is refused."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.network import OWNER, make_type

from penstock.broker.limits import BrokerLimits
from penstock.broker.sealing.vault import Replays
from penstock.codec.blocks import BlockHeader, Fixed, Level, Padding, PlainNames, names
from penstock.errors import RefusedError
from penstock.model.names import TypeKey

CAR = make_type("Car", {}).key
BIKE = TypeKey(OWNER, "Bike")
NOW = datetime(2026, 5, 1, tzinfo=UTC)
SMALL = BrokerLimits(route_window=4, seal_replays=6)


def header(number: int, *, sender: int = 1, incarnation: int = 1, seconds: float = 0) -> BlockHeader:
    fixed = Fixed(Level.ATTRIBUTE, False, 1, Padding.NONE, bytes([sender]) * 32, bytes([incarnation]) * 16, (1,))
    return BlockHeader(fixed, number, NOW + timedelta(seconds=seconds), 8, PlainNames(names(CAR, (), ())))


def refused(
    code: str, replays: Replays, one: BlockHeader, rows: tuple[int, ...] = (0,), of_type: TypeKey = CAR
) -> None:
    with pytest.raises(RefusedError) as caught:
        replays.first(one, of_type, rows)
    assert caught.value.code == code


def test_a_row_is_taken_once() -> None:
    replays = Replays(lambda: NOW, limits=BrokerLimits())
    assert list(replays.first(header(3), CAR, (1, 4))) == [0, 1]
    assert list(replays.first(header(3), CAR, (1, 2, 4, 5))) == [1, 3]
    refused("seal.replayed", replays, header(3), (1, 2))
    assert list(replays.first(header(4), CAR, (1,))) == [0]


def test_what_was_taken_is_known_and_asking_takes_nothing() -> None:
    replays = Replays(lambda: NOW, SMALL)
    assert not replays.knows(header(10), CAR, (0,))
    replays.first(header(10), CAR, (1, 4))
    assert [replays.knows(header(10), CAR, rows) for rows in ((1,), (1, 4), (1, 2))] == [True, True, False]
    assert [replays.knows(header(number), CAR, (0,)) for number in (6, 7, 11)] == [True, False, False]
    assert not replays.knows(header(10, sender=2), CAR, (1,))
    assert list(replays.first(header(10), CAR, (1, 2))) == [1]


def test_senders_incarnations_and_types_are_told_apart() -> None:
    replays = Replays(lambda: NOW, limits=BrokerLimits())
    for one, of_type in (
        (header(1), CAR),
        (header(1, sender=2), CAR),
        (header(1, incarnation=2), CAR),
        (header(1), BIKE),
    ):
        assert list(replays.first(one, of_type, (0,))) == [0]
        refused("seal.replayed", replays, one, of_type=of_type)


def test_what_lies_before_the_window_is_taken_for_a_copy() -> None:
    replays = Replays(lambda: NOW, SMALL)
    replays.first(header(10), CAR, (0,))
    assert list(replays.first(header(7), CAR, (0,))) == [0]
    refused("seal.replayed", replays, header(6))


def test_what_was_sealed_before_the_memory_began_is_refused() -> None:
    refused("seal.too-old", Replays(lambda: NOW, limits=BrokerLimits()), header(1, seconds=-0.001))


def test_when_the_memory_began_is_corrected_with_the_clock() -> None:
    began = [NOW + timedelta(hours=1)]
    replays = Replays(lambda: began[0], SMALL)
    refused("seal.too-old", replays, header(1, seconds=1))
    began[0] = NOW
    refused("seal.too-old", replays, header(0, seconds=-1))
    assert list(replays.first(header(1, seconds=1), CAR, (0,))) == [0]
    for number in range(6):
        replays.first(header(number, sender=2, seconds=3), CAR, (0,))
    # What was forgotten stays forgotten, and a clock that was set back for a while changes nothing for good.
    began[0] = NOW - timedelta(hours=1)
    refused("seal.too-old", replays, header(1, seconds=1))
    began[0] = NOW
    refused("seal.too-old", replays, header(0, sender=3, seconds=-1))


def test_who_was_silent_for_longest_is_forgotten_first() -> None:
    replays = Replays(lambda: NOW, SMALL)
    for number, sender in ((0, 1), (0, 2), (1, 2), (1, 1), (0, 3), (1, 3), (2, 3)):
        replays.first(header(number, sender=sender), CAR, (0,))
    refused("seal.replayed", replays, header(1, sender=1))
    refused("seal.too-old", replays, header(1, sender=2))


def test_what_was_forgotten_does_not_come_back() -> None:
    replays = Replays(lambda: NOW, SMALL)
    for number in range(4):
        replays.first(header(number, seconds=number), CAR, (0,))
    for number in range(4):
        replays.first(header(number, sender=2, seconds=3), CAR, (0,))
    # The first sender is forgotten. Its next block is later than all that came of it.
    refused("seal.too-old", replays, header(3, seconds=3))
    assert list(replays.first(header(4, seconds=4), CAR, (0,))) == [0]
    refused("seal.replayed", replays, header(3, sender=2, seconds=3))
    # It is known again, and what came of it before it was forgotten is within its window.
    refused("seal.too-old", replays, header(3, seconds=3))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12), st.integers(0, 2)), max_size=60))
def test_no_row_is_ever_taken_twice_whatever_is_forgotten(sent: list[tuple[int, int, int]]) -> None:
    replays = Replays(lambda: NOW, SMALL)
    taken: set[tuple[int, int, int]] = set()
    for sender, number, row in sent:
        try:
            replays.first(header(number, sender=sender, seconds=number), CAR, (row,))
        except RefusedError:
            continue
        assert (sender, number, row) not in taken
        taken.add((sender, number, row))
        assert replays._numbers <= SMALL.seal_replays + SMALL.route_window * 2
        assert replays._numbers == sum(len(stream.taken) for stream in replays._streams.values())
