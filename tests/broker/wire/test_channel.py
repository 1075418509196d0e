"""What channels do with bytes as they arrive."""

import asyncio
from itertools import pairwise

import pytest

from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.channel import Channel
from penstock.codec.wire import decode_messages, encode, frame, raw_frame
from penstock.errors import FailedError

#: as frames of messages begin
FRAMES = [bytes((0x91,)) + bytes((number,)) * size for number, size in enumerate((1, 40, 700, 5_000), start=1)]


def arrive(channel: Channel, octets: bytes) -> None:
    """Let bytes arrive as asyncio does: written to where the channel says, and then told of."""
    channel.get_buffer(-1)[: len(octets)] = octets
    channel.buffer_updated(len(octets))


def test_channels_that_share_a_place_for_what_arrives_keep_what_is_theirs() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        one, other = (Channel(loop, BrokerLimits(), opening=0) for _ in range(2))
        stream, junk = b"".join(map(raw_frame, FRAMES)), raw_frame(b"\x91" + b"\xff" * 8_000)
        # In pieces that end within frames and their lengths, at their ends, and far behind them.
        for start, end in pairwise((*range(0, 60, 7), 60, 800, 801, len(stream))):
            arrive(one, stream[start:end])
            arrive(other, junk)
        assert [bytes(found) for found in await one.take()] == FRAMES
        assert {bytes(found) for found in await other.take()} == {junk[4:]}
        assert one.clean
        assert other.clean

    asyncio.run(main())


class Wires(asyncio.Transport):
    """What stands in for a connection: it remembers what was written."""

    def __init__(self, connection: object = None) -> None:
        super().__init__({"socket": connection})
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Bound nothing."""


def messages(frames: list[memoryview]) -> list[object]:
    return [message for found in frames for message in decode_messages(found)]


def test_urgent_messages_overtake_others_on_both_sides() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        one, other = (Channel(loop, BrokerLimits(), opening=0) for _ in range(2))
        wires = Wires()
        one.connection_made(wires)
        one.post(encode("hello"))
        one.post(encode("before"), urgent=True)
        one.let_overtake()
        one.pause_writing()  # the peer does not read
        for number in range(3):
            one.post(encode(number))
            one.post(encode(f"policy {number}"), urgent=True)
        one.resume_writing()
        arrive(other, wires.written)
        # The other side has not let them: everything stays in its order.
        sent = ["hello", "before", "policy 0", "policy 1", "policy 2", 0, 1, 2]
        assert messages(await other.take()) == sent
        other.let_overtake()
        arrive(other, frame([encode(3)]) + frame([encode("policy 3")], urgent=True))
        arrive(other, frame([encode(4)]) + frame([encode("policy 4")], urgent=True))
        assert messages(other.take_urgent()) == ["policy 3", "policy 4"]
        assert messages(other.take_urgent()) == []
        arrive(other, frame([encode("policy 5")], urgent=True))
        assert messages(await other.take()) == ["policy 5", 3, 4]
        assert other.clean
        one.connection_lost(None)

    asyncio.run(main())


def test_a_small_frame_that_arrives_alone_is_handled_without_waking_the_owner() -> None:
    async def main() -> None:
        channel = Channel(asyncio.get_running_loop(), BrokerLimits(), opening=0)
        handled: list[object] = []

        def handle(found: memoryview) -> bool:
            (message,) = decode_messages(found)
            if message == "for the owner":
                return False
            handled.append(message)
            return True

        arrive(channel, frame([encode("nobody waits")]))
        assert messages(await channel.take()) == ["nobody waits"]
        taking = asyncio.create_task(channel.take(handle))
        await asyncio.sleep(0)
        for number in range(3):
            arrive(channel, frame([encode(number)]))
        assert handled == [0, 1, 2]
        arrive(channel, frame([encode("for the owner")]))
        # What comes later does not overtake what the owner has not taken yet.
        arrive(channel, frame([encode("behind it")]))
        assert messages(await taking) == ["for the owner", "behind it"]
        # Nor while the owner does something else.
        arrive(channel, frame([encode("busy")]))
        assert messages(await channel.take()) == ["busy"]
        assert handled == [0, 1, 2]

    asyncio.run(main())


def test_frames_that_are_large_or_together_are_left_to_the_owner() -> None:
    async def main() -> None:
        channel = Channel(asyncio.get_running_loop(), BrokerLimits(), opening=0)
        for stream in (frame([encode(1)]) + frame([encode(2)]), frame([encode(bytes(5_000))])):
            taking = asyncio.create_task(channel.take(lambda _frame: True))
            await asyncio.sleep(0)
            arrive(channel, stream)
            assert len(b"".join(await taking)) > 2
        # A goodbye is not a message.
        taking = asyncio.create_task(channel.take(lambda _frame: True))
        await asyncio.sleep(0)
        arrive(channel, raw_frame(encode("link.closed")))
        with pytest.raises(FailedError) as found:
            await taking
        assert found.value.code == "link.closed"

    asyncio.run(main())


def test_the_owner_raises_the_error_of_handling_a_frame() -> None:
    async def main() -> None:
        channel = Channel(asyncio.get_running_loop(), BrokerLimits(), opening=0)

        def fail(_frame: memoryview) -> bool:
            raise ZeroDivisionError

        taking = asyncio.create_task(channel.take(fail))
        await asyncio.sleep(0)
        arrive(channel, frame([encode(1)]))
        with pytest.raises(ZeroDivisionError):
            await taking
        with pytest.raises(ZeroDivisionError):
            await channel.take()

    asyncio.run(main())
