"""Admission: what publishers may put in, for a whole frame of typed events.

The same as `penstock.guard.Publication` does for one event: attributes that a publisher may not set become null, forced
values are set, selectors and conditions are checked at the time of the event. Who published an event is its `@source`.
Every row either becomes a transit event or a refusal with its code; there is no third way.

Publishers whose rights differ only in their constants (a camera and its place) are one shape: the constants stand in a
table that is joined by the publisher.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.guard import Effect, Publication, Rules
from penstock.model.types import EventType
from penstock.model.values import Kind, Value
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.enforce.programs import (
    Constants,
    ShapeBranch,
    Slots,
    renamed_branch,
    shape_branch,
    table,
)
from penstock.pipeline.enforce.restrict import holds, in_environment, keep_here
from penstock.pipeline.event_columns import TYPE
from penstock.pipeline.frames import (
    SOURCE,
    ColumnSource,
    all_of,
    any_of,
    attributes_of,
    choice,
    literal,
    metadata,
    quoted,
)
from penstock.pipeline.shared_columns import OF, SharedColumns
from penstock.selector.ast import Literal
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType

REASON: Final = "@reason"
DENIED: Final = "guard.denied"
AMBIGUOUS: Final = "guard.ambiguous-forced"
NOT_PERMITTED: Final = "guard.not-permitted"
_PUBLISHER, _SHAPE = "@publisher", "@shape"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A frame split in two: transit events, and refusals with a code in `@reason`. No row is in both or in neither."""

    events: DataFrame
    refused: DataFrame


@dataclass(frozen=True, slots=True)
class SharedAdmitted:
    """The same of many types: one row for each event, null in `@reason` if it is admitted, values in shared columns.

    Where more than one of its parts is used, `judged` should be evaluated once before (`outputs.kept`).
    """

    judged: DataFrame
    shared: SharedColumns

    @property
    def refused(self) -> DataFrame:
        """The refusals, with `@type`."""
        return self.judged.where(quoted(REASON).isNotNull()).select(quoted(TYPE), *metadata(), quoted(REASON))

    def parts(self, there: Collection[str] | None = None) -> list[DataFrame]:
        """Return the transit events, with `@type`, as `SharedColumns.parts` does."""
        return self.shared.parts(self.judged.where(quoted(REASON).isNull()), self.shared.types, there)


@dataclass(frozen=True, slots=True)
class PublishingBranch:
    """A branch of a right to publish, with parameters for its constants."""

    shape: ShapeBranch
    group: int
    #: attribute id and the parameter that holds the value forced on it
    forced: tuple[tuple[str, str], ...]

    @property
    def reads(self) -> bool:
        """Return whether the answer depends on the event."""
        return bool(self.shape.guards) or not isinstance(self.shape.where, Literal)


@dataclass(frozen=True, slots=True)
class PublishingShape:
    """The common form of rights to publish that differ only in their constants."""

    branches: tuple[PublishingBranch, ...]
    kinds: tuple[Kind, ...]


Publishers: TypeAlias = Mapping[str, tuple[PublishingShape, tuple[Value, ...]]]
"""The publishers that may publish at some time, with their rights: shapes and constants."""


def admit(
    events: DataFrame,
    verified: VerifiedType,
    policy: PipelinePolicy,
    *,
    guards: Mapping[str, Column] | None = None,
    facts: Mapping[str, ColumnSource] | None = None,
) -> Admitted:
    """Admit typed events of one version.

    `guards` and `facts` are columns, as for `deliver`.

    Raises `MalformedError` for a restriction that cannot be enforced, and for a type that has no columns
    (`pipeline.case`).
    """
    event_type = verified.event_type
    events, environment = in_environment(events, policy, facts)
    judging = Judging(event_type, guards or {}, environment)
    frame, reason, final = judging.judge(events, publishers(verified, policy))
    judged = frame.select(*metadata(), reason.alias(REASON), *(c.alias(f"@v{n}") for n, c in enumerate(final)))
    values = [quoted(f"@v{number}").alias(str(a.id)) for number, a in enumerate(event_type.attributes)]
    good = keep_here(judged, quoted(REASON).isNull(), [*metadata(), *values])
    bad = keep_here(judged, quoted(REASON).isNotNull(), [*metadata(), quoted(REASON)])
    return Admitted(good, bad)


