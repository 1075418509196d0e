"""Domain files: the configuration of a domain's access control service, in TOML.

`read_domain_file` reads the file strictly, and nothing else. `load_domain` reads the files that it names.
docs/reference/domain-file.md describes the keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from penstock.apps.node.config import NatsFile, read_address, read_nats
from penstock.apps.node.load import nats_login
from penstock.broker.wire.transports import PeerAddress
from penstock.errors import MalformedError
from penstock.fabric.nats_login import NatsLogin
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Petnames, Principal
from penstock.policy.limits import POLICY_BYTES
from penstock.store.files.files import read_file, within
from penstock.store.files.named_files import NamedFiles, NamedPrincipals, NameErrors
from penstock.store.files.strict_tables import Strict
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, VerifiedType, verify_type

HELP: Final = "see docs/reference/domain-file.md, or `penstock acs serve --example`"
_FILE: Final = Strict.of("acs.file-", HELP)
_NAMING: Final = NameErrors.of("acs.file-", "domain file", HELP)
_KEYS: Final = frozenset(
    (
        *("name", "key", "signer", "listen", "store", "administrators", "names", "types", "credentials"),
        *("roles", "facts", "notify"),
        *("tls_cert", "tls_key", "nats", "broker", "network"),
    )
)
_SQLITE: Final = "sqlite:"

EXAMPLE: Final = """\
# A domain and its access control service. `penstock acs serve domain.toml` runs it.
# Paths are relative to the folder of this file.

name = "grid"                     # the domain; rights on its service are rights on the network DOMAIN/grid
key = "grid.key"                  # the domain's private key; its passphrase is asked for
listen = "127.0.0.1:7710"         # where the service answers HTTP; port 0 is any free port
store = "sqlite:grid.db"          # or postgresql://user@host/database, which several services can share

administrators = ["alice"]        # who may change everything; the service issues their certificates
types = ["types/*.type"]          # event types, so that `penstock acs holders` can list who has rights on them
# credentials = ["received/"]     # certificates that other domains gave this one; registered when the service starts
# roles = "roles"                 # issue capabilities from the roles in this ledger of the store: `penstock role init`
# names = "names.toml"            # names for principals, or a table [names]

# broker = "penstock://127.0.0.1:7600"  # hand validity statements to this broker, as a client of its network
# network = "grid/grid"

# signer = ["sign-with-token"]    # a program that holds the key; `key` is then the file of the public key
# tls_cert = "server.pem"         # serve TLS with this certificate chain and key
# tls_key = "server.key"

[names]
alice = "ed25519:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

# [notify]                        # services of other domains: they hear immediately that a role or an appointment
# met = "https://acs.met.example"  # has ended that was certified for them

# [facts.on_duty]                 # a fact of the role policy from a query; its rows are the arguments that are true
# sql = "sqlite:staff.db"         # or postgresql://user@host/database
# query = "SELECT badge, ward FROM duty"
# every = 10                      # seconds between two readings
# max_age = 30                    # seconds after which facts of a silent source are unknown

# [facts.consent]                 # the same from an endpoint that returns a JSON array of rows
# url = "https://records.example/consent"
# token_file = "consent.token"    # sent as a bearer token

# [facts.present]                 # from events: each changes one fact
# events = "alice/Badge"
# broker = "penstock://127.0.0.1:7600"
# network = "alice/plant"
# key = "acs-reader.key"
# credential = ["acs-reader.cert"]
# arguments = ["badge", "ward"]   # attributes of the event
# value = "present"               # the attribute with the value; without it each event makes its fact true
# max_age = 3600

# [nats]                          # push capabilities to brokers over these servers
# servers = ["nats://127.0.0.1:4222"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactFile:
    """The source of one fact: a query, an endpoint, or events. Numbers are seconds."""

    sql: str = field(default="", repr=False)
    query: str = ""
    url: str = ""
    token_file: str = ""
    events: str = ""
    broker: str = ""
    network: str = ""
    key: str = ""
    credential: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    value: str = ""
    every: float = 10.0
    timeout: float = 10.0
    max_age: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainFile:
    """The content of a domain file. Paths are as written, relative to the file's folder."""

    name: str
    key: str
    listen: PeerAddress
    store: str
    signer: tuple[str, ...] = field(default=(), repr=False)
    administrators: tuple[str, ...] = ()
    names: Mapping[str, Principal] | str = field(default_factory=dict)
    types: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    #: the ledger of the domain's roles, in the same store
    roles: str = ""
    #: where facts of the role policy come from, by their names
    facts: Mapping[str, FactFile] = field(default_factory=dict)
    #: the services of other domains, by the domains' names
    notify: Mapping[str, str] = field(default_factory=dict)
    #: the broker that gets validity statements, and its network
    broker: str = ""
    network: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    nats: NatsFile | None = None


