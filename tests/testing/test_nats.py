"""The helper that starts a real NATS server."""

import asyncio
import os
from pathlib import Path

import nats
import pytest

from penstock.errors import FailedError
from penstock.testing.nats import NatsServer, find_nats_server


async def _store(url: str, *, create: bool) -> int:
    connection = await nats.connect(url, connect_timeout=2, allow_reconnect=False)
    try:
        stream = connection.jetstream()
        if create:
            await stream.add_stream(name="KEPT", subjects=["kept"])
        acknowledged = await stream.publish("kept", b"x")
        return acknowledged.seq
    finally:
        await connection.close()


def test_a_server_answers_keeps_its_data_over_a_crash_and_ends() -> None:
    with NatsServer() as server:
        url, pid = server.url, server.pid
        assert pid is not None
        assert url.startswith("nats://127.0.0.1:")
        assert asyncio.run(_store(url, create=True)) == 1
        server.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        server.start()
        assert server.url == url
        assert asyncio.run(_store(url, create=False)) == 2
        last = server.pid
    assert last not in (None, pid)
    assert server.pid is None


def test_two_servers_take_two_ports_and_a_folder_that_was_given_stays(tmp_path: Path) -> None:
    with NatsServer(folder=tmp_path / "a") as one, NatsServer() as two:
        assert one.url != two.url
    assert (tmp_path / "a" / "data").is_dir()


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(FailedError) as failed, NatsServer(config="no such setting: [", ready_within=5):
        pass
    assert failed.value.code == "testing.nats-not-ready"
    assert "Parse error" in failed.value.hint


def test_no_program_is_an_error_with_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_args, **_kwargs: None)
    with pytest.raises(FailedError) as failed:
        find_nats_server()
    assert failed.value.code == "testing.no-nats-server"
