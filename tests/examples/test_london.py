"""The demonstration runs, and prints what README says that it prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.guard import Effect
from penstock.guard.decision_log import read_record
from penstock.trust import Right

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("london")


@pytest.fixture(scope="module", params=["demo"])
def output(folder: Path) -> str:
    environment = {**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(ROOT / "examples" / "london.py"), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_shows_what_the_demonstration_prints(output: str) -> None:
    (block,) = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    printed = {line.rstrip() for line in output.splitlines()}
    shown = [line.rstrip() for line in block.splitlines() if line != "…"]
    assert len(shown) > 10
    assert [line for line in shown if line not in printed] == []


def test_every_reader_sees_its_share_and_no_more(output: str) -> None:
    def row(subscriber: str) -> list[str]:
        (found,) = [line for line in output.splitlines() if line.startswith(f"│ {subscriber} ") and "7f3a" in line]
        return [cell.strip() for cell in found.strip("│").split("│")]

    assert row("Billing Office")[1:] == ["20,000", "7f3a", "numberplate, timestamp", "location"]
    assert row("Detective Smith")[1] == "44"


def test_the_three_great_attacks_are_refused(output: str) -> None:
    for code in ("type.forged", "type.signature-mismatch", "type.over-reach", "guard.denied"):
        assert f"[{code}]" in output
    assert "✗ expired on" in output
    assert "✗ may not be passed on" in output


def test_batch_equals_live(output: str) -> None:
    assert "The batch views equal what live delivery gave, row for row." in output


def test_the_log_holds_every_decision_and_the_events_under_each(output: str, folder: Path) -> None:
    log = [read_record(line) for line in (folder / "decisions.jsonl").read_bytes().splitlines()]
    decided = {record.id: record for record in log if record.counts is None}
    enforced = [(record.decision, record.counts) for record in log if record.counts is not None]
    assert len({record.id for record in log}) == len(log)
    assert f"The log holds {len(decided)} decisions" in output
    # Six cameras published and four subscriptions were delivered to; members connected; four requests were refused.
    assert len(enforced) == 10
    assert {decision for decision, _ in enforced} <= decided.keys()
    published = [counts.passed for d, counts in enforced if decided[d or ""].action is Right.PUBLISH]
    assert (len(published), sum(published)) == (6, 20_000)
    delivered = [(c.passed, c.refused) for d, c in enforced if decided[d or ""].action is Right.SUBSCRIBE]
    assert sorted(delivered) == [(0, 0), (44, 19_956), (20_000, 0), (20_000, 0)]
    assert [record.effect for record in decided.values()].count(Effect.DENY) == 4
    assert "AE05" not in (folder / "decisions.jsonl").read_text(encoding="utf-8")


def test_both_reports_are_written_and_named(output: str, folder: Path) -> None:
    joined = output.replace("\n", "")
    for name, said in {"whatif.html": "+20,000", "audit.html": "19,956"}.items():
        assert str(folder / name) in joined
        page = (folder / name).read_text(encoding="utf-8")
        assert said in page
        assert "AE05" not in page, "constants of the policy stay out"
