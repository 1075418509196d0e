"""Verdicts follow from comparisons, and a page keeps what was not run again."""

import errno
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.errors import FailedError, MalformedError
from penstock.simulate.experiments.charts import ChartLine, LineChart
from penstock.simulate.experiments.experiment import (
    Experiment,
    ExperimentFindings,
    ExperimentMethod,
    Laboratory,
    Paper,
    PaperComparison,
    near,
)
from penstock.simulate.experiments.page import ExperimentRun, check_page, section, write_evidence

GOOD = near("ratio", 4.0, 4.9, "noise")
BAD = near("ratio", 4.0, 5.1, "noise")


def findings(comparison: PaperComparison, value: str = "1") -> ExperimentFindings:
    chart = LineChart("t", "x", "y", [ChartLine("a < b", [(1, 2.0), (2, 4.0)])])
    return ExperimentFindings(("x",), [(value,)], [comparison], chart)


def experiment(name: str) -> Experiment:
    return Experiment(
        name, Paper.PUBSUB, "Figure 1", name, ExperimentMethod.COUNTED, {"k": "v"}, lambda _: findings(GOOD)
    )


def run(name: str, found: ExperimentFindings) -> ExperimentRun:
    return ExperimentRun(experiment(name), found, datetime(2026, 1, 1, tzinfo=UTC), 3.0)


def test_a_verdict_follows_from_the_comparisons() -> None:
    assert findings(GOOD).agrees
    assert findings(GOOD).verdict.startswith("The shape agrees")
    assert not findings(BAD).agrees
    assert findings(BAD).verdict.endswith("noise")
    assert "paper has 4, we have 5.1" in findings(BAD).verdict


def test_a_page_keeps_sections_and_text_that_were_not_made_again(tmp_path: Path) -> None:
    page, order = tmp_path / "evidence.md", [experiment("one"), experiment("two")]
    page.write_text("# Evidence\n\nBy hand.\n\n<!-- begin experiments -->\n<!-- end experiments -->\n\nAfterwards.\n")
    write_evidence(page, [run("two", findings(GOOD, "first"))], order)
    write_evidence(page, [run("one", findings(BAD, "second"))], order)
    files = write_evidence(page, [run("one", findings(GOOD, "third"))], order)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Evidence\n\nBy hand.\n\n<!-- begin experiments -->\n")
    assert text.endswith("<!-- end experiments -->\n\nAfterwards.\n")
    assert text.index("third") < text.index("first")
    assert "second" not in text
    assert files == [page, tmp_path / "evidence" / "one.svg"]
    assert "a &lt; b" in files[1].read_text(encoding="utf-8")


def test_a_page_without_an_ending_has_its_charts_beside_it(tmp_path: Path) -> None:
    one = run("one", findings(GOOD))
    assert write_evidence(tmp_path / "new" / "page", [one], [one.experiment]) == [
        tmp_path / "new" / "page",
        tmp_path / "new" / "page-charts" / "one.svg",
    ]
    assert "(page-charts/one.svg)" in (tmp_path / "new" / "page").read_text(encoding="utf-8")


def test_a_page_that_cannot_be_continued_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    marks = b"# T\n\n<!-- begin experiments -->\n\nNotes\n"
    for data in (b"\xff\xfe abc", marks, marks + b"<!-- end experiments -->\n"):
        page.write_bytes(data)
        with pytest.raises(MalformedError, match="page") as refused:
            check_page(page)
        assert refused.value.code == "experiment.page"
    page.unlink()
    check_page(page)
    (tmp_path / "page").touch()
    with pytest.raises(FailedError, match="is not a folder"):
        check_page(page)


def test_a_page_that_cannot_be_written_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, one = tmp_path / "page.md", run("one", findings(GOOD))
    write_evidence(page, [one], [one.experiment])
    before = page.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_evidence(page, [run("one", findings(BAD))], [one.experiment])
    assert page.read_bytes() == before
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["one.svg", "page", "page.md"]


def test_what_goes_beyond_the_papers_is_compared_with_targets() -> None:
    of_paper = run("one", findings(GOOD))
    beyond = replace(of_paper, experiment=replace(of_paper.experiment, paper=Paper.BEYOND))
    assert "| statement | paper |" in section(of_paper, None)
    assert "| statement | target |" in section(beyond, None)
    assert "paper" not in section(beyond, None)


def test_a_quick_laboratory_uses_small_numbers_and_a_share_fewer() -> None:
    assert (Laboratory(quick=True).pick(9, 1), Laboratory().pick(9, 1)) == (1, 9)
    assert [lab.some(1_000, 10) for lab in (Laboratory(), Laboratory(share=0.1), Laboratory(quick=True))] == [
        1_000,
        100,
        10,
    ]
    seen: list[float] = []
    assert [*Laboratory(progress=seen.append).each("ab")] == ["a", "b"]
    assert seen == [0.0, 0.5, 1.0]
