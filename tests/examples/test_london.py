"""The demonstration runs, and prints what README says that it prints."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.examples.running import ROOT, rows, run_example

from penstock.guard import Effect
from penstock.guard.decision_log import read_record, read_revocation
from penstock.trust import Right

EVENTS = 1_500
#: passages of the suspect while each of three conditions is withdrawn, and after it
BEFORE, AFTER = 6 * 20, 6 * 5
PASSAGES = 3 * (BEFORE + AFTER)
#: passages after the Met has lost its right to read
LATER = 6 * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("london")


@pytest.fixture(scope="module", params=["demo"])
def output(folder: Path) -> str:
    return run_example("london.py", "--events", str(EVENTS), "--out", str(folder), quiet=False)


def shape(line: str) -> str:
    """Return a line without what depends on how many events there are, and how wide that makes columns."""
    return re.sub(r"[━─ ]+", " ", re.sub(r"[\d,.]+", "#", line)).strip()


def test_readme_shows_what_the_demonstration_prints(output: str) -> None:
    (block,) = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    printed = {shape(line) for line in output.splitlines()}
    shown = [line for line in block.splitlines() if line != "…"]
    assert len(shown) > 10
    assert [line for line in shown if shape(line) not in printed] == []


def test_it_ends_with_a_short_summary_and_what_to_try_next(output: str) -> None:
    summary = output.partition("In short\n")[2].partition("\nTry this next\n")[0]
    assert 8 <= len(summary.splitlines()) <= 10
    assert all(line.startswith("  ✓ ") for line in summary.splitlines())
    assert "penstock dev" in output.partition("Try this next\n")[2]


def test_every_reader_sees_its_share_and_no_more(output: str) -> None:
    assert rows(output, "Billing Office")[1][1:] == ["1,500", "7f3a", "numberplate, timestamp", "location"]
    assert rows(output, "Statistics Office")[1][1:] == ["1,500", "0", "timestamp, location", "license-plate"]
    assert rows(output, "Detective Smith")[1][1:3] == ["2", "7f3a"]
    assert rows(output, "Traffic Desk")[0][1:] == ["1,500", "7f3a", "timestamp, location", "numberplate"]


def test_four_brokers_in_processes_of_their_own_meet_at_a_stranger(output: str, folder: Path) -> None:
    assert "17 processes: 4 brokers, 6 cameras, 5 readers, and two access control services." in output
    assert "  CCS Broker (this broker)\n  └── Thames Valley Broker\n      ├── Met Broker\n" in output
    for broker in ("ccs", "met", "pito", "thames-valley"):
        log = (folder / "network" / f"{broker}-broker.log").read_text(encoding="utf-8")
        assert [json.loads(line)["event"] for line in log.splitlines()][-1] == "stopped"


@pytest.mark.parametrize(
    ("condition", "domain"), [("the case assignment", "Met"), ("detective status", "Met"), ("the court order", "Court")]
)
def test_withdrawing_a_condition_cuts_the_detective_and_nobody_else(output: str, condition: str, domain: str) -> None:
    # The demonstration stops if anything is delivered after the broker knows that the role has ended.
    [[_, at, smith, desk, last]] = rows(output, condition)
    assert at == domain
    got, passages = map(int, smith.split(" of "))
    assert passages == BEFORE + AFTER
    # On a busy machine the withdrawal may take as long as the suspect drives.
    assert 0 < got <= BEFORE
    assert desk == f"all {passages}"
    assert re.fullmatch(r"\d+ ms", last)


def test_a_revocation_is_complete_when_all_brokers_have_acknowledged_it(output: str) -> None:
    assert "✓ complete since" in output
    assert len(re.findall(r"Broker +acknowledged", output)) == 5


def test_what_lies_between_the_brokers_is_sealed(output: str) -> None:
    plates, *_ = [row for row in rows(output, "license-plate") if "none" in row[-1]]
    assert plates[-1] == "none: it has no key"
    assert ["location", "6"] in [[row[0], row[-1]] for row in rows(output, "location")]
    assert re.search(r"\d+ blocks, [\d,]+ bytes, and none of [\d,]+ plates in them", output)
    assert "Thames Valley Police, which holds no key, and reads nothing" in " ".join(output.split())


def test_a_domain_that_loses_its_right_loses_the_keys(output: str) -> None:
    assert ["Met Broker", "4", "1", "0", "—"] in rows(output, "Met Broker")
    assert ["CCS Broker", "4", "1", "4", "2"] in rows(output, "CCS Broker")


def test_what_a_broker_kept_opens_on_spark_as_far_as_keys_go(output: str) -> None:
    # How many sightings, and different plates and places; later ones are seen at the time that it is.
    whose = ("Billing Office", "Statistics Office", "Met")
    seen = {tuple(row[:3] + row[4:]) for who in whose for row in rows(output, who)}
    assert ("Billing Office", "1,512", "1,274", "none") in seen
    assert ("Statistics Office", "1,512", "none", "6") in seen
    # It reads everything, of what was sealed while it had the right.
    assert ("Met", "1,500", "1,274", "6") in seen
    assert f"open none of the {LATER} sightings since its right was withdrawn" in " ".join(output.split())


def test_the_great_attacks_are_refused(output: str) -> None:
    for code in ("type.forged", "type.signature-mismatch", "type.over-reach"):
        assert f"[{code}]" in output.replace("\n", " ")
    assert output.count("[broker.not-permitted]") == 4
    assert "✗ expired on" in output
    assert "✗ may not be passed on" in output


def test_batch_equals_live(output: str) -> None:
    assert "The batch views equal what live delivery gave, row for row." in output


def test_the_logs_hold_every_decision_and_the_events_under_each(output: str, folder: Path) -> None:
    lines = [line for path in (folder / "network").glob("*.decisions.jsonl") for line in path.read_bytes().splitlines()]
    revoked = [read_revocation(line) for line in lines if b'"io.penstock.revocation"' in line]
    assert len({record.source for record in revoked}) == 4
    log = [read_record(line) for line in lines if b'"io.penstock.revocation"' not in line]
    decided = {record.id: record for record in log if record.counts is None}
    assert f"The logs hold {len(decided)} decisions" in output
    published: Counter[str] = Counter()
    delivered: Counter[str] = Counter()
    for record in log:
        if record.counts is not None:
            decision = decided[record.decision or ""]
            into = published if decision.action is Right.PUBLISH else delivered
            into[str(decision.principal)] += record.counts.passed
    assert len(published) == 6
    assert published.total() == EVENTS + PASSAGES + LATER
    detective, desk, *offices = sorted(number for number in delivered.values() if number)
    assert offices == [EVENTS + PASSAGES + LATER] * 2
    # The Met has lost its right before the last ones.
    assert desk == EVENTS + PASSAGES
    assert 2 < detective <= 2 + 3 * BEFORE
    passed = [decided[record.decision or ""] for record in log if record.counts is not None]
    assert {(one.domain, one.owner_domain) for one in passed} == {
        ("Congestion Charge Service", "PITO"),
        ("Metropolitan Police", "PITO"),
    }
    refused = [record for record in decided.values() if record.effect is Effect.DENY]
    assert {record.action for record in refused} >= {Right.PUBLISH, Right.SUBSCRIBE}
    assert b"AE05" not in b"".join(lines)


def test_both_reports_are_written_and_named(output: str, folder: Path) -> None:
    joined = output.replace("\n", "")
    for name, said in {"whatif.html": "+1,500", "audit.html": "1,962"}.items():
        assert str(folder / name) in joined
        page = (folder / name).read_text(encoding="utf-8")
        assert said in page
        assert "AE05" not in page, "constants of the policy stay out"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_it_is_stopped_in_between(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, str(ROOT / "examples" / "london.py"), "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True) as demo:
        started = tmp_path / "network" / "met-broker.log"
        while not started.exists() and demo.poll() is None:
            time.sleep(0.01)
        # From the keyboard it goes to all of them; from elsewhere to the one that was started.
        (os.killpg if number is signal.SIGINT else os.kill)(demo.pid, number)
        _, told = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert b"stopped, and everything that was started with it" in told
    with pytest.raises(ProcessLookupError):
        os.killpg(demo.pid, 0)
