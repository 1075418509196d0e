"""One broker of the sports network as a process: `python -m tests.network.broker_process '<json>'`.

The description has `key` (the number of a broker in `node_kit.BROKERS`), `port` (0 for any), `peers` (pairs of a port
and the number of the broker that listens there), `policy` (base64 of credentials, added to what lets brokers in), and
`folder`. In the folder it writes `deliveries.jsonl`, a line for every message that was handed to a client: when, to
whom, and the ids of the events; and it keeps what owners have said. It says its port when it is ready.
"""

import asyncio
import base64
import json
import signal
import sys
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from tests.broker.node_kit import BROKERS, HOST, settings

from penstock.broker import requests
from penstock.broker.node import Node
from penstock.broker.ways import PeerAddress
from penstock.guard import Recorder
from penstock.store.policy_folder import PolicyFolder
from penstock.trust.credentials import read_credentials


class LoggingNode(Node):
    """A node that writes down what it hands to clients, at the moment when it does."""

    def log_deliveries(self, file: Path) -> None:
        """Write to a file from now on."""
        stream = file.open("a", buffering=1, encoding="utf-8")
        give = self.core._handlers[requests.Given]

        def logged(given: requests.Given) -> None:
            principal = self.core.local._session(given.session).principal
            line = {"at": time.time(), "to": str(principal), "ids": [event.id for event in given.events]}
            stream.write(json.dumps(line) + "\n")
            give(given)

        self.core.handle({requests.Given: logged})


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
    numbers = count(1)
    recorder = Recorder(
        source="broker",
        sink=lambda _record: None,
        clock=lambda: datetime.now(UTC),
        timer=time.perf_counter_ns,
        ids=lambda: str(next(numbers)),
    )
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    node = LoggingNode(chosen, recorder, keep=PolicyFolder(folder))
    node.log_deliveries(folder / "deliveries.jsonl")
    async with node:
        sys.stdout.write(f"{node.port}\n")
        sys.stdout.flush()
        await stopping.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
