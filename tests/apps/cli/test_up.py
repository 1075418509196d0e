"""`penstock up` as a process: it starts, tells of itself, takes other files in while it runs, and stops in peace."""

import asyncio
import json
import re
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from urllib.error import HTTPError

import pytest
from tests.apps.conftest import Shell
from tests.apps.node_kit import LONGEST, TYPE, Running, ask, eventually, grant, lay_out, node_file, running, start

from penstock.apps.node.config import FabricFile, read_node_file
from penstock.apps.node.limits import NodeLimits
from penstock.apps.node.load import load_node
from penstock.apps.node.logs import Log
from penstock.apps.node.process import RunningNode, World
from penstock.broker.wire import transports
from penstock.crypto import SigningKey


@pytest.fixture
def network(penstock: Shell) -> Shell:
    """Return a shell in a folder with a network in it."""
    lay_out(penstock)
    return penstock


@pytest.fixture
def broker(network: Shell) -> Iterator[Running]:
    """Run one broker."""
    with running(network, node_file(network)) as found:
        yield found


def test_the_example_is_a_node_file(penstock: Shell) -> None:
    text = penstock.ok("up", "--example").out
    assert str(read_node_file(text).listen) == "127.0.0.1:7600"
    # What is commented out can be taken in, and shows the defaults.
    found = read_node_file(re.sub(r"^# (?=\[|[a-z_-]+ = )", "", text, flags=re.MULTILINE))
    assert (found.decisions, found.state, found.limits, found.fabric) == (
        *("decisions.jsonl", "state"),
        *(NodeLimits(), FabricFile()),
    )
    assert (len(found.peers), len(found.guards), len(found.facts), len(found.domains)) == (1, 1, 1, 1)


def test_check_starts_nothing_and_says_what_there_is(network: Shell) -> None:
    ran = network.ok("up", "--check", node_file(network), "-o", "json")
    assert (ran.json["ok"], ran.json["types"], ran.json["certificates"]) == (True, 1, 8)
    assert network.ok("up", "--check", "east.toml").out.startswith("✓ east.toml can be started")
    assert not (network.folder / "east.state").exists()
    assert not (network.folder / "east.jsonl").exists()


def test_a_broker_runs_where_spark_is_not_installed(network: Shell) -> None:
    program = "import sys; sys.modules['pyspark'] = None; from penstock.apps.cli.main import main; main()"
    with running(network, node_file(network), [sys.executable, "-c", program]) as broker:
        assert broker.get("/ready") == "ready\n"


def test_a_network_that_may_do_without_time_stamps_says_so_everywhere(network: Shell) -> None:
    (network.folder / "certs" / "stamp.cert").unlink()
    file = network.folder / node_file(network)
    # Required, which is the default: nobody could stamp for the owner.
    ran = network.ok("up", "--check", "east.toml", "-o", "json")
    assert [warning["code"] for warning in ran.json["warnings"]] == ["node.no-stamps"]
    with running(network, "east.toml") as strict:
        assert ask(network, strict, "camera", "pub", "--type", TYPE, "speed=31").code == "broker.policy-stale"
        assert strict.get("/ready") == "ready\n"
        assert strict.saw("stamps-optional") is None
    file.write_text(file.read_text() + 'stamps = "optional"\n')
    ran = network.ok("up", "--check", "east.toml", "-o", "json")
    assert [warning["code"] for warning in ran.json["warnings"]] == ["node.stamps-optional"]
    with running(network, "east.toml") as broker:
        assert (
            ask(network, broker, "camera", "pub", "--type", TYPE, "speed=31", "--subscriber-timeout", "0").status == 0
        )
        ready, words, _ = broker.get("/ready").split("\n")
        assert (ready, "optional" in words) == ("ready", True)
        assert broker.saw("stamps-optional") is not None
        shown = ask(network, broker, "ops", "net", "show")
        assert "optional" in shown.out


def test_a_broker_that_may_stamp_goes_on_after_a_restart_and_not_when_it_has_lost_its_state(network: Shell) -> None:
    file = node_file(network)
    for _ in range(2):
        with running(network, file) as broker:
            assert (
                ask(network, broker, "camera", "pub", "--type", TYPE, "speed=31", "--subscriber-timeout", "0").status
                == 0
            )
    shutil.rmtree(network.folder / "east.state")
    with running(network, file) as lost:
        eventually(lambda: any(line.get("code") == "evolution.nothing-kept" for line in lost.logged()))
        assert ask(network, lost, "camera", "pub", "--type", TYPE, "speed=31").code == "broker.policy-stale"
        ask(network, lost, "london", "net", "stamp", "--for", "1m")
        assert ask(network, lost, "camera", "pub", "--type", TYPE, "speed=31", "--subscriber-timeout", "0").status == 0


