"""Events of sealed types are gathered by type, go when it is time, and wait while they cannot be sealed."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from tests.broker.network import NUMBER, make_type

from penstock.broker.limits import BrokerLimits
from penstock.broker.sealing.blocks import BlockBuilder, Lingering
from penstock.errors import MalformedError, RefusedError
from penstock.model.events import Event, TransitEvent
from penstock.model.names import TypeKey

CAR, BIKE = make_type("Car", {"speed": NUMBER}), make_type("Bike", {"speed": NUMBER})
NOW = datetime(2026, 5, 1, tzinfo=UTC)
LINGER = timedelta(milliseconds=5)


def events(*numbers: int, of_type: object = CAR) -> tuple[TransitEvent, ...]:
    return tuple(Event.of(of_type, {"speed": one}, id=str(one)).to_transit() for one in numbers)  # type: ignore[arg-type]  # of the two


def gathering(linger: timedelta = LINGER, most: int = 4, held: Collection[TypeKey] = (), **limits: int) -> BlockBuilder:
    """Return a builder; keys are missing for the types that are `held`."""
    return BlockBuilder(Lingering(linger=linger, events=most), BrokerLimits(**limits), held.__contains__)  # type: ignore[arg-type]  # numbers alone


def ids(blocks: Sequence[Sequence[TransitEvent]]) -> list[str]:
    return [" ".join(event.id for event in block) for block in blocks]


def test_without_lingering_each_publication_is_a_block() -> None:
    gathered = gathering(timedelta())
    assert ids(gathered.put(NOW, events(1, 2))) == ["1 2"]
    assert ids(gathered.put(NOW, events(*range(9)))) == ["0 1 2 3 4 5 6 7 8"]
    assert gathered.due is None


def test_events_of_a_type_linger_for_each_other_in_their_order() -> None:
    gathered = gathering()
    assert gathered.put(NOW, events(1)) == []
    assert gathered.put(NOW + LINGER / 2, events(2)) == []
    assert gathered.put(NOW + LINGER / 2, events(7, of_type=BIKE)) == []
    assert gathered.due == NOW + LINGER
    assert gathered.ready(NOW + LINGER - datetime.resolution) == []
    assert ids(gathered.ready(NOW + LINGER)) == ["1 2"]
    assert gathered.due == NOW + LINGER * 1.5
    assert ids(gathered.all()) == ["7"]
    assert len(gathered) == 0


def test_enough_events_or_octets_go_at_once() -> None:
    gathered = gathering()
    assert gathered.put(NOW, events(1, 2, 3)) == []
    assert ids(gathered.put(NOW, events(4))) == ["1 2 3 4"]
    gathered.put(NOW, events(5))
    assert ids(gathered.put(NOW, events(6, 7, 8, 9))) == ["5", "6 7 8 9"]
    small = gathering(seal_gather_bytes=200)
    assert small.put(NOW, events(1, 2)) == []
    assert ids(small.put(NOW, events(3))) == ["1 2"]


def test_what_cannot_be_sealed_waits_and_nothing_is_due_for_it() -> None:
    held = {CAR.key}
    gathered = gathering(held=held, route_block_events=3)
    for number in range(5):
        assert gathered.put(NOW + number * LINGER, events(number)) == []
    assert gathered.due is None
    assert ids(gathered.put(NOW, events(7, 8, 9, 10, of_type=BIKE))) == ["7 8 9", "10"]
    assert gathered.all() == []
    held.clear()
    assert ids(gathered.all()) == ["0 1 2", "3 4"]
    assert len(gathered) == 0


def test_what_could_not_be_sealed_after_all_stands_before_what_came_later() -> None:
    gathered = gathering()
    gathered.put(NOW, events(1, 2))
    (block,) = gathered.all()
    gathered.put(NOW, events(3))
    gathered.keep(NOW, block)
    assert len(gathered) == 3
    assert ids(gathered.all()) == ["1 2 3"]


def test_several_blocks_that_could_not_be_sealed_keep_their_order() -> None:
    held = {CAR.key}
    gathered = gathering(held=held, route_block_events=2)
    gathered.put(NOW, events(1, 2, 3, 4))
    held.clear()
    for _ in range(2):
        blocks = gathered.all()
        assert ids(blocks) == ["1 2", "3 4"]
        for block in blocks:
            gathered.keep(NOW, block)
    assert [event.id for event in gathered.waiting()] == ["1"]


def test_not_too_many_wait() -> None:
    held = {CAR.key}
    gathered = gathering(held=held, seal_held=3)
    gathered.put(NOW, events(1, 2))
    with pytest.raises(RefusedError) as caught:
        gathered.put(NOW, events(3, 4))
    assert caught.value.code == "seal.buffer-full"
    gathered.put(NOW, events(3))
    held.clear()
    assert ids(gathered.all()) == ["1 2 3"]


def test_the_octets_of_what_waits_are_bounded_and_counted_back() -> None:
    held = set[TypeKey]()
    gathered = gathering(held=held, seal_held_bytes=200)
    for _ in range(3):
        held.add(CAR.key)
        gathered.put(NOW, events(1, 2))
        with pytest.raises(RefusedError) as caught:
            gathered.put(NOW, events(3))
        assert caught.value.code == "seal.buffer-full"
        held.clear()
        (block,) = gathered.all()
        gathered.keep(NOW, block)
        assert ids(gathered.all()) == ["1 2"]


def test_what_can_be_sealed_goes_however_much_of_another_type_waits() -> None:
    gathered = gathering(held={CAR.key}, seal_held=3)
    gathered.put(NOW, events(1, 2, 3))
    gathered.put(NOW, events(4, of_type=BIKE))
    assert CAR.key in gathered
    assert ids(gathered.ready(NOW + LINGER)) == ["4"]
    assert BIKE.key not in gathered


@pytest.mark.parametrize(("linger", "most"), [(-LINGER, 1), (timedelta(seconds=2), 1), (LINGER, 0), (LINGER, 1_025)])
def test_settings_that_make_no_sense(linger: timedelta, most: int) -> None:
    with pytest.raises(MalformedError) as caught:
        Lingering(linger=linger, events=most)
    assert caught.value.code == "seal.settings"
