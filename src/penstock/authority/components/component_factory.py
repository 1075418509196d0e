"""Make the components of a domain plan: what its PAPs administer, its components, and the sources of its PIPs.

The clock, the random source, the fabric to join over and the sources can be replaced, so that a simulation makes the
same components as a process that runs them.
"""

import hashlib
import importlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, TypeAlias

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
from penstock.authority.components.plans.domain_plan import ComponentPlan, LoadedPlan, SourcePlan
from penstock.authority.components.points.component import Component, ComponentSettings
from penstock.authority.components.points.decision import DecisionComponent
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.components.points.information import InformationComponent
from penstock.authority.components.points.log_point import AuditAttributes, LogComponent
from penstock.crypto import Signer
from penstock.errors import MalformedError, PenstockError
from penstock.fabric import Clock, Fabric, RandomBytes, SystemClock
from penstock.policy.language.policies import PolicyReference, PolicySet, Root
from penstock.policy.syntax.forms import PolicyForm, form_of
from penstock.policy.syntax.text.policy_writer import write_text
from penstock.roles.engine import Appoint, RoleChange
from penstock.store.files.files import read_file, replace_file, within

AnyComponent: TypeAlias = Component | AdministrationComponent
HostNote: TypeAlias = Callable[[str, PenstockError], None]
"""Receives the id of a component, and what it refuses or reports."""
JoiningFabric: TypeAlias = Callable[[], AbstractAsyncContextManager[Fabric]]
"""Opens the fabric over which components join, if it is another one."""
SourceMaker: TypeAlias = Callable[[LoadedPlan, SourcePlan, Clock], AttributeSource]
_SQLITE: Final = "sqlite:"
_LANGUAGES: Final = {
    PolicyForm.XML: PolicyLanguage.XACML,
    PolicyForm.JSON: PolicyLanguage.XACML,
    PolicyForm.TEXT: PolicyLanguage.TEXT,
    PolicyForm.CEDAR: PolicyLanguage.CEDAR,
}

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


def make_component(  # noqa: PLR0913  # a component, and what a simulation replaces, each with a default
    loaded: LoadedPlan,
    one: ComponentPlan,
    fabric: Fabric,
    key: Signer,
    note: HostNote,
    *,
    joining: JoiningFabric | None = None,
    clock: Clock | None = None,
    random: RandomBytes = secrets.token_bytes,
    source: SourceMaker | None = None,
) -> AnyComponent:
    """Make a component of a plan. Raises as its class, `MalformedError` (`plan.value`) and `FailedError` (`file.*`)."""

    def own(error: PenstockError) -> None:
        note(one.id, error)

    clock = clock or SystemClock()
    if one.kind is ComponentKind.PAP:
        settings, rules = administration_settings(loaded, one.id, one.strength), specification_rules(loaded)
        if rules:
            return PolicyAdministration(fabric, key, settings, rules=rules, clock=clock, random=random, note=own)
        return AdministrationComponent(fabric, key, settings, clock=clock, random=random, note=own)
    member = ComponentSettings(
        domain=loaded.plan.name,
        id=one.id,
        kind=one.kind,
        role=one.role,
        administrators=frozenset(loaded.administrators),
        certificates=tuple(read_file(str(loaded.folder / file)) for file in one.certificates),
        levels=loaded.plan.levels,
        joining=joining,
    )
    match one.kind:
        case ComponentKind.PEP:
            actions = frozenset(one.actions or (action_name(None, None),))
            return EnforcementComponent(fabric, key, member, actions=actions, clock=clock, random=random, note=own)
        case ComponentKind.PDP:
            _remember_mappings(loaded, one)
            mappings = loaded.mappings
            return DecisionComponent(fabric, key, member, mappings=mappings, clock=clock, random=random, note=own)
        case ComponentKind.PIP:
            sources = [(source or make_source)(loaded, loaded.plan.sources[name], clock) for name in one.sources]
            return InformationComponent(fabric, key, member, sources=sources, clock=clock, random=random, note=own)
        case ComponentKind.PLP:
            folder = loaded.folder / one.log
            return LogComponent(fabric, key, member, folder, clock=clock, random=random, note=own)
        case _:
            return SpecificationComponent(fabric, key, member, clock=clock, random=random, note=own)


def show_roles(components: Mapping[str, AnyComponent], keys: Mapping[str, Signer]) -> None:
    """Let components with one key show each other's roles when they join."""
    others = {id_: one for id_, one in components.items() if isinstance(one, Component)}
    for id_, component in others.items():
        principal = keys[id_].principal
        component.beside = [one for name, one in others.items() if name != id_ and keys[name].principal == principal]


async def specify_policies(loaded: LoadedPlan, component: SpecificationComponent, note: HostNote) -> None:
    """Specify the policies of a PSP, one after the other. A policy that is refused does not stop the others."""
    id_ = component.settings.id
    for file in loaded.plan.components[id_].specifies:
        try:
            data = read_file(str(loaded.folder / file))
            await component.specify(Path(file).stem, data, _LANGUAGES[form_of(data)])
        except PenstockError as error:
            note(id_, error)


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
