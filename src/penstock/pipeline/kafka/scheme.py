"""`kafka://` in addresses. What needs confluent-kafka is imported when an address is used."""

from typing import TYPE_CHECKING, Final

from penstock.pipeline.tables.addresses import AddressScheme, SinkOptions, TableAddress

if TYPE_CHECKING:
    from penstock.pipeline.kafka.link import KafkaOptions
    from penstock.pipeline.kafka.reader import KafkaSource
    from penstock.pipeline.kafka.sink import KafkaSink


def _options(address: TableAddress) -> "KafkaOptions":
    from penstock.pipeline.kafka.link import parse_options  # noqa: PLC0415  # an extra

    servers, _, topic = address.place.removeprefix("//").partition("/")
    return parse_options(servers, topic, address.options)


def _source(address: TableAddress) -> "KafkaSource":
    from penstock.pipeline.kafka.reader import KafkaSource  # noqa: PLC0415  # an extra

    return KafkaSource(_options(address))


def _sink(address: TableAddress, _: SinkOptions) -> "KafkaSink":
    from penstock.pipeline.kafka.sink import KafkaSink  # noqa: PLC0415  # an extra

    return KafkaSink(_options(address))


KAFKA: Final = AddressScheme("kafka", "kafka://HOST:PORT/TOPIC?NAME=VALUE", source=_source, sink=_sink)
