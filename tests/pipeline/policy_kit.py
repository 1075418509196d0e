"""What tests of enforcement share: types in a line, a policy with given rights, and sightings of cars."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from penstock.guard import Authority, Branch, EventRequest, Request, Restriction, Ruling
from penstock.model import (
    AttributeDefinition,
    AttributeId,
    AttributeSpec,
    Event,
    EventType,
    Kind,
    Principal,
    TransitEvent,
    TypeDefinition,
    TypeName,
)
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber
from penstock.selector import ALWAYS, Selector, parse
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType
from penstock.trust.validity import ALWAYS as FOREVER

OWNER = Principal(b"\1" * 32)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
TIMES = [NOON, NOON + timedelta(hours=7), NOON + timedelta(days=40), NOON - timedelta(days=2)]


def define(name: str, kinds: Mapping[str, Kind], *, owner: Principal = OWNER, version: str = "0") -> TypeDefinition:
    """Return a type with an attribute of each kind by name; their ids are their places."""
    attributes = (AttributeDefinition(one, str(n), AttributeSpec(kind)) for n, (one, kind) in enumerate(kinds.items()))
    return TypeDefinition(TypeName(owner, name, version), tuple(attributes))


def numbers(names: Iterable[str]) -> dict[str, Kind]:
    """Return attributes that are all integers."""
    return dict.fromkeys(names, Kind.INTEGER)


def trusted(event_type: EventType) -> VerifiedType:
    definition = TypeDefinition(event_type.name, ())
    return VerifiedType(f"type:{event_type.name}", event_type, definition, event_type.name.owner, FOREVER, ())


class Rulebook:
    """A source of authority for tests: what each principal may do."""

    def __init__(self, rules: Mapping[Principal, Restriction]) -> None:
        self.rules = rules

    def rule(self, request: Request) -> Ruling:
        assert isinstance(request, EventRequest)
        return Ruling(self.rules.get(request.principal, Restriction()).branches)


class Publishers(PipelinePolicy):
    """A policy whose publishers are given, not found in credentials."""

    def principals(self) -> tuple[Principal, ...]:
        (book,) = self.others
        assert isinstance(book, Rulebook)
        return tuple(book.rules)


def policy_of(readers: Sequence[tuple[EventType, Restriction, Selector]]) -> PipelinePolicy:
    principals = [Principal(number.to_bytes(32, "big")) for number in range(len(readers))]
    rules: tuple[Authority, ...] = (Rulebook({p: r for p, (_, r, _) in zip(principals, readers, strict=True)}),)
    subscribers = tuple(
        Subscriber(f"reader-{number}", principal, trusted(event_type), selector)
        for number, (principal, (event_type, _, selector)) in enumerate(zip(principals, readers, strict=True))
    )
    return PipelinePolicy(Credentials(), subscribers, rules)


SIGHTING = EventType.of(
    define("Sighting", {"plate": Kind.STRING, "speed": Kind.INTEGER, "seen": Kind.TIMESTAMP, "ratio": Kind.FLOAT})
)
PLATE, SPEED, SEEN, RATIO = (attribute.id for attribute in SIGHTING.attributes)


def sightings(count: int) -> list[TransitEvent]:
    return [
        replace(
            Event.of(
                SIGHTING,
                {
                    "plate": f"P{n % 17}" if n % 5 else None,
                    "speed": n % 41,
                    "seen": NOON + timedelta(minutes=n),
                    "ratio": float("nan") if n % 13 == 0 else n / 7,
                },
            ).to_transit(),
            id=str(n),
            time=TIMES[n % len(TIMES)],
        )
        for n in range(count)
    ]


def by_id(text: str) -> Selector:
    return parse(text).rename({a.name: a.id for a in SIGHTING.attributes})


def reader(where: str, *shown: AttributeId, **more: object) -> tuple[EventType, Restriction, Selector]:
    branch = Branch(action=Right.SUBSCRIBE, attributes=frozenset(shown), where=by_id(where), **more)  # type: ignore[arg-type]  # fields of a branch
    return SIGHTING, Restriction((branch,)), ALWAYS
