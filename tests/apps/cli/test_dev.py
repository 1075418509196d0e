"""`penstock dev`: lines for pipes, JSON for programs, a table and keys for terminals."""

import io
import json
import os
import pty
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console
from tests.apps.conftest import Shell
from tests.apps.node_kit import bounded
from tests.copies import Copy

from penstock.apps.cli.dev import _LiveView, wanted
from penstock.apps.node.dev_network import DevNetwork, ReadRight
from penstock.errors import PenstockError

ALL = ("meter", "region", "power")


def test_lines_change_rights(penstock: Shell) -> None:
    commands = "publish\nrevoke planner\nhide billing meter\nrevoke planner\nmoon\nquit\npublish\n"
    shown = penstock.ok("dev", "--every", "0", stdin=commands).out.splitlines()
    assert "planner of city may see region, power where region = 'north'" in shown
    assert "published     meter=M-11  region=north  power=0.5" in shown
    changes = [line.partition(":")[0] for line in shown if line.startswith("✓")]
    assert changes == ["✓ planner now sees nothing", "✓ billing now sees power"]
    assert "planner sees nothing already" in shown
    learnt = sorted(line for line in shown if "learns from its broker" in line)
    assert learnt == [
        "billing learns from its broker: its subscription is restricted in another way",
        "planner learns from its broker: its subscription may receive nothing any more, and waits",
    ]
    assert any(line.startswith("unknown command `moon`") for line in shown)
    # What comes after `quit` is not carried out.
    assert shown[-1].startswith("1 published; control-room received ")


def test_programs_get_lines_of_json(penstock: Shell) -> None:
    ran = penstock.ok(
        "dev", "--every", "0", "-o", "json", stdin="publish\nshow planner meter\nwhere planner x =\nquit\n"
    )
    lines = [json.loads(line) for line in ran.out.splitlines()]
    found = {line["event"]: line for line in lines}
    assert sorted(found["ready"]["brokers"]) == ["city", "grid"]
    assert found["published"]["values"] == {"meter": "M-11", "region": "north", "power": 0.5}
    changed = found["changed"]
    assert (changed["reader"], changed["attributes"], changed["where"]) == ("planner", list(ALL), "region = 'north'")
    assert found["notice"] == {"event": "notice", "reader": "planner", "change": "restricted", "code": None}
    assert found["problem"]["code"].startswith("selector.")
    assert (lines[-1]["event"], lines[-1]["published"]) == ("ended", 1)


def test_it_ends_by_itself(penstock: Shell) -> None:
    shown = penstock.ok("dev", "--for", "0.01", "--every", "1000", stdin="").out
    assert shown.splitlines()[-1].startswith("1 published")


def test_a_terminal_has_a_table_and_keys(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = Copy(
        ["dev"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, cwd=tmp_path, text=True, env=environment
    )
    os.close(theirs)
    with bounded(process, 90):
        seen = b""

        def wait_for(words: str) -> None:
            nonlocal seen
            while words.encode() not in seen:
                seen += os.read(ours, 65536)
            seen = b""

        wait_for("q quit")
        os.write(ours, b"r")
        wait_for("planner now sees nothing")
        os.write(ours, b"\t1")
        wait_for("control-room now sees region, power")
        os.write(ours, b"q")
        wait_for("published; control-room received")
        assert process.wait(60) == 0
    os.close(ours)


@pytest.fixture(scope="module")
def net() -> DevNetwork:
    """Return the network, which does not run: what a command wants follows from the rights alone."""
    return DevNetwork(os.urandom, lambda: datetime(2026, 5, 1, tzinfo=UTC), lambda _reader, _values: None)


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("revoke planner", ReadRight(())),
        ("grant planner", ReadRight(("region", "power"), "region = 'north'")),
        ("hide planner power", ReadRight(("region",), "region = 'north'")),
        ("show planner meter", ReadRight(ALL, "region = 'north'")),
        ("where planner", ReadRight(("region", "power"))),
        ("where planner power > 1 AND power < 2", ReadRight(("region", "power"), "power > 1 AND power < 2")),
    ],
)
def test_commands(net: DevNetwork, line: str, right: ReadRight) -> None:
    assert wanted(net, line) == (net.readers["planner"], right)


@pytest.mark.parametrize("line", ["", "moon", "hide planner", "hide planner moon", "revoke mallory", "revoke"])
def test_unknown_commands(net: DevNetwork, line: str) -> None:
    with pytest.raises(PenstockError) as caught:
        wanted(net, line)
    assert caught.value.code == "dev.command"


def test_on_a_narrow_terminal_rights_are_below_the_table(net: DevNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        console = Console(width=columns, file=io.StringIO())
        with console.capture() as screen:
            console.print(*_LiveView().parts(net), sep="\n")
        return [line.rstrip() for line in screen.get().splitlines()]

    right = "sees region, power where region = 'north'"
    assert [line.split() for line in shown(45) if "▶" in line] == [["▶planner", "0"]]
    assert any(line.startswith("planner of city") for line in shown(45))
    assert any(right in line and "▶" in line for line in shown(120))
