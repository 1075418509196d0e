"""Who is at the other end: mutual authentication with random numbers (dissertation, 5.3.1, the third mechanism).

A connects, B accepts. Keys stand for principals, r are random numbers, S are signatures:

    A ← B : B, r_B, mark_B
    A → B : A, r_A, mark_A, S_A(label, connects, network, r_A, r_B, A, B, certificate)
    A ← B : S_B(label, accepts, network, r_B, r_A, B, A, certificate)

Each side checks, in this order: (1) the message has its one written form, (2) its sender belongs to the same network,
(3) its sender is not ourselves, and is the expected one if we expect somebody, (4) the signature. Whatever fails ends
the handshake for good. Only a handshake in which every check succeeded gives an `AuthenticatedPeer`.
docs/adr/0012-wire-and-sessions.md says what each part of a signature is for.

`Connecting` and `Accepting` take and give bytes and do nothing else, so that they work over TLS, across NATS and in a
simulator. Where there is no TLS the random numbers are the public keys of an exchange (`penstock.crypto.session`), and
`agreed` is what the keys of the session come from. Neither side says anything about rights: whether the peer may be
here is the business of `decide`.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.codec.limits import HANDSHAKE_BYTES, CodecLimits
from penstock.codec.sexp import SExp, canonical, parse_canonical
from penstock.crypto.keys import SIGNATURE_BYTES, PublicKey, RandomBytes, Signer, SigningKey
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.model.names import NetworkName
from penstock.model.principals import Principal

LABEL: Final = b"penstock-handshake-1"
NONCE_BYTES: Final = 32
BINDING_BYTES: Final = 32
_CONNECTS: Final = b"connects"
_ACCEPTS: Final = b"accepts"
_AGREE: Final = b"agree"
# The longest message is the second: a label, a word, and 32 + 32 + 32 + 64 bytes with their lengths.
_LIMITS: Final = CodecLimits(sexp_bytes=HANDSHAKE_BYTES, sexp_depth=1, sexp_nodes=8)


@dataclass(frozen=True, slots=True)
class HandshakeTerms:
    """What one side brings: its key, the network it belongs to, and what the channel is bound to.

    `binding` is the SHA-256 of the server's TLS certificate: the server's own, or the one that the client was shown;
    across NATS it is the SHA-256 of the way to the server.
    Raises `MalformedError` (`handshake.binding`) when it is not of that size.
    """

    key: Signer
    network: NetworkName
    binding: bytes

    def __post_init__(self) -> None:
        if len(self.binding) != BINDING_BYTES:
            raise MalformedError("handshake.binding", f"a channel is bound to {BINDING_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class AuthenticatedPeer:
    """The authenticated identity of the peer. Only a successful handshake makes one."""

    key: PublicKey
    network: NetworkName

    @property
    def principal(self) -> Principal:
        """The principal that the peer is."""
        return self.key.principal


_Step: TypeAlias = Callable[[bytes], bytes | None]


class _Side:
    """What both sides share: their terms, their random number, and which message they wait for."""

    def __init__(self, terms: HandshakeTerms, random: RandomBytes) -> None:
        self._terms = terms
        self._nonce = random(NONCE_BYTES)
        if len(self._nonce) != NONCE_BYTES:
            raise MalformedError("handshake.random", f"a random number has {NONCE_BYTES} bytes")
        self._step: _Step = self._over
        self._peer: AuthenticatedPeer | None = None
        self._agreed: tuple[bytes, bytes] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._terms.key.principal.short}, done={self.done})"

    @property
    def signs_outside(self) -> bool:
        """Whether a signature is made outside the process: `receive` then takes long, and belongs in a thread."""
        return not isinstance(self._terms.key, SigningKey)

    @property
    def done(self) -> bool:
        """Whether the peer is known."""
        return self._peer is not None

    @property
    def peer(self) -> AuthenticatedPeer:
        """Who is at the other end. Raises `FailedError` (`handshake.order`) before that is known."""
        if self._peer is None:
            raise FailedError("handshake.order", "the handshake has not ended well, and nobody is known to be there")
        return self._peer

    @property
    def agreed(self) -> tuple[bytes, bytes]:
        """The peer's number, and all that both have signed. Raises `FailedError` (`handshake.order`) as `peer` does."""
        if self._agreed is None:
            raise FailedError("handshake.order", "the handshake has not ended well, and nothing is agreed")
        return self._agreed

    def receive(self, message: bytes | memoryview) -> bytes | None:
        """Take the peer's next message; return the answer, if there is one.

        Raises `MalformedError` (`handshake.malformed`), `RefusedError` (`handshake.network`, `handshake.reflection`,
        `handshake.peer`, `handshake.signature`), `FailedError` (`handshake.order`), and what the signer raises. The
        handshake is over then.
        """
        step, self._step = self._step, self._over
        return step(bytes(message[: HANDSHAKE_BYTES + 1]))

    def _over(self, _message: bytes) -> bytes | None:
        raise FailedError("handshake.order", "no message of a handshake is expected here", hint="begin a new one")

    def _mark(self, nonce: bytes) -> bytes:
        """Return a digest that identifies the network to those who know its name, and reveals nothing to others."""
        return hashlib.sha256(canonical((LABEL, nonce, str(self._terms.network).encode()))).digest()

    def _introduction(self) -> tuple[bytes, bytes, bytes]:
        return self._terms.key.public.raw, self._nonce, self._mark(self._nonce)

    def _introduced(self, key: bytes, nonce: bytes, mark: bytes, expected: Principal | None = None) -> PublicKey:
        """Check steps (2) and (3), and the sizes of what follows them."""
        if len(nonce) != NONCE_BYTES or len(key) != len(self._terms.key.public.raw):
            raise _malformed()
        if mark != self._mark(nonce):
            raise RefusedError(
                "handshake.network", "the peer belongs to another network", hint="compare the names and their owners"
            )
        peer = PublicKey(key)
        if peer == self._terms.key.public or nonce == self._nonce:
            raise RefusedError(
                "handshake.reflection", "the peer has our own key", hint="give each client and broker its own"
            )
        if expected is not None and peer.principal != expected:
            raise RefusedError(
                "handshake.peer",
                f"expected {expected.short}, and {peer.principal.short} is there",
                hint="another broker has taken the address, or the configuration names another key",
            )
        return peer

    def _sign(self, role: bytes, nonce: bytes, peer: PublicKey) -> bytes:
        signed = _signed(role, self._terms, (self._nonce, nonce), (self._terms.key.public, peer))
        return self._terms.key.sign(signed)

    def _verify(self, role: bytes, nonce: bytes, peer: PublicKey, signature: bytes) -> AuthenticatedPeer:
        """Check step (4), a signature of the peer in its role."""
        signed = _signed(role, self._terms, (nonce, self._nonce), (peer, self._terms.key.public))
        try:
            peer.verify(signed, signature)
        except RefusedError:
            raise RefusedError(
                "handshake.signature",
                f"the signature is not one of {peer.principal.short} over this connection",
                hint="the peer has another key, or somebody intercepts the connection",
            ) from None
        return AuthenticatedPeer(peer, self._terms.network)


