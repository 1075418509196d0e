"""What every log of key managers does: tests of an adapter inherit this."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar

from tests.broker.key_kit import GROUP, LANES, grounds, joining, manager, right
from tests.trust.kit import NOW, refused, who

from penstock.broker.keys.log import KeyLog
from penstock.broker.keys.manager import KeyManager, Output
from penstock.broker.keys.node_keys import carry_out, catch_up
from penstock.broker.limits import BrokerLimits

Opens = Callable[[], Awaitable[KeyLog]]


async def act(log: KeyLog, one: KeyManager, outputs: Iterable[Output]) -> None:
    await carry_out(lambda: NOW, one, log, outputs, lambda _: None)


class KeyLogSuite:
    """Give `opens`: each call opens the same log, as another process would."""

    #: whether what was written outlives those who wrote it
    DURABLE: ClassVar = True

    @abstractmethod
    def opens(self) -> Opens:
        """Return how a log that nobody has used yet is opened."""

    def test_records_come_back_in_order(self) -> None:
        async def test(log: KeyLog, _: Opens) -> None:
            assert list(await log.read(0)) == []
            for number in range(3):
                assert await log.append(number, b"%d" % number)
            assert list(await log.read(0)) == [b"0", b"1", b"2"]
            assert list(await log.read(2)) == [b"2"]
            assert list(await log.read(3)) == []

        self.run(test)

    def test_a_record_is_taken_where_the_log_ends_and_nowhere_else(self) -> None:
        async def test(log: KeyLog, _: Opens) -> None:
            assert not await log.append(1, b"too early")
            assert await log.append(0, b"first")
            for number in (0, 2, 99):
                assert not await log.append(number, b"no")
            assert list(await log.read(0)) == [b"first"]

        self.run(test)

    def test_of_many_that_want_one_place_one_gets_it(self) -> None:
        async def test(log: KeyLog, opens: Opens) -> None:
            logs = [log, *[await opens() for _ in range(3)]]
            for number in range(5):
                taken = await asyncio.gather(*(one.append(number, b"%d" % at) for at, one in enumerate(logs)))
                assert sum(taken) == 1
                assert list(await log.read(number)) == [b"%d" % taken.index(True)]
            for one in logs[1:]:
                assert list(await one.read(0)) == list(await log.read(0))
                await one.close()

        self.run(test)

    def test_what_is_forgotten_is_gone_and_no_place_is_given_again(self) -> None:
        async def test(log: KeyLog, _: Opens) -> None:
            for number in range(5):
                await log.append(number, b"%d" % number)
            await log.forget(3)
            for place in (0, 2, 3):
                assert list(await log.read(place)) == [b"3", b"4"]
            for number in (0, 2, 3, 4):
                assert not await log.append(number, b"old")
            assert await log.append(5, b"5")
            await log.forget(3)
            assert list(await log.read(4)) == [b"4", b"5"]

        self.run(test)

    def test_what_was_written_is_there_for_the_next(self) -> None:
        async def test(log: KeyLog, opens: Opens) -> None:
            large = bytes(range(256)) * 2048
            await log.append(0, large)
            await log.append(1, b"")
            await log.close()
            again = await opens()
            assert list(await again.read(0)) == [large, b""]
            assert await again.append(2, b"2")
            await again.close()

        if self.DURABLE:
            self.run(test)

    def test_a_manager_whose_group_is_full_goes_on_and_starts_again(self) -> None:
        """Also on a log in which a group has more members than allowed: whoever wrote that allowed for more."""
        few = BrokerLimits(key_members=2)

        async def test(log: KeyLog, _: Opens) -> None:
            larger = manager()
            for number in (20, 21, 22):
                await act(log, larger, larger.join(NOW, joining(number), grounds(number, right(number))))
            for seed in (1, 2):
                one = manager(limits=few, seed=seed)
                await catch_up(lambda: NOW, one, log, lambda _: None)
                assert len(one.holders(GROUP)) == 4 - seed
                with refused("keys.members"):
                    one.join(NOW, joining(23), grounds(23, right(23)))
                # Other groups, and what else there is to do in this one.
                await act(log, one, one.join(NOW, joining(23, group=LANES), grounds(23, right(23))))
                await act(log, one, one.evict(NOW, GROUP, who(19 + seed)))
                assert one._state(GROUP).epoch == 1 + seed
                assert one.holders(LANES) == {who(23)}

        self.run(test)

    def run(self, test: Callable[[KeyLog, Opens], Awaitable[None]]) -> None:
        async def bounded() -> None:
            opens = self.opens()
            async with asyncio.timeout(60):
                log = await opens()
                try:
                    await test(log, opens)
                finally:
                    await log.close()

        asyncio.run(bounded())
