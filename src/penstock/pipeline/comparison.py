"""The result of comparing two policies on a history, whichever engine computes it. Nothing here needs Spark.

`ComparedReaders` finds what must be evaluated: pairs of programs. An engine counts on how many events their results
differ (`Found`), and gets a `PolicyComparison` for that. `whatif_html` is a comparison as a page.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape
from typing import Final, Literal, TypeAlias

from penstock.errors import MalformedError, did_you_mean, printable
from penstock.guard.restriction import Restriction
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Petnames, Principal
from penstock.model.types import EventType
from penstock.pipeline import pages
from penstock.pipeline.enforce.policy import PipelinePolicy, Program, Subscriber, answered
from penstock.pipeline.event_columns import attributes_of
from penstock.trust.capabilities import Right

FailOn: TypeAlias = Literal["gain", "loss", "any"]


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

    def _rows(self) -> list[tuple[str, ...]]:
        """Return the changes as the lines of a table, with its head; what does not print is replaced."""
        rows: list[tuple[str, ...]] = [("who", "right", "type", "attribute", "gains", "loses", "such as")]
        rows += [
            (
                change.reader.name,
                str(change.right),
                change.reader.type.name,
                what,
                f"{change.gained:,}",
                f"{change.lost:,}",
                ", ".join((change.gained_samples or change.lost_samples)[:3]),
            )
            for change, what in listed(self.changes)
        ]
        return [tuple(map(printable, row)) for row in rows]

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*(lines if self.changes else ["nothing changes"]), *self.remarks(), self._events])

    def _repr_html_(self) -> str:
        """Return the table, for notebooks."""
        head, *rows = (tuple(map(escape, row)) for row in self._rows())
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        table = f"<table><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>{body}</table>"
        remarks = "".join(f"<p>{escape(one)}</p>" for one in (*self.remarks(), self._events))
        return f"{table if rows else '<p>nothing changes</p>'}{remarks}"

    def remarks(self) -> list[str]:
        """Return sentences about what the table does not say: what could not be compared, and why."""
        found = []
        if self.unknown:
            found.append(
                f"the history does not tell: {', '.join(self.unknown)}; rights that ask for it count as not given"
            )
        found += closed_remarks(self.closed, self.events)
        if self.passed_over:
            others = ", ".join(f"{reader.name} ({reader.type.name})" for reader in self.passed_over)
            found.append(f"not compared, because the history is of other types: {others}")
        if self.unknown_type:
            events = _counted(self.unknown_type)
            found.append(f"{events} of types that neither policy has: nobody is given those")
        return [printable(one) for one in found]

    @property
    def _events(self) -> str:
        return f"{_counted(self.events)} under two policies"

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


def closed_remarks(names: Iterable[str], events: int) -> list[str]:
    """Return sentences about attributes of a sealed log that are empty."""
    return [f"no key for {name}: {'all its values are empty' if events else 'no event was opened'}" for name in names]


def _counted(events: int) -> str:
    return f"{events:,} event{'' if events == 1 else 's'}"


def fails_on(comparison: PolicyComparison, what: FailOn) -> bool:
    """Return whether a forbidden change happens: for checks before a policy is changed.

    Raises `MalformedError` (`whatif.fail-on`) for anything but `gain`, `loss` and `any`.
    """
    found = {"gain": comparison.gains, "loss": comparison.losses, "any": comparison.changes}
    if what not in found:
        hint = did_you_mean(what, found, "choose gain, loss or any")
        raise MalformedError("whatif.fail-on", f"`{what}` is nothing to fail on", hint=hint)
    return bool(found[what])


Found: TypeAlias = dict[tuple[int, int, bool], tuple[int, tuple[str, ...]]]
"""By pair, bit, and whether it is gained: on how many events, and some of their ids."""


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
# What is compared.


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


def _names(subscriptions: Iterable[Subscriber]) -> Mapping[AttributeId, str]:
    return {a.id: a.name for a in attributes_of(s.type.event_type for s in subscriptions)}


_View: TypeAlias = tuple[str, Restriction, tuple[type, ...], str]  # version, restriction, kinds in it, own selector
_Side: TypeAlias = frozenset[_View]
ProgramPair: TypeAlias = tuple[tuple[Program, ...], tuple[Program, ...]]
"""The programs of a reader under two policies. It sees the events of all programs of a side."""


class ComparedReaders:
    """The readers of a history of one type, and the pairs of programs whose results can differ.

    `types` are the versions of that type, `samples` is the number of ids that a change names. `environment` has the
    names of what the history tells about each event, `guards` those whose results are known. Raises `MalformedError`
    (`whatif.types`, `whatif.samples`), and for a policy that cannot be enforced `SelectorError` and `RefusedError`
    (`guard.online-test`).
    """

    def __init__(  # noqa: PLR0913  # two policies on a history, and how
        self,
        before: PipelinePolicy,
        after: PipelinePolicy,
        types: Sequence[EventType],
        samples: int,
        *,
        environment: Collection[str],
        guards: Collection[str] = (),
    ) -> None:
        line = _line(types, samples)
        self._key, self._types = types[0].key, types
        self._environment, self._guards = frozenset(environment), frozenset(guards)
        self._views: dict[_View, Program] = {}
        self._unknown: set[str] = set()
        self._revisions = before.revision, after.revision
        self._sides = _readers(before), _readers(after)
        old, new = self._sides
        everyone = sorted(old.keys() | new.keys())
        self._readers = tuple(reader for reader in everyone if reader.type in line)
        self._passed_over = tuple(reader for reader in everyone if reader.type not in line)
        self._pairs: dict[tuple[_Side, _Side], list[AffectedReader]] = {}
        for reader in self._readers:
            pair = self._side(before, old.get(reader, ())), self._side(after, new.get(reader, ()))
            if pair[0] != pair[1]:
                self._pairs.setdefault(pair, []).append(reader)

    @property
    def pairs(self) -> list[ProgramPair]:
        """The pairs of programs that are different."""
        return [(self._programs(before), self._programs(after)) for before, after in self._pairs]

    def comparison(self, events: int, found: Found) -> PolicyComparison:
        """Return the result: the length of the history, and what differs under the number of each pair."""
        old, new = self._sides
        ids = [a.id for a in attributes_of(self._types)]
        changes = [
            change
            for number, readers in enumerate(self._pairs.values())
            for reader in readers
            for change in changes_of(reader, _names((*new.get(reader, ()), *old.get(reader, ()))), ids, number, found)
        ]
        return PolicyComparison(
            *self._revisions,
            events,
            self._readers,
            joined(changes),
            self._passed_over,
            tuple(sorted(self._unknown)),
        )

    def _side(self, policy: PipelinePolicy, subscriptions: Iterable[Subscriber]) -> _Side:
        """Return a reader's views under one policy; none without a subscription."""
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
                self._unknown |= branch.guards - self._guards
                self._unknown |= branch.when.condition.attributes - self._environment
            s.selector.check(s.type.event_type.schema)
            self._views[view] = Program(len(self._views), restriction, s.type.event_type, s.selector, (s.name,))
        return view

    def _programs(self, side: _Side) -> tuple[Program, ...]:
        found = sorted((self._views[view] for view in side), key=lambda program: program.number)
        return tuple(program for program in found if program.restriction.branches)


