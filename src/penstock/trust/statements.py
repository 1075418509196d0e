"""Validity statements: what the signer of an on-line test says about certificates (paper 5, section 6.2; RFC 2693).

A certificate says in its `(valid …)` which statements it needs, and who signs them:

    (online crl      (uri <text> …) <principal>)                      not listed in a timed revocation list
    (online reval    (uri <text> …) <principal>)                      listed in a timed revalidation
    (online one-time (uri <text> …) <principal> (recheck <ms>))       an answer to the verifier's own question
    (online active   (uri <text> …) <principal> (topic <name>) (interval <ms>))   heartbeats, and no revocation

The statements, each signed by the principal that the certificate names (`issuer`):

    (crl               (issuer <principal>) (not-before <date>) (not-after <date>) (certificates <id> …) <successors>)
    (reval             (issuer <principal>) (not-before <date>) (not-after <date>) (certificates <id> …) <successors>)
    (one-time          (issuer <principal>) (certificate <id>) (verifier <principal>) (nonce <bytes>) (time <date>)
                       [(revoked)] <successors>)
    (active-revocation (issuer <principal>) (number <n>) (time <date>) (certificates <id> …) <successors>)
    (heartbeat         (issuer <principal>) (number <n>) (head <bytes>) (time <date>) (period <ms>))
    <successors>       [(successors <certificate> <signature> …)]

A revocation list, timed or active, contains all revoked certificates of its issuer that have not expired. So the last
one is the whole state, and brokers can give it to late subscribers (section 6.3.3). Active revocations are numbered
from 1. A heartbeat contains the number and the digest of the last one, or 0 and 32 zero bytes. A verifier that has both
knows every revocation until the heartbeat ends. Successors replace the certificates that a statement is about.

`penstock.trust.signed` signs statements and verifies them. `penstock.trust.statement_book` decides which ones count.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Self

from penstock.codec.sexp import OMITTED, SExp, canonical, parse, read_record, text
from penstock.crypto import Signer
from penstock.errors import LimitError, MalformedError
from penstock.model.principals import Principal
from penstock.trust.certificates import principal_to_sexp, read_principal
from penstock.trust.credentials import UnverifiedCredentials
from penstock.trust.limits import (
    POLICY_NUMBER,
    STAMP_PERIOD,
    STATEMENT_BYTES,
    STATEMENT_CERTIFICATES,
    STATEMENT_PERIOD,
    STATEMENT_URIS,
)
from penstock.trust.policy_events import BEGINNING, CERTIFICATE_ID, CREDENTIALS
from penstock.trust.signed import (
    DIGEST,
    Claim,
    SignedValue,
    StatementRecord,
    UnverifiedValue,
    bytes_form,
    count_form,
    malformed,
    read_count,
    read_signed,
    sign_value,
)
from penstock.trust.validity import OnlineTest

VALIDITY_TOPIC: Final = "penstock.validity"
"""The topic of every issuer, below its own name, on which its statements are published."""

#: bytes of a nonce, and of the longest URI
NONCE_BYTES: Final = 16
_URI_BYTES: Final = 2_048
_MILLISECOND: Final = timedelta(milliseconds=1)


# ----------------------------------------------------------------------------------------------------------------------
# What a certificate requires.


class OnlineKind(StrEnum):
    """The kinds of on-line tests: three of RFC 2693, and active revocation (paper 5, section 6.2.4)."""

    CRL = "crl"
    REVALIDATION = "reval"
    ONE_TIME = "one-time"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class OnlineTerms:
    """An on-line test in detail: its kind, who signs the statements, and where they can be fetched.

    `pause` is the longest time that a verifier goes on without asking again (`one-time`) or hearing a heartbeat
    (`active`). Timed statements say themselves when they end. Raises `MalformedError` (`online.malformed`).
    """

    kind: OnlineKind
    signer: Principal
    uris: tuple[str, ...] = ()
    pause: timedelta | None = None

    def __post_init__(self) -> None:
        if (self.pause is None) is (self.kind in _PAUSING):
            raise _malformed_test(f"an on-line test `{self.kind}` has {'a' if self.pause is None else 'no'} period")
        if self.pause is not None and not _MILLISECOND <= self.pause <= STAMP_PERIOD * _MILLISECOND:
            raise _malformed_test(f"the period of an on-line test is from 1 to {STAMP_PERIOD} milliseconds")
        if len(self.uris) > STATEMENT_URIS or any(not _is_uri(uri) for uri in self.uris):
            raise _malformed_test(f"an on-line test has at most {STATEMENT_URIS} URIs, in printable ASCII")

    def to_test(self) -> OnlineTest:
        """Return the test as certificates contain it."""
        place: SExp = (b"uri", *(uri.encode("ascii") for uri in self.uris))
        more: list[SExp] = [(b"topic", VALIDITY_TOPIC.encode())] if self.kind is OnlineKind.ACTIVE else []
        if self.pause is not None:
            more.append((_PAUSING[self.kind], b"%d" % (self.pause // _MILLISECOND)))
        body: SExp = (b"online", self.kind.encode(), place, principal_to_sexp(self.signer), *more)
        return OnlineTest(self.kind.value, body)

    @classmethod
    def of(cls, test: OnlineTest) -> "OnlineTerms":
        """Read a certificate's test. Raises `MalformedError` (`online.malformed`, `subject.*`, `key.malformed`)."""
        match test.body:
            case (b"online", bytes(kind), (b"uri", *uris), tuple(signer), *more) if kind in _KINDS:
                found = _KINDS[kind]
                return cls(found, read_principal(signer), tuple(_read_uri(uri) for uri in uris), _pause(found, more))
        raise _malformed_test("an on-line test has a kind, URIs and a signer")


