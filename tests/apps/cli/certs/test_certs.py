"""`penstock cert`: what can be issued, what is shown, what verifies."""

from pathlib import Path

import pytest
from tests.apps.conftest import Shell

from penstock.trust.capabilities import Right


@pytest.fixture
def people(penstock: Shell) -> Shell:
    """A few keys with names, and a type."""
    for name in ("pito", "met", "smith"):
        penstock.ok("key", "new", f"{name}.key", "--name", name)
    attributes = ("plate:string", "seen:timestamp", "speed:integer:0..200", "zone:string:north|south", "ok:boolean")
    given = [part for attribute in attributes for part in ("--attribute", attribute)]
    penstock.ok("type", "new", "uk.Plate", "--key", "pito.key", *given, "--out", "plate.type")
    return penstock


def issue(*more: str) -> tuple[str, ...]:
    return ("cert", "issue", "--key", "pito.key", *more)


def test_the_certificate_goes_to_standard_output_or_into_a_file(people: Shell) -> None:
    line = issue("--to", "met", "--network", "pito/N", "--right", "connect")
    shown = people.ok(*line)
    people.ok(*line, "--out", "a.cert")
    assert Path("a.cert").read_text() == shown.out
    assert people(*line, "--out", "a.cert").code == "file.exists"
    people.ok(*line, "--out", "a.cert", "--overwrite")
    people.ok(*line, "--out", "b.cert", "--dry-run")
    assert not Path("b.cert").exists()


def test_all_of_the_vocabulary(people: Shell) -> None:
    made = people.ok(
        *issue("--to", "smith", "--type-file", "plate.type", "--version", "0", "--right", "subscribe"),
        *("--attribute", "plate", "--set", "zone=north", "--set", "seen=2026-01-01T00:00Z", "--set", "ok=true"),
        *("--where", "speed > 30", "--when", "hour < 17", "--when", "day <> 'Sunday'", "--comment", "court order 7"),
        *("--not-before", "2026-05-01", "--days", "31", "-o", "json"),
    ).json
    grants = made["grants"]
    assert (grants["name"], grants["version"], grants["rights"]) == ("uk.Plate", "0", "subscribe")
    assert len(grants["attributes"]) == 4  # the forced ones count as listed
    assert "speed > 30" in grants["where"]
    assert len(grants["where"]) == 4
    assert sorted(grants["when"]) == ["day <> 'Sunday'", "hour < 17"]
    assert (made["not_before"], made["not_after"]) == ("2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z")
    assert (made["comment"], made["propagate"]) == ("court order 7", False)
    assert [warning["code"] for warning in made["warnings"]] == ["capability.unknown-fact"]
    assert "`day`" in made["warnings"][0]["message"]


@pytest.mark.parametrize("right", [right.value for right in Right])
def test_every_right(people: Shell, right: str) -> None:
    on = ("--network", "pito/N") if Right(right).on_network else ("--type", "pito/uk.*")
    assert people.ok(*issue("--to", "met", *on, "--right", right, "-o", "json")).json["grants"]["rights"] == right
    other = ("--type", "pito/uk.*") if Right(right).on_network else ("--network", "pito/N")
    assert people(*issue("--to", "met", *other, "--right", right)).code == "capability.right"


@pytest.mark.parametrize(
    ("written", "owner", "name"),
    [("*", "*", "*"), ("pito/*", "pito", "*"), ("pito/uk.*", "pito", "uk.*"), ("*/uk.*.Plate", "*", "uk.*.Plate")],
)
def test_patterns(people: Shell, written: str, owner: str, name: str) -> None:
    grants = people.ok(*issue("--to", "met", "--type", written, "--all-rights", "-o", "json")).json["grants"]
    pito = people.ok("key", "show", "pito.key", "-o", "json").json["principal"]
    assert (grants["owner"], grants["name"]) == (pito if owner == "pito" else "*", name)
    assert grants["rights"] == "*"


def test_subjects(people: Shell) -> None:
    on = ("--network", "pito/N", "--right", "connect", "-o", "json")
    met = people.ok("key", "show", "met.key", "-o", "json").json["principal"]
    for written in ("met", "met.key", "./met.key", met):
        assert people.ok(*issue("--to", written, *on)).json["subject"] == {"principal": met}
    own = people.ok(*issue("--to-name", "Brokers", *on)).json["subject"]
    assert own["names"] == ["Brokers"]
    other = people.ok(*issue("--to", "met", "--to-name", "Brokers", "--to-name", "Spares", *on)).json["subject"]
    assert other == {"principal": met, "names": ["Brokers", "Spares"]}
    quorum = people.ok(*issue("--threshold", "1", "--member", "met", "--member", "smith", *on)).json["subject"]
    assert (quorum["threshold"], len(quorum["members"])) == (1, 2)
    for wrong in ((), ("--member", "met"), ("--to", "met", "--threshold", "1"), ("--to-name", "")):
        assert people(*issue(*wrong, *on[:-2])).code == "cli.subject"


