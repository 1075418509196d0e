"""The components of a domain plan, made and run: the fabric, the components, and a host for some of them.

    async with plan_fabric(loaded) as fabric:
        async with ComponentHost(loaded, fabric, keys, note) as host:     # PAPs first, then the others
            await host.components["atm"].decide(question)

Everything that a component needs is in its plan (docs/reference/domain-plan.md), except for passphrases of keys.
"""

import asyncio
import hashlib
import importlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeAlias

from penstock.apps.node.config import read_nats
from penstock.apps.node.load import nats_login
from penstock.authority.components.administration.administration_point import AdministrationComponent
from penstock.authority.components.administration.registry import AdministrationSettings
from penstock.authority.components.administration.specification import (
    PolicyAdministration,
    PolicyLanguage,
    SpecificationComponent,
    SpecificationRule,
)
from penstock.authority.components.exchange.samples import PolicyText, RoleConfiguration
from penstock.authority.components.exchange.topics import ComponentKind
from penstock.authority.components.exchange.topics_lists import parse_role
from penstock.authority.components.information.attribute_mapping import remember_mappings
from penstock.authority.components.information.dependencies import action_name
from penstock.authority.components.information.sources import (
    AttributeFunction,
    AttributeSource,
    EntityTable,
    FileAttributes,
    FunctionAttributes,
    HttpAttributes,
    SqlAttributes,
)
from penstock.authority.components.plans.domain_check import policy_combining
from penstock.authority.components.plans.domain_plan import (
    PLAN_FILE,
    PLAN_NAMING,
    SHARED_FABRICS,
    ComponentPlan,
    LoadedPlan,
    SourcePlan,
)
from penstock.authority.components.points.component import Component, ComponentSettings
from penstock.authority.components.points.decision import DecisionComponent
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.components.points.information import InformationComponent
from penstock.authority.components.points.log_point import AuditAttributes, LogComponent
from penstock.crypto import Signer
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.fabric import Clock, EmbeddedFabric, Fabric, FileKeeper, SystemClock
from penstock.fabric.addresses import open_fabric
from penstock.policy.language.policies import PolicyReference, PolicySet, Root
from penstock.policy.syntax.forms import PolicyForm, form_of
from penstock.policy.syntax.text.policy_writer import write_text
from penstock.roles.engine import Appoint, RoleChange
from penstock.store.files.files import read_file, replace_file, within
from penstock.store.files.named_files import NamedFiles

AnyComponent: TypeAlias = Component | AdministrationComponent
HostNote: TypeAlias = Callable[[str, PenstockError], None]
"""Receives the id of a component, and what it refuses or reports."""
_SQLITE: Final = "sqlite:"
_LANGUAGES: Final = {
    PolicyForm.XML: PolicyLanguage.XACML,
    PolicyForm.JSON: PolicyLanguage.XACML,
    PolicyForm.TEXT: PolicyLanguage.TEXT,
    PolicyForm.CEDAR: PolicyLanguage.CEDAR,
}

# ----------------------------------------------------------------------------------------------------------------------
# The fabric.


@asynccontextmanager
async def plan_fabric(loaded: LoadedPlan) -> AsyncIterator[Fabric]:
    """Open the fabric that a plan names; without one, a fabric inside this process.

    Raises `MalformedError` with the codes of plans, and as `NatsFabric.connect`.
    """
    table = dict(loaded.plan.fabric)
    PLAN_FILE.known("`fabric`", table, ("nats", "joining", "dds", "keep"))
    if "nats" in table:
        async with _nats_fabric(loaded, PLAN_FILE.table("fabric.nats", table["nats"])) as fabric:
            yield fabric
        return
    if "dds" in table:
        async with await open_fabric(PLAN_FILE.text("fabric.dds", table["dds"])) as fabric:
            yield fabric
        return
    keep = loaded.folder / PLAN_FILE.text("fabric.keep", table["keep"]) if "keep" in table else Path(":memory:")
    async with EmbeddedFabric(keeper=FileKeeper(keep)) as embedded:
        yield embedded


