"""Try a domain plan: run its components in virtual time, ask their requests, and report what does not work.

    report = simulate_domain(load_domain_plan("bank.toml"))
    report.findings, report.joins, report.responses

The components are those that `penstock domain up` runs, made by the same code: PAPs admit the others by the role
policy, PEPs ask PDPs, PDPs ask PIPs. What is simulated is the machine: the clock, the network, the keys, and what
sources of attributes know, because requests are made up (`requests`). Nothing is written, and no private key is read
unless a component shows certificates.

| code | finding |
|---|---|
| `plan.*`, `role.*` | a finding of `penstock domain check` |
| `simulate.join-unfinished` | a component waits for an answer to its request to join, which never comes |
| `simulate.join-refused` | a PAP refuses a component: the conditions that are missing are named |
| `simulate.join-failed` | a component cannot work with the configuration that it gets |
| `simulate.not-simulated` | a component shows certificates, and its key cannot be read (a warning) |
| `simulate.role-untaken` | all components that ask for a role are refused |
| `simulate.no-answer` | a request ends without a decision |
| `simulate.no-information` | a request ends without attributes that its decision needs |
| `simulate.undecided` | a request ends with Indeterminate for another reason |
| `simulate.unexpected` | a request is decided otherwise than the policies of its decision roles say |
| `simulate.overloaded` | requests are answered alone, and some of many a second are not |
| `simulate.slow` | 99 of 100 requests of a PEP take longer than they may |
| `simulate.policy-incomplete` | no policy decides about a request (a warning) |
| `simulate.policy-inconsistent` | two policies of one rank contradict each other about a request (a warning) |
| `simulate.decisions-differ` | decision roles answer a request differently, and the first answer wins |
| `simulate.decision-changed` | compared with today's plan: requests are decided otherwise |
| `simulate.change-lost` | a component loses its role while roles change from today's to planned ones |
| `simulate.change-unanswered` | requests that are answered today end without a decision while roles change |
"""

import asyncio
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

from penstock.authority.components.administration.administration_point import AdministrationComponent
from penstock.authority.components.administration.specification import SpecificationComponent
from penstock.authority.components.component_factory import (
    AnyComponent,
    make_component,
    role_configurations,
    show_roles,
    specify_policies,
)
from penstock.authority.components.exchange.samples import (
    AttributeQuery,
    DecisionReply,
    DecisionRequest,
    InformationReply,
    RoleConfiguration,
)
from penstock.authority.components.exchange.topics import ComponentKind
from penstock.authority.components.exchange.topics_lists import parse_role
from penstock.authority.components.exchange.verification import VerifiedSample
from penstock.authority.components.information.sources import (
    AttributeSource,
    EntityTable,
    FoundAttribute,
    FoundAttributes,
)
from penstock.authority.components.plans.domain_check import PlanFinding, PlanLevel, check_domain
from penstock.authority.components.plans.domain_plan import ComponentPlan, LoadedPlan, SourcePlan
from penstock.authority.components.points.component import Component
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.decisions.messages import AnswerEffect
from penstock.codec.sexp import parse
from penstock.crypto import PublicKey, SigningKey, StoredKey, read_key
from penstock.errors import PenstockError
from penstock.fabric import Clock
from penstock.fabric.envelope import MICROSECONDS
from penstock.model.principals import Principal
from penstock.policy.syntax.json.requests import Json
from penstock.roles.engine import OpenSession
from penstock.roles.explain import explain_activation
from penstock.roles.language import read_policy as read_role_policy
from penstock.simulate.network import Conditions, Latency
from penstock.simulate.plans.requests import DomainFinding, PlanRequest, changed_decisions, planned_requests
from penstock.simulate.simulation import START, ServiceTimes, Simulation
from penstock.store.files.files import read_file

#: virtual seconds: for which components may join, and in which they learn of each other
_JOINING: Final = 60.0
_SETTLING: Final = 1.0
#: what a component reports that has lost its role
_LOST: Final = "component.role-lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainTrial:
    """How to try a plan."""

    seed: int = 0
    #: when the simulation begins, in seconds since 1970: dates in certificates and policies are compared with it
    now: float = START
    times: ServiceTimes = field(default_factory=ServiceTimes)
    #: how long messages are under way
    latency: Latency = field(default_factory=Latency)
    #: seconds in which a source answers
    source_time: float = 0.001
    #: requests of each PEP with which response times are measured, and how many come in a second
    requests: int = 100
    rate: float = 20.0
    #: seconds below which 99 of 100 requests of a PEP must be answered; None for any time
    within: float | None = None


