"""Jobs, views and tables in an object store: a real S3 server, and the same rows as from files of this machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from tests.apps.conftest import Shell
from tests.apps.conftest import penstock as penstock  # the fixture
from tests.jars import fetched_jars
from tests.pipeline.jobs_plant import admitted, build, good, interpreted, write_events

import penstock.spark as ps
from penstock.pipeline.frames import quoted
from penstock.testing.s3 import KEY_ID, SECRET, S3Server
from penstock.testing.server_process import free_port

RECORDS = 42
ELSEWHERE = ("@file", "@position", "@ingested")
WRONG = "the secret of somebody else"
POLICY = ("--policy", "plant/policy.toml")


@dataclass(frozen=True)
class Store:
    """The server, and the settings of Spark for each of its buckets."""

    server: S3Server
    spark: SparkSession
    #: a Hadoop credential store
    keys: str

    def set(self, bucket: str, **settings: str) -> None:
        """Set something for one bucket; dashes of names are dots."""
        for name, value in settings.items():
            self.spark.conf.set(f"fs.s3a.bucket.{bucket}.{name.replace('_', '.')}", value)

    def bucket(self, name: str, keys: str | None = None) -> str:
        """Return the URL of a bucket that Spark finds on the server."""
        provider = self.keys if keys is None else keys
        self.set(name, endpoint=self.server.url, security_credential_provider_path=provider)
        return f"s3a://{name}"


def credential_store(spark: SparkSession, file: Path, secret: str) -> str:
    """Write a file of credentials as an operator does, and return its URL."""
    jvm: Any = spark._jvm  # the program is one of Hadoop's
    url = f"localjceks://file{file}"
    for name, value in {"fs.s3a.access.key": KEY_ID, "fs.s3a.secret.key": secret}.items():
        words = ["create", name, "-value", value, "-provider", url]
        arguments = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName("java.lang.String"), len(words))
        for place, word in enumerate(words):
            arguments[place] = word
        shell = jvm.org.apache.hadoop.security.alias.CredentialShell()
        shell.setConf(jvm.org.apache.hadoop.conf.Configuration())
        assert shell.run(arguments) == 0
    return url


@pytest.fixture(scope="module")
def store(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Start a server, and give the session what it needs to use one; skip where the jars cannot be fetched."""
    connector, program = fetched_jars("s3a"), fetched_jars("s3proxy")
    jvm: Any = spark._jvm
    # As `spark.jars` would: the session is that of all tests, and has begun.
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for jar in sorted(connector.iterdir()):
        loader.addURL(jvm.java.net.URL(jar.as_uri()))
    settings = {
        "fs.s3a.path.style.access": "true",
        "fs.s3a.endpoint.region": "us-east-1",
        # What fails is not tried again and again.
        "fs.s3a.attempts.maximum": "1",
        "fs.s3a.retry.limit": "1",
    }
    keys = credential_store(spark, tmp_path_factory.mktemp("keys") / "s3.jceks", SECRET)
    with S3Server(program, connector) as server, interpreted(spark):
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield Store(server, spark, keys)
        for name in settings:
            spark.conf.unset(name)


@pytest.fixture
def plant(penstock: Shell) -> Shell:
    build(penstock.folder / "plant")
    write_events(penstock.folder / "in" / "0.jsonl", range(RECORDS))
    return penstock


