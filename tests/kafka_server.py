"""The one Kafka server of a run, which several test processes share: the first that needs it starts and ends it."""

import fcntl
import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import IO

import pytest

from penstock.testing.kafka import KafkaServer

ROOT = Path(__file__).resolve().parents[1]
#: who can log in, with which password
USERS = {name: f"secret-of-{name}" for name in ("ann", "ben", "eve")}


@dataclass(frozen=True)
class RunningKafka:
    """Where the server is: for clients that may do everything, and for those that log in."""

    address: str
    sasl_address: str


def jars_module() -> ModuleType:
    """Return `tools/kafka_jars.py`."""
    spec = importlib.util.spec_from_file_location("kafka_jars", ROOT / "tools" / "kafka_jars.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def jars() -> Path:
    """Return the folder of the jars; skip where they cannot be fetched."""
    module = jars_module()
    try:
        return Path(module.fetch())
    except module.UnavailableError as error:
        pytest.skip(str(error))


@contextmanager
def shared_server(folder: Path) -> Iterator[RunningKafka]:
    """Start a server, or use the one that another process with this folder has started."""
    found = folder / "kafka.json"
    with (folder / "kafka.users").open("w") as users, (folder / "kafka.start").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        if found.exists():
            fcntl.flock(starting, fcntl.LOCK_UN)
            yield RunningKafka(**json.loads(found.read_text()))
            return
        with KafkaServer(jars(), users=USERS) as server:
            running = RunningKafka(server.address, server.sasl_address)
            found.write_text(json.dumps(asdict(running)))
            fcntl.flock(starting, fcntl.LOCK_UN)
            yield running
            _wait_for_others(users)
            found.unlink()


def _wait_for_others(users: IO[str]) -> None:
    fcntl.flock(users, fcntl.LOCK_EX)
