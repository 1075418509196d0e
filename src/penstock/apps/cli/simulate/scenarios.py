"""`penstock simulate run` and `explore`: run scenarios, and search for seeds that violate something."""

import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from time import monotonic
from typing import Final

import click

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.files import check_target
from penstock.apps.cli.shared.terminal import Shown, grid_table, showing
from penstock.errors import FailedError, RefusedError, did_you_mean
from penstock.simulate.checkers import Violation
from penstock.simulate.explore import Exploration, is_mistake, unhandled
from penstock.simulate.explore import explore as search
from penstock.simulate.run import Outcome, world_of
from penstock.simulate.run import run as run_scenario
from penstock.simulate.scenario import SimulationScenario
from penstock.simulate.worlds import WORLDS
from penstock.store.files.files import read_file, replace_file

_BAR: Final = 30
#: violations that are shown to people
_SHOWN: Final = 10


@option_class
class _Scenario:
    scenario: str = argument(metavar="SCENARIO")
    seed: int | None = option(
        "--seed", type=click.IntRange(0), metavar="NUMBER", help="Begin with this seed (default: the file's, or 0)."
    )
    size: int | None = option(
        "--size", type=click.IntRange(1), metavar="NUMBER", help="Draw so many steps (default: the file's, or 100)."
    )

    def read(self) -> SimulationScenario:
        """Return the scenario of a file, or of a world by its name. Raises `MalformedError`, `FailedError`."""
        if self.scenario in WORLDS:
            found = SimulationScenario(self.scenario, 0)
        else:
            try:
                found = SimulationScenario.parse(read_file(self.scenario))
            except FailedError as error:
                hint = did_you_mean(self.scenario, WORLDS, f"give a file, or one of {', '.join(WORLDS)}")
                raise FailedError(error.code, error.message, hint=hint) from None
        if self.seed is not None:
            found = replace(found, seed=self.seed)
        if self.size is not None:
            found = replace(found, options={**found.options, "size": self.size})
        world_of(found)
        return found


def _violations(violations: tuple[Violation, ...]) -> list[dict[str, object]]:
    return [{"checker": one.checker, "at": one.at, "message": one.message} for one in violations]


def _violated(violations: tuple[Violation, ...], hint: str) -> RefusedError | None:
    if not violations:
        return None
    first = violations[0]
    message = f"{first.checker} found at {first.at:.3f} s: {first.message[:300]}"
    return RefusedError("simulate.violation", message, hint=hint, checker=first.checker)


# ----------------------------------------------------------------------------------------------------------------------
# One scenario.


@option_class
class _Run(_Scenario):
    log: bool = option("--log", is_flag=True, help="Show what was noted, in order.")
    output: str = output_option()


@command(
    example="""
penstock simulate run components --seed 7
penstock simulate run found.toml --log
""",
)
def run(options: _Run) -> CommandAnswer:
    """Run a scenario in virtual time, and check its log: SCENARIO is a file, or the name of a world.

    The same scenario gives the same trace everywhere. Ends with status 1 if something is violated.
    """
    scenario = options.read()
    try:
        outcome = run_scenario(scenario)
    except Exception as error:  # whatever a run raises is a violation, as in a search
        if is_mistake(error):
            raise
        found = (unhandled(error),)
        failed = {"world": scenario.world, "seed": scenario.seed, "trace": "", "counts": {}}
        failed["violations"] = _violations(found)
        return CommandAnswer(failed, _shown_violations(found), _violated(found, "it is a fault of the code"))
    data = {
        "world": outcome.scenario.world,
        "seed": outcome.scenario.seed,
        "trace": outcome.trace,
        "counts": dict(outcome.counts),
        "violations": _violations(outcome.violations),
    }
    if options.log:
        data["log"] = [
            [one.at, one.process, one.kind, {k: str(v) for k, v in one.fields.items()}] for one in outcome.log
        ]
    seen = _violated(outcome.violations, "add --log to see what happened before")
    return CommandAnswer(data, _shown_run(outcome, log=options.log), seen)


def _shown_run(outcome: Outcome, *, log: bool) -> list[Shown]:
    shown: list[Shown] = []
    if log:
        rows = [
            (f"{one.at:.6f}", one.process, one.kind, " ".join(f"{key}={value!s}" for key, value in one.fields.items()))
            for one in outcome.log
        ]
        shown.append(grid_table(("seconds", "process", "what", ""), rows))
    shown += [
        grid_table(("count", ""), [(str(number), name) for name, number in sorted(outcome.counts.items())]),
        f"{outcome.scenario.world}, seed {outcome.scenario.seed}, trace {outcome.trace[:16]}",
    ]
    return shown + _shown_violations(outcome.violations)


def _shown_violations(violations: tuple[Violation, ...]) -> list[Shown]:
    if not violations:
        return ["✓ nothing is violated"]
    rows = [(f"{one.at:.6f}", one.checker, one.message) for one in violations[:_SHOWN]]
    more = len(violations) - len(rows)
    return [grid_table(("seconds", "checker", "what it found"), rows), *([f"and {more} more"] if more else [])]


# ----------------------------------------------------------------------------------------------------------------------
# Many seeds.


