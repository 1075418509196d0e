"""Node files: the configuration of one broker, in TOML.

`read_node_file` reads the file strictly, and nothing else. `penstock.apps.node.load` reads the files that it names.
docs/reference/node-file.md describes the keys.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, timedelta, tzinfo
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, Final, TypeVar

from penstock.apps.node.limits import FIXED, SETTABLE, NodeLimits, node_limits
from penstock.broker.evolution.policy_keeper import StampSettings
from penstock.broker.keys.group import Refreshing
from penstock.broker.limits import BrokerLimits
from penstock.broker.sealing.blocks import LINGERING, Lingering
from penstock.broker.wire.transports import PeerAddress
from penstock.codec.limits import ROUTE_BLOCK_EVENTS
from penstock.crypto.sealer import ALGORITHMS, PADDINGS
from penstock.crypto.sealer import SealerSettings as SealSettings
from penstock.errors import MalformedError
from penstock.fabric.kafka_login import KafkaLogin, parse_kafka
from penstock.fabric.nats_login import AddressError, LoginError, address
from penstock.model.principals import Principal
from penstock.model.values import Value
from penstock.store.files.named_files import PoliciesTable, read_policies_table
from penstock.store.files.strict_tables import Strict
from penstock.trust.limits import KEY_BLOCKS, STAMP_PERIOD

# ----------------------------------------------------------------------------------------------------------------------
# The node file.


HELP: Final = "see docs/reference/node-file.md, or `penstock up --example`"
_FILE: Final = Strict.of("node.", HELP)
_KEYS: Final = frozenset(
    (
        *("network", "key", "listen", "http", "names", "peers", "credentials", "agreements", "types", "operators"),
        *("services", "roles", "points", "decisions", "state", "zone", "facts", "guards", "guard_results"),
        *("limits", "trust", "fabric", "nats", "domains"),
        *("sealing", "keys", "policies", "stamps"),
    )
)
#: seconds: clocks that differ by more than this are wrong
_LONGEST_SKEW: Final = 3600
_LONGEST_ROLES: Final = 86_400
#: seconds between two questions to decision points
_SHORTEST_ASKING: Final = 0.1
_LONGEST_ASKING: Final = 60
#: seconds: stamps with a shorter period would expire before the next one arrives
_SHORTEST_STAMP: Final = 2.0
#: seconds: use a log to keep events for longer
_LONGEST_KEPT: Final = 86_400
_UNSAFE: Final = "unsafe"
#: files with secrets and certificates for NATS servers
NATS_FILES: Final = ("credentials", "nkey", "token_file", "tls_ca", "tls_cert", "tls_key")
_INBOX: Final = re.compile(r"_INBOX(\.[A-Za-z0-9_-]+)*", re.ASCII)
_T = TypeVar("_T")
_CHOICE = TypeVar("_CHOICE", bound=StrEnum)


class Brokers(StrEnum):
    """Which brokers may carry a type: those that its owner grants `route`, or all of the network."""

    ROUTE_RIGHT = "route-right"
    OPEN = "open"


class Stamps(StrEnum):
    """Whether time-stamps are required: always, or only for owners that use them."""

    REQUIRED = "required"
    OPTIONAL = "optional"


class FabricKind(StrEnum):
    """What connects brokers: their own links, NATS servers, or Kafka."""

    ROUTED = "routed"
    NATS = "nats"
    KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """Another broker to call; across NATS if it has no address. `principal` is a petname or principal."""

    address: PeerAddress | None
    principal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFile:
    """What connects brokers. `durable` is how many seconds it keeps events."""

    kind: FabricKind = FabricKind.ROUTED
    durable: float = 0.0
    #: whether everybody with access to it may read events of unsealed types
    unsafe_plaintext: bool = False
    #: Kafka's servers, and the file with security settings as it is named
    kafka: KafkaLogin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsFile:
    """NATS servers, the files for logging in, and whether clients may connect across them."""

    servers: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    tls_hostname: str = ""
    #: the prefix of this user's inboxes, if the servers' permissions depend on it
    inbox: str = "_INBOX"
    listen: bool = True


class LogKind(StrEnum):
    """Where a key manager keeps its log: in a folder, or in a stream of the NATS servers."""

    FILE = "file"
    NATS = "nats"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysFile:
    """A key manager, as a node file describes it. Times are in milliseconds, as limits are."""

    log: LogKind = LogKind.FILE
    #: of a log in files (default: `keys` in the state folder)
    folder: str = ""
    #: of a log in a stream, which replicas share; and the number of servers that store it
    name: str = "keys"
    copies: int = 1
    kek: str
    replicas: tuple[str, ...] = ()
    refreshing: Refreshing


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesFile:
    """A domain's roles: the store and ledger of the role book, and the owners on whose types they count."""

    MAX_AGE: ClassVar = 30.0
    store: str
    ledger: str = "roles"
    owners: tuple[str, ...] = ()
    #: seconds after which roles are unknown if the store cannot be read
    max_age: float = MAX_AGE


