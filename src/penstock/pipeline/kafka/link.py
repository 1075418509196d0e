"""Connections to Kafka for jobs: the options of an address, clients of confluent-kafka, and their errors.

An address is `kafka://HOST:PORT[,HOST:PORT…]/TOPIC?NAME=VALUE&…`. Security settings are in a file that `config` names
(`penstock.fabric.kafka_login`), which each executor reads too. So neither a plan nor a log has a secret in it.
"""
# ruff: noqa: SLF001  # confluent-kafka documents its local errors as `KafkaError._NAME`

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from logging import Logger
from typing import Any, Final

from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError, did_you_mean
from penstock.fabric.kafka_login import KafkaLogin, parse_kafka
from penstock.fabric.nats_login import AddressError, UnreadableError

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
except ImportError as missing:
    raise FailedError(
        "kafka.not-installed", "Kafka topics need confluent-kafka", hint="pip install 'penstock[kafka]'"
    ) from missing

_UNKNOWN: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_OPTIONS: Final = ("config", "start", "end", "batch", "lost", "mode", "writers")
_OFFSETS: Final = re.compile(r"\d{1,5}:\d{1,18}(,\d{1,5}:\d{1,18})*", re.ASCII)
_PATIENCE: Final = 30.0
_FIRST_PATIENCE: Final = 5.0
#: seconds in which a server may not know a topic that was just created
_SPREADING: Final = 3.0
_TICK: Final = 0.1
FORM: Final = "kafka://HOST:PORT/TOPIC?start=earliest"


@dataclass(frozen=True)
class KafkaOptions:
    """What an address says. Its `repr` does not show the path of secrets."""

    login: KafkaLogin
    topic: str
    #: where to begin and to end: `earliest`, `latest`, a time, or offsets of partitions (`0:17,1:4`)
    start: str = EARLIEST
    end: str = LATEST
    #: records of a batch of a stream at most; 0 for all
    batch: int = 0
    #: whether to go on if records were deleted before they were read
    lost: str = "fail"
    #: how events are written: `structured` or `binary` CloudEvents
    mode: str = "structured"
    #: how many transactions write a batch side by side
    writers: int = 2

    @property
    def name(self) -> str:
        """The topic, without the addresses of servers."""
        return f"kafka:{self.topic}"

    def as_options(self) -> dict[str, str]:
        """Return the options of the data source, from which `parse_options` makes the same."""
        values = {name: str(getattr(self, name)) for name in _OPTIONS if name != "config"}
        return {"servers": self.login.bootstrap, "topic": self.topic, "config": self.login.config, **values}


def parse_options(servers: str, topic: str, given: Mapping[str, str]) -> KafkaOptions:
    """Return the options of an address. Raises `MalformedError` (`kafka.bad-option`)."""
    for name in given:
        if name not in _OPTIONS:
            raise _bad(name[:40], did_you_mean(name, _OPTIONS, f"there are: {', '.join(_OPTIONS)}"))
    try:
        address = parse_kafka(f"kafka://{servers}/{topic}")
    except AddressError as error:
        raise _bad("address", f"write {FORM}, without user and password") from error
    if not address.topic or address.options:
        raise _bad("address", f"write {FORM}")
    lost, mode = given.get("lost", "fail"), given.get("mode", "structured")
    if lost not in ("fail", "skip"):
        raise _bad("lost", "`fail` or `skip`")
    if mode not in ("structured", "binary"):
        raise _bad("mode", "`structured` or `binary`")
    return KafkaOptions(
        KafkaLogin(address.login.servers, given.get("config", "")),
        address.topic,
        start=_position("start", given.get("start", EARLIEST)),
        end=_position("end", given.get("end", LATEST)),
        batch=_whole("batch", given.get("batch", "0"), 0, 10**9),
        lost=lost,
        mode=mode,
        writers=_whole("writers", given.get("writers", "2"), 1, 256),
    )


def _bad(option: str, why: str) -> MalformedError:
    return MalformedError("kafka.bad-option", f"`{option}` of a Kafka address: {why}", option=option)


