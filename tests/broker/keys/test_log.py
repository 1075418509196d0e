"""Logs of key managers, and who writes to them while everybody goes on."""

import asyncio
from collections.abc import Callable, Sequence
from secrets import token_bytes

import pytest
from tests.broker.key_kit import GROUP, KEK, LANES, MANAGER, REPLICA, SECOND, at, grounds, joining, manager, right
from tests.broker.key_log_suite import KeyLogSuite, Opens
from tests.trust.kit import NOW, who

from penstock.broker.keys.log import KeyLog, MemoryLog, SealedLog
from penstock.broker.keys.manager import Append, KeyManager, Reply, Tell
from penstock.broker.keys.node_keys import KeyScribe
from penstock.errors import FailedError, PenstockError
from penstock.fabric.nats_log import NatsLog
from penstock.testing.nats import NatsServer
from penstock.trust.key_statements import KeyEpoch, KeyGroup, KeyNotice, KeyWelcome


class TestMemoryLog(KeyLogSuite):
    DURABLE = False

    def opens(self) -> Opens:
        log = MemoryLog()

        async def open_it() -> KeyLog:
            return log

        return open_it


class TestNatsLog(KeyLogSuite):
    NAMES = iter(range(1000))

    @pytest.fixture(autouse=True)
    def _server(self, server: NatsServer) -> None:
        self.url, self.name = server.url, f"keys{next(self.NAMES)}"

    def opens(self) -> Opens:
        async def open_it() -> KeyLog:
            return await NatsLog.open(self.url, self.name)

        return open_it

    def test_a_server_that_is_away_for_a_moment(self, server: NatsServer) -> None:
        async def test(log: KeyLog, _: Opens) -> None:
            assert await log.append(0, b"0")
            await asyncio.to_thread(server.kill)
            writing = asyncio.create_task(log.append(1, b"1"))
            await asyncio.to_thread(server.start)
            # It may have been stored before the answer was lost, and is there in any case.
            await writing
            assert list(await log.read(0)) == [b"0", b"1"]

        self.run(test)

    @pytest.mark.parametrize("again", [True, False], ids=["made again", "gone"])
    def test_a_stream_that_is_gone_is_told(self, again: bool) -> None:
        async def test() -> None:
            log = await NatsLog.open(self.url, self.name)
            for number in range(3):
                assert await log.append(number, b"x")
            await log._link.ask(f"STREAM.DELETE.{log._stream}")
            if again:
                await (await NatsLog.open(self.url, self.name)).close()
            log._link.patience = 0.5
            with pytest.raises(PenstockError) as caught:
                await log.append(3, b"x")
            # Nobody takes what is for a stream that is not there.
            assert caught.value.code == ("keys.log-lost" if again else "fabric.unreachable")
            for number in (3, 0):
                with pytest.raises(PenstockError) as caught:
                    await log.read(number)
                assert caught.value.code == "keys.log-lost"
            await log.close()

        asyncio.run(test())

    def test_more_copies_than_servers(self) -> None:
        async def test() -> None:
            with pytest.raises(PenstockError) as caught:
                await NatsLog.open(self.url, self.name, copies=3)
            assert caught.value.code == "keys.log-stream"

        asyncio.run(test())


class Desk:
    """A scribe, and what it sent."""

    def __init__(self, log: KeyLog, one: KeyManager | None = None) -> None:
        self.sent: list[Tell | Reply] = []
        self.failed: list[str] = []
        self.now = NOW
        self.manager = one or manager()
        self.scribe = KeyScribe(
            self.manager,
            log,
            lambda: self.now,
            send=self.sent.append,
            failed=lambda error: self.failed.append(error.code),
            period=0.01,
        )

    def join(self, broker: int, group: KeyGroup = GROUP) -> None:
        self.scribe.put(self.manager.join(self.now, joining(broker, self.now, group), grounds(broker, right(broker))))

    def welcomed(self) -> list[object]:
        return [one.broker for one in self.sent if isinstance(one, Reply) and isinstance(one.value.value, KeyWelcome)]


