"""`penstock simulate domain` and `calibrate` as people run them."""

import json
from pathlib import Path

from tests.apps.conftest import Shell
from tests.simulate.plans.kit import SmallDomain

from penstock.simulate.calibrate import read_times
from penstock.simulate.simulation import SERVICES

FEW = ("--requests", "3", "--rate", "100")


def test_a_plan_that_works(penstock: Shell) -> None:
    SmallDomain().load(penstock.folder)
    ran = penstock.ok("simulate", "domain", "house.toml", *FEW, "--html", "trial.html")
    assert ran.out.startswith("✓ house.toml: 4 components joined, 2 requests answered")
    assert "door/open" in ran.out
    page = (penstock.folder / "trial.html").read_text()
    assert "Trial of domain house" in page
    assert "the latency of the request" in page
    assert "from house.toml, with seed 0; messages take 0.1 to 0.5 ms. The trace is " in page
    assert "<script" not in page
    # A page is not replaced, and nothing is run before that is known.
    assert penstock("simulate", "domain", "house.toml", "--html", "trial.html").code == "file.exists"


def test_problems_have_codes_and_an_exit_status(penstock: Shell) -> None:
    SmallDomain(appointed=frozenset({"pep", "pip"})).load(penstock.folder)
    ran = penstock("simulate", "domain", "house.toml", "--requests", "0", "-o", "json")
    assert ran.status == 1
    assert "simulate.problems" in ran.err
    assert {"simulate.join-refused", "simulate.no-answer"} <= {one["code"] for one in ran.json["findings"]}
    assert ran.json["ok"] is False


def test_warnings_count_if_wanted(penstock: Shell) -> None:
    domain = SmallDomain(policies={"doors": ("deny-overrides", "rule high { permit condition rank >= 3 }")})
    domain.load(penstock.folder)
    ran = penstock.ok("simulate", "domain", "house.toml", "--requests", "0")
    assert "no policy of `DR(1)` decides about a request to `door/open` (simulate.policy-incomplete)" in ran.out
    assert "for example user:" in ran.out
    assert penstock("simulate", "domain", "house.toml", "--requests", "0", "--strict").status == 1


def test_a_change_is_compared(penstock: Shell) -> None:
    SmallDomain().load(penstock.folder / "today")
    rules = "rule high { permit condition rank >= 5 }"
    SmallDomain(policies={"doors": ("deny-unless-permit", rules)}).load(penstock.folder / "planned")
    ran = penstock.ok(
        "simulate", "domain", "planned/house.toml", "--compare", "today/house.toml", *FEW, "--html", "trial.html"
    )
    assert "requests to `door/open` that were Permit become Deny, such as user:" in ran.out
    assert "DR(1): applied by all components after" in ran.out
    assert "Compared with today" in (penstock.folder / "trial.html").read_text()


def test_other_files_belong_to_both_plans_of_a_comparison(penstock: Shell) -> None:
    SmallDomain(apart=True).load(penstock.folder / "today")
    rules = "rule high { permit condition rank >= 5 }"
    SmallDomain(policies={"doors": ("deny-unless-permit", rules)}, apart=True).load(penstock.folder / "planned")
    files = ("planned/house.toml", "planned/pip.toml", "--compare", "today/house.toml")
    ran = penstock.ok("simulate", "domain", *files, *FEW)
    assert ran.out.startswith("✓ planned/house.toml: 4 components joined, 2 requests answered")
    assert "requests to `door/open` that were Permit become Deny, such as user:" in ran.out


def test_a_change_that_costs_roles_is_a_problem(penstock: Shell) -> None:
    SmallDomain(apply_within=0.0001).load(penstock.folder / "today")
    rules = "rule high { permit condition rank >= 5 }"
    SmallDomain(policies={"doors": ("deny-unless-permit", rules)}).load(penstock.folder / "planned")
    compared = ("simulate", "domain", "planned/house.toml", "--compare", "today/house.toml")
    ran = penstock(*compared, "--requests", "60", "--rate", "50", "-o", "json", "--html", "trial.html")
    assert ran.status == 1
    assert ran.json["ok"] is False
    assert ran.json["findings"] == []
    codes = [one["code"] for one in ran.json["comparison"]["findings"]]
    assert codes == [*["simulate.change-lost"] * 3, "simulate.change-unanswered"]
    assert "simulate.change-lost" in (penstock.folder / "trial.html").read_text()
    ran = penstock(*compared, "--requests", "0")
    assert ran.status == 1
    assert ran.out.startswith(
        "✗ components.pdp-1: `pdp-1` loses its role in the change of `DR(1)` (simulate.change-lost)"
    )
    assert "✓" not in ran.out
    assert "planned/house.toml: 3 problems in a trial" in ran.err


