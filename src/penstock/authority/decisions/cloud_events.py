"""CloudEvents 1.0 as headers and data (binary content mode), signed by its verifiability extension.

The headers are those of the NATS binding: `ce-` and the name of an attribute, its value percent-encoded. The signature
is in the extension attribute `dssematerial`: a DSSE envelope (version 1.0.2) with an Ed25519 signature, whose payload
has digests of all context attributes and the data, and of the extension attributes that it names. `keyid` is the
public key in Base64. An event that was received has its own type, `ReceivedEvent`; only `verify` returns a
`CloudEvent`, with nothing in it that was not signed.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from penstock.authority.limits import EVENT_ATTRIBUTE, EVENT_ATTRIBUTES, QUESTION_BYTES
from penstock.crypto import PublicKey, Signer
from penstock.errors import MalformedError, PenstockError, RefusedError

SPECVERSION: Final = "1.0"
JSON: Final = "application/json"
MATERIAL: Final = "dssematerial"
PAYLOAD_TYPE: Final = "https://cloudevents.io/verifiability/dsse/v0.1"
_PREFIX: Final = "ce-"
_CORE: Final = ("id", "source", "specversion", "type", "datacontenttype", "dataschema", "subject", "time")
_NAME: Final = re.compile(r"[a-z0-9]{1,20}", re.ASCII)
#: printable ASCII without space, quotation mark and percent sign (HTTP binding, 3.1.3.2)
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """An event: its context attributes, its extension attributes, and its data."""

    id: str
    source: str
    type: str
    time: datetime
    data: bytes = field(repr=False)
    subject: str | None = None
    datacontenttype: str = JSON
    extensions: Mapping[str, str] = field(default_factory=dict)

    @property
    def attributes(self) -> dict[str, str]:
        """All attributes as they are written."""
        found = {
            "specversion": SPECVERSION,
            "id": self.id,
            "source": self.source,
            "type": self.type,
            "time": instant_text(self.time),
            "datacontenttype": self.datacontenttype,
        }
        if self.subject is not None:
            found["subject"] = self.subject
        return {**found, **self.extensions}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a message with this event."""
        return {f"{_PREFIX}{name}": quote(value, safe=_SAFE) for name, value in self.attributes.items()}


def instant_text(instant: datetime) -> str:
    """Return an instant in UTC with whole seconds, as signatures cover it."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_instant(text: str) -> datetime:
    """Read an instant of RFC 3339; parts of a second do not count. Raises `MalformedError` (`authzen.event`)."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise _malformed("a time is not in the form of RFC 3339") from None
    if found.tzinfo is None or "T" not in text.upper():
        raise _malformed("a time is not in the form of RFC 3339")
    return found.astimezone(UTC).replace(microsecond=0)


# ----------------------------------------------------------------------------------------------------------------------
# Signing.


def sign_event(event: CloudEvent, key: Signer) -> CloudEvent:
    """Return an event with its signature, which covers all attributes. Raises `FailedError` as `Signer.sign`."""
    names = sorted(name for name in event.extensions if name != MATERIAL)
    material: dict[str, object] = {"core": _base64(_core_digest(event.attributes, event.data))}
    if names:
        material |= {"ext": _base64(_digest(event.extensions[name] for name in names)), "signedextattrs": names}
    payload = json.dumps(material, separators=(",", ":")).encode()
    envelope = {
        "payload": _base64(payload),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": key_id(key.public), "sig": _base64(key.sign(_to_be_signed(payload)))}],
    }
    written = _base64(json.dumps(envelope, separators=(",", ":")).encode())
    return replace(event, extensions={**event.extensions, MATERIAL: written})


def key_id(key: PublicKey) -> str:
    """Return the id of a key: its 32 bytes in Base64."""
    return _base64(key.raw)


def read_key_id(text: str) -> PublicKey:
    """Read the id of a key. Raises `MalformedError` (`authzen.event`, `key.malformed`)."""
    return PublicKey(_from_base64(text))