@asynccontextmanager
async def _nats_fabric(loaded: LoadedPlan, table: Mapping[str, object]) -> AsyncIterator[Fabric]:
    login = nats_login(read_nats(PLAN_FILE, table), NamedFiles(loaded.folder, PLAN_NAMING))
    if login is not None:
        async with await open_fabric(login) as fabric:
            yield fabric


def _joining(loaded: LoadedPlan) -> Callable[[], AbstractAsyncContextManager[Fabric]] | None:
    """Return what opens the fabric to join: `joining` has what differs from `nats`, such as the login."""
    if "joining" not in loaded.plan.fabric:
        return None
    tables = (PLAN_FILE.table(f"fabric.{key}", loaded.plan.fabric.get(key, {})) for key in ("nats", "joining"))
    return partial(_nats_fabric, loaded, {key: value for table in tables for key, value in table.items()})


def is_shared(loaded: LoadedPlan) -> bool:
    """Return whether the fabric of a plan connects processes."""
    return not SHARED_FABRICS.isdisjoint(loaded.plan.fabric)


# ----------------------------------------------------------------------------------------------------------------------
# What PAPs get.


def role_configurations(loaded: LoadedPlan) -> dict[str, RoleConfiguration]:
    """Return what each role of a plan gives, with the policies in full."""
    found: dict[str, RoleConfiguration] = {}
    for name, role in loaded.plan.roles.items():
        combining = dict(role.combining)
        if "policy" in combining:
            combining["policy"] = policy_combining(combining["policy"])
        found[name] = RoleConfiguration(
            str(role.kind),
            tuple(sorted(map(str, role.topics.write))),
            tuple(sorted(map(str, role.topics.read))),
            combining,
            dict(role.priorities),
            tuple(_policy(loaded, id_) for id_ in role.policies),
        )
    return found


def _policy(loaded: LoadedPlan, id_: str) -> PolicyText:
    """Return a policy with those that it refers to. Its change time is when its file was written."""
    if id_ not in loaded.policies:
        raise MalformedError("plan.policy-unknown", f"there is no policy `{id_}`", hint="run `penstock domain check`")
    root = loaded.policies[id_][1]
    roots = [root, *_referred(loaded, root, {id_})]
    text = "\n".join(write_text(one) for one in roots).encode()
    changed = max(Path(loaded.policies[one.id][0]).stat().st_mtime for one in roots)
    return PolicyText(id_, hashlib.sha256(text).hexdigest()[:16], changed, text)


def _referred(loaded: LoadedPlan, root: Root, seen: set[str]) -> Iterable[Root]:
    for member in root.members if isinstance(root, PolicySet) else ():
        if isinstance(member, PolicyReference):
            found = loaded.policies.get(member.id)
            if found is not None and member.id not in seen:
                seen.add(member.id)
                yield found[1]
                yield from _referred(loaded, found[1], seen)
        else:
            yield from _referred(loaded, member, seen)


def _topic_secret(loaded: LoadedPlan) -> bytes:
    """Return the secret of topic keys. Raises `MalformedError` (`plan.value`), `FailedError` (`file.*`)."""
    if not loaded.plan.topic_secret:
        return b""
    try:
        return bytes.fromhex(read_file(str(loaded.folder / loaded.plan.topic_secret)).decode())
    except ValueError:
        hint = "let `penstock domain new-keys` make it"
        raise MalformedError("plan.value", "`topic_secret` does not name a file with a secret", hint=hint) from None


