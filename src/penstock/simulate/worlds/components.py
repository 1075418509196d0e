"""A domain of authorization components: two PAPs, and PEPs, PDPs and PIPs that join, decide and are reconfigured.

Users are `u0` to `u9`, and each one's number is its rank, which PIPs know. Version `v7.3` of the policy permits whoever
has a rank above 3, and denies others, so that a decision tells which versions can have given it. If no PIP answers, the
decision is Indeterminate.

Steps:

- `ask PEP USER`: a PEP asks about a user.
- `policy RANK`: an administrator reconfigures the PDPs with another version.
- `admit NUMBER`: an administrator changes a fact.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.authority.components.administration.administration_point import RECALL, AdministrationComponent
from penstock.authority.components.administration.registry import AdministrationSettings
from penstock.authority.components.exchange.samples import AttributeQuery, DecisionReply, PolicyText, RoleConfiguration
from penstock.authority.components.exchange.topics import CONCEPTUAL_ROLES, ComponentKind, TopicLevels
from penstock.authority.components.exchange.verification import VerifiedSample
from penstock.authority.components.information.sources import EntityTable, FunctionAttributes
from penstock.authority.components.points.component import Component, ComponentSettings
from penstock.authority.components.points.decision import DecisionComponent
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.components.points.information import InformationComponent
from penstock.authority.decisions.questions import RESOURCE_TYPE, AccessQuestion
from penstock.authority.limits import POINT_SKEW
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.policy.combining import DecisionTuple
from penstock.policy.language.requests import ACTION_ID
from penstock.roles.engine import SetFact
from penstock.simulate.fabric import FABRIC
from penstock.simulate.scenario import SimulationStep
from penstock.simulate.simulation import Simulation
from penstock.simulate.worlds.world import ProcessTasks

if TYPE_CHECKING:
    from penstock.model.principals import Principal

_USERS: Final = 10
_PAPS: Final = ("pap1", "pap2")
_ROLES: Final = "".join(
    f"role {role}(n: integer);\nactivate {role}(n) if fact admitted(principal, '{role}', n) *;\n"
    for role in ("ER", "DR", "IR")
)
_UNANIMOUS: Final = DecisionTuple.of({"P": "#P > 0 and #D = 0", "D": "#D > 0 and #P = 0"})
_PEP_TOPICS: Final = ("APEP_1", "QPEP_1", "DREQ_1"), ("RPEP_1", "DREP_1")
_TABLE: Final[Mapping[str, RoleConfiguration]] = {
    "ER(1)": RoleConfiguration("PEP", *_PEP_TOPICS, {"decision": "n:2"}),
    "ER(2)": RoleConfiguration("PEP", *_PEP_TOPICS, {"decision": f"tuple:0.2:{_UNANIMOUS.id}"}),
    "DR(1)": RoleConfiguration(
        "PDP", ("APDP_1", "QPDP_1", "DREP_1", "IREQ_1"), ("RPDP_1", "QPEP_1", "DREQ_1", "IREP_1")
    ),
    "IR(1)": RoleConfiguration("PIP", ("APIP_1", "IREP_1"), ("RPIP_1", "QPDP_1", "IREQ_1")),
}
_KINDS: Final = {role: kind for kind, role in CONCEPTUAL_ROLES.items()}
_LEVELS: Final = TopicLevels(lifespan=5.0, lease=6.0)
#: seconds from a reconfiguration to its expected time
_NOTICE: Final = 1.0
#: and to the expected time that it gets: not before leases are over that were called back
_EXPECTED: Final = max(_NOTICE, 2 * RECALL)
#: seconds in which a domain must be whole again when faults have stopped
_SETTLES: Final = 180.0


def _role_of(name: str) -> str:
    """Return the role of a member: every other PEP combines the answers of all decision points."""
    if name.startswith("pep"):
        return "ER(1)" if int(name[3:]) % 2 else "ER(2)"
    return "DR(1)" if name.startswith("pdp") else "IR(1)"


def _key(name: str) -> SigningKey:
    return SigningKey(name.encode().ljust(32, b"."))


def _policy(number: int, rank: int) -> PolicyText:
    text = f"""namespace bank {{
    attribute sort {{ category = resource id = "{RESOURCE_TYPE}" type = string }}
    attribute does {{ category = action id = "{ACTION_ID}" type = string }}
    attribute rank {{ category = subject id = "rank" type = integer }}
    policy withdraw {{ apply deny-overrides target clause sort == "account" and does == "withdraw"
        rule high {{ permit condition rank > {rank} }}
        rule low {{ deny condition rank <= {rank} }} }} }}"""
    return PolicyText("withdraw", f"v{number}.{rank}", float(number), text.encode())


def _answers(rank: int) -> tuple[tuple[str, str], ...]:
    return tuple((f"u{user}", "Permit" if user > rank else "Deny") for user in range(_USERS))


async def _rank(query: AttributeQuery) -> Mapping[str, object]:
    return {"rank": int(query.id[1:])}


class ComponentsWorld:
    """See the module. Options: `peps`, `pdps`, `pips`, `size`."""

    name = "components"
    #: topics are reliable: nothing comes twice or in another order
    fault_kinds = ("partition", "loss", "delay", "slow", "stop", "crash", "skew", "jump")
    #: two minutes are longer than all times of this domain; it would have to wait for an hour, and speak all the time
    fault_amounts: Mapping[str, tuple[float, ...]] = {"jump": (-120.0, -20.0, 20.0, 120.0)}
    fault_targets: Mapping[str, tuple[str, ...]] = {}
    step_kinds: Mapping[str, tuple[str, ...]] = {"ask": ("PEP", "USER"), "policy": ("RANK",), "admit": ("NUMBER",)}
    option_names = ("peps", "pdps", "pips")
    seconds = 60.0

    def __init__(self, options: Mapping[str, int]) -> None:
        self._members = tuple(
            f"{kind}{number}"
            for kind, usual in (("pep", 2), ("pdp", 3), ("pip", 2))
            for number in range(1, options.get(f"{kind}s", usual) + 1)
        )
        self.processes = (*_PAPS, *self._members, FABRIC)
        self._paps: dict[str, AdministrationComponent] = {}
        self._components: dict[str, Component] = {}
        self._policies = 0
        self._asked = 0
        #: by PEP: under which configuration number each answer was written, by who wrote it and when
        self._under: dict[tuple[str, Principal, datetime], int] = {}
        #: the configuration numbers of policies that are not known to have ended
        self._numbers = {"v0.4": 1}

    def steps(self, random: Random, size: int, within: float) -> tuple[SimulationStep, ...]:
        """Draw questions, with a policy for each five and a fact for each ten of them.

        A third of the questions is asked shortly before or after a reconfiguration is expected.
        """
        peps = [name for name in self._members if name.startswith("pep")]
        found, policies = list[SimulationStep](), [0.0]
        for number in range(size):
            at = round(random.uniform(0, within), 3)
            if number % 5 == 1:
                found.append(SimulationStep(at, "policy", (str(random.randrange(_USERS)),)))
                policies.append(at)
            elif number % 10 == 5:
                found.append(SimulationStep(at, "admit", (str(number),)))
            else:
                if number % 3 == 0:
                    at = round(random.choice(policies) + _EXPECTED + random.uniform(-0.3, 0.1), 3)
                found.append(SimulationStep(at, "ask", (random.choice(peps), f"u{random.randrange(_USERS)}")))
        return tuple(sorted(found, key=lambda step: step.at))

    # --- Processes -----------------------------------------------------------------------------------------------

    async def start(self, simulation: Simulation) -> None:
        """Start the PAPs and then all members, and wait until they have joined."""
        self._simulation = simulation
        self._tasks = ProcessTasks(simulation)
        simulation.note("pap1", "policy", version="v0.4", answers=_answers(4))
        for process in (*_PAPS, *self._members):
            await self.restart(process)
        await self._until(lambda: len(self._components) == len(self._members))

    async def restart(self, process: str) -> None:
        """Start a process again; all that it knew is lost, but for what the fabric has stored."""
        if process == FABRIC:
            self._simulation.fabrics.start()
            return
        self._paps.pop(process, None)
        self._components.pop(process, None)
        main = self._administer if process.startswith("pap") else self._take_part
        self._tasks.supervise(process, partial(main, process))

    def _surroundings(self, process: str) -> dict[str, Any]:
        return {"clock": self._simulation.clock(process), "random": self._simulation.random(process).randbytes}

    async def _administer(self, name: str) -> None:
        settings = AdministrationSettings(
            domain="bank",
            id=name,
            administrators=frozenset({_key("pap1").principal, _key("pap2").principal}),
            roles=f"fact admitted(who: principal, role: string, n: integer);\n{_ROLES}",
            table={**_TABLE, "DR(1)": _decides(0, 4)},
            founding=tuple(
                SetFact("admitted", True, (str(_key(one).principal), _role_of(one)[:2], int(_role_of(one)[3])))
                for one in self._members
            ),
            levels=_LEVELS,
            notice=_NOTICE,
            strength=int(name == "pap1"),
        )
        fabric = self._simulation.fabric(name)
        pap = AdministrationComponent(fabric, _key(name), settings, **self._surroundings(name))
        await pap.join()
        self._paps[name] = pap

    async def _take_part(self, name: str) -> None:
        component, note = self._component(name), self._simulation.note
        note(name, "joining", component=name)
        try:
            await component.join()
        except PenstockError as error:
            note(name, "join-ended", component=name, how=error.code)
            raise
        else:
            note(name, "join-ended", component=name, how="joined")
            self._components[name] = component

    def _component(self, name: str) -> Component:
        role, around = _role_of(name), self._surroundings(name)
        settings = ComponentSettings(
            domain="bank",
            id=name,
            kind=_KINDS[role[:2]],
            role=role,
            administrators=frozenset({_key("pap1").principal, _key("pap2").principal}),
            levels=_LEVELS,
        )
        fabric, key = self._simulation.fabric(name), _key(name)

        def hear(error: PenstockError) -> None:
            if error.code == "component.role-lost":
                self._simulation.note(name, "joining", component=name)
            elif error.code == "component.rejoined":
                self._simulation.note(name, "join-ended", component=name, how="joined")

        if settings.kind is ComponentKind.PIP:
            source = FunctionAttributes(_rank, EntityTable("subject", "user", {"rank": "rank"}), around["clock"])
            return InformationComponent(fabric, key, settings, sources=[source], note=hear, **around)
        made = EnforcementComponent if settings.kind is ComponentKind.PEP else DecisionComponent
        component = made(fabric, key, settings, note=hear, **around)
        received = component.received

        async def observed(sample: VerifiedSample) -> None:
            """Remember the number of the configuration under which an answer was written."""
            if isinstance(sample.record, DecisionReply):
                written = datetime.fromtimestamp(sample.time, UTC)
                self._under[name, sample.writer.principal, written] = sample.written_under
            await received(sample)

        component.received = observed  # type: ignore[method-assign]  # only this one component's
        return component

    # --- Steps ---------------------------------------------------------------------------------------------------

    async def perform(self, step: SimulationStep) -> None:
        """Perform a step in the process that does it, without waiting for its end."""
        if step.name == "ask":
            pep, user = step.arguments
            if self._simulation.runs(pep) and pep in self._components:
                self._asked += 1
                self._tasks.start(pep, self._ask(pep, user, f"{pep}.{self._asked}"))
            return
        for name, pap in list(self._paps.items()):
            if self._simulation.runs(name) and pap.owns:
                work = self._reconfigure if step.name == "policy" else self._admit
                self._tasks.start(name, work(name, pap, int(step.arguments[0])))
                return

    async def _ask(self, name: str, user: str, request: str) -> None:
        simulation, pep, asked = self._simulation, self._components[name], self._simulation.time
        assert isinstance(pep, EnforcementComponent)  # noqa: S101  # for the type checker
        simulation.note(name, "asked", request=request)
        try:
            decision = await pep.decide(AccessQuestion.of(("user", user), "withdraw", ("account", "7")))
        except PenstockError as error:
            simulation.note(name, "ended", request=request, how=error.code)
            return
        simulation.note(name, "ended", request=request, how=str(decision.effect))
        versions = tuple(one.revision for answer in decision.answers for one in answer.value.rests_on)
        under = tuple(self._under[name, one.value.point, one.value.issued] for one in decision.answers)
        for configurations in (versions, under):
            simulation.note(name, "decision", request=request, configurations=configurations)
        if decision.effect in ("Permit", "Deny"):
            simulation.note(name, "answered", request=user, effect=str(decision.effect), asked=asked)

    async def _reconfigure(self, name: str, pap: AdministrationComponent, rank: int) -> None:
        note = self._simulation.note
        self._policies += 1
        version = f"v{self._policies}.{rank}"
        # It may be in force even if this PAP never learns of it.
        note(name, "policy", version=version, answers=_answers(rank))
        try:
            number = await pap.reconfigure({"DR(1)": _decides(self._policies, rank), "ER(1)": _asks(self._policies)})
            self._numbers[version] = number
            await pap.base_time(number)
        except PenstockError as error:
            note(name, "reconfigured", version=version, how=error.code)
            return
        note(name, "reconfigured", version=version, how="done")
        # All have applied it. A clock may be behind that of others.
        await asyncio.sleep(POINT_SKEW)
        for older in [one for one, its in self._numbers.items() if its < number]:
            del self._numbers[older]
            note(name, "policy-ended", version=older)

    async def _admit(self, name: str, pap: AdministrationComponent, number: int) -> None:
        try:
            await pap.change_roles([SetFact("admitted", True, (str(_key("other").principal), "ER", number))])
        except PenstockError as error:
            self._simulation.note(name, "not-admitted", how=error.code)
        else:
            self._simulation.note(name, "acknowledged", of="domain", change=str(number))

    # --- The end -------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until all PAPs have one state and all members work by one configuration, and note what they have."""
        await asyncio.sleep(2 * _LEVELS.lifespan)
        await self._until(self._whole, self._ahead())
        note = self._simulation.note
        for name, pap in self._paps.items():
            facts = pap.registry.engine.facts("admitted")
            other = str(_key("other").principal)
            note(name, "replica", of="domain", state=pap.registry.digest.hex()[:16])
            note(name, "holds", of="domain", changes=tuple(str(n) for who, _, n in facts if who == other))
        for name in self._members:
            member = self._components.get(name)
            note(name, "replica", of="configuration", state=0 if member is None else member.number)

    def _whole(self) -> bool:
        states = {pap.registry.digest for pap in self._paps.values()}
        members = [self._components.get(name) for name in self._members]
        numbers = {0 if one is None or not one.joined else one.number for one in members}
        moving = any(pap.registry.progress for pap in self._paps.values())
        return len(self._paps) == 2 and len(states) == len(numbers) == 1 and 0 not in numbers and not moving

    def _ahead(self) -> float:
        """Return the last time that a PAP can have written from the future: the other one does nothing until then."""
        last, ahead = 0.0, dict.fromkeys(_PAPS, 0.0)
        for entry in self._simulation.log:
            match entry.fields:
                case {"fault": "jump", "seconds": float() | int() as seconds, "where": (str(process), str(amount))} if (
                    process in _PAPS
                ):
                    # A clock can jump again before it is right.
                    ahead[process] += max(0.0, float(amount))
                    last = max(last, entry.at + seconds + ahead[process])
        return last

    async def _until(self, reached: Any, ahead: float = 0.0) -> None:
        end = max(self._simulation.time, ahead) + _SETTLES
        while not reached() and self._simulation.time < end:
            await asyncio.sleep(0.25)


def _asks(number: int) -> RoleConfiguration:
    """Return the role of half of the PEPs: they wait for one answer, or for two."""
    row = _TABLE["ER(1)"]
    return RoleConfiguration(row.kind, row.write, row.read, {"decision": f"n:{1 + number % 2}"})


def _decides(number: int, rank: int) -> RoleConfiguration:
    row = _TABLE["DR(1)"]
    return RoleConfiguration(row.kind, row.write, row.read, policies=(_policy(number, rank),))
