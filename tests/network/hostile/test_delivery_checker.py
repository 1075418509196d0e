"""The checker of brokers' logs: it finds nothing in good ones, and each kind of fault that is planted."""

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.network.hostile.delivery_checker import Account, Ban, deliveries, faults

LINES: list[dict[str, object]] = [
    {"started": "broker"},
    {"owner": "owner", "until": 110.0},
    {"to": "reader", "ids": ["a", "b"]},
    {"to": "other", "ids": ["a"]},
    {"owner": "owner", "until": 120.0},
    {"to": "reader", "ids": ["c"]},
    {"started": "broker"},
    {"to": "other", "ids": ["c"]},
]
#: one line every second
BEGIN = 101.0


def write(path: Path, lines: list[dict[str, object]]) -> None:
    numbered = ({"line": number, "at": BEGIN + number, **line} for number, line in enumerate(lines, 1))
    path.write_text("".join(json.dumps(line) + "\n" for line in numbered))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "deliveries.jsonl"
    write(path, LINES)
    return path


@pytest.fixture
def account(log: Path) -> Account:
    return Account(
        starts=Counter({log: 2}),
        bans=[Ban("reader", 107.5), Ban("other", 103.5, 104.5), Ban("other", 105.5, 108.5)],
        received={"reader": {"a", "b", "c"}, "other": {"a", "c"}},
        stamped=True,
    )


def kinds(account: Account) -> list[str]:
    return [fault.kind for fault in faults(account)]


def test_good_logs_have_no_faults(account: Account, log: Path) -> None:
    assert faults(account) == []
    assert deliveries([log]) == 5


@pytest.mark.parametrize(("begin", "end", "found"), [(106.9, 200.0, 1), (103.0, 200.0, 2), (104.0, 107.0, 0)])
def test_a_late_delivery(account: Account, begin: float, end: float, found: int) -> None:
    account.bans = [Ban("reader", begin, end)]
    assert kinds(account) == ["late"] * found


def test_a_missing_line(account: Account, log: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:3] + lines[4:]))
    account.received.clear()
    assert "missing line" in kinds(account)


def test_a_line_that_was_cut_off(account: Account, log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-4])
    account.received.clear()
    assert kinds(account) == ["missing line"]


def test_a_missing_log(account: Account, log: Path) -> None:
    log.unlink()
    assert kinds(account) == ["missing log", "unlogged", "unlogged"]


def test_a_log_that_begins_anew_after_a_restart(account: Account, log: Path) -> None:
    write(log, LINES[:6])
    account.received.clear()
    assert kinds(account) == ["missing log"]


def test_no_stamp_at_all(account: Account, log: Path) -> None:
    write(log, [line for line in LINES if "until" not in line])
    account.bans.clear()
    assert set(kinds(account)) == {"unstamped"}
    account.stamped = False
    assert faults(account) == []


def test_a_stamp_that_has_run_out(account: Account, log: Path) -> None:
    lines = [dict(line) for line in LINES]
    lines[4]["until"] = 106.0
    lines[1]["until"] = 104.0
    write(log, lines)
    assert kinds(account) == ["unstamped", "unstamped", "unstamped"]
    account.skew = 10.0
    assert faults(account) == []


def test_an_event_that_no_log_speaks_of(account: Account) -> None:
    account.received["reader"].add("z")
    assert kinds(account) == ["unlogged"]
