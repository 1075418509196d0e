"""Bags of credentials: a principal's certificates in any order, as a `(sequence …)` or one object after another.

A bag holds certificates with their signatures, public keys, and threshold subjects whose hash is used as a
principal somewhere. Reading verifies nothing. `verify` returns the same bag with every signature verified.

`read_credentials` refuses a bag with one damaged certificate. To explain or show such a bag to people,
`salvage_credentials` reads the rest, and lists the objects that cannot be read with the reason.

A large bag from a stranger can be much work. `BagReading` reads it in steps with a known cost, and first verifies only
the certificates that can matter: those of issuers that can be reached from trusted principals.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from penstock.codec.sexp import SExp, canonical, parse_elements, parse_many
from penstock.errors import LimitError, MalformedError, RefusedError, expect
from penstock.model.principals import Principal
from penstock.trust.certificates import (
    Authorisation,
    Certificate,
    Name,
    NameCertificate,
    Statement,
    Subject,
    Threshold,
    UnverifiedCertificate,
    read_certificate,
    read_issuer,
    read_subject,
    subject_to_sexp,
    thresholds,
    verify_certificate,
)
from penstock.trust.limits import TRUST_LIMITS, TrustLimits

#: the costs of reading a byte of a certificate with its tag and of verifying a signature; finding the end of a
#: certificate costs one for each byte
BYTE_WORK: Final = 4
SIGNATURE_WORK: Final = 1_000


class CertificateVerifier(Protocol):
    """Something that verifies one certificate: `verify_certificate`, or a cache in front of it."""

    def __call__(self, unverified: UnverifiedCertificate, /) -> Certificate:
        """Return the verified certificate or raise `RefusedError`."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Verified certificates and the thresholds that they speak of."""

    certificates: tuple[Certificate, ...] = ()
    quorums: tuple[Threshold, ...] = ()

    def __repr__(self) -> str:
        return f"Credentials({len(self.certificates)} certificates, {len(self.quorums)} thresholds)"

    def __len__(self) -> int:
        return len(self.certificates)

    def __iter__(self) -> Iterator[Certificate]:
        return iter(self.certificates)

    def __add__(self, other: "Credentials") -> "Credentials":
        certificates = {certificate.id: certificate for certificate in (*self.certificates, *other.certificates)}
        quorums = dict.fromkeys((*self.quorums, *other.quorums))
        return Credentials(tuple(certificates.values()), tuple(quorums))

    @classmethod
    def of(cls, *certificates: Certificate, quorums: Iterable[Threshold] = ()) -> "Credentials":
        """Collect certificates that are already verified. Raises `MalformedError` (`argument.type`)."""
        for certificate in certificates:
            expect(certificate, Certificate, "a verified credential", "`read_credentials(data).verify()` gives them")
        return cls(certificates, tuple(quorums))

    def authorisations(self) -> Iterator[tuple[str, Authorisation]]:
        """Yield the authorisations with their ids."""
        for certificate in self.certificates:
            if isinstance(certificate.statement, Authorisation):
                yield certificate.id, certificate.statement

    def namings(self) -> Iterator[tuple[str, NameCertificate]]:
        """Yield the namings with their ids."""
        for certificate in self.certificates:
            if isinstance(certificate.statement, NameCertificate):
                yield certificate.id, certificate.statement

    def thresholds(self) -> dict[Principal, Threshold]:
        """Return every threshold in the bag, also those written out inside a subject, by its principal."""
        found = [inner for quorum in self.quorums for inner in thresholds(quorum)]
        for certificate in self.certificates:
            found += thresholds(certificate.statement.subject)
        return {threshold.principal: threshold for threshold in found}

    def to_sexp(self) -> tuple[SExp, ...]:
        """Return the bag as a `(sequence …)`."""
        parts: list[SExp] = []
        for certificate in self.certificates:
            parts += certificate.to_sexps()
        parts += [subject_to_sexp(threshold) for threshold in self.quorums]
        return (b"sequence", *parts)

    def to_bytes(self) -> bytes:
        """Return the bag in canonical form."""
        return canonical(self.to_sexp())


