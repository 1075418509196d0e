"""Domain plans: what is read, and which mistakes are found before anything runs."""

from pathlib import Path

import pytest

from penstock.authority.components.exchange.topics import ComponentKind, TopicLevels
from penstock.authority.components.exchange.topics_lists import TopicsList
from penstock.authority.components.plans.domain_check import PlanLevel, check_domain
from penstock.authority.components.plans.domain_plan import (
    EXAMPLE,
    LEASE_OF_PROCESSES,
    DomainPlan,
    LoadedPlan,
    load_domain_plan,
    read_domain_plan,
)
from penstock.errors import PenstockError
from penstock.fabric import FOREVER

EBANK = Path(__file__).parents[4] / "examples" / "ebank"
#: without the mapping, which must be signed
BANK = "".join(
    line
    for line in (EBANK / "bank" / "bank.toml").read_text().splitlines(keepends=True)
    if not line.startswith("mappings")
)
WHO = "ed25519:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"


def loaded(folder: Path, text: str = BANK, **files: tuple[str, str]) -> LoadedPlan:
    """Load a plan with the files of the bank, in which words are replaced; nobody has a key."""
    for file in (EBANK / "bank").iterdir():
        if file.suffix in (".policy", ".roles"):
            old, new = files.get(file.stem, ("", ""))
            content = file.read_text()
            assert old in content
            (folder / file.name).write_text(content.replace(old, new))
    plan = read_domain_plan(text)
    names = {*plan.administrators, *plan.appointments, "partner-pap"}
    (folder / "names.toml").write_text("".join(f'"{name}" = "{WHO}"\n' for name in names))
    (folder / "bank.toml").write_text(text)
    return load_domain_plan(str(folder / "bank.toml"))


def changed(old: str, new: str) -> str:
    assert old in BANK
    return BANK.replace(old, new)


def codes(plan: LoadedPlan) -> list[tuple[str, str]]:
    return [(one.code, one.where) for one in check_domain(plan)]


def test_the_example_of_two_domains_has_no_problems(tmp_path: Path) -> None:
    assert codes(loaded(tmp_path)) == []


def test_a_plan_is_read() -> None:
    plan = read_domain_plan(BANK)
    assert plan.component_roles()[ComponentKind.PEP] == ("ER(1)", "ER(2)")
    er = plan.roles["ER(1)"]
    assert er.topics == TopicsList.of(["APEP_1", "QPEP_1", "DREQ_1"], ["RPEP_1", "DREP_1"])  # Figure 4
    assert plan.roles["ER(2)"].priorities == {"bank": 2, "partner": 1}
    assert plan.levels == TopicLevels(lb1=0.05, lb2=0.5, lb3=5, lifespan=2)
    assert plan.components["atm"].kind is ComponentKind.PEP
    assert plan.sources["accounts"].provides == {"resource/owner", "resource/balance"}
    assert plan.appointments["pdp-1"] == ("decider(1)",)


@pytest.mark.parametrize(
    ("lease", "fabric", "expected"),
    [
        ("", "", FOREVER),
        ("", 'dds = "dds://127.0.0.1/0"', LEASE_OF_PROCESSES),
        ("", 'nats = { servers = ["nats://127.0.0.1"] }', LEASE_OF_PROCESSES),
        ("", 'keep = "bank.db"', FOREVER),
        ("lease = 0", 'dds = "dds://127.0.0.1/0"', FOREVER),
        ("lease = 2.5", "", 2.5),
    ],
)
def test_processes_have_a_lease(lease: str, fabric: str, expected: float) -> None:
    plan = f'name = "bank"\nadministrators = ["pap"]\n[fabric]\n{fabric}\n[levels]\n{lease}\n'
    assert read_domain_plan(plan).levels.lease == expected


def test_the_printed_example_is_a_plan() -> None:
    plan = read_domain_plan(EXAMPLE)
    commented = read_domain_plan("\n".join(line.removeprefix("# ") for line in EXAMPLE.split("\n")[3:]))
    assert plan.complete
    assert commented.components["atm"].certificates == ("atm.cert",)


