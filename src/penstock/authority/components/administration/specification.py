"""PSPs specify policies for a domain, and its PAPs compile and apply them (paper 4, 4.1.1.2 and Figure 5).

    async with SpecificationComponent(fabric, key, ComponentSettings(domain="bank", id="psp1", …)) as psp:
        applied = await psp.specify("accounts", text, PolicyLanguage.CEDAR)   # SPOL, and APOL with the apply time

A PAP with rules (`PolicyAdministration`) decides about each policy in turn. (1) A rule lets the PSP's role specify
policies. (2) The policy is compiled to XACML, and gets its identity, which is the domain's name and a number, and its
change time. (3) It decides about nothing but the resource types of the rule. (4) The decision roles of the rule get it
by a reconfiguration. When all have applied it, the PSP learns the base time. A policy of the same author and name
replaces the earlier one and keeps its identity. If nothing changes, nobody is reconfigured.

Redundant PAPs agree: only the owner of CONF plans, and its plan on CONF says which policy it is about. Each PAP knows
from SPOL, CONF and APOL what is left to do, and goes on where another one stopped.
"""

import asyncio
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from penstock.authority.components.administration.administration_point import AdministrationComponent
from penstock.authority.components.administration.registry import AdministrationSettings
from penstock.authority.components.exchange.samples import (
    PolicyApplied,
    PolicyText,
    ReconfigurationPlan,
    RoleConfiguration,
    SampleContent,
    SpecifiedEntry,
    SpecifiedPolicy,
)
from penstock.authority.components.exchange.topics import (
    ComponentKind,
    TopicInstance,
    TopicKind,
    check_component_name,
    topic_name,
)
from penstock.authority.components.exchange.verification import VerifiedSample
from penstock.authority.components.information.dependencies import PolicyNeeds, action_name
from penstock.authority.components.points.component import Component
from penstock.authority.decisions.decision_point import Note, quiet
from penstock.crypto import Signer
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.fabric import Clock, Fabric, RandomBytes, Sample
from penstock.fabric.limits import FABRIC_BYTES
from penstock.policy.combining import POLICY_COMBINING
from penstock.policy.engine.lookup import NoSources
from penstock.policy.language.datatypes import STRING
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import Designator, Match, PolicySet, Root, function_of
from penstock.policy.language.requests import RESOURCE, RESOURCE_TYPE
from penstock.policy.syntax.forms import PolicyForm, compile_policy, form_of
from penstock.policy.syntax.xml.policies import write_policy

#: policies that one PSP can have in force, and that can wait to be applied
SPECIFIED_POLICIES: Final = 100
SPECIFIED_WAITING: Final = 16
#: bytes of one author's compiled policies in a role: a part of what a configuration can have, so others have room too
SPECIFIED_BYTES: Final = FABRIC_BYTES // 4
_APOL: Final = TopicInstance(TopicKind.APOL)
_ANY: Final = action_name(None, None).partition("/")[0]
_Extension = tuple[tuple[tuple[str, str, str], ...], tuple[tuple[str, int, str, int], ...]]
"""What a checkpoint says: identities by author and name, and by component and number what is planned."""
_Number = tuple[str, int]
"""A specified policy: the id of its PSP, and the number of the sample."""


class PolicyLanguage(StrEnum):
    """The language of a specified policy."""

    XACML = "xacml"
    TEXT = "text"
    CEDAR = "cedar"


_FORMS: Final[Mapping[str, tuple[PolicyForm, ...]]] = {
    PolicyLanguage.XACML: (PolicyForm.XML, PolicyForm.JSON),
    PolicyLanguage.TEXT: (PolicyForm.TEXT,),
    PolicyLanguage.CEDAR: (PolicyForm.CEDAR,),
}


# ----------------------------------------------------------------------------------------------------------------------
# The PSP.


