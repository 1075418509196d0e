"""Capabilities from roles: they permit what the roles permit, they end with the roles, and they return with them."""

from datetime import timedelta

import pytest
from tests.authority.domain.kit import HOUR, NOW, PITO, SMITH, Office
from tests.guard.london import MET, NETWORK, V4799, V8516
from tests.guard.test_roles import POLICY, TRACK, engine_of
from tests.trust.kit import refused

from penstock.authority.domain.domain_state import RenewRequest, RoleRequest
from penstock.authority.domain.role_capabilities import role_capabilities
from penstock.guard import Decision, Effect, EventRequest, NetworkRequest, decide
from penstock.guard.roles import ActiveRoles, RoleAuthority
from penstock.roles.engine import ActivateRole, Appoint, EndSession, OpenSession, RoleEngine, SetFact
from penstock.roles.language import read_policy
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType

TYPES = {one.event_type.name: one for one in (V4799, V8516)}
RULES = [
    TRACK,
    "allow guest to subscribe self/uk.gov.pito.Numberplate;",
    "allow guest to subscribe self/uk.gov.pito.*;",
    "allow guest to publish self/uk.gov.pito.Numberplate(location, timestamp);",
    "allow guest to subscribe self/uk.gov.pito.Numberplate where .location = 'Victoria' if where hour < 13;",
    'allow guest to connect "self/UK Police Network";',
]


def active(*rules: str) -> RoleEngine:
    """Return an engine in which SMITH has every role."""
    engine = engine_of(*rules)
    for change in (
        OpenSession("s", SMITH.principal),
        Appoint("order", SMITH.principal, PITO.principal, ("AE05 XYZ",)),
        SetFact("assigned", True, (str(SMITH.principal),)),
        SetFact("open", True),
        ActivateRole("s", "tracker", (None,)),
        ActivateRole("s", "guest"),
    ):
        engine.apply(change)
    return engine


def settle(office: Office, engine: RoleEngine) -> int:
    engine.advance(office.now)
    found = role_capabilities(engine, TYPES)
    assert not found.problems
    return len(office.ask(PITO, RoleRequest(found.capabilities, HOUR)))


def shape(decision: Decision) -> list[tuple[object, ...]]:
    """Return what a decision permits, without dates and credentials."""
    return [
        (one.attributes, one.forced, one.where.text, one.when.condition.text) for one in decision.restriction.branches
    ]


@pytest.mark.parametrize("rule", RULES)
def test_capabilities_permit_what_roles_permit(rule: str) -> None:
    office, engine = Office(), active(rule)
    assert settle(office, engine) == 1
    roles = RoleAuthority(ActiveRoles(engine), frozenset([PITO.principal]))
    permitted = 0
    for right in Right:
        if right.on_network:
            networks = [NetworkRequest(SMITH.principal, right, NETWORK, NOW)]
            pairs = [(decide(one, [roles]), decide(one, [office.domain.state.authority()])) for one in networks]
        else:
            # In other versions, attributes are found by their ids, and roles look for the names.
            questions = [EventRequest(SMITH.principal, right, V8516, NOW)]
            pairs = [(decide(one, [roles]), decide(one, [office.domain.state.authority()])) for one in questions]
        for by_roles, by_certificates in pairs:
            assert by_roles.effect is by_certificates.effect
            permitted += by_roles.effect is Effect.PERMIT
            assert shape(by_roles) == shape(by_certificates)
    assert permitted


def held(office: Office, verified: VerifiedType = V8516) -> bool:
    request = EventRequest(SMITH.principal, Right.SUBSCRIBE, verified, office.now)
    return decide(request, [office.domain.state.authority()]).effect is Effect.PERMIT


def test_they_end_with_the_role_and_return_with_it() -> None:
    office, engine = Office(), active(TRACK)
    assert settle(office, engine) == 1
    assert settle(office, engine) == 0
    assert held(office)
    engine.apply(SetFact("assigned", False, (str(SMITH.principal),)))
    assert settle(office, engine) == 1
    assert not held(office)
    engine.apply(SetFact("assigned", True, (str(SMITH.principal),)))
    engine.apply(ActivateRole("s", "tracker", (None,)))
    # In the same second it is another certificate.
    assert settle(office, engine) == 1
    assert held(office)
    engine.apply(EndSession("s"))
    settle(office, engine)
    assert not held(office)


def test_they_are_renewed_while_the_role_is_active() -> None:
    office, engine = Office(), active(TRACK)
    settle(office, engine)
    for _ in range(5):
        office.at(office.now + timedelta(minutes=45))
        office.ask(PITO, RenewRequest())
        assert settle(office, engine) == 0
        assert held(office)
    engine.apply(EndSession("s"))
    settle(office, engine)
    # Those that were renewed and still last are revoked too.
    assert not held(office)


def test_a_domain_issues_only_what_it_may_pass_on() -> None:
    office = Office(key=MET)
    engine = RoleEngine(
        read_policy(
            POLICY + f"domain pito = {PITO.principal};\nallow guest to subscribe pito/uk.gov.pito.Numberplate;"
        ),
        MET.principal,
    )
    engine.advance(NOW)
    for change in (OpenSession("s", SMITH.principal), SetFact("open", True), ActivateRole("s", "guest")):
        engine.apply(change)
    found = role_capabilities(engine, TYPES)
    assert len(found.capabilities) == 1
    assert not office.ask(MET, RoleRequest(found.capabilities, HOUR))


def test_privileges_that_cannot_be_capabilities_are_told() -> None:
    found = role_capabilities(active(TRACK), {})
    assert [one.code for one in found.problems] == ["acs.role-type"]
    assert not found.capabilities
    # Without its condition, the right would be wider than the role's.
    black_box = "predicate p(); allow guest to subscribe self/uk.gov.pito.Numberplate matching p();"
    found = role_capabilities(active(black_box), TYPES)
    assert ([one.code for one in found.problems], found.capabilities) == (["acs.role-predicate"], ())


def test_only_the_domain_follows_roles() -> None:
    with refused("acs.not-permitted"):
        Office().ask(SMITH, RoleRequest((), HOUR))