def test_attributes_by_id_need_no_type(people: Shell) -> None:
    uid = people.ok("type", "show", "plate.type", "-o", "json").json["attributes"][0]["uid"]
    line = issue("--to", "met", "--type", "pito/uk.Plate", "--right", "subscribe")
    by_id = people.ok(*line, "--attribute", f"pito/uk.Plate#{uid}", "-o", "json").json
    by_name = people.ok(*line, "--type-file", "plate.type", "--attribute", "plate", "-o", "json").json
    assert by_id["id"] == by_name["id"]


def test_warnings_go_to_standard_error(people: Shell) -> None:
    ran = people.ok(*issue("--to", "met", "--type", "pito/*", "--all-rights", "--propagate", "--no-expiry"))
    assert "[capability.no-expiry]" in ran.err
    assert "[cert.no-expiry]" in ran.err
    assert ran.out.startswith("(sequence")


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (("--network", "pito/N", "--right", "connect", "--not-after", "2026-04-30"), "capability.already-over"),
        (("--type", "pito/*", "--right", "publish", "--when", "on_duty AND hour < 9"), "capability.unknown-fact"),
        (("--tag", "(spend money)"), "capability.other-vocabulary"),
        (("--tag", "(* set (network) money)"), "capability.other-vocabulary"),
    ],
)
def test_what_will_not_do_what_it_seems_to_is_issued_with_a_warning(
    people: Shell, more: tuple[str, ...], code: str
) -> None:
    ran = people.ok(*issue("--to", "met", *more))
    assert ran.err.count("warning: ") == 1
    assert f"[{code}]" in ran.err


def test_what_is_as_it_seems_gets_no_warning(people: Shell) -> None:
    for more in (
        ("--type-file", "plate.type", "--right", "publish", "--set", "speed=1", "--set", "speed=1"),
        ("--type", "pito/*", "--right", "publish", "--when", "hour < 9 AND rate < 5"),
        ("--tag", "(*)"),
        ("--tag", "(network)"),
    ):
        assert people.ok(*issue("--to", "met", *more)).err == ""


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (("--type", "pito/uk.Plate"), "cli.rights"),
        (("--type", "pito/uk.Plate", "--right", "publish", "--all-rights"), "cli.rights"),
        (("--right", "publish"), "cli.resource"),
        (("--type", "pito/uk.Plate", "--network", "pito/N", "--right", "publish"), "cli.resource"),
        (("--network", "pito/N", "--right", "connect", "--version", "1"), "cli.resource"),
        (("--tag", "(x)", "--right", "publish"), "cli.resource"),
        (("--tag", "(x"), "sexp.truncated"),
        (("--tag", "(* frobnicate x)"), "tag.unknown-form"),
        (("--type", "nobody/uk.Plate", "--right", "publish"), "principal.unknown"),
        (("--type", "uk.Plate", "--right", "publish"), "name.malformed"),
        (("--type", "pito/uk.Plate", "--right", "fly"), "cli.usage"),
        (("--type", "pito/uk.Plate", "--right", "publish", "--version", "?"), "name.malformed"),
        (("--type", "pito/uk.Plate", "--right", "publish", "--attribute", "plate"), "cli.type-file"),
        (("--type", "pito/uk.Plate", "--right", "publish", "--where", "speed > 1"), "cli.type-file"),
        (("--type", "pito/uk.Plate", "--right", "publish", "--when", "hour >"), "selector.syntax"),
        (("--type-file", "plate.type", "--right", "publish", "--attribute", "colour"), "type.unknown-attribute"),
        (("--type-file", "plate.type", "--right", "publish", "--where", "colour = 1"), "selector.unknown-attribute"),
        (("--type-file", "plate.type", "--right", "publish", "--where", "speed = 'x'"), "selector.type"),
        (("--type-file", "plate.type", "--right", "publish", "--set", "speed"), "cli.pair"),
        (("--type-file", "plate.type", "--right", "publish", "--set", "speed=fast"), "value.malformed"),
        (("--type-file", "plate.type", "--right", "publish", "--set", "speed=201"), "value.domain"),
        (("--type-file", "plate.type", "--right", "publish", "--set", "zone=east"), "value.domain"),
        (("--type-file", "plate.type", "--right", "publish", "--set", "speed=1", "--set", "speed=2"), "cli.twice"),
        (("--type-file", "plate.type", "--right", "publish", "--attribute", "ok", "--attribute", "ok"), "cli.twice"),
        (("--type", "pito/uk.Plate", "--right", "publish", "--when", "hour = 'x'"), "selector.type"),
        (("--type", "pito/uk.Plate", "--right", "publish", "--when", "foo AND hour = 'x'"), "selector.type"),
        (("--tag", "(* set)"), "capability.empty"),
        (("--tag", "(spend (* set))"), "capability.empty"),
        (("--network", "pito/N", "--right", "connect", "--not-after", "soon"), "date.malformed"),
        (("--network", "pito/N", "--right", "connect", "--not-after", "2027-01-01", "--days", "3"), "cli.validity"),
        (("--network", "pito/N", "--right", "connect", "--days", "999999999"), "cli.validity"),
        (("--network", "pito/N", "--right", "connect", "--days", "0"), "cli.usage"),
        (
            ("--network", "pito/N", "--right", "connect", "--not-before", "2027-01-01", "--not-after", "2026-01-01"),
            "validity.empty",
        ),
    ],
)
def test_wrong_use_is_said_to_be_so(people: Shell, more: tuple[str, ...], code: str) -> None:
    ran = people(*issue("--to", "met", *more))
    assert (ran.status, ran.code) == (2, code)
    assert ran.out == ""


