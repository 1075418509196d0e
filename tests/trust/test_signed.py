"""Signed statements as bytes: what is signed is what is read, any change to it is refused, and kinds do not mix."""

from contextlib import suppress
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.kit import NOW, key, refused, who
from tests.trust.policy_kit import BROKER, NEIGHBOUR, OWNER, PERIOD, RIGHTS, author, install, remove, revoke

from penstock.codec.sexp import SExp, advanced, canonical, head, parse, transport
from penstock.crypto import PublicKey, digest
from penstock.errors import PenstockError
from penstock.model.principals import Principal
from penstock.trust.policy_events import Acknowledgement, HopStamp, PolicyEvent, RequireStamps, TimeStamp
from penstock.trust.policy_state import publish
from penstock.trust.signed import Claim, SignedValue, UnverifiedValue, read_signed, sign_value

KINDS: Final[tuple[type[Claim], ...]] = (PolicyEvent, TimeStamp, HopStamp, Acknowledgement)


def statements() -> list[SignedValue[Claim]]:
    """One of each kind, with everything in it that can be."""
    policy = author()
    policy.change(NOW)
    changes = (publish(RIGHTS[0]), revoke(*RIGHTS[1:]), install(), remove(), RequireStamps())
    event, stamp = policy.change(NOW, *changes), policy.stamp(NOW, PERIOD)
    hop = sign_value(HopStamp(stamp.digest, who(BROKER), who(NEIGHBOUR), NOW), key(BROKER))
    ack = Acknowledgement(who(BROKER), who(OWNER), policy.number, policy.head, NOW, stamped=True)
    return [event, *policy.checkpoint(NOW), stamp, hop, sign_value(ack, key(BROKER))]


STATEMENTS: Final = statements()
EACH: Final = pytest.mark.parametrize("signed", STATEMENTS, ids=lambda signed: type(signed.value).__name__)


def read(data: bytes) -> UnverifiedValue[Claim]:
    return read_signed(parse(data), *KINDS)


@EACH
def test_a_statement_is_read_back_in_every_form(signed: SignedValue[Claim]) -> None:
    for data in (signed.to_bytes(), transport(signed.to_sexp()), advanced(signed.to_sexp()).encode()):
        found = read(data)
        assert found.value == signed.value
        assert found.to_sexp() == signed.to_sexp()
        assert found.verify() == signed


@EACH
def test_every_changed_byte_is_refused(signed: SignedValue[Claim]) -> None:
    data = signed.to_bytes()
    for place in range(0, len(data), 1 + len(data) // 1000):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        with pytest.raises(PenstockError):
            read(bytes(changed)).verify()
    for end in range(0, len(data), 7):
        with pytest.raises(PenstockError):
            read(data[:end])


@EACH
def test_a_statement_of_another_kind_is_refused(signed: SignedValue[Claim]) -> None:
    others = [kind for kind in KINDS if not isinstance(signed.value, kind)]
    with refused("evolution.malformed"):
        read_signed(signed.to_sexp(), *others)


@EACH
def test_only_whoever_says_it_can_sign_it(signed: SignedValue[Claim]) -> None:
    with refused("evolution.wrong-key"):
        sign_value(signed.value, key(99))
    stranger = key(99)
    forged = signature(signed.body, digest(signed.body), stranger.public, stranger.sign(canonical(signed.body)))
    with refused("evolution.wrong-key"):
        read_signed(forged, *KINDS).verify()


def signature(body: SExp, hashed: bytes, public: PublicKey, octets: bytes) -> SExp:
    return (b"sequence", body, (b"signature", (b"hash", b"sha256", hashed), public.to_sexp(), octets))


def test_a_signature_of_another_statement_is_refused() -> None:
    one, other = STATEMENTS[0], STATEMENTS[1]
    with refused("evolution.signature-mismatch"):
        read_signed(signature(one.body, other.digest, other.key, other.signature), *KINDS)
    with refused("key.bad-signature"):
        read_signed(signature(one.body, one.digest, other.key, other.signature), *KINDS).verify()


@EACH
def test_a_statement_has_one_written_form(signed: SignedValue[Claim]) -> None:
    body = signed.body
    assert isinstance(body, tuple)
    for other in ((*body, (b"more",)), (body[0], *reversed(body[1:])), (*body, body[-1]), body[:-1]):
        with refused("evolution.malformed", "sexp.duplicate") if other != body[:-1] else suppress(PenstockError):
            found = read_signed(signature(other, digest(other), signed.key, signed.signature), *KINDS)
            # Without its last part it may be another statement, which nobody signed.
            found.verify()
            pytest.fail("read in another form")


@EACH
def test_a_time_is_a_date(signed: SignedValue[Claim]) -> None:
    assert isinstance(signed.body, tuple)
    for time in ((b"time", ()), (b"time", b"noon")):
        body = tuple(time if head(part) == b"time" else part for part in signed.body)
        with refused("evolution.malformed", "date.malformed"):
            read_signed(signature(body, digest(body), signed.key, signed.signature), *KINDS)


def test_a_quorum_has_no_key_to_sign_with() -> None:
    written_as_quorum = Principal(who(OWNER).digest, "threshold")
    body = TimeStamp(written_as_quorum, 0, bytes(32), NOW, PERIOD).to_sexp()
    signed = signature(body, digest(body), key(OWNER).public, key(OWNER).sign(canonical(body)))
    with refused("evolution.wrong-key"):
        read_signed(signed, TimeStamp).verify()


SEXPS = st.recursive(
    st.binary(max_size=4) | st.sampled_from([b"owner", b"number", b"time", b"changes", b"publish", b"revoke", b"1"]),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=12,
)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_whatever_is_read_raises_nothing_else(data: st.DataObject) -> None:
    body = data.draw(st.sampled_from([signed.body for signed in STATEMENTS]))
    assert isinstance(body, tuple)
    parts = list(body)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(1, len(parts) - 1))
        part = parts[place]
        inner = data.draw(SEXPS)
        parts[place] = (part[0], inner) if isinstance(part, tuple) and part and data.draw(st.booleans()) else inner
    changed = tuple(parts)
    if changed != body:
        with pytest.raises(PenstockError):
            read_signed(signature(changed, digest(changed), key(OWNER).public, bytes(64)), *KINDS).verify()


@settings(max_examples=examples(100), deadline=None)
@given(SEXPS)
def test_what_is_no_statement_is_refused(value: SExp) -> None:
    with refused("evolution.malformed"):
        read_signed(value, *KINDS)