@dataclass(frozen=True, slots=True, kw_only=True)
class PointsFile:
    """Remote decision points: the owners on whose types they decide, and how often they are asked."""

    REFRESH: ClassVar = 1.0
    TIMEOUT: ClassVar = 2.0
    owners: tuple[str, ...] = ()
    #: the first part of the subjects on the NATS servers
    prefix: str = "penstock"
    #: seconds between two questions about the same, and until a question counts as not answered
    refresh: float = REFRESH
    timeout: float = TIMEOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """The content of a node file. Paths are as written, relative to the file's folder.

    `domains` has the home domains of principals and petnames.
    """

    network: str
    key: str
    listen: PeerAddress
    http: PeerAddress | None = None
    names: Mapping[str, Principal] | str = field(default_factory=dict)
    peers: tuple[PeerConfig, ...] = ()
    credentials: tuple[str, ...] = ()
    agreements: tuple[str, ...] = ()
    policies: PoliciesTable | None = None
    types: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    #: domains whose services push capabilities over NATS
    services: tuple[str, ...] = ()
    domains: Mapping[str, str] = field(default_factory=dict)
    decisions: str = "decisions.jsonl"
    state: str = "state"
    zone: tzinfo = UTC
    facts: Mapping[str, Value] = field(default_factory=dict)
    guards: Mapping[str, str] = field(default_factory=dict)
    #: the file for the results of guards, if they are recorded
    guard_results: str = ""
    #: domains' roles, by the domains' names
    roles: Mapping[str, RolesFile] = field(default_factory=dict)
    #: remote decision points, by the name of who says which points may decide
    points: Mapping[str, PointsFile] = field(default_factory=dict)
    limits: NodeLimits
    brokers: Brokers = Brokers.ROUTE_RIGHT
    stamps: Stamps = Stamps.REQUIRED
    skew: timedelta = timedelta(seconds=1)
    issued: StampSettings = field(default_factory=StampSettings)
    sealing: Lingering = LINGERING
    seals: SealSettings = field(default_factory=SealSettings)
    fabric: FabricFile = FabricFile()
    nats: NatsFile | None = None
    keys: KeysFile | None = None


