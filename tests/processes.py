"""Tests in several processes: each is a copy of the one that has found the tests, and runs what it is given.

To find ten thousand tests takes a process ten seconds, and half a minute if nothing is compiled yet. Processes that do
not come from this one, as those of pytest-xdist do not, would each do the same. Reports go back to the first process,
which shows and counts them as if it had run everything itself.
"""

import os
import sys
import traceback
from collections import deque
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, NoReturn

import pytest
from tests.copies import fork

#: tests that a process has at a time: the one that it runs, and the one after it, which says what may be torn down
_AHEAD = 2


class _Process:
    """One of the processes, and the numbers of the tests that it has and has yet to be given."""

    def __init__(self, session: pytest.Session, number: int, others: "list[_Process]") -> None:
        self.prefers_groups = number % 2 == 0
        self.link, theirs = Pipe()
        self.given: deque[int] = deque()
        self.waiting: deque[int] = deque()
        self._told_all = False
        self.pid = fork()
        if self.pid == 0:
            for link in (self.link, *(other.link for other in others)):
                link.close()
            if number:
                # The first group takes longest: it never waits for other tests.
                os.nice(5)
            _work(session, f"gw{number}", theirs)
        theirs.close()

    def give(self, number: int | None) -> None:
        """Give a test, or once the word that there are no more."""
        if number is not None:
            self.given.append(number)
        if not self._told_all:
            self.link.send(number)
        self._told_all = number is None


class Crew:
    """The processes of a run. What is of one group is given to one of them, in its order.

    Tests that share a fixture of their file are a group as well, so that the fixture is set up once. Every other
    process prefers groups, which wait for their processes and servers; the rest prefer single tests, which compute.
    """

    def __init__(self, session: pytest.Session, count: int, group_of: Callable[[str], str | None]) -> None:
        self._session = session
        self._hook = session.config.hook
        self._groups: dict[str, deque[int]] = {}
        self._singles: deque[int] = deque()
        for number, item in enumerate(session.items):
            group = group_of(item.nodeid) or _shares_fixture(item)
            (self._singles if group is None else self._groups.setdefault(group, deque())).append(number)
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # of pytest: all are within it
        self._processes: list[_Process] = []
        for number in range(count):
            self._processes.append(_Process(session, number, self._processes))

    def run(self) -> None:
        """Run all tests, unless something says that it is enough."""
        working = {process.link: process for process in self._processes}
        for process in self._processes:
            for _ in range(_AHEAD):
                process.give(self._next(process))
        while working:
            for link in wait(list(working)):
                process = working[link]  # type: ignore[index]  # these are what it waits for
                try:
                    said = process.link.recv()
                except (EOFError, ConnectionResetError):
                    del working[process.link]
                    os.waitpid(process.pid, 0)
                    if process.given:
                        self._crashed(process)
                    continue
                if isinstance(said, dict):
                    report = self._hook.pytest_report_from_serializable(config=self._session.config, data=said)
                    self._hook.pytest_runtest_logreport(report=report)
                else:
                    item = self._session.items[process.given.popleft()]
                    self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
                    process.give(self._next(process))

    def _next(self, process: _Process) -> int | None:
        if self._session.shouldfail or self._session.shouldstop:
            return None
        if not process.waiting and self._groups and (process.prefers_groups or not self._singles):
            process.waiting = self._groups.pop(next(iter(self._groups)))
        chosen = process.waiting or self._singles
        return chosen.popleft() if chosen else None

    def _crashed(self, process: _Process) -> None:
        item = self._session.items[process.given[0]]
        report = pytest.TestReport(
            item.nodeid, item.location, {}, "failed", "the process that ran this test has ended", "call"
        )
        self._hook.pytest_runtest_logreport(report=report)
        self._session.shouldfail = "a process of the run has ended"


def _shares_fixture(item: pytest.Item) -> str | None:
    """Return the file of a test that shares a fixture with others of its file."""
    known = getattr(item, "_fixtureinfo", None)
    definitions = [] if known is None else [each for named in known.name2fixturedefs.values() for each in named]
    return str(item.path) if any(each.scope == "module" for each in definitions) else None


class _Reporter:
    """Hands reports to the first process."""

    def __init__(self, config: pytest.Config, link: "Connection[Any, Any]") -> None:
        self._config = config
        self._link = link

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._link.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


def _work(session: pytest.Session, name: str, link: "Connection[Any, Any]") -> NoReturn:
    """Run the tests that are given, each when the one after it is known, and end."""
    status = 1
    try:
        config: Any = session.config
        os.environ["PENSTOCK_TEST_PROCESS"] = name
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(_Reporter(config, link))
        # The files that keep what is printed are those of the first process as well.
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        config._tmp_path_factory._basetemp = config._tmp_path_factory.getbasetemp() / name
        config._tmp_path_factory._basetemp.mkdir(mode=0o700)
        current = link.recv()
        while current is not None:
            following = link.recv()
            after = None if following is None else session.items[following]
            config.hook.pytest_runtest_protocol(item=session.items[current], nextitem=after)
            link.send(current)
            current = following
        status = 0
    except BaseException:  # noqa: BLE001  # it must not go on as the first process would
        _show(*sys.exc_info())
    finally:
        os._exit(status)


def _show(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
    os.write(2, "".join(traceback.format_exception(kind, error, trace)).encode())
