"""The sports news service: what each package gets, before and after the policy changes."""

import pytest
from tests.examples.running import rows, run_example


@pytest.fixture(scope="module")
def output() -> str:
    return run_example("sports_news.py")


def test_a_request_for_everything_comes_to_what_the_package_allows(output: str) -> None:
    tennis, match, live = (rows(output, name)[0][1:] for name in ("Tessa's PDA", "Sam's phone", "The Pub"))
    assert tennis == ["tennis", "✓", "—", "—", "—"]
    assert match == ["match", "✓", "✓", "—", "—"]
    assert live == ["live", "✓", "✓", "✓", "✓"]
    assert "asked for SportsNews and was granted TennisMatch." in output


def test_the_policy_gives_and_takes_while_news_flows(output: str) -> None:
    assert [row[2:] for row in rows(output, "Tessa's PDA")] == [
        ["✓", "—", "—", "—"],
        ["✓", "✓", "—", "—"],
        ["✓", "—", "—", "—"],
    ]
    # Nobody else notices.
    for other in ("Sam's phone", "The Pub"):
        first, *later = rows(output, other)
        assert later == [first, first]


def test_every_broker_has_acknowledged_what_was_revoked(output: str) -> None:
    progress = rows(output, "2")
    assert sorted(row[2] for row in progress) == ["Agency Broker", "Carrier", "Provider"]
    assert {(row[1], row[3]) for row in progress} == {("1", "✓ acknowledged")}


def test_what_no_package_holds_is_refused_and_a_place_is_forced(output: str) -> None:
    assert output.count("[broker.not-permitted]") == 3
    assert "missing: subscribe on SoccerMatch@0" in output
    assert "wrote `Liverpool`; The Pub read `Manchester`" in output
