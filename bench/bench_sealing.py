"""Sealing: events from a publisher to a subscriber, plain and sealed; and what an attribute, a block, a change costs.

The set-up is that of Figures 7.7 to 7.9 of the dissertation, with real nodes (`sealed_delivery`): attributes of 30
characters, two brokers, no filter. The dissertation ran everything in one simulator, to measure "the increase in
overall processing", and kept 46 % of plaintext throughput with one attribute and 11.7 % with ten. So throughput is here
events in a second of processor time, that of both clients and both brokers together; by the clock, which depends on how
many processors there are and who else uses them, it stands beside. Plain and sealed take turns in every round.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from math import log2
from types import MappingProxyType

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from harness import Result, at_least, at_most, microseconds, observed, seconds
from penstock.broker.wire.publications import Publications
from penstock.codec.blocks import Block, Level, read_header
from penstock.crypto import SigningKey
from penstock.crypto.aead import CipherAlgorithm
from penstock.crypto.key_tree import KeyTree, handle
from penstock.crypto.opener import Opener
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.sealer import Sealer, SealerSettings
from penstock.crypto.wrapping import Secret
from penstock.model.events import TransitEvent
from penstock.model.names import AttributeId, TypeKey
from penstock.model.types import Sealing
from penstock.simulate.experiments.experiment import Laboratory
from penstock.simulate.experiments.sealed_delivery import LEVELS, SealingNetwork, in_turn, name_of

WIDTHS = (1, 10, 25)
#: many short rounds, since others may be busy in some: plain and sealed take turns so often that both meet the same
ROUNDS = 45
#: events in a round, by the events of a message
EVENTS = {1: 200, 32: 3_200}

NOW = datetime(2026, 5, 1, 12, 30, 15, 250, tzinfo=UTC)
OWNER, BROKER = SigningKey(b"\1" * 32), SigningKey(b"\2" * 32)
TYPE = TypeKey(OWNER.principal, "uk.gov.pito.Numberplate")
IDS = [AttributeId(OWNER.principal, TYPE.name, str(place)) for place in range(25)]
#: events whose nonces are counted, events of a block, and blocks between two restarts
COUNTED, COUNTED_ROWS, LIFE = 10_000_000, 500, 100
MEMBERS = (10, 100, 1_000, 10_000)
CHANGES = 100


def run() -> list[Result]:
    return [*delivery(), *hop(), *presealed(), per_attribute(), *algorithms(), signatures(), nonces(), *rekeying()]


# --- From publisher to subscriber ------------------------------------------------------------------------------------


def network_of(stack: ExitStack, mode: str, width: int, brokers: int = 2) -> SealingNetwork:
    """Start a line of brokers with two clients."""
    lab = Laboratory(program=(sys.executable, "-m", "penstock.apps.experiment_process"))
    return SealingNetwork(partial(lab.part, stack), mode, width, brokers)


def delivery() -> list[Result]:
    """Compare events that are sealed and opened with plain ones, and with those whose plaintext goes beside."""
    results: list[Result] = []
    bounds = {("no-cache", 1, 1): 0.7, ("no-cache", 10, 1): 0.33, ("no-cache", 10, 32): 0.85}
    for mode, widths in {"no-cache": WIDTHS, "cache": WIDTHS, "gathering": (10,)}.items():
        for width in widths:
            with ExitStack() as stack:
                network = network_of(stack, mode, width)
                _carry_all(network, width)
            for rows in EVENTS:
                results += _compared(network, width, rows, f", {mode}", bounds.get((mode, width, rows)))
    return results


def _carry_all(network: SealingNetwork, width: int) -> None:
    names = [name_of(level, width) for level in LEVELS]
    for rows, events in EVENTS.items():
        for name in names:
            network.prepare(name, rows, events // 5 // rows * rows)
        for turn in range(ROUNDS):
            for name in in_turn(names, turn):
                network.carry(name, rows, events)


def _compared(network: SealingNetwork, width: int, rows: int, how: str, bound: float | None) -> Iterator[Result]:
    unsealed = name_of(Sealing.NONE, width)
    plain, plain_clock = network.rates(unsealed, rows)
    for level in (Sealing.EVENT, Sealing.ATTRIBUTE):
        sealed, clock = network.rates(name_of(level, width), rows)
        ratio = network.ratio(name_of(level, width), unsealed, rows)
        name = f"sealing: {level} level / plain, {width} attributes, {rows} a message{how}"
        detail = (
            f"{sealed:,.0f} events/s of {plain:,.0f}; by the clock {clock:,.0f} of {plain_clock:,.0f}, "
            f"{clock / plain_clock:.2f}"
        )
        if bound is None or level is Sealing.EVENT:
            yield observed(name, ratio, detail)
        else:
            yield at_least(name, ratio, bound, detail)


def hop() -> list[Result]:
    """Compare a broker between two others that passes on plaintext and ciphertext with one that passes on plain events.

    The first broker seals; what it and the last one take is not the hop's, and does not count.
    """
    with ExitStack() as stack:
        network = network_of(stack, "cache", 10, brokers=3)
        _carry_all(network, 10)
    return [
        result
        for rows in EVENTS
        for result in _compared(network, 10, rows, ", forwarding hop, plaintext beside", 0.97 if rows > 1 else None)
    ]


def presealed() -> list[Result]:
    """Compare the way of events with plaintext beside, whose blocks were sealed before, with that of plain ones.

    The first broker writes the columns here, and the last one reads them: more than a hop does, by the same bound.
    """
    names = [name_of(level, 10) for level in LEVELS]
    with ExitStack() as stack:
        network = network_of(stack, "presealed", 10)
        for rows, events in EVENTS.items():
            for turn in range(ROUNDS):
                for name in in_turn(names, turn):
                    network.preseal(name, rows, events)
                    network.carry(name, rows, events)
    return [
        result
        for rows in EVENTS
        for result in _compared(network, 10, rows, ", sealed before, plaintext beside", 0.97 if rows > 1 else None)
    ]


# --- Sealing by itself -----------------------------------------------------------------------------------------------


def ring() -> KeyRing:
    keys = KeyRing()
    for scope in (str(TYPE), *IDS):
        keys.put(scope, 1, Secret(os.urandom(32)))
    return keys


def events_of(attributes: int, rows: int) -> list[TransitEvent]:
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


def there_and_back(attributes: int, rows: int, settings: SealerSettings | None = None) -> Callable[[], object]:
    keys, found = ring(), events_of(attributes, rows)
    sealer = Sealer(keys, BROKER.principal, os.urandom, settings=settings or SealerSettings())
    opener = Opener(keys)

    def both() -> list[TransitEvent]:
        return opener.open(sealer.seal(Block.of(found), NOW, Level.ATTRIBUTE)).events()

    assert both() == found
    return both


def plain(attributes: int) -> Callable[[], object]:
    found = tuple(events_of(attributes, 1))

    def both() -> object:
        return Publications.from_tree(Publications(BROKER.principal, 1, (1,), found).to_tree()).events

    assert both() == found
    return both


def per_attribute() -> Result:
    """Measure what each of 25 attributes adds, sealed and opened, against plain; the event's own costs included."""
    sealed, unsealed, calls = seconds(
        there_and_back(25, 1), plain(25), bare(), repeat=200, rounds=25, clock=time.process_time
    )
    added = (sealed - unsealed) / 25
    detail = f"{microseconds(added)} for each of 25 attributes in an event of its own, two calls {microseconds(calls)}"
    return at_most("sealing: added per attribute / two bare calls", added / calls, 3, detail)


