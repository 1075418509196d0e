"""Revocations under load: four brokers in a line, each a process with a disk, 2,000 events a second, five readers.

One reader's right is granted and revoked again and again. The owner hands the change to one end of the line; the reader
is at the other. Two figures of each revocation, from when the owner hands it in: until the reader's broker delivers for
the last time, by its own clock (all are on one machine); and until the owner is told that it is complete. No delivery
may come after that. Ratios are to the targets of 50 ms and 200 ms, at the 99th percentile.
"""

import asyncio
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

from harness import Result, at_most
from penstock.broker.client.client import Client, connect
from penstock.trust.capabilities import Right
from penstock.trust.policy_events import Revoke
from penstock.trust.policy_state import PolicyAuthor, publish
from processes import Part
from revocation_parts import BROKERS, NETWORK, OWNER, TARGET, granted, on_type

REPETITIONS = 100
RATE = 2_000
PARTS = "revocation_parts.py"
#: seconds: the targets at the 99th percentile
LAST, COMPLETE = 0.050, 0.200
#: seconds between two times that the owner asks, and for which deliveries are watched when all is done
_ASK, _WATCH = 0.002, 0.1


class Measured:
    """What was measured, in seconds."""

    def __init__(self) -> None:
        self.last: list[float] = []
        self.complete: list[float] = []
        #: deliveries after a revocation was complete
        self.late = 0


async def completed(client: Client, number: int) -> None:
    """Wait until a policy event is complete."""
    while True:
        status = await client.status()
        state = status["policy"][str(OWNER.principal)]  # type: ignore[index, call-overload]  # plain data
        if any(event["number"] == number and event["complete"] for event in state["events"]):  # type: ignore[index, call-overload, union-attr]  # plain data
            return
        await asyncio.sleep(_ASK)


def delivered(broker: Part) -> tuple[float, int]:
    """Return when a broker has last delivered to the reader, and how many events in all."""
    broker.say("?")
    last, events = broker.hear().split()
    return float(last), int(events)


async def repeat(port: int, near: Part, readers: Part, repetitions: int) -> Measured:
    author, found = PolicyAuthor(OWNER), Measured()

    def now() -> datetime:
        return datetime.now(UTC)

    async with connect(f"penstock://127.0.0.1:{port}", key=OWNER, network=NETWORK, patience=60) as owner:
        for repetition in range(repetitions):
            # Another certificate than those before, which have no way back.
            right = granted(TARGET, on_type(Right.SUBSCRIBE), expires=now() + timedelta(days=1))
            await owner.evolve(author.change(now(), publish(right)).to_bytes())
            await completed(owner, author.number)
            if not repetition:
                readers.say("go on")
                readers.hear()
            before = delivered(near)[1]
            while delivered(near)[1] == before:
                await asyncio.sleep(_ASK)
            event = author.change(now(), Revoke((right.id,))).to_bytes()
            begun = time.time()
            await owner.evolve(event)
            await completed(owner, author.number)
            done = time.time()
            events = delivered(near)[1]
            await asyncio.sleep(_WATCH)
            last, after = delivered(near)
            found.last.append(max(0.0, last - begun))
            found.complete.append(done - begun)
            found.late += after - events
    return found


def at(values: list[float], share: float) -> float:
    """Return the value that a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def run(repetitions: int = REPETITIONS) -> list[Result]:
    """Run the benchmark."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        brokers: list[Part] = []
        ports: list[str] = []
        for number in range(len(BROKERS)):
            brokers.append(Part(stack, PARTS, "broker", number, folder, *ports[-1:]))
            ports.append(brokers[-1].hear())
        readers = Part(stack, PARTS, "readers", *ports)
        readers.hear()
        Part(stack, PARTS, "publisher", ports[-1], RATE).hear()
        found = asyncio.run(repeat(int(ports[-1]), brokers[0], readers, repetitions))
    last, complete = at(found.last, 0.99), at(found.complete, 0.99)
    return [
        at_most("revocation last delivery p99 / 50 ms", last / LAST, 1, _detail(found.last)),
        at_most("revocation complete p99 / 200 ms", complete / COMPLETE, 1, _detail(found.complete)),
        at_most("revocation deliveries after completion", found.late, 0, f"{repetitions} revocations"),
    ]


def _detail(values: list[float]) -> str:
    p50, p99 = (f"{at(values, share) * 1000:.1f}" for share in (0.5, 0.99))
    return f"p50 {p50} ms, p99 {p99} ms, longest {max(values) * 1000:.1f} ms, {len(values)} revocations"


if __name__ == "__main__":
    for result in run(int(sys.argv[1]) if len(sys.argv) > 1 else REPETITIONS):
        print(result.name, result.ratio, result.target, result.detail)
