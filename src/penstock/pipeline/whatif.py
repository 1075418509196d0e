"""What-if: two policies and a history. Who gains and who loses which attributes, on how many events?

Every subscription is words of bits (`enforce.restrict`): one bit says whether the event is delivered and one bit for
each attribute whether its value is seen. Where the bits before and after differ, the event counts: it is one pass
over the history, with one aggregation, whatever number of subscribers there are (`enforce.search`). Subscriptions
that are the same before and after are not evaluated at all.

Seeing an attribute means to receive a value: a null tells nothing, whoever may read it. A filter of the subscriber's
own is part of what is compared, and sees what the subscriber sees.

What publishers may put in is compared at the end of this module. The result is a `PolicyComparison` (`comparison`).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import ArrayType, BooleanType, IntegerType, LongType, StringType, StructField, StructType

from penstock.errors import MalformedError
from penstock.model.types import EventType
from penstock.model.values import Kind
from penstock.pipeline.comparison import Admissions, ComparedReaders, Found, PolicyComparison, check_environments
from penstock.pipeline.enforce.admit import Judging, Publishers, publishers
from penstock.pipeline.enforce.deliver import QUESTION, Finder, SearchQuestion, Words, prefiltered
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.enforce.programs import table
from penstock.pipeline.enforce.restrict import WORD, Viewer, bits, columns, either, in_environment, keep
from penstock.pipeline.frames import ID, SOURCE, ColumnSource, any_of, quoted, transit_sources
from penstock.selector.ast import AttributeReference, walk

DIFFERENCES: Final = StructType(
    [
        StructField("pair", IntegerType()),
        StructField("bit", IntegerType()),
        StructField("gained", BooleanType()),
        StructField("events", LongType()),
        StructField("samples", ArrayType(StringType())),
    ]
)
"""The result of one pass: for each pair of subscriptions and each bit, the changed events, and some of their ids."""


def compare(  # noqa: PLR0913  # two policies on a history; the rest has defaults
    transit: DataFrame,
    before: PipelinePolicy,
    after: PipelinePolicy,
    *,
    types: Sequence[EventType],
    samples: int = 5,
    facts: Mapping[str, ColumnSource] | None = None,
    guards: Mapping[str, Column] | None = None,
) -> PolicyComparison:
    """Compare two policies on a history of transit events of one type.

    `types` are the versions of that type. `samples` bounds the ids that each change names: the smallest ones. The
    history is read once, however many subscriptions change. Its length is counted apart, which costs little where a
    format knows it: persist a history that is costly to compute. `guards` and `facts` are columns, as for `deliver`.

    Raises `MalformedError` (`whatif.environment`, `whatif.types`, `whatif.columns`, `whatif.samples`), and for a policy
    that cannot be enforced `SelectorError` and `RefusedError` (`guard.online-test`).
    """
    check_environments(before, after)
    history, environment = in_environment(transit, after, facts)
    compared = ComparedReaders(
        before, after, types, samples, environment=environment.keys(), guards=(guards or {}).keys()
    )
    sources = transit_sources(types)
    if missing := (sources.keys() | {ID}) - set(transit.columns):
        raise MalformedError("whatif.columns", f"the history has no column `{min(missing)}`")
    found: Found = {}
    if pairs := compared.pairs:
        questions = [SearchQuestion(number, pair) for number, pair in enumerate(pairs)]
        asked = [program for pair in pairs for part in pair for program in part]
        # What neither policy shows does not differ.
        kinds = {name: source.kind for name, source in sources.items()}
        history = prefiltered(history, asked, kinds, after if before.constants == "public" else before)
        found = collected(differences(history, Viewer(sources, environment, guards or {}), questions, samples))
    return compared.comparison(transit.count(), found)


def differences(transit: DataFrame, viewer: Viewer, questions: Sequence[SearchQuestion], samples: int) -> DataFrame:
    """Return the differences between the two sides of some questions (`DIFFERENCES`)."""
    finder = Finder(transit, viewer, _differ, parts=2)
    found = finder.find(questions)
    old, new = (
        # An attribute without a value is not seen.
        [quoted(name).bitwiseAND(there) for name, there in zip(names, viewer.present(), strict=True)]
        for names in finder.words()
    )
    gained = [after.bitwiseAND(F.bitwise_not(before)) for before, after in zip(old, new, strict=True)]
    lost = [before.bitwiseAND(F.bitwise_not(after)) for before, after in zip(old, new, strict=True)]
    words = {f"g{n}": word for n, word in enumerate(gained)} | {f"l{n}": word for n, word in enumerate(lost)}
    frame = found.select(
        quoted(QUESTION).alias("pair"), quoted(ID).alias("id"), *(word.alias(name) for name, word in words.items())
    )
    return counted(frame, list(words), samples)


def counted(frame: DataFrame, words: Sequence[str], samples: int) -> DataFrame:
    """Count bits (`DIFFERENCES`) in a frame of `pair`, `id`, and words of what is gained, `g0`, and lost, `l0`."""
    # First by pattern of bits, of which there are few, then by bit.
    grouped = frame.groupBy("pair", *words)
    frame = grouped.agg(F.count(F.lit(1)).alias("n"), _smallest("id", samples).alias("ids"))
    set_bits = F.concat(*(_set_bits(name[0], int(name[1:])) for name in words))
    frame = frame.select("pair", "n", "ids", F.explode(set_bits).alias("b"))
    # The smallest ids of all patterns one by one, so that memory stays bounded; the count with the first of them.
    frame = frame.select("pair", "b.*", "n", F.posexplode_outer("ids").alias("at", "id"))
    frame = frame.groupBy("pair", "bit", "gained").agg(
        F.sum(F.when(F.coalesce("at", F.lit(0)) == 0, F.col("n"))).alias("events"),
        _smallest("id", samples).alias("samples"),
    )
    return frame.select(*(F.col(field.name).cast(field.dataType) for field in DIFFERENCES))


def _differ(parts: Sequence[Words]) -> Column:
    before, after = parts
    return any_of([old != new for old, new in zip(before, after, strict=True)])


def _set_bits(direction: str, word: int) -> Column:
    def is_set(bit: Column) -> Column:
        return F.call_function("shiftright", F.col(f"{direction}{word}"), bit).bitwiseAND(bits(1)) == 1

    def named(bit: Column) -> Column:
        return F.struct((bit + word * WORD).alias("bit"), F.lit(direction == "g").alias("gained"))

    return F.transform(F.filter(F.sequence(F.lit(0), F.lit(WORD - 1)), is_set), named)


def _smallest(name: str, samples: int) -> Column:
    # The empty list makes Spark aggregate by hash: with texts alone it would sort every changed event.
    nothing = F.collect_list(F.when(F.lit(False), F.col(name)))
    return F.concat(F.coalesce(F.min_by(F.col(name), F.col(name), samples), F.array().cast("array<string>")), nothing)


def collected(found: DataFrame) -> Found:
    """Return the differences as rows (`DIFFERENCES`)."""
    return {(row.pair, row.bit, row.gained): (row.events, tuple(sorted(set(row.samples)))) for row in found.collect()}


# ----------------------------------------------------------------------------------------------------------------------
# What-if for admission: what publishers may newly publish, or may not publish any more.
#
# Every event is judged by both policies, as `admit` would, and the values that go in are compared: an attribute is
# gained where it goes in with a value that it did not have before, and lost where its value does not go in any more. A
# value that is forced to be another is both.
#
# Only events of publishers whose rights change are judged, and where nobody's do the history is not read.


_WHO: Final = "@who"
_PAIR: Final = "@pair"


def compare_admission(  # noqa: PLR0913  # two policies on a history, and how
    events: DataFrame,
    event_type: EventType,
    before: PipelinePolicy,
    after: PipelinePolicy,
    *,
    samples: int = 5,
    facts: Mapping[str, ColumnSource] | None = None,
    guards: Mapping[str, Column] | None = None,
) -> Admissions:
    """Compare what publishers may put in, on typed events of one version; a policy without that type admits nothing.

    `samples` bounds the ids that each change names: the smallest ones. `guards` and `facts` are columns, as for
    `deliver`. Raises `MalformedError` (`whatif.environment`).
    """
    check_environments(before, after)
    events, environment = in_environment(events, after, facts)
    sides = (_publishers(event_type, before), _publishers(event_type, after))
    return compare_publishers(events, event_type, *sides, environment=environment, samples=samples, guards=guards)


def _publishers(event_type: EventType, policy: PipelinePolicy) -> Publishers:
    verified = next((one for one in policy.types if one.event_type.name == event_type.name), None)
    return {} if verified is None else publishers(verified, policy)


def compare_publishers(  # noqa: PLR0913  # two sides of a version on a history, and how
    events: DataFrame,
    event_type: EventType,
    before: Publishers,
    after: Publishers,
    *,
    environment: Mapping[str, ColumnSource],
    samples: int = 5,
    guards: Mapping[str, Column] | None = None,
) -> Admissions:
    """Compare the rights of publishers as `admit.publishers` gives them, for events that have the environment."""
    everyone = sorted(before.keys() | after.keys())
    changed = [name for name in everyone if before.get(name) != after.get(name)]
    sides = [{name: side[name] for name in changed if name in side} for side in (before, after)]
    found: Found = {}
    if changed:
        judging = Judging(event_type, guards or {}, environment)
        found = collected(_differences(_of(events, changed), judging, sides, samples))
    unknown = _asked(sides) - environment.keys() - (guards or {}).keys()
    return Admissions.of(event_type, everyone, changed, found, unknown)


def _asked(sides: Sequence[Publishers]) -> frozenset[str]:
    """Return the guards and the facts that some rights ask for."""
    branches = [branch.shape for side in sides for shape, _ in side.values() for branch in shape.branches]
    facts = (node.name for branch in branches for node in walk(branch.when) if isinstance(node, AttributeReference))
    return frozenset().union(*(branch.guards for branch in branches), (name for name in facts if name[0] != "@"))


def _of(events: DataFrame, publishers: Sequence[str]) -> DataFrame:
    """Return the events of some publishers, with the place of each in the list beside them."""
    kinds = {_WHO: Kind.STRING, _PAIR: Kind.INTEGER}
    places = table(events.sparkSession, kinds, [[name, place] for place, name in enumerate(publishers)])
    return events.join(F.broadcast(places), quoted(SOURCE) == quoted(_WHO)).drop(_WHO)


def _differences(events: DataFrame, judging: Judging, sides: Sequence[Publishers], samples: int) -> DataFrame:
    """Return the differences between admitted events (`DIFFERENCES`)."""
    frame = events
    for side, allowed in enumerate(sides):
        passed = columns(frame)
        frame, reason, values = judging.judge(frame, allowed)
        made = {f"@in{side}": reason.isNull(), **{f"@v{side}_{n}": value for n, value in enumerate(values)}}
        frame = frame.select(*passed, *(column.alias(name) for name, column in made.items()))
    gained, lost = (_words(old, new, judging.attributes) for old, new in ((0, 1), (1, 0)))
    words = {f"g{n}": word for n, word in enumerate(gained)} | {f"l{n}": word for n, word in enumerate(lost)}
    frame = frame.select(
        quoted(_PAIR).alias("pair"), quoted(ID).alias("id"), *(word.alias(name) for name, word in words.items())
    )
    frame = keep(frame, any_of([F.col(name) != 0 for name in words]), columns(frame))
    return counted(frame, list(words), samples)


def _words(old: int, new: int, attributes: int) -> list[Column]:
    """Return the bits of values that are admitted on one side only: bit 0 is the event."""
    was, goes = quoted(f"@in{old}"), quoted(f"@in{new}")
    found = [goes & ~was]
    for place in range(attributes):
        before, after = quoted(f"@v{old}_{place}"), quoted(f"@v{new}_{place}")
        found.append(goes & after.isNotNull() & ~(was & before.eqNullSafe(after)))
    parts = [F.when(there, bits(1 << bit % WORD)).otherwise(bits(0)) for bit, there in enumerate(found)]
    return [either(parts[start : start + WORD]) for start in range(0, len(parts), WORD)]
