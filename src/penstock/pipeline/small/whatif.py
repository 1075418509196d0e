"""What-if on a small local history: both policies are asked about each event, by `penstock.guard` itself."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from pathlib import Path
from typing import Final, TypeAlias

from penstock.guard import Delivery, Publication, Rules
from penstock.model.events import TransitEvent
from penstock.model.names import AttributeId
from penstock.model.types import EventType
from penstock.model.values import Scalar
from penstock.pipeline.comparison import Admissions, ComparedReaders, Found, PolicyComparison, check_environments
from penstock.pipeline.enforce.policy import PipelinePolicy, known_types
from penstock.pipeline.event_columns import attributes_of
from penstock.pipeline.small.folders import NotSmallError
from penstock.pipeline.small.jobs import SMALL_WORK, StoredEvent, StoredPublications, environment_at, read_events

_NOT_TOLD: Final = "rate"
"""The part of an environment that no history tells: how often somebody published."""
_Ids: TypeAlias = defaultdict[tuple[int, int, bool], list[str]]


@dataclass(frozen=True, slots=True)
class SmallWhatIf:
    """The comparison of `whatif`, on the events that another job wrote.

    Raises `MalformedError` (`whatif.environment`) if the policies have different zones or facts.
    """

    path: Path
    before: PipelinePolicy
    after: PipelinePolicy
    samples: int

    def __post_init__(self) -> None:
        check_environments(self.before, self.after)

    def compare(self) -> PolicyComparison:
        """Compare. Raises as `read_events` and `ComparedReaders`."""
        types = known_types(self.after, self.before)
        if not types:
            # Spark says what is wrong.
            raise NotSmallError("no policy has a type")
        return compare_events(read_events(self.path, types), self.before, self.after, types, self.samples)


def compare_events(
    events: Sequence[StoredEvent],
    before: PipelinePolicy,
    after: PipelinePolicy,
    types: Sequence[EventType],
    samples: int,
) -> PolicyComparison:
    """Compare two policies on events: for readers each type by itself, and for publishers each version.

    Raises as `ComparedReaders`, and `NotSmallError`.
    """
    versions: dict[str, list[StoredEvent]] = {str(event_type.name): [] for event_type in types}
    unknown: list[StoredEvent] = []
    for event in events:
        versions.get(event.type, unknown).append(event)
    parts = []
    for key in dict.fromkeys(event_type.key for event_type in types):
        own = [event_type for event_type in types if event_type.key == key]
        history = [(one, event) for one in own for event in versions[str(one.name)]]
        parts.append(_compare_readers(history, before, after, own, samples))
    found = sum(parts[1:], start=parts[0])
    for event_type in types:
        found = _compare_publishers(versions[str(event_type.name)], before, after, event_type, samples).added_to(found)
    return replace(found, unknown_type=len(unknown))


def _told(policy: PipelinePolicy) -> frozenset[str]:
    return frozenset(policy.environment) - {_NOT_TOLD}


def _counted(ids: _Ids, samples: int) -> Found:
    return {key: (len(own), tuple(sorted({*nsmallest(samples, own)}))) for key, own in ids.items()}


# ----------------------------------------------------------------------------------------------------------------------
# What readers see.


def _compare_readers(
    history: Sequence[tuple[EventType, StoredEvent]],
    before: PipelinePolicy,
    after: PipelinePolicy,
    types: Sequence[EventType],
    samples: int,
) -> PolicyComparison:
    compared = ComparedReaders(before, after, types, samples, environment=_told(after))
    pairs = compared.pairs
    if len(history) * sum(len(side) for pair in pairs for side in pair) > SMALL_WORK:
        raise NotSmallError("there are many readers with different rights")
    rules = Rules(environment=after.environment)
    asked = [
        [[Delivery(one.restriction, one.event_type, one.selector, rules) for one in side] for side in pair]
        for pair in pairs
    ]
    bits = {attribute.id: bit for bit, attribute in enumerate(attributes_of(types), start=1)}
    ids: _Ids = defaultdict(list)
    for version, event in history:
        values = {name: value for name, value in event.values.items() if name in bits}
        transit = TransitEvent(version.key, version.ancestors, values, event.id, event.time)
        now = environment_at(after, event.time)
        for number, sides in enumerate(asked):
            old, new = (_seen(side, transit, now, bits) for side in sides)
            for bit in old ^ new:
                ids[number, bit, bit in new].append(event.id)
    return compared.comparison(len(history), _counted(ids, samples))


def _seen(
    deliveries: Sequence[Delivery], event: TransitEvent, now: Mapping[str, Scalar], bits: Mapping[AttributeId, int]
) -> set[int]:
    """Return the bits of what a reader receives: 0 for the event, and one for each attribute that has a value."""
    found: set[int] = set()
    for deliver in deliveries:
        seen = deliver(event, now)
        if seen is not None:
            known = seen.type.by_name
            found |= {0, *(bits[known[name].id] for name, value in seen.values.items() if value is not None)}
    return found


# ----------------------------------------------------------------------------------------------------------------------
# What publishers may put in.


def _compare_publishers(
    events: Sequence[StoredEvent],
    before: PipelinePolicy,
    after: PipelinePolicy,
    event_type: EventType,
    samples: int,
) -> Admissions:
    old, new = (_PublishingSide(policy, event_type) for policy in (before, after))
    everyone = sorted(old.allowed.keys() | new.allowed.keys())
    changed = [name for name in everyone if old.form(name) != new.form(name)]
    places = {name: place for place, name in enumerate(changed)}
    ids: _Ids = defaultdict(list)
    for event in events:
        place = places.get(event.source)
        if place is None:
            continue
        was, goes = old.admitted(event), new.admitted(event)
        for less, more, gained in ((was, goes, True), (goes, was, False)):
            if more is None:
                continue
            if less is None:
                ids[place, 0, gained].append(event.id)
            for bit, attribute in enumerate(event_type.attributes, start=1):
                value = more.get(attribute.id)
                if value is not None and (less is None or not _same(value, less.get(attribute.id))):
                    ids[place, bit, gained].append(event.id)
    asked = old.asked(changed) | new.asked(changed)
    return Admissions.of(event_type, everyone, changed, _counted(ids, samples), asked - _told(after))


def _same(one: Scalar, other: Scalar) -> bool:
    """Return whether two values are the same. A NaN is the same as another."""
    return one == other or (one != one and other != other)  # noqa: PLR0124  # NaN is the value unequal to itself


class _PublishingSide:
    """What publishers may put in of one version, under one policy; nothing if the policy does not have it."""

    def __init__(self, policy: PipelinePolicy, event_type: EventType) -> None:
        self._verified = next((one for one in policy.types if one.event_type.name == event_type.name), None)
        if self._verified is not None and self._verified.event_type != event_type:
            raise NotSmallError("the policies have different definitions of one version")
        self._publications = StoredPublications(policy)
        self.allowed: Mapping[str, Publication] = (
            {} if self._verified is None else self._publications.allowed(self._verified)
        )

    def form(self, name: str) -> object:
        """Return the part of a publisher's rights on which admission depends; None if it has none."""
        known = self.allowed.get(name)
        return (
            None
            if known is None
            else [
                (
                    forced,
                    [type(value) for _, value in forced],
                    [(b.attributes, b.where, b.guards, b.when) for b in branches],
                )
                for forced, branches in known.groups
            ]
        )

    def asked(self, names: Sequence[str]) -> frozenset[str]:
        """Return the guards and the facts that the rights of some publishers ask for."""
        groups = (group for name in names if name in self.allowed for group in self.allowed[name].groups)
        return frozenset(
            asked for _, branches in groups for b in branches for asked in (*b.guards, *b.when.condition.attributes)
        )

    def admitted(self, event: StoredEvent) -> Mapping[str, Scalar] | None:
        """Return the values with which an event is admitted, by attribute id; None if it is refused."""
        found = None if self._verified is None else self._publications.admit(event, self._verified)
        return found.values if isinstance(found, TransitEvent) else None
