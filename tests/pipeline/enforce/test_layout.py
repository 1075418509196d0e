"""What is stored is what was delivered, each reader opens its own view, and nothing incomplete can be opened."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.pipeline.enforce.test_deliver import MANY
from tests.pipeline.jobs_plant import interpreted
from tests.pipeline.policy_kit import PLATE, SIGHTING, define, policy_of, reader, sightings
from tests.pipeline.rows import collected, sharing, transit_frame

from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.guard import Restriction
from penstock.model import EventType, Kind
from penstock.pipeline import shared_columns
from penstock.pipeline.enforce import layout
from penstock.pipeline.enforce.deliver import Delivered, deliver, deliver_shared
from penstock.pipeline.enforce.layout import (
    Layout,
    open_view,
    read_manifests,
    store_rows,
    stored_rows,
    write_views,
)
from penstock.pipeline.enforce.manifest import Manifest
from penstock.pipeline.event_columns import TYPE
from penstock.pipeline.outputs import clear, commits
from penstock.selector import ALWAYS, Selector

Readers = Sequence[tuple[EventType, Restriction, Selector]]

#: the version before, in which the plate had another name and there was no ratio
OLDER = EventType.of(define("Sighting", {"number": Kind.STRING, "speed": Kind.INTEGER}, version="older"))


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


def delivered(spark: SparkSession, readers: Readers, count: int = 40) -> Delivered:
    return deliver(transit_frame(spark, [SIGHTING], sightings(count)), [SIGHTING], policy_of(readers))


def rows(frame: DataFrame) -> list[str]:
    return sorted(str(row) for row in collected(frame))


MIXED: Readers = [*MANY["equality"][:3], *[reader("speed > 3", PLATE)] * 2, (OLDER, reader("TRUE", PLATE)[1], ALWAYS)]


@pytest.mark.parametrize("chosen", Layout)
def test_each_reader_opens_what_was_delivered_to_it(spark: SparkSession, tmp_path: Path, chosen: Layout) -> None:
    found = delivered(spark, MIXED)
    write_views(found, str(tmp_path / "out"), layout=chosen, revision="policy:x")
    for number in (0, 4, 5):
        view = open_view(spark, str(tmp_path / "out"), f"reader-{number}")
        expected = found.for_subscriber(f"reader-{number}")
        assert view.columns == expected.columns
        assert rows(view) == rows(expected)
    assert open_view(spark, str(tmp_path / "out"), "reader-5").columns[3:] == ["number", "speed"]


@pytest.mark.parametrize("chosen", Layout)
def test_types_that_share_columns_are_stored_alike(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: Layout
) -> None:
    name, policy = str(SIGHTING.name), policy_of(MIXED)
    frame = transit_frame(spark, [SIGHTING], sightings(40)).withColumn(TYPE, F.lit(name))
    expected = deliver(frame, [SIGHTING], policy)
    monkeypatch.setattr(shared_columns, "PART_COLUMNS", 1)
    with sharing():
        found = deliver_shared(frame, [SIGHTING], policy)
        assert found.shared is not None
        write_views(found, str(tmp_path / "out"), layout=chosen)
    for number in (0, 4, 5):
        view = open_view(spark, str(tmp_path / "out"), f"reader-{number}")
        assert view.columns == found.for_subscriber(f"reader-{number}").columns
        assert rows(view) == rows(expected.for_subscriber(f"reader-{number}"))
        assert rows(view) == rows(found.for_subscriber(f"reader-{number}"))


def test_readers_who_share_a_program_share_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    found = delivered(spark, MIXED)
    write_views(found, str(tmp_path))
    stored = spark.read.parquet(str(tmp_path / "rows"))
    assert stored.count() == found.rows.count() < found.by_subscriber().count()
    folders = {folder.name for folder in (tmp_path / "rows" / "@batch=0").iterdir() if folder.is_dir()}
    assert folders <= {f"@program={program.number}" for program in found.programs}


def test_a_folder_for_each_reader_has_its_names(spark: SparkSession, tmp_path: Path) -> None:
    write_views(delivered(spark, MIXED), str(tmp_path), layout="subscriber")
    own = spark.read.parquet(str(tmp_path / "views" / "@subscriber=reader-5" / "@batch=0" / "@policy=none"))
    assert own.columns == ["@id", "@time", "@source", "number", "speed"]


def test_a_run_that_is_repeated_by_another_policy_leaves_nothing_in_a_view(spark: SparkSession, tmp_path: Path) -> None:
    wider, narrower = [reader("speed > 3", PLATE)], [reader("speed > 1000", PLATE)]
    store_rows(delivered(spark, wider), str(tmp_path), layout="subscriber", revision="policy:wider")
    write_views(delivered(spark, narrower), str(tmp_path), layout="subscriber", revision="policy:narrower")
    assert open_view(spark, str(tmp_path), "reader-0").count() == 0


def test_rows_that_were_there_before_go_whatever_a_cluster_is_set_to(spark: SparkSession, tmp_path: Path) -> None:
    wider, narrower = [reader("speed > 3", PLATE)], [reader("speed > 1000", PLATE)]
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        write_views(delivered(spark, wider), str(tmp_path))
        write_views(delivered(spark, narrower), str(tmp_path))
        assert open_view(spark, str(tmp_path), "reader-0").count() == 0
        clear(spark, str(tmp_path))
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert commits(spark, str(tmp_path)) == {}


def test_many_programs_are_one_sorted_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "FOLDERS", 2)
    found = delivered(spark, MIXED)
    write_views(found, str(tmp_path))
    files = list((tmp_path / "rows" / "@batch=0").glob("*.parquet"))
    assert files
    for file in files:
        numbers = [row["@program"] for row in spark.read.parquet(str(file)).collect()]
        assert numbers == sorted(numbers)
    monkeypatch.setattr(layout, "FOLDERS", 100)
    write_views(delivered(spark, MIXED, 10), str(tmp_path), batch=1)
    expected = found.for_subscriber("reader-4").union(delivered(spark, MIXED, 10).for_subscriber("reader-4"))
    assert rows(open_view(spark, str(tmp_path), "reader-4")) == rows(expected), "of both kinds of batches"


@pytest.mark.parametrize("chosen", Layout)
def test_batches_add_up_and_one_that_is_repeated_counts_once(
    spark: SparkSession, tmp_path: Path, chosen: Layout
) -> None:
    readers = [reader("TRUE", PLATE)]
    for batch, count in ((0, 3), (1, 5), (1, 5)):
        write_views(delivered(spark, readers, count), str(tmp_path), layout=chosen, batch=batch)
    assert open_view(spark, str(tmp_path), "reader-0").count() == 8


@pytest.mark.parametrize("chosen", Layout)
def test_a_view_is_in_the_version_that_the_reader_has_at_last(
    spark: SparkSession, tmp_path: Path, chosen: Layout
) -> None:
    shown = reader("TRUE", PLATE)[1]
    write_views(delivered(spark, [(OLDER, shown, ALWAYS)], 3), str(tmp_path), layout=chosen, batch=0)
    write_views(delivered(spark, [(SIGHTING, shown, ALWAYS)], 3), str(tmp_path), layout=chosen, batch=1)
    view = open_view(spark, str(tmp_path), "reader-0")
    assert view.columns[3:] == ["plate", "speed", "seen", "ratio"]
    assert sorted(str(row["plate"]) for row in view.collect()) == ["None", "None", "P1", "P1", "P2", "P2"]


@pytest.mark.parametrize("chosen", Layout)
def test_who_gets_nothing_opens_an_empty_view(spark: SparkSession, tmp_path: Path, chosen: Layout) -> None:
    write_views(delivered(spark, [reader("speed > 1000", PLATE)]), str(tmp_path), layout=chosen)
    view = open_view(spark, str(tmp_path), "reader-0")
    assert view.columns == ["@id", "@time", "@source", "plate", "speed", "seen", "ratio"]
    assert view.count() == 0


def test_what_is_not_complete_cannot_be_opened(spark: SparkSession, tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FailedError) as failed:
            open_view(spark, str(path), "reader-0")
        assert failed.value.code == "layout.incomplete"
    readers = [reader("TRUE", PLATE)]
    write_views(delivered(spark, readers, 3), str(tmp_path), batch=0)
    write_views(delivered(spark, readers, 3), str(tmp_path), batch=1)
    shutil.rmtree(tmp_path / "commits" / "@batch=1")
    assert open_view(spark, str(tmp_path), "reader-0").count() == 3, "of a batch without a manifest nothing is seen"


def test_a_batch_is_not_complete_while_it_is_written_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = delivered(spark, [reader("TRUE", PLATE)], 3)
    write_views(found, str(tmp_path))

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(layout, "_write_rows", killed)
    with pytest.raises(KeyboardInterrupt):
        write_views(found, str(tmp_path))
    assert commits(spark, str(tmp_path)) == {}


def test_an_output_is_emptied(spark: SparkSession, tmp_path: Path) -> None:
    found = delivered(spark, [reader("TRUE", PLATE)], 3)
    for batch in range(3):
        write_views(found, str(tmp_path), batch=batch)
    clear(spark, str(tmp_path), "rows")
    assert commits(spark, str(tmp_path)) == {}
    assert not list((tmp_path / "rows").rglob("*.parquet"))
    write_views(found, str(tmp_path))
    assert open_view(spark, str(tmp_path), "reader-0").count() == 3


def test_errors(spark: SparkSession, tmp_path: Path) -> None:
    found = delivered(spark, [reader("TRUE", PLATE)], 3)
    with pytest.raises(MalformedError) as error:
        write_views(found, str(tmp_path), layout="column")
    assert error.value.code == "layout.unknown"
    twice = Delivered(found.rows, (found.programs[0], found.programs[0]))
    with pytest.raises(MalformedError) as error:
        write_views(twice, str(tmp_path))
    assert error.value.code == "layout.subscriber"
    write_views(found, str(tmp_path))
    with pytest.raises(MalformedError) as error:
        open_view(spark, str(tmp_path), "somebody")
    assert error.value.code == "pipeline.unknown-subscriber"


@pytest.mark.parametrize("kind", Layout)
def test_subscribers_without_rights_are_remembered(spark: SparkSession, tmp_path: Path, kind: Layout) -> None:
    found = delivered(spark, [reader("TRUE", PLATE), (SIGHTING, Restriction(), ALWAYS)], 3)
    manifest = write_views(found, str(tmp_path), layout=kind)
    assert stored_rows(spark, str(tmp_path), manifest, 0) == {"reader-0": 3, "reader-1": 0}
    with pytest.raises(RefusedError) as refused:
        open_view(spark, str(tmp_path), "reader-1")
    assert refused.value.code == "pipeline.no-rights"
    with pytest.raises(MalformedError) as error:
        open_view(spark, str(tmp_path), "reader1")
    assert error.value.code == "pipeline.unknown-subscriber"
    assert "did you mean `reader-1` or `reader-0`?" in str(error.value.hint)


def test_a_manifest_is_read_back_and_names_each_version_once(spark: SparkSession, tmp_path: Path) -> None:
    written = write_views(delivered(spark, MIXED), str(tmp_path), revision="policy:x")
    assert read_manifests(spark, str(tmp_path)) == {0: written}
    assert sorted(written.as_dict()["types"]) == sorted([str(SIGHTING.name), str(OLDER.name)])  # type: ignore[call-overload]  # plain data
    damages: list[dict[str, object]] = [{"format": 2}, {"layout": "x"}, {"types": {}}, {"programs": [{}]}]
    for damage in damages:
        with pytest.raises(MalformedError) as error:
            Manifest.from_dict({**written.as_dict(), **damage})
        assert error.value.code == "layout.manifest"
    with pytest.raises(MalformedError):
        Manifest.from_dict(json.loads("[]"))
