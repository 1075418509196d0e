"""Brokers as processes of their own, for tests."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.copies import MODULE, Copy

from penstock.testing.server_process import free_port
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials

_ROOT = str(Path(__file__).parents[2])


def start_module(name: str, *words: str, stdin: int | None = None) -> "subprocess.Popen[str]":
    """Start a module as a process: a copy of this one or, where its figures are kept (`make hostile`), a new Python."""
    if not os.environ.get("LONG"):
        return Copy([MODULE, name, *words], stdin=stdin, stdout=subprocess.PIPE, text=True, bufsize=1)
    path = os.pathsep.join((*filter(None, [os.environ.get("PYTHONPATH")]), _ROOT))
    command = [sys.executable, "-m", name, *words]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment)


@dataclass
class BrokerProcess:
    """A broker process. `key` is its number in `node_kit.BROKERS`; started again it takes the same port and folder."""

    key: int
    folder: Path
    peers: list[tuple[int, int]] = field(default_factory=list)
    policy: tuple[Certificate, ...] = ()
    port: int = 0
    #: a NATS server between the brokers, and a file that says by how many seconds this one's clock is wrong
    nats: str = ""
    clock: str = ""
    process: "subprocess.Popen[str] | None" = None

    async def start(self) -> int:
        """Start it, and return its port when it is ready."""
        self.port = self.port or free_port()
        policy = base64.b64encode(Credentials.of(*self.policy).to_bytes()).decode() if self.policy else ""
        told = {
            "key": self.key,
            "port": self.port,
            "peers": self.peers,
            "policy": policy,
            "nats": self.nats,
            "clock": self.clock,
            "folder": str(self.folder / f"broker{self.key}"),
        }
        self.process = start_module("tests.network.broker_process", json.dumps(told))
        assert self.process.stdout is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        self.port = int(line)
        return self.port

    def kill(self) -> None:
        """End it without a word."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        self._reap()

    def stop(self) -> None:
        """Let it go in peace."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._reap()

    def _reap(self) -> None:
        if self.process is not None:
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None

    def deliveries(self) -> list[dict[str, Any]]:
        """Return what it has handed to clients, as it wrote it down."""
        file = self.log
        # The last line may be under way.
        written = file.read_text().rpartition("\n")[0] if file.exists() else ""
        return [line for line in map(json.loads, written.splitlines()) if "to" in line]

    @property
    def log(self) -> Path:
        """The file in which it writes down its starts, time-stamps and deliveries."""
        return self.folder / f"broker{self.key}" / "deliveries.jsonl"


async def started(stack: ExitStack, *brokers: BrokerProcess) -> None:
    """Start brokers one after the other; each calls those that `peers` names by their numbers in `BROKERS`."""
    for broker in brokers:
        stack.callback(broker.kill)
        await broker.start()