def read_domain_file(data: str | bytes) -> DomainFile:
    """Read a domain file.

    Raises `MalformedError`: `acs.file-syntax` when it is not TOML, `acs.file-unknown-key`, `acs.file-missing`,
    `acs.file-value`, `petname.malformed`.
    """
    table = _FILE.parse(data)
    where = "the domain file"
    _FILE.known(where, table, _KEYS)
    if ("tls_cert" in table) is not ("tls_key" in table):
        raise MalformedError(_FILE.missing, "`tls_cert` and `tls_key` must be given together", hint=HELP)
    if "facts" in table and "roles" not in table:
        raise MalformedError(_FILE.missing, "`facts` needs `roles`: a fact is one of the role policy", hint=HELP)
    if "notify" in table and "roles" not in table:
        raise MalformedError(_FILE.missing, "`notify` needs `roles`: notices are about their records", hint=HELP)
    if ("broker" in table) is not ("network" in table):
        raise MalformedError(_FILE.missing, "`broker` and `network` must be given together", hint=HELP)
    signer = _FILE.texts("signer", table.get("signer", []))
    return DomainFile(
        name=_FILE.text("name", _FILE.needed(where, table, "name")),
        key=_FILE.text("key", _FILE.needed(where, table, "key")),
        listen=read_address(_FILE, "listen", _FILE.text("listen", _FILE.needed(where, table, "listen"))),
        store=_FILE.text("store", _FILE.needed(where, table, "store")),
        signer=_FILE.some("signer", signer) if "signer" in table else (),
        administrators=_FILE.texts("administrators", table.get("administrators", [])),
        names=_FILE.petnames("names", table.get("names", {})),
        types=_FILE.texts("types", table.get("types", [])),
        credentials=_FILE.texts("credentials", table.get("credentials", [])),
        roles=_FILE.text("roles", table["roles"]) if "roles" in table else "",
        facts={
            name: _read_fact(f"facts.{name}", one) for name, one in _FILE.table("facts", table.get("facts", {})).items()
        },
        notify={
            name: _FILE.text(f"notify.{name}", one)
            for name, one in _FILE.table("notify", table.get("notify", {})).items()
        },
        broker=_FILE.text("broker", table["broker"]) if "broker" in table else "",
        network=_FILE.text("network", table["network"]) if "network" in table else "",
        tls_cert=_FILE.text("tls_cert", table["tls_cert"]) if "tls_cert" in table else "",
        tls_key=_FILE.text("tls_key", table["tls_key"]) if "tls_key" in table else "",
        nats=read_nats(_FILE, _FILE.table("nats", table["nats"])) if "nats" in table else None,
    )


#: the keys of each kind of source, by the key that says which kind it is; those that are needed first
_FACT_KEYS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "sql": (("query",), ("every", "timeout", "max_age")),
    "url": ((), ("token_file", "every", "timeout", "max_age")),
    "events": (("broker", "network", "key"), ("credential", "arguments", "value", "max_age")),
}


def _read_fact(where: str, value: object) -> FactFile:
    table = _FILE.table(where, value)
    kinds = [kind for kind in _FACT_KEYS if kind in table]
    if len(kinds) != 1:
        raise MalformedError(_FILE.missing, f"`{where}` needs one of `sql`, `url` and `events`", hint=HELP)
    needed, optional = _FACT_KEYS[kinds[0]]
    _FILE.known(where, table, (*kinds, *needed, *optional))
    found: dict[str, object] = {key: _FILE.needed(where, table, key) for key in needed}
    for key, one in {**table, **found}.items():
        place = f"{where}.{key}"
        if key in ("every", "timeout", "max_age"):
            if isinstance(one, bool) or not isinstance(one, int | float):
                raise _FILE.wrong(place, "a number of seconds")
            found[key] = float(one)
        else:
            found[key] = _FILE.texts(place, one) if key in ("credential", "arguments") else _FILE.text(place, one)
    return FactFile(**found)  # type: ignore[arg-type]  # each was read as what its field is


@dataclass(frozen=True, slots=True)
class LoadedDomain:
    """A domain file and everything that it names, verified, except for the key, which is opened only once."""

    path: str
    file: DomainFile
    names: Petnames
    administrators: tuple[Principal, ...]
    types: Mapping[TypeName, VerifiedType]
    credentials: Credentials
    nats: NatsLogin | None
    #: what event sources connect with, by the names of their facts
    feeds: Mapping[str, Credentials]
    network: NetworkName | None = None
    #: the services of other domains
    notify: Mapping[Principal, str] = field(default_factory=dict)

    @property
    def key_file(self) -> str:
        """The path of the key."""
        return str(Path(self.path).parent / self.file.key)

    @property
    def store(self) -> str:
        """The URL of the store."""
        return self.located(self.file.store)

    def located(self, url: str) -> str:
        """Return the URL of a database; a file is relative to the domain file."""
        return f"{_SQLITE}{Path(self.path).parent / url.removeprefix(_SQLITE)}" if url.startswith(_SQLITE) else url


def load_domain(path: str, now: datetime) -> LoadedDomain:
    """Read a domain file and everything that it names, except for the key, and verify it as of `now`.

    Raises as `read_domain_file`; `MalformedError`: `acs.file-no-match`, `acs.file-principal`,
    `acs.file-twice`; `LimitError` (`acs.file-limit`); `FailedError` (`file.*`); and what reading and verifying
    types and credentials raise.
    """
    data = read_file(path, POLICY_BYTES)
    named = NamedFiles(Path(path).parent, _NAMING)
    with within(path):
        file = read_domain_file(data)
        names = named.principals(file.names)
        administrators = tuple(dict.fromkeys(names.find("administrators", word) for word in file.administrators))
        login = nats_login(file.nats, named)
        network = _network(file.network, names) if file.network else None
        notify = {names.find("notify", name): url for name, url in file.notify.items()}
    found = named.types(file.types)

    def source(name: TypeName, /) -> UnverifiedType | None:
        return found[name][1] if name in found else None

    types: dict[TypeName, VerifiedType] = {}
    for name, (where, unverified) in found.items():
        with within(where):
            types[name] = verify_type(unverified, now, types=source)
    feeds = {name: named.credentials(one.credential) for name, one in file.facts.items() if one.events}
    credentials = named.credentials(file.credentials)
    return LoadedDomain(path, file, names.petnames, administrators, types, credentials, login, feeds, network, notify)


def _network(text: str, names: NamedPrincipals) -> NetworkName:
    owner, slash, name = text.partition("/")
    if not slash:
        raise _FILE.wrong("network", "an owner and a name, such as `grid/grid`")
    return NetworkName(names.find("network", owner), name)