def test_a_broker_without_the_rights_of_a_broker_is_warned_about(network: Shell) -> None:
    (network.folder / "certs" / "east.cert").unlink()
    ran = network.ok("up", "--check", node_file(network), "-o", "json")
    assert [warning["code"] for warning in ran.json["warnings"]] == ["node.no-connect", "node.no-broker"]
    assert "node.no-broker" in ran.err
    grant(network, "east.cert", "east", "--network", "london/London", "--right", "connect")
    ran = network.ok("up", "--check", node_file(network), "-o", "json")
    assert [warning["code"] for warning in ran.json["warnings"]] == ["node.no-broker"]


def test_a_key_manager_that_may_manage_nothing_is_warned_about(network: Shell) -> None:
    network.ok("sealing", "new-kek", "keys.kek")
    made = ("--attribute", "plate:string", "--seal", "attribute", "--out", "types/hidden.type")
    network.ok("type", "new", "org.london.Hidden", "--key", "london.key", *made)
    words = ("up", "--check", node_file(network, "east", '[keys]\nkek = "keys.kek"\n'), "-o", "json")
    ran = network.ok(*words)
    assert ([warning["code"] for warning in ran.json["warnings"]], ran.json["manages_keys"]) == (["node.no-keys"], [])
    grant(network, "keys.cert", "east", "--type-file", "types/hidden.type", "--right", "keys")
    found = network.ok(*words).json
    assert (found["warnings"], len(found["manages_keys"])) == ([], 1)


@pytest.mark.parametrize(
    ("key", "code", "status"),
    [("", "file.missing", 3), ("(public-key)", "key.malformed", 2), ("(nonsense", "sexp.truncated", 2)],
)
def test_a_bad_key(network: Shell, key: str, code: str, status: int) -> None:
    file = network.folder / "east.key"
    file.unlink()
    if key:
        file.write_text(key)
    ran = network("up", "--check", node_file(network))
    assert (ran.code, ran.status) == (code, status)


@pytest.mark.usefixtures("cheap_passphrases")
def test_a_wrong_passphrase(network: Shell) -> None:
    (network.folder / "word").write_text("open sesame\n")
    (network.folder / "east.key").unlink()
    network.ok("key", "new", "east.key", "--passphrase-file", "word")
    (network.folder / "word").write_text("open barley\n")
    ran = network("up", "--check", node_file(network), "--passphrase-file", "word")
    assert ran.code == "key.passphrase"
    assert "barley" not in ran.out + ran.err


