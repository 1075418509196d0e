"""Restrictions: the form that every source of authority produces.

A restriction is a set of branches. Per event the visible attributes are the union over the branches that hold; where
none holds the event is not published, or not delivered. Branches are never merged unless they are equal, because
({a} where X) ∪ ({b} where Y) is not ({a, b} where X or Y). Intersection distributes over branches and only narrows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, TypeVar

from penstock.errors import MalformedError, RefusedError
from penstock.model.names import AttributeId, TypeKey
from penstock.model.types import EventType
from penstock.model.values import Value, kind_of
from penstock.selector import ALWAYS as TRUE
from penstock.selector import NEVER, Selector, conjunction, disjunction, equals
from penstock.trust.capabilities import Right
from penstock.trust.tags import ANY, Tag, intersect, matches
from penstock.trust.validity import ALWAYS, Validity

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TypeScope:
    """The event types that a branch covers: those whose `(owner name version)` matches, within all named sub-trees."""

    pattern: Tag = ANY
    within: frozenset[TypeKey] = frozenset()

    def covers(self, event_type: EventType) -> bool:
        """Return whether an event type is covered."""
        name = event_type.name
        request = (str(name.owner).encode(), name.name.encode(), name.version.encode())
        line = (event_type.key, *event_type.ancestors)
        return matches(request, self.pattern) and all(root in line for root in self.within)

    def intersect(self, other: "TypeScope") -> "TypeScope | None":
        """Return the types that both cover, or None if there cannot be any."""
        pattern = intersect(self.pattern, other.pattern)
        return None if pattern is None else TypeScope(pattern, self.within | other.within)


@dataclass(frozen=True, slots=True)
class When:
    """A validity, and a dynamic condition over the environment that is evaluated for each event."""

    validity: Validity = ALWAYS
    condition: Selector = TRUE

    def intersect(self, other: "When") -> "When | None":
        """Return when both are satisfied, or None if they never are."""
        validity = self.validity.intersect(other.validity)
        return None if validity is None else When(validity, conjunction(self.condition, other.condition))


ANYTIME: Final = When()


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One way in which something is allowed.

    `attributes` is None if all are. A forced value filters on subscribe and substitutes on publish, where it can
    only be set if its attribute is listed too. `where` is a selector over attribute ids that can be pushed towards
    publishers (class 2 of the papers); `guards` name predicates that only the local broker can evaluate (class 1).
    `only` names the types whose events are meant, where those are not the type and all that extends it. `because` names
    what the branch rests on. Raises `MalformedError` (`guard.forced-twice`).
    """

    action: Right
    types: TypeScope = TypeScope()
    attributes: frozenset[AttributeId] | None = None
    forced: tuple[tuple[AttributeId, Value], ...] = ()
    where: Selector = TRUE
    guards: frozenset[str] = frozenset()
    when: When = ANYTIME
    only: frozenset[TypeKey] | None = None
    #: whether a subscriber may see who published
    source: bool = True
    because: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if len({attribute for attribute, _ in self.forced}) != len(self.forced):
            raise MalformedError("guard.forced-twice", "a branch forces one attribute to two values")

    def shows(self, attribute: AttributeId) -> bool:
        """Return whether the branch lists an attribute."""
        return self.attributes is None or attribute in self.attributes

    @property
    def unconditional(self) -> bool:
        """Whether only dates are left to check, and no condition on the event or the environment."""
        asks = self.where != TRUE or self.when.condition != TRUE or self.forced or self.guards
        return not asks and not self.when.validity.online

    def holds_where(self) -> Selector:
        """Return the selector with the forced values in it: the events that the branch is about."""
        return conjunction(*(equals(attribute, value) for attribute, value in self.forced), self.where)

    def intersect(self, other: "Branch") -> "Branch | None":
        """Return what both permit, or None if that is nothing."""
        types = self.types.intersect(other.types)
        when = self.when.intersect(other.when)
        forced = _merge(self.forced, other.forced)
        only = _common(self.only, other.only)
        if self.action is not other.action or types is None or when is None or forced is None:
            return None
        if only is not None and not only:
            return None
        return Branch(
            action=self.action,
            types=types,
            attributes=_common(self.attributes, other.attributes),
            forced=forced,
            where=conjunction(self.where, other.where),
            guards=self.guards | other.guards,
            when=when,
            only=only,
            source=self.source and other.source,
            because=tuple(dict.fromkeys(self.because + other.because)),
        )

    def as_dict(self, names: Mapping[AttributeId, str] | None = None) -> dict[str, object]:
        """Return the branch as plain data, with attribute names where they are known."""
        show: dict[str, str] = {str(attribute): name for attribute, name in (names or {}).items()}
        plain: dict[str, object] = {
            "action": str(self.action),
            "attributes": "*" if self.attributes is None else sorted(show.get(a, str(a)) for a in self.attributes),
        }
        if self.forced:
            plain["forced"] = {show.get(attribute, str(attribute)): _plain(value) for attribute, value in self.forced}
        if self.where != TRUE:
            plain["where"] = self.where.rename(show).text
        if self.guards:
            plain["guards"] = sorted(self.guards)
        if self.only is not None:
            plain["only"] = sorted(key.name for key in self.only)
        if not self.source:
            plain["source"] = "hidden"
        if self.when.condition != TRUE:
            plain["when"] = self.when.condition.text
        if self.when.validity.not_after is not None:
            plain["until"] = self.when.validity.not_after.decode()
        return plain | {"because": list(self.because)}


