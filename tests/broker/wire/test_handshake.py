"""The handshake: two who speak the truth know each other, and nobody else gets through, whatever he has overheard."""

import itertools
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.spoiled import flipped

from penstock.broker.wire.handshake import LABEL, Accepting, Connecting, HandshakeTerms
from penstock.codec.sexp import canonical, parse_canonical
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.model import NetworkName, Principal

CLIENT, BROKER, MALLORY = (SigningKey(bytes([n]) * 32) for n in (1, 2, 3))
NETWORK = NetworkName(SigningKey(bytes([9]) * 32).principal, "UK Police Network")
CERTIFICATE, ANOTHER = b"c" * 32, b"d" * 32

_counter = itertools.count(1)


def fresh(size: int) -> bytes:
    return next(_counter).to_bytes(size, "big")


def terms(key: SigningKey, network: NetworkName = NETWORK, binding: bytes = CERTIFICATE) -> HandshakeTerms:
    return HandshakeTerms(key, network, binding)


def connecting(key: SigningKey = CLIENT, expected: Principal | None = None, binding: bytes = CERTIFICATE) -> Connecting:
    return Connecting(terms(key, binding=binding), fresh, expected)


def accepting(key: SigningKey = BROKER, binding: bytes = CERTIFICATE) -> Accepting:
    return Accepting(terms(key, binding=binding), fresh)


def run(client: Connecting, broker: Accepting) -> tuple[bytes, bytes, bytes]:
    """Run one to its end; return what went over the wire."""
    first = broker.open()
    second = answer(client, first)
    third = answer(broker, second)
    assert client.receive(third) is None
    return first, second, third


def parts(message: bytes) -> tuple[bytes, ...]:
    """Take a message apart."""
    value = parse_canonical(message)
    assert isinstance(value, tuple)
    return tuple(part for part in value if isinstance(part, bytes))


def answer(side: Connecting | Accepting, message: bytes) -> bytes:
    """Return the answer that a side must have."""
    found = side.receive(message)
    assert found is not None
    return found


def refused(code: str, act: Callable[[], object]) -> None:
    with pytest.raises(PenstockError) as caught:
        act()
    assert caught.value.code == code


def test_both_know_each_other() -> None:
    client, broker = connecting(expected=BROKER.principal), accepting()
    run(client, broker)
    assert client.peer.principal == BROKER.principal
    assert broker.peer.principal == CLIENT.principal
    assert client.peer.network == broker.peer.network == NETWORK
    assert client.done
    assert broker.done


def test_no_peer_before_the_end() -> None:
    client, broker = connecting(), accepting()
    refused("handshake.order", lambda: client.peer)
    answer = client.receive(broker.open())
    refused("handshake.order", lambda: client.peer)
    refused("handshake.order", lambda: broker.peer)
    assert answer is not None
    broker.receive(answer)
    refused("handshake.order", lambda: client.peer)


def test_both_agree_on_everything_that_was_signed() -> None:
    client, broker = connecting(), accepting()
    refused("handshake.order", lambda: client.agreed)
    first, second, _ = run(client, broker)
    number_of_broker, agreed = client.agreed
    number_of_client, agreed_too = broker.agreed
    assert agreed == agreed_too
    assert number_of_broker == parts(first)[3]
    assert number_of_client == parts(second)[3]
    numbers = (number_of_client, number_of_broker)
    for part in (*numbers, str(NETWORK).encode(), CLIENT.principal.digest, BROKER.principal.digest, CERTIFICATE):
        assert part in agreed
    # Nobody signs it, and nothing that was signed is it.
    assert b"8:connects" not in agreed
    assert b"7:accepts" not in agreed


def test_nothing_is_agreed_when_the_handshake_fails() -> None:
    client, broker = connecting(), accepting()
    second = answer(client, broker.open())
    refused("handshake.signature", lambda: client.receive(canonical((LABEL, b"proof", bytes(64)))))
    refused("handshake.order", lambda: client.agreed)
    refused("handshake.signature", lambda: broker.receive(flipped(second, -3)))
    refused("handshake.order", lambda: broker.agreed)


def test_a_wrong_key_is_refused_on_both_sides() -> None:
    # Mallory claims to be the client, or the broker, and signs with her own key.
    client, broker = connecting(), accepting()
    second = answer(client, broker.open())
    label, word, key, nonce, mark, _signature = parts(second)
    forged = canonical((label, word, key, nonce, mark, MALLORY.sign(b"anything")))
    refused("handshake.signature", lambda: broker.receive(forged))

    client, broker = connecting(), accepting(MALLORY)
    label, word, key, nonce, mark = parts(broker.open())
    second = answer(client, canonical((label, word, BROKER.public.raw, nonce, mark)))
    # She cannot even be signed for: the client signs for the broker's key.
    refused("handshake.signature", lambda: broker.receive(second))
    refused("handshake.signature", lambda: client.receive(canonical((LABEL, b"proof", MALLORY.sign(b"anything")))))


