"""Opened events reach Spark as they are: each with its type, its sender and its nulls."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.pipeline.sealed_kit import BROKER, OWNER, TYPES, WHOLE, plain
from tests.trust.kit import refused

from penstock.codec.blocks import names
from penstock.model import AttributeDefinition, AttributeSpec, EventType, Kind, TypeDefinition, TypeName
from penstock.pipeline.sealed.columns import ARROW_TYPES, OpenedGroup
from penstock.pipeline.sealed.reader import (
    MARKED,
    Numbering,
    events_schema,
    numbered_schema,
    unnumbered,
    without_nulls,
)

START = datetime(2026, 5, 1, tzinfo=UTC)
VALUES: dict[Kind, Callable[[int], object]] = {
    Kind.STRING: lambda n: f"é{n}",
    Kind.INTEGER: lambda n: -(10**15) * n,
    Kind.FLOAT: lambda n: n / 7,
    Kind.BOOLEAN: lambda n: n % 3 == 0,
    Kind.TIMESTAMP: lambda n: START + timedelta(microseconds=n),
}
#: more attributes than there are bits
WIDE = EventType.of(
    TypeDefinition(
        TypeName(OWNER, "org.Wide"),
        tuple(AttributeDefinition(f"a{n}", str(n), AttributeSpec([*VALUES][n % 5])) for n in range(MARKED + 9)),
    )
)
SENDERS = tuple(str(who) for who in (OWNER, BROKER.principal))


def opened(event_type: EventType, rows: int, chance: random.Random) -> OpenedGroup:
    """Return values, of which some columns have no nulls, some have some, some only nulls, and some are not there."""

    def column(kind: Kind) -> list[Any]:
        share = chance.choice([0.0, 0.3, 1.0])
        return [None if chance.random() < share else VALUES[kind](n) for n in range(rows)]

    arrays = {
        str(a.id): pa.array(column(a.spec.kind), ARROW_TYPES[a.spec.kind])
        for a in event_type.attributes
        if chance.random() < 0.8
    }
    ids = pa.array([f"e{n}" for n in range(rows)], pa.string())
    times = pa.array(column(Kind.TIMESTAMP), ARROW_TYPES[Kind.TIMESTAMP])
    found = names(event_type.key, event_type.ancestors, tuple(str(a.id) for a in event_type.attributes))
    return OpenedGroup(found, BROKER.principal.digest, ids, times, arrays)


@pytest.mark.parametrize("senders", [None, SENDERS], ids=["unknown", "known"])
@pytest.mark.parametrize("types", [TYPES, (WIDE,), (*TYPES, WIDE)], ids=["few", "wide", "both"])
def test_types_senders_and_nulls_come_through(
    spark: SparkSession, types: tuple[EventType, ...], senders: tuple[str, ...] | None
) -> None:
    chance = random.Random(7)  # noqa: S311  # no secret
    groups = [(opened(t, rows, chance), place) for place, t in enumerate(types) for rows in (1, 9, 40)]
    numbering, schema = Numbering(types, senders), numbered_schema(types, senders)
    blocks = [numbering.batch(found, place) for found, place in groups]
    # One by itself, one of which the first rows are cut off, and the rest together.
    batches = [*map(without_nulls, (blocks[0], blocks[1].slice(3), pa.concat_batches(blocks[2:])))]
    never = [f.name for f in schema if not f.nullable]
    assert len(never) == 2 + min(MARKED, 1 + len(numbering.kinds))
    assert not any(batch.column(name).null_count for batch in batches for name in never)
    octets = [batch.serialize().to_pybytes() for batch in batches]
    arrow = batches[0].schema.serialize().to_pybytes()

    def task(_batches: Any) -> Any:
        read = pa.ipc.read_schema(pa.py_buffer(arrow))
        yield from (pa.ipc.read_record_batch(pa.py_buffer(each), read) for each in octets)

    frame = unnumbered(spark.range(1).coalesce(1).mapInArrow(task, schema), types, senders)
    assert [(f.name, f.dataType) for f in frame.schema] == [(f.name, f.dataType) for f in events_schema(types)]
    expected = [
        {
            "@type": str(types[place].name),
            "@id": found.ids[row].as_py(),
            "@time": found.times[row].as_py(),
            "@source": str(BROKER.principal),
            **{n: plain(found.columns[n][row].as_py()) if n in found.columns else None for n in numbering.kinds},
        }
        for number, (found, place) in enumerate(groups)
        for row in range(3 if number == 1 else 0, len(found.ids))
    ]
    assert [{n: plain(value) for n, value in row.items()} for row in frame.toArrow().to_pylist()] == expected


def test_nulls_are_nulls_to_whoever_asks(spark: SparkSession) -> None:
    name = str(WHOLE.attributes[0].id)
    found = opened(WHOLE, 6, random.Random(1))  # noqa: S311  # no secret
    found = found._replace(columns={name: pa.array(["a", None, "", None, "b", "a"])})
    rows = [tuple(row.values()) for row in without_nulls(Numbering((WHOLE,), SENDERS).batch(found, 0)).to_pylist()]
    frame = unnumbered(spark.createDataFrame(rows, numbered_schema((WHOLE,), SENDERS)), (WHOLE,), SENDERS)
    text = F.col(f"`{name}`")
    assert frame.where(text.isNull()).count() == 2
    assert frame.where(text == "").count() == 1
    assert [*frame.agg(F.count(text), F.min(text), F.count_distinct(text)).collect()[0]] == [4, "", 3]


def test_no_more_are_numbered_than_a_number_tells_apart() -> None:
    with pytest.raises(ValueError, match="too many types or senders"):
        numbered_schema((WHOLE,), [*map(str, range(65_537))])


def test_a_sender_who_was_not_there_before_is_refused() -> None:
    found = opened(WHOLE, 2, random.Random(1))  # noqa: S311  # no secret
    with refused("block.malformed"):
        Numbering((WHOLE,), (str(OWNER),)).batch(found, 0)
