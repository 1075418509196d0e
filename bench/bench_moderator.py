"""The moderator: Figures 3 to 5 of paper 1 beside Algorithm 1 in SWI-Prolog, a million rules, and withdrawals.

The figures count what it takes to state so many rules one after the other, each of which is compared with those in
force and comes into force. Of the two Prolog programs one goes through all rules, as the algorithm is written, the
other one along the path to the root and through the subtree; the tree stands before the clock starts, in all three.
All times are those of the processor. The charts go into bench/moderator.html.
"""

import gc
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from harness import Result, at_least, at_most, microseconds, observed
from penstock.moderator.base.base import RuleBase
from penstock.moderator.detection.detector import Detector
from penstock.moderator.rules.rules import ConflictKind, Mode, PublishRule
from penstock.moderator.rules.steps import Add, Note, WithdrawRule
from penstock.moderator.settlement.undo import plan
from penstock.simulate.experiments.charts import ChartLine, LineChart, write_page
from penstock.simulate.experiments.rule_worlds import CandidateKind, RuleCandidate, RuleWorld
from penstock.simulate.experiments.timing import processor_seconds
from prolog_process import Prolog, found

PAGE = Path(__file__).resolve().parent / "moderator.html"
LEVELS = 17
RULES = (1_000, 2_500, 5_000, 7_500, 10_000)
PUBLISHERS = (100, 1_000, 10_000, 100_000)
TREES = (5, 9, 13, 17)
ROUNDS = 5
#: of what takes milliseconds
MORE_ROUNDS = 15
#: rules that the program which goes through all of them adds: each takes long
SCANNED = 20
ASKED = 1_000
MILLION = 1_000_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def add_all(detector: Detector, rules: Sequence[PublishRule]) -> None:
    for rule in rules:
        detector.add(rule)


class Programs:
    """The three that are compared, over one tree."""

    def __init__(self, world: RuleWorld, stack: ExitStack) -> None:
        self.world = world
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.walk = stack.enter_context(Prolog("walk", folder)) if found() else None
        self.scan = stack.enter_context(Prolog("scan", folder)) if found() else None
        for program in (self.walk, self.scan):
            if program is not None:
                program.tree(world.types)

    def state(self, candidates: Sequence[RuleCandidate]) -> tuple[float, float | None]:
        """Return how long it takes us to add rules to none, and how long the walk takes."""
        rules = self.world.rules(candidates)
        detector = self.world.detector(Mode.ALGORITHM, rules)
        ours = processor_seconds(lambda: add_all(detector, rules))
        if self.walk is None:
            return ours, None
        self.walk.fill(())
        walked, in_force = self.walk.add(candidates)
        assert in_force == len(detector.rules)
        return ours, walked

    def one_more(self, size: int) -> tuple[float, float | None]:
        """Return how long one rule takes where so many are in force, and how long going through all of them takes."""
        standing = [*self.world.draw(size, seed=size)]
        more = [*self.world.draw(ASKED, seed=size + 1, prefix="more")]
        rules = self.world.rules(more)
        detector = self.world.detector(Mode.ALGORITHM, rules)
        add_all(detector, self.world.rules(standing))
        ours = processor_seconds(lambda: add_all(detector, rules)) / len(more)
        if self.scan is None:
            return ours, None
        self.scan.fill(standing)
        return ours, self.scan.add(more[:SCANNED])[0] / SCANNED


def median(values: Sequence[float | None]) -> float:
    return statistics.median(value for value in values if value is not None)


