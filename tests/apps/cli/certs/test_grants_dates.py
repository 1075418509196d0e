"""An end that is given as a day means the same everywhere: the day is included."""

import pytest
from tests.apps.conftest import Shell


@pytest.fixture
def people(penstock: Shell) -> Shell:
    for name in ("pito", "met"):
        penstock.ok("key", "new", f"{name}.key", "--name", name)
    return penstock


@pytest.mark.parametrize(
    ("written", "end"),
    [
        ("2030-12-31", "2030-12-31_23:59:59"),
        ("2030-12-31T00:00Z", "2030-12-31_00:00:00"),
        ("2030-12-31T12:00+01:00", "2030-12-31_11:00:00"),
    ],
)
def test_an_end_date_of_a_certificate_includes_the_day(people: Shell, written: str, end: str) -> None:
    line = "cert issue --key pito.key --to met --network pito/N --right connect --not-after"
    assert f'(not-after "{end}")' in people.ok(*line.split(), written).out


def test_help_says_what_a_date_alone_means(people: Shell) -> None:
    for command in ("cert issue", "moderator add", "pipeline audit"):
        assert "date alone includes" in " ".join(people.ok(*command.split(), "--help").out.split()), command
