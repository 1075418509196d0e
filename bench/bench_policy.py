"""Attribute-based policies: single decisions from Python, beside cedarpy and casbin on the same policies.

Each policy wants a role, an action and a kind of resource; every third has a range besides, every fifth denies, and
some overlap. Three in ten requests are about nothing that any policy knows. Building the request counts; policies were
read before. All three give the same answers, which is checked.

Policies that compare attributes with each other, and have no targets, are told apart by their conditions alone.

Beside them, policies that want the same but for a range, which stands in their targets: only an index of ranges tells
them apart.
"""

import random
import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from harness import Result, at_least, at_most, microseconds, observed
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.language.datatypes import INTEGER, STRING
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import (
    Designator,
    Expression,
    Match,
    Policy,
    PolicyLiteral,
    PolicySet,
    Rule,
    RuleEffect,
    apply,
    function_of,
)
from penstock.policy.language.requests import ACTION, ACTION_ID, RESOURCE, SUBJECT, Key
from penstock.policy.language.results import XacmlDecision

NOW = datetime(2026, 5, 1, tzinfo=UTC)
SEED = 7
SIZES = (10, 1_000, 10_000)
#: reading more takes it minutes
_MOST_FOR_CASBIN = 1_000
ROLE, DOES = Designator(SUBJECT, "role", STRING), Designator(ACTION, ACTION_ID, STRING)
KIND, LEVEL = Designator(RESOURCE, "kind", STRING), Designator(SUBJECT, "level", INTEGER)
ROLE_KEY, DOES_KEY, KIND_KEY, LEVEL_KEY = ROLE.key, DOES.key, KIND.key, LEVEL.key
EQUAL = function_of(f"{V1}string-equal")
LEAST, MOST = (function_of(f"{V1}integer-{name}-than-or-equal") for name in ("less", "greater"))
RULES = "urn:oasis:names:tc:xacml:3.0:rule-combining-algorithm:deny-overrides"
POLICIES = RULES.replace(":rule-", ":policy-")
CASBIN = """
[request_definition]
r = role, does, kind, level
[policy_definition]
p = role, does, kind, low, high, eft
[policy_effect]
e = some(where (p.eft == allow)) && !some(where (p.eft == deny))
[matchers]
m = r.role == p.role && r.does == p.does && r.kind == p.kind && r.level >= int(p.low) && r.level <= int(p.high)
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One policy, in no language."""

    role: str
    does: str
    kind: str
    low: int | None
    high: int | None
    denies: bool


Asked = tuple[str, str, str, int]
A = TypeVar("A")


def lines(count: int) -> list[Line]:
    chance = random.Random(SEED)  # noqa: S311  # the same each time
    made = []
    for number in range(count):
        low = chance.randrange(50) if number % 3 == 0 else None
        made.append(
            Line(
                f"role{chance.randrange(max(3, count // 3))}",
                f"act{number % 4}",
                f"kind{chance.randrange(max(2, count // 50))}",
                low,
                None if low is None else low + 30,
                number % 5 == 0,
            )
        )
    return made


def ranged_lines(count: int) -> list[Line]:
    """Policies that want the same, but for a level between two."""
    chance = random.Random(SEED)  # noqa: S311  # the same each time
    lows = [chance.randrange(10 * count) for _ in range(count)]
    return [Line("role", "act", "kind", low, low + 25, number % 5 == 0) for number, low in enumerate(lows)]


def requests(known: list[Line], count: int) -> list[Asked]:
    chance = random.Random(SEED + 1)  # noqa: S311  # the same each time
    made = []
    for _ in range(count):
        line = chance.choice(known)
        role = "nobody" if chance.random() < 0.3 else line.role
        made.append((role, line.does, line.kind, chance.randrange(100)))
    return made


# --- the engines -----------------------------------------------------------------------------------------------------


