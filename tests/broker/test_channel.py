"""What channels do with octets as they arrive."""

import asyncio
from itertools import pairwise

from penstock.broker.channel import Channel
from penstock.codec.wire import raw_frame
from penstock.model.limits import DEFAULT_LIMITS

#: as frames of messages begin
FRAMES = [bytes((0x91,)) + bytes((number,)) * size for number, size in enumerate((1, 40, 700, 5_000), start=1)]


def arrive(channel: Channel, octets: bytes) -> None:
    """Let octets arrive as asyncio does: written to where the channel says, and then told of."""
    channel.get_buffer(-1)[: len(octets)] = octets
    channel.buffer_updated(len(octets))


def test_channels_that_share_a_place_for_what_arrives_keep_what_is_theirs() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        one, other = (Channel(loop, DEFAULT_LIMITS, opening=0) for _ in range(2))
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
