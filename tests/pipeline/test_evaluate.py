"""Tables of requests: every row gets what it would get by itself, whatever its columns are like, and none is lost."""

import contextlib
import io
import json
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.budget import examples
from tests.policy.engine.test_compiler import Elsewhere
from tests.policy.kit import NOW
from tests.policy.random_policies import ATTRIBUTES, Maker
from tests.trust.kit import refused

from penstock.guard.decision_log import ANSWERED
from penstock.pipeline.audit import read_log
from penstock.pipeline.commits import DECISIONS
from penstock.pipeline.conflicts.input import InputTable, StorageFormat
from penstock.pipeline.evaluate import (
    COLUMNS,
    UNREADABLE,
    Decider,
    RequestColumn,
    RequestDecision,
    TablePolicies,
    answer_of,
    column,
    read_request_mapping,
)
from penstock.pipeline.jobs import evaluate as evaluate_job
from penstock.pipeline.jobs.evaluate import DECIDED, Evaluate
from penstock.pipeline.jobs.job import run, spark_errors, start
from penstock.pipeline.jobs.schemes import register_schemes
from penstock.pipeline.limits import PIPELINE_LIMITS, PipelineLimits
from penstock.pipeline.outputs import Streaming, totals
from penstock.pipeline.tables.addresses import SinkOptions, parse_address, sink_at, source_at
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, NoSources, PolicySources, Repository
from penstock.policy.engine.vectors import Vectors
from penstock.policy.language.datatypes import (
    BOOLEAN,
    DATE,
    DATE_TIME,
    DOUBLE,
    HEX,
    INTEGER,
    STRING,
    URI,
    DataType,
    Value,
)
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import Designator, Policy, PolicyLiteral, Root, Rule, RuleEffect, apply
from penstock.policy.language.requests import SUBJECT, Facts, Key, Request, key_of
from penstock.policy.language.results import XacmlDecision
from penstock.policy.syntax.text.policies import read_text_policy

V3_RULES = "urn:oasis:names:tc:xacml:3.0:rule-combining-algorithm:"
KEYS = [key_of(*one) for one in ATTRIBUTES]
TYPES = {STRING: pa.string(), INTEGER: pa.int64(), DOUBLE: pa.float64()}


def decided(decider: Decider, arrays: Mapping[Key, Any], rows: int) -> list[RequestDecision]:
    numbers = decider.decide([arrays[key] for key in decider.keys], rows)
    return [
        RequestDecision(*one) for one in zip(*(c.to_pylist() for c in decider.answers.columns(numbers)), strict=True)
    ]


def deciding(
    root: Root, types: Mapping[Key, Any], sources: PolicySources, limits: PipelineLimits = PIPELINE_LIMITS
) -> Decider:
    vectors = Vectors(root, sources, NOW, types)
    columns = [column(types[key], key.of, vectors.constants(place)) for place, key in enumerate(vectors.keys)]
    return Decider(vectors, columns, limits)


def expected(root: Root, facts: Facts, sources: PolicySources) -> RequestDecision:
    said = evaluate(root, Context(None, NOW, sources, facts))
    named = replace(Request.of_facts(facts), return_policy_ids=True)
    assert CompiledPolicy(root, sources).ask_request(named, NOW) == said
    return answer_of(said)


# --- like each request by itself -------------------------------------------------------------------------------------


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1 << 40), st.booleans(), st.booleans())
@example(0, True, False)
def test_rows_get_what_each_would_get_by_itself(seed: int, bags: bool, texts: bool) -> None:
    maker = Maker(seed)
    root: Root = maker.policy() if maker.rarely(3) else maker.policy_set()
    sources = Elsewhere(())
    single = {key: pa.string() if texts else TYPES[key.of] for key in KEYS}
    types = {key: pa.list_(found) if bags else found for key, found in single.items()}
    # So little is remembered that much is forgotten between two batches.
    decider = deciding(root, types, sources, PipelineLimits(policy_remembered=maker.random.choice([1, 1_000])))
    for _ in range(3):
        rows = [maker.facts() if bags else {key: bag[:1] for key, bag in maker.facts().items()} for _ in range(8)]
        cells = {key: [cell(facts.get(key, ()), key.of, bags, texts) for facts in rows] for key in KEYS}
        arrays = {key: pa.array(cells[key], types[key]) for key in KEYS}
        assert decided(decider, arrays, len(rows)) == [expected(root, facts, sources) for facts in rows]


