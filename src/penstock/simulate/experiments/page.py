"""The page of evidence: one section for each experiment, with its chart in a file beside the page.

Text that somebody wrote around the sections stays. A run of some experiments replaces their sections alone.
"""

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Final

from penstock.errors import FailedError, MalformedError
from penstock.simulate.experiments.experiment import Experiment, ExperimentFindings, Paper
from penstock.store.files.files import PUBLIC, replacing

_BEGIN, _END = "<!-- begin experiments -->", "<!-- end experiments -->"
_SECTION: Final = re.compile(r"<!-- begin ([\w.-]+) -->\n(.*?)<!-- end \1 -->\n", re.DOTALL)
QUICK: Final = (
    "A quick run with small numbers, and with default service times where the method is simulation: it shows that the"
    " experiment works, and proves nothing."
)
_CPU_INFO: Final = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class ExperimentRun:
    """An experiment, what it found, when it began, and how many seconds it took."""

    experiment: Experiment
    findings: ExperimentFindings
    began: datetime
    seconds: float
    quick: bool = False

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            **self.experiment.as_dict(),
            **self.findings.as_dict(),
            "seconds": round(self.seconds, 1),
            "quick": self.quick,
        }


def machine() -> str:
    """Describe the machine that this runs on."""
    text = _CPU_INFO.read_text(encoding="utf-8") if _CPU_INFO.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    model = found[1] if found else platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores, {model}, {platform.system()}, Python {platform.python_version()}"


def write_evidence(path: Path, runs: Iterable[ExperimentRun], order: Sequence[Experiment]) -> list[Path]:
    """Write sections and charts, and return the files. `order` is that of the sections."""
    before, sections, after = _read(path)
    files, folder = [path], _folder(path)
    for run in runs:
        chart = run.findings.chart
        image = None
        if chart is not None:
            folder.mkdir(parents=True, exist_ok=True)
            image = folder / f"{run.experiment.name}.svg"
            _write(image, chart.svg())
            files.append(image)
        sections[run.experiment.name] = section(run, None if image is None else f"{folder.name}/{image.name}")
    parts = [before, _BEGIN, "\n"]
    known = [one for one in order if one.name in sections]
    for paper, group in groupby(known, key=lambda one: one.paper):
        parts.append(f"\n### {paper}\n")
        parts += [f"\n<!-- begin {one.name} -->\n{sections[one.name]}<!-- end {one.name} -->\n" for one in group]
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, "".join([*parts, "\n", _END, after]))
    return files


def check_page(path: Path) -> None:
    """Check that sections can be written into a page, and charts beside it, before anything is measured.

    Raises `MalformedError` (`experiment.page`) for a page that is not text, lacks the mark behind its sections, or has
    other text between them, and `FailedError` (`file.unwritable`) if a file is in the place of the folder of charts.
    """
    _read(path)
    folder = _folder(path)
    if folder.exists() and not folder.is_dir():
        raise FailedError("file.unwritable", f"charts cannot be written to `{folder}`: it is not a folder")


def _folder(path: Path) -> Path:
    """Return the folder of a page's charts; the page itself has the usual name if it has no ending."""
    return path.parent / (path.stem if path.suffix else f"{path.name}-charts")


def _write(path: Path, text: str) -> None:
    """Write a file, or leave the one that is there: what was measured before took hours."""
    with replacing(path, PUBLIC) as stream:
        stream.write(text.encode())


def section(run: ExperimentRun, image: str | None) -> str:
    """Write one section."""
    one, findings = run.experiment, run.findings
    lines = [f"#### {one.figure}: {one.title}", "", f"`penstock experiment {one.name}`, {one.method}.", ""]
    if run.quick:
        lines += [QUICK, ""]
    of_paper = " of the paper" if one.compared_with == "paper" else ""
    lines.append(f"Parameters{of_paper}: {_facts(one.parameters)}.")
    if findings.instead:
        lines.append(f"Here: {_facts(findings.instead)}.")
    lines += ["", f"**{findings.verdict}**", ""]
    compared = [
        (each.statement, each.paper, each.ours, "yes" if each.agrees else "no") for each in findings.comparisons
    ]
    lines += _table(("statement", one.compared_with, "Penstock", "agrees"), compared)
    if image is not None:
        lines += [f"![{one.figure}: {one.title}]({image})", ""]
    lines += _table(findings.headings, findings.rows)
    lines += [f"Made on {run.began:%Y-%m-%d} in {run.seconds:,.0f} s: {machine()}.", ""]
    return "\n".join(lines)


def _read(path: Path) -> tuple[str, dict[str, str], str]:
    """Return what is before the sections, the sections by name, and what is after them."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else "# Evidence\n\n"
    except UnicodeDecodeError:
        raise MalformedError("experiment.page", f"`{path}` is not a page: it is not UTF-8") from None
    before, begin, rest = text.partition(_BEGIN)
    if not begin:
        return f"{before.rstrip()}\n\n", {}, "\n"
    inner, end, after = rest.partition(_END)
    if not end:
        raise MalformedError(
            "experiment.page",
            f"`{path}` has the line `{_BEGIN}`, and no line `{_END}` after it",
            hint="add it behind the sections of experiments; what comes after it stays as it is",
        )
    own = {"", *(f"### {paper}" for paper in Paper)}
    lost = [line for line in _SECTION.sub("", inner).splitlines() if line.strip() not in own]
    if lost:
        raise MalformedError(
            "experiment.page",
            f"`{path}` has text between its sections, which would be lost: {lost[0].strip()[:60]!r}",
            hint=f"move it before the line `{_BEGIN}`, or behind the line `{_END}`",
        )
    return before, dict(_SECTION.findall(inner)), after


def _facts(facts: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in facts.items())


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    written = [headings, ["---"] * len(headings), *rows]
    return [*(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in written), ""]