@dataclass(frozen=True, slots=True)
class Admissions:
    """The changes for publishers of one version, all compared publishers, and what the history does not show."""

    publishers: tuple[AffectedReader, ...]
    changes: tuple[VisibilityChange, ...]
    unknown: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        event_type: EventType,
        everyone: Iterable[str],
        changed: Iterable[str],
        found: Found,
        unknown: frozenset[str],
    ) -> "Admissions":
        """Return what was found under the places of changed publishers, of which everyone is a principal's name."""
        names = {a.id: a.name for a in event_type.attributes}
        changes = [
            replace(change, right=Right.PUBLISH)
            for number, name in enumerate(changed)
            for change in changes_of(_publisher(name, event_type), names, list(names), number, found)
        ]
        return cls(tuple(_publisher(name, event_type) for name in everyone), tuple(changes), unknown)

    def added_to(self, comparison: PolicyComparison) -> PolicyComparison:
        """Return a comparison that includes these publishers."""
        return replace(
            comparison,
            publishers=tuple(sorted({*comparison.publishers, *self.publishers})),
            changes=joined((*comparison.changes, *self.changes)),
            unknown=tuple(sorted({*comparison.unknown, *self.unknown})),
        )


def _publisher(name: str, event_type: EventType) -> AffectedReader:
    return AffectedReader(name, Principal.parse(name), event_type.key)


