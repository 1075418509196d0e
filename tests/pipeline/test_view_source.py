"""The data source `penstock` gives the rows of `view`: from outputs of jobs, sealed logs and folders of Parquet."""

import os
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.jobs_plant import FIRST, REGION, SECOND, SENSOR, VALUE, build, interpreted
from tests.pipeline.sealed_kit import key_files, secret, traces
from tests.trust.kit import NOW, key, refused

from penstock.codec.blocks import Block
from penstock.crypto import SigningKey
from penstock.crypto.seal_keys import KeyRing, column_scope
from penstock.crypto.sealer import Sealer
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.guard import Branch, Restriction, When
from penstock.model import EventType
from penstock.model.events import TransitEvent
from penstock.model.types import Sealing
from penstock.pipeline.commits import commit_line
from penstock.pipeline.enforce.policy import load_policy
from penstock.pipeline.ingest.ingest import Ingested, ingest_table, read_csv
from penstock.pipeline.sealed.log import KeyFiles, sealed_arrow
from penstock.pipeline.sealed.reader import events_schema
from penstock.pipeline.sealed.writer import LogRows
from penstock.pipeline.small.folders import ARROW
from penstock.pipeline.view_source import ViewReader, ViewRequest, ViewStreamReader, register
from penstock.pipeline.views import read_bound_mapping, view
from penstock.selector import ALWAYS, parse
from penstock.store.files.key_files import read_kek
from penstock.trust import sign_type
from penstock.trust.capabilities import Right

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "receipt"
POLICY = str(EXAMPLE / "policy.toml")


