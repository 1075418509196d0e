"""Writing to JetStream exactly once: retries, replays after the duplicate window, races, crashes. No Spark here."""

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import nats
import pytest

from penstock.errors import PenstockError
from penstock.pipeline.jetstream.link import JetStreamLink
from penstock.pipeline.jetstream.options import Options, parse_options
from penstock.pipeline.jetstream.reader import RangeReader
from penstock.pipeline.jetstream.writer import Attempt, Outgoing, PublishCounts, commit_batch, publish_rows
from penstock.testing.nats import NatsServer

WINDOW = 0.3


def make(url: str, stream: str, **config: Any) -> None:
    async def run() -> None:
        connection = await nats.connect(url)
        given: dict[str, Any] = {"name": stream, "subjects": [f"{stream}.>"], "duplicate_window": WINDOW} | config
        await connection.jetstream().add_stream(**given)
        await connection.close()

    asyncio.run(run())


@pytest.fixture
def options(server: NatsServer, request: pytest.FixtureRequest) -> Options:
    name = f"S{uuid.uuid4().hex[:8]}"
    make(server.url, name, **getattr(request, "param", {}))
    return parse_options({"url": server.url, "stream": name, "maxInFlight": "10"})


def rows(options: Options, numbers: Iterable[int], *, pause: float = 0.0) -> Iterator[Outgoing]:
    for i in numbers:
        if pause:
            time.sleep(pause)
        yield Outgoing(f"{options.stream}.{i % 3}", f"e{i}", "", {"n": str(i)}, b"payload %d" % i)


def attempt(sink: str = "sink", batch: int = 0, run: str = "run", partition: int = 0) -> Attempt:
    return Attempt(sink, batch, run, partition, uuid.uuid4().hex)


def stored(options: Options) -> Counter[str]:
    with JetStreamLink(options) as link:
        found: Counter[str] = Counter()
        for chunk in RangeReader(link, 1, 1_000_000).chunks():
            found.update(message.headers["ce-id"] for message in chunk)
        return found


def once(numbers: Iterable[int]) -> Counter[str]:
    return Counter(f"e{i}" for i in numbers)


class DiedError(Exception):
    pass


def dying(source: Iterator[Outgoing], after: int) -> Iterator[Outgoing]:
    for i, row in enumerate(source):
        if i == after:
            raise DiedError
        yield row


def test_a_message_carries_its_row_and_what_identifies_it(options: Options) -> None:
    row = Outgoing(f"{options.stream}.a", "e1", "", {"x": "é", "nats-msg-id": "mine", "Nats-TTL": "1"}, b"\x00\xff")
    assert publish_rows(options, attempt("s" * 32, 7), [row]) == PublishCounts(rows=1, published=1)
    with JetStreamLink(options) as link:
        (message,) = next(iter(RangeReader(link, 1, 1).chunks()))
    assert message.payload == b"\x00\xff"
    assert message.headers.pop("Nats-Msg-Id").startswith("s" * 32 + ":7:")
    assert message.headers == {"x": "é", "ce-id": "e1", "Nats-Expected-Stream": options.stream}


def test_a_task_that_died_halfway_is_completed_after_the_window(options: Options) -> None:
    for _ in range(2):
        with pytest.raises(DiedError):
            publish_rows(options, attempt(), dying(rows(options, range(100)), 45))
        time.sleep(WINDOW * 1.5)
    assert stored(options) == once(range(40))
    # The retry gets its rows in another order.
    assert publish_rows(options, attempt(), rows(options, reversed(range(100)))) == PublishCounts(100, 60, 40, 0)
    assert stored(options) == once(range(100))


def test_a_whole_batch_is_replayed_after_the_window_in_other_partitions(options: Options) -> None:
    for partition in range(2):
        publish_rows(options, attempt(partition=partition), rows(options, range(partition, 60, 2)))
    with pytest.raises(DiedError):  # and one task did not get to its end
        publish_rows(options, attempt(partition=2), dying(rows(options, range(60, 90)), 15))
    # The driver dies before the commit, and comes back with three times as many partitions.
    time.sleep(WINDOW * 1.5)
    parts = [list(range(partition, 90, 6)) for partition in range(6)]
    counts = [
        publish_rows(options, attempt(run="second", partition=i), rows(options, part)) for i, part in enumerate(parts)
    ]
    assert sum(c.published for c in counts) == 20
    assert stored(options) == once(range(90))


def test_a_committed_batch_is_not_looked_for_and_the_next_one_is_new(options: Options) -> None:
    publish_rows(options, attempt(), rows(options, range(20)))
    with JetStreamLink(options) as link:
        commit_batch(link, "sink", 0)
    time.sleep(WINDOW * 1.5)
    assert publish_rows(options, attempt(run="second"), rows(options, range(20))) == PublishCounts(20, 0, 20, 0)
    # An event that comes again in a later batch is another message; so it is for another sink.
    assert publish_rows(options, attempt(batch=1, run="second"), rows(options, range(5))).published == 5
    assert publish_rows(options, attempt("other"), rows(options, range(5))).published == 5
    with pytest.raises(PenstockError) as stale:
        publish_rows(options, attempt(batch=0, run="third"), rows(options, range(5)))
    assert stale.value.code == "jetstream.stale-batch"