def test_a_forced_value_that_does_not_fit_is_told_what_does(people: Shell) -> None:
    ran = people(*issue("--to", "met", "--type-file", "plate.type", "--right", "publish", "--set", "zone=east"))
    assert "attribute `zone`: the value is outside" in ran.err
    assert "hint: `zone` is string, one of north, south" in ran.err


def test_a_selector_error_points_at_the_place(people: Shell) -> None:
    ran = people(*issue("--to", "met", "--type", "pito/*", "--right", "publish", "--when", "hour > > 3"))
    assert "  hour > > 3\n         ^\n" in ran.err
    assert "hint: " in ran.err


def test_a_public_key_cannot_sign(people: Shell) -> None:
    people.ok("key", "show", "pito.key", "--public", "pito.pub")
    ran = people("cert", "issue", "--key", "pito.pub", "--to", "met", "--network", "pito/N", "--right", "connect")
    assert (ran.status, ran.code) == (2, "key.public-only")


def test_show_one_in_full_and_several_as_a_tree(people: Shell) -> None:
    people.ok(
        *issue("--to", "met", "--type", "pito/uk.*", "--right", "subscribe", "--propagate", "--days", "9", "--out", "1")
    )
    people.ok(
        *("cert", "issue", "--key", "met.key", "--to", "smith", "--type-file", "plate.type", "--right", "subscribe"),
        *("--attribute", "plate", "--comment", "for Smith", "--out", "2"),
    )
    one = people.ok("cert", "show", "2").out
    for text in ("met", "smith", "pito/uk.Plate", "subscribe", "for Smith", "✓"):
        assert text in one
    assert "attributes   plate\n" in people.ok("cert", "show", "2", "--type-file", "plate.type").out
    tree = people.ok("cert", "show", "1", "2").out.splitlines()
    assert tree[0] == "pito"
    assert tree[1].startswith("└── ✓ → met")
    assert tree[2].startswith("    └── ✓ → smith")
    assert people.ok("cert", "show", "1", "2", "--long").out.count("certificate ") == 2
    data = people.ok("cert", "show", "1", "2", "-o", "json").json
    assert [entry["ok"] for entry in data["certificates"]] == [True, True]
    assert people.ok("cert", "show", "1", "-o", "sexp").out == Path("1").read_text()


def test_verify_now_and_at_another_time(people: Shell) -> None:
    people.ok(*issue("--to", "met", "--network", "pito/N", "--right", "connect", "--days", "9", "--out", "1"))
    people.ok(
        "cert", "issue-name", "Brokers", "--key", "met.key", "--to", "smith", "--not-before", "2026-04-01", "--out", "2"
    )
    assert people.ok("cert", "verify", "1", "2").out.count("✓") == 2
    late = people("cert", "verify", "1", "2", "--at", "2026-06-01")
    assert (late.status, late.code) == (1, "cert.expired")
    early = people("cert", "verify", "1", "2", "--at", "2026-03-01")
    assert (early.status, early.code) == (1, "cert.not-yet-valid")
    data = people("cert", "verify", "1", "2", "--at", "2026-06-01", "-o", "json").json
    assert data["ok"] is False
    assert [entry["ok"] for entry in data["certificates"]] == [False, True]
    assert data["certificates"][0]["code"] == "cert.expired"
    Path("nothing").touch()
    assert people("cert", "verify", "nothing").code == "cert.none"


