"""Measure how long the services of a simulation take on this machine (`ServiceTimes`), and keep them in a file.

Simulated worlds run while the real processor time of each call is measured. So the arguments are those of production
code: signatures over real messages, decisions about real requests. A service's time does not contain the services that
it calls, because these spend their own. The file is TOML:

    machine = "x86_64, CPython 3.13"
    [seconds]
    sign = 3.1e-05
"""

import asyncio
import functools
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from time import thread_time_ns
from typing import Any, Final

from penstock.errors import MalformedError
from penstock.simulate.scenario import SimulationStep
from penstock.simulate.simulation import SERVICES, ServiceTimes, Simulation, replaced_services
from penstock.simulate.worlds.brokers import RevocationWorld
from penstock.simulate.worlds.components import ComponentsWorld
from penstock.simulate.worlds.sealing import SealingWorld
from penstock.store.files.files import read_file, within
from penstock.store.files.strict_tables import Strict

_FILE: Final = Strict.of("times.", "let `penstock simulate calibrate --out FILE` write it")
_BYTES: Final = 64 << 10
_NANOSECONDS: Final = 1e9
#: virtual seconds between two steps
_PAUSE: Final = 0.05
#: the worlds, and the services that are measured in each: sealed events take other times to publish and deliver
_WORLDS: Final[tuple[tuple[type[ComponentsWorld | RevocationWorld | SealingWorld], Iterable[str]], ...]] = (
    (ComponentsWorld, SERVICES),
    (RevocationWorld, SERVICES),
    (SealingWorld, ("seal", "open")),
)


class ServiceMeter:
    """The processor time of calls, by service, in seconds."""

    def __init__(self) -> None:
        self.calls: dict[str, list[float]] = {service: [] for service in SERVICES}
        #: for each call that is under way, the nanoseconds of calls inside it
        self._inside: list[int] = []

    def timed(self, service: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose calls are measured."""
        calls, inside = self.calls[service], self._inside

        @functools.wraps(original)
        def call(*args: Any, **named: Any) -> Any:
            inside.append(0)
            began = thread_time_ns()
            try:
                return original(*args, **named)
            finally:
                took = thread_time_ns() - began
                calls.append((took - inside.pop()) / _NANOSECONDS)
                if inside:
                    inside[-1] += took

        return call

    def times(self) -> ServiceTimes:
        """Return the median of each service that was called; the others keep their defaults."""
        known = {service: median(those) for service, those in self.calls.items() if those}
        return ServiceTimes({**ServiceTimes().seconds, **known})


@contextmanager
def metered() -> Iterator[ServiceMeter]:
    """Measure the services of what runs meanwhile. The virtual time of simulations does not change."""
    meter = ServiceMeter()
    with replaced_services(meter.timed):
        yield meter


def times_text(times: ServiceTimes, measured: Mapping[str, int]) -> str:
    """Return service times as a file; `measured` are the numbers of calls, of those that were measured."""
    lines = [f'machine = "{platform.machine()}, {platform.python_implementation()} {platform.python_version()}"']
    lines += ["", "[seconds]"]
    for service, seconds in times.seconds.items():
        note = f"# {measured[service]} calls" if measured.get(service) else "# not measured: the default"
        lines.append(f"{service} = {seconds:.3g}  {note}")
    return "\n".join(lines) + "\n"


def read_times(path: str) -> ServiceTimes:
    """Read service times from a file; services that it lacks have their defaults.

    Raises `MalformedError` (`times.syntax`, `times.unknown-key`, `times.value`), `FailedError` (`file.*`).
    """
    data = read_file(path, _BYTES)
    with within(path):
        table = _FILE.parse(data)
        _FILE.known("the file", table, ("machine", "seconds"))
        seconds = _FILE.table("seconds", table.get("seconds", {}))
        _FILE.known("`seconds`", seconds, SERVICES)
        found = {name: _seconds(name, value) for name, value in seconds.items()}
    return ServiceTimes({**ServiceTimes().seconds, **found})


def _seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise MalformedError("times.value", f"`seconds.{name}` must be a number of seconds below 1", hint=_FILE.help)
    return float(value)


# ----------------------------------------------------------------------------------------------------------------------
# The worlds that are run for it.


def calibrated(steps: int = 60) -> ServiceMeter:
    """Run a few steps of each world, without faults, and return what their services took."""
    found = ServiceMeter()
    for kind, services in _WORLDS:
        with metered() as meter, Simulation() as simulation:
            world = kind({})
            simulation.run(_run(simulation, world, world.steps(simulation.random("workload"), steps, world.seconds)))
        for service in services:
            found.calls[service] += meter.calls[service]
    return found


async def _run(
    simulation: Simulation, world: ComponentsWorld | RevocationWorld | SealingWorld, steps: Sequence[SimulationStep]
) -> None:
    """Perform steps one after the other, without the pauses of a workload."""
    await world.start(simulation)
    for step in steps:
        await world.perform(step)
        await asyncio.sleep(_PAUSE)
