"""Records of unusual shapes: of hundreds of attributes, and with texts of megabytes."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.ingest_reference import OWNER, SOURCE
from tests.pipeline.jobs_plant import interpreted
from tests.pipeline.rows import collected
from tests.trust.kit import NOW, key, who

from penstock.model import AttributeDefinition, AttributeSpec, Kind, TypeDefinition, TypeName
from penstock.pipeline.ingest.event_frames import REASON
from penstock.pipeline.ingest.ingest import ingest_table, read_csv
from penstock.pipeline.ingest.mapping import read_mapping
from penstock.pipeline.ingest.records import ORIGINAL, POSITION
from penstock.trust.event_types import sign_type, verify_type

AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
WIDE = 500
LONG = "x" * (1 << 21)


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


@pytest.mark.long
def test_wide_rows_with_long_texts(spark: SparkSession, tmp_path: Path) -> None:
    names = [f"a{number}" for number in range(WIDE)]
    kinds = [Kind.STRING, Kind.INTEGER]
    definition = TypeDefinition(
        TypeName(who(OWNER), "Wide"),
        tuple(
            AttributeDefinition(name, str(number), AttributeSpec(kinds[number % 2]))
            for number, name in enumerate(names)
        ),
    )
    verified = verify_type(sign_type(definition, key(OWNER)), NOW)
    columns = "".join(f'{name} = "{name}"\n' for name in names)
    mapping = f"""
type = "wide.type"
format = "csv"
[event]
id = "a0"
time = {{ constant = 2026-05-01T12:00:00Z }}
source = {{ constant = "{SOURCE}" }}
[attributes]
{columns}
"""
    values = [name if number % 2 == 0 else str(number) for number, name in enumerate(names)]
    last = [*values[:-1], "no number"]
    long = [values[0], values[1], LONG, *values[3:]]
    (tmp_path / "a.csv").write_text("".join(",".join(row) + "\n" for row in (names, values, last, long)))
    bound = read_mapping(mapping).bind(verified)
    ingested = ingest_table(read_csv(spark.read, str(tmp_path), bound.mapping.csv), bound, AT)
    rows = sorted(collected(ingested.tagged), key=lambda row: int(row[POSITION]))
    assert [row[REASON] for row in rows] == [None, "ingest.kind", None]
    assert bytes(rows[1][ORIGINAL]) == (",".join(last) + "\n").encode()
    ids = [attribute.id for attribute in verified.event_type.attributes]
    assert [rows[0][id_] for id_ in ids] == [int(v) if n % 2 else v for n, v in enumerate(values)]
    assert rows[2][ids[2]] == LONG