def algorithms() -> list[Result]:
    """Measure the other ciphers against AES-GCM: ten attributes, one event a block."""
    jobs = [there_and_back(10, 1, SealerSettings(algorithm)) for algorithm in CipherAlgorithm]
    gcm, *others = seconds(*jobs, repeat=50, rounds=15, clock=time.process_time)
    return [
        observed(f"sealing: {algorithm.name} / AES_GCM", taken / gcm, f"{microseconds(taken)} and {microseconds(gcm)}")
        for algorithm, taken in zip([*CipherAlgorithm][1:], others, strict=True)
    ]


def signatures() -> Result:
    """Measure a block of 32 events with ten attributes that is signed and verified against one that is not."""
    keys, block = ring(), Block.of(events_of(10, 32))
    opener, sealer = Opener(keys), Sealer(keys, BROKER.principal, os.urandom, signing=BROKER)

    def both() -> None:
        data = sealer.seal(block, NOW)
        opener.verify(data, opener.open(data))

    signed, unsigned = seconds(both, there_and_back(10, 32), repeat=10, rounds=15, clock=time.process_time)
    detail = f"{microseconds(signed / 32)} and {microseconds(unsigned / 32)} an event"
    return observed("sealing: signed and verified / sealed and opened", signed / unsigned, detail)


def nonces() -> Result:
    """Seal ten million events and restart often: no incarnation has a number twice."""
    keys, block = ring(), Block.of(events_of(1, COUNTED_ROWS))
    seen: set[bytes] = set()
    lives = COUNTED // COUNTED_ROWS // LIFE
    for _ in range(lives):
        sealer = Sealer(keys, BROKER.principal, os.urandom)
        seen |= {read_header(sealer.seal(block, NOW)).id for _ in range(LIFE)}
    blocks = lives * LIFE
    detail = f"{blocks * COUNTED_ROWS:,} events, {lives} restarts"
    return at_most("sealing: nonces that came twice", blocks - len(seen), 0, detail)


# --- Key groups ------------------------------------------------------------------------------------------------------


def rekeying() -> Iterator[Result]:
    """Let members of groups come and go, one at a time: wrapped keys, time at the manager and at a member."""
    for members in MEMBERS:
        tree, leaves = KeyTree(b"bench"), [_secret() for _ in range(members + CHANGES)]
        tree.rekey(_secret(), leaves[:members])
        path = tree.path(handle(leaves[members - 1]))
        wrapped: list[int] = []
        managing, following = 0.0, 0.0
        for number in range(CHANGES):
            # One joins and another leaves: two changes.
            start = time.perf_counter()
            heard = [tree.rekey(_secret(), [leaves[members + number]])]
            heard.append(tree.rekey(_secret(), leaves=[handle(leaves[members + number])]))
            between = time.perf_counter()
            for rekey in heard:
                path = path.follow(rekey)
            managing, following = managing + between - start, following + time.perf_counter() - between
            wrapped += [rekey.wrapped for rekey in heard]
        assert path.key(tree.epoch) == tree.key()
        detail = (
            f"most {max(wrapped)}, on average {statistics.mean(wrapped):.1f} wrapped keys a change; "
            f"{microseconds(managing / len(wrapped))} at the manager, {microseconds(following / len(wrapped))} at one"
        )
        name = f"sealing: wrapped keys of a change / (2 log2 n + 2), {members:,} members"
        yield at_most(name, max(wrapped) / (2 * log2(members) + 2), 1, detail)


def _secret() -> Secret:
    return Secret(os.urandom(32))
