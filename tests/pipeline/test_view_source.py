"""The data source `penstock` gives the rows of `view`, from outputs of jobs and from folders of Parquet files."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.jobs_plant import interpreted

from penstock.errors import MalformedError
from penstock.pipeline.commits import commit_line
from penstock.pipeline.enforce.policy import load_policy
from penstock.pipeline.ingest.ingest import Ingested, ingest_table, read_csv
from penstock.pipeline.view_source import ViewReader, ViewRequest, register
from penstock.pipeline.views import read_bound_mapping, view

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


def test_options_that_are_wrong(spark: SparkSession, tmp_path: Path) -> None:
    for options in ({"policy": POLICY}, {"policy": POLICY, "reader": "Group 1", "path": ".", "readr": "x"}):
        with pytest.raises(MalformedError) as refused:
            ViewRequest.of(options)
        assert refused.value.code == "view.option"
    texts = str(tmp_path / "texts")
    spark.read.csv(str(EXAMPLE / "sample.csv"), header=True).coalesce(1).write.parquet(texts)
    with pytest.raises(MalformedError) as refused:
        ViewRequest.of({"policy": POLICY, "reader": "Group 1", "path": texts, "mapping": str(EXAMPLE / "receipt.toml")})
    assert refused.value.code == "mapping.column"
