"""Policy files: which types, credentials and subscribers a job works with.

`read_policy_file` reads the file, strictly and without touching anything else. `PolicyFile.load` reads what it names,
verifies all of it, and gives what jobs take. The keys are described in docs/reference/policy-file.md.
"""

import glob
import zoneinfo
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from types import MappingProxyType
from typing import Final

from penstock.errors import LimitError, MalformedError
from penstock.guard import Authority, CapabilityAuthority, environment_schema
from penstock.model.domains import Domain
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeName
from penstock.model.principals import Petnames, Principal
from penstock.model.values import AttributeSpec, Value, kind_of
from penstock.pipeline.policy import Policy, Subscriber
from penstock.pipeline.strict_tables import Strict
from penstock.selector import ALWAYS, Selector, parse
from penstock.store.files import read_file, within
from penstock.store.petnames import parse_petnames, read_petnames
from penstock.trust.credentials import Credentials, read_credentials
from penstock.trust.event_types import UnverifiedType, VerifiedType, read_type, verify_type

_HELP: Final = "see docs/reference/policy-file.md"
_FILE: Final = Strict(
    syntax="policy.syntax",
    unknown="policy.unknown-key",
    missing="policy.missing",
    value="policy.value",
    help=_HELP,
)
_KEYS: Final = frozenset({"types", "history", "credentials", "names", "subscribers", "domains", "zone", "facts"})


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
    names: Mapping[str, Principal] | str = field(default_factory=dict)
    subscribers: tuple[Subscription, ...] = ()
    domains: Mapping[str, str] = field(default_factory=dict)
    zone: tzinfo = UTC
    facts: Mapping[str, Value] = field(default_factory=dict)

    def load(self, folder: Path, now: datetime, *, limits: Limits = DEFAULT_LIMITS) -> "LoadedPolicy":
        """Read what the file names, and verify all of it at a time.

        Raises `MalformedError`: `policy.no-match` for a pattern without files, `policy.type`, `policy.principal`,
        `policy.twice`; `LimitError` (`policy.limit`); `SelectorError` for a filter that does not fit its type; and
        what reading and verifying types and credentials raise.
        """
        files = _Files(folder, limits)
        names = files.petnames(self.names)
        unverified = list(files.types(self.types))
        known = {definition.definition.name: definition for _, definition in files.types(self.history)}
        for file, definition in unverified:
            name = definition.definition.name
            if known.get(name, definition).fingerprint != definition.fingerprint:
                raise _twice(f"`{file}`: version {name.version} of `{name.name}`")
            known[name] = definition
        types: dict[TypeName, VerifiedType] = {}
        credentials = Credentials()
        for file, definition in unverified:
            with within(file):
                types[definition.definition.name] = verify_type(definition, now, types=known.get, limits=limits)
                # Whose type it is, is part of the type: a quorum that owns it need not be shown a second time.
                quorums = definition.credentials.verify().thresholds().values()
                credentials += Credentials.of(quorums=tuple(quorums))
        credentials += files.credentials(self.credentials)
        subscribers = tuple(_subscriber(one, names, types) for one in self.subscribers)
        policy = Policy(credentials, subscribers, self._others(credentials))
        petnames: dict[Principal, str] = {}
        for petname, principal in names.items():
            petnames.setdefault(principal, petname)
        domains = _domains(self.domains, names)
        return LoadedPolicy(policy, tuple(types.values()), Petnames(petnames), self.zone, self.facts, domains)

    def _others(self, credentials: Credentials) -> tuple[Authority, ...]:
        """Return who knows of the facts that conditions may ask for, where there are any."""
        if not self.facts:
            return ()
        facts = {name: AttributeSpec(kind_of(value)) for name, value in self.facts.items()}
        return (CapabilityAuthority(credentials, environment=environment_schema(facts)),)


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy, the verified types that it speaks of, and the environment that its conditions are asked in.

    `domains` is for records of decisions: nothing is decided by it.
    """

    policy: Policy
    types: tuple[VerifiedType, ...]
    names: Petnames
    zone: tzinfo = UTC
    facts: Mapping[str, Value] = field(default_factory=dict)
    domains: tuple[Domain, ...] = ()


def load_policy(path: str, now: datetime, *, limits: Limits = DEFAULT_LIMITS) -> LoadedPolicy:
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
        raise _limit(f"{limits.policy_bytes} bytes")
    table = _FILE.parse(data)
    _FILE.known("the policy", table, _KEYS)
    return PolicyFile(
        types=_FILE.some("types", _FILE.texts("types", _FILE.needed("the policy", table, "types"))),
        history=_FILE.texts("history", table.get("history", [])),
        credentials=_FILE.texts("credentials", table.get("credentials", [])),
        names=_names(table.get("names", {})),
        subscribers=_subscribers(table.get("subscribers", []), limits),
        domains=_homes(_FILE.table("domains", table.get("domains", {})), limits),
        zone=_zone(_FILE.text("zone", table["zone"])) if "zone" in table else UTC,
        facts=_FILE.facts("facts", table.get("facts", {})),
    )


def _names(value: object) -> Mapping[str, Principal] | str:
    if isinstance(value, str):
        return _FILE.text("names", value)
    return MappingProxyType(read_petnames(_FILE.table("names", value)))


def _subscribers(value: object, limits: Limits) -> tuple[Subscription, ...]:
    if not isinstance(value, list):
        raise _FILE.wrong("subscribers", "a list of tables: write `[[subscribers]]`")
    if len(value) > limits.policy_subscribers:
        raise _limit(f"{limits.policy_subscribers} subscribers")
    found: dict[str, Subscription] = {}
    for number, one in enumerate(value, start=1):
        where = f"subscriber {number}"
        table = _FILE.table(where, one)
        _FILE.known(where, table, {"name", "principal", "type", "where"})
        name = _name(f"{where}: name", _FILE.needed(where, table, "name"), limits)
        if name in found:
            raise _twice(f"subscriber `{name}`")
        found[name] = Subscription(
            name,
            _FILE.text(f"{where}: principal", table.get("principal", name)),
            _FILE.text(f"{where}: type", _FILE.needed(where, table, "type")),
            parse(_FILE.text(f"{where}: where", table["where"]), limits=limits) if "where" in table else ALWAYS,
        )
    return tuple(found.values())


def _homes(table: Mapping[str, object], limits: Limits) -> Mapping[str, str]:
    return MappingProxyType({member: _name(f"domains.{member[:80]}", value, limits) for member, value in table.items()})


def _name(where: str, value: object, limits: Limits) -> str:
    """Return a name that people are shown."""
    name = _FILE.text(where, value)
    if len(name) > limits.policy_name_length or not name.isprintable():
        raise _FILE.wrong(where, f"at most {limits.policy_name_length} printable characters")
    return name


def _zone(text: str) -> tzinfo:
    try:
        return zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise MalformedError(
            "policy.zone", f"`{text[:80]}` is no time zone", hint="write `UTC` or a region such as `Europe/Amsterdam`"
        ) from error


# --- What it names ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Files:
    """The files that a policy names, from the folder that it stands in."""

    folder: Path
    limits: Limits

    def petnames(self, names: Mapping[str, Principal] | str) -> Mapping[str, Principal]:
        if not isinstance(names, str):
            return names
        file = str(self.folder / names)
        data = read_file(file)
        with within(file):
            return parse_petnames(data)

    def types(self, patterns: Iterable[str]) -> Iterator[tuple[str, UnverifiedType]]:
        for file, data in self._read(patterns):
            with within(file):
                read = read_type(data, limits=self.limits)
            yield file, read

    def credentials(self, patterns: Iterable[str]) -> Credentials:
        found: list[Credentials] = []
        for file, data in self._read(patterns):
            with within(file):
                found.append(read_credentials(data, limits=self.limits).verify())
        certificates = {certificate.id: certificate for bag in found for certificate in bag}
        if len(certificates) > self.limits.certificates:
            raise _limit(f"{self.limits.certificates} certificates")
        return Credentials(tuple(certificates.values()), tuple(dict.fromkeys(q for bag in found for q in bag.quorums)))

    def _read(self, patterns: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        files = list(dict.fromkeys(file for pattern in patterns for file in self._matching(pattern)))
        if len(files) > self.limits.policy_files:
            raise _limit(f"{self.limits.policy_files} files")
        return ((file, read_file(file)) for file in files)

    def _matching(self, pattern: str) -> list[str]:
        if not glob.has_magic(pattern):
            return [str(self.folder / pattern)]
        try:
            found = sorted(glob.glob(pattern, root_dir=self.folder, recursive=True))  # noqa: PTH207  # may be absolute
        except ValueError:
            found = []
        if not found:
            raise MalformedError(
                "policy.no-match",
                f"`{pattern[:80]}` names no file",
                hint=f"patterns are relative to the folder of the policy file; {_HELP}",
            )
        return [str(self.folder / file) for file in found]


def _subscriber(
    one: Subscription, names: Mapping[str, Principal], types: Mapping[TypeName, VerifiedType]
) -> Subscriber:
    verified = _type(one, types)
    one.selector.check(verified.event_type.schema)
    principal = _principal(f"subscriber `{one.name}`", one.principal, names)
    return Subscriber(one.name, principal, verified, one.selector)


def _domains(homes: Mapping[str, str], names: Mapping[str, Principal]) -> tuple[Domain, ...]:
    """Return the domains with their members, of whom the first to be named stands for the domain."""
    found: dict[Principal, str] = {}
    for member, domain in homes.items():
        principal = _principal("domains", member, names)
        if found.setdefault(principal, domain) != domain:
            raise _twice(f"domains: the domain of `{member[:80]}`")
    members: dict[str, list[Principal]] = {}
    for principal, domain in found.items():
        members.setdefault(domain, []).append(principal)
    return tuple(Domain(name, first, clients=tuple(others)) for name, (first, *others) in members.items())


def _principal(where: str, text: str, names: Mapping[str, Principal]) -> Principal:
    if text.startswith(("ed25519:", "threshold:")):
        return Principal.parse(text)
    if text in names:
        return names[text]
    raise MalformedError(
        "policy.principal",
        f"{where}: `{text[:80]}` is no principal, and none of the policy's names",
        hint="write `ed25519:…`, or add it to `[names]`",
    )


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


def _twice(what: str) -> MalformedError:
    return MalformedError("policy.twice", f"{what} is given twice", hint="only one can hold")


def _limit(bound: str) -> LimitError:
    return LimitError("policy.limit", f"a policy has more than {bound}")
