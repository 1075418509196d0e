"""Durations are written in one way in all commands."""

import click
import pytest

from penstock.apps.cli.shared.options import Duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("1.5m", 90), ("2h", 7_200), ("7d", 604_800), ("0s", 0), ("3", None)],
)
def test_a_duration_has_a_number_and_a_unit(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(text, "s") == (3 if seconds is None else seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 s", "1S", "1w", "1e3", "inf", "nan", "٣s", "1.s", "1" * 13])
def test_nothing_else_is_one(text: str) -> None:
    assert parse_duration(text, "s") is None
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


@pytest.mark.parametrize(("text", "fits"), [("0s", False), ("1ms", True), ("1h", True), ("61m", False)])
def test_a_duration_can_be_bounded(text: str, fits: bool) -> None:  # a parameter of the test
    bounded = Duration(3_600, above=0)
    if fits:
        assert bounded.convert(text, None, None) > 0
        return
    with pytest.raises(click.BadParameter, match="such as 30s, at most 30s"):
        Duration(30).convert("31s", None, None)
    with pytest.raises(click.BadParameter, match="above 0 such as 30s, at most 1h"):
        bounded.convert(text, None, None)


def test_a_plain_number_has_the_unit_of_its_option() -> None:
    assert Duration(unit="d").convert("30", None, None) == Duration().convert("30d", None, None)