def _policy(number: int, line: Line) -> Policy:
    wanted = ((ROLE, line.role), (DOES, line.does), (KIND, line.kind))
    target = tuple(((Match(EQUAL, value, STRING, attribute),),) for attribute, value in wanted)
    condition: Expression | None = None
    if line.low is not None and line.high is not None:
        level = apply(f"{V1}integer-one-and-only", [LEVEL])
        condition = apply(
            f"{V1}and",
            [
                apply(f"{V1}integer-greater-than-or-equal", [level, PolicyLiteral(line.low, INTEGER)]),
                apply(f"{V1}integer-less-than-or-equal", [level, PolicyLiteral(line.high, INTEGER)]),
            ],
        )
    effect = RuleEffect.DENY if line.denies else RuleEffect.PERMIT
    return Policy(f"p{number}", "1.0", RULES, (Rule("r", effect, (), condition),), target)


def _with_range(policy: Policy, line: Line) -> Policy:
    """The same policy with its range in the target, where a value comes before the attribute."""
    ends = ((LEAST, line.low), (MOST, line.high))
    target = (*policy.target, *(((Match(function, end, INTEGER, LEVEL),),) for function, end in ends))
    return replace(policy, target=target, rules=(replace(policy.rules[0], condition=None),))


def root(known: list[Line], *, ranges: bool = False) -> PolicySet:
    made = [_policy(number, line) for number, line in enumerate(known)]
    if ranges:
        made = [_with_range(policy, line) for policy, line in zip(made, known, strict=True)]
    return PolicySet("all", "1.0", POLICIES, tuple(made))


def penstock(known: list[Line], *, ranges: bool = False) -> Callable[[Asked], bool]:
    ask = CompiledPolicy(root(known, ranges=ranges)).ask

    def permitted(asked: Asked) -> bool:
        role, does, kind, level = asked
        facts = {ROLE_KEY: (role,), DOES_KEY: (does,), KIND_KEY: (kind,), LEVEL_KEY: (level,)}
        return ask(facts, NOW).decision is XacmlDecision.PERMIT

    return permitted


def cedar(known: list[Line]) -> Callable[[Asked], bool] | None:
    try:
        import cedarpy  # noqa: PLC0415  # the peer may be missing
    except ImportError:
        return None
    texts = []
    for line in known:
        ranged = "" if line.low is None else f" && context.level >= {line.low} && context.level <= {line.high}"
        word = "forbid" if line.denies else "permit"
        texts.append(
            f'{word}(principal, action == Action::"{line.does}", resource) when '
            f'{{ context.role == "{line.role}" && context.kind == "{line.kind}"{ranged} }};'
        )
    policies = cedarpy.PolicySet.from_str("\n".join(texts))
    entities = cedarpy.Entities.from_json_str("[]")

    def permitted(asked: Asked) -> bool:
        role, does, kind, level = asked
        request = {
            "principal": 'User::"u"',
            "action": f'Action::"{does}"',
            "resource": 'Thing::"t"',
            "context": {"role": role, "kind": kind, "level": level},
        }
        return bool(cedarpy.is_authorized(request, policies, entities).allowed)

    return permitted


def casbin_engine(known: list[Line]) -> Callable[[Asked], bool] | None:
    try:
        import casbin  # type: ignore[import-untyped]  # noqa: PLC0415  # the peer may be missing, and ships no types
    except ImportError:
        return None
    model = casbin.Model()
    model.load_model_from_text(CASBIN)
    enforcer = casbin.Enforcer(model)
    enforcer.add_function("int", int)
    for line in known:
        low, high = (line.low, line.high) if line.low is not None else (-(10**9), 10**9)
        enforcer.add_policy(line.role, line.does, line.kind, f"{low}", f"{high}", "deny" if line.denies else "allow")

    def permitted(asked: Asked) -> bool:
        return bool(enforcer.enforce(*asked))

    return permitted


# --- measuring -------------------------------------------------------------------------------------------------------


def _latencies(permitted: Callable[[Asked], bool], asked: list[Asked]) -> list[float]:
    clock, found = time.perf_counter, []
    for one in asked:
        begun = clock()
        permitted(one)
        found.append(clock() - begun)
    return sorted(found)


def _check(engines: dict[str, Callable[[A], bool]], asked: list[A]) -> int:
    permits = 0
    for one in asked:
        answers = {name: engine(one) for name, engine in engines.items()}
        if len(set(answers.values())) != 1:
            raise AssertionError(f"engines differ: {answers} for {one}")
        permits += answers["penstock"]
    return permits