@pytest.fixture
def delta(store: Store, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Set the environment that delta-rs takes its settings from, and return it."""
    environment = {
        "AWS_ENDPOINT_URL": store.server.url,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows, without what is different in each run: where a record was, and when it was read."""
    frame = frame.drop(*ELSEWHERE)
    return sorted((tuple(row) for row in frame.select(*map(quoted, sorted(frame.columns))).collect()), key=str)


def test_jobs_and_tables_in_a_bucket_give_the_rows_of_local_files(
    spark: SparkSession, store: Store, plant: Shell, delta: dict[str, str]
) -> None:
    bucket = store.server.bucket("events")
    there = store.bucket("events")
    spark.read.text(str(plant.folder / "in")).write.text(f"{there}/in")
    said = {}
    for engine, place, to, how in (
        # Without Spark, which is another way to the same rows.
        ("small", ".", (), ()),
        ("spark", there, ("--to", f"delta:{there}/table"), ("--stream", "--drain")),
    ):
        end = (*POLICY, "--engine", engine, "-o", "json")
        ran = [
            plant.ok("pipeline", "ingest", f"{place}/in", "--out", f"{place}/ingested", *end),
            plant.ok("pipeline", "admit", f"{place}/ingested", "--out", f"{place}/admitted", *to, *end),
            plant.ok("pipeline", "deliver", f"{place}/admitted", "--out", f"{place}/delivered", *how, *end),
        ]
        said[place] = [one.json["counts"] for one in ran]
    assert said[there] == said["."]
    assert said[there][1]["events"] == len(admitted(RECORDS))
    for part in ("ingested/events", "ingested/quarantine", "admitted/events", "admitted/refused", "delivered/rows"):
        assert rows(spark.read.parquet(f"{there}/{part}")) == rows(spark.read.parquet(str(plant.folder / part))), part
    assert spark.read.parquet(f"{there}/ingested/events").count() == len(good(RECORDS))
    stored = DeltaTable("s3://events/table", storage_options=delta).to_pyarrow_table(columns=["event_id"])
    assert sorted(stored["event_id"].to_pylist()) == sorted(f"e{number}" for number in admitted(RECORDS))
    # Whoever writes again needs the word for it, there as here.
    again = plant("pipeline", "ingest", f"{there}/in", *POLICY, "--out", f"{there}/ingested")
    assert again.code == "pipeline.exists"
    gone = plant("pipeline", "admit", f"{there}/none", *POLICY, "--out", f"{there}/more")
    assert gone.code == "pipeline.no-input"
    assert not (bucket / "more").exists()


def test_a_view_of_files_in_a_bucket_has_the_rows_of_local_files(
    spark: SparkSession, store: Store, plant: Shell
) -> None:
    store.server.bucket("views")
    numbers = [(f"e{n}", f"s{n % 4}", "north" if n % 2 else "south", float(n)) for n in range(RECORDS)]
    frame = spark.createDataFrame(numbers, "`@id` string, sensor string, region string, value double")
    seen = []
    for place in (str(plant.folder / "table"), f"{store.bucket('views')}/table"):
        frame.write.partitionBy("region").parquet(place)
        seen.append(rows(ps.view(spark.read.parquet(place), "plant/policy.toml", reader="statistics")))
    assert seen[0] == seen[1]
    assert len(seen[1]) == RECORDS


@pytest.mark.parametrize("what", ["denied", "bucket", "unreachable", "connector"])
def test_a_store_that_does_not_answer_is_an_error_with_a_hint(
    store: Store, plant: Shell, tmp_path: Path, what: str
) -> None:
    code, word, place = {
        "denied": ("pipeline.store-denied", "credentials", "s3a://denied"),
        "bucket": ("pipeline.no-bucket", "create the bucket", "s3a://missing"),
        "unreachable": ("pipeline.store-unreachable", "endpoint", "s3a://unreachable"),
        "connector": ("pipeline.no-connector", "connector", "gs://bucket"),
    }[what]
    bucket = store.server.bucket("denied")
    store.bucket("denied", credential_store(store.spark, tmp_path / "wrong.jceks", WRONG))
    store.bucket("missing")
    store.bucket("unreachable")
    store.set("unreachable", endpoint=f"http://127.0.0.1:{free_port()}")
    for source, out in ((f"{place}/in", "out"), ("in", f"{place}/out")):
        ran = plant("pipeline", "ingest", source, *POLICY, "--out", out, "--engine", "spark")
        assert (ran.status, ran.code) == (3, code), ran.err
        assert word in ran.err
        # Hadoop names a scheme that it does not know, and not the path.
        assert (place.partition(":")[0] if what == "connector" else place) in ran.err
        assert SECRET not in ran.err
        assert WRONG not in ran.err
        assert not (plant.folder / "out").exists()
    assert not list(bucket.iterdir())


@pytest.mark.parametrize("what", ["denied", "bucket"])
def test_a_table_that_cannot_be_reached_stops_a_job_before_it_begins(
    store: Store, plant: Shell, delta: dict[str, str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    del delta
    store.server.bucket("events")
    if what == "denied":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", WRONG)
    table = "s3a://events/table" if what == "denied" else "s3a://missing/table"
    ran = plant("pipeline", "ingest", "in", *POLICY, "--out", "out", "--to", f"delta:{table}")
    assert (ran.status, ran.code) == (3, {"denied": "pipeline.store-denied", "bucket": "pipeline.no-bucket"}[what])
    assert table in ran.err
    assert WRONG not in ran.err
    assert not (plant.folder / "out").exists()