class SpecificationComponent(Component):
    """A PSP. See the module."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._waiting: dict[int, asyncio.Future[PolicyApplied]] = {}

    async def specify(self, name: str, text: bytes, language: PolicyLanguage) -> PolicyApplied:
        """Specify a policy, or replace the one of that name, and wait until it is applied.

        Raises `RefusedError`: `specification.refused`, with the code of the reason in the field `reason`; as `write`.
        """
        return await self._submit(SpecifiedPolicy(name, language, text))

    async def withdraw(self, name: str) -> PolicyApplied:
        """Withdraw a policy, and wait until no decision rests on it. Raises as `specify`."""
        return await self._submit(SpecifiedPolicy(name, ""))

    async def _submit(self, policy: SpecifiedPolicy) -> PolicyApplied:
        number = self.next_number()
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self.write(TopicKind.SPOL, policy, number=number)
            applied = await self._waiting[number]
        finally:
            del self._waiting[number]
        if applied.refusal:
            raise RefusedError(
                "specification.refused",
                f"domain `{self.settings.domain}` refuses policy `{policy.name}`: {applied.refusal}",
                hint="correct the policy, or ask the administrator what this role can specify",
                reason=applied.refusal,
            )
        return applied

    async def received(self, sample: VerifiedSample) -> None:
        """Handle what became of a policy."""
        if isinstance(sample.record, PolicyApplied):
            waiting = self._waiting.get(sample.record.number)
            if waiting is not None and not waiting.done():
                waiting.set_result(sample.record)

    async def close(self) -> None:
        """Close all topics. The fate of policies that wait is not learned."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(RefusedError("component.not-joined", f"`{self.settings.id}` has left the domain"))
        await super().close()


# ----------------------------------------------------------------------------------------------------------------------
# What the PAPs of a domain know of specified policies. It is pure.


@dataclass(frozen=True, slots=True)
class SpecificationRule:
    """What components with a role may specify, and which decision roles, as `DR(1)`, get it."""

    decided_by: tuple[str, ...]
    #: resource types; None for all
    resource_types: frozenset[str] | None
    languages: frozenset[PolicyLanguage] = frozenset(PolicyLanguage)


