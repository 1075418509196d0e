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


def test_bins_that_would_not_help() -> None:
    for spans in ([], [(0.0, float("inf"))], [(-1.7e308, 1.7e308)], [(0.0, 5e-324)], [(3.0, 3.0)]):
        assert Bins.of([spans], Kind.FLOAT) is None
    assert Bins.of([[(1, 2), (3, 4)]], Kind.INTEGER) is not None
