"""Who holds what: the paper's example, and that a holder is listed exactly if `decide()` permits it."""

from datetime import timedelta

from hypothesis import given, settings
from tests.authority.domain.kit import CCS, HOUR, MET, NOW, PITO, SMITH, STRANGER, SUBSCRIBE, Office
from tests.budget import examples
from tests.guard.london import (
    LOCATION,
    PLATE,
    TO_BILLING,
    TO_SMITH,
    V8516,
    grant,
    numberplate,
)
from tests.trust.chains_model import PEOPLE, bags
from tests.trust.kit import NOW as THEN
from tests.trust.kit import key, refused, who

from penstock.authority.domain.domain_changes import RegisterCertificates
from penstock.authority.domain.domain_state import DomainState, RenewRequest, unverified
from penstock.authority.domain.holders import TYPE_RIGHTS, complete, holders
from penstock.guard import CapabilityAuthority, Effect, EventRequest, decide
from penstock.model import AttributeDefinition, AttributeSpec, Kind, TypeDefinition, TypeName
from penstock.model.names import NetworkName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right, network_tag
from penstock.trust.certificates import Certificate, Threshold
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType, sign_type, verify_type
from penstock.trust.validity import Validity


def office() -> tuple[Office, Certificate, Certificate]:
    """Return PITO's domain after it let two partners in, which registered their delegations."""
    made = Office()
    to_ccs = made.issue(CCS, numberplate(Right.PUBLISH, Right.SUBSCRIBE), propagate=True)
    to_met = made.issue(MET, numberplate(Right.SUBSCRIBE), propagate=True)
    made.register(TO_BILLING, TO_SMITH)
    return made, to_ccs, to_met


def test_an_owner_lists_who_holds_what_through_which_chain() -> None:
    made, to_ccs, to_met = office()
    found = holders(made.domain.state, V8516, NOW, [Right.SUBSCRIBE, Right.PUBLISH])
    listed = {(one.holder, one.right): [link.id for link in one.chain] for one in found.holders}
    billing = TO_BILLING.statement.subject
    assert isinstance(billing, Principal)
    assert listed == {
        (PITO.principal, Right.SUBSCRIBE): [],
        (PITO.principal, Right.PUBLISH): [],
        (CCS.principal, Right.SUBSCRIBE): [to_ccs.id],
        (CCS.principal, Right.PUBLISH): [to_ccs.id],
        (MET.principal, Right.SUBSCRIBE): [to_met.id],
        (billing, Right.SUBSCRIBE): [to_ccs.id, TO_BILLING.id],
        (SMITH.principal, Right.SUBSCRIBE): [to_met.id, TO_SMITH.id],
    }
    assert not found.truncated
    [smith] = [one for one in found.holders if one.holder == SMITH.principal]
    assert smith.branch.attributes is not None
    assert LOCATION in smith.branch.attributes
    assert smith.branch.forced == ((PLATE, "AE05 XYZ"),)
    assert smith.validity == TO_SMITH.statement.validity


def test_a_revocation_ends_everything_below_it() -> None:
    made, _, to_met = office()
    made.revoke(to_met)
    found = {one.holder for one in holders(made.domain.state, V8516, NOW).holders}
    assert MET.principal not in found
    assert SMITH.principal not in found
    assert CCS.principal in found


def test_two_chains_of_one_holder_are_listed_one_by_one() -> None:
    made, to_ccs, to_met = office()
    # Neither covers the other: one may be passed on for a month, the other lasts longer.
    month, year = Validity.between(NOW, NOW + timedelta(days=30)), Validity.between(NOW, NOW + timedelta(days=365))
    one = grant(CCS, SMITH.principal, SUBSCRIBE, passes=True, valid=month)
    other = grant(MET, SMITH.principal, SUBSCRIBE, valid=year)
    made.register(one, other)
    found = holders(made.domain.state, V8516, NOW).holders
    chains = {tuple(link.id for link in each.chain) for each in found if each.holder == SMITH.principal}
    assert {(to_ccs.id, one.id), (to_met.id, other.id)} <= chains


def test_a_renewed_certificate_is_listed_once() -> None:
    office = Office()
    office.issue(SMITH, lifetime=HOUR)
    office.at(NOW + timedelta(minutes=50))
    office.ask(PITO, RenewRequest())
    [first, second] = office.domain.state.issued.values()
    assert second.replaces == first.id
    found = holders(office.domain.state, V8516, office.now, [Right.SUBSCRIBE]).holders
    [smith] = [one for one in found if one.holder == SMITH.principal]
    assert smith.validity.ends == office.now + HOUR
    assert [one.id for one in smith.chain] == [second.id]


