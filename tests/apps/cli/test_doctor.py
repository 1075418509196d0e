"""`penstock doctor`: each finding, and what to do about it."""

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.apps.conftest import Shell
from tests.apps.node_kit import running

from penstock.apps.cli.doctor import HealthLevel, check_clocks, check_status
from penstock.apps.cli.shared.revocations import RevocationCheck
from penstock.store.files.name_book import NameBook

ISSUE = ("cert", "issue", "--key", "demo/keys/acme.key", "--names", "demo/names.toml", "--overwrite")


@pytest.fixture
def demo(penstock: Shell) -> Shell:
    """Return a shell in a folder with a network in it. Files have the machine's time, and so has the shell."""
    penstock.now = datetime.now(UTC).replace(microsecond=0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    penstock.ok("init", "demo", "--listen", f"127.0.0.1:{port}")
    return penstock


def findings(shell: Shell, *words: str) -> list[dict[str, Any]]:
    ran = shell("doctor", *(words or ("demo",)), "-o", "json")
    found: list[dict[str, Any]] = ran.json["findings"]
    problems = [one for one in found if one["level"] == "problem"]
    assert (ran.status, ran.json["ok"], ran.json["problems"]) == (int(bool(problems)), not problems, len(problems))
    return found


def bad(shell: Shell, *words: str) -> list[tuple[str, str]]:
    return [(one["level"], one["message"]) for one in findings(shell, *words) if one["level"] != "ok"]


def test_a_new_network_is_healthy(demo: Shell) -> None:
    assert {one["check"] for one in findings(demo)} == {"clock", "keys", "certificates", "demo/broker.toml"}
    assert bad(demo) == []
    shown = demo.ok("doctor", "demo").out
    assert "✓ keys: 4 key files, for the owner alone" in shown
    assert "`penstock up demo/broker.toml` starts it" in shown


def test_the_working_folder_is_checked_by_default(demo: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(demo.folder / "demo")
    demo.ok("doctor")
    demo.ok("doctor", "broker.toml")
    assert demo("doctor", "moon").code == "file.missing"


def test_a_clock_that_is_behind(demo: Shell) -> None:
    later = (demo.now + timedelta(hours=1)).timestamp()
    os.utime("demo/names.toml", (later, later))
    [(level, message)] = bad(demo)
    assert (level, "demo/names.toml" in message) == ("problem", True)


def test_a_key_that_others_can_read(demo: Shell) -> None:
    Path("demo/keys/acme.key").chmod(0o644)
    [found] = [one for one in findings(demo) if one["level"] == "problem"]
    assert found["check"] == "keys"
    assert "chmod 600 demo/keys/acme.key" in found["hint"]


def test_certificates_that_need_attention(demo: Shell) -> None:
    reader = ("--to", "reader", "--type-file", "demo/types/reading.type", "--right", "subscribe")
    demo.ok(*ISSUE, *reader, "--no-expiry", "--out", "demo/certs/never.cert")
    demo.ok(*ISSUE, *reader, "--days", "9", "--out", "demo/certs/soon.cert")
    demo.ok(*ISSUE, *reader, "--not-after", "2020-01-01", "--out", "demo/certs/over.cert")
    assert sorted(bad(demo)) == [
        ("problem", "demo/certs/over.cert: expired on 2020-01-01 23:59:59 UTC"),
        ("warning", "demo/certs/never.cert: never expires"),
        ("warning", "demo/certs/soon.cert: expires in 9 days"),
    ]
    assert any("penstock cert renew demo/certs/soon.cert" in one["hint"] for one in findings(demo))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("broker-connect", "does not have the right `connect`"),
        ("broker-route", "does not have the right `route` on acme/example.Reading"),
        ("broker-stamp", "nobody signs time-stamps for acme"),
    ],
)
def test_rights_that_a_broker_lacks(demo: Shell, file: str, words: str) -> None:
    Path(f"demo/certs/{file}.cert").unlink()
    found = [one for one in findings(demo) if one["level"] == "problem"]
    assert words in found[0]["message"]
    assert "penstock cert issue" in found[0]["hint"]


