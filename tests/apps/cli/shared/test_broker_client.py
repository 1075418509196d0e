"""Commands that talk to a broker end quietly when nobody reads what they print."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from penstock.apps.cli.shared.broker_client import talk
from penstock.apps.cli.shared.session import aside, say
from penstock.broker.client.client import call_back


@contextmanager
def unread(name: str) -> Iterator[None]:
    """Replace a stream by a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", buffering=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, name, stream)
        yield
    with suppress(BrokenPipeError):
        stream.close()


async def converse(stop: asyncio.Event) -> str:
    """Print in a callback of a client, and wait until the command is stopped."""
    asyncio.get_running_loop().call_soon(call_back, say, "an event")
    async with asyncio.timeout(60):
        await stop.wait()
    return "done"


def test_what_a_callback_prints_for_nobody_ends_the_command(caplog: pytest.LogCaptureFixture) -> None:
    with unread("stdout"), pytest.raises(BrokenPipeError):
        talk(converse)
    assert not caplog.records


def test_other_failures_of_callbacks_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(stop: asyncio.Event) -> None:
        def callback() -> None:
            asyncio.get_running_loop().call_soon(stop.set)
            # Of something else than standard output, which is read.
            raise BrokenPipeError

        call_back(callback)
        await stop.wait()

    talk(fail)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [BrokenPipeError]


def test_what_nobody_reads_on_standard_error_is_dropped() -> None:
    with unread("stderr"):
        for _ in range(3):
            aside("warning")
        sys.stderr.flush()
