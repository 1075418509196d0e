"""`penstock sealing` against a broker that runs and manages keys, is killed, and starts again."""

import signal
from pathlib import Path

import pytest
from tests.apps.conftest import Shell
from tests.apps.node_kit import Running, ask, eventually, grant, node_file, running

from penstock.apps.cli.keys import broker_keys as keys_asking
from penstock.store.files.key_files import read_kek, read_key_ring

TYPE = "london/org.london.Sighting"
KEYS = '[keys]\nkek = "keys.kek"\n'


@pytest.fixture
def network(penstock: Shell) -> Shell:
    """Return a shell in a folder with a sealed type, a broker that manages its keys, and who may ask for them."""
    _make(penstock)
    return penstock


def _make(shell: Shell) -> None:
    for who in ("london", "east", "engineer", "ops"):
        shell.ok("key", "new", f"{who}.key", "--name", who)
    shell.ok("sealing", "new-kek", "keys.kek")
    for folder in ("types", "certs"):
        (shell.folder / folder).mkdir()
    attributes = ("--attribute", "plate:string", "--attribute", "speed:integer", "--seal", "attribute")
    shell.ok("type", "new", "org.london.Sighting", "--key", "london.key", *attributes, "--out", "types/s.type")
    for who in ("london", "engineer", "ops"):
        grant(shell, f"{who}.cert", who, "--network", "london/London", "--right", "connect")
    grant(shell, "east.cert", "east", "--network", "london/London", "--right", "connect", "--right", "broker")
    sealed = ("--type-file", "types/s.type")
    grant(shell, "broker.cert", "east", *sealed, *("--right", "publish", "--right", "subscribe", "--right", "keys"))
    shell.ok(
        *("cert", "issue", "--key", "london.key", "--to", "engineer", "--no-expiry", "--out", "history.cert"),
        *(*sealed, "--attribute", "speed", "--right", "history"),
    )


def epochs(shell: Shell, broker: Running, who: str = "ops") -> set[int]:
    found = ask(shell, broker, who, "sealing show", "-o", "json").json
    return {one["epoch"] for one in found["held"].values()}


