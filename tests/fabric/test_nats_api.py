"""Work with a NATS server is tried again with longer and longer pauses; a client that is closed leaves no socket."""

import asyncio
from itertools import count, islice
from urllib.parse import urlparse

import pytest
from nats.aio.client import Srv

from penstock.fabric.nats_api import NatsClient, close_socket, doubling, is_refusal, retried


def test_pauses_double_up_to_the_longest() -> None:
    assert [*islice(doubling(0.1, 0.5), 5)] == [0.1, 0.2, 0.4, 0.5, 0.5]


@pytest.mark.parametrize(
    ("failures", "pauses", "done", "tries"),
    [
        ([], [], True, 1),
        ([OSError(), TimeoutError()], [0.0] * 2, True, 3),
        ([OSError(), OSError()], [0.0], False, 2),
        ([OSError(), ValueError()], [0.0] * 5, False, 2),
    ],
)
def test_work_is_repeated_as_long_as_it_may_help(
    failures: list[Exception], pauses: list[float], done: bool, tries: int
) -> None:
    left, count = [*failures], 0

    async def work() -> str:
        nonlocal count
        count += 1
        if left:
            raise left.pop(0)
        return "done"

    async def run() -> str:
        return await retried(work, iter(pauses), lambda error: isinstance(error, OSError))

    if done:
        assert asyncio.run(run()) == "done"
    else:
        with pytest.raises(type(failures[-1])):
            asyncio.run(run())
    assert count == tries


def test_a_refusal_is_known_by_what_the_server_says() -> None:
    assert is_refusal(ConnectionError("Authorization Violation"), "")
    assert is_refusal(TimeoutError(), "nats: permissions violation for publish")
    assert not is_refusal(TimeoutError("connection refused"), "")


def test_a_client_that_is_cancelled_while_it_connects_leaves_no_socket_open() -> None:
    async def main() -> None:
        listening = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        url = f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        for rounds in count():
            client = NatsClient()
            client.options = {"connect_timeout": 5}
            connecting = asyncio.create_task(client._connect_to_server(Srv(uri=urlparse(url))))
            for _ in range(rounds):
                await asyncio.sleep(0)
            if connecting.done():
                close_socket(client)
                break
            connecting.cancel()
            await asyncio.wait([connecting])
            writer = getattr(client._transport, "_bare_io_writer", None)
            assert writer is None or writer.transport.is_closing(), rounds
        listening.close()

    asyncio.run(main())