_KINDS: Final = {kind.encode(): kind for kind in OnlineKind}
_PAUSING: Final = {OnlineKind.ONE_TIME: b"recheck", OnlineKind.ACTIVE: b"interval"}


def _pause(kind: OnlineKind, more: list[SExp]) -> timedelta | None:
    match more:
        case []:
            return None
        case [(bytes(name), value)] if kind is OnlineKind.ONE_TIME and name == _PAUSING[kind]:
            return read_count(value, STAMP_PERIOD) * _MILLISECOND
        case [(b"topic", bytes(topic)), (bytes(name), value)] if kind is OnlineKind.ACTIVE and name == _PAUSING[kind]:
            if topic != VALIDITY_TOPIC.encode():
                raise _malformed_test(f"statements are published on the issuer's topic `{VALIDITY_TOPIC}`")
            return read_count(value, STAMP_PERIOD) * _MILLISECOND
    raise _malformed_test(f"an on-line test `{kind}` has a field that is not known")


def _read_uri(value: SExp) -> str:
    return text(value) if isinstance(value, bytes) else ""


def _is_uri(uri: str) -> bool:
    return 0 < len(uri) <= _URI_BYTES and uri.isascii() and uri.isprintable() and " " not in uri


def _malformed_test(message: str) -> MalformedError:
    return MalformedError(
        "online.malformed",
        message,
        hint="expected `(online crl|reval|one-time|active (uri …) <principal> …)`; `penstock cert issue --online` "
        "writes it",
    )


# ----------------------------------------------------------------------------------------------------------------------
# The statements.


_PERIOD: Final = count_form(STAMP_PERIOD, least=1)
_NO_SUCCESSORS: Final = UnverifiedCredentials()
#: certificates that replace those that a statement is about; they count as credentials once they are verified
_Successors = Annotated[UnverifiedCredentials, CREDENTIALS, OMITTED]
_Certificates = Annotated[frozenset[str], CERTIFICATE_ID]


class ValidityClaim(Claim):
    """The base of validity statements: what is too large is refused before it is read."""

    __slots__ = ()
    SIGNER: ClassVar = "issuer"
    issuer: Principal

    @classmethod
    def from_sexp(cls, body: SExp) -> Self:
        """Read a body.

        Raises `MalformedError` (`evolution.malformed` and errors of its parts), `RefusedError` (`*.signature-mismatch`
        of its successors), `LimitError` (`evolution.limit`).
        """
        if len(canonical(body)) > STATEMENT_BYTES:
            raise LimitError("evolution.limit", f"a validity statement is larger than {STATEMENT_BYTES} bytes")
        return read_record(cls, body)


@dataclass(frozen=True, slots=True)
class TimedStatement(ValidityClaim):
    """A statement for a period, of which both ends are included. Statements without a period are refused."""

    issuer: Principal
    not_before: datetime
    not_after: datetime
    certificates: _Certificates = field(default=frozenset(), repr=False)
    successors: _Successors = field(default=_NO_SUCCESSORS, repr=False)

    def verify_fields(self) -> None:
        """Raise `MalformedError` for an impossible period, `LimitError` for too many certificates."""
        if not timedelta() <= self.not_after - self.not_before <= STATEMENT_PERIOD * _MILLISECOND:
            raise malformed(f"a timed statement covers at most {STATEMENT_PERIOD} milliseconds")
        _check_number(self.certificates)

    def overlaps(self, other: "TimedStatement") -> bool:
        """Return whether the periods have an instant in common."""
        return self.not_before <= other.not_after and other.not_before <= self.not_after


