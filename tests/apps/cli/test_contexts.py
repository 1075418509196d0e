"""`penstock context`: added, used, shown, listed, removed; and what daily commands take from a context."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from tests.apps.conftest import Shell

from penstock.store.files.contexts import contexts_path

URL = "penstock://127.0.0.1:7600"


@pytest.fixture
def shell(penstock: Shell) -> Shell:
    """Return a shell in a folder with keys and a type."""
    for who in ("acme", "reader"):
        penstock.ok("key", "new", f"{who}.key", "--name", who)
    penstock.ok("type", "new", "Reading", "--key", "acme.key", "--attribute", "power:float", "--out", "reading.type")
    return penstock


def add(shell: Shell, name: str, *more: str) -> None:
    shell.ok("context", "add", name, "--broker", URL, "--network", "acme/demo", "--key", "reader.key", *more)


def test_the_first_context_is_used(shell: Shell) -> None:
    add(shell, "demo")
    add(shell, "other")
    shown = shell.ok("context", "show", "-o", "json").json
    folder = shell.folder
    assert (shown["name"], shown["current"], shown["broker"]) == ("demo", True, URL)
    # Paths are absolute, and principals are written in full: a context is used from anywhere.
    assert (shown["key"], shown["names"]) == (str(folder / "reader.key"), str(folder / "names.toml"))
    assert shown["network"].startswith("ed25519:")
    assert "network  acme/demo" in shell.ok("context", "show").out
    listed = shell.ok("context", "list", "-o", "json").json
    assert ([one["name"] for one in listed["contexts"]], listed["current"]) == (["demo", "other"], "demo")
    assert "private-key" not in Path(listed["file"]).read_text()


def test_another_is_used_and_removed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    add(shell, "demo")
    add(shell, "other")
    shell.ok("context", "use", "other")
    assert shell.ok("context", "show", "-o", "json").json["name"] == "other"
    assert [line.split()[:2] for line in shell.ok("context", "list").out.splitlines()[1:]] == [
        ["demo", URL],
        ["*", "other"],
    ]
    monkeypatch.setenv("PENSTOCK_CONTEXT", "demo")
    assert shell.ok("context", "show", "-o", "json").json["name"] == "demo"
    monkeypatch.delenv("PENSTOCK_CONTEXT")
    shell.ok("context", "remove", "other")
    assert shell("context", "show").code == "context.unknown"
    assert shell("context", "use", "other").code == "context.unknown"
    assert shell("context", "remove", "other").code == "context.unknown"


def test_a_context_is_replaced_only_if_told(shell: Shell) -> None:
    add(shell, "demo")
    assert shell("context", "add", "demo", "--broker", "penstock://127.0.0.1:1").code == "context.exists"
    shell.ok("context", "add", "demo", "--broker", "penstock://127.0.0.1:1", "--overwrite")
    shown = shell.ok("context", "show", "-o", "json").json
    assert (shown["broker"], "key" in shown) == ("penstock://127.0.0.1:1", False)


def test_a_dry_run_writes_nothing(shell: Shell) -> None:
    add(shell, "demo", "--dry-run")
    assert shell.ok("context", "list").out == "there is no context\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("cli.usage", ()),
        ("client.url", ("--broker", "127.0.0.1:7600")),
        ("client.no-broker", ("--broker", "nats://127.0.0.1:4222")),
        ("principal.unknown", ("--network", "moon/demo")),
        ("file.missing", ("--broker", URL, "--key", "moon.key")),
        ("file.missing", ("--broker", URL, "--credential", "moon.cert")),
    ],
)
def test_what_cannot_be_used_is_not_added(shell: Shell, code: str, words: tuple[str, ...]) -> None:
    assert shell("context", "add", "demo", *words).code == code
    assert shell.ok("context", "list", "-o", "json").json["contexts"] == []


def test_without_a_context_a_command_says_what_to_do(shell: Shell) -> None:
    ran = shell("net", "show", "--network", "acme/demo", "--key", "reader.key")
    assert (ran.status, ran.code) == (2, "client.environment")
    assert "--broker" in ran.err
    assert "`penstock context add`, or `penstock init` for a new network" in ran.err


def test_options_and_environment_come_before_the_context_in_use(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens at any of these ports: the error names the address that was tried."""
    add(shell, "demo", "--broker", "penstock://127.0.0.1:1")
    add(shell, "chosen", "--broker", "penstock://127.0.0.1:2")

    def tried(*words: str) -> str:
        ran = shell("net", "show", *words, "-o", "json")
        return str(json.loads(ran.err)["error"]["message"]).partition("127.0.0.1:")[2].partition(":")[0]

    assert tried().startswith("1")
    assert tried("--context", "chosen").startswith("2")
    monkeypatch.setenv("PENSTOCK_CONTEXT", "chosen")
    assert tried().startswith("2")
    monkeypatch.setenv("PENSTOCK_BROKER", "penstock://127.0.0.1:3")
    assert tried().startswith("3")
    # What is written in the command comes before the environment.
    assert tried("--context", "demo").startswith("1")
    assert tried("--context", "demo", "--broker", "penstock://127.0.0.1:4").startswith("4")


