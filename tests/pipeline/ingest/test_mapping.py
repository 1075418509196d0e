"""Mapping files are read strictly, and bound to a verified type."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.pipeline.ingest_reference import SOURCE, define

from penstock.errors import FailedError, MalformedError
from penstock.pipeline.ingest.mapping import (
    ConstantColumn,
    FromColumn,
    MappedFormat,
    naming_type,
    read_mapping,
    time_format,
)
from penstock.store.files.files import read_file

FIRST, _ = define()
HEAD = 'type = "t.type"\nformat = "csv"\n'
EVENT = f'[event]\nid = "n"\ntime = "t"\nsource = {{ constant = "{SOURCE}" }}\n'
WHOLE = HEAD + EVENT + '[attributes]\nsensor = "s"\n'


def test_what_a_mapping_says() -> None:
    mapping = read_mapping(
        (HEAD + EVENT).encode() + b'[defaults]\nnull = ["-"]\nzone = "Europe/Amsterdam"\n[attributes]\nsensor = "s"\n'
        b'count = { column = "c", group = " ", null = [] }\nlevel = { constant = 1 }\n'
        b"due-by = { constant = 2026-01-01T00:00:00+01:00 }\n"
    )
    assert (mapping.type_file, mapping.format) == ("t.type", MappedFormat.CSV)
    bound = mapping.bind(FIRST).mapping.attributes
    sensor, count = bound["sensor"], bound["count"]
    assert isinstance(sensor, FromColumn)
    assert isinstance(count, FromColumn)
    assert (sensor.reading.null, sensor.reading.zone) == (("-",), "Europe/Amsterdam")
    assert (count.reading.null, count.reading.group, count.own) == ((), " ", frozenset({"group", "null"}))
    assert bound["level"] == ConstantColumn(1.0)
    assert bound["due-by"] == ConstantColumn(datetime(2025, 12, 31, 23, tzinfo=UTC))
    assert mapping.bind(FIRST).columns == ("n", "t", "s", "c")


def test_a_type_file_that_is_missing_is_told_who_names_it(tmp_path: Path) -> None:
    with pytest.raises(FailedError, match=r"no file .*t\.type") as missing, naming_type("m/meter.toml"):
        read_file(str(tmp_path / "t.type"))
    assert missing.value.code == "file.missing"
    assert "`type` in the mapping `m/meter.toml`" in (missing.value.hint or "")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("type = ", "mapping.syntax"),
        ("", "mapping.missing"),
        (HEAD, "mapping.missing"),
        (HEAD + EVENT, "mapping.missing"),
        ("colour = 1\n" + WHOLE, "mapping.unknown-key"),
        (WHOLE.replace('"csv"', '"xml"'), "mapping.value"),
        (WHOLE.replace('"csv"', '"parquet"') + "[csv]\n", "mapping.value"),
        (WHOLE.replace('"t.type"', "5"), "mapping.value"),
        (WHOLE.replace('id = "n"', 'id = { constant = "n" }'), "mapping.value"),
        (WHOLE.replace('id = "n"', 'id = { column = "n", zone = "UTC" }'), "mapping.option"),
        (WHOLE.replace('time = "t"', 'time = { column = "t", format = "iso" }'), "mapping.unknown-key"),
        (WHOLE.replace('time = "t"', 'time = { column = "t", formats = [] }'), "mapping.value"),
        (WHOLE.replace('time = "t"', 'time = { column = "t", formats = ["%Q"] }'), "mapping.format"),
        (WHOLE.replace('time = "t"', 'time = { column = "t", zone = "Mars/Base" }'), "mapping.zone"),
        (WHOLE.replace('time = "t"', 'time = { column = "t", zone = "../etc" }'), "mapping.zone"),
        (WHOLE.replace('time = "t"', "time = { constant = 2026-01-01T00:00:00 }"), "mapping.constant"),
        (WHOLE.replace('time = "t"', 'time = { constant = "today" }'), "mapping.constant"),
        (WHOLE.replace(SOURCE, "me"), "mapping.constant"),
        (WHOLE.replace('id = "n"\n', ""), "mapping.missing"),
        (WHOLE + "lane = []\n", "mapping.value"),
        (WHOLE + "lane = { constant = [1] }\n", "mapping.value"),
        (WHOLE + 'lane = { constant = 1, column = "x" }\n', "mapping.unknown-key"),
        (WHOLE + 'lane = { trim = "yes", column = "x" }\n', "mapping.value"),
        (WHOLE + 'value = { decimal = ";", column = "x" }\n', "mapping.value"),
        (WHOLE + 'on = { true = ["y"], false = ["n", "y"], column = "x" }\n', "mapping.value"),
        (WHOLE + '[csv]\ndelimiter = "ab"\n', "mapping.value"),
        (WHOLE + '[csv]\nquote = "x"\n', "mapping.value"),
        (WHOLE + '[csv]\ncolumns = ["a", "a"]\n', "mapping.value"),
        (WHOLE + "[csv]\nheader = false\n", "mapping.missing"),
        (WHOLE + "[csv]\nmultiline = false\n", "mapping.missing"),
        (WHOLE + "[csv]\nencoding = 'latin-1'\n", "mapping.unknown-key"),
    ],
)
def test_what_is_wrong_with_a_mapping(text: str, code: str) -> None:
    with pytest.raises(MalformedError) as raised:
        read_mapping(text)
    assert raised.value.code == code
    assert raised.value.hint


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('other = "x"', "mapping.attribute"),
        ("lane = { constant = 10 }", "mapping.constant"),
        ('lane = { constant = "1" }', "mapping.constant"),
        ("count = { constant = 1.0 }", "mapping.constant"),
        ('lane = { column = "x", decimal = "," }', "mapping.option"),
        ('on = { column = "x", zone = "UTC" }', "mapping.option"),
        ('value = { column = "x", group = "." }', "mapping.value"),
    ],
)
def test_what_does_not_fit_the_type(line: str, code: str) -> None:
    mapping = read_mapping(f"{WHOLE}{line}\n")
    with pytest.raises(MalformedError) as raised:
        mapping.bind(FIRST)
    assert raised.value.code == code
    assert raised.value.hint


def test_bytes_that_are_no_text_are_no_mapping() -> None:
    with pytest.raises(MalformedError) as raised:
        read_mapping(b"\xff")
    assert raised.value.code == "mapping.syntax"


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ("%d.%m.%Y", "31.12.2026"),
        ("%Y%m%dT%H%M%S%z", "20261231T235959+0100"),
        ("%-d/%-m/%Y %-H:%M", "1/2/2026 9:05"),
        ("100%% %Y-%m-%d", "100% 2026-01-01"),
    ],
)
def test_formats(text: str, example: str) -> None:
    (shape,) = time_format(text).rewritings
    assert re.fullmatch(shape.pattern, example)


@pytest.mark.parametrize("text", ["", "%Y", "%Y-%m-%d %M", "%Y-%m-%d %Y", "%", "%y-%m-%d", "%Y-%m-%d" + "x" * 99])
def test_formats_that_are_none(text: str) -> None:
    with pytest.raises(MalformedError) as raised:
        time_format(text)
    assert raised.value.code == "mapping.format"