def _ranged(count: int) -> Result:
    known = ranged_lines(count)
    chance = random.Random(SEED + 1)  # noqa: S311  # the same each time
    asked: list[Asked] = [("role", "act", "kind", chance.randrange(10 * count)) for _ in range(2_000)]
    made = {"penstock": penstock(known, ranges=True), "cedarpy": cedar(known)}
    engines = {name: engine for name, engine in made.items() if engine is not None}
    permits = _check(engines, asked[:200])
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(5):
        for name, engine in engines.items():
            rates[name].append(_rate(engine, asked if name == "penstock" else asked[:40]))
    rate = {name: statistics.median(found) for name, found in rates.items()}
    title = f"policy: decisions with {count:,} policies that differ by a range, against cedarpy"
    detail = ", ".join(f"{name} {found:,.0f}/s" for name, found in rate.items())
    detail += f"; {permits} of 200 permitted, all answers equal"
    if "cedarpy" not in rate:
        return observed(title, 0.0, detail + "; no peer is installed")
    return at_least(title, rate["penstock"] / rate["cedarpy"], 50.0, detail)


# --- attributes compared with each other -----------------------------------------------------------------------------

#: attributes of subjects and of resources
WIDTH = 30
Compared = tuple[tuple[str, ...], tuple[str, ...], int, int]


def _compared_lines(count: int) -> list[tuple[int, int, bool, bool]]:
    """Policies: which attribute of the subject equals which of the resource, whether levels count, and who denies."""
    chance = random.Random(SEED)  # noqa: S311  # the same each time
    return [
        (chance.randrange(WIDTH), chance.randrange(WIDTH), number % 3 == 0, number % 5 == 0) for number in range(count)
    ]


def _compared_requests(count: int) -> list[Compared]:
    """Requests in which one attribute of the subject in three hundred is one of the resource."""
    chance = random.Random(SEED + 1)  # noqa: S311  # the same each time

    def values() -> tuple[str, ...]:
        return tuple(f"value{chance.randrange(300)}" for _ in range(WIDTH))

    return [(values(), values(), chance.randrange(10), chance.randrange(10)) for _ in range(count)]


def _compared_penstock(known: list[tuple[int, int, bool, bool]]) -> Callable[[Compared], bool]:
    mine = [Designator(SUBJECT, f"s{number}", STRING) for number in range(WIDTH)]
    its = [Designator(RESOURCE, f"r{number}", STRING) for number in range(WIDTH)]
    needed = Designator(RESOURCE, "level", INTEGER)

    def one(attribute: Designator) -> Expression:
        return apply(f"{V1}{attribute.of}-one-and-only", [attribute])

    policies = []
    for number, (first, second, levels, denies) in enumerate(known):
        condition: Expression = apply(f"{V1}string-equal", [one(mine[first]), one(its[second])])
        if levels:
            above = apply(f"{V1}integer-greater-than-or-equal", [one(LEVEL), one(needed)])
            condition = apply(f"{V1}and", [condition, above])
        rule = Rule("r", RuleEffect.DENY if denies else RuleEffect.PERMIT, (), condition)
        policies.append(Policy(f"p{number}", "1.0", RULES, (rule,)))
    ask = CompiledPolicy(PolicySet("all", "1.0", POLICIES, tuple(policies))).ask
    keys = [one.key for one in (*mine, *its)]

    def permitted(asked: Compared) -> bool:
        own, other, level, wanted = asked
        facts: dict[Key, tuple[str | int, ...]] = {
            key: (value,) for key, value in zip(keys, (*own, *other), strict=True)
        }
        facts |= {LEVEL_KEY: (level,), needed.key: (wanted,)}
        return ask(facts, NOW).decision is XacmlDecision.PERMIT

    return permitted


def _compared_cedar(known: list[tuple[int, int, bool, bool]]) -> Callable[[Compared], bool] | None:
    try:
        import cedarpy  # noqa: PLC0415  # the peer may be missing
    except ImportError:
        return None
    texts = []
    for first, second, levels, denies in known:
        more = " && context.level >= context.needed" if levels else ""
        word = "forbid" if denies else "permit"
        texts.append(f"{word}(principal, action, resource) when {{ context.s{first} == context.r{second}{more} }};")
    policies = cedarpy.PolicySet.from_str("\n".join(texts))
    entities = cedarpy.Entities.from_json_str("[]")

    def permitted(asked: Compared) -> bool:
        own, other, level, wanted = asked
        context: dict[str, object] = {f"s{number}": value for number, value in enumerate(own)}
        context |= {f"r{number}": value for number, value in enumerate(other)}
        context |= {"level": level, "needed": wanted}
        request = {"principal": 'User::"u"', "action": 'Action::"a"', "resource": 'Thing::"t"', "context": context}
        return bool(cedarpy.is_authorized(request, policies, entities).allowed)

    return permitted


