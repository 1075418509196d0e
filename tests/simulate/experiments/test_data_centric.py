"""The parts of a response time add up, in virtual time and on this machine."""

from penstock.simulate.experiments.data_centric import EXPERIMENTS
from penstock.simulate.experiments.experiment import Laboratory


def test_decision_points_that_filter_a_request_out_do_not_delay_it_in_virtual_time() -> None:
    found = EXPERIMENTS[1].run(Laboratory(quick=True))
    assert [row[0] for row in found.rows] == ["1", "4"]
    assert found.comparisons[0].agrees
    parts = [int(cell.removesuffix(" µs")) for cell in found.rows[0][2:7]]
    assert abs(sum(parts[:4]) - parts[4]) <= 2
    # A request crosses the network twice, is signed and verified; so does a reply.
    assert parts[4] > 2 * 91
