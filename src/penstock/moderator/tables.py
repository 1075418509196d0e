"""The tables of a rule base, but for its tree, and what holds for any change of them."""

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeVar

from penstock.errors import MalformedError, RefusedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.tree import TypeTree
from penstock.moderator.deltas import Change, Delta, Logged, Place, Rooted, Standing, Status, Wish
from penstock.moderator.demands import ImposedDemands
from penstock.moderator.history import History
from penstock.moderator.rule_blocks import Standings

STALE: Final = "moderator.stale"
S = TypeVar("S", Standing, Wish)


@dataclass(frozen=True, slots=True)
class Image:
    """The whole state of a rule base, to be compared with another one, and to resume from."""

    rules: Mapping[str, Standing]
    types: Mapping[TypeKey, TypeKey | None]
    log: Mapping[Place, Logged]
    away: frozenset[Principal]
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    #: the types on which something has changed since the log was last searched, and how many steps led here
    unsettled: frozenset[TypeKey] = field(default=frozenset(), compare=False)
    steps: int = field(default=0, compare=False)


class Tables:
    """How rules stand, what may come back, and who is away."""

    def __init__(self) -> None:
        self.rules = Standings()
        self.wishes: dict[str, Wish] = {}
        self.history = History()
        self.away: set[Principal] = set()
        #: made when it is asked for, since that takes reading rules
        self._imposed: ImposedDemands | None = None

    @classmethod
    def of(cls, image: Image) -> "Tables":
        """Return the tables of an image."""
        tables = cls()
        tables.rules = Standings.of(image.rules)
        tables.wishes.update(image.wishes)
        tables.history.change({place: Change(None, entry) for place, entry in image.log.items()})
        tables.away.update(image.away)
        return tables

    @property
    def imposed(self) -> ImposedDemands:
        """What rules in force demand without having stated it."""
        if self._imposed is None:
            self._imposed = ImposedDemands()
            self._imposed.change({rule_id: Change(None, each) for rule_id, each in self.rules.revised().items()})
        return self._imposed

    def write(self, delta: Delta) -> None:
        """Change what a delta changes, but for the tree."""
        _write(self.rules, delta.rules)
        if self._imposed is not None:
            self._imposed.change(delta.rules)
        _write(self.wishes, delta.wishes)
        self.history.change(delta.log)
        for who, change in delta.away.items():
            (self.away.add if change.after else self.away.discard)(who)
        if any(change.before is not None and change.after is not None for change in delta.types.values()):
            self.history.release_all()
        else:
            # A type that is new, or goes, changes nothing between others.
            self.history.release((*delta.rules, *delta.away))

    def check(self, delta: Delta, tree: TypeTree) -> None:
        """Check that what is to be changed is as a delta says, and may be changed so.

        Raises `RefusedError`: `moderator.stale`, `moderator.in-use`, `moderator.away`; `MalformedError`
        (`moderator.duplicate-id`).
        """
        self._check_before(delta, tree)
        self._check_ids(delta)
        self._check_types(delta)
        self._check_present(delta)

    def check_away(self, delta: Delta) -> None:
        """Check that who leaves by a whole step leaves no rule in force. Raises `RefusedError` (`moderator.away`)."""
        if not any(change.after for change in delta.away.values()):
            return
        away = self._away_after(delta)
        for rule_id, after in self._standing_after(delta):
            if after.status is Status.IN_FORCE and after.stated.rests(away):
                raise RefusedError(
                    "moderator.away", f"rule `{rule_id}` would be in force without whoever it is of", rule=rule_id
                )

    def _check_before(self, delta: Delta, tree: TypeTree) -> None:
        parents = tree.parents
        same = (
            all(self.rules.get(key) == change.before for key, change in delta.rules.items())
            and all(self.wishes.get(key) == change.before for key, change in delta.wishes.items())
            and all(
                (Rooted(parents[key]) if key in parents else None) == change.before
                for key, change in delta.types.items()
            )
            and all(self.history.entries.get(key) == change.before for key, change in delta.log.items())
            and all((key in self.away) is bool(change.before) for key, change in delta.away.items())
        )
        if not same:
            stale("what the change is about is not as it was")

    def _check_ids(self, delta: Delta) -> None:
        """Check that no rule gets the id of one of the other kind."""
        for rule_id in delta.ids:
            rule = delta.rules[rule_id].after if rule_id in delta.rules else self.rules.get(rule_id)
            wish = delta.wishes[rule_id].after if rule_id in delta.wishes else self.wishes.get(rule_id)
            if rule is not None and wish is not None:
                raise duplicate(rule_id)

    def _check_types(self, delta: Delta) -> None:
        """Check that nothing stays behind on types that go: no rule that may come back, and no entry of the log."""
        gone = {event for event, change in delta.types.items() if change.after is None}
        if not gone:
            return
        for rule_id, after in self._standing_after(delta):
            if after.stated.event in gone and after.status is not Status.ENDED:
                raise RefusedError(
                    "moderator.in-use", f"rule `{rule_id}` is about an event type that would go", rule=rule_id
                )
        for event in gone:
            for entry in self.history.on(event):
                if entry.place not in delta.log:
                    raise RefusedError("moderator.in-use", "the log has rules on an event type that would go")

    def _check_present(self, delta: Delta) -> None:
        """Check that no rule comes into force that rests, since those are away whose it is."""
        changed: list[tuple[str, Standing | Wish]] = [*_after({}, delta.rules), *_after({}, delta.wishes)]
        away = self._away_after(delta)
        for rule_id, after in changed if away else ():
            if after.status is Status.IN_FORCE and after.stated.rests(away):
                raise RefusedError(
                    "moderator.away", f"whoever rule `{rule_id}` is of has left", hint="let it come back first"
                )

    def _away_after(self, delta: Delta) -> Collection[Principal]:
        """Return who will be away."""
        if not delta.away:
            return self.away
        return (self.away - delta.away.keys()) | {who for who, change in delta.away.items() if change.after}

    def _standing_after(self, delta: Delta) -> Iterator[tuple[str, Standing | Wish]]:
        """Yield how all rules will stand."""
        yield from _after(self.rules, delta.rules)
        yield from _after(self.wishes, delta.wishes)


def duplicate(rule_id: str) -> MalformedError:
    """Return the error for an id that is taken."""
    return MalformedError(
        "moderator.duplicate-id", f"there is a rule `{rule_id}` already", hint="give the new one another id"
    )


def stale(message: str) -> NoReturn:
    """Refuse a change that was planned on another state. Raises `RefusedError` (`moderator.stale`)."""
    raise RefusedError(STALE, message, hint="plan it again")


def _after(table: Mapping[str, S], changes: Mapping[str, Change[S]]) -> Iterator[tuple[str, S]]:
    for rule_id, standing in table.items():
        if rule_id not in changes:
            yield rule_id, standing
    for rule_id, change in changes.items():
        if change.after is not None:
            yield rule_id, change.after


def _write(table: MutableMapping[str, S], changes: Mapping[str, Change[S]]) -> None:
    for key, change in changes.items():
        if change.after is None:
            del table[key]
        else:
            table[key] = change.after
