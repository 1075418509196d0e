"""Make simulated code fail that uses the real machine: its clocks, random sources, sockets, threads and processes.

A run that read any of these would not be repeatable. In a simulated process every caller is refused, also a library
that Penstock's code calls. Each refusal is reported too (`penstock.simulate.loop.unreal`), so that it shows even if
somebody catches the error. Code outside of simulated processes is not affected: tests and reports go on as usual.

The guard replaces functions of modules and methods of Python classes. It does not see:

- `datetime.now`, `datetime.utcnow`, `datetime.today` and `date.today` where they are called: methods of C types cannot
  be replaced. It does see them where a module of Penstock has them as a function or a default.
- C code that uses the machine itself: `cryptography` that draws nonces, numpy that seeds a generator, database drivers
  and message clients with sockets and threads of their own, `_random.Random()`, `_socket.socket()`.
- Functions that an instance, a closure or a class has kept from before.
- C code that waits on a real clock: for a lock, a queue or `select`.

`tests/simulate/test_isolation.py` therefore also reads the source, and allows such calls by name.
"""

import _thread
import functools
import gc
import os
import random
import secrets
import socket
import ssl
import subprocess
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date, datetime
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.simulate.loop import current_process, unreal

_CLOCK, _RANDOM, _SOCKET, _THREAD, _PROCESS = "a clock", "a random source", "a socket", "a thread", "a process"


class _Real(NamedTuple):
    """Functions of a module, or methods of a class, that use the real machine. Not every version of Python has all."""

    owner: Any
    names: tuple[str, ...]
    what: str
    #: the place of an argument with which a call does not use the machine: a time, or a seed
    harmless: int | None = None

    def functions(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Yield the names and functions that there are."""
        found = vars(self.owner)
        yield from ((name, found[name]) for name in self.names if name in found)


#: the functions of the module `random`, which share one generator
_SHARED: Final = tuple(name for name, one in vars(random).items() if getattr(one, "__self__", None) is random._inst)  # noqa: SLF001  # they are bound to it
_REAL: Final = (
    _Real(time, ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"), _CLOCK),
    _Real(time, ("thread_time", "thread_time_ns", "process_time", "process_time_ns"), _CLOCK),
    _Real(time, ("clock_gettime", "clock_gettime_ns"), _CLOCK),
    _Real(time, ("gmtime", "localtime", "ctime", "asctime"), _CLOCK, 0),
    _Real(time, ("strftime",), _CLOCK, 1),
    _Real(os, ("times",), _CLOCK),
    _Real(os, ("urandom", "getrandom"), _RANDOM),
    _Real(secrets, ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "randbits", "choice"), _RANDOM),
    _Real(random, _SHARED, _RANDOM),
    _Real(random.Random, ("seed",), _RANDOM, 1),
    _Real(random.SystemRandom, ("random", "getrandbits", "randbytes"), _RANDOM),
    _Real(uuid, ("uuid1", "uuid4", "uuid6", "uuid7"), _RANDOM),
    _Real(ssl, ("RAND_bytes",), _RANDOM),
    _Real(socket.socket, ("__init__",), _SOCKET),
    _Real(socket, ("socketpair", "getaddrinfo", "getnameinfo"), _SOCKET),
    _Real(socket, ("gethostbyname", "gethostbyname_ex", "gethostbyaddr"), _SOCKET),
    _Real(threading.Thread, ("start",), _THREAD),
    _Real(_thread, ("start_new_thread", "start_new", "start_joinable_thread"), _THREAD),
    _Real(ThreadPoolExecutor, ("submit",), _THREAD),
    _Real(BaseProcess, ("start",), _PROCESS),
    _Real(subprocess.Popen, ("__init__",), _PROCESS),
    _Real(os, ("fork", "forkpty", "system", "posix_spawn", "posix_spawnp"), _PROCESS),
)
#: which module may call what: log lines have the real time, which does not come back
_ALLOWED: Final = frozenset({("logging", "time.time"), ("logging", "time.time_ns")})
#: the module that keeps what it has imported: it measures how long work takes in simulated processes
_MEASURING: Final = "penstock.simulate.calibrate"
_DATES: Final[tuple[Callable[..., Any], ...]] = (datetime.now, datetime.utcnow, datetime.today, date.today)

#: the functions and what refuses them, by the identity of the function
_Refusing: TypeAlias = dict[int, tuple[object, Callable[..., Any]]]
#: whether `isolated` is entered already
_ISOLATED: Final[list[bool]] = [False]


@contextmanager
def isolated() -> Iterator[None]:
    """Let simulated code fail with `FailedError` (`simulate.real`) if it uses the real machine.

    Functions are replaced in all modules that have them, and where code of Penstock has them as defaults of its
    parameters. That takes a while, so enter it once around many simulations: inside, it does nothing.
    """
    if _ISOLATED[0]:
        yield
        return
    refusing: _Refusing = {}
    undo: list[Callable[[], None]] = []
    _ISOLATED[0] = True
    try:
        for real in _REAL:
            of_class = isinstance(real.owner, type)
            owner = f"{real.owner.__module__}.{real.owner.__name__}" if of_class else real.owner.__name__
            for name, original in real.functions():
                refuse = _refuse(original, f"{owner}.{name}", real.what, real.harmless)
                if of_class:
                    undo.append(_set(real.owner, name, refuse))
                else:
                    refusing[id(original)] = original, refuse
        _replace_copies(refusing, undo)
        yield
    finally:
        _ISOLATED[0] = False
        for back in reversed(undo):
            back()


def _refuse(original: Callable[..., Any], called: str, what: str, harmless: int | None = None) -> Callable[..., Any]:
    @functools.wraps(original)
    def refuse(*args: Any, **named: Any) -> Any:
        if (
            current_process() is not None
            and (harmless is None or (args[harmless] if len(args) > harmless else named.get("a")) is None)
            and not _is_allowed(sys._getframe(1), called)  # noqa: SLF001  # nothing else shows the caller
        ):
            raise unreal(what, called)
        return original(*args, **named)

    return refuse


def _is_allowed(frame: types.FrameType, called: str) -> bool:
    """Return whether a call does not come from simulated code, or does not matter to it.

    Memory is collected whenever it happens to be, and those that measure it (as hypothesis does) are called then.
    """
    return (frame.f_globals.get("__name__"), called) in _ALLOWED or any(
        getattr(callback, "__code__", None) is frame.f_code for callback in gc.callbacks
    )


def _replacement(value: object, refusing: _Refusing) -> Callable[..., Any] | None:
    known = refusing.get(id(value))
    if known is not None:
        return known[1]
    date_of = value.func if isinstance(value, functools.partial) else value
    if isinstance(date_of, types.BuiltinMethodType) and date_of in _DATES:
        return _refuse(value, date_of.__qualname__, _CLOCK)  # type: ignore[arg-type]  # it is a function
    return None


def _replace_copies(refusing: _Refusing, undo: list[Callable[[], None]]) -> None:
    """Replace functions in all modules; in those that are simulated also dates, and defaults of parameters."""
    modules: dict[str, object] = {**sys.modules}
    for name, module in modules.items():
        # Programs can put anything there.
        if not isinstance(module, types.ModuleType) or name == _MEASURING:
            continue
        simulated = _is_simulated(name)
        names = vars(module)
        for key, value in list(names.items()):
            if simulated or id(value) in refusing:
                found = _replacement(value, refusing)
                if found is not None:
                    undo.append(functools.partial(names.__setitem__, key, value))
                    names[key] = found
        for function in _functions_of(module) if simulated else ():
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
