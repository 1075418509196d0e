"""Samples: what is signed, what is read, and in which order they are taken."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.broker.node_kit import BROKERS
from tests.broker.sports import NETWORK

from penstock.broker.fabric.members import SignedSample, Succession
from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.membership import SignedProof
from penstock.codec.wire import Wire, decode, encode
from penstock.errors import PenstockError
from penstock.model import NetworkName

NOW = datetime(2026, 5, 1, 12, 0, 0, 123_456, tzinfo=UTC)
PROOF = SignedProof(BROKERS[0], NETWORK, limits=BrokerLimits())
SAMPLE = SignedSample(BROKERS[0].principal, 5, 7, NOW, b"body").sign("topic", PROOF)


def refused(code: str) -> "pytest.RaisesExc[PenstockError]":
    return pytest.raises(PenstockError, check=lambda error: error.code == code)


def test_what_was_written_is_read_and_verifies() -> None:
    read = SignedSample.from_bytes(SAMPLE.to_bytes())
    assert read == SAMPLE
    read.verify("topic", SignedProof(BROKERS[1], NETWORK, limits=BrokerLimits()))


@pytest.mark.parametrize(
    "changed",
    [
        replace(SAMPLE, origin=BROKERS[1].principal),
        replace(SAMPLE, incarnation=6),
        replace(SAMPLE, number=8),
        # The digits of two numbers do not run into each other.
        replace(SAMPLE, incarnation=57, number=0),
        replace(SAMPLE, time=NOW + timedelta(microseconds=1)),
        replace(SAMPLE, body=b"bodY"),
        replace(SAMPLE, proof=SAMPLE.proof[:-1]),
        replace(SAMPLE, proof=b""),
    ],
)
def test_whatever_is_changed_was_not_signed(changed: SignedSample) -> None:
    with refused("network.proof"):
        changed.verify("topic", PROOF)


def test_a_sample_is_for_one_topic_of_one_network() -> None:
    with refused("network.proof"):
        SAMPLE.verify("other", PROOF)
    with refused("network.proof"):
        SAMPLE.verify("topic", SignedProof(BROKERS[1], NetworkName(NETWORK.owner, "Other"), limits=BrokerLimits()))


@pytest.mark.parametrize(("place", "value"), [(0, b"x"), (1, -1), (1, True), (2, "7"), (3, 7), (4, "body"), (5, None)])
def test_what_has_another_form_is_not_read(place: int, value: Wire) -> None:
    tree = decode(SAMPLE.to_bytes())
    assert isinstance(tree, list)
    tree[place] = value
    with refused("message.malformed"):
        SignedSample.from_bytes(encode(tree))
    with refused("message.malformed"):
        SignedSample.from_bytes(encode([*tree, 1]))


def test_numbers_rise_by_topic_and_origin_and_what_is_missing_is_counted() -> None:
    known = Succession(limits=BrokerLimits())
    assert known.take("topic", SAMPLE) == 0
    assert known.take("topic", replace(SAMPLE, number=10)) == 2
    assert known.take("other", SAMPLE) == 0
    assert known.take("topic", replace(SAMPLE, origin=BROKERS[1].principal)) == 0
    for late in (replace(SAMPLE, number=10), replace(SAMPLE, number=9), replace(SAMPLE, incarnation=4, number=99)):
        assert not known.is_new("topic", late)
        with refused("network.replay"):
            known.take("topic", late)
    assert known.take("topic", replace(SAMPLE, incarnation=6, number=3)) == 0


def test_the_memory_is_bounded() -> None:
    known = Succession(BrokerLimits(route_streams=2))
    for topic in ("a", "b", "c"):
        known.take(topic, SAMPLE)
    assert [known.is_new(topic, SAMPLE) for topic in ("a", "b", "c")] == [True, False, False]
