"""Processes of the benchmark of revocation by statements: brokers of the London network, an issuer, cameras, readers.

A `DeliveryLog` is a file to which one process appends, and which others read meanwhile. The Met's broker and Detective
Smith write in theirs when and how many sightings were delivered to her. The camera writes what it has published.
"""

import asyncio
import os
import signal
import struct
import sys
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from london_cast import (  # the folder of the example must be on the path first
    BILLING,
    CAMERAS,
    MET,
    MONTH,
    NETWORK,
    PITO,
    PLACES,
    PLATE_TYPE,
    SMITH,
    SUSPECT,
    define_types,
    grant,
    issue_credentials,
    key,
)
from london_network import slug, write_files
from penstock.apps.cli.main import cli
from penstock.broker.client.client import Client, Subscription, connect
from penstock.broker.core.event_path import EventPath
from penstock.broker.local.requests import Given
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.model import EventType
from penstock.model.names import TypeName
from penstock.trust import Credentials, Right, event_tag, network_tag, read_credentials
from penstock.trust.certificates import Certificate
from penstock.trust.statements import OnlineKind, OnlineTerms, RevocationList, StatementAuthor

#: the courts that sign whether Detective Smith's orders are valid, by the table of the benchmark
COURTS: Final = {table: key(f"Court {table}") for table in ("active", "timed", "killed")}
CAMERA: Final = CAMERAS[PLACES[0]]
PLATES: Final = TypeName(PITO.principal, PLATE_TYPE, "7f3a")
#: the longest time without a heartbeat that the order permits
INTERVAL: Final = timedelta(seconds=2)
#: between two heartbeats
BEAT: Final = 0.5
#: how long a heartbeat of an issuer counts that will be killed, and the time between two
SHORT: Final = timedelta(milliseconds=150)
SHORT_BEAT: Final = 0.05
#: the length of a timed list, and how long before its beginning it is sent
WINDOW: Final = timedelta(milliseconds=80)
AHEAD: Final = timedelta(milliseconds=35)
#: seconds between two lots of events
_PAUSE: Final = 0.004


class Entry(NamedTuple):
    """When something happened, by which time the broker decided about it, and how many events there were."""

    at: float
    decided: float
    events: int


