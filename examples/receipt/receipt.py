"""The receipt phase of a permit process: a real event log, and what each group of a municipality may see of it.

The log is a CSV file of 8,577 tasks. The municipality signs a type for them, maps the columns to its attributes, and
grants rights by group: whoever works in a group sees the tasks of that group, the help desk sees how far a case is but
not who works on it, the controller sees times but no cases.

Run it with `python examples/receipt/receipt.py path/to/receipt.csv`, or set PENSTOCK_SUITES to a folder that has
`events/receipt.csv`. README.md does the same with commands. Both work with the files beside this one; those that are
signed were made here, and `--sign FOLDER` makes them again.
"""

import argparse
import hashlib
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.codec.sexp import advanced
from penstock.crypto import SigningKey
from penstock.model import AttributeDefinition, AttributeSpec, Enumerated, Kind, TypeDefinition, TypeName
from penstock.pipeline.enforce.deliver import SUBSCRIBER, deliver
from penstock.pipeline.enforce.policy import PipelinePolicy, load_policy
from penstock.pipeline.frames import quoted
from penstock.pipeline.ingest.ingest import Ingested, RecordTally, ingest_table, read_csv, reconcile
from penstock.pipeline.ingest.mapping import read_mapping
from penstock.trust import Authorisation, Certificate, Credentials, Right, Validity, event_tag, issue, sign_type
from penstock.trust.event_types import UnverifiedType, verify_type

NOW = datetime(2012, 3, 1, tzinfo=UTC)
PERIOD = Validity.between(datetime(2010, 1, 1, tzinfo=UTC), datetime(2012, 12, 31, tzinfo=UTC))
TASK = "nl.municipality.Task"
FOLDER = Path(__file__).parent


def key(name: str) -> SigningKey:
    """Make a key for the example. Real keys come from `penstock key new`, never from a name."""
    return SigningKey(hashlib.sha256(f"receipt example: {name}".encode()).digest())


MUNICIPALITY = key("municipality")
READERS = {name: key(name) for name in ("Group 1", "Group 3", "Experts", "Help desk", "Controller", "Visitor")}


def define_type() -> UnverifiedType:
    """Define and sign the type."""
    text, moment = AttributeSpec(Kind.STRING), AttributeSpec(Kind.TIMESTAMP)
    channels = AttributeSpec(Kind.STRING, Enumerated(frozenset({"Internet", "Desk", "Post", "e-mail", "Intern"})))
    specs = {
        "case": text, "channel": channels, "department": text, "team": text, "responsible": text, "started": moment,
        "planned": moment, "ended": moment, "deadline": moment, "activity": text, "group": text, "resource": text,
    }  # fmt: skip
    attributes = tuple(AttributeDefinition(name, str(uid), spec) for uid, (name, spec) in enumerate(specs.items()))
    return sign_type(TypeDefinition(TypeName(MUNICIPALITY.principal, TASK), attributes), MUNICIPALITY)


def rules() -> dict[str, tuple[Certificate, ...]]:
    """Grant rights by group. `forced` gives only the events that have that value."""
    uid = {attribute.name: attribute.id for attribute in verify_type(define_type(), NOW).event_type.attributes}

    def grant(reader: str, shown: Iterable[str], **only: str) -> Certificate:
        tag = event_tag(
            MUNICIPALITY.principal,
            TASK,
            None,
            [Right.SUBSCRIBE],
            attributes=[uid[name] for name in shown],
            forced={uid[name]: value for name, value in only.items()},
        )
        return issue(Authorisation(MUNICIPALITY.principal, READERS[reader].principal, tag, False, PERIOD), MUNICIPALITY)

    work = ["case", "activity", "deadline", "group", "resource", "responsible"]
    return {
        "Group 1": (grant("Group 1", work, group="Group 1"),),
        "Group 3": (grant("Group 3", work, group="Group 3"),),
        # Two rights: all of the department's own cases, and the bare progress of those that came in by post.
        "Experts": (
            grant("Experts", uid, department="Experts"),
            grant("Experts", ["case", "channel", "activity"], channel="Post"),
        ),
        "Help desk": (grant("Help desk", ["case", "channel", "activity", "planned"]),),
        "Controller": (grant("Controller", ["department", "activity", "started", "planned", "ended", "deadline"]),),
    }


def sign(folder: Path) -> None:
    """Write what is signed: the type, and a file of certificates for each group; and the names of all keys."""
    (folder / "certs").mkdir(parents=True, exist_ok=True)
    (folder / "receipt.type").write_text(f"{advanced(define_type().to_sexp())}\n", encoding="utf-8")
    for group, certificates in rules().items():
        text = advanced(Credentials.of(*certificates).to_sexp())
        (folder / "certs" / f"{group.lower().replace(' ', '-')}.cert").write_text(f"{text}\n", encoding="utf-8")
    names = {"municipality": MUNICIPALITY, **READERS}
    lines = [f'"{name}" = "{of.principal}"\n' for name, of in names.items()]
    (folder / "names.toml").write_text("".join(lines), encoding="utf-8")


def ingest(spark: SparkSession, path: str, policy: PipelinePolicy) -> Ingested:
    """Read the log, as the mapping file says."""
    (verified,) = policy.types
    bound = read_mapping((FOLDER / "receipt.toml").read_text(encoding="utf-8")).bind(verified)
    return ingest_table(read_csv(spark.read, path, bound.mapping.csv), bound, NOW)


def seen(events: DataFrame, policy: PipelinePolicy) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return how many events each reader gets, and which attributes it sees of some; in one pass for all of them."""
    (verified,) = policy.types
    names = {str(attribute.id): attribute.name for attribute in verified.event_type.attributes}
    rows = deliver(events, [verified.event_type], policy).by_subscriber()
    counted = rows.groupBy(SUBSCRIBER).agg(F.count("*"), *(F.count(quoted(uid)) for uid in names))
    return {
        reader: (whole, tuple(name for name, count in zip(names.values(), counts, strict=True) if count))
        for reader, whole, *counts in counted.collect()
    }


def summary(spark: SparkSession, path: str) -> Iterator[str]:
    """Yield the lines of the report."""
    policy = load_policy(str(FOLDER / "policy.toml"), NOW)
    ingested = ingest(spark, path, policy)
    kept = Ingested(ingested.tagged.persist(), ingested.types)
    tally: RecordTally = reconcile(kept)
    yield str(tally)
    yield from (f"  {count:,} × {reason}" for reason, count in tally.reasons)
    found = seen(kept.good, policy)
    for subscriber in policy.subscribers:
        events, shown = found.get(subscriber.name, (0, ()))
        yield f"{subscriber.name}: {events:,} events{' with ' if shown else ''}{', '.join(shown)}"
    kept.tagged.unpersist()


def default_path() -> str | None:
    """Return where the log is, if that is known."""
    suites = os.environ.get("PENSTOCK_SUITES")
    return str(Path(suites) / "events" / "receipt.csv") if suites else None


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description="What each group of a municipality may see of an event log.")
    parser.add_argument("path", nargs="?", default=default_path(), help="the file receipt.csv")
    parser.add_argument("--sign", metavar="FOLDER", type=Path, help="only make the files that are signed")
    asked = parser.parse_args()
    if asked.sign is not None:
        sign(asked.sign)
        return
    path = asked.path
    if path is None:
        parser.error("give the path of receipt.csv, or set PENSTOCK_SUITES")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    for line in summary(spark, path):
        print(line)
    spark.stop()


if __name__ == "__main__":
    main()
