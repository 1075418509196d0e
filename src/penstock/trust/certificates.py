"""Certificates: authorisations and names, signed by the principal that issues them (RFC 2693; paper 5, section 2.6).

    (cert (issuer <principal>) (subject <subject>) (propagate) (tag …) (valid …) (comment …))
    (cert (issuer (name <principal> <name>)) (subject <subject>) (valid …) (comment …))
    (signature (hash sha256 <bytes>) (public-key …) <bytes>)

Reading gives an `UnverifiedCertificate`. Only `verify_certificate` turns it into a `Certificate`. It checks keys and
signatures only: whether a certificate is valid *now* is checked at each use, so that a verified certificate can be
kept.
"""

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, TypeAlias

from penstock.codec.sexp import SExp, canonical, text
from penstock.codec.sexp import field as sexp_field
from penstock.crypto import PublicKey, Signer, digest
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.principals import DIGEST_BYTES, THRESHOLD, Principal
from penstock.trust.limits import NAME_LENGTH, THRESHOLD_MEMBERS
from penstock.trust.tags import Tag, parse_tag, to_sexp
from penstock.trust.validity import ALWAYS, Validity, parse_validity, validity_to_sexp

# ----------------------------------------------------------------------------------------------------------------------
# Subjects of certificates: a key or its hash, a name chain, a k-of-n threshold (RFC 2693; paper 5, 2.6).
#
#     principal   (public-key …) | (hash sha256 <bytes>)
#     name        (name <principal> <name> …)
#     threshold   (k-of-n <k> <n> <subject> …)
#
# A principal is identified by the SHA-256 of its canonical S-expression. The weaker hashes of 1999 are refused here;
# the reader of test cases passes its own `principal` function that accepts them.

#: thresholds inside each other, written out
QUORUM_DEPTH: Final = 8


@dataclass(frozen=True, slots=True)
class Name:
    """A name in a principal's own name space: `(name Met "Met Brokers")`, possibly chained through others'."""

    principal: Principal
    names: tuple[bytes, ...]

    def __str__(self) -> str:
        return f"{self.principal.short} {' '.join(repr(name.decode(errors='replace')) for name in self.names)}"


@dataclass(frozen=True, slots=True)
class Threshold:
    """Any k of n subjects acting together. It is compared by `principal`, the hash of its written form.

    Raises `MalformedError` (`subject.threshold`), `LimitError` (`subject.limit`).
    """

    k: int = field(compare=False)
    subjects: tuple["Subject", ...] = field(compare=False)
    principal: Principal = field(init=False, repr=False)
    depth: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.subjects) > THRESHOLD_MEMBERS:
            raise LimitError("subject.limit", f"a threshold has more than {THRESHOLD_MEMBERS} members")
        depth = 1 + max((member.depth for member in self.subjects if isinstance(member, Threshold)), default=0)
        if depth > QUORUM_DEPTH:
            raise LimitError("subject.limit", f"more than {QUORUM_DEPTH} thresholds inside each other")
        if not 1 <= self.k <= len(self.subjects):
            raise MalformedError(
                "subject.threshold",
                f"{self.k} of {len(self.subjects)} subjects is not a possible quorum",
                hint="choose k between 1 and the number of subjects",
            )
        # A quorum within this one is the same subject written out and by its hash.
        members = {member.principal if isinstance(member, Threshold) else member for member in self.subjects}
        if len(members) != len(self.subjects):
            raise MalformedError("subject.threshold", "a threshold names a subject twice")
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "principal", Principal(digest(subject_to_sexp(self)), THRESHOLD))

    def __str__(self) -> str:
        return f"{self.k} of {len(self.subjects)} ({self.principal.short})"


Subject: TypeAlias = Principal | Name | Threshold


def read_principal(value: SExp) -> Principal:
    """Read a key or its hash. Raises `MalformedError` (`subject.malformed`, `subject.weak-hash`, `key.malformed`)."""
    match value:
        case (b"public-key", *_):
            return PublicKey.from_sexp(value).principal
        case (b"hash", b"sha256", bytes(raw)) if len(raw) == DIGEST_BYTES:
            return Principal(raw)
        case (b"hash", bytes(algorithm), bytes(), *_) if algorithm != b"sha256":
            raise MalformedError("subject.weak-hash", f"hash `{algorithm[:20]!r}` is not accepted", hint="use sha256")
    raise MalformedError("subject.malformed", "not a principal", hint="expected `(public-key …)` or `(hash sha256 …)`")


def read_subject(value: SExp, principal: Callable[[SExp], Principal] = read_principal) -> Subject:
    """Read a subject.

    Raises `MalformedError`: `subject.malformed`, `subject.threshold`, and as `principal`; `LimitError`
    (`subject.limit`).
    """
    match value:
        case (b"name", tuple(base), *names):
            return Name(principal(base), _names(names))
        case (b"k-of-n", bytes(k), bytes(n), *members):
            count, total = _number(k), _number(n)
            if total != len(members):
                raise MalformedError("subject.threshold", f"a threshold of {total} lists {len(members)} subjects")
            # S-expressions are bounded in depth, and so is this recursion.
            return Threshold(count, tuple(read_subject(member, principal) for member in members))
    return principal(value)


