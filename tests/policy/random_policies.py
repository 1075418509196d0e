"""Random policies and requests over few attributes and values, so that much of them meets; quickly made from a seed."""

import math
from random import Random
from typing import Any

from penstock.policy.combining import POLICY_ALGORITHMS, RULE_ALGORITHMS
from penstock.policy.language.datatypes import BOOLEAN, DOUBLE, INTEGER, STRING, DataType
from penstock.policy.language.functions import V1, V3
from penstock.policy.language.policies import (
    AnyOf,
    Assignment,
    Designator,
    Duties,
    Duty,
    Expression,
    Match,
    Policy,
    PolicyLiteral,
    PolicyReference,
    PolicySet,
    Reference,
    Rule,
    RuleEffect,
    Target,
    apply,
    function_of,
)
from penstock.policy.language.requests import ACTION, SUBJECT, Facts, key_of

VALUES: dict[DataType, list[Any]] = {STRING: ["a", "b", "c"], INTEGER: [0, 1, 2], DOUBLE: [0.0, math.nan]}
ATTRIBUTES = [(SUBJECT, "s1", STRING), (SUBJECT, "s2", STRING), (ACTION, "n", INTEGER), (ACTION, "d", DOUBLE)]
MATCHES = ["equal", "equal", "equal", "greater-than", "less-than-or-equal"]
KNOWN = ("known", "known", "broken", "missing")


class Maker:
    """Makes things at random; most of them hold, and some fail."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311  # the same for a seed

    def rarely(self, odds: int) -> bool:
        return self.random.randrange(odds) == 0

    def designator(self, of_type: DataType | None = None) -> Designator:
        category, name, kind = self.random.choice([one for one in ATTRIBUTES if of_type in (None, one[2])])
        return Designator(category, name, kind, "me" if self.rarely(12) else None, self.rarely(4))

    def match(self) -> Match:
        attribute = self.designator()
        if attribute.of is STRING and self.rarely(8):
            pattern = self.random.choice(["a|b", "("])
            return Match(function_of(f"{V1}string-regexp-match"), pattern, STRING, attribute)
        function = function_of(f"{V1}{attribute.of}-{self.random.choice(MATCHES)}")
        return Match(function, self.random.choice(VALUES[attribute.of]), attribute.of, attribute)

    def target(self) -> Target:
        return tuple(self.any_of() for _ in range(self.random.choice([0, 0, 1, 1, 2])))

    def any_of(self) -> AnyOf:
        sizes = [self.random.choice([1, 1, 2]) for _ in range(self.random.choice([1, 2, 3]))]
        return tuple(tuple(self.match() for _ in range(size)) for size in sizes)

    def number(self) -> Expression:
        match self.random.randrange(6):
            case 0:
                return apply(
                    f"{V1}integer-divide", [PolicyLiteral(1, INTEGER), PolicyLiteral(self.random.randrange(3), INTEGER)]
                )
            case 1:
                return apply(f"{V1}string-bag-size", [self.designator(STRING)])
            case 2 | 3:
                return apply(f"{V1}integer-one-and-only", [self.designator(INTEGER)])
        return PolicyLiteral(self.random.randrange(3), INTEGER)

    def condition(self, depth: int = 2, *, variables: bool = True) -> Expression:
        def inner() -> Expression:
            return self.condition(depth - 1, variables=variables)

        several = [inner() for _ in range(self.random.randrange(4))] if depth else []
        match self.random.randrange(0 if depth else 4, 10):
            case 0:
                return apply(f"{V1}or", several)
            case 1:
                return apply(f"{V1}and", several)
            case 2:
                return apply(f"{V1}not", [inner()])
            case 3:
                return apply(f"{V1}n-of", [self.number(), *several])
            case 4 if variables:
                return Reference(self.random.choice(["v", "w"]), BOOLEAN)
            case 5:
                return apply(f"{V1}integer-less-than", [self.number(), self.number()])
            case 6:
                value = PolicyLiteral(self.random.choice("abc"), STRING)
                return apply(f"{V1}string-is-in", [value, self.designator(STRING)])
            case 7:
                bags = [self.designator(STRING), self.designator(STRING)]
                name = self.random.choice(["any-of-any", "all-of-any", "any-of-all", "all-of-all"])
                return apply(f"{V3}{name}", [function_of(f"{V1}string-equal"), *bags])
            case 8:
                value = PolicyLiteral(self.random.choice(VALUES[DOUBLE]), DOUBLE)
                return apply(f"{V1}double-is-in", [value, self.designator(DOUBLE)])
        return PolicyLiteral(self.random.choice([True, True, False]), BOOLEAN)

    def duties(self) -> Duties:
        made = [self.duty(f"o{place}") for place in range(self.random.choice([0, 0, 0, 1, 2]))]
        return Duties(tuple(made[:1]), tuple(made[1:]))

    def duty(self, name: str) -> Duty:
        said: Expression = self.number() if self.rarely(2) else self.designator()
        return Duty(name, self.random.choice([*RuleEffect]), (Assignment("x", said),))

    def policy(self) -> Policy:
        rules = tuple(
            Rule(
                f"r{place}",
                self.random.choice([*RuleEffect]),
                self.target(),
                self.condition() if self.rarely(2) else None,
                self.duties(),
            )
            for place in range(self.random.randrange(8))
        )
        variables = {"v": self.condition(variables=False), "w": Reference("v", BOOLEAN)}
        combining = self.random.choice([*RULE_ALGORITHMS])
        name = f"p{self.random.randrange(99)}"
        return Policy(name, "1.0", combining, rules, self.target(), variables, self.duties())

    def policy_set(self, depth: int = 2) -> PolicySet:
        members = tuple(self._member(depth) for _ in range(self.random.randrange(7)))
        combining = self.random.choice([*POLICY_ALGORITHMS])
        return PolicySet(f"s{self.random.randrange(99)}", "1.0", combining, members, self.target(), self.duties())

    def _member(self, depth: int) -> Policy | PolicySet | PolicyReference:
        if self.rarely(6):
            return PolicyReference(self.random.choice(KNOWN), to_set=False)
        return self.policy_set(depth - 1) if depth and self.rarely(4) else self.policy()

    def facts(self) -> Facts:
        return {key_of(*one): self._bag(one[2]) for one in ATTRIBUTES if not self.rarely(4)}

    def _bag(self, of_type: DataType) -> tuple[Any, ...]:
        return tuple(self.random.choices(VALUES[of_type], k=self.random.choice([0, 1, 1, 1, 2])))