def administration_settings(loaded: LoadedPlan, id_: str = "pap", strength: int = 0) -> AdministrationSettings:
    """Return the settings of a PAP. Raises `MalformedError` (`plan.missing`) for a file without roles."""
    if loaded.roles is None:
        raise MalformedError(
            "plan.missing", f"{loaded.path} has components, but does not plan a domain", hint="give the plan to a PAP"
        )
    plan = loaded.plan
    by = min(loaded.administrators)
    founding: list[RoleChange] = []
    for holder, those in sorted(plan.appointments.items()):
        for name, arguments in map(parse_role, those):
            founding.append(Appoint(name, loaded.principals[holder], by, arguments))
    return AdministrationSettings(
        domain=plan.name,
        id=id_,
        administrators=frozenset(loaded.administrators),
        roles=loaded.roles.source,
        table=role_configurations(loaded),
        founding=tuple(founding),
        partners=loaded.partners,
        levels=plan.levels,
        strength=strength,
        patience=plan.apply_within,
        topic_secret=_topic_secret(loaded),
    )


def specification_rules(loaded: LoadedPlan) -> dict[str, SpecificationRule]:
    """Return what components of each specification role may specify, and which decision roles get it."""
    return {
        name: SpecificationRule(role.decided_by, role.resource_types)
        for name, role in loaded.plan.roles.items()
        if role.kind is ComponentKind.PSP
    }


# ----------------------------------------------------------------------------------------------------------------------
# Components.


def make_component(loaded: LoadedPlan, one: ComponentPlan, fabric: Fabric, key: Signer, note: HostNote) -> AnyComponent:
    """Make a component of a plan. Raises as its class, `MalformedError` (`plan.value`) and `FailedError` (`file.*`)."""

    def own(error: PenstockError) -> None:
        note(one.id, error)

    clock = SystemClock()
    if one.kind is ComponentKind.PAP:
        settings, rules = administration_settings(loaded, one.id, one.strength), specification_rules(loaded)
        if rules:
            return PolicyAdministration(fabric, key, settings, rules=rules, clock=clock, note=own)
        return AdministrationComponent(fabric, key, settings, clock=clock, note=own)
    joining = ComponentSettings(
        domain=loaded.plan.name,
        id=one.id,
        kind=one.kind,
        role=one.role,
        administrators=frozenset(loaded.administrators),
        certificates=tuple(read_file(str(loaded.folder / file)) for file in one.certificates),
        levels=loaded.plan.levels,
        joining=_joining(loaded),
    )
    match one.kind:
        case ComponentKind.PEP:
            actions = frozenset(one.actions or (action_name(None, None),))
            return EnforcementComponent(fabric, key, joining, actions=actions, clock=clock, note=own)
        case ComponentKind.PDP:
            _remember_mappings(loaded, one)
            return DecisionComponent(fabric, key, joining, mappings=loaded.mappings, clock=clock, note=own)
        case ComponentKind.PIP:
            sources = [make_source(loaded, loaded.plan.sources[name], clock) for name in one.sources]
            return InformationComponent(fabric, key, joining, sources=sources, clock=clock, note=own)
        case ComponentKind.PLP:
            return LogComponent(fabric, key, joining, loaded.folder / one.log, clock=clock, note=own)
        case _:
            return SpecificationComponent(fabric, key, joining, clock=clock, note=own)


def _remember_mappings(loaded: LoadedPlan, one: ComponentPlan) -> None:
    """Keep the numbers of the mappings that a PDP applies. Raises as `remember_mappings`; `FailedError` (`file.*`)."""
    if loaded.mappings:
        file = loaded.folder / one.applied
        with within(str(file)):
            kept = remember_mappings(loaded.mappings, read_file(str(file)) if file.exists() else b"[]")
        replace_file(file, kept)


