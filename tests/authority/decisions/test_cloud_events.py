"""Signed CloudEvents: what was signed is read again, and nothing else."""

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.authority.decisions.kit import NOW, OTHER, PEP

from penstock.authority.decisions.cloud_events import (
    MATERIAL,
    CloudEvent,
    key_id,
    read_event,
    read_instant,
    read_key_id,
    sign_event,
)
from penstock.crypto import PublicKey
from penstock.errors import MalformedError, RefusedError

EVENT = CloudEvent("a1", "urn:pep:1", "dev.example", NOW, b'{"x":1}', "doc", extensions={"expirytime": "later"})
SIGNED = sign_event(EVENT, PEP)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def trusted(key: PublicKey) -> bool:
    return key == PEP.public


def verified(headers: dict[str, str], data: bytes = EVENT.data) -> CloudEvent:
    return read_event(headers, data).verify(trusted)[0]


@given(TEXTS, TEXTS, TEXTS | st.none(), st.dictionaries(st.sampled_from(["causationid", "x1"]), TEXTS), st.binary())
def test_an_event_is_read_as_it_was_signed(
    name: str, source: str, subject: str | None, more: dict[str, str], data: bytes
) -> None:
    event = CloudEvent(name, source, "t", NOW, data, subject, extensions=more)
    signed = sign_event(event, PEP)
    assert all(value.isascii() and value.isprintable() and " " not in value for value in signed.headers.values())
    assert read_event(signed.headers, data).verify(trusted) == (event, PEP.public)


def test_the_signature_is_that_of_the_extension() -> None:
    """Computed step by step as the extension says, with another implementation of its digests."""
    from hashlib import sha256  # noqa: PLC0415  # to have it beside what it checks

    envelope = json.loads(base64.b64decode(SIGNED.extensions[MATERIAL]))
    payload = base64.b64decode(envelope["payload"])
    parts = ["a1", "urn:pep:1", "1.0", "dev.example", "application/json", "", "doc", "2026-01-01T12:00:00Z"]
    core = sha256(b"".join(sha256(part.encode()).digest() for part in parts) + sha256(EVENT.data).digest())
    extensions = sha256(sha256(b"later").digest())
    assert json.loads(payload) == {
        "core": base64.b64encode(core.digest()).decode(),
        "ext": base64.b64encode(extensions.digest()).decode(),
        "signedextattrs": ["expirytime"],
    }
    kind = b"https://cloudevents.io/verifiability/dsse/v0.1"
    encoded = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    (signature,) = envelope["signatures"]
    assert signature["keyid"] == base64.b64encode(PEP.public.raw).decode()
    PEP.public.verify(encoded, base64.b64decode(signature["sig"]))


@pytest.mark.parametrize(
    "name", ["ce-id", "ce-source", "ce-type", "ce-subject", "ce-datacontenttype", "ce-expirytime", "ce-dataschema"]
)
def test_a_changed_attribute_is_refused(name: str) -> None:
    with pytest.raises(RefusedError) as caught:
        verified({**SIGNED.headers, name: "other"})
    assert caught.value.code == "key.bad-signature"


def test_changed_data_and_another_time_are_refused() -> None:
    for headers, data in ((SIGNED.headers, b"{}"), ({**SIGNED.headers, "ce-time": "2026-01-01T12:00:01Z"}, EVENT.data)):
        with pytest.raises(RefusedError):
            verified(headers, data)
    # The same second, written otherwise.
    assert verified({**SIGNED.headers, "ce-time": "2026-01-01T13:00:00.7+01:00"}).time == NOW


def test_what_was_not_signed_is_left_out() -> None:
    assert verified({**SIGNED.headers, "ce-added": "x", "Nats-Msg-Id": "7"}) == EVENT


def test_without_a_signature_or_a_trusted_key() -> None:
    unsigned = {name: value for name, value in SIGNED.headers.items() if name != f"ce-{MATERIAL}"}
    for headers, code in ((unsigned, "authzen.unsigned"), (sign_event(EVENT, OTHER).headers, "authzen.untrusted")):
        with pytest.raises(RefusedError) as caught:
            verified(headers)
        assert caught.value.code == code


def envelope(**changed: Any) -> str:
    found = {**json.loads(base64.b64decode(SIGNED.extensions[MATERIAL])), **changed}
    return base64.b64encode(json.dumps(found).encode()).decode()


@pytest.mark.parametrize(
    "material",
    [
        "%%%", base64.b64encode(b"[]").decode(), envelope(payloadType="other"), envelope(payload="?"),
        envelope(payload="e30="),
    ],
)  # fmt: skip
def test_a_malformed_signature_is_refused(material: str) -> None:
    with pytest.raises((MalformedError, RefusedError)):
        verified({**SIGNED.headers, f"ce-{MATERIAL}": material})


@pytest.mark.parametrize("names", [["id"], [MATERIAL], ["x", "x"], "expirytime", [1]])
def test_names_that_cannot_be_signed_are_refused(names: Any) -> None:
    payload = json.loads(base64.b64decode(json.loads(base64.b64decode(SIGNED.extensions[MATERIAL]))["payload"]))
    written = json.dumps({**payload, "signedextattrs": names}).encode()
    kind = b"https://cloudevents.io/verifiability/dsse/v0.1"
    signature = PEP.sign(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(written), written))
    material = envelope(
        payload=base64.b64encode(written).decode(),
        signatures=[{"keyid": key_id(PEP.public), "sig": base64.b64encode(signature).decode()}],
    )
    with pytest.raises(MalformedError):
        verified({**SIGNED.headers, f"ce-{MATERIAL}": material})


@pytest.mark.parametrize(
    "changed",
    [
        {"ce-specversion": "0.3"}, {"ce-id": ""}, {"ce-time": "now"}, {"ce-time": "2026-01-01"}, {"ce-no_name": "x"},
        {"ce-x": "%ff"}, {"CE-ID": "a2"}, {"ce-x": "x" * 5_000}, {f"ce-x{number}": "" for number in range(40)},
    ],
)  # fmt: skip
def test_what_is_not_an_event_is_refused(changed: dict[str, str]) -> None:
    with pytest.raises(MalformedError) as caught:
        read_event({**EVENT.headers, **changed}, b"")
    assert caught.value.code == "authzen.event"


def test_times_and_keys() -> None:
    assert read_instant("2026-01-01T12:00:00.9Z") == NOW
    assert read_key_id(key_id(PEP.public)) == PEP.public
    with pytest.raises(MalformedError):
        read_key_id("AAAA")
    assert replace(EVENT, subject=None).headers.keys() == EVENT.headers.keys() - {"ce-subject"}
