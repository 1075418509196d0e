"""What all tests share."""

import asyncio
import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests import copies, event_loop, java
from tests.budget import USUAL
from tests.kafka_server import RunningKafka, shared_server
from tests.processes import Crew

from penstock.crypto.keys import protect
from penstock.crypto.passphrases import Cost
from penstock.testing.nats import NatsServer
from penstock.testing.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long an example takes, or is thought up, says nothing on a machine that does something else too.
settings.register_profile("usual", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("usual")
# `make check` tries fewer examples, `make soak` so many times more.
settings.register_profile("check", settings.get_profile("usual"), max_examples=USUAL // 4)
settings.register_profile(
    "soak", settings.get_profile("usual"), max_examples=USUAL * int(os.environ.get("TIMES", "20"))
)
# What tests write is for them alone, as secrets have to be.
os.umask(0o077)
# In the background a shell ignores Ctrl-C, and so would all programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The contexts of whoever runs the tests are not used.
os.environ["XDG_CONFIG_HOME"] = os.devnull
os.environ.pop("PENSTOCK_CONTEXT", None)

#: what is costly to make and so must be made in one process only; a fixture says so as its one parameter
GROUPS = (
    "spark",
    "cluster",
    "demo",
    "kafka",
    "hostile_links",
    "hostile_nats",
    "five_brokers",
    "site",
    "wheel",
    "postgres",
    "fuzzed_pdp",
    "pdp",
)
#: the groups that need Java
JAVA = GROUPS[:4]
#: the groups that build what is released
BUILDS = ("site", "wheel")
#: documentation runs in the process of the tests, and takes the session that it finds
PAGES = "test_python_snippets_run"
#: commands of the documentation start Spark, each for itself
COMMANDS = "test_commands_run_as_shown"


@cache
def group_of(nodeid: str) -> str | None:
    """Return which group a test is in, by its name: `test_name[spark-other parameters]`."""
    name = nodeid.rpartition("::")[2]
    if name.startswith(PAGES):
        return GROUPS[0]
    found = [group for group in GROUPS if group in re.split(r"[\[\]-]", name)]
    return found[0] if found else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run have several processes."""
    parser.addoption("--processes", default="0", help="run tests in so many processes; `auto` is four more than cores")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run tests in several processes, where that is wanted."""
    wanted = session.config.getoption("processes")
    # Tests wait a good deal for processes and servers of theirs.
    count = (os.cpu_count() or 1) + 4 if wanted == "auto" else int(wanted)
    if not count or session.testsfailed or session.config.option.collectonly:
        return None
    reporter: Any = session.config.pluginmanager.getplugin("terminalreporter")
    reporter.showfspath = False
    Crew(session, count, group_of).run()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest: the groups in their order, commands of the documentation, then all others.

    Tests marked `long` are left to `make soak`, which sets LONG. Tests that need Java are marked, for `make check`.
    """
    if not os.environ.get("LONG"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    items.sort(key=lambda item: (_turn(item), item.name.startswith(PAGES)))
    for item in items:
        if group_of(item.nodeid) in JAVA:
            item.add_marker("java")
        if group_of(item.nodeid) in BUILDS:
            item.add_marker("builds")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Search no memory for garbage while tests are found, nor later what stays for the whole run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make the process that makes copies, before a test has changed anything."""
    java.tell()
    if session.items and not session.config.option.collectonly:
        copies.prepare()
    if session.config.getoption("processes") != "0":
        _read_constants()
    # A search for garbage after every 700 objects takes a tenth of the tests' time. Copies, which are programs under
    # test, search as usual.
    gc.set_threshold(10_000, 20, 50)


@settings(max_examples=5, database=None, derandomize=True, phases=[Phase.generate])
@given(st.lists(st.integers(), min_size=200, max_size=200))
def _read_constants(_: list[int]) -> None:
    """Let Hypothesis read the constants of all modules, which takes seconds: each process would do it for itself."""


def _turn(item: pytest.Item) -> int:
    group = group_of(item.nodeid)
    return GROUPS.index(group) if group else len(GROUPS) + (not item.name.startswith(COMMANDS))


@pytest.fixture(scope="session", autouse=True)
def event_loops() -> Iterator[None]:
    """Have event loops end their connections when they close."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asyncio.SelectorEventLoop, "close", event_loop.close)
        yield


@pytest.fixture(scope="session")
def suites() -> Path:
    """Return the folder of test material that others wrote; skip where there is none."""
    name = os.environ.get("PENSTOCK_SUITES", "")
    if not name:
        pytest.skip("PENSTOCK_SUITES is not set: the suites of others are not run, our own cases are")
    folder = Path(name)
    if not folder.is_dir():
        pytest.skip(f"PENSTOCK_SUITES names no folder: {name}")
    return folder


@pytest.fixture
def cheap_passphrases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let keys that this test puts under passphrases open quickly; their files say what a guess costs."""
    monkeypatch.setattr(protect, "__defaults__", (Cost(1, 8 << 10),))


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """Start a NATS server with JetStream for the tests of a file."""
    with NatsServer() as started:
        yield started


@pytest.fixture(scope="session", params=["postgres"])
def postgres() -> Iterator[PostgresServer]:
    """Start the one PostgreSQL server of the run."""
    with PostgresServer() as started:
        yield started


@pytest.fixture(scope="session", params=["kafka"])
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKafka]:
    """Start the one Kafka server of the run; skip where its jars cannot be fetched."""
    with shared_server(_shared(tmp_path_factory.getbasetemp())) as running:
        yield running


@pytest.fixture(scope="session", params=["spark"])
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """Start the one Spark session of the run."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  # most processes of a run never need it

    _mark(tmp_path_factory.getbasetemp())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("penstock tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.session.timeZone", "Pacific/Auckland")
        .config("spark.log.level", "ERROR")
        .config(map={**java.LIGHT})
        .getOrCreate()
    )
    yield session
    session.stop()


def _mark(folder: Path) -> None:
    """Fail where another process of this run has a session: it would warm up a second Java."""
    (_shared(folder) / "session").touch(exist_ok=False)


def _shared(folder: Path) -> Path:
    """Return the folder of the whole run, from that of one of its processes."""
    return folder.parent if "PENSTOCK_TEST_PROCESS" in os.environ else folder
