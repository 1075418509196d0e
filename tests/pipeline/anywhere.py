"""A small network, and a program that runs every job over it on kinds of Spark that a test process cannot share.

    spark-submit … submitted.py FOLDER PORT COMMAND …         executors that are processes of their own
    python -m tests.pipeline.anywhere FOLDER PORT             a client of the Spark Connect server on that port

The first runs commands of the command line as they are submitted, then every job, and then the second: the same as a
client of its own driver, which is a Spark Connect server too. `cluster.py` starts it. Each job asserts the rows that it
gives, and its name is printed when it is done.
"""

import asyncio
import json
import os
import re
import runpy
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from unittest import mock

import nats
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from tests.guard.london import BAG, TO_BILLING, TO_STATISTICS
from tests.moderator.kit import FORMULAS, LISTS
from tests.pipeline import secrets_job
from tests.pipeline.conflicts_kit import forest, look, reference, terms, told
from tests.pipeline.ingest.test_ingest_csv import BOUND, TOP, line
from tests.pipeline.ingest.test_ingest_envelopes import AT, good
from tests.pipeline.ingest_reference import define
from tests.pipeline.test_audit import RECORDS
from tests.trust.kit import grant, who

from penstock.model import Principal
from penstock.model.tree import TreeScope
from penstock.moderator.rules.rules import Mode
from penstock.pipeline.audit import audit, read_log
from penstock.pipeline.conflicts.input import InputTable
from penstock.pipeline.conflicts.report import opened
from penstock.pipeline.enforce.admit import REASON, admit
from penstock.pipeline.enforce.deliver import deliver
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber
from penstock.pipeline.evaluate import TablePolicies, read_request_mapping
from penstock.pipeline.frames import ID
from penstock.pipeline.ingest.ingest import (
    Ingested,
    RecordTally,
    each_batch,
    ingest_envelopes,
    ingest_table,
    read_csv,
    read_lines,
    run_ingest,
)
from penstock.pipeline.jetstream.messages import read_jetstream, to_messages
from penstock.pipeline.jetstream.source import NAME, register_jetstream
from penstock.pipeline.jobs.evaluate import Evaluate
from penstock.pipeline.jobs.job import RunningStream
from penstock.pipeline.jobs.job import run as run_job
from penstock.pipeline.whatif import compare
from penstock.policy.syntax.text.policies import read_text_policy
from penstock.selector import ALWAYS, parse
from penstock.testing.nats import NatsServer
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.credentials import Credentials
from penstock.trust.tags import Tag

