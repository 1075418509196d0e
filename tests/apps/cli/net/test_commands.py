"""`penstock net show`: two brokers that are linked, an event from one to the other, and how policy is shown."""

import json
import re
from datetime import UTC, datetime

import pytest
from tests.apps.conftest import Shell
from tests.apps.node_kit import LONGEST, TYPE, ask, eventually, lay_out, node_file, running, start

from penstock.apps.cli.net.status import plain, show_status
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.terminal import show
from penstock.crypto import SigningKey

EAST, WEST, NORTH, OWNER = (SigningKey(bytes([i]) * 32).principal for i in range(21, 25))
NAMES = NameBook.of({"east": EAST, "west": WEST, "north": NORTH, "owner": OWNER})


def test_two_brokers(penstock: Shell) -> None:
    lay_out(penstock)
    with running(penstock, node_file(penstock)) as east:
        address = east.url.removeprefix("penstock://")
        peers = f'[[peers]]\naddress = "{address}"\nprincipal = "east"\n'
        with running(penstock, node_file(penstock, "west", peers)) as west:
            eventually(lambda: "penstock_neighbours 1.0" in west.get("/metrics"))
            eventually(lambda: "penstock_brokers 2.0" in east.get("/metrics"))
            assert ask(penstock, east, "ops", "net show", "-o", "json").json["neighbours"] == [west.principal]
            shown = ask(penstock, east, "ops", "net show").out
            assert "\neast (this broker)\n└── west\n" in shown
            assert re.search(r"^clients connected +1$", shown, re.MULTILINE)
            assert re.search(r"^types|^entered|^trees|^accepted", shown, re.MULTILINE) is None
            with start(penstock, west, "reader", "sub", "--type", TYPE, "--count", "1", "-o", "json") as reader:
                assert reader.stderr is not None
                reader.stderr.readline()
                eventually(lambda: "penstock_client_entries 0.0" not in west.get("/metrics"))
                assert ask(penstock, east, "camera", "pub", "--type", TYPE, "speed=31").status == 0
                out, _ = reader.communicate(timeout=LONGEST)
            assert json.loads(out)["data"]["speed"] == 31
            assert west.stop() == 0
            eventually(lambda: "penstock_neighbours 0.0" in east.get("/metrics"))


def test_only_operators_may_ask(penstock: Shell) -> None:
    lay_out(penstock)
    with running(penstock, node_file(penstock)) as east:
        ran = ask(penstock, east, "reader", "net show")
        assert (ran.code, ran.status) == ("broker.not-operator", 1)


def test_links_besides_the_tree_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    links = {str(EAST): [str(WEST), str(NORTH)], str(WEST): [str(EAST), str(NORTH)], str(NORTH): [str(EAST), str(WEST)]}
    show(show_status({"broker": str(EAST), "network": f"{OWNER}/N", "brokers": links}, NAMES))  # type: ignore[dict-item]  # plain data
    shown = capsys.readouterr().out
    assert "owner/N" in shown
    assert "west, linked to north too" in shown


def test_brokers_that_are_not_reached(capsys: pytest.CaptureFixture[str]) -> None:
    show(show_status({"broker": str(EAST), "brokers": {str(EAST): [], str(WEST): []}}, NAMES))
    assert "not reached from here: west" in capsys.readouterr().out


def test_links_that_were_lost_and_what_that_has_cost(capsys: pytest.CaptureFixture[str]) -> None:
    lost = {"state": "lost", "code": "link.lost", "seconds": 4.2, "losses": 3, "unsent": 67}
    show(show_status({"broker": str(EAST), "brokers": {str(EAST): []}, "links": {str(WEST): lost}}, NAMES))  # type: ignore[dict-item]  # plain data
    shown = capsys.readouterr().out
    assert "events not passed on" in shown
    assert "west" in shown
    (row,) = [line for line in shown.splitlines() if "link.lost" in line]
    assert row.split() == ["west", "lost", "link.lost", "3", "67", "4", "s"]


def test_policy_and_revocations(capsys: pytest.CaptureFixture[str]) -> None:
    at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    brokers = {str(WEST): {"progress": "acknowledged", "at": at}, str(NORTH): {"progress": "waiting", "at": at}}
    events = [
        {"number": 11, "revokes": 0, "complete": at, "brokers": {str(WEST): {"progress": "run-out", "at": at}}},
        {"number": 12, "revokes": 3, "complete": None, "brokers": brokers},
    ]
    policy = {
        str(OWNER): {
            "number": 12,
            "state": "fresh",
            "stamp age": 3.2,
            "events": events,
            "brokers": {str(NORTH): {"since": at, "away": None, "rights end": None, "stamped": False}},
            "not installed": {"org.Golf@0": "its parent is not known [type.unknown-parent]"},
        },
        str(WEST): {"number": 0, "state": "behind", "stamp age": None, "events": []},
    }
    status = {"broker": str(EAST), "policy": policy}
    show(show_status(status, NAMES))  # type: ignore[arg-type]  # plain data
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "owner 12 3 s old ✓ current" in lines
    assert "west 0 none ✗ behind: nothing is delivered" in lines
    assert "owner 11 0 all ✓ complete since 2026-05-01T12:00:00Z" in lines
    assert "owner 12 3 all ✗ not complete" in lines
    assert "12 west acknowledged since 2026-05-01T12:00:00Z" in lines
    assert "12 north waiting until 2026-05-01T12:00:00Z in the network, without time-stamps" in lines
    assert [line for line in lines if "owner/org.Golf@0 is not installed here" in line]
    # Of an event that is complete, it is not said how it came to be.
    assert not [line for line in lines if line.startswith("11 ")]
    json.dumps(plain(status))  # type: ignore[arg-type]  # plain data