@option_class
class _Explore(_Scenario):
    seeds: int = option(
        "--seeds",
        type=click.IntRange(1, 1_000_000),
        default=100,
        show_default=True,
        metavar="NUMBER",
        help="Run so many seeds, or until one violates something.",
    )
    processes: int | None = option(
        "--processes",
        type=click.IntRange(1),
        metavar="NUMBER",
        help="Run in so many processes (default: one per core).",
    )
    sharing: int = option(
        "--sharing",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        metavar="NUMBER",
        help="Start the world once for so many seeds, which saves time. They differ in what happens afterwards.",
    )
    out: str | None = option("--out", metavar="FILE", help="Write the shrunk scenario here (default: WORLD-SEED.toml).")
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace a file that exists.")
    output: str = output_option()


@command(
    example="""
penstock simulate explore components --seeds 1000
penstock simulate explore scenario.toml --seeds 10000 --out found.toml
""",
)
def explore(options: _Explore) -> CommandAnswer:
    """Run a scenario with many seeds, and shrink the first one that violates something to a few lines.

    SCENARIO is a file, or the name of a world. Steps and faults that it does not write down are drawn from each seed.
    Ends with status 1 if something is violated; `penstock simulate run FILE` shows it again. SIGINT and SIGTERM end the
    search, and it says with which `--seed` to go on.
    """
    scenario = options.read()
    if options.out is not None:
        check_target(options.out, overwrite=options.overwrite)
    state, run_seeds, began = ("seeds", 0, options.seeds), 0, monotonic()

    def progress(what: str, done: int, of: int) -> None:
        nonlocal state, run_seeds
        state = what, done, of
        if what == "seeds":
            run_seeds = done

    def text() -> str:
        what, done, of = state
        full = round(_BAR * done / max(of, 1))
        return f"{scenario.world}: {what} {'█' * full}{'░' * (_BAR - full)} {done}/{of}, {_rate(run_seeds, began)}"

    try:
        with showing(text), _interruptible():
            found = search(
                scenario,
                options.seeds,
                processes=options.processes or os.cpu_count() or 1,
                sharing=options.sharing,
                progress=progress,
            )
    except KeyboardInterrupt:
        # What was interrupted never awaits what it has made.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        raise _stopped(scenario, run_seeds, state[0], _rate(run_seeds, began), options.sharing) from None
    data: dict[str, object] = {
        "world": scenario.world,
        "first": scenario.seed,
        "seeds": found.seeds,
        "seconds": round(monotonic() - began, 3),
        "fewest": dict(found.fewest),
        "counts": dict(found.counts),
        "violations": _violations(found.violations),
    }
    path = None
    if found.scenario is not None:
        path = Path(options.out or _free(f"{scenario.world}-{found.scenario.seed}", overwrite=options.overwrite))
        replace_file(path, found.scenario.text().encode())
        data |= {"file": str(path), "scenario": found.scenario.text(), "before": found.before}
    error = _violated(found.violations, f"run `penstock simulate run {path} --log`")
    rate = f"from seed {scenario.seed} on, {_rate(found.seeds, began)}"
    return CommandAnswer(data, [rate, *_shown_search(found, path)], error)


def _free(name: str, *, overwrite: bool) -> str:
    """Return a name of a file that does not exist, unless it may be overwritten: what was searched for is not lost."""
    names = chain((f"{name}.toml",), (f"{name}-{number}.toml" for number in count(2)))
    return next(one for one in names if overwrite or not Path(one).exists())


def _rate(seeds: int, began: float) -> str:
    return f"{seeds / max(monotonic() - began, 1e-3):.2f} seeds a second"


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM interrupt what runs, as SIGINT does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stopped(scenario: SimulationScenario, seeds: int, what: str, rate: str, sharing: int) -> FailedError:
    """Return the error for a search that was interrupted: it says how far it was."""
    first, last = scenario.seed, scenario.seed + seeds - 1
    if what == "shrinking":
        # With another start it would be another run.
        shared = f" --sharing {sharing}" if sharing > 1 else ""
        return FailedError(
            "cli.aborted",
            f"stopped while seed {last} was shrunk",
            hint=f"search again with --seed {last} --seeds 1{shared}",
        )
    done = f"seeds {first} to {last} violate nothing ({rate})" if seeds else "no seed was done"
    return FailedError("cli.aborted", f"stopped: {done}", hint=f"go on with --seed {first + seeds}")


def _shown_search(found: Exploration, path: Path | None) -> list[Shown]:
    faults = [(str(number), name) for name, number in sorted(found.counts.items()) if name.startswith("fault ")]
    counts, fewest = found.counts, found.fewest
    shown: list[Shown] = [
        f"{found.seeds} seeds, {counts.get('messages', 0)} messages, {counts.get('faults', 0)} faults",
        f"the fewest of one seed: {fewest.get('messages', 0)} messages, {fewest.get('faults', 0)} faults",
        grid_table(("count", ""), faults),
    ]
    if found.scenario is not None:
        lines = len((found.scenario.steps or ()) + (found.scenario.faults or ()))
        shown += [f"✓ wrote {path}: {lines} of {found.before} steps and faults", *found.scenario.text().splitlines()]
    return shown + _shown_violations(found.violations)
