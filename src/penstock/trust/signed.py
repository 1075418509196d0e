"""Statements that one principal signs and others act on: policy events, time-stamps, acknowledgements.

    (sequence <body> (signature (hash sha256 <bytes>) (public-key …) <bytes>))

Each kind of statement is a body with a head of its own, so that a signature cannot be used for another kind. A body has
one written form: a body that would be written differently than it was read is refused. Reading gives an
`UnverifiedValue`. Only its `verify`, and `sign_value`, return a `SignedValue`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import ClassVar, Final, Generic, TypeVar

from penstock.codec.sexp import Form, SExp, SexpRecord, canonical, parse, parse_canonical, text
from penstock.codec.sexp import head as sexp_head
from penstock.crypto import PublicKey, Signer
from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import format_date, parse_date
from penstock.model.principals import DIGEST_BYTES, KEY, Principal
from penstock.trust.limits import POLICY_NUMBER, TRUST_LIMITS, TrustLimits

_HINT: Final = "see docs/explanation/policy-evolution.md for the forms"


def malformed(message: str) -> MalformedError:
    """Return the error for malformed statements."""
    return MalformedError("evolution.malformed", message, hint=_HINT)


# ----------------------------------------------------------------------------------------------------------------------
# How values are written in statements.


def read_owner(value: SExp) -> Principal:
    """Read a principal in its written form."""
    return Principal.parse(text(value))


def read_count(value: SExp, most: int = POLICY_NUMBER) -> int:
    """Read a number from zero up. Raises `MalformedError` (`evolution.malformed`)."""
    if not isinstance(value, bytes) or not value.isdigit() or len(value) > len(str(most)) or int(value) > most:
        raise malformed(f"not a number from 0 to {most}")
    return int(value)


def bytes_form(*lengths: int) -> Form[bytes]:
    """Return how bytes are written that have one of these lengths, or any."""

    def read(value: SExp) -> bytes:
        if not isinstance(value, bytes):
            raise malformed("bytes are an atom")
        if lengths and len(value) not in lengths:
            raise malformed(f"not {' or '.join(map(str, lengths))} bytes")
        return value

    return Form(lambda value: value, read)


def count_form(most: int, least: int = 0) -> Form[int]:
    """Return how numbers are written that have these bounds."""

    def read(value: SExp) -> int:
        found = read_count(value, most)
        if found < least:
            raise malformed(f"not a number from {least} to {most}")
        return found

    return Form(b"%d".__mod__, read)


_BYTES: Final = bytes_form()
PRINCIPAL: Final[Form[Principal]] = Form(lambda principal: str(principal).encode(), read_owner)
DIGEST: Final = bytes_form(DIGEST_BYTES)


class StatementRecord(SexpRecord):
    """The base of statements and of their parts."""

    __slots__ = ()
    FORMS: ClassVar = {
        Principal: PRINCIPAL,
        datetime: Form(format_date, lambda value: parse_date(_BYTES.read(value))),
        int: count_form(POLICY_NUMBER),
        str: Form(str.encode, text),
        bytes: _BYTES,
    }

    @staticmethod
    def malformed(message: str) -> MalformedError:
        """Return the error for a malformed statement: `evolution.malformed`."""
        return malformed(message)


class Claim(StatementRecord):
    """A statement that can be signed: a frozen value that names its signer."""

    __slots__ = ()
    #: the attribute that contains the required signer
    SIGNER: ClassVar[str]

    @property
    def signer(self) -> Principal:
        """The principal that must sign this statement."""
        signer: Principal = getattr(self, self.SIGNER)
        return signer


@dataclass(frozen=True, slots=True)
class AppliedRequest(StatementRecord):
    """A signed request that was applied, in the snapshot of a ledger: it is not applied again."""

    HEAD: ClassVar = b"applied"
    by: Principal
    nonce: bytes
    time: datetime


V_co = TypeVar("V_co", bound=Claim, covariant=True)
V = TypeVar("V", bound=Claim)


@dataclass(frozen=True, slots=True)
class SignedValue(Generic[V_co]):
    """A statement whose signature was verified. Only `UnverifiedValue.verify` and `sign_value` make one.

    `digest` is that of the body: two statements with the same digest are the same.
    """

    value: V_co
    digest: bytes = field(repr=False)
    body: SExp = field(repr=False)
    key: PublicKey = field(repr=False)
    signature: bytes = field(repr=False)
    #: its canonical form after the first use: a chain is written whenever it grows
    _written: list[bytes] = field(default_factory=list, init=False, repr=False, compare=False)

    def to_sexp(self) -> SExp:
        """Return statement and signature as one sequence."""
        return _to_sexp(self.body, self.digest, self.key, self.signature)

    def to_bytes(self) -> bytes:
        """Return the signed statement in canonical form."""
        if not self._written:
            self._written.append(canonical(self.to_sexp()))
        return self._written[0]

    def unverified(self) -> "UnverifiedValue[V_co]":
        """Return the statement as others get it."""
        return UnverifiedValue(self.value, self.digest, self.body, self.key, self.signature)


@dataclass(frozen=True, slots=True)
class UnverifiedValue(Generic[V_co]):
    """A signed statement as it was read. Nothing in it may be believed yet."""

    value: V_co
    digest: bytes = field(repr=False)
    body: SExp = field(repr=False)
    key: PublicKey = field(repr=False)
    signature: bytes = field(repr=False)
    #: the canonical form of the body where reading has computed it
    _signed: bytes = field(default=b"", repr=False, compare=False)

    def to_sexp(self) -> SExp:
        """Return statement and signature as one sequence."""
        return _to_sexp(self.body, self.digest, self.key, self.signature)

    def verify(self) -> SignedValue[V_co]:
        """Verify the statement.

        (1) The key is the required signer's. (2) The signature is the key's, over the canonical body.

        Raises `RefusedError`: `evolution.wrong-key`, `key.bad-signature`.
        """
        # (1) Principals compare by digest alone; a quorum has no key that could sign.
        signer = self.value.signer
        if self.key.principal != signer or signer.scheme != KEY:
            raise _wrong_key(self.key.principal, signer)
        # (2) The signature is over the canonical form and nothing else.
        self.key.verify(self._signed or canonical(self.body), self.signature)
        return SignedValue(self.value, self.digest, self.body, self.key, self.signature)


def sign_value(value: V, key: Signer) -> SignedValue[V]:
    """Sign a statement.

    Raises `RefusedError` (`evolution.wrong-key`), and the errors of reading it back: a statement that cannot be read is
    not signed.
    """
    if key.principal != value.signer:
        raise _wrong_key(key.principal, value.signer)
    body = value.to_sexp()
    _read_body(body, type(value))
    signed = canonical(body)
    return SignedValue(value, sha256(signed).digest(), body, key.public, key.sign(signed))


def _wrong_key(found: Principal, wanted: Principal) -> RefusedError:
    return RefusedError(
        "evolution.wrong-key", f"a statement of {wanted.short} is signed by {found.short}", hint="only they can sign it"
    )


def _to_sexp(body: SExp, hashed: bytes, key: PublicKey, signature: bytes) -> SExp:
    return (b"sequence", body, (b"signature", (b"hash", b"sha256", hashed), key.to_sexp(), signature))


def signed_form(*kinds: type[V]) -> Form[UnverifiedValue[V]]:
    """Return how a statement of one of these kinds is written with its signature."""
    return Form(lambda signed: signed.to_sexp(), lambda value: read_signed(value, *kinds))


def read_signed(value: SExp, *kinds: type[V]) -> UnverifiedValue[V]:
    """Read a signed statement of one of these kinds.

    Raises `MalformedError` (`evolution.malformed` and errors of the parts), `RefusedError`
    (`evolution.signature-mismatch`).
    """
    match value:
        case (
            b"sequence",
            tuple(body),
            (b"signature", (b"hash", b"sha256", bytes(hashed)), tuple(key), bytes(signature)),
        ):
            kind = next((kind for kind in kinds if sexp_head(body) == kind.HEAD), None)
            if kind is None:
                raise malformed("a signed statement of another kind than was expected")
            signed = canonical(body)
            if hashed != sha256(signed).digest():
                raise RefusedError(
                    "evolution.signature-mismatch",
                    "the signature belongs to another statement, or the statement was changed",
                    hint="ask for the original",
                )
            return UnverifiedValue(_read_body(body, kind), hashed, body, PublicKey.from_sexp(key), signature, signed)
    raise malformed("not a signed statement")


def parse_signed(data: bytes, *kinds: type[V]) -> UnverifiedValue[V]:
    """Read a signed statement in canonical form. Raises as `parse_canonical` and `read_signed`."""
    return read_signed(parse_canonical(data), *kinds)


def _read_body(body: SExp, kind: type[V]) -> V:
    read = kind.from_sexp(body)
    if read.to_sexp() != body:
        raise malformed("the statement is not in canonical form, or has an unknown field")
    return read


# ----------------------------------------------------------------------------------------------------------------------
# Several signed statements in one file:
#
#     (statements (sequence <body> (signature …)) …)
#
# A file with one statement can contain it as it is. Reading verifies nothing.


def statements_to_sexp(statements: Iterable[SignedValue[Claim]]) -> SExp:
    """Return statements as one."""
    return (b"statements", *(statement.to_sexp() for statement in statements))


def read_statements(data: bytes, *kinds: type[V], limits: TrustLimits = TRUST_LIMITS) -> tuple[UnverifiedValue[V], ...]:
    """Read statements of these kinds, in any S-expression form.

    Raises `MalformedError` (`evolution.malformed`, `sexp.*`, and errors of the parts), `RefusedError`
    (`evolution.signature-mismatch`), `LimitError`.
    """
    found: tuple[SExp, ...]
    match parse(data, limits=limits):
        case (b"statements", *listed):
            found = tuple(listed)
        case (b"sequence", *_) as single:
            found = (single,)
        case _:
            raise malformed("not a file of signed statements")
    return tuple(read_signed(statement, *kinds) for statement in found)
