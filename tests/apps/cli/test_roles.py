"""`penstock role`: policies as files, and roles in a store."""

from datetime import timedelta
from pathlib import Path

import pytest
from tests.apps.conftest import Shell

from penstock.model.principals import Principal

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "roles"
POLICY = """domain court;
role tracker(plate: string);
role clerk;
appointment court_order(plate: string, number: integer);
fact assigned(who: principal);
fact level: integer;

activate tracker(p)
    if appointment court_order(p, _) *,
       fact assigned(principal) *;

activate clerk if where level > 3 *;

allow tracker(p) to subscribe self/uk.Numberplate(location, plate = p);

allow tracker(_) to appoint court_order('X', 1);
"""


@pytest.fixture
def book(penstock: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    names = {"met": b"m", "court": b"c", "smith": b"s"}
    lines = [f'{name} = "{Principal(byte * 32)}"' for name, byte in names.items()]
    (penstock.folder / "names.toml").write_text("\n".join(lines))
    (penstock.folder / "met.roles").write_text(POLICY)
    monkeypatch.setenv("PENSTOCK_STORE", "sqlite:roles.db")
    penstock.ok("role", "init", "met.roles", "--domain", "met")
    return penstock


@pytest.mark.parametrize("folder", ["numberplate", "hospital"])
def test_the_examples(penstock: Shell, folder: str) -> None:
    done = penstock.ok("role", "test", str(EXAMPLES / folder / "scenario.yaml"))
    assert "steps as expected" in done.out
    files = [str(file) for file in sorted((EXAMPLES / folder).glob("*.roles"))]
    assert penstock.ok("role", "check", *files).out == "✓ no findings\n"
    assert penstock.ok("role", "fmt", "--check", *files).out == "✓ nothing to change\n"


def test_a_scenario_that_differs(penstock: Shell) -> None:
    (penstock.folder / "a.roles").write_text("role a; activate a;")
    (penstock.folder / "s.yaml").write_text(
        """{title: T, start: 2026-03-02T09:00Z, domains: {d: a.roles}, people: [p], steps: [
        {open: s, who: p}, {activate: a, session: s, expect: {roles: {p: [b]}}}]}"""
    )
    done = penstock("role", "test", "s.yaml")
    assert (done.status, done.code) == (1, "role.unexpected")
    assert 'roles: expected {"p": ["b"]}' in done.out
    found = penstock("role", "test", "s.yaml", "-o", "json").json
    assert found["scenarios"][0]["failed"] == [
        {"step": 2, "name": "roles", "expected": {"p": ["b"]}, "found": {"p": ["a"]}}
    ]


def test_check_says_where(penstock: Shell) -> None:
    (penstock.folder / "a.roles").write_text("role a;\nrole b;\nactivate b if where hour > 20 AND hour < 8;\n")
    done = penstock("role", "check", "a.roles")
    assert (done.status, done.code) == (1, "role.findings")
    assert done.out.splitlines()[0] == "a.roles:1:1: role `a` is unreachable: no rule activates it [role.unreachable]"
    assert "a.roles:3:1: this rule for `b` can never apply" in done.out
    found = penstock("role", "check", "a.roles", "-o", "json").json
    assert [one["code"] for one in found["findings"]] == ["role.unreachable", "role.unreachable", "role.never"]
    (penstock.folder / "a.roles").write_text("role a")
    done = penstock("role", "check", "a.roles")
    assert (done.status, done.code) == (2, "role.syntax")
    assert "`a.roles`: line 1, column 7" in done.err
    (penstock.folder / "a.roles").write_bytes(b"\xff")
    assert penstock("role", "check", "a.roles").code == "role.syntax"


def test_fmt_rewrites(penstock: Shell) -> None:
    file = penstock.folder / "a.roles"
    file.write_text("role a ;# note\n")
    assert penstock("role", "fmt", "--check", "a.roles").code == "role.unformatted"
    assert penstock.ok("role", "fmt", "a.roles").out == "changed a.roles\n"
    assert file.read_text() == "# note\nrole a;\n"


def test_a_role_from_appointment_to_revocation(book: Shell) -> None:
    denied = book("role", "activate", "tracker", "AB 1", "--as", "smith")
    assert (denied.status, denied.code) == (1, "role.denied")
    book.ok("role", "fact", "assigned", "smith")
    done = book.ok("role", "appoint", "court_order", "AB 1", "7", "--to", "smith", "--why", "case C7")
    assert done.out == "record 1: court_order(AB 1, 7) for smith\n"
    explained = book.ok("role", "explain", "tracker", "_", "--session", "smith").out
    assert explained.startswith("tracker(_) can be activated\n")
    assert book.ok("role", "activate", "tracker", "_", "--as", "smith").out == "record 2: tracker(AB 1) for smith\n"
    shown = book.ok("role", "show", "smith").out
    assert "subscribe met/uk.Numberplate(location, plate = AB 1)" in shown
    found = book.ok("role", "show", "-o", "json").json
    assert [one["record"] for one in found["records"]] == ["1", "2"]
    assert list(found["sessions"]) == ["smith"]
    explained = book.ok("role", "explain", "tracker", "AB 1", "--session", "smith", "-o", "json").json
    assert (explained["active"], explained["record"]) == (True, "2")
    assert all(one["satisfied"] for one in explained["rules"][0]["conditions"])
    ended = book.ok("role", "revoke", "1", "--dry-run", "-o", "json").json
    assert ([one["record"] for one in ended["ended"]], ended["written"]) == (["1", "2"], False)
    ended = book.ok("role", "fact", "assigned", "smith", "--set", "unknown").out
    assert ended == "ended: record 2, tracker(AB 1): fact `assigned(smith)` is not true\n"
    assert [one["record"] for one in book.ok("role", "show", "-o", "json").json["records"]] == ["1"]
    assert book("role", "revoke", "9").code == "role.no-record"
    assert book.ok("role", "revoke", "1").out.startswith("ended: record 1, court_order(AB 1, 7)")
    assert book.ok("role", "show").out == "nothing is active, and nobody is appointed\n"
    assert "case C7" in book.ok("log", "show", "sqlite:roles.db", "roles").out


def test_sessions_and_time(book: Shell) -> None:
    book.ok("role", "fact", "level", "--set", "4")
    book.ok("role", "activate", "clerk", "--as", "smith", "--session", "desk")
    assert book("role", "activate", "clerk", "--as", "met", "--session", "desk").code == "role.session"
    assert book.ok("role", "end", "desk").out.startswith("ended: record 1, clerk: its session has ended")
    until = (book.now + timedelta(hours=1)).isoformat()
    book.ok("role", "appoint", "court_order", "AB 1", "7", "--to", "smith", "--until", until)
    assert book.ok("role", "show", "-o", "json").json["next_due"] is not None
    book.now += timedelta(hours=2)
    assert book.ok("role", "show", "-o", "json").json["records"] == []


def test_appointing_needs_the_privilege(book: Shell) -> None:
    refused = book("role", "appoint", "court_order", "X", "1", "--to", "smith", "--as", "smith")
    assert (refused.status, refused.code) == (1, "role.not-appointer")
    book.ok("role", "fact", "assigned", "smith")
    book.ok("role", "appoint", "court_order", "AB 1", "7", "--to", "smith")
    book.ok("role", "activate", "tracker", "AB 1", "--as", "smith")
    book.ok("role", "appoint", "court_order", "X", "1", "--to", "court", "--as", "smith")
    # A role is deactivated by the same command.
    assert book.ok("role", "revoke", "2").out.startswith("ended: record 2, tracker(AB 1): it was deactivated")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("activate", "nobody", "--as", "smith"), "role.unknown"),
        (("activate", "tracker", "--as", "smith"), "role.arity"),
        (("appoint", "court_order", "AB 1", "seven", "--to", "smith"), "role.kind"),
        (("fact", "assigned", "smith", "--set", "maybe"), "role.kind"),
        (("fact", "unknown"), "role.unknown"),
        (("end", "nowhere"), "role.session"),
        (("init", "met.roles", "--domain", "met"), "role.book-exists"),
        (("show", "--ledger", "other"), "role.no-book"),
        (("show", "--store", "memory:"), "store.memory"),
    ],
)
def test_what_does_not_fit(book: Shell, arguments: tuple[str, ...], code: str) -> None:
    assert book("role", *arguments).code == code


