"""TLS 1.3 for links, with a certificate that a server makes again at each start.

The certificate is not trusted. It names no one, no authority signed it, and a client accepts any certificate. The ends
identify each other in the handshake of `penstock.broker.wire.handshake`, whose signatures cover the SHA-256 of the
certificate that the client received and the server has. A man in the middle must present a certificate of its own, so
the other side rejects the signatures. Hence a context made here must never be used without that handshake.

The key of the certificate lives as long as the process, in memory only: OpenSSL reads it from a pipe.
"""

import hashlib
import os
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from penstock.crypto.keys import KEY_BYTES, RandomBytes
from penstock.errors import FailedError, MalformedError

_SERIAL_BYTES: Final = 16
# RFC 5280, 4.1.2.5: the certificate has no well-defined end. Its dates are not checked: it lives as long as the
# process.
_FIRST_DAY: Final = datetime(2000, 1, 1, tzinfo=UTC)
_LAST_DAY: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A self-signed certificate and its private key."""

    certificate: bytes = field(repr=False)
    fingerprint: bytes
    private_key: bytes = field(repr=False)


def new_certificate(random: RandomBytes) -> ServerCertificate:
    """Make a certificate with a fresh key."""
    key = Ed25519PrivateKey.from_private_bytes(random(KEY_BYTES))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock")])
    builder = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        # RFC 5280, 4.1.2.2: positive, and no more than 20 bytes.
        serial_number=int.from_bytes(random(_SERIAL_BYTES), "big") >> 1 | 1,
        not_valid_before=_FIRST_DAY,
        not_valid_after=_LAST_DAY,
    )
    certificate = builder.sign(key, None).public_bytes(serialization.Encoding.DER)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return ServerCertificate(certificate, fingerprint(certificate), private)


def fingerprint(certificate: bytes) -> bytes:
    """Return the SHA-256 of a certificate's DER form, which both sides of the handshake sign."""
    return hashlib.sha256(certificate).digest()


def server_context(certificate: ServerCertificate) -> ssl.SSLContext:
    """Return the context of a server: TLS 1.3 alone, without tickets.

    Raises `FailedError` (`tls.context`) on a system that gives a pipe no path.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A resumed session has no certificate, so the client could not identify its peer.
    context.num_tickets = 0
    shown = ssl.DER_cert_to_PEM_cert(certificate.certificate).encode()
    public, private = _pipe_with(shown), _pipe_with(certificate.private_key)
    try:
        context.load_cert_chain(f"/dev/fd/{public}", f"/dev/fd/{private}")
    except OSError as error:
        raise FailedError(
            "tls.context", "TLS cannot load the certificate", hint="use a system with `/dev/fd`"
        ) from error
    finally:
        os.close(public)
        os.close(private)
    return context


def client_context() -> ssl.SSLContext:
    """Return the context of a client: TLS 1.3 alone. It accepts any certificate. The handshake does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def peer_fingerprint(connection: ssl.SSLObject | ssl.SSLSocket) -> bytes:
    """Return the SHA-256 of the server's certificate.

    Raises `MalformedError` (`tls.no-certificate`).
    """
    certificate = connection.getpeercert(binary_form=True)
    if not certificate:
        raise MalformedError("tls.no-certificate", "the server sent no certificate")
    return fingerprint(certificate)


def _pipe_with(content: bytes) -> int:
    """Return the reading end of a pipe that holds `content`, which is far smaller than a pipe's buffer."""
    reading, writing = os.pipe()
    try:
        os.write(writing, content)
    finally:
        os.close(writing)
    return reading
