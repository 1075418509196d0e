"""Bags of credentials: what a principal shows, in no order, as a `(sequence …)` or one object after another.

A bag holds certificates with their signatures, public keys, and threshold subjects whose hash is used as a
principal somewhere. Reading it believes nothing; `verify` gives the same bag with every signature verified.

One certificate that was changed on its way makes `read_credentials` refuse the bag. Whoever explains or shows a bag to
people wants the rest of it nevertheless: `salvage_credentials` sets aside what cannot be read, each with its reason.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from penstock.codec.sexp import SExp, canonical, parse_many
from penstock.errors import LimitError, MalformedError, RefusedError, expect
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.principals import Principal
from penstock.trust.certificates import (
    Authorisation,
    Certificate,
    Naming,
    UnverifiedCertificate,
    read_certificate,
    verify_certificate,
)
from penstock.trust.subjects import Threshold, read_subject, subject_to_sexp, thresholds


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

    def namings(self) -> Iterator[tuple[str, Naming]]:
        """Yield the namings with their ids."""
        for certificate in self.certificates:
            if isinstance(certificate.statement, Naming):
                yield certificate.id, certificate.statement

    def thresholds(self) -> dict[Principal, Threshold]:
        """Return every threshold in the bag, also those written out inside a subject, by its principal."""
        found = [inner for quorum in self.quorums for inner in thresholds(quorum)]
        for certificate in self.certificates:
            found += thresholds(certificate.statement.subject)
        return {threshold.principal: threshold for threshold in found}

    def to_sexp(self) -> SExp:
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
        """Verify every certificate. Raises what the verifier raises for the first that fails."""
        return Credentials(tuple(verifier(certificate) for certificate in self.certificates), self.quorums)

    def to_sexp(self) -> SExp:
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


def read_credentials(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> UnverifiedCredentials:
    """Read a bag: one or more sequences, or certificates each followed by its signature.

    Raises `MalformedError` (`cert.*`, `sexp.*` and what the parts raise), `RefusedError`
    (`cert.signature-mismatch`) and `LimitError` (`sexp.limit`, `cert.limit`).
    """
    return collect_credentials(parse_many(data, limits=limits), limits=limits)


def collect_credentials(values: Iterable[SExp], *, limits: Limits = DEFAULT_LIMITS) -> UnverifiedCredentials:
    """Collect a bag from S-expressions that are already read; raises as `read_credentials` does."""
    bag, damaged = _collect(values, limits)
    if damaged:
        raise damaged[0].error
    return bag


def salvage_credentials(
    data: bytes, *, limits: Limits = DEFAULT_LIMITS
) -> tuple[UnverifiedCredentials, tuple[Damaged, ...]]:
    """Read a bag, and set aside the certificates that are malformed or do not belong to their signatures.

    Raises as `read_credentials` does for what is wrong with the bag itself.
    """
    return _collect(parse_many(data, limits=limits), limits)


def _collect(values: Iterable[SExp], limits: Limits) -> tuple[UnverifiedCredentials, tuple[Damaged, ...]]:
    objects: list[SExp] = []
    for value in values:
        objects += value[1:] if isinstance(value, tuple) and value[:1] == (b"sequence",) else (value,)
    certificates: dict[SExp, UnverifiedCertificate] = {}
    damaged: list[Damaged] = []
    quorums: list[Threshold] = []
    pending: SExp | None = None
    for item in objects:
        kind = item[0] if isinstance(item, tuple) and item else None
        if pending is not None:
            if kind != b"signature":
                raise _unsigned()
            try:
                certificates[pending] = read_certificate(pending, item)
            except (MalformedError, RefusedError) as error:
                damaged.append(Damaged(pending, item, error))
            pending = None
            if len(certificates) + len(damaged) > limits.certificates:
                raise LimitError("cert.limit", f"more than {limits.certificates} certificates in one bag")
        elif kind == b"cert":
            pending = item
        elif kind == b"k-of-n":
            subject = read_subject(item)
            if isinstance(subject, Threshold):
                quorums.append(subject)
        elif kind != b"public-key":
            raise MalformedError(
                "cert.malformed",
                "a bag of credentials holds something else",
                hint="expected certificates with their signatures, public keys and k-of-n subjects",
            )
    if pending is not None:
        raise _unsigned()
    return UnverifiedCredentials(tuple(certificates.values()), tuple(quorums)), tuple(damaged)


def _unsigned() -> MalformedError:
    return MalformedError(
        "cert.unsigned", "a certificate is not followed by its signature", hint="keep the two together, in this order"
    )
