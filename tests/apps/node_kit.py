"""A small network in a folder, and `penstock up` as the process that it is."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.apps.conftest import Ran, Shell
from tests.copies import Copy

#: seconds that a process may live
LONGEST = 300.0
TYPE = "london/org.london.Sighting"
NODE = """\
network = "london/London"
key = "{key}.key"
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
names = "names.toml"
credentials = ["certs/"]
types = ["types/*.type"]
operators = ["ops"]
decisions = "{key}.jsonl"
state = "{key}.state"
{more}
[trust]
brokers = "open"
"""


#: the files of the network, once they were made
_MADE: dict[str, bytes] = {}


def lay_out(shell: Shell) -> None:
    """Make keys, a type, and the rights of a network with two brokers, a camera and a reader."""
    if not _MADE:
        _make(shell)
        files = (path for path in shell.folder.rglob("*") if path.is_file())
        _MADE.update({str(path.relative_to(shell.folder)): path.read_bytes() for path in files})
    for name, data in _MADE.items():
        path = shell.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def _make(shell: Shell) -> None:
    for who in ("london", "east", "west", "camera", "reader", "ops"):
        shell.ok("key", "new", f"{who}.key", "--name", who)
    for folder in ("types", "certs"):
        (shell.folder / folder).mkdir()
    attributes = [part for word in ("plate:string", "speed:integer", "at:timestamp") for part in ("--attribute", word)]
    shell.ok("type", "new", "org.london.Sighting", "--key", "london.key", *attributes, "--out", "types/s.type")
    for who in ("camera", "reader", "ops"):
        grant(shell, f"{who}.cert", who, "--network", "london/London", "--right", "connect")
    for who in ("east", "west"):
        grant(shell, f"{who}.cert", who, "--network", "london/London", "--right", "connect", "--right", "broker")
    grant(shell, "stamp.cert", "east", "--type", "london/*", "--right", "stamp")
    grant(shell, "publish.cert", "camera", "--type-file", "types/s.type", "--right", "publish")
    grant(shell, "subscribe.cert", "reader", *("--type-file", "types/s.type"), *("--attribute", "speed", *RIGHTS))


RIGHTS = ("--right", "subscribe", "--right", "restrictions")


def grant(shell: Shell, file: str, to: str, *right: str) -> None:
    # Brokers are processes with the machine's clock, and the shell's clock stands still.
    shell.ok("cert", "issue", "--key", "london.key", "--to", to, *right, "--no-expiry", "--out", f"certs/{file}")


def node_file(shell: Shell, key: str = "east", more: str = "") -> str:
    """Write the file of a broker, and return its name."""
    (shell.folder / f"{key}.toml").write_text(NODE.format(key=key, more=more))
    return f"{key}.toml"


@dataclass
class Running:
    """A broker that runs."""

    process: subprocess.Popen[str]
    principal: str
    url: str
    http: str
    log: Path

    def get(self, path: str) -> str:
        try:
            with urlopen(f"http://{self.http}{path}", timeout=60) as answer:
                text: str = answer.read().decode()
                return text
        except HTTPError as error:
            error.close()
            raise

    def logged(self) -> list[dict[str, Any]]:
        # The last line may be under way.
        lines = self.log.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def saw(self, event: str) -> dict[str, Any] | None:
        return next((line for line in self.logged() if line["event"] == event), None)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def running(shell: Shell, file: str, program: Sequence[str] = ()) -> Iterator[Running]:
    """Run `penstock up` until it is stopped; with a program, as a Python of its own that runs it."""
    log = shell.folder / f"{file}.log"
    with log.open("w") as err:
        kind: type[subprocess.Popen[str]] = subprocess.Popen if program else Copy
        process = kind(
            [*program, "up", file, "-o", "json"], stdout=subprocess.PIPE, stderr=err, cwd=shell.folder, text=True
        )
        with bounded(process):
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text()
            yield Running(process, **json.loads(line), log=log)


@contextmanager
def bounded(process: subprocess.Popen[str], longest: float = LONGEST) -> Iterator[None]:
    """End a process with its test, and also when it takes so long that whoever reads from it may wait indefinitely."""
    with process:
        timer = threading.Timer(longest, process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            process.kill()


def eventually(found: Callable[[], object], patience: float = 60.0) -> Any:
    """Wait until something is found."""
    until = time.monotonic() + patience
    while not (seen := found()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return seen


def ask(shell: Shell, broker: Running, who: str, noun: str, *words: str, stdin: str | None = None) -> Ran:
    """Run a command that talks to a broker, in this process."""
    return shell(*noun.split(), *words, *_connection(broker, who), stdin=stdin)


@contextmanager
def start(shell: Shell, broker: Running, who: str, noun: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command that talks to a broker, as a process that does not outlive its test."""
    process = Copy(
        [*noun.split(), *words, *_connection(broker, who)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=shell.folder,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    with bounded(process):
        yield process


def _connection(broker: Running, who: str) -> tuple[str, ...]:
    return ("--broker", broker.url, "--network", "london/London", "--key", f"{who}.key")
