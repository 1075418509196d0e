"""Caches: bounded, forgetful of what is least used, and never older than what they rest on."""

from datetime import datetime

import pytest
from tests.trust.kit import CURRENT, DAY, NOW, grant, key, refused, who
from tests.trust.types_kit import CLERK, MANAGER, NETWORK, PITO, PLATE, TEXT, Registry, may

from penstock.trust.caches import CertificateCache, Recent, TypeCache
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Authorisation, Certificate, UnverifiedCertificate, issue, read_certificate
from penstock.trust.event_types import UnverifiedType, read_type, read_type_parts
from penstock.trust.tags import ANY
from penstock.trust.validity import OnlineTest, Validity


@pytest.fixture
def registry() -> Registry:
    return Registry()


def unverified(certificate: Certificate) -> UnverifiedCertificate:
    return read_certificate(*certificate.to_sexps())


def again(signed: UnverifiedType) -> UnverifiedType:
    """Return the same type as another client would bring it."""
    return read_type(signed.to_bytes())


def test_the_least_recently_used_goes_first() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert [recent.get(name) for name in "abc"] == [1, None, 3]
    recent.put("a", 4)
    recent.put("d", 5)
    assert [recent.get(name) for name in "abcd"] == [4, None, None, 5]
    assert len(recent) == 2
    recent.drop("a")
    recent.drop("nothing")
    assert recent.get("a") is None
    nothing: Recent[str, int] = Recent(0)
    nothing.put("a", 1)
    assert len(nothing) == 0


def test_what_is_heavy_drives_out_more() -> None:
    recent: Recent[str, int] = Recent(10, weight=100)
    for name in "abc":
        recent.put(name, 1, weight=30)
    recent.get("a")
    recent.put("d", 2, weight=40)
    assert [name for name in "abcd" if recent.get(name)] == ["a", "c", "d"]
    recent.put("d", 3, weight=10)
    recent.put("e", 4, weight=30)
    assert len(recent) == 4
    # What is too heavy for an empty cache is not kept, nor is anything else lost for good.
    recent.put("f", 5, weight=101)
    assert len(recent) == 0
    recent.put("g", 6, weight=100)
    assert recent.get("g") == 6
    recent.drop("g")
    recent.put("h", 7, weight=100)
    assert len(recent) == 1


def test_large_certificates_do_not_fill_the_memory() -> None:
    cache = CertificateCache()
    for number in range(40):
        statement = Authorisation(who(1), who(2), ANY, comment=f"{number}" + "x" * 1_000_000)
        cache(unverified(issue(statement, key(1))))
    assert len(cache) < 40


def test_a_signature_is_verified_once() -> None:
    cache = CertificateCache()
    certificate = grant(1, 2)
    assert cache(unverified(certificate)) == certificate
    assert cache(unverified(certificate)) == certificate
    assert (cache.hits, cache.misses, len(cache)) == (1, 1, 1)


def test_another_signature_on_the_same_body_is_verified_on_its_own() -> None:
    cache = CertificateCache()
    certificate = grant(1, 2)
    cache(unverified(certificate))
    body, signature = certificate.to_sexps()
    assert isinstance(signature, tuple)
    forged = (*signature[:3], bytes(64))
    with refused("key.bad-signature"):
        cache(read_certificate(body, forged))
    theirs = (*signature[:2], key(2).public.to_sexp(), signature[3])
    with refused("cert.wrong-key"):
        cache(read_certificate(body, theirs))
    # And the other way round: a failure is not kept against the true one.
    fresh = CertificateCache()
    for _ in range(2):
        with refused("key.bad-signature"):
            fresh(read_certificate(body, forged))
    assert len(fresh) == 0
    assert fresh(unverified(certificate)) == certificate


def test_certificates_are_bounded() -> None:
    cache = CertificateCache(2)
    first, second, third = (unverified(grant(1, subject)) for subject in (2, 3, 4))
    for one in (first, second, first, third, first):
        cache(one)
    assert (cache.hits, len(cache)) == (2, 2)
    cache(second)
    assert cache.misses == 4


def test_a_type_is_verified_once(registry: Registry) -> None:
    cache = TypeCache(types=registry.get)
    signed = registry.sign(PLATE, MANAGER, may(MANAGER, Right.MANAGE))
    verified = cache.verify(again(signed), NOW)
    assert cache.verify(again(signed), NOW + DAY) is verified
    assert (cache.hits, cache.misses, len(cache)) == (1, 1, 1)
    assert cache.certificates.misses == 1


def test_a_type_is_forgotten_when_its_credential_ends(registry: Registry) -> None:
    """The credential expires between two uses: the second is refused, and the cache does not stand in the way."""
    cache = TypeCache(types=registry.get)
    signed = registry.sign(PLATE, MANAGER, may(MANAGER, Right.MANAGE, validity=CURRENT))
    last = NOW + 30 * DAY
    assert cache.verify(again(signed), NOW) is cache.verify(again(signed), last)
    for moment in (last + DAY, NOW - 31 * DAY):
        with refused("type.forged"):
            cache.verify(again(signed), moment)
    assert cache.verify(again(signed), NOW).validity == CURRENT