@dataclass(frozen=True, slots=True)
class RevocationList(TimedStatement):
    """A timed CRL: within the period, the issuer's certificates are valid except for these."""

    HEAD: ClassVar = b"crl"


@dataclass(frozen=True, slots=True)
class Revalidation(TimedStatement):
    """A timed revalidation: within the period these certificates of the issuer are valid, and no others."""

    HEAD: ClassVar = b"reval"


@dataclass(frozen=True, slots=True)
class OneTimeAnswer(ValidityClaim):
    """The answer to a verifier's question whether a certificate is valid now. It serves one decision."""

    HEAD: ClassVar = b"one-time"
    issuer: Principal
    certificate: Annotated[str, CERTIFICATE_ID]
    verifier: Principal
    nonce: Annotated[bytes, bytes_form(NONCE_BYTES)] = field(repr=False)
    time: datetime
    revoked: bool = False
    successors: _Successors = field(default=_NO_SUCCESSORS, repr=False)


@dataclass(frozen=True, slots=True)
class ActiveRevocation(ValidityClaim):
    """All certificates of the issuer that are revoked by now. It takes effect when it arrives."""

    HEAD: ClassVar = b"active-revocation"
    issuer: Principal
    number: Annotated[int, count_form(POLICY_NUMBER, least=1)]
    time: datetime
    certificates: _Certificates = field(repr=False)
    successors: _Successors = field(default=_NO_SUCCESSORS, repr=False)

    def verify_fields(self) -> None:
        """Raise `LimitError` for too many certificates."""
        _check_number(self.certificates)


@dataclass(frozen=True, slots=True)
class Heartbeat(ValidityClaim):
    """At `time` the issuer's last active revocation had this number and digest. Valid for `period` milliseconds."""

    HEAD: ClassVar = b"heartbeat"
    issuer: Principal
    number: int
    head: Annotated[bytes, DIGEST] = field(repr=False)
    time: datetime
    period: Annotated[int, _PERIOD]

    @property
    def until(self) -> datetime:
        """The last instant at which it counts, at most the largest `datetime`."""
        return _after(self.time, self.period)

    def verify_fields(self) -> None:
        """Raise `MalformedError` for a heartbeat without revocations that names one, and the other way round."""
        if (self.number == 0) is not (self.head == BEGINNING):
            raise malformed("only a heartbeat before the first revocation has an empty head")


SUCCEEDING: Final = (TimedStatement, OneTimeAnswer, ActiveRevocation)
"""The kinds of statements with successors."""
VALIDITY_KINDS: Final[tuple[type[ValidityClaim], ...]] = (
    RevocationList,
    Revalidation,
    OneTimeAnswer,
    ActiveRevocation,
    Heartbeat,
)


def _after(time: datetime, period: int) -> datetime:
    """Return the end of a period of milliseconds, at most the largest `datetime`."""
    return time + min(period * _MILLISECOND, datetime.max.replace(tzinfo=time.tzinfo) - time)


def _check_number(certificates: frozenset[str]) -> None:
    if len(certificates) > STATEMENT_CERTIFICATES:
        raise LimitError(
            "evolution.limit",
            f"a validity statement lists more than {STATEMENT_CERTIFICATES} certificates",
            hint="leave out certificates that have expired. Use a CRL or active revocation in the place of "
            "revalidations, and issue further certificates with another signer of their on-line tests",
        )


def read_validity_statement(data: bytes) -> UnverifiedValue[ValidityClaim]:
    """Read one signed statement, in any S-expression form.

    Raises `MalformedError` (`evolution.malformed`, `sexp.*`, and errors of the parts), `RefusedError`
    (`evolution.signature-mismatch`), `LimitError` (`evolution.limit`, `sexp.limit`).
    """
    return read_signed(parse(data), *VALIDITY_KINDS)


@dataclass(frozen=True, slots=True)
class OneTimeQuestion(StatementRecord):
    """A verifier's question to an issuer: is this certificate valid now? The nonce is never used again.

    (one-time-question (issuer <principal>) (certificate <id>) (verifier <principal>) (nonce <bytes>))
    """

    HEAD: ClassVar = b"one-time-question"
    issuer: Principal
    certificate: Annotated[str, CERTIFICATE_ID]
    verifier: Principal
    nonce: Annotated[bytes, bytes_form(NONCE_BYTES)] = field(repr=False)

    def answer(
        self, now: datetime, *, revoked: bool = False, successors: UnverifiedCredentials = _NO_SUCCESSORS
    ) -> OneTimeAnswer:
        """Return the issuer's answer, to be signed."""
        return OneTimeAnswer(self.issuer, self.certificate, self.verifier, self.nonce, now, revoked, successors)


