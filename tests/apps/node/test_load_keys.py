"""The log of a key manager, as a node file describes it."""

import asyncio
from pathlib import Path

import pytest

from penstock.apps.node.config import KeysFile, read_node_file
from penstock.apps.node.load import open_log
from penstock.fabric.nats_log import NatsLog
from penstock.fabric.nats_login import NatsLogin
from penstock.store.files.key_files import KeyFolder
from penstock.testing.nats import NatsServer

LEAST = 'network = "a/N"\nkey = "k"\nlisten = "[::1]:7600"\n'


def keys_of(text: str) -> KeysFile:
    found = read_node_file(LEAST + text).keys
    assert found is not None
    return found


@pytest.mark.parametrize(("more", "folder"), [("", "state/keys"), ('folder = "shared"', "shared")])
def test_a_log_in_a_folder(tmp_path: Path, more: str, folder: str) -> None:
    file = keys_of(f'[keys]\nkek = "k"\n{more}\n')
    log = asyncio.run(open_log(file, tmp_path / "state", tmp_path, None, "penstock"))
    assert isinstance(log, KeyFolder)
    assert log.path == tmp_path / folder


def test_a_log_on_nats_servers_is_the_same_for_all_that_name_it_alike(tmp_path: Path, server: NatsServer) -> None:
    text = '[nats]\nservers = ["{url}"]\n[keys]\nkek = "k"\nlog = "nats"\nname = "{name}"\n'

    async def test() -> None:
        login = NatsLogin((server.url,))
        names = ("plates", "plates", "other")
        files = [keys_of(text.format(url=server.url, name=name)) for name in names]
        logs = [await open_log(file, tmp_path, tmp_path, login, "penstock1") for file in files]
        assert all(isinstance(log, NatsLog) for log in logs)
        assert await logs[0].append(0, b"record")
        assert not await logs[1].append(0, b"other")
        assert [list(await log.read(0)) for log in logs] == [[b"record"], [b"record"], []]
        for log in logs:
            await log.close()

    asyncio.run(test())
