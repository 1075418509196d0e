"""`penstock explain` says what `decide()` decides: which rights count, when they hold, and what is wrong otherwise."""

from itertools import pairwise
from pathlib import Path

import pytest
from tests.apps.conftest import Shell

from penstock.codec.sexp import advanced
from penstock.codec.sexp import parse as parse_sexp
from penstock.crypto import SigningKey, read_key
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials
from penstock.trust.limits import CHAIN_LENGTH

EXPLAIN = ("explain", "--type-file", "reading.type", "--principal", "planner", "--right", "subscribe")


@pytest.fixture
def grid(penstock: Shell) -> Shell:
    """Keys and a type; the owner is grid."""
    for name in ("grid", "city", "planner"):
        penstock.ok("key", "new", f"{name}.key", "--name", name)
    penstock.ok(
        *("type", "new", "org.grid.Reading", "--key", "grid.key", "--attribute", "meter:string"),
        *("--attribute", "region:string:north|south", "--attribute", "power:float", "--out", "reading.type"),
    )
    return penstock


def key(name: str) -> SigningKey:
    stored = read_key(parse_sexp(Path(name).read_bytes()))
    assert isinstance(stored, SigningKey)
    return stored


def grant(file: str, *, when: tuple[str, ...] = (), right: Right = Right.SUBSCRIBE) -> None:
    """Issue a certificate with the library, which does not look at what a condition says."""
    owner = key("grid.key")
    tag = event_tag(owner.principal, "org.grid.Reading", None, [right], when=when)
    made = issue(Authorisation(owner.principal, key("planner.key").principal, tag), owner)
    Path(file).write_text(advanced(Credentials.of(made).to_sexp()))


@pytest.mark.parametrize(
    ("condition", "code"), [("hour = 'x'", "selector.type"), ("foo = 3", "selector.unknown-attribute")]
)
@pytest.mark.parametrize("about", [("--type-file", "reading.type"), ("--type", "grid/org.grid.Reading@0")])
def test_a_right_that_no_broker_counts_is_refused(
    grid: Shell, condition: str, code: str, about: tuple[str, ...]
) -> None:
    grant("bad.cert", when=(condition,))
    line = ("explain", *about, *EXPLAIN[3:], "--credential", "bad.cert")
    ran = grid(*line)
    assert (ran.status, ran.code) == (1, code)
    assert ran.out.startswith("✗ planner may not subscribe")
    (answer,) = grid(*line, "-o", "json").json["answers"]
    assert (answer["allowed"], answer["code"], answer["chain"][0]["code"]) == (False, code, code)
    grant("good.cert")
    grid.ok(*line, "--credential", "good.cert")


@pytest.mark.parametrize("about", [("--type-file", "reading.type"), ("--type", "grid/org.grid.Reading@0")])
def test_a_condition_is_asked_for_the_moment_in_question(grid: Shell, about: tuple[str, ...]) -> None:
    grant("day.cert", when=("hour BETWEEN 8 AND 17",))
    line = ("explain", *about, *EXPLAIN[3:], "--credential", "day.cert")
    assert grid.ok(*line, "--at", "2026-05-01T10:00Z").out.startswith("✓ planner may subscribe")
    late = grid(*line, "--at", "2026-05-01T20:00Z")
    assert (late.status, late.code) == (1, "guard.not-now")
    assert "may subscribe to org.grid.Reading@0, but not at this time" in late.out
    (answer,) = grid(*line, "--at", "2026-05-01T20:00Z", "-o", "json").json["answers"]
    assert (answer["allowed"], answer["code"], answer["grants"][0]["holds"]) == (False, "guard.not-now", "not-now")


def test_what_only_a_broker_knows_is_named(grid: Shell) -> None:
    grant("rate.cert", when=("rate < 10 AND hour < 20",))
    line = (*EXPLAIN, "--credential", "rate.cert")
    assert "depends on rate" in grid.ok(*line, "--at", "2026-05-01T10:00Z").out
    assert grid(*line, "--at", "2026-05-01T21:00Z").code == "guard.not-now"
    grant("duty.cert", when=("on_duty",))
    line = (*EXPLAIN, "--credential", "duty.cert")
    unknown = grid(*line)
    assert unknown.code == "selector.unknown-attribute"
    assert "--fact" in unknown.err
    told = grid.ok(*line, "--fact", "on_duty:boolean", "-o", "json").json["answers"][0]["grants"][0]
    assert (told["holds"], told["depends_on"]) == ("depends", ["on_duty"])
    assert grid(*line, "--fact", "hour:integer").code == "environment.reserved"


