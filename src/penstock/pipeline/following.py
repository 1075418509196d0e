"""A stream that follows the output of another job by its commits, and of which output: that of its first batch.

Every output has a name of its own, drawn at random when it is begun, which its note and all its commits say. A job that
is run with `--overwrite` begins another output in the same place. Its commits are new files, and whoever followed the
old one would take them for more of it, and have every event twice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.errors import RefusedError
from penstock.pipeline.commits import COMMITS, OUTPUT
from penstock.pipeline.frames import quoted
from penstock.pipeline.lines import LINE
from penstock.pipeline.outputs import is_missing, no_input
from penstock.pipeline.streaming import Streaming, arriving
from penstock.pipeline.strict_files import STRICT

FOLLOWS: Final = "follows"
"""What a commit says of the output that was followed."""
_OF: Final = "@output"


def follow(spark: SparkSession, path: str, streaming: Streaming) -> DataFrame:
    """Return a stream of the commits of another job; `named` says which batches they are.

    Raises `FailedError` (`pipeline.no-input`) where the job has not begun.
    """
    source = f"{path}/{COMMITS}"
    if is_missing(spark, source):
        raise no_input(path)
    reader = spark.readStream.schema(LINE).options(**STRICT).option("recursiveFileLookup", "true")
    lines = reader.options(**arriving(streaming)).text(source)
    return lines.select("value", _output_of(F.col("value")))


def named(lines: DataFrame) -> list[int]:
    """Return the batches that some commits are of."""
    batches = lines.selectExpr("get_json_object(value, '$.batch') AS batch").where("batch IS NOT NULL").distinct()
    return sorted(int(row[0]) for row in batches.collect())


def _output_of(line: Column) -> Column:
    """Return of which output a commit is, beside its line; those of earlier versions of Penstock have no name."""
    return F.coalesce(F.get_json_object(line, f"$.{OUTPUT}"), F.lit("")).alias(_OF)


@dataclass(slots=True)
class Followed:
    """The output that a stream follows, once it is known."""

    first: str | None = None

    @classmethod
    def before(cls, said: Iterable[Mapping[str, object]]) -> "Followed":
        """Return what a stream that goes on has followed, by what it has committed."""
        return cls(next((str(one[FOLLOWS]) for one in said if FOLLOWS in one), None))

    def check(self, commits: DataFrame) -> dict[str, object]:
        """Check that some commits are of the output that was followed before, and return what is to be said of it.

        Nothing is said of frames that are no commits. Raises `RefusedError` (`pipeline.replaced`).
        """
        if _OF not in commits.columns:
            return {}
        found = {str(row[0]) for row in commits.select(quoted(_OF)).distinct().collect()}
        if self.first is None and len(found) == 1:
            (self.first,) = found
        if found - {self.first}:
            raise RefusedError(
                "pipeline.replaced",
                "the output that this stream follows was written anew since the stream began",
                hint="its events would be there twice: say --overwrite here as well, or choose another folder",
            )
        return {} if self.first is None else {FOLLOWS: self.first}
