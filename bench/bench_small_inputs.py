"""Commands over a handful of records: on Spark against the start of a session, and without Spark in seconds.

Each is a process of its own, as somebody runs it, and they take turns. What is measured is the time until it ends.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness import Result, at_most
from penstock.crypto import SigningKey
from penstock.guard.decision import Effect
from penstock.guard.decision_log import DecisionRecord
from penstock.model import AttributeDefinition, AttributeSpec, Kind, TypeDefinition, TypeName
from penstock.trust import Right, sign_type

HERE = Path(__file__).resolve().parent
ROUNDS = 3
SMALL = ("ingest", "admit", "deliver", "view", "whatif")
RECORDS = 19
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
KEY = SigningKey(b"\1" * 32)
READING = TypeDefinition(
    TypeName(KEY.principal, "org.bench.Reading"), (AttributeDefinition("value", "0", AttributeSpec(Kind.FLOAT)),)
)
START = [sys.executable, "-c", "from spark_parts import spark_session; spark_session('1g').stop()"]
PENSTOCK = [str(Path(sys.executable).with_name("penstock")), "pipeline"]


def write_log(file: Path) -> None:
    """Write a log of a few decisions."""
    records = [
        DecisionRecord(
            id=f"d{number}",
            source="bench",
            time=NOW,
            principal=KEY.principal,
            action=Right.SUBSCRIBE,
            resource=READING.name,
            effect=Effect.DENY if number % 3 else Effect.PERMIT,
            revision="policy:bench",
            took=number,
        )
        for number in range(RECORDS)
    ]
    file.write_text("".join(f"{record.to_json()}\n" for record in records), encoding="utf-8")


def seconds(command: Sequence[str]) -> float:
    """Return how long a command takes."""
    started = time.perf_counter()
    subprocess.run(command, check=True, cwd=HERE, capture_output=True)  # noqa: S603  # our own programs
    return time.perf_counter() - started


def small_commands(folder: Path) -> list[list[str]]:
    """Write five lines of CSV, and return the commands that bring them to a reader without Spark."""
    (folder / "meter.csv").write_text(
        "n,t,v\n" + "".join(f"{n},2026-05-01T12:00:0{n}Z,{n}.5\n" for n in range(5)), encoding="utf-8"
    )
    (folder / "mapping.toml").write_text(
        f"""type = "reading.type"
format = "csv"
[event]
id = "n"
time = "t"
source = {{ constant = "{KEY.principal}" }}
[attributes]
value = "v"
""",
        encoding="utf-8",
    )
    (folder / "policy.toml").write_text(
        f"""types = ["reading.type"]
names = {{ owner = "{KEY.principal}" }}
[[subscribers]]
name = "owner"
type = "org.bench.Reading"
""",
        encoding="utf-8",
    )
    places = {name: str(folder / f"small-{name}") for name in SMALL}
    policy = ["--policy", str(folder / "policy.toml")]
    arguments = {
        "ingest": [str(folder / "meter.csv"), "--mapping", str(folder / "mapping.toml")],
        "admit": [places["ingest"], *policy],
        "deliver": [places["admit"], *policy],
    }
    jobs = [[*PENSTOCK, name, *own, "--overwrite", "--out", places[name]] for name, own in arguments.items()]
    view = [*PENSTOCK, "view", places["deliver"], "owner"]
    nobody = folder / "nobody.toml"
    nobody.write_text('types = ["reading.type"]\n', encoding="utf-8")
    whatif = [*PENSTOCK, "whatif", places["ingest"], "--before", str(folder / "policy.toml"), "--after", str(nobody)]
    return [[*job, "--engine", "small"] for job in (*jobs, view, whatif)]


def run() -> list[Result]:
    """Measure."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_log(folder / "log.jsonl")
        (folder / "reading.type").write_bytes(sign_type(READING, KEY).to_bytes())
        (folder / "events.jsonl").write_text("".join(f'{{"id": "{n}"}}\n' for n in range(5)), encoding="utf-8")
        audit = [*PENSTOCK, "audit", str(folder / "log.jsonl")]
        ingest = [*PENSTOCK, "ingest", str(folder / "events.jsonl"), "--type-file", str(folder / "reading.type")]
        ingest += ["--overwrite", "--engine", "spark", "--out", str(folder / "ingested")]
        small = small_commands(folder)
        samples = [[seconds(command) for command in (START, audit, ingest, *small)] for _ in range(ROUNDS)]
    start, audited, ingested, *without = (statistics.median(times) for times in zip(*samples, strict=True))
    session = f"start of a session {start:.1f} s"
    listed = ", ".join(f"{name} {taken:.2f} s" for name, taken in zip(SMALL, without, strict=True))
    return [
        at_most("small-audit", audited / start, 3, f"{session}, audit of {RECORDS} records {audited:.1f} s"),
        at_most("small-ingest", ingested / start, 3, f"{session}, ingest of 5 lines {ingested:.1f} s"),
        at_most("small-without-spark", max(without), 1, f"seconds for five lines of CSV: {listed}"),
    ]
