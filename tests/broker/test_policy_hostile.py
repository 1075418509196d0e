"""Brokers that lie about policy: junk in the place of policy, false heads, and revocations that are swallowed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import MappingProxyType

from tests.broker.node_kit import BROKERS, Broker, client_of, peer, refused, run, running, say, until
from tests.broker.sports import AGENCY, NEWS, PDA, REPORTER
from tests.broker.test_policy import READING, WRITING, now, number_at

from penstock.broker.entries import Interest
from penstock.broker.link import Link
from penstock.broker.messages import Body, Enter, Greeting, Hop, Stamp
from penstock.broker.policy_transport import ACKNOWLEDGEMENT, POLICY
from penstock.broker.protocol import Role
from penstock.broker.publications import Publications
from penstock.model.events import TransitEvent
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.names import AttributeId, TypeKey
from penstock.trust.credentials import Credentials
from penstock.trust.policy_events import Revoke
from penstock.trust.policy_state import PolicyAuthor, publish

LIAR = BROKERS[1]


class Liar:
    """A broker that is linked to a node and says what it likes."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._said = 0
        say(link, Hop(Stamp(1, 1), 0, Greeting()).to_tree())

    def hop(self, body: Body) -> None:
        self._said += 1
        say(self.link, Hop(Stamp(1, 1), self._said, body).to_tree())

    def put_junk(self, name: str, slots: int) -> None:
        """Say retained events of a reserved type that hold nothing."""
        key = TypeKey(AGENCY.principal, name)
        values = MappingProxyType({str(AttributeId(key.owner, key.name, "statement")): "junk"})
        for number in range(1, slots + 1):
            event = TransitEvent(key, (), values, str(number), now())
            self.hop(Publications(LIAR.principal, 1, (number,), (event,), 0, f"{number + 2:015}"))


@asynccontextmanager
async def lying(node: Broker) -> AsyncIterator[Liar]:
    async with peer(node, LIAR, Role.BROKER) as link:
        yield Liar(link)


@asynccontextmanager
async def revoked() -> AsyncIterator[Broker]:
    """Yield a broker whose owner has granted a right and revoked it."""
    author = PolicyAuthor(AGENCY)
    async with running() as one, client_of(one, REPORTER) as writer:
        await writer.evolve(author.change(now(), publish(READING, WRITING)).to_bytes())
        await writer.evolve(author.change(now(), Revoke((READING.id,))).to_bytes())
        yield one


def test_junk_displaces_no_policy() -> None:
    async def test() -> None:
        async with revoked() as one, lying(one) as liar:
            for name in (POLICY, ACKNOWLEDGEMENT):
                liar.put_junk(name, DEFAULT_LIMITS.route_retained + 76)
            # What a link brings comes in order.
            liar.hop(Enter(1, Interest(NEWS.name.key)))
            await until(lambda: one.core.router.size().entered)
            assert not one.core.router.size().retained
            async with running(key=BROKERS[2], peers=(one.address,)) as late, client_of(late, PDA) as reader:
                await until(lambda: number_at(late) == 2)
                await reader.disclose(Credentials.of(READING))
                await refused("broker.not-permitted", reader.subscribe(NEWS.name))

    run(test())
