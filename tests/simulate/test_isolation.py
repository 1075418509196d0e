"""Simulated code cannot use the real machine by accident."""

import ast
import asyncio
import gc
import http.client
import logging
import os
import random
import re
import secrets
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker.client.client import connect
from penstock.broker.core.settings import NodeSettings
from penstock.errors import FailedError
from penstock.fabric.embedded import EmbeddedFabric
from penstock.fabric.port import since_boot
from penstock.simulate.isolation import isolated
from penstock.simulate.loop import VirtualLoop

# ruff: noqa: PLW0108, S311  # functions are looked up when they are called, and are replaced by then


def _in_a_pool() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()


def _by_http() -> None:
    with suppress(OSError):
        http.client.HTTPConnection("127.0.0.1", 1, timeout=1).connect()


WAYS: dict[str, Callable[[], object]] = {
    "time.time": lambda: time.time(),
    "time.monotonic": lambda: time.monotonic(),
    "time.sleep": lambda: time.sleep(0),
    "time.gmtime": lambda: time.gmtime(),
    "time.localtime": lambda: time.localtime(None),
    "time.strftime": lambda: time.strftime("%Y"),
    "os.urandom": lambda: os.urandom(4),
    "os.getrandom": lambda: os.getrandom(4),
    "secrets.token_bytes": lambda: secrets.token_bytes(4),
    "secrets.randbits": lambda: secrets.randbits(4),
    "random.random": lambda: random.random(),
    "random.shuffle": lambda: random.shuffle([1, 2]),
    "random.getrandbits": lambda: random.getrandbits(4),
    "random.gauss": lambda: random.gauss(),
    "random.expovariate": lambda: random.expovariate(1),
    "random.Random": lambda: random.Random(),
    "random.Random.seed": lambda: random.Random(1).seed(),
    "random.SystemRandom": lambda: random.SystemRandom().choice([1, 2]),
    "uuid.uuid4": lambda: uuid.uuid4(),
    "uuid.uuid1": lambda: uuid.uuid1(),
    "socket.socket": lambda: socket.socket().close(),
    "socket.getaddrinfo": lambda: socket.getaddrinfo("127.0.0.1", 1),
    "http.client": _by_http,
    "threading.Thread": lambda: threading.Thread(target=int).start(),
    "ThreadPoolExecutor": _in_a_pool,
    "subprocess": lambda: subprocess.run(["true"], check=True),
    "os.system": lambda: os.system("true"),  # noqa: S605  # it does nothing
    "penstock's clock": since_boot,
}


@pytest.mark.parametrize("name", WAYS)
def test_the_real_machine_is_refused_in_a_simulated_process_alone(name: str) -> None:
    loop, way = VirtualLoop(), WAYS[name]

    async def inside() -> None:
        way()

    before = time.time
    with isolated():
        way()
        loop.run_until_complete(inside())
        assert loop.reports == []
        with pytest.raises(FailedError) as refused:
            loop.run_until_complete(loop.start(loop.process("p"), inside()))
    assert refused.value.code == "simulate.real"
    assert [report["exception"] for report in loop.reports] == [refused.value]
    assert time.time is before
    way()


def test_what_a_seed_or_a_time_is_given_to_is_not_refused(caplog: pytest.LogCaptureFixture) -> None:
    loop, found = VirtualLoop(), list[object]()

    async def inside() -> None:
        found.append(random.Random(1).random() == random.Random(1).random())
        found.append(time.strftime("%Y-%m-%d", time.gmtime(0)))
        found.append(uuid.uuid5(uuid.NAMESPACE_URL, "a") == uuid.uuid5(uuid.NAMESPACE_URL, "a"))
        logging.getLogger("penstock").warning("a line of a log")

    with isolated():
        loop.run_until_complete(loop.start(loop.process("p"), inside()))
    assert found == [True, "1970-01-01", True]
    assert [record.message for record in caplog.records] == ["a line of a log"]
    assert loop.reports == []


def test_what_measures_the_collection_of_memory_is_not_refused() -> None:
    loop, found = VirtualLoop(), list[float]()

    def measure(_phase: str, _info: object) -> None:
        found.append(time.perf_counter())

    async def inside() -> None:
        # As if memory were collected now: whatever other tests have left behind would be part of this one.
        measure("start", {})

    gc.callbacks.append(measure)
    try:
        with isolated():
            loop.run_until_complete(loop.start(loop.process("p"), inside()))
    finally:
        gc.callbacks.remove(measure)
    assert found
    assert loop.reports == []


