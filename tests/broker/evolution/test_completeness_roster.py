"""Which brokers are waited for: those that were seen with the rights of a broker, while these last."""

from datetime import timedelta

import pytest
from tests.broker.sports import AGENCY, NETWORK, NEWS, NOW, PDA, REPORTER, STRANGER, grant

from penstock.broker.evolution.completeness import BrokerRoster, granting
from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.overlay import route_request
from penstock.errors import PenstockError
from penstock.model.principals import Principal
from penstock.trust.capabilities import BROKER_RIGHTS, Right, network_request
from penstock.trust.certificates import NameCertificate, issue
from penstock.trust.credentials import Credentials, read_credentials
from penstock.trust.policy_events import Acknowledgement
from penstock.trust.signed import sign_value

OWNER, ONE, TWO = AGENCY.principal, PDA.principal, REPORTER.principal
SHOWN = Credentials.of(grant(PDA, None, *BROKER_RIGHTS))
LATER = NOW + timedelta(minutes=1)


def roster(*brokers: Principal, trusted: bool = True) -> BrokerRoster:
    made = BrokerRoster(limits=BrokerLimits())
    for broker in brokers:
        made.saw(NOW, broker, SHOWN)
    made.judge(NOW, OWNER, lambda _broker: trusted)
    return made


def test_a_broker_that_is_away_counts_while_its_rights_last() -> None:
    made = roster(ONE, TWO)
    made.gone(LATER, [TWO])
    made.judge(LATER, OWNER, lambda _broker: True)
    assert made.trusted(OWNER) == {ONE, TWO}
    away, here = made.get(ONE), made.get(TWO)
    assert away is not None
    assert here is not None
    assert (away.away, here.away) == (LATER, None)
    # What it showed last says what its rights rest on.
    assert made.credentials(ONE) == SHOWN
    made.saw(LATER, ONE, Credentials())
    assert made.credentials(ONE) == SHOWN
    assert away.away is None


def test_a_broker_whose_rights_are_over_does_not_count_and_is_known_to_have_had_them() -> None:
    made = roster(ONE, TWO)
    made.judge(LATER, OWNER, lambda broker: broker == TWO)
    made.judge(LATER + timedelta(minutes=1), OWNER, lambda broker: broker == TWO)
    assert made.trusted(OWNER) == {TWO}
    assert made.ended(OWNER) == {ONE: LATER}
    # They may be granted again.
    made.judge(LATER, OWNER, lambda _broker: True)
    assert made.trusted(OWNER) == {ONE, TWO}
    assert made.ended(OWNER) == {}


def test_who_was_never_trusted_by_an_owner_is_not_waited_for_by_it() -> None:
    made = roster(ONE, trusted=False)
    assert not made.trusted(OWNER)
    assert made.ended(OWNER) == {}
    assert not made.trusted(STRANGER.principal)


def test_the_space_is_bounded() -> None:
    made = BrokerRoster(BrokerLimits(network_brokers=1))
    made.saw(NOW, ONE, SHOWN)
    made.saw(NOW, TWO, SHOWN)
    made.heard_of(NOW, STRANGER.principal)
    assert [*made] == [ONE]
    made.forget(ONE)
    made.heard_of(NOW, TWO)
    assert TWO in made
    assert len(made) == 1


def test_what_is_kept_comes_back() -> None:
    made = roster(ONE, TWO)
    said = sign_value(Acknowledgement(TWO, OWNER, 0, bytes(32), NOW, stamped=True), REPORTER)
    kept = made.to_bytes([said])
    again = BrokerRoster(limits=BrokerLimits())
    assert [*again.restore(LATER, kept, lambda data: read_credentials(data).verify())] == [said]
    assert [*again] == sorted((ONE, TWO))
    assert again.credentials(ONE) == SHOWN
    # Of one that has acknowledged it is known that it was trusted.
    again.judge(LATER, OWNER, lambda _broker: False)
    assert again.ended(OWNER) == {TWO: LATER}
    for bad in (b"", b"junk", b"(12:brokers-seen)", kept[:-1], kept.replace(b"4:seen", b"4:sown")):
        with pytest.raises(PenstockError):
            [*BrokerRoster(limits=BrokerLimits()).restore(NOW, bad, lambda data: read_credentials(data).verify())]


def test_the_certificates_without_which_somebody_is_a_broker_no_longer() -> None:
    network = network_request(NETWORK, Right.BROKER)
    broker, route = grant(PDA, None, *BROKER_RIGHTS), grant(PDA, NEWS, Right.ROUTE)
    client, other = grant(PDA, None, Right.CONNECT), grant(REPORTER, None, *BROKER_RIGHTS)
    group = issue(NameCertificate(AGENCY.principal, b"brokers", ONE), AGENCY)
    bag = [broker, client, route, other, group, broker]
    assert granting(bag, [ONE], network) == {ONE: [broker.id, group.id]}
    assert granting(bag, [ONE, TWO], route_request(OWNER)) == {ONE: [route.id, group.id], TWO: []}
