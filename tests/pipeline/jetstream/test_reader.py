"""Reading JetStream with Spark: ranges, offsets, limits, gaps, and a server that is away."""

import asyncio
import datetime as dt
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import nkeys  # type: ignore[import-untyped]  # it ships no types
import pytest
import trustme
from nats.js import JetStreamContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.errors import PenstockError
from penstock.pipeline.jetstream.link import JetStreamLink
from penstock.pipeline.jetstream.options import parse_options
from penstock.pipeline.jetstream.reader import (
    JetStreamReader,
    JetStreamStreamReader,
    RangeReader,
    SequenceGap,
    SequenceRange,
    _split,
    read_range,
    schema_of,
)
from penstock.pipeline.jetstream.source import NAME
from penstock.testing.nats import NatsServer


def on(url: str, work: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        connection = await nats.connect(url)
        try:
            return await work(connection.jetstream())
        finally:
            await connection.close()

    return asyncio.run(run())


def fill(url: str, stream: str, count: int, *, begin: int = 0, **config: Any) -> None:
    """Make a stream, and publish `count` messages to three subjects."""

    async def work(js: JetStreamContext) -> None:
        if not begin:
            await js.add_stream(name=stream, subjects=[f"{stream}.>"], **config)
        for i in range(begin, begin + count):
            headers = {"Nats-Msg-Id": f"m{i}"} | ({"ce-id": f"e{i}"} if i % 2 else {})
            await js.publish_async(f"{stream}.{'abc'[i % 3]}", b"payload %d" % i, headers=headers)
        await js.publish_async_completed()

    on(url, work)


def frame(session: SparkSession, server: NatsServer, stream: str, **options: object) -> DataFrame:
    reader = session.read.format(NAME).option("url", server.url).option("stream", stream)
    return reader.options(**{key: str(value) for key, value in options.items()}).load()


def stream_reader(server: NatsServer, stream: str, **options: object) -> JetStreamStreamReader:
    given = {key: str(value) for key, value in options.items()}
    parsed = parse_options({"url": server.url, "stream": stream, **given})
    return JetStreamStreamReader(parsed, schema_of(parsed.columns))


def sequences(reader: JetStreamStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    found: list[int] = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += batch.column("sequence").to_pylist()
    return found


def test_a_range_has_every_message_with_all_that_it_carries(session: SparkSession, server: NatsServer) -> None:
    began = dt.datetime.now(dt.UTC).timestamp()
    fill(server.url, "WHOLE", 500)
    rows = frame(session, server, "WHOLE", partitions=3, fetchSize=70).orderBy("sequence").collect()
    assert [row.sequence for row in rows] == list(range(1, 501))
    assert rows[3].subject == "WHOLE.a"
    assert bytes(rows[3].payload) == b"payload 3"
    assert (rows[2].id, rows[3].id) == ("m2", "e3")
    assert rows[3].headers == {"Nats-Msg-Id": "m3", "ce-id": "e3"}
    # However long it took.
    assert began - 1 <= rows[0].time.timestamp() <= dt.datetime.now(dt.UTC).timestamp() + 1
    part = frame(session, server, "WHOLE", start=100, end=199, columns="sequence")
    assert part.columns == ["sequence"]
    assert part.count() == 100


def test_subjects_filter_and_are_no_gaps(server: NatsServer) -> None:
    fill(server.url, "SUBJECTS", 300)
    for subject, residues in (("SUBJECTS.b", {1}), ("SUBJECTS.a,SUBJECTS.c", {0, 2}), ("SUBJECTS.none", set())):
        reader = stream_reader(server, "SUBJECTS", subject=subject, fetchSize=37)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        found = sequences(reader, start, end)
        assert found == [s for s in range(1, 301) if (s - 1) % 3 in residues]


def test_offsets_respect_the_limit_and_repeat(server: NatsServer) -> None:
    fill(server.url, "OFFSETS", 250)
    reader = stream_reader(server, "OFFSETS", maxMessagesPerBatch=100)
    assert reader.getDefaultReadLimit() == ReadMaxRows(100)
    start = reader.initialOffset()
    assert start["next"] == 1
    first = reader.latestOffset(start, ReadMaxRows(100))
    assert sequences(reader, start, first) == sequences(reader, start, first) == list(range(1, 101))
    reader.prepareForTriggerAvailableNow()
    fill(server.url, "OFFSETS", 50, begin=250)
    last = reader.latestOffset(first, ReadAllAvailable())
    assert last["next"] == 251, "nothing that came after the trigger"
    assert reader.latestOffset(last, ReadMaxRows(100)) == last
    assert reader.partitions(last, last) == []
    again = stream_reader(server, "OFFSETS", start="latest")
    assert again.initialOffset()["next"] == 301
    assert again.reportLatestOffset()["next"] == 301


def test_what_is_gone_is_an_error_or_is_counted(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    fill(server.url, "GONE", 200)

    async def remove(js: JetStreamContext) -> None:
        await js.purge_stream("GONE", seq=11)  # 1 to 10
        for sequence in (50, 51, 120):
            await js.delete_msg("GONE", sequence)

    reader = stream_reader(server, "GONE", start=1)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    on(server.url, remove)
    with pytest.raises(PenstockError) as expired:
        reader.partitions(start, end)
    assert expired.value.code == "jetstream.data-lost"
    assert expired.value.fields["count"] == 10
    later = start | {"next": 11}
    with pytest.raises(PenstockError) as deleted:
        sequences(reader, later, end)
    assert deleted.value.code == "jetstream.data-lost"
    lenient = stream_reader(server, "GONE", start=1, failOnDataLoss=False, fetchSize=40)
    assert sequences(lenient, start, end) == [s for s in range(11, 201) if s not in (50, 51, 120)]
    assert caplog.text.count("jetstream.data-lost") == 3
    # Behind a filter too: 50 is one of `b`, and a message of another subject is not missed.
    narrow = stream_reader(server, "GONE", start=11, subject="GONE.b")
    with pytest.raises(PenstockError) as filtered:
        sequences(narrow, later, end)
    assert filtered.value.code == "jetstream.data-lost"
    # After a long gap a batch still has its fill.
    assert lenient.latestOffset(start | {"next": 1}, ReadMaxRows(5))["next"] == 16


def test_a_stream_made_anew_is_not_taken_for_the_old_one(server: NatsServer) -> None:
    fill(server.url, "ANEW", 20)
    reader = stream_reader(server, "ANEW")
    start = reader.initialOffset()
    on(server.url, lambda js: js.delete_stream("ANEW"))
    fill(server.url, "ANEW", 30)
    with pytest.raises(PenstockError) as replaced:
        reader.latestOffset(start | {"next": 21}, ReadAllAvailable())
    assert replaced.value.code == "jetstream.data-lost"
    lenient = stream_reader(server, "ANEW", failOnDataLoss=False)
    old = start | {"next": 21}
    end = lenient.latestOffset(old, ReadAllAvailable())
    assert sequences(lenient, old, end) == list(range(1, 31))


def test_gaps_split_into_gone_and_held() -> None:
    assert _split(SequenceGap(1, 10), 4, 9, [5, 6, 8]) == (
        [SequenceGap(1, 3), SequenceGap(5, 6), SequenceGap(8, 8), SequenceGap(10, 10)],
        [SequenceGap(4, 4), SequenceGap(7, 7), SequenceGap(9, 9)],
    )
    assert _split(SequenceGap(1, 3), 1, 0, []) == ([SequenceGap(1, 3)], [])


def test_messages_larger_than_a_fetch_arrive(server: NatsServer) -> None:
    async def work(js: JetStreamContext) -> None:
        await js.add_stream(name="LARGE", subjects=["LARGE"])
        for size in (10, 300_000, 10, 200_000, 5):
            await js.publish("LARGE", b"x" * size)

    on(server.url, work)
    parsed = parse_options({"url": server.url, "stream": "LARGE", "fetchBytes": "100000"})
    batches = list(read_range(parsed, schema_of(("sequence", "payload")), SequenceRange(1, 5)))
    sizes = [len(payload) for batch in batches for payload in batch.column("payload").to_pylist()]
    assert sizes == [10, 300_000, 10, 200_000, 5]


def test_a_read_goes_on_where_the_server_restarted() -> None:
    with NatsServer() as own:
        fill(own.url, "RESTART", 400)
        parsed = parse_options({"url": own.url, "stream": "RESTART", "fetchSize": "50", "retries": "8"})
        with JetStreamLink(parsed) as link:
            found: list[int] = []
            for chunk in RangeReader(link, 1, 400).chunks():
                found += [message.sequence for message in chunk]
                if len(found) == 100:
                    own.kill()
                    own.start()
        assert found == list(range(1, 401))


def test_no_server_no_stream_and_no_right_are_told_apart(
    session: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    with NatsServer() as gone:
        away = gone.url
    for url, stream, code in ((away, "X", "jetstream.unreachable"), (server.url, "NONE", "jetstream.no-stream")):
        parsed = parse_options({"url": url, "stream": stream, "retries": "1", "timeout": "1"})
        with pytest.raises(PenstockError) as refused:
            JetStreamReader(parsed, schema_of(parsed.columns)).partitions()
        assert refused.value.code == code
    with pytest.raises(PySparkException, match=r"jetstream\.no-stream"):
        frame(session, server, "NONE").count()
    (tmp_path / "token").write_text("s3kr1t\n")
    (tmp_path / "wrong").write_text("false\n")
    with NatsServer(config='authorization { token: "s3kr1t" }\n') as guarded:
        for name, code in (
            ("token", "jetstream.no-stream"),
            ("wrong", "jetstream.unauthorized"),
            ("none", "jetstream.credentials"),
        ):
            parsed = parse_options({"url": guarded.url, "stream": "X", "tokenFile": str(tmp_path / name)})
            with pytest.raises(PenstockError) as answer:
                JetStreamReader(parsed, schema_of(parsed.columns)).partitions()
            assert answer.value.code == code
            assert "s3kr1t" not in str(answer.value.as_dict())


def test_a_right_that_is_missing_is_told_at_once() -> None:
    rights = 'permissions: {publish: {deny: "$JS.API.CONSUMER.CREATE.>"}}'
    account = f"jetstream: enabled, users: [{{user: a, password: b, {rights}}}]"
    with NatsServer(config=f"accounts {{ A: {{ {account} }} }}\nno_auth_user: a\n") as guarded:
        fill(guarded.url, "GUARDED", 3)
        parsed = parse_options({"url": guarded.url, "stream": "GUARDED", "timeout": "1"})
        with pytest.raises(PenstockError) as refused:
            list(read_range(parsed, schema_of(parsed.columns), SequenceRange(1, 3)))
    assert refused.value.code == "jetstream.unauthorized"


def test_tls_is_used_and_a_server_of_another_authority_is_refused(tmp_path: Path) -> None:
    for name in ("own", "other"):
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / f"{name}.ca")
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
    files = f'cert_file: "{tmp_path}/own.pem", key_file: "{tmp_path}/own.pem", ca_file: "{tmp_path}/own.ca"'
    with NatsServer(config=f"tls {{ {files}, verify: true }}\n") as secured:
        for ca, certificate, codes in (
            ("own", "own", {"jetstream.no-stream"}),
            ("other", "own", {"jetstream.tls"}),
            # TLS 1.3: the server refuses a client after the client has finished its handshake.
            ("own", "other", {"jetstream.tls", "jetstream.unreachable"}),
        ):
            given = {"url": secured.url.replace("nats:", "tls:"), "stream": "X", "retries": "0", "timeout": "2"}
            given |= {"tlsCa": f"{tmp_path}/{ca}.ca", "tlsCert": f"{tmp_path}/{certificate}.pem"}
            parsed = parse_options(given | {"tlsKey": f"{tmp_path}/{certificate}.pem"})
            with pytest.raises(PenstockError) as answer:
                JetStreamReader(parsed, schema_of(parsed.columns)).partitions()
            assert answer.value.code in codes


def test_an_nkey_opens_the_server_that_knows_it(tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).write_bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
    public = nkeys.from_seed(bytearray((tmp_path / "own").read_bytes())).public_key.decode()
    with NatsServer(config=f"authorization {{ users: [{{nkey: {public}}}] }}\n") as guarded:
        for name, code in (("own", "jetstream.no-stream"), ("other", "jetstream.unauthorized")):
            parsed = parse_options({"url": guarded.url, "stream": "X", "nkey": str(tmp_path / name)})
            with pytest.raises(PenstockError) as answer:
                JetStreamReader(parsed, schema_of(parsed.columns)).partitions()
            assert answer.value.code == code


def test_credentials_without_the_library_for_them_say_so(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    (tmp_path / "seed").write_text("SUxxx")
    parsed = parse_options({"url": server.url, "stream": "X", "nkey": str(tmp_path / "seed")})
    with pytest.raises(PenstockError) as answer:
        JetStreamReader(parsed, schema_of(parsed.columns)).partitions()
    assert answer.value.code == "jetstream.not-installed"
