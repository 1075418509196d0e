"""The data source `penstock` gives the rows of `view`, from outputs of jobs and from folders of Parquet files."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.jobs_plant import interpreted

from penstock.errors import MalformedError
from penstock.guard import Branch, Restriction, When
from penstock.pipeline.commits import commit_line
from penstock.pipeline.enforce.policy import load_policy
from penstock.pipeline.ingest.ingest import Ingested, ingest_table, read_csv
from penstock.pipeline.small.folders import ARROW
from penstock.pipeline.view_source import ViewReader, ViewRequest, register
from penstock.pipeline.views import read_bound_mapping, view
from penstock.selector import ALWAYS, parse
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
    texts = str(tmp_path / "texts")
    spark.read.csv(str(EXAMPLE / "sample.csv"), header=True).coalesce(1).write.parquet(texts)
    with pytest.raises(MalformedError) as refused:
        ViewRequest.of({"policy": POLICY, "reader": "Group 1", "path": texts, "mapping": str(EXAMPLE / "receipt.toml")})
    assert refused.value.code == "mapping.column"
