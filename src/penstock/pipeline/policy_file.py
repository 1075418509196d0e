"""Policy files: which types, credentials and subscribers a job works with.

`read_policy_file` reads the file, strictly and without touching anything else. `PolicyFile.load` reads what it names,
verifies all of it, and returns the `Policy`. The keys are described in docs/reference/policy-file.md.
"""

import glob
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from itertools import chain
from pathlib import Path
from typing import Final

from penstock.errors import MalformedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.model.values import Value
from penstock.pipeline.policy import Policy, Subscriber
from penstock.selector import ALWAYS, Selector, parse
from penstock.store.files import read_file, within
from penstock.store.named_files import NamedFiles
from penstock.store.named_policies import PoliciesTable, load_policies, read_policies_table
from penstock.store.named_principals import NamedPrincipals, Naming
from penstock.store.strict_tables import Strict
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType, verify_type

_HELP: Final = "see docs/reference/policy-file.md"
_FILE: Final = Strict(
    syntax="policy.syntax",
    unknown="policy.unknown-key",
    missing="policy.missing",
    value="policy.value",
    zone="policy.zone",
    help=_HELP,
)
_NAMING: Final = Naming(
    file="policy file",
    no_match="policy.no-match",
    limit="policy.limit",
    twice="policy.twice",
    principal="policy.principal",
    help=_HELP,
)
_KEYS: Final = frozenset(
    {"types", "history", "credentials", "revocations", "agreements", "policies", "names", "subscribers", "domains"}
    | {"zone", "facts"}
)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscriber as a policy file writes it: principal and type are words that are looked up when it is loaded."""

    name: str
    principal: str
    type: str
    selector: Selector = ALWAYS


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy file as it was read. Paths are as it writes them, and relative to where it stands.

    `names` is a table of petnames, or the file that they stand in; `domains` says where principals and petnames
    are at home.
    """

    types: tuple[str, ...]
    history: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    revocations: tuple[str, ...] = ()
    agreements: tuple[str, ...] = ()
    policies: PoliciesTable | None = None
    names: Mapping[str, Principal] | str = field(default_factory=dict)
    subscribers: tuple[Subscription, ...] = ()
    domains: Mapping[str, str] = field(default_factory=dict)
    zone: tzinfo = UTC
    facts: Mapping[str, Value] = field(default_factory=dict)

    def named(self) -> tuple[tuple[str, ...], ...]:
        """Return all files, patterns and folders that it names, those of each key together."""
        policies = ((), ()) if self.policies is None else (self.policies.files, self.policies.refer)
        names = (glob.escape(self.names),) if isinstance(self.names, str) else ()
        rights = (self.credentials, self.revocations, self.agreements)
        return (self.types, self.history, *rights, *policies, names)

    def load(self, folder: Path, now: datetime, *, limits: Limits = DEFAULT_LIMITS) -> Policy:
        """Read what the file names, and verify all of it at a time.

        Raises `MalformedError`: `policy.no-match` for a pattern without files, `policy.type`, `policy.principal`,
        `policy.twice`; `LimitError` (`policy.limit`); `SelectorError` for a filter that does not fit its type; and
        what reading and verifying types, credentials, revocations and agreements, and reading policies raise.
        """
        files = NamedFiles(folder, _NAMING, limits)
        names = files.principals(self.names)
        unverified = files.types(self.types)
        known = {name: definition for name, (_, definition) in files.types(self.history, beside=unverified).items()}
        types: dict[TypeName, VerifiedType] = {}
        credentials = Credentials()
        for name, (file, definition) in unverified.items():
            with within(file):
                types[name] = verify_type(definition, now, types=known.get, limits=limits)
                # Whose type it is, is part of the type: a quorum that owns it need not be shown a second time.
                quorums = definition.credentials.verify().thresholds().values()
                credentials += Credentials.of(quorums=tuple(quorums))
        credentials += files.credentials(self.credentials)
        asked = frozenset(one.id for one in credentials).union(*(verified.because for verified in types.values()))
        subscribers = tuple(_subscriber(one, names, types) for one in self.subscribers)
        domains = names.domains(self.domains)
        return Policy(
            credentials,
            subscribers,
            agreements=files.agreements(self.agreements),
            policies=load_policies(self.policies, files, names, domains),
            revocations=files.revocations(self.revocations).about(asked),
            types=tuple(types.values()),
            zone=self.zone,
            facts=self.facts,
            names=names.petnames,
            domains=domains,
        )