def make_source(loaded: LoadedPlan, source: SourcePlan, clock: Clock) -> AttributeSource:
    """Make a source of attributes. Raises `MalformedError` (`component.source`, `fact.url`, `plan.value`)."""
    table = EntityTable(source.of, source.type, source.attributes, source.id, source.changed or None)
    settings = dict(source.settings)
    path = loaded.folder / source.place
    match source.kind:
        case "file":
            return FileAttributes(path, table, clock, **settings)  # type: ignore[arg-type]  # read as what they are
        case "audit":
            return AuditAttributes(path, table, clock, **settings)  # type: ignore[arg-type]  # read as what they are
        case "sql":
            query, url = str(settings.pop("query")), source.place
            if url.startswith(_SQLITE):
                url = f"{_SQLITE}{loaded.folder / url.removeprefix(_SQLITE)}"
            return SqlAttributes(url, query, table, clock, **settings)  # type: ignore[arg-type]  # a timeout
        case "url":
            token = settings.pop("token_file", None)
            headers = {}
            if token is not None:
                headers["Authorization"] = f"Bearer {read_file(str(loaded.folder / str(token))).decode().strip()}"
            return HttpAttributes(source.place, table, clock, headers=headers, **settings)  # type: ignore[arg-type]  # a timeout
        case _:
            return FunctionAttributes(_function(source), table, clock)


def _function(source: SourcePlan) -> AttributeFunction:
    module, colon, name = source.place.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"`sources.{source.name}.python`: `{source.place[:80]}` cannot be imported"
        raise MalformedError("plan.value", message, hint="write `module:function`") from error
    if not colon or not callable(found):
        raise MalformedError("plan.value", f"`sources.{source.name}.python`: `{name[:80]}` is not a function")
    return found  # type: ignore[no-any-return]  # it is callable


class ComponentHost:
    """Components of one plan in one process. They join when it is entered, PAPs first, and leave at the end.

    A component that is refused does not stop the others: `refused` has its error.
    """

    def __init__(
        self,
        loaded: LoadedPlan,
        fabric: Fabric,
        keys: Mapping[str, Signer],
        note: HostNote,
        *,
        joined: Callable[[str], None] = lambda _id: None,
    ) -> None:
        self.components: dict[str, AnyComponent] = {
            id_: make_component(loaded, loaded.plan.components[id_], fabric, key, note) for id_, key in keys.items()
        }
        self._show_roles(keys)
        self.refused: dict[str, PenstockError] = {}
        self._loaded = loaded
        self._joined = joined
        self._note = note

    def _show_roles(self, keys: Mapping[str, Signer]) -> None:
        """Let components with one key show each other's roles when they join."""
        others = {id_: one for id_, one in self.components.items() if isinstance(one, Component)}
        for id_, component in others.items():
            principal = keys[id_].principal
            component.beside = [
                one for name, one in others.items() if name != id_ and keys[name].principal == principal
            ]

    async def __aenter__(self) -> Self:
        await self.join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def join(self) -> None:
        """Let all components join: PAPs first, because the others wait for them."""
        first = self._administrators()
        for id_ in first:
            await self._join(id_)
        await asyncio.gather(*(self._join(id_) for id_ in self.components if id_ not in first))

    def _administrators(self) -> list[str]:
        return [id_ for id_, one in self.components.items() if isinstance(one, AdministrationComponent)]

    async def _join(self, id_: str) -> None:
        component = self.components[id_]
        try:
            await component.join()
        except RefusedError as error:
            self.refused[id_] = error
            self._note(id_, error)
            return
        file = self._loaded.plan.components[id_].certificate
        if file and isinstance(component, Component) and component.configuration is not None:
            replace_file(self._loaded.folder / file, component.configuration.certificate)
        self._joined(id_)
        if isinstance(component, SpecificationComponent):
            await self._specify(component)

    async def _specify(self, component: SpecificationComponent) -> None:
        """Specify the policies of a PSP, one after the other. A policy that is refused does not stop the others."""
        id_ = component.settings.id
        for file in self._loaded.plan.components[id_].specifies:
            try:
                data = read_file(str(self._loaded.folder / file))
                await component.specify(Path(file).stem, data, _LANGUAGES[form_of(data)])
            except PenstockError as error:
                self._note(id_, error)

    async def leave(self) -> None:
        """Let all components leave: PAPs last, so that they record it."""
        last = self._administrators()
        await asyncio.gather(*(one.leave() for id_, one in self.components.items() if id_ not in last))
        for id_ in last:
            await self.components[id_].leave()
