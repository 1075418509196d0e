"""An owner changes policy from the command line while a broker runs, and a crash, a copy or a twin cannot fork it."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from tests.apps.conftest import NOW, Ran, Shell
from tests.apps.node_kit import (
    LONGEST,
    TYPE,
    Running,
    ask,
    eventually,
    grant,
    lay_out,
    node_file,
    running,
    start,
)
from tests.copies import Copy
from tests.spoiled import flipped

from penstock.apps.cli.net import chain as policy_chain
from penstock.apps.cli.net.chain import read_count_of, read_events
from penstock.apps.cli.net.policy import Awaited
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import open_key
from penstock.apps.cli.shared.terminal import show
from penstock.codec.wire import Wire  # noqa: TC001  # as its neighbours are imported
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, PenstockError
from penstock.store.files.policy_files import ChainFile
from penstock.testing.server_process import free_port
from penstock.trust.policy_events import RequireStamps
from penstock.trust.policy_state import PolicyAuthor

#: dies when an event is written, before anybody receives it
DIES = """
import os, signal
from penstock.store.files import policy_files as policy_chain
append = policy_chain.HeldChain.append
def dies(self, events):
    append(self, events)
    os.kill(os.getpid(), signal.SIGKILL)
policy_chain.HeldChain.append = dies
from penstock.apps.cli.main import main
main()
"""
NOWHERE = ("--broker", "penstock://127.0.0.1:1", "--network", "london/London", "--key", "london.key")
AS_OPS = ("--as", "ops.key")


@pytest.fixture
def network(penstock: Shell) -> Shell:
    """Return a shell in a folder with a network, and a right that no broker knows of."""
    lay_out(penstock)
    (penstock.folder / "certs" / "subscribe.cert").rename(penstock.folder / "reader.cert")
    return penstock


@pytest.fixture
def broker(network: Shell) -> Iterator[Running]:
    """Run one broker."""
    with running(network, node_file(network)) as found:
        yield found


def owner(shell: Shell, broker: Running, *words: str) -> Ran:
    """Run a command of the owner."""
    return ask(shell, broker, "london", "net", *words)


def done(shell: Shell, broker: Running, *words: str) -> Any:
    """Run a command of the owner that must succeed."""
    ran = owner(shell, broker, *words, "-o", "json")
    assert ran.status == 0, ran.err
    return ran.json


def policy(shell: Shell, broker: Running) -> dict[str, Any]:
    """Return what the broker says of the owner's policy."""
    status = ask(shell, broker, "ops", "net show", "-o", "json").json
    (found,) = (state for who, state in status["policy"].items() if who == principal(shell, "london"))
    assert isinstance(found, dict)
    return found


def principal(shell: Shell, who: str) -> str:
    found: str = shell.ok("key", "show", f"{who}.key", "-o", "json").json["principal"]
    return found


def test_grant_and_revoke_and_wait_until_it_is_complete(network: Shell, broker: Running) -> None:
    with running(network, node_file(network, "west", _peer(broker))) as west:
        eventually(lambda: "penstock_brokers 2.0" in broker.get("/metrics"))
        assert ask(network, west, "reader", "sub", "--type", TYPE).code == "broker.not-permitted"
        first = done(network, broker, "publish", "reader.cert", *AS_OPS, "--wait", "--timeout", "120")
        assert [event["number"] for event in first["events"]] == [1]
        brokers = first["completion"]["brokers"]
        assert {who: one["progress"] for who, one in brokers.items()} == dict.fromkeys(
            (broker.principal, west.principal), "acknowledged"
        )
        assert first["completion"]["complete"] is not None
        with start(network, west, "reader", "sub", "--type", TYPE, "-o", "json") as reader:
            assert reader.stderr is not None
            assert reader.stdout is not None
            assert reader.stderr.readline().startswith("subscribed")
            assert (
                ask(network, broker, "camera", "pub", "--type", TYPE, "speed=1", "--subscriber-timeout", "120").status
                == 0
            )
            assert json.loads(reader.stdout.readline())["data"]["speed"] == 1
            ran = owner(network, broker, "revoke", "reader.cert", *AS_OPS, "--wait", "--timeout", "120")
            assert ran.status == 0, ran.err
            lines = [" ".join(line.split()) for line in ran.out.splitlines()]
            assert any(line.startswith("policy event 2 ✓ complete since ") for line in lines)
            assert sorted(line.partition(" since")[0] for line in lines[-2:]) == [
                "east ✓ acknowledged",
                "west ✓ acknowledged",
            ]
            # Once it is complete, nothing more is delivered.
            assert (
                ask(network, broker, "camera", "pub", "--type", TYPE, "speed=2", "--subscriber-timeout", "0").status
                == 0
            )
            reader.send_signal(signal.SIGINT)
            assert reader.communicate(timeout=LONGEST)[0] == ""
    # What is so already is not said again, and what was revoked is not granted again.
    assert done(network, broker, "revoke", "reader.cert")["events"] == []
    assert owner(network, broker, "publish", "reader.cert").code == "evolution.revoked"
    shown = network.ok("net", "chain", "show", "london.chain").out
    assert "policy of london" in shown
    assert "publishes cert:" in shown
    assert "revokes cert:" in shown
    assert network.ok("net", "chain", "verify", "london.chain").out == "✓ policy of london, 2 events, up to number 2\n"


