"""Tables of rules in all three formats, and why a row is not a rule."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import MalformedError
from penstock.pipeline.conflicts.input import (
    InputTable,
    StorageFormat,
    check_rules,
    check_types,
    read_rules,
    read_types,
)

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
FULL = ["id", "event", "stated_by", "publishers", "fnc_p", "fnc_s", "valid_from", "valid_until"]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    rows: list[dict[str, object]] = [
        {"id": "good", "event": "T", "stated_by": "P", "fnc_s": {"role": "worker"}, "publishers": ["P", "Q"]},
        {"id": "soon", "event": "T", "stated_by": "P", "valid_from": "2026-05-01T12:00:00.000001Z"},
        {"id": "now", "event": "T", "stated_by": "P", "valid_until": "2026-05-01T14:00:00+02:00"},
        {"id": "no id", "event": "T", "stated_by": "P"},
        {"id": "x" * 129, "event": "T", "stated_by": "P"},
        {"id": "whose", "event": "T"},
        {"id": "double", "event": "T", "stated_by": "P", "publishers": ["P", "P"]},
        {"id": "about", "stated_by": "P"},
        {"id": "when", "event": "T", "stated_by": "P", "valid_from": "May"},
        {
            "id": "turned",
            "event": "T",
            "stated_by": "P",
            "valid_from": "2026-02-01T00:00:00Z",
            "valid_until": "2026-01-01T00:00:00Z",
        },
        {"id": "long", "event": "T", "stated_by": "P", "fnc_s": "x" * 20_000},
    ]
    path = tmp_path / "rules.jsonl"
    path.write_text("\n".join([*map(json.dumps, rows), "", "{", "[1]"]), encoding="utf-8")
    return path


def test_every_row_is_a_rule_or_has_a_reason(session: SparkSession, lines: Path) -> None:
    table = InputTable.at(str(lines))
    assert table.format is StorageFormat.JSON
    found = check_rules(read_rules(session, table), NOON).collect()
    by_id = {row.id: (row.reason, row.in_force) for row in found if row.id}
    assert by_id == {
        "good": (None, True),
        "soon": (None, False),
        "now": (None, True),
        "no id": ("moderator.rule", True),
        "x" * 129: ("moderator.limit", True),
        "whose": ("moderator.rule", True),
        "double": ("moderator.rule", True),
        "about": ("moderator.unknown-type", True),
        "when": ("conflicts.period", True),
        "turned": ("validity.empty", False),
        "long": ("selector.limit", True),
    }
    assert [row.original for row in found if row.reason == "conflicts.row"] == ["{", "[1]"]
    good = next(row for row in found if row.id == "good")
    assert (good.fnc_p, good.fnc_s, good.alone) == ("TRUE", '{"role":"worker"}', None)


def test_all_formats_say_the_same(session: SparkSession, tmp_path: Path) -> None:
    moment = "2026-05-01T12:00:00.000000Z"
    values = ["r", "T", "P", ["P", "Q"], "a = 1", "b = 'x, y'", moment, None]
    (tmp_path / "r.jsonl").write_text(json.dumps(dict(zip(FULL, values, strict=True))), encoding="utf-8")
    line = f"r,T,P,P; Q,a = 1,\"b = 'x, y'\",{moment},"
    (tmp_path / "r.csv").write_text("\n".join([",".join(FULL), line, "r,T"]), encoding="utf-8")
    kinds = "id string, event string, stated_by string, publishers array<string>, fnc_p string, fnc_s string"
    frame = session.createDataFrame([tuple(values)], f"{kinds}, valid_from string, valid_until string")
    frame.withColumn("valid_from", frame.valid_from.cast("timestamp")).write.parquet(str(tmp_path / "r.parquet"))
    read = {}
    for end in ("jsonl", "csv", "parquet"):
        rows = read_rules(session, InputTable.at(str(tmp_path / f"r.{end}"))).where("problem IS NULL")
        read[end] = [tuple(row)[:8] for row in rows.collect()]
    assert read["jsonl"] == read["csv"] == read["parquet"] == [tuple(values)]
    broken = read_rules(session, InputTable.at(str(tmp_path / "r.csv"))).where("problem IS NOT NULL").collect()
    assert [row.original for row in broken] == ["r.csv, line 3: r,T"]


def test_one_line_that_is_wrong_costs_no_other(session: SparkSession, tmp_path: Path) -> None:
    """A stray quote, two objects in a line, and columns in another order in the next file."""
    folder = tmp_path / "rules"
    folder.mkdir()
    text = 'id,event,stated_by,fnc_s\na,T,P,"role = \n1"\nb,T,P,"open\nc,T,P,\n\nd,"T,P,\ne,T,P,"x = \'1, 2\'"\n'
    (folder / "0.csv").write_text(text, encoding="utf-8")
    (folder / "1.csv").write_text("stated_by,event,id\nQ,T,f\n", encoding="utf-8")
    found = read_rules(session, InputTable(str(folder), StorageFormat.CSV)).collect()
    good = {row.id: (row.stated_by, row.fnc_s) for row in found if row.problem is None}
    assert good == {"a": ("P", "role = \n1"), "c": ("P", None), "e": ("P", "x = '1, 2'"), "f": ("Q", None)}
    bad = [row.original for row in found if row.problem is not None]
    assert bad == ['0.csv, line 4: b,T,P,"open', '0.csv, line 7: d,"T,P,']
    one = '{"id": "a", "event": "T", "stated_by": "P"}'
    lines = [one, f"{one} {one}", f"{one},{one}", f"{one}]", one]
    (tmp_path / "r.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = read_rules(session, InputTable.at(str(tmp_path / "r.jsonl"))).collect()
    assert [row.original for row in found if row.problem is not None] == lines[1:4]


def test_files_that_say_more_than_others_lose_nothing(session: SparkSession, tmp_path: Path) -> None:
    brief = "id string, event string, stated_by string"
    session.createDataFrame([("a", "T", "P")], brief).write.parquet(str(tmp_path / "r"))
    full = session.createDataFrame([("b", "T", "P", "role = 'worker'")], f"{brief}, fnc_s string")
    full.write.mode("append").parquet(str(tmp_path / "r"))
    found = check_rules(read_rules(session, InputTable.at(str(tmp_path / "r"))), NOON).collect()
    assert {row.id: (row.reason, row.fnc_s) for row in found} == {"a": (None, "TRUE"), "b": (None, "role = 'worker'")}


def test_columns_that_cannot_hold_it_are_refused(session: SparkSession, tmp_path: Path) -> None:
    frame = session.createDataFrame([("r", 1, "P")], "id string, event int, stated_by string")
    frame.write.parquet(str(tmp_path / "r"))
    with pytest.raises(MalformedError) as refused:
        read_rules(session, InputTable.at(str(tmp_path / "r")))
    assert refused.value.code == "conflicts.column"


def test_types_that_are_none(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("type,parent\nA,\nB,A\n,A\nC,C\nD,A,E\n", encoding="utf-8")
    found = check_types(read_types(session, InputTable.at(str(tmp_path / "t.csv")))).collect()
    assert [(row.type, row.parent, row.reason) for row in found] == [
        ("A", None, None),
        ("B", "A", None),
        (None, "A", "name.malformed"),
        ("C", "C", "type.cycle"),
        ("D", "A", "conflicts.row"),
    ]
