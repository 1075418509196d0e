"""`decide()`: the only door, and nothing but PERMIT opens it."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest
from tests.guard.london import LOCATION, NETWORK, NOW, PLATE, SMITH, TYPE, V8516, transit

from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.guard import (
    ANYTIME,
    NOTHING,
    Authority,
    Branch,
    Decision,
    DecisionProblem,
    Delivery,
    Effect,
    EventRequest,
    NetworkRequest,
    Request,
    Restriction,
    Ruling,
    TypeScope,
    When,
    decide,
    environment,
)
from penstock.model import TypeKey
from penstock.selector import parse
from penstock.trust.capabilities import Right
from penstock.trust.validity import OnlineTest, Validity

READ = Branch(action=Right.SUBSCRIBE, because=("cert:read",))
CONNECT = Branch(action=Right.CONNECT, attributes=frozenset(), because=("cert:connect",))
ASKED = EventRequest(SMITH.principal, Right.SUBSCRIBE, V8516, NOW)
ASKED_NETWORK = NetworkRequest(SMITH.principal, Right.CONNECT, NETWORK, NOW)


@dataclass
class Says:
    """A source that always says the same."""

    ruling: Ruling

    def rule(self, _request: Request) -> Ruling:
        return self.ruling


@dataclass
class Fails:
    """A source that cannot answer."""

    error: PenstockError

    def rule(self, _request: Request) -> Ruling:
        raise self.error


def says(*branches: Branch, problems: tuple[DecisionProblem, ...] = ()) -> Authority:
    return Says(Ruling(branches, problems))


DOWN = Fails(FailedError("store.unreachable", "the database is away"))
TYPE_EXPIRED = replace(V8516, validity=Validity.between(None, NOW - timedelta(seconds=1)))


def test_a_decision_has_no_truth_value() -> None:
    for effect in Effect:
        with pytest.raises(TypeError):
            bool(Decision(effect))
    with pytest.raises(TypeError):
        assert not decide(ASKED, [says(READ)])


def test_one_branch_permits() -> None:
    decision = decide(ASKED, [says(READ)])
    assert (decision.effect, decision.because, decision.errors) == (Effect.PERMIT, ("cert:read",), ())
    assert decision.require() is decision.restriction


def test_nobody_who_speaks_is_a_denial() -> None:
    for authorities in ([], [says()], [says(), says()]):
        decision = decide(ASKED, authorities)
        assert (decision.effect, decision.restriction) == (Effect.DENY, NOTHING)
        with pytest.raises(RefusedError) as caught:
            decision.require()
        assert caught.value.code == "guard.denied"


def test_a_source_that_cannot_answer_makes_it_indeterminate_which_is_a_refusal() -> None:
    decision = decide(ASKED, [says(), DOWN])
    assert decision.effect is Effect.INDETERMINATE
    assert decision.restriction == NOTHING
    assert [problem.code for problem in decision.errors] == ["store.unreachable"]
    with pytest.raises(RefusedError) as caught:
        decision.require()
    assert caught.value.code == "guard.indeterminate"
    assert caught.value.fields["cause"] == "store.unreachable"


@pytest.mark.parametrize(
    "error",
    [
        FailedError("a.b", "x"),
        RefusedError("a.b", "x"),
        MalformedError("a.b", "x"),
    ],
)
def test_an_error_of_one_source_leaves_the_others_as_they_are(error: PenstockError) -> None:
    decision = decide(ASKED, [Fails(error), says(READ), Fails(error)])
    assert decision.effect is Effect.PERMIT
    assert decision.restriction == Restriction.of([READ])
    assert [problem.code for problem in decision.errors] == ["a.b", "a.b"]


def test_a_problem_without_a_branch_is_indeterminate() -> None:
    decision = decide(ASKED, [says(problems=(DecisionProblem("tag.unknown-form", "what is this"),))])
    assert decision.effect is Effect.INDETERMINATE


def test_indeterminate_refuses_also_without_a_reason() -> None:
    with pytest.raises(RefusedError) as caught:
        Decision(Effect.INDETERMINATE).require()
    assert caught.value.code == "guard.indeterminate"


def test_an_expired_type_permits_nothing() -> None:
    decision = decide(replace(ASKED, type=TYPE_EXPIRED), [says(READ)])
    assert decision.effect is Effect.INDETERMINATE
    assert [problem.code for problem in decision.errors] == ["type.expired"]


def test_a_permission_ends_with_the_type_it_is_about() -> None:
    ends = NOW + timedelta(hours=1)
    verified = replace(V8516, validity=Validity.between(None, ends), because=("cert:manager",))
    decision = decide(replace(ASKED, type=verified), [says(READ)])
    assert decision.because == ("cert:read", "cert:manager")
    assert decision.restriction.because == decision.because
    deliver = Delivery(decision.require(), TYPE)
    assert deliver(transit(), environment(ends)) is not None
    assert deliver(transit(), environment(ends + timedelta(seconds=1))) is None


def test_a_permission_that_the_type_does_not_live_to_see_is_none() -> None:
    later = replace(READ, when=When(Validity.between(NOW + timedelta(days=2))))
    verified = replace(V8516, validity=Validity.between(None, NOW + timedelta(days=1)))
    assert decide(replace(ASKED, type=verified), [says(later)]).effect is Effect.DENY


@pytest.mark.parametrize(
    "beside",
    [
        replace(READ, action=Right.PUBLISH),
        replace(READ, action=Right.CONNECT),
        replace(READ, types=TypeScope((b"ed25519:someone",))),
        replace(READ, types=TypeScope(within=frozenset({TypeKey(NETWORK.owner, "uk.gov.pito.Arrest")}))),
    ],
)
def test_what_a_source_says_beside_the_point_permits_nothing(beside: Branch) -> None:
    assert decide(ASKED, [says(beside)]).effect is Effect.DENY
    decision = decide(ASKED, [says(beside, READ)])
    assert decision.restriction == Restriction.of([READ])


def test_sources_add_up_branch_by_branch() -> None:
    plates = replace(READ, attributes=frozenset({PLATE}), where=parse("x = 1"))
    places = replace(READ, attributes=frozenset({LOCATION}), because=("rule:1",))
    decision = decide(ASKED, [says(plates), says(places), says(replace(plates, because=("role:1",)))])
    assert decision.restriction == Restriction.of([plates, places])
    assert decision.because == ("cert:read", "role:1", "rule:1")


def test_a_network_is_joined_by_a_branch_that_leaves_nothing_to_ask() -> None:
    decision = decide(ASKED_NETWORK, [says(CONNECT)])
    assert (decision.effect, decision.because) == (Effect.PERMIT, ("cert:connect",))
    assert decide(ASKED_NETWORK, [says(READ)]).effect is Effect.DENY
    assert decide(replace(ASKED_NETWORK, action=Right.INSTALL), [says(CONNECT)]).effect is Effect.DENY


@pytest.mark.parametrize(
    "open_",
    [
        replace(CONNECT, when=When(condition=parse("hour < 9"))),
        replace(CONNECT, guards=frozenset({"on-duty"})),
        replace(CONNECT, where=parse("x = 1")),
        replace(CONNECT, forced=((PLATE, "X"),)),
        replace(CONNECT, when=When(Validity.between(NOW + timedelta(seconds=1)))),
        replace(CONNECT, when=When(Validity.between(None, NOW - timedelta(seconds=1)))),
        replace(CONNECT, when=When(Validity(online=(OnlineTest("crl", (b"online", b"crl")),)))),
    ],
)
def test_a_right_on_a_network_with_something_left_to_ask_is_none(open_: Branch) -> None:
    decision = decide(ASKED_NETWORK, [says(open_)])
    assert decision.effect is Effect.INDETERMINATE
    assert decision.errors[0].code == "guard.unsettled"
    assert decision.errors[0].source == "cert:connect"
    assert decide(ASKED_NETWORK, [says(open_, replace(open_, when=ANYTIME), CONNECT)]).effect is Effect.PERMIT


def test_a_right_is_asked_of_what_it_is_a_right_on() -> None:
    with pytest.raises(MalformedError) as caught:
        EventRequest(SMITH.principal, Right.CONNECT, V8516, NOW)
    assert caught.value.code == "guard.action"
    with pytest.raises(MalformedError) as caught:
        NetworkRequest(SMITH.principal, Right.PUBLISH, NETWORK, NOW)
    assert caught.value.code == "guard.action"


def test_a_moment_without_a_zone_decides_nothing() -> None:
    with pytest.raises(MalformedError) as caught:
        decide(replace(ASKED, now=datetime(2026, 5, 1)), [says(READ)])  # noqa: DTZ001  # the fault
    assert caught.value.code == "value.zone"
