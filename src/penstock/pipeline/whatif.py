"""What-if: two policies and a history. Who gains and who loses which attributes, on how many events?

Every subscription of both policies becomes a few integer columns, in which one bit says whether the event is delivered
and one bit for each attribute whether its value is seen. Where the bits before and after differ, the event counts: it
is one pass over the history, with one aggregation, whatever number of subscribers share a restriction. Subscriptions
that are the same before and after are not evaluated at all.

Seeing an attribute means to receive a value: a null tells nothing, whoever may read it. A filter of the subscriber's
own is part of what is compared, and sees what the subscriber sees.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import ArrayType, BooleanType, IntegerType, LongType, StringType, StructField, StructType

from penstock.errors import MalformedError
from penstock.guard.restriction import Restriction
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.pipeline.columns import Source
from penstock.pipeline.constants import OneRow
from penstock.pipeline.frames import ID, attributes_of, quoted, transit_sources
from penstock.pipeline.policy import Policy, Subscriber
from penstock.pipeline.programs import Constants, Program, Shape, shape_of
from penstock.pipeline.restrict import answered, environment_sources
from penstock.pipeline.views import WORD, Viewer, any_of, bits, either, is_always
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
"""What one pass yields: for each pair of subscriptions and each bit, how many events changed, and some of their ids."""

_BATCH: Final = 64


@dataclass(frozen=True, slots=True, order=True)
class Reader:
    """Whom a change concerns: a subscriber, by name and principal, and the type that it reads."""

    name: str
    principal: Principal
    type: TypeKey


@dataclass(frozen=True, slots=True)
class Change:
    """What a reader gains and loses of one attribute, or of whole events where `attribute` is None."""

    reader: Reader
    attribute: AttributeId | None
    #: as the reader's version calls it, after the change where it can
    name: str
    gained: int
    lost: int
    gained_samples: tuple[str, ...] = ()
    lost_samples: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return the change as plain data."""
        return {
            "subscriber": self.reader.name,
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
class Comparison:
    """The difference between two policies on a history.

    `before` and `after` are the policies' revisions, `events` the length of the history, `readers` all that were
    compared. `passed_over` are subscribers to other types than the history's. `unknown` names the guards and the facts
    of the environment that some branch asks for and the history does not tell: branches that need one never hold here.
    """

    before: str
    after: str
    events: int
    readers: tuple[Reader, ...]
    changes: tuple[Change, ...]
    passed_over: tuple[Reader, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def gains(self) -> tuple[Change, ...]:
        """The changes in which something is gained."""
        return tuple(change for change in self.changes if change.gained)

    @property
    def losses(self) -> tuple[Change, ...]:
        """The changes in which something is lost."""
        return tuple(change for change in self.changes if change.lost)

    def __add__(self, other: "Comparison") -> "Comparison":
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
            changes=_joined((*self.changes, *other.changes)),
            passed_over=tuple(sorted({*self.passed_over, *other.passed_over} - readers)),
            unknown=tuple(sorted({*self.unknown, *other.unknown})),
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
        }


def fails_on(comparison: Comparison, what: FailOn) -> bool:
    """Say whether a change that must not happen does: for checks before a policy is changed.

    Raises `MalformedError` (`whatif.fail-on`) for anything but `gain`, `loss` and `any`.
    """
    found = {"gain": comparison.gains, "loss": comparison.losses, "any": comparison.changes}
    if what not in found:
        raise MalformedError("whatif.fail-on", f"`{what}` is nothing to fail on", hint="choose gain, loss or any")
    return bool(found[what])


def compare(  # noqa: PLR0913  # two policies on a history; the rest has defaults
    transit: DataFrame,
    before: Policy,
    after: Policy,
    *,
    types: Sequence[EventType],
    samples: int = 5,
    zone: tzinfo = UTC,
    facts: Mapping[str, Source] | None = None,
    guards: Mapping[str, Column] | None = None,
) -> Comparison:
    """Compare two policies on a history of transit events of one type.

    `types` are the versions of that type. `samples` bounds the ids that each change names: the smallest ones. Where
    more than 64 different pairs of subscriptions change, the history is read once for every 64 of them. Its length is
    counted apart, which costs little where a format knows it: persist a history that is costly to compute.

    Raises `MalformedError` (`whatif.types`, `whatif.columns`, `whatif.samples`), and for a policy that cannot be
    enforced `SelectorError` and `RefusedError` (`guard.online-test`).
    """
    line = _line(types, samples)
    sources = transit_sources(types)
    if missing := (sources.keys() | {ID}) - set(transit.columns):
        raise MalformedError("whatif.columns", f"the history has no column `{min(missing)}`")
    environment = environment_sources(zone, facts)
    old, new = _readers(before), _readers(after)
    everyone = sorted(old.keys() | new.keys())
    readers = [reader for reader in everyone if reader.type in line]
    ids = [a.id for a in attributes_of(types)]
    compiler = _Compiler(sources, environment, guards or {})
    pairs: dict[_Pair, list[Reader]] = {}
    for reader in readers:
        pair = compiler.side(before, old.get(reader, ())), compiler.side(after, new.get(reader, ()))
        if pair[0] != pair[1]:
            pairs.setdefault(pair, []).append(reader)
    chosen = list(pairs)
    found: dict[tuple[int, int, bool], tuple[int, tuple[str, ...]]] = {}
    for start in range(0, len(chosen), _BATCH):
        frame = differences(transit, compiler, chosen[start : start + _BATCH], samples)
        for row in frame.collect():
            found[start + row.pair, row.bit, row.gained] = (row.events, tuple(sorted(set(row.samples))))
    changes = [
        change
        for number, pair in enumerate(chosen)
        for reader in pairs[pair]
        for change in _changes(reader, _names((*new.get(reader, ()), *old.get(reader, ()))), ids, number, found)
    ]
    return Comparison(
        before.revision,
        after.revision,
        transit.count(),
        tuple(readers),
        _joined(changes),
        tuple(reader for reader in everyone if reader.type not in line),
        tuple(sorted(compiler.unknown)),
    )


def _line(types: Sequence[EventType], samples: int) -> frozenset[TypeKey]:
    """Return the type of a history and what it extends: what its readers may have subscribed to."""
    lines = {(event_type.key, *event_type.ancestors) for event_type in types}
    if len(lines) != 1:
        raise MalformedError(
            "whatif.types", "a history holds events of one type", hint="compare each type by itself and add the results"
        )
    if samples < 1:
        raise MalformedError("whatif.samples", "a change names one event at least")
    return frozenset(lines.pop())


def _readers(policy: Policy) -> dict[Reader, tuple[Subscriber, ...]]:
    """Group subscriptions by who has them; whoever has several sees what any of them shows."""
    found: dict[Reader, tuple[Subscriber, ...]] = {}
    for s in policy.subscribers:
        reader = Reader(s.name, s.principal, s.type.event_type.key)
        found[reader] = (*found.get(reader, ()), s)
    return found


_View: TypeAlias = tuple[str, Restriction, tuple[type, ...], str]  # version, restriction, kinds in it, own selector
_Side: TypeAlias = frozenset[_View]
_Pair: TypeAlias = tuple[_Side, _Side]


class _Compiler:
    """Turns subscriptions into words of bits (`views`): each different one once."""

    def __init__(
        self, sources: Mapping[str, Source], environment: Mapping[str, Source], guards: Mapping[str, Column]
    ) -> None:
        self.unknown: set[str] = set()
        self.viewer = Viewer(sources, environment, guards)
        self._kinds = {name: source.kind for name, source in sources.items()}
        self._environment, self._guards = environment, guards
        self._views: dict[_View, tuple[int, Shape, Mapping[str, Source]]] = {}
        self._constants = OneRow("@x")

    def side(self, policy: Policy, subscriptions: Iterable[Subscriber]) -> _Side:
        """Return what a reader has under one policy; without a subscription nothing."""
        return frozenset(self._view(policy, s) for s in subscriptions)

    def _view(self, policy: Policy, s: Subscriber) -> _View:
        # What is not permitted has no branches.
        decided = policy.decide(s.principal, Right.SUBSCRIBE, s.type).restriction
        restriction = answered(decided.for_type(s.type.event_type, Right.SUBSCRIBE))
        kinds = tuple(type(value) for branch in restriction.branches for _, value in branch.forced)
        view = s.type.id, restriction, kinds, s.selector.text
        if view not in self._views:
            for branch in restriction.branches:
                self.unknown |= branch.guards - self._guards.keys()
                self.unknown |= branch.when.condition.attributes - self._environment.keys()
            s.selector.check(s.type.event_type.schema)
            number = len(self._views)
            program = Program(number, restriction, s.type.event_type, s.selector, (s.name,))
            shape, values = shape_of(program, self._kinds)
            self._views[view] = number, shape, self._constants.parameters(Constants(list(values)))
        return view

    def beside(self, frame: DataFrame, sides: Sequence[_Side]) -> DataFrame:
        """Return the ids of events with the words of some sides; an attribute without a value is not seen."""
        needed = [self._views[view] for view in dict.fromkeys(view for side in sides for view in side)]
        words = range(self.viewer.words)
        frame = self._constants.join(self.viewer.hoist(frame))
        present = {f"@present{word}": column for word, column in enumerate(self.viewer.present())}
        shown = {f"@v{n}_{w}": c for n, shape, known in needed for w, c in enumerate(self.viewer.shown(shape, known))}
        frame = frame.withColumns({**present, **shown})
        asked = {
            f"@v{n}_{w}": column
            for n, shape, known in needed
            if not is_always(shape.selector)
            for w, column in enumerate(self.viewer.asked(shape, known, [quoted(f"@v{n}_{w}") for w in words]))
        }
        frame = frame.withColumns(asked) if asked else frame
        both = [
            either([quoted(f"@v{self._views[view][0]}_{word}") for view in side])
            .bitwiseAND(quoted(f"@present{word}"))
            .alias(f"s{number}_{word}")
            for number, side in enumerate(sides)
            for word in words
        ]
        return frame.select(quoted(ID).alias("id"), *both)


def differences(transit: DataFrame, compiler: _Compiler, pairs: Sequence[_Pair], samples: int) -> DataFrame:
    """Return where the two sides of some pairs differ (`DIFFERENCES`)."""
    sides = {side: number for number, side in enumerate(dict.fromkeys(side for pair in pairs for side in pair))}
    words = range(compiler.viewer.words)
    frame = compiler.beside(transit, list(sides))
    found = [_changed(number, sides[pair[0]], sides[pair[1]], words) for number, pair in enumerate(pairs)]
    frame = frame.select("id", F.explode(F.array(*found)).alias("d")).where(F.col("d").isNotNull())
    # First by pattern of bits, of which there are few, then by bit.
    patterns = [f"{direction}{word}" for direction in "gl" for word in words]
    grouped = frame.select("id", "d.*").groupBy("pair", *patterns)
    frame = grouped.agg(F.count(F.lit(1)).alias("n"), _smallest("id", samples).alias("ids"))
    set_bits = F.concat(*(_set_bits(direction, word) for direction in "gl" for word in words))
    frame = frame.select("pair", "n", "ids", F.explode(set_bits).alias("b"))
    # The smallest ids of all patterns one by one, so that memory stays bounded; the count with the first of them.
    frame = frame.select("pair", "b.*", "n", F.posexplode_outer("ids").alias("at", "id"))
    frame = frame.groupBy("pair", "bit", "gained").agg(
        F.sum(F.when(F.coalesce("at", F.lit(0)) == 0, F.col("n"))).alias("events"),
        _smallest("id", samples).alias("samples"),
    )
    return frame.select(*(F.col(field.name).cast(field.dataType) for field in DIFFERENCES))


def _changed(number: int, before: int, after: int, words: range) -> Column:
    old, new = [F.col(f"s{before}_{word}") for word in words], [F.col(f"s{after}_{word}") for word in words]
    gained = [new[word].bitwiseAND(F.bitwise_not(old[word])).alias(f"g{word}") for word in words]
    lost = [old[word].bitwiseAND(F.bitwise_not(new[word])).alias(f"l{word}") for word in words]
    differ = any_of([old[word] != new[word] for word in words])
    return F.when(differ, F.struct(F.lit(number).alias("pair"), *gained, *lost))


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


def _changes(
    reader: Reader,
    names: Mapping[AttributeId, str],
    ids: Sequence[AttributeId],
    number: int,
    found: Mapping[tuple[int, int, bool], tuple[int, tuple[str, ...]]],
) -> Iterator[Change]:
    for bit, attribute in enumerate([None, *ids]):
        gained, new = found.get((number, bit, True), (0, ()))
        lost, gone = found.get((number, bit, False), (0, ()))
        if gained or lost:
            name = "" if attribute is None else names[attribute]
            yield Change(reader, attribute, name, gained, lost, new, gone)


def _joined(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Add up changes of one reader and attribute, which a parent type has in the histories of its sub-types."""
    merged: dict[tuple[Reader, str], Change] = {}
    for change in changes:
        key = change.reader, change.attribute or ""
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
    return tuple(sorted(merged.values(), key=lambda change: (change.reader, change.name, change.attribute or "")))


def _bounded(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*one, *other}))[: max(len(one), len(other))]
