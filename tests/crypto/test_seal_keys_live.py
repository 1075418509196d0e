"""Keys of a broker that runs: epochs begin, are over, or are still to come."""

from tests.crypto.seal_kit import attributes, secret

from penstock.crypto.seal_keys import LiveKeys

ONE, TWO = attributes(2)


def live(*epochs: int) -> LiveKeys:
    keys = LiveKeys()
    for epoch in epochs:
        keys.begin(ONE, epoch, secret(ONE, epoch))
    return keys


def test_what_was_begun_last_is_sealed_under() -> None:
    keys = live(4, 5)
    keys.put(ONE, 9, secret(ONE, 9))
    assert keys.current(ONE) == 5
    assert keys.newest(ONE) == 9


def test_an_epoch_that_was_closed_is_over_and_nothing_is_sealed_under_it() -> None:
    keys = live(4, 5)
    assert not keys.is_over(ONE, 4)
    keys.close(ONE, 4)
    assert keys.is_over(ONE, 4)
    assert keys.key(ONE, 4) is None
    keys.close(ONE, 5)
    assert keys.current(ONE) is None
    assert keys.is_over(ONE, 5)


def test_an_epoch_before_the_first_is_over_though_its_key_is_there_for_logs() -> None:
    keys = live(4)
    assert keys.is_over(ONE, 3)
    keys.put(ONE, 3, secret(ONE, 3))
    assert keys.is_over(ONE, 3)


def test_an_epoch_that_is_still_to_come_is_missed_once() -> None:
    keys = live(4)
    assert keys.awaits(ONE, 6)
    assert keys.awaits(ONE, 5)
    assert not keys.awaits(ONE, 4)
    assert not keys.is_over(ONE, 5)
    assert keys.missed() == {ONE: 6}
    assert keys.missed() == {}


def test_nothing_is_over_or_to_come_where_nobody_expects_a_key() -> None:
    keys = live(4)
    assert not keys.is_expected(TWO)
    assert not keys.is_over(TWO, 1)
    assert not keys.awaits(TWO, 1)
    keys.expect(TWO)
    assert keys.is_expected(TWO)
    assert keys.awaits(TWO, 1)


def test_who_has_left_a_group_expects_nothing_and_may_come_back_in_the_same_epoch() -> None:
    keys = live(4)
    version = keys.version
    keys.leave(ONE)
    assert keys.version != version
    assert (keys.key(ONE, 4), keys.current(ONE), keys.is_expected(ONE)) == (None, None, False)
    assert not keys.is_over(ONE, 4)
    keys.begin(ONE, 4, secret(ONE, 4))
    assert keys.current(ONE) == 4
    assert not keys.is_over(ONE, 4)
