"""Being a broker is a right of its own: who may only connect is a client, whatever it calls itself."""

import pytest
from tests.broker.node_kit import BROKERS, Broker, client_of, ending, peer, refused, run, running, until
from tests.broker.sports import AGENCY, NEWS, PDA, STRANGER, grant

from penstock.broker.keys.rights import KeyClaims
from penstock.broker.wire.protocol import PeerRole
from penstock.model.principals import Principal
from penstock.trust.capabilities import BROKER_RIGHTS, Right
from penstock.trust.credentials import Credentials

#: a client with every right but the one to be a broker
CARRY = grant(STRANGER, NEWS, Right.ROUTE, Right.SUBSCRIBE, Right.PUBLISH)
CLIENT = (grant(STRANGER, None, Right.CONNECT), CARRY)
ME = STRANGER.principal
READ = grant(PDA, NEWS, Right.SUBSCRIBE)


def test_a_client_does_not_become_a_broker_by_saying_so() -> None:
    async def main() -> None:
        async with running(READ, *CLIENT) as node, peer(node, STRANGER, PeerRole.BROKER) as link:
            assert await ending(link) == "broker.not-permitted"
            assert not node.neighbours.up()
            assert ME not in node.core.disclosed

    run(main())


def test_what_a_client_shows_does_not_make_it_a_broker_either() -> None:
    async def main() -> None:
        shown = Credentials.of(*CLIENT, grant(STRANGER, None, Right.CONNECT, Right.INSTALL)).to_bytes()
        async with running(READ) as node, peer(node, STRANGER, PeerRole.BROKER, shown) as link:
            assert await ending(link) == "broker.not-permitted"

    run(main())


@pytest.mark.parametrize("right", BROKER_RIGHTS)
def test_one_of_the_two_rights_is_not_enough(right: Right) -> None:
    async def main() -> None:
        async with running(grant(STRANGER, None, right)) as node, peer(node, STRANGER, PeerRole.BROKER) as link:
            assert await ending(link) == "broker.not-permitted"

    run(main())


def test_whoever_welcomes_a_broker_or_a_client_must_be_a_broker() -> None:
    async def main() -> None:
        async with running(*CLIENT, key=STRANGER) as posing:
            async with running(*CLIENT, key=BROKERS[1], peers=(posing.address,)) as calling:
                await until(lambda: "broker.not-permitted" in calling.codes)
                assert calling.sees()
            # A client that was not told which broker to expect asks the same.
            reader = client_of(posing, PDA)
            await refused("broker.not-permitted", reader.__aenter__())

    run(main())


@pytest.mark.parametrize("lost", BROKER_RIGHTS)
def test_a_broker_that_loses_one_of_its_rights_is_cut(lost: Right) -> None:
    kept = [grant(STRANGER, None, right) for right in BROKER_RIGHTS if right is not lost]

    async def main() -> None:
        async with (
            running(CARRY, *kept, grant(STRANGER, None, lost)) as node,
            running(CARRY, key=STRANGER, peers=(node.address,)) as other,
        ):
            await until(lambda: node.sees(other))
            assert counts(node, ME)
            node.policy(CARRY, *kept)
            await until(lambda: not node.neighbours.up() and node.sees())
            assert not counts(node, ME)

    run(main())


def counts(node: Broker, broker: Principal) -> bool:
    """Say whether a node takes somebody for a broker in any way at all."""
    core = node.core
    found = {
        core.admitted(broker),
        core.is_broker(broker),
        core.may_route(NEWS.name.key, broker),
        core.goes_by(core.now(), AGENCY.principal, broker),
        KeyClaims(core).is_broker(broker, NEWS.name.key),
    }
    assert len(found) == 1
    return found.pop()


def test_the_right_to_carry_a_type_counts_for_brokers_alone() -> None:
    async def main() -> None:
        async with running(*CLIENT) as node:
            assert node.core.overlay.may_route(node.core.now(), NEWS.name.key, ME)
            assert not counts(node, ME)
            node.policy(*CLIENT, grant(STRANGER, None, Right.BROKER))
            assert counts(node, ME)

    run(main())
