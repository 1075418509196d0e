"""The stock ticker: what firms pass on, and what goes with them."""

import pytest
from tests.examples.running import rows, run_example


@pytest.fixture(scope="module")
def output() -> str:
    return run_example("stock_ticker.py")


def test_investors_see_what_their_firm_has_and_sold_and_no_more(output: str) -> None:
    ann, bob, carl = (rows(output, name)[0] for name in ("Ann", "Bob", "Carl"))
    assert ann[1:] == ["Alder", "NOK, ERIC, NOK call", "time, stock, price", "shares, seller, buyer"]
    # Birch gave everything, and has no names of sellers and buyers.
    assert bob[1:3] == ["Birch", "NOK, ERIC, VOD"]
    assert bob[4] == "seller, buyer"
    assert (carl[2], carl[4]) == ("cocoa", "—")


def test_what_a_firm_does_not_have_it_cannot_pass_on(output: str) -> None:
    for line in (
        "Bea asks for derivatives, of which Birch has none",
        "Exchange authorises Birch  ✗ does not grant this right",
        "Mallory comes with what Bob has passed on to her",
    ):
        assert line in output
    assert output.count("[broker.not-permitted]") == 3


def test_a_firm_ends_a_contract_of_its_own(output: str) -> None:
    assert [row[2] for row in rows(output, "Ann")] == ["NOK, ERIC, NOK call", "NOK, ERIC", "NOK, ERIC"]


def test_a_firm_that_is_revoked_takes_its_investors_with_it(output: str) -> None:
    assert [row[2] for row in rows(output, "Bob")] == ["NOK, ERIC, VOD", "NOK, ERIC, VOD", "nothing"]
    assert [row[2] for row in rows(output, "Carl")] == ["cocoa"] * 3
    acknowledged = {row[2] for row in rows(output, "1") if row[3] == "✓ acknowledged"}
    assert acknowledged == {"Exchange Broker", "Alder Broker", "Birch Broker", "Cedar Broker"}
    assert "Bob asks again, and shows what he has" in output
