"""Requests signed by their callers' keys (RFC 9421, HTTP Message Signatures, with Ed25519).

    Content-Digest: sha-256=:<base64>:
    Penstock-Domain: ed25519:…
    Signature-Input: acs=("@method" "@path" "content-digest" "penstock-domain");created=1778500000;nonce="…";
                     keyid="<public key>";alg="ed25519";tag="penstock-acs"
    Signature: acs=:<base64>:

The signature covers the method, the path, the body by its digest, and the domain that the request is for, so that a
request for one service cannot be sent to another. `keyid` is the public key itself, in base64url without padding: its
digest is the caller's principal. One form is accepted, with the parameters in this order. The signature is checked
before the body is read. A request is valid for a few minutes around `created`, and its nonce is used once.
"""

import base64
import hashlib
import hmac
import re
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.crypto import PublicKey, Signer
from penstock.errors import MalformedError, RefusedError
from penstock.model.principals import Principal

NONCE_BYTES: Final = 18
_COVERED: Final = '("@method" "@path" "content-digest" "penstock-domain")'
_INPUT: Final = re.compile(
    r'acs=\("@method" "@path" "content-digest" "penstock-domain"\);created=(?P<created>[0-9]{1,12});'
    r'nonce="(?P<nonce>[A-Za-z0-9_-]{16,64})";keyid="(?P<key>[A-Za-z0-9_-]{43})";alg="ed25519";tag="penstock-acs"',
    re.ASCII,
)
_BYTES: Final = re.compile(r"(?:acs|sha-256)=:(?P<data>[A-Za-z0-9+/]{43,86}={1,2}):", re.ASCII)


@dataclass(frozen=True, slots=True)
class RequestSigner:
    """Who signed a request, and the nonce of the request."""

    principal: Principal
    nonce: bytes


def sign_request(  # noqa: PLR0913  # everything that the signature covers
    method: str, path: str, body: bytes, domain: Principal, key: Signer, *, now: datetime, nonce: bytes
) -> dict[str, str]:
    """Return the headers that sign a request."""
    digest = f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"
    parameters = (
        f'{_COVERED};created={int(now.timestamp())};nonce="{_url(nonce)}";keyid="{_url(key.public.raw)}"'
        ';alg="ed25519";tag="penstock-acs"'
    )
    signature = key.sign(_base(method, path, digest, str(domain), parameters))
    return {
        "Content-Digest": digest,
        "Penstock-Domain": str(domain),
        "Signature-Input": f"acs={parameters}",
        "Signature": f"acs=:{base64.b64encode(signature).decode()}:",
    }


def verify_request(  # noqa: PLR0913  # everything that the signature covers
    method: str, path: str, headers: Mapping[bytes, bytes], domain: Principal, *, now: datetime, age: timedelta
) -> RequestSigner:
    """Verify the signature of a request by its head alone. `verify_body` verifies the rest.

    (1) The headers have the one accepted form. (2) The request is for this domain, and (3) of about now. (4) The
    signature is the key's.

    Raises `RefusedError`: `acs.unsigned`, `acs.wrong-domain`, `acs.untimely`, `key.bad-signature`.
    """
    # (1) One form, so that two readers cannot see different requests.
    said = {name: headers.get(name.encode(), b"").decode("latin-1") for name in _HEADERS}
    found = _INPUT.fullmatch(said["signature-input"])
    signature = _data(said["signature"])
    if found is None or signature is None or _data(said["content-digest"]) is None:
        raise unsigned("the request is not signed in the accepted form")
    # (2) A request for one domain must not be used at another.
    if said["penstock-domain"] != str(domain):
        raise RefusedError(
            "acs.wrong-domain",
            f"the request is for another domain: this service answers for {domain.short}",
            hint="check --domain",
        )
    # (3) A captured request is soon worth nothing.
    created = datetime.fromtimestamp(int(found["created"]), UTC) if int(found["created"]) < 1 << 35 else None
    if created is None or abs(created - now) > age:
        raise RefusedError(
            "acs.untimely", "the request was not signed recently", hint="check the clocks of both machines"
        )
    # (4) The key is the caller.
    try:
        public = PublicKey(_unurl(found["key"]))
    except MalformedError:
        raise unsigned("the key of the signature is not a key") from None
    parameters = said["signature-input"].removeprefix("acs=")
    public.verify(_base(method, path, said["content-digest"], said["penstock-domain"], parameters), signature)
    return RequestSigner(public.principal, _unurl(found["nonce"]))


def verify_body(headers: Mapping[bytes, bytes], body: bytes) -> None:
    """Verify that a body is the one that was signed. Raises `RefusedError` (`acs.digest`)."""
    said = _data(headers.get(b"content-digest", b"").decode("latin-1"))
    if said is None or not hmac.compare_digest(said, hashlib.sha256(body).digest()):
        raise RefusedError("acs.digest", "the body is not the one that was signed")


def unsigned(message: str) -> RefusedError:
    """Return the error for a request without a usable signature."""
    return RefusedError("acs.unsigned", message, hint="sign it as docs/reference/acs.md says")


_HEADERS: Final = ("signature-input", "signature", "content-digest", "penstock-domain")


def _base(method: str, path: str, digest: str, domain: str, parameters: str) -> bytes:
    """Return the signature base (RFC 9421, section 2.5)."""
    return (
        f'"@method": {method}\n"@path": {path}\n"content-digest": {digest}\n"penstock-domain": {domain}\n'
        f'"@signature-params": {parameters}'
    ).encode()


def _url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _unurl(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (Base64Error, ValueError):
        raise unsigned("a parameter of the signature is not base64url") from None


def _data(text: str) -> bytes | None:
    found = _BYTES.fullmatch(text)
    try:
        return None if found is None else base64.b64decode(found["data"], validate=True)
    except (Base64Error, ValueError):
        return None
