"""Validity statements: one written form each, within bounds, and signed by the principal that they name."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from tests.budget import examples
from tests.spoiled import spoiled
from tests.trust.kit import DAY, NOW, grant, key, refused, who

from penstock.codec.sexp import advanced, canonical, head, parse, parse_canonical
from penstock.errors import PenstockError
from penstock.trust.certificates import read_certificate
from penstock.trust.credentials import UnverifiedCredentials
from penstock.trust.limits import STATEMENT_BYTES, STATEMENT_CERTIFICATES
from penstock.trust.policy_events import BEGINNING
from penstock.trust.signed import sign_value
from penstock.trust.statements import (
    ActiveRevocation,
    Heartbeat,
    OneTimeAnswer,
    OneTimeQuestion,
    OnlineKind,
    OnlineTerms,
    Revalidation,
    RevocationList,
    StatementAuthor,
    ValidityClaim,
    read_validity_statement,
)
from penstock.trust.validity import OnlineTest, parse_validity, validity_to_sexp

ISSUER = 7
HOUR = timedelta(hours=1)
CERTIFICATE = grant(1, 2)
SUCCESSOR = UnverifiedCredentials((read_certificate(*grant(1, 3).to_sexps()),))
STATEMENTS: list[ValidityClaim] = [
    RevocationList(who(ISSUER), NOW, NOW + HOUR),
    RevocationList(who(ISSUER), NOW, NOW + HOUR, frozenset({CERTIFICATE.id}), SUCCESSOR),
    Revalidation(who(ISSUER), NOW, NOW + HOUR, frozenset({CERTIFICATE.id, grant(1, 4).id})),
    OneTimeAnswer(who(ISSUER), CERTIFICATE.id, who(9), b"n" * 16, NOW),
    OneTimeAnswer(who(ISSUER), CERTIFICATE.id, who(9), b"n" * 16, NOW, True, SUCCESSOR),
    ActiveRevocation(who(ISSUER), 3, NOW, frozenset({CERTIFICATE.id}), SUCCESSOR),
    Heartbeat(who(ISSUER), 0, BEGINNING, NOW, 1_000),
    Heartbeat(who(ISSUER), 3, b"d" * 32, NOW, 1_000),
]
TERMS = [
    OnlineTerms(OnlineKind.CRL, who(ISSUER)),
    OnlineTerms(OnlineKind.REVALIDATION, who(ISSUER), ("https://acs.example/reval", "https://b.example/")),
    OnlineTerms(OnlineKind.ONE_TIME, who(ISSUER), (), timedelta(seconds=30)),
    OnlineTerms(OnlineKind.ACTIVE, who(ISSUER), (), timedelta(milliseconds=500)),
]


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda value: type(value).__name__)
def test_statements_are_read_as_they_were_written(statement: ValidityClaim) -> None:
    signed = sign_value(statement, key(ISSUER))
    read = read_validity_statement(signed.to_bytes())
    assert read.value == statement
    assert read.verify() == signed


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda value: type(value).__name__)
def test_only_the_issuer_signs(statement: ValidityClaim) -> None:
    with refused("evolution.wrong-key"):
        sign_value(statement, key(8))
    signed = sign_value(statement, key(ISSUER)).unverified()
    with refused("evolution.wrong-key"):
        replace(signed, key=key(8).public, signature=key(8).sign(canonical(signed.body))).verify()
    with refused("key.bad-signature"):
        replace(signed, signature=key(8).sign(canonical(signed.body))).verify()


@pytest.mark.parametrize("missing", [b"not-before", b"not-after"])
@pytest.mark.parametrize("statement", [STATEMENTS[0], STATEMENTS[2]], ids=["crl", "reval"])
def test_untimed_lists_are_refused(statement: ValidityClaim, missing: bytes) -> None:
    body = statement.to_sexp()
    assert isinstance(body, tuple)
    with refused("evolution.malformed"):
        type(statement).from_sexp(tuple(part for part in body if head(part) != missing))


def test_impossible_and_endless_periods_are_refused() -> None:
    for begin, end in ((NOW, NOW - HOUR), (NOW, NOW + 367 * DAY)):
        with refused("evolution.malformed"):
            sign_value(RevocationList(who(ISSUER), begin, end), key(ISSUER))
    with refused("evolution.malformed"):
        sign_value(Heartbeat(who(ISSUER), 0, b"d" * 32, NOW, 1_000), key(ISSUER))
    with refused("evolution.malformed"):
        sign_value(Heartbeat(who(ISSUER), 0, BEGINNING, NOW, 0), key(ISSUER))
    with refused("evolution.malformed"):
        sign_value(ActiveRevocation(who(ISSUER), 0, NOW, frozenset()), key(ISSUER))


def test_oversized_statements_are_refused() -> None:
    ids = frozenset(f"cert:{'a' * 48}{_letters(number)}" for number in range(STATEMENT_CERTIFICATES + 1))
    with refused("evolution.limit"):
        sign_value(RevocationList(who(ISSUER), NOW, NOW + HOUR, ids), key(ISSUER))
    most = frozenset(sorted(ids)[:STATEMENT_CERTIFICATES])
    assert sign_value(ActiveRevocation(who(ISSUER), 1, NOW, most), key(ISSUER)).value.certificates == most
    body = STATEMENTS[0].to_sexp()
    assert isinstance(body, tuple)
    with refused("evolution.limit"):
        RevocationList.from_sexp(
            (*body[:-1], (b"certificates", *(b"x" * 1_000 for _ in range(STATEMENT_BYTES // 1_000))))
        )


def _letters(number: int) -> str:
    return "".join("abcdefghijklmnopqrstuvwxyz"[number // 26**place % 26] for place in range(4))


@pytest.mark.parametrize("terms", TERMS, ids=lambda terms: str(terms.kind))
def test_the_terms_of_a_test_are_read_as_they_were_written(terms: OnlineTerms) -> None:
    written = validity_to_sexp(parse_validity((terms.to_test().body,)))
    assert written is not None
    read = parse_canonical(canonical(written))
    assert isinstance(read, tuple)
    [test] = parse_validity(read[1:]).online
    assert OnlineTerms.of(test) == terms


@pytest.mark.parametrize(
    "body",
    [
        "(online crl)",
        "(online crl http://here)",
        "(online crl (uri) (hash md5 |AAAA|))",
        '(online crl (uri) {} (recheck "1000"))',
        "(online crl (uri) {} x)",
        "(online crl (uri a b c d e) {})",
        '(online crl (uri "a b") {})',
        "(online crl (uri (a)) {})",
        "(online one-time (uri) {})",
        '(online one-time (uri) {} (interval "1000"))',
        '(online one-time (uri) {} (recheck "0"))',
        '(online active (uri) {} (interval "1000"))',
        '(online active (uri) {} (topic other) (interval "1000"))',
        '(online active (uri) {} (topic penstock.validity) (interval "999999999999"))',
    ],
)
def test_terms_that_are_not_known_are_refused(body: str) -> None:
    signer = f"(hash sha256 #{who(ISSUER).digest.hex()}#)"
    value = parse(body.format(signer).encode())
    assert isinstance(value, tuple)
    assert isinstance(value[1], bytes)
    with pytest.raises(PenstockError) as raised:
        OnlineTerms.of(OnlineTest(value[1].decode(), value))
    assert raised.value.code in {"online.malformed", "subject.weak-hash", "evolution.malformed"}


SIGNED = [sign_value(one, key(ISSUER)) for one in STATEMENTS]
SAMPLES = [data for one in SIGNED for data in (one.to_bytes(), advanced(one.to_sexp()).encode())]


@given(spoiled(SAMPLES))
@settings(deadline=None, max_examples=examples(300))
def test_a_spoiled_statement_is_refused_unless_it_says_the_same(data: bytes) -> None:
    try:
        read = read_validity_statement(data).verify()
    except PenstockError:
        return
    assert read in SIGNED


def test_an_author_makes_periods_that_follow_each_other() -> None:
    author = StatementAuthor(key(ISSUER))
    first = author.revocation_list(NOW, HOUR, [])
    second = author.revocation_list(NOW, HOUR, [CERTIFICATE.id])
    assert first.value.not_before == NOW
    assert second.value.not_before == NOW + HOUR
    assert not first.value.overlaps(second.value)
    other = StatementAuthor(key(ISSUER))
    other.resume([second, first, author.revalidation(NOW, 5 * HOUR, [])])
    third = other.revocation_list(NOW, HOUR, [])
    assert third.value.not_before == NOW + 2 * HOUR
    late = NOW + 9 * HOUR
    assert other.revocation_list(late, HOUR, []).value.not_before == late


def test_an_author_counts_revocations_and_its_time_does_not_go_back() -> None:
    author = StatementAuthor(key(ISSUER))
    assert author.heartbeat(NOW, HOUR).value.number == 0
    first = author.revoke(NOW, [CERTIFICATE.id])
    beat = author.heartbeat(NOW - HOUR, HOUR)
    assert (beat.value.number, beat.value.head, beat.value.time) == (1, first.digest, NOW)
    other = StatementAuthor(key(ISSUER))
    other.resume([beat, first])
    assert other.revoked == {CERTIFICATE.id}
    assert other.revoke(NOW, []).value.number == 2


def test_an_answer_repeats_the_question() -> None:
    question = OneTimeQuestion(who(ISSUER), CERTIFICATE.id, who(9), b"n" * 16)
    assert OneTimeQuestion.from_sexp(question.to_sexp()) == question
    answer = StatementAuthor(key(ISSUER)).answer(question, NOW, revoked=True).value
    assert (answer.certificate, answer.verifier, answer.nonce) == (CERTIFICATE.id, who(9), b"n" * 16)
    assert answer.revoked
    with refused("evolution.wrong-key"):
        StatementAuthor(key(8)).answer(question, NOW, revoked=False)


def test_an_end_after_the_largest_date_is_cut_off() -> None:
    last = datetime.max.replace(tzinfo=NOW.tzinfo)
    assert Heartbeat(who(ISSUER), 0, BEGINNING, last, 1_000).until == last