def cell(bag: Sequence[Value], of: DataType, bags: bool, texts: bool) -> object:
    written = [of.write(one) if texts else one for one in bag]
    if bags:
        # What is null in an array is not a value.
        return [*written, None] if written else None
    return written[0] if written else None


POLICY = """
attribute role {{ category = subject id = "role" type = string }}
attribute x {{ category = subject id = "x" type = {} }}
policy p {{ apply deny-overrides
  rule one {{ permit target clause x == {} }}
  rule two {{ deny condition x > {} }}
  rule three {{ permit target clause x < {} clause role == "a" on permit {{ obligation told {{ "x" = x }} }} }}
}}
"""
MOMENTS = [
    datetime(2026, 5, 1, 12, tzinfo=UTC),
    datetime(2026, 5, 1, 12, 0, 0, 1, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
]
COMPARED: dict[DataType, tuple[Any, list[Any], list[str]]] = {
    INTEGER: (pa.int32(), [1, 2, 3, -5, 7, None], ["1", "2", "3"]),
    DOUBLE: (pa.float64(), [1.0, 1.5, -0.0, math.nan, math.inf, -1e300, None], ["1.0", "1.5", "0.0"]),
    DATE: (
        pa.date32(),
        [date(2026, 5, 1), date(2026, 5, 2), date(1, 1, 1), None],
        [f'"{one}":date' for one in ("2026-05-01", "2026-05-01+02:00", "2026-05-02Z")],
    ),
    DATE_TIME: (
        pa.timestamp("us", "UTC"),
        [*MOMENTS, None],
        [f'"2026-05-01T{one}":dateTime' for one in ("14:00:00+02:00", "12:00:00.0000005Z", "12:00:00.000001Z")],
    ),
}


@pytest.mark.parametrize("of", COMPARED, ids=str)
@pytest.mark.parametrize("told", [False, True], ids=["compared", "told"])
def test_values_of_all_ordered_types_lie_where_they_lie(of: DataType, told: bool) -> None:
    found, values, constants = COMPARED[of]
    text = POLICY.format(of, *constants)
    root = read_text_policy(text if told else text.replace('obligation told { "x" = x }', "obligation told {}"))
    role, key = key_of(SUBJECT, "role", STRING), key_of(SUBJECT, "x", of)
    decider = deciding(root, {role: pa.string(), key: found}, NoSources())
    rows = [(who, one) for one in values for who in ("a", "b", None)]
    arrays = {role: pa.array([who for who, _ in rows]), key: pa.array([one for _, one in rows], found)}
    reader = column(found, of, None)
    bags = [reader.bag(arrays[key], row) for row in range(len(rows))]
    facts = [{role: () if who is None else (who,), key: bag} for (who, _), bag in zip(rows, bags, strict=True)]
    assert decided(decider, arrays, len(rows)) == [expected(root, one, NoSources()) for one in facts]


def test_the_largest_and_the_smallest_are_told_from_others() -> None:
    largest, smallest = (1 << 63) - 1, -1 << 63
    key = key_of(SUBJECT, "x", INTEGER)
    values = [0, largest, largest - 1, smallest, smallest + 1]
    compared = POLICY.replace('{{ "x" = x }}', "{{}}")
    for constants in ((largest, largest, smallest), (smallest, largest - 1, smallest + 1), (1 << 63, 1 << 63, 0)):
        root = read_text_policy(compared.format(INTEGER, *constants))
        rows = decided(deciding(root, {key: pa.int64()}, NoSources()), {key: pa.array(values)}, len(values))
        assert rows == [expected(root, {key: (one,)}, NoSources()) for one in values]


def test_what_is_no_number_is_sent_as_it_is() -> None:
    wanted = apply(f"{V1}double-is-in", [PolicyLiteral(math.nan, DOUBLE), Designator(SUBJECT, "x", DOUBLE)])
    root = Policy("p", "1.0", f"{V3_RULES}deny-overrides", (Rule("r", RuleEffect.DENY, (), wanted),))
    sent, _ = pickle.loads(TablePolicies(root)._written)  # noqa: S301  # written here
    key = key_of(SUBJECT, "x", DOUBLE)
    decider = deciding(sent, {key: pa.float64()}, NoSources())
    rows = decided(decider, {key: pa.array([math.nan, 1.0])}, 2)
    assert rows == [expected(root, {key: (one,)}, NoSources()) for one in (math.nan, 1.0)]


READ = [
    (pa.timestamp("us", "UTC"), DATE_TIME, MOMENTS[1], "2026-05-01T12:00:00.000001Z"),
    (
        pa.timestamp("us"),
        DATE_TIME,
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC).replace(tzinfo=None),
        "1969-12-31T23:59:59",
    ),
    (pa.date32(), DATE, date(1969, 12, 31), "1969-12-31"),
    (pa.int64(), DOUBLE, 3, "3.0"),
    (pa.bool_(), BOOLEAN, True, "true"),
    (pa.binary(), HEX, b"\x0f", "0F"),
    (pa.string(), URI, " urn:a ", "urn:a"),
    (pa.large_string(), STRING, " a ", " a "),
]