@dataclass(frozen=True, slots=True)
class UnverifiedCredentials:
    """A bag as it was read. Nothing in it may be believed yet."""

    certificates: tuple[UnverifiedCertificate, ...] = ()
    quorums: tuple[Threshold, ...] = ()

    def verify(self, verifier: CertificateVerifier = verify_certificate) -> Credentials:
        """Verify every certificate. Raises the verifier's error for the first one that fails."""
        return Credentials(tuple(verifier(certificate) for certificate in self.certificates), self.quorums)

    def to_sexp(self) -> tuple[SExp, ...]:
        """Return the bag as a `(sequence …)`."""
        parts: list[SExp] = []
        for certificate in self.certificates:
            parts += [certificate.body, certificate.signature_sexp()]
        parts += [subject_to_sexp(threshold) for threshold in self.quorums]
        return (b"sequence", *parts)


@dataclass(frozen=True, slots=True)
class Damaged:
    """A certificate that was set aside, and why. It is there to be shown, and cannot be verified."""

    body: SExp = field(repr=False)
    signature: SExp = field(repr=False)
    error: MalformedError | RefusedError


def read_credentials(data: bytes, *, limits: TrustLimits = TRUST_LIMITS) -> UnverifiedCredentials:
    """Read a bag: one or more sequences, or certificates each followed by its signature.

    Raises `MalformedError` (`cert.*`, `sexp.*` and errors of the parts), `RefusedError`
    (`cert.signature-mismatch`) and `LimitError` (`sexp.limit`, `cert.limit`).
    """
    return collect_credentials(parse_many(data, limits=limits), limits=limits)


def collect_credentials(values: Iterable[SExp], *, limits: TrustLimits = TRUST_LIMITS) -> UnverifiedCredentials:
    """Collect a bag from S-expressions that are already read; raises as `read_credentials` does."""
    bag, damaged = _collect(values, limits)
    if damaged:
        raise damaged[0].error
    return bag


def salvage_credentials(
    data: bytes, *, limits: TrustLimits = TRUST_LIMITS
) -> tuple[UnverifiedCredentials, tuple[Damaged, ...]]:
    """Read a bag, and set aside the certificates that are malformed or do not belong to their signatures.

    Raises as `read_credentials` if something is wrong with the bag itself.
    """
    return _collect(parse_many(data, limits=limits), limits)


def _collect(values: Iterable[SExp], limits: TrustLimits) -> tuple[UnverifiedCredentials, tuple[Damaged, ...]]:
    objects: list[SExp] = []
    for value in values:
        objects += value[1:] if isinstance(value, tuple) and value[:1] == (b"sequence",) else (value,)
    certificates: dict[SExp, UnverifiedCertificate] = {}
    damaged: list[Damaged] = []
    quorums: list[Threshold] = []
    for item in _pairs(objects):
        if item is None:
            continue
        if isinstance(item, Threshold):
            quorums.append(item)
            continue
        body, signature = item
        try:
            certificates[body] = read_certificate(body, signature)
        except (MalformedError, RefusedError) as error:
            damaged.append(Damaged(body, signature, error))
        _check_number(len(certificates) + len(damaged), limits)
    return UnverifiedCredentials(tuple(certificates.values()), tuple(quorums)), tuple(damaged)


_Pair: TypeAlias = tuple[SExp, SExp]


def _pairs(objects: Iterable[SExp]) -> Iterator[_Pair | Threshold | None]:
    """Yield for each object a certificate with its signature if it completes one, a threshold, or None.

    Raises `MalformedError` (`cert.*`, `subject.*`).
    """
    pending: SExp | None = None
    for item in objects:
        kind = item[0] if isinstance(item, tuple) and item else None
        if pending is not None:
            if kind != b"signature":
                raise _unsigned()
            yield pending, item
            pending = None
        elif kind == b"cert":
            pending = item
            yield None
        elif kind == b"k-of-n":
            subject = read_subject(item)
            yield subject if isinstance(subject, Threshold) else None
        elif kind == b"public-key":
            yield None
        else:
            raise MalformedError(
                "cert.malformed",
                "the bag of credentials contains another kind of object",
                hint="expected certificates with their signatures, public keys and k-of-n subjects",
            )
    if pending is not None:
        raise _unsigned()


