"""The demonstration runs, and prints what README says that it prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def output() -> str:
    environment = {**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(ROOT / "examples" / "london.py")]
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
