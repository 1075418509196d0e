"""Revocation by validity statements in the London network: brokers are processes, 5,000 sightings a second.

A court's process signs whether Detective Smith's order is valid, at PITO's broker. Statements go from there through the
broker of Thames Valley to the Met's, where she reads every sighting. A billing office reads them at another broker.
Sightings are sealed, as in the demonstration. Three tables, of many repetitions each:

1. Active revocation: from when the court begins to sign until Detective Smith receives the last sighting.
2. Timed lists: from the end of the last period in which the order counts until she receives the last sighting.
3. The court's process is killed (-9): from the end of its last heartbeat until she receives the last sighting.

In 2 and 3, no sighting may be delivered by a decision of the broker that is later than the end of the statement.

Besides: what a revocation costs a broker that depends on 100,000 certificates of its issuer, and on 1,000.
"""

import json
import random
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from harness import Result, at_least, at_most, microseconds, seconds
from penstock.trust.certificates import certificate_id
from penstock.trust.statement_book import AskedCertificates, StatementBook
from penstock.trust.statements import OnlineKind, OnlineTerms, StatementAuthor
from processes import Part
from revocation_london_parts import DeliveryLog, Entry, prepare

from london_cast import MET, key  # isort: skip  # the import above finds the example
from london_network import BROKERS, write_node_file  # isort: skip

RATE = 5_000
#: repetitions of each table
ACTIVE, TIMED, KILLED = 1_000, 1_000, 150
PARTS = "revocation_london_parts.py"
#: seconds: the target at the 99th percentile; how long deliveries are watched after a revocation
LAST, _WATCH = 0.050, 0.100
#: seconds between two looks at a log, and after which something has gone wrong
_LOOK, _PATIENCE = 0.002, 30.0
_MET, _CCS, _COURT = "Met Broker", "CCS Broker", "PITO Broker"


class London:
    """The running network, and the logs of its processes."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._folder = folder
        prepare(folder)
        self.urls: dict[str, str] = {}
        for name in BROKERS:
            log = folder / f"{name}.log"
            process = Part(stack, PARTS, folder, "broker", write_node_file(folder, name, self.urls), log)
            self.urls[name] = json.loads(process.hear())["url"]
        self.given, self.published = DeliveryLog(folder / f"{_MET}.log"), DeliveryLog(folder / "published.log")
        Part(stack, PARTS, folder, "camera", self.urls[_CCS], RATE, folder / "published.log").hear()

    def court(self, stack: ExitStack, role: str, *words: object) -> Part:
        """Start an issuer's process, and wait until it is ready."""
        part = Part(stack, PARTS, self._folder, role, self.urls[_COURT], *words)
        part.hear()
        return part

    def log(self, name: str) -> Path:
        """Return the file of a log."""
        return self._folder / f"{name}.log"

    def read(self, stack: ExitStack, table: str) -> DeliveryLog:
        """Let the readers read, and return what Detective Smith receives."""
        file = self.log(f"received-{table}")
        Part(stack, PARTS, self._folder, "readers", self.urls[_CCS], self.urls[_MET], table, file).hear()
        return DeliveryLog(file)

    def rate(self) -> float:
        """Return how many sightings were published in a second."""
        sent = self.published.read()
        return sum(one.events for one in sent[1:]) / (sent[-1].at - sent[0].at)


def flows(log: DeliveryLog) -> None:
    """Wait until more is delivered."""
    wanted, patience = len(log) + 10, time.time() + _PATIENCE
    while len(log) < wanted:
        if time.time() > patience:
            raise RuntimeError("nothing is delivered")
        time.sleep(_LOOK)


@dataclass
class Measured:
    """The revocations of one table: when access had to end, and when it was granted again."""

    closed: list[tuple[float, float]] = field(default_factory=list)
    #: all deliveries, of the broker and to the reader
    given: list[Entry] = field(default_factory=list)
    received: list[Entry] = field(default_factory=list)

    def last(self) -> list[float]:
        """Return how many seconds after each end the reader has received the last sighting."""
        times = [one.at for one in self.received]
        return [times[max(0, bisect_left(times, again) - 1)] - end for end, again in self.closed]

    def flowed(self) -> float:
        """Return the share of revocations before which sightings were delivered since the one before."""
        times = [one.decided for one in self.given]
        begins = [0.0, *(again for _, again in self.closed[:-1])]
        periods = zip(begins, (end for end, _ in self.closed), strict=True)
        return sum(bisect_left(times, begin) < bisect_left(times, end) for begin, end in periods) / len(begins)

    def late(self, allowed: float = 0.0) -> int:
        """Return how many sightings the broker has delivered by later decisions."""
        times = [one.decided for one in self.given]
        found = (self.given[bisect_right(times, end + allowed) : bisect_left(times, a)] for end, a in self.closed)
        return sum(one.events for entries in found for one in entries)


