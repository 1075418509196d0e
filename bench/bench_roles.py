"""Roles: activations and decisions with 10 and with 10,000 roles, revocation among many appointments, and casbin.

A decision is what a broker asks: `decide()` with active roles as the source of authority. casbin answers yes or no on
the same users, roles and permissions.
"""

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import cycle

from harness import Result, at_least, at_most, microseconds, observed, seconds
from penstock.crypto import SigningKey
from penstock.guard import Effect, EventRequest, decide
from penstock.guard.roles import ActiveRoles, RoleAuthority
from penstock.model import AttributeDefinition, AttributeSpec, Kind, TypeDefinition, TypeName
from penstock.model.principals import Principal
from penstock.roles.engine import (
    ActivateRole,
    Appoint,
    DeactivateRole,
    OpenSession,
    RoleEngine,
    WithdrawAppointment,
)
from penstock.roles.language import read_policy
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType, sign_type, verify_type

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
OWNER = SigningKey(b"o" * 32)
FEW, MANY, PEER = 10, 10_000, 1_000
#: types of events: role i can read type i modulo so many
TYPES = 10

CASBIN = """
[request_definition]
r = sub, obj, act
[policy_definition]
p = sub, obj, act
[role_definition]
g = _, _
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = g(r.sub, p.sub) && r.obj == p.obj && r.act == p.act
"""


def run() -> list[Result]:
    few, many = loaded(FEW), loaded(MANY)
    return [activations(few, many), decisions(few, many), cascade(), against_casbin()]


def who(number: int) -> Principal:
    return Principal(number.to_bytes(32, "big"))


def loaded(roles: int) -> RoleEngine:
    """Return an engine with so many roles, each of them active for one user."""
    lines = ["role base; appointment employed; activate base if appointment employed *;"]
    lines += [
        (
            f"role r{number}(area: string); appointment a{number}(area: string);"
            f"activate r{number}(x) if role base *, appointment a{number}(x) *;"
            f"allow r{number}(x) to subscribe self/bench.T{number % TYPES}(*, area = x);"
        )
        for number in range(roles)
    ]
    engine = RoleEngine(read_policy("\n".join(lines)), OWNER.principal)
    engine.advance(NOW)
    for number in range(roles):
        engine.apply(OpenSession(f"s{number}", who(number)))
        engine.apply(Appoint("employed", who(number), OWNER.principal))
        engine.apply(ActivateRole(f"s{number}", "base"))
        engine.apply(Appoint(f"a{number}", who(number), OWNER.principal, (f"x{number}",)))
        engine.apply(ActivateRole(f"s{number}", f"r{number}", (f"x{number}",)))
    return engine


def types() -> list[VerifiedType]:
    attributes = (AttributeDefinition("area", "1", AttributeSpec(Kind.STRING)),)
    made = [TypeDefinition(TypeName(OWNER.principal, f"bench.T{number}"), attributes) for number in range(TYPES)]
    return [verify_type(sign_type(one, OWNER), NOW) for one in made]


