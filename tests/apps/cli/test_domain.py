"""`penstock domain` as people run it, with the example of an e-bank."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]  # it ships no types
import pytest
from tests.apps.conftest import Shell
from tests.apps.ebank_kit import WITHDRAW, amount, audited, set_up
from tests.apps.node_kit import bounded
from tests.copies import Copy

from penstock.apps.cli.shared.component_process import component_keys, with_own_id
from penstock.apps.component_host import ComponentHost, plan_fabric
from penstock.authority.components.component_factory import AnyComponent, make_component, role_configurations
from penstock.authority.components.exchange.samples import Configuration
from penstock.authority.components.exchange.topics import check_component_name
from penstock.authority.components.information.combining import CombinedInformation, TimedValue
from penstock.authority.components.plans.domain_plan import load_domain_plan
from penstock.authority.components.points.component import Component
from penstock.authority.components.points.decision import ConfiguredPolicies
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.decisions.messages import AnswerEffect
from penstock.authority.decisions.modes import AskedDecision
from penstock.authority.decisions.questions import AccessQuestion, Entity, facts_of
from penstock.crypto import SigningKey
from penstock.errors import FailedError, PenstockError
from penstock.fabric import EmbeddedFabric, FileKeeper
from penstock.testing.nats import NatsServer

_NUMBERS = count()


@pytest.fixture
def bank(penstock: Shell) -> Path:
    """Return the folder of the bank in a copy of the example."""
    return set_up(penstock)


def test_a_plan_is_checked(penstock: Shell, bank: Path) -> None:
    ran = penstock.ok("domain", "check", "bank/bank.toml")
    assert ran.out.startswith("✓ bank/bank.toml plans a domain that can run")
    assert "ER(1), ER(2)" in ran.out
    data = penstock.ok("domain", "check", "bank/bank.toml", "-o", "json").json
    assert data["ok"] is True
    assert data["findings"] == []
    assert data["roles"]["PDP"] == ["DR(1)", "DR(2)"]


def test_problems_are_shown_with_what_to_do(penstock: Shell, bank: Path) -> None:
    plan = bank / "bank.toml"
    plan.write_text(plan.read_text().replace('attributes = ["clearance"]', 'attributes = ["clearence"]'))
    ran = penstock("domain", "check", "bank/bank.toml")
    assert (ran.status, ran.code) == (1, "plan.problems")
    assert "policy `bank.agencies` of `DR(2)` needs `subject/clearance`, and nobody provides it" in ran.out
    assert "subject/clearence" in ran.out  # did you mean
    ran = penstock("domain", "check", "bank/bank.toml", "-o", "json")
    assert ran.status == 1
    assert [one["code"] for one in ran.json["findings"]] == ["plan.attribute-missing"]


def test_permissions_of_a_nats_server_are_generated(penstock: Shell, bank: Path) -> None:
    files = ("bank/bank.toml", "partner/desk-at-bank.toml")
    data = penstock.ok("domain", "nats-permissions", *files, "-o", "json").json
    users = {one["component"]: one for one in data["users"] if not one["joining"]}
    joining = {one["component"]: one for one in data["users"] if one["joining"]}
    assert joining.keys() == users.keys() - {"pap-1", "pap-2"}
    assert joining["atm"]["inbox"] == "_INBOX.joining.bank-atm"
    assert not any("JOIN" in one or "CONF" in one for one in users["atm"]["publish"])
    assert users["atm"]["inbox"] == "_INBOX.bank-atm"
    assert "penstock.i.bank-DREQ_1.atm.*" in users["atm"]["publish"]
    assert "penstock.i.bank-DREQ_2.desk-at-bank.*" in users["desk-at-bank"]["publish"]
    assert "$JS.API.STREAM.CREATE.penstock-partner-CONF_1" in users["pap-1"]["publish"]
    out = penstock.ok("domain", "nats-permissions", *files).out
    assert all(f"{{nkey: NKEY_OF_{name}, permissions: {{" in out for name in users)
    assert all(f"{{nkey: NKEY_OF_{name}_JOINING, permissions: {{" in out for name in joining)
    ran = penstock("domain", "nats-permissions", "bank/bank.toml", "partner/partner.toml")
    assert ran.code == "plan.value"


def test_an_attribute_of_another_name_is_not_proposed(penstock: Shell, bank: Path) -> None:
    plan = bank / "bank.toml"
    plan.write_text(plan.read_text().replace('["owner", "balance"]', '["owner"]'))
    assert "add it to a PIP's source, or to `gives` of the PEPs that ask" in penstock("domain", "check", str(plan)).out


def test_a_plan_without_names_says_which_command_makes_them(penstock: Shell, bank: Path) -> None:
    (bank / "names.toml").unlink()
    ran = penstock("domain", "check", "bank/bank.toml")
    assert (ran.status, ran.code) == (3, "file.missing")
    assert "`penstock domain new-keys bank/bank.toml`" in ran.err
    assert "new-keys" not in penstock("domain", "check", "bank/other.toml").err


def test_nobody_withdraws_while_refusals_are_not_known(bank: Path) -> None:
    role = role_configurations(load_domain_plan(str(bank / "bank.toml")))["DR(1)"]
    configuration = Configuration(
        "bank", "pdp-1", 1, b"x", policies=role.policies, combining=role.combining, priorities=role.priorities
    )
    policies = ConfiguredPolicies.of(configuration)
    account = Entity("account", "a-1", {"owner": "alice", "balance": 5})
    asked = AccessQuestion.of(("customer", "alice"), Entity("", "withdraw", {"amount": 1}), account)

    def decided(null: frozenset[str], **refusals: TimedValue) -> str:
        fields = {f"subject/{name}": value for name, value in refusals.items()}
        information = CombinedInformation(fields, null, frozenset(), frozenset())
        return policies.decide(facts_of(asked), information, 1_800_000_000.0).decision.plain

    assert decided(frozenset(), refusals=TimedValue("0", datetime.now(UTC))) == "Permit"
    assert decided(frozenset({"subject/refusals"})) == "Indeterminate"


def test_the_example_can_be_checked(penstock: Shell) -> None:
    text = penstock.ok("domain", "check", "--example").out
    (penstock.folder / "bank.toml").write_text(text)
    ran = penstock("domain", "check", "bank.toml")
    assert (ran.status, ran.code) == (3, "file.missing")  # the files that it names are not there
    assert penstock("domain", "check").code == "cli.usage"


def test_keys_are_made_once(penstock: Shell, bank: Path) -> None:
    before = (bank / "names.toml").read_bytes()
    again = penstock.ok("domain", "new-keys", "bank/bank.toml", "-o", "json").json
    assert [one["new"] for one in again["keys"]] == [False] * len(again["keys"])
    (bank / "keys" / "log.key").unlink()
    assert penstock("domain", "new-keys", "bank/bank.toml").code == "petname.exists"
    assert (bank / "names.toml").read_bytes() == before
    assert (bank / "keys" / "atm.key").stat().st_mode & 0o077 == 0


def test_questions_are_answered_by_the_whole_domain_in_one_process(penstock: Shell, bank: Path) -> None:
    ran = penstock.ok("component", "ask", "bank/bank.toml", "atm", *WITHDRAW, *amount(100))
    assert ran.out.startswith("✓ Permit")
    assert "bank.accounts" in ran.out
    clerk = ("--subject", "clerk:carol", "--action", "read", "--resource", "account:a-1")
    assert penstock.ok("component", "ask", "bank/bank.toml", "agency", *clerk).out.startswith("✓ Permit")
    # Who was refused three times is refused, whatever the balance is.
    audited(bank, alice=3)
    data = penstock("component", "ask", "bank/bank.toml", "atm", *WITHDRAW, *amount(1), "-o", "json")
    assert (data.status, data.json["effect"]) == (1, "Deny")
    lines = [line for file in (bank / "log").iterdir() for line in file.read_text().splitlines()]
    kinds = {json.loads(line)["data"]["kind"] for line in lines}
    assert kinds == {"QPEP", "DREQ", "DREP", "QPDP", "IREQ", "IREP"}


def test_a_component_that_is_not_there_or_not_a_pep_cannot_be_asked(penstock: Shell, bank: Path) -> None:
    ran = penstock("component", "ask", "bank/bank.toml", "amt", *WITHDRAW)
    assert (ran.status, ran.code) == (2, "cli.usage")
    assert "atm" in ran.err
    ran = penstock("component", "ask", "bank/bank.toml", "pdp-1", *WITHDRAW)
    assert ran.code == "cli.usage"
    assert "atm" in ran.err
    for verb in ("show", "reconfigure"):
        assert penstock("domain", verb, "bank/bank.toml").code == "cli.usage"  # nobody sees another process
    assert penstock("domain", "up", "bank/bank.toml", "--processes").code == "cli.usage"


def test_who_asks_has_an_id_of_its_own(bank: Path) -> None:
    loaded = load_domain_plan(str(bank / "bank.toml"))
    asking, own = with_own_id(loaded, "atm")
    (one,) = asking.plan.components.values()
    atm = loaded.plan.components["atm"]
    assert own.startswith("atm-ask-")
    assert (one.id, one.role, one.key) == (own, atm.role, atm.key)
    assert with_own_id(loaded, "atm")[1] != own
    long = replace(loaded, plan=replace(loaded.plan, components={"a" * 32: replace(atm, id="a" * 32)}))
    check_component_name(with_own_id(long, "a" * 32)[1])


def test_a_domain_with_problems_does_not_start(penstock: Shell, bank: Path) -> None:
    plan = bank / "bank.toml"
    plan.write_text(plan.read_text().replace('pdp-3 = ["decider(2)"]', ""))
    ran = penstock("domain", "up", "bank/bank.toml")
    assert (ran.status, ran.code) == (1, "plan.problems")


def on_nats(bank: Path, server: NatsServer) -> str:
    """Let the plan use a server, and return the domain's name, which no other test uses."""
    name = f"bank-{next(_NUMBERS)}"
    plan = bank / "bank.toml"
    fabric = f'[fabric.nats]\nservers = ["{server.url}"]\n\n[levels]'
    text = plan.read_text().replace('name = "bank"', f'name = "{name}"').replace("[levels]", fabric)
    text = text.replace("[appointments]", '[appointments]\ndesk = ["enforcer(1)"]')
    plan.write_text(text)
    head = text[: text.index("# ---- Roles")].splitlines(keepends=True)
    begin = "".join(line for line in head if not line.startswith(("role_policy", "policies", "mappings")))
    own = '[components.desk]\nkind = "PEP"\nrole = "ER(1)"\nkey = "keys/desk.key"\nactions = ["account/*"]\n'
    (bank / "desk.toml").write_text(begin + own)
    return name


