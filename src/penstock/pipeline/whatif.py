"""What-if: two policies and a history. Who gains and who loses which attributes, on how many events?

Every subscription is words of bits (`enforce.restrict`): one bit says whether the event is delivered and one bit for
each attribute whether its value is seen. Where the bits before and after differ, the event counts: it is one pass
over the history, with one aggregation, whatever number of subscribers there are (`enforce.search`). Subscriptions
that are the same before and after are not evaluated at all.

Seeing an attribute means to receive a value: a null tells nothing, whoever may read it. A filter of the subscriber's
own is part of what is compared, and sees what the subscriber sees.

What publishers may put in is compared at the end of this module.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import ArrayType, BooleanType, IntegerType, LongType, StringType, StructField, StructType

from penstock.errors import MalformedError, did_you_mean
from penstock.guard.restriction import Restriction
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Kind
from penstock.pipeline.enforce.admit import Judging, Publishers, publishers
from penstock.pipeline.enforce.deliver import QUESTION, Finder, SearchQuestion, Words, prefiltered
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber
from penstock.pipeline.enforce.programs import Program, answered, table
from penstock.pipeline.enforce.restrict import WORD, Viewer, bits, columns, either, in_environment, keep
from penstock.pipeline.frames import ID, SOURCE, ColumnSource, any_of, attributes_of, quoted, transit_sources
from penstock.selector.ast import AttributeReference, walk
from penstock.trust.capabilities import Right

FailOn: TypeAlias = Literal["gain", "loss", "any"]

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


@dataclass(frozen=True, slots=True, order=True)
class AffectedReader:
    """The subscriber that a change concerns, by name and principal, and the type that it reads.

    Or a publisher: whatever it is called, its name is its principal here.
    """

    name: str
    principal: Principal
    type: TypeKey


@dataclass(frozen=True, slots=True)
class VisibilityChange:
    """A reader's gains and losses of one attribute, or of whole events if `attribute` is None.

    With the right to publish it is about what a publisher may put in.
    """

    reader: AffectedReader
    attribute: AttributeId | None
    #: as the reader's version calls it, after the change where it can
    name: str
    gained: int
    lost: int
    gained_samples: tuple[str, ...] = ()
    lost_samples: tuple[str, ...] = ()
    right: Right = Right.SUBSCRIBE

    def as_dict(self) -> dict[str, object]:
        """Return the change as plain data."""
        return {
            "publisher" if self.right is Right.PUBLISH else "subscriber": self.reader.name,
            "principal": str(self.reader.principal),
            "type": str(self.reader.type),
            "attribute": None if self.attribute is None else str(self.attribute),
            "name": self.name,
            "gained": self.gained,
            "lost": self.lost,
            "gained_samples": list(self.gained_samples),
            "lost_samples": list(self.lost_samples),
        }


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """The difference between two policies on a history.

    `before` and `after` are the policies' revisions, `events` the length of the history, `readers` all that were
    compared. `passed_over` are subscribers to other types than the history's. `unknown` names the guards and the facts
    of the environment that some branch asks for and the history does not tell: branches that need one never hold here.
    `closed` names attributes of a sealed history that are null here, because no key of them is held. `publishers` are
    those whose admission was compared, and `unknown_type` counts events of types that neither policy has: they are not
    among `events`.
    """

    before: str
    after: str
    events: int
    readers: tuple[AffectedReader, ...]
    changes: tuple[VisibilityChange, ...]
    passed_over: tuple[AffectedReader, ...] = ()
    unknown: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    publishers: tuple[AffectedReader, ...] = ()
    unknown_type: int = 0

    @property
    def gains(self) -> tuple[VisibilityChange, ...]:
        """The changes in which something is gained."""
        return tuple(change for change in self.changes if change.gained)

    @property
    def losses(self) -> tuple[VisibilityChange, ...]:
        """The changes in which something is lost."""
        return tuple(change for change in self.changes if change.lost)

    def __add__(self, other: "PolicyComparison") -> "PolicyComparison":
        """Join with the comparison of the same policies on a history of another type.

        Raises `MalformedError` (`whatif.policies`) where the policies differ.
        """
        if (self.before, self.after) != (other.before, other.after):
            raise MalformedError("whatif.policies", "two comparisons are of different policies")
        readers = {*self.readers, *other.readers}
        return replace(
            self,
            events=self.events + other.events,
            readers=tuple(sorted(readers)),
            changes=joined((*self.changes, *other.changes)),
            passed_over=tuple(sorted({*self.passed_over, *other.passed_over} - readers)),
            unknown=tuple(sorted({*self.unknown, *other.unknown})),
            closed=tuple(sorted({*self.closed, *other.closed})),
            publishers=tuple(sorted({*self.publishers, *other.publishers})),
            unknown_type=self.unknown_type + other.unknown_type,
        )

    def as_dict(self) -> dict[str, object]:
        """Return the comparison as plain data, for JSON."""
        return {
            "before": self.before,
            "after": self.after,
            "events": self.events,
            "readers": len(self.readers),
            "changes": [change.as_dict() for change in self.changes],
            "passed_over": [f"{reader.name}: {reader.type}" for reader in self.passed_over],
            "unknown": list(self.unknown),
            "closed": list(self.closed),
            "publishers": len(self.publishers),
            "unknown_type": self.unknown_type,
        }


def fails_on(comparison: PolicyComparison, what: FailOn) -> bool:
    """Return whether a forbidden change happens: for checks before a policy is changed.

    Raises `MalformedError` (`whatif.fail-on`) for anything but `gain`, `loss` and `any`.
    """
    found = {"gain": comparison.gains, "loss": comparison.losses, "any": comparison.changes}
    if what not in found:
        hint = did_you_mean(what, found, "choose gain, loss or any")
        raise MalformedError("whatif.fail-on", f"`{what}` is nothing to fail on", hint=hint)
    return bool(found[what])


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
    line = _line(types, samples)
    sources = transit_sources(types)
    if missing := (sources.keys() | {ID}) - set(transit.columns):
        raise MalformedError("whatif.columns", f"the history has no column `{min(missing)}`")
    history, environment = in_environment(transit, after, facts)
    old, new = _readers(before), _readers(after)
    everyone = sorted(old.keys() | new.keys())
    readers = [reader for reader in everyone if reader.type in line]
    compiler = _Compiler(types[0].key, environment, guards or {})
    pairs: dict[_Pair, list[AffectedReader]] = {}
    for reader in readers:
        pair = compiler.side(before, old.get(reader, ())), compiler.side(after, new.get(reader, ()))
        if pair[0] != pair[1]:
            pairs.setdefault(pair, []).append(reader)
    found: Found = {}
    if pairs:
        questions = [compiler.question(number, pair) for number, pair in enumerate(pairs)]
        asked = [program for question in questions for part in question.parts for program in part]
        # What neither policy shows does not differ.
        history = prefiltered(history, asked, sources, after if before.constants == "public" else before)
        found = collected(differences(history, Viewer(sources, environment, guards or {}), questions, samples))
    ids = [a.id for a in attributes_of(types)]
    changes = [
        change
        for number, pair in enumerate(pairs)
        for reader in pairs[pair]
        for change in changes_of(reader, _names((*new.get(reader, ()), *old.get(reader, ()))), ids, number, found)
    ]
    return PolicyComparison(
        before.revision,
        after.revision,
        transit.count(),
        tuple(readers),
        joined(changes),
        tuple(reader for reader in everyone if reader.type not in line),
        tuple(sorted(compiler.unknown)),
    )


def check_environments(before: PipelinePolicy, after: PipelinePolicy) -> None:
    """Raise `MalformedError` (`whatif.environment`) if two policies have different zones or facts."""
    if (str(before.zone), dict(before.facts)) != (str(after.zone), dict(after.facts)):
        raise MalformedError(
            "whatif.environment",
            "the two policies give different zones or facts",
            hint="only certificates and subscriptions are compared; give both the same zone and facts",
        )


def _line(types: Sequence[EventType], samples: int) -> frozenset[TypeKey]:
    """Return the type of a history and the types that it extends: readers can subscribe to all of them."""
    lines = {(event_type.key, *event_type.ancestors) for event_type in types}
    if len(lines) != 1:
        raise MalformedError(
            "whatif.types", "a history holds events of one type", hint="compare each type by itself and add the results"
        )
    if samples < 1:
        raise MalformedError("whatif.samples", "a change names one event at least")
    return frozenset(lines.pop())


def _readers(policy: PipelinePolicy) -> dict[AffectedReader, tuple[Subscriber, ...]]:
    """Group subscriptions by reader; one with several sees the events of all of them."""
    found: dict[AffectedReader, tuple[Subscriber, ...]] = {}
    for s in policy.subscribers:
        reader = AffectedReader(s.name, s.principal, s.type.event_type.key)
        found[reader] = (*found.get(reader, ()), s)
    return found


_View: TypeAlias = tuple[str, Restriction, tuple[type, ...], str]  # version, restriction, kinds in it, own selector
_Side: TypeAlias = frozenset[_View]
_Pair: TypeAlias = tuple[_Side, _Side]


class _Compiler:
    """Turns subscriptions into programs: each different one once."""

    def __init__(self, key: TypeKey, environment: Mapping[str, ColumnSource], guards: Mapping[str, Column]) -> None:
        self.unknown: set[str] = set()
        self._key = key
        self._environment, self._guards = environment, guards
        self._views: dict[_View, Program] = {}

    def side(self, policy: PipelinePolicy, subscriptions: Iterable[Subscriber]) -> _Side:
        """Return a reader's programs under one policy; none without a subscription."""
        return frozenset(self._view(policy, s) for s in subscriptions)

    def _view(self, policy: PipelinePolicy, s: Subscriber) -> _View:
        # A refusal has no branches.
        decided = policy.decide(s.principal, Right.SUBSCRIBE, s.type).restriction
        known = answered(decided.for_type(s.type.event_type, Right.SUBSCRIBE)).branches
        # A history is of one type: changes about others do not concern it.
        about = (branch for branch in known if branch.only is None or self._key in branch.only)
        restriction = Restriction(tuple(replace(branch, only=None) for branch in about))
        kinds = tuple(type(value) for branch in restriction.branches for _, value in branch.forced)
        view = s.type.id, restriction, kinds, s.selector.text
        if view not in self._views:
            for branch in restriction.branches:
                self.unknown |= branch.guards - self._guards.keys()
                self.unknown |= branch.when.condition.attributes - self._environment.keys()
            s.selector.check(s.type.event_type.schema)
            self._views[view] = Program(len(self._views), restriction, s.type.event_type, s.selector, (s.name,))
        return view

    def question(self, number: int, pair: _Pair) -> SearchQuestion:
        """Return the question about a pair: the programs before, and those after."""
        sides = [sorted((self._views[view] for view in side), key=lambda program: program.number) for side in pair]
        return SearchQuestion(
            number, tuple(tuple(program for program in s if program.restriction.branches) for s in sides)
        )


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