def _compared(count: int) -> Result:
    known, asked = _compared_lines(count), _compared_requests(1_000)
    made = {"penstock": _compared_penstock(known), "cedarpy": _compared_cedar(known)}
    engines = {name: engine for name, engine in made.items() if engine is not None}
    permits = _check(engines, asked[:200])
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(5):
        for name, engine in engines.items():
            rates[name].append(_rate(engine, asked if name == "penstock" else asked[:40]))
    rate = {name: statistics.median(found) for name, found in rates.items()}
    title = f"policy: decisions with {count:,} policies that compare attributes, against cedarpy"
    detail = ", ".join(f"{name} {found:,.0f}/s" for name, found in rate.items())
    detail += f"; {permits} of 200 permitted, all answers equal"
    if "cedarpy" not in rate:
        return observed(title, 0.0, detail + "; no peer is installed")
    return at_least(title, rate["penstock"] / rate["cedarpy"], 5.0, detail)


def _rate(engine: Callable[[A], bool], asked: list[A]) -> float:
    begun = time.perf_counter()
    for one in asked:
        engine(one)
    return len(asked) / (time.perf_counter() - begun)


def run() -> list[Result]:
    results: list[Result] = []
    tails: dict[int, float] = {}
    for size, bound in zip(SIZES, (5.0, 200.0, None), strict=True):
        known = lines(size)
        asked = requests(known, 2_000)
        peer = casbin_engine(known) if size <= _MOST_FOR_CASBIN else None
        made = {"penstock": penstock(known), "cedarpy": cedar(known), "casbin": peer}
        engines = {name: engine for name, engine in made.items() if engine is not None}
        few = asked[: 400 if size <= _MOST_FOR_CASBIN else 50]
        permits = _check(engines, few)
        rates: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(5):
            for name, engine in engines.items():
                those = asked if name == "penstock" else few[: 400 if size == 10 else 40]
                rates[name].append(_rate(engine, those))
        rate = {name: statistics.median(found) for name, found in rates.items()}
        rounds = [_latencies(engines["penstock"], asked) for _ in range(5)]
        tails[size] = statistics.median(one[int(len(one) * 0.99)] for one in rounds)
        detail = ", ".join(f"{name} {found:,.0f}/s" for name, found in rate.items())
        detail += f"; p99 {microseconds(tails[size])}; {permits} of {len(few)} permitted, all answers equal"
        peers = [found for name, found in rate.items() if name != "penstock"]
        name = f"policy: decisions with {size:,} policies, against the fastest peer"
        if not peers:
            results.append(observed(name, 0.0, detail + "; no peer is installed"))
        elif bound is None:
            results.append(observed(name, rate["penstock"] / max(peers), detail))
        else:
            results.append(at_least(name, rate["penstock"] / max(peers), bound, detail))
    results.append(
        at_most(
            "policy: p99 with 10,000 policies, against 10", tails[10_000] / tails[10], 3.0, microseconds(tails[10_000])
        )
    )
    results.append(_ranged(1_000))
    results.append(_compared(1_000))
    results += _loading()
    return results


def _loading() -> list[Result]:
    times = {}
    for size in (1_000, 10_000):
        known = root(lines(size))
        found = []
        for _ in range(3):
            begun = time.process_time()
            CompiledPolicy(known)
            found.append(time.process_time() - begun)
        times[size] = min(found)
    tracemalloc.start()
    kept = CompiledPolicy(root(lines(1_000)))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    detail = f"{times[1_000] * 1e3:.0f} ms, {times[10_000] * 1e3:.0f} ms"
    return [
        at_most("policy: loading 10,000 policies, against 1,000", times[10_000] / times[1_000], 12.0, detail),
        observed("policy: memory of a policy, in KiB", size / 1_000 / 1024, "policy and its compiled form together"),
    ]