def read_node_file(data: str | bytes) -> NodeFile:
    """Read a node file.

    Raises `MalformedError`: `node.syntax` when it is not TOML, `node.unknown-key`, `node.missing`, `node.value`,
    `node.peers` for peers beside a fabric, `environment.reserved` for a fact that brokers set themselves,
    `petname.malformed`.
    """
    table = _FILE.parse(data)
    where = "the node file"
    _FILE.known(where, table, _KEYS)
    trust = _FILE.table("trust", table.get("trust", {}))
    _FILE.known("`trust`", trust, {"brokers", "stamps", "skew"})
    nats = read_nats(_FILE, _FILE.table("nats", table["nats"])) if "nats" in table else None
    peers = _peers(table.get("peers", []), nats)
    limits = _limits(_FILE.table("limits", table.get("limits", {})))
    defaults = {"decisions": "decisions.jsonl", "state": "state"}
    return NodeFile(
        network=_FILE.text("network", _FILE.needed(where, table, "network")),
        key=_FILE.text("key", _FILE.needed(where, table, "key")),
        listen=read_address(_FILE, "listen", _FILE.text("listen", _FILE.needed(where, table, "listen"))),
        http=read_address(_FILE, "http", _FILE.text("http", table["http"])) if "http" in table else None,
        names=_FILE.petnames("names", table.get("names", {})),
        peers=peers,
        credentials=_FILE.texts("credentials", table.get("credentials", [])),
        agreements=_FILE.texts("agreements", table.get("agreements", [])),
        policies=read_policies_table(_FILE, table),
        types=_FILE.texts("types", table.get("types", [])),
        operators=_FILE.texts("operators", table.get("operators", [])),
        services=_services(table.get("services", []), nats),
        domains=_FILE.homes("domains", table.get("domains", {})),
        zone=_FILE.time_zone("zone", table["zone"]) if "zone" in table else UTC,
        facts=_FILE.facts("facts", table.get("facts", {})),
        guards=_guards(_FILE.table("guards", table.get("guards", {}))),
        guard_results=_FILE.text("guard_results", table["guard_results"]) if "guard_results" in table else "",
        roles={
            name: _roles(f"roles.{name}", one) for name, one in _FILE.table("roles", table.get("roles", {})).items()
        },
        points=_points(_FILE.table("points", table.get("points", {})), nats),
        limits=limits,
        brokers=_choice("trust.brokers", trust.get("brokers", Brokers.ROUTE_RIGHT), Brokers),
        stamps=_choice("trust.stamps", trust.get("stamps", Stamps.REQUIRED), Stamps),
        skew=_skew(trust.get("skew", 1.0)),
        issued=_issued(_FILE.table("stamps", table.get("stamps", {}))),
        sealing=_sealing(_FILE.table("sealing", table.get("sealing", {}))),
        seals=_seals(_FILE.table("sealing", table.get("sealing", {}))),
        fabric=_fabric(table.get("fabric", FabricKind.ROUTED), nats, peers),
        nats=nats,
        keys=_managing(table, nats, limits.broker),
        **{key: _FILE.text(key, table.get(key, default)) for key, default in defaults.items()},
    )


