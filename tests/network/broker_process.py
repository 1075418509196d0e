"""One broker of the sports network as a process: `python -m tests.network.broker_process '<json>'`.

The description has `key` (the number of a broker in `node_kit.BROKERS`), `port` (0 for any), `peers` (pairs of a port
and the number of the broker that listens there), `policy` (base64 of credentials, added to what lets brokers in),
`folder`, and for brokers with a fabric between them `nats` (the URL of a server). `clock` is the path of a file with
seconds by which the broker's clock is wrong, read again at each use. It says its port when it is ready.

In the folder it keeps what owners have said, its decision log, and `deliveries.jsonl`. That has numbered lines: one for
each start, one for each time-stamp of an owner before the first delivery that relies on it, and one for each message
that was handed to a client: when, the receiver, and the ids of the events.
"""

import asyncio
import base64
import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from tests.broker.node_kit import BROKERS, HOST, settings

from penstock.broker.fabric.network import FabricSettings
from penstock.broker.local import requests
from penstock.broker.node.node import Node
from penstock.broker.wire.transports import PeerAddress
from penstock.fabric.nats import NatsFabric
from penstock.guard import Recorder
from penstock.store.files.decision_file import DecisionFile
from penstock.store.files.policy_files import PolicyFolder
from penstock.trust.credentials import read_credentials


class LoggingNode(Node):
    """A node that writes down what it hands to clients, at the moment when it does."""

    def log_deliveries(self, file: Path) -> None:
        """Write to a file from now on."""
        written = len(file.read_bytes().splitlines()) if file.exists() else 0
        # Line by line, so that nothing is lost when the process is killed.
        stream = file.open("a", buffering=1, encoding="utf-8")
        numbers = count(written + 1)
        give = self.core.path.write
        stamps: dict[str, datetime] = {}

        def write(**line: object) -> None:
            stream.write(json.dumps({"line": next(numbers), "at": time.time(), **line}) + "\n")

        def logged(given: requests.Given) -> None:
            for owner in self.policies.owners():
                until = max((stamp.value.until for stamp in self.policies._keeper.stamps(owner)), default=None)
                if until is not None and stamps.get(str(owner)) != until:
                    stamps[str(owner)] = until
                    write(owner=str(owner), until=until.timestamp())
            principal = self.core.local.session(given.session).principal
            write(to=str(principal), ids=[event.id for event in given.events])
            give(given)

        write(started=str(self.core.principal))
        self.core.path.write = logged  # type: ignore[method-assign]  # to watch it


def wrong_clock(file: Path) -> Callable[[], datetime]:
    """Return a clock that is wrong by the seconds in a file; right while there is none."""

    def now() -> datetime:
        try:
            off = float(file.read_text("ascii") or 0)
        except FileNotFoundError:
            off = 0.0
        return datetime.now(UTC) + timedelta(seconds=off)

    return now


async def main(description: str) -> None:
    told = json.loads(description)
    folder = Path(told["folder"])
    folder.mkdir(exist_ok=True)
    policy = read_credentials(base64.b64decode(told["policy"])).verify() if told.get("policy") else ()
    chosen = settings(
        *policy,
        key=BROKERS[told["key"]],
        port=told.get("port", 0),
        peers=tuple(PeerAddress(HOST, port, BROKERS[number].principal) for port, number in told.get("peers", [])),
    )
    clock = wrong_clock(Path(told["clock"])) if told.get("clock") else lambda: datetime.now(UTC)
    numbers = count(1)
    recorder = Recorder(
        source="broker",
        sink=DecisionFile(folder / "decisions.jsonl"),
        clock=clock,
        timer=time.perf_counter_ns,
        ids=lambda: str(next(numbers)),
    )
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with AsyncExitStack() as stack:
        fabric = None
        if told.get("nats"):
            connected = await stack.enter_async_context(await NatsFabric.connect(told["nats"]))
            fabric = FabricSettings(fabric=connected, unsafe_plaintext=True)
        node = LoggingNode(chosen, recorder, clock=clock, keep=PolicyFolder(folder), fabric=fabric)
        node.log_deliveries(folder / "deliveries.jsonl")
        await stack.enter_async_context(node)
        sys.stdout.write(f"{node.port}\n")
        sys.stdout.flush()
        await stopping.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
