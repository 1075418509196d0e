"""Signed requests: what is covered cannot be changed, one form is accepted, and only for a while."""

import base64
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.guard.london import MALLORY, NOW, PITO, SMITH
from tests.trust.kit import refused

from penstock.apps.acs.message_signatures import RequestSigner, sign_request, verify_body, verify_request
from penstock.errors import RefusedError

BODY = b'{"a":1}'
NONCE = bytes(range(18))
AGE = timedelta(seconds=300)
PATH = "/v1/members/add"


def signed(**changed: bytes) -> dict[bytes, bytes]:
    headers = sign_request("POST", PATH, BODY, PITO.principal, SMITH, now=NOW, nonce=NONCE)
    made = {name.lower().encode(): value.encode() for name, value in headers.items()}
    return made | {name.replace("_", "-").encode(): value for name, value in changed.items()}


def verify(headers: dict[bytes, bytes], method: str = "POST", path: str = PATH) -> RequestSigner:
    return verify_request(method, path, headers, PITO.principal, now=NOW, age=AGE)


def test_the_key_is_the_caller() -> None:
    assert verify(signed()) == RequestSigner(SMITH.principal, NONCE)
    verify_body(signed(), BODY)


def test_the_base_is_that_of_the_rfc() -> None:
    """RFC 9421, section 2.5: verified here with the key alone, by a base that is written out."""
    headers = signed()
    base = (
        '"@method": POST\n'
        '"@path": /v1/members/add\n'
        f'"content-digest": {headers[b"content-digest"].decode()}\n'
        f'"penstock-domain": {PITO.principal}\n'
        f'"@signature-params": {headers[b"signature-input"].decode().removeprefix("acs=")}'
    )
    signature = headers[b"signature"].decode().removeprefix("acs=:").removesuffix(":")
    SMITH.public.verify(base.encode(), base64.b64decode(signature))


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "acs.unsigned"),
        (signed(signature=b""), "acs.unsigned"),
        (signed(signature=b"acs=:AAAA:"), "acs.unsigned"),
        (signed(content_digest=b"md5=:AAAA:"), "acs.unsigned"),
        (signed(penstock_domain=str(MALLORY.principal).encode()), "acs.wrong-domain"),
        (signed(signature=b"acs=:" + base64.b64encode(bytes(64)) + b":"), "key.bad-signature"),
        (signed(content_digest=b"sha-256=:" + base64.b64encode(bytes(32)) + b":"), "key.bad-signature"),
        (signed(signature_input=signed()[b"signature-input"].replace(b"created=1", b"created=9")), "acs.untimely"),
        (signed(signature_input=signed()[b"signature-input"].replace(b'"@path" ', b"")), "acs.unsigned"),
        (signed(signature_input=signed()[b"signature-input"] + b", " + signed()[b"signature-input"]), "acs.unsigned"),
        (signed(signature_input=signed()[b"signature-input"].replace(b"ed25519", b"none")), "acs.unsigned"),
    ],
)
def test_what_is_not_signed_so_is_refused(headers: dict[bytes, bytes], code: str) -> None:
    with refused(code):
        verify(headers)


@pytest.mark.parametrize(("method", "path"), [("GET", PATH), ("POST", "/v1/members/remove")])
def test_method_and_path_are_covered(method: str, path: str) -> None:
    with refused("key.bad-signature"):
        verify(signed(), method, path)


def test_the_body_is_covered() -> None:
    with refused("acs.digest"):
        verify_body(signed(), BODY + b" ")


def test_another_key_cannot_take_the_signature_over() -> None:
    mine = signed()[b"signature-input"].decode()
    key = base64.urlsafe_b64encode(SMITH.public.raw).decode().rstrip("=")
    other = base64.urlsafe_b64encode(MALLORY.public.raw).decode().rstrip("=")
    with refused("key.bad-signature"):
        verify(signed(signature_input=mine.replace(key, other).encode()))


@pytest.mark.parametrize(("seconds", "code"), [(301, "acs.untimely"), (-301, "acs.untimely")])
def test_requests_are_valid_for_a_while(seconds: int, code: str) -> None:
    verify_request("POST", PATH, signed(), PITO.principal, now=NOW + timedelta(seconds=seconds // 2), age=AGE)
    with refused(code):
        verify_request("POST", PATH, signed(), PITO.principal, now=NOW + timedelta(seconds=seconds), age=AGE)


@given(
    st.dictionaries(
        st.sampled_from([b"signature", b"signature-input", b"content-digest", b"penstock-domain"]), st.binary()
    )
)
def test_rubbish_is_refused_and_nothing_else(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(RefusedError):
        verify({**signed(), **headers} if len(headers) < 4 and headers else headers)
