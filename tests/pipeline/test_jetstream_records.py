"""Messages of JetStream through ingest: what comes in is counted, what is broken is kept, and views go out once."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import nats
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.ingest_reference import define
from tests.pipeline.rows import collected, frame
from tests.pipeline.test_ingest_envelopes import CASES, EXAMPLE, WHOLE, good
from tests.trust.kit import grant, refused, who

from penstock.model import EventType
from penstock.pipeline.admit import admit
from penstock.pipeline.deliver import deliver
from penstock.pipeline.frames import ID, SOURCE, TIME, typed_schema
from penstock.pipeline.ingest import Ingested, Tally, each_batch, ingest_envelopes, run
from penstock.pipeline.jetstream import NAME, register
from penstock.pipeline.jetstream_records import read_jetstream, to_messages
from penstock.pipeline.policy import Policy, Subscriber
from penstock.pipeline.records import FILE, ORIGINAL, POSITION
from penstock.pipeline.tagging import REASON
from penstock.selector import parse
from penstock.testing.nats import NatsServer
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.credentials import Credentials

AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
FIRST, SECOND = define()
OWNER, CAMERA, STRANGER, AMY, BOB = 1, 2, 3, 4, 5


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as started:
        yield started


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def publish(url: str, stream: str, payloads: Sequence[bytes]) -> dict[str, str]:
    """Put payloads into a stream, which is made if need be; return the options that read it."""

    async def send() -> None:
        connection = await nats.connect(url)
        js = connection.jetstream()
        await js.add_stream(name=stream, subjects=[f"{stream}.>"])
        for payload in payloads:
            # A header that says otherwise than the envelope changes nothing.
            await js.publish_async(f"{stream}.in", payload, headers={"ce-source": str(who(OWNER)), "ce-id": "x"})
        await js.publish_async_completed()
        await connection.close()

    asyncio.run(send())
    return {"url": url, "stream": stream}


def test_a_batch_of_messages_is_good_or_in_quarantine(session: SparkSession, server: NatsServer) -> None:
    options = publish(server.url, "BATCH", [payload for payload, _ in CASES])
    records = read_jetstream(session.read, {**options, "Columns": "subject"})
    assert [(field.name, field.dataType.simpleString()) for field in records.schema] == [
        (FILE, "string"), (POSITION, "bigint"), (ORIGINAL, "binary"),
    ]  # fmt: skip
    kept: list[tuple[str, int, bytes, str]] = []

    def write(it: Ingested) -> None:
        kept.extend((row[FILE], row[POSITION], bytes(row[ORIGINAL]), row[REASON]) for row in it.bad.collect())

    tally = run(ingest_envelopes(records, [FIRST, SECOND], AT), write)
    expected = {
        ("nats:BATCH", number, payload, reason)
        for number, (payload, reason) in enumerate(CASES, start=1)
        if reason is not None
    }
    assert set(kept) == expected
    assert (tally.read, tally.good, tally.bad) == (len(CASES), len(CASES) - len(expected), len(expected))


def test_a_stream_of_messages_is_good_or_in_quarantine(
    session: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    told: list[Tally] = []
    seen: list[tuple[int, int, str]] = []
    process = each_batch(
        lambda records: ingest_envelopes(records, [FIRST], AT),
        lambda it, number: seen.extend((number, row[POSITION], row[REASON]) for row in it.bad.collect()),
        lambda tally, _: told.append(tally),
    )
    for payloads in ([WHOLE, b"{", WHOLE], [b"\xff", WHOLE]):
        options = publish(server.url, "STREAM", payloads)
        records = read_jetstream(session.readStream, {**options, "maxMessagesPerBatch": "2"})
        assert records.isStreaming
        query = records.writeStream.foreachBatch(process).option("checkpointLocation", str(tmp_path))
        assert query.trigger(availableNow=True).start().awaitTermination(60)
    assert [(tally.read, tally.good, tally.bad) for tally in told] == [(2, 1, 1), (1, 1, 0), (2, 1, 1)]
    assert seen == [(0, 2, "ingest.json"), (2, 4, "ingest.utf8")]


def test_an_address_with_a_password_is_refused_before_spark_sees_it(session: SparkSession) -> None:
    with refused("jetstream.secret-in-options") as caught:
        read_jetstream(session.read, {"url": "nats://amy:s3kr1t@broker:4222", "stream": "S"})
    assert "s3kr1t" not in str(caught.value)


def test_what_goes_out_reads_back_as_it_was(session: SparkSession, server: NatsServer) -> None:
    event_type = FIRST.event_type
    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)]
    rows: list[dict[str, object]] = [
        {ID: "1", TIME: AT, SOURCE: str(who(CAMERA)), "sensor": '"\\\u2028\n', "value": -1e-300, "on": False},
        {ID: "1", TIME: moments[0], SOURCE: str(who(OWNER)), "count": -(2**63), "seen": moments[1]},
        {ID: "3", TIME: moments[1], SOURCE: str(who(CAMERA))},
    ]
    events = frame(session, typed_schema(event_type), rows)
    options = publish(server.url, "BACK", [])
    _write(to_messages(events, event_type, "BACK.in"), options, "once")
    ingested = ingest_envelopes(read_jetstream(session.read, options), [FIRST], AT)
    assert _set(ingested.events(event_type)) == _set(events)
    assert len(_set(events)) == 3


def _set(events: DataFrame) -> set[tuple[object, ...]]:
    return {tuple(row) for row in collected(events)}


def _write(messages: DataFrame, options: dict[str, str], write_id: str) -> None:
    messages.write.format(NAME).mode("append").options(**options, writeId=write_id).save()


# --- A whole loop ----------------------------------------------------------------------------------------------------


def policy() -> Policy:
    """Return a policy: a camera may publish, Amy sees lanes of much traffic, Bob sees colours."""
    name = FIRST.event_type.name
    uid = {attribute.name: attribute.id for attribute in FIRST.event_type.attributes}
    everything = event_tag(who(OWNER), name.name, None, [Right.PUBLISH])
    lanes = event_tag(who(OWNER), name.name, None, [Right.SUBSCRIBE], attributes=[uid["lane"], uid["count"]])
    colours = event_tag(who(OWNER), name.name, None, [Right.SUBSCRIBE], attributes=[uid["colour"]])
    return Policy(
        Credentials.of(grant(OWNER, CAMERA, everything), grant(OWNER, AMY, lanes), grant(OWNER, BOB, colours)),
        (
            Subscriber("amy", who(AMY), FIRST, parse("count > 5")),
            Subscriber("bob", who(BOB), SECOND),
        ),
    )


def sighting(number: int, source: int = CAMERA) -> bytes:
    data = {"sensor": f"s{number}", "count": number, "lane": number % 10, "colour": "red"}
    return json.dumps(good(id=f"e{number}", source=str(who(source)), data=data)).encode()


def loop(session: SparkSession, options: dict[str, str], checkpoint: Path) -> list[Tally]:
    """Stream from SIGHTINGS through ingest, admission and delivery to VIEWS, and return the tallies of its batches."""
    rules = policy()
    told: list[Tally] = []

    def write(ingested: Ingested, batch: int) -> None:
        admitted = admit(ingested.events(FIRST.event_type), FIRST, rules)
        delivered = deliver(admitted.events, [FIRST.event_type], rules)
        for subscriber in rules.subscribers:
            view = delivered.for_subscriber(subscriber.name)
            messages = to_messages(view, subscriber.type.event_type, f"VIEWS.{subscriber.name}")
            _write(messages, {**options, "stream": "VIEWS"}, f"loop {batch} {subscriber.name}")

    process = each_batch(
        lambda records: ingest_envelopes(records, [FIRST], AT), write, lambda tally, _: told.append(tally)
    )
    records = read_jetstream(session.readStream, {**options, "maxMessagesPerBatch": "8"})
    query = records.writeStream.foreachBatch(process).option("checkpointLocation", str(checkpoint))
    assert query.trigger(availableNow=True).start().awaitTermination(120)
    return told


def views(url: str) -> Counter[tuple[str, str]]:
    """Return the messages of VIEWS, by subject and payload."""

    async def read() -> Counter[tuple[str, str]]:
        connection = await nats.connect(url)
        js = connection.jetstream()
        last = (await js.stream_info("VIEWS")).state.last_seq
        found = [await js.get_msg("VIEWS", sequence) for sequence in range(1, last + 1)]
        await connection.close()
        return Counter((message.subject or "", (message.data or b"").decode()) for message in found)

    return asyncio.run(read())


def expected(event_type: EventType, number: int, data: dict[str, object]) -> str:
    """Return the envelope that a reader gets."""
    envelope = {
        "specversion": "1.0",
        "id": f"e{number}",
        "source": str(who(CAMERA)),
        "type": str(event_type.name),
        "time": "2026-05-01T12:00:00.000000Z",
        "data": data,
    }
    return json.dumps(envelope, separators=(",", ":"))


def test_from_a_stream_to_one_subject_for_each_reader_once(
    session: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    assert EXAMPLE.keys() >= {"count", "lane", "colour"}
    broken, stranger = [b"{", b"\xff", WHOLE[:-3]], [sighting(20, STRANGER)]
    options = publish(server.url, "SIGHTINGS", [*map(sighting, range(10)), *broken, *stranger])
    publish(server.url, "VIEWS", [])
    told = loop(session, options, tmp_path)
    assert [(tally.read, tally.good, tally.bad) for tally in told] == [(8, 8, 0), (6, 3, 3)]
    wanted = Counter(
        [("VIEWS.amy", expected(FIRST.event_type, n, {"count": n, "lane": n})) for n in range(6, 10)]
        + [("VIEWS.bob", expected(SECOND.event_type, n, {"colour": "red"})) for n in range(10)]
    )
    assert views(server.url) == wanted
    # As if the driver had died before it noted the last batch: the batch is repeated, and no message is.
    (tmp_path / "commits" / "1").unlink()
    (tmp_path / "commits" / ".1.crc").unlink(missing_ok=True)
    assert [tally.read for tally in loop(session, options, tmp_path)] == [6]
    assert views(server.url) == wanted