@dataclass(slots=True)
class SpecificationBook:
    """Which policies were specified, planned and answered: a fold over SPOL, CONF and APOL."""

    domain: str
    rules: Mapping[str, SpecificationRule]
    #: not answered, in order
    waiting: dict[_Number, VerifiedSample] = field(default_factory=dict)
    #: planned and not answered: the identity, and the configuration number
    planned: dict[_Number, tuple[str, int]] = field(default_factory=dict)
    #: the identities of policies by the principal of their author, and name
    identities: dict[tuple[str, str], str] = field(default_factory=dict)
    #: by component: the number of the last sample that was answered. Those of a component are answered in order.
    answered: dict[str, int] = field(default_factory=dict)

    def submitted(self, sample: VerifiedSample) -> None:
        """Take in a sample of SPOL. Raises `RefusedError` (`component.flood`) if too many of its writer wait."""
        writer = sample.writer.id
        if sample.number <= self.answered.get(writer, 0):
            return
        if sum(component == writer for component, _ in self.waiting) >= SPECIFIED_WAITING:
            raise RefusedError("component.flood", f"{SPECIFIED_WAITING} policies of `{writer}` wait", component=writer)
        self.waiting[writer, sample.number] = sample

    def followed(self, plan: ReconfigurationPlan) -> None:
        """Take in a plan of CONF."""
        entry = plan.specified
        if entry is not None:
            self.identities[entry.principal, entry.name] = entry.policy
            if entry.number > self.answered.get(entry.component, 0):
                self.planned[entry.component, entry.number] = (entry.policy, plan.number)

    def told(self, applied: PolicyApplied) -> None:
        """Take in a sample of APOL."""
        self.answered[applied.id] = max(applied.number, self.answered.get(applied.id, 0))
        for known in (self.waiting, self.planned):
            known.pop((applied.id, applied.number), None)

    def applied(self, finished: Mapping[int, float]) -> list[PolicyApplied]:
        """Return the answers for policies that all have applied, by the base times of reconfigurations."""
        return [
            PolicyApplied(self.domain, component, number, policy, finished[configuration])
            for (component, number), (policy, configuration) in self.planned.items()
            if configuration in finished
        ]

    def unplanned(self) -> Iterator[VerifiedSample]:
        """Yield the first policy of each component, unless it is planned already."""
        first: dict[str, _Number] = {}
        for known in sorted((*self.waiting, *self.planned)):
            first.setdefault(known[0], known)
        yield from [self.waiting[one] for one in first.values() if one not in self.planned]

    def plan(
        self, sample: VerifiedSample, table: Mapping[str, RoleConfiguration], number: int, now: float
    ) -> tuple[dict[str, RoleConfiguration | None], SpecifiedEntry]:
        """Return the roles with a specified policy, and what the plan is about.

        Raises `RefusedError`: `specification.*`, `policy.reference`; and as `compile_policy`.
        """
        specified, principal = sample.record, str(sample.writer.principal)
        if not isinstance(specified, SpecifiedPolicy):
            raise TypeError("a specified policy")
        check_component_name(specified.name)
        rule = self.rules.get(sample.writer.role_name)
        if rule is None:  # (1)
            raise RefusedError("specification.rule", f"role `{sample.writer.role_name}` may not specify policies")
        rows = {role: table[role] for role in rule.decided_by if role in table}
        if len(rows) != len(rule.decided_by):
            raise RefusedError("specification.role", f"the domain lacks a role of {', '.join(rule.decided_by)}")
        identity = self.identities.get((principal, specified.name))
        if identity is None:
            mine = sum(author == principal for author, _ in self.identities)
            if not specified.text or mine >= SPECIFIED_POLICIES:
                code = "specification.limit" if specified.text else "specification.unknown"
                raise RefusedError(code, f"`{specified.name}` is unknown, or one policy too many")
            identity = self._new_identity(table, number)
        text = self._compiled(specified, rule, identity, str(number)) if specified.text else None
        roles: dict[str, RoleConfiguration | None] = {}
        for role, row in rows.items():
            policies = [one for one in row.policies if one.id != identity]
            if text is not None:
                own = {one for (author, _), one in self.identities.items() if author == principal}
                size = len(text) + sum(len(one.text) for one in policies if one.id in own)
                if size > SPECIFIED_BYTES:
                    message = f"the policies of one author have {size} bytes, more than {SPECIFIED_BYTES}"
                    raise RefusedError("specification.limit", message, hint="specify shorter or fewer policies")
                policies.append(PolicyText(identity, str(number), now, text))
            roles[role] = msgspec.structs.replace(row, policies=tuple(policies))
        entry = SpecifiedEntry(principal, specified.name, sample.writer.id, sample.number, identity)
        return roles, entry

    def unchanged(self, sample: VerifiedSample, table: Mapping[str, RoleConfiguration]) -> str | None:
        """Return the identity of a policy that is in force just as it is specified again. Raises as `plan`."""
        specified, rule = sample.record, self.rules.get(sample.writer.role_name)
        if not isinstance(specified, SpecifiedPolicy) or not specified.text or rule is None:
            return None
        identity = self.identities.get((str(sample.writer.principal), specified.name))
        known = [one for role in rule.decided_by if role in table for one in table[role].policies if one.id == identity]
        if identity is None or len(known) != len(rule.decided_by):
            return None
        same = all(self._compiled(specified, rule, identity, one.revision) == one.text for one in known)
        return identity if same else None

    def _new_identity(self, table: Mapping[str, RoleConfiguration], number: int) -> str:
        """Return an identity that no policy of the domain has or had: configuration numbers are used once."""
        taken = {one.id for row in table.values() for one in row.policies} | {*self.identities.values()}
        while f"{self.domain}-{number}" in taken:
            number += 1
        return f"{self.domain}-{number}"

    def _compiled(self, specified: SpecifiedPolicy, rule: SpecificationRule, identity: str, version: str) -> bytes:
        if specified.language not in rule.languages or form_of(specified.text) not in _FORMS[specified.language]:
            raise MalformedError("specification.language", f"the policy is not in `{specified.language[:40]}`")
        types = rule.resource_types
        if types is None:
            return write_policy(compile_policy(specified.text, identity, version))
        inner = compile_policy(specified.text, f"{identity}.0", version)  # (2)
        return write_policy(limited_to(types, inner, identity, version))  # (3)


def specified_policies(extension: bytes) -> frozenset[str]:
    """Return the identities of specified policies in a checkpoint's `extension`. Raises `MalformedError`."""
    return frozenset(policy for _, _, policy in _read_extension(extension)[0])


def _read_extension(extension: bytes) -> _Extension:
    try:
        return msgspec.msgpack.decode(extension, type=_Extension) if extension else ((), ())
    except msgspec.MsgspecError:
        raise MalformedError("component.sample", "a checkpoint does not say what was specified") from None


def limited_to(types: Collection[str], policy: Root, identity: str, version: str) -> PolicySet:
    """Return a policy set that decides about resources of some types as a policy, and about no others.

    Raises `RefusedError` (`specification.target`) if the policy names another type in a target: its author means
    something that it cannot do.
    """
    quoted = {action_name(one, None).partition("/")[0] for one in types}
    named = {one.partition("/")[0] for one in PolicyNeeds((policy,), NoSources()).actions} - {_ANY}
    if not named <= quoted:
        other = ", ".join(sorted(named - quoted))[:80]
        raise RefusedError(
            "specification.target",
            f"this role may specify policies for {', '.join(sorted(types))}, not for {other}",
            hint="leave the resource type out, or name one of these",
        )
    attribute = Designator(RESOURCE, RESOURCE_TYPE, STRING)
    same = function_of(f"{V1}string-equal")
    target = (tuple((Match(same, one, STRING, attribute),) for one in sorted(types)),)
    return PolicySet(identity, version, POLICY_COMBINING["deny-overrides"], (policy,), target)