def test_a_pool_with_threads_is_refused_too() -> None:
    loop = VirtualLoop()

    async def inside() -> None:
        pool.submit(int)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        with isolated(), pytest.raises(FailedError, match=r"ThreadPoolExecutor\.submit"):
            loop.run_until_complete(loop.start(loop.process("p"), inside()))


def test_what_is_refused_is_reported_once_for_each_place_that_calls() -> None:
    loop = VirtualLoop()

    async def inside() -> None:
        for _ in range(3):
            with suppress(FailedError):
                time.time()
        with suppress(FailedError):
            time.time()
        with suppress(FailedError):
            _by_http()
        with suppress(FailedError):
            since_boot()
        with suppress(FailedError):
            await asyncio.to_thread(int)

    with isolated():
        loop.run_until_complete(loop.start(loop.process("p"), inside()))
    found = [re.sub(r":\d+", "", str(report["exception"]).partition("machine: ")[2]) for report in loop.reports]
    assert found == [
        "`tests.simulate.test_isolation` called `time.time` [simulate.real]",
        "`tests.simulate.test_isolation` called `time.time` [simulate.real]",
        "`socket` called `socket.getaddrinfo` [simulate.real]",
        "`penstock.fabric.port` called `time.clock_gettime` [simulate.real]",
        "`asyncio.threads` called `loop.run_in_executor` [simulate.real]",
    ]


def test_a_report_names_the_code_of_penstock_that_called_a_library() -> None:
    loop = VirtualLoop()
    of_penstock = eval("lambda: by_http()", {"__name__": "penstock.x", "by_http": _by_http})  # noqa: S307  # a constant

    async def inside() -> None:
        of_penstock()

    with isolated(), pytest.raises(FailedError, match=r"`socket:\d+` for `penstock\.x:1` called `socket.getaddrinfo`"):
        loop.run_until_complete(loop.start(loop.process("p"), inside()))


def test_what_the_driver_is_refused_is_not_reported() -> None:
    loop = VirtualLoop()
    with pytest.raises(FailedError) as refused:
        loop.run_until_complete(asyncio.to_thread(int))
    assert refused.value.code == "simulate.real"
    assert loop.reports == []


def test_defaults_of_penstock_are_refused_too() -> None:
    def defaults() -> list[object]:
        functions: list[Any] = [NodeSettings.__init__, EmbeddedFabric.__init__, connect]
        return [value for f in functions for value in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values())]

    loop, real = VirtualLoop(), secrets.token_bytes
    assert defaults().count(real) == 3

    async def inside() -> None:
        for value in defaults():
            if getattr(value, "__wrapped__", None) is not None:
                with pytest.raises(FailedError):
                    value()  # type: ignore[operator]  # it is a function

    with isolated():
        assert defaults().count(real) == 0
        # Three random sources, and the date.
        assert sum(hasattr(value, "__wrapped__") for value in defaults()) == 4
        loop.run_until_complete(loop.start(loop.process("p"), inside()))
    assert defaults().count(real) == 3


# ----------------------------------------------------------------------------------------------------------------------
# The source: what the guard cannot see, and where production code uses the real machine on purpose.

