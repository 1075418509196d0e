"""Random types in several versions, restrictions over them, events of them, and environments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

from hypothesis import strategies as st

from penstock.guard import Branch, Restriction, TypeScope, When, environment
from penstock.guard.restriction import force
from penstock.model import (
    AttributeDefinition,
    AttributeId,
    AttributeSpec,
    Enumerated,
    Event,
    EventType,
    Kind,
    Principal,
    Ranged,
    Scalar,
    TransitEvent,
    TypeDefinition,
    TypeName,
)
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Schema, Value
from penstock.selector import ALWAYS, Selector, conjunction, disjunction, negation, parse
from penstock.selector.ast import write_name, write_value
from penstock.trust.capabilities import Right
from penstock.trust.validity import Validity

OWNER, FOREIGN = Principal(b"\1" * 32), Principal(b"\2" * 32)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
INF, NAN = float("inf"), float("nan")

# Few values, so that equality happens; the edges among them.
POOL: dict[Kind, list[Value]] = {
    Kind.STRING: ["a", "ab", "", "é", "\U0001f697", "AE05 XYZ"],
    Kind.INTEGER: [0, 1, -1, 3, INTEGER_MAX, INTEGER_MIN],
    Kind.FLOAT: [0.0, 1.0, -1.5, 1e308, INF, -INF, NAN],
    Kind.BOOLEAN: [True, False],
    Kind.TIMESTAMP: [
        NOON,
        NOON + timedelta(hours=1),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
    ],
}
HOSTILE: list[object] = [1, True, 1.0, "1", "\ud800", INTEGER_MAX + 1, NAN, ["a"], b"a", NOON.replace(tzinfo=None)]
ZONED = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))

SPECS = st.sampled_from(
    [AttributeSpec(kind) for kind in Kind]
    + [
        AttributeSpec(Kind.STRING, Enumerated(frozenset({"a", "é"}))),
        AttributeSpec(Kind.INTEGER, Ranged(-1, 3)),
        AttributeSpec(Kind.FLOAT, Ranged(-2.0, INF)),
        AttributeSpec(Kind.TIMESTAMP, Ranged(NOON, NOON + timedelta(days=1))),
    ]
)


def fits(spec: AttributeSpec, value: Value) -> bool:
    return spec.domain is None or spec.domain.contains(value)


@cache  # to make a strategy takes longer than to draw from it
def values(spec: AttributeSpec, *, null: bool = True) -> st.SearchStrategy[Scalar]:
    known = st.sampled_from([value for value in POOL[spec.kind] if fits(spec, value)])
    return st.one_of(known, known, st.none()) if null else known


@cache
def comparable(spec: AttributeSpec) -> st.SearchStrategy[Value]:
    """Values that equal themselves."""
    return st.sampled_from([value for value in POOL[spec.kind] if fits(spec, value) and value == value])  # noqa: PLR0124  # NaN does not


@dataclass(frozen=True)
class Family:
    """A type in all its versions, and the type that it extends, if any. `ids` has every attribute of all of them."""

    versions: tuple[EventType, ...]
    parent: EventType | None
    ids: Mapping[AttributeId, AttributeSpec]

    @property
    def types(self) -> list[EventType]:
        return [*self.versions, *([self.parent] if self.parent else [])]


@cache
def _attributes(prefix: str, low: int, high: int) -> st.SearchStrategy[tuple[AttributeDefinition, ...]]:
    return st.lists(SPECS, min_size=low, max_size=high).map(
        lambda specs: tuple(AttributeDefinition(f"{prefix}{i}", str(i), spec) for i, spec in enumerate(specs))
    )


CHANGES = st.sampled_from(["rename", "remove", "add", "retype"])


@st.composite
def families(draw: st.DrawFn) -> Family:
    """Draw a type, often a sub-type, often of another owner, in up to three versions."""
    parent = None
    if draw(st.booleans()):
        parent = EventType.of(TypeDefinition(TypeName(OWNER, "Base"), draw(_attributes("p", 1, 2))))
    owner = draw(st.sampled_from([OWNER, FOREIGN])) if parent else OWNER
    extends = parent.name if parent else None
    definition = TypeDefinition(TypeName(owner, "Thing"), draw(_attributes("a", 2, 4)), extends)
    versions = [definition]
    for number in range(1, draw(st.integers(1, 3))):
        name = draw(st.sampled_from(definition.attributes)).name
        version, fresh = str(number), f"n{number}"
        match draw(CHANGES):
            case "rename":
                definition = definition.rename(name, fresh, version=version)
            case "remove" if len(definition.attributes) > 1:
                definition = definition.remove(name, version=version)
            case "retype":
                definition = definition.retype(name, fresh, draw(SPECS), version=version)
            case _:
                definition = definition.add(fresh, fresh, draw(SPECS), version=version)
        versions.append(definition)
    resolved = tuple(EventType.of(version, parent) for version in versions)
    ids = {a.id: a.spec for event_type in resolved for a in event_type.attributes}
    ids[AttributeId(FOREIGN, "Elsewhere", "0")] = AttributeSpec(Kind.STRING)
    return Family(resolved, parent, MappingProxyType(ids))


@lru_cache(maxsize=4096, typed=True)  # parsing is most of the time of a test
def _atom(name: str, spec: AttributeSpec, value: Value, shape: int) -> Selector:
    x, kind = write_name(name), spec.kind
    if isinstance(value, float) and value in (INF, -INF):
        value = 1.0
    v = write_value(value)
    shapes = [f"{x} = {v}", f"{x} <> {v}", f"{x} IS NULL", f"{x} IS NOT NULL", f"{x} IN ({v}, NULL)"]
    match kind:
        case Kind.BOOLEAN:
            shapes += [x]
        case Kind.STRING:
            shapes += [f"{x} LIKE 'a%'", f"{x} || 'b' > {v}"]
        case Kind.INTEGER | Kind.FLOAT:
            # Division by zero, overflow and NaN lie within reach of the values.
            shapes += [f"1 / {x} > 0", f"{x} + 1 > {x}", f"{x} * 2 <= {v}", f"{x} BETWEEN -1 AND 3"]
        case Kind.TIMESTAMP:
            shapes += [f"{x} <= {v}"]
    return parse(shapes[shape % len(shapes)])


JUNCTIONS = st.sampled_from([conjunction, disjunction])


@st.composite
def selectors(draw: st.DrawFn, schema: Schema) -> Selector:
    """Draw a selector over some attributes that has every outcome within reach: TRUE, FALSE, NULL, an error."""
    names = st.sampled_from(sorted(schema))
    parts: list[Selector] = []
    for _ in range(draw(st.integers(1, 2))):
        name = draw(names)
        atom = _atom(name, schema[name], draw(comparable(schema[name])), draw(st.integers(0, 19)))
        parts.append(negation(atom) if draw(st.booleans()) else atom)
    return draw(JUNCTIONS)(*parts)


def _raise(*_: object) -> bool:
    raise RuntimeError("a guard that fails")


GUARDS: dict[str, Callable[..., Any]] = {
    "yes": lambda *_: True,
    "no": lambda *_: False,
    "none": lambda *_: None,
    "one": lambda *_: 1,
    "raises": _raise,
    "few": lambda row, _env: len(row) < 3,
    "picky": lambda row, _env: row["no such attribute"] == 1,
}
"""What guards may answer. `unheard-of` is not among them."""

VALIDITIES = [
    Validity(),
    Validity.between(NOON - timedelta(days=1), NOON + timedelta(days=1)),
    Validity.between(NOON),
    Validity.between(None, NOON - timedelta(seconds=1)),
]
CONDITIONS = [ALWAYS, *map(parse, ["hour BETWEEN 9 AND 16", "rate < 3", "10 / (hour - 12) > 0", "NOT weekday > 5"])]

ENVIRONMENTS: list[Mapping[str, Scalar]] = [
    environment(NOON, rate=0),
    environment(NOON, rate=5),
    environment(NOON + timedelta(hours=2), rate=1),
    environment(NOON + timedelta(days=30)),
    {},
    {"time": NOON.replace(tzinfo=None), "hour": 12},
    {"time": "noon", "hour": "twelve", "rate": True},
]


@cache
def environments() -> st.SearchStrategy[Mapping[str, Scalar]]:
    # Mostly one in which something is allowed.
    return st.sampled_from([ENVIRONMENTS[0]] * 8 + ENVIRONMENTS)


@st.composite
def scopes(draw: st.DrawFn, family: Family) -> TypeScope:
    event_type = draw(st.sampled_from(family.types))
    name = event_type.name
    words = (str(name.owner).encode(), name.name.encode(), name.version.encode())
    return draw(
        st.sampled_from(
            [
                *[TypeScope()] * 5,
                TypeScope(words[:2]),
                TypeScope(words),
                TypeScope(within=frozenset({event_type.key})),
            ]
        )
    )


GUARDED_BY = st.frozensets(st.sampled_from([*["yes", "few"] * 2, *sorted(GUARDS), "one", "unheard-of"]), max_size=2)
SOME_VALIDITY = st.sampled_from([*VALIDITIES[:3] * 2, *VALIDITIES])
SOME_CONDITION = st.sampled_from([ALWAYS] * 8 + CONDITIONS)


@st.composite
def branches(draw: st.DrawFn, family: Family, action: Right, *, plain: bool = False) -> Branch:
    """Draw a branch; a plain one has neither guards nor dates nor conditions."""
    ids = sorted(family.ids)
    listed = draw(st.none() | st.frozensets(st.sampled_from(ids)))
    forced: dict[AttributeId, Value] = {}
    if draw(st.integers(0, 3)) == 0:
        attribute = draw(st.sampled_from(ids))
        forced[attribute] = draw(comparable(family.ids[attribute]))
        if listed is not None and draw(st.integers(0, 3)):
            listed |= {attribute}
    schema: Schema = {str(attribute): spec for attribute, spec in family.ids.items()}
    where = draw(selectors(schema)) if draw(st.booleans()) else ALWAYS
    guards: frozenset[str] = frozenset()
    when = When()
    if not plain:
        guards = draw(GUARDED_BY) if draw(st.integers(0, 3)) == 0 else guards
        when = When(draw(SOME_VALIDITY), draw(SOME_CONDITION))
    return Branch(
        action=action,
        types=draw(scopes(family)),
        attributes=listed,
        forced=force(forced),
        where=where,
        guards=guards,
        when=when,
        because=(f"cert:{draw(st.integers(0, 9))}",),
    )


@st.composite
def restrictions(draw: st.DrawFn, family: Family, action: Right, *, plain: bool = False) -> Restriction:
    return Restriction.of(draw(st.lists(branches(family, action, plain=plain), min_size=1, max_size=3)))


@st.composite
def exclusive(draw: st.DrawFn, event_type: EventType, action: Right) -> Restriction:
    """Draw narrow rights that depend on what else is in the event, so that they may exclude each other."""
    ids = st.sampled_from([attribute.id for attribute in event_type.attributes])
    one, other, third = (draw(ids) for _ in range(3))
    conditions = st.sampled_from(
        ["TRUE", *(f"{write_name(x)} IS {no}NULL" for x in (one, third) for no in ("", "NOT "))]
    )
    found = [
        Branch(action=action, attributes=frozenset({one}), where=parse(f"{write_name(other)} IS NULL")),
        Branch(action=action, attributes=frozenset({other}), where=parse(draw(conditions))),
        Branch(action=action, attributes=frozenset({third}), where=parse(draw(conditions))),
    ]
    return Restriction.of(found)


@st.composite
def events(draw: st.DrawFn, event_type: EventType) -> Event:
    row = {a.name: draw(values(a.spec)) for a in event_type.attributes}
    return Event.of(event_type, row, id="e1", time=NOON)


@st.composite
def transits(draw: st.DrawFn, family: Family, reader: EventType) -> TransitEvent:
    """Draw an event that the reader gets: of any version, and sometimes one that no honest broker would send."""
    writers = [version for version in family.types if reader.key in (version.key, *version.ancestors)]
    event = draw(events(draw(st.sampled_from(writers)))).to_transit()
    if draw(st.integers(0, 2)):
        return event
    row: dict[str, Scalar] = dict(event.values)
    for attribute in draw(st.lists(st.sampled_from(sorted(family.ids)), max_size=3)):
        row[attribute] = draw(st.sampled_from([*HOSTILE, ZONED]))  # type: ignore[assignment]  # the fault
    return TransitEvent(event.key, event.ancestors, MappingProxyType(row), event.id, event.time)