def test_the_broker_that_was_wanted_and_no_other() -> None:
    client = connecting(expected=BROKER.principal)
    refused("handshake.peer", lambda: client.receive(accepting(MALLORY).open()))
    assert not client.done


@pytest.mark.parametrize(
    "other", [NetworkName(NETWORK.owner, "UK Fire Network"), NetworkName(MALLORY.principal, NETWORK.name)]
)
def test_another_network_is_refused(other: NetworkName) -> None:
    client = Connecting(terms(CLIENT, other), fresh)
    refused("handshake.network", lambda: client.receive(accepting().open()))


def test_a_client_that_lies_about_its_network_is_refused() -> None:
    other = NetworkName(MALLORY.principal, "elsewhere")
    for lie, code in ((False, "handshake.network"), (True, "handshake.signature")):
        broker, client = accepting(), Connecting(terms(CLIENT, other), fresh)
        label, word, key, nonce, _mark = parts(broker.open())
        second = list(parts(answer(client, canonical((label, word, key, nonce, client._mark(nonce))))))
        if lie:
            # It knows the name of the broker's network, and has signed for its own.
            second[4] = broker._mark(second[3])
        refused(code, partial(broker.receive, canonical(tuple(second))))


def test_the_network_is_not_named_to_strangers() -> None:
    first, second, third = run(connecting(), accepting())
    for message in (first, second, third):
        assert NETWORK.name.encode() not in message
        assert NETWORK.owner.digest not in message


def test_somebody_in_the_middle_is_refused() -> None:
    # Mallory ends TLS herself and passes every message on: the two see different certificates.
    client, broker = connecting(binding=ANOTHER), accepting()
    second = answer(client, broker.open())
    refused("handshake.signature", lambda: broker.receive(second))
    # And a broker that would not look: the client does.
    client = connecting(binding=ANOTHER)
    blind = accepting(binding=ANOTHER)
    second = answer(client, blind.open())
    blind._terms = terms(BROKER)
    key, nonce = parts(second)[2:4]
    assert key == CLIENT.public.raw
    third = canonical((LABEL, b"proof", blind._sign(b"accepts", nonce, CLIENT.public)))
    refused("handshake.signature", lambda: client.receive(third))


def test_nothing_can_be_replayed() -> None:
    first, second, third = run(connecting(), accepting())
    broker = accepting()
    broker.open()
    refused("handshake.signature", lambda: broker.receive(second))
    client = connecting()
    client.receive(first)
    refused("handshake.signature", lambda: client.receive(third))


def test_two_runs_cannot_be_spliced() -> None:
    # Mallory sits between a client and two brokers, and mixes their runs in every way.
    client, other_client = connecting(), connecting(MALLORY)
    broker, other_broker = accepting(), accepting()
    first, other_first = broker.open(), other_broker.open()
    second, other_second = answer(client, first), other_client.receive(other_first)
    assert other_second is not None
    refused("handshake.signature", lambda: other_broker.receive(second))
    third = answer(broker, second)
    refused("handshake.signature", lambda: other_client.receive(third))
    # One's introduction with another's signature.
    label, word, key, nonce, mark, _ = parts(other_second)
    spliced = canonical((label, word, key, nonce, mark, parts(second)[5]))
    broker = accepting()
    broker.open()
    refused("handshake.signature", lambda: broker.receive(spliced))


def test_what_was_signed_for_one_broker_is_no_use_with_another() -> None:
    # A hostile broker that a client connects to of its own will carries the client's answer to another.
    victim, hostile = accepting(), accepting(MALLORY)
    label, word, _key, nonce, mark = parts(victim.open())
    second = answer(connecting(), canonical((label, word, MALLORY.public.raw, nonce, mark)))
    assert hostile is not victim
    refused("handshake.signature", lambda: victim.receive(second))


def test_nothing_can_be_thrown_back() -> None:
    # To a broker: its own challenge, as if a client had the same key and number.
    broker = accepting()
    label, _word, key, nonce, mark = parts(broker.open())
    refused(
        "handshake.reflection", lambda: broker.receive(canonical((label, b"response", key, nonce, mark, bytes(64))))
    )
    # Its own key alone, with another number.
    broker = accepting()
    own = Connecting(terms(BROKER), fresh)
    refused("handshake.reflection", lambda: own.receive(broker.open()))
    # Its own number under another key.
    broker = accepting()
    label, _word, _key, nonce, mark = parts(broker.open())
    thrown = canonical((label, b"response", MALLORY.public.raw, nonce, mark, bytes(64)))
    refused("handshake.reflection", lambda: broker.receive(thrown))
    # To a client: its own signature as the broker's proof.
    client = connecting()
    second = answer(client, accepting().open())
    refused("handshake.signature", lambda: client.receive(canonical((LABEL, b"proof", parts(second)[5]))))


