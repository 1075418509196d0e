"""What channels do with bytes as they arrive."""

import asyncio
from itertools import pairwise

from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.channel import Channel
from penstock.codec.wire import decode_messages, encode, frame, raw_frame

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