@pytest.mark.parametrize("second_run", ["run", "second"])
def test_two_attempts_race_longer_than_the_window(options: Options, second_run: str) -> None:
    """One goes up and one goes down: they store the same rows up to a second apart, three windows."""
    failed: list[BaseException] = []

    def work(run: str, numbers: Iterable[int]) -> None:
        try:
            publish_rows(options, attempt(run=run), rows(options, numbers, pause=0.008))
        except BaseException as error:  # noqa: BLE001  # shown below
            failed.append(error)

    threads = [
        threading.Thread(target=work, args=("run", range(120))),
        threading.Thread(target=work, args=(second_run, list(reversed(range(120))))),
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert failed == []
    assert stored(options) == once(range(120))


def test_an_attempt_that_comes_too_late_stops(options: Options) -> None:
    def slow() -> Iterator[Outgoing]:
        yield from rows(options, range(10))
        publish_rows(options, attempt(run="second"), rows(options, range(30)))
        with JetStreamLink(options) as link:
            commit_batch(link, "sink", 0)
        time.sleep(WINDOW * 1.5)
        yield from rows(options, range(10, 30))

    with pytest.raises(PenstockError) as late:
        publish_rows(options, attempt(), slow())
    assert late.value.code == "jetstream.superseded"
    assert stored(options) == once(range(30))


def test_a_server_that_crashes_while_it_stores_gets_every_row_once() -> None:
    with NatsServer() as own:
        make(own.url, "CRASH")
        parsed = parse_options({"url": own.url, "stream": "CRASH", "maxInFlight": "3000", "retries": "8"})
        started = threading.Event()

        def crash() -> None:
            started.wait()
            for _ in range(2):
                time.sleep(0.15)
                own.kill()
                own.start()

        def source() -> Iterator[Outgoing]:
            for i, row in enumerate(rows(parsed, range(12_000))):
                if i == 3_000:
                    started.set()
                yield row

        crashing = threading.Thread(target=crash)
        crashing.start()
        counts = publish_rows(parsed, attempt(), source())
        crashing.join()
        assert counts.rows == counts.published + counts.found == 12_000
        assert stored(parsed) == once(range(12_000))


@pytest.mark.parametrize("options", [{"max_msgs_per_subject": 5}], indirect=True)
def test_a_stream_that_forgot_cannot_be_completed(options: Options) -> None:
    with pytest.raises(DiedError):
        publish_rows(options, attempt(), dying(rows(options, range(100)), 45))
    with pytest.raises(PenstockError) as gap:
        publish_rows(options, attempt(), rows(options, range(100)))
    assert gap.value.code == "jetstream.sink-gap"


@pytest.mark.parametrize("options", [{"retention": "workqueue"}], indirect=True)
def test_a_stream_that_forgets_what_was_taken_is_refused(options: Options) -> None:
    with pytest.raises(PenstockError) as refused:
        publish_rows(options, attempt(), rows(options, range(3)))
    assert refused.value.code == "jetstream.sink-retention"


def test_equal_rows_are_one_message_and_an_id_for_two_is_an_error(options: Options) -> None:
    same = list(rows(options, [1, 2, 1]))
    assert publish_rows(options, attempt(), same) == PublishCounts(3, 2, 0, 1)
    keyed = [row._replace(key=key) for row in rows(options, [1]) for key in ("amy", "bob")]
    assert publish_rows(options, attempt(batch=1), keyed).published == 2
    changed = [same[0], same[0]._replace(payload=b"other")]
    with pytest.raises(PenstockError) as reused:
        publish_rows(options, attempt(batch=2), changed)
    assert reused.value.code == "jetstream.id-reused"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"subject": "a.*"}, "jetstream.bad-row"),
        ({"subject": "a b"}, "jetstream.bad-row"),
        ({"subject": "a..b"}, "jetstream.bad-row"),
        ({"id": ""}, "jetstream.bad-row"),
        ({"id": "a\r\nb"}, "jetstream.bad-row"),
        ({"headers": {"a:b": "c"}}, "jetstream.bad-row"),
        ({"headers": {"a": "b\r\nNats-Rollup: all"}}, "jetstream.bad-row"),
        ({"payload": b"x" * (1024 * 1024)}, "jetstream.too-large"),
        ({"subject": "elsewhere"}, "jetstream.refused"),
    ],
)
def test_a_row_that_cannot_be_sent_is_refused(options: Options, change: dict[str, Any], code: str) -> None:
    (row,) = rows(options, [1])
    with pytest.raises(PenstockError) as refused:
        publish_rows(options, attempt(), [row._replace(**change)])
    assert refused.value.code == code


def test_another_stream_does_not_take_what_was_meant_for_this(server: NatsServer, options: Options) -> None:
    make(server.url, "THEFT", subjects=["theft.>"])
    (row,) = rows(options, [1])
    with pytest.raises(PenstockError) as refused:
        publish_rows(options, attempt(), [row._replace(subject="theft.x")])
    assert refused.value.code == "jetstream.refused"
