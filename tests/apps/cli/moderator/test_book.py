"""`penstock moderator` over a rule book in a store: every change, dry and done, and what is shown of it."""

from datetime import timedelta
from pathlib import Path
from shutil import copytree

import pytest
from tests.apps.cli.moderator.test_commands import RULES
from tests.apps.conftest import Ran, Shell

from penstock.testing.postgres import PostgresServer

STORE = "sqlite:rules.db"
MORE = (
    RULES[: RULES.index("rules:")]
    + """rules:
  - {id: wide-3, event: Line.Paint, by: bolt, fnc_s: {role: worker}}
  - {id: wide-4, event: Line.Paint, by: bolt, fnc_s: {role: worker}}
"""
)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell in a folder with a rule book, of which each test takes a copy."""
    penstock = Shell(tmp_path_factory.mktemp("book"))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(penstock.folder)
        patched.delenv("PENSTOCK_NAMES", raising=False)
        patched.setenv("PENSTOCK_STORE", STORE)
        Path("rules.yaml").write_text(RULES, encoding="utf-8")
        for name in ("plant", "acme", "bolt", "ada"):
            penstock.ok("key", "new", f"{name}.key", "--name", name)
        penstock.ok("moderator", "init", "rules.yaml", "--key", "plant.key")
        penstock.ok("moderator", "add", "--from", "rules.yaml", "--key", "acme.key")
        assert penstock("moderator", "add", "--from", "rules.yaml", "--key", "bolt.key").code == "moderator.rejected"
    return penstock


@pytest.fixture
def book(penstock: Shell, begun: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A rule book with the rules of two companies, one of which was rejected."""
    monkeypatch.setenv("PENSTOCK_STORE", STORE)
    copytree(begun.folder, penstock.folder, dirs_exist_ok=True)
    return begun.at(penstock.folder)


def ask(shell: Shell, verb: str, *arguments: str, by: str) -> Ran:
    return shell("moderator", *verb.split(), *arguments, "--key", f"{by}.key", "-o", "json")


def statuses(shell: Shell) -> dict[str, str]:
    shown = shell.ok("moderator", "show", "-o", "json").json
    return {each["stated"]["id"]: each["status"] for each in shown["rules"]}


