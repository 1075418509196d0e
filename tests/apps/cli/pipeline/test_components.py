"""`penstock pipeline audit-components` combines logged answers as enforcement points do."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.apps.conftest import Shell
from tests.apps.ebank_kit import WITHDRAW, amount, set_up
from tests.pipeline.jobs_plant import interpreted
from tests.pipeline.test_component_audit import LINES, NOON

from penstock.apps.cli.pipeline.components import RoleModes
from penstock.authority.components.points.log_point import read_audit
from penstock.authority.decisions.modes import AnswerMode
from penstock.crypto import SigningKey

PRINCIPALS = [str(SigningKey(bytes([n]) * 32).principal) for n in range(3)]


@pytest.fixture
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


def answer(
    replier: str, effect: str, *, changed: int = 1, revision: str = "1", home: str = "bank"
) -> dict[str, object]:
    rests = [{"id": "p", "revision": revision, "changed": datetime(2026, 5, changed, tzinfo=UTC).isoformat()}]
    number = int(replier[-1])
    given = {"replier": replier, "home": home, "principal": PRINCIPALS[number], "effect": effect, "heard": number}
    return {**given, "status": "x" if effect == "Indeterminate" else "", "rests": rests}


@pytest.mark.parametrize(
    ("mode", "answers", "expected"),
    [
        ("first", [], (None, [])),
        ("first", [answer("pdp-1", "Permit"), answer("pdp-2", "Deny")], ("Permit", ["pdp-1"])),
        ("n:2", [answer("pdp-1", "Permit")], (None, [])),
        ("n:2", [answer("pdp-1", "Permit"), answer("pdp-2", "Permit")], ("Permit", ["pdp-1", "pdp-2"])),
        ("n:2", [answer("pdp-1", "Permit"), answer("pdp-2", "Deny")], (None, [])),  # the same policies, other values
        (
            "newest:1",
            [answer("pdp-1", "Permit"), answer("pdp-2", "Deny", changed=2, revision="2")],
            ("Deny", ["pdp-2"]),
        ),
        ("first", [answer("pdp-1", "Permit", home="partner"), answer("pdp-2", "Deny")], ("Deny", ["pdp-2"])),
        ("first", [answer("pdp-0", "Indeterminate")], ("Indeterminate", ["pdp-0"])),
    ],
)
def test_answers_are_combined_as_the_role_says(
    mode: str, answers: list[dict[str, object]], expected: tuple[str | None, list[str]]
) -> None:
    modes = RoleModes({"ER(1)": (AnswerMode.parse(mode), {"bank": 2, "partner": 1})})
    assert modes("ER(1)", answers) == expected


@pytest.mark.usefixtures("_quick")
def test_an_audit_writes_a_source_for_information_points(penstock: Shell) -> None:
    text = "\n".join(LINES)
    for replier, principal in zip(("pdp-1", "pdp-2", "pdp-3"), PRINCIPALS, strict=True):
        text = text.replace(f"ed25519:{replier}", principal)
    Path("log").mkdir()
    Path("log/log-1.jsonl").write_text(text)
    penstock.now = NOON.replace(minute=1)
    found = penstock.ok(
        "pipeline", "audit-components", "log", "--last", "1h", "--refusals", "r.json", "-o", "json"
    ).json
    assert found["refusals"][0]["refusals"] == 1
    until, entities = read_audit(Path("r.json").read_bytes())
    assert until == penstock.now.timestamp()
    assert entities["customer:alice"]["refusals"] == 1
    assert penstock("pipeline", "audit-components", "log", "--last", "1h", "--since", "2026-05-01").code == "cli.usage"


@pytest.mark.long
@pytest.mark.usefixtures("_quick")
def test_a_customer_is_refused_after_three_refusals_in_an_hour(penstock: Shell) -> None:
    """What components have logged is audited, and the result is an attribute that decides."""
    set_up(penstock)
    penstock.now = datetime.now(UTC)

    def ask(number: int) -> int:
        return penstock("component", "ask", "bank/bank.toml", "atm", *WITHDRAW, *amount(number)).status

    def audit() -> dict[str, int]:
        penstock.now = datetime.now(UTC)
        words = ("--plan", "bank/bank.toml", "--last", "1h", "--refusals", "bank/refusals.json", "-o", "json")
        found = penstock.ok("pipeline", "audit-components", "bank/log", *words).json
        return {one["subject"]: one["refusals"] for one in found["refusals"]}

    assert [ask(1_000), ask(1_000)] == [1, 1]  # more than there is
    assert ask(100) == 0
    assert audit() == {"customer:alice": 2}
    assert ask(100) == 0
    assert ask(1_000) == 1
    assert audit() == {"customer:alice": 3}
    assert ask(100) == 1