def test_a_component_file_needs_no_roles() -> None:
    text = 'name = "bank"\nadministrators = ["pap"]\n[components.atm]\nkind = "PEP"\nrole = "ER( 1 )"\nkey = "k"\n'
    plan = read_domain_plan(text)
    assert not plan.complete
    assert plan.components["atm"].role == "ER(1)"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('name = "bank"', "name = bank", "plan.syntax"),
        ("[levels]", "[level]", "plan.unknown-key"),
        ('name = "bank"', "", "plan.missing"),
        ('role_policy = "bank.roles"', "", "plan.missing"),
        ('name = "bank"', 'name = "my bank"', "component.name"),
        ("latency = [0.05, 0.5, 5]", "latency = [0.5, 0.05, 5]", "component.levels"),
        ("latency = [0.05, 0.5, 5]", "latency = [0.05, 0.5]", "plan.value"),
        ("lifespan = 2", "lifespan = true", "plan.value"),
        ("lifespan = 2", "lifespan = 2\nlease = -1", "plan.value"),
        ('kind = "PIP"', 'kind = "PIPE"', "plan.value"),
        ('"DREQ_1"]\nread = ["RPEP_1", "DREP_1"]', '"DREP_1"]\nread = ["RPEP_1", "DREP_1"]', "component.topics-list"),
        ('"DREQ_2"]\nread', '"DREQ2"]\nread', "component.topic"),
        ('"QPEP_1", "DREQ_1"]\nread', '"JOIN_1"]\nread', "component.topics-list"),
        ('combining.decision = "first"', 'combining.policy = "first"', "plan.unknown-key"),
        ("priorities = { bank = 2", 'priorities = { bank = "2"', "plan.value"),
        ('[roles."ER(2)"]', '[roles."ER( 1)"]', "plan.twice"),
        ('[roles."ER(2)"]', '[roles."ER[2]"]', "component.role"),
        ('role = "ER(1)"', 'role = "ER(7)"', "plan.value"),
        ('role = "ER(1)"', 'kind = "PEP"', "plan.missing"),
        ('role = "ER(1)"', 'role = "ER(1)"\nkind = "PDP"', "plan.value"),
        ('sources = ["accounts"]', 'sources = ["acounts"]', "plan.value"),
        ('sources = ["accounts"]', 'log = "log"', "plan.unknown-key"),
        ('log = "log"', "", "plan.missing"),
        ('file = "accounts.csv"', 'file = "accounts.csv"\nsql = "x"', "plan.missing"),
        ('type = "clerk"\n', "", "plan.missing"),
        ('audit = "refusals.json"', 'audit = "refusals.json"\nmax_age = "1h"', "plan.value"),
        ('query = "SELECT clearance, changed FROM staff WHERE id = :id"\n', "", "plan.missing"),
        ('of = "resource"', 'of = "resources"', "plan.value"),
        ('attributes = ["owner", "balance"]', "attributes = []", "plan.value"),
        ('actions = ["account/read"]', 'actions = ["read"]', "component.required"),
        ('gives = ["action/amount"]', 'gives = ["amount"]', "component.required"),
    ],
)
def test_mistakes_are_refused(old: str, new: str, code: str) -> None:
    with pytest.raises(PenstockError) as raised:
        read_domain_plan(changed(old, new))
    assert raised.value.code == code


def test_a_specification_role_names_who_decides() -> None:
    role = '[roles."SR(1)"]\nkind = "PSP"\nwrite = ["SPOL_1"]\nread = ["APOL_1"]\n'
    plan = read_domain_plan(
        changed("[partners]", f'{role}decided_by = ["DR(1)"]\nresource_types = ["loan"]\n[partners]')
    )
    assert plan.roles["SR(1)"].decided_by == ("DR(1)",)
    assert plan.roles["SR(1)"].resource_types == frozenset({"loan"})
    for wrong in ("", 'decided_by = ["DR(9)"]\n', 'decided_by = ["ER(1)"]\n'):
        with pytest.raises(PenstockError) as raised:
            read_domain_plan(changed("[partners]", f"{role}{wrong}[partners]"))
        assert raised.value.code in ("plan.missing", "plan.value")


def test_a_mistyped_role_is_refused_with_a_suggestion() -> None:
    with pytest.raises(PenstockError) as raised:
        read_domain_plan(changed('role = "ER(1)"', 'role = "ER(3)"'))
    assert "ER(" in raised.value.hint