@dataclass(frozen=True, slots=True)
class JoinOutcome:
    """What became of a component's request to join: `joined` after so many seconds, or why not."""

    component: str
    kind: ComponentKind
    role: str
    state: str
    seconds: float
    reason: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "component": self.component,
            "kind": str(self.kind),
            "role": self.role,
            "state": self.state,
            "seconds": self.seconds,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    """Response times of one action of one PEP, in seconds, and the mean of each part (section 6 of paper 4).

    The parts of a request are those of the answer after which the PEP decided: the latency of the request, the decision
    without and the information, the latency of the answer, and combining with everything else that the PEP does.
    """

    component: str
    action: str
    seconds: tuple[float, ...]
    parts: Mapping[str, float]

    def at(self, share: float) -> float:
        """Return the time below which this share of the requests is answered."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "component": self.component,
            "action": self.action,
            "requests": len(self.seconds),
            "median": self.at(0.5),
            "p99": self.at(0.99),
            "parts": dict(self.parts),
        }


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """A request that was asked once, and its end: the effect, or the code of the error."""

    request: PlanRequest
    end: str


@dataclass(frozen=True, slots=True)
class DomainReport:
    """What a simulation of a domain plan has found."""

    domain: str
    findings: tuple[PlanFinding, ...]
    joins: tuple[JoinOutcome, ...]
    asked: tuple[AskedRequest, ...]
    responses: tuple[ResponseTimes, ...]
    #: the share of time in which the processor of each component is busy while requests come
    busy: Mapping[str, float]
    #: what the analysis of policies does not understand or compare
    unknown: tuple[str, ...]
    trace: str

    @property
    def problems(self) -> tuple[PlanFinding, ...]:
        """The findings with which the domain does not work as planned."""
        return tuple(one for one in self.findings if one.level is PlanLevel.PROBLEM)

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "ok": not self.problems,
            "domain": self.domain,
            "findings": [one.as_dict() for one in self.findings],
            "joins": [one.as_dict() for one in self.joins],
            "requests": [
                {
                    "component": one.request.component,
                    "action": one.request.action,
                    "request": one.request.as_dict(),
                    "decisions": dict(one.request.decisions),
                    "end": one.end,
                }
                for one in self.asked
            ],
            "responses": [one.as_dict() for one in self.responses],
            "busy": dict(self.busy),
            "unknown": list(self.unknown),
            "trace": self.trace,
        }


def simulate_domain(
    loaded: LoadedPlan, others: Sequence[LoadedPlan] = (), trial: DomainTrial | None = None
) -> DomainReport:
    """Try a plan; `others` are component files of the same domain. Raises as `check_domain`."""
    findings: list[PlanFinding] = list(check_domain(loaded, others))
    whole, files = _with_components(loaded, others)
    with TemporaryDirectory() as folder:
        run = _DomainRun(whole, files, trial or DomainTrial(), Path(folder))
        return run.report(findings)


def _with_components(loaded: LoadedPlan, others: Sequence[LoadedPlan]) -> tuple[LoadedPlan, dict[str, LoadedPlan]]:
    """Return a plan that has the components of other files too, and the file of each component."""
    components = {id_: one for each in (loaded, *others) for id_, one in each.plan.components.items()}
    sources = {name: one for each in (loaded, *others) for name, one in each.plan.sources.items()}
    files = {id_: each for each in (loaded, *others) for id_ in each.plan.components}
    return replace(loaded, plan=replace(loaded.plan, components=components, sources=sources)), files


@dataclass(frozen=True, slots=True)
class ReconfigurationOutcome:
    """What happens while the roles of a running domain are changed: until all have applied it, in seconds."""

    roles: tuple[str, ...]
    seconds: float
    #: components that lose their roles, because they do not apply it in time; they may join again later
    lost: tuple[str, ...]
    #: how many requests were asked meanwhile
    requests: int
    #: by component and action: how requests ended that have no decision
    unanswered_ends: Mapping[tuple[str, str], tuple[str, ...]]

    @property
    def unanswered(self) -> int:
        """How many requests ended without a decision."""
        return sum(map(len, self.unanswered_ends.values()))

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "roles": list(self.roles),
            "seconds": self.seconds,
            "lost": list(self.lost),
            "requests": self.requests,
            "unanswered": self.unanswered,
        }


@dataclass(frozen=True, slots=True)
class RoleChanges:
    """Roles that only the planned domain has, that only today's has, and that both have with different contents."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {"added": list(self.added), "removed": list(self.removed), "changed": list(self.changed)}