def _check_number(certificates: int, limits: TrustLimits) -> None:
    if certificates > limits.certificates:
        raise LimitError("cert.limit", f"more than {limits.certificates} certificates in one bag")


class BagReading:
    """Reads a bag in canonical form, in steps that each yield their cost.

    `scan` finds the certificates, `reach` verifies those that can be reached from trusted principals, and `finish` the
    rest. `credentials` has the certificates verified so far. All steps raise as `read_credentials` and the verifier.
    """

    def __init__(
        self, data: bytes, verifier: CertificateVerifier = verify_certificate, *, limits: TrustLimits = TRUST_LIMITS
    ) -> None:
        self._data = data
        self._verifier = verifier
        self._limits = limits
        #: bodies, signatures and costs of certificates that are not verified yet, by the bytes of the body; all in the
        #: order of the bag
        self._unread: dict[bytes, tuple[SExp, SExp, int]] = {}
        self._issued: dict[Principal, list[bytes]] = {}
        self._verified: dict[bytes, Certificate | None] = {}
        self._quorums: dict[Principal, Threshold] = {}

    @property
    def complete(self) -> bool:
        """Whether every certificate is verified."""
        return not self._unread

    @property
    def credentials(self) -> Credentials:
        """The certificates verified so far, in the order of the bag."""
        return Credentials(tuple(filter(None, self._verified.values())), tuple(self._quorums.values()))

    def scan(self) -> Iterator[int]:
        """Find the certificates and their issuers without parsing anything else."""
        written: list[bytes] = []

        def objects() -> Iterator[SExp]:
            for value, data in parse_elements(self._data, limits=self._limits):
                written.append(data)
                yield value

        for item in _pairs(objects()):
            size = len(written[-1])
            if isinstance(item, Threshold):
                self._quorums[item.principal] = item
                size *= BYTE_WORK
            elif item is not None and written[-2] not in self._verified:
                (body, signature), key = item, written[-2]
                self._verified[key] = None
                self._unread[key] = body, signature, SIGNATURE_WORK + BYTE_WORK * (len(key) + size)
                self._issued.setdefault(read_issuer(body), []).append(key)
                _check_number(len(self._verified), self._limits)
            del written[:-1]
            yield size

    def reach(self, trusted: Iterable[Principal]) -> Iterator[int]:
        """Verify the certificates of trusted issuers, of those to which they delegate rights, and so on."""
        pending = deque(dict.fromkeys(trusted))
        reached = set(pending)
        while pending:
            principal = pending.popleft()
            found = list(_principals(self._quorums[principal])) if principal in self._quorums else []
            for key in self._issued.get(principal, ()):
                certificate, cost = self._verify(key)
                found += next_issuers(certificate.statement)
                yield cost
            new = dict.fromkeys(one for one in found if one not in reached)
            reached |= new.keys()
            pending.extend(new)

    def finish(self) -> Iterator[int]:
        """Verify all certificates that are left."""
        for key in list(self._unread):
            yield self._verify(key)[1]

    def _verify(self, key: bytes) -> tuple[Certificate, int]:
        body, signature, cost = self._unread.pop(key)
        verified = self._verified[key] = self._verifier(read_certificate(body, signature))
        return verified, cost


def next_issuers(statement: Statement) -> Iterator[Principal]:
    """Yield the principals whose certificates may matter because of a statement: delegates, and owners of names."""
    subject = statement.subject
    # Certificates of a principal that may not pass a right on do not matter for that right.
    if not (isinstance(statement, Authorisation) and not statement.propagate and isinstance(subject, Principal)):
        yield from _principals(subject)


def _principals(subject: Subject) -> Iterator[Principal]:
    if isinstance(subject, Name):
        yield subject.principal
    elif isinstance(subject, Threshold):
        yield subject.principal
        for member in subject.subjects:
            yield from _principals(member)
    else:
        yield subject


def _unsigned() -> MalformedError:
    return MalformedError(
        "cert.unsigned", "a certificate is not followed by its signature", hint="keep the two together, in this order"
    )