def test_a_type_that_is_not_yet_valid_is_not_kept(registry: Registry) -> None:
    cache = TypeCache(types=registry.get)
    signed = registry.sign(PLATE, MANAGER, may(MANAGER, Right.MANAGE, validity=Validity.between(NOW + DAY)))
    with refused("type.forged"):
        cache.verify(signed, NOW)
    assert len(cache) == 0
    cache.verify(signed, NOW + 2 * DAY)
    # A clock that goes back does not make it valid earlier.
    with refused("type.forged"):
        cache.verify(signed, NOW)


def test_of_two_credentials_the_one_that_still_holds_is_found_again(registry: Registry) -> None:
    cache = TypeCache(types=registry.get)
    early = may(MANAGER, Right.MANAGE, validity=Validity.between(NOW - DAY, NOW + DAY))
    late = may(MANAGER, Right.MANAGE, validity=Validity.between(NOW, NOW + 3 * DAY))
    signed = registry.sign(PLATE, MANAGER, early, late)
    first = cache.verify(signed, NOW - DAY)
    assert first.because == (early.id,)
    second = cache.verify(signed, NOW + 2 * DAY)
    assert second.because == (late.id,)
    with refused("type.forged"):
        cache.verify(signed, NOW + 4 * DAY)


def test_a_type_ends_with_the_credentials_of_its_history(registry: Registry) -> None:
    cache = TypeCache(types=registry.get)
    registry.sign(PLATE, MANAGER, may(MANAGER, Right.MANAGE, validity=CURRENT))
    signed = registry.sign(PLATE.add("x", "9", TEXT, version="1"), CLERK, may(CLERK, Right.MANAGE_ADD))
    cache.verify(signed, NOW)
    with refused("type.forged"):
        cache.verify(signed, NOW + 31 * DAY)


def test_an_answer_to_an_online_test_is_kept_for_as_long_as_it_says(registry: Registry) -> None:
    answers = iter([Validity.between(NOW, NOW + DAY), Validity.between(NOW + 2 * DAY, NOW + 3 * DAY)])
    asked: list[datetime] = []

    def checker(_test: OnlineTest, _certificate: str, now: datetime) -> Validity:
        asked.append(now)
        return next(answers)

    cache = TypeCache(types=registry.get, online=checker)
    tested = Validity(online=(OnlineTest("reval", (b"online", b"reval")),))
    signed = registry.sign(PLATE, MANAGER, may(MANAGER, Right.MANAGE, validity=tested))
    cache.verify(signed, NOW)
    cache.verify(signed, NOW + DAY)
    cache.verify(signed, NOW + 2 * DAY)
    assert asked == [NOW, NOW + 2 * DAY]


def test_another_signature_on_the_same_type_is_verified_on_its_own(registry: Registry) -> None:
    cache = TypeCache(types=registry.get)
    signed = registry.sign(PLATE)
    cache.verify(signed, NOW)
    with refused("key.bad-signature"):
        cache.verify(read_type_parts(signed.body, signed.key, bytes(64)), NOW)
    with refused("key.bad-signature"):
        cache.verify(read_type_parts(signed.body, key(2).public, signed.signature), NOW)
    # The same definition, truly signed by someone who has no right to it.
    with refused("type.forged"):
        cache.verify(registry.sign(PLATE, CLERK), NOW)
    assert len(cache) == 1


def test_types_are_bounded(registry: Registry) -> None:
    cache = TypeCache(types=registry.get, entries=2)
    versions = [registry.sign(PLATE)]
    versions += [registry.sign(PLATE.add("x", "9", TEXT, version=str(number))) for number in (1, 2)]
    for place in (0, 1, 0, 2, 0, 1):
        cache.verify(versions[place], NOW)
    assert (cache.hits, cache.misses, len(cache)) == (2, 4, 2)


def test_a_cache_is_for_one_network(registry: Registry) -> None:
    foreign = registry.sign(PLATE, MANAGER, may(MANAGER, Right.MANAGE))
    assert TypeCache(types=registry.get).verify(foreign, NOW).network is None
    with refused("type.not-installable"):
        TypeCache(NETWORK, registry.get).verify(foreign, NOW)
    assert TypeCache(NETWORK, registry.get).verify(registry.sign(PLATE, PITO), NOW).network == NETWORK


def test_certificates_are_shared_between_types(registry: Registry) -> None:
    """Section 4.5: a new version of a type brings the same chain again."""
    cache = TypeCache(types=registry.get)
    right = may(MANAGER, Right.MANAGE)
    cache.verify(registry.sign(PLATE, MANAGER, right), NOW)
    cache.verify(registry.sign(PLATE.add("x", "9", TEXT, version="1"), MANAGER, right), NOW)
    assert (cache.certificates.hits, cache.certificates.misses) == (1, 1)