@pytest.fixture(scope="module", autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    register(spark)
    with interpreted(spark):
        yield


@pytest.fixture(scope="module")
def ingested(spark: SparkSession) -> Ingested:
    policy = load_policy(POLICY, datetime.now(UTC))
    bound = read_bound_mapping(str(EXAMPLE / "receipt.toml"), policy)
    found = ingest_table(read_csv(spark.read, str(EXAMPLE / "sample.csv"), bound.mapping.csv), bound, datetime.now(UTC))
    return Ingested(found.tagged.localCheckpoint(), found.types)


def rows(found: DataFrame) -> list[dict[str, object]]:
    return sorted((row.asDict() for row in found.collect()), key=str)


def test_outputs_of_jobs(spark: SparkSession, ingested: Ingested, tmp_path: Path) -> None:
    for batch in (0, 1):
        ingested.written.coalesce(1).write.parquet(str(tmp_path / "events" / f"@batch={batch}"))
    commits = tmp_path / "commits" / "@batch=0"
    commits.mkdir(parents=True)
    (commits / "part-0.txt").write_text(commit_line(0, {"counts": {}}), encoding="utf-8")
    options = {"policy": POLICY, "reader": "Experts"}
    found = spark.read.format("penstock").options(**options).load(str(tmp_path))
    expected = view(ingested.written, POLICY, "Experts")
    # The second batch is not complete.
    assert found.schema == expected.schema
    assert rows(found) == rows(expected) != []
    assert rows(found.where("channel = 'Post'")) == rows(expected.where("channel = 'Post'"))
    arriving = spark.readStream.format("penstock").options(**options).load(str(tmp_path))
    query = arriving.writeStream.format("memory").queryName("arrived").trigger(availableNow=True).start()
    query.awaitTermination()
    assert rows(spark.table("arrived")) == rows(expected)
    spark.catalog.dropTempView("arrived")


def test_folders_of_parquet_files(spark: SparkSession, ingested: Ingested, tmp_path: Path) -> None:
    folder = str(tmp_path / "tasks")
    ingested.events(ingested.types[0]).coalesce(1).write.partitionBy("group").parquet(folder)
    options = {"policy": POLICY, "reader": "Group 1", "path": folder}
    found = spark.read.format("penstock").options(**options).load()
    expected = view(spark.read.parquet(folder), POLICY, "Group 1")
    assert rows(found) == rows(expected)
    assert found.count() == 2
    (task,) = ViewReader(ViewRequest.of(options)).partitions()
    assert str(task).count("group=Group") == 1


@pytest.mark.parametrize("group", ["01", "Group 2"])
def test_names_of_folders_are_texts_where_the_attribute_is_one(group: str, tmp_path: Path) -> None:
    """Each file is read alone, and a text such as 01 is not a number in it."""
    (event_type,) = (one.event_type for one in load_policy(POLICY, datetime.now(UTC)).types)
    names = [a.name for a in event_type.attributes if a.name != "group"]
    kinds = {a.name: ARROW[a.spec.kind] for a in event_type.attributes}
    table = pa.table({name: pa.array([None], kinds[name]) for name in names})
    for one in ("01", "Group 2", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"group={one}").mkdir()
        pq.write_table(table, tmp_path / f"group={one}" / "a.parquet")
    request = ViewRequest.of({"policy": POLICY, "reader": "Group 1", "path": str(tmp_path)})
    where = parse(f"group = '{group}'").rename({"group": str(event_type.by_name["group"].id)})
    right = Branch(action=Right.SUBSCRIBE, where=where, when=When(condition=parse("site = 'x'")))
    program = replace(request.program, restriction=Restriction((right,)), selector=ALWAYS)
    request = replace(request, program=program, facts={"site": "x"})
    reader = ViewReader(request)
    found = [row for task in reader.partitions() for row in reader.read(task)]
    assert [row[list(request.columns()).index("group")] for row in found] == [group]


def test_options_that_are_wrong(spark: SparkSession, tmp_path: Path) -> None:
    for options in ({"policy": POLICY}, {"policy": POLICY, "reader": "Group 1", "path": ".", "readr": "x"}):
        with pytest.raises(MalformedError) as refused:
            ViewRequest.of(options)
        assert refused.value.code == "view.option"
    with pytest.raises(RefusedError) as elsewhere:
        ViewRequest.of({"policy": POLICY, "reader": "Group 1", "path": "s3a://bucket/events"})
    assert elsewhere.value.code == "view.remote"
    with pytest.raises(FailedError) as absent:
        ViewRequest.of({"policy": POLICY, "reader": "Group 1", "path": str(tmp_path / "nothing")})
    assert absent.value.code == "pipeline.no-input"
    lines = {"policy": POLICY, "reader": "Group 1", "path": str(EXAMPLE / "sample.csv")}
    for options in (lines, {**lines, "mapping": str(EXAMPLE / "receipt.toml")}):
        with pytest.raises(MalformedError) as refused:
            ViewRequest.of(options)
        assert refused.value.code == "view.files"
    texts = str(tmp_path / "texts")
    spark.read.csv(str(EXAMPLE / "sample.csv"), header=True).coalesce(1).write.parquet(texts)
    with pytest.raises(MalformedError) as refused:
        ViewRequest.of({"policy": POLICY, "reader": "Group 1", "path": texts, "mapping": str(EXAMPLE / "receipt.toml")})
    assert refused.value.code == "mapping.column"


# ----------------------------------------------------------------------------------------------------------------------
# Sealed logs.


BROKER = key(7)
VERSIONS = tuple(EventType.of(replace(one, sealing=Sealing.ATTRIBUTE)) for one in (FIRST, SECOND))
READING = VERSIONS[0]
SCOPES = (str(READING.key), *(column_scope(READING.key, str(a.id)) for a in READING.attributes))
EVENTS = [
    TransitEvent(
        READING.key,
        (),
        {str(SENSOR): f"s{n}" if n % 4 else None, str(REGION): "north", str(VALUE): 3.0 * n},
        f"e{n}",
        NOW + timedelta(seconds=n),
    )
    for n in range(12)
]


def keys_without(folder: Path, *without: str) -> KeyFiles:
    ring = KeyRing()
    for scope in SCOPES:
        if scope not in without:
            ring.put(scope, 1, secret(scope))
    return key_files(folder, ring)


@dataclass
class SealedPlant:
    """A plant whose readings are sealed, and a log of them: two batches, two files and four blocks each."""

    folder: Path
    policy: str
    blocks: list[bytes]

    @classmethod
    def of(cls, folder: Path, *, signed: bool = False, by: SigningKey = BROKER) -> "SealedPlant":
        policy = build(folder)
        for number, definition in enumerate((FIRST, SECOND)):
            sealed = replace(definition, sealing=Sealing.ATTRIBUTE, signed=signed)
            (folder / f"reading-{number}.type").write_bytes(sign_type(sealed, key(1)).to_bytes())
        ring = KeyRing()
        for scope in SCOPES:
            ring.put(scope, 1, secret(scope))
        sealer = Sealer(ring, by.principal, os.urandom, signing=by if signed else None)
        # The first of them are as small as they can be, and are opened together.
        spans = [(0, 1), (1, 2), (2, 5), (5, 12)]
        blocks = [sealer.seal(Block.of(EVENTS[start:end]), NOW) for start, end in spans]
        found = cls(folder, str(policy), blocks)
        for batch, own in enumerate((blocks[:2], blocks[2:])):
            for place, block in enumerate(own):
                found.write(batch, place, block)
        return found

    def write(self, batch: int, place: int, block: bytes) -> None:
        part, commits = (self.folder / "log" / name / f"@batch={batch}" for name in ("sealed", "commits"))
        for folder in (part, commits):
            folder.mkdir(parents=True, exist_ok=True)
        columns = [str(a.id) for a in READING.attributes]
        rows = pa.RecordBatch.from_pylist([LogRows.row(block)], schema=sealed_arrow(columns))
        pq.write_table(pa.Table.from_batches([rows]), part / f"part-{place}.parquet")
        (commits / "part-0.txt").write_text(commit_line(batch, {"counts": {}}), encoding="utf-8")

    def options(self, keys: KeyFiles, reader: str = "engineer") -> dict[str, str]:
        path = str(self.folder / "log")
        return {"policy": self.policy, "reader": reader, "path": path, "ring": keys.ring, "kek": keys.kek}


def read_here(reader: ViewReader) -> list[tuple[object, ...]]:
    return [row for task in reader.partitions() for row in reader.read(task)]


def test_sealed_logs(spark: SparkSession, tmp_path: Path) -> None:
    """With its keys, a sealed log gives the view of the plain events, and no plan or task holds a key."""
    plant = SealedPlant.of(tmp_path / "plant")
    keys = keys_without(tmp_path / "all")
    options = plant.options(keys)
    found = spark.read.format("penstock").options(**options).load()
    schema = events_schema(VERSIONS)
    told = [(str(READING.name), e.id, e.time, str(BROKER.principal), *e.values.values()) for e in EVENTS]
    plain = spark.createDataFrame(told, schema)
    expected = view(plain, plant.policy, "engineer", now=NOW)
    assert found.schema == expected.schema
    assert rows(found) == rows(expected) != []
    printed = StringIO()
    with redirect_stdout(printed):
        found.explain(extended=True)
    reader = ViewReader(ViewRequest.of(options))
    sent: bytes = cloudpickle.dumps((reader, reader.partitions()))  # type: ignore[no-untyped-call]  # it has no types
    held = traces(*(secret(scope).expose() for scope in SCOPES), read_kek(Path(keys.kek)).expose())
    for text in (printed.getvalue().encode(), repr(ViewRequest.of(options)).encode(), sent):
        assert not held.search(text)


def test_attributes_without_a_key_are_empty(tmp_path: Path) -> None:
    """And what rights ask about them is not true: the engineer sees values above 20."""
    plant = SealedPlant.of(tmp_path / "plant")
    request = ViewRequest.of(plant.options(keys_without(tmp_path / "all")))
    whole, columns = read_here(ViewReader(request)), [*request.columns().values()]
    assert len(whole) == 5
    for closed in (SENSOR, REGION, VALUE):
        keys = keys_without(tmp_path / closed[-1], column_scope(READING.key, str(closed)))
        found = read_here(ViewReader(ViewRequest.of(plant.options(keys))))
        empty = [tuple(None if of == closed else v for of, v in zip(columns, row, strict=True)) for row in whole]
        assert found == ([] if closed == VALUE else empty)


def test_a_stream_of_a_sealed_log(tmp_path: Path) -> None:
    plant = SealedPlant.of(tmp_path / "plant")
    reader = ViewStreamReader(ViewRequest.of(plant.options(keys_without(tmp_path / "keys"), "statistics")))
    assert reader.latestOffset() == {"batch": 1}
    found = [
        [row[0] for task in reader.partitions({"batch": start}, {"batch": start + 1}) for row in reader.read(task)]
        for start in (-1, 0, 1)
    ]
    assert found == [["e0", "e1"], [e.id for e in EVENTS[2:]], []]


def test_keys_that_are_wrong_or_missing(tmp_path: Path) -> None:
    plant = SealedPlant.of(tmp_path / "plant")
    good, other = keys_without(tmp_path / "good"), keys_without(tmp_path / "other")
    options = plant.options(good)
    for name in ("ring", "kek"):
        with refused("view.keys"):
            ViewRequest.of({n: v for n, v in options.items() if n != name})
    with refused("view.keys") as error:
        ViewRequest.of({n: v for n, v in options.items() if n not in ("ring", "kek")})
    assert "ring" in error.value.hint
    (tmp_path / "plain" / "commits").mkdir(parents=True)
    (tmp_path / "plain" / "events").mkdir()
    with refused("view.keys"):
        ViewRequest.of({**options, "path": str(tmp_path / "plain")})
    with refused("keys.wrong-kek"):
        ViewRequest.of({**options, "kek": other.kek})
    with refused("file.missing"):
        ViewRequest.of({**options, "ring": str(tmp_path / "none")})
    # A type that does not open at all is not an empty view.
    without = keys_without(tmp_path / "without", str(READING.key))
    with refused("seal.closed-log") as error:
        read_here(ViewReader(ViewRequest.of(plant.options(without))))
    assert "unseal" in error.value.hint


def test_a_block_that_is_in_the_log_twice(tmp_path: Path) -> None:
    plant = SealedPlant.of(tmp_path / "plant")
    plant.write(1, 2, plant.blocks[0])
    with refused("seal.closed-log"):
        read_here(ViewReader(ViewRequest.of(plant.options(keys_without(tmp_path / "keys")))))


@pytest.mark.parametrize(("signer", "opens"), [(1, True), (2, False)])
def test_signed_blocks_count_if_their_signer_may_publish(signer: int, opens: bool, tmp_path: Path) -> None:
    """The owner may; the publisher's right has a forced value, which no signature vouches for."""
    plant = SealedPlant.of(tmp_path / "plant", signed=True, by=key(signer))
    reader = ViewReader(ViewRequest.of(plant.options(keys_without(tmp_path / "keys"))))
    if opens:
        assert len(read_here(reader)) == 5
    else:
        with refused("seal.closed-log"):
            read_here(reader)