@dataclass(frozen=True, slots=True)
class DomainComparison:
    """A planned domain beside that of today, and the change from one to the other while it runs."""

    today: DomainReport
    planned: DomainReport
    #: decisions that change, each with a request
    decisions: tuple[DomainFinding, ...]
    roles: RoleChanges
    #: the change of `roles.changed`; None if there are none, or if no PAP of today's domain joins
    change: ReconfigurationOutcome | None

    @property
    def findings(self) -> tuple[DomainFinding, ...]:
        """What goes wrong while roles change: components that lose their roles, and requests without a decision."""
        return () if self.change is None else tuple(_judge_change(self.change, self.today))

    @property
    def new(self) -> tuple[PlanFinding, ...]:
        """Findings of the planned domain that today's does not have."""
        return _beyond(self.planned, self.today)

    @property
    def gone(self) -> tuple[PlanFinding, ...]:
        """Findings of today's domain that the planned one does not have."""
        return _beyond(self.today, self.planned)

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "new": [one.as_dict() for one in self.new],
            "gone": [one.as_dict() for one in self.gone],
            "decisions": [one.as_dict() for one in self.decisions],
            "roles": self.roles.as_dict(),
            "findings": [one.as_dict() for one in self.findings],
            "change": None if self.change is None else self.change.as_dict(),
            "today": self.today.as_dict(),
        }


def _content(row: RoleConfiguration) -> object:
    """Return what a role gives, without the times at which its policies were written."""
    policies = [(one.id, one.revision) for one in row.policies]
    return row.kind, row.write, row.read, row.combining, row.priorities, policies


def _beyond(one: DomainReport, other: DomainReport) -> tuple[PlanFinding, ...]:
    known = {(each.code, each.where) for each in other.findings}
    return tuple(each for each in one.findings if (each.code, each.where) not in known)


def compare_domains(
    today: LoadedPlan, planned: LoadedPlan, trial: DomainTrial | None = None, *, others: Sequence[LoadedPlan] = ()
) -> DomainComparison:
    """Try two plans of one domain, and the change from the first to the second.

    `others` are component files that belong to both plans. Raises as `simulate_domain`.
    """
    trial = trial or DomainTrial()
    before, after = simulate_domain(today, others, trial), simulate_domain(planned, others, trial)
    old, new = role_configurations(today), role_configurations(planned)
    roles = RoleChanges(
        tuple(role for role in new if role not in old),
        tuple(role for role in old if role not in new),
        tuple(role for role in old if role in new and _content(new[role]) != _content(old[role])),
    )
    whole, files = _with_components(today, others)
    change = None
    if roles.changed and any(one.kind is ComponentKind.PAP and one.state == "joined" for one in before.joins):
        with TemporaryDirectory() as folder:
            run = _DomainRun(whole, files, trial, Path(folder))
            change = run.reconfigure({role: new[role] for role in roles.changed})
    decisions = changed_decisions(whole, _with_components(planned, others)[0], trial.now)
    return DomainComparison(before, after, tuple(decisions), roles, change)


def _judge_change(change: ReconfigurationOutcome, today: DomainReport) -> Iterator[DomainFinding]:
    """Yield what goes wrong while roles change, except for requests that have no answer in today's trial either."""
    roles = ", ".join(f"`{role}`" for role in change.roles)
    for id_ in change.lost:
        message = f"`{id_}` loses its role in the change of {roles}"
        hint = "components must apply a change within `apply_within`: compare it with --latency"
        yield DomainFinding("simulate.change-lost", f"components.{id_}", message, hint)
    silent = {(one.request.component, one.request.action) for one in today.asked if _is_unanswered(one.end)}
    overloaded = {one.where for one in today.findings if one.code == "simulate.overloaded"}
    for (id_, action), ends in sorted(change.unanswered_ends.items()):
        where = f"components.{id_}"
        if (id_, action) not in silent and where not in overloaded:
            most = max(sorted({*ends}), key=ends.count)
            message = (
                f"{len(ends)} requests of `{id_}` to `{action}` end without a decision ({most}) "
                f"in the change of {roles}"
            )
            hint = "see whether components lose their roles, and whether the planned domain answers these requests"
            yield DomainFinding("simulate.change-unanswered", where, message, hint)


# ----------------------------------------------------------------------------------------------------------------------
# Keys: a simulation has its own.