def figure_3(programs: Programs) -> tuple[LineChart, list[Result]]:
    ours: dict[int, list[float]] = defaultdict(list)
    walked: dict[int, list[float | None]] = defaultdict(list)
    for number in range(ROUNDS):
        for size in RULES:
            mine, theirs = programs.state([*programs.world.draw(size, seed=number)])
            ours[size].append(mine)
            walked[size].append(theirs)
    totals = {size: median(times) for size, times in ours.items()}
    few, many = RULES[0], RULES[-1]
    growth = totals[many] / totals[few] / (many / few)
    linear = f"{few:,} rules in {totals[few]:.3f} s, {many:,} in {totals[many]:.3f} s: {growth:.2f} of linear"
    results = [at_most("moderator-figure-3-rules", growth, 1.5, linear)]
    lines = [ChartLine("Penstock", [(size, 1e3 * seconds) for size, seconds in totals.items()])]
    if programs.walk is not None:
        walk = {size: median(times) for size, times in walked.items()}
        lines.append(ChartLine("Prolog, walk", [(size, 1e3 * seconds) for size, seconds in walk.items()]))
        pairs = [theirs / mine for mine, theirs in zip(ours[many], walked[many], strict=True) if theirs is not None]
        detail = f"{many:,} rules: Prolog that walks the subtree {walk[many]:.3f} s, we {totals[many]:.3f} s"
        results.append(at_least("moderator-faster-than-walk", statistics.median(pairs), 1.5, detail))
        scanned = [(size, programs.one_more(size)) for size in RULES]
        # From nothing to the first size, and so on, costs grow evenly: so many times the mean.
        cost, total, before = 0.0, 0.0, 0
        points: list[tuple[float, float]] = []
        for size, (_, one) in scanned:
            total += (size - before) * (cost + (one or 0.0)) / 2
            cost, before = one or 0.0, size
            points.append((size, 1e3 * total))
        lines.append(ChartLine("Prolog, scan", points))
        mine, theirs = scanned[-1][1]
        detail = (
            f"one more of {many:,} rules: Prolog that scans all {(theirs or 0) * 1e3:.1f} ms, we {microseconds(mine)}"
        )
        results.append(at_least("moderator-faster-than-scan", (theirs or 0.0) / mine, 100, detail))
    title = f"Figure 3: time by rules ({programs.world.types:,} event types, 100 publishers)"
    return LineChart(title, "rules", "ms", lines, log_x=True, log_y=True), results


def figure_4(programs: Programs) -> tuple[LineChart, list[Result]]:
    size = 1_000
    ours: dict[int, list[float]] = defaultdict(list)
    walked: dict[int, list[float | None]] = defaultdict(list)
    for number in range(MORE_ROUNDS):
        for publishers in PUBLISHERS:
            mine, theirs = programs.state([*programs.world.draw(size, seed=number, publishers=publishers)])
            ours[publishers].append(mine)
            walked[publishers].append(theirs)
    totals = {publishers: median(times) for publishers, times in ours.items()}
    ratio = max(totals.values()) / min(totals.values())
    detail = ", ".join(f"{publishers:,} publishers {seconds * 1e3:.1f} ms" for publishers, seconds in totals.items())
    lines = [ChartLine("Penstock", [(publishers, 1e3 * seconds) for publishers, seconds in totals.items()])]
    if programs.walk is not None:
        lines.append(
            ChartLine("Prolog, walk", [(publishers, 1e3 * median(times)) for publishers, times in walked.items()])
        )
    title = f"Figure 4: time by publishers ({programs.world.types:,} event types, {size:,} rules)"
    chart = LineChart(title, "publishers", "ms", lines, log_x=True, log_y=True)
    return chart, [at_most("moderator-figure-4-publishers", ratio, 1.5, detail)]


def figure_5() -> tuple[LineChart, list[Result]]:
    size, publishers = 100, 100_000
    ours: dict[int, list[float]] = defaultdict(list)
    walked: dict[int, list[float | None]] = defaultdict(list)
    with ExitStack() as stack:
        several = [Programs(RuleWorld(levels), stack) for levels in TREES]
        for number in range(MORE_ROUNDS):
            for programs in several:
                candidates = [*programs.world.draw(size, seed=number, publishers=publishers)]
                mine, theirs = programs.state(candidates)
                ours[programs.world.levels].append(mine)
                walked[programs.world.levels].append(theirs)
    totals = {levels: median(times) for levels, times in ours.items()}
    low, high = TREES[1], TREES[-1]
    growth = totals[high] / totals[low] / (high / low)
    detail = ", ".join(f"2^{levels}-1 types {seconds * 1e3:.2f} ms" for levels, seconds in totals.items())
    lines = [ChartLine("Penstock", [(2**levels - 1, 1e3 * seconds) for levels, seconds in totals.items()])]
    if found():
        lines.append(
            ChartLine("Prolog, walk", [(2**levels - 1, 1e3 * median(times)) for levels, times in walked.items()])
        )
    chart = LineChart(
        f"Figure 5: time by event types ({size} rules, {publishers:,} publishers)",
        "event types",
        "ms",
        lines,
        log_x=True,
        log_y=True,
    )
    return chart, [at_most("moderator-figure-5-tree", growth, 1.5, f"{detail}: {growth:.2f} of the levels")]


