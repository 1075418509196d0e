"""`penstock experiment`: measure figures and tables of the papers again."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from penstock.apps.answer_links import AnswerLinks
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.files import check_target
from penstock.apps.cli.shared.options import RealNumber
from penstock.apps.cli.shared.terminal import Shown, grid_table, showing
from penstock.crypto import SigningKey
from penstock.model.principals import Principal
from penstock.simulate.experiments.catalogue import CATALOGUE, find_experiments
from penstock.simulate.experiments.experiment import Experiment, Laboratory
from penstock.simulate.experiments.page import QUICK, ExperimentRun, check_page, machine, write_evidence

_PAGE: Final = "docs/evidence.md"
_BAR: Final = 30


@option_class
class _Experiment:
    names: tuple[str, ...] = argument(metavar="NAME...", nargs=-1, required=True)
    quick: bool = option("--quick", is_flag=True, help="Run with small numbers, to see that it works.")
    share: float = option(
        "--share",
        type=RealNumber(0, 1, min_open=True),
        default=1.0,
        show_default=True,
        metavar="NUMBER",
        help="Use this share of the paper's events and requests where times are measured.",
    )
    out: str | None = option(
        "--out",
        metavar="FILE",
        type=click.Path(path_type=str),
        help=f"Write a page with a section for each experiment, and charts beside it (default for all: {_PAGE}).",
    )
    output: str = output_option()


@command(
    example="""
penstock experiment list
penstock experiment pubsub-fig4b --quick
penstock experiment all --out docs/evidence.md
""",
)
def experiment(options: _Experiment) -> CommandAnswer:
    """Measure figures and tables of the papers again: NAME is an experiment, `all`, or `list`.

    Each shows the paper's parameters, the paper's numbers beside ours, and whether the shape agrees. Counted ones run
    in the simulator and give the same numbers everywhere. Timed ones use processes of this machine. In a page that
    exists already, sections of other experiments and text around them stay.
    """
    if options.names == ("list",):
        rows = [(one.name, one.figure, one.method.name.lower(), one.title) for one in CATALOGUE]
        data = {"experiments": [one.as_dict() for one in CATALOGUE]}
        return CommandAnswer(data, [grid_table(("name", "figure", "method", "title"), rows)])
    chosen = find_experiments(options.names)
    out = _PAGE if options.out is None and "all" in options.names else options.out
    if out is not None:
        # Before anything is measured.
        check_target(out, overwrite=True)
        check_page(Path(out))
    lab = Laboratory(quick=options.quick, share=options.share, links=_links, program=_PROGRAM)
    runs: list[ExperimentRun] = []
    files: dict[Path, None] = {}
    for one in chosen:
        runs.append(_run(one, lab))
        if out is not None:
            # What took hours is not lost with the next one.
            files |= dict.fromkeys(write_evidence(Path(out), runs[-1:], CATALOGUE))
    shown = [part for run in runs for part in _shown(run)]
    made = {"machine": machine(), "experiments": [run.as_dict() for run in runs], "files": [*map(str, files)]}
    return CommandAnswer(made, [*shown, *(f"✓ wrote {file}" for file in files)])


_PROGRAM: Final = (sys.executable, "-m", "penstock.apps.experiment_process")


def _links(key: SigningKey, owner: Principal, /) -> AnswerLinks:
    return AnswerLinks(key, owner, "127.0.0.1")


def _run(one: Experiment, lab: Laboratory) -> ExperimentRun:
    began, start = datetime.now(UTC), time.perf_counter()
    with _progress(one.name) as progress:
        findings = one.run(replace(lab, progress=progress))
    return ExperimentRun(one, findings, began, time.perf_counter() - start, lab.quick)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on a terminal."""
    done = [0.0]

    def progress(share: float) -> None:
        done[0] = share

    def text() -> str:
        full = round(_BAR * done[0])
        return f"{name} {'█' * full}{'░' * (_BAR - full)} {done[0]:.0%}"

    with showing(text):
        yield progress


def _shown(run: ExperimentRun) -> Iterator[Shown]:
    one, findings = run.experiment, run.findings
    yield f"{one.figure}: {one.title} ({one.name}, {run.seconds:.1f} s)"
    yield grid_table(findings.headings, findings.rows)
    marks = ((("✓" if each.agrees else "✗"), each.statement, each.paper, each.ours) for each in findings.comparisons)
    yield grid_table(("", "statement", one.compared_with, "Penstock"), marks)
    yield findings.verdict
    if run.quick:
        yield QUICK
    yield ""
