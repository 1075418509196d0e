"""The status of publishers' rules, by id: as values, or as bytes of a snapshot until they are needed.

    <block>  (<event> (ids <ids>) (due <instant>/<id> …) (revised <ids>) (stated <fnc-p> <fnc-s> <ids>) … <packed>)

A large rule book is usually opened because of a few rules. So a snapshot stores rules by event type, in blocks. A block
lists what must be known about all its rules: their ids, when their periods begin or end, which are in force in another
form than stated, and the demands of those in force. The rules themselves are compressed, and read on first use. Blocks
of event types on which nothing has changed are stored again unchanged.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from penstock.codec.limits import wide
from penstock.codec.sexp import SExp, canonical, parse_canonical
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.model.names import TypeKey
from penstock.moderator.limits import RULE_BLOCK_BYTES
from penstock.moderator.rules.rules import PublishRule
from penstock.moderator.rules.steps import RuleState, RuleStatus
from penstock.trust.validity import ALWAYS

#: the error code for snapshots that differ from what their signers have seen
FALSE: Final = "moderator.book"
#: compression level: blocks are packed at every change, and rarely read
_LEVEL: Final = 1


@dataclass(frozen=True, slots=True)
class RuleBlock:
    """The rules on one event type as a snapshot stores them; ids are sorted."""

    event: TypeKey
    ids: Sequence[str]
    #: when the periods of rules begin or end: `<instant>/<id>`
    due: Sequence[str]
    revised: Sequence[str]
    #: the demands of rules in force on publishers and on subscribers, and the rules' ids
    stated: Sequence[tuple[str, str, Sequence[str]]] = field(repr=False)
    packed: bytes = field(repr=False)

    @classmethod
    def of(cls, event: TypeKey, standings: Mapping[str, RuleState], unread: "Unread | None" = None) -> Self:
        """Return a block of rules on an event type, including rules that were not read since they were stored last."""
        rows = {rule_id: canonical(standing_to_sexp(each)) for rule_id, each in standings.items()}
        due = [f"{at}/{rule_id}" for rule_id, each in standings.items() if (at := _due_at(each)) is not None]
        revised = {rule_id for rule_id, each in standings.items() if is_revised(each)}
        stated: dict[tuple[str, str], list[str]] = {}
        for rule_id, each in standings.items():
            if each.form is not None:
                stated.setdefault((each.form.fnc_p.text, each.form.fnc_s.text), []).append(rule_id)
        if unread is not None:
            block, others = unread.block, unread.ids
            kept = block.rows()
            rows |= {rule_id: kept[rule_id] for rule_id in others}
            due += [each for each in block.due if each.partition("/")[2] in others]
            revised |= others.intersection(block.revised)
            for fnc_p, fnc_s, ids in block.stated:
                if same := others.intersection(ids):
                    stated.setdefault((fnc_p, fnc_s), []).extend(same)
        return cls(
            event,
            sorted(rows),
            sorted(due),
            sorted(revised),
            [(*functions, sorted(ids)) for functions, ids in sorted(stated.items())],
            zlib.compress(canonical(tuple(rows[rule_id] for rule_id in sorted(rows))), _LEVEL),
        )

    def rows(self) -> Mapping[str, bytes]:
        """Return the bytes of all rules, by their ids. Raises `RefusedError` (`moderator.book`)."""
        unpacking = zlib.decompressobj()
        try:
            data = unpacking.decompress(self.packed, RULE_BLOCK_BYTES)
            rows = parse_canonical(data, limits=wide(len(data)))
        except (zlib.error, PenstockError) as error:
            raise false_snapshot("has rules that cannot be read") from error
        every = rows if isinstance(rows, tuple) else ()
        found = [row for row in every if isinstance(row, bytes)]
        if not unpacking.eof or not len(found) == len(every) == len(self.ids):
            raise false_snapshot("has other rules than it lists")
        return dict(zip(self.ids, found, strict=True))


class Unread(NamedTuple):
    """Rules of a block that were neither read nor changed."""

    block: RuleBlock
    ids: set[str]


class Standings(MutableMapping[str, RuleState]):
    """A table of rules; those of blocks are read on first use, which raises as `RuleBlock.rows`."""

    def __init__(self, blocks: Iterable[RuleBlock] = ()) -> None:
        #: the rules that were read or written
        self._read: dict[str, RuleState] = {}
        #: the event type of each rule
        self._events: dict[str, TypeKey] = {}
        self._on: dict[TypeKey, set[str]] = {}
        self._blocks = {block.event: block for block in blocks}
        #: blocks of event types that were read
        self._rows: dict[TypeKey, Mapping[str, bytes]] = {}
        #: event types whose blocks are outdated
        self._changed: set[TypeKey] = set()
        for event, block in self._blocks.items():
            self._events.update(dict.fromkeys(block.ids, event))
            self._on[event] = set(block.ids)

    @classmethod
    def of(cls, standings: Mapping[str, RuleState]) -> "Standings":
        """Return a table of rules that were read."""
        if isinstance(standings, Standings):
            return standings
        table = cls()
        table.update(standings)
        return table

    def __getitem__(self, rule_id: str) -> RuleState:
        found = self._read.get(rule_id)
        if found is None:
            event = self._events[rule_id]
            if event not in self._rows:
                self._rows[event] = self._blocks[event].rows()
            found = self._read[rule_id] = _read(event, rule_id, self._rows[event][rule_id])
        return found

    def __setitem__(self, rule_id: str, standing: RuleState) -> None:
        if rule_id in self._events:
            del self[rule_id]
        event = standing.stated.event
        self._read[rule_id] = standing
        self._events[rule_id] = event
        self._on.setdefault(event, set()).add(rule_id)
        self._changed.add(event)

    def __delitem__(self, rule_id: str) -> None:
        event = self._events.pop(rule_id)
        self._read.pop(rule_id, None)
        self._on[event].discard(rule_id)
        self._changed.add(event)

    def __contains__(self, rule_id: object) -> bool:
        return rule_id in self._events

    def __iter__(self) -> Iterator[str]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    @property
    def read(self) -> int:
        """Return how many rules were read or written."""
        return len(self._read)

    def limited(self) -> Mapping[str, bytes]:
        """Return the rules whose periods can begin or end, by id, and the instants before which nothing is due.

        The instant is known for rules that were not read. Rules that were read may change, so they are always due.
        """
        listed = (each.partition("/") for block in self._blocks.values() for each in block.due)
        found = {rule_id: at.encode() for at, _, rule_id in listed if rule_id in self._events}
        found |= {rule_id: b"" for rule_id, each in self._read.items() if each.stated.validity != ALWAYS}
        return {rule_id: at for rule_id, at in found.items() if not at or rule_id not in self._read}

    def revised(self) -> Mapping[str, RuleState]:
        """Return the rules that are in force in another form than was stated."""
        listed = [rule_id for block in self._blocks.values() for rule_id in block.revised if rule_id in self._events]
        known = [rule_id for rule_id, each in self._read.items() if is_revised(each)]
        return {rule_id: self[rule_id] for rule_id in (*listed, *known) if is_revised(self[rule_id])}

    def form(self, rule_id: str) -> PublishRule:
        """Return a rule as it is in force. Raises `RefusedError` (`moderator.book`) if it is not in force."""
        found = self[rule_id].form
        if found is None:
            raise false_snapshot("lists a rule as in force that is not")
        return found

    def blocks(self) -> Iterator[RuleBlock]:
        """Yield the blocks of all rules; those of changed event types are packed again."""
        for event in sorted(event for event, ids in self._on.items() if ids):
            if event in self._changed or event not in self._blocks:
                self._blocks[event] = self._packed(event)
                self._rows.pop(event, None)
                self._changed.discard(event)
            yield self._blocks[event]

    def _packed(self, event: TypeKey) -> RuleBlock:
        read = {rule_id: self._read[rule_id] for rule_id in self._on[event] if rule_id in self._read}
        others = self._on[event] - read.keys()
        return RuleBlock.of(event, read, Unread(self._blocks[event], others) if others else None)


def is_revised(standing: RuleState) -> bool:
    """Return whether a rule is in force in another form than was stated."""
    return standing.form not in (None, standing.stated)


def standing_to_sexp(standing: RuleState) -> SExp:
    """Return the stored form of a rule's status."""
    form = (standing.form.to_sexp(),) if standing.form is not None and is_revised(standing) else ()
    return (standing.status.encode(), standing.stated.to_sexp(), *form)


