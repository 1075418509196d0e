"""The jobs run where Spark runs: on executors of their own, and for clients of Spark Connect."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.pipeline.anywhere import JOBS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", ["local-cluster", "connect"])
def test_every_job_runs(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.pipeline.anywhere", kind, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.stdout.splitlines() == list(JOBS), done.stderr
    assert done.returncode == 0, done.stderr
