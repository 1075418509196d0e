"""What is said of the batches of an output, and what of it is believed."""

import json
from pathlib import Path

from pyspark.sql import SparkSession
from tests.trust.kit import refused

from penstock.pipeline.outputs import commit, totals


def test_commits_that_were_edited_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    commit(spark, str(tmp_path), 0, {"counts": {"read": 3}})
    assert totals(spark, str(tmp_path)) == {"read": 3}
    file = next((tmp_path / "commits" / "@batch=0").glob("part-*"))
    for text in ("x", "[]", json.dumps({"batch": 0}), json.dumps({"batch": 0, "counts": {"read": "many"}})):
        file.write_text(text)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        with refused("layout.manifest"):
            totals(spark, str(tmp_path))
