"""Validities taken together hold when one of them does, or when all do."""

from datetime import timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.kit import CURRENT, FUTURE, NOW, PAST

from penstock.model.instants import instant_key
from penstock.trust.validity import ALWAYS, ANY_TIME, OnlineTest, Periods, State, Validity, both, either

ONLINE = OnlineTest("crl", (b"online", b"crl"))


@st.composite
def validities(draw: st.DrawFn) -> Validity:
    days = sorted(draw(st.tuples(st.integers(0, 9), st.integers(0, 9))))
    begin, end = (draw(st.sampled_from((None, NOW + timedelta(days=day)))) for day in days)
    made = Validity.between(begin, end)
    return Validity(made.not_before, made.not_after, (ONLINE,)) if draw(st.booleans()) else made


def holds(periods: Periods, day: float, *, passes: bool) -> bool:
    """Say whether something holds on a day, where the on-line test passes or does not."""
    now = instant_key(NOW + timedelta(days=day))
    return any(one.state(now) is State.VALID and (passes or not one.online) for one in periods)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(validities(), max_size=5), st.lists(validities(), max_size=4), st.booleans())
def test_they_hold_when_one_does_and_when_both_do(one: list[Validity], other: list[Validity], passes: bool) -> None:
    united, met = either(one), both(either(one), either(other))
    for half in range(-1, 20):
        day = half / 2
        assert holds(united, day, passes=passes) is holds(tuple(one), day, passes=passes)
        assert holds(met, day, passes=passes) is (
            holds(tuple(one), day, passes=passes) and holds(tuple(other), day, passes=passes)
        )
    # As few as can be: none that others make up for, and those without tests do not meet.
    assert not any(first.covers(second) for first in united for second in united if first is not second)
    plain = [each for each in united if not each.online]
    assert all(first.end < second.begin for first, second in pairwise(plain))


def test_what_holds_always_and_never() -> None:
    assert either([PAST, ALWAYS, FUTURE]) == ANY_TIME
    assert either([]) == both(ANY_TIME, ()) == both((PAST,), (FUTURE,)) == ()
    assert either([FUTURE, PAST]) == (PAST, FUTURE)
    assert either([FUTURE, CURRENT, PAST]) == (CURRENT,)
    assert both((CURRENT,), ANY_TIME) == both((CURRENT,), (CURRENT,)) == (CURRENT,)
