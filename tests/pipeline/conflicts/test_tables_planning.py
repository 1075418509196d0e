"""Settings by which a rule base is shared out hold while it is looked at."""

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.conflicts.tables import planned_for

PARTS, ADAPTIVE, WIDE = "spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage"


def now(spark: SparkSession) -> list[str | None]:
    return [spark.conf.get(name) for name in (PARTS, ADAPTIVE, WIDE)]


def test_few_rows_are_done_in_one_part_and_many_in_many(spark: SparkSession) -> None:
    before = now(spark)
    assert before == ["2", "true", "true"]
    with planned_for(spark, 20_000) as few:
        assert few
        assert now(spark) == ["1", "false", "false"]
    assert now(spark) == before
    with planned_for(spark, 10_000_000) as few:
        assert not few
        assert now(spark) == ["40", *before[1:]]
    with planned_for(spark, 20_001):
        # As many as there are by default, if they are enough.
        assert now(spark) == before
    with pytest.raises(ValueError, match="stopped"), planned_for(spark, 1):
        raise ValueError("stopped")
    assert now(spark) == before
