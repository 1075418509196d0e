"""Views of any DataFrame are what `Delivery` and `deliver` give, with push-down and without."""

import contextlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.budget import examples
from tests.guard.strategies import Family
from tests.pipeline.enforce.test_deliver import cases
from tests.pipeline.jobs_plant import interpreted
from tests.pipeline.policy_kit import NOON, PLATE, SIGHTING, SPEED, by_id, policy_of, reader, sightings, trusted
from tests.pipeline.rows import collected, frame, same, transit_frame

from penstock.errors import MalformedError, RefusedError
from penstock.guard import Branch, Delivery, Restriction, When, environment
from penstock.model import AttributeId, EventType, Principal, TransitEvent
from penstock.pipeline.enforce.deliver import SUBSCRIBER, deliver
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.frames import ID, SOURCE, TIME, quoted, typed_schema
from penstock.pipeline.views import ConstantsIn, explain_view, quarantine, restrict, view, whatif
from penstock.pipeline.whatif import compare
from penstock.selector import ALWAYS, Selector, parse
from penstock.trust.capabilities import Right
from penstock.trust.validity import Validity

Case = tuple[Family, list[tuple[EventType, Restriction, Selector]], list[TransitEvent]]
PUBLISHER = str(SIGHTING.name.owner)


def plan(found: DataFrame) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        found.explain(extended=True)
        # Here long lists of filters are printed whole.
        found.explain(mode="formatted")
    return printed.getvalue()


MODES: tuple[ConstantsIn, ...] = ("public", "hidden")
OF = "@of"


@pytest.fixture(scope="module", autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


def joined(views: Mapping[str, DataFrame]) -> DataFrame:
    """Return several views as one frame, whose rows say which they are of."""
    frames = [one.withColumn(OF, F.lit(name)) for name, one in views.items()]
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)