def test_one_open_way_is_enough(grid: Shell) -> None:
    grant("day.cert", when=("hour < 12",))
    grant("evening.cert", when=("hour >= 18",))
    line = (*EXPLAIN, "--credential", "day.cert", "--credential", "evening.cert")
    out = grid.ok(*line, "--at", "2026-05-01T20:00Z").out
    assert out.count("not at this time") == 1
    assert "hour >= 18" in out.splitlines()[1]


@pytest.mark.parametrize("about", [("--type-file", "reading.type"), ("--type", "grid/org.grid.Reading@0")])
def test_a_part_of_what_was_asked_is_not_enough(grid: Shell, about: tuple[str, ...]) -> None:
    grant("add.cert", right=Right.MANAGE_ADD)
    line = ("explain", *about, "--principal", "planner", "--credential", "add.cert", "--right")
    ran = grid(*line, "manage")
    assert (ran.status, ran.code) == (1, "chain.no-authority")
    grid.ok(*line, "manage-add")


def test_a_chain_that_is_too_long_to_follow_is_said_to_be_so(grid: Shell) -> None:
    owner, planner = key("grid.key"), key("planner.key")
    length = CHAIN_LENGTH
    keys = [owner, *(SigningKey(bytes([number]) * 32) for number in range(1, length + 1)), planner]
    tag = event_tag(owner.principal, "org.grid.Reading", None, [Right.SUBSCRIBE])
    links = [
        issue(Authorisation(one.principal, other.principal, tag, propagate=True), one) for one, other in pairwise(keys)
    ]
    Path("long.certs").write_text(advanced(Credentials.of(*links).to_sexp()))
    ran = grid(*EXPLAIN, "--credential", "long.certs")
    assert (ran.status, ran.code) == (1, "chain.truncated")
    assert "threshold" not in ran.out + ran.err
    assert "more than are followed" in ran.out


def test_a_quorum_that_owns_a_type_is_found_in_the_type(grid: Shell) -> None:
    members = [part for name in ("grid", "city") for part in ("--member", name)]
    grid.ok("key", "new-quorum", "--threshold", "2", *members, "--out", "council")
    define = ("type", "new", "org.Shared", "--owner", "council", "--key", "grid.key", "--attribute", "a:string")
    refused = grid(*define)
    assert (refused.status, refused.code) == (1, "type.forged")
    assert "--credential council" in refused.err
    for name in ("grid", "city"):
        right = ("--to", "grid", "--type", "council/org.Shared", "--right", "manage", "--out", f"{name}-manage")
        grid.ok("cert", "issue", "--key", f"{name}.key", *right)
    shown = [part for name in ("council", "grid-manage", "city-manage") for part in ("--credential", name)]
    grid.ok(*define, *shown, "--out", "q.type")
    for name in ("grid", "city"):
        right = ("--to", "planner", "--type-file", "q.type", "--right", "subscribe", "--out", f"{name}-says")
        grid.ok("cert", "issue", "--key", f"{name}.key", *right)
    line = ("explain", "--type-file", "q.type", *EXPLAIN[3:], "--credential", "grid-says")
    short = grid(*line)
    assert (short.status, short.code) == (1, "chain.short-quorum")
    grid.ok(*line, "--credential", "city-says")


# --- Policies -------------------------------------------------------------------------------------------------------

POLICY = """
namespace grid {
    attribute role { category = subject id = "urn:penstock:subject:owner-role" type = string }
    attribute home { category = subject id = "urn:penstock:subject:domain" type = string }
    attribute part { category = resource id = "urn:penstock:attribute:name" type = string }
    attribute region { category = resource id = "urn:penstock:event:region" type = string }
    policy readings {
        apply deny-overrides
        rule meters { deny target clause part == "meter" condition not ("auditor" in role or "Grid" in home) }
        rule south { deny target clause region == "south" }
        rule others { permit }
    }
}
"""


def test_policies_count_as_they_do_at_a_broker(grid: Shell) -> None:
    grant("planner.cert")
    Path("grid.policy").write_text(POLICY)
    line = (*EXPLAIN, "--policy", "grid.policy")
    governed = grid.ok(*line, "--credential", "planner.cert").out
    assert "attributes  region, power\n" in governed
    assert "policies    grid.readings\n" in governed
    (answer,) = grid(*line, "--credential", "planner.cert", "-o", "json").json["answers"]
    assert "policy:grid.readings" in answer["grants"][0]["because"]
    assert answer["grants"][0]["where"] == ["region IS NULL OR region <> 'south'"]
    # A role that the owner gives, and where somebody is at home.
    grid.ok("cert", "issue-name", "auditor", "--key", "grid.key", "--to", "planner", "--out", "auditor.cert")
    for more in (("--credential", "auditor.cert"), ("--home", "planner=Grid")):
        assert "attributes  meter, region, power\n" in grid.ok(*line, "--credential", "planner.cert", *more).out
    # Without certificates, and with what policies alone say.
    assert grid(*line).code == "chain.missing"
    alone = grid.ok(*line, "--rights", "alone").out
    assert "is the owner" not in alone
    assert "attributes  region, power\n" in alone


