"""`penstock policy sql`: what it writes, checks and compares."""

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types
import pytest
from tests.apps.conftest import Shell
from tests.pipeline.jobs_plant import build
from tests.trust.kit import NOW

ASK = ("policy", "sql", "--policy", "policy.toml", "--dialect", "duckdb", "--reader")


@pytest.fixture
def plant(penstock: Shell) -> Path:
    build(penstock.folder)
    return penstock.folder


def rows(folder: Path, *values: float) -> str:
    columns = {
        "@id": [str(n) for n in range(len(values))],
        "@time": pa.array([NOW] * len(values), pa.timestamp("us", "UTC")),
        "@source": ["x"] * len(values),
        "probe": ["p"] * len(values),
        "region": ["north"] * len(values),
        "value": list(values),
    }
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    return "rows.parquet"


@pytest.mark.usefixtures("plant")
def test_a_view_is_written_checked_and_compared(penstock: Shell, plant: Path) -> None:
    written = penstock.ok(*ASK, "engineer", "--table", "plant.readings")
    assert "CREATE OR REPLACE VIEW plant.readings_engineer AS\n" in written.out
    found = penstock.ok(*ASK, "engineer", "--check", rows(plant, 19.0, 21.0, 1974.5, float("nan")), "-o", "json").json
    assert found == {"rows": 4, "view": 1, "delivered": 1, "only_view": [], "only_delivery": []}
    file = plant / "view.sql"
    file.write_text(written.out, encoding="utf-8")
    same = (*ASK, "engineer", "--table", "plant.readings", "--drift", str(file))
    assert penstock.ok(*same).out.startswith("✓")
    file.write_text(written.out.replace("20.0", "2.0"), encoding="utf-8")
    assert penstock(*same).code == "sql.drift"
    file.write_text(written.out.replace("policy:", "policy:other"), encoding="utf-8")
    assert "names revision policy:other" in penstock.ok(*same).out


@pytest.mark.usefixtures("plant")
def test_who_has_no_view_is_told_why(penstock: Shell) -> None:
    for reader, code in (("stranger", "pipeline.no-rights"), ("nobody", "pipeline.unknown-subscriber")):
        assert code in penstock(*ASK, reader).err
    assert "sql.inexpressible" in penstock(*ASK, "engineer", "--as", "filter").err
    assert "sql.data" in penstock(*ASK, "engineer", "--check", "policy.toml").err