def test_what_a_stranger_wrote_does_not_drive_the_terminal(people: Shell) -> None:
    people.ok(
        *issue("--to", "met", "--network", "pito/N", "--right", "connect", "--comment", "\x1b[2J[bold]x", "--out", "1")
    )
    out = people.ok("cert", "show", "1").out
    assert "\x1b" not in out
    assert "[2J[bold]x" in out


def test_dates_are_written_in_one_way(people: Shell) -> None:
    people.ok(*issue("--to", "met", "--network", "pito/N", "--right", "connect", "--days", "9", "--out", "1"))
    line = ("--at", "2026-06-01")
    explain = ("explain", "--network", "pito/N", "--principal", "met", "--right", "connect", "--credential", "1")
    for ran in (people("cert", "show", "1", *line), people("cert", "verify", "1", *line), people(*explain, *line)):
        assert "expired on 2026-05-10 12:00:00 UTC" in ran.out
        assert "2026-05-10_" not in ran.out + ran.err


# `penstock cert list` and `penstock cert renew`.

READ = ("--to", "met", "--network", "pito/N", "--right", "connect")


def expiries(shell: Shell, *words: str) -> dict[str, str]:
    found = shell.ok("cert", "list", *words, "-o", "json").json["certificates"]
    return {Path(one["file"]).stem: one["expiry"] for one in found}


def test_a_certificate_is_valid_for_a_year_unless_told_otherwise(people: Shell) -> None:
    made = people.ok(*issue(*READ, "-o", "json")).json
    assert (made["not_after"], made["warnings"]) == ("2027-05-01T12:00:00Z", [])
    later = people.ok(*issue(*READ, "--not-before", "2026-06-01", "-o", "json")).json
    assert later["not_after"] == "2027-06-01T00:00:00Z"
    never = people.ok(*issue(*READ, "--no-expiry", "-o", "json")).json
    assert (never["not_after"], [one["code"] for one in never["warnings"]]) == (None, ["cert.no-expiry"])
    for more in (("--days", "3"), ("--not-after", "2027-01-01")):
        assert people(*issue(*READ, "--no-expiry", *more)).code == "cli.validity"


def test_the_list_marks_what_needs_attention(people: Shell) -> None:
    Path("certs/below").mkdir(parents=True)
    for name, *more in (
        ("valid",),
        ("below/soon", "--days", "30"),
        ("later", "--days", "31"),
        ("never", "--no-expiry"),
        ("over", "--not-after", "2026-04-30"),
        ("future", "--not-before", "2026-06-01"),
    ):
        people.ok(*issue(*READ, *more, "--out", f"certs/{name}.cert"))
    Path("certs/notes.txt").write_text("not a certificate")
    wanted = {"valid": "valid", "soon": "expiring", "later": "valid", "never": "never-expires"}
    assert expiries(people) == {**wanted, "over": "expired", "future": "invalid"}
    assert expiries(people, "certs/below", "certs/later.cert", "--within", "31") == {
        "soon": "expiring",
        "later": "expiring",
    }
    shown = people.ok("cert", "list", "certs").out.splitlines()
    # What ends first stands first, and what never ends last.
    assert [line[:1] for line in shown[:-1]] == [" ", "✗", "!", "✓", "✓", "✗", "∞"]
    assert "✗  met  connect  pito/N  expired on 2026-04-30 23:59:59 UTC " in shown[1]
    soon = people.ok("cert", "list", "certs/below", "--at", "2026-05-31T11:00Z").out
    assert "  expires in 1 hour (2026-05-31), revocation unknown  " in soon
    assert "revocation unknown: no context connects to their network" in soon
    Path("empty").mkdir()
    assert people.ok("cert", "list", "empty").out == "there is no certificate\n"