def test_a_broker_that_is_gone_is_named_and_retired(network: Shell, broker: Running) -> None:
    with running(network, node_file(network, "west", _peer(broker))) as west:
        eventually(lambda: "penstock_brokers 2.0" in broker.get("/metrics"))
        west.signal(signal.SIGKILL)
        west.process.wait(60)
        assert owner(network, broker, "retire", "reader", *AS_OPS).code == "evolution.no-such-broker"
        ran = owner(network, broker, "publish", "reader.cert", *AS_OPS, "--wait", "--timeout", "0.5")
        assert (ran.code, ran.status) == ("evolution.incomplete", 1)
        assert "net retire" in ran.err
        assert "without time-stamps" in ran.out
        (waited,) = policy(network, broker)["brokers"].values()
        assert waited["certificates"] == [certificate(network, "certs/west.cert")]
        plan = owner(network, broker, "retire", "west", *AS_OPS, "--dry-run")
        assert f"revokes {waited['certificates'][0]}" in plan.out
        ran = owner(network, broker, "retire", "west", *AS_OPS, "--wait", "--timeout", "120")
        assert ran.status == 0, ran.err
        # It is said plainly that it may go on, since nothing stops it by itself.
        assert "evolution.unstamped-broker" in ran.err
        assert "west" not in ran.out.partition("policy event 2 ✓ complete")[2]
        assert policy(network, broker)["brokers"] == {}
        assert owner(network, broker, "retire", "west", *AS_OPS).code == "evolution.no-such-broker"


def test_a_broker_whose_right_is_revoked_is_not_ready(network: Shell, broker: Running) -> None:
    assert broker.get("/ready") == "ready\n"
    assert owner(network, broker, "revoke", "certs/east.cert").status == 0
    with pytest.raises(HTTPError) as caught:
        broker.get("/ready")
    assert caught.value.code == 503
    caught.value.close()
    assert policy(network, broker)["state"] == "not-broker"
    assert "node.not-broker" in broker.log.read_text()


def certificate(shell: Shell, file: str) -> str:
    found: str = shell.ok("cert", "show", file, "-o", "json").json["certificates"][0]["id"]
    return found


def _peer(broker: Running) -> str:
    address = broker.url.removeprefix("penstock://")
    return f'[[peers]]\naddress = "{address}"\nprincipal = "east"\n'


def test_types_stamps_and_checkpoints(network: Shell, broker: Running) -> None:
    network.ok("type", "new", "org.london.Golf", "--key", "london.key", "--out", "golf.type")
    assert done(network, broker, "install", "golf.type")["events"][0]["changes"][0]["install"]["name"].endswith("Golf")
    assert "penstock_types 2.0" in broker.get("/metrics")
    assert done(network, broker, "install", "golf.type")["events"] == []
    assert done(network, broker, "remove", "london/org.london.Golf@0")["events"][0]["number"] == 2
    assert "penstock_types 1.0" in broker.get("/metrics")
    assert owner(network, broker, "remove", "london/org.london.Golf@0").code == "evolution.not-installed"
    # A time-stamp first, so that nothing stops.
    assert owner(network, broker, "stamp", "--for", "1h").out.startswith("2")
    done(network, broker, "require-stamps")
    assert done(network, broker, "require-stamps")["events"] == []
    assert policy(network, broker)["state"] == "fresh"
    assert done(network, broker, "checkpoint")["events"][0]["checkpoint"] == 0
    assert [event["number"] for event in policy(network, broker)["events"]] == [4]
    # Nobody has granted the owner to operate a broker.
    ran = owner(network, broker, "checkpoint", "--wait")
    assert (ran.code, ChainFile(Path("london.chain")).read().number) == ("broker.not-operator", 4)
    assert "nothing is signed" in ran.err
    # A copy of what the broker has begins with the checkpoint.
    network.ok("net", "chain", "fetch", *_to(broker), "--chain", "copy.chain")
    copy = network.ok("net", "chain", "show", "copy.chain", "-o", "json").json
    assert [event["number"] for event in copy["events"]] == [4]
    done(network, broker, "publish", "reader.cert", "--chain", "copy.chain")