def _whole(option: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise _bad(option, f"a whole number from {least} to {most}")
    return int(text)


def _position(option: str, text: str) -> str:
    if text not in (EARLIEST, LATEST) and not _OFFSETS.fullmatch(text):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            why = "`earliest`, `latest`, a time such as 2026-01-31T12:00:00Z, or offsets such as 0:17,1:4"
            raise _bad(option, why) from error
        if moment.tzinfo is None:
            raise _bad(option, "a time needs a time zone, such as Z")
    return text


def settings(options: KafkaOptions, **more: Any) -> dict[str, Any]:
    """Return the settings of a client. Raises `FailedError` (`kafka.credentials`)."""
    try:
        return {**options.login.settings(), "logger": silent(), **{k.replace("_", "."): v for k, v in more.items()}}
    except UnreadableError as error:
        raise FailedError(
            "kafka.credentials",
            "the file for `config` cannot be used",
            hint="it must exist with mode 600 on the driver and on every executor, with lines of security settings",
        ) from error


def silent() -> Logger:
    """Return a logger for librdkafka, whose errors are raised."""
    made = Logger("kafka")  # noqa: LOG001  # nobody else gets it
    made.disabled = True
    return made


def consumer(options: KafkaOptions, **more: Any) -> Consumer:
    """Return a consumer of committed records that commits nothing. Raises `FailedError` (`kafka.credentials`)."""
    mine = {"group_id": "penstock", "enable_auto_commit": False, "isolation_level": "read_committed"}
    return Consumer(settings(options, **{**mine, **more}))


def producer(options: KafkaOptions, **more: Any) -> Producer:
    """Return a producer. Raises `FailedError` (`kafka.credentials`)."""
    return Producer(settings(options, **more))


def failure(options: KafkaOptions, error: KafkaException) -> PenstockError:
    """Return the error of Penstock for one of Kafka."""
    cause: KafkaError = error.args[0]
    code, servers = cause.code(), options.login.bootstrap
    refused = (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    )
    if code in refused:
        return RefusedError(
            "kafka.unauthorized", f"{servers} refuses this user: {cause.name()}", hint="check `config` and the ACLs"
        )
    if code in _UNKNOWN:
        return no_topic(options)
    if code in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
        return FailedError(
            "kafka.superseded",
            f"another run writes this batch to `{options.name}`",
            hint="nothing is lost; let one run go on",
        )
    if cause.retriable() or code in (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._DESTROY_BROKER,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
    ):
        return FailedError("kafka.unreachable", f"cannot connect to {servers}", hint="check that the server runs")
    return FailedError("kafka.refused", f"{servers} refused: {cause.name()}")


def no_topic(options: KafkaOptions) -> RefusedError:
    """Return the error for a topic that does not exist."""
    return RefusedError(
        "kafka.no-topic",
        f"there is no topic `{options.topic}` at {options.login.bootstrap}",
        hint="create it with as many partitions as you need",
    )


def partitions_of(client: Consumer, options: KafkaOptions) -> tuple[int, ...]:
    """Return the partitions of the topic; one that was just created may take a moment until its server knows it.

    Raises as `failure`, and `RefusedError` (`kafka.no-topic`).
    """
    until = time.monotonic() + _SPREADING
    while True:
        try:
            found = client.list_topics(options.topic, timeout=_FIRST_PATIENCE).topics.get(options.topic)
        except KafkaException as error:
            raise failure(options, error) from error
        if found is not None and found.error is None and found.partitions:
            return tuple(sorted(found.partitions))
        wrong = None if found is None else found.error
        over = time.monotonic() >= until
        if wrong is not None and (over or wrong.code() not in (*_UNKNOWN, KafkaError.LEADER_NOT_AVAILABLE)):
            raise failure(options, KafkaException(wrong))
        if over:
            raise no_topic(options)
        time.sleep(_TICK)


def bounds(client: Consumer, options: KafkaOptions, partition: int) -> tuple[int, int]:
    """Return the first offset of a partition, and the one after its last stable record. Raises as `failure`."""
    try:
        low, high = client.get_watermark_offsets(TopicPartition(options.topic, partition), timeout=_PATIENCE)
    except KafkaException as error:
        raise failure(options, error) from error
    return int(low), int(high)


def positions(client: Consumer, options: KafkaOptions, where: str) -> dict[int, int]:
    """Return the offsets at which `earliest`, `latest`, a time or offsets stand now. Raises as `failure`."""
    partitions = partitions_of(client, options)
    if _OFFSETS.fullmatch(where):
        given = {int(part): int(offset) for part, offset in (pair.split(":") for pair in where.split(","))}
        if given.keys() != set(partitions):
            raise _bad("start", f"name each of the partitions {', '.join(map(str, partitions))} once")
        return given
    ends = {number: bounds(client, options, number) for number in partitions}
    if where in (EARLIEST, LATEST):
        return {number: low if where == EARLIEST else high for number, (low, high) in ends.items()}
    moment = int(datetime.fromisoformat(where).timestamp() * 1000)
    try:
        asked = [TopicPartition(options.topic, number, moment) for number in partitions]
        found = client.offsets_for_times(asked, timeout=_PATIENCE)
    except KafkaException as error:
        raise failure(options, error) from error
    return {one.partition: one.offset if one.offset >= 0 else ends[one.partition][1] for one in found}


def records(client: Consumer, options: KafkaOptions, end: int) -> Iterator[Message]:
    """Yield the records of the partition that a consumer has assigned, before an offset. Raises as `failure`.

    The consumer reports ends of partitions: the last offsets may be marks of transactions, which are not records.
    """
    while True:
        try:
            message = client.poll(_PATIENCE)
        except KafkaException as error:
            raise failure(options, error) from error
        if message is None:
            raise failure(options, KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        said, offset = message.error(), message.offset()
        if said is not None and said.code() != KafkaError._PARTITION_EOF:
            raise failure(options, KafkaException(said))
        if offset is not None and offset < end and said is None:
            yield message
        if offset is not None and offset >= end - (said is None):
            return


def headers_of(message: Message) -> dict[str, bytes]:
    """Return the headers of a record; the last of a name counts."""
    found = message.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    return {name: text if isinstance(text, bytes) else (text or "").encode() for name, text in pairs}