def test_a_node_file_that_cannot_be_loaded(demo: Shell) -> None:
    with Path("demo/broker.toml").open("a") as file:
        file.write("moon = 1\n")
    [(level, message)] = bad(demo)
    assert (level, "moon" in message) == ("problem", True)


def test_a_folder_without_a_network(penstock: Shell) -> None:
    penstock.now = datetime.now(UTC)
    assert bad(penstock, ".") == [("warning", "there is no node file in .")]


def test_a_file_that_a_broker_replaces_meanwhile(demo: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, is_file = Path("demo/.gone"), Path.is_file
    gone.touch()

    def is_file_for_now(path: Path) -> bool:
        found = is_file(path)
        if path == gone:
            path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "is_file", is_file_for_now)
    assert bad(demo) == []
    assert not gone.exists()


def test_a_broker_that_runs_and_a_peer_that_does_not(demo: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = server.getsockname()[1]
    with running(demo, "demo/broker.toml") as broker:
        assert bad(demo) == []
        assert any(one["message"] == "the policy of acme is current" for one in findings(demo))
        assert bad(demo, "--context", "demo-owner") == []
        # The reader is not an operator, which is not a problem.
        assert bad(demo, "--context", "demo-reader") == []
        assert "and reader is not one" in demo.ok("doctor", "--context", "demo-reader").out
        # Without an operator's key the folder's broker cannot be asked.
        Path("demo/keys/acme.key").rename("acme.key")
        [(level, message)] = bad(demo)
        assert (level, message.endswith("demo/keys/acme.key, which does not exist")) == ("warning", True)
        assert not any(one["message"] == "the policy of acme is current" for one in findings(demo))
        # A connection that ends within the handshake would be in the broker's log.
        assert "link." not in broker.log.read_text()
    with Path("demo/broker.toml").open("a") as file:
        file.write(f'[[peers]]\naddress = "127.0.0.1:{gone}"\n')
    Path("acme.key").rename("demo/keys/acme.key")
    assert bad(demo) == [("problem", f"cannot connect to 127.0.0.1:{gone}: connection refused")]
    assert [level for level, _ in bad(demo, "--context", "demo-owner")] == ["problem"]


def test_what_a_broker_says_of_itself() -> None:
    status: dict[str, Any] = {
        "broker": "east",
        "brokers": {"east": [], "west": []},
        "sessions": 1,
        "links": {"west": {"state": "lost", "code": "link.closed"}, "north": {"state": "back", "code": "link.closed"}},
        "policy": {
            "acme": {"state": "stale", "stamp age": 99.0, "events": [{"number": 3, "complete": None}]},
            "city": {"state": "fresh", "stamp age": 1.0, "not installed": {"Reading": "it is malformed"}},
        },
    }
    found = [(one.level, one.message) for one in check_status(status, NameBook.of({}))]
    assert found == [
        (HealthLevel.PROBLEM, "its link to west is lost (link.closed)"),
        (
            HealthLevel.PROBLEM,
            "the policy of acme is stale, the last time-stamp is 99 s old: nothing of acme is delivered",
        ),
        (HealthLevel.WARNING, "policy event 3 of acme is not complete"),
        (HealthLevel.OK, "the policy of city is current"),
        (HealthLevel.PROBLEM, "city/Reading is not installed: it is malformed"),
        (HealthLevel.OK, "answers: 2 brokers in the network, 1 session"),
    ]


GIVE_BACK = (
    "penstock cert renew demo/certs/reader-subscribe.cert --key demo/keys/acme.key --grant-again",
    "penstock net publish demo/certs/reader-subscribe.cert --context demo-owner --wait",
)


def test_something_else_at_the_address_of_a_broker(demo: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, text = server.getsockname()[1], Path("demo/broker.toml").read_text()
        Path("demo/broker.toml").write_text(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", text))

        def answer() -> None:
            taken, _ = server.accept()
            taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            taken.close()

        with ThreadPoolExecutor() as pool:
            pool.submit(answer)
            [(level, message)] = bad(demo)
    assert (level, message.startswith(f"something else listens at 127.0.0.1:{port}: ")) == ("problem", True)


def test_contexts_whose_files_are_gone(demo: Shell) -> None:
    assert not [one for one in findings(demo) if one["check"].startswith("context")]
    gone = Path("demo/certs/reader-subscribe.cert")
    gone.unlink()
    demo.ok("context", "use", "demo-reader")

    def found(context: str) -> list[tuple[str, str, str]]:
        check = f"context {context}"
        return [(one["level"], one["message"], one["hint"]) for one in findings(demo) if one["check"] == check]

    missing, remove = f"it names {gone.absolute()}, which does not exist", "penstock context remove-credential"
    assert found("demo-reader") == [("problem", missing, f"run `{remove} demo-reader {gone.absolute()}`")]
    # One that is not in use does not stop anybody now.
    demo.ok("context", "use", "demo-owner")
    assert [level for level, _, _ in found("demo-reader")] == ["warning"]
    Path("demo/keys/reader.key").unlink()
    [(level, message, hint)] = found("demo-reader")
    assert (level, "which do not exist" in message) == ("warning", True)
    assert "`penstock context remove demo-reader`" in hint
    demo.ok("context", "remove", "demo-reader")
    assert found("demo-reader") == []


def test_a_revoked_certificate(demo: Shell) -> None:
    revoked = "demo/certs/reader-subscribe.cert"
    with running(demo, "demo/broker.toml"):
        demo.ok("net", "revoke", revoked, "--context", "demo-owner", "--wait")
        [(level, message)] = bad(demo)
        assert (level, message.startswith(f"{revoked}: revoked at ")) == ("problem", True)
        assert message.endswith(" by acme")
        again, publish = GIVE_BACK
        # Names are those of the network's folder, wherever one stands.
        assert any(one["message"].endswith(" by acme") for one in findings(demo, "."))
        [hint] = [one["hint"] for one in findings(demo) if one["level"] == "problem"]
        # Who only deletes the file could not connect any more.
        unless = f"otherwise delete the file, and run `penstock context remove-credential demo-reader {revoked}`"
        assert hint == f"to give the right back, run `{again}`, and then `{publish}`; {unless}"
        told = [one["hint"] for one in findings(demo, "--context", "demo-reader") if one["level"] == "problem"]
        assert told == [f"ask acme to give the right back: run `{again}`, and then `{publish}`"]
        # A broker says it too, about the certificates of a connection.
        assert any(one["message"].endswith(" by acme") for one in findings(demo, "--context", "demo-reader"))
        assert "as penstock://127.0.0.1" in str(findings(demo, "--context", "demo-owner"))
    # The owner's chain says it without a broker.
    assert [message.rpartition(" by ")[2] for _, message in bad(demo)] == ["acme"]
    # Elsewhere only a broker could.
    Path("demo/keys/acme.chain").unlink()
    assert bad(demo) == []
    assert "no broker was asked whether they are revoked" in demo.ok("doctor", "demo").out


@pytest.mark.parametrize(
    ("seconds", "level", "words"),
    [
        (0, "ok", "as penstock://b has it"),
        (2, "warning", "2 s ahead of the clock of penstock://b"),
        (-90, "problem", "90 s behind the clock of penstock://b"),
    ],
)
def test_the_clock_of_a_broker(seconds: int, level: str, words: str) -> None:
    [found] = check_clocks(RevocationCheck(broker="penstock://b", ahead=timedelta(seconds=seconds)))
    assert (found.level, found.message.endswith(words)) == (HealthLevel(level), True)
    assert list(check_clocks(RevocationCheck())) == []