@pytest.mark.parametrize(("key", "code"), [("listen", "link.address"), ("http", "node.http")])
def test_a_port_that_is_taken(network: Shell, key: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "_PATIENCE", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = network.folder / node_file(network)
        port = taken.getsockname()[1]
        file.write_text(file.read_text().replace(f'{key} = "127.0.0.1:0"', f'{key} = "127.0.0.1:{port}"'))
        ran = network("up", "east.toml")
    assert (ran.code, ran.status) == (code, 3)
    assert "in use" in ran.err or key == "http"


def test_a_broker_that_runs_already(network: Shell, broker: Running) -> None:
    address = broker.url.removeprefix("penstock://")
    file = network.folder / "again.toml"
    file.write_text((network.folder / "east.toml").read_text().replace("127.0.0.1:0", address, 1))
    ran = network("up", "again.toml")
    assert (ran.code, ran.status) == ("link.address", 3)
    assert f"error: east runs already, at {address}" in ran.err
    assert "`penstock doctor again.toml`" in ran.err


def test_it_runs_tells_and_stops(network: Shell, broker: Running) -> None:
    assert (broker.get("/health"), broker.get("/ready")) == ("alive\n", "ready\n")
    with pytest.raises(HTTPError, match="404"):
        broker.get("/other")
    assert network.ok("key", "show", "east.key").out.find(broker.principal) >= 0
    assert ask(network, broker, "camera", "pub", "--type", TYPE, "speed=31", "--subscriber-timeout", "0").status == 0
    text = broker.get("/metrics")
    for line in (
        "penstock_events_published_total 1.0",
        "penstock_types 1.0",
        'penstock_decisions_total{effect="permit"}',
    ):
        assert line in text
    assert broker.principal not in text


def test_a_graceful_stop(network: Shell, broker: Running) -> None:
    with start(network, broker, "reader", "sub", "--type", TYPE, "-o", "json") as reader:
        assert reader.stderr is not None
        assert reader.stderr.readline().startswith("subscribed")
        assert ask(network, broker, "camera", "pub", "--type", TYPE, "speed=32").status == 0
        assert reader.stdout is not None
        assert json.loads(reader.stdout.readline())["data"] == {"plate": None, "speed": 32, "at": None}
        assert broker.stop() == 0
        # What was counted is written: one event taken, and one given.
        assert [line["event"] for line in broker.logged()][-2:] == ["stopping", "stopped"]
        records = [json.loads(line)["data"] for line in (network.folder / "east.jsonl").read_text().splitlines()]
        assert sum(record.get("passed", 0) for record in records) == 2
        # The reader waits for the broker to come back, until it is stopped.
        assert reader.poll() is None
        reader.send_signal(signal.SIGINT)
        assert reader.wait(60) == 0


def test_decisions_are_recorded_with_domains(network: Shell) -> None:
    camera = network.ok("key", "show", "camera.key", "-o", "json").json["principal"]
    homes = f'[domains]\nlondon = "City"\n"{camera}" = "Transport"'
    with running(network, node_file(network, more=homes)) as broker:
        for who, words in (
            ("camera", ("pub", "--subscriber-timeout", "0", "speed=31")),
            ("reader", ("sub", "--timeout", "0.1")),
        ):
            ask(network, broker, who, words[0], "--type", TYPE, *words[1:])
        assert broker.stop() == 0
    found = [json.loads(line)["data"] for line in (network.folder / "east.jsonl").read_text().splitlines()]
    assert {(one.get("domain"), one["owner-domain"]) for one in found if one["action"] == "publish"} == {
        ("Transport", "City")
    }
    # Nobody has said where the reader is at home.
    assert {(one.get("domain"), one["owner-domain"]) for one in found if one["action"] == "subscribe"} == {
        (None, "City")
    }


def test_other_domains_count_from_the_next_start(network: Shell) -> None:
    with running(network, node_file(network, more='[domains]\ncamera = "Transport"')) as broker:
        names = network.folder / "names.toml"
        names.write_text(names.read_text().replace("camera", "old").replace("reader", "camera"))
        broker.signal(signal.SIGHUP)
        assert eventually(lambda: broker.saw("restart-needed"))["keys"] == ["domains"]


def test_other_credentials_and_types_without_a_lost_connection(network: Shell, broker: Running) -> None:
    words = ("--type", TYPE, "-o", "json", "--count", "2", "--timeout", "60")
    with start(network, broker, "reader", "sub", *words) as reader:
        assert reader.stderr is not None
        assert reader.stderr.readline().startswith("subscribed")
        assert ask(network, broker, "camera", "pub", "--type", TYPE, "speed=1", "plate=A").status == 0
        # The right of the reader is replaced by one on another attribute.
        (network.folder / "certs" / "subscribe.cert").unlink()
        right = ("--type-file", "types/s.type", "--attribute", "plate", "--right", "subscribe")
        grant(network, "other.cert", "reader", *right)
        network.ok("type", "new", "org.london.Other", "--key", "london.key", "--out", "types/o.type")
        broker.signal(signal.SIGHUP)
        assert eventually(lambda: broker.saw("reloaded"))["types"] == 2
        assert ask(network, broker, "camera", "pub", "--type", TYPE, "speed=2", "plate=B").status == 0
        out, _ = reader.communicate(timeout=LONGEST)
        seen = [json.loads(line)["data"] for line in out.splitlines()]
        assert seen == [{"plate": None, "speed": 1, "at": None}, {"plate": "B", "speed": None, "at": None}]
        assert reader.returncode == 0
    assert "penstock_types 2.0" in broker.get("/metrics")


def test_files_that_are_wrong_change_nothing(network: Shell, broker: Running) -> None:
    (network.folder / "certs" / "junk.cert").write_text("(junk")
    broker.signal(signal.SIGHUP)
    assert eventually(lambda: broker.saw("not-reloaded"))["code"].startswith("sexp.")
    (network.folder / "certs" / "junk.cert").unlink()
    file = network.folder / "east.toml"
    file.write_text(file.read_text() + "\n[limits]\nclient_rate = 5\n")
    broker.signal(signal.SIGHUP)
    assert eventually(lambda: broker.saw("restart-needed"))["keys"] == ["limits"]
    assert ask(network, broker, "camera", "pub", "--type", TYPE, "speed=31", "--subscriber-timeout", "0").status == 0


def test_decisions_that_cannot_be_recorded(network: Shell, broker: Running) -> None:
    eventually(lambda: broker.get("/ready") == "ready\n")
    # What the broker decides about itself is recorded at any time, and so the file may be made again.
    decisions = network.folder / "east.jsonl"
    while not decisions.is_dir():
        decisions.unlink(missing_ok=True)
        with suppress(FileExistsError):
            decisions.mkdir()
    assert ask(network, broker, "camera", "pub", "--type", TYPE, "speed=31", "--subscriber-timeout", "0").status != 0
    with pytest.raises(HTTPError, match="503"):
        broker.get("/ready")


def test_what_nobody_foresaw_is_logged_without_its_words(network: Shell) -> None:
    lines: list[str] = []
    loaded = load_node(node_file(network), network.now)
    world = World(clock=lambda: network.now, timer=lambda: 0, random=lambda size: b"r" * size)

    async def fail() -> None:
        node = RunningNode(
            loaded, SigningKey(b"k" * 32), Log(lines.append, world.clock, as_json=True, limits=NodeLimits()), world
        )
        with pytest.raises(TypeError) as error:
            _fail("the secret")
        node._note_unexpected(asyncio.get_running_loop(), {"message": "a task failed", "exception": error.value})

    asyncio.run(fail())
    found = json.loads(lines[0])
    assert (found["event"], found["error"], found["message"]) == ("unexpected", "TypeError", "a task failed")
    assert found["where"].startswith("test_up.py:")
    assert "secret" not in lines[0]


def _fail(words: str) -> None:
    raise TypeError(words)
