"""Topics of a real Kafka server, for tests of the pipeline."""

import os
from collections.abc import Mapping
from itertools import count
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

_NAMES = count()


class Topic:
    """A new topic."""

    def __init__(self, address: str, partitions: int = 1) -> None:
        self.address = address
        self.name = f"topic-{os.getpid()}-{next(_NAMES)}"
        self._admin = AdminClient({"bootstrap.servers": address})
        self._admin.create_topics([NewTopic(self.name, partitions, 1)])[self.name].result(60)

    @property
    def url(self) -> str:
        return f"kafka://{self.address}/{self.name}"

    def send(self, *values: bytes, headers: Mapping[str, str] | None = None, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.address})
        for value in values:
            producer.produce(self.name, value, partition=partition, headers=dict(headers or {}))
        assert producer.flush(60) == 0

    def delete_before(self, offset: int) -> None:
        partition = TopicPartition(self.name, 0, offset)
        self._admin.delete_records([partition])[partition].result(60)

    def read(self, isolation: str = "read_committed") -> list[Message]:
        """Return all records."""
        settings: dict[str, Any] = {"group.id": "test", "isolation.level": isolation, "enable.partition.eof": True}
        consumer = Consumer({"bootstrap.servers": self.address, "auto.offset.reset": "earliest", **settings})
        partitions = list(consumer.list_topics(self.name, timeout=60).topics[self.name].partitions)
        consumer.assign([TopicPartition(self.name, number, 0) for number in partitions])
        found: list[Message] = []
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(60)
            assert message is not None
            if message.error() is None:
                found.append(message)
            else:
                ended.add(message.partition() or 0)
        consumer.close()
        return found
