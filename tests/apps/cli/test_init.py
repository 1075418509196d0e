"""`penstock init`: a folder that works as it is, or nothing at all."""

import asyncio
import os
import pty
import shutil
import socket
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.apps.conftest import Shell
from tests.apps.node_kit import bounded, running
from tests.copies import Copy

import penstock as library
from penstock.apps.cli import init as module
from penstock.apps.node.load import load_node
from penstock.errors import FailedError
from penstock.store.files.contexts import ContextFile, contexts_path

LISTEN = ("--listen", "127.0.0.1:7600")


def test_the_folder_can_be_started_as_it_is(penstock: Shell) -> None:
    made = penstock.ok("init", "demo", *LISTEN, "-o", "json").json
    assert (made["folder"], made["organisation"], made["broker"]) == ("demo", "acme", "penstock://127.0.0.1:7600")
    assert made["expires"] == "2027-05-01T12:00:00Z"
    checked = penstock.ok("up", "--check", "demo", "-o", "json").json
    assert (checked["types"], checked["certificates"], checked["warnings"]) == (1, 7, [])
    assert checked["network"] == made["network"]
    readme = (penstock.folder / "demo" / "README.md").read_text()
    for step in made["next"]:
        assert step.replace("demo/", "").replace("up demo", "up .") in readme


def test_keys_are_for_their_owner_alone_and_stay_out_of_git(penstock: Shell) -> None:
    before = os.umask(0)
    try:
        penstock.ok("init", "demo", *LISTEN)
    finally:
        os.umask(before)
    keys = sorted((penstock.folder / "demo" / "keys").iterdir())
    assert [key.name for key in keys] == ["acme.key", "broker.key", "reader.key", "sensor.key"]
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert "keys/" in (penstock.folder / "demo" / ".gitignore").read_text().splitlines()


def test_rights_end_after_a_year(penstock: Shell) -> None:
    penstock.ok("init", "demo", *LISTEN)
    files = [str(file) for file in (penstock.folder / "demo" / "certs").iterdir()]
    penstock.ok("cert", "verify", *files, "--at", "2027-05-01T12:00Z")
    shown = penstock("cert", "verify", *files, "--at", "2027-05-01T12:01Z", "-o", "json")
    assert {one["code"] for one in shown.json["certificates"]} == {"cert.expired"}


