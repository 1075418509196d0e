"""What a broker shows of its credentials."""

import hashlib

from tests.broker.node_kit import BROKERS, bag, client_of, run, running, until
from tests.broker.sports import AGENCY, NETWORK, NEWS, PDA, TENNIS, grant

from penstock.broker.core.core import discreet, resting
from penstock.crypto import SigningKey
from penstock.trust.capabilities import Right, network_tag
from penstock.trust.certificates import Authorisation, Certificate, Name, NameCertificate, Subject, issue
from penstock.trust.credentials import Credentials
from penstock.trust.validity import ALWAYS

DOMAIN, GROUP, BROKER = (SigningKey(bytes([number]) * 32) for number in (31, 32, 33))
TAG = network_tag(NETWORK.owner, NETWORK.name, [Right.CONNECT])


def passed_on(by: SigningKey, to: Subject) -> Certificate:
    return issue(Authorisation(by.principal, to, TAG, True, ALWAYS), by)


def named(by: SigningKey, name: bytes, subject: Subject) -> Certificate:
    return issue(NameCertificate(by.principal, name, subject, ALWAYS), by)


def test_chains_to_the_broker_are_shown_and_rights_of_others_are_not() -> None:
    chain = (passed_on(AGENCY, DOMAIN.principal), passed_on(DOMAIN, BROKER.principal))
    others = (passed_on(AGENCY, PDA.principal), grant(PDA, NEWS, Right.SUBSCRIBE), passed_on(PDA, GROUP.principal))
    everything = Credentials.of(others[0], chain[1], others[1], chain[0], others[2])
    assert {one.id for one in resting(BROKER.principal, everything)} == {one.id for one in chain}


def test_names_that_may_stand_for_the_broker_are_shown() -> None:
    to_group = passed_on(AGENCY, Name(DOMAIN.principal, (b"friends", b"brokers")))
    chain = (
        to_group,
        named(DOMAIN, b"friends", GROUP.principal),
        named(GROUP, b"brokers", BROKER.principal),
    )
    other = named(GROUP, b"brokers", PDA.principal)
    shown = resting(BROKER.principal, Credentials.of(other, *chain))
    assert {one.id for one in shown} == {one.id for one in chain}


def test_rights_on_blinded_types_are_not_shown() -> None:
    rights = grant(PDA, NEWS, Right.ROUTE), grant(PDA, TENNIS, Right.ROUTE), grant(PDA, None, Right.CONNECT)
    everything = Credentials.of(*rights)
    assert discreet(everything, ()) is everything
    assert {one.id for one in discreet(everything, [NEWS.name.key])} == {one.id for one in rights[1:]}


def test_a_broker_with_the_rights_of_many_clients() -> None:
    keys = [SigningKey(hashlib.sha256(b"%d" % number).digest()) for number in range(1_000)]
    policy = [grant(PDA, NEWS, Right.SUBSCRIBE), *(grant(key, NEWS, Right.SUBSCRIBE) for key in keys)]
    assert len(bag(*policy).to_bytes()) > 400_000

    async def main() -> None:
        async with running(*policy) as node, running(key=BROKERS[1], peers=(node.address,)) as other:
            await until(lambda: node.sees(other) and other.sees(node))
            async with client_of(node, PDA) as client:
                await client.subscribe(NEWS.name)

    run(main())