def policy_digest(path: str, *, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Return a digest of a policy file and of everything that it names, as they are now; nothing is verified.

    Raises as `read_policy_file` does, and what reading the files raises.
    """
    data = read_file(path, limits.policy_bytes)
    with within(path):
        files = NamedFiles(Path(path).parent, _NAMING, limits)
        groups = read_policy_file(data, limits=limits).named()
        found = hashlib.sha256(hashlib.sha256(data).digest())
        for file, content in chain.from_iterable(map(files.read, groups)):
            for part in (os.fsencode(file), content):
                found.update(hashlib.sha256(part).digest())
    return found.digest()


def load_policy(path: str, now: datetime, *, limits: Limits = DEFAULT_LIMITS) -> Policy:
    """Read a policy file and everything that it names. Raises as `read_policy_file` and `PolicyFile.load`."""
    data = read_file(path, limits.policy_bytes)
    with within(path):
        return read_policy_file(data, limits=limits).load(Path(path).parent, now, limits=limits)


# --- Reading the file ------------------------------------------------------------------------------------------------


def read_policy_file(data: str | bytes, *, limits: Limits = DEFAULT_LIMITS) -> PolicyFile:
    """Read a policy file.

    Raises `MalformedError`: `policy.syntax` when it is no TOML, `policy.unknown-key`, `policy.missing`, `policy.value`,
    `policy.zone`, `policy.twice` for two subscribers of one name, `environment.reserved` for a fact that every broker
    knows, `petname.malformed`; `LimitError` (`policy.limit`); and `SelectorError`.
    """
    if len(data) > limits.policy_bytes:
        raise _NAMING.too_many(f"{limits.policy_bytes} bytes")
    table = _FILE.parse(data)
    _FILE.known("the policy", table, _KEYS)
    return PolicyFile(
        types=_FILE.some("types", _FILE.texts("types", _FILE.needed("the policy", table, "types"))),
        history=_FILE.texts("history", table.get("history", [])),
        credentials=_FILE.texts("credentials", table.get("credentials", [])),
        revocations=_FILE.texts("revocations", table.get("revocations", [])),
        agreements=_FILE.texts("agreements", table.get("agreements", [])),
        policies=read_policies_table(_FILE, table),
        names=_FILE.petnames("names", table.get("names", {})),
        subscribers=_subscribers(table.get("subscribers", []), limits),
        domains=_FILE.homes("domains", table.get("domains", {}), limits),
        zone=_FILE.time_zone("zone", table["zone"]) if "zone" in table else UTC,
        facts=_FILE.facts("facts", table.get("facts", {})),
    )


def _subscribers(value: object, limits: Limits) -> tuple[Subscription, ...]:
    if not isinstance(value, list):
        raise _FILE.wrong("subscribers", "a list of tables: write `[[subscribers]]`")
    if len(value) > limits.policy_subscribers:
        raise _NAMING.too_many(f"{limits.policy_subscribers} subscribers")
    found: dict[str, Subscription] = {}
    for number, one in enumerate(value, start=1):
        where = f"subscriber {number}"
        table = _FILE.table(where, one)
        _FILE.known(where, table, {"name", "principal", "type", "where"})
        name = _FILE.name(f"{where}: name", _FILE.needed(where, table, "name"), limits)
        if name in found:
            raise _NAMING.given_twice(f"subscriber `{name}`")
        found[name] = Subscription(
            name,
            _FILE.text(f"{where}: principal", table.get("principal", name)),
            _FILE.text(f"{where}: type", _FILE.needed(where, table, "type")),
            parse(_FILE.text(f"{where}: where", table["where"]), limits=limits) if "where" in table else ALWAYS,
        )
    return tuple(found.values())


# --- What it names ---------------------------------------------------------------------------------------------------


def _subscriber(one: Subscription, names: NamedPrincipals, types: Mapping[TypeName, VerifiedType]) -> Subscriber:
    verified = _type(one, types)
    one.selector.check(verified.event_type.schema)
    principal = names.find(f"subscriber `{one.name}`", one.principal)
    return Subscriber(one.name, principal, verified, one.selector)


def _type(one: Subscription, types: Mapping[TypeName, VerifiedType]) -> VerifiedType:
    """Find `owner/name@version`, or `name@version` where one owner has that name; without a version it is version 0."""
    if "/" in one.type:
        found = [types[name] for name in [TypeName.parse(one.type)] if name in types]
    else:
        name, _, version = one.type.partition("@")
        found = [verified for key, verified in types.items() if (key.name, key.version) == (name, version or "0")]
    if len(found) == 1:
        return found[0]
    known = ", ".join(sorted(f"{name.name}@{name.version}" for name in types))
    raise MalformedError(
        "policy.type",
        f"subscriber `{one.name}`: `{one.type[:80]}` is {'several types' if found else 'none of the types'}",
        hint=f"write `owner/name@version`; there are: {known[:400]}",
    )
