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
    table = [dict(zip(found.headings, row, strict=True)) for row in found.rows]
    assert {row["deliveries after completion"] for row in table} == {"0"}
    assert all(row["messages"] != "0" for row in table)
    # Readers are split over several orders, except where links are lost.
    assert [row["orders"] for row in table] == ["3"] * 4 + ["1"] * 2
    # Each distribution has a middle and an end, over the readers and over several orders.
    for what in ("last delivery", "complete"):
        for row in table:
            middle, late, longest = (float(row[f"{what}, {name} (ms)"]) for name in ("median", "p99", "longest"))
            assert 0 <= middle <= late <= longest
    assert any(row["complete, median (ms)"] != row["complete, longest (ms)"] for row in table)
    assert all(
        int(row["deliveries to a reader after the order, median"])
        <= int(row["deliveries to a reader after the order, most"])
        for row in table
    )
    assert isinstance(found.chart, LineChart)
    assert len(found.chart.lines) == 4
