"""Certificates: what is signed is what is read, and any change to it is refused."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.kit import CURRENT, grant, key, name, naming, refused, tag, who

from penstock.codec.sexp import SExp, canonical, parse, parse_canonical
from penstock.crypto import digest
from penstock.errors import PenstockError
from penstock.trust.certificates import (
    Authorisation,
    Certificate,
    NameCertificate,
    Statement,
    Threshold,
    issue,
    read_certificate,
    read_statement,
    verify_certificate,
)
from penstock.trust.credentials import read_credentials
from penstock.trust.tags import parse_tag, to_sexp
from penstock.trust.validity import OnlineTest, Validity

QUORUM = Threshold(2, (who(3), who(4), name(5, "chair")))
STATEMENTS: list[Statement] = [
    Authorisation(who(1), who(2), tag("(*)")),
    Authorisation(who(1), who(2), tag("(foo (* set a b))"), True, CURRENT, "for the summer"),
    Authorisation(who(1), name(2, "Met Brokers"), tag("(network (* prefix x))"), True),
    Authorisation(who(1), QUORUM, tag("foo"), True),
    Authorisation(
        who(1), who(2), tag("foo"), validity=Validity(online=(OnlineTest("crl", (b"online", b"crl", b"u")),))
    ),
    NameCertificate(who(1), b"Met Brokers", who(2), CURRENT),
    NameCertificate(who(1), b"\x00\xff", name(2, "a", "b", "c"), comment="é"),
    NameCertificate(who(1), b"board", QUORUM),
]


def signed(statement: Statement) -> bytes:
    body, signature = issue(statement, key(1)).to_sexps()
    return canonical((body, signature))


def read(data: bytes) -> Certificate:
    value = parse_canonical(data)
    if not isinstance(value, tuple) or len(value) != 2:
        raise PenstockError("test.shape", "no longer two lists")
    return verify_certificate(read_certificate(value[0], value[1]))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_certificate_is_read_back(statement: Statement) -> None:
    issued = issue(statement, key(1))
    again = read(canonical(issued.to_sexps()))
    assert again == issued
    assert again.statement == statement
    assert again.id == issued.id
    assert again.id.startswith("cert:")


@pytest.mark.parametrize("statement", STATEMENTS[1:7:2])
def test_every_changed_byte_is_refused(statement: Statement) -> None:
    data = signed(statement)
    assert read(data).statement == statement
    for place in range(len(data)):
        for flip in (0x01, 0x80):
            changed = bytearray(data)
            changed[place] ^= flip
            with pytest.raises(PenstockError):
                read(bytes(changed))
    for end in range(len(data)):
        with pytest.raises(PenstockError):
            read(data[:end])


def test_only_the_issuer_signs() -> None:
    statement = STATEMENTS[0]
    with refused("cert.wrong-key"):
        issue(statement, key(2))
    # The same body under another's key and that key's true signature.
    body = statement.to_sexp()
    good = issue(statement, key(1)).signature
    assert isinstance(good, tuple)
    theirs = (b"signature", good[1], key(2).public.to_sexp(), key(2).sign(canonical(body)))
    with refused("cert.wrong-key"):
        verify_certificate(read_certificate(body, theirs))
    # The issuer's key, another's signature.
    with refused("key.bad-signature"):
        verify_certificate(read_certificate(body, (*good[:3], theirs[3])))


def test_a_signature_of_another_certificate_is_refused() -> None:
    first, second = issue(STATEMENTS[0], key(1)), issue(STATEMENTS[1], key(1))
    with refused("cert.signature-mismatch"):
        read_certificate(first.body, second.signature)
    # Even where it claims to be over this one.
    assert isinstance(first.signature, tuple)
    assert isinstance(second.signature, tuple)
    with refused("key.bad-signature"):
        verify_certificate(read_certificate(first.body, (*first.signature[:3], second.signature[3])))


@pytest.mark.parametrize(
    "signature",
    [
        "signature",
        "()",
        "(signature)",
        "(signature (hash sha256 x) (public-key x))",
        "(signature (hash md5 x) (public-key x) y)",
        "(signature (hash sha256 x) key y)",
        "(signature (hash sha256 x y) (public-key x) y)",
        "(signature (hash sha256 x) (public-key x) [h]y)",
        "(signature (hash sha256 x) (public-key x) y z)",
    ],
)
def test_what_is_no_signature(signature: str) -> None:
    with refused("cert.signature"):
        read_certificate(STATEMENTS[0].to_sexp(), parse(signature.encode()))


def test_the_key_of_a_signature_is_a_key() -> None:
    good = issue(STATEMENTS[0], key(1))
    assert isinstance(good.signature, tuple)
    with refused("key.malformed"):
        read_certificate(good.body, (*good.signature[:2], (b"public-key", b"rsa"), good.signature[3]))


WHO = "(hash sha256 |" + "A" * 43 + "=|)"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("cert", "cert.malformed"),
        ("()", "cert.malformed"),
        ("(certificate)", "cert.malformed"),
        ("(cert)", "cert.malformed"),
        ("(cert issuer)", "cert.malformed"),
        ("(cert ())", "cert.malformed"),
        (f"(cert (issuer {WHO}) (subject {WHO}))", "cert.malformed"),
        (f"(cert (issuer {WHO}) (tag x))", "cert.malformed"),
        (f"(cert (subject {WHO}) (tag x))", "cert.malformed"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag))", "cert.malformed"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag a b))", "cert.malformed"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag a) (propagate x))", "cert.malformed"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag a) (revoked))", "cert.malformed"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag a) ((tag) b))", "cert.malformed"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag a) ([h]valid))", "cert.malformed"),
        (f"(cert (issuer {WHO}) (subject {WHO} {WHO}) (tag a))", "cert.malformed"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag a) (comment))", "cert.malformed"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag a) (comment a b))", "cert.malformed"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag a) (comment #ff#))", "sexp.text"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag a) (tag b))", "sexp.duplicate"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (subject {WHO}) (tag a))", "sexp.duplicate"),
        (f"(cert (issuer {WHO}) (issuer {WHO}) (subject {WHO}) (tag a))", "sexp.duplicate"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag a) (propagate) (propagate))", "sexp.duplicate"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag a) (valid) (valid))", "sexp.duplicate"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag (* unknown a)))", "tag.unknown-form"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag ()))", "tag.malformed"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag a) (valid (not-after never)))", "date.malformed"),
        (f"(cert (issuer {WHO}) (subject {WHO}) (tag a) (valid (online ask)))", "validity.malformed"),
        (f"(cert (issuer (name {WHO} n)) (subject {WHO}) (tag a))", "cert.malformed"),
        (f"(cert (issuer (name {WHO} n)) (subject {WHO}) (propagate))", "cert.malformed"),
        (f"(cert (issuer (name {WHO} n m)) (subject {WHO}) (tag a))", "subject.malformed"),
        (f'(cert (issuer (name {WHO} "")) (subject {WHO}) (tag a))', "subject.malformed"),
        (f'(cert (issuer (k-of-n "1" "1" {WHO})) (subject {WHO}) (tag a))', "subject.malformed"),
        (f"(cert (issuer (hash sha1 x)) (subject {WHO}) (tag a))", "subject.weak-hash"),
        (f"(cert (issuer {WHO}) (subject bob) (tag a))", "subject.malformed"),
    ],
)
def test_what_is_no_certificate(body: str, code: str) -> None:
    with refused(code):
        read_statement(parse(body.encode()))


def test_a_tag_that_is_not_in_normal_form_is_signed_as_it_was_written() -> None:
    plain = grant(1, 2, tag("(foo (* set a b))"))
    assert isinstance(plain.body, tuple)
    body = tuple(
        (b"tag", (b"foo", (b"*", b"set", b"b", b"a", b"a"))) if part == (b"tag", plain_tag(plain)) else part
        for part in plain.body
    )
    assert body != plain.body
    signature = (
        b"signature",
        (b"hash", b"sha256", digest(body)),
        key(1).public.to_sexp(),
        key(1).sign(canonical(body)),
    )
    read_back = verify_certificate(read_certificate(body, signature))
    assert read_back.statement == plain.statement
    assert read_back.body == body
    assert read_back.id != plain.id


def plain_tag(certificate: Certificate) -> SExp:
    assert isinstance(certificate.statement, Authorisation)
    return to_sexp(certificate.statement.tag)


@given(st.binary(max_size=400))
@settings(deadline=None, max_examples=examples(200))
def test_random_bytes(data: bytes) -> None:
    with suppress(PenstockError):
        read_credentials(data).verify()


VALID = b"".join(canonical(sexp) for statement in STATEMENTS for sexp in issue(statement, key(1)).to_sexps())
PIECES = [
    b"(",
    b")",
    b"1:*",
    b"3:tag",
    b"6:k-of-n",
    b"4:name",
    b"(5:valid)",
    b"[1:a]1:b",
    b"9:propagate",
    b"0:",
    b"99:",
]


@given(
    st.lists(
        st.tuples(st.integers(0, len(VALID)), st.integers(0, 40), st.sampled_from(PIECES) | st.binary(max_size=4)),
        min_size=1,
        max_size=4,
    )
)
@settings(deadline=None, max_examples=examples(300))
def test_mutated_certificates(edits: list[tuple[int, int, bytes]]) -> None:
    data = VALID
    for place, removed, added in edits:
        data = data[:place] + added + data[place + removed :]
    try:
        found = read_credentials(data).verify()
    except PenstockError:
        return
    # What still verifies is what was signed.
    assert {certificate.statement for certificate in found} <= set(STATEMENTS)


def test_no_text_of_a_certificate_holds_a_private_key() -> None:
    certificate = naming(1, "a", 2)
    with pytest.raises(PenstockError) as caught:
        issue(certificate.statement, key(0x1234567890ABCDEF))
    error = caught.value
    for text in (repr(certificate), str(certificate), f"{error!r} {error} {error.as_dict()}"):
        assert key(0x1234567890ABCDEF).seed.hex() not in text
        assert repr(key(0x1234567890ABCDEF).seed)[-12:-1] not in text


def test_a_certificate_for_nothing_can_be_read() -> None:
    nothing = Authorisation(who(1), who(2), parse_tag((b"*", b"set")))
    assert read(signed(nothing)).statement == nothing
