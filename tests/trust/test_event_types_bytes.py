"""Signed types as bytes: what is signed is what is read, and any change to it is refused."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.kit import DAY, NOW, grant, key, refused, who
from tests.trust.types_kit import MANAGER, OTHER, PITO, PLATE, define, may

from penstock.codec.sexp import advanced, canonical, parse, transport
from penstock.crypto import digest
from penstock.errors import PenstockError
from penstock.model.names import TypeName
from penstock.model.types import AttributeDefinition, TypeDefinition
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Threshold
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import definition_to_sexp, read_type, read_type_parts, sign_type, verify_type

QUORUM = Threshold(2, (who(1), who(2), who(3)))


def test_a_type_is_read_back_in_every_form() -> None:
    rich = TypeDefinition(
        PLATE.name,
        (
            *PLATE.attributes,
            AttributeDefinition("colour", "c", AttributeSpec(Kind.STRING, Enumerated(frozenset({"red", "blue"})))),
            AttributeDefinition("at", "t", AttributeSpec(Kind.TIMESTAMP, Ranged(NOW, NOW + DAY))),
        ),
        TypeName(who(OTHER), "a.Parent", "3"),
        "before",
    )
    signed = sign_type(rich, key(PITO), Credentials.of(may(MANAGER, Right.MANAGE), quorums=[Threshold(1, (who(1),))]))
    assert signed.definition == rich
    for data in (signed.to_bytes(), transport(signed.to_sexp()), advanced(signed.to_sexp()).encode()):
        assert read_type(data) == signed


def test_every_changed_byte_is_refused() -> None:
    data = sign_type(PLATE, key(PITO), Credentials.of(grant(PITO, MANAGER))).to_bytes()
    assert verify_type(read_type(data), NOW).definition == PLATE
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        with pytest.raises(PenstockError):
            verify_type(read_type(bytes(changed)), NOW)
    for end in range(0, len(data), 3):
        with pytest.raises(PenstockError):
            read_type(data[:end])


def test_a_signature_of_another_definition_is_refused() -> None:
    signed, other = sign_type(PLATE, key(PITO)), sign_type(define(called="a.B"), key(PITO))
    mixed, theirs = signed.to_sexp(), other.to_sexp()
    assert isinstance(mixed, tuple)
    assert isinstance(theirs, tuple)
    with refused("type.signature-mismatch"):
        read_type(canonical((mixed[0], mixed[1], theirs[2])))


def test_read_parts_that_are_not_what_they_claim() -> None:
    with refused("type.malformed"):
        read_type(b"(sequence)")
    body = definition_to_sexp(PLATE, Credentials())
    with refused("key.malformed"):
        read_type(
            canonical((b"sequence", body, (b"signature", (b"hash", b"sha256", digest(body)), (b"public-key",), b"x")))
        )


NAMED = f'(name {who(PITO)} a.B "0")'
NONE = "(attributes)"
MANY = " ".join(f"(attribute a{i} u{i} string)" for i in range(1025))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("definition", "type.malformed"),
        ("()", "type.malformed"),
        ("(event-type-definition)", "type.malformed"),
        (f"(event-type-definition {NAMED})", "type.malformed"),
        (f"(event-type-definition {NONE})", "type.malformed"),
        (f"(event-type-definition {NAMED} {NONE} (owner x))", "type.malformed"),
        (f"(event-type-definition {NAMED} {NONE} x)", "type.malformed"),
        (f"(event-type-definition {NAMED} {NONE} ())", "type.malformed"),
        (f"(event-type-definition {NAMED} {NAMED} {NONE})", "sexp.duplicate"),
        (f"(event-type-definition {NAMED} {NONE} {NONE})", "sexp.duplicate"),
        (f"(event-type-definition {NAMED} {NONE} (credentials) (credentials))", "sexp.duplicate"),
        (f"(event-type-definition (name {who(PITO)} a.B) {NONE})", "type.malformed"),
        (f'(event-type-definition (name {who(PITO)} a..B "0") {NONE})', "name.malformed"),
        (f'(event-type-definition (name {who(PITO)} (a) "0") {NONE})', "sexp.text"),
        (f'(event-type-definition (name bob a.B "0") {NONE})', "principal.malformed"),
        (f'(event-type-definition {NAMED} {NONE} (extends {who(PITO)} a.B "1"))', "type.cycle"),
        (f"(event-type-definition {NAMED} {NONE} (extends a))", "type.malformed"),
        (f'(event-type-definition {NAMED} {NONE} (previous "0"))', "type.cycle"),
        (f"(event-type-definition {NAMED} {NONE} (previous))", "type.malformed"),
        (f'(event-type-definition {NAMED} {NONE} (previous "1" "2"))', "type.malformed"),
        (f"(event-type-definition {NAMED} (attributes x))", "type.malformed"),
        (f"(event-type-definition {NAMED} (attributes (attribute a)))", "type.malformed"),
        (f'(event-type-definition {NAMED} (attributes (attribute a "0")))', "value.malformed"),
        (f'(event-type-definition {NAMED} (attributes (attribute a "0" text)))', "value.malformed"),
        (f'(event-type-definition {NAMED} (attributes (attribute a "b!" string)))', "name.malformed"),
        (
            f"(event-type-definition {NAMED} (attributes (attribute a b string) (attribute a c string)))",
            "type.duplicate-attribute",
        ),
        (
            f"(event-type-definition {NAMED} (attributes (attribute a b string) (attribute c b string)))",
            "type.duplicate-attribute",
        ),
        (
            f"(event-type-definition {NAMED} (attributes {MANY}))",
            "type.limit",
        ),
        (f"(event-type-definition {NAMED} {NONE} (credentials (cert)))", "cert.unsigned"),
        (f"(event-type-definition {NAMED} {NONE} (credentials x))", "cert.malformed"),
    ],
)
def test_what_is_no_definition(body: str, code: str) -> None:
    with refused(code):
        read_type_parts(parse(body.encode()), key(PITO).public, bytes(64))


@given(st.binary(max_size=300))
@settings(deadline=None, max_examples=examples(200))
def test_random_bytes(data: bytes) -> None:
    with suppress(PenstockError):
        verify_type(read_type(data), NOW)


VALID = sign_type(PLATE, key(MANAGER), Credentials.of(may(MANAGER, Right.MANAGE), quorums=[QUORUM])).to_bytes()
PIECES = [b"(", b")", b"0:", b"7:extends", b"8:previous", b"11:credentials", b"(6:k-of-n1:11:1)", b"[1:a]1:b", b"9:"]


@given(
    st.lists(
        st.tuples(st.integers(0, len(VALID)), st.integers(0, 60), st.sampled_from(PIECES) | st.binary(max_size=4)),
        min_size=1,
        max_size=4,
    )
)
@settings(deadline=None, max_examples=examples(300))
def test_mutated_types(edits: list[tuple[int, int, bytes]]) -> None:
    data = VALID
    for place, removed, added in edits:
        data = data[:place] + added + data[place + removed :]
    with suppress(PenstockError):
        verified = verify_type(read_type(data), NOW)
        # What still verifies is what was signed.
        assert verified.definition == PLATE
