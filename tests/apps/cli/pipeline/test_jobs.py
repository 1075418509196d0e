"""`penstock pipeline`: from files to views, what-if and audit; and what it says when something is wrong."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from tests.apps.conftest import NOW, Shell
from tests.pipeline.ingest_reference import SOURCE, define
from tests.pipeline.jobs_plant import HIDDEN, POLICY, admitted, build, good, interpreted, seen, write_events
from tests.trust.kit import grant, key, who

from penstock.apps.cli.pipeline.output import done_answer
from penstock.apps.cli.pipeline.runs import Done
from penstock.apps.cli.pipeline.spark_session import Cluster, session
from penstock.errors import FailedError
from penstock.model import AttributeDefinition, AttributeSpec, Kind, TypeDefinition, TypeName
from penstock.pipeline.ingest.mapping import read_mapping
from penstock.pipeline.jobs.ingest import Ingest, MappedTables
from penstock.trust import Credentials, Right, event_tag, sign_type

RECORDS = 42
DOMAINS = f"""
[domains]
"{who(1)}" = "plant"
"{who(2)}" = "contractor"
statistics = "office"
engineer = "plant"
"""


@pytest.fixture(autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


@pytest.fixture
def plant(penstock: Shell) -> Shell:
    with build(penstock.folder / "plant").open("a", encoding="utf-8") as policy:
        policy.write(DOMAINS)
    write_events(penstock.folder / "in" / "0.jsonl", range(RECORDS))
    return penstock


POLICY_FILE = ("--policy", "plant/policy.toml")


def test_from_files_to_views(plant: Shell) -> None:
    done = plant.ok("pipeline", "ingest", "in", *POLICY_FILE, "--out", "ingested")
    events, passed = len(good(RECORDS)), len(admitted(RECORDS))
    assert f"{RECORDS} records = {events} events + {RECORDS - events} in quarantine" in done.out
    assert done.err == ""
    assert "`penstock pipeline quarantine ingested` says why" in done.out
    aside = plant.ok("pipeline", "quarantine", "ingested", "--samples", "1").out
    assert ["ingest.json", str(RECORDS - events)] in [row.split() for row in aside.splitlines()]
    assert "0.jsonl " in aside
    assert "broken 13" in aside
    assert f"{RECORDS - events} records in quarantine" in aside
    unseen = plant("pipeline", "view", "ingested", "engineer")
    assert (unseen.status, unseen.code) == (3, "layout.incomplete")
    assert "run `penstock pipeline deliver " in unseen.err
    data = plant.ok("pipeline", "admit", "ingested", *POLICY_FILE, "--out", "admitted", "-o", "json").json
    assert data["counts"] == {"read": events, "events": passed, "refused": events - passed, "decision records": 8}
    assert data["reasons"] == {"guard.denied": events - passed}
    deliver = ("pipeline", "deliver", "admitted", *POLICY_FILE, "--layout", "subscriber")
    given = plant.ok(*deliver, "--out", "delivered").out
    assert ["statistics", str(passed)] in [row.split() for row in given.splitlines()]
    assert ["stranger", "0"] in [row.split() for row in given.splitlines()]
    assert "without rights: stranger; `penstock explain` says what is missing" in given
    found = plant.ok("pipeline", "view", "delivered", "engineer", "--limit", "2", "-o", "json").json
    assert found["rows"] == len(seen("engineer", RECORDS))
    first = found["events"][0]
    assert first == {**first, "@id": "e21", "@time": "2026-05-01T12:00:21Z", "probe": "s1", "value": 21.0}
    shown = plant.ok("pipeline", "view", "delivered", "statistics").out
    assert f"20 of {passed} events" in shown
    assert "s1" not in shown, "the sensor is hidden"
    refused = plant("pipeline", "view", "delivered", "stranger")
    assert (refused.status, refused.code) == (1, "pipeline.no-rights")
    assert "…" not in refused.err
    misspelt = plant("pipeline", "view", "delivered", "statistic")
    assert (misspelt.status, misspelt.code) == (2, "pipeline.unknown-subscriber")
    assert "did you mean `statistics`" in misspelt.err
    log = "".join(file.read_text() for file in Path("admitted/decisions").rglob("part-*"))
    assert log.count('"domain":"contractor"') == log.count('"owner-domain":"plant"') / 2 == 4
    page = ("--html", "audit.html", "--limit", "5")
    table = plant.ok("pipeline", "audit", "delivered", *POLICY_FILE, *page).out
    assert "plant → office: subscribe" in Path("audit.html").read_text()
    flows = {tuple(row.split()) for row in table.partition("\nflows\n")[2].splitlines()}
    # Two readers share one decision.
    assert flows >= {
        ("plant", "office", "subscribe", "1", str(2 * passed)),
        ("plant", "plant", "subscribe", "1", str(len(seen("engineer", RECORDS)))),
    }
    assert "\nslowest\n" in table
    assert "engineer" in table
    assert str(who(5)) not in table
    assert "no revocations in this period\n3 decisions; 0 lines are not decisions" in table


def ingest_two_versions(plant: Shell) -> str:
    """Ingest a few events, and return a policy that knows one version of their type alone, as in `first.toml`."""
    write_events(plant.folder / "few" / "0.jsonl", range(4))
    plant.ok("pipeline", "ingest", "few", *POLICY_FILE, "--out", "ingested")
    first = POLICY.replace('"*.type"', '"reading-0.type"').replace("Reading@1", "Reading")
    Path("plant/first.toml").write_text(first)
    return first


@pytest.mark.long
def test_nobody_is_given_events_of_a_version_that_the_policy_lacks(plant: Shell) -> None:
    ingest_two_versions(plant)
    job = ("pipeline", "deliver", "ingested", "--policy", "plant/first.toml", "--out", "delivered")
    done = plant.ok(*job, "-o", "json").json
    assert done["counts"].items() >= {"read": 4, "of unknown type": 2, "delivered": 4}.items()
    assert done["reasons"] == {"pipeline.unknown-type": 2}
    found = plant.ok("pipeline", "view", "delivered", "statistics", "-o", "json").json
    assert [event["@id"] for event in found["events"]] == ["e1", "e2"]


def test_what_if(plant: Shell) -> None:
    plant.ok("pipeline", "ingest", "in", *POLICY_FILE, "--out", "ingested")
    tag = event_tag(who(1), "org.plant.Reading", None, [Right.SUBSCRIBE])
    Path("plant/more.cert").write_bytes(Credentials.of(grant(1, 4, tag)).to_bytes())
    Path("plant/after.toml").write_text(POLICY.replace('["certs/*.cert"]', '["certs/*.cert", "more.cert"]'))
    both = ("pipeline", "whatif", "ingested", "--before", "plant/policy.toml", "--after", "plant/after.toml")
    changed = plant(*both, "--fail-on", "gain", "--html", "change.html")
    assert (changed.status, changed.code) == (1, "whatif.changes")
    assert f"{len(good(RECORDS))} events under two policies, 4 readers compared" in changed.out
    assert "statistics" in Path("change.html").read_text()
    kept = plant.ok(*both, "--fail-on", "loss", "-o", "json", "--stream", "--drain", "--out", "differences").json
    assert [change["gained"] for change in kept["changes"]] == [len(good(RECORDS))] * 2
    assert plant(*both, "--html", "change.html").code == "file.exists"
    same = plant.ok("pipeline", "whatif", "ingested", "--before", "plant/policy.toml", "--after", "plant/policy.toml")
    assert "nothing changes" in same.out
    assert "neither policy" not in same.out


@pytest.mark.long
def test_what_if_tells_of_publishers_and_of_events_that_no_policy_knows(plant: Shell) -> None:
    first = ingest_two_versions(plant)
    Path("plant/fewer.toml").write_text(
        first.replace('"certs/*.cert"', '"certs/statistics.cert", "certs/engineer.cert"')
    )
    both = ("pipeline", "whatif", "ingested", "--before", "plant/first.toml", "--after", "plant/fewer.toml")
    lost = plant(*both, "--fail-on", "loss", "--html", "change.html")
    assert (lost.status, lost.code) == (1, "whatif.changes")
    assert "2 events of types that neither policy has" in lost.out
    assert "2 events under two policies, 4 readers compared, and 2 publishers" in lost.out
    page = Path("change.html").read_text()
    assert "Who may publish what" in page
    assert "2 events are of types that neither policy has" in page
    done = plant.ok(*both, "-o", "json", "--out", "differences").json
    changes = [(c["publisher"], c["name"], c["gained"], c["lost"], c["lost_samples"]) for c in done["changes"]]
    ids = ["e1", "e2"]
    assert changes == [(str(who(2)), name, 0, 2, ids) for name in ("", "region", "sensor", "value")]
    assert (done["events"], done["publishers"], done["unknown_type"]) == (2, 2, 2)
    assert done["run"]["reasons"] == {"pipeline.unknown-type": 2}
    assert done["run"]["counts"]["read"] == 4


def test_a_rehearsal_writes_nothing_and_tells_no_constant(plant: Shell) -> None:
    planned = plant.ok("pipeline", "ingest", "in", *POLICY_FILE, "--out", "ingested", "--dry-run", "-o", "json").json
    assert (planned["files"], planned["records"]) == (1, RECORDS)
    assert planned["bytes"] == Path("in/0.jsonl").stat().st_size
    assert not Path("ingested").exists()
    plant.ok("pipeline", "ingest", "in", *POLICY_FILE, "--out", "ingested")
    text = plant.ok("pipeline", "deliver", "ingested", *POLICY_FILE, "--out", "delivered", "--dry-run").out
    assert "records     36" in text
    assert "Physical Plan" in text
    full = plant.ok("pipeline", "deliver", "ingested", *POLICY_FILE, "--out", "x", "--dry-run", "-o", "json").out
    assert HIDDEN not in full
    assert not Path("delivered").exists()
    again = plant("pipeline", "ingest", "in", *POLICY_FILE, "--out", "ingested", "--dry-run")
    assert (again.status, again.code) == (1, "pipeline.exists")


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        ("ingest in --out out", 2, "cli.type-file"),
        ("ingest --policy plant/policy.toml --out out", 2, "cli.resource"),
        ("ingest in --policy plant/policy.toml --out out --from-jetstream nats://x S", 2, "cli.resource"),
        ("ingest in --policy plant/policy.toml --out plant", 1, "pipeline.foreign"),
        ("ingest nowhere --policy plant/policy.toml --out out", 3, "pipeline.no-input"),
        ("ingest in --policy plant/policy.toml --out out --drain", 2, "cli.stream"),
        ("ingest in --policy plant/policy.toml --out out --conf x", 2, "cli.pair"),
        ("ingest in --policy nowhere.toml --out out", 3, "file.missing"),
        ("ingest in --mapping plant/policy.toml --out out", 2, "mapping.unknown-key"),
        (
            "ingest --policy plant/policy.toml --out out --from-jetstream nats://127.0.0.1:1 S",
            3,
            "jetstream.unreachable",
        ),
        ("quarantine in", 3, "pipeline.no-input"),
        ("admit in --policy plant/policy.toml --out out", 3, "pipeline.no-input"),
        ("deliver in --policy plant/policy.toml --out out --layout column", 2, "cli.usage"),
        ("view in engineer", 3, "layout.incomplete"),
        ("whatif in --before plant/policy.toml --after plant/policy.toml --stream", 2, "cli.stream"),
        ("audit nowhere", 3, "pipeline.no-input"),
        ("audit in --since yesterday", 2, "date.malformed"),
        ("audit in --hours 999999999999", 2, "cli.usage"),
        ("audit in --stream --out out --files 999999999999", 2, "cli.usage"),
    ],
)
def test_what_is_wrong(plant: Shell, arguments: str, status: int, code: str) -> None:
    ran = plant("pipeline", *arguments.split())
    assert (ran.status, ran.code) == (status, code), ran.err
    assert ran.out == ""


@pytest.mark.parametrize("names", [("a", "A"), ("a", "b")])
def test_attributes_that_spark_takes_for_one_are_refused(plant: Shell, names: tuple[str, str]) -> None:
    attributes = tuple(
        AttributeDefinition(name, uid, AttributeSpec(Kind.STRING)) for name, uid in zip(names, "xX", strict=True)
    )
    signed = sign_type(TypeDefinition(TypeName(who(1), "T"), attributes), key(1))
    (plant.folder / "case.type").write_bytes(signed.to_bytes())
    ran = plant("pipeline", "ingest", "in", "--type-file", "case.type", "--out", "out")
    assert (ran.status, ran.code) == (2, "pipeline.case"), ran.err
    assert not (plant.folder / "out" / "events").exists()


def test_a_failure_says_where_and_which(plant: Shell) -> None:
    absent = plant("pipeline", "ingest", "nowhere", *POLICY_FILE, "--out", "out")
    assert "nowhere`" in absent.err
    unwritable = plant("pipeline", "ingest", "in", *POLICY_FILE, "--out", "in/0.jsonl/out")
    assert (unwritable.status, unwritable.code) == (3, "pipeline.spark")
    assert "Spark failed: " in unwritable.err
    assert "unknown" not in unwritable.err


def test_a_header_that_does_not_fit_is_told_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    event = f'[event]\nid = "n"\ntime = "t"\nsource = {{ constant = "{SOURCE}" }}\n[attributes]\nsensor = "s"\n'
    bound = read_mapping(f'type = "t.type"\nformat = "csv"\n{event}').bind(define()[0])
    job = Ingest(MappedTables("in", bound), lambda: NOW)
    counts = {"read": 1, "events": 0, "quarantined": 1}
    done_answer(job, "out", Done(counts, {"ingest.header": 1}, 1, 1.0, 1)).render()
    assert "the mapping needs the columns n, t, s; the quarantine names" in capsys.readouterr().out


def test_without_spark_it_says_what_to_install(penstock: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("penstock.apps.cli.pipeline")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("pyspark", "pyspark.errors", "pyspark.sql", "py4j", "py4j.protocol"):
        monkeypatch.setitem(sys.modules, name, None)
    ran = penstock("pipeline", "view", "a", "b")
    assert (ran.status, ran.code) == (3, "cli.extra")
    assert "pip install 'penstock[spark]'" in ran.err


def test_without_java_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        return None

    class Builder:
        def __getattr__(self, _: str) -> Any:
            return lambda *_: self

        def getOrCreate(self) -> None:  # noqa: N802  # Spark's name
            subprocess.run(["sh", "-c", "echo JAVA_HOME is not set >&2"], check=True)
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(SparkSession, "getActiveSession", none)
    monkeypatch.setattr(SparkSession, "builder", Builder())
    for cluster, code in ((Cluster(), "pipeline.java"), (Cluster(remote="sc://x"), "pipeline.remote")):
        with pytest.raises(FailedError) as failed, session(cluster):
            pass
        assert failed.value.code == code
        assert "JAVA_HOME is not set" in failed.value.message


def test_help_does_not_import_spark() -> None:
    text = "import sys\nfrom penstock.apps.cli.main import cli\ntry:\n cli.main(['--help'])\nexcept SystemExit: pass\n"
    subprocess.run(
        [sys.executable, "-c", f"{text}assert 'pyspark' not in sys.modules"], check=True, capture_output=True
    )