def _names(subscriptions: Iterable[Subscriber]) -> Mapping[AttributeId, str]:
    return {a.id: a.name for a in attributes_of(s.type.event_type for s in subscriptions)}


Found: TypeAlias = dict[tuple[int, int, bool], tuple[int, tuple[str, ...]]]
"""By pair, bit, and whether it is gained: on how many events, and some of their ids."""


def collected(found: DataFrame) -> Found:
    """Return the differences as rows (`DIFFERENCES`)."""
    return {(row.pair, row.bit, row.gained): (row.events, tuple(sorted(set(row.samples)))) for row in found.collect()}


def changes_of(
    reader: AffectedReader, names: Mapping[AttributeId, str], ids: Sequence[AttributeId], number: int, found: Found
) -> Iterator[VisibilityChange]:
    """Yield the gains and losses of one reader, found under its number."""
    for bit, attribute in enumerate([None, *ids]):
        gained, new = found.get((number, bit, True), (0, ()))
        lost, gone = found.get((number, bit, False), (0, ()))
        if gained or lost:
            name = "" if attribute is None else names[attribute]
            yield VisibilityChange(reader, attribute, name, gained, lost, new, gone)


def listed(changes: Iterable[VisibilityChange]) -> list[tuple[VisibilityChange, str]]:
    """Return the changes for a list, each with its subject.

    Attributes that a reader gains or loses just as the whole events that they stand in are named there, and not listed
    by themselves.
    """
    alike: dict[tuple[object, ...], list[VisibilityChange]] = {}
    for change in changes:
        events = change.gained, change.lost, change.gained_samples, change.lost_samples
        alike.setdefault((change.right, change.reader, *events), []).append(change)
    found: list[tuple[VisibilityChange, str]] = []
    for group in alike.values():
        whole = next((change for change in group if change.attribute is None), None)
        if whole is None:
            found += [(change, change.name) for change in group]
            continue
        names = ", ".join(change.name for change in group if change is not whole)
        found.append((whole, f"whole events with {names}" if names else "whole events"))
    return sorted(found, key=lambda one: _order(one[0]))


