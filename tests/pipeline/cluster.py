"""One run on a cluster of processes, submitted as the documentation says; `anywhere` is what runs there.

The driver has two executors that are processes of their own, and serves clients of Spark Connect. Everything is logged
that Spark logs.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark
from tests import java
from tests.pipeline.anywhere import PATIENCE
from tests.pipeline.jobs_plant import build, write_events

from penstock.pipeline.jobs.session_settings import INTERPRETED
from penstock.testing.server_process import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "run-on-a-cluster.md"
SPARK = Path(pyspark.__file__).parent
RECORDS = 42
SETTINGS = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.execute.manager.detachedTimeout": f"{PATIENCE}s",
    "spark.connect.execute.manager.maintenanceInterval": "1s",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "Pacific/Auckland",
    **INTERPRETED,
    **java.LIGHT,
}


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run left: its exit status, what it printed, what Spark logged, and the history that its UI would show."""

    status: int
    printed: list[str]
    log: str
    history: str


#: seconds after which a cluster hangs: on a busy machine it took more than 500 to run all jobs
_PATIENCE: Final = 2_000


def run(folder: Path) -> Ran:
    """Submit, and wait for the end."""
    _lay_out(folder)
    done = subprocess.run(_line(folder), cwd=folder, capture_output=True, text=True, check=False, timeout=_PATIENCE)
    history = "\n".join(path.read_text("utf-8") for path in (folder / "history").rglob("*") if path.is_file())
    log = done.stderr
    for application in set(re.findall(r'"App ID":"([\w-]+)"', history)):
        # The workers leave the folders of their executors behind, beside Spark itself.
        work = SPARK / "work" / application
        log += "".join(path.read_text("utf-8") for path in sorted(work.glob("*/std*")))
        shutil.rmtree(work)
    return Ran(done.returncode, done.stdout.splitlines(), log, history)


def _lay_out(folder: Path) -> None:
    """Write what the page says to have: a policy, events, a program, an environment here and one to send."""
    build(folder)
    write_events(folder / "in" / "0.jsonl", range(RECORDS))
    (folder / "history").mkdir()
    (program,) = re.findall(r"can be submitted:\n\n```text\n(.*?)^```", _page(), re.DOTALL | re.MULTILINE)
    (folder / "job.py").write_text(program, encoding="utf-8")
    (folder / "job").symlink_to(sys.prefix)
    python = folder / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    # Spark waits ten seconds for it, however much else the machine does: it goes first, where that is permitted.
    first = "renice -n -10 -p $$ > /dev/null 2>&1"
    python.write_text(f'#!/bin/sh\n{first}\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    python.chmod(0o700)
    with tarfile.open(folder / "penstock.tar.gz", "w:gz") as archive:
        archive.add(folder / "environment", ".")


def _line(folder: Path) -> list[str]:
    """Return the line of the page, with a cluster that is here, and paths that are."""
    (line,) = re.findall(r"^```sh\n(spark-submit --master yarn .*?)^```", _page(), re.DOTALL | re.MULTILINE)
    port = str(free_port())
    settings = SETTINGS | {
        "spark.connect.grpc.binding.port": port,
        "spark.eventLog.dir": f"file://{folder}/history",
        # The driver learns it from the environment.
        "spark.executor.extraJavaOptions": java.options(),
    }
    here = {
        "spark-submit": [str(SPARK / "bin" / "spark-submit"), *_conf(settings)],
        "yarn": ["local-cluster[2,1,1024]"],
        "job.py": [str(Path(__file__).with_name("submitted.py")), str(folder), port],
        "hdfs:///events/admitted": [str(folder / "ingested")],
        "hdfs:///events/delivered": [str(folder / "delivered")],
    }
    words = shlex.split(line.replace("\\\n", ""))
    assert set(here) <= set(words)
    return [part for word in words for part in here.get(word, [word])]


def _conf(settings: dict[str, str]) -> list[str]:
    return [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]


def _page() -> str:
    return PAGE.read_text(encoding="utf-8")