def test_roles_that_only_one_plan_has_are_named(penstock: Shell) -> None:
    SmallDomain().load(penstock.folder / "one")
    SmallDomain(deciding={1: ("doors",), 2: ("doors",)}).load(penstock.folder / "two")
    few = ("--requests", "0", "--html", "trial.html", "--overwrite")
    ran = penstock.ok("simulate", "domain", "two/house.toml", "--compare", "one/house.toml", *few)
    assert "  added, and not tried as a change: DR(2)\n" in ran.out
    page = (penstock.folder / "trial.html").read_text()
    assert "role added" in page
    assert "roles.DR(2)" in page
    ran = penstock.ok("simulate", "domain", "one/house.toml", "--compare", "two/house.toml", *few)
    assert "  removed, and not tried as a change: DR(2)\n" in ran.out


def test_service_times_are_measured_and_read_again(penstock: Shell) -> None:
    penstock.ok("simulate", "calibrate", "--out", "times.toml", "--steps", "1")
    times = read_times(str(penstock.folder / "times.toml"))
    assert times.seconds.keys() == SERVICES.keys()
    assert times.of("sign") > 0
    SmallDomain().load(penstock.folder)
    ran = penstock.ok("simulate", "domain", "house.toml", *FEW, "--times", "times.toml", "-o", "json")
    assert json.loads(ran.out)["ok"] is True


def test_a_file_of_service_times_is_read_strictly(penstock: Shell) -> None:
    for text, code in (
        ("seconds = 1", "times.value"),
        ("[seconds]\nsing = 1e-5", "times.unknown-key"),
        ("[seconds]\nsign = 2", "times.value"),
        ("[seconds", "times.syntax"),
    ):
        (penstock.folder / "times.toml").write_text(text)
        SmallDomain().load(penstock.folder)
        assert penstock("simulate", "domain", "house.toml", "--times", "times.toml").code == code, text


def test_a_latency_is_a_range(penstock: Shell, tmp_path: Path) -> None:
    SmallDomain().load(penstock.folder)
    for wrong in ("5ms-1ms", "fast", "1ms-"):
        assert penstock("simulate", "domain", "house.toml", "--latency", wrong).status == 2, wrong


def test_a_network_is_tried(penstock: Shell) -> None:
    links = '{ between = ["a", "b"] }, { between = ["b", "c"] }, { between = ["c", "a"] }, { between = ["c", "d"] }'
    (penstock.folder / "net.toml").write_text(f"links = [{links}]")
    few = ("simulate", "network", "net.toml", "--readers", "4", "--orders", "1")
    ran = penstock.ok(*few, "--lose", "each", "--html", "net.html")
    assert ran.out.startswith("4 brokers, 4 links, 1 order\n")
    assert "if one link is lost:" in ran.out
    page = (penstock.folder / "net.html").read_text()
    assert "Trial of a network" in page
    assert "One lost link" in page
    assert "from net.toml, with seed 0; messages take 1 to 5 ms. The trace is " in page
    assert "\ndeliveries to a reader after the order: median " in ran.out
    data = penstock.ok(*few, "--lose", "c:d", "--lost-for", "1s", "-o", "json").json
    assert data["reached"] == 3
    assert data["deliveries to a reader"]["most"] >= data["deliveries to a reader"]["median"]
    # The owner can be at another broker, which the others do not reach then.
    data = penstock.ok(*few, "--lose", "c:d", "--lost-for", "1s", "--owner", "d", "-o", "json").json
    assert data["reached"] == 1
    assert penstock(*few, "--owner", "e").code == "cli.usage"
    assert data["complete"]["longest"] > 1
    assert data["deliveries after completion"] == 0
    ran = penstock(*few, "--within", "1ms")
    assert (ran.status, ran.code) == (1, "simulate.problems")
    assert penstock(*few, "--lose", "a:d").code == "cli.usage"
