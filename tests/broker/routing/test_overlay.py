"""Which brokers are trusted with which types."""

import pytest
from tests.trust.kit import DAY, NOW, grant, name, naming, passing, tag, who
from tests.trust.types_kit import PITO, PLATE, Registry

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.overlay import Overlay, UnsafeOpen
from penstock.model.instants import format_date
from penstock.model.names import TypeKey
from penstock.model.principals import THRESHOLD, Principal
from penstock.trust.capabilities import BoundSelector, Right, event_tag
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.policy_state import Revocations
from penstock.trust.tags import Tag
from penstock.trust.validity import Validity

DOMAIN, BROKER, OTHER = 5, 6, 7
PLATES = TypeKey(who(PITO), "uk.gov.pito.Numberplate")
CAMERAS = TypeKey(who(PITO), "uk.gov.pito.Camera")
EVENT_TYPE = Registry().verify(Registry().sign(PLATE)).event_type
ROUTE = event_tag(who(PITO), PLATES.name, None, [Right.ROUTE])


def overlay(*certificates: Certificate, revoked: tuple[Certificate, ...] = (), by: int = PITO) -> Overlay:
    made = Overlay(limits=BrokerLimits())
    ids = frozenset(certificate.id for certificate in revoked)
    made.change(Credentials.of(*certificates), Revocations({who(by): ids}))
    return made


def test_without_the_right_only_the_owner_carries_its_types() -> None:
    made = overlay()
    assert not made.may_route(NOW, PLATES, who(BROKER))
    assert not made.trusts(NOW, who(PITO), who(BROKER))
    assert made.may_route(NOW, PLATES, who(PITO))
    assert made.trusts(NOW, who(PITO), who(PITO))
    assert made.trusted(NOW, PLATES, [who(PITO), who(BROKER)]) == {who(PITO)}


def test_an_owner_grants_a_type_to_a_broker() -> None:
    made = overlay(grant(PITO, BROKER, ROUTE))
    assert made.may_route(NOW, PLATES, who(BROKER))
    assert not made.may_route(NOW, CAMERAS, who(BROKER))
    assert not made.may_route(NOW, PLATES, who(OTHER))
    assert made.trusts(NOW, who(PITO), who(BROKER))
    assert not made.trusts(NOW, who(OTHER), who(BROKER))


def test_who_asks_for_an_owner_that_is_written_otherwise_keeps_nobody_out() -> None:
    made, written = overlay(grant(PITO, BROKER, ROUTE)), Principal(who(PITO).digest, THRESHOLD)
    assert not made.may_route(NOW, TypeKey(written, PLATES.name), who(BROKER))
    assert not made.trusts(NOW, written, who(BROKER))
    assert made.may_route(NOW, PLATES, who(BROKER))
    assert made.trusts(NOW, who(PITO), who(BROKER))


def test_a_domain_passes_it_on_as_far_as_it_may() -> None:
    blanket = event_tag(who(PITO), None, None, [Right.ROUTE, Right.SUBSCRIBE])
    chain = passing(PITO, DOMAIN, blanket), grant(DOMAIN, BROKER, ROUTE)
    assert overlay(*chain).may_route(NOW, PLATES, who(BROKER))
    assert not overlay(*chain).may_route(NOW, CAMERAS, who(BROKER))
    assert not overlay(grant(PITO, DOMAIN, blanket), chain[1]).may_route(NOW, PLATES, who(BROKER))
    assert not overlay(chain[1]).may_route(NOW, PLATES, who(BROKER))


def test_a_group_of_brokers_is_named() -> None:
    made = overlay(grant(PITO, name(DOMAIN, "brokers"), ROUTE), naming(DOMAIN, "brokers", BROKER))
    assert made.may_route(NOW, PLATES, who(BROKER))


@pytest.mark.parametrize(
    "right",
    [
        event_tag(who(PITO), PLATES.name, "0", [Right.ROUTE]),
        event_tag(who(PITO), PLATES.name, None, [Right.SUBSCRIBE, Right.PUBLISH, Right.MANAGE]),
        event_tag(who(PITO), PLATES.name, None, [Right.ROUTE], attributes=[EVENT_TYPE.by_name["lane"].id]),
        event_tag(who(PITO), PLATES.name, None, [Right.ROUTE], when=["hour > 8"]),
        event_tag(who(PITO), PLATES.name, None, [Right.ROUTE], where=[BoundSelector.of("lane = 1", EVENT_TYPE)]),
        event_tag(who(OTHER), PLATES.name, None, [Right.ROUTE]),
    ],
)
def test_a_right_that_depends_on_anything_does_not_count(right: Tag) -> None:
    made = overlay(grant(PITO, BROKER, right))
    assert not made.may_route(NOW, PLATES, who(BROKER))
    assert not made.trusts(NOW, who(PITO), who(BROKER))


