"""Whatever clients ask in messages that can be read: a broker answers, and nothing but its own errors comes of it."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.node_kit import Broker
from tests.broker.node_kit import settings as settings_of
from tests.broker.sports import NEWS, PDA, TENNIS, TYPES, definition, grant, signed

from penstock.broker.node.clients import _Client
from penstock.broker.wire import protocol
from penstock.broker.wire.protocol import Row, read_request, read_word
from penstock.codec.wire import Encoded, Wire, decode, encode
from penstock.model import Principal, TypeName
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials

pytestmark = pytest.mark.hypothesis

RIGHTS = grant(PDA, NEWS, Right.SUBSCRIBE, Right.PUBLISH, Right.RESTRICTIONS), grant(PDA, None, Right.INSTALL)


@dataclass
class Peer:
    principal: Principal = PDA.principal


@dataclass
class Ears:
    """What stands in for a link: it hears what is posted."""

    heard: list[Encoded] = field(default_factory=list)
    peer: Peer = field(default_factory=Peer)

    def post(self, message: Encoded, *, eager: bool = False) -> None:  # as a link has it
        self.heard.append(message)

    def try_post(self, message: Encoded) -> bool:
        self.post(message)
        return True

    async def close(self, _code: str = "") -> None:
        """Go."""


def attend(node: Broker, session: str, link: Ears) -> _Client:
    """Let in a client whose link exists in memory only."""
    client = _Client(session, link)  # type: ignore[arg-type]  # what stands in for a link
    node.clients._clients[session] = client
    node.core.path.links[session] = client.link
    node.core.settle(node.core.local.connect(node.core.now(), session, link.peer.principal, Credentials()))
    return client


@dataclass
class SlowEars(Ears):
    """A link whose peer reads one message each time that it is let to."""

    reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def try_post(self, message: Encoded) -> bool:
        return False

    async def send(self, message: Encoded) -> None:
        await self.reads.acquire()
        self.heard.append(message)


def test_a_slow_client_is_told_the_last_change_of_each_right_and_no_more_waits_than_it_has_requests() -> None:
    async def main() -> None:
        node, link = Broker(settings_of(*RIGHTS)), SlowEars()
        core = node.core
        for one in TYPES:
            core.library.add(signed(one), core.now())
        client = attend(node, "1", link)
        node.clients._take(client, protocol.WatchRightsMessage(1))
        for id_ in ("s", "t", "u"):
            node.clients._take(client, protocol.SubscribeMessage(2, id_, NEWS.name, ""))
        link.heard.clear()
        for _ in range(50):
            node.policy()
            node.policy(*RIGHTS)
            await asyncio.sleep(0)
        assert len(client.notices) <= 3
        node.policy()
        node.clients._take(client, protocol.NamedRequestMessage(3, "unsubscribe", "u"))
        assert [read_word(decode(one)) for one in link.heard] == [protocol.AcceptedMessage(3)]
        for _ in range(6):
            link.reads.release()
            await asyncio.sleep(0)
        words = [read_word(decode(one)) for one in link.heard]
        changes = [(one.id, str(one.change)) for one in words if isinstance(one, protocol.RightChangedMessage)]
        # The first one was on its way already.
        assert changes == [("s", "restored"), ("t", "withdrawn"), ("s", "withdrawn")]
        assert not client.notices

    asyncio.run(main())


IDS = st.sampled_from(["a", "b", "s", "t"])
NUMBERS = st.integers(0, 5)
NAMES = st.sampled_from([NEWS.name, TENNIS.name, definition("Chess", {}).name, TypeName(PDA.principal, "Own", "7")])
SELECTORS = st.sampled_from(
    ["", "headline = 'h'", "location IS NULL OR headline LIKE '%'", "sets > 2", "1 = 1", "headline", "((", "'", "\x00"]
)
OCTETS = st.binary(max_size=20) | st.sampled_from(
    [*(signed(one).to_bytes() for one in TYPES), signed(definition("Golf", {}, NEWS.name)).to_bytes()]
)
BAGS = st.binary(max_size=20) | st.sampled_from([b"", Credentials.of(*RIGHTS).to_bytes()])
VALUES: st.SearchStrategy[Wire] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4)
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=3,
)
ROWS: st.SearchStrategy[list[Row]] = st.lists(
    st.builds(
        lambda id_, time, values: [id_, time, *values],
        st.text(max_size=4),
        st.none() | st.datetimes(timezones=st.just(UTC)),
        st.lists(st.text(max_size=3) | VALUES, min_size=3, max_size=3) | st.lists(VALUES, max_size=5),
    ),
    max_size=4,
)
REQUESTS = st.one_of(
    st.builds(protocol.SubscribeMessage, NUMBERS, IDS, NAMES, SELECTORS, st.lists(OCTETS, max_size=2).map(tuple)),
    st.builds(protocol.AdvertiseMessage, NUMBERS, IDS, NAMES, st.lists(OCTETS, max_size=2).map(tuple)),
    st.builds(protocol.PublishMessage, NUMBERS, IDS, NAMES, ROWS),
    st.builds(protocol.NamedRequestMessage, NUMBERS, st.sampled_from(protocol.NamedRequestMessage.WORDS), IDS),
    st.builds(protocol.Disclose, NUMBERS, BAGS),
    st.builds(protocol.AddTypeMessage, NUMBERS, OCTETS),
    st.builds(protocol.RemoveTypeMessage, NUMBERS, NAMES),
    st.builds(protocol.DescribeTypeMessage, NUMBERS, NAMES),
    st.builds(protocol.NetworkStatusMessage, NUMBERS),
    st.builds(protocol.CredentialStatusMessage, NUMBERS, st.none() | NAMES),
    st.builds(protocol.WatchRightsMessage, NUMBERS),
    st.builds(protocol.Evolve, NUMBERS, OCTETS),
)
#: so that most events have something to be published under
FIRST = (protocol.AdvertiseMessage(1, "a", NEWS.name), protocol.SubscribeMessage(2, "s", NEWS.name, ""))


@given(st.lists(REQUESTS, max_size=12))
@settings(deadline=None)
def test_every_request_is_answered(requests: list[protocol.Asking]) -> None:
    async def main() -> None:
        node, link = Broker(settings_of(*RIGHTS)), Ears()
        core = node.core
        for one in TYPES:
            core.library.add(signed(one), core.now())
        client = attend(node, "1", link)
        for request in (*FIRST, *requests):
            link.heard.clear()
            tree = decode(encode(request.to_tree()))
            asked = read_request(tree)
            assert not isinstance(asked, protocol.Hello)
            if isinstance(asked, protocol.Disclose):
                await node.clients._disclose(client, asked)
            else:
                node.clients._take(client, asked)
            words = [read_word(decode(message)) for message in link.heard]
            answers = (protocol.AcceptedMessage, protocol.ResponseMessage, protocol.RefusedMessage)
            answered = [word for word in words if isinstance(word, answers) and word.number == request.number]
            if isinstance(request, protocol.PublishMessage):
                assert bool(answered) or request.number == 0
            else:
                assert len(answered) == 1, words
            given_ = [row for word in words if isinstance(word, protocol.Events) for row in word.rows]
            assert all(type(value) in (str, type(None), int) for row in given_ for value in row[2:])

    asyncio.run(main())