def test_names_in_a_plan_must_be_known(tmp_path: Path) -> None:
    (tmp_path / "bank.toml").write_text(changed('names = "names.toml"', ""))
    with pytest.raises(PenstockError) as raised:
        load_domain_plan(str(tmp_path / "bank.toml"))
    assert raised.value.code == "plan.principal"


@pytest.mark.parametrize(
    ("old", "new", "findings"),
    [
        ('partner = ["partner-pap"]\n', "", [("plan.partner-missing", "bank.roles:2")]),
        ('pdp-3 = ["decider(2)"]\n', "", [("plan.role-unreachable", "roles.DR(2)")]),
        ('staff = ["informant(2)"]', 'staff = ["informant(1)"]', [("plan.role-unreachable", "roles.IR(2)")]),
        ('[roles."LR(1)"]', '[roles."LR(1, 2)"]', [("plan.role-undeclared", "roles.LR(1, 2)")]),
        ('[roles."LR(1)"]', '[roles."LX(1)"]', [("plan.role-undeclared", "roles.LX(1)")]),
        ('[components.agency]\nrole = "ER(2)"', '[components.agency]\nrole = "ER(1)"', [
            ("plan.role-unused", "roles.ER(2)"), ("plan.action-unnamed", "components.agency.actions")
        ]),
        (', "IREP_1"]\ncombining = { policy', ', "IREP_3"]\ncombining = { policy', [
            ("plan.topic-unwritten", "IREP_3"), *(("plan.attribute-cut", "roles.DR(1)"),) * 3
        ]),
        ('"DREP_2", "IREQ_2"]', '"DREP_3", "IREQ_2"]', [
            ("plan.topic-unwritten", "DREP_2"), ("plan.topic-unread", "DREP_3"), ("plan.no-decision", "roles.ER(2)")
        ]),
        ('attributes = ["owner", "balance"]', 'attributes = ["owner"]', [("plan.attribute-missing", "roles.DR(1)")]),
        ('gives = ["action/amount"]', "", [("plan.attribute-missing", "roles.DR(1)")]),
        ('read = ["RPIP_2", "QPDP_2", "IREQ_2"]', 'read = ["RPIP_2", "QPDP_1", "IREQ_1"]', [
            ("plan.topic-unread", "IREQ_2"), ("plan.topic-unread", "QPDP_2"), ("plan.attribute-cut", "roles.DR(2)")
        ]),
        ('policies = ["bank.agencies"]', "policies = []", [
            ("plan.no-policies", "roles.DR(2)"),
            ("plan.action-undecided", "components.agency.actions"),
            ("plan.policy-unused", "agencies.policy"),
        ]),
        ('policies = ["bank.agencies"]', 'policies = ["bank.agencies", "bank.x"]', [
            ("plan.policy-unknown", "roles.DR(2)")
        ]),
        ('"bank.caution" = 1, bank = 1 }', "bank = 1 }", [
            ("plan.priority-missing", "roles.DR(1)")
        ]),
        ("priorities = { bank = 2, partner = 1 }", "", []),
        ('"bank.caution" = 1, bank', '"bank.caution" = 1, "bank.agencies" = 1, bank', [
            ("plan.priority-unknown", "roles.DR(1)")
        ]),
        ('combining.decision = "first"', "", [("plan.combining-missing", "roles.ER(1)")]),
        (', information = "first" }', " }", [("plan.combining-missing", "roles.DR(2)")]),
        ('combining.decision = "first"', 'combining.decision = "last"', [
            ("plan.combining", "roles.ER(1).combining.decision")
        ]),
        ('information = "first"', 'information = "n:1"', [("plan.combining", "roles.DR(2).combining.information")]),
        ('{ policy = "deny-overrides", information = "first"', '{ policy = "deny", information = "first"', [
            ("plan.combining", "roles.DR(2).combining.policy")
        ]),
        ('actions = ["account/read"]', 'actions = ["loan/read"]', [
            ("plan.action-undecided", "components.agency.actions")
        ]),
        ('actions = ["account/read"]', 'actions = ["account/raed"]', [
            ("plan.action-unnamed", "components.agency.actions")
        ]),
        ('actions = ["account/read"]', 'actions = ["account/*"]', []),
        ('pdp-3 = ["decider(2)"]', 'pdp-3 = ["decidr(2)"]', [
            ("plan.appointment-undeclared", "appointments.pdp-3"), ("plan.role-unreachable", "roles.DR(2)")
        ]),
    ],
)  # fmt: skip
def test_the_check_finds_what_does_not_work(
    tmp_path: Path, old: str, new: str, findings: list[tuple[str, str]]
) -> None:
    text = changed(old, new)
    if "LX" in new or "LR(1, 2)" in new:
        text = text.replace('role = "LR(1)"', f'role = "{new[8:-2]}"')
    found = codes(loaded(tmp_path, text))
    assert [(code, Path(where).name) for code, where in found] == findings


