"""Sealing: the cost of an attribute, and of blocks, against bare calls of the cipher and against plain messages.

The dissertation sealed each attribute of each event (Figure 7.8) and kept 46 % of plaintext throughput with one
attribute of 30 characters, and 11.7 % with ten. Here only the work on events is measured: laying out, sealing, opening;
routes, links and clients come on top, on both sides. Plain is what brokers do without sealing: columns in msgpack.

Ten million events are counted as well: no pair of incarnation and number comes twice, over many restarts.
"""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from types import MappingProxyType

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from harness import Result, at_most, microseconds, observed, seconds
from penstock.broker.publications import Publications
from penstock.codec.blocks import Block, Level, read_header
from penstock.crypto import SigningKey
from penstock.crypto.aead import Algorithm
from penstock.crypto.opener import Opener
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.sealer import Sealer, Settings
from penstock.crypto.wrapping import Secret
from penstock.model.events import TransitEvent
from penstock.model.names import AttributeId, TypeKey

NOW = datetime(2026, 5, 1, 12, 30, 15, 250, tzinfo=UTC)
OWNER, BROKER = SigningKey(b"\1" * 32), SigningKey(b"\2" * 32)
TYPE = TypeKey(OWNER.principal, "uk.gov.pito.Numberplate")
IDS = [AttributeId(OWNER.principal, TYPE.name, str(place)) for place in range(25)]
WIDTHS = (1, 10, 25)
ROWS = (1, 32)
#: events whose nonces are counted, events of a block, and blocks between two restarts
COUNTED, COUNTED_ROWS, LIFE = 10_000_000, 500, 100


def run() -> list[Result]:
    return [*per_attribute(), *throughput(), *algorithms(), signatures(), nonces()]


def ring() -> KeyRing:
    keys = KeyRing()
    for scope in (str(TYPE), *IDS):
        keys.put(scope, 1, Secret(os.urandom(32)))
    return keys


def events(attributes: int, rows: int) -> list[TransitEvent]:
    """Return events with so many attributes of 30 characters."""
    return [
        TransitEvent(
            TYPE,
            (),
            MappingProxyType({name: f"{row:06}{name[-24:]}" for name in IDS[:attributes]}),
            f"event-{row:06}",
            NOW,
        )
        for row in range(rows)
    ]


def bare() -> Callable[[], object]:
    """Return what two calls cost that seal and open 30 characters, bound to as much as a column is."""
    cipher, nonce, content, bound = AESGCM(bytes(32)), bytes(12), b"x" * 31, b"b" * 200
    sealed = cipher.encrypt(nonce, content, bound)

    def both() -> None:
        cipher.encrypt(nonce, content, bound)
        cipher.decrypt(nonce, sealed, bound)

    return both


def there_and_back(attributes: int, rows: int, level: Level, settings: Settings | None = None) -> Callable[[], object]:
    keys, found = ring(), events(attributes, rows)
    sealer = Sealer(keys, BROKER.principal, os.urandom, settings=settings or Settings())
    opener = Opener(keys)

    def both() -> list[TransitEvent]:
        return opener.open(sealer.seal(Block.of(found), NOW, level)).events()

    assert both() == found
    return both


def plain(attributes: int, rows: int) -> Callable[[], object]:
    found = tuple(events(attributes, rows))
    numbers = tuple(range(rows))

    def both() -> object:
        return Publications.from_tree(Publications(BROKER.principal, 1, numbers, found).to_tree()).events

    assert both() == found
    return both


def per_attribute() -> list[Result]:
    """Measure what one more attribute takes, sealed and opened, one event a block."""
    results = []
    few, many, calls, plain_few, plain_many = seconds(
        there_and_back(1, 1, Level.ATTRIBUTE),
        there_and_back(25, 1, Level.ATTRIBUTE),
        bare(),
        plain(1, 1),
        plain(25, 1),
        repeat=200,
        rounds=25,
    )
    one, unsealed = (many - few) / 24, (plain_many - plain_few) / 24
    detail = f"{microseconds(one)}, plain {microseconds(unsealed)}, two calls {microseconds(calls)}"
    results.append(at_most("sealing: one more attribute / two bare calls", one / calls, 3, detail))
    added = (many - plain_many) / 25
    detail = f"{microseconds(added)} added for each of 25 attributes, the event's own costs included"
    results.append(at_most("sealing: added per attribute / two bare calls", added / calls, 3, detail))
    return results


def throughput() -> list[Result]:
    """Measure work on plain events against work on sealed ones."""
    results = []
    for rows in ROWS:
        for attributes in WIDTHS:
            jobs = plain(attributes, rows), *(there_and_back(attributes, rows, level) for level in Level)
            unsealed, by_attribute, by_event = seconds(*jobs, repeat=200 if rows == 1 else 20, rounds=15)
            for level, taken in ((Level.ATTRIBUTE, by_attribute), (Level.EVENT, by_event)):
                name = f"sealing: plain / {level.name.lower()} level, {attributes} attributes, {rows} events a block"
                detail = (
                    f"{rows / taken:,.0f} events/s of {rows / unsealed:,.0f}; {microseconds(taken / rows)} an event"
                )
                results.append(observed(name, unsealed / taken, detail))
    return results


def algorithms() -> list[Result]:
    """Measure the other ciphers against AES-GCM: ten attributes, one event a block."""
    jobs = [there_and_back(10, 1, Level.ATTRIBUTE, Settings(algorithm)) for algorithm in Algorithm]
    gcm, *others = seconds(*jobs, repeat=50, rounds=15)
    return [
        observed(f"sealing: {algorithm.name} / AES_GCM", taken / gcm, f"{microseconds(taken)} and {microseconds(gcm)}")
        for algorithm, taken in zip([*Algorithm][1:], others, strict=True)
    ]


def signatures() -> Result:
    """Measure a block of 32 events with ten attributes that is signed and verified against one that is not."""
    keys, block = ring(), Block.of(events(10, 32))
    opener, sealer = Opener(keys), Sealer(keys, BROKER.principal, os.urandom, signing=BROKER)

    def both() -> None:
        data = sealer.seal(block, NOW)
        opener.verify(data, opener.open(data))

    signed, unsigned = seconds(both, there_and_back(10, 32, Level.ATTRIBUTE), repeat=10, rounds=15)
    detail = f"{microseconds(signed / 32)} and {microseconds(unsigned / 32)} an event"
    return observed("sealing: signed and verified / sealed and opened", signed / unsigned, detail)


def nonces() -> Result:
    """Seal ten million events and restart often: no incarnation has a number twice."""
    keys, block = ring(), Block.of(events(1, COUNTED_ROWS))
    seen: set[bytes] = set()
    lives = COUNTED // COUNTED_ROWS // LIFE
    for _ in range(lives):
        sealer = Sealer(keys, BROKER.principal, os.urandom)
        seen |= {read_header(sealer.seal(block, NOW)).id for _ in range(LIFE)}
    blocks = lives * LIFE
    detail = f"{blocks * COUNTED_ROWS:,} events, {lives} restarts"
    return at_most("sealing: nonces that came twice", blocks - len(seen), 0, detail)