def simulated_key(name: str) -> SigningKey:
    """Return a key for a simulation, the same one for the same name."""
    return SigningKey(hashlib.sha256(f"simulated {name}".encode()).digest())


def _stored_key(loaded: LoadedPlan, one: ComponentPlan) -> StoredKey | None:
    with suppress(PenstockError):
        return read_key(parse(read_file(str(loaded.folder / one.key))))
    return None


def _principal(stored: StoredKey | None) -> Principal | None:
    return None if stored is None else stored.principal if isinstance(stored, PublicKey) else stored.public.principal


def _with_simulated_keys(
    loaded: LoadedPlan, files: Mapping[str, LoadedPlan]
) -> tuple[LoadedPlan, dict[str, SigningKey], list[PlanFinding]]:
    """Return a plan whose components have other keys, and these keys.

    A component that shows certificates needs its own key. If it cannot be read, the component does not take part.
    """
    components = loaded.plan.components
    stored = {id_: _stored_key(files[id_], one) for id_, one in components.items()}
    principals = {id_: _principal(stored[id_]) or files[id_].principals.get(id_) for id_ in components}
    showing = {principals[id_] for id_, one in components.items() if one.certificates}
    keys: dict[str, SigningKey] = {}
    replaced: dict[Principal, Principal] = {}
    findings: list[PlanFinding] = []
    for id_, principal in principals.items():
        key = stored[id_]
        if principal not in showing:
            keys[id_] = simulated_key(str(principal or id_))
            if principal is not None:
                replaced[principal] = keys[id_].principal
        elif isinstance(key, SigningKey):
            keys[id_] = key
        else:
            message = f"`{id_}` shows certificates of its own key, which cannot be read here"
            hint = "name a key file without a passphrase"
            findings.append(
                PlanFinding("simulate.not-simulated", f"components.{id_}.key", message, hint, PlanLevel.WARNING)
            )

    def other(one: Principal) -> Principal:
        return replaced.get(one, one)

    roles = loaded.roles
    if roles is not None:
        source = roles.source
        for real, new in replaced.items():
            source = source.replace(str(real), str(new))
        roles = read_role_policy(source)
    changed = replace(
        loaded,
        principals={name: other(one) for name, one in loaded.principals.items()},
        administrators=tuple(dict.fromkeys(map(other, loaded.administrators))),
        partners={domain: frozenset(map(other, those)) for domain, those in loaded.partners.items()},
        roles=roles,
    )
    return changed, keys, findings


# ----------------------------------------------------------------------------------------------------------------------
# Sources: what they know follows from the requests.


KnownEntities: TypeAlias = dict[tuple[str, str], Mapping[str, Json]]
"""Attributes of entities, by category and id."""


class SimulatedAttributes(AttributeSource):
    """A source that knows the entities of the requests that are asked."""

    def __init__(self, table: EntityTable, clock: Clock, known: KnownEntities, seconds: float) -> None:
        super().__init__(table, clock)
        self._known = known
        self._seconds = seconds

    async def _read(self, query: AttributeQuery, wanted: Sequence[str]) -> FoundAttributes:
        await self._clock.sleep(self._seconds)
        known = self._known.get((query.category, query.id))
        return {} if known is None else {name: FoundAttribute(known.get(name), 0.0) for name in wanted}  # type: ignore[arg-type]  # plain values


# ----------------------------------------------------------------------------------------------------------------------
# The run.


@dataclass(slots=True)
class _Exchange:
    """When the samples of one request arrived, by who answered: the request, the answer, and when each was written."""

    began: float = 0.0
    #: by PDP: when it had the request, in seconds
    asked: dict[str, float] = field(default_factory=dict)
    #: by PDP: when it wrote the answer, and when the PEP had it
    answered: dict[str, tuple[float, float]] = field(default_factory=dict)
    #: by PDP: when it asked for information, and when it had the last of it
    informed: dict[str, tuple[float, float]] = field(default_factory=dict)

    def has(self, number: int) -> bool:
        """Return whether a request with this number was written since the exchange began."""
        return number >= round(self.began * MICROSECONDS)


