"""`penstock statement` and certificates with on-line tests: issued, shown, and explained with statements from files."""

from pathlib import Path

import pytest
from tests.apps.conftest import Shell
from tests.apps.node_kit import ask, lay_out, node_file, running

EXPLAIN = ("explain", "--principal", "smith", "--right", "connect", "--network", "pito/N", "--credential", "s.cert")


@pytest.fixture
def people(penstock: Shell) -> Shell:
    for name in ("pito", "met", "smith"):
        penstock.ok("key", "new", f"{name}.key", "--name", name)
    return penstock


def issue(people: Shell, *more: str) -> str:
    line = ("cert", "issue", "--key", "pito.key", "--to", "smith", "--network", "pito/N", "--right", "connect")
    made = people.ok(*line, *more, "--out", "s.cert", "--overwrite", "-o", "json").json
    return str(made["id"])


def statement(people: Shell, kind: str, out: str, *more: str, key: str = "pito.key") -> dict[str, object]:
    return dict(people.ok("statement", "new", kind, "--key", key, *more, "--out", out, "-o", "json").json)


def test_a_certificate_says_which_statements_it_needs(people: Shell) -> None:
    issue(people, "--online", "crl", "--online", "active", "--interval", "5s", "--online-signer", "met")
    assert "crl, active" in people.ok("cert", "show", "s.cert").out
    shown = people.ok("cert", "show", "s.cert", "-o", "sexp").out
    assert "penstock.validity" in shown
    assert '(interval "5000")' in shown
    wrong = ("cert", "issue", "--key", "pito.key", "--to", "smith", "--network", "pito/N", "--right", "connect")
    assert people(*wrong, "--online-uri", "https://x.example").code == "cli.usage"
    assert people(*wrong, "--online", "crl", "--online-uri", "a b").code == "online.malformed"


def test_explain_names_the_missing_the_ended_and_the_revoking_statement(people: Shell) -> None:
    id_ = issue(people, "--online", "crl")
    missing = people(*EXPLAIN)
    assert missing.code == "statement.unknown"
    statement(people, "crl", "now.crl", "--for", "1h")
    people.ok(*EXPLAIN, "--statement", "now.crl")
    assert people(*EXPLAIN, "--statement", "now.crl", "--at", "2199-01-01").code in {"statement.ended", "cert.expired"}
    made = statement(people, "crl", "next.crl", "--certificate", "s.cert", "--after", "now.crl")
    assert made["certificates"] == [id_]
    later = str(made["not_before"])
    given = ("--statement", "now.crl", "--statement", "next.crl")
    people.ok(*EXPLAIN, *given)
    assert people(*EXPLAIN, *given, "--at", later).code == "cert.revoked"
    statement(people, "crl", "met.crl", key="met.key")
    assert people(*EXPLAIN, "--statement", "met.crl").code == "statement.unknown"
    statement(people, "crl", "twin.crl", "--for", "2h")
    assert people(*EXPLAIN, "--statement", "now.crl", "--statement", "twin.crl").code == "statement.overlap"


def test_active_revocations_are_numbered_after_the_earlier_ones(people: Shell) -> None:
    id_ = issue(people, "--online", "active", "--interval", "1h")
    statement(people, "heartbeat", "beat")
    people.ok(*EXPLAIN, "--statement", "beat")
    first = statement(people, "active", "one", "--certificate", id_)
    assert first["number"] == 1
    assert people(*EXPLAIN, "--statement", "beat", "--statement", "one").code == "cert.revoked"
    assert statement(people, "active", "two", "--after", "one")["number"] == 2
    assert people(*EXPLAIN, "--statement", "beat", "--statement", "two").code == ""
    assert people("statement", "new", "heartbeat", "--key", "pito.key", "--certificate", id_).code == "cli.usage"


def test_statements_are_shown_and_forged_ones_are_not(people: Shell) -> None:
    issue(people, "--online", "reval")
    statement(people, "reval", "r", "--certificate", "s.cert", "--successor", "s.cert")
    shown = people.ok("statement", "show", "r").out
    assert "reval" in shown
    assert "pito" in shown
    assert len(people.ok("statement", "show", "r", "-o", "json").json["statements"][0]["successors"]) == 1
    written = Path("r").read_text()
    Path("forged").write_text(written.replace("reval", "crl"))
    assert people("statement", "show", "forged").code == "evolution.signature-mismatch"
    assert people("statement", "show", "s.cert").code == "evolution.malformed"


def test_statements_are_sent_to_a_broker(penstock: Shell) -> None:
    lay_out(penstock)
    statement(penstock, "crl", "mine", key="camera.key")
    statement(penstock, "heartbeat", "beat", key="camera.key")
    statement(penstock, "crl", "other", key="reader.key")
    with running(penstock, node_file(penstock)) as broker:
        assert ask(penstock, broker, "camera", "statement", "send", "mine").out == "sent 1 statement\n"
        # The clock of the command is that of the tests, and the broker's is right.
        assert ask(penstock, broker, "camera", "statement", "send", "beat").code == "statement.ended"
        assert ask(penstock, broker, "camera", "statement", "send", "other").code == "evolution.not-followed"
