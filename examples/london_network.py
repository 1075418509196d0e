"""The network of the London example: brokers, cameras and readers, each a process of its own, from files.

`write_files` writes what an operator would have: keys, signed types, certificates, names, and a file for each broker.
`Company` starts the processes, `penstock up` and `penstock sub` among them, and lets none outlive the demonstration.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from london_cast import (
    BILLING,
    CAMERAS,
    CCS,
    CCS_BROKER,
    COURT,
    DOMAINS,
    JONES,
    MET,
    MET_BROKER,
    NAMES,
    NETWORK,
    PITO,
    PITO_BROKER,
    PLATE_TYPE,
    SMITH,
    STATISTICS,
    THAMES,
    THAMES_BROKER,
    TRAFFIC,
    Issued,
)
from penstock.apps.cli.shared.files import SECRET, as_text, write_bytes
from penstock.crypto import SigningKey, private_key_to_sexp
from penstock.crypto.wrapping import SECRET_BYTES, Secret
from penstock.model import Event, Principal, Scalar
from penstock.model.instants import parse_instant
from penstock.pipeline.sealed.log import KeyFiles
from penstock.store.files.key_files import create_kek
from penstock.trust import UnverifiedType

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
_GOODBYE = 10.0

#: each broker, the domain whose certificates it holds besides its own, and the one that it calls
BROKERS = {
    "Thames Valley Broker": (THAMES_BROKER, (THAMES,), ""),
    "PITO Broker": (PITO_BROKER, (), "Thames Valley Broker"),
    "CCS Broker": (CCS_BROKER, (CCS,), "Thames Valley Broker"),
    "Met Broker": (MET_BROKER, (MET,), "Thames Valley Broker"),
}
_NODE = """\
network = "PITO/{network}"
key = "{slug}.key"
listen = "127.0.0.1:0"
names = "names.toml"
credentials = {credentials}
types = ["types/"]
operators = {operators}
decisions = "{slug}.decisions.jsonl"
state = "{slug}.state"
{peers}
[trust]
brokers = "route-right"

[domains]
{homes}
{keys}"""
_KEYS = """
[keys]
kek = "{slug}.kek"
"""
_PEER = """
[[peers]]
address = "{address}"
principal = "{principal}"
"""


def slug(who: Principal) -> str:
    """Return the name of somebody as files have it."""
    return NAMES.show(who).lower().replace(" ", "-")


# --- Files -----------------------------------------------------------------------------------------------------------


def write_files(folder: Path, types: Iterable[UnverifiedType], issued: Issued) -> None:
    """Write what the network is made of into an empty folder. What is there from the last time is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "types").mkdir(parents=True)
    for key in (
        PITO,
        MET,
        BILLING,
        STATISTICS,
        SMITH,
        JONES,
        TRAFFIC,
        COURT,
        *CAMERAS.values(),
        *(broker for broker, _, _ in BROKERS.values()),
    ):
        write_bytes(str(folder / f"{slug(key.principal)}.key"), as_text(private_key_to_sexp(key)), mode=SECRET)
    for holder, credentials in issued.held.items():
        (folder / f"{slug(holder)}.certs").write_bytes(credentials.to_bytes())
    for one in types:
        (folder / "types" / f"numberplate-{one.definition.name.version}.type").write_bytes(one.to_bytes())
    create_kek(folder / f"{slug(PITO_BROKER.principal)}.kek", Secret(os.urandom(SECRET_BYTES)))
    names = "".join(f'"{name}" = "{principal}"\n' for principal, name in NAMES.items())
    (folder / "names.toml").write_text(names, encoding="utf-8")


def write_node_file(folder: Path, name: str, urls: Mapping[str, str]) -> Path:
    """Write the file of a broker. It calls another one, which runs already."""
    key, domains, calls = BROKERS[name]
    shown = [f"{slug(one.principal)}.certs" for one in (*domains, key)]
    peers = ""
    if calls:
        peers = _PEER.format(address=urls[calls].removeprefix("penstock://"), principal=calls)
    text = _NODE.format(
        network=NETWORK.name,
        slug=slug(key.principal),
        credentials=json.dumps(shown),
        operators=json.dumps([NAMES.show(one.principal) for one in (PITO, *domains)]),
        peers=peers,
        keys=_KEYS.format(slug=slug(key.principal)) if key == PITO_BROKER else "",
        homes="\n".join(f'"{member}" = "{domain.name}"' for domain in DOMAINS for member in domain.members()),
    )
    path = folder / f"{slug(key.principal)}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def write_sightings(path: Path, sightings: Iterable[Event]) -> Path:
    """Write what a camera is to publish."""
    with path.open("w", encoding="utf-8") as out:
        for event in sightings:
            data = {name: value for name, value in event.values.items() if name != "timestamp"}
            seen = "" if event.time is None else event.time.isoformat()
            out.write(json.dumps({"id": event.id, "time": seen, "data": data}) + "\n")
    return path


