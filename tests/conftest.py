"""What all tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.budget import USUAL

from penstock.testing.nats import NatsServer

# `make soak` tries so many times more examples.
settings.register_profile("soak", max_examples=USUAL * int(os.environ.get("TIMES", "20")), deadline=None)
# A Java that lives for some minutes does not earn back what optimising its code costs.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

#: what is costly to make and so must be made in one process only, by fixture: which tests stay together
GROUPS = {"spark": "spark", "everywhere": "cluster", "output": "demo"}
#: documentation runs in the process of the tests, and takes the session that it finds
PAGES = "test_python_snippets_run"
#: commands of the documentation start Spark, each for itself
COMMANDS = "test_commands_run_as_shown"


def _group(item: pytest.Item) -> str | None:
    used = getattr(item, "fixturenames", ())
    found = [group for fixture, group in GROUPS.items() if fixture in used]
    return found[0] if found else "spark" if item.name.startswith(PAGES) else None


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests together that share something costly, and begin with what takes longest."""
    for item in items:
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: (_turn(item), item.name.startswith(PAGES)))


def _turn(item: pytest.Item) -> int:
    """Return which come first: the groups in their order, then commands of the documentation, then all others."""
    groups, group = list(GROUPS.values()), _group(item)
    return groups.index(group) if group else len(groups) + (not item.name.startswith(COMMANDS))


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


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """Start a NATS server with JetStream for the tests of a file."""
    with NatsServer() as started:
        yield started