@pytest.mark.parametrize(("found", "of", "given", "read"), READ)
def test_columns_are_read_as_values_of_their_types(found: Any, of: DataType, given: object, read: str) -> None:
    array = pa.array([given, None], found)
    one, none = (column(found, of, None).bag(array, row) for row in (0, 1))
    assert [of.write(value) for value in one] == [read]
    assert none == ()
    assert column(found, of, None).classes(array).tolist() == [1, 0]


def test_a_column_of_another_type_is_refused() -> None:
    for found, of in ((pa.int64(), STRING), (pa.float64(), INTEGER), (pa.list_(pa.bool_()), DATE)):
        with refused("evaluate.column"):
            column(found, of, None)


def test_what_cannot_be_read_is_indeterminate() -> None:
    root = read_text_policy(POLICY.format("integer", 1, 2, 3))
    role, key = key_of(SUBJECT, "role", STRING), key_of(SUBJECT, "x", INTEGER)
    torn = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffa")]
    )
    arrays = {role: torn, key: pa.array(["1", "1", "one"])}
    decider = deciding(root, {role: pa.string(), key: pa.string()}, NoSources())
    good, *bad = decided(decider, arrays, 3)
    assert good.decision == "Permit"
    assert bad == [answer_of(UNREADABLE)] * 2
    assert UNREADABLE.decision.indeterminate


def test_texts_with_separators_are_bags() -> None:
    reader = column(pa.string(), STRING, frozenset("ab"), ";")
    array = pa.array(["a; b", "b;a", "", None, " ; a", "a;c", "a;d"])
    assert [reader.bag(array, row) for row in range(5)] == [("a", "b"), ("b", "a"), (), (), ("a",)]
    first, second, empty, null, single, other, alike = reader.classes(array).tolist()
    assert empty == null == 0
    # To a policy that knows a and b alone, c and d are alike.
    assert other == alike
    assert len({first, second, empty, single, other}) == 5


# --- mapping files ---------------------------------------------------------------------------------------------------

MAPPING = """
[columns.role]
category = "subject"

[columns.groups]
category = "urn:example:category"
id = "urn:example:groups"
type = "integer"
many = true

[columns.tags]
category = "resource"
separator = ";"
"""


