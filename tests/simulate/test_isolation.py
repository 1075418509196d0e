"""Simulated code cannot use the real machine by accident."""

import ast
import asyncio
import os
import random
import secrets
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker.client.client import connect
from penstock.broker.core.clock import since_boot
from penstock.broker.core.settings import NodeSettings
from penstock.errors import FailedError
from penstock.fabric.embedded import EmbeddedFabric
from penstock.simulate.isolation import isolated
from penstock.simulate.loop import VirtualLoop

# ruff: noqa: PLW0108, S311  # functions are looked up when they are called, and are replaced by then
WAYS: dict[str, Callable[[], object]] = {
    "time.time": lambda: time.time(),
    "time.monotonic": lambda: time.monotonic(),
    "time.sleep": lambda: time.sleep(0),
    "os.urandom": lambda: os.urandom(4),
    "secrets.token_bytes": lambda: secrets.token_bytes(4),
    "random.random": lambda: random.random(),
    "random.shuffle": lambda: random.shuffle([1, 2]),
    "uuid.uuid4": lambda: uuid.uuid4(),
    "socket.socket": lambda: socket.socket().close(),
    "threading.Thread": lambda: threading.Thread(target=print).start(),
    "subprocess": lambda: subprocess.run(["true"], check=True),
    "penstock's clock": since_boot,
}


@pytest.mark.parametrize("name", WAYS)
def test_the_real_machine_is_refused_in_a_simulated_process_alone(name: str) -> None:
    loop, way = VirtualLoop(), WAYS[name]

    async def inside() -> None:
        way()

    before = time.time
    with isolated():
        if name != "threading.Thread":
            way()
        with pytest.raises(FailedError) as refused:
            loop.run_until_complete(loop.start(loop.process("p"), inside()))
    assert refused.value.code == "simulate.real"
    assert time.time is before
    asyncio.run(inside())


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


def test_no_room_that_is_simulated_reads_the_date_itself() -> None:
    """`datetime.now` cannot be replaced where it is called; so it is passed in, or a default."""
    root = Path(penstock.__file__).parent
    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for room in ("authority", "broker", "fabric", "guard", "moderator", "roles", "trust")
        for path in (root / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("datetime.now", "datetime.utcnow", "date.today")
    ]
    assert found == []
