"""Read and verify the files that a node file names, and make the settings of a node from them."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Final

from penstock.apps.node.config import (
    HELP,
    Brokers,
    FabricKind,
    KeysFile,
    LogKind,
    NatsFile,
    NodeFile,
    PeerConfig,
    PointsFile,
    RolesFile,
    Stamps,
    read_node_file,
)
from penstock.broker.core.settings import NodeSettings, TrustSettings
from penstock.broker.keys.log import KeyLog
from penstock.broker.local.requests import settled
from penstock.broker.local.type_library import Library
from penstock.broker.routing.overlay import Overlay, UnsafeOpen
from penstock.broker.wire.transports import Address, NatsAddress
from penstock.codec.sexp import parse
from penstock.crypto import SigningKey
from penstock.crypto.wrapping import Secret, parse_kek
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.fabric.kafka_login import KafkaLogin
from penstock.fabric.nats_login import NatsLogin
from penstock.guard import (
    Agreements,
    CapabilityAuthority,
    EventRequest,
    NetworkRequest,
    Rules,
    decide,
    environment_schema,
)
from penstock.guard.enforce import Guard
from penstock.guard.policies import Policies
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Domain, Petnames, Principal
from penstock.model.types import Sealing
from penstock.model.values import AttributeSpec, kind_of
from penstock.policy.limits import POLICY_BYTES
from penstock.store.files.files import read_file, within
from penstock.store.files.key_files import KeyFolder, read_kek
from penstock.store.files.named_files import NamedFiles, NamedPrincipals, NameErrors, load_policies
from penstock.store.limits import StoreLimits
from penstock.trust.capabilities import BROKER_RIGHTS, Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType
from penstock.trust.policy_state import Revocations

# ----------------------------------------------------------------------------------------------------------------------
# Node files.


_SQLITE: Final = "sqlite:"
_NAMING: Final = NameErrors.of("node.", "node file", HELP)


@dataclass(frozen=True, slots=True)
class RolesPlace:
    """Where a domain's roles are, and the owners on whose types and networks they count."""

    domain: Principal
    store: str
    ledger: str
    owners: frozenset[Principal]
    #: seconds after which roles are unknown if the store cannot be read
    max_age: float


@dataclass(frozen=True, slots=True)
class PointsPlace:
    """Remote decision points: who says which may decide, on whose types they decide, and how often they are asked."""

    authority: Principal
    owners: frozenset[Principal]
    prefix: str = "penstock"
    refresh: float = 1.0
    timeout: float = 2.0