def test_a_client_gets_the_chain_that_lasts_longest() -> None:
    made, _, to_met = office()
    found = complete(made.domain.state, SMITH.principal, Right.SUBSCRIBE, V8516, NOW)
    assert {one.id for one in found.credentials} == {to_met.id, TO_SMITH.id}
    # One that lasts longer, of the same length.
    longer = grant(MET, SMITH.principal, numberplate(Right.SUBSCRIBE), valid=to_met.statement.validity)
    made.register(longer)
    found = complete(made.domain.state, SMITH.principal, Right.SUBSCRIBE, V8516, NOW)
    assert {one.id for one in found.credentials} == {to_met.id, longer.id}
    # A shorter one that lasts as long.
    short = made.issue(SMITH)
    found = complete(made.domain.state, SMITH.principal, Right.SUBSCRIBE, V8516, NOW)
    assert {one.id for one in found.credentials} == {short.id}
    with refused("acs.no-chain"):
        complete(made.domain.state, STRANGER.principal, Right.SUBSCRIBE, V8516, NOW)
    with refused("acs.no-chain"):
        complete(made.domain.state, SMITH.principal, Right.PUBLISH, V8516, NOW)


def test_a_chain_leads_from_the_owner_to_the_holder_at_a_partner_too() -> None:
    """A domain lists what it has issued before what it has registered."""
    to_met = Office().issue(MET, numberplate(Right.SUBSCRIBE), propagate=True)
    partner = Office(key=MET)
    partner.register(to_met, by=MET)
    to_smith = partner.issue(SMITH, numberplate(Right.SUBSCRIBE), by=MET)
    found = complete(partner.domain.state, SMITH.principal, Right.SUBSCRIBE, V8516, NOW)
    assert [one.id for one in found.credentials] == [to_met.id, to_smith.id]


def test_chains_on_networks_are_completed_too() -> None:
    made = Office()
    network = NetworkName(PITO.principal, "UK Police Network")
    right = made.issue(MET, network_tag(PITO.principal, network.name, [Right.CONNECT]), lifetime=HOUR)
    found = complete(made.domain.state, MET.principal, Right.CONNECT, network, NOW)
    assert list(found.credentials) == [right]
    with refused("acs.no-chain"):
        complete(made.domain.state, MET.principal, Right.CONNECT, network, NOW + timedelta(hours=2))


# ----------------------------------------------------------------------------------------------------------------------
# A holder is listed exactly if `decide()` permits with those certificates.


def type_of(owner: int) -> VerifiedType:
    attribute = AttributeDefinition("x", "1", AttributeSpec(Kind.STRING))
    return verify_type(sign_type(TypeDefinition(TypeName(who(owner), "a.T"), (attribute,)), key(owner)), THEN)


TYPES = {owner: type_of(owner) for owner in PEOPLE}


def state_of(certificates: list[Certificate], quorums: list[Threshold]) -> DomainState:
    """Return the state of a domain that knows these certificates."""
    state = Office().domain.state
    state.registered |= {one.id: one for one in certificates}
    state.quorums |= {one.principal: one for one in quorums}
    state.restore()
    return state


@settings(max_examples=examples(150))
@given(bags())
def test_a_holder_is_listed_exactly_if_it_is_permitted(bag: tuple[list[Certificate], list[Threshold]]) -> None:
    certificates, quorums = bag
    state = state_of(certificates, quorums)
    authority = CapabilityAuthority(state.credentials)
    everybody = [who(person) for person in PEOPLE] + [quorum.principal for quorum in quorums]
    for verified in TYPES.values():
        listed = {(one.holder, one.right): one for one in holders(state, verified, THEN).holders}
        for right in TYPE_RIGHTS:
            for principal in everybody:
                decision = decide(EventRequest(principal, right, verified, THEN), [authority])
                assert ((principal, right) in listed) is (decision.effect is Effect.PERMIT)


@settings(max_examples=examples(100))
@given(bags())
def test_a_completed_chain_is_enough_by_itself(bag: tuple[list[Certificate], list[Threshold]]) -> None:
    certificates, quorums = bag
    state = state_of(certificates, quorums)
    for owner, verified in TYPES.items():
        for person in PEOPLE:
            request = EventRequest(who(person), Right.SUBSCRIBE, verified, THEN)
            if decide(request, [CapabilityAuthority(state.credentials)]).effect is Effect.PERMIT:
                chain = complete(state, who(person), Right.SUBSCRIBE, verified, THEN)
                assert decide(request, [CapabilityAuthority(chain.credentials)]).effect is Effect.PERMIT
                assert len(chain.credentials) <= len(certificates)
            elif person != owner:
                with refused("acs.no-chain"):
                    complete(state, who(person), Right.SUBSCRIBE, verified, THEN)


def test_a_bag_is_registered_as_it_is() -> None:
    bag = Credentials.of(TO_BILLING, TO_SMITH)
    assert RegisterCertificates(unverified(bag)).credentials.verify() == bag