class _DomainRun:
    def __init__(self, loaded: LoadedPlan, files: Mapping[str, LoadedPlan], trial: DomainTrial, folder: Path) -> None:
        self.trial = trial
        self.findings: list[PlanFinding] = []
        self.loaded, self.keys, found = _with_simulated_keys(loaded, files)
        self.findings += found
        self.files = files
        if loaded.plan.topic_secret:
            secret = folder / "topics.secret"
            secret.write_text(hashlib.sha256(b"simulated topics").hexdigest())
            self.loaded = replace(self.loaded, plan=replace(self.loaded.plan, topic_secret=str(secret)))
        self.simulation = Simulation(trial.seed, trial.times)
        self.simulation.network.conditions = Conditions(trial.latency)
        for process in ("fabric", *self.keys):
            self.simulation.clock(process).offset = trial.now - START
        #: what sources know about the entities of requests
        self.known: KnownEntities = {}
        self.joins: dict[str, JoinOutcome] = {}
        #: how the requests of the measurement ended, by component and action
        self.ends: dict[tuple[str, str], list[str]] = {}
        self.exchange = _Exchange()
        self.components: dict[str, AnyComponent] = {}
        for id_ in self.keys:
            try:
                self.components[id_] = self._component(id_, folder)
            except PenstockError as error:
                message = f"`{id_}` cannot start: {error.message}"
                self.findings.append(DomainFinding("simulate.join-failed", f"components.{id_}", message, error.hint))
        show_roles(self.components, self.keys)

    def _component(self, id_: str, folder: Path) -> AnyComponent:
        simulation, trial = self.simulation, self.trial
        clock = simulation.clock(id_)

        def source(_: LoadedPlan, one: SourcePlan, at: Clock) -> AttributeSource:
            table = EntityTable(one.of, one.type, one.attributes, one.id, one.changed or None)
            return SimulatedAttributes(table, at, self.known, trial.source_time)

        # Nothing is written to the folders of the plan.
        planned = replace(
            self.loaded.plan.components[id_], log=str(folder / id_), applied=str(folder / f"{id_}.applied")
        )
        component = make_component(
            replace(self.loaded, path=self.files[id_].path),
            planned,
            simulation.fabric(id_),
            self.keys[id_],
            self._note,
            clock=clock,
            random=simulation.random(id_).randbytes,
            source=source,
        )
        if isinstance(component, Component):
            self._observe(id_, component)
        return component

    def _note(self, id_: str, error: PenstockError) -> None:
        self.simulation.note(id_, "reported", code=error.code, message=error.message)

    def _observe(self, id_: str, component: Component) -> None:
        """Record when samples of requests arrive at a component."""
        received, clock = component.received, self.simulation.clock(id_)

        async def observed(sample: VerifiedSample) -> None:
            now, exchange, kind = clock.now(), self.exchange, component.settings.kind
            # The number of a request is the time at which it was written: samples of earlier requests do not count.
            match sample.record:
                case DecisionRequest() if kind is ComponentKind.PDP and exchange.has(sample.number):
                    exchange.asked.setdefault(id_, now)
                case DecisionReply(id=asker, number=number) if asker == id_ and exchange.has(number):
                    exchange.answered.setdefault(sample.writer.id, (sample.time, now))
                case InformationReply(id=asker, number=number) if asker == id_ and id_ in exchange.asked:
                    # A PDP may still ask for what an earlier request needed.
                    asked = exchange.asked[id_]
                    if number >= round(asked * MICROSECONDS):
                        began = max(asked, number / MICROSECONDS)
                        exchange.informed[id_] = (min(began, exchange.informed.get(id_, (began, now))[0]), now)
            await received(sample)

        component.received = observed  # type: ignore[method-assign]  # what a component receives is not changed

    # --- Steps ---------------------------------------------------------------------------------------------------

    def report(self, findings: Iterable[PlanFinding]) -> DomainReport:
        planned = planned_requests(self.loaded, self.trial.now)
        asked: list[AskedRequest] = []
        responses: list[ResponseTimes] = []
        busy: dict[str, float] = {}

        async def drive() -> None:
            await self._join_all()
            await asyncio.sleep(_SETTLING)
            parts: dict[tuple[str, str], list[dict[str, float]]] = {}
            for request in planned.requests:
                if self._joined(request.component):
                    end, took = await self._probe(request)
                    asked.append(AskedRequest(request, end))
                    parts.setdefault((request.component, request.action), []).append(took)
            responses.extend(await self._measure(planned.requests, parts, busy))
            unanswered = {(one.request.component, one.request.action) for one in asked if _is_unanswered(one.end)}
            self._judge_load(unanswered)

        with self.simulation:
            self.simulation.run(drive())
            self._explain_joins()
            for one in asked:
                self._judge(one)
        self._judge_times(responses)
        found: dict[tuple[str, str, str], PlanFinding] = {}
        for finding in (*findings, *self.findings, *planned.findings):
            # Several requests can show the same.
            found.setdefault((finding.code, finding.where, finding.message), finding)
        return DomainReport(
            self.loaded.plan.name,
            tuple(sorted(found.values(), key=lambda one: one.level is not PlanLevel.PROBLEM)),
            tuple(self.joins[id_] for id_ in self.components),
            tuple(asked),
            tuple(responses),
            busy,
            planned.unknown,
            self.simulation.trace,
        )

    def reconfigure(self, changed: Mapping[str, RoleConfiguration]) -> ReconfigurationOutcome:
        """Change roles of the running domain while requests come."""
        requests = planned_requests(self.loaded, self.trial.now).requests
        for request in requests:
            self.known |= request.entities()
        # The strongest PAP owns the configuration.
        plans = self.loaded.plan.components
        paps = [id_ for id_, one in self.components.items() if isinstance(one, AdministrationComponent)]
        pap = max(paps, key=lambda id_: plans[id_].strength)

        async def administer() -> float:
            component = self.components[pap]
            if not isinstance(component, AdministrationComponent):
                raise TypeError("a PAP")
            number = await component.reconfigure(changed)
            return await component.base_time(number)

        async def drive() -> ReconfigurationOutcome:
            await self._join_all()
            await asyncio.sleep(_SETTLING)
            members = {id_ for id_ in self.components if self._joined(id_)}
            noted = len(self.simulation.log)
            asking = self._arrivals(requests)
            clock = self.simulation.clock(pap)
            began = clock.now()
            base = await self.simulation.start(pap, administer())
            if asking:
                await asyncio.wait(asking)
            # Components hear of it a little later that they have lost their roles, and join again.
            await asyncio.sleep(_SETTLING)
            away = {id_ for id_ in members if isinstance(one := self.components[id_], Component) and not one.joined}
            told = {entry.process for entry in self.simulation.log[noted:] if entry.fields.get("code") == _LOST}
            unanswered: dict[tuple[str, str], list[str]] = {}
            for request, end, _ in (task.result() for task in asking):
                if _is_unanswered(end):
                    unanswered.setdefault((request.component, request.action), []).append(end)
            return ReconfigurationOutcome(
                tuple(changed),
                base - began,
                tuple(sorted(away | (told & members))),
                len(asking),
                {asked: tuple(ends) for asked, ends in unanswered.items()},
            )

        with self.simulation:
            return self.simulation.run(drive())

    def _joined(self, id_: str) -> bool:
        return id_ in self.joins and self.joins[id_].state == "joined"

    async def _join_all(self) -> None:
        """Let PAPs join, then all others together, as a host does; wait as long as virtual time is patient."""
        first = [id_ for id_, one in self.components.items() if isinstance(one, AdministrationComponent)]
        for ids in (first, [id_ for id_ in self.components if id_ not in first]):
            joining = [self.simulation.start(id_, self._join(id_)) for id_ in ids]
            if joining:
                await asyncio.wait(joining, timeout=_JOINING)
        for id_, one in self.loaded.plan.components.items():
            if id_ in self.components and id_ not in self.joins:
                waits = "no PAP answers its request to join"
                self.joins[id_] = JoinOutcome(id_, one.kind, one.role, "unfinished", _JOINING, waits)

    async def _join(self, id_: str) -> None:
        component, planned = self.components[id_], self.loaded.plan.components[id_]
        began = self.simulation.time

        def outcome(state: str, reason: str = "") -> None:
            seconds = self.simulation.time - began
            self.joins[id_] = JoinOutcome(id_, planned.kind, planned.role, state, seconds, reason)
            self.simulation.note(id_, state, reason=reason)

        try:
            await component.join()
        except PenstockError as error:
            refused = error.code == "component.rejected"
            outcome("refused" if refused else "failed", str(error.fields.get("reason", error.code)))
            return
        outcome("joined")
        if isinstance(component, SpecificationComponent):
            await specify_policies(self.loaded, component, self._note)

    async def _ask(self, request: PlanRequest) -> str:
        """Ask a request, and return its end."""
        component = self.components[request.component]
        if not isinstance(component, EnforcementComponent):
            raise TypeError("a request of an enforcement point")
        try:
            decision = await component.decide(request.question)
        except PenstockError as error:
            return error.code
        refusal = decision.refusal()
        if decision.effect is AnswerEffect.INDETERMINATE and refusal is not None:
            return f"{decision.effect}: {refusal.fields.get('reason', '')}"
        return str(decision.effect)

    async def _probe(self, request: PlanRequest) -> tuple[str, dict[str, float]]:
        """Ask a request alone, and return its end and how long its parts took."""
        self.known |= request.entities()
        clock = self.simulation.clock(request.component)

        async def ask() -> tuple[str, float]:
            self.exchange = _Exchange(clock.now())
            return await self._ask(request), clock.now()

        end, ended = await self.simulation.start(request.component, ask())
        self.simulation.note(request.component, "asked", action=request.action, end=end)
        return end, _parts(self.exchange, ended)

    async def _measure(
        self,
        requests: Sequence[PlanRequest],
        parts: Mapping[tuple[str, str], list[dict[str, float]]],
        busy: dict[str, float],
    ) -> list[ResponseTimes]:
        """Let requests come at random times, and return how long they took."""
        before = {id_: self.simulation.process(id_).spent for id_ in self.components}
        started = self.simulation.time
        asking = self._arrivals(requests)
        taken: dict[tuple[str, str], list[float]] = {}
        if asking:
            await asyncio.wait(asking)
            lasted = self.simulation.time - started
            busy |= {id_: (self.simulation.process(id_).spent - one) / lasted for id_, one in before.items()}
        for task in asking:
            request, end, seconds = task.result()
            taken.setdefault((request.component, request.action), []).append(seconds)
            self.ends.setdefault((request.component, request.action), []).append(end)
        return [
            ResponseTimes(
                component,
                action,
                tuple(seconds),
                {name: _mean([one.get(name, 0.0) for one in parts.get((component, action), ())]) for name in PARTS},
            )
            for (component, action), seconds in sorted(taken.items())
        ]

    def _arrivals(self, requests: Sequence[PlanRequest]) -> "list[asyncio.Task[tuple[PlanRequest, str, float]]]":
        """Let the PEPs that have joined ask requests at random times: each task ends with the end and the time."""
        trial, random = self.trial, self.simulation.random("arrivals")

        async def ask(request: PlanRequest, wait: float) -> tuple[PlanRequest, str, float]:
            await asyncio.sleep(wait)
            clock = self.simulation.clock(request.component)
            began = clock.now()
            return request, await self._ask(request), clock.now() - began

        tasks: list[asyncio.Task[tuple[PlanRequest, str, float]]] = []
        for id_ in dict.fromkeys(one.component for one in requests):
            own = [one for one in requests if one.component == id_]
            wait = 0.0
            for number in range(trial.requests if self._joined(id_) else 0):
                wait += random.expovariate(trial.rate)
                tasks.append(self.simulation.start(id_, ask(own[number % len(own)], wait)))
        return tasks

    # --- Findings ------------------------------------------------------------------------------------------------

    def _explain_joins(self) -> None:
        for one in self.joins.values():
            where = f"components.{one.component}"
            match one.state:
                case "unfinished":
                    message = f"`{one.component}` never finishes joining{_as(one)}: {one.reason}"
                    hint = "add a PAP to the plan, or give the file that has one"
                    self.findings.append(DomainFinding("simulate.join-unfinished", where, message, hint))
                case "refused":
                    message = f"`{one.component}` may not join{_as(one)} ({one.reason})"
                    missing = self._missing(one)
                    hint = "appoint it in `appointments`, let it show a certificate, or add a rule to the role policy"
                    message = f"{message}: {missing}" if missing else message
                    self.findings.append(DomainFinding("simulate.join-refused", where, message, hint))
                case "failed":
                    message = f"`{one.component}` cannot work{_as(one)} ({one.reason})"
                    hint = "look at the policies and combining algorithms of its role"
                    if one.reason.startswith("fabric."):
                        hint = "the fabric does not answer in time: see whether --latency is what you meant"
                    self.findings.append(DomainFinding("simulate.join-failed", where, message, hint))
        for role in self.loaded.plan.roles:
            wanting = [one for one in self.joins.values() if one.role == role]
            if wanting and not any(one.state == "joined" for one in wanting):
                message = f"nobody can take `{role}`: {', '.join(one.component for one in wanting)} could not join"
                self.findings.append(DomainFinding("simulate.role-untaken", f"roles.{role}", message))

    def _missing(self, join: JoinOutcome) -> str:
        """Return what the rules of a role need that a component does not have, as a PAP of the run sees it."""
        paps = [one for one in self.components.values() if isinstance(one, AdministrationComponent)]
        if not paps or join.reason != "role.denied":
            return ""
        engine = paps[0].registry.engine
        session = f"explain-{join.component}"
        name, arguments = parse_role(join.role)
        try:
            engine.apply(OpenSession(session, self.keys[join.component].principal))
            found = explain_activation(engine, session, name, arguments)
        except PenstockError as error:
            return error.message
        if not found.attempts:
            return found.refused or "no rule activates this role with these arguments"
        return "; or ".join(
            f"line {attempt.line} of {self.loaded.plan.role_policy} needs "
            + " and ".join(f"`{one.condition}` ({one.reason})" for one in attempt.missing)
            for attempt in found.attempts
            if attempt.missing
        )

    def _judge(self, one: AskedRequest) -> None:
        request, end = one.request, one.end
        where, asked = f"components.{request.component}", f"a request of `{request.component}` to `{request.action}`"
        expected = set(request.decisions.values())
        if end.startswith("Indeterminate"):
            reason = end.partition(": ")[2]
            if reason == "missing-attribute":
                code, message = "simulate.no-information", f"{asked} ends without information that its decision needs"
                hint = "see which attribute is missing in the request; its source must be for entities of this type"
            else:
                code, message, hint = "simulate.undecided", f"{asked} is Indeterminate ({reason})", ""
        elif _is_unanswered(end):
            code, message = "simulate.no-answer", f"{asked} ends without a decision ({end})"
            hint = "let a decision role that decides about it read the requests, and let a component take that role"
        elif expected and end not in expected:
            code, message = (
                "simulate.unexpected",
                f"{asked} ends with {end}; by its policies, it is {_listed(expected)}",
            )
            hint = "look at what information points answer, and how answers are combined"
        else:
            return
        self.findings.append(DomainFinding(code, where, message, hint, request=request.as_dict()))

    def _judge_load(self, unanswered: Collection[tuple[str, str]]) -> None:
        """Report requests of the measurement that end without a decision, but for those that have none alone either."""
        for (component, action), ends in sorted(self.ends.items()):
            missing = [end for end in ends if _is_unanswered(end)]
            if not missing or (component, action) in unanswered:
                continue
            most = max(sorted({*missing}), key=missing.count)
            message = (
                f"{len(missing)} of {len(ends)} requests of `{component}` to `{action}` end without a decision ({most})"
                f" when it asks {self.trial.rate:g} times a second"
            )
            hint = (
                "a component writes one sample after another, and waits for the fabric each time: ask less often,"
                " or let more components take the role"
            )
            self.findings.append(DomainFinding("simulate.overloaded", f"components.{component}", message, hint))

    def _judge_times(self, responses: Iterable[ResponseTimes]) -> None:
        within = self.trial.within
        for one in responses:
            if within is not None and one.at(0.99) > within:
                message = (
                    f"99 of 100 requests to `{one.action}` take up to {one.at(0.99) * 1e3:,.1f} ms, "
                    f"more than {within * 1e3:g} ms"
                )
                slowest = max(PARTS, key=lambda name: one.parts[name])
                hint = f"most of it is {PARTS[slowest]}"
                self.findings.append(DomainFinding("simulate.slow", f"components.{one.component}", message, hint))


