"""Scenarios: a world, a seed, and what happens in it, as a small file with one line for each step and each fault.

    world = "components"
    seed = 7
    options = { size = 20 }
    steps = ["0.5 request pep1 read file1",
             "2 reconfigure DR(1)"]
    faults = ["1.2 partition 4 pep1 fabric"]

Steps and faults that a file does not write down are drawn from the seed. A file that writes them down still uses the
seed for everything else: keys, delays, and which process runs next.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

from penstock.errors import MalformedError
from penstock.simulate.faults import Fault
from penstock.store.files.strict_tables import Strict

_FILE: Final = Strict.of("scenario.", 'write `world = "NAME"` and `seed = NUMBER`, and see docs/how-to/simulate.md')
_KEYS: Final = ("world", "seed", "options", "steps", "faults")


@dataclass(frozen=True, slots=True)
class SimulationStep:
    """A step of a workload, as one line: `at name arguments...`. Arguments are words without spaces.

    >>> SimulationStep.parse("0.5 request pep1 read file1")
    SimulationStep(at=0.5, name='request', arguments=('pep1', 'read', 'file1'))
    >>> str(SimulationStep(2.0, "reconfigure", ("DR(1)",)))
    '2 reconfigure DR(1)'
    """

    at: float
    name: str
    arguments: tuple[str, ...] = ()

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read one line. Raises `ValueError`."""
        at, name, *arguments = line.split()
        return cls(float(at), name, (*arguments,))

    def __str__(self) -> str:
        return " ".join((f"{self.at:.12g}", self.name, *self.arguments))


@dataclass(frozen=True, slots=True)
class SimulationScenario:
    """What to run. Without `steps` or `faults` they are drawn from the seed.

    >>> scenario = SimulationScenario("brokers", 7, steps=(SimulationStep(1.0, "publish", ("b1", "e1")),), faults=())
    >>> print(scenario.text(), end="")
    world = "brokers"
    seed = 7
    steps = ["1 publish b1 e1"]
    faults = []
    >>> SimulationScenario.parse(scenario.text()) == scenario
    True
    """

    world: str
    seed: int
    steps: tuple[SimulationStep, ...] | None = None
    faults: tuple[Fault, ...] | None = None
    #: what the world can be configured by, for example its size
    options: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: str | bytes) -> Self:
        """Read a file. Raises `MalformedError` (`scenario.syntax`, `scenario.unknown-key`, `scenario.value`, …)."""
        table = _FILE.parse(data)
        for key in table:
            if key not in _KEYS:
                raise MalformedError(_FILE.unknown, f"unknown key `{key}`", hint=_FILE.help)
        world, seed, options = table.get("world"), table.get("seed", 0), table.get("options", {})
        if not isinstance(world, str):
            raise MalformedError(_FILE.missing, "the file does not name its `world`", hint=_FILE.help)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise _FILE.wrong("seed", "a whole number")
        if not isinstance(options, dict) or not all(type(value) is int for value in options.values()):
            raise _FILE.wrong("options", "a table of whole numbers")
        return cls(
            world, seed, _lines(table, "steps", SimulationStep.parse), _lines(table, "faults", Fault.parse), options
        )

    def text(self) -> str:
        """Return the file: one line for each step and each fault."""
        lines = [f'world = "{self.world}"', f"seed = {self.seed}"]
        if self.options:
            lines.append(f"options = {{ {', '.join(f'{key} = {value}' for key, value in self.options.items())} }}")
        for name, items in (("steps", self.steps), ("faults", self.faults)):
            if items is not None:
                lines.append(f"{name} = [" + f",\n{' ' * (len(name) + 4)}".join(f'"{item}"' for item in items) + "]")
        return "\n".join(lines) + "\n"


_LINE = TypeVar("_LINE")


def _lines(table: Mapping[str, object], key: str, parse: Callable[[str], _LINE]) -> tuple[_LINE, ...] | None:
    if key not in table:
        return None
    found: list[_LINE] = []
    items = table[key]
    for item in items if isinstance(items, list) else [None]:
        try:
            found.append(parse(str(item)))
        except ValueError:
            raise _FILE.wrong(key, "a list of lines, each with a time in seconds and a name") from None
    return (*found,)
