"""What goes wrong by itself: processes that die, and clocks that jump."""

import asyncio
import time
from pathlib import Path

import pytest
from tests.network.hostile.bounds import FAULTS
from tests.network.hostile.network_kit import SECONDS, Fault, Network, Stage, parameters

_JUMP = 2 * 3_600


async def kill_a_broker(network: Network) -> int:
    """Kill the broker between the publisher's and the rest, and start it again."""
    network.brokers[1].kill()
    await asyncio.sleep(0.1)
    await network.brokers[1].start()
    network.back = time.time()
    return 1


async def move_a_clock(network: Network) -> int:
    """Set a broker's clock two hours ahead, and correct it before anything is revoked."""
    clock = Path(network.brokers[1].clock)
    clock.write_text(str(_JUMP))
    await asyncio.sleep(SECONDS / 4)
    clock.write_text("0")
    await asyncio.sleep(SECONDS / 2)
    return 1


STRIKES: dict[str, Fault] = {
    "kill -9 of a broker in the middle": kill_a_broker,
    "a clock that jumps ahead and is corrected": move_a_clock,
}


@pytest.mark.parametrize("fault", parameters(FAULTS))
def test_honest_parties_lose_no_more_than_the_bounds_say(line: Stage, fault: str) -> None:
    line.run(fault, FAULTS[fault], STRIKES[fault])


def test_each_fault_has_bounds() -> None:
    assert FAULTS.keys() == STRIKES.keys()
