"""How Spark is to share out the work on a rule base of some size."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_ROWS_A_PART: Final = 250_000
#: so many rules take less time than planning how to share them out, and than compiling the plan
_FEW: Final = 20_000
#: these are done in one part, as planned before, and stay where they are
_AT_ONCE: Final = {
    _PARTITIONS: "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.wholeStage": "false",
}


@contextmanager
def planned_for(spark: SparkSession, rows: int) -> Iterator[bool]:
    """Let shuffles have so many parts that none has to go to disk to be sorted; few rows are done in one.

    Says whether they are few.
    """
    few = rows <= _FEW
    before = int(spark.conf.get(_PARTITIONS, None) or 0)
    with _settings(spark, _AT_ONCE if few else {_PARTITIONS: str(max(before, -(-rows // _ROWS_A_PART)))}):
        yield few


@contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
