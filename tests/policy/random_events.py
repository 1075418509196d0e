"""Random policies that ask for events too, and random events; quickly made from a seed."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.policy.random_policies import Maker

from penstock.model import Principal
from penstock.model.names import TypeName
from penstock.model.types import AttributeDefinition, EventType, TypeDefinition
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Scalar
from penstock.policy.language.datatypes import BOOLEAN, DATE_TIME, DOUBLE, INTEGER, STRING, DataType
from penstock.policy.language.event_attributes import EVENT, data_type_of, event_names
from penstock.policy.language.functions import V1, V3
from penstock.policy.language.policies import Designator, Expression, Match, PolicyLiteral, apply, function_of
from penstock.policy.language.requests import RESOURCE, SUBJECT, Facts, key_of
from penstock.policy.language.times import read_date_time

T0 = datetime(2026, 5, 1, 12, tzinfo=UTC)
SPECS = {
    "text": AttributeSpec(Kind.STRING),
    "other": AttributeSpec(Kind.STRING),
    "level": AttributeSpec(Kind.STRING, Enumerated(frozenset("abc"))),
    "count": AttributeSpec(Kind.INTEGER),
    "hour": AttributeSpec(Kind.INTEGER, Ranged(0, 3)),
    "weight": AttributeSpec(Kind.FLOAT),
    "open": AttributeSpec(Kind.BOOLEAN),
    "at": AttributeSpec(Kind.TIMESTAMP),
}
TYPE = EventType.of(
    TypeDefinition(
        TypeName(Principal(bytes(32)), "test.Event"),
        tuple(AttributeDefinition(name, str(number), spec) for number, (name, spec) in enumerate(SPECS.items())),
    )
)
NAMES = event_names(TYPE)
IDS = {name: str(attribute.id) for name, attribute in TYPE.by_name.items()}

TIMES = ("2026-05-01T12:00:00Z", "2026-05-01T12:00:00.0000005Z", "2026-05-01T13:00:00", "99999-01-01T00:00:00Z")
CONSTANTS: dict[DataType, list[Any]] = {
    STRING: ["a", "b", "c", "", "a%", "'"],
    INTEGER: [0, 1, 2, -1, 1 << 70],
    DOUBLE: [0.0, 1.5, -1.0, math.inf, -math.inf, math.nan],
    BOOLEAN: [True, False],
    DATE_TIME: [read_date_time(text) for text in TIMES],
}
EVENT_VALUES: dict[Kind, list[Scalar]] = {
    Kind.STRING: ["a", "b", "c", "", "a%b", "'", "d"],
    Kind.INTEGER: [0, 1, 2, 3],
    Kind.FLOAT: [0.0, 1.5, 7.0, math.inf, -math.inf],
    Kind.BOOLEAN: [True, False],
    Kind.TIMESTAMP: [T0, T0 + timedelta(microseconds=1), T0 + timedelta(hours=1), T0 - timedelta(days=1)],
}
#: what is known: of the subject, and of the type
ASKED = [(SUBJECT, "s1", STRING), (SUBJECT, "s2", STRING), (SUBJECT, "n", INTEGER), (RESOURCE, "kind", STRING)]
ORDERS = ["equal", "equal", "greater-than", "less-than-or-equal", "less-than", "greater-than-or-equal"]


class EventMaker(Maker):
    """Makes policies of which about half of what they ask for is known before an event comes."""

    def designator(self, of_type: DataType | None = None) -> Designator:
        known = [one for one in ASKED if of_type in (None, one[2])]
        unknown = [
            (RESOURCE, f"{EVENT}{name}", data_type_of(spec.kind))
            for name, spec in SPECS.items()
            if of_type in (None, data_type_of(spec.kind))
        ]
        pool = known if known and (not unknown or self.rarely(2)) else unknown
        category, name, kind = self.random.choice(pool)
        if self.rarely(20):
            # Nothing is there under a wrong type.
            name = f"{EVENT}text"
            category, kind = RESOURCE, of_type or INTEGER
        return Designator(category, name, kind, "me" if self.rarely(20) else None, self.rarely(4))

    def constant(self, of_type: DataType) -> Any:
        return self.random.choice(CONSTANTS[of_type])

    def match(self) -> Match:
        attribute = self.designator()
        if attribute.of is STRING and self.rarely(4):
            name = self.random.choice(["starts-with", "ends-with", "contains"])
            return Match(function_of(f"{V3}string-{name}"), self.constant(STRING), STRING, attribute)
        if attribute.of is STRING and self.rarely(8):
            pattern = self.random.choice(["a|b", "("])
            return Match(function_of(f"{V1}string-regexp-match"), pattern, STRING, attribute)
        order = "equal" if attribute.of is BOOLEAN else self.random.choice(ORDERS)
        function = function_of(f"{V1}{attribute.of}-{order}")
        return Match(function, self.constant(attribute.of), attribute.of, attribute)

    def one(self, of_type: DataType) -> Expression:
        if self.rarely(3):
            return PolicyLiteral(self.constant(of_type), of_type)
        if of_type is INTEGER and self.rarely(4):
            return apply(f"{V1}string-bag-size", [self.designator(STRING)])
        return apply(f"{V1}{of_type}-one-and-only", [self.designator(of_type)])

    def bag(self, of_type: DataType) -> Expression:
        if self.rarely(4):
            return apply(f"{V1}{of_type}-bag", [self.one(of_type) for _ in range(self.random.randrange(3))])
        return self.designator(of_type)

    def number(self) -> Expression:
        return self.one(INTEGER)

    def condition(self, depth: int = 2, *, variables: bool = True) -> Expression:
        kind = self.random.choice([STRING, STRING, INTEGER, DOUBLE, DATE_TIME])
        match self.random.randrange(8):
            case 0:
                return apply(f"{V1}{kind}-{self.random.choice(ORDERS)}", [self.one(kind), self.one(kind)])
            case 1:
                return apply(f"{V1}{kind}-is-in", [self.one(kind), self.bag(kind)])
            case 2:
                name = self.random.choice(["at-least-one-member-of", "subset", "set-equals"])
                return apply(f"{V1}{kind}-{name}", [self.bag(kind), self.bag(kind)])
            case 3:
                name = self.random.choice(["any-of-any", "all-of-any", "any-of-all", "all-of-all"])
                function = function_of(f"{V1}{kind}-{self.random.choice(ORDERS)}")
                return apply(f"{V3}{name}", [function, self.bag(kind), self.bag(kind)])
            case 4:
                return apply(f"{V1}boolean-equal", [self.one(BOOLEAN), super().condition(0, variables=variables)])
        return super().condition(depth, variables=variables)

    def known(self) -> Facts:
        found = {}
        for one in ASKED:
            values = self.random.choices(CONSTANTS[one[2]][:3], k=self.random.choice([0, 1, 1, 2]))
            if values:
                found[key_of(*one)] = tuple(values)
        return found

    def event(self, *, nan: bool = False) -> dict[str, Scalar]:
        """Return the values of an event by attribute ids; some are null."""
        found: dict[str, Scalar] = {}
        for name, spec in SPECS.items():
            value = self.random.choice(EVENT_VALUES[spec.kind])
            allowed = spec.domain is None or (value is not None and spec.domain.contains(value))
            if allowed and not self.rarely(4):
                found[IDS[name]] = math.nan if nan and spec.kind is Kind.FLOAT else value
        return found