def same_answers(programs: Programs) -> None:
    """Check that all three find the same conflicts."""
    world = programs.world
    standing = [*world.draw(RULES[1], seed=1)]
    detector = world.detector(Mode.ALGORITHM, ())
    add_all(detector, world.rules(standing))
    asked = [c for says in CandidateKind for c in world.draw(40, seed=2, says=says, prefix=says.name.lower())]
    # Some stand high, where there are many rules below, and some beside and right under rules.
    asked += [RuleCandidate(f"high{n}", n, 1, (("b1", 1),)) for n in range(2, 20)]
    asked += [RuleCandidate(f"beside{c.id}", c.event, 1, (*c.demanded, ("b1", 1))) for c in standing[:20]]
    asked += [RuleCandidate(f"under{c.id}", 2 * c.event, 1, ()) for c in standing[:40] if 2 * c.event <= world.types]
    expected = sorted(
        f"{candidate.id} {conflict.kind} {rule} {len(conflict.missing)} {len(conflict.extra)}"
        for candidate in asked
        for conflict in detector.conflicts(world.rule(candidate))
        for rule in conflict.rules
    )
    assert {line.split()[1] for line in expected} == set(ConflictKind)
    for program in (programs.walk, programs.scan):
        if program is not None:
            program.fill(standing)
            assert sorted(program.tell(asked)) == expected


def million(*, lists: bool) -> list[Result]:
    """One rule more where a thousand are in force, and where a million are.

    The bound is on rules of all kinds on events drawn at random: once with functions that were met before, as most are,
    and once with functions that nobody has stated before, for which the solver is asked. The kinds by themselves are
    observed. They differ in how much there is to name, which grows with the rules in force: what was agreed on fits
    everywhere; with another value a rule conflicts with all on its own type and on those above that agreed on the
    value, mostly none of a thousand rules, and some 70 of a million (median).
    """
    world = RuleWorld(LEVELS, lists)
    few, many = (world.detector(Mode.SCOPED, ()) for _ in range(2))
    add_all(few, world.rules(world.draw(ASKED, seed=1)))
    standing = world.rules(world.draw(MILLION, seed=1))
    before = _resident()
    seconds = processor_seconds(lambda: add_all(many, standing))
    each = (_resident() - before) / MILLION
    assert (len(few.rules), len(many.rules)) == (ASKED, MILLION)
    what = "lists" if lists else "formulas"
    times: dict[CandidateKind, dict[int, list[float]]] = {says: {ASKED: [], MILLION: []} for says in CandidateKind}
    named: dict[CandidateKind, list[int]] = {says: [] for says in CandidateKind}
    asked = [
        (says, rule) for says in CandidateKind for rule in world.rules(world.draw(500, seed=3, says=says, prefix="new"))
    ]
    gc.collect()
    gc.freeze()
    gc.disable()
    unseen = _unseen(world, few, many, what)
    # What functions mean is found out once for each, whatever is in force; here only the second time counts.
    for counts in (False, True):
        for says, rule in asked:
            for size, detector in ((ASKED, few), (MILLION, many)):
                start = time.process_time()
                conflicts = detector.add(rule)
                taken = time.process_time() - start
                if not conflicts:
                    detector.remove(rule.id)
                if counts:
                    times[says][size].append(taken)
                    if size == MILLION:
                        named[says].append(sum(len(conflict.rules) for conflict in conflicts))
    gc.enable()
    results = [
        _growth(
            f"moderator-million-{what}",
            [times[says] for says in CandidateKind],
            [n for s in CandidateKind for n in named[s]],
        ),
        unseen,
    ]
    for says in CandidateKind:
        name = f"moderator-million-{what}-{says.name.lower().replace('_', '-')}"
        found_here = _growth(name, [times[says]], named[says])
        results.append(observed(name, found_here.ratio, f"{says}: {found_here.detail}"))
    loaded = f"{MILLION:,} rules added in {seconds:.1f} s, {each:,.0f} bytes each beside the rules themselves"
    results.append(observed(f"moderator-million-{what}-loaded", seconds, loaded))
    results.append(_high(world, many, what))
    gc.unfreeze()
    return results