def _to_be_signed(payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _core_digest(attributes: Mapping[str, str], data: bytes) -> bytes:
    digests = [hashlib.sha256(attributes.get(name, "").encode()).digest() for name in _CORE]
    return hashlib.sha256(b"".join([*digests, hashlib.sha256(data).digest()])).digest()


def _digest(values: Iterable[str]) -> bytes:
    return hashlib.sha256(b"".join(hashlib.sha256(value.encode()).digest() for value in values)).digest()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_base64(text: object) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        raise _malformed("a value is not Base64") from None


# ----------------------------------------------------------------------------------------------------------------------
# Reading and verifying.


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """An event that was received: nothing in it is true before `verify`."""

    attributes: Mapping[str, str]
    data: bytes = field(repr=False)

    def verify(self, trusted: Callable[[PublicKey], bool]) -> tuple[CloudEvent, PublicKey]:
        """Return what a trusted key has signed of the event, and the key.

        Raises `MalformedError` (`authzen.event`), and `RefusedError`: `authzen.unsigned` if there is no signature,
        `authzen.untrusted` if no trusted key has signed it, `key.bad-signature` if it is another event that was signed.
        """
        envelope = self._envelope()
        payload = _from_base64(envelope.get("payload"))
        key = _signed_by(envelope, payload, trusted)
        material = _object(payload, "the payload of the signature")
        names = material.get("signedextattrs", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _malformed("`signedextattrs` is not a list of names")
        if len({*names, *_CORE, MATERIAL}) != len(names) + len(_CORE) + 1 or ("ext" in material) is not bool(names):
            raise _malformed("`signedextattrs` names an attribute twice, or one of the context")
        core = _core_digest({**self.attributes, "time": instant_text(self._time())}, self.data)
        if core != _from_base64(material.get("core")):
            raise _another()
        if names and _digest(self.attributes.get(name, "") for name in names) != _from_base64(material["ext"]):
            raise _another()
        return self._signed_part(names), key

    def unverified(self) -> CloudEvent:
        """Return the event although nobody has signed it."""
        return self._signed_part(name for name in self.attributes if name not in (*_CORE, MATERIAL))

    def _signed_part(self, names: Iterable[str]) -> CloudEvent:
        found = self.attributes
        return CloudEvent(
            found["id"],
            found["source"],
            found["type"],
            self._time(),
            self.data,
            found.get("subject"),
            found.get("datacontenttype", ""),
            {name: found[name] for name in names if name in found},
        )

    def _time(self) -> datetime:
        return read_instant(self.attributes.get("time", ""))

    def _envelope(self) -> Mapping[str, object]:
        written = self.attributes.get(MATERIAL)
        if not written:
            raise RefusedError(
                "authzen.unsigned", "the event is not signed", hint=f"sign it, in the extension attribute `{MATERIAL}`"
            )
        envelope = _object(_from_base64(written), "the signature")
        if envelope.get("payloadType") != PAYLOAD_TYPE:
            raise _malformed(f"the signature is not of type `{PAYLOAD_TYPE}`")
        return envelope


def _signed_by(envelope: Mapping[str, object], payload: bytes, trusted: Callable[[PublicKey], bool]) -> PublicKey:
    signatures = envelope.get("signatures")
    for one in signatures[:8] if isinstance(signatures, list) else []:
        if not isinstance(one, dict):
            continue
        try:
            key = read_key_id(one.get("keyid"))  # type: ignore[arg-type]  # any value is read as text
            if trusted(key):
                key.verify(_to_be_signed(payload), _from_base64(one.get("sig")))
                return key
        except MalformedError:
            continue
    raise RefusedError(
        "authzen.untrusted",
        "no trusted key has signed the event",
        hint="compare its `keyid` with the keys that are trusted",
    )


def read_event(headers: Mapping[str, str], data: bytes) -> ReceivedEvent:
    """Read an event from the headers and the data of a message. Raises `MalformedError` (`authzen.event`)."""
    if len(data) > QUESTION_BYTES:
        raise _malformed(f"the data has more than {QUESTION_BYTES} bytes")
    attributes: dict[str, str] = {}
    for name, value in headers.items():
        short = name.lower().removeprefix(_PREFIX)
        if not name.lower().startswith(_PREFIX):
            continue
        if not _NAME.fullmatch(short) or len(value) > EVENT_ATTRIBUTE or short in attributes:
            raise _malformed("an attribute is given twice, is too long, or has no valid name")
        try:
            attributes[short] = unquote_to_bytes(value).decode()
        except UnicodeError:
            raise _malformed("an attribute is not UTF-8") from None
    if len(attributes) > EVENT_ATTRIBUTES or attributes.get("specversion") != SPECVERSION:
        raise _malformed(f"it is not an event of CloudEvents {SPECVERSION} in binary content mode")
    missing = [name for name in ("id", "source", "type", "time") if not attributes.get(name)]
    if missing:
        raise _malformed(f"attribute `{missing[0]}` is missing")
    read_instant(attributes["time"])
    return ReceivedEvent(attributes, data)


def _object(data: bytes, what: str) -> Mapping[str, object]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _malformed(f"{what} is not a JSON object")
    return found


def _malformed(message: str) -> MalformedError:
    return MalformedError("authzen.event", message, hint="see docs/reference/authzen-over-pubsub.md")


def _another() -> PenstockError:
    return RefusedError("key.bad-signature", "the signature is that of another event", hint="the event was changed")
