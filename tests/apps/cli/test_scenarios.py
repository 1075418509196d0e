"""The scenarios of tests/scenarios: the library and the command line both give the answers that the files say."""

from functools import partial

import pytest
from tests.apps.conftest import Shell
from tests.apps.scenarios import (
    Answered,
    Library,
    Scenario,
    Table,
    Verified,
    all_scenarios,
    expected_answer,
    expected_verification,
    seed,
)

SCENARIOS = all_scenarios()
each = pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])


def _seed_of(name: str, _size: int) -> bytes:
    return seed(name)


class CommandLine:
    """The scenario, played with the command line: every key, type and certificate is a file."""

    def __init__(self, scenario: Scenario, shell: Shell) -> None:
        self.scenario = scenario
        self.shell = shell
        shell.now = scenario.now
        self.principals: dict[str, str] = {}
        for name in scenario.data["principals"]:
            made = shell("key", "new", f"{name}.key", "--name", name, random=partial(_seed_of, name))
            assert made.status == 0, made.err
            self.principals[shell.ok("key", "show", f"{name}.key", "-o", "json").json["principal"]] = name
        self.quorums = [table["name"] for table in scenario.tables("quorums")]
        for table in scenario.tables("quorums"):
            members = [part for member in table["members"] for part in ("--member", member)]
            shell.ok("key", "new-quorum", "--threshold", str(table["threshold"]), *members, "--out", table["name"])
        self.ids: dict[str, str] = {}
        self.made: set[str] = set()

    def certificate(self, name: str) -> str:
        file = f"{name}.cert"
        if file not in self.made:
            self.made.add(file)
            table = self.scenario.table("certificates", name)
            made = self.shell.ok(*self._issue(table), "--out", file, "-o", "json")
            self.ids[made.json["id"]] = name
            told = [warning["code"] for warning in made.json["warnings"]]
            # A scenario may be about certificates that are over; what it flags is what they say.
            beside = {"capability.already-over", "cert.no-expiry"}
            assert [code for code in told if code not in beside] == table.get("flags", [])
        return file

    def _issue(self, table: Table) -> list[str]:
        line = ["cert", "issue-name", table["name"]] if "name" in table else ["cert", "issue"]
        line += ["--key", f"{table['issuer']}.key"]
        options = {"to": "--to", "to_name": "--to-name", "network": "--network", "type": "--type"}
        options |= {"not_before": "--not-before", "not_after": "--not-after", "version": "--version"}
        for key, option in options.items():
            if key in table:
                line += [option, table[key]]
        if table.get("rights") == "all":
            line.append("--all-rights")
        else:
            line += [part for right in table.get("rights", ()) for part in ("--right", right)]
        if "of" in table:
            line += ["--type-file", self.type(table["of"])]
        for key, option in {"attributes": "--attribute", "where": "--where", "when": "--when"}.items():
            line += [part for value in table.get(key, ()) for part in (option, value)]
        line += [part for pair in table.get("forced", {}).items() for part in ("--set", "=".join(pair))]
        if "not_after" not in table:
            line.append("--no-expiry")
        return [*line, "--propagate"] if table.get("propagate") else line

    def credential(self, name: str) -> str:
        return name if name in self.quorums else self.certificate(name)

    def type(self, name: str) -> str:
        file = f"{name}.type"
        if file not in self.made:
            self.made.add(file)
            table = self.scenario.table("types", name)
            line = self._define(table)
            if "refused" in table:
                refused = self.shell(*line, "--out", file)
                assert (refused.status, refused.code) == (1, table["refused"])
                line.append("--unchecked")
            self.shell.ok(*line, "--out", file)
        return file

    def _define(self, table: Table) -> list[str]:
        if "previous" in table:
            line = ["type", "edit", self.type(table["previous"])]
            for key in ("add", "remove", "rename", "retype"):
                line += [part for written in table.get(key, ()) for part in (f"--{key}", written)]
        else:
            line = ["type", "new", table["name"]]
            line += [part for written in table["attributes"] for part in ("--attribute", written)]
            line += ["--owner", table["owner"]] if "owner" in table else []
            line += ["--extends", self.type(table["extends"])] if "extends" in table else []
        line += ["--version", table["version"]] if "version" in table else []
        line += [part for name in table.get("credentials", ()) for part in ("--credential", self.credential(name))]
        return [*line, "--key", f"{table['signer']}.key"]

    def ask(self, table: Table) -> Answered:
        line = ["explain", "--principal", table["principal"], "--right", table["right"]]
        line += [part for name in table["show"] for part in ("--credential", self.credential(name))]
        if "network" in table:
            line += ["--network", table["network"]]
        else:
            known = self.scenario.table("types", table["on"])
            line += ["--type-file", self.type(table["on"])]
            line += ["--previous", self.type(known["previous"])] if "previous" in known else []
        line += ["--at", table["at"]] if "at" in table else []
        ran = self.shell(*line, "-o", "json")
        for_people = self.shell(*line)
        assert for_people.status == ran.status
        (answer,) = ran.json["answers"]
        assert ran.status == (0 if answer["allowed"] else 1)
        if not answer["allowed"]:
            assert answer["code"] == for_people.code
            assert "✗" in for_people.out
            return Answered(allowed=False, code=answer["code"])
        (grant,) = answer["grants"]
        assert "✓" in for_people.out
        lists = (grant.get(place, []) for place in ("where", "when"))
        return Answered(True, "", grant.get("attributes", []), grant.get("forced", {}), *lists)

    def verify(self, table: Table) -> Verified:
        line = ["type", "verify", self.type(table["type"])]
        line += [part for name in table.get("with", ()) for part in ("--previous", self.type(name))]
        line += ["--network", table["network"]] if "network" in table else []
        line += ["--at", table["at"]] if "at" in table else []
        ran = self.shell(*line)
        if ran.status:
            assert ran.status == 1
            return Verified(valid=False, code=ran.code)
        data = self.shell.ok(*line, "-o", "json").json
        because = sorted(self.ids[credential] for credential in data["because"])
        return Verified(True, "", self.principals[data["signer"]], because)


@each
def test_the_library(scenario: Scenario) -> None:
    library = Library(scenario)
    for table in scenario.tables("certificates"):
        assert library.flags(table["id"]) == table.get("flags", []), table
    for table in scenario.tables("questions"):
        assert library.ask(table) == expected(table, library.ask(table)), table
    for table in scenario.tables("verifications"):
        assert library.verify(table) == expected_verification(table), table


@each
def test_the_command_line(scenario: Scenario, penstock: Shell) -> None:
    line = CommandLine(scenario, penstock)
    for table in scenario.tables("certificates"):
        line.certificate(table["id"])
    for table in scenario.tables("questions"):
        found = line.ask(table)
        assert found == expected(table, found), table
    for table in scenario.tables("verifications"):
        assert line.verify(table) == expected_verification(table), table


def expected(table: Table, found: Answered) -> Answered:
    """Return what the file says; a refusal without a code may have any."""
    wanted = expected_answer(table)
    if not wanted.allowed and not wanted.code:
        wanted.code = found.code
    return wanted


@each
def test_both_know_the_same_principals(scenario: Scenario, penstock: Shell) -> None:
    library, line = Library(scenario), CommandLine(scenario, penstock)
    assert {str(library.principal(name)): name for name in scenario.data["principals"]} == line.principals


def test_every_scenario_says_where_it_comes_from() -> None:
    assert len(SCENARIOS) >= 6
    assert all(scenario.data["title"] and scenario.data["source"] for scenario in SCENARIOS)