def test_explain_is_about_the_principal_of_the_context(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    grant = ("--key", "acme.key", "--to", "reader", "--type-file", "reading.type", "--right", "subscribe")
    shell.ok("cert", "issue", *grant, "--days", "9", "--out", "reader.cert")
    shell.ok(
        "context", "add", "demo", "--key", "reader.key", "--credential", "reader.cert", "--type-file", "reading.type"
    )
    (shell.folder / "elsewhere").mkdir()
    monkeypatch.chdir(shell.folder / "elsewhere")
    assert shell.ok("explain", "--right", "subscribe").out.startswith("✓ reader may subscribe to Reading@0")
    assert shell("explain", "--right", "publish").code == "chain.no-authority"
    Path("../reader.cert").unlink()
    ran = shell("explain", "--right", "subscribe")
    assert ran.code == "file.missing"
    assert f"the context `demo` in {contexts_path()} names it: restore the file, or delete its path" in ran.err
    # Another principal's question has nothing to do with the context in use.
    assert shell("explain", "--right", "subscribe", "--principal", "../reader.key").code == "cli.resource"


def test_names_come_from_the_context_where_there_are_no_others(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    add(shell, "demo")
    elsewhere = shell.folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    issue = "cert issue --key ../acme.key --type-file ../reading.type --right subscribe --to"
    assert "acme → reader: subscribe" in shell.ok(*issue.split(), "reader", "--out", "reader.cert").out
    assert "reader  subscribe" in shell.ok("cert", "list").out
    # New names go into a file of this folder, which counts from then on.
    shell.ok("key", "new", "other.key", "--name", "other")
    assert "other" not in (shell.folder / "names.toml").read_text()
    assert "did you mean" not in shell(*issue.split(), "reader").err
    (elsewhere / "names.toml").unlink()
    monkeypatch.setenv("PENSTOCK_CONTEXT", "")
    # The folder of the key has names too.
    assert "acme → reader: subscribe" in shell.ok(*issue.split(), "reader", "--out", "again.cert").out
    alone = elsewhere / "a" / "b" / "acme.key"
    alone.parent.mkdir(parents=True)
    shutil.copy2(shell.folder / "acme.key", alone)
    refused = shell(*issue.replace("../acme.key", str(alone)).split(), "reader")
    assert (refused.code, "give a file of names with --names" in refused.err) == ("principal.unknown", True)
    # The folder of the context is gone, and commands that need no names still run.
    monkeypatch.delenv("PENSTOCK_CONTEXT")
    (shell.folder / "names.toml").unlink()
    assert "ed25519:" in shell.ok("cert", "list").out


def test_a_name_means_somebody_of_the_network_whose_key_signs(penstock: Shell) -> None:
    penstock.ok("init", "demo", "--listen", "127.0.0.1:7600")
    penstock.ok("init", "farm", "--listen", "127.0.0.1:7601")
    words = ["--to", "reader", "--type-file", "demo/types/reading.type", "--right", "subscribe", "-o", "json"]
    issued = penstock.ok("cert", "issue", "--key", "demo/keys/acme.key", "--out", "a.cert", *words).json
    readers = [tomllib.loads(Path(folder, "names.toml").read_text())["reader"] for folder in ("demo", "farm")]
    assert readers[0] in json.dumps(issued)
    assert readers[1] not in json.dumps(issued)


def test_a_certificate_is_taken_out_of_a_context(shell: Shell) -> None:
    issue = (
        "cert",
        "issue",
        "--key",
        "acme.key",
        "--to",
        "reader",
        "--type-file",
        "reading.type",
        "--right",
        "publish",
    )
    for name in ("one", "two"):
        shell.ok(*issue, "--no-expiry", "--out", f"{name}.cert")
    add(shell, "demo", "--credential", "one.cert", "--credential", "two.cert")
    remove = ("context", "remove-credential", "demo")
    assert shell.ok(*remove, "one.cert", "--dry-run").out == "would remove 1 certificate from demo\n"
    # The file may be gone.
    Path("one.cert").unlink()
    assert shell.ok(*remove, "one.cert").out == "removed 1 certificate from demo\n"
    shown = shell.ok("context", "show", "-o", "json").json
    assert (shown["credentials"], shown["key"]) == ([str(shell.folder / "two.cert")], str(shell.folder / "reader.key"))
    assert Path("two.cert").exists()
    assert shell(*remove, "one.cert", "two.cert").code == "context.credential"
    assert shell("context", "remove-credential", "other", "two.cert").code == "context.unknown"
    assert shell.ok("context", "show", "-o", "json").json["credentials"] == shown["credentials"]
