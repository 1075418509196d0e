"""Sealed logs as jobs: nothing is lost, closed columns stay on the disk, and other jobs read them like plain events."""

import shutil
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.sealed_kit import (
    BROKER,
    CAR,
    NOW,
    OWNER,
    PLATE,
    TRUCK,
    TYPES,
    WHOLE,
    batch,
    event,
    key_files,
    make_type,
    plain,
    ring,
    seal,
    sealer,
    secret,
    shown,
)
from tests.spoiled import flipped
from tests.trust.kit import refused

from penstock.crypto.seal_keys import KeyRing
from penstock.model.types import Sealing
from penstock.pipeline.jobs.enforce import OfEvents
from penstock.pipeline.jobs.job import run, start
from penstock.pipeline.jobs.schemes import register_schemes
from penstock.pipeline.jobs.sealed import Compact, LogBlocks, Seal, TableBlocks, Unseal
from penstock.pipeline.outputs import Output, Streaming, commit, commits
from penstock.pipeline.sealed.log import ATTRIBUTES, FIRST, HEADER, sealed_schema
from penstock.pipeline.sealed.reader import events_schema
from penstock.pipeline.sealed.writer import Compacting, Writing
from penstock.pipeline.tables.addresses import SinkOptions, SinkRows, parse_address, sink_at, source_at
from penstock.pipeline.tables.columns import plain_rows

OPEN = make_type("Open", Sealing.NONE)
ALL = (*TYPES, OPEN)
COUNT = 24


def stored(spark: SparkSession, path: Path, number: int, numbers: range) -> None:
    """Write events as `ingest` does, one in eight of a type that is not sealed."""
    rows = []
    schema = events_schema(ALL)
    for place in numbers:
        kind = OPEN if place % 8 == 7 else TYPES[place % 3]
        found = event(place, kind)
        row = {"@type": str(kind.name), "@id": found.id, "@time": found.time, "@source": str(OWNER), **found.values}
        rows.append(tuple(row.get(name) for name in schema.names))
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(f"{path}/events/@batch={number}")
    commit(spark, str(path), number, {"counts": {"read": len(rows)}})


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    found = frame.selectExpr("*", "unix_micros(`@time`) AS at").orderBy("at").drop("at").toArrow().to_pylist()
    return [{name: plain(value) for name, value in row.items()} for row in found]


def kinds(numbers: range) -> list[tuple[int, Any]]:
    return [(n, TYPES[n % 3]) for n in numbers if n % 8 != 7]