# --- Processes -------------------------------------------------------------------------------------------------------


@dataclass
class Reader:
    """A subscriber: `penstock sub`, and what it has printed."""

    process: Process
    #: values by event, as the type has them
    got: dict[str, Mapping[str, Scalar]] = field(default_factory=dict)
    #: how many lines; more than events if one came twice
    lines: int = 0

    async def listen(self) -> None:
        """Take what it prints until it ends."""
        assert self.process.stdout is not None  # noqa: S101  # it was asked for
        async for line in self.process.stdout:
            event = json.loads(line)
            if "data" not in event:
                continue
            values = event["data"]
            if values["timestamp"] is not None:
                values["timestamp"] = parse_instant(values["timestamp"])
            self.got[event["id"]] = values
            self.lines += 1


@dataclass
class Camera:
    """A publisher, `london_camera.py`."""

    process: Process

    async def hear(self) -> str:
        """Return its next word."""
        assert self.process.stdout is not None  # noqa: S101  # it was asked for
        line = await self.process.stdout.readline()
        if not line:
            raise SystemExit("a camera has failed; see its log")
        return line.decode().strip()

    async def send(self, file: Path, pause: int = 0) -> int:
        """Have it publish a file, with so many milliseconds between two sightings; return how many were taken."""
        assert self.process.stdin is not None  # noqa: S101  # it was asked for
        self.process.stdin.write(json.dumps({"file": str(file.resolve()), "pause": pause}).encode() + b"\n")
        told = json.loads(await self.hear())
        return int(told["sent"]) - int(told["refused"])


