"""Revocations in networks of several sizes, counted in the simulator."""

from penstock.simulate.experiments.charts import LineChart
from penstock.simulate.experiments.experiment import Laboratory
from penstock.simulate.experiments.revocation import EXPERIMENTS


def test_small_networks_keep_the_limit() -> None:
    (experiment,) = EXPERIMENTS
    found = experiment.run(Laboratory(quick=True))
    assert found.agrees, found.verdict
    # Two shapes of two sizes, and both with lost links.
    assert len(found.rows) == 6
    late, messages = (found.headings.index(heading) for heading in ("after completion", "messages"))
    assert {row[late] for row in found.rows} == {"0"}
    assert all(row[messages] != "0" for row in found.rows)
    assert isinstance(found.chart, LineChart)
    assert len(found.chart.lines) == 4
