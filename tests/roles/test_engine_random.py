"""The engine and the fixed point agree: over random policies, activations and retractions, in two domains."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.roles.naive import NaiveCredential, NaiveDomain, NaiveWorld

from penstock.codec.sexp import canonical, parse_canonical
from penstock.errors import RefusedError
from penstock.model.principals import Principal
from penstock.model.values import Scalar
from penstock.roles.engine import (
    AcceptCredential,
    ActivateRole,
    Appoint,
    DeactivateRole,
    DropCredential,
    EndSession,
    ForeignCredential,
    GroundEventPrivilege,
    OpenSession,
    RelyOnRecord,
    ReplacePolicy,
    RoleChange,
    RoleEngine,
    RoleImage,
    RoleOutcome,
    SetFact,
    WithdrawAppointment,
    change_from_sexp,
)
from penstock.roles.language import CredentialKind, format_policy, parse_policy, policy_problems, read_policy
from penstock.selector import evaluate

A, B = Principal(b"A" * 32), Principal(b"B" * 32)
PEOPLE = (Principal(b"p" * 32), Principal(b"q" * 32))
START = datetime(2026, 3, 2, 6, tzinfo=UTC)
VALUES = ("a", "b")
DECLARED = """
domain other;
role r0(x: string); role r1(x: string); role r2; role r3(x: string);
role r0(x: string) by other;
appointment a0(x: string); appointment a1(x: string);
appointment a0(x: string) by other;
fact f0(who: principal, x: string); fact f1(x: string);
fact level: integer; fact flag: boolean;
allow r0(x) to subscribe self/t.A(*, v = x);
allow r0('a') to subscribe self/t.B(*, v = x) if fact f1(x);
allow r1(x) to subscribe self/t.C(*, v = y) if fact f1(y), where flag AND x <> 'b';
allow r2 to subscribe self/t.D if where level > 1 AND hour < 12;
allow r3(_) to subscribe self/t.E(*, v = y) if fact f0(principal, y), fact f1(y), where minute < 30;
"""

SELECTORS = (
    "x = 'a'",
    "x <> 'b' OR level > 2",
    "hour BETWEEN 7 AND 17",
    "flag",
    "level >= 1 AND flag",
    "weekday < 4",
    "time < TIMESTAMP '2026-03-02 12:00:00'",
    "minute < 30",
    "x = 'a' AND hour < 12",
    "NOT flag",
)
BOUNDS = (
    "separate dynamic r0, r1;",
    "separate dynamic r1(x), r3(x);",
    "separate static a0(x), a1(x);",
    "limit r0(x) to 1;",
    "limit r1(_) to 1;",
)


def random_condition(chance: Random) -> str:
    term = chance.choice(["x", "x", "x", "y", "'a'", "_"])
    found = chance.choice(
        [
            f"role r{chance.choice([0, 1, 3])}({term})",
            "role r2",
            f"role r0({term}) by other",
            f"appointment a{chance.randint(0, 1)}({term})",
            f"appointment a0({term}) by other",
            f"fact f0(principal, {term})",
            f"fact f1({term})",
            f"where {chance.choice(SELECTORS)}",
        ]
    )
    return found + chance.choice(["", " *", " *"])


def random_policy(chance: Random, before: str = "") -> str:
    """Return a policy without mistakes; rules that have one are left out. It has most rules of one `before` it."""
    found = DECLARED
    for line in before.splitlines():
        if line.startswith("activate") and chance.random() < 0.7:
            found += f"{line}\n"
    policy = parse_policy(found)
    while len(policy.activations()) < 6:
        head = chance.choice(["r0(x)", "r0(x)", "r1(x)", "r2", "r3('a')", "r3(x)"])
        conditions = [random_condition(chance) for _ in range(chance.choice([1, 1, 2, 2, 3]))]
        rule = f"activate {head} if {', '.join(conditions)};\n"
        # To read all statements again for each rule would take most of the test's time.
        more = replace(policy, statements=policy.statements + parse_policy(rule).statements)
        if not policy_problems(more):
            policy, found = more, found + rule
    return found + "\n".join(chance.sample(BOUNDS, chance.choice([0, 0, 1, 2])))


def random_operation(chance: Random) -> tuple[object, ...]:
    value, truth = chance.choice(VALUES), chance.choice([True, True, True, False, None])
    who, session = chance.randint(0, 1), chance.randint(0, 2)
    role = chance.choice(["r0", "r1", "r2", "r3"])
    operations: list[tuple[int, tuple[object, ...]]] = [
        (30, ("activate", session, role, chance.choice([*VALUES, None]))),
        (4, ("open", session, who)),
        (1, ("end", session)),
        (2, ("deactivate", chance.randint(0, 20))),
        (8, ("appoint", who, chance.choice(["a0", "a1"]), value, chance.randint(0, 9))),
        (2, ("withdraw", chance.randint(0, 20))),
        (8, ("f0", who, value, truth)),
        (6, ("f1", value, truth)),
        (3, ("level", chance.choice([0, 1, 3, None]))),
        (3, ("flag", chance.choice([True, True, False, None]))),
        (4, ("time", chance.choice([1, 2, 5, 40]))),
        (6, ("present", chance.randint(0, 20))),
        (4, ("replace", chance.getrandbits(32))),
    ]
    return chance.choices([one for _, one in operations], [weight for weight, _ in operations])[0]


class Pair:
    """Two domains, each as an engine and as the oracle, which are driven together."""

    def __init__(self, first: str, second: str) -> None:
        self.world = NaiveWorld(START)
        self.engines: dict[Principal, RoleEngine] = {}
        self.changes: dict[Principal, list[tuple[datetime, RoleChange]]] = {A: [], B: []}
        self.founded = {A: read_policy(first), B: read_policy(second)}
        for me, other, text in ((A, B, first), (B, A, second)):
            policy = read_policy(text)
            self.engines[me] = RoleEngine(policy, me, {"other": other})
            self.engines[me].advance(START)
            self.world.domains[me] = NaiveDomain(self.world, policy, me, {"self": me, "other": other})

    def apply(self, domain: Principal, change: RoleChange) -> RoleOutcome:
        engine = self.engines[domain]
        assert change_from_sexp(change.to_sexp()) == change
        outcome = engine.apply(change)
        self.changes[domain].append((engine.now, change))
        self.notify(domain, outcome)
        return outcome

    def notify(self, domain: Principal, outcome: RoleOutcome) -> None:
        for other, record in outcome.notices:
            self.apply(other, DropCredential(domain, record))

    def advance(self, now: datetime) -> None:
        # Two services: each processes what is due in its turn, in the order of time.
        while True:
            due = [engine.next_due for engine in self.engines.values()]
            first = min((when for when in due if when is not None and when <= now), default=None)
            if first is None:
                break
            for me in self.engines:
                self.notify(me, self.engines[me].advance(first))
        for me in self.engines:
            self.notify(me, self.engines[me].advance(now))
        self.world.advance(now)

    def step(self, domain: Principal, operation: tuple[object, ...]) -> None:  # one case each
        naive = self.world.domains[domain]
        other = B if domain == A else A
        match operation:
            case ("open", int(session), int(who)):
                name = f"s{session}"
                if name not in naive.sessions:
                    naive.sessions[name] = PEOPLE[who]
                    self.apply(domain, OpenSession(name, PEOPLE[who]))
            case ("end", int(session)):
                if naive.sessions.pop(f"s{session}", None) is not None:
                    self.world.settle()
                    self.apply(domain, EndSession(f"s{session}"))
            case ("activate", int(session), str(role), None | str() as value):
                if f"s{session}" in naive.sessions:
                    self.activate(domain, f"s{session}", role, () if role == "r2" else (value,))
            case ("deactivate", int(index)):
                roles = [one for one in naive.held if one.session]
                if roles:
                    found = roles[index % len(roles)]
                    naive.held.remove(found)
                    self.world.settle()
                    self.apply(domain, DeactivateRole(found.id))
            case ("appoint", int(who), str(name), str(value), int(hours)):
                holder = PEOPLE[who]
                until = None if hours == 0 else naive.world.now + timedelta(minutes=30 * hours)
                change = Appoint(name, holder, domain, (value,), until)
                if naive.separated(holder, CredentialKind.APPOINTMENT, name, (value,)):
                    self.refused(domain, change, "role.separated")
                else:
                    self.apply(domain, change)
                    kind = CredentialKind.APPOINTMENT
                    naive.held.append(NaiveCredential(naive.next_id(), kind, domain, name, (value,), holder, until))
            case ("withdraw", int(index)):
                found_all = [one for one in naive.held if one.kind == "appointment" and one.issuer == domain]
                if found_all:
                    found = found_all[index % len(found_all)]
                    naive.held.remove(found)
                    self.world.settle()
                    self.apply(domain, WithdrawAppointment(found.id, domain))
            case ("f0", int(who), str(value), (None | bool()) as truth):
                arguments = (str(PEOPLE[who]), value)
                self.lookup(domain, "f0", arguments, truth)
            case ("f1", str(value), (None | bool()) as truth):
                self.lookup(domain, "f1", (value,), truth)
            case ("level" | "flag" as name, (None | bool() | int()) as value):
                naive.values[name] = value
                self.world.settle()
                self.apply(domain, SetFact(name, value))
            case ("time", int(quarters)):
                self.advance(self.world.now + quarters * timedelta(minutes=15))
            case ("present", int(index)):
                self.present(domain, other, index)
            case ("replace", int(seed)):
                text = random_policy(Random(seed), naive.policy.source)  # noqa: S311  # not a secret
                naive.replace(read_policy(text))
                self.world.settle()
                self.apply(domain, ReplacePolicy(text, (("other", other),)))

    def activate(self, domain: Principal, session: str, role: str, wanted: tuple[Scalar, ...]) -> None:
        naive = self.world.domains[domain]
        principal = naive.sessions[session]
        change = ActivateRole(session, role, wanted)
        for one in naive.held:
            same = (one.session, one.name) == (session, role)
            if same and all(w is None or w == v for w, v in zip(wanted, one.arguments, strict=True)):
                assert self.apply(domain, change).record == self.engines[domain].record(one.id)
                return
        found = naive.activate(session, role, wanted)
        if found is None:
            self.refused(domain, change, "role.denied")
        elif naive.separated(principal, CredentialKind.ROLE, role, found[0]):
            self.refused(domain, change, "role.separated")
        elif naive.full(principal, role, found[0]):
            self.refused(domain, change, "role.cardinality")
        else:
            arguments, relied, rule = found
            untils = [
                one.until
                for member, key in relied
                for one in naive.held
                if member and key == ("credential", one.issuer, one.id)
            ]
            until = min((one for one in untils if one is not None), default=None)
            kept = tuple(key for member, key in relied if member)
            naive.held.append(
                NaiveCredential(
                    naive.next_id(), CredentialKind.ROLE, domain, role, arguments, principal, until, session, kept, rule
                )
            )
            assert self.apply(domain, change).record is not None

    def lookup(self, domain: Principal, name: str, arguments: tuple[str, ...], truth: bool | None) -> None:
        naive = self.world.domains[domain]
        if naive.lookups.get((name, arguments)) is not True or truth is not True:
            naive.lookups.pop((name, arguments), None)
            naive.lookups[name, arguments] = truth
        self.world.settle()
        self.apply(domain, SetFact(name, truth, arguments))

    def present(self, domain: Principal, other: Principal, index: int) -> None:
        """Present a credential of the other domain."""
        naive = self.world.domains[domain]
        theirs = [one for one in self.world.domains[other].held if one.issuer == other and one.name in ("r0", "a0")]
        if not theirs:
            return
        found = theirs[index % len(theirs)]
        shown = ForeignCredential(
            other, found.id, found.kind, found.name, found.principal, found.arguments, found.until
        )
        change = AcceptCredential(shown)
        if any((one.issuer, one.id) == (other, found.id) for one in naive.held):
            self.apply(domain, change)
            return
        self.apply(other, RelyOnRecord(found.id, domain))
        self.apply(domain, change)
        naive.held.append(
            NaiveCredential(found.id, found.kind, other, found.name, found.arguments, found.principal, found.until)
        )

    def refused(self, domain: Principal, change: RoleChange, code: str) -> None:
        before = [*self.engines[domain].records()]
        with pytest.raises(RefusedError) as caught:
            self.engines[domain].apply(change)
        assert caught.value.code == code
        assert [*self.engines[domain].records()] == before

    def compare(self) -> None:
        for me, engine in self.engines.items():
            naive = self.world.domains[me]
            expected = {(one.issuer, one.id, one.name, one.arguments, one.principal, one.until) for one in naive.held}
            found = {(o.issuer, o.id, o.name, o.arguments, o.principal, o.until) for o in engine.records()}
            assert found == expected
            assert engine.sessions() == naive.sessions
            for who in PEOPLE:
                held = [one for one in engine.privileges(who) if evaluate(one.when, engine.moment()) is True]
                permitted = [one.privilege for one in held if isinstance(one.privilege, GroundEventPrivilege)]
                assert sorted((one.types, tuple(v for _, v in one.forced)) for one in permitted) == naive.privileges(
                    who
                )


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
@example(3672)  # a fact that was false once, two policies, and an image
def test_the_engine_and_the_fixed_point_agree(seed: int) -> None:
    chance = Random(seed)  # noqa: S311  # not a secret
    pair = Pair(random_policy(chance), random_policy(chance))
    for domain in (A, B):
        pair.step(domain, ("open", 0, 0))
        pair.step(domain, ("open", 1, 1))
        for beginning in (("flag", True), ("level", 3), ("f1", "a", True), ("f0", 0, "a", True), ("f0", 1, "b", True)):
            pair.step(domain, beginning)
        for who in (0, 1):
            pair.step(domain, ("appoint", who, "a0", "a", 0))
            pair.step(domain, ("appoint", who, "a1", "b", 9))
    for _ in range(85):
        pair.step(chance.choice([A, B]), random_operation(chance))
        pair.compare()
    for me, engine in pair.engines.items():
        # The same changes at the same times give the same state.
        again = RoleEngine(pair.founded[me], me, {"other": B if me == A else A})
        again.advance(START)
        again.fold(pair.changes[me])
        again.advance(engine.now)
        assert [*again.records()] == [*engine.records()]
        assert again.notices() == engine.notices()
        # So does a written image, also for everything that follows.
        written = canonical(engine.image().to_sexp())
        image = RoleImage.from_sexp(parse_canonical(written)).engine(me)
        assert canonical(image.image().to_sexp()) == written
        pair.engines[me] = image
    for _ in range(20):
        pair.step(chance.choice([A, B]), random_operation(chance))
        pair.compare()


@given(st.integers(0, 2**32))
def test_what_is_written_reads_the_same(seed: int) -> None:
    policy = read_policy(random_policy(Random(seed)))  # noqa: S311  # not a secret
    written = format_policy(policy)
    assert read_policy(written) == policy
    assert format_policy(read_policy(written)) == written