def test_a_manager_from_its_file_is_killed_and_goes_on(network: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    file = node_file(network, "east", KEYS)
    with running(network, file) as east:
        eventually(lambda: epochs(network, east) == {1})
        assert dumps_nothing(east.process.pid)
        rehearsed(network, east)
        ran = ask(network, east, "london", "sealing rotate", "--type", TYPE, "-o", "json")
        assert {(one["attribute"], one["epoch"]) for one in ran.json["keys"].values()} == {
            ("", 2),
            ("plate", 2),
            ("speed", 2),
        }
        for words in ("rotate", "evict east"):
            assert ask(network, east, "ops", f"sealing {words}", "--type", TYPE).code == "keys.not-manager"
        east.signal(signal.SIGKILL)
        east.process.wait(60)
    with running(network, file) as east:
        eventually(lambda: epochs(network, east) == {2})
        shown = ask(network, east, "ops", "sealing show").out
        assert "london/org.london.Sighting plate" in shown
        assert "(for its owner to see)" in shown
        # Operators do not learn who may read; the owner does.
        assert "east" not in shown
        assert "ops" not in shown
        ran = ask(network, east, "london", "sealing rotate", "--type", TYPE, "--attribute", "plate")
        assert "✓ a new epoch has begun" in ran.out
        fetched(network, east)
        with monkeypatch.context() as patch:
            patch.setattr(keys_asking, "on_terminal", lambda: True)
            kept = ask(network, east, "london", *FORGET, stdin="n\n")
            assert (kept.status, kept.out) == (3, "")
            assert "Forget old epochs of 3 keys? There is no way back" in kept.err
            assert ask(network, east, "engineer", *FETCH, "--credential", "history.cert").status == 0
            assert ask(network, east, "london", *FORGET, "--yes").status == 0
        gone = ask(network, east, "engineer", *FETCH, "--credential", "history.cert")
        assert gone.code == "keys.no-history"
        assert "east" in ask(network, east, "london", "sealing evict", "east", "--type", TYPE).out
        assert "✓ the broker asks for keys" in ask(network, east, "ops", "sealing join").out
        eventually(lambda: epochs(network, east) >= {4})
        assert east.stop() == 0
    assert not secrets_in(network.folder)
    (network.folder / "keys.kek").unlink()
    network.ok("sealing", "new-kek", "keys.kek")
    assert network("up", file).code == "keys.wrong-kek"
    assert network("up", node_file(network, "east", KEYS.replace("keys.kek", "env:NONE"))).code == "keys.no-kek"


def test_what_cannot_be_meant_is_not_asked_for(penstock: Shell) -> None:
    for words in (
        ("rotate", "--labels", "--attribute", "plate"),
        ("fetch", "a.ring", "--kek", "k", "--first", "3", "--last", "2"),
    ):
        whom = ("--broker", "penstock://127.0.0.1:1", "--network", "a/B", "--key", "absent.key", "--type", TYPE)
        assert penstock("keys", *words, *whom).code == "cli.usage"


FETCH = ("sealing fetch", "logs.ring", "--kek", "keys.kek", "--type", TYPE)


FORGET = ("sealing forget", "--before", "2999-01-01T00:00Z")


def rehearsed(network: Shell, east: Running) -> None:
    """Say what changes would concern; none of them happens."""
    of_type = ("--type", TYPE, "--dry-run")
    ran = ask(network, east, "london", "sealing rotate", *of_type, "--attribute", "plate", "-o", "json").json
    [found] = ran["keys"].values()
    assert ran["dry_run"]
    assert (found["attribute"], found["epoch"], found["then"], len(found["holders"])) == ("plate", 1, 2, 1)
    shown = ask(network, east, "london", "sealing evict", "east", *of_type).out
    assert "east would be out; these epochs would begin" in shown
    assert "nothing was changed, this is a rehearsal" in shown
    assert "nothing is forgotten" in ask(network, east, "london", *FORGET, "--dry-run").out
    assert "nothing would change" in ask(network, east, "ops", "sealing join", "--dry-run").out
    assert ask(network, east, "london", "sealing join", "--dry-run").code == "broker.not-operator"
    for noun, who in ((("sealing rotate", *of_type), "ops"), ((*FORGET, "--dry-run"), "engineer")):
        assert ask(network, east, who, *noun).code == "keys.not-manager"
    assert epochs(network, east) == {1}


def fetched(network: Shell, east: Running) -> None:
    """Fetch old keys: those that there is a right to, and no others."""
    assert ask(network, east, "engineer", *FETCH).code == "keys.not-entitled"
    closed = ask(network, east, "engineer", *FETCH, "--attribute", "plate", "--credential", "history.cert")
    # The key of the type alone would come with it.
    assert closed.code == "keys.not-entitled"
    assert not (network.folder / "logs.ring").exists()
    ran = ask(network, east, "engineer", *FETCH, "--credential", "history.cert", "--dry-run")
    assert "would write logs.ring" in ran.out
    assert not (network.folder / "logs.ring").exists()
    ran = ask(network, east, "engineer", *FETCH, "--credential", "history.cert", "-o", "json")
    assert ran.json["refused"] == {"plate": "keys.not-entitled"}
    assert ran.json["keys"]["speed"] == {"first": 1, "last": 1, "epochs": 1}
    ring = read_key_ring(network.folder / "logs.ring", read_kek(network.folder / "keys.kek"))
    assert {epoch for _, epoch, _ in ring.items()} == {1}
    assert len([*ring.items()]) == 2


def dumps_nothing(process: int) -> bool:
    """Say whether a process has seen to it that it leaves no dump: there is none of a single byte."""
    limits = Path(f"/proc/{process}/limits")
    if not limits.exists():
        return True
    [line] = [line for line in limits.read_text().splitlines() if line.startswith("Max core file size")]
    soft, hard = line.split()[4:6]
    return soft == ("0" if hard == "0" else "1")


def secrets_in(folder: Path) -> list[str]:
    """Return files of the broker that show the key that keys lie under, or one of the keys that were fetched."""
    kek = read_kek(folder / "keys.kek")
    ring = read_key_ring(folder / "logs.ring", kek)
    secret = [kek, *(key for _, _, key in ring.items())]
    shown = [form for one in secret for form in (one.expose(), one.expose().hex().encode())]
    files = [*folder.glob("east.*.log"), *folder.glob("*.jsonl"), *folder.glob("east.state/**/*")]
    return [path.name for path in files if path.is_file() and any(form in path.read_bytes() for form in shown)]