def test_a_mapping_says_which_column_is_which_attribute() -> None:
    role, groups, tags = read_request_mapping(MAPPING)
    assert role == RequestColumn("role", key_of(SUBJECT, "role", STRING))
    assert (groups.key, groups.many) == (key_of("urn:example:category", "urn:example:groups", INTEGER), True)
    assert (tags.many, tags.separator) == (True, ";")


WRONG = {
    "columns = 1": "mapping.value",
    "": "mapping.missing",
    "[columns]": "mapping.value",
    "[columns.a]": "mapping.missing",
    '[columns.a]\ncategory = "subject"\ntype = "text"': "xacml.type",
    '[columns.a]\ncategory = "subject"\ntype = "xpathExpression"': "mapping.value",
    '[columns.a]\ncategory = "subject"\nkind = "x"': "mapping.unknown-key",
    '[columns.a]\ncategory = "subject"\nmany = false\nseparator = ";"': "mapping.value",
    '[columns.a]\ncategory = "subject"\nid = "x"\n[columns.b]\ncategory = "subject"\nid = "x"': "mapping.column",
}


@pytest.mark.parametrize("text", WRONG)
def test_mappings_that_are_wrong_are_refused(text: str) -> None:
    with refused(WRONG[text]):
        read_request_mapping(text)


# --- on Spark --------------------------------------------------------------------------------------------------------

SECRET = "SECRET-role"  # noqa: S105  # nobody's
WARD = f"""
namespace ward {{
  attribute role {{ category = subject id = "role" type = string }}
  attribute age {{ category = subject id = "age" type = integer }}
  attribute tags {{ category = resource id = "tags" type = string }}
  policyset all {{ apply deny-overrides
    policy staff {{ apply deny-overrides
      rule some {{ permit target clause role == "{SECRET}" on permit {{ obligation log {{ "tags" = tags }} }} }}
      rule old {{ permit condition age >= 770770770 }}
    }}
    reference policy "ward.closed"
  }}
}}
"""
CLOSED = """
namespace ward { attribute tags { category = resource id = "tags" type = string }
  policy closed { apply deny-overrides rule closed { deny target clause tags == "closed" } } }
"""
REQUESTS: list[dict[str, object]] = [
    {"n": 1, "role": SECRET, "age": 1, "tags": ["a", "b"], "time": MOMENTS[0]},
    {"n": 2, "role": "porter", "age": 770_770_771, "tags": None, "time": None},
    {"n": 3, "role": SECRET, "age": None, "tags": ["closed", "a"], "time": MOMENTS[0]},
    {"n": 4, "role": None, "age": 0, "tags": [], "time": None},
    {"n": 5, "role": "porter", "age": None, "tags": ["a"], "time": None},
]


COUNTS = {"read": 5, "Permit": 2, "Deny": 1, "NotApplicable": 1, "Indeterminate": 1}
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "role": pa.string(),
        "age": pa.int32(),
        "tags": pa.list_(pa.string()),
        "time": pa.timestamp("us", "UTC"),
    }
)
TOOK = 45_000
"""Nanoseconds from one look at the clock to the next."""
REFERRING = TablePolicies(read_text_policy(WARD), (read_text_policy(CLOSED),))


def laid_out(folder: Path) -> Evaluate:
    """Write the table as two files, the first of which has no tags, and return the job over it."""
    source = folder / "requests"
    source.mkdir()
    untagged, *tagged = sorted(REQUESTS, key=lambda row: row["tags"] is not None)
    brief = SCHEMA.remove(SCHEMA.get_field_index("tags"))
    pq.write_table(pa.Table.from_pylist([untagged], brief), source / "0.parquet")
    pq.write_table(pa.Table.from_pylist(tagged, SCHEMA), source / "1.parquet")
    columns = read_request_mapping(
        '[columns.role]\ncategory = "subject"\n[columns.age]\ncategory = "subject"\ntype = "integer"\n'
        '[columns.tags]\ncategory = "resource"\nmany = true\n'
    )
    times = count(step=TOOK)
    return Evaluate(InputTable.at(str(source)), columns, REFERRING, lambda: NOW, "run", lambda: next(times))


