"""What operators learn about links that were lost, however often that is."""

from datetime import UTC, datetime

import pytest
from tests.broker.network import principal
from tests.broker.node_kit import BROKERS, Broker, run, running, until

from penstock.apps.node.limits import NodeLimits
from penstock.apps.node.logs import Log
from penstock.broker.core.reports import LinkReport, LinkReports, LinkState

EAST, WEST = principal("east"), principal("west")
LOST, BACK = LinkState.LOST, LinkState.BACK


@pytest.fixture
def told() -> list[LinkReport]:
    return []


@pytest.fixture
def reports(told: list[LinkReport]) -> LinkReports:
    return LinkReports(told.append)


def test_a_link_that_is_lost_and_comes_back_is_reported_with_what_it_has_cost(
    reports: LinkReports, told: list[LinkReport]
) -> None:
    reports.up(EAST, 10)
    assert told == []
    reports.lost(EAST, "link.lost", 70)
    reports.not_passed_on(EAST, 3)
    reports.not_passed_on(EAST, 4)
    reports.up(EAST, 75)
    assert told == [
        LinkReport(EAST, LOST, "link.lost", 60),
        LinkReport(EAST, BACK, "link.lost", 5, unsent=7),
    ]
    assert reports.unsent == 7
    assert reports.status(80) == {
        str(EAST): {"state": "back", "code": "link.lost", "seconds": 5, "losses": 1, "unsent": 7}
    }


def test_a_new_link_in_the_place_of_another_is_not_a_loss(reports: LinkReports, told: list[LinkReport]) -> None:
    reports.up(EAST, 1)
    reports.up(EAST, 2)
    reports.lost(WEST, "link.lost", 3)
    assert (told, reports.status(4)) == ([], {})


def test_a_link_that_comes_and_goes_is_reported_a_few_times_and_then_now_and_then(
    reports: LinkReports, told: list[LinkReport]
) -> None:
    reports.up(EAST, 0)
    for moment in range(1, 1_000, 2):
        reports.lost(EAST, "link.lost", moment)
        reports.up(EAST, moment + 1)
    assert 4 <= len(told) < 100
    # Nothing is hidden: the reports say how often it was lost.
    assert sum(report.losses or (report.state is LOST) for report in told) > 400
    assert reports.status(1_000)[str(EAST)]["losses"] == 500  # type: ignore[index,call-overload]  # plain data
    before = len(told)
    reports.up(WEST, 1_000)
    reports.lost(WEST, "link.idle", 1_001)
    assert told[before:] == [LinkReport(WEST, LOST, "link.idle", 1)]


def test_the_log_has_a_line_for_each() -> None:
    lines: list[str] = []
    log = Log(lines.append, lambda: datetime(2026, 1, 1, tzinfo=UTC), quiet=True, limits=NodeLimits())
    log.note(LinkReport(EAST, LOST, "link.lost", 60.04))
    log.note(LinkReport(EAST, BACK, "link.lost", 5, unsent=7, losses=3))
    assert lines[0].endswith(f"warning link-lost broker={EAST.short} code=link.lost up_for=60.0")
    assert lines[1].endswith(f"warning link-back broker={EAST.short} code=link.lost down_for=5 unsent=7 losses=3")


def test_a_node_reports_a_link_that_it_has_lost_and_that_it_is_back() -> None:
    def states(node: Broker, of: object) -> list[str]:
        return [str(one.state) for one in node.told if isinstance(one, LinkReport) and one.peer == of]

    async def main() -> None:
        async with running() as node:
            async with running(key=BROKERS[1], peers=(node.address,)) as other:
                await until(lambda: node.sees(other))
                link = other.neighbours._neighbours[node.core.principal].link
                link._channel.abort()
                await until(lambda: states(node, other.core.principal) == ["lost", "back"])
                await until(lambda: states(other, node.core.principal) == ["lost", "back"])
                await until(lambda: node.sees(other))
                status = node.status(node.core.principal)
                assert isinstance(status, dict)
                assert status["links"].keys() == {str(other.core.principal)}  # type: ignore[union-attr]  # plain data
            # One that takes leave is gone too, and its operator has stopped it.
            await until(lambda: states(node, other.core.principal) == ["lost", "back", "lost"])
        assert states(other, node.core.principal) == ["lost", "back"]

    run(main())
