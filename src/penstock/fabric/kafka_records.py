"""The Kafka topics of a fabric and their records: settings of topics, samples, and what else a record can say.

The value of a record is a sample, unless its key begins with `alive/` (a writer is there, or gone without a value) or
is `discarded` (what stands before a position no longer counts).
"""

import struct
from collections import deque
from dataclasses import replace
from typing import Final

from confluent_kafka import Message

from penstock.errors import MalformedError
from penstock.fabric.envelope import WRITER_BYTES, Sample, decode
from penstock.fabric.port import TopicSubscription
from penstock.fabric.qos import FOREVER, KEEP_ALL, Ownership, Qos

_MARGIN: Final = 60.0  # seconds that a server keeps a sample longer than its lifespan: clocks differ
_VOLATILE: Final = 3_600.0  # seconds that a server keeps what is for present readers only
HERE: Final = b"+"
ALIVE: Final = b"alive/"
DISCARDED: Final = b"discarded"
POSITION: Final = struct.Struct(">Q")


def topic_settings(qos: Qos) -> dict[str, str]:
    """Return the settings of a Kafka topic."""
    if qos.durable:
        if qos.lifespan == FOREVER:
            return {"cleanup.policy": "compact,delete", "retention.ms": "-1"}  # what is discarded can be deleted
        policy, kept = "compact,delete", qos.lifespan + _MARGIN
    else:
        policy, kept = "delete", min(qos.lifespan + _MARGIN, _VOLATILE)
    milliseconds = str(int(kept * 1000))
    return {"cleanup.policy": policy, "retention.ms": milliseconds, "segment.ms": milliseconds}


def sample_of(message: Message) -> Sample | None:
    """Return the sample of a record, with its position; None if it says something else, or cannot be read."""
    try:
        return replace(decode(message.value() or b""), position=(message.offset() or 0) + 1)
    except MalformedError:
        return None


def kept_samples(messages: list[Message], qos: Qos) -> list[Sample]:
    """Return the samples that a topic keeps, of the records that Kafka has, oldest first."""
    newest: dict[tuple[str, str], deque[Sample]] = {}
    most = None if qos.history == KEEP_ALL else qos.history
    epoch = discarded = 0
    for message in messages:
        value = message.value() or b""
        if message.key() == DISCARDED and len(value) == POSITION.size:
            discarded = max(discarded, POSITION.unpack(value)[0])
            continue
        sample = sample_of(message)
        if sample is None:
            continue
        if qos.ownership is Ownership.EXCLUSIVE:
            if sample.epoch < epoch:
                continue
            epoch = sample.epoch
        newest.setdefault(sample.slot, deque(maxlen=most)).append(sample)
    kept = [sample for slot in newest.values() for sample in slot if sample.instance or sample.position > discarded]
    return sorted(kept, key=lambda sample: sample.position)


def hand_to(reader: TopicSubscription, message: Message) -> None:
    """Hand a record to a reader: a sample, or that a writer is there or gone."""
    key, value = message.key() or b"", message.value()
    if key.startswith(ALIVE):
        at = len(ALIVE) + WRITER_BYTES
        writer, instance = key[len(ALIVE) : at], key[at:].decode(errors="replace")
        if len(writer) != WRITER_BYTES:
            reader.counts.malformed += 1
        elif reader.instances is None or instance in reader.instances:
            if value == HERE:
                reader.heard(writer)
            else:
                reader.lost(writer)
    elif value is not None and key != DISCARDED:
        sample = sample_of(message)
        if sample is None:
            reader.counts.malformed += 1
        else:
            reader.receive(sample)
