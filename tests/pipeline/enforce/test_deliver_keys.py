"""Bins are chosen for any spans, and a value that lies in a span has a bin that the span touches."""

from math import floor

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.model.values import Kind
from penstock.pipeline.enforce.deliver import Bins

FLOATS = st.floats(allow_nan=False)
SPANS = st.lists(st.tuples(FLOATS, FLOATS), max_size=6)


@given(SPANS, FLOATS)
@example([(-1.7e308, 1.7e308)], 0.0)
@example([(0.0, 5e-324)], 0.0)
@example([(0.0, 1.5e-323), (1e-323, 1.5e-323)], 1e-323)
@example([(1.0, 1.0)], 1.0)
@example([(2.0, 1.0)], 1.0)
def test_a_value_of_a_span_has_a_bin_that_the_span_touches(spans: list[tuple[float, float]], value: float) -> None:
    bins = Bins.of([spans], Kind.FLOAT)
    if bins is None:
        return
    for low, high in spans:
        touched = bins.touched([(low, high)])
        for inside in (low, high, value):
            if low <= inside <= high:
                # What `Bins.column` computes.
                place = max(min((inside - bins.low) / bins.width, float(bins.last + 1)), -3.0)
                assert floor(place) in touched


WHOLE = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(WHOLE, WHOLE), max_size=6), WHOLE)
@example([(2**53 + 1, 2**53 + 3)], 2**53 + 2)
@example([(-(2**63), 2**63 - 1), (0, 1)], 1)
def test_a_whole_number_of_a_span_has_a_bin_that_the_span_touches(spans: list[tuple[int, int]], value: int) -> None:
    bins = Bins.of([spans], Kind.INTEGER)
    for low, high in spans if bins is not None else ():
        for inside in (low, high, value):
            if bins is not None and low <= inside <= high:
                place = max(min((float(inside) - bins.low) / bins.width, float(bins.last + 1)), -3.0)
                assert floor(place) in bins.touched([(low, high)])


def test_spans_of_whole_numbers_that_do_not_meet_share_no_bin() -> None:
    spans = [(5 * n, 5 * n + 4) for n in range(20)]
    bins = Bins.of([spans], Kind.INTEGER)
    assert bins is not None
    assert sorted(place for one in spans for place in bins.touched([one])) == list(range(100))


def test_a_wide_span_beside_narrow_ones_has_coarser_bins() -> None:
    narrow = [(float(n), n + 0.5) for n in range(100)]
    fine, coarse = (Bins.of([spans], Kind.FLOAT) for spans in (narrow, [*narrow, (0.0, 99.0)]))
    assert fine is not None
    assert coarse is not None
    assert fine.width < coarse.width


def test_bins_that_would_not_help() -> None:
    for spans in ([], [(0.0, float("inf"))], [(-1.7e308, 1.7e308)], [(0.0, 5e-324)], [(3.0, 3.0)]):
        assert Bins.of([spans], Kind.FLOAT) is None
    assert Bins.of([[(1, 2), (3, 4)]], Kind.INTEGER) is not None