@contextmanager
def running(*words: str) -> Iterator["Started"]:
    process = Copy([*words, "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with bounded(process):
        yield Started(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


class Started:
    """A command that runs, and prints a line of JSON for each event."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def until(self, event: str) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = json.loads(line)
            if found["event"] == event:
                return found
        assert self.process.stderr is not None
        raise AssertionError(self.process.stderr.read())


@pytest.mark.long
def test_a_domain_runs_is_shown_and_is_reconfigured(penstock: Shell, bank: Path, server: NatsServer) -> None:
    name = on_nats(bank, server)
    penstock.ok("domain", "new-keys", "bank/desk.toml")
    with running("domain", "up", "bank/bank.toml") as started:
        assert started.until("ready") == {"event": "ready", "domain": name, "joined": 11, "components": 11}
        shown = penstock.ok("domain", "show", "bank/bank.toml", "-o", "json").json
        assert (shown["configuration"], shown["absent"], shown["refused"]) == (1, [], 0)
        roles = {one["id"]: one["role"] for one in shown["components"]}
        assert roles["atm"] == "ER(1)"
        assert len(roles) == 9  # without the two PAPs
        assert "DREQ_1" in penstock.ok("domain", "show", "bank/bank.toml").out
        # Who asks with the key of a component that runs does not disturb it.
        assert penstock.ok("component", "ask", "bank/bank.toml", "atm", *WITHDRAW, *amount(400)).status == 0
        shown = penstock.ok("domain", "show", "bank/bank.toml", "-o", "json").json
        assert {one["id"]: one["role"] for one in shown["components"]} == roles
        # A component of another file joins.
        assert penstock.ok("component", "ask", "bank/desk.toml", "desk", *WITHDRAW, *amount(400)).status == 0
        # The plan changes, and with it the policies of those who have the role.
        assert penstock.ok("domain", "reconfigure", "bank/bank.toml", "--dry-run").out == "nothing changes\n"
        policy = bank / "accounts.policy"
        policy.write_text(policy.read_text().replace("amount <= balance", "amount <= balance and amount <= 300"))
        dry = penstock.ok("domain", "reconfigure", "bank/bank.toml", "--dry-run").out
        assert dry == "DR(1): pdp-1, pdp-2\n  policy bank.accounts changes\n2 components would be reconfigured\n"
        done = penstock.ok("domain", "reconfigure", "bank/bank.toml", "--notice", "100ms", "-o", "json").json
        assert (done["configuration"], done["lost"]) == (2, [])
        assert done["base"] >= done["expected"]
        assert penstock.ok("domain", "show", "bank/bank.toml", "-o", "json").json["configuration"] == 2
        assert penstock("component", "ask", "bank/desk.toml", "desk", *WITHDRAW, *amount(400)).status == 1
        assert penstock.ok("component", "ask", "bank/desk.toml", "desk", *WITHDRAW, *amount(200)).status == 0


def test_a_component_without_the_right_is_refused(penstock: Shell, bank: Path, server: NatsServer) -> None:
    on_nats(bank, server)
    penstock.ok("domain", "new-keys", "bank/desk.toml")
    file = bank / "desk.toml"
    file.write_text(file.read_text().replace('role = "ER(1)"', 'role = "ER(2)"'))
    with running("component", "up", "bank/bank.toml", "pap-1") as started:
        started.until("ready")
        ran = penstock("component", "up", "bank/desk.toml")
        assert (ran.status, ran.code) == (1, "component.rejected")


def test_components_of_another_domain_ask_about_their_own_subjects(penstock: Shell, bank: Path) -> None:
    """The desk of the partner has a role at the bank while it has one at home, and its employees are mapped."""

    async def ask(desk: AnyComponent, rank: int, of_type: str = "employee") -> AskedDecision:
        assert isinstance(desk, EnforcementComponent)
        return await desk.decide(AccessQuestion.of(Entity(of_type, "ann", {"rank": rank}), "read", ("account", "a-1")))

    async def test() -> None:
        codes: set[str] = set()

        def host(path: str) -> ComponentHost:
            loaded = load_domain_plan(path)
            keys = component_keys(loaded, (), None)
            return ComponentHost(loaded, fabric, keys, lambda _id, error: codes.add(error.code))

        fabric = EmbeddedFabric(keeper=FileKeeper(Path(":memory:")))
        async with fabric, host("bank/bank.toml"), host("partner/partner.toml") as partner:
            own = partner.components["desk"]
            assert isinstance(own, EnforcementComponent)
            file = AccessQuestion.of(Entity("employee", "ann", {"rank": 2}), "read", ("file", "7"))
            assert (await own.decide(file)).effect is AnswerEffect.PERMIT
            async with host("partner/desk-at-bank.toml") as abroad:
                desk = abroad.components["desk-at-bank"]
                assert isinstance(desk, EnforcementComponent)
                assert desk.certificate is not None
                assert desk.certificate.home == "partner"
                assert (await ask(desk, 4)).effect is AnswerEffect.PERMIT
                assert (await ask(desk, 2)).effect is AnswerEffect.DENY
                for rank, of_type in ((9, "employee"), (4, "visitor")):
                    unmapped = await ask(desk, rank, of_type)
                    assert unmapped.effect is AnswerEffect.INDETERMINATE
                    assert unmapped.answers[0].value.status == "foreign.unmapped"
                # The role at the bank ends with the one at home.
                await own.leave()
                async with asyncio.timeout(20):
                    while desk.configuration is not None:
                        await asyncio.sleep(0.01)
        assert "component.role-lost" in codes

    asyncio.run(test())


def test_components_with_one_key_show_each_other_s_roles(penstock: Shell, bank: Path) -> None:
    loaded = load_domain_plan("bank/bank.toml")
    (key, other), ids = [SigningKey(bytes([number]) * 32) for number in (1, 2)], ("pdp-1", "pdp-2", "atm")
    keys = dict(zip(ids, (key, key, other), strict=True))
    host = ComponentHost(loaded, EmbeddedFabric(), keys, lambda _id, _error: None)
    made = [host.components[id_] for id_ in ids]
    assert [one.beside for one in made if isinstance(one, Component)] == [[made[1]], [made[0]], []]


def test_if_one_component_cannot_join_all_leave(penstock: Shell, bank: Path) -> None:
    async def whole() -> list[bool]:
        loaded = load_domain_plan("bank/bank.toml")
        keys = component_keys(loaded, (), None)
        async with EmbeddedFabric(keeper=FileKeeper(Path(":memory:"))) as fabric:
            host = ComponentHost(loaded, fabric, keys, lambda _id, _error: None)

            async def unreachable() -> None:
                await asyncio.sleep(0.5)
                raise FailedError("fabric.unreachable", "the server does not answer")

            vars(host.components["pdp-2"])["join"] = unreachable
            with pytest.raises(FailedError):
                await host.__aenter__()
            return [one.joined for one in host.components.values() if isinstance(one, Component)]

    joined = asyncio.run(whole())
    assert joined == [False] * len(joined) != []


def test_an_older_mapping_is_not_applied_again(penstock: Shell, bank: Path) -> None:
    """A decision point remembers the number of the mapping, and does not start with a smaller one."""

    def made() -> str:
        try:
            loaded = load_domain_plan(str(bank / "bank.toml"))
            make_component(loaded, loaded.plan.components["pdp-1"], fabric, key, lambda _id, _error: None)
        except PenstockError as error:
            return error.code
        return ""

    def sign(*options: str) -> None:
        signing = ("bank/partner.toml", "--key", "bank/keys/pap-1.key", "--out", "bank/new.mapping", "--overwrite")
        penstock.ok("domain", "sign-mapping", *signing, *options)
        reviewing = ("bank/new.mapping", "--key", "partner/keys/partner-pap.key", "--out", "bank/partner.mapping")
        penstock.ok("domain", "review-mapping", *reviewing, "--overwrite")

    fabric, key = EmbeddedFabric(keeper=FileKeeper(Path(":memory:"))), SigningKey(bytes(32))
    mapping = bank / "partner.mapping"
    first = mapping.read_bytes()
    assert [made(), made()] == ["", ""]
    sign("--number", "2", "--days", "30")
    assert made() == ""
    mapping.write_bytes(first)
    assert made() == "foreign.rollback"
    sign("--number", "2", "--days", "31")
    assert made() == "foreign.number"
    # Administrators of a partner may not review what the plan does not name them for.
    plan = bank / "bank.toml"
    text = plan.read_text().partition("[reviewers]")
    plan.write_text("".join((*text[:2], text[2].replace("partner =", "other =", 1))))
    assert made() == "foreign.review"


def add_lender(penstock: Shell, bank: Path) -> None:
    """Add a PSP, which specifies a policy in Cedar when it joins."""
    plan = bank / "bank.toml"
    role = (
        '[roles."SR(1)"]\nkind = "PSP"\nwrite = ["SPOL_1"]\nread = ["APOL_1"]\n'
        'decided_by = ["DR(1)"]\nresource_types = ["loan"]\n\n[partners]'
    )
    text = (
        plan.read_text().replace("[partners]", role).replace("[appointments]", '[appointments]\nlender = ["author(1)"]')
    )
    text = text.replace('"account/withdraw"]', '"account/withdraw", "loan/read"]')
    plan.write_text(
        text + '\n[components.lender]\nrole = "SR(1)"\nkey = "keys/lender.key"\nspecifies = ["loans.cedar"]\n'
    )
    roles = "role SR(n: integer);\nappointment author(n: integer);\nactivate SR(n) if appointment author(n) *;\n"
    (bank / "bank.roles").write_text((bank / "bank.roles").read_text() + roles)
    (bank / "loans.cedar").write_text('permit(principal is customer, action == Action::"read", resource is loan);\n')
    penstock.ok("domain", "new-keys", "bank/bank.toml")


def test_others_specify_policies_in_other_languages(penstock: Shell, bank: Path) -> None:
    """The decision points of a PSP's rule decide by what it specifies."""
    add_lender(penstock, bank)
    loan = ("--subject", "customer:alice", "--action", "read", "--resource", "loan:7")
    ran = penstock("component", "ask", "bank/bank.toml", "atm", *loan, "--timeout", "60s")
    assert (ran.status, ran.err) == (0, "")
    assert "bank-2" in ran.out  # the identity that the PAP has given it


def test_a_domain_works_under_generated_permissions(penstock: Shell, bank: Path, tmp_path: Path) -> None:
    """Each component of the bank has its own users at the server, which let it join and use its topics alone."""
    add_lender(penstock, bank)
    config = penstock.ok("domain", "nats-permissions", "bank/bank.toml").out
    users = penstock.ok("domain", "nats-permissions", "bank/bank.toml", "-o", "json").json["users"]
    logins: dict[tuple[str, bool], dict[str, str]] = {}
    for one in users:
        name = f"{one['component']}{'_JOINING' if one['joining'] else ''}"
        seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
        (tmp_path / name).write_bytes(seed)
        config = config.replace(f"NKEY_OF_{name},", f"{nkeys.from_seed(bytearray(seed)).public_key.decode()},")
        logins[one["component"], one["joining"]] = {"nkey": str(tmp_path / name), "inbox": one["inbox"]}

    async def test(url: str) -> None:
        loaded, codes = load_domain_plan("bank/bank.toml"), set[str]()
        keys = component_keys(loaded, ("pap-1", "atm", "pdp-1", "accounts", "cautions", "log", "lender"), None)
        async with asyncio.timeout(60), AsyncExitStack() as stack:

            async def start(id_: str) -> AnyComponent:
                joining = {"joining": logins[id_, True]} if (id_, True) in logins else {}
                fabric = {"nats": {"servers": [url], **logins[id_, False]}, **joining}
                own = replace(loaded, plan=replace(loaded.plan, fabric=fabric))
                opened = await stack.enter_async_context(plan_fabric(own))
                host = ComponentHost(own, opened, {id_: keys[id_]}, lambda _id, error: codes.add(error.code))
                return (await stack.enter_async_context(host)).components[id_]

            await start("pap-1")
            atm, *_ = await asyncio.gather(*map(start, list(keys)[1:]))
            assert isinstance(atm, EnforcementComponent)
            withdraw = AccessQuestion.of(
                ("customer", "alice"), Entity("", "withdraw", {"amount": 1}), ("account", "a-1")
            )
            loan = AccessQuestion.of(("customer", "alice"), "read", ("loan", "7"))
            for asked in (withdraw, loan):
                assert (await atm.decide(asked)).effect is AnswerEffect.PERMIT
        assert codes <= {"pep.waiting"}

    with NatsServer(config=config) as server:
        asyncio.run(test(server.url))
    logged = "".join(file.read_text() for file in (bank / "log").iterdir())
    assert all(f'"{topic}"' in logged for topic in ("DREQ_1", "DREP_1", "IREQ_1", "IREP_1", "QPEP_1", "QPDP_1"))


@pytest.mark.long
def test_each_component_can_have_a_process_of_its_own(penstock: Shell, bank: Path, server: NatsServer) -> None:
    plan = bank.parent / "partner" / "partner.toml"
    fabric = f'[fabric.nats]\nservers = ["{server.url}"]\n\n[levels]'
    plan.write_text(plan.read_text().replace("[levels]", fabric))
    with running("domain", "up", "partner/partner.toml", "--processes") as started:
        for _ in range(3):
            started.until("joined")
        shown = penstock.ok("domain", "show", "partner/partner.toml", "-o", "json").json
        assert (len(shown["components"]), shown["absent"]) == (2, [])