#: the parts of a response time, and what they are
PARTS: Final[Mapping[str, str]] = {
    "request": "the latency of the request",
    "decision": "the slowest decision, without information",
    "information": "information for the decision",
    "answer": "the latency of the answer",
    "combining": "combining answers, and what else the PEP does",
}
_EFFECTS: Final = frozenset(map(str, AnswerEffect))


def _parts(exchange: _Exchange, ended: float) -> dict[str, float]:
    """Return how long the parts of a request took, by the last answer before its end. They add up to its time."""
    began = exchange.began
    before = [(arrived, pdp) for pdp, (_, arrived) in exchange.answered.items() if arrived <= ended]
    if not before:
        return {"combining": ended - began}
    arrived, pdp = max(before)
    written, asked = exchange.answered[pdp][0], exchange.asked.get(pdp, began)
    start, last = exchange.informed.get(pdp, (asked, asked))
    informed = min(last, written) - start
    found = {
        "request": asked - began,
        "decision": written - asked - informed,
        "information": informed,
        "answer": arrived - written,
    }
    return {**found, "combining": ended - began - sum(found.values())}


def _is_unanswered(end: str) -> bool:
    """Return whether a request ended without a decision, not even Indeterminate."""
    return end.partition(":")[0] not in _EFFECTS


def _as(join: JoinOutcome) -> str:
    return f" as `{join.role}`" if join.role else ""


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _listed(words: Iterable[str]) -> str:
    return " or ".join(sorted(words))
