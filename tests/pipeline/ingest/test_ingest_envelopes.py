"""CloudEvents become what the reference makes of them, record by record and value by value."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row, SparkSession
from tests.budget import examples
from tests.pipeline.ingest_reference import SOURCE, Found, define, envelope
from tests.pipeline.rows import collected, same, sharing

from penstock.errors import FailedError, MalformedError
from penstock.pipeline.frames import micros, quoted, transit_schema, typed_schema
from penstock.pipeline.ingest.event_frames import INGESTED, REASON, WORDS
from penstock.pipeline.ingest.ingest import Ingested, ingest_envelopes, reconcile
from penstock.pipeline.ingest.records import ORIGINAL
from penstock.pipeline.shared_columns import OF

AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
FIRST, SECOND = define()
TYPES = [FIRST.event_type, SECOND.event_type]


def records(spark: SparkSession, lines: Sequence[bytes]) -> DataFrame:
    """Return lines as records, as literals: that needs no Python worker."""
    rows = ", ".join(f"('memory', {number}L, X'{line.hex()}')" for number, line in enumerate(lines))
    return spark.sql(f"SELECT * FROM VALUES {rows} AS t(`@file`, `@position`, `@original`)")  # noqa: S608  # our own


def by_position(ingested: Ingested) -> dict[int, Row]:
    """Return every record that came out, with a column for each attribute."""
    tagged, shared = ingested.tagged, ingested.shared
    if shared is not None:
        tagged = tagged.selectExpr("*", *shared.spread(OF, shared.types, ingested.types))
    return {row["@position"]: row for row in collected(tagged)}


def compare(ingested: Ingested, expected: Sequence[Found], lines: Sequence[bytes]) -> None:
    """Compare everything that came out with what the reference says."""
    rows = by_position(ingested)
    assert len(rows) == len(expected)
    for number, found in enumerate(expected):
        row = rows[number]
        if found.event is None:
            assert row[REASON] is not None, (lines[number], found.reason)
            assert _alike(found.reason, row[REASON]), (lines[number], found.reason, row[REASON])
            assert bytes(row[ORIGINAL]) == lines[number]
            assert row[WORDS]
            continue
        assert row[REASON] is None, (lines[number], row[REASON], row[WORDS])
        event = found.event
        assert event.time is not None
        assert (row["@id"], row["@time"], row["@source"]) == (event.id, micros(event.time), found.source)
        assert row["@type"] == str(event.type.name)
        for attribute in event.type.attributes:
            assert same(event[attribute.name], row[attribute.id]), (lines[number], attribute.name)


def _alike(expected: str | None, found: str) -> bool:
    """Reasons are equal, but for what cannot be parsed, where several things are wrong together."""
    vague = {"ingest.json", "ingest.duplicate-key", "ingest.text"}
    numbers = {"ingest.kind", "ingest.range"}
    return expected == found or {expected, found} <= vague or {expected, found} <= numbers


EXAMPLE: dict[str, object] = {
    "sensor": "s1",
    "probe": "p1",
    "colour": "grün",
    "count": 5,
    "lane": 3,
    "value": 1.5,
    "share": -0.25,
    "level": 1,
    "on": True,
    "seen": "2026-05-01T08:00:00.123456Z",
    "due-by": "2026-06-01 10:00:00+02:00",
}


def good(**changes: object) -> dict[str, object]:
    return {
        "specversion": "1.0",
        "id": "e1",
        "source": SOURCE,
        "type": str(FIRST.event_type.name),
        "time": "2026-05-01T12:00:00Z",
        "data": {name: value for name, value in EXAMPLE.items() if name != "probe"},
        **changes,
    }


def with_data(**changes: object) -> dict[str, object]:
    plain = good()["data"]
    assert isinstance(plain, dict)
    return good(data={**plain, **changes})


def raw(name: str, value: str) -> bytes:
    """Return a good event in which an attribute is written in a way that Python would not write it."""
    return json.dumps(with_data(**{name: "@@@"})).replace('"@@@"', value).encode()


WHOLE = json.dumps(good()).encode()
CASES: list[tuple[bytes, str | None]] = [
    (WHOLE, None),
    (b"\xef\xbb\xbf" + WHOLE + b"\r", None),
    (json.dumps(good(type=str(FIRST.event_type.key))).encode(), None),
    (json.dumps(good(type=str(SECOND.event_type.name), data={"probe": "p"})).encode(), None),
    (json.dumps(good(data={})).encode(), None),
    (json.dumps(good(subject="x", traceparent="00-1", datacontenttype="application/json")).encode(), None),
    (b"", "ingest.empty"),
    (b" \t\r", "ingest.empty"),
    (WHOLE[:-1] + b"\xff}", "ingest.utf8"),
    (b"\xed\xa0\x80", "ingest.utf8"),
    (WHOLE[:-3], "ingest.json"),
    (WHOLE + b" {}", "ingest.json"),
    (WHOLE + b"," + WHOLE, "ingest.json"),
    (WHOLE + b"}", "ingest.json"),
    (WHOLE + b"] x", "ingest.json"),
    (WHOLE + b"/* */", "ingest.json"),
    (WHOLE + b"\x00", "ingest.json"),
    (b"[" + WHOLE + b"]", "ingest.json"),
    (b"null", "ingest.json"),
    (b'"text"', "ingest.json"),
    (WHOLE.replace(b'"', b"'"), "ingest.json"),
    (b"[" * 5_000 + b"]" * 5_000, "ingest.json"),
    (raw("value", "NaN"), "ingest.json"),
    (raw("value", "Infinity"), "ingest.json"),
    (raw("value", "01"), "ingest.json"),
    (raw("value", "9" * 1_500), "ingest.json"),
    (raw("sensor", '"\\ud800"'), "ingest.text"),
    (raw("sensor", '"\\udc00\\ud800"'), "ingest.text"),
    (raw("sensor", '"\\\\ud800"'), None),
    (raw("sensor", '"\\ud83d\\ude00 \\\\\\" \\u0000"'), None),
    (WHOLE[:-1] + b', "id": "e2"}', "ingest.duplicate-key"),
    (WHOLE.replace(b'"lane": 3', b'"lane": 3, "lane": 4'), "ingest.duplicate-key"),
    (json.dumps(good(specversion="0.3")).encode(), "ingest.envelope"),
    (json.dumps(good(specversion=1.0)).encode(), "ingest.envelope"),
    (json.dumps(good(id="")).encode(), "ingest.id"),
    (json.dumps(good(id=5)).encode(), "ingest.id"),
    (json.dumps(good(id=None)).encode(), "ingest.id"),
    (json.dumps(good(source="nobody")).encode(), "ingest.source"),
    (json.dumps(good(source=SOURCE.upper())).encode(), "ingest.source"),
    (json.dumps(good(source=SOURCE + "\n")).encode(), "ingest.source"),
    (json.dumps(good(time="yesterday")).encode(), "ingest.time"),
    (json.dumps(good(time="2026-05-01T12:00:00")).encode(), "ingest.time"),
    (json.dumps(good(time="2026-02-30T12:00:00Z")).encode(), "ingest.time"),
    (json.dumps(good(time="0001-01-01T00:00:00+01:00")).encode(), "ingest.time"),
    (json.dumps(good(time="0000-06-01T00:00:00Z")).encode(), "ingest.time"),
    (json.dumps(good(time="9999-12-31T23:59:59-17:59")).encode(), "ingest.time"),
    (json.dumps(good(time="1969-12-31T23:59:59.999999999+18:00")).encode(), None),
    (json.dumps(good(time="2026-05-01T12:00:00+18:01")).encode(), "ingest.time"),
    (json.dumps(good(time="2026-05-01T12:00Z")).encode(), "ingest.time"),
    (json.dumps(good(time=1_777_000_000)).encode(), "ingest.time"),
    (json.dumps(good(type="org.plant.Reading")).encode(), "ingest.type"),
    (json.dumps(good(type=str(FIRST.event_type.key) + "@9")).encode(), "ingest.type"),
    (json.dumps(good(data=[1])).encode(), "ingest.data"),
    (json.dumps(good(data="text")).encode(), "ingest.data"),
    (json.dumps(good(data=None, data_base64="AA==")).encode(), "ingest.data"),
    (json.dumps(good(datacontenttype="text/xml")).encode(), "ingest.data"),
    (json.dumps(with_data(extra=None)).encode(), "ingest.unknown-attribute"),
    (json.dumps(good(type=str(SECOND.event_type.name))).encode(), "ingest.unknown-attribute"),
    (json.dumps(with_data(count="5")).encode(), "ingest.kind"),
    (json.dumps(with_data(count=1.5)).encode(), "ingest.kind"),
    (raw("count", "1.0"), "ingest.kind"),
    (raw("count", "1e2"), "ingest.kind"),
    (raw("count", "-0"), None),
    (raw("count", str(2**63 - 1)), None),
    (raw("count", str(-(2**63))), None),
    (raw("count", str(2**63)), "ingest.range"),
    (raw("count", "1" + "0" * 25), "ingest.range"),
    (json.dumps(with_data(count=True)).encode(), "ingest.kind"),
    (json.dumps(with_data(on="true")).encode(), "ingest.kind"),
    (json.dumps(with_data(on=1)).encode(), "ingest.kind"),
    (json.dumps(with_data(value="1.5")).encode(), "ingest.kind"),
    (json.dumps(with_data(value=True)).encode(), "ingest.kind"),
    (raw("value", "1e400"), "ingest.range"),
    (raw("value", "1" + "0" * 400), "ingest.range"),
    (raw("value", "1e-400"), None),
    (raw("value", "123456789012345678901234567890.125"), None),
    (json.dumps(with_data(sensor=5)).encode(), "ingest.kind"),
    (json.dumps(with_data(sensor={"a": 1})).encode(), "ingest.kind"),
    (json.dumps(with_data(sensor=["a"])).encode(), "ingest.kind"),
    (json.dumps(with_data(seen="2026-05-01")).encode(), "ingest.kind"),
    (json.dumps(with_data(seen=5)).encode(), "ingest.kind"),
    (json.dumps(with_data(colour="blue")).encode(), "ingest.domain"),
    (json.dumps(with_data(lane=10)).encode(), "ingest.domain"),
    (json.dumps(with_data(share=1.01)).encode(), "ingest.domain"),
    (json.dumps(with_data(level=0.25)).encode(), "ingest.domain"),
    (raw("level", "-0.0"), None),
    (json.dumps(with_data(**{"due-by": "1999-12-31T23:59:59Z"})).encode(), "ingest.domain"),
]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_each_way_to_be_broken_has_its_reason(spark: SparkSession, ansi: str) -> None:
    lines = [line for line, _ in CASES]
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        ingested = ingest_envelopes(records(spark, lines), [FIRST, SECOND], AT)
        rows = {row["@position"]: row for row in collected(ingested.tagged)}
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))
    assert [rows[number][REASON] for number in range(len(CASES))] == [reason for _, reason in CASES]
    assert {row[INGESTED] for row in rows.values()} == {micros(AT)}


def test_versions_that_share_columns_have_the_same_reasons(spark: SparkSession) -> None:
    lines = [line for line, _ in CASES]
    twice = [json.dumps(with_data(lane="x", count="y", level=0.25)).encode()]
    apart = by_position(ingest_envelopes(records(spark, [*lines, *twice]), [FIRST, SECOND], AT))
    with sharing():
        shared = ingest_envelopes(records(spark, [*lines, *twice]), [FIRST, SECOND], AT)
        assert shared.shared is not None
        found = by_position(shared)
    told = (REASON, WORDS, "@type", "@id", "@time", "@source", *(a.id for one in TYPES for a in one.attributes))
    for number, row in apart.items():
        assert [found[number][name] for name in told] == [row[name] for name in told]
    assert shared.good.schema == transit_schema(TYPES)
    assert shared.events(SECOND.event_type).schema == typed_schema(SECOND.event_type)
    assert [row["probe"] for row in shared.events(SECOND.event_type).collect()] == ["p"]


def test_the_reference_agrees_about_the_examples() -> None:
    # Python has no bound on the digits of a number and on nesting that is as low as Java's.
    for line, reason in CASES:
        if len(line) < 1_500:
            found = envelope(line, TYPES).reason
            assert found == reason or (reason is not None and _alike(found, reason)), (line, found)


WORDS_OF_JSON = st.sampled_from(
    ["null", "true", "false", "0", "-0", "1", "5", "1.0", "0.5", "-0.25", "1e2", "1E400", "-1e-7", "1e-400", "NaN",
     "9223372036854775807", "9223372036854775808", "-9223372036854775809", "01", "[]", "{}", '{"a": 1}', '"red"',
     '"grün"', '"5"', '"true"', '""', '"\\ud800"', '"\\ud83d\\ude00"', '"\\\\ud800"', '"\\u0000"', '"\\n\\""',
     '"2026-05-01T12:00:00Z"', '"2026-05-01 12:00:00.5+02:00"', '"1999-12-31T23:59:59.999999Z"',
     '"2026-02-29T00:00:00Z"',
     '"2026-05-01T24:00:00Z"', '"2026-05-01T12:00:00"', '"0001-01-01T00:00:00+00:01"', '"0001-01-01T00:00:00Z"',
     '"9999-12-31T23:59:59.999999999Z"', '"now"', '"2026"', "", "'a'", "0.1e1", "123456789012345678901234567890"]
)  # fmt: skip
NUMBERS = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.integers(-(2**70), 2**70).map(str)
TEXTS = st.text(max_size=8).map(lambda text: json.dumps(text, ensure_ascii=False))
VALUES = WORDS_OF_JSON | NUMBERS | TEXTS
DAMAGE = st.sampled_from(
    [b"", b"", b"", b"", b" ", b"\r", b",", b"}", b"]", b"{}", b"x", b"\xff", b"\\", b'"', b"\x00"]
)


@st.composite
def envelopes(draw: st.DrawFn) -> bytes:
    """Draw an event of which little is wrong, so that most reasons are reached."""
    event_type = draw(st.sampled_from(TYPES))
    data = {name: json.dumps(value) for name, value in EXAMPLE.items() if name in event_type.by_name}
    names = st.sampled_from([*event_type.by_name, *event_type.by_name, "extra", "", "Lane"])
    changes = draw(st.lists(st.tuples(names, VALUES), max_size=2))
    members = [f"{json.dumps(name)}: {value}" for name, value in ({**data, **dict(changes)}).items()]
    if draw(st.integers(0, 9)) == 0:
        members.append(draw(st.sampled_from(members)))
    outer = {name: json.dumps(value) for name, value in good(type=str(event_type.name)).items()}
    outer["data"] = "{" + ", ".join(members) + "}"
    if draw(st.integers(0, 3)) == 0:
        outer[draw(st.sampled_from(["specversion", "id", "source", "type", "time", "data", "subject"]))] = draw(VALUES)
    if draw(st.integers(0, 9)) == 0:
        del outer[draw(st.sampled_from(sorted(outer)))]
    line = ("{" + ", ".join(f'"{name}": {value}' for name, value in outer.items()) + "}").encode("utf-8", "replace")
    place = draw(st.sampled_from([0, len(line), len(line)]) | st.integers(0, len(line)))
    return (line[:place] + draw(DAMAGE) + line[place:]).replace(b"\n", b" ")


@settings(deadline=None, max_examples=examples(3), phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(envelopes(), min_size=100, max_size=150))
def test_records_become_what_the_reference_makes_of_them(spark: SparkSession, lines: list[bytes]) -> None:
    expected = [envelope(line, TYPES) for line in lines]
    compare(ingest_envelopes(records(spark, lines), [FIRST, SECOND], AT), expected, lines)
    with sharing():
        compare(ingest_envelopes(records(spark, lines), [FIRST, SECOND], AT), expected, lines)


def test_events_of_each_version_have_its_schema(spark: SparkSession) -> None:
    lines = [line for line, reason in CASES if reason is None]
    ingested = ingest_envelopes(records(spark, lines), [FIRST, SECOND], AT)
    assert ingested.events(SECOND.event_type).schema == typed_schema(SECOND.event_type)
    assert [row["probe"] for row in ingested.events(SECOND.event_type).collect()] == ["p"]
    assert ingested.good.schema == transit_schema(TYPES)
    assert ingested.events(FIRST.event_type).schema == typed_schema(FIRST.event_type)


def test_types_that_cannot_stand_together_are_refused(spark: SparkSession) -> None:
    lines = records(spark, [WHOLE])
    with pytest.raises(MalformedError) as twice:
        ingest_envelopes(lines, [FIRST, FIRST], AT)
    assert twice.value.code == "ingest.types"
    with pytest.raises(MalformedError) as other:
        ingest_envelopes(lines, [FIRST], AT).events(SECOND.event_type)
    assert other.value.code == "ingest.types"


def test_a_lost_record_is_told(spark: SparkSession) -> None:
    class Leaky(Ingested):
        @property
        def bad(self) -> DataFrame:
            return super().bad.where(quoted(REASON) != "ingest.json")

    whole = ingest_envelopes(records(spark, [WHOLE, b"{", b""]), [FIRST], AT)
    with pytest.raises(FailedError) as lost:
        reconcile(Leaky(whole.tagged, whole.types))
    assert lost.value.code == "ingest.lost"
    assert lost.value.fields == {"read": 3, "good": 1, "bad": 1}
