"""The receipt phase of a permit process: a real event log, and what each group of a municipality may see of it.

The log is a CSV file of 8,577 tasks. The municipality signs a type for them, maps the columns to its attributes, and
grants rights by group: whoever works in a group sees the tasks of that group, the help desk sees how far a case is but
not who works on it, the controller sees times but no cases.

Run it with `python examples/receipt/receipt.py path/to/receipt.csv`, or set PENSTOCK_SUITES to a folder that has
`events/receipt.csv`.
"""

import argparse
import hashlib
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.crypto import SigningKey
from penstock.model import AttributeDefinition, AttributeSpec, Enumerated, Kind, TypeDefinition, TypeName
from penstock.pipeline.frames import transit_sources
from penstock.pipeline.ingest import Ingested, Tally, ingest_table, read_csv, reconcile
from penstock.pipeline.mapping import BoundMapping, read_mapping
from penstock.pipeline.policy import Policy
from penstock.pipeline.restrict import deliver_one, environment_sources, mask
from penstock.trust import Authorisation, Certificate, Credentials, Right, Validity, event_tag, issue, sign_type
from penstock.trust.event_types import VerifiedType, verify_type

NOW = datetime(2012, 3, 1, tzinfo=UTC)
PERIOD = Validity.between(datetime(2010, 1, 1, tzinfo=UTC), datetime(2012, 12, 31, tzinfo=UTC))
TASK = "nl.municipality.Task"
FOLDER = Path(__file__).parent


def key(name: str) -> SigningKey:
    """Make a key for the example. Real keys come from `penstock key new`, never from a name."""
    return SigningKey(hashlib.sha256(f"receipt example: {name}".encode()).digest())


MUNICIPALITY = key("municipality")
READERS = {name: key(name) for name in ("Group 1", "Group 3", "Experts", "Help desk", "Controller", "Visitor")}


def define_type() -> VerifiedType:
    """Define and sign the type, and verify it as whoever reads it would."""
    text, moment = AttributeSpec(Kind.STRING), AttributeSpec(Kind.TIMESTAMP)
    channels = AttributeSpec(Kind.STRING, Enumerated(frozenset({"Internet", "Desk", "Post", "e-mail", "Intern"})))
    specs = {
        "case": text, "channel": channels, "department": text, "team": text, "responsible": text, "started": moment,
        "planned": moment, "ended": moment, "deadline": moment, "activity": text, "group": text, "resource": text,
    }  # fmt: skip
    attributes = tuple(AttributeDefinition(name, str(uid), spec) for uid, (name, spec) in enumerate(specs.items()))
    return verify_type(sign_type(TypeDefinition(TypeName(MUNICIPALITY.principal, TASK), attributes), MUNICIPALITY), NOW)


def bind_mapping(verified: VerifiedType) -> BoundMapping:
    """Read the mapping file; the key of the example stands in for the publisher."""
    text = (FOLDER / "receipt.toml").read_text(encoding="utf-8")
    return read_mapping(text.replace("SOURCE", str(MUNICIPALITY.principal))).bind(verified)


def rules(verified: VerifiedType) -> Credentials:
    """Grant rights by group. `forced` gives only the events that have that value."""
    uid = {attribute.name: attribute.id for attribute in verified.event_type.attributes}

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
    return Credentials.of(
        grant("Group 1", work, group="Group 1"),
        grant("Group 3", work, group="Group 3"),
        # Two rights: all of the department's own cases, and the bare progress of those that came in by post.
        grant("Experts", uid, department="Experts"),
        grant("Experts", ["case", "channel", "activity"], channel="Post"),
        grant("Help desk", ["case", "channel", "activity", "planned"]),
        grant("Controller", ["department", "activity", "started", "planned", "ended", "deadline"]),
    )


def ingest(spark: SparkSession, path: str, verified: VerifiedType) -> Ingested:
    """Read the log."""
    bound = bind_mapping(verified)
    return ingest_table(read_csv(spark.read, path, bound.mapping.csv), bound, NOW)


def views(events: DataFrame, verified: VerifiedType) -> Iterator[tuple[str, DataFrame]]:
    """Yield what each reader gets."""
    policy = Policy(rules(verified))
    for name, reader in READERS.items():
        decision = policy.decide(reader.principal, Right.SUBSCRIBE, verified)
        masked = mask(
            decision.restriction, verified.event_type, transit_sources([verified.event_type]), environment_sources()
        )
        yield name, deliver_one(events, masked, verified.event_type)


def summary(spark: SparkSession, path: str) -> Iterator[str]:
    """Yield the lines of the report."""
    verified = define_type()
    ingested = ingest(spark, path, verified)
    kept = Ingested(ingested.tagged.persist(), ingested.types)
    tally: Tally = reconcile(kept)
    yield str(tally)
    yield from (f"  {count:,} × {reason}" for reason, count in tally.reasons)
    names = list(verified.event_type.by_name)
    for reader, view in views(kept.good, verified):
        counted = view.agg(F.count("*"), *(F.count(F.col(name)) for name in names)).first()
        assert counted is not None  # noqa: S101  # an aggregate without groups has one row
        shown = ", ".join(name for name, count in zip(names, counted[1:], strict=True) if count)
        yield f"{reader}: {counted[0]:,} events{f' with {shown}' if shown else ''}"
    kept.tagged.unpersist()


def default_path() -> str | None:
    """Return where the log is, if that is known."""
    suites = os.environ.get("PENSTOCK_SUITES")
    return str(Path(suites) / "events" / "receipt.csv") if suites else None


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description="What each group of a municipality may see of an event log.")
    parser.add_argument("path", nargs="?", default=default_path(), help="the file receipt.csv")
    path = parser.parse_args().path
    if path is None:
        parser.error("give the path of receipt.csv, or set PENSTOCK_SUITES")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    for line in summary(spark, path):
        print(line)
    spark.stop()


if __name__ == "__main__":
    main()
