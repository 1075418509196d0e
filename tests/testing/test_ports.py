"""Ports for servers: free, different, and out of reach of outgoing connections."""

import socket
from pathlib import Path

import pytest

from penstock.errors import FailedError
from penstock.testing import server_process as ports
from penstock.testing.server_process import free_port, free_ports


def test_ports_are_free_and_different_and_outgoing_connections_get_others() -> None:
    found = free_ports(50)
    assert len(set(found)) == 50
    first, last = ports._outgoing()
    assert not [port for port in (*found, free_port()) if first <= port <= last]
    for port in found:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_that_is_taken_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    narrow = tmp_path / "range"
    monkeypatch.setattr(ports, "_RANGE", narrow)
    monkeypatch.setattr(ports, "_LOWEST", port)
    narrow.write_text(f"{port + 1}\t65535\n")
    assert free_ports(1) == [port]
    with socket.create_server(("127.0.0.1", port)), pytest.raises(FailedError) as caught:
        free_ports(1)
    assert caught.value.code == "testing.no-port"


def test_a_system_that_does_not_tell_its_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_RANGE", tmp_path / "missing")
    assert 20_000 <= free_port() < 32_768