ROOT = Path(__file__).resolve().parents[2]
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""What spark-submit sets for the program that it runs."""
PATIENCE = 2
"""Seconds after which a server gives up a client."""
FIRST, SECOND = define()
OWNER, CAMERA, STRANGER, AMY, BOB = 1, 2, 3, 4, 5
BROKEN = [b"{", b"\xff", b'{"specversion": "1.0"}']


# --- The network -----------------------------------------------------------------------------------------------------


def policy(*amys: str) -> PipelinePolicy:
    """Return a policy: a camera may publish, Amy sees some attributes of busy moments, Bob sees colours."""
    name = FIRST.event_type.name
    uid = {attribute.name: attribute.id for attribute in FIRST.event_type.attributes}

    def seeing(*names: str) -> Tag:
        return event_tag(who(OWNER), name.name, None, [Right.SUBSCRIBE], attributes=[uid[n] for n in names])

    return PipelinePolicy(
        Credentials.of(
            grant(OWNER, CAMERA, event_tag(who(OWNER), name.name, None, [Right.PUBLISH])),
            grant(OWNER, AMY, seeing("lane", "count", *amys)),
            grant(OWNER, BOB, seeing("colour")),
        ),
        (Subscriber("amy", who(AMY), FIRST, parse("count > 5")), Subscriber("bob", who(BOB), SECOND)),
    )


def sighting(number: int, source: int = CAMERA) -> bytes:
    """Return an event of the network as it comes in."""
    data = {"sensor": f"s{number}", "count": number, "lane": number % 10, "colour": "red"}
    return json.dumps(good(id=f"e{number}", source=str(who(source)), data=data)).encode()


SENT = [*map(sighting, range(10)), *BROKEN, sighting(20, STRANGER)]


def _view(reader: str, number: int, source: Principal, **data: object) -> tuple[str, str]:
    version = {"amy": FIRST, "bob": SECOND}[reader].event_type
    envelope = {
        "specversion": "1.0",
        "id": f"e{number}",
        "source": str(source),
        "type": str(version.name),
        "time": "2026-05-01T12:00:00.000000Z",
        "data": data,
    }
    return f"VIEWS.{reader}", json.dumps(envelope, separators=(",", ":"))


#: what the readers get of `SENT`, by subject and payload
VIEWS = Counter(
    [_view("amy", n, who(CAMERA), count=n, lane=n) for n in range(6, 10)]
    + [_view("bob", n, who(CAMERA), colour="red") for n in range(10)]
)


def publish(url: str, stream: str, payloads: list[bytes]) -> dict[str, str]:
    """Put payloads into a stream, which is made if need be; return the options that read it."""

    async def send() -> None:
        connection = await nats.connect(url)
        js = connection.jetstream()
        await js.add_stream(name=stream, subjects=[f"{stream}.>"])
        for payload in payloads:
            # A header that says otherwise than the envelope changes nothing.
            await js.publish_async(f"{stream}.in", payload, headers={"ce-source": str(who(OWNER)), "ce-id": "x"})
        await js.publish_async_completed()
        await connection.close()

    asyncio.run(send())
    return {"url": url, "stream": stream}


def stored(url: str, stream: str) -> Counter[tuple[str, str]]:
    """Return the messages of a stream, by subject and payload."""

    async def read() -> Counter[tuple[str, str]]:
        connection = await nats.connect(url)
        js = connection.jetstream()
        last = (await js.stream_info(stream)).state.last_seq
        found = [await js.get_msg(stream, sequence) for sequence in range(1, last + 1)]
        await connection.close()
        return Counter((message.subject or "", (message.data or b"").decode()) for message in found)

    return asyncio.run(read())


def send_views(ingested: Ingested, rules: PipelinePolicy, url: str, write_id: str) -> None:
    """Admit, deliver, and write what each reader gets to a subject of the stream VIEWS, once for each write id."""
    admitted = admit(ingested.events(FIRST.event_type), FIRST, rules)
    delivered = deliver(admitted.events, [FIRST.event_type], rules)
    views = [
        to_messages(delivered.for_subscriber(reader.name), reader.type.event_type, f"VIEWS.{reader.name}")
        for reader in rules.subscribers
    ]
    options = {"url": url, "stream": "VIEWS", "writeId": write_id}
    reduce(DataFrame.unionByName, views).write.format(NAME).mode("append").options(**options).save()


# --- The jobs: each reads what the one before it wrote ---------------------------------------------------------------


def run_ingesting(spark: SparkSession, folder: Path) -> None:
    """Lines and a table, of which a part is broken."""
    (folder / "sent.jsonl").write_bytes(b"\n".join(SENT))
    kept: list[bytes] = []

    def write(ingested: Ingested) -> None:
        ingested.events(FIRST.event_type).write.parquet(str(folder / "typed"))
        kept.extend(bytes(row["@original"]) for row in ingested.bad.collect())

    tally = run_ingest(ingest_envelopes(read_lines(spark.read, str(folder / "sent.jsonl")), [FIRST], AT), write)
    assert (tally.read, tally.good, tally.bad) == (14, 11, 3)
    assert Counter(kept) == Counter(BROKEN)
    (folder / "table.csv").write_bytes(b"\r\n".join([TOP, line(), line(von="me")]))
    records = read_csv(spark.read, str(folder / "table.csv"), BOUND.mapping.csv)
    assert run_ingest(ingest_table(records, BOUND, AT), lambda _: None).reasons == (("ingest.source", 1),)


def run_admit(spark: SparkSession, folder: Path) -> None:
    """Admission: the camera's events, and the stranger's refused."""
    admitted = admit(spark.read.parquet(str(folder / "typed")), FIRST, policy())
    assert [(row[ID], row[REASON]) for row in admitted.refused.collect()] == [("e20", "guard.denied")]
    admitted.events.write.parquet(str(folder / "admitted"))
    assert spark.read.parquet(str(folder / "admitted")).count() == 10


def run_deliver(spark: SparkSession, folder: Path) -> None:
    """Delivery to one reader in its version, and to all of them."""
    delivered = deliver(spark.read.parquet(str(folder / "admitted")), [FIRST.event_type], policy())
    amy = {tuple(row[n] for n in (ID, "count", "lane", "colour")) for row in delivered.for_subscriber("amy").collect()}
    assert amy == {(f"e{n}", n, n, None) for n in range(6, 10)}
    assert Counter(row["@subscriber"] for row in delivered.by_subscriber().collect()) == {"amy": 4, "bob": 10}


def run_whatif(spark: SparkSession, folder: Path) -> None:
    """What-if: Amy would see the colour too."""
    history = spark.read.parquet(str(folder / "admitted"))
    found = compare(history, policy(), policy("colour"), types=[FIRST.event_type])
    (change,) = found.changes
    assert (change.reader.name, change.name, change.gained, change.lost) == ("amy", "colour", 4, 0)
    assert change.gained_samples == ("e6", "e7", "e8", "e9")


def run_audit(spark: SparkSession, folder: Path) -> None:
    """Audit of a decision log in a file."""
    (folder / "decisions.jsonl").write_text("\n".join(r.to_json() for r in [*RECORDS]) + "\n{\n", encoding="utf-8")
    decisions, bad = read_log(spark.read.text(str(folder / "decisions.jsonl")))
    assert [row.reason for row in bad.collect()] == ["log.json"]
    report = audit(decisions, PipelinePolicy(BAG))
    assert report.decisions == 8
    used = {row["credential"]: (row["decisions"], row["events"]) for row in report.rights_used.as_dicts()}
    assert used[TO_BILLING.id] == (2, 40)
    assert report.rights_unused is not None
    assert TO_STATISTICS.id in {row["credential"] for row in report.rights_unused.as_dicts()}


def run_jetstream(spark: SparkSession, folder: Path) -> None:
    """A stream in, one subject for each reader out. What a batch calls runs where the driver is, and was sent there."""
    register_jetstream(spark)
    rules = policy()
    with NatsServer() as server:
        options = publish(server.url, "SENT", SENT)
        publish(server.url, "VIEWS", [])
        url, told = server.url, folder / "told"
        told.mkdir()

        def report(tally: RecordTally, number: int) -> None:
            (told / f"{number}").write_text(f"{tally.read} {tally.good} {tally.bad}")

        process = each_batch(
            lambda records: ingest_envelopes(records, [FIRST], AT),
            lambda ingested, number: send_views(ingested, rules, url, f"anywhere {number}"),
            report,
        )
        records = read_jetstream(spark.readStream, options)
        query = records.writeStream.foreachBatch(process).option("checkpointLocation", str(folder / "state"))
        assert RunningStream(query.trigger(availableNow=True)).wait(240)
        assert {path.name: path.read_text() for path in told.iterdir()} == {"0": "14 11 3"}
        assert stored(url, "VIEWS") == VIEWS


def run_conflicts(spark: SparkSession, folder: Path) -> None:
    """All conflicts in a few rule bases, for which every table is read again where it was written."""
    chosen, rules = forest(7, TreeScope.UPWARD, FORMULAS + LISTS, (ALWAYS,), 8)
    look(spark, folder, chosen, rules, terms(TreeScope.UPWARD))
    expected = sorted(reference(chosen, rules, Mode.SCOPED))
    with opened(spark, str(folder / "found")) as found:
        assert sorted(told(found.pairs(), Mode.SCOPED)) == expected
        assert any(row["witness"] for row in found.report().causes.as_dicts())
    assert expected


def run_evaluate(spark: SparkSession, folder: Path) -> None:
    """A table of requests under a policy that is sent to tasks as a file; its constants are secrets."""
    text = """
        attribute role { category = subject id = "role" type = string }
        attribute speed { category = subject id = "speed" type = integer }
        policy p { apply deny-overrides
            rule named { permit target clause role == "SECRET0" }
            rule quick { deny condition speed > 770770770 } }
    """
    rows = [{"role": "SECRET0", "speed": 1}, {"role": "b", "speed": 770_770_771}, {"role": "b", "speed": 1}]
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    mapping = '[columns.role]\ncategory = "subject"\n[columns.speed]\ncategory = "subject"\ntype = "integer"'
    table = InputTable.at(str(folder / "requests.jsonl"))
    job = Evaluate(table, read_request_mapping(mapping), TablePolicies(read_text_policy(text)), lambda: AT)
    said = run_job(job, spark, str(folder / "decided"))
    assert said["counts"] == {"read": 3, "Permit": 1, "Deny": 1, "NotApplicable": 1, "Indeterminate": 0}


def run_secrets(spark: SparkSession, folder: Path) -> None:
    """A policy full of secrets, and keys; `test_secrets_logged` searches what was logged meanwhile."""
    assert all(secrets_job.run(spark)), folder
    assert "seal.closed-log" in secrets_job.run_sealed(spark, folder)


JOBS: dict[str, Callable[[SparkSession, Path], None]] = {
    "ingest": run_ingesting,
    "admit": run_admit,
    "deliver": run_deliver,
    "whatif": run_whatif,
    "audit": run_audit,
    "jetstream": run_jetstream,
    "conflicts": run_conflicts,
    "evaluate": run_evaluate,
    "secrets": run_secrets,
}
#: what runs there in `make test`, where commands ingest and deliver besides, and secrets are admitted, delivered and
#: compared; `make soak`, which sets LONG, runs all of them on both
USUAL = {"submitted": ("jetstream", "secrets"), "client": ("secrets",)}


def wanted(kind: str) -> list[str]:
    """Return the jobs that run on one kind of Spark."""
    return list(JOBS) if os.environ.get("LONG") else list(USUAL[kind])


# --- Where they run --------------------------------------------------------------------------------------------------


def command(*arguments: str) -> None:
    """Run the program that the documentation submits, with arguments."""
    sys.argv = ["job.py", *arguments]
    try:
        runpy.run_path("job.py", run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise


def every_job(kind: str, spark: SparkSession, folder: Path) -> None:
    """Run jobs, and print the name of each when it is done, with the seconds that it took."""
    folder.mkdir()
    for name in wanted(kind):
        begun = time.monotonic()
        JOBS[name](spark, folder)
        sys.stdout.write(f"{kind} {name} {time.monotonic() - begun:.1f}\n")
        sys.stdout.flush()


def submitted(folder: Path, port: str, *arguments: str) -> None:
    """Run on executors: a command as it was submitted, and all jobs; then the client."""
    # A command ends the session that it began; here it goes on.
    with mock.patch.object(SparkSession, "stop"):
        paths = [str(folder / "in"), "--policy", "policy.toml", "--out", str(folder / "ingested")]
        command("pipeline", "ingest", *paths, "--conf", "spark.log.level=INFO")
        command(*arguments)
    spark = SparkSession.active()
    every_job("submitted", spark, folder / "submitted")
    environment = {name: value for name, value in os.environ.items() if not re.match("JAVA|MASTER|PY|SPARK", name)}
    client = [sys.executable, "-m", "tests.pipeline.anywhere", str(folder), port]
    subprocess.run(client, cwd=ROOT, env=environment, check=True)
    spark.stop()


def client(folder: Path, port: str) -> None:
    """Run for a client of Spark Connect, which has no Java: a command, and all jobs."""
    remote = f"sc://127.0.0.1:{port}"
    os.chdir(folder)
    delivered = [str(folder / "ingested"), "--policy", "policy.toml", "--out", str(folder / "for-client")]
    command("pipeline", "deliver", *delivered, "--remote", remote)
    for name in ("delivered", "for-client"):
        command("pipeline", "view", str(folder / name), "engineer", "--limit", "1", "--remote", remote)
    spark = SparkSession.builder.remote(remote).getOrCreate()
    every_job("client", spark, folder / "client")
    abandon(spark)
    spark.stop()
    assert SparkContext._gateway is None


def abandon(spark: SparkSession) -> None:
    """Take rows, and go without saying so: when a server notices, it logs the whole request."""

    def silent(responses: ExecutePlanResponseReattachableIterator) -> None:
        responses._result_complete = True

    with mock.patch.object(ExecutePlanResponseReattachableIterator, "_release_all", silent):
        assert secrets_job.views(spark)[1].collect()
    time.sleep(2 * PATIENCE)


def main(folder: str, *arguments: str) -> None:
    """Run as the one or as the other."""
    (submitted if _SUBMITTED in os.environ else client)(Path(folder), *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
