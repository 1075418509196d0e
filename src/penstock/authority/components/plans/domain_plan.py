"""Domain plans: a whole domain of components in one TOML file (paper 4, section 4.1).

`read_domain_plan` reads the file strictly, and nothing else. `load_domain_plan` also reads the files that it names: the
role policy, the policies and the names of principals. docs/reference/domain-plan.md describes the keys.

A file without `role_policy` and `[roles]` is a **component file**: it has components of a domain that another file
plans. Whoever runs a component needs no more than that.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from penstock.authority.components.exchange.topics import ComponentKind, TopicLevels, check_component_name
from penstock.authority.components.exchange.topics_lists import TopicsList, parse_role, role_text
from penstock.authority.components.information.attribute_mapping import (
    ReviewedMapping,
    newest_mappings,
    read_reviewed_mapping,
)
from penstock.authority.components.information.dependencies import (
    CATEGORIES,
    attribute_name,
    check_action_name,
    read_attribute_name,
)
from penstock.errors import MalformedError
from penstock.fabric import FOREVER
from penstock.model.principals import Petnames, Principal
from penstock.policy.language.policies import Root
from penstock.policy.limits import POLICY_BYTES
from penstock.policy.syntax.forms import read_policies
from penstock.roles.language import RolePolicy
from penstock.roles.language import read_policy as read_role_policy
from penstock.store.files.files import read_file, within
from penstock.store.files.named_files import NamedFiles, NameErrors
from penstock.store.files.strict_tables import Strict

HELP: Final = "see docs/reference/domain-plan.md, or `penstock domain check --example`"
PLAN_FILE: Final = Strict.of("plan.", HELP)
PLAN_NAMING: Final = NameErrors.of("plan.", "domain plan", HELP)
_KEYS: Final = frozenset(
    (
        *("name", "administrators", "names", "role_policy", "policies", "mappings"),
        *(
            "levels",
            "fabric",
            "partners",
            "reviewers",
            "apply_within",
            "topic_secret",
            "roles",
            "appointments",
            "sources",
            "components",
        ),
    )
)
#: fabrics that connect processes, and seconds after which a component there counts as crashed that is not heard
SHARED_FABRICS: Final = frozenset({"nats", "dds", "kafka"})
LEASE_OF_PROCESSES: Final = 30
EXAMPLE: Final = """\
# A domain of authorization components. `penstock domain check bank.toml` checks it, `penstock domain up bank.toml` runs
# it. Paths are relative to the folder of this file.

name = "bank"                     # topics are called `bank-DREQ_1`
administrators = ["pap"]          # who may configure the domain: the principals of its PAPs
names = "names.toml"              # names for principals, or a table [names]; `penstock domain new-keys` writes it
role_policy = "bank.roles"        # who can take which role
policies = ["policies/*.policy"]  # what decision points decide by, in XML, JSON or text form
# mappings = ["partner.mapping"]  # signed tables of what other domains' attributes mean here
# apply_within = 10               # seconds in which a component applies a change, or loses its role
# topic_secret = "keys/topics.secret"  # a file that only PAPs have: with it, topics are sealed to their readers

[levels]
latency = [0.05, 0.5, 5]          # seconds: LB1, LB2 and LB3
lifespan = 5                      # seconds: LS, for which requests and replies are valid
# lease = 30                      # seconds for which components and PAPs work without a word of each other; 0: no lease

# [fabric]                        # where topics are; without it, all components run in one process
# dds = "dds://127.0.0.1/0"       # a DDS domain
# kafka = "kafka://127.0.0.1:9092"  # or Kafka, with ?config=FILE for security settings; or, with keys as in node files:
# [fabric.nats]
# servers = ["nats://127.0.0.1:4222"]

# [partners]                      # other domains whose roles the role policy names, and their administrators
# partner = ["partner-pap"]

# [reviewers]                     # by domain: who may review the mappings of its subjects
# partner = ["partner-pap"]

[roles."ER(1)"]                   # the components of this role write and read these topics, and no others
kind = "PEP"
write = ["APEP_1", "QPEP_1", "DREQ_1"]
read = ["RPEP_1", "DREP_1"]
combining.decision = "first"      # or newest:SECONDS, n:NUMBER, tuple:SECONDS:ID
# priorities = { bank = 2, partner = 1 }  # of decisions by domain: only the highest count