def read_address(file: Strict, where: str, text: str, *, lowest: int = 0) -> PeerAddress:
    """Read `host:port` or `[host]:port`. Port 0 means any free port."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    plain = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not bare or (":" in bare and bare == host) or not plain or not lowest <= int(port) < 1 << 16:
        raise file.wrong(where, "an address such as `127.0.0.1:7600` or `[::1]:7600`")
    return PeerAddress(bare, int(port))


def _skew(value: object) -> timedelta:
    if type(value) not in (int, float) or not 0 <= value <= _LONGEST_SKEW:  # type: ignore[operator]  # a number
        raise _FILE.wrong("trust.skew", f"seconds, from 0 to {_LONGEST_SKEW}")
    return timedelta(seconds=value)  # type: ignore[arg-type]  # a number


def _issued(table: Mapping[str, object]) -> StampSettings:
    """Read how this broker signs time-stamps."""
    _FILE.known("`stamps`", table, {"period", "every"})
    longest = STAMP_PERIOD / 1000
    period, every = (table.get(name, getattr(StampSettings(), name).total_seconds()) for name in ("period", "every"))
    if type(period) not in (int, float) or not _SHORTEST_STAMP <= period <= longest:  # type: ignore[operator]  # a number
        raise _FILE.wrong("stamps.period", f"seconds, from {_SHORTEST_STAMP:.0f} to {longest:.0f}")
    if type(every) not in (int, float) or not 1 <= every <= period / 2:  # type: ignore[operator]  # numbers
        raise _FILE.wrong("stamps.every", "seconds, from 1 to half of `stamps.period`")
    return StampSettings(period=timedelta(seconds=period), every=timedelta(seconds=every))  # type: ignore[arg-type]  # numbers


def _sealing(table: Mapping[str, object]) -> Lingering:
    _FILE.known("`sealing`", table, {"linger", "events", "algorithm", "padding"})
    linger, events = table.get("linger", LINGERING.linger.total_seconds()), table.get("events", LINGERING.events)
    if type(linger) not in (int, float) or not 0 <= linger <= 1:  # type: ignore[operator]  # a number
        raise _FILE.wrong("sealing.linger", "seconds, from 0 to 1")
    if type(events) is not int or not 0 < events <= ROUTE_BLOCK_EVENTS:
        raise _FILE.wrong("sealing.events", f"a whole number from 1 to {ROUTE_BLOCK_EVENTS}")
    return Lingering(linger=timedelta(seconds=linger), events=events)  # type: ignore[arg-type]  # a number


def _seals(table: Mapping[str, object]) -> SealSettings:
    algorithm = _named("sealing.algorithm", table.get("algorithm", "aes-gcm"), ALGORITHMS)
    return SealSettings(algorithm, _named("sealing.padding", table.get("padding", "none"), PADDINGS))


def _named(where: str, value: object, known: Mapping[str, _T]) -> _T:
    if not isinstance(value, str) or value not in known:
        raise _FILE.not_one_of(where, value, known)
    return known[value]


def _peers(value: object, nats: NatsFile | None) -> tuple[PeerConfig, ...]:
    if not isinstance(value, list):
        raise _FILE.wrong("peers", "a list of tables: write `[[peers]]`")
    found: dict[PeerAddress | str, PeerConfig] = {}
    for number, one in enumerate(value, start=1):
        where = f"peer {number}"
        table = _FILE.table(where, one)
        _FILE.known(where, table, {"address", "principal"})
        principal = _FILE.text(f"{where}: principal", table["principal"]) if "principal" in table else ""
        address = None
        if nats is None or not principal or "address" in table:
            text = _FILE.text(f"{where}: address", _FILE.needed(where, table, "address"))
            address = read_address(_FILE, f"{where}: address", text, lowest=1)
        if (address or principal) in found:
            raise _FILE.wrong(f"{where}: address", "different from all peers before it")
        found[address or principal] = PeerConfig(address, principal)
    return tuple(found.values())


def _fabric(value: object, nats: NatsFile | None, peers: tuple[PeerConfig, ...]) -> FabricFile:
    """Read what connects brokers: a word, or a table."""
    table = {"kind": value} if isinstance(value, str) else _FILE.table("fabric", value)
    _FILE.known("`fabric`", table, {"kind", "plaintext", "durable", "address"})
    place = "fabric"
    kind = _choice(
        place if isinstance(value, str) else f"{place}.kind", _FILE.needed("`fabric`", table, "kind"), FabricKind
    )
    durable, plaintext = table.get("durable", 0.0), table.get("plaintext", "")
    if type(durable) not in (int, float) or not 0 <= durable <= _LONGEST_KEPT:  # type: ignore[operator]  # a number
        raise _FILE.wrong(f"{place}.durable", f"seconds, from 0 to {_LONGEST_KEPT}")
    if plaintext not in ("", _UNSAFE):
        raise _FILE.wrong(f"{place}.plaintext", f"`{_UNSAFE}`, or left out")
    if "address" in table and kind is not FabricKind.KAFKA:
        raise _FILE.wrong(f"{place}.address", 'left out, unless `kind = "kafka"`')
    if kind is FabricKind.ROUTED:
        return FabricFile()
    if kind is FabricKind.NATS and nats is None:
        raise MalformedError("node.missing", "a fabric over NATS needs the table `[nats]` with its servers", hint=HELP)
    kafka = None
    if kind is FabricKind.KAFKA:
        kafka = read_kafka(_FILE, f"{place}.address", _FILE.needed("`fabric`", table, "address"))
    if peers:
        raise MalformedError("node.peers", "a broker on a fabric cannot have peers", hint="leave out `[[peers]]`")
    kept = float(durable)  # type: ignore[arg-type]  # a number
    return FabricFile(kind=kind, durable=kept, unsafe_plaintext=plaintext == _UNSAFE, kafka=kafka)


def read_kafka(file: Strict, where: str, value: object) -> KafkaLogin:
    """Read the address of a fabric over Kafka. Raises `MalformedError` with the codes of the file."""
    try:
        parsed = parse_kafka(file.text(where, value))
    except AddressError:
        parsed = None
    if parsed is None or parsed.topic or parsed.options:
        # The address may contain a password, which must not be shown.
        raise file.wrong(where, "an address such as `kafka://host:9092?config=FILE`, without user and password")
    return parsed.login


def read_nats(file: Strict, table: Mapping[str, object]) -> NatsFile:
    """Read the table `[nats]`. Raises `MalformedError` with the codes of the file."""
    file.known("`nats`", table, {"servers", "listen", "tls_hostname", "inbox", *NATS_FILES})
    servers = file.texts("nats.servers", file.needed("`nats`", table, "servers"))
    try:
        urls = tuple(address(server) for server in servers)
    except LoginError:
        # The address may contain a password, which must not be shown.
        raise file.wrong("nats.servers", "addresses such as `nats://host:4222`, without user and password") from None
    if not urls:
        raise file.wrong("nats.servers", "at least one address")
    inbox = file.text("nats.inbox", table.get("inbox", "_INBOX"))
    if not _INBOX.fullmatch(inbox):
        raise file.wrong("nats.inbox", "`_INBOX`, or a subject beneath it such as `_INBOX.east`")
    return NatsFile(
        servers=urls,
        inbox=inbox,
        files={key: file.text(f"nats.{key}", table[key]) for key in NATS_FILES if key in table},
        tls_hostname=file.text("nats.tls_hostname", table["tls_hostname"]) if "tls_hostname" in table else "",
        listen=file.flag("nats.listen", table.get("listen", True)),
    )


def _services(value: object, nats: NatsFile | None) -> tuple[str, ...]:
    services = _FILE.texts("services", value)
    if services and nats is None:
        raise MalformedError(_FILE.missing, "`services` needs the table `[nats]` with its servers", hint=HELP)
    return services


def _managing(table: Mapping[str, object], nats: NatsFile | None, limits: BrokerLimits) -> KeysFile | None:
    if "keys" not in table:
        return None
    return read_keys(_FILE, _FILE.table("keys", table["keys"]), nats=nats is not None, limits=limits)


def _guards(table: Mapping[str, object]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, value in table.items():
        where = f"guards.{name[:80]}"
        text = _FILE.text(where, value)
        module, colon, function = text.partition(":")
        if not colon or not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise _FILE.wrong(where, "the dotted name of a Python function, such as `package.module:function`")
        found[name] = text
    return MappingProxyType(found)


def _roles(where: str, value: object) -> RolesFile:
    table = _FILE.table(where, value)
    _FILE.known(f"`{where}`", table, {"store", "ledger", "owners", "max_age"})
    age = table.get("max_age", RolesFile.MAX_AGE)
    if type(age) not in (int, float) or not 1 <= age <= _LONGEST_ROLES:  # type: ignore[operator]  # a number
        raise _FILE.wrong(f"{where}.max_age", f"seconds, from 1 to {_LONGEST_ROLES}")
    return RolesFile(
        store=_FILE.text(f"{where}.store", _FILE.needed(f"`{where}`", table, "store")),
        ledger=_FILE.text(f"{where}.ledger", table.get("ledger", "roles")),
        owners=_FILE.texts(f"{where}.owners", table.get("owners", [])),
        max_age=float(age),  # type: ignore[arg-type]  # a number
    )


def _points(table: Mapping[str, object], nats: NatsFile | None) -> Mapping[str, PointsFile]:
    if table and nats is None:
        raise MalformedError("node.missing", "decision points need the table `[nats]` with its servers", hint=HELP)
    found = {}
    for name, value in table.items():
        where = f"points.{name}"
        one = _FILE.table(where, value)
        _FILE.known(f"`{where}`", one, {"owners", "prefix", "refresh", "timeout"})
        times = {"refresh": one.get("refresh", PointsFile.REFRESH), "timeout": one.get("timeout", PointsFile.TIMEOUT)}
        for key, seconds in times.items():
            if type(seconds) not in (int, float) or not _SHORTEST_ASKING <= seconds <= _LONGEST_ASKING:  # type: ignore[operator]  # a number
                raise _FILE.wrong(f"{where}.{key}", f"seconds, from {_SHORTEST_ASKING} to {_LONGEST_ASKING}")
        found[name] = PointsFile(
            owners=_FILE.texts(f"{where}.owners", one.get("owners", [])),
            prefix=_FILE.text(f"{where}.prefix", one.get("prefix", "penstock")),
            refresh=float(times["refresh"]),  # type: ignore[arg-type]  # a number
            timeout=float(times["timeout"]),  # type: ignore[arg-type]  # a number
        )
    return found


def _limits(table: Mapping[str, object]) -> NodeLimits:
    fixed = sorted(name for name in table if name in FIXED)
    if fixed:
        raise MalformedError(
            "node.fixed-limit",
            f"`limits.{fixed[0]}` cannot be set: it is the same in every broker",
            hint="leave it out",
            key=fixed[0],
        )
    _FILE.known("`limits`", table, SETTABLE)
    chosen: dict[str, int] = {}
    for name, value in table.items():
        most = SETTABLE[name]
        if type(value) is not int or not 0 < value <= most:
            raise _FILE.wrong(f"limits.{name}", f"a whole number from 1 to {most}")
        chosen[name] = value
    return node_limits(chosen)


def _choice(where: str, value: object, kind: type[_CHOICE]) -> _CHOICE:
    try:
        return kind(_FILE.text(where, value))
    except ValueError:
        raise _FILE.not_one_of(where, value, kind) from None


# ----------------------------------------------------------------------------------------------------------------------
# The table `[keys]` of a node file: a key manager that runs with the broker, its log, and its key-encryption key.


_MANAGER_KEYS: Final = frozenset(
    ("log", "folder", "name", "copies", "kek", "replicas", "epoch_seconds", "epoch_blocks", "longest_seconds")
)
_NAME_LENGTH: Final = 32
#: the most servers that can store a stream
_MOST_COPIES: Final = 5


def read_keys(file: Strict, table: Mapping[str, object], *, nats: bool, limits: BrokerLimits) -> KeysFile:
    """Read the table `[keys]`. Raises `MalformedError` (`node.unknown-key`, `node.missing`, `node.value`)."""
    file.known("`keys`", table, _MANAGER_KEYS)
    kind = file.text(_in("log"), table.get("log", LogKind.FILE))
    if kind not in tuple(LogKind):
        raise file.wrong(_in("log"), " or ".join(f"`{one}`" for one in LogKind))
    if kind == LogKind.NATS and not nats:
        raise MalformedError(
            file.missing, "a key log on NATS needs the table `[nats]` with its servers", hint=file.help
        )
    name = file.text(_in("name"), table.get("name", "keys"))
    if not (name.isascii() and name.isalnum() and len(name) <= _NAME_LENGTH):
        raise file.wrong(_in("name"), f"at most {_NAME_LENGTH} letters and digits")
    return KeysFile(
        log=LogKind(kind),
        folder=file.text(_in("folder"), table["folder"]) if "folder" in table else "",
        name=name,
        copies=_whole(file, "copies", table.get("copies", 1), _MOST_COPIES),
        kek=file.text(_in("kek"), file.needed("`keys`", table, "kek")),
        replicas=file.texts(_in("replicas"), table.get("replicas", [])),
        refreshing=_refreshing(file, table, limits),
    )


def _refreshing(file: Strict, table: Mapping[str, object], limits: BrokerLimits) -> Refreshing:
    most = STAMP_PERIOD // 1000
    period = _whole(file, "epoch_seconds", table.get("epoch_seconds", limits.key_epoch // 1000), most)
    longest = _whole(file, "longest_seconds", table.get("longest_seconds", limits.key_longest // 1000), most)
    if longest < period:
        raise file.wrong(_in("longest_seconds"), "no less than `keys.epoch_seconds`")
    blocks = _whole(file, "epoch_blocks", table.get("epoch_blocks", limits.key_blocks), KEY_BLOCKS)
    return replace(Refreshing.by(limits), period=period * 1000, blocks=blocks, longest=longest * 1000)


def _in(name: str) -> str:
    return f"keys.{name}"


def _whole(file: Strict, name: str, value: object, most: int) -> int:
    if type(value) is not int or not 0 < value <= most:
        raise file.wrong(_in(name), f"a whole number from 1 to {most}")
    return value


# ----------------------------------------------------------------------------------------------------------------------
# The node file that `penstock up --example` prints: every key, with what it is for.


#: the name of a broker's file in a folder that `penstock init` has written
NODE_FILE: Final = "broker.toml"
EXAMPLE: Final = """\
# A broker of Penstock. Paths are relative to the folder of this file; what is commented out shows its default.

