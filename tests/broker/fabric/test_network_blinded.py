"""Blinded types on a fabric: topics are named by labels, and both old and new ones are read while labels change."""

from tests.broker.node_kit import client_of, refused, run, running, until
from tests.broker.sports import PDA, REPORTER
from tests.broker.test_blinding_nodes import (
    LABELS,
    PLATE,
    POLICY,
    PUB,
    SIGNED,
    SUB,
    TYPE,
    labels,
    managing,
    plates,
)

from penstock.broker.fabric.network import FabricSettings, topic_of
from penstock.fabric import EmbeddedFabric


def test_topics_of_blinded_types_are_named_by_their_labels() -> None:
    async def test() -> None:
        async with EmbeddedFabric() as fabric:
            way = FabricSettings(fabric=fabric)
            async with (
                running(*POLICY, key=PUB, types=(SIGNED,), fabric=way, managing=managing()) as pub,
                running(*POLICY, key=SUB, types=(SIGNED,), fabric=way) as sub,
                client_of(sub, PDA) as reader,
                client_of(pub, REPORTER) as writer,
            ):
                news, feed = await reader.subscribe(PLATE.name), await writer.advertise(PLATE.name)
                await until(lambda: labels(pub) == labels(sub) == 1)
                assert sub.on_fabric is not None
                network = sub.on_fabric
                await until(lambda: network.reads(TYPE))
                await feed.publish(plate="old", speed=1)
                assert await plates(news, 1) == ["old"]
                before = set(network._readings)
                pub.keys.rotate(LABELS)
                await until(lambda: labels(sub) == 2 and network.reads(TYPE))
                assert before < set(network._readings)
                await feed.publish(plate="still old", speed=1)
                assert await plates(news, 1) == ["still old"]
                await refused("fabric.unknown-topic", fabric.subscribe(topic_of(TYPE)))

    run(test())
