"""Sessions, appointments, facts and time: what activates a role, and what ends it."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from penstock.codec.sexp import canonical
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.model.principals import Principal
from penstock.model.values import Scalar
from penstock.roles import engine as engine_module
from penstock.roles.engine import (
    AcceptCredential,
    ActivateRole,
    Appoint,
    CredentialRecord,
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
    SetFact,
    WithdrawAppointment,
    change_from_sexp,
)
from penstock.roles.language import CredentialKind, read_policy

MET, COURT = Principal(b"m" * 32), Principal(b"c" * 32)
SMITH, JONES = Principal(b"s" * 32), Principal(b"j" * 32)
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
POLICY = """
domain court;
role detective; role tracker(plate: string); role chief(ward: string); role helper;
appointment court_order(case: string, plate: string) by court;
appointment badge(number: integer);
appointment loan(number: integer);
fact assigned(who: principal, case: string);
fact alert: integer;

activate detective if appointment badge(_) *;
activate tracker(p) if role detective *, appointment court_order(c, p) by court *, fact assigned(principal, c) *;
activate helper if role detective;
activate chief(w) if appointment badge(_), where w IN ('a', 'b') *, where hour BETWEEN 8 AND 17 *;
activate chief('x') if where alert > 3 *;

allow tracker(p) to subscribe self/uk.Numberplate(location, plate = p);
allow chief(_) to appoint badge(7) if where hour < 15;
allow chief(_) to withdraw badge(_);
separate static badge(n), loan(n);
limit chief(w) to 1;
"""


def started(text: str = POLICY, **options: object) -> RoleEngine:
    engine = RoleEngine(read_policy(text), MET, {"court": COURT}, **options)  # type: ignore[arg-type]
    engine.advance(NOON)
    return engine


def issued(engine: RoleEngine, change: RoleChange) -> CredentialRecord:
    record = engine.apply(change).record
    assert record is not None
    return record


def refused(engine: RoleEngine, change: RoleChange) -> str:
    before = [*engine.records()], engine.sessions()
    with pytest.raises(PenstockError) as checked:
        engine.check(change)
    with pytest.raises(PenstockError) as applied:
        engine.apply(change)
    assert checked.value.code == applied.value.code
    assert ([*engine.records()], engine.sessions()) == before
    return applied.value.code


def order(record: str = "1", until: datetime | None = None) -> AcceptCredential:
    kind = CredentialKind.APPOINTMENT
    return AcceptCredential(ForeignCredential(COURT, record, kind, "court_order", SMITH, ("C7", "AB 1"), until))


@pytest.fixture
def tracking() -> RoleEngine:
    """An engine in which Smith tracks a numberplate."""
    engine = started()
    engine.apply(OpenSession("s", SMITH))
    engine.apply(Appoint("badge", SMITH, MET, (7,)))
    engine.apply(ActivateRole("s", "detective"))
    engine.apply(order())
    engine.apply(SetFact("assigned", True, (str(SMITH), "C7")))
    assert issued(engine, ActivateRole("s", "tracker", ("AB 1",))).arguments == ("AB 1",)
    return engine


def due_of(engine: RoleEngine) -> datetime | None:
    return engine.next_due


def names(engine: RoleEngine, who: Principal = SMITH) -> list[str]:
    return [record.name for record in engine.active(who)]


def test_the_record_says_what_was_relied_on(tracking: RoleEngine) -> None:
    record = tracking.active(SMITH)[1]
    assert (record.session, record.principal, record.since) == ("s", SMITH, NOON)
    assert [one.key[0] for one in record.relies_on] == ["credential", "credential", "fact"]
    assert all(one.member for one in record.relies_on)
    assert record.relies_on[1].key == ("credential", COURT, "1")


def test_privileges_have_the_role_s_values(tracking: RoleEngine) -> None:
    [held] = tracking.privileges(SMITH)
    assert isinstance(held.privilege, GroundEventPrivilege)
    assert held.privilege.owner == MET
    assert held.privilege.forced == (("plate", "AB 1"),)
    assert tracking.privileges(JONES) == ()


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (DropCredential(COURT, "1"), ["detective"]),
        (SetFact("assigned", False, (str(SMITH), "C7")), ["detective"]),
        (SetFact("assigned", None, (str(SMITH), "C7")), ["detective"]),
        (DeactivateRole("2"), []),
        (EndSession("s"), []),
        (WithdrawAppointment("1", MET), []),
        (SetFact("assigned", False, (str(JONES), "C7")), ["detective", "tracker"]),
        (DropCredential(COURT, "2"), ["detective", "tracker"]),
    ],
)
def test_what_ends_a_role(tracking: RoleEngine, change: RoleChange, left: list[str]) -> None:
    tracking.apply(RelyOnRecord("3", COURT))
    outcome = tracking.apply(change)
    assert names(tracking) == left
    assert outcome.notices == (() if "tracker" in left else ((COURT, "3"),))
    assert (SMITH in outcome.affected) is ("tracker" not in left)


def test_a_condition_without_a_mark_is_needed_only_once() -> None:
    engine = started()
    engine.apply(OpenSession("s", SMITH))
    engine.apply(Appoint("badge", SMITH, MET, (7,)))
    engine.apply(ActivateRole("s", "detective"))
    engine.apply(ActivateRole("s", "helper"))
    engine.apply(WithdrawAppointment("1", MET))
    assert names(engine) == ["helper"]
    assert refused(engine, ActivateRole("s", "detective")) == "role.denied"


def test_a_role_that_was_revoked_does_not_come_back(tracking: RoleEngine) -> None:
    tracking.apply(SetFact("assigned", False, (str(SMITH), "C7")))
    tracking.apply(SetFact("assigned", True, (str(SMITH), "C7")))
    assert names(tracking) == ["detective"]
    tracking.apply(ActivateRole("s", "tracker", (None,)))
    assert names(tracking) == ["detective", "tracker"]


def test_a_prerequisite_role_is_active_in_the_same_session(tracking: RoleEngine) -> None:
    tracking.apply(OpenSession("t", SMITH))
    assert refused(tracking, ActivateRole("t", "helper")) == "role.denied"
    tracking.apply(ActivateRole("s", "helper"))


def test_activating_twice_is_activating_once(tracking: RoleEngine) -> None:
    outcome = tracking.apply(ActivateRole("s", "tracker", ("AB 1",)))
    assert outcome.record == tracking.record("3")
    assert outcome.affected == frozenset()


def test_credentials_expire_and_the_time_is_known() -> None:
    engine = started(history=True)
    until = NOON + timedelta(hours=1)
    engine.apply(OpenSession("s", SMITH))
    engine.apply(Appoint("badge", SMITH, MET, (7,), until))
    assert issued(engine, ActivateRole("s", "detective")).until == until
    due = until + timedelta(microseconds=1)
    assert due_of(engine) == due
    assert engine.advance(until).ended == ()
    ended = engine.advance(NOON + timedelta(days=1)).ended
    assert [(one.record.name, one.ended) for one in ended] == [("badge", due), ("detective", due)]
    assert "expired" in ended[1].reason
    assert engine.ended() == ended
    assert due_of(engine) is None
    assert refused(engine, Appoint("badge", SMITH, MET, (7,), until)) == "role.expired"


def test_time_does_not_go_back() -> None:
    engine = started()
    engine.advance(NOON - timedelta(hours=1))
    assert engine.now == NOON


def chief(engine: RoleEngine, session: str, who: Principal, ward: Scalar, number: int) -> RoleChange:
    engine.apply(OpenSession(session, who))
    engine.apply(Appoint("badge", who, MET, (number,)))
    return ActivateRole(session, "chief", (ward,))


def test_a_marked_selector_is_monitored() -> None:
    engine = started()
    engine.apply(chief(engine, "s", SMITH, "a", 1))
    assert due_of(engine) == NOON.replace(hour=13)
    assert engine.advance(NOON.replace(hour=17, minute=59)).ended == ()
    [ended] = engine.advance(NOON + timedelta(days=2)).ended
    assert ended.ended == NOON.replace(hour=18)
    assert due_of(engine) is None


def test_hours_are_those_of_the_zone() -> None:
    engine = started(zone=ZoneInfo("Asia/Kathmandu"))
    # 17:45 there, and a quarter of an hour later 18:00.
    engine.apply(chief(engine, "s", SMITH, "a", 1))
    [ended] = engine.advance(NOON + timedelta(hours=1)).ended
    assert ended.ended == NOON + timedelta(minutes=15)


def test_facts_in_selectors_are_monitored() -> None:
    engine = started()
    engine.apply(OpenSession("s", SMITH))
    assert refused(engine, ActivateRole("s", "chief", ("x",))) == "role.denied"
    engine.apply(SetFact("alert", 4))
    engine.apply(ActivateRole("s", "chief", ("x",)))
    engine.apply(SetFact("alert", 5))
    assert names(engine) == ["chief"]
    engine.apply(SetFact("alert", None))
    assert names(engine) == []


def test_cardinality_is_counted_over_all_sessions() -> None:
    engine = started()
    engine.apply(chief(engine, "s", SMITH, "a", 1))
    other = chief(engine, "t", JONES, "a", 2)
    assert refused(engine, other) == "role.cardinality"
    engine.apply(ActivateRole("t", "chief", ("b",)))
    # The same principal counts once.
    engine.apply(OpenSession("u", SMITH))
    engine.apply(ActivateRole("u", "chief", ("a",)))
    engine.apply(EndSession("s"))
    assert refused(engine, other) == "role.cardinality"
    engine.apply(EndSession("u"))
    engine.apply(other)


def test_static_separation_is_about_appointments() -> None:
    engine = started()
    engine.apply(Appoint("badge", SMITH, MET, (1,)))
    assert refused(engine, Appoint("loan", SMITH, MET, (1,))) == "role.separated"
    engine.apply(Appoint("loan", SMITH, MET, (2,)))
    engine.apply(Appoint("loan", JONES, MET, (1,)))


def test_appointing_is_a_privilege() -> None:
    engine = started()
    assert refused(engine, Appoint("badge", JONES, SMITH, (7,))) == "role.not-appointer"
    engine.apply(chief(engine, "s", SMITH, "a", 1))
    assert refused(engine, Appoint("badge", JONES, SMITH, (8,))) == "role.not-appointer"
    record = issued(engine, Appoint("badge", JONES, SMITH, (7,)))
    assert record.appointer == SMITH
    engine.advance(NOON.replace(hour=15))
    assert refused(engine, Appoint("badge", JONES, SMITH, (7,))) == "role.not-appointer"
    assert refused(engine, WithdrawAppointment(record.id, JONES)) == "role.not-appointer"
    engine.apply(WithdrawAppointment(record.id, SMITH))


def test_foreign_credentials() -> None:
    engine = started()
    engine.apply(order())
    engine.apply(order())
    assert refused(engine, order(until=NOON + timedelta(hours=1))) == "role.credential"
    assert refused(engine, order("2", NOON - timedelta(hours=1))) == "role.expired"
    own = ForeignCredential(MET, "9", CredentialKind.APPOINTMENT, "badge", SMITH, (1,))
    assert refused(engine, AcceptCredential(own)) == "role.own-credential"
    assert refused(engine, DropCredential(MET, "9")) == "role.own-credential"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (OpenSession("s", JONES), "role.session"),
        (OpenSession("", JONES), "role.session"),
        (OpenSession("x" * 200, JONES), "role.session"),
        (EndSession("none"), "role.session"),
        (ActivateRole("none", "detective"), "role.session"),
        (ActivateRole("s", "nobody"), "role.unknown"),
        (ActivateRole("s", "tracker"), "role.arity"),
        (ActivateRole("s", "tracker", (1,)), "role.kind"),
        (DeactivateRole("99"), "role.no-record"),
        (DeactivateRole("1"), "role.no-record"),
        (WithdrawAppointment("2", MET), "role.no-record"),
        (RelyOnRecord("99", COURT), "role.no-record"),
        (Appoint("court_order", SMITH, MET, ("a", "b")), "role.unknown"),
        (SetFact("unknown", True), "role.unknown"),
        (SetFact("alert", "high"), "value.kind"),
        (SetFact("alert", 1, ("a",)), "role.arity"),
        (SetFact("assigned", 1, (str(SMITH), "C7")), "role.kind"),
        (SetFact("assigned", True, ("nobody", "C7")), "role.kind"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(tracking: RoleEngine, change: RoleChange, code: str) -> None:
    assert refused(tracking, change) == code


def test_privileges_can_take_values_from_facts() -> None:
    engine = started(
        """role doctor; fact consent(patient: string, who: principal); fact open: boolean;
        activate doctor if where hour > 0;
        allow doctor to subscribe self/h.Chart(*, patient = p)
            if fact consent(p, principal), where open OR hour > 20;"""
    )
    engine.apply(OpenSession("s", SMITH))
    engine.apply(ActivateRole("s", "doctor"))
    before = engine.version(SMITH)
    for patient in ("ann", "bob"):
        assert SMITH in engine.apply(SetFact("consent", True, (patient, str(SMITH)))).affected
    assert engine.apply(SetFact("consent", True, ("cid", str(JONES)))).affected == frozenset()
    assert engine.version(SMITH) > before
    held = engine.privileges(SMITH)
    assert [one.privilege.forced for one in held if isinstance(one.privilege, GroundEventPrivilege)] == [
        (("patient", "ann"),),
        (("patient", "bob"),),
    ]
    assert held[0].when.text == "NULL OR hour > 20"
    engine.apply(SetFact("open", True))
    engine.apply(SetFact("consent", False, ("ann", str(SMITH))))
    assert len(engine.privileges(SMITH)) == 1


def test_predicates_are_bound_to_attributes_values_and_constants() -> None:
    engine = started(
        """role ward(name: string);
        predicate near(place: string, home: string, most: integer, speed: integer) is place = home AND speed < most;
        activate ward(w) if where w = 'a';
        allow ward(w) to subscribe self/h.Vitals where .level > 1 matching near(.location, w, 30, .speed);"""
    )
    engine.apply(OpenSession("s", SMITH))
    engine.apply(ActivateRole("s", "ward", ("a",)))
    [held] = engine.privileges(SMITH)
    assert isinstance(held.privilege, GroundEventPrivilege)
    assert held.privilege.where.text == '"event.level" > 1 AND "event.location" = \'a\' AND "event.speed" < 30'


def test_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "SEARCH_STEPS", 50)
    engine = started(
        """role a; fact f(x: integer); fact g(x: integer);
        activate a if fact f(x), fact f(y), fact g(x);"""
    )
    engine.apply(OpenSession("s", SMITH))
    for number in range(20):
        engine.apply(SetFact("f", True, (number,)))
    with pytest.raises(LimitError) as caught:
        engine.apply(ActivateRole("s", "a"))
    assert caught.value.code == "role.search"


def test_a_domain_without_a_principal_is_refused() -> None:
    with pytest.raises(MalformedError) as caught:
        RoleEngine(read_policy("domain court;"), MET)
    assert caught.value.code == "role.unknown-domain"


def test_changes_have_one_written_form() -> None:
    change = Appoint("badge", SMITH, MET, (7, "x", True, 1.5, NOON), NOON)
    assert change_from_sexp(change.to_sexp()) == change
    assert canonical(change.to_sexp())
    for bad in ((b"nothing",), (b"end-session",), (b"end-session", (b"session", b"s"), (b"more",))):
        with pytest.raises(MalformedError) as caught:
            change_from_sexp(bad)
        assert caught.value.code == "role.record"


def test_errors_in_a_selector_are_not_true() -> None:
    engine = started("role a; fact n: integer;\nactivate a if where 1 / n > 0 *;")
    engine.apply(OpenSession("s", SMITH))
    engine.apply(SetFact("n", 0))
    with pytest.raises(RefusedError):
        engine.apply(ActivateRole("s", "a"))
    engine.apply(SetFact("n", 1))
    engine.apply(ActivateRole("s", "a"))
    engine.apply(SetFact("n", 0))
    assert names(engine) == []


def test_a_policy_is_replaced_and_what_fits_stays(tracking: RoleEngine) -> None:
    tracking.apply(ActivateRole("s", "helper"))
    tracking.apply(RelyOnRecord("3", COURT))
    same = tracking.apply(ReplacePolicy("# the same\n" + POLICY, (("court", COURT),)))
    assert same.ended == ()
    assert names(tracking) == ["detective", "tracker", "helper"]
    assert len(tracking.privileges(SMITH)) == 1
    # Monitored as before.
    tracking.apply(SetFact("alert", 4))
    other = POLICY.replace("fact assigned(principal, c) *;", "fact assigned(principal, c);")
    before = tracking.version(SMITH)
    changed = tracking.apply(ReplacePolicy(other, (("court", COURT),)))
    assert [one.record.name for one in changed.ended] == ["tracker"]
    assert changed.notices == ((COURT, "3"),)
    assert SMITH in changed.affected
    assert tracking.version(SMITH) > before
    assert tracking.fact("alert") == 4
    assert tracking.privileges(SMITH) == ()
    record = issued(tracking, ActivateRole("s", "tracker", ("AB 1",)))
    assert record.id == "5"
    tracking.apply(SetFact("assigned", False, (str(SMITH), "C7")))
    assert "tracker" in names(tracking)
    tracking.apply(WithdrawAppointment("1", MET))
    assert names(tracking) == ["helper"]


def test_a_policy_without_an_appointment_ends_what_relies_on_it(tracking: RoleEngine) -> None:
    other = POLICY.replace("badge(number: integer)", "badge(number: string)").replace("badge(7)", "badge('7')")
    other = other.replace("loan(number: integer)", "loan(number: string)")
    ended = tracking.apply(ReplacePolicy(other, (("court", COURT),))).ended
    assert [one.record.name for one in ended] == ["badge", "detective", "tracker"]
    assert all("the policy has changed" in one.reason for one in ended)
    tracking.advance(NOON + timedelta(days=1))


def test_a_policy_with_a_mistake_changes_nothing(tracking: RoleEngine) -> None:
    assert refused(tracking, ReplacePolicy("role a", ())) == "role.syntax"
    assert refused(tracking, ReplacePolicy(POLICY, ())) == "role.unknown-domain"
    assert names(tracking) == ["detective", "tracker"]


def test_selectors_and_limits_are_looked_at_again() -> None:
    engine = started()
    engine.apply(chief(engine, "s", SMITH, "a", 1))
    engine.apply(chief(engine, "t", JONES, "b", 2))
    ended = engine.apply(
        ReplacePolicy(POLICY.replace("limit chief(w) to 1", "limit chief(_) to 1"), (("court", COURT),))
    )
    assert [one.record.principal for one in ended.ended] == [JONES]
    [late] = engine.advance(NOON.replace(hour=19)).ended
    assert late.ended == NOON.replace(hour=18)