class Accepting(_Side):
    """B, who speaks first: `open`, then `receive` once."""

    def open(self) -> bytes:
        """Return the first message. Raises `FailedError` (`handshake.order`) the second time."""
        if self._step != self._over or self._peer is not None:
            raise FailedError("handshake.order", "a handshake is opened once", hint="begin a new one")
        self._step = self._response
        return _write(b"challenge", *self._introduction())

    def _response(self, message: bytes) -> bytes:
        key, nonce, mark, signature = _read(b"response", message, 4)
        claimed = self._introduced(key, nonce, mark)
        self._peer = self._verify(_CONNECTS, nonce, claimed, signature)
        keys = (claimed, self._terms.key.public)
        self._agreed = (nonce, _signed(_AGREE, self._terms, (nonce, self._nonce), keys))
        return _write(b"proof", self._sign(_ACCEPTS, nonce, claimed))


class Connecting(_Side):
    """A, who can require a peer: `receive` returns the answer to the first message, and None for the second."""

    def __init__(self, terms: HandshakeTerms, random: RandomBytes, expected: Principal | None = None) -> None:
        super().__init__(terms, random)
        self._expected = expected
        self._step = self._challenge
        self._claimed: tuple[PublicKey, bytes] | None = None

    def _challenge(self, message: bytes) -> bytes:
        key, nonce, mark = _read(b"challenge", message, 3)
        claimed = self._introduced(key, nonce, mark, self._expected)
        self._claimed = (claimed, nonce)
        self._step = self._proof
        return _write(b"response", *self._introduction(), self._sign(_CONNECTS, nonce, claimed))

    def _proof(self, message: bytes) -> None:
        (signature,) = _read(b"proof", message, 1)
        if self._claimed is None:  # pragma: no cover  # the step before has set it
            raise _malformed()
        claimed, nonce = self._claimed
        self._peer = self._verify(_ACCEPTS, nonce, claimed, signature)
        keys = (self._terms.key.public, claimed)
        self._agreed = (nonce, _signed(_AGREE, self._terms, (self._nonce, nonce), keys))


def _signed(
    role: bytes, terms: HandshakeTerms, nonces: tuple[bytes, bytes], keys: tuple[PublicKey, PublicKey]
) -> bytes:
    """Return what is signed: the signer's number and key come first. Nobody signs what both agree on: A comes first."""
    principals = (key.principal.digest for key in keys)
    return canonical((LABEL, role, str(terms.network).encode(), *nonces, *principals, terms.binding))


def _write(word: bytes, *parts: bytes) -> bytes:
    return canonical((LABEL, word, *parts))


def _read(word: bytes, message: bytes, count: int) -> list[bytes]:
    """Check step (1). A part that is larger than a signature is malformed."""
    try:
        value: SExp = parse_canonical(message, limits=_LIMITS)
    except MalformedError:
        raise _malformed() from None
    match value:
        case (bytes(label), bytes(found), *parts) if (label, found) == (LABEL, word) and len(parts) == count:
            fields = [part for part in parts if isinstance(part, bytes) and len(part) <= SIGNATURE_BYTES]
            if len(fields) == count:
                return fields
    raise _malformed()


def _malformed() -> MalformedError:
    return MalformedError(
        "handshake.malformed", "not the message of a handshake that comes next", hint="is the peer a Penstock broker?"
    )
