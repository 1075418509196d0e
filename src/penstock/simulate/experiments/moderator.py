"""Paper 1, "Conflict Detection and Lifecycle Management …", section VI: the time it takes to state rules.

Each rule is compared with those in force, and comes into force. The tree of event types exists before the clock starts.
All times are those of the processor.
"""

import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from penstock.moderator.detection.detector import Detector
from penstock.moderator.rules.rules import Mode, PublishRule
from penstock.simulate.experiments.charts import ChartLine, LineChart
from penstock.simulate.experiments.experiment import (
    Experiment,
    ExperimentFindings,
    ExperimentMethod,
    Laboratory,
    Paper,
    PaperComparison,
)
from penstock.simulate.experiments.rule_worlds import RuleWorld
from penstock.simulate.experiments.timing import processor_seconds

#: the paper has 10^5 event types in a balanced tree, which has 2^l - 1 of them
_LEVELS: Final = 17
_RULES: Final = (1_000, 2_500, 5_000, 7_500, 10_000)
_PUBLISHERS: Final = (100, 1_000, 10_000, 100_000)
_TREES: Final = (5, 7, 9, 11, 13, 15, 17)
_ROUNDS: Final = 7
#: what the paper prints: milliseconds for 10,000 rules
_PRINTED: Final = 7_830.0
#: how far a line may be from the expected shape: times grow by this factor more or less than they should
_BENT: Final = 1.5
_TYPES: Final = "10^5; ours 2^17 - 1, since the tree is balanced"
_HERE: Final = MappingProxyType(
    {
        "rules": "none is in conflict with another",
        "time": "of the processor, the median of several rounds, in each of which all cases take turns",
    }
)


def stating_time(world: RuleWorld, rules: int, publishers: int, seed: int) -> float:
    """Return how many milliseconds it takes to state rules, others for each seed."""
    stated = world.rules(world.draw(rules, seed=seed, publishers=publishers))
    detector = world.detector(Mode.ALGORITHM, stated)
    found = 1_000 * processor_seconds(_Stating(detector, stated))
    if len(detector.rules) != rules:
        raise ValueError("rules that agree with each other are in conflict")
    return found


def _by_turns(lab: Laboratory, cases: Mapping[int, tuple[RuleWorld, int, int]], rounds: int) -> dict[int, float]:
    """Return the median time of each case, which is a world and numbers of rules and publishers.

    The cases take turns: the machine may be quicker at one time than at another.
    """
    times: dict[int, list[float]] = {at: [] for at in cases}
    for seed in lab.each(range(rounds)):
        for at, case in cases.items():
            times[at].append(stating_time(*case, seed))
    return {at: statistics.median(taken) for at, taken in times.items()}


class _Stating:
    """States rules one after the other."""

    def __init__(self, detector: Detector, rules: Sequence[PublishRule]) -> None:
        self._detector, self._rules = detector, rules

    def __call__(self) -> None:
        for rule in self._rules:
            self._detector.add(rule)


def _findings(
    title: str, x: str, found: Mapping[int, float], comparisons: Sequence[PaperComparison], *, log_x: bool
) -> ExperimentFindings:
    first = next(iter(found.values()))
    rows = [(f"{at:,}", f"{value:.2f} ms", f"{value / first:.2f}") for at, value in found.items()]
    chart = LineChart(title, x, "ms", [ChartLine("Penstock", [*found.items()])], log_x=log_x)
    return ExperimentFindings((x, "time", "/ first"), rows, comparisons, chart, _HERE)


