"""Results of guards that brokers have recorded (`guard_results` in node files), as columns for `deliver` and `admit`.

A guard is a black box, so history can be replayed only with its results. An event without a result, or with several
that differ, counts as refused.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.pipeline.frames import ID, quoted

#: the column that is added: the results of an event, by the guard's name
GUARDS: Final = "@guards"
_FORM: Final = "event STRING, guard STRING, held BOOLEAN"


def with_guards(events: DataFrame, lines: DataFrame, names: Iterable[str]) -> tuple[DataFrame, dict[str, Column]]:
    """Add the results in lines of JSON (a column `value`) to events. Return the events, and `guards` for `deliver`.

    `names` are the guards' names, as the branches of the policy have them. Lines that are not results are ignored:
    nothing is shown by them.
    """
    found = lines.select(F.from_json("value", _FORM).alias("one")).select("one.*")
    held = F.bool_and(F.coalesce("held", F.lit(False)))
    each = found.where("event IS NOT NULL AND guard IS NOT NULL").groupBy("event", "guard").agg(held.alias("held"))
    results = each.groupBy("event").agg(F.map_from_entries(F.collect_list(F.struct("guard", "held"))).alias(GUARDS))
    joined = events.join(results, quoted(ID) == results["event"], "left").drop("event")
    return joined, {name: F.element_at(quoted(GUARDS), F.lit(str(name))) for name in names}