class Company:
    """All processes of the demonstration, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.urls: dict[str, str] = {}
        self.brokers: dict[str, Process] = {}
        self.cameras: dict[str, Camera] = {}
        self.readers: dict[str, Reader] = {}
        self._started: list[Process] = []
        self._listening: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        """Stop everything: clients first, so that brokers have nobody to say goodbye to."""
        brokers = list(self.brokers.values())
        others = [process for process in self._started if process not in brokers]
        for group in (others, brokers):
            await asyncio.shield(_stop(group))
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)

    @property
    def processes(self) -> int:
        """How many there are."""
        return len(self._started)

    async def start_brokers(self) -> None:
        """Run `penstock up` for each: first the one in the middle, which all others call."""
        middle, *others = BROKERS
        await self._start_broker(middle)
        await asyncio.gather(*map(self._start_broker, others))

    async def _start_broker(self, name: str) -> None:
        file = write_node_file(self.folder, name, self.urls)
        process = await self._start(file.stem, [PENSTOCK, "up", file.name, "-o", "json", "--quiet"])
        self.brokers[name] = process
        assert process.stdout is not None  # noqa: S101  # it was asked for
        line = await process.stdout.readline()
        if not line:
            raise SystemExit(f"{name} does not start: {(self.folder / file.stem).with_suffix('.log').read_text()}")
        self.urls[name] = json.loads(line)["url"]

    async def start_service(self, name: str, text: str) -> str:
        """Run `penstock acs serve` with a file of this text, and return its address."""
        file = self.folder / f"{name}-service.toml"
        file.write_text(text, encoding="utf-8")
        process = await self._start(file.stem, [PENSTOCK, "acs", "serve", file.name, "-o", "json"])
        assert process.stdout is not None  # noqa: S101  # it was asked for
        line = await process.stdout.readline()
        if not line:
            raise SystemExit(f"the service of {name} does not start: {file.with_suffix('.log').read_text()}")
        return str(json.loads(line)["url"])

    async def start_cameras(self, versions: Mapping[str, str]) -> None:
        """Run a process for each camera, and wait until all have announced what they publish."""
        script = str(Path(__file__).with_name("london_camera.py"))
        for place, camera in CAMERAS.items():
            name = slug(camera.principal)
            words = ["--broker", self.urls["CCS Broker"], "--network", str(NETWORK), "--key", f"{name}.key"]
            words += ["--credentials", f"{name}.certs", "--type", f"{PITO.principal}/{PLATE_TYPE}@{versions[place]}"]
            process = await self._start(name, [sys.executable, script, *words], stdin=PIPE)
            self.cameras[place] = Camera(process)
        await self.hear_cameras("ready")

    async def hear_cameras(self, word: str) -> None:
        """Wait until all cameras say a word."""
        said = await asyncio.gather(*(camera.hear() for camera in self.cameras.values()))
        if set(said) != {word}:
            raise SystemExit(f"the cameras should say `{word}`: {said}")

    async def subscribe(self, name: str, key: SigningKey, broker: str, version: str, where: str = "") -> None:
        """Run `penstock sub` for a reader, and wait until the subscription stands."""
        me = slug(key.principal)
        words = ["sub", "--type", f"PITO/{PLATE_TYPE}@{version}", "--where", where, "-o", "json"]
        words += ["--key", f"{me}.key", "--credential", f"{me}.certs", *self.connection(broker)]
        process = await self._start(me, [PENSTOCK, *words], stderr=PIPE)
        assert process.stderr is not None  # noqa: S101  # it was asked for
        told = await process.stderr.readline()
        if not told.startswith(b"subscribed"):
            raise SystemExit(f"{name} is refused: {(told + await process.stderr.read()).decode()}")
        reader = self.readers[name] = Reader(process)
        self._listening.append(asyncio.create_task(reader.listen()))

    async def leave(self, name: str) -> None:
        """End a reader's `penstock sub`."""
        await _stop([self.readers[name].process])

    def connection(self, broker: str) -> Sequence[str]:
        """Return the options of commands that talk to a broker."""
        return ("--broker", self.urls[broker], "--network", f"PITO/{NETWORK.name}", "--names", "names.toml")

    async def ask(self, *command: str) -> str:
        """Run a command of `penstock` to its end, and return what it prints."""
        process = await self._start("penstock", [PENSTOCK, *command])
        out, _ = await process.communicate()
        return out.decode()

    async def fetch_keys(self, broker: str, *readers: SigningKey) -> dict[Principal, KeyFiles]:
        """Have readers fetch keys at a broker, as far as each has a right to them: of epochs that are over.

        Who runs the broker gets those too that it uses now.
        """
        found = {}
        for key in readers:
            me = slug(key.principal)
            kek, ring = f"{me}.kek", f"{me}.ring"
            await self.ask("sealing", "new-kek", kek)
            words = ["sealing", "fetch", ring, "--kek", kek, "--type", f"PITO/{PLATE_TYPE}", "--key", f"{me}.key"]
            words += ["--credential", f"{me}.certs", *self.connection(broker)]
            await self.ask(*words)
            found[key.principal] = KeyFiles(str(self.folder / ring), str(self.folder / kek))
        return found

    async def new_epoch(self) -> None:
        """Have PITO begin new epochs by hand, so that those before are over."""
        words = ["sealing", "rotate", "--type", f"PITO/{PLATE_TYPE}", "--key", "pito.key"]
        await self.ask(*words, *self.connection("PITO Broker"))

    async def stop_brokers(self) -> list[int]:
        """Stop everything in order, and return how the brokers ended: 0 if all was written down."""
        await self.__aexit__(None)
        return [process.returncode or 0 for process in self.brokers.values()]

    async def _start(
        self, name: str, command: Sequence[str], *, stdin: int | None = None, stderr: int | None = None
    ) -> Process:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=self.folder,
                stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
                stdout=PIPE,
                stderr=log if stderr is None else stderr,
            )
        self._started.append(process)
        return process


async def _stop(processes: Iterable[Process]) -> None:
    """Ask processes to stop, and do not wait indefinitely."""
    running = [process for process in processes if process.returncode is None]
    for process in running:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    for process in running:
        try:
            await asyncio.wait_for(process.wait(), _GOODBYE)
        except TimeoutError:
            process.kill()
            await process.wait()


async def eventually(holds: Callable[[], object], what: str, patience: float = 60.0) -> None:
    """Wait until something holds. Stop the demonstration when it never does."""
    try:
        async with asyncio.timeout(patience):
            while not holds():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise SystemExit(f"this should have happened: {what}") from None
