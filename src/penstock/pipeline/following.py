"""Which output of another job a stream follows: the one that its first batch was of.

Every output has a name of its own, drawn at random when it is begun, which its note and all its commits say. A job that
is run with `--overwrite` begins another output in the same place. Its commits are new files, and whoever followed the
old one would take them for more of it, and have every event twice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.errors import RefusedError
from penstock.pipeline.frames import quoted

OUTPUT: Final = "output"
"""What a commit says of the output that it belongs to."""
FOLLOWS: Final = "follows"
"""What a commit says of the output that was followed."""
_OF: Final = "@output"


def output_of(line: Column) -> Column:
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