# ----------------------------------------------------------------------------------------------------------------------
# A comparison as a page.


def whatif_html(
    comparison: PolicyComparison,
    *,
    names: Petnames | None = None,
    title: str = "What changes",
    at: datetime | None = None,
) -> str:
    """Return a comparison of two policies as a page; `names` is for display, `at` when it was made.

    Raises `MalformedError` (`value.zone`, `value.range`) when `at` is not an instant.
    """
    shown = pages.PrincipalNames(names)
    sides = {
        right: replace(comparison, changes=tuple(c for c in comparison.changes if c.right is right))
        for right in _SECTIONS
    }
    seen = sides[Right.SUBSCRIBE]
    facts = {
        "events in the history": comparison.events,
        "readers compared": len(comparison.readers),
        "readers who gain": len({change.reader for change in seen.gains}),
        "readers who lose": len({change.reader for change in seen.losses}),
    }
    if comparison.publishers:
        facts["publishers compared"] = len(comparison.publishers)
    parts = [_changes(right, part.changes, shown) for right, part in sides.items() if part.changes]
    if not comparison.changes:
        text = "On this history every reader sees the same under both policies, and every publisher may publish it."
        parts.append(pages.section("Nothing changes", text))
    if comparison.unknown:
        text = f"The history does not tell: {', '.join(comparison.unknown)}. Rights that ask for it count as not given."
        parts.append(pages.section("What is not known", text))
    if comparison.closed:
        text = f"No key is held for: {', '.join(comparison.closed)}. All their values count as empty."
        parts.append(pages.section("What stays closed", text))
    if comparison.passed_over:
        other = ", ".join(f"{reader.name} ({reader.type.name})" for reader in comparison.passed_over)
        parts.append(pages.section("Not compared", f"Subscribers to types that this history does not hold: {other}."))
    if comparison.unknown_type:
        text = f"{comparison.unknown_type:,} events are of types that neither policy has: nobody is given those."
        parts.append(pages.section("Of unknown types", text))
    footer = f"{pages.made(at)}Policies: before {comparison.before}, after {comparison.after}."
    return pages.page(title, f"{comparison.events:,} events under two policies", facts, parts, footer)


#: the title and the text of a section, and who it is about
_SECTIONS: Final = {
    Right.SUBSCRIBE: (
        "Who gains and who loses what",
        "On how many events a reader gets to see what it did not see before, and the other way round.",
        "subscriber",
    ),
    Right.PUBLISH: (
        "Who may publish what",
        "On how many events a publisher may put in what it could not before, and the other way round.",
        "publisher",
    ),
}


def _changes(right: Right, changes: Sequence[VisibilityChange], names: pages.PrincipalNames) -> str:
    title, text, who = _SECTIONS[right]

    def name(change: VisibilityChange) -> str:
        known = change.reader.name
        return names.principal(known) if change.right is Right.PUBLISH else known

    shown = listed(changes)
    bands: list[pages.FlowBand] = []
    for change, what in shown:
        ends = (name(change), change.reader.type.name)
        sender, receiver = ends if right is Right.PUBLISH else reversed(ends)
        sides = ((f"{what} +{change.gained:,}", change.gained, "a"), (f"{what} −{change.lost:,}", change.lost, "b"))
        bands += [pages.FlowBand(sender, receiver, label, events, style) for label, events, style in sides if events]
    bands.sort(key=lambda band: -band.amount)
    rows = [
        (
            name(change),
            names.principal(str(change.reader.principal)),
            change.reader.type.name,
            what,
            change.gained,
            change.lost,
            ", ".join((*change.gained_samples, *change.lost_samples)),
        )
        for change, what in shown
    ]
    columns = (who, "principal", "type", "what", "gained", "lost", "for example")
    return pages.section(
        title,
        text,
        pages.flows("On how many events something is gained or lost", bands)
        + pages.legend(("a", "gained"), ("b", "lost")),
        pages.table("Every change, with some of the events that it concerns", columns, rows),
    )
