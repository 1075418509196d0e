"""The fabric over DDS: the suite of all adapters, the keeper, other processes, and strangers in the domain."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FailedError, MalformedError
from penstock.fabric import Clock, Durability, Fabric, KeysUnder, Ownership, Priority, Qos, Sample, SystemClock
from penstock.fabric.envelope import encode
from penstock.fabric.limits import FABRIC_LIMITS
from penstock.testing.fabric_suite import (
    EVENTS,
    LIVE,
    LOG,
    PATIENCE,
    STATE,
    TABLE_3,
    FabricSuite,
    ManualClock,
    nothing,
    refused,
    take,
    until,
)

pytest.importorskip("cyclonedds", reason="cyclonedds is not installed: there is no wheel for this machine")

from cyclonedds.qos import Policy

from penstock.fabric.dds import DdsFabric
from penstock.fabric.dds_keeper import CONTROL, DdsKeeper, sample_topic
from penstock.fabric.dds_link import (
    DdsAddress,
    DdsLink,
    KeyedOctets,
    PlainOctets,
    pack,
    pack_message,
    policies,
    unpack,
    unpack_key,
    unpack_message,
)


def address() -> str:
    """Return the DDS domain of this process: tests run in processes that are copies of one."""
    return f"dds://127.0.0.1/{os.getpid() % 200}?tag=test{os.getpid()}"


PERSISTENT = replace(LOG, durability=Durability.PERSISTENT)
_PREFIXES = count()


class _Fabric(DdsFabric):
    """A fabric that ends its keeper too."""

    keeper: DdsKeeper

    async def close(self) -> None:
        await super().close()
        await self.keeper.close()


class TestDds(FabricSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "topics"

    async def open(self, clock: Clock) -> Fabric:
        self.prefix = f"suite{next(_PREFIXES)}"
        keeper = await DdsKeeper.open(address(), file=self.path, prefix=self.prefix, clock=clock)
        fabric = await _Fabric.connect(address(), prefix=self.prefix, clock=clock)
        fabric.keeper = keeper
        return fabric

    async def join(self, fabric: Fabric, clock: Clock | None = None) -> Fabric:
        return await DdsFabric.connect(address(), prefix=self.prefix, clock=clock or self.clock)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await test()

    asyncio.run(bounded())


@asynccontextmanager
async def domain(clock: Clock | None = None) -> AsyncIterator[tuple[DdsKeeper, DdsFabric, str]]:
    prefix = f"test{next(_PREFIXES)}"
    async with (
        await DdsKeeper.open(address(), prefix=prefix, clock=clock) as keeper,
        await DdsFabric.connect(address(), prefix=prefix, clock=clock) as fabric,
    ):
        yield keeper, fabric, prefix


def test_without_cyclonedds_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['cyclonedds'] = None; import penstock.fabric.dds"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert "fabric.not-installed" in found.stderr


@pytest.mark.parametrize(
    "text", ["", "dds://", "dds://a/231", "dds://a/x", "dds://a,,b", 'dds://a"/7', "nats://a", "dds://a?tag=<x>"]
)
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(MalformedError) as bad:
        DdsAddress.parse(text)
    assert bad.value.code == "fabric.bad-address"


def test_loopback_and_unicast_only() -> None:
    config = DdsAddress.parse("dds://127.0.0.1,localhost/7").config()
    assert 'NetworkInterface address="127.0.0.1"' in config
    assert "<AllowMulticast>false<" in config
    assert "autodetermine" in DdsAddress.parse("dds://10.0.0.1,10.0.0.2").config()


def test_without_a_keeper_a_fabric_does_not_open() -> None:
    async def whole() -> None:
        with pytest.raises(FailedError) as failed:
            await DdsFabric.connect(address(), prefix="nobody", timeout=0.05)
        assert failed.value.code == "fabric.unreachable"
        async with domain():
            with refused("fabric.bad-address"):  # one process, one domain, one tag
                await DdsFabric.connect(address() + "x")

    run(whole)


# the keeper


def test_what_is_kept_outlives_its_writer_and_persistent_topics_the_keeper(tmp_path: Path) -> None:
    async def whole() -> None:
        prefix = f"test{next(_PREFIXES)}"
        clock = ManualClock()
        keeper = await DdsKeeper.open(address(), file=tmp_path / "topics", prefix=prefix, clock=clock)
        writing = await DdsFabric.connect(address(), prefix=prefix, clock=clock)
        staying = await DdsFabric.connect(address(), prefix=prefix, clock=clock)
        for topic, qos in (("kept", PERSISTENT), ("log", LOG), ("live", LIVE)):
            await writing.declare(topic, qos)
            writer = await writing.publisher(topic)
            await writer.publish(b"1")
        await writing.close()
        reader, lost = await staying.subscribe("kept"), await staying.subscribe("log")
        live = await staying.subscribe("live")
        assert await take(reader, 1) == await take(lost, 1) == [b"1"]

        mine = await staying.publisher("kept")
        own = await staying.publisher("live")
        await mine.publish(b"2")
        await keeper.close()
        with pytest.raises(FailedError):
            await staying.call({"op": "hello"}, timeout=0.05)
        await own.publish(b"without a keeper")
        assert await take(live, 1) == [b"without a keeper"]
        keeper = await DdsKeeper.open(address(), file=tmp_path / "topics", prefix=prefix, clock=clock)
        while True:  # until the client has noticed
            with suppress(FailedError):
                await mine.publish(b"3")
                break
        assert await take(reader, 2) == [b"2", b"3"]
        await nothing(reader)  # nor twice
        async with await DdsFabric.connect(address(), prefix=prefix, clock=clock) as late:
            assert await take(await late.subscribe("kept"), 3) == [b"1", b"2", b"3"]
            await until(lambda: staying._joined)
            assert await late.describe("live") == LIVE  # declared again by a client
            assert await late.state("log") == ()
            other = await late.subscribe("live")
            await own.publish(b"again")
            assert await take(other, 1) == [b"again"]
        await staying.close()
        await keeper.close()

    run(whole)


def test_a_fabric_closes_soon_if_its_keeper_is_gone() -> None:
    async def whole() -> None:
        prefix = f"test{next(_PREFIXES)}"
        keeper = await DdsKeeper.open(address(), prefix=prefix)
        fabric = await DdsFabric.connect(address(), prefix=prefix)
        await fabric.declare("live", LIVE)
        for _ in range(3):
            await fabric.publisher("live")
            await fabric.serve("live", _echo)
        await keeper.close()
        await until(lambda: not fabric.joined)
        fabric.timeout = 2 * PATIENCE
        await fabric.close()

    run(whole)


def test_nobody_silences_a_writer_with_its_id_and_a_high_count() -> None:
    async def whole() -> None:
        async with domain() as (_, fabric, prefix):
            await fabric.declare("log", LOG)
            writer, reader = await fabric.publisher("log"), await fabric.subscribe("log")
            link = DdsLink(DdsAddress.parse(address()))
            stranger = link.writer(sample_topic(prefix, "log"), policies(LOG, FABRIC_LIMITS, kept=True), keyed=True)
            forged = encode(Sample(b"forged", writer=writer.writer, sequence=2**64 - 1))
            stranger.write(pack(b"\xff" * 8 + forged, ""), 1)
            assert await take(reader, 1) == [b"forged"]  # signatures above the port show that it is
            await writer.publish(b"true")
            assert await take(reader, 1) == [b"true"]
            await link.close()

    run(whole)


def test_a_client_that_is_gone_leaves_nothing_at_the_keeper() -> None:
    async def whole() -> None:
        async with domain() as (keeper, fabric, prefix):
            await fabric.declare("live", replace(LIVE, lease=60.0))
            gone: list[bytes] = []
            await fabric.subscribe(
                "live", on_writer=lambda writer, there: None if there else gone.append(writer), callback=_ignore
            )
            client = await DdsFabric.connect(address(), prefix=prefix)
            await client.subscribe("live")
            await client.serve("live", _echo)
            writer = await client.publisher("live")
            await client._link.close()  # as if it had crashed
            await until(lambda: len(keeper._clients) == 1)
            assert (len(keeper._readers), len(keeper._writers), keeper._services) == (1, 0, {"live": []})
            await until(lambda: gone == [writer.writer])

    run(whole)


# starts that fail


async def _fail(*_: object, **__: object) -> None:
    raise FailedError("fabric.refused", "as if DDS had failed")


def _refuse(*_: object, **__: object) -> None:
    raise FailedError("fabric.refused", "as if DDS had failed")


def test_a_writer_that_could_not_begin_does_not_own_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> None:
        async with domain() as (keeper, fabric, _):
            await fabric.declare("conf", replace(LIVE, ownership=Ownership.EXCLUSIVE))
            with monkeypatch.context() as patched:
                patched.setattr(keeper, "_introduce", _fail)
                with refused("fabric.refused"):
                    await fabric.publisher("conf")
            assert not fabric._publishers  # it is not made known again
            await fabric.publisher("conf")

    run(whole)


def test_a_service_whose_registration_was_lost_gets_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> None:
        async with domain() as (keeper, fabric, _):
            await fabric.declare("live", LIVE)
            added = keeper._add_service

            async def lose(*arguments: Any) -> None:
                await added(*arguments)
                await _fail()

            with monkeypatch.context() as patched:
                patched.setattr(keeper, "_add_service", lose)
                with refused("fabric.refused"):
                    await fabric.serve("live", _echo)
            with refused("fabric.no-responder"):
                await fabric.request("live", b"1", timeout=1.0)

    run(whole)


@pytest.mark.parametrize("qos", [LIVE, LOG])
def test_a_reader_that_could_not_begin_leaves_nothing_at_the_keeper(qos: Qos, monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> None:
        async with domain() as (keeper, fabric, _):
            await fabric.declare("read", qos)
            with monkeypatch.context() as patched:
                if qos.durable:
                    patched.setattr(fabric._link, "reader", _refuse)
                else:
                    patched.setattr(fabric, "_meet", _fail)
                with refused("fabric.refused"):
                    await fabric.subscribe("read")
            await fabric.describe("read")  # the keeper has carried out what it was sent before
            assert not keeper._readers

    run(whole)


def test_a_client_that_could_not_begin_leaves_the_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> None:
        before = _dds_threads()
        monkeypatch.setattr(DdsLink, "writer", _refuse)
        with refused("fabric.refused"):
            await DdsFabric.connect(address(), prefix="nobody")
        assert _dds_threads() == before

    run(whole)


def test_a_keeper_that_could_not_begin_closes_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> None:
        before = _dds_threads()
        monkeypatch.setattr(DdsLink, "reader", _refuse)
        with pytest.raises(FailedError) as failed:  # it holds the frames, and so what they have opened
            await DdsKeeper.open(address(), file=tmp_path / "topics")
        assert failed.value.code == "fabric.refused"
        assert _dds_threads() == before
        # SQLite deletes the others when the file is closed.
        assert {each.name for each in tmp_path.iterdir()} == {"topics", "topics.lock"}

    run(whole)


def _dds_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "penstock-dds"}


async def _ignore(_: Sample) -> None:
    pass


async def _echo(sample: Sample) -> bytes:
    return sample.data


# policies on the wire


def test_the_policies_of_table_3_are_those_of_the_dds_writers() -> None:
    """DDS says which policies it has: not so if a policy is not handed to it."""

    async def whole() -> None:
        async with domain(SystemClock()) as (_, fabric, prefix):
            topics = {name: replace(qos, durability=Durability.VOLATILE) for name, qos in TABLE_3.items()}
            topics["best-effort"] = Qos()
            for name, qos in topics.items():
                await fabric.declare(name, qos)
                writer = await fabric.publisher(name, instance="one")
                reader = fabric._link.reader(
                    sample_topic(prefix, name),
                    policies(qos, FABRIC_LIMITS),
                    lambda _: None,
                    partitions=["*"],
                )
                if not hasattr(reader.entity, "get_matched_publications"):
                    pytest.skip("this version of cyclonedds does not say which policies DDS has")
                (handle,) = reader.entity.get_matched_publications()
                said = reader.entity.get_matched_publication_data(handle).qos
                assert (said[Policy.Reliability] != Policy.Reliability.BestEffort) == qos.reliable
                budget = 0 if name == "best-effort" else 1e9 * qos.latency_budget
                assert said[Policy.LatencyBudget].budget == budget
                assert said[Policy.TransportPriority].priority == list(Priority).index(qos.priority)
                lifespan = said[Policy.Lifespan].lifespan if Policy.Lifespan in said else 2**63 - 1
                assert lifespan == (5e9 if name == "DREQ" else 2**63 - 1)
                assert said[Policy.Partition].partitions == ("one",) or said[Policy.Partition].partitions == ["one"]
                exclusive = qos.ownership is Ownership.EXCLUSIVE
                assert (said[Policy.Ownership] == Policy.Ownership.Exclusive) == exclusive
                if exclusive:
                    assert said[Policy.OwnershipStrength].strength == writer._epoch == 1
                reader.close()

    run(whole)


def test_dds_itself_drops_what_a_former_owner_writes() -> None:
    async def whole() -> None:
        async with domain() as (_, fabric, prefix):
            await fabric.declare("conf", replace(LIVE, ownership=Ownership.EXCLUSIVE))
            got: list[bytes] = []
            qos = policies(replace(LIVE, ownership=Ownership.EXCLUSIVE), FABRIC_LIMITS)
            reader = fabric._link.reader(sample_topic(prefix, "conf"), qos, got.extend)
            first = await fabric.publisher("conf")
            await first.publish(b"1")
            second = await fabric.publisher("conf", strength=1)
            await second.publish(b"2")
            assert first._entity is not None
            first._entity.write(pack(b"\1" + encode(Sample(b"usurped"))), 1)
            await second.publish(b"3")
            await until(lambda: len(got) >= 3)
            assert [unpack(raw)[-1:] for raw in got] == [b"1", b"2", b"3"]
            reader.close()

    run(whole)


# other processes


_CHILD = """
import asyncio, sys
from penstock.fabric.dds import DdsFabric

