"""Active roles as a source of authority: the paper's detective, what must not count, and roles of the past."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.guard.london import (
    LOCATION,
    MALLORY,
    MET,
    NETWORK,
    NOW,
    PITO,
    PLATE,
    SMITH,
    SUSPECT,
    TIMESTAMP,
    TYPE,
    V4799,
    V8516,
    transit,
)

from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.guard import Decision, Delivery, Effect, EventRequest, NetworkRequest, decide, environment
from penstock.guard.enforce import Rules
from penstock.guard.roles import ActiveRoles, RoleAuthority, RoleHistory
from penstock.model.values import Scalar
from penstock.roles.engine import (
    ActivateRole,
    Appoint,
    DeactivateRole,
    EndSession,
    OpenSession,
    RoleChange,
    RoleEngine,
    SetFact,
)
from penstock.roles.language import read_policy
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType

HERE = environment(NOW)
POLICY = """
role tracker(plate: string); role guest; role owner;
appointment order(plate: string);
fact assigned(who: principal);
fact open: boolean;
activate tracker(p) if appointment order(p) *, fact assigned(principal) *;
activate guest if where open *;
activate owner if fact assigned(principal);
"""
TRACK = "allow tracker(p) to subscribe self/uk.gov.pito.Numberplate(location, timestamp, numberplate = p);"


def engine_of(*rules: str) -> RoleEngine:
    engine = RoleEngine(read_policy(POLICY + "\n".join(rules)), PITO.principal)
    engine.advance(NOW)
    return engine


def tracking(*rules: str, until: datetime | None = None) -> RoleEngine:
    engine = engine_of(*rules)
    engine.apply(SetFact("assigned", True, (str(SMITH.principal),)))
    engine.apply(Appoint("order", SMITH.principal, PITO.principal, (SUSPECT,), until))
    engine.apply(OpenSession("s", SMITH.principal))
    engine.apply(ActivateRole("s", "tracker", (SUSPECT,)))
    engine.apply(ActivateRole("s", "owner"))
    return engine


def ask(
    engine: RoleEngine, right: Right = Right.SUBSCRIBE, who: SigningKey = SMITH, verified: VerifiedType = V8516
) -> Decision:
    authority = RoleAuthority(ActiveRoles(engine), frozenset({PITO.principal}))
    return decide(EventRequest(who.principal, right, verified, engine.now), [authority])


def test_the_detective_sees_one_car_until_the_order_ends() -> None:
    until = NOW + timedelta(days=1)
    decision = ask(tracking(TRACK, until=until))
    [branch] = decision.require().branches
    assert branch.attributes == frozenset({LOCATION, TIMESTAMP, PLATE})
    assert branch.forced == ((PLATE, SUSPECT),)
    assert (branch.when.validity.starts, branch.when.validity.ends) == (NOW, until)
    assert len(branch.because) == 2 + len(V8516.because)
    deliver = Delivery(decision.require(), TYPE)
    assert deliver(transit(), HERE) is not None
    assert deliver(transit("KT52 ABC"), HERE) is None


def test_withdrawing_a_condition_cuts_only_what_rests_on_it() -> None:
    engine = tracking(TRACK, "allow owner to publish self/uk.gov.pito.Numberplate;")
    authority = RoleAuthority(ActiveRoles(engine), frozenset({PITO.principal}))

    def effect(right: Right) -> Effect:
        return decide(EventRequest(SMITH.principal, right, V8516, engine.now), [authority]).effect

    assert effect(Right.SUBSCRIBE) is Effect.PERMIT
    engine.apply(SetFact("assigned", None, (str(SMITH.principal),)))
    assert effect(Right.SUBSCRIBE) is Effect.DENY
    assert effect(Right.PUBLISH) is Effect.PERMIT


def test_others_rights_and_types_are_refused() -> None:
    engine = tracking(TRACK)
    assert ask(engine, who=MALLORY).effect is Effect.DENY
    assert ask(engine, Right.PUBLISH).effect is Effect.DENY
    other = RoleAuthority(ActiveRoles(engine), frozenset({MET.principal}))
    assert decide(EventRequest(SMITH.principal, Right.SUBSCRIBE, V8516, NOW), [other]).effect is Effect.DENY
    with pytest.raises(RefusedError) as caught:
        ask(engine, Right.PUBLISH).require()
    assert "no active role lets" in caught.value.message


@pytest.mark.parametrize(
    ("scope", "effect"),
    [
        ("self/uk.gov.pito.Numberplate", Effect.PERMIT),
        ("self/uk.gov.*", Effect.PERMIT),
        ("below self/uk.gov.pito.Numberplate", Effect.PERMIT),
        (f"{PITO.principal}/uk.gov.pito.Numberplate", Effect.PERMIT),
        (f"{MET.principal}/uk.gov.pito.Numberplate", Effect.DENY),
        ("self/uk.gov.pito.Number", Effect.DENY),
        ("self/uk.com.*", Effect.DENY),
        ("below self/uk.gov.pito", Effect.DENY),
    ],
)
def test_scopes(scope: str, effect: Effect) -> None:
    assert ask(tracking(f"allow owner to subscribe {scope};")).effect is effect


def test_manage_includes_its_operations() -> None:
    engine = tracking("allow owner to manage self/uk.gov.pito.Numberplate;")
    assert ask(engine, Right.MANAGE_ADD).effect is Effect.PERMIT
    assert ask(engine, Right.ROUTE).effect is Effect.DENY
    narrow = tracking("allow owner to manage-add self/uk.gov.pito.Numberplate;")
    assert ask(narrow, Right.MANAGE_ADD).effect is Effect.PERMIT
    assert ask(narrow, Right.MANAGE).effect is Effect.DENY


def test_attributes_that_the_version_lacks() -> None:
    # The old version calls the attribute `license-plate`.
    decision = ask(tracking(TRACK), verified=V4799)
    assert (decision.effect, decision.errors[0].code) == (Effect.INDETERMINATE, "role.unknown-attribute")
    engine = tracking("allow owner to subscribe self/uk.gov.pito.Numberplate(location, numberplate);")
    [branch] = ask(engine, verified=V4799).require().branches
    assert branch.attributes == frozenset({LOCATION})


BLACK_BOX = """
predicate top(plate: string, place: string, most: integer);
allow tracker(p) to subscribe self/uk.gov.pito.Numberplate(location, timestamp) where .location <> 'Soho'
    matching top(p, .location, 50);
