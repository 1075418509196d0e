"""One camera of the London example, in a process of its own.

It announces what it publishes, says `ready`, and `wanted` when somebody wants it. Each line on standard input is then a
file of sightings to publish, and a pause in milliseconds between two of them; it answers how many the broker has taken.
At the end of the input it goes.
"""

import argparse
import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import penstock
from penstock.apps.cli.shared.files import read_sexp
from penstock.broker.client.client import Feed
from penstock.crypto import SigningKey, read_key
from penstock.model.events import Event
from penstock.model.instants import parse_instant
from penstock.model.names import TypeName
from penstock.trust import read_credentials


async def main(given: argparse.Namespace) -> None:
    """Publish what is asked for."""
    key = read_key(read_sexp(given.key))
    if not isinstance(key, SigningKey):
        raise SystemExit("the key has a passphrase")
    mine = read_credentials(given.credentials.read_bytes()).verify()
    refused: list[Exception] = []
    async with penstock.connect(given.broker, key=key, network=given.network, credentials=mine) as client:
        client.on_refusal(refused.append)
        wanted = asyncio.Event()
        client.on_quench(lambda _feed, quiet: wanted.clear() if quiet else wanted.set())
        feed = await client.advertise(TypeName.parse(given.type))
        say("ready")
        if feed.quiet:
            await wanted.wait()
        say("wanted")
        orders = await standard_input()
        while line := await orders.readline():
            order = json.loads(line)
            sent = await send(feed, Path(order["file"]), order["pause"] / 1000)
            say(json.dumps({"sent": sent, "refused": len(refused)}))


async def send(feed: Feed, file: Path, pause: float) -> int:
    """Publish the sightings of a file; with a pause, as of now. Return how many."""
    number = 0
    for line in file.read_text(encoding="utf-8").splitlines():
        sighting = json.loads(line)
        seen = datetime.now(UTC) if pause else parse_instant(sighting["time"])
        values = {**sighting["data"], "timestamp": seen}
        number += 1
        await feed.post(Event.of(feed.type, values, id=sighting["id"], time=seen))
        if pause:
            await asyncio.sleep(pause)
    await feed.flush()
    return number


async def standard_input() -> asyncio.StreamReader:
    """Return standard input, to be read while other things happen."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def say(text: str) -> None:
    """Print a line immediately."""
    print(text, flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="A camera of the London example.")
    for name in ("broker", "network", "key", "type"):
        arguments.add_argument(f"--{name}", required=True)
    arguments.add_argument("--credentials", type=Path, required=True)
    asyncio.run(main(arguments.parse_args()))