@dataclass(frozen=True, slots=True)
class LoadedNode:
    """A node file and everything that it names, verified, except for the key, which is opened only once.

    `domains` is for decision records, and for policies that use a principal's home domain.
    """

    path: str
    file: NodeFile
    network: NetworkName
    names: Petnames
    peers: tuple[Address, ...]
    nats: NatsLogin | None
    operators: frozenset[Principal]
    services: frozenset[Principal]
    domains: tuple[Domain, ...]
    credentials: Credentials
    agreements: Agreements
    policies: Policies
    types: tuple[UnverifiedType, ...]
    rules: Rules = field(repr=False)
    #: for a key manager: the key-encryption key, and the other managers that write to its log
    kek: Secret | None = field(default=None, repr=False)
    replicas: frozenset[Principal] = frozenset()
    #: whether this broker has never run before: it has no decision log
    new: bool = True
    #: where domains' roles are
    roles: tuple[RolesPlace, ...] = ()
    #: remote decision points
    points: tuple[PointsPlace, ...] = ()
    #: the servers of a fabric over Kafka
    kafka: KafkaLogin | None = None

    @property
    def key_file(self) -> str:
        """The path of the key."""
        return str(self.folder / self.file.key)

    @property
    def decisions(self) -> Path:
        """The path of the decision log."""
        return self.folder / self.file.decisions

    @property
    def state(self) -> Path:
        """The folder for what must survive the process."""
        return self.folder / self.file.state

    @property
    def folder(self) -> Path:
        """The folder of the node file."""
        return Path(self.path).parent

    def settings(self, key: SigningKey) -> NodeSettings:
        """Return the settings of a node."""
        return NodeSettings(
            key=key,
            network=self.network,
            host=self.file.listen.host,
            port=self.file.listen.port,
            peers=self.peers,
            nats=self.nats if self.file.nats is not None and self.file.nats.listen else None,
            credentials=self.credentials,
            agreements=self.agreements,
            policies=self.policies,
            types=self.types,
            operators=self.operators,
            rules=self.rules,
            zone=self.file.zone,
            trust=TrustSettings(
                unsafe_open=UnsafeOpen(everyone=self.file.brokers is Brokers.OPEN),
                skew=self.file.skew,
                strict=self.file.stamps is Stamps.REQUIRED,
            ),
            stamps=replace(self.file.issued, begins=self.new),
            sealing=self.file.sealing,
            seals=self.file.seals,
            limits=self.file.limits.broker,
        )

    def missing(self, broker: Principal, now: datetime) -> list[Right]:
        """Return the rights of a broker that the credentials do not grant. Clients and other brokers require them."""
        authority = CapabilityAuthority(self.credentials)
        asked = ((right, NetworkRequest(broker, right, self.network, now)) for right in BROKER_RIGHTS)
        return [right for right, request in asked if not settled(decide(request, (authority,)))]

    def stamped(self, broker: Principal, now: datetime) -> dict[Principal, bool]:
        """Return the owners whose time-stamps the broker needs, and whether it may sign them itself."""
        overlay = Overlay(limits=self.file.limits.broker)
        overlay.change(self.credentials, Revocations())
        owners = {one.definition.name.owner for one in self.types} | {self.network.owner}
        return {owner: broker == owner or broker in overlay.stampers(now, owner) for owner in sorted(owners)}

    def not_carried(self, broker: Principal, now: datetime) -> list[TypeName]:
        """Return the file's types whose events the broker may not carry."""
        if self.file.brokers is Brokers.OPEN:
            return []
        overlay = Overlay(limits=self.file.limits.broker)
        overlay.change(self.credentials, Revocations())
        names = (one.definition.name for one in self.types)
        return [name for name in names if not overlay.may_route(now, name.key, broker)]

    def managed(self, broker: Principal, now: datetime) -> list[TypeName]:
        """Return the sealed types whose keys the broker manages, by its file and its rights."""
        if self.file.keys is None:
            return []
        library, authority = (
            Library(self.network, limits=self.file.limits.broker),
            CapabilityAuthority(self.credentials),
        )
        sealed = [
            one for one in (library.add(one, now) for one in self.types) if one.event_type.sealing != Sealing.NONE
        ]
        return [
            one.event_type.name
            for one in sealed
            if broker == one.event_type.name.owner
            or settled(decide(EventRequest(broker, Right.KEYS, one, now), (authority,)))
        ]


def load_node(path: str, now: datetime) -> LoadedNode:
    """Read a node file and everything that it names, except for the key, and verify it as of `now`.

    Raises as `read_node_file`; `MalformedError`: `node.no-match` for a pattern or folder without files,
    `node.principal`, `node.twice`, `node.guard`; `LimitError` (`node.limit`); `FailedError` (`file.*`) for what
    cannot be read, and for a decision log or a state folder that cannot be written; `RefusedError`
    (`node.plaintext`) for an unsealed type that everybody on the fabric could read; and what reading and
    verifying types, credentials and agreements, and reading policies raise.
    """
    data = read_file(path, POLICY_BYTES)
    with within(path):
        file = read_node_file(data)
        named = NamedFiles(Path(path).parent, _NAMING, StoreLimits(policy_files=file.limits.policy_files))
        names = named.principals(file.names)
        network = _network(file.network, names)
        nats = nats_login(file.nats, named)
        kafka = None if file.fabric.kafka is None else kafka_login(file.fabric.kafka, named)
        peers = tuple(_peer(peer, names, nats) for peer in file.peers)
        operators = frozenset(names.find("operators", word) for word in file.operators)
        services = frozenset(names.find("services", word) for word in file.services)
        domains = names.domains(file.domains)
        policies = load_policies(file.policies, named, names, domains)
        rules = _rules(file)
        points = tuple(_points(name, one, names) for name, one in file.points.items())
        roles = tuple(_roles(name, one, names, Path(path).parent) for name, one in file.roles.items())
        replicas = frozenset(names.find("replicas of keys", word) for word in (file.keys.replicas if file.keys else ()))
    loaded = LoadedNode(
        path,
        file,
        network,
        names.petnames,
        peers,
        nats,
        operators,
        services,
        domains,
        named.credentials(file.credentials),
        named.agreements(file.agreements, file.limits.broker.cache_entries),
        policies,
        _types(file, named, network, now),
        rules,
        None if file.keys is None else find_kek(file.keys.kek, Path(path).parent),
        replicas,
        roles=roles,
        points=points,
        kafka=kafka,
    )
    loaded = replace(loaded, new=not loaded.decisions.exists())
    _check_writable(loaded.decisions, loaded.decisions.parent)
    _check_writable(loaded.state, loaded.state if loaded.state.is_dir() else loaded.state.parent)
    return loaded