# ----------------------------------------------------------------------------------------------------------------------
# The PAP.


class PolicyAdministration(AdministrationComponent):
    """A PAP that applies specified policies. See the module."""

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        fabric: Fabric,
        key: Signer,
        settings: AdministrationSettings,
        *,
        rules: Mapping[str, SpecificationRule],
        clock: Clock | None = None,
        random: RandomBytes = secrets.token_bytes,
        note: Note = quiet,
    ) -> None:
        super().__init__(fabric, key, settings, clock=clock, random=random, note=note)
        self.book = SpecificationBook(settings.domain, rules)

    async def _open(self) -> None:
        # What was answered before must be known first.
        await self._declare(_APOL)
        for sample in await self._fabric.state(topic_name(self.settings.domain, _APOL)):
            await self._hear_applied(sample)
        await self._read(_APOL, self._hear_applied)
        await super()._open()

    async def _hear_applied(self, sample: Sample) -> None:
        try:
            data = self.registry.opened(str(_APOL), sample.data)
            found = self._verifier.verify(data, _APOL, sample.key, sample.writer, self.now())
        except PenstockError as error:
            if error.code != "component.copy":  # what this PAP has written, or read before
                self._refuse(error)
            return
        if isinstance(found.record, PolicyApplied):
            self.book.told(found.record)

    async def policy_specified(self, sample: VerifiedSample) -> None:
        """Handle a policy that a PSP has specified."""
        if sample.writer.kind is ComponentKind.PSP:
            self.book.submitted(sample)
            await self._act()

    def extension(self) -> bytes:
        """Return which policies were specified and are not answered, and the identities of all."""
        return msgspec.msgpack.encode(
            (
                [(*place, policy) for place, policy in self.book.identities.items()],
                [(*place, *planned) for place, planned in self.book.planned.items()],
            )
        )

    def extend(self, extension: bytes) -> None:
        """Take over what was specified. Raises `MalformedError` (`component.sample`)."""
        identities, planned = _read_extension(extension)
        for principal, name, policy in identities:
            self.book.identities[principal, name] = policy
        for component, number, policy, configuration in planned:
            if number > self.book.answered.get(component, 0):
                self.book.planned[component, number] = policy, configuration

    def _apply(self, content: SampleContent, time: float, sample: Sample | None) -> None:
        super()._apply(content, time, sample)
        if isinstance(content, ReconfigurationPlan):
            self.book.followed(content)

    def _has_work(self) -> bool:
        finished = bool(self.book.applied(self.registry.finished))
        return super()._has_work() or finished or any(True for _ in self.book.unplanned())

    async def _work(self) -> None:
        await super()._work()
        await self._tell()  # then the next policy of the same component can be planned
        while samples := [*self.book.unplanned()]:
            for sample in samples:
                await self._plan(sample)
            await super()._work()  # what nobody has to apply is applied
            await self._tell()

    async def _plan(self, sample: VerifiedSample) -> None:
        """Announce the reconfiguration with a specified policy, or refuse the policy."""
        number, now = self.registry.number + 1, self.now()
        try:
            self._verifier.check(sample)  # its role may have ended while the policy waited
            same = self.book.unchanged(sample, self.registry.table)
            if same is not None:
                await self._answer(PolicyApplied(self.settings.domain, sample.writer.id, sample.number, same, now))
                return
            roles, entry = self.book.plan(sample, self.registry.table, number, now)
            self.registry.check_size(roles)
            await self._commit(ReconfigurationPlan(number, self.earliest(), roles, specified=entry))  # (4)
        except PenstockError as error:
            if error.code == "fabric.not-owner":
                raise
            self._note(error)
            await self._answer(PolicyApplied(self.settings.domain, sample.writer.id, sample.number, refusal=error.code))
        else:
            await self._announce(number)

    async def _tell(self) -> None:
        for answer in self.book.applied(self.registry.finished):
            await self._answer(answer)

    async def _answer(self, answer: PolicyApplied) -> None:
        """Tell a PSP what became of its policy. A word on CONF before proves that this PAP still owns it."""
        await self._commit(ReconfigurationPlan(reason=f"policy `{answer.policy}` of `{answer.id}`"))
        await self._write(_APOL, answer)
        self.book.told(answer)