def test_what_policies_refuse_is_told(grid: Shell) -> None:
    grant("planner.cert")
    Path("no.policy").write_text("policy no { apply deny-overrides rule r { deny } }")
    line = (*EXPLAIN, "--credential", "planner.cert", "--policy")
    ran = grid(*line, "no.policy")
    assert (ran.status, ran.code) == (1, "policies.not-permitted")
    assert grid(*line, "none.policy").code == "file.missing"
    Path("none.policy").write_text("")
    assert grid(*line, "none.policy").code == "policies.none"
    assert grid(*line, "no.policy", "--home", "planner").code == "cli.home"
    by_name = ("explain", "--type", "grid/org.grid.Reading@0", *EXPLAIN[3:], "--policy", "no.policy")
    assert grid(*by_name).code == "cli.resource"


def test_a_folder_without_contexts(penstock: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    penstock.ok("init", "demo", "--no-contexts", "--listen", "127.0.0.1:9")
    monkeypatch.chdir("demo")
    # Types and keys are found beside the certificates.
    assert "attributes region, power, where" in penstock.ok("cert", "verify", "certs/reader-subscribe.cert").out
    for line in Path(".env").read_text().splitlines():
        name, _, value = line.partition("=")
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PENSTOCK_BROKER")
    about = ("--right", "publish", "--type-file", "types/reading.type")
    issue = "`penstock cert issue --key keys/acme.key --to reader --type acme/example.Reading --right publish"
    assert f"hint: ask acme to run {issue} --out FILE.cert`, and then" in penstock("explain", *about).err
    # A list of rights is about the network of the environment.
    assert penstock.ok("explain", "-o", "json").json["rights"]["connect"] is True
    listed = penstock.ok("explain", "--type-file", "types/reading.type").out
    assert "✓ reader may connect to demo" in listed
    assert "✓ reader may subscribe to example.Reading@0" in listed


ROLE_POLICY = """\
domain city;
role reader(region: string);
appointment contract(region: string) by city;
fact employed(who: principal);
activate reader(r) if appointment contract(r) by city *, fact employed(principal) *;
allow reader(r) to subscribe self/org.grid.Reading(meter, region = r);
"""


def test_a_right_through_a_role(grid: Shell) -> None:
    (grid.folder / "grid.roles").write_text(ROLE_POLICY)
    (grid.folder / "city.roles").write_text("appointment contract(region: string);\n")
    at_city, at_grid = ("--store", "sqlite:city.db"), ("--store", "sqlite:grid.db")
    grid.ok("role", "init", "city.roles", "--domain", "city", *at_city)
    grid.ok("role", "init", "grid.roles", "--domain", "grid", *at_grid)
    asked = (*EXPLAIN, "--roles", "sqlite:grid.db")
    refused = grid(*asked)
    assert (refused.status, refused.code) == (1, "chain.missing")
    assert "reader(_) cannot be activated: no rule is satisfied" in refused.out
    assert "no  appointment contract(_) by city *: not held" in refused.out
    grid.ok("role", "appoint", "contract", "north", "--to", "planner", *at_city)
    grid.ok("role", "issue", "1", "--to", "grid", "--key", "city.key", "--out", "c.cert", *at_city)
    grid.ok("role", "accept", "c.cert", *at_grid)
    grid.ok("role", "fact", "employed", "planner", *at_grid)
    assert "reader(_) can be activated" in grid(*asked).out
    grid.ok("role", "activate", "reader", "north", "--as", "planner", *at_grid)
    done = grid.ok(*asked)
    assert done.out.startswith("✓ planner may subscribe to org.grid.Reading@0")
    words = " ".join(done.out.split())
    assert "role reader(north) of grid, since" in words
    assert "relies on appointment contract(r) by city *: record 1 of city contract(north)" in words
    assert "relies on fact employed(principal) *: employed(planner) is true" in words
    [answer] = grid.ok(*asked, "-o", "json").json["answers"]
    [way] = answer["grants"]
    assert (way["roles"][0]["name"], way["forced"]) == ("reader", {"region": "north"})
    # Before it was activated, and for everything else.
    assert grid(*asked, "--at", "2020-01-01T00:00Z").code == "chain.missing"
    other = grid(*asked[:-3], "publish", *asked[-2:])
    assert "no role of grid gives this right" in other.out
    assert grid(*EXPLAIN).code == "chain.missing"