@pytest.fixture(scope="module")
def log(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seal events, small blocks of them."""
    folder = tmp_path_factory.mktemp("sealed")
    stored(session, folder / "in", 0, range(COUNT))
    writing = Writing(key_files(folder / "keys", ring()), ALL, BROKER.principal, NOW, rows=3)
    said = run(Seal(str(folder / "in"), ALL, writing, lambda: NOW), session, str(folder / "log"))
    assert said["counts"] == {"read": COUNT, "sealed": 21, "quarantined": 3, "blocks": 9}
    assert said["reasons"] == {"seal.level": 3}
    return folder


@dataclass
class Kept:
    """A sink that keeps what it gets, and fails the first time."""

    found: list[tuple[str, list[bytes]]] = field(default_factory=list)

    def publish(self, blocks: DataFrame, write_id: str) -> None:
        self.found.append((write_id, sorted(bytes(row[0]) for row in blocks.select(HEADER).collect())))
        if len(self.found) == 1:
            raise KeyboardInterrupt


def test_a_batch_is_sealed_once_however_often_it_is_published(session: SparkSession, tmp_path: Path) -> None:
    """What would be sealed again is another block, and readers would take both."""
    sink = Kept()
    writing = Writing(key_files(tmp_path / "keys", ring()), TYPES, BROKER.principal, NOW, rows=2).for_brokers()
    job = Seal(str(tmp_path / "in"), TYPES, writing, lambda: NOW, sink)
    stored(session, tmp_path / "in", 0, range(5))
    # One that is too large for what brokers take.
    columns = ["@type", "@id", "@time", str(WHOLE.attributes[0].id)]
    large = session.createDataFrame([(str(WHOLE.name), "large", NOW, "x" * 600_000)], columns)
    large.write.mode("append").parquet(f"{tmp_path}/in/events/@batch=0")
    output = Output(session, str(tmp_path / "out"), job.name, job.source, job.parts)
    with pytest.raises(KeyboardInterrupt):
        job.step(job.all(session), 0, output)
    said = job.step(job.all(session), 0, output)
    assert said["counts"] == {"read": 6, "sealed": 5, "quarantined": 1, "blocks": 3}
    assert said["reasons"] == {"block.limit": 1}
    first, second = sink.found
    assert first == second
    assert len(first[1]) == 3


def unsealed(session: SparkSession, log: Path, out: Path, keys: KeyRing) -> tuple[Any, Path]:
    job = Unseal(LogBlocks(str(log)), TYPES, key_files(out / "keys", keys))
    return run(job, session, str(out / "out")), out / "out"


def test_what_was_sealed_is_opened_as_far_as_keys_are_held(session: SparkSession, log: Path, tmp_path: Path) -> None:
    said, out = unsealed(session, log / "log", tmp_path, ring(PLATE, f"{TRUCK.key} {PLATE}"))
    assert said["counts"] == {"read": 21, "events": 21, "sealed": 0, "quarantined": 0, "blocks": 9}
    found = rows(session.read.parquet(f"{out}/events"))
    assert said["closed"] == ["org.Car plate", "org.Truck plate"]
    closed = {PLATE: None}
    assert [{n: v for n, v in row.items() if n not in ("@type", "@source", "@batch")} for row in found] == [
        shown(event(n, kind)) | closed for n, kind in kinds(range(COUNT))
    ]
    assert [(row["@type"], row["@source"]) for row in found] == [
        (str(kind.name), str(BROKER.principal)) for _, kind in kinds(range(COUNT))
    ]


def test_columns_without_a_key_are_not_read(session: SparkSession, log: Path, tmp_path: Path) -> None:
    keys = key_files(tmp_path, ring(PLATE, f"{TRUCK.key} {PLATE}"))
    job = OfEvents(str(log / "log"), TYPES, keys=keys)
    assert job.closed(session) == ("org.Car plate", "org.Truck plate")
    frame = job.all(session)
    printed = StringIO()
    with redirect_stdout(printed):
        frame.explain()
    [scanned] = [line for line in printed.getvalue().splitlines() if "ReadSchema" in line]
    assert "org.Car#1" in scanned
    assert "org.Car#0" not in scanned.partition("ReadSchema")[2]
    assert frame.count() == 21


def test_nothing_is_lost_of_what_does_not_open(session: SparkSession, tmp_path: Path) -> None:
    later = ring(epochs=(2,))
    good, waiting, torn, lone = (
        seal(sealer(), [1, 2]),
        seal(sealer(later), [3, 4, 5]),
        seal(sealer(), [6]),
        seal(sealer(), [7], TRUCK),
    )
    found = batch([good, waiting, torn, lone]).to_pylist()
    found[2][FIRST] = flipped(found[2][FIRST])
    found.append({HEADER: b"no header"})
    # One whose plates are of an epoch that is not known, while everything else is.
    half = ring()
    half.put(PLATE, 2, secret(PLATE, 2))
    found += batch([seal(sealer(half), [8, 9])]).to_pylist()
    # A copy, and before them what only looks like one.
    found += [found[0]]
    found.insert(0, found[0] | {FIRST: flipped(found[0][FIRST])})
    columns = [name for name in found[0] if not name.startswith("@")]
    schema = sealed_schema(columns)
    frame = session.createDataFrame([tuple(row.get(name) for name in schema.names) for row in found], schema)
    frame.coalesce(1).write.parquet(f"{tmp_path}/log/sealed/@batch=0")
    commit(session, f"{tmp_path}/log", 0, {"counts": {}, ATTRIBUTES: columns})
    said, out = unsealed(session, tmp_path / "log", tmp_path / "first", ring(str(TRUCK.key)))
    assert said["counts"] == {"read": 13, "events": 2, "sealed": 6, "quarantined": 5, "blocks": 8}
    codes = {"seal.unknown-key": 3, "seal.cannot-open": 2, "block.malformed": 1, "seal.replayed": 1}
    assert said["reasons"] == codes
    kept = session.read.parquet(f"{out}/quarantine").orderBy("@rows", "@reason").toArrow().to_pylist()
    assert [row[FIRST] for row in kept] == [None, found[3][FIRST], found[0][FIRST], found[1][FIRST]]
    with refused("seal.closed-log"):
        OfEvents(f"{tmp_path}/log", TYPES, keys=key_files(tmp_path / "keys", ring())).all(session)
    # What waits is a sealed log, and opens once the keys are there.
    said, _ = unsealed(session, out, tmp_path / "second", ring(epochs=(1, 2)))
    assert said["counts"] == {"read": 6, "events": 6, "sealed": 0, "quarantined": 0, "blocks": 3}
    assert said["closed"] == []


def test_a_compacted_log_says_the_same(session: SparkSession, log: Path, tmp_path: Path) -> None:
    compacting = Compacting(key_files(tmp_path, ring()), rows=100)
    said: Any = run(Compact(LogBlocks(str(log / "log")), compacting), session, str(tmp_path / "log"))
    assert said["counts"] == {"read": 21, "sealed": 21, "blocks read": 9, "blocks": 3}
    keys = key_files(tmp_path / "keys", ring())
    before, after = (rows(OfEvents(str(folder / "log"), TYPES, keys=keys).all(session)) for folder in (log, tmp_path))
    assert before == after


@pytest.mark.long
def test_tables_are_sealed_compacted_and_opened_into_tables(session: SparkSession, log: Path, tmp_path: Path) -> None:
    register_schemes()
    # Events in a table are sealed.
    events = OfEvents(str(log / "in"), ALL)
    plain_rows(SinkRows(events.all(session), ALL)).write.parquet(str(tmp_path / "events"))
    table = source_at(parse_address(f"parquet:{tmp_path}/events"))
    keys = key_files(tmp_path / "keys", ring())
    writing = Writing(keys, ALL, BROKER.principal, NOW, rows=3)
    sink = sink_at(parse_address(f"delta:{tmp_path}/sealed"), SinkOptions())
    said: Any = run(Seal("", ALL, writing, lambda: NOW, table=table), session, str(tmp_path / "log"), sinks=[sink])
    assert said["counts"]["sealed"] == 21
    # The log as a table is compacted and opened; a partition of other tools is not a column of it.
    addresses = {"parquet": f"parquet:{tmp_path}/log/sealed", "delta": f"delta:{tmp_path}/sealed"}
    tables = {name: TableBlocks(source_at(parse_address(address))) for name, address in addresses.items()}
    for name, blocks in tables.items():
        small = sink_at(parse_address(f"parquet:{tmp_path}/small"), SinkOptions())
        job = Compact(blocks, Compacting(keys, rows=100))
        said = run(job, session, str(tmp_path / name), sinks=[small])
        assert (said["counts"]["sealed"], said["counts"]["blocks"]) == (21, 3)
    assert TableBlocks(source_at(parse_address(f"parquet:{tmp_path}/small"))).all(session).count() == 6
    sink = sink_at(parse_address(f"delta:{tmp_path}/opened"), SinkOptions())
    said = run(Unseal(tables["delta"], TYPES, keys), session, str(tmp_path / "out"), sinks=[sink])
    assert said["counts"]["events"] == 21
    opened = DeltaTable(str(tmp_path / "opened")).to_pyarrow_table()
    assert sorted(opened.column("event_id").to_pylist()) == sorted(event(n, kind).id for n, kind in kinds(range(COUNT)))
    with refused("tables.kind"):
        TableBlocks(table).all(session)


@pytest.mark.long
def test_streams_go_on_with_what_arrives(session: SparkSession, tmp_path: Path) -> None:
    keys = key_files(tmp_path / "keys", ring())
    stored(session, tmp_path / "in", 0, range(6))
    writing = Writing(keys, ALL, BROKER.principal, NOW)
    sealing = Seal(str(tmp_path / "in"), ALL, writing, lambda: NOW)
    opening = Unseal(LogBlocks(str(tmp_path / "log")), TYPES, keys)
    for number in range(2):
        start(sealing, session, str(tmp_path / "log"), Streaming(drain=True)).wait()
        if number:
            # Somebody writes what has come before into the log.
            shutil.copytree(tmp_path / "log/sealed/@batch=0", tmp_path / "log/sealed/@batch=9")
            commit(session, str(tmp_path / "log"), 9, commits(session, str(tmp_path / "log"))[0])
        start(opening, session, str(tmp_path / "out"), Streaming(drain=True)).wait()
        if not number:
            stored(session, tmp_path / "in", 1, range(6, 12))
    found = rows(session.read.parquet(f"{tmp_path}/out/events"))
    assert [row["@id"] for row in found] == [f"e{n}" for n, _ in kinds(range(12))]
    assert commits(session, str(tmp_path / "out"))[1]["reasons"] == {"seal.replayed": 3}


def test_a_job_without_its_keys_is_told_so(session: SparkSession, log: Path, tmp_path: Path) -> None:
    keys = key_files(tmp_path, ring())
    shutil.copy(log / "keys" / "kek", keys.kek)
    with refused("keys.wrong-kek"):
        run(Unseal(LogBlocks(str(log / "log")), (CAR,), keys), session, str(tmp_path / "out"))