def test_misspelt_words_are_recognised(tmp_path: Path) -> None:
    text = changed('actions = ["account/read"]', 'actions = ["account/raed"]').replace(
        '= ["decider(2)"]', '= ["decidr(2)"]'
    )
    hints = {one.code: one.hint for one in check_domain(loaded(tmp_path, text))}
    assert hints["plan.action-unnamed"] == "did you mean `read`?"
    assert hints["plan.appointment-undeclared"] == "did you mean `decider`?"


def test_the_linter_of_roles_is_part_of_the_check(tmp_path: Path) -> None:
    rule = "activate LR(n) if appointment logger(n) *;"
    plan = loaded(tmp_path, bank=(rule, "activate LR(n) if role LR(n) *;"))
    assert [code for code, _ in codes(plan)] == ["role.unreachable", "role.cycle", "plan.role-unreachable"]


def test_a_role_needs_what_its_prerequisites_need(tmp_path: Path) -> None:
    rule = "activate LR(n) if appointment logger(n) *;"
    plan = loaded(tmp_path, bank=(rule, "activate LR(n) if role IR(n) *, appointment logger(n) *;"))
    assert codes(plan) == []
    plan = loaded(tmp_path, bank=(rule, "activate LR(n) if role ER(3) *, appointment logger(n) *;"))
    assert codes(plan) == [("plan.role-unreachable", "roles.LR(1)")]


def test_a_role_of_another_domain_needs_somebody_who_shows_it(tmp_path: Path) -> None:
    text = changed('agency = ["enforcer(2)"]\n', "")
    assert codes(loaded(tmp_path, text)) == [("plan.role-unreachable", "roles.ER(2)")]
    shown = text.replace('role = "ER(2)"', 'role = "ER(2)"\ncertificates = ["partner.cert"]')
    assert codes(loaded(tmp_path, shown)) == []


def test_components_of_other_files_count(tmp_path: Path) -> None:
    begin = BANK.index("[components.staff]")
    end = BANK.index("[components.log]")
    plan = loaded(tmp_path, BANK[:begin] + BANK[end:])
    assert codes(plan) == [("plan.role-unused", "roles.IR(2)"), ("plan.attribute-missing", "roles.DR(2)")]
    source = BANK[BANK.index("[sources.staff]") : BANK.index("# ---- Components")]
    own = BANK[begin:end].replace("role =", 'kind = "PIP"\nrole =')
    (tmp_path / "staff.toml").write_text(f'name = "bank"\nadministrators = ["{WHO}"]\n{source}{own}')
    other = load_domain_plan(str(tmp_path / "staff.toml"))
    assert check_domain(plan, [other]) == []
    with pytest.raises(PenstockError) as raised:
        check_domain(other)
    assert raised.value.code == "plan.missing"
    assert "penstock domain check PLAN FILE" in str(raised.value.hint)
    with pytest.raises(PenstockError) as raised:
        check_domain(loaded(tmp_path), [other])
    assert raised.value.code == "plan.twice"


def test_a_warning_is_not_a_problem(tmp_path: Path) -> None:
    text = changed('[components.pap-1]\nkind = "PAP"', '[components.log-2]\nrole = "LR(1)"\nlog = "l"')
    text = text.replace("strength = 2\n", "").replace("[components.pap-2]", "[components.log-3]")
    text = text.replace('kind = "PAP"\nkey', 'role = "LR(1)"\nlog = "l"\nkey').replace("strength = 1\n", "")
    found = check_domain(loaded(tmp_path, text))
    assert [(one.code, one.level) for one in found] == [("plan.no-administration", PlanLevel.WARNING)]


def test_a_plan_is_a_value() -> None:
    assert isinstance(read_domain_plan(BANK), DomainPlan)
    assert read_domain_plan(BANK) == read_domain_plan(BANK.encode())
