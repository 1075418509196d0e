"""A driver that is there to be killed: from one address of messages to another through `ingest`, `admit`, `deliver`.

python -m tests.pipeline.messages_driver FOLDER SOURCE TARGET [--drain]
"""

import os
import sys
import threading
import time
from pathlib import Path

from tests.pipeline.killed_driver import begun

from penstock.apps.cli.main import cli


def main(folder: Path, source: str, target: str, more: list[str]) -> None:
    """Run until killed, or until everything was read."""
    begun()
    jobs: list[threading.Thread] = []
    for job, read, out, to in (
        ("ingest", source, "ingested", []),
        ("admit", str(folder / "ingested"), "admitted", []),
        ("deliver", str(folder / "admitted"), "delivered", ["--to", target]),
    ):
        policy = ["--policy", str(folder / "plant" / "policy.toml"), "--out", str(folder / out)]
        arguments = ["pipeline", job, read, *policy, *to, "--stream", "--files", "2", *more]
        running = threading.Thread(target=cli.main, args=(arguments,), daemon=True)
        running.start()
        if more:
            running.join()
        while running.is_alive() and not (folder / out / "commits").is_dir():
            time.sleep(0.1)
        jobs.append(running)
    # A job that lost its server ends: whoever started this driver starts it again.
    while not more and all(job.is_alive() for job in jobs):
        time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
    os._exit(0)  # Java and other jobs too
