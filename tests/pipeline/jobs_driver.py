"""A driver that is there to be killed: three jobs of the command line as streams, each on the output of the one before.

python jobs_driver.py FOLDER [--many]

With `--many`, few types are many.
"""

import sys
import threading
import time
from pathlib import Path

import pytest
from tests.pipeline.killed_driver import begun

from penstock.apps.cli.main import cli
from penstock.pipeline import shared_columns


def main(folder: Path, *more: str) -> None:
    """Run until killed."""
    if more:
        pytest.MonkeyPatch().setattr(shared_columns, "MANY", 0)
    begun()
    policy = str(folder / "plant" / "policy.toml")
    for job, source, out in (
        ("ingest", "in", "ingested"),
        ("admit", "ingested", "admitted"),
        ("deliver", "admitted", "delivered"),
    ):
        paths = [str(folder / source), "--policy", policy, "--out", str(folder / out)]
        arguments = ["pipeline", job, *paths, "--stream", "--files", "1"]
        threading.Thread(target=cli.main, args=(arguments,), daemon=True).start()
        while not (folder / out / "commits").is_dir():
            time.sleep(0.1)
    time.sleep(600)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
