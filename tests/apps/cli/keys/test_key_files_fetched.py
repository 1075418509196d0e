"""Keys that `penstock sealing fetch` brings open what a running broker has sealed, in files and on Spark."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from tests.apps.conftest import Shell
from tests.broker.node_kit import HOST, LIMITS, Broker, running, until
from tests.broker.sports import NETWORK, PDA
from tests.broker.test_blinding_nodes import PLATE, POLICY, PUB, SIGNED, TYPE, labels, managing, may
from tests.pipeline.jobs_plant import interpreted

from penstock.broker.blinding import renamed
from penstock.codec.sexp import advanced
from penstock.crypto import private_key_to_sexp
from penstock.crypto.seal_keys import KeyRing, label_scope
from penstock.model.events import TransitEvent
from penstock.pipeline.outputs import commit
from penstock.pipeline.sealed.log import ATTRIBUTES, BLOCK, ROWS, sealed_arrow
from penstock.store.files.key_files import read_kek, read_key_ring, write_key_ring
from penstock.store.files.sealed_files import write_sealed
from penstock.trust.capabilities import Right

KEYS = ("--ring", "logs.ring", "--kek", "logs.kek")
FILES = ("--type-file", "plate.type")


@contextmanager
def broker(ready: "Future[tuple[Broker, bytes]]") -> Iterator[None]:
    """Run a broker that manages keys in a thread of its own, seal a block, and begin an epoch."""
    over = threading.Event()

    async def serve() -> None:
        policy = (*POLICY, may(PDA, Right.HISTORY))
        async with running(*policy, key=PUB, types=(SIGNED,), managing=managing(), limits=LIMITS) as node:
            await until(lambda: labels(node) and not node.keys.readiness.holds(TYPE))
            sealed = sealed_at(node)
            for group in node.keys.managed():
                if not group.labels:
                    node.keys.rotate(group)
            await until(
                lambda: all(member.epoch == 2 for group, member in node.keys.members.items() if not group.labels)
            )
            ready.set_result((node, sealed))
            await asyncio.to_thread(over.wait)

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001  # whoever waits gets the error
            if not ready.done():
                ready.set_exception(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def sealed_at(node: Broker) -> bytes:
    """Return a block as the broker sends it to others: under the label of its type."""
    event = TransitEvent(TYPE, (), {f"{TYPE}#0": "ABC123", f"{TYPE}#1": 31}, "e1", datetime.now(UTC))
    return bytes(node.core.sealing.seal(renamed([event], node.core.labels.in_use(TYPE))))


@pytest.fixture
def shell(penstock: Shell) -> Shell:
    """Return a shell in a folder with a key, a type, and what a ring lies under."""
    Path("pda.key").write_text(advanced(private_key_to_sexp(PDA)))
    Path("plate.type").write_bytes(SIGNED.to_bytes())
    penstock.ok("sealing", "new-kek", "logs.kek")
    return penstock


def fetch(shell: Shell) -> bytes:
    """Fetch the keys of what a broker has sealed, and return that."""
    ready: Future[tuple[Broker, bytes]] = Future()
    with broker(ready):
        node, sealed = ready.result(60)
        there = ("--broker", f"penstock://{HOST}:{node.port}", "--network", str(NETWORK), "--key", "pda.key")
        ran = shell.ok(
            "sealing", "fetch", "logs.ring", "--kek", "logs.kek", "--type", str(PLATE.name), *there, "-o", "json"
        )
    once = {"first": 1, "last": 1, "epochs": 1}
    assert ran.json["keys"] == {PLATE.name.name: once, "plate": once, "speed": once, "(labels)": once}
    return sealed


def nameless(ring: str) -> None:
    """Write a ring without the keys of labels."""
    kek, cut = read_kek(Path("logs.kek")), KeyRing()
    for scope, epoch, key in read_key_ring(Path("logs.ring"), kek).items():
        if scope != label_scope(TYPE):
            cut.put(scope, epoch, key)
    write_key_ring(Path(ring), cut, kek, bytes)


@pytest.mark.long
def test_fetched_keys_open_what_a_broker_has_sealed(shell: Shell, spark: SparkSession) -> None:
    sealed = fetch(shell)
    assert TYPE.name.encode() not in sealed
    with Path("day.sealed").open("wb") as stream:
        write_sealed(stream, sealed)
    [line] = shell.ok("open", "day.sealed", *FILES, *KEYS, "-o", "json").out.splitlines()
    assert '"plate": "ABC123"' in line
    nameless("cut.ring")
    cut = ("--ring", "cut.ring", "--kek", "logs.kek")
    assert "seal.unknown-label" in shell("open", "day.sealed", *FILES, *cut).err

    with interpreted(spark):
        wait(spark, shell.folder / "waits", sealed)
        found: Any = shell.ok("pipeline", "unseal", "waits", *FILES, *KEYS, "--out", "opened", "-o", "json").json
    assert found["counts"] == {"read": 1, "events": 1, "sealed": 0, "quarantined": 0, "blocks": 1}
    [row] = parquet.read_table(shell.folder / "opened" / "events").to_pylist()
    assert (row["@id"], row[f"{TYPE}#0"], row[f"{TYPE}#1"]) == ("e1", "ABC123", 31)


def wait(spark: SparkSession, log: Path, block: bytes) -> None:
    """Write a log as `unseal` leaves it where a block came as a message, and its labels are not known."""
    rows = [{ROWS: 1, BLOCK: block}]
    schema = sealed_arrow([BLOCK])
    (log / "sealed" / "@batch=0").mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), log / "sealed" / "@batch=0" / "part.parquet")
    commit(spark, str(log), 0, {ATTRIBUTES: [BLOCK]})
