"""What clients and brokers say to each other: every message comes back as it was, and nothing else is read."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.sports import NEWS

from penstock.broker.wire import protocol
from penstock.broker.wire.protocol import (
    AskKeys,
    Events,
    FetchKeys,
    KeyWord,
    PeerRole,
    Request,
    Row,
    Word,
    read_request,
    read_word,
    write_events,
    write_rows,
)
from penstock.codec.limits import CodecLimits
from penstock.codec.wire import Wire, decode, encode
from penstock.errors import LimitError, MalformedError
from penstock.trust.refusals import RightChange

pytestmark = pytest.mark.hypothesis

ROWS: list[Row] = [["id", datetime(2026, 1, 1, tzinfo=UTC), "text", 1, 2.5, True, None], ["", None]]
REQUESTS: list[Request] = [
    protocol.Hello(PeerRole.CLIENT, b"bag"),
    protocol.Hello(PeerRole.BROKER, b""),
    protocol.Disclose(1, b"bag"),
    protocol.DescribeTypeMessage(2, NEWS.name),
    protocol.AddTypeMessage(3, b"definition"),
    protocol.RemoveTypeMessage(4, NEWS.name),
    protocol.SubscribeMessage(5, "s", NEWS.name, "location = 'London'", (b"one", b"two")),
    protocol.AdvertiseMessage(6, "a", NEWS.name),
    *(protocol.NamedRequestMessage(7, word, "s") for word in protocol.NamedRequestMessage.WORDS),
    protocol.Evolve(8, b"signed"),
    protocol.PolicyHeadMessage(8, NEWS.name.owner, 3),
    protocol.NetworkStatusMessage(9),
    protocol.CredentialStatusMessage(9),
    protocol.CredentialStatusMessage(9, NEWS.name),
    protocol.ServeValidityMessage(9),
    protocol.WatchRightsMessage(9),
    AskKeys(9, KeyWord.STATUS),
    AskKeys(9, KeyWord.ROTATE, NEWS.name.key, "headline"),
    AskKeys(9, KeyWord.EVICT, NEWS.name.key, broker=NEWS.name.owner),
    AskKeys(9, KeyWord.FORGET, before=datetime(2026, 5, 1, tzinfo=UTC)),
    FetchKeys(9, b"signed"),
    protocol.PublishMessage(0, "a", NEWS.name, ROWS),
]
WORDS: list[Word] = [
    protocol.Welcome(b"bag"),
    protocol.AcceptedMessage(1),
    protocol.RefusedMessage(2, "broker.rate", "no", "slower", {"granted": [], "missing": [], "problems": []}, 3),
    protocol.ResponseMessage(3, [b"definition"]),
    protocol.Events("s", ROWS),
    protocol.QuenchedMessage("a", True),
    protocol.RightChangedMessage("s", RightChange.WITHDRAWN, "broker.not-permitted", "no", "ask", {"lacked": []}),
    protocol.RightChangedMessage("s", RightChange.RESTORED),
    protocol.ValidityAskedMessage(b"question"),
]


def on_the_wire(message: Request | Word) -> Wire:
    return decode(encode(message.to_tree()))


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_requests_come_back(request_: Request) -> None:
    assert read_request(on_the_wire(request_)) == request_
    assert protocol.word_of(request_) == request_.to_tree()[0]


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_words_come_back(word: Word) -> None:
    assert read_word(on_the_wire(word)) == word


def test_a_client_says_nothing_that_a_broker_says_and_the_other_way_round() -> None:
    for message in (*REQUESTS, *WORDS):
        read = read_word if message in REQUESTS else read_request
        with pytest.raises(MalformedError):
            read(on_the_wire(message))


@pytest.mark.parametrize(
    "tree",
    [
        ["hello", 1, "king", b""],
        ["hello", 1, "client", "text"],
        ["subscribe", 1, "", str(NEWS.name), "", []],
        ["subscribe", 1, "x" * 257, str(NEWS.name), "", []],
        ["subscribe", 1, "a\nb", str(NEWS.name), "", []],
        ["subscribe", 1, "s", "no name", "", []],
        ["subscribe", 1, "s", str(NEWS.name), "", ["text"]],
        ["subscribe", 1, "s", str(NEWS.name), "", [b""] * 97],
        ["subscribe", True, "s", str(NEWS.name), "", []],
        ["keys", 1, "steal", "", "", ""],
        ["keys", 1, "evict", "", "", ""],
        ["keys", 1, "forget", "", "", "now"],
        ["keys", 1, "rotate", "news", "", ""],
        ["keys", 1, "rotate", "", "", "more"],
        ["keys", 1, "rotate", "", "x" * 257, ""],
        ["fetch-keys", 1, "text"],
        ["publish", -1, "a", str(NEWS.name), []],
        ["publish", 1 << 63, "a", str(NEWS.name), []],
        ["publish", 1, "a", str(NEWS.name), [["id"]]],
        ["publish", 1, "a", str(NEWS.name), [[7, None]]],
        ["publish", 1, "a", str(NEWS.name), [["id", "yesterday"]]],
        ["publish", 1, "a", str(NEWS.name), [["x" * 5_000, None]]],
        ["publish", 1, "a", str(NEWS.name), [{"id": 1}]],
        ["watch-rights", -1],
        ["watch-rights", 1, "s"],
        ["reboot", 1, "s"],
        [],
        {},
        None,
    ],
)
def test_what_is_no_request(tree: Wire) -> None:
    with pytest.raises(MalformedError):
        read_request(tree)


def test_another_version_is_not_spoken() -> None:
    with pytest.raises(MalformedError) as asked:
        read_request(["hello", 2, "client", b""])
    with pytest.raises(MalformedError) as answered:
        read_word(["welcome", 2, b""])
    assert asked.value.code == answered.value.code == "protocol.version"


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.just(str(NEWS.name))
    | st.datetimes(timezones=st.just(UTC))
)
TREES: st.SearchStrategy[Wire] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
VERBS = st.sampled_from(sorted({str(message.to_tree()[0]) for message in (*REQUESTS, *WORDS)}))


@st.composite
def near_messages(draw: st.DrawFn) -> Wire:
    """Return a message with one part, or its length, changed."""
    tree = decode(encode(draw(st.sampled_from([*REQUESTS, *WORDS])).to_tree()))
    assert isinstance(tree, list)
    place = draw(st.integers(0, len(tree)))
    return [*tree[:place], *draw(st.lists(TREES, max_size=2)), *tree[place + 1 :]]


@given(TREES | near_messages() | st.builds(lambda verb, rest: [verb, *rest], VERBS, st.lists(TREES, max_size=6)))
def test_whatever_comes_is_a_message_or_malformed(tree: Wire) -> None:
    for read in (read_request, read_word):
        try:
            message = read(tree)
        except MalformedError:
            continue
        assert decode(encode(message.to_tree())) == decode(encode(tree))


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=40))
def test_rows_take_as_many_messages_as_they_need(sizes: list[int]) -> None:
    limits = CodecLimits(frame_bytes=4_096)
    rows: list[Row] = [[str(number), None, "x" * size] for number, size in enumerate(sizes)]
    messages = write_events("s", rows, limits)
    assert all(len(message) < 4_096 for message in messages)
    found = [read_word(decode(message)) for message in messages]
    assert [row for part in found if isinstance(part, Events) for row in part.rows] == rows
    if sum(sizes) + 20 * len(sizes) < 4_000:
        assert len(messages) == 1


def test_a_row_that_fits_into_no_message() -> None:
    with pytest.raises(LimitError) as caught:
        write_rows(["publish", 1, "a", str(NEWS.name)], [["", None, "x" * 5_000]], CodecLimits(frame_bytes=4_096))
    assert caught.value.code == "wire.limit"