"""


def test_a_black_box_gets_attributes_role_parameters_and_constants() -> None:
    asked: list[dict[str, object]] = []
    logged: list[tuple[str, str, bool | None]] = []

    def top(values: Mapping[str, Scalar], given: Mapping[str, Scalar]) -> bool:
        asked.append(dict(values))
        assert "time" in given
        return values["place"] == "Victoria"

    restriction = ask(tracking(BLACK_BOX)).require()
    [branch] = restriction.branches
    [name] = branch.guards
    assert SUSPECT not in name
    assert name.startswith("top(most, place, plate)#")
    deliver = Delivery(restriction, TYPE, rules=Rules({"top": top}, on_guard=lambda *one: logged.append(one)))
    assert deliver(transit(), HERE) is not None
    assert asked == [{"plate": SUSPECT, "place": "Victoria", "most": 50}]
    assert deliver(transit(location="Vauxhall"), HERE) is None
    # The selector beside it decides first. A null is not shown to the predicate.
    asked.clear()
    assert deliver(transit(location="Soho"), HERE) is None
    assert deliver(transit(location=None), HERE) is None
    assert not asked
    assert [(one, held) for _, one, held in logged] == [(name, True), (name, False)]


@pytest.mark.parametrize("answer", [None, "yes", 1, "raises"])
def test_anything_but_true_refuses(answer: object) -> None:
    def top(_values: Mapping[str, Scalar], _given: Mapping[str, Scalar]) -> bool:
        if answer == "raises":
            raise ValueError
        return answer  # type: ignore[return-value]  # as functions do

    held: list[bool | None] = []
    problems: list[str] = []
    rules = Rules(
        {} if answer is None else {"top": top},
        on_problem=lambda code, _: problems.append(code),
        on_guard=lambda _event, _guard, result: held.append(result),
    )
    assert Delivery(ask(tracking(BLACK_BOX)).require(), TYPE, rules=rules)(transit(), HERE) is None
    if answer is None:
        assert (problems, held) == (["guard.unknown"], [None])
    elif answer == "raises":
        assert (problems, held) == (["guard.failed"], [None])
    else:
        assert (problems, held) == ([], [False])


def test_predicates_and_hours_become_parts_of_the_branch() -> None:
    engine = tracking(
        """allow tracker(p) to subscribe self/uk.gov.pito.Numberplate where .numberplate = p AND .location <> 'Soho'
           if where hour >= 8 AND open;"""
    )
    assert ask(engine).effect is Effect.DENY
    engine.apply(SetFact("open", True))
    deliver = Delivery(ask(engine).require(), TYPE)
    assert deliver(transit(), HERE) is not None
    assert deliver(transit(location="Soho"), HERE) is None
    assert deliver(transit(), environment(NOW.replace(hour=7))) is None
    bad = tracking("allow owner to subscribe self/uk.gov.pito.Numberplate where .location > 3;")
    assert ask(bad).errors[0].code == "selector.type"


def test_networks() -> None:
    engine = tracking(
        'allow owner to connect "self/UK Police Network";',
        'allow owner to install "self/UK Police Network" if where hour > 8;',
    )
    authority = RoleAuthority(ActiveRoles(engine), frozenset({PITO.principal}))

    def effect(right: Right) -> Effect:
        return decide(NetworkRequest(SMITH.principal, right, NETWORK, NOW), [authority]).effect

    assert effect(Right.CONNECT) is Effect.PERMIT
    assert effect(Right.BROKER) is Effect.DENY
    # A connection outlives the decision, and nobody would check the hour again.
    assert effect(Right.INSTALL) is Effect.INDETERMINATE


RULES = (
    TRACK,
    "allow guest to subscribe self/uk.gov.pito.Numberplate(location) if where hour < 13;",
    "allow owner to subscribe self/uk.gov.pito.Numberplate(timestamp) if fact assigned(principal);",
)
_changes: st.SearchStrategy[RoleChange] = st.sampled_from(
    [
        OpenSession("s", SMITH.principal),
        EndSession("s"),
        ActivateRole("s", "tracker", (SUSPECT,)),
        ActivateRole("s", "guest"),
        ActivateRole("s", "owner"),
        DeactivateRole("2"),
        Appoint("order", SMITH.principal, PITO.principal, (SUSPECT,), NOW + timedelta(minutes=70)),
        SetFact("assigned", True, (str(SMITH.principal),)),
        SetFact("assigned", False, (str(SMITH.principal),)),
        SetFact("open", True),
        SetFact("open", False),
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), _changes), max_size=25))
def test_history_says_what_was_true_then(steps: list[tuple[int, RoleChange]]) -> None:
    """At each instant, the decision about all times shows what the decision of that instant showed."""
    live, now = engine_of(*RULES), NOW
    live.apply(OpenSession("s", SMITH.principal))
    changes: list[tuple[datetime, RoleChange]] = [(NOW, OpenSession("s", SMITH.principal))]
    seen: dict[datetime, object] = {}
    for minutes, change in steps:
        if minutes:
            # Between two changes, and directly before the next one.
            for moment in (now + timedelta(minutes=minutes) / 2, now + timedelta(minutes=minutes, microseconds=-1)):
                live.advance(moment)
                seen[moment] = shown(ask(live), moment)
        now += timedelta(minutes=minutes)
        live.advance(now)
        try:
            live.apply(change)
        except RefusedError:
            continue
        changes.append((now, change))
    history = RoleHistory(engine_of(*RULES), changes)
    history.advance(now)
    authority = RoleAuthority(history, frozenset({PITO.principal}))
    always = decide(EventRequest(SMITH.principal, Right.SUBSCRIBE, V8516, None), [authority])
    for moment, expected in seen.items():
        assert shown(always, moment) == expected


def shown(decision: Decision, moment: datetime) -> object:
    event = (
        Delivery(decision.restriction, TYPE)(transit(), environment(moment)) if decision.restriction.branches else None
    )
    return None if event is None else dict(event.values)
