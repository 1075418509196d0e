"""The parts of a response time add up, in virtual time and on this machine."""

import pytest

from penstock.simulate.experiments.data_centric import EXPERIMENTS
from penstock.simulate.experiments.experiment import Laboratory


def test_decision_points_that_filter_a_request_out_do_not_delay_it_in_virtual_time() -> None:
    found = EXPERIMENTS[1].run(Laboratory(quick=True))
    assert [row[:2] for row in found.rows] == [
        ("1", "91 + 91 + 250 + 20 = 453 µs"),
        ("200", "97 + 92 + 250 + 20 = 459 µs"),
    ]
    assert found.comparisons[0].agrees
    few, many = ([int(word) for word in row[2].split() if word.isdigit()] for row in found.rows)
    assert abs(sum(few[:4]) - few[4]) <= 2
    # A request crosses the network twice, is signed and verified; so does a reply. The fabric of the paper is slower
    # with more readers, and nothing else is.
    assert few[4] > 2 * 91
    assert many[4] - few[4] == pytest.approx(97 + 92 - 2 * 91, abs=2)
