"""Make simulated code fail that uses the real machine: its clocks, random sources, sockets, threads and processes.

A run that read any of these would not be repeatable. Code outside of simulated processes is not affected, so that tests
and reports go on as usual.
"""

import functools
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from penstock.simulate.loop import current_process, unreal

_CLOCK, _RANDOM = "a clock", "a random source"
_CLOCKS: Final = (
    *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "thread_time", "process_time"),
    *("thread_time_ns", "process_time_ns", "clock_gettime", "clock_gettime_ns", "sleep"),
)
_SECRETS: Final = ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "randbits", "choice")
_RANDOMS: Final = ("random", "randrange", "randint", "choice", "choices", "sample", "shuffle", "uniform", "randbytes")
_MODULES: Final[tuple[tuple[types.ModuleType, tuple[str, ...], str], ...]] = (
    (time, _CLOCKS, _CLOCK),
    (secrets, _SECRETS, _RANDOM),
    (random, _RANDOMS, _RANDOM),
    (os, ("urandom",), _RANDOM),
    (uuid, ("uuid4",), _RANDOM),
)
#: modules that call each other on the way to what is refused
_BETWEEN: Final = ("secrets", "random", "uuid", "subprocess", "threading", "socket")
_CLASSES: Final[tuple[tuple[type, str, str], ...]] = (
    (socket.socket, "__init__", "a socket"),
    (threading.Thread, "start", "a thread"),
    (subprocess.Popen, "__init__", "a process"),
)


#: whether it is so already
_ISOLATED: Final[list[bool]] = [False]


@contextmanager
def isolated() -> Iterator[None]:
    """Let simulated code fail with `FailedError` (`simulate.real`) if it uses the real machine.

    Functions are replaced where they are defined, and wherever code of Penstock has taken them over: in its modules and
    as defaults of its parameters. That takes a while, so enter it once around many
    simulations: inside, it does nothing.
    """
    if _ISOLATED[0]:
        yield
        return
    refusing = _refusing()
    undo: list[Callable[[], None]] = []
    _ISOLATED[0] = True
    try:
        undo += [_set(module, name, refusing[id(original)][1]) for module, name, original, _ in _functions()]
        undo += [_set(kind, name, _refuse(getattr(kind, name), what)) for kind, name, what in _CLASSES]
        _replace_copies(refusing, undo)
        yield
    finally:
        _ISOLATED[0] = False
        for back in reversed(undo):
            back()


def _functions() -> Iterator[tuple[types.ModuleType, str, Callable[..., Any], str]]:
    for module, names, what in _MODULES:
        for name in names:
            original = getattr(module, name, None)
            if original is not None:
                yield module, name, original, what


def _refusing() -> dict[int, tuple[object, Callable[..., Any]]]:
    """Return the original functions and their replacements, by the identity of the original."""
    return {id(original): (original, _refuse(original, what)) for _, _, original, what in _functions()}


def _refuse(original: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def refuse(*args: Any, **named: Any) -> Any:
        if current_process() is not None and _from_penstock():
            raise unreal(what)
        return original(*args, **named)

    return refuse


def _from_penstock() -> bool:
    """Return whether code of Penstock is the caller, however many functions of Python lie between.

    A library that logs reads a clock too; what it does with it does not come back.
    """
    frame: types.FrameType | None = sys._getframe(2)  # noqa: SLF001  # there is no other way to see the caller
    while frame is not None and frame.f_globals.get("__name__") in (
        "secrets",
        "random",
        "uuid",
        "subprocess",
        "threading",
        "socket",
    ):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith(("penstock.", "tests."))


def _replacement(value: object, refusing: dict[int, tuple[object, Callable[..., Any]]]) -> Callable[..., Any] | None:
    known = refusing.get(id(value))
    if known is not None and known[0] is value:
        return known[1]
    if value == datetime.now or (isinstance(value, functools.partial) and value.func == datetime.now):
        return _refuse(value, _CLOCK)
    return None


def _replace_copies(refusing: dict[int, tuple[object, Callable[..., Any]]], undo: list[Callable[[], None]]) -> None:
    for module in [module for name, module in sys.modules.items() if _is_simulated(name)]:
        for key, value in list(vars(module).items()):
            found = _replacement(value, refusing)
            if found is not None:
                undo.append(_set(module, key, found))
        for function in _functions_of(module):
            defaults, named = function.__defaults__, function.__kwdefaults__
            if defaults and any(_replacement(value, refusing) is not None for value in defaults):
                changed = tuple(_replacement(value, refusing) or value for value in defaults)
                undo.append(_set(function, "__defaults__", changed))
            if named and any(_replacement(value, refusing) is not None for value in named.values()):
                both = {key: _replacement(value, refusing) or value for key, value in named.items()}
                undo.append(_set(function, "__kwdefaults__", both))


def _is_simulated(name: str) -> bool:
    return name.startswith("penstock.") and not name.startswith("penstock.simulate")


def _functions_of(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """Yield the functions that a module defines, and the methods of its classes."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        for one in list(vars(value).values()) if isinstance(value, type) else [value]:
            function = one.__func__ if isinstance(one, classmethod | staticmethod) else one
            if isinstance(function, types.FunctionType):
                yield function


def _set(where: Any, name: str, value: object) -> Callable[[], None]:
    before = getattr(where, name)
    setattr(where, name, value)
    return lambda: setattr(where, name, before)