@pytest.mark.parametrize(
    "right", ["(*)", f"(event-type {who(PITO)})", f"(* set (event-type {who(PITO)} (* glob uk.*) (*) route) (x))"]
)
def test_wider_rights_count(right: str) -> None:
    made = overlay(grant(PITO, BROKER, tag(right)))
    assert made.may_route(NOW, PLATES, who(BROKER))
    assert made.trusts(NOW, who(PITO), who(BROKER))


def test_brokers_disclose_what_they_have() -> None:
    made = overlay(passing(PITO, DOMAIN, ROUTE))
    made.disclose(who(BROKER), Credentials.of(grant(DOMAIN, BROKER, ROUTE)))
    assert made.may_route(NOW, PLATES, who(BROKER))
    made.disclose(who(BROKER), Credentials.of(grant(DOMAIN, BROKER, ROUTE)))
    made.disclose(who(BROKER), Credentials())
    assert not made.may_route(NOW, PLATES, who(BROKER))
    made.disclose(who(BROKER), Credentials.of(grant(DOMAIN, BROKER, ROUTE)))
    assert made.may_route(NOW, PLATES, who(BROKER))
    made.leave(who(BROKER))
    assert not made.may_route(NOW, PLATES, who(BROKER))


@pytest.mark.parametrize("by", [PITO, DOMAIN])
def test_a_right_that_was_revoked_does_not_count_although_the_broker_shows_it(by: int) -> None:
    last = grant(DOMAIN, BROKER, ROUTE)
    made = overlay(passing(PITO, DOMAIN, ROUTE), revoked=(last,), by=by)
    made.disclose(who(BROKER), Credentials.of(last))
    assert not made.may_route(NOW, PLATES, who(BROKER))
    made.change(Credentials.of(passing(PITO, DOMAIN, ROUTE)), Revocations())
    assert made.may_route(NOW, PLATES, who(BROKER))


def test_answers_turn_with_dates() -> None:
    validity = Validity.between(NOW + DAY, NOW + 2 * DAY)
    made = overlay(grant(PITO, BROKER, ROUTE, validity=validity))
    assert made.turns() is None
    answers = [made.may_route(NOW + hours * DAY / 24, PLATES, who(BROKER)) for hours in (0, 23, 24, 47, 48, 49)]
    assert answers == [False, False, True, True, True, False]
    assert made.turns() is None


def test_a_network_of_one_organisation_may_be_open() -> None:
    some = Overlay(unsafe_open=UnsafeOpen(frozenset({who(PITO)})), limits=BrokerLimits())
    assert some.may_route(NOW, PLATES, who(BROKER))
    assert some.trusts(NOW, who(PITO), who(BROKER))
    assert not some.may_route(NOW, TypeKey(who(OTHER), "a.B"), who(BROKER))
    assert Overlay(unsafe_open=UnsafeOpen(everyone=True), limits=BrokerLimits()).may_route(
        NOW, TypeKey(who(OTHER), "a.B"), who(BROKER)
    )


def test_who_stamps_for_an_owner_needs_the_right_on_all_of_its_types() -> None:
    stamp, one_type = (event_tag(who(PITO), name, None, [Right.STAMP]) for name in (None, PLATES.name))
    assert overlay(grant(PITO, BROKER, stamp)).stampers(NOW, who(PITO)) == {who(BROKER)}
    assert overlay(grant(PITO, BROKER, one_type)).stampers(NOW, who(PITO)) == frozenset()
    version = event_tag(who(PITO), None, "1", [Right.STAMP])
    assert overlay(grant(PITO, BROKER, version)).stampers(NOW, who(PITO)) == frozenset()
    assert overlay(grant(PITO, BROKER, ROUTE)).stampers(NOW, who(PITO)) == frozenset()
    assert overlay(grant(OTHER, BROKER, stamp)).stampers(NOW, who(PITO)) == frozenset()
    assert not overlay(grant(PITO, BROKER, stamp)).trusts(NOW, who(PITO), who(BROKER))


def test_the_right_to_stamp_is_passed_on_ends_and_is_revoked_like_any_other() -> None:
    stamp = event_tag(who(PITO), None, None, [Right.STAMP])
    chain = passing(PITO, DOMAIN, stamp), grant(DOMAIN, BROKER, stamp)
    assert who(BROKER) in overlay(*chain).stampers(NOW, who(PITO))
    assert who(BROKER) not in overlay(*chain, revoked=(chain[0],)).stampers(NOW, who(PITO))
    assert who(BROKER) not in overlay(*chain, revoked=(chain[1],)).stampers(NOW, who(PITO))
    assert who(BROKER) not in overlay(*chain, revoked=(chain[1],), by=DOMAIN).stampers(NOW, who(PITO))
    ending = overlay(grant(PITO, BROKER, stamp, validity=Validity(None, format_date(NOW))))
    assert ending.stampers(NOW, who(PITO)) == {who(BROKER)}
    assert ending.stampers(NOW + DAY, who(PITO)) == frozenset()