def joined(changes: Iterable[VisibilityChange]) -> tuple[VisibilityChange, ...]:
    """Add up changes of one reader and attribute, which a parent type has in the histories of its sub-types.

    Those of readers come before those of publishers.
    """
    merged: dict[tuple[AffectedReader, str, Right], VisibilityChange] = {}
    for change in changes:
        key = change.reader, change.attribute or "", change.right
        known = merged.get(key)
        if known is not None:
            change = replace(  # noqa: PLW2901  # the change as it now is
                known,
                gained=known.gained + change.gained,
                lost=known.lost + change.lost,
                gained_samples=_bounded(known.gained_samples, change.gained_samples),
                lost_samples=_bounded(known.lost_samples, change.lost_samples),
            )
        merged[key] = change
    return tuple(sorted(merged.values(), key=_order))


def _order(change: VisibilityChange) -> tuple[bool, AffectedReader, str, str]:
    return change.right is Right.PUBLISH, change.reader, change.name, change.attribute or ""


def _bounded(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*one, *other}))[: max(len(one), len(other))]


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


@dataclass(frozen=True, slots=True)
class Admissions:
    """The changes for publishers of one version, all compared publishers, and what the history does not show."""

    publishers: tuple[AffectedReader, ...]
    changes: tuple[VisibilityChange, ...]
    unknown: frozenset[str] = frozenset()

    def added_to(self, comparison: PolicyComparison) -> PolicyComparison:
        """Return a comparison that includes these publishers."""
        return replace(
            comparison,
            publishers=tuple(sorted({*comparison.publishers, *self.publishers})),
            changes=joined((*comparison.changes, *self.changes)),
            unknown=tuple(sorted({*comparison.unknown, *self.unknown})),
        )


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
    changes: list[VisibilityChange] = []
    if changed:
        judging = Judging(event_type, guards or {}, environment)
        found = collected(_differences(_of(events, changed), judging, sides, samples))
        names = {a.id: a.name for a in event_type.attributes}
        for number, name in enumerate(changed):
            made = changes_of(_publisher(name, event_type), names, list(names), number, found)
            changes += [replace(change, right=Right.PUBLISH) for change in made]
    compared = tuple(_publisher(name, event_type) for name in everyone)
    return Admissions(compared, tuple(changes), _asked(sides) - environment.keys() - (guards or {}).keys())


def _publisher(name: str, event_type: EventType) -> AffectedReader:
    return AffectedReader(name, Principal.parse(name), event_type.key)


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
