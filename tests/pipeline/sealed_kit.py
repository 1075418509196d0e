"""Types, keys and blocks for tests of sealed logs, and the files that keys are in."""

import base64
import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

from penstock.codec.blocks import Block, Level
from penstock.crypto import SigningKey
from penstock.crypto.seal_keys import KeyRing, column_scope
from penstock.crypto.sealer import Sealer
from penstock.crypto.wrapping import Secret, new_kek
from penstock.model import AttributeDefinition, AttributeSpec, EventType, Kind, Principal, TypeDefinition, TypeName
from penstock.model.events import TransitEvent
from penstock.model.types import Sealing
from penstock.pipeline.sealed.log import KeyFiles, sealed_arrow
from penstock.pipeline.sealed.writer import LogRows
from penstock.store.files.key_files import create_kek, write_key_ring

OWNER = Principal(b"\1" * 32)
BROKER = SigningKey(b"\2" * 32)
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def make_type(name: str, sealing: Sealing, parent: EventType | None = None) -> EventType:
    kinds = {"plate": Kind.STRING, "speed": Kind.INTEGER, "ratio": Kind.FLOAT, "fined": Kind.BOOLEAN}
    kinds |= {"seen": Kind.TIMESTAMP}
    own = {"lane": Kind.INTEGER} if parent else kinds
    attributes = tuple(AttributeDefinition(n, str(i), AttributeSpec(k)) for i, (n, k) in enumerate(own.items()))
    extends = parent.name if parent else None
    return EventType.of(TypeDefinition(TypeName(OWNER, name), attributes, extends, sealing=sealing), parent)


CAR = make_type("org.Car", Sealing.ATTRIBUTE)
TRUCK = make_type("org.Truck", Sealing.ATTRIBUTE, CAR)
WHOLE = make_type("org.Whole", Sealing.EVENT)
TYPES = (CAR, TRUCK, WHOLE)
PLATE, SPEED, RATIO, FINED, SEEN = (str(a.id) for a in CAR.attributes)
SCOPES = tuple(
    dict.fromkeys(s for t in TYPES for s in (str(t.key), *(column_scope(t.key, str(a.id)) for a in t.attributes)))
)


def secret(scope: str, epoch: int = 1) -> Secret:
    return Secret(sha256(f"{scope} {epoch}".encode()).digest())


def ring(*without: str, epochs: Iterable[int] = (1,)) -> KeyRing:
    found = KeyRing()
    for scope in SCOPES:
        for epoch in epochs if scope not in without else ():
            found.put(scope, epoch, secret(scope, epoch))
    return found


def key_files(folder: Path, keys: KeyRing, kek: Secret | None = None) -> KeyFiles:
    folder.mkdir(parents=True, exist_ok=True)
    kek = kek or new_kek(os.urandom)
    create_kek(folder / "kek", kek)
    write_key_ring(folder / "ring", keys, kek, os.urandom)
    return KeyFiles(str(folder / "ring"), str(folder / "kek"))


def traces(*secrets: bytes) -> re.Pattern[bytes]:
    """Return how any of some secrets might be written: raw, hexadecimal, base64, base32, from any place on."""
    found = set()
    for octets in secrets:
        found |= {octets[:12], octets.hex()[:24].encode(), octets.hex()[:24].upper().encode()}
        found |= {base64.b64encode(bytes(before) + octets)[4:20] for before in range(3)}
        thirty_two = {base64.b32encode(bytes(before) + octets)[8:24] for before in range(5)}
        found |= thirty_two | {text.lower() for text in thirty_two}
        found.add(repr(octets[:12]).strip("b'").encode())
    return re.compile(b"|".join(re.escape(trace) for trace in found))


def event(number: int, event_type: EventType = CAR) -> TransitEvent:
    """Return an event; every third has a null, texts are not always short, and numbers not always small."""
    values: dict[str, Any] = {
        "plate": f"P{number}é" * (1 + number % 3),
        "speed": number * 100_003 - 200,
        "ratio": number / 3 if number % 5 else float("nan"),
        "fined": number % 2 == 0,
        "seen": NOW + timedelta(microseconds=number),
        "lane": 3,
    }
    if number % 3 == 0:
        values["plate"] = values["speed"] = None
    found = {str(a.id): values[a.name] for a in event_type.attributes}
    return TransitEvent(event_type.key, event_type.ancestors, found, f"e{number}", NOW + timedelta(seconds=number))


def sealer(keys: KeyRing | None = None, *, signed: bool = False) -> Sealer:
    return Sealer(keys or ring(), BROKER.principal, os.urandom, signing=BROKER if signed else None)


def seal(by: Sealer, numbers: Iterable[int], event_type: EventType = CAR) -> bytes:
    level = Level.EVENT if event_type.sealing is Sealing.EVENT else Level.ATTRIBUTE
    return by.seal(Block.of([event(number, event_type) for number in numbers]), NOW, level)


def batch(blocks: Iterable[bytes | Mapping[str, Any]], types: Iterable[EventType] = TYPES) -> Any:
    """Return blocks as rows of a log."""
    columns = dict.fromkeys(str(a.id) for t in types for a in t.attributes)
    rows = [LogRows.row(block) if isinstance(block, bytes) else block for block in blocks]
    return pa.RecordBatch.from_pylist(rows, schema=sealed_arrow(columns))


def plain(value: Any) -> Any:
    """Return a value that can be compared: a NaN is not equal to itself."""
    return "NaN" if isinstance(value, float) and value != value else value  # noqa: PLR0124  # not so NaN


def shown(found: TransitEvent, types: Iterable[EventType] = TYPES) -> dict[str, Any]:
    """Return an event as a row of a frame has it."""
    columns = dict.fromkeys(str(a.id) for t in types for a in t.attributes)
    return {"@id": found.id, "@time": found.time, **{name: plain(found.values.get(name)) for name in columns}}