def force(values: Mapping[AttributeId, Value]) -> tuple[tuple[AttributeId, Value], ...]:
    """Return forced values in the order in which branches keep them, so that equal ones are equal."""
    return tuple(sorted(values.items(), key=lambda pair: pair[0]))


def check_forced(branch: Branch, event_type: EventType) -> None:
    """Check that a branch's forced values fit the type; ignore attributes that the type lacks.

    A publisher that may not set an attribute may not have it forced either, or a domain could write through the values
    that it forces on its own clients. Raises `MalformedError` (`guard.forced`) for a value that does not fit,
    `RefusedError` (`guard.forced-unlisted`).
    """
    for attribute, value in branch.forced:
        known = event_type.by_id.get(attribute)
        if known is None:
            continue
        try:
            known.spec.check(value)
        except MalformedError as error:
            raise MalformedError("guard.forced", f"a value forced on `{known.name}` does not fit") from error
        if branch.action is Right.PUBLISH and not branch.shows(attribute):
            raise RefusedError(
                "guard.forced-unlisted",
                f"a value is forced on `{known.name}`, which may not be published",
                hint="list the attribute in every certificate of the chain",
            )


def _plain(value: Value) -> Value:
    return value.isoformat() if isinstance(value, datetime) else value


def _common(one: frozenset[_T] | None, other: frozenset[_T] | None) -> frozenset[_T] | None:
    """Return the intersection; None means everything."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _merge(
    one: tuple[tuple[AttributeId, Value], ...], other: tuple[tuple[AttributeId, Value], ...]
) -> tuple[tuple[AttributeId, Value], ...] | None:
    """Return all forced values, or None if two of them differ."""
    merged = dict(one)
    for attribute, value in other:
        known = merged.setdefault(attribute, value)
        if known != value or kind_of(known) is not kind_of(value):
            return None
    return force(merged)


@dataclass(frozen=True, slots=True)
class Restriction:
    """A set of branches, any of which permits. Without branches nothing is permitted."""

    branches: tuple[Branch, ...] = ()

    @classmethod
    def of(cls, branches: Iterable[Branch]) -> "Restriction":
        """Collect branches. Equal branches become one, with the credentials of all of them."""
        kept: dict[tuple[Branch, tuple[type, ...]], Branch] = {}
        for branch in branches:
            # In Python 1, 1.0 and True are equal; as forced values they are three.
            key = branch, tuple(type(value) for _, value in branch.forced)
            known = kept.get(key)
            if known is None:
                kept[key] = branch
            else:
                kept[key] = replace(known, because=tuple(dict.fromkeys(known.because + branch.because)))
        return cls(tuple(kept.values()))

    def __or__(self, other: "Restriction") -> "Restriction":
        """Return what either permits."""
        return Restriction.of((*self.branches, *other.branches))

    def __and__(self, other: "Restriction") -> "Restriction":
        """Return what both permit."""
        pairs = (one.intersect(two) for one in self.branches for two in other.branches)
        return Restriction.of(branch for branch in pairs if branch is not None)

    def for_type(self, event_type: EventType, action: Right) -> "Restriction":
        """Return the branches that speak about an event type and an action."""
        return Restriction(tuple(b for b in self.branches if b.action is action and b.types.covers(event_type)))

    @property
    def because(self) -> tuple[str, ...]:
        """The credentials that any branch depends on."""
        return tuple(dict.fromkeys(credential for branch in self.branches for credential in branch.because))

    @property
    def source(self) -> bool:
        """Whether a subscriber may see who published: no branch hides it, whichever of them applies."""
        return all(branch.source for branch in self.branches)

    def formula(self, attribute: AttributeId | None = None) -> Selector:
        """Return a selector that is TRUE on the events that are shown, or on which one attribute is.

        It is exact for restrictions without guards and dynamic conditions, and otherwise an over-approximation:
        what it excludes is never shown. For analysis; `enforce` does not use it.
        """
        conditions = [b.holds_where() for b in self.branches if attribute is None or b.shows(attribute)]
        return disjunction(*conditions) if conditions else NEVER

    def as_dict(self, event_type: EventType | None = None) -> dict[str, object]:
        """Return the restriction as plain data."""
        names = {a.id: a.name for a in event_type.attributes} if event_type else {}
        return {"branches": [branch.as_dict(names) for branch in self.branches]}


NOTHING: Final = Restriction()