def test_an_event_arrives_restricted_until_the_right_is_revoked(
    penstock: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Brokers are processes, and use the machine's clock.
    penstock.now = datetime.now(UTC)
    penstock.ok("init", "demo", *LISTEN)
    file = penstock.folder / "demo" / "broker.toml"
    file.write_text(file.read_text().replace(":7600", ":0"))
    with running(penstock, "demo") as broker:
        monkeypatch.setenv("PENSTOCK_BROKER", broker.url)

        async def read() -> dict[str, object]:
            async with library.connect() as reader:
                held = await reader.subscribe(library.load_type("demo/types/reading.type"))
                monkeypatch.setenv("PENSTOCK_CONTEXT", "demo-sensor")
                async with library.connect() as sensor:
                    feed = await sensor.advertise(held.type)
                    for region in ("south", "north"):
                        await feed.publish(meter="M-17", region=region, power=1.5)
                monkeypatch.delenv("PENSTOCK_CONTEXT")
                event = await held.next(60)
                return {name: event[name] for name in held.type.by_name}

        # The context in use is the reader's.
        assert asyncio.run(read()) == {"meter": None, "region": "north", "power": 1.5}
        right = "demo/certs/reader-subscribe.cert"
        penstock.ok("net", "revoke", right, "--context", "demo-owner", "--broker", broker.url, "--wait")
        assert penstock("sub", "--count", "1").code == "broker.not-permitted"


def test_contexts_are_added_and_the_readers_is_used(penstock: Shell) -> None:
    penstock.ok("init", "demo", *LISTEN)
    found = ContextFile.load()
    assert (list(found.contexts), found.current) == (["demo-owner", "demo-sensor", "demo-reader"], "demo-reader")
    assert found.get("demo-owner").key == str(penstock.folder / "demo" / "keys" / "acme.key")
    assert penstock("init", "demo2", "--network", "demo").code == "context.exists"
    assert not (penstock.folder / "demo2").exists()
    # A network that takes the place of an earlier one in its folder takes its contexts too.
    shutil.rmtree("demo")
    penstock.ok("init", "demo", *LISTEN)


def test_without_contexts_the_environment_is_enough(penstock: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    made = penstock.ok("init", "demo", *LISTEN, "--no-contexts", "-o", "json").json
    assert (made["contexts"], contexts_path().exists()) == ([], False)
    assert not any("--context" in step for step in made["next"])
    monkeypatch.chdir(penstock.folder / "demo")
    for line in Path(".env").read_text().splitlines():
        monkeypatch.setenv(*line.split("=", 1))
    library.connect()
    shown = penstock.ok("explain", "--right", "subscribe", "--type-file", "types/reading.type").out
    assert shown.startswith("✓ reader may subscribe")


def test_names_are_chosen(penstock: Shell) -> None:
    penstock.ok("init", "--organisation", "grid", "--network", "meters", "--yes")
    node = load_node("meters/broker.toml", penstock.now)
    assert (node.network.name, node.names.show(node.network.owner)) == ("meters", "grid")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("cli.usage", ("--organisation", "broker")),
        ("cli.usage", ("--organisation", "a b")),
        ("petname.malformed", ("--organisation", "a/b")),
        ("cli.usage", ("--network", "a/b")),
        ("cli.usage", ("--listen", "7600")),
        ("cli.usage", ("--listen", "127.0.0.1:70000")),
    ],
)
def test_what_cannot_be_a_name_or_an_address(penstock: Shell, code: str, words: tuple[str, ...]) -> None:
    assert penstock("init", "demo", *words).code == code
    assert list(penstock.folder.iterdir()) == []


def test_a_folder_with_something_in_it_is_refused(penstock: Shell) -> None:
    Path("demo").mkdir()
    assert penstock("init", ".").code == "file.exists"
    penstock.ok("init", "demo", *LISTEN)
    assert penstock("init", "demo").code == "file.exists"
    Path("file").touch()
    assert penstock("init", "file").code == "file.exists"
    assert penstock("init", "moon/demo").code == "file.unwritable"


def test_nothing_stays_behind_if_something_fails(penstock: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def full_disk(path: Path, data: bytes, *, mode: int) -> None:
        written.append(path)
        if len(written) > 3:
            raise FailedError("file.unwritable", "no space left")
        path.write_bytes(data)
        path.chmod(mode)

    with monkeypatch.context() as patch:
        patch.setattr(module, "create_file", full_disk)
        assert penstock("init", "demo", *LISTEN).code == "file.unwritable"
    assert list(penstock.folder.iterdir()) == []
    # Contexts are written last, and the folder does not outlive their failure.
    (penstock.folder / ".config").touch()
    assert penstock("init", "demo", *LISTEN).code == "file.unwritable"
    assert [path.name for path in penstock.folder.iterdir()] == [".config"]


def test_a_port_that_is_taken_is_not_chosen(penstock: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_PORTS", range(taken, taken + 1))
            assert penstock("init", "demo").code == "link.address"


def test_a_terminal_is_asked(penstock: Shell) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "XDG_CONFIG_HOME": str(penstock.folder / ".config")}
    process = Copy(
        ["init"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=penstock.folder, text=True, env=environment
    )
    os.close(theirs)
    with bounded(process, 90):
        for question, answer in (("Organisation", "grid"), ("Network", "meters"), ("contexts", "n")):
            seen = b""
            while question.encode() not in seen or not seen.endswith(b": "):
                seen += os.read(ours, 4096)
            os.write(ours, f"{answer}\n".encode())
        assert process.wait(60) == 0
    os.close(ours)
    node = load_node("meters/broker.toml", datetime.now(UTC))
    assert (node.network.name, node.names.show(node.network.owner)) == ("meters", "grid")
    assert not contexts_path().exists()