def _to(broker: Running) -> tuple[str, ...]:
    return ("--broker", broker.url, "--network", "london/London", "--key", "london.key")


def test_a_crash_between_signing_and_handing_in(network: Shell, broker: Running) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", DIES, "net", "publish", "reader.cert", *_to(broker)],
        cwd=network.folder,
        capture_output=True,
        check=False,
        timeout=LONGEST,
    )
    assert killed.returncode == -signal.SIGKILL
    assert ChainFile(Path("london.chain")).read().number == 1
    assert policy(network, broker)["number"] == 0
    # The same again: what was signed is handed in, and nothing is signed twice.
    again = done(network, broker, "publish", "reader.cert")
    assert (again["again"], again["events"]) == ([1], [])
    assert policy(network, broker)["number"] == 1
    # A crash while it was being written: nobody received it, and another one takes its place.
    with Path("london.chain").open("ab") as stream:
        stream.write(b"{KDg6c2VxdWVu")
    ran = owner(network, broker, "revoke", "reader.cert")
    assert "[evolution.torn]" in ran.err
    assert network.ok("net", "chain", "verify", "london.chain", "-o", "json").json["number"] == 2
    assert (policy(network, broker)["number"], policy(network, broker)["state"]) == (2, "fresh")


def test_processes_at_the_same_time(network: Shell, broker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        right = ("--type-file", "types/s.type", "--right", "subscribe", "--comment", name)
        grant(network, f"{name}.cert", "reader", *right)
    commands = [("net", "publish", f"certs/{name}.cert", *_to(broker), "-o", "json") for name in ("a", "b", "c")]
    processes = [Copy(words, cwd=network.folder, stdout=subprocess.PIPE, text=True) for words in commands]
    said = [json.loads(process.communicate(timeout=LONGEST)[0]) for process in processes]
    assert sorted(one["events"][0]["number"] for one in said) == [1, 2, 3]
    network.ok("net", "chain", "verify", "london.chain")
    assert (policy(network, broker)["number"], policy(network, broker)["state"]) == (3, "fresh")
    monkeypatch.setattr(policy_chain, "TURN", 0.1)
    with ChainFile(Path("london.chain")).hold():
        assert owner(network, broker, "revoke", "reader.cert").code == "evolution.busy"


def test_an_old_copy_of_the_chain(network: Shell, broker: Running) -> None:
    done(network, broker, "publish", "reader.cert")
    for name in ("london.chain", "london.chain.state"):
        shutil.copy(name, f"{name}.old")
    done(network, broker, "revoke", "reader.cert")
    # With the last state beside it, and with an old one.
    shutil.copy("london.chain.old", "london.chain")
    for _ in range(2):
        for words in (("checkpoint",), ("stamp", "--for", "1m")):
            ran = owner(network, broker, *words)
            assert (ran.code, ran.status) == ("evolution.old-chain", 1)
            assert "penstock net chain fetch" in ran.err
        shutil.copy("london.chain.state.old", "london.chain.state")
    # Who is not told cannot know, and does not sign.
    ran = owner(network, broker, "checkpoint", "--as", "reader.key")
    assert ran.code == "evolution.unchecked"
    assert ChainFile(Path("london.chain")).read().number == 1
    fetched = network.ok("net", "chain", "fetch", *_to(broker), "-o", "json").json
    assert (fetched["number"], fetched["fetched"], fetched["ok"]) == (2, 1, True)
    done(network, broker, "checkpoint", "--as", "reader.key", "--unchecked")
    assert (policy(network, broker)["number"], policy(network, broker)["state"]) == (3, "fresh")
    # No chain at all, and one that goes another way than what the broker has.
    for name in ("london.chain", "london.chain.state"):
        Path(name).unlink()
    assert owner(network, broker, "publish", "reader.cert").code == "evolution.old-chain"
    author = PolicyAuthor(open_key("london.key", None))
    with ChainFile(Path("london.chain")).hold() as held:
        held.append([author.change(network.now) for _ in range(3)])
    assert owner(network, broker, "stamp", "--for", "1m").code == "evolution.forked"
    assert policy(network, broker)["state"] == "fresh"


def test_stamps_go_on_while_the_broker_starts_again(network: Shell) -> None:
    file = node_file(network)
    path = network.folder / file
    path.write_text(path.read_text().replace('listen = "127.0.0.1:0"', f'listen = "127.0.0.1:{free_port()}"'))
    every = ("--for", "1h", "--every", "100ms", "-o", "json")
    with running(network, file) as first, start(network, first, "london", "net stamp", *every) as stamper:
        assert stamper.stdout is not None
        stamps = [json.loads(stamper.stdout.readline()) for _ in range(3)]
        # Another command of the owner goes on with the chain meanwhile, and the next stamp says so.
        done(network, first, "publish", "reader.cert")
        while stamps[-1].get("number") != 1:
            stamps.append(json.loads(stamper.stdout.readline()))
        first.signal(signal.SIGKILL)
        first.process.wait(60)
        while "code" not in stamps[-1]:
            stamps.append(json.loads(stamper.stdout.readline()))
        with running(network, file) as second:
            while "time" not in stamps[-1]:
                stamps.append(json.loads(stamper.stdout.readline()))
            found = policy(network, second)
            assert (found["state"], found["number"]) == ("fresh", 1)
            assert found["stamp age"] < 60
            # An old copy of the chain is not gone on with, until its owner has put the last one back.
            for moved in (("london.chain", "last"), ("old", "london.chain")):
                Path(moved[0]).touch()
                shutil.move(*moved)
            while stamps[-1].get("code") != "evolution.old-chain":
                stamps.append(json.loads(stamper.stdout.readline()))
            shutil.move("last", "london.chain")
            while "time" not in stamps[-1]:
                stamps.append(json.loads(stamper.stdout.readline()))
            stamper.send_signal(signal.SIGTERM)
            assert stamper.wait(60) == 0
    times = [stamp["time"] for stamp in stamps if "time" in stamp]
    assert times == sorted(times)
    assert ChainFile(Path("london.chain")).read().number == 1


def test_a_clock_that_was_set_back(network: Shell, broker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert owner(network, broker, "stamp", "--for", "1m").status == 0
    monkeypatch.setattr("penstock.apps.cli.net.policy.clock", lambda: network.now)
    monkeypatch.setattr(policy_chain, "clock", lambda: network.now)
    for words in (("stamp", "--for", "1m"), ("publish", "reader.cert")):
        assert owner(network, broker, *words).code == "evolution.backwards"
    assert ChainFile(Path("london.chain")).read().number == 0


def test_chains_that_do_not_hold(network: Shell) -> None:
    author = PolicyAuthor(open_key("london.key", None))
    with ChainFile(Path("london.chain")).hold() as held:
        held.append([author.change(network.now, RequireStamps()), author.change(network.now)])
    whole = Path("london.chain").read_bytes()
    for data, code in ((whole[:-9], "evolution.torn"), (whole[:-9] + b"\n", "evolution.broken")):
        Path("london.chain").write_bytes(data)
        for verb in ("show", "verify"):
            ran = network("net", "chain", verb, "london.chain")
            assert (ran.code, ran.status) == (code, 1)
            assert ("requires time-stamps" in ran.out) is (verb == "show")
            ran = network("net", "chain", verb, "london.chain", "-o", "json")
            assert (ran.json["ok"], ran.json["code"], ran.json["number"], ran.status) == (False, code, 1, 1)
    assert network("net", "chain", "show", "absent.chain").status == 3


def test_what_a_broker_tells_is_verified() -> None:
    key, other = SigningKey(bytes([1]) * 32), SigningKey(bytes([2]) * 32)
    event = PolicyAuthor(key).change(NOW)
    assert read_events({"events": [event.to_bytes()]}, key.principal) == [event]
    octets = event.to_bytes()
    forged = flipped(octets, -3)
    for told, owner, code in (
        ([event.to_bytes()], other, "evolution.other-owner"),
        ([b"junk"], key, "sexp.syntax"),
        ([forged], key, "key.bad-signature"),
    ):
        with pytest.raises(PenstockError) as caught:
            read_events({"events": told}, owner.principal)
        assert caught.value.code == code
    with pytest.raises(MalformedError):
        read_count_of({"known": "many"}, "known")


def test_what_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    owner, east, west = (SigningKey(bytes([i]) * 32).principal for i in (1, 2, 3))
    names = NameBook.of({"east": east, "west": west})
    awaited = Awaited(owner, 3)
    error = awaited.error()
    assert error is not None
    assert "not complete" in error.message
    at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    brokers: dict[str, Wire] = {
        str(east): {"progress": "acknowledged", "at": at},
        str(west): {"progress": "waiting", "at": at},
    }
    noon = "2026-05-01T12:00:00Z"
    facts: Wire = {str(west): {"since": at, "away": at, "rights end": at, "stamped": True, "certificates": []}}
    old: Wire = {"number": 2, "complete": at, "brokers": {}}
    events: list[Wire] = [old, {"number": 3, "complete": None, "brokers": brokers}]
    awaited.take({"policy": {str(owner): {"events": events, "brokers": facts}}})
    assert awaited.text(names).splitlines() == [
        "policy event 3: 1 of 2 brokers",
        "east  ✓ acknowledged  since 2026-05-01T12:00:00Z",
        f"west  ✗ waiting  until at the latest {noon}  away since {noon}, its rights end {noon}",
    ]
    error = awaited.error()
    assert error is not None
    assert error.code == "evolution.incomplete"
    # Of an event that is not shown any more, a later one says as much.
    awaited.take({"policy": {str(owner): {"events": [{"number": 9, "complete": at, "brokers": brokers}]}}})
    assert awaited.error() is None
    show(awaited.show(names))
    assert "policy event 3 ✓ complete since 2026-05-01T12:00:00Z" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["--for 0s", "--for 8d", "--for soon", "--for 10s --every 10s", "--every 1s"])
def test_periods(network: Shell, words: str) -> None:
    ran = network("net", "stamp", *words.split(), *NOWHERE)
    assert (ran.code, ran.status) == ("cli.usage", 2)


def test_a_rehearsal_leaves_no_trace(network: Shell) -> None:
    before = sorted(network.folder.iterdir())
    ran = network.ok("net", "publish", "reader.cert", *NOWHERE, "--dry-run")
    assert "london → reader: restrictions, subscribe on london/org.london.Sighting" in ran.out
    ran = network.ok("net", "checkpoint", *NOWHERE, "--dry-run", "-o", "json")
    assert (ran.json["dry_run"], ran.json["events"][0]["number"]) == (True, 1)
    assert sorted(network.folder.iterdir()) == before


def test_a_broker_that_is_not_there(network: Shell) -> None:
    assert network("net", "publish", "reader.cert", *NOWHERE).status == 3
    assert network("net", "stamp", "--for", "1m", "--every", "1s", *NOWHERE).status == 3
    assert not Path("london.chain").exists()


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        ("publish", "cli.usage", 2),
        ("publish absent.cert", "file.missing", 3),
        ("publish names.toml", "cert.malformed", 2),
        ("publish forged.cert", "cert.signature-mismatch", 1),
        ("revoke cert:abc", "evolution.malformed", 2),
        ("revoke empty.cert", "cert.none", 2),
        ("install reader.cert", "type.malformed", 2),
        ("install foreign.type", "evolution.foreign-type", 1),
        ("install sub.type", "type.unknown-parent", 1),
        ("remove nonsense", "name.malformed", 2),
        ("remove london/org.london.Sighting", "evolution.not-installed", 1),
        ("checkpoint --chain other.chain", "evolution.other-owner", 1),
        ("checkpoint --chain names.toml", "evolution.broken", 1),
        ("checkpoint --as absent.key", "file.missing", 3),
    ],
)
def test_bad_input(network: Shell, words: str, code: str, status: int) -> None:
    forged = bytearray(Path("reader.cert").read_bytes())
    place = forged.index(b"org.london")
    forged[place : place + 3] = b"com"
    Path("forged.cert").write_bytes(forged)
    Path("empty.cert").write_text("(sequence)")
    network.ok("type", "new", "org.east.A", "--key", "east.key", "--out", "foreign.type")
    parent = ("--extends", "types/s.type")
    network.ok("type", "new", "org.london.Sub", "--key", "london.key", *parent, "--out", "sub.type")
    with ChainFile(Path("other.chain")).hold() as held:
        held.append([PolicyAuthor(SigningKey(bytes(32))).change(network.now)])
    ran = network("net", *words.split(), *NOWHERE, "--dry-run")
    assert (ran.code, ran.status) == (code, status), ran.err
    assert not Path("london.chain").exists()