def standing_from_sexp(value: SExp) -> RuleState:
    """Read a rule's status. Raises `MalformedError` (`moderator.record`, and errors of rules)."""
    match value:
        case (bytes(status), tuple(stated), *form) if len(form) <= 1 and status.decode("ascii", "replace") in [
            *RuleStatus
        ]:
            rule = PublishRule.from_sexp(stated)
            known = RuleStatus(status.decode())
            in_force = PublishRule.from_sexp(form[0]) if form else rule
            return RuleState(rule, known, in_force if known is RuleStatus.IN_FORCE else None)
    raise MalformedError(
        "moderator.record",
        "a rule must have a status, a stated form, and optionally a form in force",
        hint="the record was not written by this version of Penstock",
    )


def false_snapshot(what: str) -> RefusedError:
    """Return the error for a snapshot that differs from what its signer has seen."""
    return RefusedError(
        FALSE,
        f"a snapshot of this rule book {what}",
        hint="run `penstock moderator verify`; restore a backup whose head you know",
    )


def _due_at(standing: RuleState) -> str | None:
    """Return the next instant at which a rule's period begins or ends; None for never."""
    validity = standing.stated.validity
    if standing.status is RuleStatus.WAITING:
        return validity.begin.decode()
    over = standing.status in (RuleStatus.ENDED, RuleStatus.WITHDRAWN)
    return None if over or validity.not_after is None else validity.end.decode()


def _read(event: TypeKey, rule_id: str, row: bytes) -> RuleState:
    try:
        found = standing_from_sexp(parse_canonical(row, limits=wide(len(row))))
    except PenstockError as error:
        raise false_snapshot("has a rule that cannot be read") from error
    if (found.stated.id, found.stated.event) != (rule_id, event):
        raise false_snapshot("has other rules than it lists")
    return found
