"""Examples, run as a reader would run them."""

import os
import subprocess
import sys
from pathlib import Path

from tests import java

from penstock.pipeline.jobs.session_settings import INTERPRETED

ROOT = Path(__file__).resolve().parents[2]


def run_example(name: str, *arguments: str, quiet: bool = True) -> str:
    """Run an example and return what it prints. It checks itself, and fails where an outcome is not as it says.

    One that is `quiet` says nothing on standard error; Spark does.
    """
    environment = {**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
    environment["SPARK_SUBMIT_OPTS"] = java.options(INTERPRETED)
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (quiet and done.stderr), done.stderr
    return done.stdout


def rows(output: str, first: str) -> list[list[str]]:
    """Return the rows of all tables that begin with a cell."""
    found = [line for line in output.splitlines() if line.startswith(f"│ {first} ")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in found]
