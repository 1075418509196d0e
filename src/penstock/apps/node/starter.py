"""The network that `penstock init` writes: an organisation, its broker, a sensor and a reader, and what each may do.

The sensor may publish readings. The reader may see the power and the region of readings in the north, and never which
meter they are from.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from penstock.apps.node.config import NODE_FILE
from penstock.broker.wire.transports import PeerAddress
from penstock.codec.sexp import SExp, advanced
from penstock.crypto import SigningKey, new_key, private_key_to_sexp
from penstock.crypto.keys import RandomBytes
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.model.types import AttributeDefinition, EventType, TypeDefinition
from penstock.model.values import AttributeSpec, Enumerated, Kind
from penstock.trust.capabilities import BROKER_RIGHTS, BoundSelector, Right, event_tag, network_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, sign_type, verify_type
from penstock.trust.tags import Tag
from penstock.trust.validity import DEFAULT_LIFETIME, Validity

BROKER: Final = "broker"
SENSOR: Final = "sensor"
READER: Final = "reader"
#: everybody but the organisation itself
MEMBERS: Final = (BROKER, SENSOR, READER)
TYPE: Final = "example.Reading"
TYPE_FILE: Final = "types/reading.type"
SAMPLE: Final = "meter=M-17 region=north power=1.5"
_SEEN: Final = ("region", "power")
_WHERE: Final = "region = 'north'"


def reading_type(owner: SigningKey) -> UnverifiedType:
    """Return the type of meter readings, signed by its owner."""
    specs = {
        "meter": AttributeSpec(Kind.STRING),
        "region": AttributeSpec(Kind.STRING, Enumerated(frozenset(("north", "south")))),
        "power": AttributeSpec(Kind.FLOAT),
    }
    attributes = tuple(
        AttributeDefinition(name, str(number), spec) for number, (name, spec) in enumerate(specs.items())
    )
    return sign_type(TypeDefinition(TypeName(owner.principal, TYPE), attributes), owner)


@dataclass(frozen=True, slots=True)
class Grantor:
    """Issues certificates of one owner, all with the same validity."""

    key: SigningKey
    validity: Validity = field(default_factory=Validity)
    comment: str = ""

    def on_network(self, network: NetworkName, who: Principal, *rights: Right) -> Certificate:
        """Grant rights on a network."""
        return self._issue(who, network_tag(network.owner, network.name, rights))

    def on_types(self, who: Principal, *rights: Right) -> Certificate:
        """Grant rights on all types of the owner."""
        return self._issue(who, event_tag(self.key.principal, None, None, rights))

    def on_type(
        self,
        event_type: EventType,
        who: Principal,
        right: Right,
        attributes: Iterable[str] | None = None,
        where: str | None = None,
    ) -> Certificate:
        """Grant a right on a type, perhaps on some attributes and events only. Raises as `BoundSelector.of`."""
        tag = event_tag(
            event_type.name.owner,
            event_type.name.name,
            None,
            [right],
            attributes=None if attributes is None else [event_type.attribute(name).id for name in attributes],
            where=[] if where is None else [BoundSelector.of(where, event_type)],
        )
        return self._issue(who, tag)

    def _issue(self, who: Principal, tag: Tag) -> Certificate:
        return issue(Authorisation(self.key.principal, who, tag, False, self.validity, self.comment), self.key)


@dataclass(frozen=True, slots=True)
class StarterFile:
    """A file of the folder: what it contains, and whether only its owner may read it."""

    data: bytes
    secret: bool = False


@dataclass(frozen=True, slots=True)
class StarterNetwork:
    """A new network: its keys by petname, its type, its certificates by file name, and where its broker listens."""

    organisation: str
    network: NetworkName
    listen: PeerAddress
    keys: Mapping[str, SigningKey]
    event_type: UnverifiedType
    certificates: Mapping[str, Certificate]
    ends: datetime

    @classmethod
    def create(
        cls, organisation: str, network: str, listen: PeerAddress, now: datetime, random: RandomBytes
    ) -> "StarterNetwork":
        """Create keys and grant rights, for one year from `now`. Raises `MalformedError` (`name.malformed`)."""
        keys = {name: new_key(random) for name in (organisation, *MEMBERS)}
        owner, broker, sensor, reader = keys.values()
        name = NetworkName(owner.principal, network)
        signed = reading_type(owner)
        event_type = verify_type(signed, now).event_type
        ends = (now + DEFAULT_LIFETIME).replace(microsecond=0)
        grants = Grantor(owner, Validity.between(None, ends))
        certificates = {
            f"{BROKER}-connect": grants.on_network(name, broker.principal, *BROKER_RIGHTS),
            f"{BROKER}-route": grants.on_type(event_type, broker.principal, Right.ROUTE),
            f"{BROKER}-stamp": grants.on_types(broker.principal, Right.STAMP),
            f"{SENSOR}-connect": grants.on_network(name, sensor.principal, Right.CONNECT),
            f"{SENSOR}-publish": grants.on_type(event_type, sensor.principal, Right.PUBLISH),
            f"{READER}-connect": grants.on_network(name, reader.principal, Right.CONNECT),
            f"{READER}-subscribe": grants.on_type(event_type, reader.principal, Right.SUBSCRIBE, _SEEN, _WHERE),
        }
        return cls(organisation, name, listen, keys, signed, certificates, ends)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"penstock://{self.listen}"

    def files(self, commands: str) -> dict[str, StarterFile]:
        """Return all files of the folder by their paths in it. `commands` go into its README."""
        network = self.network.name
        words = {
            "organisation": self.organisation,
            "network": network,
            "listen": str(self.listen),
            "type": f"{self.organisation}/{TYPE}",
            "ends": f"{self.ends:%Y-%m-%d}",
            "commands": commands,
        }
        names = "".join(f'"{name}" = "{key.principal}"\n' for name, key in self.keys.items())
        env = {
            "BROKER": self.url,
            "NETWORK": str(self.network),
            "NAMES": "names.toml",
            "KEY": key_path(READER),
            "CREDENTIALS": ":".join(map(certificate_path, self.certificates_of(READER))),
        }
        return {
            "README.md": _text(_README.format(**words)),
            ".gitignore": _text("keys/\nstate/\n*.jsonl\n"),
            ".env": _text("".join(f"PENSTOCK_{name}={value}\n" for name, value in env.items())),
            "names.toml": _text(names),
            NODE_FILE: _text(_NODE.format(**words)),
            TYPE_FILE: _sexp(self.event_type.to_sexp()),
            **{key_path(name): _sexp(private_key_to_sexp(key), secret=True) for name, key in self.keys.items()},
            **{certificate_path(name): _sexp(Credentials.of(one).to_sexp()) for name, one in self.certificates.items()},
        }

    def certificates_of(self, who: str) -> list[str]:
        """Return the names of somebody's certificates."""
        return [name for name in self.certificates if name.startswith(f"{who}-")]