def active(london: London, repetitions: int) -> Measured:
    """Revoke and grant again, at random moments."""
    found, chance = Measured(), random.Random(1)  # noqa: S311  # moments, not secrets
    with ExitStack() as stack:
        court = london.court(stack, "active")
        received = london.read(stack, "active")
        for _ in range(repetitions):
            flows(received)
            time.sleep(chance.uniform(0, 0.01))
            court.say("revoke")
            begun = float(court.hear())
            time.sleep(max(0.0, begun + _WATCH - time.time()))
            court.say("grant")
            found.closed.append((begun, float(court.hear())))
        found.given, found.received = london.given.read(), received.read()
    return found


def timed(london: London, repetitions: int) -> Measured:
    """Let a list revoke the order in every other period."""
    found = Measured()
    with ExitStack() as stack:
        court = london.court(stack, "timed", repetitions)
        received = london.read(stack, "timed")
        flows(received)
        court.say("go on")
        for _ in range(repetitions):
            begin, end = map(float, court.hear().split())
            found.closed.append((begin, end))
        time.sleep(_WATCH)
        found.given, found.received = london.given.read(), received.read()
    return found


def killed(london: London, repetitions: int) -> Measured:
    """Kill the issuer's process, and start another one."""
    found, chance = Measured(), random.Random(2)  # noqa: S311  # moments, not secrets
    ends = DeliveryLog(london.log("ends"))
    with ExitStack() as stack:
        court = london.court(stack, "issuers", london.log("ends"))
        court.say("start")
        court.hear()
        received = london.read(stack, "killed")
        for _ in range(repetitions):
            flows(received)
            time.sleep(chance.uniform(0, 0.1))
            court.say("kill")
            court.hear()
            end = ends.read()[-1].decided
            time.sleep(max(0.0, end + _WATCH - time.time()))
            court.say("start")
            found.closed.append((end, float(court.hear())))
        court.say("kill")
        court.hear()
        found.given, found.received = london.given.read(), received.read()
    return found


def at(values: list[float], share: float) -> float:
    """Return the value that a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def cost(certificates: int) -> Callable[[], object]:
    """Return a function that revokes one of so many certificates that a verifier depends on."""
    author, book, now = StatementAuthor(key("Court cost")), StatementBook(MET.principal), datetime.now(UTC)
    terms, asked = OnlineTerms(OnlineKind.ACTIVE, author.issuer, (), timedelta(hours=1)), AskedCertificates(book)
    book.take(author.heartbeat(now, timedelta(hours=1)), now)
    ids = [certificate_id(sha256(b"%d" % number).digest()) for number in range(certificates)]
    for one in ids:
        asked.ask(terms, one, now)
    lists = (author.revoke(now, [*ids[:100], ids[100 + number]]) for number in range(len(ids) - 100))

    def revoke() -> None:
        book.take(next(lists), now)
        if not asked.changed(author.issuer, now):
            raise RuntimeError("nothing has changed")

    return revoke


_TABLES: list[tuple[str, Callable[[London, int], Measured], int]] = [
    ("active", active, ACTIVE),
    ("timed list", timed, TIMED),
    ("issuer killed", killed, KILLED),
]


def run(share: float = 1.0, only: str = "") -> list[Result]:
    """Run the benchmark, or a share of its repetitions."""
    results: list[Result] = []
    with TemporaryDirectory() as folder, ExitStack() as stack:
        london = London(stack, Path(folder))
        for table, measure, repetitions in _TABLES:
            if only in table:
                found = measure(london, max(1, int(repetitions * share)))
                results += _report(table, found)
        rate = london.rate()
    few, many = seconds(cost(1_000), cost(100_000), repeat=20)
    detail = f"{microseconds(many)} with 100,000, {microseconds(few)} with 1,000; signing included"
    results.append(at_most("revocation by a statement, 100,000 / 1,000 certificates", many / few, 3, detail))
    reached = f"{rate:,.0f} sightings published in a second, of {RATE:,}"
    return [at_least("revocation by statements, rate", rate / RATE, 0.98, reached), *results]


def _report(table: str, found: Measured) -> list[Result]:
    last = found.last()
    p50, p99 = (f"{at(last, share) * 1000:.1f}" for share in (0.5, 0.99))
    detail = f"p50 {p50} ms, p99 {p99} ms, longest {max(last) * 1000:.1f} ms, {len(last)} revocations"
    # An active revocation has to travel first.
    allowed = 2 * LAST if table == "active" else 0.0
    bound = f"{allowed * 1000:.0f} ms after the revocation" if allowed else "the end of the last statement"
    events = f"{sum(one.events for one in found.received):,} sightings received"
    return [
        at_most(f"revocation {table}, last receipt p99 / 50 ms", max(0.0, at(last, 0.99)) / LAST, 1, detail),
        at_most(f"revocation {table}, deliveries after {bound}", found.late(allowed), 0, events),
        at_least(f"revocation {table}, sightings were delivered before", found.flowed(), 0.99, events),
    ]


if __name__ == "__main__":
    for result in run(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0, *sys.argv[2:]):
        print(result.name, result.ratio, result.target, result.detail)