def _names(names: list[SExp]) -> tuple[bytes, ...]:
    if not names or len(names) > NAME_LENGTH:
        raise MalformedError("subject.malformed", f"a name chain has 1 to {NAME_LENGTH} names, not {len(names)}")
    checked = tuple(name for name in names if isinstance(name, bytes) and name)
    if len(checked) != len(names):
        raise MalformedError("subject.malformed", "a name in a name chain is not a non-empty byte string")
    return checked


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 4 or (text[:1] == b"0" and text != b"0"):
        raise MalformedError("subject.threshold", "a threshold's k and n are decimal numbers")
    return int(text)


def principal_to_sexp(principal: Principal) -> SExp:
    """Return the hash form, which every principal has."""
    return (b"hash", b"sha256", principal.digest)


def subject_to_sexp(subject: Subject, principal: Callable[[Principal], SExp] = principal_to_sexp) -> SExp:
    """Return the written form of a subject."""
    if isinstance(subject, Principal):
        return principal(subject)
    if isinstance(subject, Name):
        return (b"name", principal(subject.principal), *subject.names)
    members = tuple(subject_to_sexp(member, principal) for member in subject.subjects)
    return (b"k-of-n", str(subject.k).encode(), str(len(members)).encode(), *members)


def thresholds(subject: Subject) -> Iterator[Threshold]:
    """Yield every threshold within a subject, outermost first."""
    if isinstance(subject, Threshold):
        yield subject
        for member in subject.subjects:
            yield from thresholds(member)


def describe(subject: Subject) -> str:
    """Return a short text for people."""
    return subject.short if isinstance(subject, Principal) else str(subject)


# ----------------------------------------------------------------------------------------------------------------------
# Certificates.


@dataclass(frozen=True, slots=True)
class Authorisation:
    """The issuer gives the subject the rights of the tag; with `propagate` the subject may pass them on."""

    issuer: Principal
    subject: Subject
    tag: Tag
    propagate: bool = False
    validity: Validity = ALWAYS
    comment: str = ""

    def to_sexp(self) -> SExp:
        """Return the `(cert …)` that is signed."""
        parts: list[SExp] = [(b"issuer", principal_to_sexp(self.issuer)), (b"subject", subject_to_sexp(self.subject))]
        if self.propagate:
            parts.append((b"propagate",))
        parts.append((b"tag", to_sexp(self.tag)))
        return _finish(parts, self.validity, self.comment)


@dataclass(frozen=True, slots=True)
class NameCertificate:
    """In the issuer's name space `name` means the subject, among others: a group has one such statement a member."""

    issuer: Principal
    name: bytes
    subject: Subject
    validity: Validity = ALWAYS
    comment: str = ""

    def to_sexp(self) -> SExp:
        """Return the `(cert …)` that is signed."""
        issuer = (b"name", principal_to_sexp(self.issuer), self.name)
        return _finish([(b"issuer", issuer), (b"subject", subject_to_sexp(self.subject))], self.validity, self.comment)


Statement: TypeAlias = Authorisation | NameCertificate


def _finish(parts: list[SExp], validity: Validity, comment: str) -> SExp:
    if (valid := validity_to_sexp(validity)) is not None:
        parts.append(valid)
    if comment:
        parts.append((b"comment", comment.encode()))
    return (b"cert", *parts)


_FIELDS = frozenset({b"issuer", b"subject", b"propagate", b"tag", b"valid", b"comment"})


def read_statement(value: SExp) -> Statement:
    """Read a `(cert …)`.

    Raises `MalformedError` (`cert.malformed` and errors of the parts: `subject.*`, `tag.*`, `validity.*`,
    `date.malformed`, `sexp.*`) and `LimitError`. A field that is not known is refused, since it might restrict.
    """
    if not isinstance(value, tuple) or not value or value[0] != b"cert":
        raise MalformedError("cert.malformed", "not a certificate", hint="expected `(cert (issuer …) (subject …) …)`")
    for part in value[1:]:
        if not isinstance(part, tuple) or not part or part[0] not in _FIELDS:
            raise MalformedError(
                "cert.malformed", "a certificate has a field that is not known", hint=f"known: {_known_fields()}"
            )
    subject = read_subject(_one(value, b"subject"))
    valid = sexp_field(value, b"valid")
    validity = ALWAYS if valid is None else parse_validity(valid[1:])
    comment = text(_one(value, b"comment")) if sexp_field(value, b"comment") else ""
    propagate = sexp_field(value, b"propagate")
    tag = sexp_field(value, b"tag")
    match _one(value, b"issuer"):
        case (b"name", tuple(principal), bytes(name)) if name:
            if tag is not None or propagate is not None:
                raise MalformedError("cert.malformed", "a name certificate carries no tag and is not propagated")
            return NameCertificate(read_principal(principal), name, subject, validity, comment)
        case issuer:
            if tag is None or len(tag) != 2 or (propagate is not None and len(propagate) != 1):
                raise MalformedError("cert.malformed", "an authorisation has one tag", hint="expected `(tag …)`")
            return Authorisation(
                read_principal(issuer), subject, parse_tag(tag[1]), propagate is not None, validity, comment
            )