network = "london/London"       # owner/name; the owner is a principal (ed25519:…) or one of the names below
key = "broker.key"              # the broker's private key, as `penstock key new` makes it
listen = "127.0.0.1:7600"       # where clients and other brokers connect; port 0 takes any that is free
http = "127.0.0.1:7680"         # /health, /ready and /metrics; without it there are none
names = "names.toml"            # petnames, as `penstock name` keeps them, or a table

# Rights come from here alone: files, patterns, or folders. All signatures are verified.
credentials = ["certs/*.cert"]  # what the broker uses, and shows to everybody
types = ["types/"]              # signed event types that it serves

# services = ["met"]            # domains whose access control services push certificates to this broker over [nats]
operators = ["operator"]        # who may ask for its state with `penstock net show`
# decisions = "decisions.jsonl" # the decision log: nothing is allowed that cannot be written there
# state = "state"               # a folder for what has to outlive the process
# guard_results = "guards.jsonl"  # record the result of each predicate for each event here
# zone = "UTC"                  # of `hour`, `minute` and `weekday` in conditions

# Other brokers, which are called until they answer. With a principal, it is that one and no other; with a principal
# and no address, it is called across the servers in [nats].
# [[peers]]
# address = "broker.example.org:7600"
# principal = "their-broker"

# NATS servers across which clients and brokers may reach this broker too. They are not trusted: sessions are sealed
# from end to end. Files: credentials, nkey, token_file, tls_ca, tls_cert, tls_key.
# [nats]
# servers = ["nats://127.0.0.1:4222"]
# credentials = "broker.creds"
# listen = true                 # false: only this broker uses them, to call others, or as its fabric

