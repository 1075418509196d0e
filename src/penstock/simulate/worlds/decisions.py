"""Decision points that answer over a fabric, and enforcement points that recycle their answers.

Two decision points have the same policy, which says for each document which roles can read it. Each change comes to
them at different times. Each enforcement point has a secondary decision point, which follows their updates.

Steps:

- `ask PEP ROLES DOCUMENT`: an enforcement point asks for a subject with roles, as `a+c`.
- `policy NUMBER DELAY`: the decision points get another policy, the second one after a delay in seconds. Each bit of
  the number is a permission.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from itertools import combinations, product
from random import Random
from typing import Final

from penstock.authority.decisions.coverage import Coverage, covered
from penstock.authority.decisions.decision_point import PointDecision, PolicyDecisionPoint
from penstock.authority.decisions.enforcement_point import EnforcementPoint
from penstock.authority.decisions.messages import PolicyRevision, RoleRecycling
from penstock.authority.decisions.policy_changes import policy_changes
from penstock.authority.decisions.policy_feed import PolicyFeed
from penstock.authority.decisions.questions import RESOURCE_TYPE, AccessQuestion, Entity, facts_of
from penstock.authority.decisions.rights import DecisionRights
from penstock.authority.decisions.secondary_point import MAX_AGE, SecondaryPoint, SecondarySettings
from penstock.authority.limits import POINT_SKEW
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.lookup import Context, NoSources
from penstock.policy.language.policies import Root
from penstock.policy.language.requests import RESOURCE_ID
from penstock.policy.residual.request_sets import AnswerSets
from penstock.policy.syntax.forms import read_policies
from penstock.simulate.fabric import FABRIC
from penstock.simulate.scenario import SimulationStep
from penstock.simulate.simulation import START, Simulation
from penstock.simulate.worlds.world import ProcessTasks
from penstock.trust.capabilities import DecisionRight, decision_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials

_ROLES: Final = ("a", "b", "c")
_DOCUMENTS: Final = ("d0", "d1", "d2", "d3")
_GROUPS: Final = tuple(
    "+".join(group) for number in range(1, len(_ROLES) + 1) for group in combinations(_ROLES, number)
)
_PAIRS: Final = tuple(product(_DOCUMENTS, _ROLES))
_TIMEOUT: Final = 2.0
#: seconds after which nobody uses a policy that no decision point decides by: caches are cut off, requests end
_FORGOTTEN: Final = MAX_AGE + _TIMEOUT + POINT_SKEW
_RECYCLING: Final = RoleRecycling("roles")


def _key(name: str) -> SigningKey:
    return SigningKey(name.encode().ljust(32, b"."))


def _question(roles: str, document: str) -> AccessQuestion:
    subject = Entity("user", "ann", {"roles": [*roles.split("+")]})
    return AccessQuestion.of(subject, "read", ("document", document))


@dataclass(frozen=True)
class OfficePolicies:
    """One version of the policy, as the source of a decision point. Each bit of `permissions` lets a role read."""

    permissions: int
    changed: datetime

    @property
    def permitted(self) -> list[tuple[str, str]]:
        """The documents and roles that may read them."""
        return [pair for bit, pair in enumerate(_PAIRS) if self.permissions >> bit & 1]

    def answers(self) -> tuple[tuple[str, str], ...]:
        """Return what it decides for all requests, worked out without the policy engine."""
        permitted = {*self.permitted}
        return tuple(
            (
                f"{group}:{document}",
                "Permit" if any((document, role) in permitted for role in group.split("+")) else "Deny",
            )
            for group, document in product(_GROUPS, _DOCUMENTS)
        )

    @property
    def revision(self) -> str:
        """The name of this version."""
        return f"{self.permissions:x}@{self.changed.timestamp() - START:.3f}"

    @property
    def rests_on(self) -> tuple[PolicyRevision, ...]:
        """The policies that answers rest on."""
        return (PolicyRevision(self.root.id, self.revision, self.changed),)

    @cached_property
    def root(self) -> Root:
        """The policy."""
        rules = "".join(
            f'rule r{number} {{ permit target clause item == "{document}" and role == "{role}" }}\n'
            for number, (document, role) in enumerate(self.permitted)
        )
        text = f"""namespace office {{
            attribute sort {{ category = resource id = "{RESOURCE_TYPE}" type = string }}
            attribute item {{ category = resource id = "{RESOURCE_ID}" type = string }}
            attribute role {{ category = subject id = "roles" type = string }}
            policy documents {{ apply deny-unless-permit target clause sort == "document"
                {rules} }} }}"""
        return read_policies(text.encode()).policies[0]

    @cached_property
    def _compiled(self) -> CompiledPolicy:
        return CompiledPolicy(self.root)

    @cached_property
    def _sets(self) -> AnswerSets:
        return AnswerSets(self.root)

    def decide(self, question: AccessQuestion, now: datetime) -> PointDecision:
        """Decide a question."""
        context = Context(None, now, NoSources(), facts_of(question))
        outcome = self._compiled.evaluate(context)
        found = self._sets.holds_for(context, outcome)
        return PointDecision(outcome, self.rests_on, _RECYCLING, None if found is None else found.text)

    def coverage(self) -> Coverage:
        """Return the keys of the requests that it can resolve."""
        return covered(self.root, NoSources())


class DecisionsWorld:
    """See the module. Options: `peps`, `size`."""

    name = "decisions"
    fault_kinds = ("partition", "loss", "delay", "reorder", "slow", "stop", "crash", "skew", "jump")
    fault_amounts: Mapping[str, tuple[float, ...]] = {}
    fault_targets: Mapping[str, tuple[str, ...]] = {}
    step_kinds: Mapping[str, tuple[str, ...]] = {"ask": ("PEP", "ROLES", "DOCUMENT"), "policy": ("NUMBER", "DELAY")}
    option_names = ("peps",)
    seconds = 60.0

    def __init__(self, options: Mapping[str, int]) -> None:
        self._pdps = ("pdp1", "pdp2")
        self._peps = tuple(f"pep{number}" for number in range(1, options.get("peps", 2) + 1))
        self.processes = (*self._pdps, *self._peps, FABRIC)
        #: the files of each decision point, and what it decides by
        self._written: dict[str, OfficePolicies] = {}
        self._used: dict[str, OfficePolicies] = {}
        self._versions: list[OfficePolicies] = []
        self._ended = 0
        #: what decides, what announces changed policies, and a lock: changes are made one by one
        self._points: dict[str, tuple[PolicyDecisionPoint, PolicyFeed, asyncio.Lock]] = {}
        self._asking: dict[str, tuple[EnforcementPoint, SecondaryPoint]] = {}
        self._asked = 0

    def steps(self, random: Random, size: int, within: float) -> tuple[SimulationStep, ...]:
        """Draw questions, with a policy for each twelve of them."""
        found = []
        for number in range(size):
            at = round(random.uniform(0, within), 3)
            if number % 12 == 5:
                permissions, delay = random.randrange(1 << len(_PAIRS)), round(random.uniform(0, 3), 3)
                found.append(SimulationStep(at, "policy", (str(permissions), str(delay))))
            else:
                asked = random.choice(self._peps), random.choice(_GROUPS), random.choice(_DOCUMENTS)
                found.append(SimulationStep(at, "ask", asked))
        return tuple(sorted(found, key=lambda step: step.at))

    # --- Processes -----------------------------------------------------------------------------------------------

    async def start(self, simulation: Simulation) -> None:
        """Start all points."""
        self._simulation = simulation
        self._tasks = ProcessTasks(simulation)
        owner = _key("owner")
        certificates = [
            issue(
                Authorisation(owner.principal, _key(name).principal, decision_tag(owner.principal, rights=(right,))),
                owner,
            )
            for names, right in ((self._pdps, DecisionRight.DECIDE), (self._peps, DecisionRight.ASK))
            for name in names
        ]
        self._rights = DecisionRights(owner.principal, Credentials.of(*certificates))
        self._come(OfficePolicies(0b101_010_110_001, self._moment()))
        for process in (*self._pdps, *self._peps):
            await self.restart(process)
        await asyncio.sleep(5)

    def _come(self, policies: OfficePolicies) -> None:
        self._versions.append(policies)
        self._simulation.note("owner", "policy", version=policies.revision, answers=policies.answers())
        if len(self._versions) == 1:
            self._written = dict.fromkeys(self._pdps, policies)

    def _moment(self) -> datetime:
        """Return the time of a policy that comes now: later than that of the one before, or neither would be newer."""
        now = datetime.fromtimestamp(START + self._simulation.time, UTC)
        return max([now, *(one.changed + timedelta(milliseconds=1) for one in self._versions[-1:])])

    async def restart(self, process: str) -> None:
        """Start a process again: a decision point with the policies in its files."""
        if process == FABRIC:
            self._simulation.fabrics.start()
            return
        self._points.pop(process, None)
        self._asking.pop(process, None)
        main = self._decide_at if process in self._pdps else self._enforce_at
        self._tasks.supervise(process, partial(main, process))

    async def _decide_at(self, name: str) -> None:
        simulation, policies = self._simulation, self._written[name]
        fabric, clock = simulation.fabric(name), simulation.clock(name)
        self._use(name, policies)
        async with AsyncExitStack() as stack:
            feed = await stack.enter_async_context(PolicyFeed(fabric, _key(name), policies.rests_on, clock=clock))
            point = PolicyDecisionPoint(fabric, _key(name), policies, rights=self._rights, clock=clock)
            self._points[name] = await stack.enter_async_context(point), feed, asyncio.Lock()
            if self._written[name] is not policies:
                # It looks at its files again: they have changed while it started.
                await self._replace(name, self._written[name])
            await asyncio.Event().wait()

    async def _enforce_at(self, name: str) -> None:
        simulation = self._simulation
        fabric, clock = simulation.fabric(name), simulation.clock(name)
        settings = SecondarySettings(clock=clock, steady=clock.steady)
        async with SecondaryPoint(fabric, _key(name), self._rights.may_decide, None, settings) as secondary:
            point = EnforcementPoint(
                fabric,
                _key(name),
                self._rights,
                timeout=_TIMEOUT,
                clock=clock,
                random=simulation.random(name).randbytes,
                secondary=secondary,
            )
            async with point:
                self._asking[name] = point, secondary
                await asyncio.Event().wait()

    # --- Steps ---------------------------------------------------------------------------------------------------

    async def perform(self, step: SimulationStep) -> None:
        """Perform a step in the process that does it, without waiting for its end."""
        if step.name == "ask":
            pep, roles, document = step.arguments
            if self._simulation.runs(pep) and pep in self._asking:
                self._asked += 1
                self._tasks.start(pep, self._ask(pep, roles, document, f"{pep}.{self._asked}"))
            return
        policies = OfficePolicies(int(step.arguments[0]), self._moment())
        self._come(policies)
        for name, delay in zip(self._pdps, (0.0, float(step.arguments[1])), strict=True):
            await asyncio.sleep(delay)
            if self._written[name].changed < policies.changed:
                self._written[name] = policies
                if self._simulation.runs(name) and name in self._points:
                    self._tasks.start(name, self._replace(name, policies))

    async def _replace(self, name: str, policies: OfficePolicies) -> None:
        """Decide by other policies, as `penstock pdp serve` does."""
        point, feed, one_by_one = self._points[name]
        async with one_by_one:
            older = self._used[name]
            if older.changed >= policies.changed:
                return
            changes = policy_changes(older.root, policies.root, NoSources(), NoSources(), _RECYCLING.attribute)
            try:
                await feed.replace(policies.rests_on, changes)
            except PenstockError as error:
                self._simulation.note(name, "update-unsent", version=policies.revision, how=error.code)
            await point.replace(policies)
            self._use(name, policies)

    def _use(self, name: str, policies: OfficePolicies) -> None:
        self._used[name] = policies
        oldest = min(one.changed for one in self._used.values())
        while len(self._used) == len(self._pdps) and self._versions[self._ended].changed < oldest:
            version = self._versions[self._ended].revision
            ended = partial(self._simulation.note, "owner", "policy-ended", version=version)
            asyncio.get_running_loop().call_later(_FORGOTTEN, ended)
            self._ended += 1

    async def _ask(self, name: str, roles: str, document: str, request: str) -> None:
        simulation, asked = self._simulation, self._simulation.time
        point, secondary = self._asking[name]
        simulation.note(name, "asked", request=request)
        try:
            decision = await point.ask(_question(roles, document))
        except PenstockError as error:
            simulation.note(name, "ended", request=request, how=error.code)
            return
        effect = str(decision.effect)
        simulation.note(name, "ended", request=request, how=effect)
        fields = {"request": f"{roles}:{document}", "effect": effect}
        simulation.note(name, "answered", **fields, asked=asked)
        if decision.recycled is not None:
            by = decision.recycled.premises[0].answer.point
            simulation.note(name, "recycled", **fields, version=" ".join(secondary.cache.policies(by).values()))

    # --- The end -------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until old answers have ended, ask everything once, and note by which version each point decides."""
        await asyncio.sleep(_FORGOTTEN + 5)
        for number, pep in enumerate(self._peps):
            for document in _DOCUMENTS:
                if pep in self._asking:
                    await self.perform(SimulationStep(0.0, "ask", (pep, _GROUPS[number % len(_GROUPS)], document)))
        await asyncio.sleep(2 * _TIMEOUT)
        for name in self._pdps:
            self._simulation.note(name, "replica", of="policy", state=self._used[name].revision)