def by_name(names: Iterable[str], rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {name: [] for name in names}
    for row in rows:
        found[row[OF]].append(row)
    return found


def together(views: Mapping[str, DataFrame]) -> dict[str, list[Row]]:
    """Collect several views by one job."""
    return by_name(views, collected(joined(views)))


def check(rows: Sequence[Row], give: Delivery, sent: Sequence[TransitEvent], *, ids: bool = True) -> None:
    """Compare the rows of a view with live delivery; a column that a view does not have is null."""
    found = {row[ID]: row.asDict() for row in rows}
    expected = {}
    for event in sent:
        assert event.time is not None
        if (seen := give(event, environment(event.time))) is not None:
            expected[event.id] = seen
    assert len(rows) == len(found)
    assert found.keys() == expected.keys()
    for key, seen in expected.items():
        for name, value in seen.values.items():
            column = give.event_type.by_name[name].id if ids else name
            assert same(value, found[key].get(column)), (key, name, value)


@settings(deadline=None, max_examples=examples(3), suppress_health_check=list(HealthCheck))
@given(cases())
def test_a_view_is_what_live_delivery_and_deliver_give(spark: SparkSession, case: Case) -> None:
    family, readers, sent = case
    policy = replace(policy_of(readers), types=tuple(map(trusted, family.types)))
    events = transit_frame(spark, family.types, sent)
    delivered = deliver(events, family.types, policy)
    views = {SUBSCRIBER: delivered.by_subscriber()}
    for number in range(len(readers)):
        name = f"reader-{number}"
        if name in delivered.without_rights:
            with pytest.raises(RefusedError):
                view(events, policy, name)
        else:
            views |= {f"{name} {mode}": view(events, policy, name, ids=True, constants=mode) for mode in MODES}
    rows = together(views)
    for number, (event_type, restriction, selector) in enumerate(readers):
        name = f"reader-{number}"
        give = Delivery(restriction, event_type, selector)
        check([row for row in rows[SUBSCRIBER] if row[SUBSCRIBER] == name], give, sent)
        for mode in MODES if name not in delivered.without_rights else ():
            check(rows[f"{name} {mode}"], give, sent)


@settings(deadline=None, max_examples=examples(2), suppress_health_check=list(HealthCheck))
@given(cases())
def test_streams_and_batches_give_what_live_delivery_gives(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    family, readers, sent = case
    policy = replace(policy_of(readers), types=tuple(map(trusted, family.types)))
    events = transit_frame(spark, family.types, sent)
    folder = str(tmp_path_factory.mktemp("events") / "sent")
    events.coalesce(1).write.parquet(folder)
    frames = {
        "stream": spark.readStream.schema(events.schema).parquet(folder),
        "batch": spark.read.schema(events.schema).parquet(folder),
    }
    views: dict[str, dict[str, DataFrame]] = {}
    for number, mode in product(range(len(readers)), MODES):
        with contextlib.suppress(RefusedError):
            made = {of: view(df, policy, f"reader-{number}", ids=True, constants=mode) for of, df in frames.items()}
            views[f"{number} {mode}"] = made
    if not views:
        return
    whole = joined({name: made["stream"] for name, made in views.items()})
    query = whole.writeStream.format("memory").queryName("at_random").trigger(availableNow=True)
    query.start().awaitTermination()
    found = {
        "stream": by_name(views, collected(spark.table("at_random"))),
        "batch": together({name: made["batch"] for name, made in views.items()}),
    }
    spark.catalog.dropTempView("at_random")
    for name, of in product(views, frames):
        event_type, restriction, selector = readers[int(name.split()[0])]
        check(found[of][name], Delivery(restriction, event_type, selector), sent)


def typed(spark: SparkSession, count: int = 30) -> DataFrame:
    rows = [
        {ID: e.id, TIME: e.time, SOURCE: PUBLISHER, **{a.name: e.values.get(a.id) for a in SIGHTING.attributes}}
        for e in sightings(count)
    ]
    return frame(spark, typed_schema(SIGHTING), rows)


def one(where: str, selector: str = "", **more: object) -> PipelinePolicy:
    event_type, restriction, _ = reader(where, PLATE, SPEED, **more)
    return policy_of([(event_type, restriction, parse(selector) if selector else ALWAYS)])


WHERES = {
    "an equality": "plate = 'P4'",
    "a list": "plate IN ('P4', 'P7', 'P8')",
    "a range": "speed BETWEEN 3 AND 9 AND ratio > 0.5",
    "a prefix": "plate LIKE 'P1%' AND NOT (speed = 11)",
    "a pattern": "plate LIKE 'P_' OR plate LIKE 'P1_'",
    "no value": "plate IS NULL AND speed IS NOT NULL",
    "numbers of two kinds": "speed > 2.5 AND ratio >= 1 AND ratio < 900000000000000000",
    "what cannot be pushed": "speed + 1 > 5 OR plate = 'P2'",
    "times": "seen >= TIMESTAMP '2026-05-01 12:10:00'",
    "never": "plate = NULL",
}


def test_views_of_typed_rows(spark: SparkSession) -> None:
    selector = "speed < 25 OR speed IS NULL"
    df = typed(spark)
    views = {
        f"{name} {mode}": view(df, one(where, selector), "reader-0", constants=mode)
        for mode in MODES
        for name, where in list(WHERES.items())[: 3 if mode == "hidden" else None]
    }
    assert all(found.columns == [ID, TIME, SOURCE, "plate", "speed"] for found in views.values())
    rows = together(views)
    for key in rows:
        give = Delivery(reader(WHERES[key.rpartition(" ")[0]], PLATE, SPEED)[1], SIGHTING, parse(selector))
        check(rows[key], give, sightings(30), ids=False)
    moved = df.transform(restrict(one(WHERES["a list"], selector), "reader-0"))
    assert {row[ID] for row in moved.collect()} == {row[ID] for row in rows["a list public"]}


def test_columns_are_found_by_name(spark: SparkSession) -> None:
    policy = one("speed >= 0", when=When(Validity.between(NOON - timedelta(days=9), NOON + timedelta(days=99))))
    df = typed(spark).toDF("No", "When", "Who", "Plate No", "kmh", "seen", "ratio")
    named: dict[str, str | Column | None] = {
        "@id": "No",
        "@time": "When",
        "plate": "Plate No",
        "speed": F.col("kmh").cast("int"),
    }
    found = view(df, policy, "reader-0", named)
    assert found.columns == ["No", "When", "plate", "speed"]
    assert found.count() == 30
    assert view(df.drop("ratio"), policy, "reader-0", {**named, "ratio": None}, ids=True).columns == [
        ID,
        TIME,
        PLATE,
        SPEED,
    ]
    taken = df.withColumnsRenamed({"No": "plate", "Plate No": "of"})
    assert view(taken, policy, "reader-0", {**named, "@id": "plate", "plate": "of"}).columns[0] == ID
    mistakes: list[tuple[Mapping[str, str | Column | None] | None, str]] = [
        ({"spee": "kmh"}, "mapping.attribute"),
        ({**named, "plate": "Plat No"}, "mapping.column"),
        ({**named, "ratio": "seen"}, "mapping.column"),
        ({name: column for name, column in named.items() if name != "@time"}, "view.time"),
        (None, "mapping.column"),
    ]
    for wrong, code in mistakes:
        with pytest.raises(MalformedError) as refused:
            view(df, policy, "reader-0", wrong)
        assert refused.value.code == code
    with pytest.raises(MalformedError) as refused:
        view(df, policy, "reader-0", {**named, "plate": "Plat No"})
    assert refused.value.hint == (
        'name its column, `mapping={"plate": "…"}`, or None if the data does not have it; did you mean `Plate No`?'
    )
    for data in ("events.parquet", df.toPandas()):
        with pytest.raises(MalformedError, match="not a DataFrame of Spark") as refused:
            view(data, policy, "reader-0", named)  # type: ignore[arg-type]  # it is refused
        assert refused.value.code == "view.data"
    computed = {**named, "@id": F.concat(F.lit("e"), "No"), "@time": F.col("When") + F.expr("INTERVAL 1 SECOND")}
    assert view(df, policy, "reader-0", computed).columns == [ID, TIME, "plate", "speed"]
    with pytest.raises(MalformedError) as refused:
        view(df, policy, "reader", named)
    assert refused.value.code == "pipeline.unknown-subscriber"


def test_push_down_reaches_the_files_and_hidden_constants_do_not(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "sightings")
    typed(spark, 90).repartition(1, "plate").write.partitionBy("plate").parquet(path)
    df = spark.read.parquet(path)
    policy = one("plate = 'P4' AND speed BETWEEN 3 AND 30", "speed < 25")
    found = view(df, policy, "reader-0")
    printed = plan(found)
    assert re.search(r"PartitionFilters: \[[^]]*\(plate#\d+ = P4\)", printed)
    assert "LessThan(speed,25)" in printed
    assert "GreaterThanOrEqual(speed,3)" in printed
    assert "ratio" not in printed[printed.index("ReadSchema") :]
    hidden = view(df, policy, "reader-0", constants="hidden")
    assert "P4" not in plan(hidden)
    assert collected(hidden.orderBy(ID)) == collected(found.orderBy(ID))
    assert found.count() > 0


def scanned(found: DataFrame) -> int:
    """Return how many bytes of files Spark says it has read."""
    found.collect()
    plan = found._jdf.queryExecution().executedPlan()
    leaves = plan.collectLeaves()
    return sum(int(leaves.apply(n).metrics().apply("filesSize").value()) for n in range(leaves.size()))


def test_a_selective_reader_reads_few_bytes(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "sightings")
    plate, speed = F.format_string("P%d", F.col("id") % 25), F.floor(F.col("id") / 25)
    moment = F.timestamp_seconds(F.lit(1_777_636_800) + F.col("id")).alias("seen")
    rows = spark.range(1_500).select(plate.alias("plate"), speed.alias("speed"), moment, F.lit(1.5).alias("ratio"))
    rows.coalesce(1).write.partitionBy("plate").parquet(path)
    df = spark.read.parquet(path)
    found = view(df, one("plate = 'P4' AND speed < 5"), "reader-0")
    assert found.count() == 5 < 0.004 * df.count()
    assert 0 < scanned(found) < 0.05 * scanned(df)


def test_a_right_can_hide_who_published(spark: SparkSession) -> None:
    shown, hidden = Branch(action=Right.SUBSCRIBE), Branch(action=Right.SUBSCRIBE, source=False)
    policy = policy_of([(SIGHTING, Restriction(one), ALWAYS) for one in ((shown,), (hidden, shown))])
    events = transit_frame(spark, [SIGHTING], sightings(2)).withColumn(SOURCE, F.lit(PUBLISHER))
    assert SOURCE in view(events, policy, "reader-0").columns
    assert SOURCE not in view(events, policy, "reader-1").columns
    rows = deliver(events, [SIGHTING], policy).by_subscriber().collect()
    assert {(row[SUBSCRIBER], row[SOURCE]) for row in rows} == {("reader-0", PUBLISHER), ("reader-1", None)}


def test_what_rights_ask_about_is_not_taken_for_null(spark: SparkSession) -> None:
    """The frame has an attribute that no type of the policy has: its values would be overlooked."""
    other = AttributeId(SIGHTING.name.owner, "Sighting", "9")
    branch = Branch(action=Right.SUBSCRIBE, where=parse("hidden IS NULL").rename({"hidden": other}))
    events = transit_frame(spark, [SIGHTING], sightings(3)).withColumn(other, F.lit("a value"))
    with pytest.raises(MalformedError) as refused:
        view(events, policy_of([(SIGHTING, Restriction((branch,)), ALWAYS)]), "reader-0")
    assert refused.value.code == "view.type"


def test_rows_that_are_not_events_are_listed(spark: SparkSession) -> None:
    """What cannot be converted, or has no id, is not shown, and nothing raises."""
    df = spark.createDataFrame(
        [("1", "P1", "5"), ("", "P2", "5"), ("3", "P3", "fast"), ("4", "P4", None)],
        "No string, plate string, speed string",
    )
    policy = one("plate LIKE 'P%'")
    named = {"@id": "No", "seen": None, "ratio": None}
    assert [tuple(row) for row in view(df, policy, "reader-0", named).collect()] == [("1", "P1", 5), ("4", "P4", None)]
    bad = quarantine(df, policy, "reader-0", named)
    assert bad.columns == ["No", "plate", "speed", "@reason", "@words"]
    assert [(row["plate"], row["@reason"]) for row in bad.collect()] == [("P2", "ingest.id"), ("P3", "ingest.kind")]
    assert quarantine(transit_frame(spark, [SIGHTING], sightings(3)), policy, "reader-0").count() == 0


def test_a_source_that_is_not_a_principal_is_not_shown(spark: SparkSession) -> None:
    stranger = str(Principal(b"\7" * 32))
    sources = [PUBLISHER, stranger, f"{PUBLISHER} ", f"{stranger[:-1]}b", "", "not UTF-8", None]
    rows = [(str(n), source, "P1") for n, source in enumerate(sources)]
    df = spark.createDataFrame(rows, "`@id` string, `@source` string, plate string")
    broken = F.concat(F.unhex(F.lit("ff")).cast("string"), F.lit(stranger))
    df = df.withColumn(SOURCE, F.when(quoted(SOURCE) == "not UTF-8", broken).otherwise(quoted(SOURCE)))
    named = {"seen": None, "ratio": None, "speed": None}
    policy = one("plate = 'P1'")
    for mode in MODES:
        found = view(df, policy, "reader-0", named, constants=mode)
        assert sorted(row[ID] for row in found.collect()) == ["0", "1"]
    listed = {row[ID]: row["@reason"] for row in quarantine(df, policy, "reader-0", named).collect()}
    assert listed == {**dict.fromkeys("2346", "ingest.source"), "5": "ingest.utf8"}


def nobody() -> tuple[EventType, Restriction, Selector]:
    return SIGHTING, Restriction(), ALWAYS


def test_every_row_has_the_reasons_why_it_is_shown_or_not(spark: SparkSession) -> None:
    when = When(Validity.between(NOON - timedelta(days=9), NOON + timedelta(days=1)), parse("hour < 18"))
    post = Branch(action=Right.SUBSCRIBE, attributes=frozenset([SPEED]), where=by_id("speed > 3"), because=("cert:1",))
    first = Branch(action=Right.SUBSCRIBE, attributes=frozenset([PLATE]), where=by_id("plate = 'P9'"), when=when)
    policy = policy_of([(SIGHTING, Restriction((first, post)), parse("speed < 6 OR speed IS NULL")), nobody()])
    df = typed(spark, 8).withColumn("speed", F.when(quoted(ID) == "0", "x").otherwise(quoted("speed").cast("string")))
    for mode in MODES:
        rows = {row[ID]: row for row in explain_view(df, policy, "reader-0", constants=mode).collect()}
        shown = {row[ID] for row in view(df, policy, "reader-0", constants=mode).collect()}
        assert {key for key, row in rows.items() if row["@shown"]} == shown == {"4", "5"}
        told = {key: [reason.partition(":")[0] for reason in row["@reasons"]] for key, row in rows.items()}
        assert told["0"] == ["it is not an event"]
        # Events 1 to 3 are at 19 o'clock, in forty days, and two days before noon.
        assert told["1"] == ["right 1 has a condition that is not met", "right 2 does not apply"]
        assert told["2"] == ["right 1 is not valid at the event's time", "right 2 does not apply"]
        assert told["3"] == ["right 1 does not apply", "right 2 does not apply"]
        assert told["7"][1:] == ["right 2 shows it", "the reader's own filter does not accept what it sees"]
        seen = {"plate": "no right that applies lists it", "speed": "right 2 lists it"}
        assert rows["4"]["@attributes"] == {**seen, "seen": "no right lists it", "ratio": "no right lists it"}
        assert rows["1"]["@attributes"] is None
        assert ("plate = 'P9'" in rows["3"]["@reasons"][0]) is (mode == "public")
    (refused,) = explain_view(df.where(quoted(ID) == "3"), policy, "reader-1").collect()
    assert refused["@reasons"] == ["`reader-1` has no right to subscribe to `Sighting`"]


def test_what_another_policy_would_change(spark: SparkSession) -> None:
    before, after = one("speed > 3"), one("speed > 5")
    compared = whatif(typed(spark), before, after)
    assert compared.events == 30
    assert {(change.name, change.gained, change.lost) for change in compared.losses} >= {("speed", 0, 2)}
    head, *lines, last = str(compared).splitlines()
    assert head.split() == ["who", "right", "type", "attribute", "gains", "loses", "such", "as"]
    assert lines[0].split()[:3] == ["reader-0", "subscribe", "Sighting"]
    assert last == "30 events under two policies"
    assert "<td>reader-0</td><td>subscribe</td>" in compared._repr_html_()
    same = whatif(typed(spark), before, before)
    assert str(same) == "nothing changes\n30 events under two policies"
    assert "nothing changes" in same._repr_html_()
    untold = replace(same, unknown=("guard a",), closed=("<b>",), unknown_type=500)
    for text in (str(untold), untold._repr_html_()):
        assert "the history does not tell: guard a" in text
        assert "500 events of types that neither policy has" in text
    assert "no key for &lt;b&gt;: all its values are empty" in untold._repr_html_()
    transit = transit_frame(spark, [SIGHTING], sightings(30))
    assert compared.changes == compare(transit, before, after, types=[SIGHTING]).changes
    dated = one("speed > 3", when=When(Validity.between(NOON, NOON)))
    mistakes = [(dated, typed(spark).drop(TIME), "view.time"), (policy_of([]), typed(spark), "whatif.types")]
    for policy, df, code in mistakes:
        with pytest.raises(MalformedError) as refused:
            whatif(df, policy, policy)
        assert refused.value.code == code


def test_streams_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path / "sightings")
    typed(spark).coalesce(1).write.parquet(folder)
    policy = one("plate LIKE 'P1%' AND speed < 30")
    expected = collected(view(spark.read.parquet(folder), policy, "reader-0").orderBy(ID))
    arriving = spark.readStream.schema(typed_schema(SIGHTING)).parquet(folder)
    for mode in MODES:
        name = f"views_{mode}"
        query = view(arriving, policy, "reader-0", constants=mode).writeStream.format("memory").queryName(name)
        query.trigger(availableNow=True).start().awaitTermination()
        assert collected(spark.table(name).orderBy(ID)) == expected
        spark.catalog.dropTempView(name)
    assert expected