def _unseen(world: RuleWorld, few: Detector, many: Detector, what: str) -> Result:
    """The first time that a function is met; each is asked about once, so that nothing of it is known from before."""
    times: dict[int, list[float]] = {ASKED: [], MILLION: []}
    named: list[int] = []
    both = zip(world.unseen(500, seed=5), world.unseen(500, seed=6), strict=True)
    for size, detector, rule in (turn for one, other in both for turn in ((ASKED, few, one), (MILLION, many, other))):
        start = time.process_time()
        conflicts = detector.add(rule)
        times[size].append(time.process_time() - start)
        if not conflicts:
            detector.remove(rule.id)
        if size == MILLION:
            named.append(sum(len(conflict.rules) for conflict in conflicts))
    return _growth(f"moderator-million-{what}-unseen", [times], named)


def _growth(name: str, times: Sequence[dict[int, list[float]]], named: Sequence[int]) -> Result:
    few, many = (statistics.median(taken for by_size in times for taken in by_size[size]) for size in (ASKED, MILLION))
    rules = f"{statistics.median(named):,.0f} rules named (median), {statistics.mean(named):,.0f} (mean)"
    detail = f"one more of {ASKED:,}: {microseconds(few)}; of {MILLION:,}: {microseconds(many)}, {rules}"
    return at_most(name, many / few, 3, detail)


def _high(world: RuleWorld, detector: Detector, what: str) -> Result:
    """Rules that conflict with all below them, at the root and further down: what each conflict costs."""
    costs: dict[int, tuple[int, float]] = {}
    for depth in (0, 4, 8):
        candidate = world.rule(RuleCandidate("high", 2**depth, 1, (("b1", 1),)))
        detector.conflicts(candidate)
        kept: list[int] = []
        taken = processor_seconds(partial(_count, detector, candidate, kept))
        costs[depth] = (kept[0], taken / kept[0])
    top, low = costs[0], costs[8]
    detail = ", ".join(f"{count:,} conflicts at {microseconds(each)} each" for count, each in costs.values())
    return at_most(f"moderator-root-{what}", top[1] / low[1], 2, detail)


def _count(detector: Detector, candidate: PublishRule, found_here: list[int]) -> None:
    found_here.append(len(detector.conflicts(candidate)))


def withdrawals() -> Result:
    """A rule taken back where 2,000 were asked for, and where 20,000 were, most of which wait in the log."""
    world = RuleWorld(12)
    bases = [_stated(world, count) for count in (2_000, 20_000)]
    times: list[list[float]] = [[], []]
    gc.collect()
    gc.disable()
    for number in range(200):
        for base, taken in zip(bases, times, strict=True):
            rule = base.detector.rules[sorted(base.detector.rules)[7 * number % len(base.detector.rules)]]
            start = time.process_time()
            _take(base, WithdrawRule(rule.id), Note(rule.stated_by, NOW))
            taken.append(time.process_time() - start)
    gc.enable()
    few, many = map(statistics.median, times)
    logged = " and ".join(f"{len(base.history.entries):,}" for base in bases)
    detail = (
        f"{logged} entries in the log: {few * 1e3:.2f} ms and {many * 1e3:.2f} ms, {max(times[1]) * 1e3:.1f} at most"
    )
    return at_most("moderator-withdrawals", many / few, 2, detail)


def _stated(world: RuleWorld, count: int) -> RuleBase:
    base = RuleBase(world.vocabulary)
    asked = [c for says in CandidateKind for c in world.draw(count // 4, seed=1, says=says, prefix=says.name.lower())]
    random.Random(1).shuffle(asked)  # noqa: S311  # the same order in each run
    for rule in world.rules(asked):
        _take(base, Add(rule), Note(rule.stated_by, NOW))
    return base


def _take(base: RuleBase, request: Add | WithdrawRule, note: Note) -> None:
    base.apply(plan(base, request, note).step)


def _resident() -> int:
    """Return the bytes of memory that this process has taken."""
    statistics_file = Path("/proc/self/statm")
    return int(statistics_file.read_text().split()[1]) * 4096 if statistics_file.exists() else 0


def run() -> list[Result]:
    with ExitStack() as stack:
        programs = Programs(RuleWorld(LEVELS), stack)
        same_answers(programs)
        figures = [figure_3(programs), figure_4(programs)]
    figures.append(figure_5())
    write_page(PAGE, "Conflict detection", [chart for chart, _ in figures])
    results = [result for _, some in figures for result in some]
    if not found():
        note = "SWI-Prolog (`swipl`) is not on this machine: the figures are ours alone"
        results.append(observed("moderator-prolog", 0.0, note))
    return [*results, withdrawals(), *million(lists=True), *million(lists=False)]