def _check_writable(file: Path, folder: Path) -> None:
    if file != folder and file.is_dir() and not folder.samefile(file):
        raise FailedError("file.unwritable", f"`{file}` cannot be written: it is a folder")
    if not folder.is_dir():
        raise FailedError("file.unwritable", f"`{file}` cannot be written: there is no folder `{folder}`")
    target = file if file.exists() else folder
    if not os.access(target, os.W_OK):
        raise FailedError("file.unwritable", f"`{file}` cannot be written: permission denied")


def _peer(peer: PeerConfig, names: NamedPrincipals, nats: NatsLogin | None) -> Address:
    """Return the address of a peer. One without an address is reached across NATS by its principal."""
    principal = names.find(f"peer {peer.address or ''}".strip(), peer.principal) if peer.principal else None
    if peer.address is not None:
        return replace(peer.address, principal=principal)
    if nats is None or principal is None:
        raise MalformedError("node.missing", "a peer lacks `address`", hint=HELP)
    return NatsAddress(nats, principal)


def _network(text: str, names: NamedPrincipals) -> NetworkName:
    owner, slash, name = text.partition("/")
    if not slash:
        raise MalformedError("name.malformed", f"network: `{text[:80]}` is not a network", hint="write `owner/name`")
    return NetworkName(names.find("network", owner), name)


def _roles(name: str, file: RolesFile, names: NamedPrincipals, folder: Path) -> RolesPlace:
    """Return where a domain's roles are; a file is relative to the node file."""
    domain = names.find("roles", name)
    owners = frozenset(names.find(f"roles.{name}.owners", word) for word in file.owners)
    store = f"{_SQLITE}{folder / file.store.removeprefix(_SQLITE)}" if file.store.startswith(_SQLITE) else file.store
    return RolesPlace(domain, store, file.ledger, owners or frozenset({domain}), file.max_age)


def _points(name: str, file: PointsFile, names: NamedPrincipals) -> PointsPlace:
    authority = names.find("points", name)
    owners = frozenset(names.find(f"points.{name}.owners", word) for word in file.owners)
    return PointsPlace(authority, owners or frozenset({authority}), file.prefix, file.refresh, file.timeout)


def _rules(file: NodeFile) -> Rules:
    facts = {name: AttributeSpec(kind_of(value)) for name, value in file.facts.items()}
    guards = {name: _guard(name, dotted) for name, dotted in file.guards.items()}
    return Rules(guards, environment_schema(facts))


def _guard(name: str, dotted: str) -> Guard:
    """Import a guard. If its module raises anything, the node does not start."""
    module, _, function = dotted.partition(":")
    try:
        found: object = getattr(import_module(module), function)
    except Exception as error:  # importing a module can raise anything
        raise MalformedError(
            "node.guard",
            f"guards.{name}: `{dotted[:120]}` cannot be imported: {type(error).__name__}",
            hint="install its package beside Penstock, or put its folder into PYTHONPATH",
        ) from error
    if not callable(found):
        raise MalformedError("node.guard", f"guards.{name}: `{dotted[:120]}` is not a function", hint=HELP)
    guard: Guard = found
    return guard


def nats_login(nats: NatsFile | None, named: NamedFiles) -> NatsLogin | None:
    """Return the login of the NATS servers. Its files must exist, and are read again at each login."""
    if nats is None:
        return None
    files = {key: named.path(path) for key, path in nats.files.items()}
    for path in files.values():
        read_file(path)
    return NatsLogin(nats.servers, tls_hostname=nats.tls_hostname, inbox=nats.inbox, **files)