def test_a_book_is_begun_once(penstock: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("rules.yaml").write_text(RULES, encoding="utf-8")
    penstock.ok("key", "new", "plant.key", "--name", "plant")
    assert penstock("moderator", "init", "rules.yaml", "--key", "plant.key").code == "cli.usage"
    monkeypatch.setenv("PENSTOCK_STORE", STORE)
    dry = penstock.ok("moderator", "init", "rules.yaml", "--key", "plant.key", "--dry-run", "-o", "json").json
    assert (dry["written"], dry["types"], dry["rules_to_state"]) == (False, 3, 5)
    assert not Path("rules.db").exists()
    assert penstock("moderator", "show").code == "store.missing"
    assert (
        "began `moderator` in sqlite:rules.db"
        in penstock.ok("moderator", "init", "rules.yaml", "--key", "plant.key").out
    )
    for more in ((), ("--dry-run",)):
        assert penstock("moderator", "init", "rules.yaml", "--key", "plant.key", *more).code == "moderator.book-exists"
    assert penstock("moderator", "show", "--ledger", "other").code == "moderator.no-book"
    assert penstock("moderator", "init", "rules.yaml").code == "cli.usage"
    assert penstock("moderator", "init", "rules.yaml", "--unsigned").code == "cli.usage"
    assert "no steps yet" in penstock.ok("moderator", "log").out


def test_rules_are_stated_by_those_whose_they_are(book: Shell) -> None:
    assert statuses(book) == {"press": "in-force", "line": "rejected", "paint": "in-force"}
    assert book("moderator", "add", "--from", "rules.yaml", "--key", "plant.key").code == "moderator.no-rules"
    assert book("moderator", "add", "--from", "rules.yaml").code == "cli.usage"
    assert book("moderator", "add", "x", "--key", "acme.key").code == "cli.usage"
    assert book("moderator", "add", "--key", "acme.key").code == "cli.usage"
    assert book("moderator", "add", "x", "--event", "Line.Pres", "--key", "acme.key").code == "moderator.unknown-type"
    assert book("moderator", "add", "x", "--event", "Line", "--key", "acme.key", "--as", "acme").code == "cli.usage"
    assert book("moderator", "add", "x", "--event", "Line", "--as", "acme").code == "moderator.unsigned"
    ran = ask(book, "add", "press", "--event", "Line", by="acme")
    assert ran.status == 2
    assert ran.err.count("moderator.duplicate-id") == 1


def test_the_rules_of_a_file_are_stated_as_a_whole(book: Shell) -> None:
    before = book.ok("moderator", "verify", "-o", "json").json["head"]
    bad = MORE + "  - {id: paint, event: Line.Paint, by: bolt, fnc_s: {role: worker}}\n"
    Path("more.yaml").write_text(bad, encoding="utf-8")
    add = ("moderator", "add", "--from", "more.yaml", "--key", "bolt.key")
    for more in ((), ("--dry-run",), ("--continue",)):
        ran = book(*add, *more)
        assert ran.code == "moderator.duplicate-id"
        assert "line " in ran.err
        assert "--continue" in ran.err or "--continue" in more
        assert book.ok("moderator", "verify", "-o", "json").json["head"] == before
    Path("more.yaml").write_text(MORE, encoding="utf-8")
    book(*add)
    once = statuses(book)
    assert {"wide-3", "wide-4"} <= {*once}
    Path("more.yaml").write_text(
        MORE + "  - {id: wide-5, event: Line.Paint, by: bolt, fnc_s: {role: worker}}\n", encoding="utf-8"
    )
    assert "2 rules in the book already" in book(*add, "--continue").out
    assert {**statuses(book)}.keys() - once.keys() == {"wide-5"}
    assert book("moderator", "add", "x", "--event", "Line", "--key", "bolt.key", "--continue").code == "cli.usage"


def test_a_check_counts_what_nobody_withdrew_and_says_what_to_do(book: Shell) -> None:
    assert "among 3 rules" in book("moderator", "check").err
    ask(book, "remove paint", by="bolt")
    assert "among 2 rules" in book("moderator", "check").err
    assert "fnc_s: what subscribers must satisfy" in book.ok("moderator", "propose", "line").out
    period = ("--not-before", "2030-01-02", "--not-after", "2030-01-01")
    wrong = book("moderator", "add", "x", "--event", "Line", *period, "--key", "bolt.key")
    assert wrong.code == "validity.empty"
    assert "certificate" not in wrong.err
    owners = {each["stated"]["owner_name"] for each in book.ok("moderator", "show", "-o", "json").json["rules"]}
    assert owners == {"plant"}
    Path("wrong.yaml").write_text(RULES.replace("{company: bolt}}", "{company: bold}}"), encoding="utf-8")
    checked = book("moderator", "check", "wrong.yaml")
    assert checked.code == "moderator.wrong-rules"
    assert "  correct the value, or declare a wider domain" in checked.out.splitlines()


def test_a_rehearsal_changes_nothing(book: Shell) -> None:
    before = book.ok("moderator", "verify", "-o", "json").json["head"]
    rule = ("--event", "Line.Press", "--fnc-s", "{(role, engineer)}", "--dry-run")
    dry = ask(book, "add", "press-2", *rule, by="bolt").json
    assert (dry["outcome"], dry["written"], dry["number"]) == ("accepted", False, 4)
    collides = book("moderator", "add", "other", "--event", "Line.Press", "--key", "bolt.key", "--dry-run")
    assert (collides.status, collides.code) == (1, "moderator.rejected")
    assert "would be step 4" in collides.out
    for verb, by in (
        ("remove press", "acme"),
        ("resolve line --by follow", "bolt"),
        ("undo 1", "acme"),
        ("leave acme", "acme"),
        ("type add Line.Dry --below Line", "plant"),
        ("type rename Line.Paint Line.Colour", "plant"),
        ("type remove Line.Paint", "plant"),
        ("pass", "acme"),
        ("subscribe s1 --event Line", "ada"),
    ):
        assert ask(book, verb, "--dry-run", by=by).json["written"] is False
    dry = book("moderator", "add", "--from", "rules.yaml", "--key", "ada.key", "--dry-run", "-o", "json").json
    assert [step["number"] for step in dry["steps"]] == [4]
    assert book.ok("moderator", "verify", "-o", "json").json["head"] == before


def test_questions_may_be_rehearsed_too(book: Shell) -> None:
    for words in ("check", "propose line", "explain line", "explain --step 1", "log"):
        one, two = (book("moderator", *words.split(), *more) for more in ((), ("--dry-run",)))
        assert one == two, words
        assert one.out


def test_a_way_out_is_chosen_and_taken_back(book: Shell) -> None:
    assert book("moderator", "check").code == "moderator.conflict"
    assert "`penstock moderator resolve line --by add-attributes`" in book.ok("moderator", "propose", "line").out
    done = ask(book, "resolve line --by add-attributes", "--why", "agreed on the phone", by="bolt").json
    assert (done["outcome"], done["number"]) == ("resolved", 4)
    assert book.ok("moderator", "check").status == 0
    assert "  + fnc_s: company = 'bolt'" in book.ok("moderator", "explain", "press").out
    assert "because: agreed on the phone" in book.ok("moderator", "explain", "--step", "4").out
    refused = book("moderator", "undo", "2", "--key", "bolt.key")
    assert refused.code == "moderator.depends"
    assert "undo 4 first" in refused.err
    assert ask(book, "undo 4", by="acme").status == 1
    ask(book, "undo 4", by="bolt")
    assert statuses(book)["line"] == "rejected"
    told = book.ok("moderator", "log", "-o", "json").json["steps"]
    assert [(step["kind"], step["undone_by"]) for step in told[-2:]] == [("resolve", 5), ("undo", None)]
    table = book.ok("moderator", "log", "--last", "2").out
    assert "resolve line by add-attributes (undone by 5)" in table
    assert "state press" not in table
    assert book("moderator", "resolve", "press", "--by", "follow", "--key", "acme.key").code == "moderator.not-rejected"


def test_withdrawing_brings_back_what_fits(book: Shell) -> None:
    ask(book, "resolve line --by add-attributes", by="bolt")
    assert book("moderator", "remove", "line", "--key", "acme.key").code == "moderator.not-yours"
    assert book("moderator", "remove", "lime", "--key", "bolt.key").code == "moderator.unknown-rule"
    ran = book.ok("moderator", "remove", "line", "--key", "bolt.key")
    assert "back from the log: rule(Line.Press, [acme], {(role, engineer)})" in ran.out
    assert statuses(book)["line"] == "withdrawn"


def test_relaxing_needs_the_consent_of_whose_rule_it_is(book: Shell) -> None:
    rule = ("bolt-press", "--event", "Line.Press", "--fnc-s", "company = 'bolt'")
    assert book("moderator", "add", *rule, "--key", "bolt.key").code == "moderator.rejected"
    way = "resolve bolt-press --by delete-attributes"
    refused = book("moderator", *way.split(), "--key", "bolt.key")
    assert (refused.status, refused.code) == (1, "moderator.consent")
    assert "hint: acme: `penstock moderator agree bolt-press --by delete-attributes" in refused.err
    agree = ("moderator", "agree", "bolt-press", "--by", "delete-attributes", "--key", "acme.key")
    assert "- fnc_s: role = 'engineer'" in book.ok(*agree, "--out", "acme.consent").out
    done = ask(book, way, "--consent", "acme.consent", by="bolt").json
    assert done["outcome"] == "resolved"
    # It was for this once.
    ask(book, "undo 5", by="bolt")
    assert book("moderator", *way.split(), "--key", "bolt.key", "--consent", "acme.consent").code == "moderator.consent"
    assert book("moderator", "agree", "bolt-press", "--key", "acme.key").code == "cli.usage"


def test_undoing_what_tightened_a_rule_needs_consent_too(book: Shell) -> None:
    rule = ("bolt-press", "--event", "Line.Press", "--fnc-s", "company = 'bolt'")
    assert book("moderator", "add", *rule, "--key", "bolt.key").code == "moderator.rejected"
    way = ("bolt-press", "--by", "delete-attributes")
    book.ok("moderator", "agree", *way, "--key", "acme.key", "--out", "acme.consent")
    relaxed = ask(book, "resolve", *way, "--consent", "acme.consent", by="bolt").json["number"]
    again = ask(book, f"undo {relaxed}", by="bolt").json["number"]
    refused = book("moderator", "undo", str(again), "--key", "bolt.key")
    assert refused.code == "moderator.consent"
    assert f"hint: acme: `penstock moderator agree --undo {again} --key … --out FILE`" in refused.err
    agree = ("moderator", "agree", "--undo", str(again), "--key", "acme.key")
    assert "would be step" in book.ok(*agree, "--out", "undo.consent").out
    done = ask(book, f"undo {again}", "--consent", "undo.consent", by="bolt").json
    assert [change["id"] for change in done["rules"]] == ["bolt-press", "press"]
    assert book(*agree, "press", "--by", "follow").code == "cli.usage"
    assert book("moderator", "agree", "press", "--key", "acme.key").code == "cli.usage"


def test_requests_travel_as_files(book: Shell) -> None:
    rule = ("both", "--event", "Line.Paint", "--fnc-s", "role = 'worker' OR company = 'bolt'")
    whose = ("--publisher", "bolt", "--publisher", "acme", "--key", "bolt.key")
    refused = book("moderator", "add", *rule, *whose)
    assert refused.code == "moderator.consent"
    assert "hint: acme: `penstock moderator agree --request FILE" in refused.err
    book.ok("moderator", "add", *rule, *whose, "--out", "both.request")
    assert "both" not in statuses(book)
    assert book("moderator", "take", "both.request").code == "moderator.consent"
    book.ok("moderator", "agree", "--request", "both.request", "--key", "acme.key", "--out", "acme.consent")
    assert "would be step 4" in book("moderator", "take", "both.request", "--dry-run").out
    assert book("moderator", "take", "both.request", "--dry-run").code == "moderator.consent"
    book.ok("moderator", "take", "both.request", "--consent", "acme.consent")
    assert statuses(book)["both"] == "in-force"
    again = book("moderator", "take", "both.request", "--consent", "acme.consent")
    assert (again.status, again.code) == (1, "moderator.repeated")
    assert book("moderator", "take", "acme.consent").status == 2


def test_publishers_leave_and_come_back(book: Shell) -> None:
    assert ask(book, "leave acme", by="bolt").status == 1
    assert "acme is away" in book.ok("moderator", "leave", "acme", "--key", "acme.key").out
    assert statuses(book)["press"] == "left"
    assert book.ok("moderator", "show", "-o", "json").json["away"] == ["acme"]
    ask(book, "return acme", by="acme")
    assert statuses(book)["press"] == "in-force"


def test_a_rule_that_cannot_come_back_says_why(book: Shell) -> None:
    ask(book, "remove paint", by="bolt")
    ask(book, "remove line", by="bolt")
    ask(book, "leave acme", by="acme")
    ask(book, "add line-2", "--event", "Line", "--fnc-s", "company = 'bolt'", by="bolt")
    for more in (("--dry-run",), ()):
        told = book.ok("moderator", "return", "acme", "--key", "acme.key", *more).out
        assert "press on Line.Press: left → rejected" in told
        assert "press on Line.Press conflicts with rule line-2 on Line" in told
        assert "`penstock moderator propose press` shows proposals" in told


def test_the_moderator_sets_the_time_of_a_book(book: Shell) -> None:
    short = ("add", "short", "--event", "Line.Press", "--fnc-s", "role = 'engineer'")
    ask(book, *short, "--days", "900", by="acme")
    book.now += timedelta(days=800)
    refused = book("moderator", "leave", "bolt", "--key", "bolt.key")
    assert refused.code == "moderator.untimely"
    assert "`penstock moderator pass --key …`" in refused.err
    assert "no period has ended or begun" in book.ok("moderator", "pass").out
    assert ask(book, "pass", by="plant").json["written"] is True
    ask(book, "leave bolt", by="bolt")
    # What is due is taken in by the word of the moderator, whatever it asks for.
    book.now += timedelta(days=800)
    assert ask(book, "type add Line.Dry --below Line", by="plant").status == 0
    assert statuses(book)["short"] == "ended"


def test_time_passes_before_anything_is_decided(book: Shell) -> None:
    short = ("--event", "Line.Press", "--fnc-s", "role = 'engineer'", "--days", "1")
    book.ok("moderator", "add", "short", *short, "--key", "bolt.key")
    allowed = ("moderator", "allow", "Line.Press", "--publisher", "bolt", "--subscriber", "ada")
    assert book(*allowed).status == 0
    book.now += timedelta(days=2)
    assert statuses(book)["short"] == "ended"
    shown = book.ok("moderator", "show")
    assert "[moderator.due]" in shown.err
    assert "[moderator.due]" in book.ok("moderator", "export", "--in-force").err
    assert book(*allowed).status == 1
    assert book.ok("moderator", "show", "-o", "json").json["steps"] == 4
    out = book.ok("moderator", "leave", "bolt", "--key", "bolt.key").out
    assert "let time pass" in out
    assert statuses(book)["short"] == "ended"
    then = book.ok("moderator", "at", "2026-05-01T12:00Z", "-o", "json").json
    assert {each["stated"]["id"]: each["status"] for each in then["rules"]}["short"] == "in-force"
    assert "[moderator.due]" not in book.ok("moderator", "show").err
    assert "short" in book.ok("moderator", "at", "2026-05-02").out
    assert book("moderator", "at", "2025-01-01").code == "moderator.no-book"
    assert book("moderator", "at", "soon").code == "date.malformed"


#: who asks for what, once the rule `short` has ended that stood in the way of `wide`, and what that is refused as
ASKED = [
    ("acme", "add other --event Line.Press --fnc-s company='bolt'", "moderator.rejected"),
    ("bolt", "add both --event Line.Paint --fnc-s role='worker' --publisher acme", "moderator.consent"),
    ("bolt", "add --from more.yaml", ""),
    ("ada", "subscribe wish --event Line", ""),
    ("bolt", "remove line", ""),
    ("bolt", "remove press", "moderator.not-yours"),
    ("acme", "remove short", "moderator.gone"),
    ("bolt", "resolve wide --by follow", "moderator.not-rejected"),
    ("bolt", "resolve line --by follow", ""),
    ("bolt", "leave bolt", ""),
    ("bolt", "return bolt", "moderator.present"),
    ("plant", "type add Line.Dry --below Line", ""),
    ("plant", "type move Line.Paint --below Line.Press --by delete-attributes", "moderator.consent"),
    ("plant", "type rename Line.Paint Line.Colour", ""),
    ("plant", "type remove Line.Paint", ""),
    ("acme", "undo 1", ""),
    ("acme", "undo 5", "moderator.depends"),
    ("acme", "pass", ""),
    ("", "take wide.request", ""),
]


def test_a_rehearsal_says_what_would_be_done(book: Shell) -> None:
    short = ("--event", "Line.Paint", "--fnc-s", "role = 'worker' OR company = 'bolt'", "--days", "1")
    assert ask(book, "remove paint", by="bolt").status == 0
    book.ok("moderator", "add", "short", *short, "--key", "acme.key")
    wide = ("--event", "Line.Paint", "--fnc-s", "role = 'worker'", "--key", "bolt.key")
    assert book("moderator", "add", "wide", *wide).code == "moderator.rejected"
    Path("more.yaml").write_text(MORE, encoding="utf-8")
    book.now += timedelta(days=2)
    book.ok("moderator", "add", "taken", *wide, "--out", "wide.request")
    before = Path("rules.db").read_bytes()
    for who, words, code in ASKED:
        command = ("moderator", *words.split(), *(("--key", f"{who}.key") if who else ()), "-o", "json")
        told = []
        for more in (("--dry-run",), ()):
            Path("rules.db").write_bytes(before)
            ran = book(*command, *more)
            refused = f'"{code}"' in ran.err if code else not ran.err
            changed = Path("rules.db").read_bytes() != before
            assert (refused, changed) == (True, not more and code in ("", "moderator.rejected")), (words, more)
            told.append((ran.status, "" if code else ran.out.replace('"written": false', '"written": true')))
        assert told[0] == told[1], words


def test_time_is_let_pass_once(book: Shell) -> None:
    assert "no period has ended or begun" in book.ok("moderator", "pass").out
    assert book.ok("moderator", "pass", "-o", "json").json["written"] is False
    short = ("--event", "Line.Press", "--fnc-s", "role = 'engineer'", "--days", "1")
    book.ok("moderator", "add", "short", *short, "--key", "bolt.key")
    book.now += timedelta(days=2)
    assert "step 5: let time pass: done" in book.ok("moderator", "pass").out
    assert "the clock" in book.ok("moderator", "log").out
    assert "no period" in book.ok("moderator", "pass").out
    assert book.ok("moderator", "show", "-o", "json").json["steps"] == 5


def test_the_tree_changes(book: Shell) -> None:
    new = ("moderator", "type", "add", "Line.Dry", "--below", "Line", "--key", "bolt.key")
    assert book(*new).code == "moderator.not-yours"
    ask(book, "type add Line.Dry --below Line", by="plant")
    renamed = ask(book, "type rename Line.Dry Line.Drying", by="plant").json["types"]
    assert [(each["name"], each["after"] is None) for each in renamed] == [("Line.Dry", True), ("Line.Drying", False)]
    assert "  Line.Drying: Line" in book.ok("moderator", "export").out.splitlines()
    move = ("moderator", "type", "move", "Line.Paint", "--below", "Line.Press", "--key", "plant.key")
    refused = book(*move)
    assert (refused.status, refused.code) == (1, "moderator.conflict")
    assert "paint does not demand role engineer, which rule press does." in refused.out
    assert "1. follow: what moves alone changes" in refused.out
    told = book(*move, "-o", "json").json
    assert [each["rule"] for each in told["conflicts"]] == ["paint"]
    assert told["proposals"][0]["strategy"] == "follow"
    assert book(*move, "--by", "delete-attributes", "--dry-run", "-o", "json").json["outcome"] == "resolved"
    assert book(*move, "--by", "delete-attributes").code == "moderator.consent"
    assert book.ok(*move, "--by", "follow", "-o", "json").json["outcome"] == "resolved"
    assert "  Line.Paint: Line.Press" in book.ok("moderator", "export").out.splitlines()
    ask(book, "type remove Line.Paint", by="plant")
    assert statuses(book)["paint"] == "ended"


def test_subscribers_state_rules_too(book: Shell) -> None:
    wish = ("moderator", "subscribe", "wish", "--event", "Line.Press", "--fnc-p", "country = 'de'")
    book.ok(*wish, "--key", "ada.key")
    assert "✓ ada receives Line.Press from acme" in book.ok("moderator", "allow", "Line.Press").out
    assert "wish: ada wants Line.Press from publishers with country de." in book.ok("moderator", "show").out
    ask(book, "remove wish", by="ada")
    assert book("moderator", "allow", "Line.Press").code == "moderator.not-allowed"


def test_a_book_without_signatures(penstock: Shell) -> None:
    Path("rules.yaml").write_text(RULES, encoding="utf-8")
    where = ("--store", "sqlite:try.db")
    penstock.ok("moderator", "init", "rules.yaml", *where, "--unsigned", "--as", "plant")
    # Each is rehearsed on what those before would have come to.
    dry = penstock("moderator", "add", "--from", "rules.yaml", *where, "--dry-run", "-o", "json").json["steps"]
    assert [(step["number"], step["outcome"]) for step in dry[:3]] == [
        (1, "accepted"),
        (2, "rejected"),
        (3, "accepted"),
    ]
    assert penstock("moderator", "add", "--from", "rules.yaml", *where).code == "moderator.rejected"
    assert penstock.ok("moderator", "show", *where, "-o", "json").json["in_force"] == 2
    # Names of the file are known from now on.
    done = penstock.ok("moderator", "resolve", "line", "--by", "follow", "--as", "bolt", *where, "-o", "json").json
    assert (done["outcome"], done["by"]) == ("resolved", "bolt")
    assert penstock("moderator", "remove", "line", "--as", "acme", *where).code == "moderator.not-yours"
    assert penstock("moderator", "remove", "line", *where).code == "cli.usage"


def test_a_book_is_exported_and_verified(book: Shell) -> None:
    ask(book, "resolve line --by add-attributes", by="bolt")
    text = book.ok("moderator", "export").out
    assert "- {id: press, event: Line.Press, by: acme, fnc_s: {role: engineer}}" in text
    forms = book.ok("moderator", "export", "--in-force", "-o", "json").json["yaml"]
    assert "- {id: press, event: Line.Press, by: acme, fnc_s: {company: bolt, role: engineer}}" in forms
    book.ok("moderator", "export", "--in-force", "--out", "now.yaml")
    assert "no conflict" in book.ok("moderator", "check", "now.yaml").out
    verified = book.ok("moderator", "verify", "-o", "json").json
    assert (verified["ok"], verified["steps"]) == (True, 4)
    assert book.ok("moderator", "verify", "--head", verified["head"]).status == 0
    other = verified["head"][:-1] + ("0" if verified["head"][-1] != "0" else "1")
    assert book("moderator", "verify", "--head", other).code == "store.broken"


def test_a_book_in_postgresql(penstock: Shell, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STORE", postgres.url(postgres.new_database()))
    Path("rules.yaml").write_text(RULES, encoding="utf-8")
    for name in ("plant", "acme", "bolt"):
        penstock.ok("key", "new", f"{name}.key", "--name", name)
    said = [penstock.ok("moderator", "init", "rules.yaml", "--key", "plant.key")]
    said.append(penstock.ok("moderator", "add", "--from", "rules.yaml", "--key", "acme.key"))
    said.append(penstock("moderator", "add", "--from", "rules.yaml", "--key", "bolt.key"))
    assert statuses(penstock) == {"press": "in-force", "line": "rejected", "paint": "in-force"}
    resolved = penstock.ok("moderator", "resolve", "line", "--by", "add-attributes", "--key", "bolt.key")
    assert statuses(penstock)["line"] == "in-force"
    said += [resolved, penstock.ok("moderator", "verify"), penstock.ok("moderator", "log")]
    assert not [ran for ran in said if postgres.password in ran.out + ran.err]


def test_a_snapshot_is_kept_by_the_moderator(book: Shell) -> None:
    head = book.ok("moderator", "verify", "-o", "json").json["head"]
    assert book.ok("moderator", "keep", "--key", "plant.key", "-o", "json").json["head"] == head
    assert "kept what 3 steps came to" in book.ok("moderator", "keep", "--key", "plant.key").out
    assert book("moderator", "keep", "--key", "acme.key").code == "evolution.wrong-key"
    assert statuses(book) == {"press": "in-force", "line": "rejected", "paint": "in-force"}


def test_what_was_before_a_book_and_where_there_is_none(book: Shell) -> None:
    early = book("moderator", "at", "2020-01-01")
    assert early.code == "moderator.no-book"
    assert "hint: ask about a later time" in early.err
    for verb in ("show", "show-polls"):
        missing = book("moderator", verb, "--store", "sqlite:other.db")
        assert missing.code == "store.missing"
        assert "`penstock moderator init FILE --store sqlite:other.db --key …`" in missing.err
    assert "nothing to count" in book.ok("moderator", "tally", "--key", "plant.key").out