def publishers(verified: VerifiedType, policy: PipelinePolicy) -> Publishers:
    """Return the publishers that may publish events of a version at some time, and their rights."""
    found: dict[str, tuple[PublishingShape, tuple[Value, ...]]] = {}
    rules = Rules(environment=policy.environment)
    kinds = {str(a.id): a.spec.kind for a in verified.event_type.attributes}
    # The owner may always publish its type, even if no credential and no reader mentions it.
    for principal in dict.fromkeys((verified.event_type.name.owner, *policy.principals())):
        decision = policy.decide(principal, Right.PUBLISH, verified)
        if decision.effect is not Effect.PERMIT:
            continue
        constants = Constants()
        branches = []
        publication = Publication(decision.restriction, verified.event_type, rules)
        for number, (forced, group) in enumerate(publication.groups):
            for branch in group:
                template = shape_branch(branch, branch.where, constants, kinds)
                pairs = tuple((str(attribute), constants.name(value)) for attribute, value in forced)
                branches.append(PublishingBranch(template, number, pairs))
        found[str(principal)] = PublishingShape(tuple(branches), constants.kinds), tuple(constants.values)
    return found


def admit_shared(
    events: DataFrame, types: Sequence[VerifiedType], policy: PipelinePolicy, there: Collection[str] | None = None
) -> SharedAdmitted:
    """Admit transit events of many versions, by their `@type`; those of other versions are left out.

    Attributes share columns: rights that differ only in the type that they are about are one shape. Types that are not
    `there`, by name, have no events (default: all have some). Raises `MalformedError` as `admit`.
    """
    known = {str(one.event_type.name): one for one in types}
    shared = SharedColumns.of(one.event_type for one in types)
    allowed = {
        f"{number} {publisher}": (renamed_publishing(shape, shared.own(event_type)), values)
        for number, event_type in enumerate(shared.types)
        for publisher, (shape, values) in publishers(known[str(event_type.name)], policy).items()
    }
    gathered, environment = in_environment(shared.gather(events, there), policy)
    judging = Judging(shared.event_type(), {}, environment)
    who = F.concat_ws(" ", quoted(OF).cast("string"), quoted(SOURCE))
    frame, reason, final = judging.judge(gathered, allowed, who)
    values = [value.alias(column) for column, value in zip(shared.kinds, final, strict=True)]
    return SharedAdmitted(frame.select(quoted(TYPE), *metadata(), quoted(OF), reason.alias(REASON), *values), shared)


def renamed_publishing(shape: PublishingShape, names: Mapping[str, str]) -> PublishingShape:
    """Return a shape whose attributes have other names; one without a name is null."""
    branches = tuple(
        replace(
            branch,
            shape=renamed_branch(branch.shape, names),
            forced=tuple((names[attribute], parameter) for attribute, parameter in branch.forced),
        )
        for branch in shape.branches
    )
    return replace(shape, branches=branches)