# What is between brokers: "routed", links of their own; or, without peers, "nats", the servers in [nats], or "kafka".
# Whoever reaches the servers could read types that nobody seals: they do not cross them unless you say `unsafe`.
# [fabric]
# kind = "routed"
#   With "kafka": address = "kafka://127.0.0.1:9092?config=kafka.conf". This file has security settings, and mode 600.
# plaintext = "unsafe"
# durable = 0                   # seconds for which events are kept for brokers that are away

# Which brokers carry the events of a type: "route-right", those that its owner gives the right to; or "open", all that
# may connect to the network, who then read every event.
[trust]
brokers = "route-right"
# stamps = "required"           # or "optional": a broker that is cut off goes on for owners without time-stamps
# skew = 1.0                    # seconds by which any two clocks of the network may differ

# Time-stamps that this broker signs for owners that grant it `stamp`, and for its own principal's types.
# [stamps]
# period = 30                   # seconds for which one is good: brokers that are cut off stop after that
# every = 10                    # seconds between two of them; a change of policy is stamped immediately

# [sealing]                     # events of sealed types are sealed together, which costs less
# linger = 0.002                # seconds for which one waits for others; 0 seals each client's message immediately
# events = 128                  # so many go without waiting
# algorithm = "aes-gcm"         # or "aes-gcm-siv", "aes-eax"
# padding = "none"              # hide lengths: by "powers" of two, or by few "sizes"