def test_a_signature_in_one_role_is_none_in_the_other() -> None:
    # A broker that connects to another broker is asked, by Mallory, for what it would sign as the one who accepts.
    client, broker = connecting(), accepting()
    second = answer(client, broker.open())
    client_nonce = parts(second)[3]
    as_connecting = canonical((LABEL, b"proof", broker._sign(b"connects", client_nonce, CLIENT.public)))
    refused("handshake.signature", lambda: client.receive(as_connecting))


def test_keys_that_anybody_can_sign_for_are_refused() -> None:
    # Points of small order: some signatures hold under them for every message.
    for key in (bytes(32), b"\x01" + bytes(31), b"\xec" + b"\xff" * 30 + b"\x7f"):
        broker = accepting()
        broker.open()
        nonce = fresh(32)
        message = canonical((LABEL, b"response", key, nonce, broker._mark(nonce), b"\x01" + bytes(63)))
        refused("handshake.signature", partial(broker.receive, message))


def test_each_message_counts_once() -> None:
    client, broker = connecting(), accepting()
    first, second, third = run(client, broker)
    refused("handshake.order", broker.open)
    refused("handshake.order", lambda: broker.receive(second))
    refused("handshake.order", lambda: client.receive(third))
    refused("handshake.order", lambda: accepting().receive(second))
    refused("handshake.malformed", lambda: connecting().receive(third))
    assert first


def test_there_is_no_second_try() -> None:
    client, broker = connecting(), accepting()
    second = answer(client, broker.open())
    refused("handshake.malformed", lambda: broker.receive(b"()"))
    refused("handshake.order", lambda: broker.receive(second))
    assert not broker.done


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"(",
        b"GET / HTTP/1.1\r\n\r\n",
        canonical((b"penstock-handshake-2", b"response", b"", b"", b"", b"")),
        canonical((LABEL, b"challenge", bytes(32), bytes(32), bytes(32), bytes(64))),
        canonical((LABEL, b"response", bytes(32), bytes(32), bytes(32))),
        canonical((LABEL, b"response", bytes(32), bytes(32), bytes(32), bytes(64), b"more")),
        canonical((LABEL, b"response", bytes(31), bytes(32), bytes(32), bytes(64))),
        canonical((LABEL, b"response", bytes(32), bytes(33), bytes(32), bytes(64))),
        canonical((LABEL, b"response", bytes(32), bytes(32), bytes(32), bytes(65))),
        canonical((LABEL, b"response", (bytes(32),), bytes(32), bytes(32), bytes(64))),
        canonical((LABEL, b"response", bytes(32), bytes(32), bytes(32), bytes(64))) + b"x",
        canonical((LABEL, b"response", bytes(2_000), bytes(32), bytes(32), bytes(64))),
        b"(" * 5_000,
    ],
)
def test_what_is_no_message_is_refused(message: bytes) -> None:
    broker = accepting()
    broker.open()
    refused("handshake.malformed", lambda: broker.receive(memoryview(message)))


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2), st.integers(0, 10_000), st.integers(1, 255))
def test_no_changed_octet_gets_through(which: int, place: int, change: int) -> None:
    client, broker = connecting(), accepting()

    def altered(message: bytes | None, number: int) -> bytes:
        assert message is not None
        if number != which:
            return message
        at = place % len(message)
        return message[:at] + bytes((message[at] ^ change,)) + message[at + 1 :]

    with pytest.raises(PenstockError) as caught:
        client.receive(altered(broker.receive(altered(client.receive(altered(broker.open(), 0)), 1)), 2))
    assert caught.value.code.startswith("handshake.")
    assert not client.done


def test_secrets_and_numbers_do_not_show() -> None:
    client = connecting()
    for shown in (repr(client), repr(client._terms)):
        assert CLIENT.seed.hex() not in shown
        assert repr(CLIENT.seed)[2:-1] not in shown
    assert repr(client._nonce) not in repr(client)


def test_terms_and_random_numbers_of_a_wrong_size() -> None:
    refused("handshake.binding", lambda: terms(CLIENT, binding=b"short"))
    refused("handshake.random", lambda: Connecting(terms(CLIENT), lambda _: b"short"))
