"""A small job on a policy full of secrets, for test_secrets: in its process, or on a cluster with all its logs.

And one on a sealed log, whose keys are secrets.
"""

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.pipeline.policy_kit import NOON, PLATE, SIGHTING, SPEED, Publishers, Rulebook, by_id, trusted
from tests.pipeline.rows import frame, transit_frame
from tests.pipeline.sealed_kit import CAR, SCOPES, event, key_files, ring, secret, traces

from penstock.codec.sexp import transport
from penstock.crypto import SigningKey
from penstock.crypto.keys import private_key_to_sexp
from penstock.crypto.wrapping import Secret
from penstock.guard import Branch, Restriction, When
from penstock.model import (
    Event,
    Principal,
    Scalar,
)
from penstock.pipeline.enforce.admit import admit
from penstock.pipeline.enforce.deliver import deliver
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber
from penstock.pipeline.frames import ID, SOURCE, TIME, micros, quoted, typed_schema
from penstock.pipeline.outputs import raised_by_task
from penstock.pipeline.sealed.log import FIRST
from penstock.pipeline.sealed.reader import BlockReader, events_schema, sealed_columns
from penstock.pipeline.sealed.signers import SignerPolicy
from penstock.pipeline.sealed.writer import Compacting, Writing
from penstock.pipeline.whatif import compare
from penstock.selector import parse
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.validity import Validity

SECRET_DAY = datetime(2031, 7, 7, tzinfo=UTC)
TYPE = trusted(SIGHTING)
COMPARED: Final = (
    "plate IN ('SECRET{n}', 'b') AND speed > 77077077{n} OR ratio BETWEEN 77027702.25 AND 77027702.255"
    " OR seen < TIMESTAMP '2031-07-07 00:00:0{n}'"
)
PATTERN: Final = "plate LIKE 'SECRET{n}%' OR plate LIKE '_SEC!_RET{n}%' ESCAPE '!'"
SPANS: Final = "speed BETWEEN 77077077{n} AND 770770779 AND ratio > 1"
KEK: Final = sha256(b"key-encryption key").digest()
SIGNER: Final = SigningKey(sha256(b"signer").digest())
#: how the keys of the sealed log might be written
KEY_TRACES: Final = traces(KEK, sha256(b"signer").digest(), *(secret(scope).expose() for scope in SCOPES))
#: how the constants above are written: by people, by Spark, and as data
TRACES: Final = ("SECRET", "SEC._?RET", "77077077", r"77027702\.", r"7\.70277022", "2031-07", str(micros(SECRET_DAY)))


def policy(count: int, text: str = COMPARED) -> PipelinePolicy:
    """Return a policy of `count` publishers and as many readers, with secrets wherever there are constants."""
    rules, readers = {}, []
    until = When(Validity.between(NOON - timedelta(days=9), SECRET_DAY), parse("hour < 770770770"))
    for number in range(count):
        who, where = Principal(bytes([number]) * 32), by_id(text.format(n=number))
        forced = ((SPEED, 770_770_770 + number),)
        rules[who] = Restriction(
            (
                Branch(action=Right.PUBLISH, where=where, forced=forced, when=until),
                Branch(action=Right.SUBSCRIBE, attributes=frozenset([PLATE]), where=where, forced=forced, when=until),
            )
        )
        readers.append(Subscriber(f"reader-{number}", who, TYPE, parse(f"speed < 77077077{number} OR plate <> '77'")))
    return Publishers(Credentials(), tuple(readers), (Rulebook(rules),), constants="hidden")


def sighting() -> Event:
    values: dict[str, Scalar] = {"plate": "SECRET0", "speed": 770_770_770, "seen": NOON, "ratio": 77027702.25}
    return Event.of(TYPE.event_type, values, id="e", time=NOON)


def events(spark: SparkSession) -> DataFrame:
    event = sighting()
    row = {ID: event.id, TIME: event.time, SOURCE: str(Principal(bytes(32))), **event.values}
    return frame(spark, typed_schema(TYPE.event_type), [row])


def transit(spark: SparkSession) -> DataFrame:
    return transit_frame(spark, [TYPE.event_type], [sighting().to_transit()])


def run(spark: SparkSession) -> tuple[int, int, int]:
    """Admit, deliver and compare; return how many rows, views and changes there are."""
    # Spark shortens what it prints; a secret behind the cut would be missed.
    spark.conf.set("spark.sql.debug.maxToStringFields", "1000")
    admitted, delivered = views(spark)
    found = compare(admitted, policy(0), policy(1), types=[TYPE.event_type])
    return admitted.count(), delivered.count(), len(found.changes)


def run_sealed(spark: SparkSession, folder: Path) -> str:
    """Seal, sign, open and compact; then read a log that does not open, and return what a task says of it."""
    keys, signer = key_files(folder / "keys", ring(), Secret(KEK)), folder / "signer.key"
    signer.write_bytes(transport(private_key_to_sexp(SIGNER)))
    row = {"@type": str(CAR.name), ID: "e", TIME: NOON, SOURCE: str(SIGNER.principal), **event(1).values}
    writing = Writing(keys, (CAR,), SIGNER.principal, NOON, signer=str(signer))
    writing.blocks(frame(spark, events_schema((CAR,)), [row])).write.parquet(str(folder / "sealed"))
    sealed = spark.read.parquet(str(folder / "sealed"))
    judge = SignerPolicy(PipelinePolicy(Credentials()), (trusted(CAR),))
    reading = BlockReader.of(keys, (CAR,), sealed_columns(sealed))
    assert reading.verified(sealed, judge, all_types=True).failures(sealed).collect()[0]["@reason"] == "seal.signer"
    compacted = Compacting(keys).blocks(sealed)
    assert reading.events(compacted).select(quoted(ID)).collect()[0][0] == "e"
    torn = sealed.select(*(F.lit(b"").alias(FIRST) if name == FIRST else quoted(name) for name in sealed.columns))
    try:
        reading.events(torn, strict=True).collect()
    except PySparkException as error:
        return str(raised_by_task(error))
    return ""


def views(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Return what is admitted, and what is delivered of it."""
    admitted = admit(events(spark), TYPE, policy(1)).events
    return admitted, deliver(admitted, [TYPE.event_type], policy(1)).by_subscriber()