# A key manager that runs with this broker, for types of its own principal, and of owners who grant it `keys`.
# [keys]
# log = "file"                  # or "nats": a stream of the servers in [nats]
# folder = "state/keys"         # of a log in a folder, which replicas on one machine may share
# name = "keys"                 # of a log on NATS, which all replicas name alike
# copies = 1                    # servers that keep a log on NATS
# kek = "keys.kek"              # what keys lie under, of `penstock sealing new-kek`; or "env:NAME", "credential:NAME"
# replicas = ["other-broker"]   # other key managers that write to the same log
# epoch_seconds = 3600          # how long the key of an epoch is used
# epoch_blocks = 4294967296     # how many blocks may be sealed under it
# longest_seconds = 86400       # after which time nobody seals under it, if there is no new one

# [domains]                     # where principals and names are at home; decisions are recorded with it
# operator = "London"

# [policies]                    # what the domain says about its clients, besides certificates: XACML, or as text
# files = ["plates.policy"]     # each decides; several are combined by `apply`
# refer = ["shared/"]           # policies that they refer to
# apply = "deny-overrides"
# rights = "both"               # or "restrict", "alone", "either": see docs/how-to/write-policies-over-events.md
# owners = ["london"]           # whose types they are about; everybody's, unless they give rights by themselves

# [facts]                       # what conditions may ask for besides the time
# on_duty = true

# [guards]                      # predicates that rights name, by their Python functions
# within-zone = "package.module:function"

# [roles.london]                # active roles of a domain give rights at this broker: the role book in a store
# store = "sqlite:london.db"    # or postgresql://user@host/database
# ledger = "roles"
# owners = ["london"]           # on whose types and networks they count; the domain's own, if it is left out
# max_age = 30                  # seconds after which roles are unknown if the store cannot be read

# [points.london]               # remote decision points decide what clients publish and read; needs [nats]
# owners = ["london"]           # on whose types they decide; london's own, if it is left out
# refresh = 1.0                 # seconds between two questions about the same
# timeout = 2.0                 # seconds until a question counts as not answered
# prefix = "penstock"           # the first part of the points' subjects on the NATS servers

# [limits]                      # bounds, see docs/reference/node-file.md
# client_rate = 6_000_000
"""