class SlowLog(MemoryLog):
    """A log that waits before it says anything, and can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.goes = asyncio.Event()
        self.fails = 0
        #: after so many more it fails once
        self.fails_after = -1

    async def append(self, number: int, record: bytes) -> bool:
        await self.goes.wait()
        self.fails += self.fails_after == 0
        self.fails_after -= 1
        if self.fails:
            self.fails -= 1
            raise FailedError("keys.log-folder", "the disk is full")
        return await super().append(number, record)


async def until(holds: object) -> None:
    async with asyncio.timeout(60):
        while not holds():  # type: ignore[operator]  # a function
            await asyncio.sleep(0.005)


def test_nobody_is_told_anything_before_the_log_has_it_and_nobody_waits() -> None:
    async def test() -> None:
        log = SlowLog()
        desk = Desk(log)
        await desk.scribe.start()
        desk.join(20)
        desk.join(21)
        await asyncio.sleep(0.05)
        assert desk.sent == []
        log.goes.set()
        await until(lambda: len(desk.welcomed()) == 2)
        assert len(log.records) == 2
        await desk.scribe.stop()

    asyncio.run(test())


def test_what_could_not_be_written_is_told_and_written_later() -> None:
    async def test() -> None:
        log = SlowLog()
        log.goes.set()
        log.fails = 1
        desk = Desk(log)
        await desk.scribe.start()
        desk.join(20)
        await until(lambda: desk.failed)
        assert desk.failed == ["keys.log-folder"]
        assert desk.sent == []
        desk.now = at(6)
        desk.scribe.put(desk.manager.tick(desk.now)[0])
        await until(desk.welcomed)
        await desk.scribe.stop()

    asyncio.run(test())


def test_what_follows_from_a_record_is_sent_also_where_the_next_cannot_be_written() -> None:
    """An eviction of a type and its attributes is a record each: nobody waits for the last of them."""

    async def test() -> None:
        log = SlowLog()
        log.goes.set()
        desk = Desk(log)
        await desk.scribe.start()
        for group in (GROUP, LANES):
            desk.join(20, group)
            desk.join(21, group)
        await until(lambda: len(desk.welcomed()) == 4)
        desk.sent.clear()
        log.fails_after = 1
        for group in (GROUP, LANES):
            desk.scribe.put(desk.manager.evict(desk.now, group, who(21)))
        await until(lambda: desk.failed)
        assert [type(one.value.value) for one in desk.sent] == [KeyEpoch]
        assert who(21) not in desk.manager.holders(GROUP)
        desk.now = at(6)
        desk.scribe.put(desk.manager.tick(desk.now)[0])
        await until(lambda: who(21) not in desk.manager.holders(LANES))
        await desk.scribe.stop()

    asyncio.run(test())


def test_what_follows_from_a_record_is_sent_also_where_the_next_cannot_be_read() -> None:
    async def test() -> None:
        log = MemoryLog()
        desk = Desk(log)
        await desk.scribe.start()
        [append] = desk.manager.join(desk.now, joining(20), grounds(20, right(20)))
        assert isinstance(append, Append)
        log.records += [append.record.to_bytes(), b"junk"]
        await until(lambda: desk.failed)
        assert desk.welcomed() == [who(20)]
        await desk.scribe.stop()

    asyncio.run(test())


def test_a_manager_that_starts_tells_which_epochs_there_are() -> None:
    """Whoever should have received them when it died has not received them."""

    async def test() -> None:
        log = MemoryLog()
        desk = Desk(log)
        await desk.scribe.start()
        for group in (GROUP, LANES):
            desk.join(20, group)
        await until(lambda: len(desk.welcomed()) == 2)
        await desk.scribe.stop()
        again = Desk(log)
        await again.scribe.start()
        again.scribe.put(again.manager.tick(again.now)[0])
        told = [one.value.value for one in again.sent]
        assert [(type(one), one.word.group, one.word.epoch) for one in told] == [
            (KeyNotice, GROUP, 1),
            (KeyNotice, LANES, 1),
        ]
        await again.scribe.stop()

    asyncio.run(test())


def test_a_log_that_cannot_be_read_is_told_of_once() -> None:
    class Away(MemoryLog):
        reads = 0

        async def read(self, number: int) -> Sequence[bytes]:
            self.reads += 1
            if self.reads > 1:
                raise FailedError("keys.log-stream", "no server answers")
            return await super().read(number)

    async def test() -> None:
        log = Away()
        desk = Desk(log)
        await desk.scribe.start()
        await until(lambda: log.reads > 4)
        await desk.scribe.stop()
        assert desk.failed == ["keys.log-stream"]

    asyncio.run(test())


def test_a_replica_reads_what_another_one_writes() -> None:
    async def test() -> None:
        log = MemoryLog()
        one, other = Desk(log), Desk(log, manager(REPLICA))
        for desk in (one, other):
            await desk.scribe.start()
        one.join(20)
        await until(lambda: who(20) in other.manager.holders(GROUP))
        # Both are asked, as in a network: both answer, and the epoch has begun once.
        for desk in (one, other):
            desk.now += SECOND
            desk.join(21)
        await until(lambda: who(21) in one.welcomed() and who(21) in other.welcomed())
        assert one.manager._state(GROUP).to_sexp() == other.manager._state(GROUP).to_sexp()
        for desk in (one, other):
            await desk.scribe.stop()
        assert not one.failed
        assert not other.failed

    asyncio.run(test())


def test_a_manager_that_is_killed_after_writing_starts_again_with_what_it_wrote() -> None:
    class Deadly(MemoryLog):
        async def append(self, number: int, record: bytes) -> bool:
            await super().append(number, record)
            await asyncio.Event().wait()
            raise AssertionError

        async def read(self, number: int) -> Sequence[bytes]:
            return await super().read(number)

    async def test() -> None:
        log = Deadly()
        desk = Desk(log)
        await desk.scribe.start()
        desk.join(20)
        await until(lambda: log.records)
        await desk.scribe.stop()
        assert desk.sent == []
        saved = MemoryLog()
        saved.records = log.records
        again = Desk(saved, manager(MANAGER, seed=7))
        await again.scribe.start()
        again.now += SECOND
        again.join(20)
        assert again.welcomed() == [who(20)]
        assert len(saved.records) == 1
        await again.scribe.stop()

    asyncio.run(test())


class TestSealedLog(KeyLogSuite):
    DURABLE = False

    def opens(self) -> Opens:
        log = SealedLog(MemoryLog(), KEK, token_bytes)

        async def open_it() -> KeyLog:
            return log

        return open_it


def test_a_sealed_log_names_nobody_and_hides_how_long_names_are() -> None:
    async def test() -> None:
        below = MemoryLog()
        log = SealedLog(below, KEK, token_bytes)
        for number, name in enumerate((b"org.london.Sighting", b"a", b"x" * 200)):
            assert await log.append(number, b"(key-record " + name + b")")
            assert name not in below.records[number] or len(name) == 1
        assert len({len(record) for record in below.records}) == 1
        assert [len(record) for record in await log.read(0)] == [32, 14, 213]

    asyncio.run(test())


def test_a_log_from_before_records_were_sealed_goes_on() -> None:
    async def test() -> None:
        below = MemoryLog()
        plain = Desk(below)
        await plain.scribe.start()
        plain.join(20)
        await until(plain.welcomed)
        await plain.scribe.stop()
        assert below.records[0].startswith(b"(")
        desk = Desk(SealedLog(below, KEK, token_bytes))
        await desk.scribe.start()
        assert desk.manager.position == 1
        desk.join(21)
        await until(desk.welcomed)
        await desk.scribe.stop()
        assert [record[:1] for record in below.records] == [b"(", b"\x02"]

    asyncio.run(test())


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda record: record[:-1] + bytes((record[-1] ^ 1,)), "keys.wrong-kek"),
        (lambda record: record[:10], "keys.wrong-kek"),
        (lambda record: b"\x03" + record[1:], "keys.log-version"),
        (lambda _record: b"", "keys.log-version"),
    ],
)
def test_a_sealed_record_that_does_not_read_is_refused(spoil: Callable[[bytes], bytes], code: str) -> None:
    async def test() -> None:
        below = MemoryLog()
        log = SealedLog(below, KEK, token_bytes)
        assert await log.append(0, b"(record)")
        below.records[0] = spoil(below.records[0])
        with pytest.raises(PenstockError) as caught:
            await Desk(log).scribe.start()
        assert caught.value.code == code

    asyncio.run(test())
