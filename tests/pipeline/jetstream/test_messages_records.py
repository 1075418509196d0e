"""Messages of JetStream through ingest: what comes in is counted, what is broken is kept, and views go out once."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.anywhere import (
    CAMERA,
    FIRST,
    OWNER,
    SECOND,
    SENT,
    VIEWS,
    policy,
    publish,
    send_views,
    stored,
)
from tests.pipeline.ingest.test_ingest_envelopes import AT, CASES, WHOLE
from tests.pipeline.rows import collected, frame
from tests.trust.kit import refused, who

from penstock.pipeline.frames import ID, SOURCE, TIME, typed_schema
from penstock.pipeline.ingest.event_frames import REASON
from penstock.pipeline.ingest.ingest import Ingested, RecordTally, each_batch, ingest_envelopes, run_ingest
from penstock.pipeline.ingest.records import FILE, ORIGINAL, POSITION
from penstock.pipeline.jetstream.messages import read_jetstream, to_messages
from penstock.pipeline.jetstream.source import NAME
from penstock.pipeline.jobs.job import RunningStream
from penstock.testing.nats import NatsServer


def test_a_batch_of_messages_is_good_or_in_quarantine(session: SparkSession, server: NatsServer) -> None:
    options = publish(server.url, "BATCH", [payload for payload, _ in CASES])
    records = read_jetstream(session.read, {**options, "Columns": "subject"})
    assert [(field.name, field.dataType.simpleString()) for field in records.schema] == [
        (FILE, "string"), (POSITION, "bigint"), (ORIGINAL, "binary"),
    ]  # fmt: skip
    kept: list[tuple[str, int, bytes, str]] = []

    def write(it: Ingested) -> None:
        kept.extend((row[FILE], row[POSITION], bytes(row[ORIGINAL]), row[REASON]) for row in it.bad.collect())

    tally = run_ingest(ingest_envelopes(records, [FIRST, SECOND], AT), write)
    expected = {
        ("nats:BATCH", number, payload, reason)
        for number, (payload, reason) in enumerate(CASES, start=1)
        if reason is not None
    }
    assert set(kept) == expected
    assert (tally.read, tally.good, tally.bad) == (len(CASES), len(CASES) - len(expected), len(expected))


@pytest.mark.long
def test_a_stream_of_messages_is_good_or_in_quarantine(
    session: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    told: list[RecordTally] = []
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
        assert RunningStream(query.trigger(availableNow=True)).wait(60)
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
    to_messages(events, event_type, "BACK.in").write.format(NAME).mode("append").options(**options).save()
    ingested = ingest_envelopes(read_jetstream(session.read, options), [FIRST], AT)
    assert _set(ingested.events(event_type)) == _set(events)
    assert len(_set(events)) == 3


def _set(events: DataFrame) -> set[tuple[object, ...]]:
    return {tuple(row) for row in collected(events)}


def loop(session: SparkSession, options: dict[str, str], checkpoint: Path) -> list[RecordTally]:
    """Stream through ingest, admission and delivery to VIEWS, and return the tallies of the batches."""
    rules = policy()
    told: list[RecordTally] = []
    process = each_batch(
        lambda records: ingest_envelopes(records, [FIRST], AT),
        lambda ingested, batch: send_views(ingested, rules, options["url"], f"loop {batch}"),
        lambda tally, _: told.append(tally),
    )
    records = read_jetstream(session.readStream, {**options, "maxMessagesPerBatch": "8"})
    query = records.writeStream.foreachBatch(process).option("checkpointLocation", str(checkpoint))
    assert RunningStream(query.trigger(availableNow=True)).wait(120)
    return told


@pytest.mark.long
def test_from_a_stream_to_one_subject_for_each_reader_once(
    session: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    options = publish(server.url, "SENT", SENT)
    publish(server.url, "VIEWS", [])
    assert [(t.read, t.good, t.bad) for t in loop(session, options, tmp_path)] == [(8, 8, 0), (6, 3, 3)]
    assert stored(server.url, "VIEWS") == VIEWS
    # As if the driver had died before it noted the last batch: the batch is repeated, and no message is.
    (tmp_path / "commits" / "1").unlink()
    (tmp_path / "commits" / ".1.crc").unlink(missing_ok=True)
    assert [tally.read for tally in loop(session, options, tmp_path)] == [6]
    assert stored(server.url, "VIEWS") == VIEWS
