"""Events from end to end: through one broker and through two, against nats-py through one NATS server.

Publisher, brokers, server and subscriber are processes of their own, and take turns: in each round every set-up carries
the same events. Both sides give their reader events it can use: with NATS the program packs and unpacks them, as a
program must; the figure with bare octets, which nobody could use, stands beside it.
"""

import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from harness import Result, at_least, observed
from penstock.testing.nats import NatsServer

EVENTS = 60_000
ROUNDS = 5
PARTS = Path(__file__).with_name("network_parts.py")


class Part:
    """A process of network_parts."""

    def __init__(self, stack: ExitStack, *words: object) -> None:
        self._process = stack.enter_context(
            subprocess.Popen(  # noqa: S603  # our own program
                [sys.executable, str(PARTS), *map(str, words)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        )
        stack.callback(self._end)

    def _end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()

    def say(self, word: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError("a process of the benchmark has ended")
        return line


class Way:
    """A way from a publisher to a subscriber."""

    def __init__(self, publisher: Part, subscriber: Part) -> None:
        self._publisher, self._subscriber = publisher, subscriber
        publisher.hear()
        subscriber.hear()
        self.rates: list[float] = []

    def carry(self, events: int) -> float:
        """Return events per second."""
        self._subscriber.say(events)
        self._publisher.say(events)
        return (events - 1) / float(self._subscriber.hear())


def through_nats(stack: ExitStack, port: str, *words: str) -> Way:
    subscriber = Part(stack, "nats-subscriber", port, *words)
    return Way(Part(stack, "nats-publisher", port, *words), subscriber)


def through_brokers(stack: ExitStack, brokers: int, *words: str) -> Way:
    ports: list[str] = []
    for number in range(brokers):
        ports.append(Part(stack, "broker", number, *ports[:1], *words).hear())
    subscriber = Part(stack, "subscriber", ports[0], *words)
    return Way(Part(stack, "publisher", ports[-1], *words), subscriber)


def run() -> list[Result]:
    with ExitStack() as stack:
        port = stack.enter_context(NatsServer()).url.rpartition(":")[2]
        ways = {
            "nats": through_nats(stack, port),
            "bare": through_nats(stack, port, "bare"),
            "one": through_brokers(stack, 1),
            "two": through_brokers(stack, 2),
            "off": through_brokers(stack, 1, "off"),
        }
        for way in ways.values():
            way.carry(EVENTS // 10)
        for _ in range(ROUNDS):
            for way in ways.values():
                way.rates.append(way.carry(EVENTS))
    rate = {name: statistics.median(way.rates) for name, way in ways.items()}

    def detail(name: str, other: str) -> str:
        return f"{rate[name]:,.0f} events/s, {rate[other]:,.0f} with {other}"

    return [
        at_least("network: one broker / nats-py", rate["one"] / rate["nats"], 0.5, detail("one", "nats")),
        at_least("network: two brokers / nats-py", rate["two"] / rate["nats"], 0.3, detail("two", "nats")),
        at_least("network: access control / off", rate["one"] / rate["off"], 0.9, detail("one", "off")),
        observed("network: one broker / bare octets", rate["one"] / rate["bare"], detail("one", "bare")),
        observed("network: two brokers / bare octets", rate["two"] / rate["bare"], detail("two", "bare")),
    ]