def _figure_3(lab: Laboratory) -> ExperimentFindings:
    world = RuleWorld(lab.pick(_LEVELS, 5))
    sizes, rounds = lab.pick((_RULES, _ROUNDS), ((50, 100), 1))
    found = _by_turns(lab, {size: (world, size, 100) for size in sizes}, rounds)
    few, many = sizes[0], sizes[-1]
    bent = found[many] / found[few] / (many / few)
    comparisons = [
        PaperComparison(
            f"the time grows linearly with the rules (growth / growth of the rules, {_within(_BENT)})",
            "approximately 1",
            f"{bent:.2f}",
            1 / _BENT <= bent <= _BENT,
            "A rule is compared with those on its path to the root and below it, which are more if more are in force.",
        ),
        PaperComparison(
            "10,000 rules in at most so many milliseconds",
            f"{_PRINTED:,.0f} ms (Pentium Mobile, 2 GHz)",
            f"{found[many]:,.0f} ms",
            found[many] <= _PRINTED,
            "This machine is slower than the paper's.",
        ),
    ]
    return _findings("Time to state rules", "rules", found, comparisons, log_x=False)


def _figure_4(lab: Laboratory) -> ExperimentFindings:
    world = RuleWorld(lab.pick(_LEVELS, 5))
    rules, rounds = lab.pick((1_000, 2 * _ROUNDS), (50, 1))
    found = _by_turns(lab, {publishers: (world, rules, publishers) for publishers in _PUBLISHERS}, rounds)
    ratio = max(found.values()) / min(found.values())
    comparison = PaperComparison(
        f"the number of publishers does not affect the time (longest / shortest, at most {_BENT})",
        "about 1",
        f"{ratio:.2f}",
        ratio <= _BENT,
        "Times of single rules vary on a busy machine.",
    )
    return _findings("Time to state 1,000 rules by publishers", "publishers", found, [comparison], log_x=True)


def _figure_5(lab: Laboratory) -> ExperimentFindings:
    rules, rounds = lab.pick((100, 4 * _ROUNDS), (20, 1))
    trees = lab.pick(_TREES, (5, 7))
    by_level = _by_turns(lab, {levels: (RuleWorld(levels), rules, 100_000) for levels in trees}, rounds)
    found = {2**levels - 1: taken for levels, taken in by_level.items()}
    middle = trees[len(trees) // 2]
    bent = by_level[trees[-1]] / by_level[middle] / (trees[-1] / middle)
    steps = f"{2**middle - 1:,} to {2 ** trees[-1] - 1:,} types: growth / growth of the levels"
    comparisons = [
        PaperComparison(
            f"the time grows at most with the logarithm of the tree's size ({steps}, at most {_BENT})",
            "logarithmic: 1",
            f"{bent:.2f}",
            bent <= _BENT,
            "Times of single rules vary on a busy machine.",
        ),
        PaperComparison(
            f"and no less (at least {1 / _BENT:.2f})",
            "logarithmic: 1",
            f"{bent:.2f}",
            bent >= 1 / _BENT,
            "Our detector searches among the places where rules are in force, of which there are 100 at most here, and "
            "not in the tree of event types; a level more is one look-up more, which hardly shows.",
        ),
    ]
    return _findings("Time to state 100 rules by event types", "event types", found, comparisons, log_x=True)


def _within(bent: float) -> str:
    return f"between {1 / bent:.2f} and {bent:g}"


EXPERIMENTS: Final = (
    Experiment(
        "moderator-fig3",
        Paper.MODERATOR,
        "Figure 3",
        "Execution time by the number of rules",
        ExperimentMethod.TIMED,
        {"rules": "up to 10,000", "event types": _TYPES, "publishers": "100"},
        _figure_3,
    ),
    Experiment(
        "moderator-fig4",
        Paper.MODERATOR,
        "Figure 4",
        "Execution time by the number of publishers",
        ExperimentMethod.TIMED,
        {"rules": "1,000", "event types": _TYPES, "publishers": "ours 100 to 100,000"},
        _figure_4,
    ),
    Experiment(
        "moderator-fig5",
        Paper.MODERATOR,
        "Figure 5",
        "Execution time by the size of the event tree",
        ExperimentMethod.TIMED,
        {"rules": "100", "event types": "2^l - 1; ours up to 2^17 - 1", "publishers": "10^5"},
        _figure_5,
    ),
)
