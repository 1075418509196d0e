"""Policies at random that say everything that can be said: all functions, types, paths, names of any kind."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any, Final

from penstock.policy.combining import POLICY_ALGORITHMS, RULE_ALGORITHMS, DecisionTuple, with_priorities
from penstock.policy.language.datatypes import (
    BOOLEAN,
    DOUBLE,
    INTEGER,
    STRING,
    TYPES,
    URI,
    XPATH,
    Bag,
    DataType,
    Function,
    Kind,
    XPathExpression,
)
from penstock.policy.language.functions import FUNCTIONS, V1, V3
from penstock.policy.language.policies import (
    Assignment,
    ContentSelector,
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
    Root,
    Rule,
    RuleEffect,
    Target,
    apply,
)
from penstock.policy.language.requests import ACTION, RESOURCE, SUBJECT

TEXTS: Final = (
    "a", "x y", 'q"uo\\te', "é\u202e\U0001f600", "line\nbreak", "tab\tand\rreturn", "<&>'\"]]>", "{ } [ ] // # , ; =",
    "urn:x:y", "0", "1.5", "policy", "permit", "not", "a.b", "a-b", "-", "\\u{41}", "", " space around ",
)  # fmt: skip
VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "string": (*TEXTS, "  spaces  "),
    "boolean": (True, False),
    "integer": (0, -1, 10**30),
    "double": (0.5, -3.0, 1e300, -2.5e-9, math.inf, -math.inf, math.nan),
    "anyURI": ("urn:x", "", "http://example.org/?a=b&c"),
    "hexBinary": (b"", b"\x01\xff"),
    "base64Binary": (b"", b"\x01\xff"),
}
READ: Final[dict[str, tuple[str, ...]]] = {
    "time": ("08:00:00-03:00", "23:59:59.125"),
    "date": ("-12026-01-31Z", "2026-02-28"),
    "dateTime": ("2026-01-31T08:00:00.5Z", "0001-01-01T00:00:00"),
    "dayTimeDuration": ("-P3DT4H", "PT0S", "PT1.5S"),
    "yearMonthDuration": ("P1Y2M", "-P14M"),
    "rfc822Name": ("A.b@Example.org",),
    "x500Name": ("CN=A B, O=C", 'CN="x, y"'),
    "ipAddress": ("192.0.2.1/255.255.255.0:80-90", "[2001:db8::1]", "10.0.0.1:-80"),
    "dnsName": ("example.org:80-", "*.example.org"),
}
PATH_VERSIONS: Final = (
    "", "http://www.w3.org/TR/1999/REC-xpath-19991116", "http://www.w3.org/TR/2007/REC-xpath20-20070123",
)  # fmt: skip
PREFIXES: Final = ((), (("a", "urn:a"),), (("a", "urn:a"), ("b-c", "http://x/?y=1&z")))
MAJORITY: Final = DecisionTuple.of({"P": "#P > #D", "D": "#D >= #P and #D > 0"}).id
FIRST: Final = DecisionTuple.of({"P": "NA* P .*", "D": "NA* D .*"}).id


@cache
def giving(kind: Kind) -> Sequence[Function]:
    return [one for one in FUNCTIONS.values() if one.gives == kind]


@cache
def matching() -> Sequence[Function]:
    return [
        one
        for one in FUNCTIONS.values()
        if one.gives is BOOLEAN and one.repeated is None and len(one.takes) == 2 and not isinstance(one.takes[1], Bag)
    ]


class Whole:
    """Makes policies."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311  # the same for a seed
        self.choose: Callable[[Sequence[Any]], Any] = self.random.choice
        self.path_version = ""
        self.variables: dict[str, Expression] = {}

    def maybe(self, made: Callable[[], Any], otherwise: object = None) -> Any:
        return made() if self.random.random() < 0.4 else otherwise

    def text(self) -> str:
        return str(self.choose(TEXTS))

    def name(self) -> str:
        """A name without space around it, which is none where anyURI stands in a text."""
        return self.text().strip() or "n"

    def value(self, of_type: DataType) -> Any:
        if of_type is XPATH:
            path = self.choose(["//a", "/x[@y='\"']", "count(//b) > 1"])
            return XPathExpression(path, self.category(), self.choose(PREFIXES), self.path_version)
        if of_type.name in VALUES:
            return self.choose(VALUES[of_type.name])
        return of_type.read(self.choose(READ[of_type.name]))

    def category(self) -> str:
        return str(self.choose([SUBJECT, RESOURCE, ACTION, "urn:example:own", 'o"dd']))

    def attribute(self, of_type: DataType) -> Designator | ContentSelector:
        if self.random.random() < 0.3:
            return ContentSelector(
                self.category(), "//a:b", of_type, self.choose([True, False]), self.maybe(self.text),
                self.choose(PREFIXES), self.path_version,
            )  # fmt: skip
        return Designator(self.category(), self.name(), of_type, self.maybe(self.text), self.choose([True, False]))

    def expression(self, kind: Kind, depth: int) -> Expression:
        known = [name for name, one in self.variables.items() if one.gives == kind]
        if known and self.random.random() < 0.4:
            return Reference(self.choose(known), kind)
        if depth and self.random.random() < 0.7:
            return self.applied(kind, depth)
        if isinstance(kind, Bag):
            return self.attribute(kind.of)
        return PolicyLiteral(self.value(kind), kind)

    def applied(self, kind: Kind, depth: int) -> Expression:
        if kind is BOOLEAN and self.random.random() < 0.2:
            return self.each(depth)
        if isinstance(kind, Bag) and kind.of is STRING and self.random.random() < 0.5:
            lower = FUNCTIONS[f"{V1}string-normalize-to-lower-case"]
            return apply(f"{V3}map", [lower, self.expression(kind, depth - 1)])
        function = self.choose(giving(kind))
        takes = [*function.takes]
        if function.repeated is not None:
            takes[-1:] = [takes[-1]] * self.random.randrange(function.repeated, function.repeated + 3)
        if function.check is not None:
            return apply(
                function.id, [PolicyLiteral(self.pattern(function, takes[0]), takes[0]), self.expression(takes[1], 0)]
            )
        return apply(function.id, [self.expression(one, depth - 1) for one in takes])

    def pattern(self, function: Function, of_type: DataType) -> Any:
        """A value for the first argument of a match, which may have to be able to match something."""
        return self.value(of_type) if function.check is None or of_type is not STRING else ".example.org"

    def each(self, depth: int) -> Expression:
        function = self.choose(matching())
        name = self.choose(["any-of", "all-of", "any-of-any", "all-of-any", "any-of-all", "all-of-all"])
        bags = [Bag(one) for one in function.takes]
        kinds = [function.takes[0], bags[1]] if name in ("any-of", "all-of") else bags
        begin = V1 if name in ("all-of-any", "any-of-all", "all-of-all") else V3
        return apply(f"{begin}{name}", [function, *(self.expression(one, depth - 1) for one in kinds)])

    def target(self) -> Target:
        def match() -> Match:
            function = self.choose(matching())
            first, second = function.takes
            return Match(function, self.pattern(function, first), first, self.attribute(second))

        def several(made: Callable[[], Any], least: int) -> tuple[Any, ...]:
            return tuple(made() for _ in range(self.random.randrange(least, 3)))

        return several(lambda: several(lambda: several(match, 1), 1), 0)

    def duties(self) -> Duties:
        def duty() -> Duty:
            kinds: list[Kind] = [*TYPES, Bag(STRING), Bag(XPATH)]
            said = [
                Assignment(
                    self.name(), self.expression(self.choose(kinds), 1), self.maybe(self.category),
                    self.maybe(self.text),
                )
                for _ in range(self.random.randrange(3))
            ]  # fmt: skip
            return Duty(self.name(), self.choose([*RuleEffect]), tuple(said))

        return Duties(*(tuple(duty() for _ in range(self.choose([0, 0, 1, 2]))) for _ in range(2)))

    def combining(self, known: Sequence[str], count: int) -> str:
        name = str(self.choose([*known, MAJORITY, FIRST]))
        return with_priorities([self.random.randrange(-1, 3) for _ in range(count)], name) if count > 1 else name

    def policy(self) -> Policy:
        self.path_version, self.variables = self.choose(PATH_VERSIONS), {}
        kinds: list[Kind] = [BOOLEAN, STRING, INTEGER, DOUBLE, URI, Bag(STRING)]
        for name in self.random.sample(["v", "w", *TEXTS], self.random.randrange(4)):
            self.variables[name] = self.expression(self.choose(kinds), 2)
        rules = tuple(
            Rule(
                self.text(), self.choose([*RuleEffect]), self.target(),
                self.maybe(lambda: self.expression(BOOLEAN, 3)), self.duties(), self.text(),
            )
            for _ in range(self.random.randrange(3))
        )  # fmt: skip
        made = Policy(
            self.name(), self.choose(["1.0", "12.3.4"]), self.combining([*RULE_ALGORITHMS], len(rules)), rules,
            self.target(), dict(self.variables), self.duties(), self.maybe(self.text), self.text(),
        )  # fmt: skip
        self.variables = {}
        return made

    def root(self, depth: int = 2) -> Root:
        if not depth or self.random.random() < 0.4:
            return self.policy()
        members = tuple(self.member(depth) for _ in range(self.random.randrange(4)))
        self.path_version = self.choose(PATH_VERSIONS)
        return PolicySet(
            self.name(), self.choose(["1.0", "2"]), self.combining([*POLICY_ALGORITHMS], len(members)), members,
            self.target(), self.duties(), self.maybe(self.text), self.text(),
        )  # fmt: skip

    def member(self, depth: int) -> Root | PolicyReference:
        if self.random.random() < 0.3:
            versions = [self.maybe(lambda: self.choose(["1.0", "1.*", "1.+", "*"])) for _ in range(3)]
            return PolicyReference(self.name(), self.choose([True, False]), *versions)
        return self.root(depth - 1)