class DeliveryLog:
    """See the module. One process appends to the file."""

    _FORM: Final = struct.Struct("<ddq")

    def __init__(self, file: str | Path) -> None:
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def append(self, events: int, decided: float | None = None) -> None:
        """Record so many events, as of now."""
        at = time.time()
        os.write(self._file, self._FORM.pack(at, at if decided is None else decided, events))

    def read(self) -> list[Entry]:
        """Return everything that was recorded."""
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        return [Entry(*fields) for fields in self._FORM.iter_unpack(data[: len(data) // 24 * 24])]

    def __len__(self) -> int:
        return os.fstat(self._file).st_size // self._FORM.size


def prepare(folder: Path) -> None:
    """Write the files of the London network, and of Detective Smith's orders.

    Certificates depend on when they were issued, so the other processes read them from here.
    """
    first, second, _ = define_types()
    write_files(folder, (first, second), issue_credentials(EventType.of(second.definition)))
    for table, court in COURTS.items():
        (folder / f"court-{table}.certs").write_bytes(Credentials.of(_connects(court)).to_bytes())
        (folder / f"smith-{table}.certs").write_bytes(Credentials.of(_connects(SMITH), _order(table)).to_bytes())


def _connects(who: SigningKey) -> Certificate:
    return grant(PITO, who.principal, network_tag(PITO.principal, NETWORK.name, [Right.CONNECT]))


def _order(table: str) -> Certificate:
    """Return the order by which Detective Smith reads while the statements of a court say so."""
    kind, pause = (OnlineKind.CRL, None) if table == "timed" else (OnlineKind.ACTIVE, INTERVAL)
    test = OnlineTerms(kind, COURTS[table].principal, (), pause).to_test()
    tag = event_tag(PITO.principal, PLATE_TYPE, None, [Right.SUBSCRIBE])
    return grant(MET, SMITH.principal, tag, replace(MONTH, online=(test,)))


def shown(file: str) -> Credentials:
    """Return the credentials in a file of this folder."""
    return read_credentials(Path(f"{file}.certs").read_bytes()).verify()


def order(table: str) -> str:
    """Return the id of an order."""
    [found] = (one.id for one in shown(f"smith-{table}") if one.statement.validity.online)
    return found


def client(url: str, who: SigningKey, file: str) -> Client:
    """Return a client with the credentials in a file."""
    return connect(url, key=who, network=NETWORK, credentials=shown(file), patience=60)


# ----------------------------------------------------------------------------------------------------------------------
# Brokers, cameras and readers.


def broker(file: str, log: str) -> None:
    """Run `penstock up`, and record what the broker delivers to Detective Smith, and by which time it has decided."""
    write, given_to_her = EventPath.write, DeliveryLog(log)
    # What the broker logs is not part of the benchmark's output.
    os.dup2(os.open(f"{file}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), sys.stderr.fileno())

    def noted(path: EventPath, given: Given) -> None:
        core = path._ports.begin.__self__  # type: ignore[attr-defined]  # noqa: SLF001  # a method of the core
        if core.local.session(given.session).principal == SMITH.principal:
            decided = core.latest
            given_to_her.append(len(given.rows), decided.timestamp())
        write(path, given)

    EventPath.write = noted  # type: ignore[method-assign, assignment]  # to watch it deliver
    cli.main(["up", file, "-o", "json", "--quiet"])


async def camera(url: str, rate: int, log: str) -> None:
    """Publish so many sightings a second until the process is ended, and record them."""
    published, sent = DeliveryLog(log), 0
    async with client(url, CAMERA, slug(CAMERA.principal)) as publisher:
        feed = await publisher.advertise(PLATES)
        print("ready", flush=True)
        begun, missed = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - begun) * rate) - missed
            # What a busy machine did not send in time is not sent in a burst.
            lot = min(due - sent, rate // 10)
            missed += due - sent - lot
            seen = datetime.now(UTC)
            for _ in range(lot):
                await feed.post({"numberplate": SUSPECT, "timestamp": seen, "location": PLACES[0]})
            await feed.flush()
            sent += lot
            published.append(lot)
            await asyncio.sleep(_PAUSE)


async def readers(ccs: str, met: str, table: str, log: str) -> None:
    """Read as the billing office, and as Detective Smith, who records what she receives."""
    async with AsyncExitStack() as stack:
        office = await stack.enter_async_context(client(ccs, BILLING, slug(BILLING.principal)))
        smith = await stack.enter_async_context(client(met, SMITH, f"smith-{table}"))
        others = await office.subscribe(PLATES)
        while True:
            # On a busy machine a statement may end before the next one arrives.
            with suppress(RefusedError):
                hers = await smith.subscribe(PLATES)
                break
            await asyncio.sleep(0.02)
        print("ready", flush=True)
        await asyncio.gather(_read(others), _read(hers, DeliveryLog(log)))


async def _read(events: Subscription, log: DeliveryLog | None = None) -> None:
    async for _ in events:
        if log is not None:
            log.append(1)


# ----------------------------------------------------------------------------------------------------------------------
# Issuers.


def _now() -> datetime:
    return datetime.now(UTC)


async def active(url: str) -> None:
    """Send heartbeats. At a line `revoke` or `grant` sign and send a revocation; answer with when that began."""
    author, mine = StatementAuthor(COURTS["active"]), order("active")
    async with client(url, COURTS["active"], "court-active") as court:

        async def beat() -> None:
            while True:
                await court.evolve(author.heartbeat(_now(), INTERVAL).to_bytes())
                await asyncio.sleep(BEAT)

        await court.evolve(author.heartbeat(_now(), INTERVAL).to_bytes())
        print("ready", flush=True)
        beating = asyncio.create_task(beat())
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            begun = time.time()
            await court.evolve(author.revoke(_now(), [mine] if line == "revoke" else []).to_bytes())
            print(begun, flush=True)
        beating.cancel()


async def timed(url: str, repetitions: int) -> None:
    """Send a list for each period, every other one of which has the order in it.

    For each such list, print when its period begins and ends. The revocation is decided when the list is signed.
    """
    author, mine, sent = StatementAuthor(COURTS["timed"]), order("timed"), list[asyncio.Task[None]]()
    async with client(url, COURTS["timed"], "court-timed") as court:

        async def send(*certificates: str) -> RevocationList:
            signed = author.revocation_list(_now(), WINDOW, certificates)
            # It is acknowledged when it is on the disk; the next one does not wait for that.
            sent.append(asyncio.create_task(court.evolve(signed.to_bytes())))
            # The next one is due shortly before this one ends.
            await asyncio.sleep(max(0.0, (signed.value.not_after - AHEAD - _now()).total_seconds()))
            return signed.value

        await send()
        await sent[0]
        print("ready", flush=True)
        told = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        while not told.done():
            await send()
        for _ in range(repetitions):
            await send()
            listed = await send(mine)
            print(listed.not_before.timestamp(), listed.not_after.timestamp(), flush=True)
        await send()
        await asyncio.gather(*sent)


async def _mortal(url: str, log: str) -> None:
    """Send short heartbeats until somebody ends the process; record the end of each before it is sent."""
    author, ends = StatementAuthor(COURTS["killed"]), DeliveryLog(log)
    async with client(url, COURTS["killed"], "court-killed") as court:
        while True:
            signed = author.heartbeat(_now(), SHORT)
            ends.append(1, signed.value.until.timestamp())
            # On a busy machine it may have ended when it arrives.
            with suppress(RefusedError):
                await court.evolve(signed.to_bytes())
            await asyncio.sleep(SHORT_BEAT)


def issuers(url: str, log: str) -> None:
    """At each line start an issuer's process, or kill the last one; answer with the time. They never say goodbye."""
    child = 0
    print("ready", flush=True)
    for line in sys.stdin:
        at = time.time()
        if line.strip() == "start":
            child = os.fork()
            if not child:
                asyncio.run(_mortal(url, log))
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        print(at, flush=True)


def main(folder: str, role: str, *words: str) -> None:
    os.chdir(folder)
    match role:
        case "broker":
            broker(*words)
        case "camera":
            asyncio.run(camera(words[0], int(words[1]), words[2]))
        case "readers":
            asyncio.run(readers(*words))
        case "active":
            asyncio.run(active(*words))
        case "timed":
            asyncio.run(timed(words[0], int(words[1])))
        case "issuers":
            issuers(*words)


if __name__ == "__main__":
    main(*sys.argv[1:])
