"""What-if of admission: which publishers may put in what they could not before, or cannot any more.

Every event is judged by both policies, as `admit` would, and the values that go in are compared: an attribute is gained
where it goes in with a value that it did not have before, and lost where its value does not go in any more. A value
that is forced to be another is both.

Only events of publishers whose rights change are judged, and where nobody's do the history is not read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Kind
from penstock.pipeline.admit import Judging, Publishers, publishers
from penstock.pipeline.columns import Source
from penstock.pipeline.constants import table
from penstock.pipeline.frames import ID, SOURCE, quoted
from penstock.pipeline.policy import Policy
from penstock.pipeline.restrict import in_environment
from penstock.pipeline.views import WORD, any_of, bits, columns, either, keep
from penstock.pipeline.whatif import (
    Change,
    Comparison,
    Reader,
    changes_of,
    check_environments,
    collected,
    counted,
    joined,
)
from penstock.selector.ast import Attribute, walk
from penstock.trust.capabilities import Right

_WHO: Final = "@who"
_PAIR: Final = "@pair"


@dataclass(frozen=True, slots=True)
class Admissions:
    """What changes for publishers of one version, all who were compared, and what the history does not tell."""

    publishers: tuple[Reader, ...]
    changes: tuple[Change, ...]
    unknown: frozenset[str] = frozenset()

    def added_to(self, comparison: Comparison) -> Comparison:
        """Return a comparison that tells of these publishers too."""
        return replace(
            comparison,
            publishers=tuple(sorted({*comparison.publishers, *self.publishers})),
            changes=joined((*comparison.changes, *self.changes)),
            unknown=tuple(sorted({*comparison.unknown, *self.unknown})),
        )


def compare_admission(  # noqa: PLR0913  # two policies on a history, and how
    events: DataFrame,
    event_type: EventType,
    before: Policy,
    after: Policy,
    *,
    samples: int = 5,
    facts: Mapping[str, Source] | None = None,
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


def _publishers(event_type: EventType, policy: Policy) -> Publishers:
    verified = next((one for one in policy.types if one.event_type.name == event_type.name), None)
    return {} if verified is None else publishers(verified, policy)


def compare_publishers(  # noqa: PLR0913  # two sides of a version on a history, and how
    events: DataFrame,
    event_type: EventType,
    before: Publishers,
    after: Publishers,
    *,
    environment: Mapping[str, Source],
    samples: int = 5,
    guards: Mapping[str, Column] | None = None,
) -> Admissions:
    """Compare the rights of publishers as `admit.publishers` gives them, for events that have the environment."""
    everyone = sorted(before.keys() | after.keys())
    changed = [name for name in everyone if before.get(name) != after.get(name)]
    sides = [{name: side[name] for name in changed if name in side} for side in (before, after)]
    changes: list[Change] = []
    if changed:
        judging = Judging(event_type, guards or {}, environment)
        found = collected(_differences(_of(events, changed), judging, sides, samples))
        names = {a.id: a.name for a in event_type.attributes}
        for number, name in enumerate(changed):
            made = changes_of(_publisher(name, event_type), names, list(names), number, found)
            changes += [replace(change, right=Right.PUBLISH) for change in made]
    compared = tuple(_publisher(name, event_type) for name in everyone)
    return Admissions(compared, tuple(changes), _asked(sides) - environment.keys() - (guards or {}).keys())


def _publisher(name: str, event_type: EventType) -> Reader:
    return Reader(name, Principal.parse(name), event_type.key)


def _asked(sides: Sequence[Publishers]) -> frozenset[str]:
    """Return the guards and the facts that some rights ask for."""
    branches = [branch.shape for side in sides for shape, _ in side.values() for branch in shape.branches]
    facts = (node.name for branch in branches for node in walk(branch.when) if isinstance(node, Attribute))
    return frozenset().union(*(branch.guards for branch in branches), (name for name in facts if name[0] != "@"))


def _of(events: DataFrame, publishers: Sequence[str]) -> DataFrame:
    """Return the events of some publishers, with the place of each in the list beside them."""
    kinds = {_WHO: Kind.STRING, _PAIR: Kind.INTEGER}
    places = table(events.sparkSession, kinds, [[name, place] for place, name in enumerate(publishers)])
    return events.join(F.broadcast(places), quoted(SOURCE) == quoted(_WHO)).drop(_WHO)


def _differences(events: DataFrame, judging: Judging, sides: Sequence[Publishers], samples: int) -> DataFrame:
    """Return where what goes in differs (`DIFFERENCES`)."""
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
    """Return the bits of what goes in on one side and not on the other: bit 0 is the event."""
    was, goes = quoted(f"@in{old}"), quoted(f"@in{new}")
    found = [goes & ~was]
    for place in range(attributes):
        before, after = quoted(f"@v{old}_{place}"), quoted(f"@v{new}_{place}")
        found.append(goes & after.isNotNull() & ~(was & before.eqNullSafe(after)))
    parts = [F.when(there, bits(1 << bit % WORD)).otherwise(bits(0)) for bit, there in enumerate(found)]
    return [either(parts[start : start + WORD]) for start in range(0, len(parts), WORD)]