def read_issuer(body: SExp) -> Principal:
    """Return the issuer that a certificate names, without reading the rest of it.

    Raises `MalformedError` (`cert.malformed`, `subject.*`, `key.malformed`).
    """
    match _one(body, b"issuer"):
        case (b"name", tuple(principal), *_):
            return read_principal(principal)
        case issuer:
            return read_principal(issuer)


def _known_fields() -> str:
    return ", ".join(sorted(name.decode() for name in _FIELDS))


def _one(value: SExp, name: bytes) -> SExp:
    found = sexp_field(value, name)
    if found is None or len(found) != 2:
        raise MalformedError("cert.malformed", f"a certificate has one `({name.decode()} …)` with one value")
    return found[1]


def certificate_id(body_digest: bytes) -> str:
    """Return the written id of a certificate, which explanations, logs and revocations use."""
    return f"cert:{base64.b32encode(body_digest).decode().rstrip('=').lower()}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A statement whose signature was verified. Only `verify_certificate` and `issue` make one."""

    id: str
    statement: Statement
    body: SExp = field(repr=False)
    signature: SExp = field(repr=False)

    def __repr__(self) -> str:
        return f"Certificate({self.id!r}, by {self.statement.issuer.short})"

    def to_sexps(self) -> tuple[SExp, SExp]:
        """Return certificate and signature as elements of a sequence."""
        return (self.body, self.signature)


@dataclass(frozen=True, slots=True)
class UnverifiedCertificate:
    """A certificate as it was read. Nothing in it may be believed yet."""

    statement: Statement
    body: SExp = field(repr=False)
    key: PublicKey
    signature: bytes = field(repr=False)
    #: a key for caches: the digest of body, key and signature together
    fingerprint: bytes = field(repr=False)
    #: the canonical form, where it is known: to write it takes as long as to read it
    _written: bytes = field(default=b"", repr=False, compare=False)

    @property
    def written(self) -> bytes:
        """The signed bytes: the canonical form of the body."""
        return self._written or canonical(self.body)

    @property
    def id(self) -> str:
        """The id that the certificate has once it is verified."""
        return certificate_id(sha256(self.written).digest())

    def signature_sexp(self) -> SExp:
        """Return the `(signature …)` element of a sequence."""
        return (b"signature", (b"hash", b"sha256", sha256(self.written).digest()), self.key.to_sexp(), self.signature)


def read_certificate(body: SExp, signature: SExp) -> UnverifiedCertificate:
    """Read a certificate and its signature.

    Raises as `read_statement`, `MalformedError` (`cert.signature`, `key.malformed`), and `RefusedError`
    (`cert.signature-mismatch`) when the signature says that it is over something else.
    """
    statement = read_statement(body)
    match signature:
        case (b"signature", (b"hash", b"sha256", bytes(hashed)), tuple(key), bytes(signature)):
            written = canonical(body)
            if hashed != sha256(written).digest():
                raise RefusedError(
                    "cert.signature-mismatch",
                    "the signature belongs to another certificate, or the certificate was changed",
                    hint="ask the issuer for the original",
                )
            fingerprint = sha256(written + canonical((key, signature))).digest()
            return UnverifiedCertificate(statement, body, PublicKey.from_sexp(key), signature, fingerprint, written)
    raise MalformedError(
        "cert.signature", "not a signature", hint="expected `(signature (hash sha256 …) (public-key …) …)`"
    )


def verify_certificate(unverified: UnverifiedCertificate) -> Certificate:
    """Verify a certificate.

    (1) The key is the issuer's. (2) The signature is the key's, over the canonical body.

    Raises `RefusedError`: `cert.wrong-key`, `key.bad-signature`.
    """
    # (1) RFC 2693: only the issuer speaks for the issuer.
    if unverified.key.principal != unverified.statement.issuer:
        raise RefusedError(
            "cert.wrong-key",
            f"a certificate of {unverified.statement.issuer.short} is signed by {unverified.key.principal.short}",
            hint="only the issuer can sign it",
        )
    # (2) RFC 2693: the signature is over the canonical form and nothing else.
    unverified.key.verify(unverified.written, unverified.signature)
    return Certificate(unverified.id, unverified.statement, unverified.body, unverified.signature_sexp())


def issue(statement: Statement, key: Signer) -> Certificate:
    """Sign a statement. Raises `RefusedError` (`cert.wrong-key`) when the key is not the issuer's."""
    if key.principal != statement.issuer:
        raise RefusedError(
            "cert.wrong-key",
            f"{key.principal.short} cannot sign for {statement.issuer.short}",
            hint="sign with the issuer's own key",
        )
    body = statement.to_sexp()
    signed = key.sign(canonical(body))
    hashed = digest(body)
    signature = (b"signature", (b"hash", b"sha256", hashed), key.public.to_sexp(), signed)
    return Certificate(certificate_id(hashed), statement, body, signature)