def test_a_store_must_be_named(book: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_STORE")
    assert book("role", "show").code == "cli.usage"


def test_the_policy_is_replaced(book: Shell) -> None:
    book.ok("role", "fact", "level", "--set", "4")
    book.ok("role", "activate", "clerk", "--as", "smith")
    (book.folder / "new.roles").write_text(POLICY.replace("level > 3", "level > 2"))
    tried = book.ok("role", "replace", "new.roles", "--dry-run", "-o", "json").json
    assert ([one["name"] for one in tried["ended"]], tried["written"]) == (["clerk"], False)
    assert book.ok("role", "replace", "met.roles", "-o", "json").json["ended"] == []
    assert book.ok("role", "replace", "new.roles").out.startswith("ended: record 1, clerk: the policy has changed")
    book.ok("role", "activate", "clerk", "--as", "smith")
    (book.folder / "bad.roles").write_text("role a")
    assert book("role", "replace", "bad.roles").code == "role.syntax"


def test_another_domain_s_order(penstock: Shell) -> None:
    """The court's order reaches the police as a file, and ends there when the court has withdrawn it."""
    (penstock.folder / "names.toml").write_text(f'smith = "{Principal(b"s" * 32)}"\npito = "{Principal(b"p" * 32)}"\n')
    for domain in ("court", "met"):
        penstock.ok("key", "new", f"{domain}.key")
        penstock.ok("name", "add", domain, f"{domain}.key")
    at_court, at_met = ("--store", "sqlite:court.db"), ("--store", "sqlite:met.db")
    penstock.ok("role", "init", str(EXAMPLES / "numberplate" / "court.roles"), "--domain", "court", *at_court)
    penstock.ok("role", "init", str(EXAMPLES / "numberplate" / "met.roles"), "--domain", "met", *at_met)
    penstock.ok("role", "appoint", "court_order", "C7", "AB 1", "--to", "smith", *at_court)
    signing = ("role", "issue", "1", "--to", "met", "--out", "order.cert", *at_court)
    assert penstock(*signing, "--key", "met.key").code == "evolution.wrong-key"
    penstock.ok(*signing, "--key", "court.key")
    assert penstock("role", "issue", "7", "--to", "met", "--key", "court.key", *at_court).code == "role.no-record"
    penstock.ok("role", "fact", "detective", "smith", *at_met)
    penstock.ok("role", "fact", "case_assignment", "smith", "C7", *at_met)
    assert penstock("role", "activate", "tracker", "_", "--as", "smith", *at_met).code == "role.denied"
    penstock.ok("role", "accept", "order.cert", *at_met)
    penstock.ok("role", "activate", "tracker", "_", "--as", "smith", *at_met)
    assert "court_order(C7, AB 1) by court" in penstock.ok("role", "show", *at_met).out
    exported = penstock.ok("role", "export", "--key", "met.key", "--out", "met.history", *at_met, "-o", "json").json
    assert (exported["changes"], exported["written"]) == (5, True)
    withdrawn = penstock.ok("role", "revoke", "1", *at_court).out
    assert "tell met that record 1 has ended" in withdrawn
    dropped = penstock.ok("role", "revoke", "1", "--issuer", "court", *at_met, "-o", "json").json
    assert [one["name"] for one in dropped["ended"]] == ["court_order", "tracker"]
    forged = (penstock.folder / "order.cert").read_bytes().replace(b"C7", b"C8")
    (penstock.folder / "forged.cert").write_bytes(forged)
    assert penstock("role", "accept", "forged.cert", *at_met).code == "evolution.signature-mismatch"


def test_changes_are_signed_with_a_key(penstock: Shell) -> None:
    for who in ("met", "smith", "jones"):
        penstock.ok("key", "new", f"{who}.key")
        penstock.ok("name", "add", who, f"{who}.key")
    (penstock.folder / "a.roles").write_text(
        "role r; appointment a; activate r if appointment a *; allow r to appoint a;"
    )
    store = ("--store", "sqlite:roles.db")
    penstock.ok("role", "init", "a.roles", "--domain", "met", "--key", "met.key", *store)
    assert penstock("role", "appoint", "a", "--to", "smith", *store).code == "role.unsigned"
    penstock.ok("role", "appoint", "a", "--to", "smith", "--key", "met.key", *store)
    assert penstock("role", "activate", "r", "--as", "smith", "--key", "jones.key", *store).code == "role.not-permitted"
    penstock.ok("role", "activate", "r", "--as", "smith", "--key", "smith.key", *store)
    # The holder of the key appoints, as the role permits.
    penstock.ok("role", "appoint", "a", "--to", "jones", "--key", "smith.key", *store)
    assert penstock("role", "appoint", "a", "--to", "jones", "--key", "jones.key", *store).code == "role.not-appointer"
    penstock.ok("role", "revoke", "1", "--key", "met.key", *store)
    found = penstock.ok("role", "show", *store, "-o", "json").json
    assert [one["record"] for one in found["records"]] == ["3"]
