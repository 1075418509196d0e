"""Certificates that were revoked count no longer, also where a client brings them along."""

from datetime import timedelta

from tests.trust.kit import NOW, grant, key, passing, who
from tests.trust.types_kit import CLERK, MANAGER, NETWORK, OTHER, PITO, PLATE, Registry, may

from penstock.guard import CapabilityAuthority, Effect, EventRequest, NetworkRequest, decide
from penstock.guard.capabilities import Revoking
from penstock.model.names import NetworkName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right, event_tag, network_tag
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType
from penstock.trust.policy_events import Revoke
from penstock.trust.policy_state import PolicyAuthor, Revocations

SUBSCRIBE = event_tag(who(PITO), None, None, [Right.SUBSCRIBE])
CHAIN = passing(PITO, OTHER, SUBSCRIBE), grant(OTHER, CLERK, SUBSCRIBE)
CONNECT = grant(PITO, CLERK, network_tag(NETWORK.owner, NETWORK.name, [Right.CONNECT]))
INSTANT = timedelta(microseconds=1)
OWN = Registry().verify(Registry().sign(PLATE))


def effect(
    *certificates: Certificate, revoked: dict[Principal, Certificate], verified: VerifiedType = OWN
) -> tuple[Effect, tuple[str, ...]]:
    revocations = Revocations({who_: frozenset({certificate.id}) for who_, certificate in revoked.items()})
    authority = Revoking(CapabilityAuthority(Credentials.of(*certificates)), revocations)
    decision = decide(EventRequest(who(CLERK), Right.SUBSCRIBE, verified, NOW), [authority])
    return decision.effect, tuple(problem.code for problem in decision.errors)


def test_what_the_owner_or_the_issuer_revoked_does_not_count() -> None:
    assert effect(*CHAIN, revoked={}) == (Effect.PERMIT, ())
    for link in CHAIN:
        assert effect(*CHAIN, revoked={who(PITO): link}) == (Effect.DENY, ())
    assert effect(*CHAIN, revoked={who(OTHER): CHAIN[1]}) == (Effect.DENY, ())


def test_others_revoke_nothing() -> None:
    assert effect(*CHAIN, revoked={who(OTHER): CHAIN[0]}) == (Effect.PERMIT, ())
    assert effect(*CHAIN, revoked={who(99): CHAIN[0]}) == (Effect.PERMIT, ())


def test_another_right_still_counts() -> None:
    direct = grant(PITO, CLERK, SUBSCRIBE)
    assert effect(*CHAIN, direct, revoked={who(PITO): CHAIN[1]}) == (Effect.PERMIT, ())


def test_rights_on_a_network_are_revoked_by_its_owner() -> None:
    authority = CapabilityAuthority(Credentials.of(CONNECT))
    request = NetworkRequest(who(CLERK), Right.CONNECT, NETWORK, NOW)
    for revocations, wanted in (
        (Revocations(), Effect.PERMIT),
        (Revocations({NETWORK.owner: frozenset({CONNECT.id})}), Effect.DENY),
    ):
        assert decide(request, [Revoking(authority, revocations)]).effect is wanted


def test_a_type_that_rests_on_what_was_revoked_gives_nothing() -> None:
    manage = may(MANAGER, Right.MANAGE)
    registry = Registry()
    verified = registry.verify(registry.sign(PLATE, MANAGER, manage))
    direct = grant(PITO, CLERK, SUBSCRIBE)
    assert effect(direct, revoked={}, verified=verified) == (Effect.PERMIT, ())
    assert effect(direct, revoked={who(PITO): manage}, verified=verified) == (Effect.INDETERMINATE, ("cert.revoked",))


def test_a_type_that_may_be_installed_no_longer_gives_nothing() -> None:
    network = NetworkName(who(OTHER), "Other Network")
    install = grant(OTHER, PITO, network_tag(network.owner, network.name, [Right.INSTALL]))
    registry = Registry()
    verified = registry.verify(registry.sign(PLATE, PITO, install), network=network)
    direct = grant(PITO, CLERK, SUBSCRIBE)
    assert effect(direct, revoked={who(99): install}, verified=verified) == (Effect.PERMIT, ())
    assert effect(direct, revoked={who(OTHER): install}, verified=verified)[0] is Effect.INDETERMINATE


def test_a_history_is_as_it_was_until_the_order() -> None:
    """What is decided about all times holds exactly when what is decided at each time permits."""
    manage = may(MANAGER, Right.MANAGE)
    registry = Registry()
    verified = registry.verify(registry.sign(PLATE, MANAGER, manage))
    direct = grant(PITO, CLERK, SUBSCRIBE)
    for certificate in (direct, manage):
        order = PolicyAuthor(key(PITO)).change(NOW, Revoke((certificate.id,)))
        authority = Revoking(CapabilityAuthority(Credentials.of(direct)), Revocations.of_chains([[order]]))
        (branch,) = decide(EventRequest(who(CLERK), Right.SUBSCRIBE, verified, None), [authority]).restriction.branches
        for moment, allowed in ((NOW - INSTANT, True), (NOW, False), (NOW + INSTANT, False)):
            now = decide(EventRequest(who(CLERK), Right.SUBSCRIBE, verified, moment), [authority])
            assert (now.effect is Effect.PERMIT) is branch.when.validity.contains(moment) is allowed