def test_renewed_certificates_say_the_same_for_longer(people: Shell) -> None:
    people.ok(*issue(*READ, "--days", "5", "--comment", "for a week", "--out", "a.cert"))
    people.ok("cert", "issue-name", "Brokers", "--key", "pito.key", "--to", "smith", "--days", "90", "--out", "b.cert")
    before = people.ok("cert", "show", "a.cert", "-o", "json").json["certificates"][0]
    ran = people.ok("cert", "renew", "a.cert", "b.cert", "--key", "pito.key", "--within", "30", "-o", "json").json
    assert [one["file"] for one in ran["renewed"]] == ["a.cert"]
    after = people.ok("cert", "show", "a.cert", "-o", "json").json["certificates"][0]
    assert after["not_after"] == "2027-05-01T12:00:00Z"
    assert {**after, "id": "", "not_after": ""} == {**before, "id": "", "not_after": ""}
    people.ok("cert", "verify", "a.cert")
    people.ok("cert", "renew", "b.cert", "--key", "pito.key", "--no-expiry", "--out", "c.cert")
    assert expiries(people, "b.cert", "c.cert") == {"b": "valid", "c": "never-expires"}
    assert people.ok("cert", "renew", "c.cert", "--key", "pito.key", "--within", "30").out == "no certificate is due\n"


def test_what_is_not_renewed(people: Shell) -> None:
    people.ok(*issue(*READ, "--days", "5", "--out", "a.cert"))
    before = Path("a.cert").read_bytes()
    assert people("cert", "renew", "a.cert", "--key", "met.key").code == "cert.wrong-key"
    people.ok("cert", "renew", "a.cert", "--key", "pito.key", "--dry-run")
    Path("b.cert").write_bytes(before.replace(b"connect", b"install"))
    assert people("cert", "renew", "a.cert", "b.cert", "--key", "pito.key").status != 0
    assert Path("a.cert").read_bytes() == before
    assert people("cert", "renew", "a.cert", "b.cert", "--key", "pito.key", "--out", "c.cert").code == "cli.usage"
    assert people("cert", "renew", "a.cert", "--key", "pito.key", "--out", "b.cert").code == "file.exists"


def test_attributes_are_named_by_their_whole_ids(penstock: Shell) -> None:
    penstock.ok("key", "new", "owner.key", "--name", "owner")
    names = ("meter", "region", "power", "volts", "amps", "phase", "hour", "site", "street", "town", "country")
    attributes = [word for name in names for word in ("--attribute", f"{name}:string")]
    penstock.ok("type", "new", "org.meter-Reading", "--key", "owner.key", *attributes, "--out", "reading.type")
    # The ids are org.meter-Reading#1 and org.meter-Reading#10.
    words = ("--right", "subscribe", "--attribute", "region", "--attribute", "country", "--where", "country = 'UK'")
    where = ("--key", "owner.key", "--to", "owner", "--type-file", "reading.type", "--out", "owner.cert")
    assert "attributes region, country, where country = 'UK'" in penstock.ok("cert", "issue", *where, *words).out


def test_attributes_of_equal_types_of_two_owners_are_told_apart(penstock: Shell) -> None:
    for owner, attribute in (("first", "power"), ("second", "secret")):
        penstock.ok("key", "new", f"{owner}.key", "--name", owner)
        new = ("type", "new", "org.Reading", "--key", f"{owner}.key", "--attribute", f"{attribute}:float")
        penstock.ok(*new, "--out", f"{owner}.type")
        to = ("--to", "first", "--right", "subscribe", "--attribute", attribute, "--out", f"{owner}.cert")
        penstock.ok("cert", "issue", "--key", f"{owner}.key", "--type-file", f"{owner}.type", *to)
    # Without the second owner's type, its attribute has no name: that of the first owner's type would be wrong.
    penstock.folder.joinpath("second.type").unlink()
    for words in ("show", "verify", "list", "renew --key second.key"):
        out = penstock.ok("cert", *words.split(), "second.cert").out
        assert "org.Reading#0" in " ".join(out.split()), words
        assert "power" not in out
    for words in ("show", "verify", "list", "renew --key first.key"):
        out = penstock.ok("cert", *words.split(), "first.cert").out
        assert "power" in out, words
        assert "#" not in out


def test_a_type_that_does_not_verify_names_nothing(people: Shell) -> None:
    file = people.folder / "plate.type"
    people.ok(
        *issue(
            "--to",
            "met",
            "--type-file",
            "plate.type",
            "--right",
            "subscribe",
            "--attribute",
            "plate",
            "--out",
            "p.cert",
        )
    )
    assert "attributes plate" in people.ok("cert", "verify", "p.cert").out
    file.write_text(file.read_text().replace("plate", "speed", 1))
    assert "uk.Plate#0" in people.ok("cert", "verify", "p.cert").out
