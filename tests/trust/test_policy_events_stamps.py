"""Time-stamps, and who has seen what."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.trust.kit import NOW, key, refused, who
from tests.trust.policy_kit import BROKER, NEIGHBOUR, OWNER, PERIOD, author

from penstock.codec.sexp import parse
from penstock.trust.policy_events import BEGINNING, Acknowledgement, CarriedStamp, HopStamp, TimeStamp
from penstock.trust.signed import UnverifiedValue, read_signed, sign_value


def stamp(number: int = 0, head: bytes = BEGINNING, period: int = PERIOD) -> TimeStamp:
    return TimeStamp(who(OWNER), number, head, NOW, period)


def test_a_stamp_is_good_for_its_period() -> None:
    assert stamp().until == NOW + timedelta(seconds=10)
    last = datetime.max.replace(tzinfo=UTC)
    assert TimeStamp(who(OWNER), 0, BEGINNING, last, PERIOD).until == last


@pytest.mark.parametrize("period", [0, -1, 7 * 24 * 3_600_000 + 1])
def test_a_period_has_bounds(period: int) -> None:
    with refused("evolution.malformed"):
        sign_value(stamp(period=period), key(OWNER))


@pytest.mark.parametrize(("number", "head"), [(0, b"x" * 32), (1, BEGINNING), (1, b"x")])
def test_a_head_belongs_to_its_number(number: int, head: bytes) -> None:
    with refused("evolution.malformed"):
        sign_value(stamp(number, head), key(OWNER))
    with refused("evolution.malformed"):
        sign_value(Acknowledgement(who(BROKER), who(OWNER), number, head, NOW), key(BROKER))


def test_a_stamp_is_carried_with_the_word_of_whoever_hands_it_on() -> None:
    signed = author().stamp(NOW, PERIOD)
    hop = sign_value(HopStamp(signed.digest, who(BROKER), who(NEIGHBOUR), NOW), key(BROKER))
    own = CarriedStamp(read_signed(signed.to_sexp(), TimeStamp))
    handed = CarriedStamp(own.stamp, read_signed(hop.to_sexp(), HopStamp))
    for carried in (own, handed):
        assert CarriedStamp.from_sexp(carried.to_sexp()) == carried
    assert isinstance(handed.hop, UnverifiedValue)
    assert handed.hop.verify() == hop


@pytest.mark.parametrize("written", ["carried", "()", "(carried)", "(carried a)", "(carried a b)", "(carried a b c)"])
def test_what_is_no_stamp_on_its_way_is_refused(written: str) -> None:
    with refused("evolution.malformed"):
        CarriedStamp.from_sexp(parse(written.encode()))


def test_whoever_signs_for_the_owner_is_named_and_signs_with_its_own_key() -> None:
    value = TimeStamp(who(OWNER), 0, BEGINNING, NOW, PERIOD, who(BROKER))
    signed = sign_value(value, key(BROKER))
    assert read_signed(signed.to_sexp(), TimeStamp).verify() == signed
    with refused("evolution.wrong-key"):
        sign_value(value, key(OWNER))
    with refused("evolution.malformed"):
        sign_value(TimeStamp(who(OWNER), 0, BEGINNING, NOW, PERIOD, who(OWNER)), key(OWNER))
