"""What people are shown about keys."""

import pytest

from penstock.apps.cli.keys.broker_keys import show_keys
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.terminal import show


@pytest.mark.parametrize(("evicted", "shown"), [(True, "no member"), (False, "wait for a key")])
def test_a_broker_that_was_evicted_says_so(*, evicted: bool, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(show_keys({"held": {"t": {"type": "t", "epoch": 0, "seals": False, "evicted": evicted}}}, NameBook.of({})))
    lines = capsys.readouterr().out.splitlines()
    assert shown in lines[1]
    # Epochs are counted from 1: this is none.
    assert lines[1].split()[:2] == ["t", "–"]
