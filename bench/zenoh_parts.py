"""The processes of bench_network that speak zenoh: `python zenoh_parts.py <role> …`, in an environment that has it.

It needs `eclipse-zenoh` and `msgpack`, and nothing of Penstock.
"""

import json
import sys
import time
from datetime import UTC, datetime
from itertools import count

import msgpack
import zenoh  # type: ignore[import-not-found, unused-ignore]  # may be in another environment

SUBJECT = "sightings"
VALUES = {"plate": "AB 12 CDE", "place": "Euston Road", "speed": 42, "lane": 1, "heading": 271.5}


def session(mode: str, **where: str) -> "zenoh.Session":
    """Open a session that neither looks for others nor lets itself be found."""
    config = zenoh.Config()
    config.insert_json5("mode", json.dumps(mode))
    config.insert_json5("scouting/multicast/enabled", "false")
    for name, address in where.items():
        config.insert_json5(f"{name}/endpoints", json.dumps([address]))
    return zenoh.open(config)


def router(address: str) -> None:
    """Run a router."""
    with session("router", listen=address):
        print("ready", flush=True)
        sys.stdin.read()


def publisher(address: str, *, bare: bool) -> None:
    """Publish: each event packed, or always the same bytes."""
    packed = msgpack.packb(["x-1", datetime.now(UTC), *VALUES.values()], datetime=True)
    numbers = count(1)
    with session("client", connect=address) as opened:
        sender = opened.declare_publisher(SUBJECT, congestion_control=zenoh.CongestionControl.BLOCK)
        print("ready", flush=True)
        for line in sys.stdin:
            for number in range(int(line)):
                if not bare:
                    row = [f"x-{next(numbers)}", datetime.now(UTC), *{**VALUES, "speed": 31 + number % 60}.values()]
                    packed = msgpack.packb(row, datetime=True)
                sender.put(packed)


def subscriber(address: str, *, bare: bool) -> None:
    """Read: each event unpacked into a dictionary, or just counted."""
    names = list(VALUES)
    with session("client", connect=address) as opened:
        events = opened.declare_subscriber(SUBJECT, zenoh.handlers.FifoChannel(10_000))
        print("ready", flush=True)
        for line in sys.stdin:
            events.recv()
            start = time.perf_counter()
            for _ in range(int(line) - 1):
                sample = events.recv()
                if not bare:
                    _, _, *values = msgpack.unpackb(sample.payload.to_bytes(), timestamp=3)
                    dict(zip(names, values, strict=True))
            print(time.perf_counter() - start, flush=True)


def main(role: str, address: str, *words: str) -> None:
    match role:
        case "router":
            router(address)
        case "publisher":
            publisher(address, bare="bare" in words)
        case "subscriber":
            subscriber(address, bare="bare" in words)


if __name__ == "__main__":
    main(*sys.argv[1:])