SOURCE = Path(penstock.__file__).parent
#: the packages that can be simulated, and those that they use
ROOMS = (
    *("authority", "broker", "codec", "crypto", "fabric", "guard", "model", "moderator", "policy", "roles"),
    *("selector", "store", "trust"),
)
DATES = re.compile(r"datetime\.(?:datetime\.(?:now|utcnow|today)|date\.today)")
REAL = re.compile(
    r"""
    time\.(?:time|monotonic|perf_counter|thread_time|process_time|clock_gettime)(?:_ns)?
    | time\.(?:sleep|gmtime|localtime|ctime|asctime|strftime)
    | random\.(?:[a-z]\w*|SystemRandom|Random\(\)) | numpy\.random\.\w+ | secrets\.(?!compare_digest)\w+
    | os\.(?:urandom|getrandom) | uuid\.uuid[1467] | ssl\.RAND_bytes
    | socket\.\w+ | http\.client\.\w+ | urllib\.request\.\w+ | asyncio\.(?:open_connection|start_server)
    | threading\.(?:Thread|Timer) | _thread\.\w+ | concurrent\.futures\.\w+Executor | asyncio\.to_thread
    | (?:.*\.)?run_in_executor
    | subprocess\.\w+ | multiprocessing\.\w+ | asyncio\.create_subprocess_\w+ | os\.(?:fork|system|popen|posix_spawn\w*)
    """,
    re.VERBOSE,
)
#: what a module must have to be read as a tree, which takes long
HINT = re.compile(
    r"\b(?:import|from) (?:time|random|numpy|secrets|uuid|socket|http|urllib\.request|threading|_thread)\b"
    r"|\b(?:import|from) (?:concurrent|subprocess|multiprocessing)\b"
    r"|\.(?:now|utcnow|today)\(|\b(?:urandom|getrandom|RAND_bytes|open_connection|start_server|to_thread)\("
    r"|\b(?:run_in_executor|create_subprocess_\w+|fork|system|popen|posix_spawn\w*)\("
)
_ADAPTER = "an adapter to a real server: worlds have the embedded fabric"
_FILES = "real files: worlds have simulated disks"
_SERVED = "it signs or stores in a thread, and no world runs it: one that did would be refused"
_SOURCES = "it asks real databases and services: worlds bring facts of their own"
#: what calls the real machine, and why that is right
ALLOWED = {
    "authority/components/information/sources.py concurrent.futures.ThreadPoolExecutor": _SOURCES,
    "authority/components/information/sources.py asyncio.get_running_loop().run_in_executor": _SOURCES,
    "authority/facts.py asyncio.to_thread": _SOURCES,
    "authority/facts.py http.client.HTTPConnection": _SOURCES,
    "authority/facts.py http.client.HTTPSConnection": _SOURCES,
    "authority/domain/distribution.py asyncio.to_thread": _SERVED,
    "authority/domain/signers.py subprocess.run": "a signer outside of the process",
    "authority/polls_network.py asyncio.to_thread": _SERVED,
    "broker/client/client.py asyncio.to_thread": "it fetches old keys, which no client in a world does",
    "broker/wire/link.py asyncio.to_thread": "only for a signer outside of the process",
    "broker/wire/link.py socket.create_server": "the real listener: a simulated network has its own",
    "fabric/port.py time.time": "the real clock, which is a setting",
    "fabric/port.py time.monotonic": "the real clock, which is a setting",
    "fabric/port.py time.clock_gettime": "the real clock, which is a setting",
    "broker/node/machine.py threading.Thread": "it writes snapshots to " + _FILES,
    "fabric/dds_link.py threading.Thread": _ADAPTER,
    "fabric/dds_link.py asyncio.to_thread": _ADAPTER,
    "fabric/kafka_link.py threading.Thread": _ADAPTER,
    "fabric/kafka_link.py asyncio.to_thread": _ADAPTER,
    "fabric/kafka_link.py secrets.token_hex": _ADAPTER,
    "fabric/kafka_requests.py secrets.token_hex": _ADAPTER,
    "fabric/kafka_requests.py secrets.token_bytes": _ADAPTER,
    "fabric/nats_login.py secrets.token_hex": _ADAPTER,
    "store/files/files.py secrets.token_hex": _FILES,
    "store/files/files.py time.monotonic": _FILES,
    "store/files/files.py time.sleep": _FILES,
    "store/files/key_files.py asyncio.to_thread": _FILES,
}


def calls(text: str) -> Iterator[str]:
    """Yield the functions that a module calls, by the names under which it has imported them."""
    tree = ast.parse(text) if HINT.search(text) else ast.Module([], [])
    nodes, known = [*ast.walk(tree)], dict[str, str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            known |= {one.asname or one.name.partition(".")[0]: one.name for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom):
            known |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    for node in nodes:
        if isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            name = known.get(first, first) + dot + rest
            yield f"{name}()" if name == "random.Random" and not node.args else name


def test_the_calls_of_a_module_are_found() -> None:
    text = """
import http.client, time as t, random
from datetime import date, datetime as moment
from os import urandom
http.client.HTTPConnection(urandom(t.monotonic()), moment.now(), date.today())
random.Random(), random.Random(1), random.gauss(), self.random(), loop.run_in_executor(None)
"""
    found = [*calls(text)]
    assert {name for name in found if DATES.fullmatch(name)} == {"datetime.datetime.now", "datetime.date.today"}
    assert sorted(name for name in found if REAL.fullmatch(name)) == [
        *("http.client.HTTPConnection", "loop.run_in_executor", "os.urandom", "random.Random()", "random.gauss"),
        "time.monotonic",
    ]


def test_no_package_that_is_simulated_uses_the_real_machine_without_a_reason() -> None:
    """`datetime.now` cannot be replaced where it is called; so it is passed in, or a default."""
    modules = [path for room in ROOMS for path in (SOURCE / room).rglob("*.py")]
    found = {
        f"{path.relative_to(SOURCE)} {name}"
        for path in modules
        for name in calls(path.read_text(encoding="utf-8"))
        if DATES.fullmatch(name) or REAL.fullmatch(name)
    }
    assert found == {*ALLOWED}
