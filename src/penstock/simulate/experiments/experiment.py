"""A figure or table of a paper, measured again: its parameters, the paper's numbers, ours, and whether they agree.

An `Experiment` says what is run. `ExperimentFindings` are what came out: a table, a chart, and a `PaperComparison` for
each statement of the paper. The verdict is computed from these; each has the reason that is given if it does not agree.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from penstock.authority.decisions.links import PointLinks
from penstock.crypto import SigningKey
from penstock.errors import FailedError
from penstock.model.principals import Principal
from penstock.simulate.experiments.charts import BarChart, LineChart
from penstock.simulate.experiments.processes import ProcessPart

T = TypeVar("T")


class Paper(StrEnum):
    """The papers whose figures are measured again."""

    MODERATOR = "Conflict Detection and Lifecycle Management for Access Control in Publish/Subscribe Systems"
    PUBSUB = "Authorization Using the Publish-Subscribe Model"
    DATA_CENTRIC = "Access Control in Ultra-Large-Scale Systems Using a Data-Centric Middleware"
    CAPABILITIES = "A Capability-Based Access Control Architecture for Multi-Domain Publish/Subscribe Systems"
    BEYOND = "Beyond the papers"


class ExperimentMethod(StrEnum):
    """How a figure is made."""

    COUNTED = "counted in the simulator: the same numbers on every machine"
    SIMULATED = "simulated, with service times that were measured on this machine"
    TIMED = "timed on this machine: compare the ratios"


@dataclass(frozen=True, slots=True)
class PaperComparison:
    """A statement of the paper beside what was found, and the reason that is given if the two do not agree."""

    statement: str
    paper: str
    ours: str
    agrees: bool
    otherwise: str

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        found: dict[str, object] = {
            "statement": self.statement,
            "paper": self.paper,
            "ours": self.ours,
            "agrees": self.agrees,
        }
        return found if self.agrees else {**found, "reason": self.otherwise}


@dataclass(frozen=True, slots=True)
class ExperimentFindings:
    """What an experiment found: a table, charts, and comparisons with the paper."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    comparisons: Sequence[PaperComparison]
    chart: LineChart | BarChart | None = None
    #: with what it was run, if this differs from the paper's parameters
    instead: Mapping[str, str] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether every comparison agrees."""
        return all(one.agrees for one in self.comparisons)

    @property
    def verdict(self) -> str:
        """Say whether the shape agrees, and if not, why."""
        failing = [one for one in self.comparisons if not one.agrees]
        if not failing:
            return f"The shape agrees ({len(self.comparisons)} of {len(self.comparisons)} comparisons)."
        said = "; ".join(f"{one.statement}: the paper has {one.paper}, we have {one.ours}" for one in failing)
        reasons = " ".join(dict.fromkeys(one.otherwise for one in failing))
        many = f"{len(failing)} of {len(self.comparisons)} comparisons"
        return f"The shape differs in {many}: {said}. {reasons}".rstrip()

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        lines = self.chart.lines if isinstance(self.chart, LineChart) else ()
        return {
            "verdict": self.verdict,
            "agrees": self.agrees,
            "comparisons": [one.as_dict() for one in self.comparisons],
            "table": [dict(zip(self.headings, row, strict=True)) for row in self.rows],
            "lines": {line.name: [list(point) for point in line.points] for line in lines},
            "instead": dict(self.instead),
        }


class OpenLinks(Protocol):
    """Opens links of a decision or enforcement point that listens on the loopback interface."""

    def __call__(self, key: SigningKey, owner: Principal, /) -> AbstractAsyncContextManager[PointLinks]:
        """Return links that are open within a context."""
        ...


def _no_links(_key: SigningKey, _owner: Principal, /) -> AbstractAsyncContextManager[PointLinks]:
    raise FailedError("experiment.links", "this program has no links between points", hint="use `penstock experiment`")


@dataclass(frozen=True)
class Laboratory:
    """What experiments run with.

    `quick` makes them small, for tests. `share` is the share of the paper's events or requests that timed ones use.
    """

    quick: bool = False
    share: float = 1.0
    links: OpenLinks = _no_links
    #: the program that plays a part in a process of its own; a role and its words follow
    program: Sequence[str] = ()
    #: receives how much is done, between 0 and 1
    progress: Callable[[float], None] = lambda _done: None

    def pick(self, full: T, quick: T) -> T:
        """Return the paper's parameter, or the one of a quick run."""
        return quick if self.quick else full

    def some(self, full: int, quick: int) -> int:
        """Return how many of the paper's events or requests are used."""
        return quick if self.quick else max(quick, round(full * self.share))

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items, and report progress."""
        found = [*items]
        for number, item in enumerate(found):
            self.progress(number / len(found))
            yield item
        self.progress(1.0)

    def part(self, stack: ExitStack, role: str, *words: object) -> ProcessPart:
        """Start a process that plays a role."""
        return ProcessPart(stack, [*self.program, role, *map(str, words)])


@dataclass(frozen=True, slots=True)
class Experiment:
    """A figure or table of a paper, or what goes beyond them. `parameters` are the paper's, or ours."""

    name: str
    paper: Paper
    figure: str
    title: str
    method: ExperimentMethod
    parameters: Mapping[str, str]
    run: Callable[[Laboratory], ExperimentFindings]

    @property
    def compared_with(self) -> str:
        """Return the heading over what the results are compared with."""
        return "target" if self.paper is Paper.BEYOND else "paper"

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "name": self.name,
            "paper": str(self.paper),
            "figure": self.figure,
            "title": self.title,
            "method": self.method.name.lower(),
            "parameters": dict(self.parameters),
        }


#: differences from what a paper prints that count as the same shape
TOLERANCE: Final = 0.25


def near(statement: str, paper: float, ours: float, otherwise: str, *, tolerance: float = TOLERANCE) -> PaperComparison:
    """Compare two numbers, which may differ by a share of the paper's."""
    agrees = abs(ours - paper) <= tolerance * abs(paper)
    return PaperComparison(f"{statement} (within {tolerance:.0%})", f"{paper:g}", f"{ours:.3g}", agrees, otherwise)