[roles."DR(1)"]
kind = "PDP"
write = ["APDP_1", "QPDP_1", "DREP_1", "IREQ_1"]
read = ["RPDP_1", "QPEP_1", "DREQ_1", "IREP_1"]
combining = { policy = "deny-overrides", information = "compose" }  # information: first, compose, n:NUMBER
policies = ["bank.accounts"]      # ids of policies
# priorities = { "bank.accounts" = 1 }  # of policies by id, and of information by domain

[roles."IR(1)"]
kind = "PIP"
write = ["APIP_1", "IREP_1"]
read = ["RPIP_1", "QPDP_1", "IREQ_1"]

[roles."LR(1)"]                   # what a PLP reads, it logs
kind = "PLP"
write = ["APLP_1"]
read = ["RPLP_1", "DREQ_1", "DREP_1"]

[appointments]                    # by holder: appointments that the role policy asks for
atm = ["enforcer(1)"]

[sources.accounts]                # where a PIP gets attributes from: file, sql, url, python or audit
file = "accounts.csv"             # .csv, .json, .toml or .ldif
of = "resource"                   # whose attributes: subject, resource, action or environment
type = "account"                  # the type of the subjects or resources
id = "id"                         # the column that identifies them
changed = "changed"               # the column that says when a row was changed
attributes = ["owner", "balance"] # or a table: attribute = "column"

[components.pap]
kind = "PAP"
key = "keys/pap.key"
# strength = 1                    # of several PAPs, the strongest configures

[components.atm]
role = "ER(1)"
key = "keys/atm.key"
actions = ["account/withdraw"]    # what it asks about: RESOURCE-TYPE/ACTION
gives = ["action/amount"]         # attributes that its questions have
# certificates = ["atm.cert"]     # certificates to show when it joins
# certificate = "own.cert"        # write the certificate of its role there, to show it in other domains

[components.pdp]
role = "DR(1)"
key = "keys/pdp.key"
# applied = "state/pdp.applied"   # remember the numbers of mappings there, not in keys/pdp.key.applied

[components.accounts]
role = "IR(1)"
key = "keys/accounts.key"
sources = ["accounts"]