def key_path(who: str) -> str:
    """Return where a key is in the folder."""
    return f"keys/{who}.key"


def certificate_path(name: str) -> str:
    """Return where a certificate is in the folder."""
    return f"certs/{name}.cert"


def _text(text: str) -> StarterFile:
    return StarterFile(text.encode())


def _sexp(value: SExp, *, secret: bool = False) -> StarterFile:
    return StarterFile(advanced(value).encode() + b"\n", secret)


_NODE: Final = """\
# The broker of {organisation}. `penstock up --example` prints all settings.
network = "{organisation}/{network}"
key = "keys/broker.key"
listen = "{listen}"
names = "names.toml"
credentials = ["certs/"]
types = ["types/"]
operators = ["{organisation}"]
"""

_README: Final = """\
# {network}: a Penstock network of {organisation}

`{organisation}` owns the network and the event type `{type}`. `sensor` may publish readings. `reader` may see the
power and the region of readings in the north, and never which meter they are from.

## Run it

```console
{commands}
```

The reader sees `-` in place of the meter. A reading with `region=south` is not delivered. After the reader's right is
revoked, nothing arrives. After it is given back, readings arrive again.

## What is here

| file | contents |
|---|---|
| `broker.toml` | the broker's settings |
| `keys/` | private keys, one for each principal. Never share or commit them: `.gitignore` excludes them |
| `certs/` | certificates: who may do what, until {ends} |
| `types/` | signed event types |
| `names.toml` | names for principals |
| `.env` | what programs connect with: `penstock.connect()` reads these variables |

In production each principal creates its own key on its own machine, and the key of `{organisation}` has a passphrase
(`penstock key new --passphrase`).

## Next

- `penstock doctor .` checks this folder and says what to do.
- `penstock cert list certs` shows who may do what, and when each right expires. `penstock cert renew` renews rights.
- `penstock cert issue --help` grants a right, and `penstock type new --help` defines your own event type.
  `penstock net publish` and `penstock net install` give them to every broker. Or put the files into `certs/` and
  `types/`, and send the broker SIGHUP.
"""