class Judging:
    """Decide for events of one version why they are refused, or with which values they are admitted."""

    def __init__(
        self, event_type: EventType, guards: Mapping[str, Column], environment: Mapping[str, ColumnSource]
    ) -> None:
        self._guards = guards
        self._environment = environment
        self._stated = {str(a.id): ColumnSource(quoted(a.name), a.spec.kind) for a in attributes_of([event_type])}

    @property
    def attributes(self) -> int:
        """Return the number of attributes of an event."""
        return len(self._stated)

    def judge(
        self, events: DataFrame, allowed: Publishers, who: Column | None = None
    ) -> tuple[DataFrame, Column, list[Column]]:
        """Return a frame of the events, with the reason of each, null if it is admitted, and its values.

        `who` says for each event under which name its publisher stands among those allowed (default: its source).
        """
        shapes: dict[PublishingShape, list[tuple[str, tuple[Value, ...]]]] = {}
        for publisher, (shape, values) in allowed.items():
            shapes.setdefault(shape, []).append((publisher, values))
        slots = Slots("@s")
        known = [slots.take(shape.kinds) for shape in shapes]
        frame = self._join(events, quoted(SOURCE) if who is None else who, slots, shapes)
        reasons: dict[int, Column] = {}
        finals: dict[int, Mapping[str, Column]] = {}
        for number, (shape, parameters) in enumerate(zip(shapes, known, strict=True)):
            frame, reasons[number], finals[number] = self._publish(frame, number, shape, parameters)
        shown = [
            choice(quoted(_SHAPE), {n: final[name] for n, final in finals.items()}, literal(None, source.kind))
            for name, source in self._stated.items()
        ]
        return frame, choice(quoted(_SHAPE), reasons, F.lit(DENIED)), shown

    @staticmethod
    def _join(
        frame: DataFrame,
        who: Column,
        slots: Slots,
        shapes: Mapping[PublishingShape, Sequence[tuple[str, tuple[Value, ...]]]],
    ) -> DataFrame:
        """Put the shape of each event's publisher beside it, and its constants."""
        kinds = {_PUBLISHER: Kind.STRING, _SHAPE: Kind.INTEGER, **slots.kinds}
        rows = [
            [publisher, number, *slots.row(shape.kinds, values)]
            for number, (shape, members) in enumerate(shapes.items())
            for publisher, values in members
        ]
        constants = F.broadcast(table(frame.sparkSession, kinds, rows))
        return frame.join(constants, who == quoted(_PUBLISHER), "left")

    def _publish(
        self, frame: DataFrame, number: int, shape: PublishingShape, parameters: Mapping[str, ColumnSource]
    ) -> tuple[DataFrame, Column, Mapping[str, Column]]:
        """Return the frame with helper columns, the reason why a row is refused, and the admitted values."""
        chosen, ambiguous = self._chosen(shape, parameters)
        candidates = [self._candidate(branch, parameters) for branch in shape.branches]
        held = [
            chosen[branch.group] & self._holds(branch, candidate, parameters)
            for branch, candidate in zip(shape.branches, candidates, strict=True)
        ]
        # A branch must hold on what all let through together; each round may lose one, so as many rounds as branches.
        rounds = len(held) if len(held) > 1 and any(branch.reads for branch in shape.branches) else 0
        for turn in range(rounds + 1):
            # In a projection of their own, so that what hangs on a branch does not repeat its conditions.
            names = [f"@h{number}_{turn}_{n}" for n in range(len(held))]
            frame = frame.withColumns(dict(zip(names, held, strict=True)))
            held = [quoted(name) for name in names]
            if turn < rounds:
                final = self._together(candidates, held)
                held = [
                    gate & self._holds(branch, final, parameters) if branch.reads else gate
                    for gate, branch in zip(held, shape.branches, strict=True)
                ]
        why = F.when(ambiguous, F.lit(AMBIGUOUS)).when(~any_of(held), F.lit(NOT_PERMITTED))
        return frame, why, {name: source.column for name, source in self._together(candidates, held).items()}

    def _together(
        self, candidates: Sequence[Mapping[str, ColumnSource]], held: Sequence[Column]
    ) -> dict[str, ColumnSource]:
        if not held:
            return {
                name: ColumnSource(literal(None, source.kind), source.kind) for name, source in self._stated.items()
            }
        return {
            name: ColumnSource(
                F.coalesce(*(F.when(gate, c[name].column) for gate, c in zip(held, candidates, strict=True))),
                source.kind,
            )
            for name, source in self._stated.items()
        }

    def _candidate(self, branch: PublishingBranch, parameters: Mapping[str, ColumnSource]) -> dict[str, ColumnSource]:
        forced = dict(branch.forced)
        return {
            name: parameters[forced[name]]
            if name in forced
            else source
            if branch.shape.shows(name)
            else ColumnSource(literal(None, source.kind), source.kind)
            for name, source in self._stated.items()
        }

    def _chosen(
        self, shape: PublishingShape, parameters: Mapping[str, ColumnSource]
    ) -> tuple[dict[int, Column], Column]:
        """Return for each group of forced values the rows that take it, and the rows for which that is ambiguous."""
        groups = {branch.group: dict(branch.forced) for branch in shape.branches}
        if len(groups) < 2:
            return dict.fromkeys(groups, F.lit(True)), F.lit(False)
        agrees: dict[int, Column] = {}
        for group, forced in groups.items():
            parts = [
                F.coalesce(self._stated[name].column == parameters[parameter].column, F.lit(True))
                for name, parameter in forced.items()
            ]
            agrees[group] = all_of(parts)
        clash = [
            agrees[one] & agrees[two] & (parameters[first].column != parameters[groups[two][name]].column)
            for one in groups
            for two in groups
            if one < two
            for name, first in groups[one].items()
            if name in groups[two]
        ]
        return agrees, ~any_of(list(agrees.values())) | any_of(clash)

    def _holds(
        self, branch: PublishingBranch, values: Mapping[str, ColumnSource], parameters: Mapping[str, ColumnSource]
    ) -> Column:
        environment = {**self._environment, **parameters}
        return holds(branch.shape, {**values, **parameters}, environment, self._guards)
