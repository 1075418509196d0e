"""Commits: what is said of the batches of an output that are complete, each in `commits/@batch=N/`.

A commit is the last thing that is written of a batch: what has none does not exist for who reads. A run that is not a
stream has one batch, number 0.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StructField, StructType

from penstock.errors import FailedError, MalformedError
from penstock.pipeline.lines import LINE, read_lines, write_lines
from penstock.pipeline.strict_files import replacing

BATCH: Final = "@batch"
COMMITS: Final = "commits"
OUTPUT: Final = "output"
"""What a commit says of the output that it belongs to."""

Said: TypeAlias = dict[str, object]
"""What is committed of a batch. Every job says `counts`, a table of numbers that can be added up."""


def commit(spark: SparkSession, path: str, batch: int, said: Mapping[str, object]) -> None:
    """Say that a batch of an output is complete, and what is in it. It is the last thing that is written of it."""
    line = json.dumps({"batch": batch, **said}, ensure_ascii=False, separators=(",", ":"))
    write_lines(spark, [line], _place(path, batch))


def commits(spark: SparkSession, path: str) -> dict[int, Said]:
    """Return what was said of each complete batch of an output, by number; nothing where there is no output.

    Raises `MalformedError` (`layout.manifest`).
    """
    said = [_said(line) for line in read_lines(spark, f"{path}/{COMMITS}")]
    return dict(sorted(said, key=lambda found: found[0]))


def committed(spark: SparkSession, path: str, batch: int) -> bool:
    """Say whether a batch of an output is complete."""
    return bool(read_lines(spark, _place(path, batch)))


def _place(path: str, batch: int) -> str:
    return f"{path}/{COMMITS}/{BATCH}={batch}"


def _said(line: str) -> tuple[int, Said]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or type(found.get("batch")) is not int:
        raise MalformedError("layout.manifest", "a commit cannot be read", hint="do not edit the folder `commits`")
    return found["batch"], found


def withdraw(spark: SparkSession, path: str, batch: int) -> None:
    """Take back that a batch is complete, before it is written again."""
    if committed(spark, path, batch):
        spark.createDataFrame([], LINE).write.mode("overwrite").text(_place(path, batch))


def clear(spark: SparkSession, path: str, *parts: str) -> None:
    """Empty an output. Its commits go first, so that nobody takes what is left for complete."""
    nothing = spark.createDataFrame([], StructType([*LINE, StructField(BATCH, IntegerType())]))
    for part in (COMMITS, *parts):
        replacing(nothing).partitionBy(BATCH).text(f"{path}/{part}")


# --- What they count -------------------------------------------------------------------------------------------------


def totals(spark: SparkSession, path: str) -> dict[str, int]:
    """Add up what all complete batches of an output count. Raises `MalformedError` (`layout.manifest`)."""
    return add_up(commits(spark, path).values())


def add_up(said: Iterable[Said]) -> dict[str, int]:
    """Add up the counts of some batches."""
    found: dict[str, int] = {}
    for one in said:
        for name, count in counts_of(one).items():
            found[name] = found.get(name, 0) + count
    return found


def counts_of(said: Mapping[str, object]) -> dict[str, int]:
    """Return the counts that are said of a batch. Raises `MalformedError` (`layout.manifest`)."""
    counts = said.get("counts")
    if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
        raise MalformedError("layout.manifest", "a commit has no counts", hint="do not edit the folder `commits`")
    return counts


def check_sum(whole: int, parts: Mapping[str, int]) -> None:
    """Check that nothing was lost or doubled. Raises `FailedError` (`pipeline.lost`)."""
    if whole != sum(parts.values()):
        raise FailedError(
            "pipeline.lost",
            f"{whole} events were read, and {' + '.join(str(count) for count in parts.values())} came out",
            hint="do not use the output of this run; run it again",
        )