async def main() -> None:
    async with await DdsFabric.connect(sys.argv[1], prefix=sys.argv[2]) as fabric:
        commands = await fabric.subscribe("commands")
        writers = {topic: await fabric.publisher(topic) for topic in ("live", "log")}
        print("ready", flush=True)
        async for sample in commands:
            for writer in writers.values():
                await writer.publish(sample.data, key=sample.key)

asyncio.run(main())
"""


def test_other_processes_and_the_crash_of_one() -> None:
    async def whole() -> None:
        async with domain() as (_, fabric, prefix):
            await fabric.declare("commands", LIVE)
            await fabric.declare("live", replace(LIVE, lease=0.5))
            await fabric.declare("log", replace(LOG, lease=0.5))
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _CHILD, address(), prefix, stdout=asyncio.subprocess.PIPE
            )
            assert child.stdout is not None
            assert await child.stdout.readline() == b"ready\n"
            changes: list[tuple[bytes, bool]] = []
            live = await fabric.subscribe("live", on_writer=lambda *change: changes.append(change))
            log = await fabric.subscribe("log", keys=["a/b", KeysUnder("c")])
            commands = await fabric.publisher("commands")
            largest = b"x" * FABRIC_LIMITS.fabric_bytes
            for data, key in ((b"1", "a/b"), (largest, "c/d"), (b"2", "c"), (b"3", "c/d")):
                await commands.publish(data, key=key)
            assert await take(live, 4) == [b"1", largest, b"2", b"3"]
            assert await take(log, 3) == [b"1", largest, b"3"]
            os.kill(child.pid, signal.SIGKILL)
            await child.wait()
            ((writer, _),) = changes
            waiting = asyncio.ensure_future(anext(live))
            await until(lambda: changes[-1] == (writer, False))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            late = await fabric.subscribe("log")
            assert await take(late, 4) == [b"1", largest, b"2", b"3"]

    run(whole)


# strangers


@given(st.binary(max_size=300), st.text(max_size=20))
def test_our_bytes_are_those_of_the_library(data: bytes, key: str) -> None:
    assert pack(data).rstrip(b"\0") == PlainOctets(data).serialize().rstrip(b"\0")
    assert unpack(pack(data)) == data
    assert unpack(pack(data, key), keyed=True) == data
    assert KeyedOctets.deserialize(pack(data, key)).data in (data, list(data))
    assert unpack_key(pack(data, key)) == key


@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda rest: b"\0\1\0\0" + rest))
def test_bytes_of_a_stranger_are_a_sample_or_refused(raw: bytes) -> None:
    for keyed in (False, True):
        with suppress(MalformedError):
            assert len(unpack(raw, keyed=keyed)) <= len(raw)
    with suppress(MalformedError):
        assert len(unpack_key(raw)) <= len(raw)
    with suppress(MalformedError):
        number, fields, body = unpack_message(raw)
        assert (0 <= number < 2**32, type(fields)) == (True, dict)
        assert len(body) < len(raw)


@pytest.mark.parametrize("raw", [b"\0" * 8 + b"[" * 100_000, b"\0\0\0\0\0\0\0\2[]", b"\0\0\0\0\xff\xff\xff\xff{}"])
def test_messages_that_do_not_read_are_refused(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        unpack_message(raw)


def test_too_much_is_refused_before_it_is_read() -> None:
    with pytest.raises(MalformedError):
        unpack(pack(b"x" * (FABRIC_LIMITS.fabric_bytes + (64 << 10))))


def test_junk_of_a_stranger_is_counted_and_the_others_go_on() -> None:
    async def whole() -> None:
        async with domain() as (keeper, fabric, prefix):
            for topic, qos in (("events", EVENTS), ("live", LIVE), ("state", STATE)):
                await fabric.declare(topic, qos)
            readers = {topic: await fabric.subscribe(topic) for topic in ("events", "live", "state")}
            control = policies(CONTROL, FABRIC_LIMITS)
            link = DdsLink(DdsAddress.parse(address()))
            junk = [b"", b"\0", b"\1", b"\2" * 40, b"\1" + b"\xff" * 40, b"\0" * 9, b"\xff" * 3_000]
            for topic, reader in readers.items():
                keyed = topic == "state"
                qos = policies(STATE, FABRIC_LIMITS, kept=True) if keyed else policies(reader.reader.qos, FABRIC_LIMITS)
                stranger = link.writer(sample_topic(prefix, topic), qos, keyed=keyed)
                for data in junk:
                    stranger.write(pack(data, "" if keyed else None), 1)
            calls = link.writer(f"{prefix}/calls", control, keyed=True)
            replies = link.writer(f"{prefix}/replies", control, keyed=True, partition=fabric._id.hex())
            ops = [
                "hello",
                "nothing",
                "declare",
                "writer",
                "ready",
                "claim",
                "publish",
                "reader",
                "poke",
                "met",
                "state",
            ]
            messages = [pack_message(7, {"op": op}, b"junk") for op in [*ops, "serve", "request", "answered", 7]]
            messages += [b"", b"\xff" * 100, pack_message(1, {"op": "poke", "writers": [None, "zz"]})]
            messages += [pack_message(1, {"op": "declare", "topic": "x" * 999, "qos": {}}), pack_message(1, {})]
            for message in messages:
                for data in (message, b"stranger" + message, fabric._id + message):
                    calls.write(pack(data, "\0"), 1)
                replies.write(pack(message, "\0"), 1)
                replies.write(pack(pack_message(0, {"op": "meet", "writer": 7, "readers": [None]}), "x"), 1)
            await until(lambda: keeper.refused > 40 and fabric.malformed > 20)
            await until(lambda: all(reader.counts.malformed >= 6 for reader in readers.values()))
            for topic, reader in readers.items():
                writer = await fabric.publisher(topic)
                await writer.publish(b"true", key="k")
                assert await take(reader, 1) == [b"true"]
            assert [sample.data for sample in await fabric.state("state")] == [b"true"]
            assert len(keeper._clients) <= 3
            await link.close()

    run(whole)


def test_what_a_client_can_open_is_bounded() -> None:
    async def whole() -> None:
        prefix = f"test{next(_PREFIXES)}"
        limits = replace(FABRIC_LIMITS, fabric_keys=3)
        async with (
            await DdsKeeper.open(address(), prefix=prefix, limits=limits),
            await DdsFabric.connect(address(), prefix=prefix) as fabric,
        ):
            await fabric.declare("live", LIVE)
            writer = await fabric.publisher("live")
            await fabric.subscribe("live")
            await fabric.serve("live", _echo)
            with refused("fabric.refused"):
                await fabric.publisher("live")
            await writer.close()
            await fabric.publisher("live")

    run(whole)
