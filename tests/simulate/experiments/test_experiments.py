"""Experiments that need no other processes run, and say everything that their section of the page needs."""

from xml.etree import ElementTree as ET

import pytest

from penstock.simulate.experiments.catalogue import find_experiments
from penstock.simulate.experiments.charts import BarChart
from penstock.simulate.experiments.data_centric import growth
from penstock.simulate.experiments.experiment import Laboratory

ALONE = (
    *("moderator-fig3", "moderator-fig4", "moderator-fig5", "components-table5"),
    *("capabilities-table4.7", "capabilities-table4.8", "capabilities-fig4.5", "capabilities-fig7.10"),
)


@pytest.mark.parametrize("name", ALONE)
def test_a_quick_run_has_a_table_a_plot_and_a_reason_for_whatever_may_differ(name: str) -> None:
    (one,) = find_experiments((name,))
    found = one.run(Laboratory(quick=True))
    assert found.rows
    assert {len(row) for row in found.rows} == {len(found.headings)}
    assert found.comparisons
    assert all(each.otherwise.endswith(".") for each in found.comparisons)
    assert found.chart is not None
    drawn = ET.fromstring(found.chart.svg())  # noqa: S314  # our own text
    assert drawn[0].text == found.chart.title
    if isinstance(found.chart, BarChart):
        assert len(drawn.findall("{*}rect")) == len(found.chart.bars)


def test_the_growth_of_a_number_ends_at_the_whole_number() -> None:
    times = [float(second) for second in range(1, 94)]
    points = growth(times, 25)
    assert (points[0], points[-1], len(points)) == ((0.0, 0), (93.0, 93), 26)
    assert growth([], 25) == [(0.0, 0)]