[components.log]
role = "LR(1)"
key = "keys/log.key"
log = "log"                       # the folder of its log
"""

#: LB1 to LB3; the three priorities of a fabric are TP1 to TP3
_LEVELS: Final = 3
#: Table 4: the combining algorithms of the roles of a kind
COMBINING: Final[Mapping[ComponentKind, tuple[str, ...]]] = {
    ComponentKind.PEP: ("decision",),
    ComponentKind.PDP: ("policy", "information"),
}
#: the keys of a component that only one kind has
_OF_KIND: Final[Mapping[ComponentKind, frozenset[str]]] = {
    ComponentKind.PAP: frozenset({"strength"}),
    ComponentKind.PEP: frozenset({"actions", "gives"}),
    ComponentKind.PDP: frozenset({"applied"}),
    ComponentKind.PIP: frozenset({"sources"}),
    ComponentKind.PLP: frozenset({"log"}),
    ComponentKind.PSP: frozenset({"specifies"}),
}
_OF_ALL: Final = frozenset({"kind", "role", "key", "certificates", "certificate"})
#: the keys of each kind of source, by the key that says which kind it is; those that are needed first
SOURCE_KEYS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "file": ((), ("base", "every")),
    "sql": (("query",), ("timeout",)),
    "url": ((), ("token_file", "timeout")),
    "python": ((), ()),
    "audit": ((), ("max_age", "every")),
}
_NUMBERS: Final = frozenset({"every", "timeout", "max_age"})
_OF_SOURCES: Final = ("of", "type", "id", "changed", "attributes")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlan:
    """What the components of one role get: topics and, as in Table 4, algorithms, priorities, policies."""

    role: str
    kind: ComponentKind
    topics: TopicsList
    #: by what is combined: `decision` for enforcement roles, `policy` and `information` for decision roles
    combining: Mapping[str, str] = field(default_factory=dict)
    #: by policy id, or by the name of the domain that information or a decision comes from
    priorities: Mapping[str, int] = field(default_factory=dict)
    #: the ids of the policies that a decision role gets
    policies: tuple[str, ...] = ()
    #: the decision roles that get what components of a specification role specify, and about which resource types
    decided_by: tuple[str, ...] = ()
    resource_types: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Where a PIP gets attributes from. `settings` are the keys of this kind of source, as they are written."""

    name: str
    #: a key of `SOURCE_KEYS`
    kind: str
    #: the file, the URL or the function
    place: str = field(repr=False)
    #: `subject`, `resource`, `action` or `environment`, and the type of subjects and resources
    of: str
    type: str = ""
    #: the column with the id of an entity, and the one with the change time, if there is one
    id: str = "id"
    changed: str = ""
    #: attributes, and the column of each
    attributes: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict, repr=False)

    @property
    def provides(self) -> frozenset[str]:
        """The names of its attributes, such as `subject/rank`."""
        return frozenset(str(attribute_name(CATEGORIES[self.of], name)) for name in self.attributes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentPlan:
    """One component. What follows `certificates` is of one kind only. Paths are as written."""

    id: str
    kind: ComponentKind
    #: as in `ER(1)`; a PAP needs none
    role: str = ""
    key: str = ""
    #: files of certificates that it shows when it joins
    certificates: tuple[str, ...] = ()
    #: the file to which it writes the certificate of its role, to show it in other domains
    certificate: str = ""
    #: of two PAPs the stronger one writes configurations
    strength: int = 0
    #: what a PEP asks about, such as `account/withdraw`, and the attributes that its questions have
    actions: tuple[str, ...] = ()
    gives: frozenset[str] = frozenset()
    #: the sources of a PIP
    sources: tuple[str, ...] = ()
    #: the folder of a PLP's log
    log: str = ""
    #: files with policies that a PSP specifies
    specifies: tuple[str, ...] = ()
    #: the file in which a PDP remembers the mappings that it has applied
    applied: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainPlan:
    """The content of a domain plan. Paths are as written, relative to the file's folder."""

    name: str
    administrators: tuple[str, ...]
    names: Mapping[str, Principal] | str = field(default_factory=dict)
    #: the role policy: who can take which role
    role_policy: str = ""
    policies: tuple[str, ...] = ()
    #: signed tables that map attributes of other domains to those of this one
    mappings: tuple[str, ...] = ()
    levels: TopicLevels = field(default_factory=TopicLevels)
    #: seconds after the expected time within which a component applies a reconfiguration, or loses its role
    apply_within: float = 10.0
    #: the file with the secret from which PAPs derive topic keys; without one, topics are not sealed
    topic_secret: str = ""
    #: the table that says where topics are; `penstock.apps` reads it
    fabric: Mapping[str, object] = field(default_factory=dict)
    #: the administrators of other domains, by the name that the role policy uses
    partners: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: who may review the mappings of a domain's subjects, by domain
    reviewers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    roles: Mapping[str, RolePlan] = field(default_factory=dict)
    #: appointments by their holder, a principal or a name
    appointments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sources: Mapping[str, SourcePlan] = field(default_factory=dict)
    components: Mapping[str, ComponentPlan] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether this plans a domain, and is not only a component file."""
        return bool(self.role_policy)

    def component_roles(self) -> dict[ComponentKind, tuple[str, ...]]:
        """Return the roles of each kind of component (Table 1)."""
        return {kind: tuple(name for name, one in self.roles.items() if one.kind is kind) for kind in ComponentKind}


def read_domain_plan(data: str | bytes) -> DomainPlan:
    """Read a domain plan, or a component file.

    Raises `MalformedError`: `plan.syntax` when it is not TOML, `plan.unknown-key`, `plan.missing`, `plan.value`,
    `petname.malformed`, and what `TopicsList` and `TopicLevels` raise.
    """
    table = PLAN_FILE.parse(data)
    where = "the domain plan"
    PLAN_FILE.known(where, table, _KEYS)
    if "roles" in table and "role_policy" not in table:
        raise MalformedError(PLAN_FILE.missing, "`roles` needs `role_policy`, which says who can take them", hint=HELP)
    roles = _read_roles(PLAN_FILE.table("roles", table.get("roles", {})))
    sources = {
        name: _read_source(name, one) for name, one in PLAN_FILE.table("sources", table.get("sources", {})).items()
    }
    name = PLAN_FILE.text("name", PLAN_FILE.needed(where, table, "name"))
    check_component_name(name)
    components = {
        id_: _read_component(id_, one, roles, sources)
        for id_, one in PLAN_FILE.table("components", table.get("components", {})).items()
    }
    appointments = PLAN_FILE.table("appointments", table.get("appointments", {}))
    administrators = PLAN_FILE.texts("administrators", PLAN_FILE.needed(where, table, "administrators"))
    return DomainPlan(
        name=name,
        administrators=PLAN_FILE.some("administrators", administrators),
        names=PLAN_FILE.petnames("names", table.get("names", {})),
        role_policy=PLAN_FILE.text("role_policy", table["role_policy"]) if "role_policy" in table else "",
        policies=PLAN_FILE.texts("policies", table.get("policies", [])),
        mappings=PLAN_FILE.texts("mappings", table.get("mappings", [])),
        levels=_read_levels(
            PLAN_FILE.table("levels", table.get("levels", {})), PLAN_FILE.table("fabric", table.get("fabric", {}))
        ),
        apply_within=_seconds("apply_within", table.get("apply_within", 10.0)),
        topic_secret=PLAN_FILE.text("topic_secret", table["topic_secret"]) if "topic_secret" in table else "",
        fabric=MappingProxyType(PLAN_FILE.table("fabric", table.get("fabric", {}))),
        partners=_principals(table, "partners"),
        reviewers=_principals(table, "reviewers"),
        roles=roles,
        appointments={
            holder: tuple(role_text(*parse_role(one)) for one in PLAN_FILE.texts(f"appointments.{holder}", those))
            for holder, those in appointments.items()
        },
        sources=sources,
        components=components,
    )


def _principals(table: Mapping[str, object], key: str) -> dict[str, tuple[str, ...]]:
    """Read a table of names, or of principals, by domain."""
    return {
        domain: PLAN_FILE.some(f"{key}.{domain}", PLAN_FILE.texts(f"{key}.{domain}", those))
        for domain, those in PLAN_FILE.table(key, table.get(key, {})).items()
    }


def _read_roles(table: Mapping[str, object]) -> dict[str, RolePlan]:
    found: dict[str, RolePlan] = {}
    for text, one in table.items():
        role = role_text(*parse_role(text))
        if found.setdefault(role, read := _read_role(role, one)) is not read:
            raise PLAN_NAMING.given_twice(f"the role `{role}`")
    deciding = [name for name, one in found.items() if one.kind is ComponentKind.PDP]
    for name, one in found.items():
        for decider in one.decided_by:
            if decider not in deciding:
                raise PLAN_FILE.not_one_of(f"roles.{name}.decided_by", decider, deciding)
    return found


def _read_role(role: str, value: object) -> RolePlan:
    where = f"roles.{role}"
    table = PLAN_FILE.table(where, value)
    kind = _read_kind(f"{where}.kind", PLAN_FILE.needed(f"`{where}`", table, "kind"))
    allowed = {"kind", "write", "read"}
    if kind in COMBINING:
        allowed |= {"combining", "priorities"}
    if kind is ComponentKind.PDP:
        allowed.add("policies")
    if kind is ComponentKind.PSP:
        allowed |= {"decided_by", "resource_types"}
        PLAN_FILE.needed(f"`{where}`", table, "decided_by")
    PLAN_FILE.known(f"`{where}`, which is a role of {kind}s,", table, allowed)
    combining = PLAN_FILE.table(f"{where}.combining", table.get("combining", {}))
    PLAN_FILE.known(f"`{where}.combining`", combining, COMBINING.get(kind, ()))
    priorities = PLAN_FILE.table(f"{where}.priorities", table.get("priorities", {}))
    topics = TopicsList.of(*(PLAN_FILE.texts(f"{where}.{key}", table.get(key, [])) for key in ("write", "read")))
    topics.verify_for(kind)
    return RolePlan(
        role=role,
        kind=kind,
        topics=topics,
        combining={name: PLAN_FILE.text(f"{where}.combining.{name}", one) for name, one in combining.items()},
        priorities={name: _whole(f"{where}.priorities.{name}", one) for name, one in priorities.items()},
        policies=PLAN_FILE.texts(f"{where}.policies", table.get("policies", [])),
        decided_by=tuple(
            role_text(*parse_role(one)) for one in PLAN_FILE.texts(f"{where}.decided_by", table.get("decided_by", []))
        ),
        resource_types=(
            frozenset(PLAN_FILE.texts(f"{where}.resource_types", table["resource_types"]))
            if "resource_types" in table
            else None
        ),
    )


def _read_kind(where: str, value: object) -> ComponentKind:
    if value not in [*ComponentKind]:
        raise PLAN_FILE.not_one_of(where, value, ComponentKind)
    return ComponentKind(str(value))


def _read_source(name: str, value: object) -> SourcePlan:
    where = f"sources.{name}"
    table = PLAN_FILE.table(where, value)
    kinds = [kind for kind in SOURCE_KEYS if kind in table]
    if len(kinds) != 1:
        words = ", ".join(f"`{kind}`" for kind in SOURCE_KEYS)
        raise MalformedError(PLAN_FILE.missing, f"`{where}` needs one of {words}", hint=HELP)
    needed, optional = SOURCE_KEYS[kinds[0]]
    PLAN_FILE.known(f"`{where}`", table, (kinds[0], *needed, *optional, *_OF_SOURCES))
    settings: dict[str, object] = {}
    for key in (*needed, *(one for one in optional if one in table)):
        one = PLAN_FILE.needed(f"`{where}`", table, key)
        settings[key] = _seconds(f"{where}.{key}", one) if key in _NUMBERS else PLAN_FILE.text(f"{where}.{key}", one)
    of = PLAN_FILE.needed(f"`{where}`", table, "of")
    if of not in CATEGORIES:
        raise PLAN_FILE.not_one_of(f"{where}.of", of, CATEGORIES)
    if ("type" in table) is not (of in ("subject", "resource")):
        raise MalformedError(
            PLAN_FILE.missing, f"`{where}` needs `type` for subjects and resources, and only then", hint=HELP
        )
    attributes = PLAN_FILE.needed(f"`{where}`", table, "attributes")
    columns = (
        {attribute: PLAN_FILE.text(f"{where}.attributes.{attribute}", one) for attribute, one in attributes.items()}
        if isinstance(attributes, dict)
        else {attribute: attribute for attribute in PLAN_FILE.texts(f"{where}.attributes", attributes)}
    )
    if not columns:
        raise PLAN_FILE.wrong(f"{where}.attributes", "at least one attribute")
    return SourcePlan(
        name=name,
        kind=kinds[0],
        place=PLAN_FILE.text(f"{where}.{kinds[0]}", table[kinds[0]]),
        of=str(of),
        attributes=columns,
        settings=settings,
        **{key: PLAN_FILE.text(f"{where}.{key}", table[key]) for key in ("type", "id", "changed") if key in table},
    )


def _read_component(id_: str, value: object, roles: Mapping[str, RolePlan], sources: Collection[str]) -> ComponentPlan:
    where = f"components.{id_}"
    check_component_name(id_)
    table = PLAN_FILE.table(where, value)
    role = role_text(*parse_role(PLAN_FILE.text(f"{where}.role", table["role"]))) if "role" in table else ""
    if roles and role and role not in roles:
        raise PLAN_FILE.not_one_of(f"{where}.role", role, roles)
    planned = roles.get(role)
    if "kind" in table or planned is None:
        kind = _read_kind(f"{where}.kind", PLAN_FILE.needed(f"`{where}`", table, "kind"))
        if planned is not None and kind is not planned.kind:
            raise PLAN_FILE.wrong(f"{where}.kind", f"{planned.kind}, because `{role}` is a role of {planned.kind}s")
    else:
        kind = planned.kind
    if not role and kind is not ComponentKind.PAP:
        raise MalformedError(PLAN_FILE.missing, f"`{where}` lacks `role`", hint=HELP)
    PLAN_FILE.known(f"`{where}`, which is a {kind},", table, _OF_ALL | _OF_KIND[kind])
    named = PLAN_FILE.texts(f"{where}.sources", table.get("sources", []))
    for one in named:
        if one not in sources:
            raise PLAN_FILE.not_one_of(f"{where}.sources", one, sources)
    actions = PLAN_FILE.texts(f"{where}.actions", table.get("actions", []))
    gives = PLAN_FILE.texts(f"{where}.gives", table.get("gives", []))
    log = ""
    if kind is ComponentKind.PLP:
        log = PLAN_FILE.text(f"{where}.log", PLAN_FILE.needed(f"`{where}`", table, "log"))
    for one in actions:
        check_action_name(one)
    for one in gives:
        read_attribute_name(one)
    key = PLAN_FILE.text(f"{where}.key", PLAN_FILE.needed(f"`{where}`", table, "key"))
    return ComponentPlan(
        id=id_,
        kind=kind,
        role=role,
        key=key,
        certificates=PLAN_FILE.texts(f"{where}.certificates", table.get("certificates", [])),
        certificate=PLAN_FILE.text(f"{where}.certificate", table["certificate"]) if "certificate" in table else "",
        strength=_whole(f"{where}.strength", table.get("strength", 0)),
        actions=actions,
        gives=frozenset(gives),
        sources=named,
        log=log,
        specifies=PLAN_FILE.texts(f"{where}.specifies", table.get("specifies", [])),
        applied=PLAN_FILE.text(f"{where}.applied", table.get("applied", f"{key}.applied")),
    )


def _read_levels(table: Mapping[str, object], fabric: Mapping[str, object]) -> TopicLevels:
    """Read the levels of quality of service. Raises also what `TopicLevels` raises for a wrong order."""
    PLAN_FILE.known("`levels`", table, ("latency", "lifespan", "lease"))
    found: dict[str, object] = {}
    if "lease" in table or not SHARED_FABRICS.isdisjoint(fabric):
        found["lease"] = _seconds("levels.lease", table.get("lease", LEASE_OF_PROCESSES)) or FOREVER
    if "latency" in table:
        those = table["latency"]
        if not isinstance(those, list) or len(those) != _LEVELS:
            raise PLAN_FILE.wrong("levels.latency", "three numbers of seconds: LB1, LB2 and LB3")
        found |= {f"lb{n}": _seconds("levels.latency", one) for n, one in enumerate(those, 1)}
    if "lifespan" in table:
        found["lifespan"] = _seconds("levels.lifespan", table["lifespan"])
    return TopicLevels(**found)  # type: ignore[arg-type]  # each was read as what its field is


def _whole(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise PLAN_FILE.wrong(where, "a whole number")
    return value


def _seconds(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise PLAN_FILE.wrong(where, "a number of seconds")
    return float(value)


# ----------------------------------------------------------------------------------------------------------------------
# The files that a plan names.


@dataclass(frozen=True, slots=True)
class LoadedPlan:
    """A domain plan and everything that it names, except for keys and what sources read."""

    path: str
    plan: DomainPlan
    names: Petnames
    #: by name
    principals: Mapping[str, Principal]
    administrators: tuple[Principal, ...]
    #: the administrators of other domains
    partners: Mapping[str, frozenset[Principal]]
    roles: RolePolicy | None
    #: what attributes of subjects of other domains mean here
    mappings: tuple[ReviewedMapping, ...]
    #: the policies by their ids, each with the file that it is in
    policies: Mapping[str, tuple[str, Root]]

    @property
    def folder(self) -> Path:
        """The folder that paths are relative to."""
        return Path(self.path).parent

    def holders(self) -> dict[Principal, tuple[str, ...]]:
        """Return the appointments by their holders."""
        return {self.principals[holder]: those for holder, those in self.plan.appointments.items()}


def load_domain_plan(path: str) -> LoadedPlan:
    """Read a domain plan and the files that it names, except for keys.

    A mapping must be signed by an administrator, and reviewed by one of the plan's reviewers.

    Raises as `read_domain_plan`; `MalformedError`: `plan.no-match`, `plan.principal`, `plan.twice`; `LimitError`
    (`plan.limit`); `FailedError` (`file.*`); and what reading roles, policies and mappings raises.
    """
    data = read_file(path, POLICY_BYTES)
    named = NamedFiles(Path(path).parent, PLAN_NAMING)
    with within(path):
        plan = read_domain_plan(data)
        names = named.principals(plan.names)
        administrators = tuple(dict.fromkeys(names.find("administrators", one) for one in plan.administrators))
        partners, reviewers = (
            {
                domain: frozenset(names.find(f"{key}.{domain}", one) for one in those)
                for domain, those in named_by.items()
            }
            for key, named_by in (("partners", plan.partners), ("reviewers", plan.reviewers))
        )
        principals = {**names.names, **{one: names.find("appointments", one) for one in plan.appointments}}
    roles = None
    if plan.role_policy:
        file = named.path(plan.role_policy)
        text = read_file(file, POLICY_BYTES)
        with within(file):
            roles = read_role_policy(_text(text))
    mappings: list[ReviewedMapping] = []
    for file, data in named.read(plan.mappings):
        with within(file):
            mappings.append(read_reviewed_mapping(data, administrators, reviewers))
    policies: dict[str, tuple[str, Root]] = {}
    for file, data in named.read(plan.policies):
        with within(file):
            for root in read_policies(data).policies:
                if policies.setdefault(root.id, (file, root))[1] is not root:
                    raise PLAN_NAMING.given_twice(f"the policy `{root.id}`")
    return LoadedPlan(
        path, plan, names.petnames, principals, administrators, partners, roles, newest_mappings(mappings), policies
    )


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedError("role.syntax", "a role policy must be text in UTF-8") from None
