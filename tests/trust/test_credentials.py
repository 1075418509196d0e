"""Bags of credentials: every form that people keep them in, and what does not belong there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trust.kit import CURRENT, grant, key, name, naming, passing, refused, tag, who

from penstock.codec.sexp import SExp, advanced, canonical, transport
from penstock.errors import LimitError
from penstock.trust.caches import CertificateCache
from penstock.trust.certificates import (
    Authorisation,
    Certificate,
    NameCertificate,
    Threshold,
    UnverifiedCertificate,
    subject_to_sexp,
    verify_certificate,
)
from penstock.trust.credentials import (
    SIGNATURE_WORK,
    BagReading,
    Credentials,
    UnverifiedCredentials,
    collect_credentials,
    read_credentials,
)
from penstock.trust.limits import TRUST_LIMITS, TrustLimits

INNER = Threshold(1, (who(5), who(6)))
QUORUM = Threshold(2, (who(3), who(4), INNER))
FIRST = passing(1, 2, tag("(foo)"), CURRENT)
SECOND = grant(2, name(1, "staff"))
THIRD = naming(1, "staff", QUORUM)
BAG = Credentials.of(FIRST, SECOND, THIRD, quorums=[QUORUM])


def joined(*values: SExp) -> bytes:
    return b"".join(canonical(value) for value in values)


def test_a_bag_is_read_back() -> None:
    assert read_credentials(BAG.to_bytes()).verify() == BAG
    assert UnverifiedCredentials.to_sexp(read_credentials(BAG.to_bytes())) == BAG.to_sexp()
    assert len(BAG) == len(list(BAG)) == 3
    assert [statement for _, statement in BAG.authorisations()] == [FIRST.statement, SECOND.statement]
    assert [statement for _, statement in BAG.namings()] == [THIRD.statement]
    assert isinstance(FIRST.statement, Authorisation)
    assert isinstance(THIRD.statement, NameCertificate)


@pytest.mark.parametrize(
    "data",
    [
        BAG.to_bytes(),
        transport(BAG.to_sexp()),
        advanced(BAG.to_sexp()).encode(),
        b"\n".join(advanced(part).encode() for part in (*FIRST.to_sexps(), *SECOND.to_sexps(), *THIRD.to_sexps()))
        + advanced(subject_to_sexp(QUORUM)).encode(),
        Credentials.of(FIRST).to_bytes() + b" " + Credentials.of(SECOND, THIRD, quorums=[QUORUM]).to_bytes(),
        joined(key(1).public.to_sexp(), *FIRST.to_sexps(), key(2).public.to_sexp(), *SECOND.to_sexps())
        + joined(*THIRD.to_sexps(), *FIRST.to_sexps(), subject_to_sexp(QUORUM)),
    ],
    ids=["canonical", "transport", "advanced", "one by one", "two sequences", "with keys and repeated"],
)
def test_forms_of_one_bag(data: bytes) -> None:
    assert read_credentials(data).verify() == BAG


def test_an_empty_bag() -> None:
    assert read_credentials(b"").verify() == read_credentials(b"(sequence)").verify() == Credentials()


def test_bags_add_up() -> None:
    both = Credentials.of(FIRST, SECOND) + Credentials.of(SECOND, THIRD, quorums=[QUORUM])
    assert both == BAG
    assert both + both == BAG


def test_thresholds_are_found_wherever_they_are() -> None:
    known = {QUORUM.principal: QUORUM, INNER.principal: INNER}
    assert BAG.thresholds() == known
    assert Credentials.of(THIRD).thresholds() == known
    assert Credentials(quorums=(QUORUM,)).thresholds() == known


CERT, SIGNATURE = FIRST.to_sexps()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (joined(CERT), "cert.unsigned"),
        (joined((b"sequence", CERT)), "cert.unsigned"),
        (joined(CERT, SECOND.body, SIGNATURE, SECOND.signature), "cert.unsigned"),
        (joined(CERT, key(1).public.to_sexp(), SIGNATURE), "cert.unsigned"),
        (joined(SIGNATURE, CERT), "cert.malformed"),
        (joined(CERT, SIGNATURE, SIGNATURE), "cert.malformed"),
        (joined(CERT, SECOND.signature), "cert.signature-mismatch"),
        (joined((b"sequence", (b"sequence", CERT, SIGNATURE))), "cert.malformed"),
        (b"hello", "cert.malformed"),
        (b"()", "cert.malformed"),
        (b"((a))", "cert.malformed"),
        (b"(acl)", "cert.malformed"),
        (b'(k-of-n "1" "9")', "subject.threshold"),
        (BAG.to_bytes()[:-1], "sexp.truncated"),
        (BAG.to_bytes() + b")", "sexp.syntax"),
        (b"(" * 100 + b")" * 100, "sexp.limit"),
        (b"(sequence " + b"a " * 70_000 + b")", "sexp.limit"),
        (b"(sequence 2000000:" + bytes(2_000_000) + b")", "sexp.limit"),
    ],
)
def test_what_is_no_bag(data: bytes, code: str) -> None:
    with refused(code):
        read_credentials(data)


def test_a_bag_is_bounded() -> None:
    limits = TrustLimits(certificates=2)
    assert len(read_credentials(Credentials.of(FIRST, SECOND).to_bytes(), limits=limits).certificates) == 2
    with pytest.raises(LimitError) as caught:
        read_credentials(BAG.to_bytes(), limits=limits)
    assert caught.value.code == "cert.limit"


def test_one_bad_certificate_spoils_the_bag() -> None:
    assert isinstance(SIGNATURE, tuple)
    forged = (*SIGNATURE[:3], bytes(64))
    with refused("key.bad-signature"):
        collect_credentials([*SECOND.to_sexps(), CERT, forged]).verify()


def test_a_cache_verifies_in_place_of_the_function() -> None:
    cache = CertificateCache()
    unverified = read_credentials(BAG.to_bytes())
    assert unverified.verify(cache) == unverified.verify(cache) == BAG
    assert (cache.hits, cache.misses) == (3, 3)


class Counting:
    """A verifier that remembers whose certificates it was asked about."""

    def __init__(self) -> None:
        self.issuers: list[object] = []

    def __call__(self, unverified: UnverifiedCertificate) -> Certificate:
        self.issuers.append(unverified.statement.issuer)
        return verify_certificate(unverified)


def read_all(data: bytes, limits: TrustLimits = TRUST_LIMITS) -> Credentials:
    reading = BagReading(data, limits=limits)
    assert sum(reading.scan()) >= len(data) - 2 * len(b"(8:sequence)")
    cost = sum(reading.finish())
    assert cost >= SIGNATURE_WORK * len(reading.credentials)
    assert reading.complete
    return reading.credentials


CERTIFICATES = [FIRST, SECOND, THIRD, grant(7, 8), passing(8, 9, tag("(* set a b (* prefix c))"))]


@given(st.lists(st.sampled_from(CERTIFICATES), max_size=8), st.booleans())
def test_reading_in_steps_gives_what_reading_at_once_does(chosen: list[Certificate], apart: bool) -> None:
    if apart:
        data = b"".join(Credentials.of(one, quorums=[QUORUM]).to_bytes() for one in chosen)
    else:
        data = Credentials(tuple(chosen), (QUORUM,)).to_bytes()
    expected = read_credentials(data).verify()
    found = read_all(data)
    assert found.certificates == expected.certificates
    assert set(found.quorums) == set(expected.quorums)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"junk", "sexp.syntax"),
        (b"(8:sequence", "sexp.truncated"),
        (b"(8:sequence" * 2, "sexp.truncated"),
        (b"(8:sequence))", "sexp.syntax"),
        (b"(8:sequence" + canonical(FIRST.body) + b")", "cert.unsigned"),
        (b"(8:sequence1:x)", "cert.malformed"),
        (joined((b"cert", b"x"), FIRST.signature), "cert.malformed"),
        (joined(FIRST.body, SECOND.signature), "cert.signature-mismatch"),
        (b"(" * 1_000, "sexp.limit"),
    ],
)
def test_reading_in_steps_refuses_what_is_no_bag(data: bytes, code: str) -> None:
    with refused(code):
        read_all(data)


def test_reading_in_steps_is_bounded() -> None:
    two = Credentials.of(FIRST, SECOND).to_bytes()
    with refused("cert.limit"):
        read_all(two, TrustLimits(certificates=1))
    with refused("sexp.limit"):
        read_all(two, TrustLimits(sexp_bytes=100))
    with refused("sexp.limit"):
        read_all(two, TrustLimits(sexp_nodes=5))


def test_only_what_one_arrives_at_is_verified() -> None:
    """From 1: its certificate, the name that this one speaks of, the quorum behind the name, and its members."""
    member, other = grant(5, 20), grant(30, 31)
    bag = Credentials.of(other, member, SECOND, THIRD, FIRST, quorums=[QUORUM])
    counting = Counting()
    reading = BagReading(bag.to_bytes(), counting)
    for _ in reading.scan():
        assert not counting.issuers
    sum(reading.reach([who(1)]))
    assert reading.credentials == Credentials.of(member, SECOND, THIRD, FIRST, quorums=[QUORUM])
    assert who(30) not in counting.issuers
    assert not reading.complete
    sum(reading.finish())
    assert reading.credentials == bag


def test_who_may_not_pass_on_has_nothing_to_say() -> None:
    bag = Credentials.of(grant(1, 2), passing(2, 3))
    reading = BagReading(bag.to_bytes())
    sum(reading.scan())
    sum(reading.reach([who(1)]))
    assert reading.credentials == Credentials.of(grant(1, 2))


def test_nothing_is_verified_where_nobody_is_trusted() -> None:
    counting = Counting()
    reading = BagReading(BAG.to_bytes(), counting)
    sum(reading.scan())
    assert sum(reading.reach([who(99)])) == 0
    assert not counting.issuers
    assert not len(reading.credentials)
