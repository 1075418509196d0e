"""JetStream on Spark beside a client that sends what it likes: answers and messages that are not the server's."""

import asyncio
import base64
import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from nats.aio.msg import Msg

from penstock.errors import PenstockError
from penstock.fabric.nats_api import AnswerError
from penstock.fabric.nats_login import NatsLogin
from penstock.pipeline.jetstream import link as jetstream_link
from penstock.pipeline.jetstream import writer as jetstream_writer
from penstock.pipeline.jetstream.link import JetStreamLink, stream_state
from penstock.pipeline.jetstream.options import Options
from penstock.pipeline.jetstream.reader import RangeReader
from penstock.pipeline.jetstream.writer import Attempt, BatchRecord, LedgerBucket, _Publisher

OPTIONS = Options(NatsLogin(("nats://nowhere:1",)), "log")
JUNK = [b"", b"[]", b"{", b"[" * 100_000, b'{"error": 3}', b'{"error": {"code": []}}', b'{"stream": "other", "seq": 1}']


def message(data: bytes = b"", reply: str = "", **headers: str) -> Msg:
    return Msg(None, "inbox.digest", reply, data, headers or None)  # type: ignore[arg-type]  # there is no answer to it


def test_messages_that_are_not_of_our_consumer_are_passed_over() -> None:
    async def main() -> None:
        reader = RangeReader(SimpleNamespace(options=OPTIONS), 1, 10)  # type: ignore[arg-type]  # a link of no use
        reader._consumer = (None, "mine", "inbox")  # type: ignore[assignment]  # no connection
        for reply in (
            "x",
            "$JS.ACK.log.mine.x.1.1.1.0",
            "$JS.ACK.log.other.1.1.1.1.0",
            "$JS.ACK.l.mine.1.1.1.1.0",
            "." * 11,
        ):
            await reader._receive(message(b"junk", reply))
        await reader._receive(message())
        assert (reader._got, reader._status) == ([], "")
        await reader._receive(message(b"good", "$JS.ACK.log.mine.1.7.1.9.3"))
        assert [(one.sequence, one.time, one.payload) for one in reader._got] == [(7, 9, b"good")]
        assert reader._pending == 3
        await reader._receive(message(Status="404"))
        assert reader._status == "404"

    asyncio.run(main())


def test_acknowledgements_that_are_not_of_the_stream_are_passed_over() -> None:
    async def main() -> None:
        ledger: Any = SimpleNamespace(attempt=Attempt("sink", 1, "run", 0, "token"))
        link: Any = SimpleNamespace(options=OPTIONS)
        publisher = _Publisher(link, ledger)
        publisher._waiting = {"sink:1:digest": None}
        for data in JUNK:
            await publisher._acknowledged(message(data))
        assert publisher._waiting
        assert publisher._refused is None
        await publisher._acknowledged(message(b'{"stream": "log", "seq": 1}'))
        assert not publisher._waiting

    asyncio.run(main())


@pytest.mark.parametrize(
    "answer", [{}, {"state": 1}, {"state": {"first_seq": "1"}}, {"created": 5, "state": {}, "config": []}]
)
def test_a_state_that_is_not_one_is_an_answer_that_was_lost(
    answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*_: object, **__: object) -> dict[str, Any]:
        return answer

    monkeypatch.setattr(jetstream_link, "ask", ask)
    with pytest.raises(AnswerError):
        asyncio.run(stream_state(None, OPTIONS))  # type: ignore[arg-type]  # nobody is asked


def test_an_answer_that_was_lost_is_asked_for_again() -> None:
    calls: list[int] = []

    async def work(_client: object) -> str:
        calls.append(1)
        if len(calls) < 3:
            raise AnswerError("forged")
        return "good"

    link = JetStreamLink(OPTIONS)

    async def connected() -> Any:
        return None

    link._connected = connected  # type: ignore[method-assign]  # there is no server
    assert link.call(work) == "good"
    link.close()


@pytest.mark.parametrize("value", ["[]", "5", "{", '{"batch": "x"}', "[" * 100_000])
def test_a_record_of_the_ledger_that_does_not_read_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def request(*_: object, **__: object) -> dict[str, Any]:
        return {"message": {"data": base64.b64encode(value.encode()).decode(), "seq": 1}}

    monkeypatch.setattr(jetstream_writer, "request", request)
    with pytest.raises(PenstockError) as caught:
        asyncio.run(LedgerBucket(OPTIONS).batch(None, "sink"))  # type: ignore[arg-type]  # nobody is asked
    assert caught.value.code == "jetstream.state"


def test_a_record_of_the_ledger_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    record = BatchRecord(1, "run", first_run=True, committed=False, floor=7, created="now")

    async def request(*_: object, **__: object) -> dict[str, Any]:
        return {"message": {"data": base64.b64encode(json.dumps(asdict(record)).encode()).decode(), "seq": 4}}

    monkeypatch.setattr(jetstream_writer, "request", request)
    assert asyncio.run(LedgerBucket(OPTIONS).batch(None, "sink")) == (record, 4)  # type: ignore[arg-type]  # nobody is asked