def test_a_table_is_decided_and_nothing_of_the_policies_is_shown(session: SparkSession, tmp_path: Path) -> None:
    job = laid_out(tmp_path)
    session.conf.set("spark.sql.debug.maxToStringFields", "1000")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for frame in job.planned(job.all(session)):
            frame.explain(extended=True)
    assert "MapInArrow" in printed.getvalue()
    assert SECRET not in printed.getvalue()
    assert "77077077" not in printed.getvalue()
    said = run(job, session, str(tmp_path / "once"))
    assert said["counts"] == COUNTS
    assert said["reasons"] == {"processing-error": 1}
    stored = pq.read_table(tmp_path / "once" / DECIDED, partitioning="hive", coerce_int96_timestamp_unit="us")
    rows = sorted(stored.to_pylist(), key=lambda row: int(row["n"]))
    for row in rows:
        row["time"] = row["time"] and row["time"].replace(tzinfo=UTC)
    assert [{name: row[name] for name in SCHEMA.names} for row in rows] == REQUESTS
    assert {row["@revision"] for row in rows} == {REFERRING.revision}
    bags = [{"role": row["role"], "age": row["age"], "tags": row["tags"]} for row in REQUESTS]
    sources = Repository(REFERRING.referred)
    for row, asked in zip(rows, bags, strict=True):
        facts = {one.key: _bag(asked[one.name]) for one in job.columns}
        assert RequestDecision(*(row[name] for name in COLUMNS)) == expected(REFERRING.root, facts, sources)
    files = (tmp_path / "once" / DECISIONS).glob("*/*.txt")
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {record["type"] for record in records} == {ANSWERED}
    assert sorted(record["data"]["decision"] for record in records) == sorted(row["@decision"] for row in rows)
    by = {record["data"]["decision"]: record["data"]["because"] for record in records}
    staff, closed, ward = (f"policy:ward.{one}" for one in ("staff", "closed", "all"))
    rests = {"Permit": [staff, ward], "Deny": [staff, closed, ward], "NotApplicable": [], "Indeterminate": [ward]}
    assert by == rests
    assert {record["data"]["took"] for record in records} == {TOOK // 1_000 // len(REQUESTS)}
    good, bad = read_log(session.read.text(str(tmp_path / "once" / DECISIONS)))
    assert sorted(good.groupBy("effect").count().collect()) == [("deny", 2), ("indeterminate", 1), ("permit", 2)]
    assert bad.isEmpty()


@pytest.mark.long
def test_requests_in_a_table_are_decided_into_a_table(session: SparkSession, tmp_path: Path) -> None:
    register_schemes()
    write_deltalake(str(tmp_path / "asked"), pa.Table.from_pylist(REQUESTS, SCHEMA))
    address = f"delta:{tmp_path}/asked"
    table = InputTable.at(address, stored=source_at(parse_address(address)))
    sink = sink_at(parse_address(f"delta:{tmp_path}/decided"), SinkOptions())
    job = laid_out(tmp_path)
    said = run(replace(job, table=table), session, str(tmp_path / "out"), sinks=[sink])
    assert said["counts"] == COUNTS
    rows = DeltaTable(str(tmp_path / "decided")).to_pyarrow_table().to_pylist()
    run(job, session, str(tmp_path / "once"))
    stored = pq.read_table(tmp_path / "once" / DECIDED, partitioning="hive").to_pylist()
    assert {row["n"]: row["decision"] for row in rows} == {row["n"]: row["@decision"] for row in stored}
    with refused("tables.mapping"):
        InputTable.at(address, StorageFormat.CSV, table.stored)


def test_columns_of_a_table_are_names_whatever_they_say(session: SparkSession, tmp_path: Path) -> None:
    """Whoever writes a table may have no right to run anything where it is decided."""
    hostile = "role` || reflect('java.lang.System', 'setProperty', 'penstock.owned', 'x') AS c1 -- "
    odd = [hostile, "a.b", "`", "``", "it's"]
    source = tmp_path / "requests"
    source.mkdir()
    pq.write_table(pa.table({"role": ["staff"], **{name: [name] for name in odd}}), source / "0.parquet")
    columns = read_request_mapping('[columns.role]\ncategory = "subject"\n')
    job = Evaluate(InputTable.at(str(source)), columns, REFERRING, lambda: NOW, "run", lambda: 0)
    assert run(job, session, str(tmp_path / "out"))["counts"]["read"] == 1  # type: ignore[index]  # counts
    [row] = pq.read_table(tmp_path / "out" / DECIDED, partitioning="hive").to_pylist()
    assert {name: row[name] for name in odd} == {name: name for name in odd}
    assert session._jvm is not None
    assert session._jvm.System.getProperty("penstock.owned") is None


def test_texts_are_read_by_the_header_of_their_file_and_all_or_nothing(session: SparkSession, tmp_path: Path) -> None:
    columns = read_request_mapping('[columns.role]\ncategory = "subject"\n')
    source = tmp_path / "requests"
    source.mkdir()
    (source / "0.csv").write_text('n,role\n1,"staff\nof, two ""lines"""\n\n2,\n', encoding="utf-8")
    (source / "1.csv").write_text("role,n\nporter,3\n", encoding="utf-8")
    job = Evaluate(InputTable(str(source), StorageFormat.CSV), columns, REFERRING, lambda: NOW, "run", lambda: 0)
    found = sorted((row["n"], row["role"]) for row in job.all(session).collect())
    assert found == [("1", 'staff\nof, two "lines"'), ("2", None), ("3", "porter")]
    lines = tmp_path / "lines.jsonl"
    for file, line, place in (
        (source / "1.csv", '4,"staff\n', "1.csv, line 3: quotes"),
        (source / "1.csv", "4,staff,x\n", "1.csv, line 3: more or fewer fields"),
        (lines, '{"role": "staff"}\n{"role": "staff"} {"role": "porter"}\n', "lines.jsonl: not one JSON object"),
    ):
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        file.write_text(before + line, encoding="utf-8")
        table = InputTable.at(str(lines)) if file is lines else job.table
        with refused("evaluate.row") as error, spark_errors():
            replace(job, table=table).all(session).collect()
        assert place in error.value.message
        file.write_text(before, encoding="utf-8")


@pytest.mark.long
def test_files_that_arrive_are_decided_too(session: SparkSession, tmp_path: Path) -> None:
    job = laid_out(tmp_path)
    running = start(job, session, str(tmp_path / "stream"), Streaming(files=1, drain=True))
    assert running.wait(600)
    assert totals(session, str(tmp_path / "stream")) == COUNTS
    with refused("pipeline.no-input"):
        replace(job, table=InputTable.at(str(tmp_path / "requests" / "0.parquet"))).arriving(session, Streaming())


def _bag(found: Any) -> tuple[Value, ...]:
    return () if found is None else tuple(found) if isinstance(found, list) else (found,)


def test_a_revision_is_of_what_policies_say() -> None:
    one, other = read_text_policy(CLOSED), read_text_policy(CLOSED.replace('"closed"', '"shut"'))
    other = replace(other, id="other")
    assert TablePolicies(one).revision == TablePolicies(read_text_policy(CLOSED)).revision
    assert len({TablePolicies(one).revision, TablePolicies(other).revision, TablePolicies(one, (other,)).revision}) == 3


def test_decisions_are_counted_by_all_words_that_there_are() -> None:
    assert {decision.plain for decision in XacmlDecision} == {*evaluate_job.WORDS}