# ----------------------------------------------------------------------------------------------------------------------
# The issuer's side.


_INSTANT: Final = timedelta(microseconds=1)


class StatementAuthor:
    """Makes and signs the statements of one issuer: periods do not overlap, and numbers and times do not decrease.

    Whatever stores its statements must pass the last ones to `resume` before it goes on. Two authors with the same key
    must take turns, each after resuming with the other's last statements.
    """

    def __init__(self, key: Signer) -> None:
        self._key = key
        self._ends: dict[type[TimedStatement], datetime] = {}
        #: the last active revocation, and its digest
        self._last: ActiveRevocation | None = None
        self._head = BEGINNING
        self._time: datetime | None = None

    @property
    def issuer(self) -> Principal:
        """The principal that signs."""
        return self._key.principal

    @property
    def revoked(self) -> frozenset[str]:
        """The certificates of the last active revocation."""
        return frozenset() if self._last is None else self._last.certificates

    def resume(self, statements: Iterable[SignedValue[ValidityClaim]]) -> None:
        """Go on after statements that were signed before, in any order. Those of other issuers are ignored."""
        for statement in statements:
            value = statement.value
            if value.issuer != self.issuer:
                continue
            if isinstance(value, TimedStatement):
                kind = type(value)
                self._ends[kind] = max(value.not_after, self._ends.get(kind, value.not_after))
            elif isinstance(value, ActiveRevocation) and (self._last is None or self._last.number < value.number):
                self._last, self._head = value, statement.digest
            if isinstance(value, ActiveRevocation | Heartbeat):
                self._time = value.time if self._time is None else max(self._time, value.time)

    def revocation_list(
        self,
        now: datetime,
        period: timedelta,
        certificates: Iterable[str],
        successors: UnverifiedCredentials = _NO_SUCCESSORS,
    ) -> SignedValue[RevocationList]:
        """Sign the next timed CRL. It begins now, or when the last one has ended. Raises as `sign_value`."""
        begin, end = self._next(RevocationList, now, period)
        signed = sign_value(RevocationList(self.issuer, begin, end, frozenset(certificates), successors), self._key)
        self._ends[RevocationList] = end
        return signed

    def revalidation(
        self,
        now: datetime,
        period: timedelta,
        certificates: Iterable[str],
        successors: UnverifiedCredentials = _NO_SUCCESSORS,
    ) -> SignedValue[Revalidation]:
        """Sign the next timed revalidation. It begins now, or when the last one has ended. Raises as `sign_value`."""
        begin, end = self._next(Revalidation, now, period)
        signed = sign_value(Revalidation(self.issuer, begin, end, frozenset(certificates), successors), self._key)
        self._ends[Revalidation] = end
        return signed

    def _next(self, kind: type[TimedStatement], now: datetime, period: timedelta) -> tuple[datetime, datetime]:
        last = self._ends.get(kind)
        begin = now if last is None or last < now else last + _INSTANT
        return begin, begin + period - _INSTANT

    def revoke(
        self, now: datetime, certificates: Iterable[str], successors: UnverifiedCredentials = _NO_SUCCESSORS
    ) -> SignedValue[ActiveRevocation]:
        """Sign the next active revocation: all certificates that are revoked from now on. Raises as `sign_value`."""
        number = 1 if self._last is None else self._last.number + 1
        value = ActiveRevocation(self.issuer, number, self._advance(now), frozenset(certificates), successors)
        signed = sign_value(value, self._key)
        self._last, self._head = value, signed.digest
        return signed

    def heartbeat(self, now: datetime, period: timedelta) -> SignedValue[Heartbeat]:
        """Sign a heartbeat for the last active revocation. Raises as `sign_value`."""
        number = 0 if self._last is None else self._last.number
        value = Heartbeat(self.issuer, number, self._head, self._advance(now), period // _MILLISECOND)
        return sign_value(value, self._key)

    def answer(
        self,
        question: OneTimeQuestion,
        now: datetime,
        *,
        revoked: bool,
        successors: UnverifiedCredentials = _NO_SUCCESSORS,
    ) -> SignedValue[OneTimeAnswer]:
        """Sign the answer to a question. Raises `RefusedError` (`evolution.wrong-key`) for another issuer's."""
        return sign_value(question.answer(now, revoked=revoked, successors=successors), self._key)

    def _advance(self, now: datetime) -> datetime:
        """Return the time to sign: now, but not before the last one."""
        self._time = now if self._time is None else max(self._time, now)
        return self._time
