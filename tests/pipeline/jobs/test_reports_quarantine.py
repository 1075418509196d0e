"""What is in quarantine can be looked at, whatever it is."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.jobs_plant import build, interpreted, line
from tests.trust.kit import NOW, refused

from penstock.pipeline.enforce.policy import load_policy
from penstock.pipeline.jobs.ingest import Envelopes, Ingest
from penstock.pipeline.jobs.job import run
from penstock.pipeline.jobs.reports import Audit, open_quarantine
from penstock.pipeline.outputs import Output
from penstock.pipeline.quarantine import safe_text


@pytest.fixture(autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


def test_reasons_are_counted_and_some_of_each_are_shown(spark: SparkSession, tmp_path: Path) -> None:
    types = load_policy(str(build(tmp_path / "plant")), NOW).types
    unknown = json.dumps(json.loads(line(0)) | {"type": "x"})
    lines = [b"\x1b[2J" + b"x" * 1_000, *(b"no %d" % n for n in range(3)), b"\xff", line(1).encode(), unknown.encode()]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    out = str(tmp_path / "ingested")
    run(Ingest(Envelopes(str(tmp_path / "in"), types), lambda: NOW), spark, out)
    # What is not complete is not there.
    (tmp_path / "ingested" / "quarantine" / "@batch=1").mkdir()
    found = open_quarantine(spark, out, samples=2)
    assert list(found.reasons.items()) == [("ingest.json", 4), ("ingest.type", 1), ("ingest.utf8", 1)]
    assert [sample.reason for sample in found.samples] == ["ingest.json"] * 2 + ["ingest.type", "ingest.utf8"]
    first, second, _, last = found.samples
    assert first.size == 1_004
    assert first.text == "\\x1b[2J" + "x" * 396
    assert (second.text, last.text, last.size) == ("no 0", "\\xff", 1)
    assert first.file is not None
    assert first.file.endswith("in/a.jsonl")
    assert first.position is None, "of lines Spark does not tell where they stood"


def test_lines_of_a_log_are_kept_too(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "a.jsonl").write_text("no decision\n", encoding="utf-8")
    out = str(tmp_path / "audited")
    run(Audit(str(tmp_path / "log")), spark, out)
    (sample,) = open_quarantine(spark, out).samples
    assert replace(sample, words=None) == sample
    assert (sample.reason, sample.file, sample.size, sample.text) == ("log.json", None, 11, "no decision")


def test_what_has_no_quarantine_says_so(spark: SparkSession, tmp_path: Path) -> None:
    with refused("pipeline.no-input"):
        open_quarantine(spark, str(tmp_path / "nowhere"))
    Output(spark, str(tmp_path / "other"), "deliver", "x", ()).open()
    with refused("pipeline.no-input"):
        open_quarantine(spark, str(tmp_path / "other"))
    Output(spark, str(tmp_path / "begun"), "ingest", "x", ()).open()
    with refused("pipeline.no-input"):
        open_quarantine(spark, str(tmp_path / "begun"))


def test_text_that_is_safe_to_show() -> None:
    assert safe_text("é\u202e\x00\r\n\t".encode() + b"\xc3") == "é\\u202e\\x00\\r\\n\\t\\xc3"