def activations(few: RoleEngine, many: RoleEngine) -> Result:
    def cycle_of(engine: RoleEngine, roles: int) -> Callable[[], object]:
        numbers = cycle(range(0, roles, max(1, roles // 100)))

        def once() -> None:
            number = next(numbers)
            session, role = f"s{number}", f"r{number}"
            active = engine.active(who(number))[-1]
            engine.apply(DeactivateRole(active.id))
            engine.apply(ActivateRole(session, role, (f"x{number}",)))

        return once

    small, large = seconds(cycle_of(few, FEW), cycle_of(many, MANY), repeat=500)
    detail = f"{1 / small:,.0f}/s with {FEW} roles, {1 / large:,.0f}/s with {MANY:,}; each with its deactivation"
    return at_most("roles: activations with 10,000 roles against 10", large / small, 2.0, detail)


def decisions(few: RoleEngine, many: RoleEngine) -> Result:
    verified = types()

    def asking(engine: RoleEngine, roles: int) -> Callable[[], object]:
        authorities = [RoleAuthority(ActiveRoles(engine), frozenset({OWNER.principal}))]
        users = range(0, roles, max(1, roles // 1_000))
        requests = cycle(
            [EventRequest(who(one), Right.SUBSCRIBE, verified[(one + one // 7 % 2) % TYPES], NOW) for one in users]
        )
        return lambda: decide(next(requests), authorities)

    small, large = seconds(asking(few, FEW), asking(many, MANY), repeat=2_000)
    detail = f"{1 / small:,.0f}/s with {FEW} roles, {1 / large:,.0f}/s with {MANY:,} roles and 1,000 users in turn"
    return at_most("roles: decisions with 10,000 roles against 10", large / small, 2.0, detail)


def cascade() -> Result:
    """Withdraw one of many appointments, with the two roles that rely on it."""

    def appointed(count: int) -> RoleEngine:
        engine = RoleEngine(
            read_policy(
                """role first(n: integer); role second(n: integer); appointment a(n: integer);
                activate first(n) if appointment a(n) *;
                activate second(n) if role first(n) *;"""
            ),
            OWNER.principal,
        )
        engine.advance(NOW)
        for number in range(count):
            engine.apply(OpenSession(f"s{number}", who(number)))
            engine.apply(Appoint("a", who(number), OWNER.principal, (number,)))
            engine.apply(ActivateRole(f"s{number}", "first", (number,)))
            engine.apply(ActivateRole(f"s{number}", "second", (number,)))
        return engine

    few, many = appointed(1_000), appointed(100_000)
    samples: dict[int, list[float]] = {1_000: [], 100_000: []}
    for step in range(300):
        for engine, count in ((few, 1_000), (many, 100_000)):
            # The record of a user's appointment: three records for each.
            change = WithdrawAppointment(str(1 + 3 * (step * (count // 300))), OWNER.principal)
            begun = time.perf_counter()
            ended = engine.apply(change).ended
            samples[count].append(time.perf_counter() - begun)
            if len(ended) != 3:
                raise AssertionError(f"{len(ended)} records ended")
    small, large = (statistics.median(samples[count]) for count in (1_000, 100_000))
    detail = f"{microseconds(small)} among 1,000, {microseconds(large)} among 100,000; three records end each time"
    return at_most("roles: revoke one of 100,000 appointments against one of 1,000", large / small, 3.0, detail)


def against_casbin() -> Result:
    title = f"roles: decisions with {PEER:,} roles against casbin"
    engine, verified = loaded(PEER), types()
    authorities = [RoleAuthority(ActiveRoles(engine), frozenset({OWNER.principal}))]
    asked = [(number, (number + number % 2) % TYPES) for number in range(0, PEER, 10)]
    requests = [EventRequest(who(user), Right.SUBSCRIBE, verified[kind], NOW) for user, kind in asked]
    try:
        import casbin  # type: ignore[import-untyped]  # noqa: PLC0415  # the peer may be missing, and ships no types
    except ImportError:
        return observed(title, 0.0, "casbin is not installed")
    model = casbin.Model()
    model.load_model_from_text(CASBIN)
    enforcer = casbin.Enforcer(model)
    for number in range(PEER):
        enforcer.add_policy(f"r{number}", f"T{number % TYPES}", "subscribe")
        enforcer.add_grouping_policy(f"u{number}", f"r{number}")
    for (user, kind), request in zip(asked, requests, strict=True):
        theirs = bool(enforcer.enforce(f"u{user}", f"T{kind}", "subscribe"))
        if theirs is not (decide(request, authorities).effect is Effect.PERMIT):
            raise AssertionError(f"user {user} and type {kind}: casbin says {theirs}")
    turns, peer_turns = cycle(requests), cycle(asked)

    def peer() -> object:
        user, kind = next(peer_turns)
        return enforcer.enforce(f"u{user}", f"T{kind}", "subscribe")

    ours, theirs_ = seconds(lambda: decide(next(turns), authorities), peer, repeat=20, rounds=5)
    detail = f"{1 / ours:,.0f}/s and {1 / theirs_:,.0f}/s; the same answers to {len(asked)} questions"
    return at_least(title, theirs_ / ours, 20.0, detail)