def kafka_login(login: KafkaLogin, named: NamedFiles) -> KafkaLogin:
    """Return the login of Kafka's servers. Its file must exist, and is read again at each login."""
    if not login.config:
        return login
    path = named.path(login.config)
    read_file(path)
    return replace(login, config=path)


def _types(file: NodeFile, named: NamedFiles, network: NetworkName, now: datetime) -> tuple[UnverifiedType, ...]:
    """Return the types, each after those that it depends on."""
    ordered = list(_in_order(named.types(file.types)))
    library = Library(network, limits=file.limits.broker)
    for path, unverified in ordered:
        with within(path):
            library.add(unverified, now)
            _check_sealed(file, unverified)
    return tuple(unverified for _, unverified in ordered)


def _check_sealed(file: NodeFile, one: UnverifiedType) -> None:
    fabric = file.fabric
    if fabric.kind is FabricKind.ROUTED or fabric.unsafe_plaintext or one.definition.sealing is not Sealing.NONE:
        return
    raise RefusedError(
        "node.plaintext",
        f"type `{one.definition.name.name}` is not sealed: everybody with access to the fabric's servers could read it",
        hint='let its owner seal the type, or permit that with `plaintext = "unsafe"` in `[fabric]`',
    )


def _in_order(read: Mapping[TypeName, tuple[str, UnverifiedType]]) -> Iterator[tuple[str, UnverifiedType]]:
    """Yield types after their parents and previous versions, as far as these are given."""
    waiting = dict(read)
    while waiting:
        free = [name for name, (_, one) in waiting.items() if not _rests_on(one) & waiting.keys()]
        # Types that depend on each other do not verify in any order.
        for name in free or list(waiting):
            yield waiting.pop(name)


def _rests_on(one: UnverifiedType) -> set[TypeName]:
    made = one.definition
    previous = None if made.previous is None else TypeName(made.name.owner, made.name.name, made.previous)
    return {name for name in (made.extends, previous) if name is not None}


# ----------------------------------------------------------------------------------------------------------------------
# The key-encryption key and the log of a key manager.


_ENVIRONMENT: Final = "env:"
_CREDENTIAL: Final = "credential:"
#: where systemd puts credentials
_CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"


def find_kek(word: str, folder: Path) -> Secret:
    """Return the key-encryption key that `kek` names: a file, an environment variable, or a credential.

    Raises as `read_kek`, and `FailedError` (`keys.no-kek`).
    """
    if word.startswith(_ENVIRONMENT):
        return _from_environment(word.removeprefix(_ENVIRONMENT))
    if word.startswith(_CREDENTIAL):
        given = os.environ.get(_CREDENTIALS)
        if given is None:
            raise FailedError(
                "keys.no-kek",
                "the service manager has not passed any credentials to this process",
                hint="let the service manager load the credential, or name a file",
            )
        return read_kek(Path(given) / word.removeprefix(_CREDENTIAL))
    return read_kek(folder / word)


def _from_environment(name: str) -> Secret:
    text = os.environ.get(name)
    if text is None:
        raise FailedError(
            "keys.no-kek", f"the environment variable `{name[:80]}` is not set", hint="set it, or name a file"
        )
    with within(f"${name}"):
        stored = parse_kek(parse(text.encode("utf-8", "surrogateescape")))
    if not isinstance(stored, Secret):
        raise RefusedError(
            "keys.kek-passphrase",
            "the key-encryption key has a passphrase, which a broker cannot ask for",
            hint="give a key without a passphrase",
        )
    return stored


async def open_log(file: KeysFile, state: Path, folder: Path, nats: NatsLogin | None, prefix: str) -> KeyLog:
    """Open the log of a key manager. Raises, for one on NATS, as `NatsLog.open`."""
    if file.log is LogKind.FILE or nats is None:
        return KeyFolder(folder / file.folder if file.folder else state / "keys")
    from penstock.fabric.nats_log import NatsLog  # noqa: PLC0415  # nats-py is an extra

    return await NatsLog.open(nats, file.name, prefix=prefix, copies=file.copies)
