"""Snapshots are written off the event loop, in their order, and whoever asks gets one answer."""

import asyncio
import threading

import pytest
from tests.broker.node_kit import LONG, run, until
from tests.trust.kit import who

from penstock.broker.node.machine import WorkerThread
from penstock.broker.node.policies import Forgetful, SnapshotWriter
from penstock.errors import FailedError, PenstockError
from penstock.model.principals import Principal

ONE, TWO = who(1), who(2)


class Disk:
    """Writes when it is let."""

    def __init__(self, fails: BaseException | None = None) -> None:
        self.free = threading.Event()
        self.begun = threading.Semaphore(0)
        self.fails = fails
        self.written: list[tuple[Principal, bytes]] = []

    def load(self) -> list[bytes]:
        return []

    def load_brokers(self) -> bytes:
        return b""

    def save_brokers(self, seen: bytes) -> None:
        pass

    def save(self, owner: Principal, snapshot: bytes) -> None:
        self.begun.release()
        assert self.free.wait(LONG)
        if self.fails is not None:
            raise self.fails
        self.written.append((owner, snapshot))


class Scene:
    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.number = 0
        self.told: list[PenstockError | None] = []
        self.writer = SnapshotWriter(disk.save, lambda _owner: str(self.number).encode(), WorkerThread())

    def save(self, owner: Principal = ONE) -> None:
        self.number += 1
        self.writer.save(owner, self.told.append)

    async def begun(self) -> None:
        await asyncio.to_thread(self.disk.begun.acquire)


def test_the_event_loop_goes_on_while_the_disk_does_not_answer() -> None:
    async def test() -> None:
        scene = Scene(Disk())
        scene.save()
        await scene.begun()
        assert scene.told == []
        scene.disk.free.set()
        await scene.writer.finish(LONG)
        assert scene.told == [None]

    run(test())


def test_what_comes_meanwhile_is_written_once_and_in_order() -> None:
    async def test() -> None:
        scene = Scene(Disk())
        scene.save()
        await scene.begun()
        for _ in range(5):
            scene.save()
        scene.save(TWO)
        scene.disk.free.set()
        await scene.writer.finish(LONG)
        assert scene.disk.written == [(ONE, b"1"), (ONE, b"7"), (TWO, b"7")]
        assert scene.told == [None] * 7

    run(test())


@pytest.mark.parametrize("error", [FailedError("file.unwritable", "full"), ValueError("a mistake")])
def test_who_asked_is_told_why_it_failed_and_the_next_is_tried(error: Exception) -> None:
    async def test() -> None:
        scene = Scene(Disk(error))
        scene.disk.free.set()
        scene.save()
        await until(lambda: scene.told)
        (found,) = scene.told
        assert found is not None
        assert found.code == "file.unwritable"
        scene.disk.fails = None
        scene.save()
        await scene.writer.finish(LONG)
        assert scene.told[1:] == [None]

    run(test())


def test_a_disk_that_never_answers_keeps_nobody_from_leaving() -> None:
    async def test() -> None:
        scene = Scene(Disk())
        scene.save()
        await scene.begun()
        with pytest.raises(FailedError) as caught:
            await scene.writer.finish(0.01)
        assert caught.value.code == "file.unwritable"
        scene.disk.free.set()

    run(test())


def test_what_is_kept_nowhere_is_safe_immediately() -> None:
    told: list[PenstockError | None] = []
    SnapshotWriter(Forgetful().save, lambda _owner: b"").save(ONE, told.append)
    assert told == [None]
