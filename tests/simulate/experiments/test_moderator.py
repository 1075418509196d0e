"""Experiments about rules run quickly, state every rule, and give a row for each point."""

import pytest

from penstock.simulate.experiments.charts import LineChart
from penstock.simulate.experiments.experiment import Experiment, Laboratory
from penstock.simulate.experiments.moderator import EXPERIMENTS


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_a_quick_run_has_a_row_for_each_point_and_a_comparison(experiment: Experiment) -> None:
    found = experiment.run(Laboratory(quick=True))
    assert isinstance(found.chart, LineChart)
    assert [f"{x:,}" for x, _ in found.chart.lines[0].points] == [row[0] for row in found.rows]
    assert found.comparisons
