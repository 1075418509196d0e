"""A network for tests: one real broker in this process, with clients, rights and refusals as in production.

The broker listens on a free port of the loopback interface, so that everything on the way is what programs meet later:
TLS, handshakes, certificates. It starts within some milliseconds.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count
from os import PathLike
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final, TypeAlias

from penstock.broker.client.client import Client, connect
from penstock.broker.core.settings import NodeSettings, TrustSettings
from penstock.broker.limits import BrokerLimits
from penstock.broker.node.node import Node
from penstock.codec.sexp import canonical
from penstock.crypto import SigningKey, private_key_to_sexp
from penstock.errors import MalformedError, did_you_mean
from penstock.guard import DecisionRecord, Recorder
from penstock.model.event_classes import EventClass, event_class_of
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.model.types import EventType, TypeDefinition
from penstock.model.values import Value
from penstock.store.files.files import replace_file
from penstock.store.files.name_book import NameBook
from penstock.trust.capabilities import BROKER_RIGHTS, BoundSelector, Right, event_tag, network_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, sign_type

#: the petnames of the network's owner, who owns types without an owner too, and of its broker
OWNER: Final = "owner"
BROKER: Final = "broker"
#: seconds between two looks
_PAUSE: Final = 0.002

NetworkType: TypeAlias = type[Any] | TypeName | str
"""A type of the network: its event class, or its name with the owner's principal or petname."""


@asynccontextmanager
async def network(
    *types: type[Any] | UnverifiedType, keys: Mapping[str, SigningKey] | None = None
) -> AsyncIterator["LocalNetwork"]:
    """Run a network with these types: event classes, or signed types, which are signed again for this network.

        async with penstock.testing.network(Reading) as net:
            net.grant("meter", "publish", Reading)
            async with net.connect("meter") as meter:
                await meter.publish(Reading(1.5))

    The owner of an event class's type is the petname in `@penstock.event("grid/org.grid.Reading")`. `keys` are for
    petnames that have a key of their own, such as the owner of a signed type. Raises `MalformedError`
    (`testing.no-key` if the owner's key of a type is not known, and as `EventClass.definition`).
    """
    made = LocalNetwork(types, keys or {})
    async with made.node:
        yield made


class LocalNetwork:
    """A running network; `network` makes one.

    Everybody has a petname, and with it a key that is the same in each run. Everybody can connect; rights on types come
    from `grant`. `decisions` are the broker's decisions so far.
    """

    def __init__(self, types: Iterable[type[Any] | UnverifiedType], keys: Mapping[str, SigningKey]) -> None:
        self._keys = dict(keys)
        self.name = NetworkName(self.key(OWNER).principal, "test")
        self.decisions: list[DecisionRecord] = []
        self._types: dict[TypeName, UnverifiedType] = {}
        for one in types:
            if isinstance(one, UnverifiedType):
                self._sign(one.definition)
            else:
                self._define(event_class_of(one))
        self._certificates = [self._on_type(name, BROKER, Right.ROUTE) for name in self._types]
        self._certificates.append(self._on_network(self.key(BROKER).principal, *BROKER_RIGHTS))
        numbers = count(1)
        recorder = Recorder(
            source="penstock.testing",
            sink=self.decisions.append,
            clock=_now,
            timer=monotonic_ns,
            ids=lambda: str(next(numbers)),
        )
        settings = NodeSettings(
            key=self.key(BROKER),
            network=self.name,
            credentials=Credentials.of(*self._certificates),
            types=tuple(self._types.values()),
            operators=frozenset([self.key(OWNER).principal]),
            # Nobody signs time-stamps here.
            trust=TrustSettings(strict=False),
            limits=BrokerLimits(),
        )
        self.node = Node(settings, recorder)

    @property
    def url(self) -> str:
        """The broker's address."""
        return f"penstock://{self.node.settings.host}:{self.node.port}"

    @property
    def names(self) -> NameBook:
        """The petnames of everybody who has occurred so far."""
        return NameBook.of({name: key.principal for name, key in self._keys.items()})

    def key(self, who: str) -> SigningKey:
        """Return the key of a petname, made if it is new. Never use it elsewhere: everybody can compute it."""
        if who not in self._keys:
            self._keys[who] = SigningKey(sha256(f"penstock.testing {who}".encode()).digest())
        return self._keys[who]

    def type(self, of: NetworkType) -> EventType:
        """Return a type. Raises `RefusedError` (`broker.unknown-type`) and `MalformedError` (`event.class`)."""
        if isinstance(of, str):
            name = self.names.type(of)
        else:
            name = of if isinstance(of, TypeName) else self._name_of(event_class_of(of))
        return self.node.core.library.get(name, _now()).event_type

    def grant(  # noqa: PLR0913  # who may do what, and three terms
        self,
        who: str,
        right: str,
        on: NetworkType,
        *,
        attributes: Iterable[str] | None = None,
        where: str | None = None,
        forced: Mapping[str, Value] | None = None,
    ) -> Certificate:
        """Let somebody `publish` or `subscribe`, from now on. Return the certificate, for `revoke`.

        `attributes` limits what is seen or set (default: all). `where` is a selector for the events that the right is
        about, `forced` gives attributes a fixed value. Raises `MalformedError` (`type.unknown-attribute`,
        `capability.right`, `testing.no-key`), `SelectorError`, and as `type`.
        """
        event_type = self.type(on)
        made = self._on_type(
            event_type.name,
            who,
            _right(right),
            attributes=None if attributes is None else [event_type.attribute(name).id for name in attributes],
            forced={event_type.attribute(name).id: value for name, value in (forced or {}).items()},
            where=[] if where is None else [BoundSelector.of(where, event_type)],
        )
        self._change([*self._certificates, made])
        return made

    def revoke(self, certificate: Certificate) -> None:
        """Take a right back, from now on. A subscription that rests on it alone stays, and gets no more events."""
        self._change([one for one in self._certificates if one != certificate])

    def connect(self, who: str, **options: Any) -> Client:
        """Return a client for somebody: `async with net.connect("meter") as client`. Takes the options of `connect`."""
        may = self._on_network(self.key(who).principal, Right.CONNECT)
        if may not in self._certificates:
            self._change([*self._certificates, may])
        given = {"key": self.key(who), "network": self.name, "names": self.names, "credentials": Credentials()}
        return connect(self.url, **{**given, "types": tuple(self._types.values()), **options})

    async def wait_for_subscriber(self, on: NetworkType) -> None:
        """Return when somebody has subscribed to a type: what a program under test publishes then is delivered."""
        key = self.type(on).key
        while key not in self.node.core.router.wanted():
            await asyncio.sleep(_PAUSE)

    def environment(self, who: str, folder: str | PathLike[str]) -> dict[str, str]:
        """Write somebody's key and the petnames into a folder. Return the variables that `penstock.connect()` reads."""
        self.connect(who)
        place = Path(folder)
        key, names = place / f"{who}.key", place / "names.toml"
        replace_file(key, canonical(private_key_to_sexp(self.key(who))))
        lines = (f'{json.dumps(name)} = "{principal}"\n' for name, principal in self.names.by_name.items())
        replace_file(names, "".join(lines).encode())
        return {
            "PENSTOCK_BROKER": self.url,
            "PENSTOCK_NETWORK": str(self.name),
            "PENSTOCK_KEY": str(key),
            "PENSTOCK_NAMES": str(names),
            "PENSTOCK_CREDENTIALS": "",
        }

    def _define(self, known: EventClass[Any]) -> TypeName:
        """Sign the type of an event class, and of those that it extends."""
        name = self._name_of(known)
        if name not in self._types:
            above = None if known.parent is None else self._define(known.parent)
            self._sign(known.definition(name.owner, above))
        return name

    def _sign(self, definition: TypeDefinition) -> None:
        """Sign a type for this network, on which its owner may install types."""
        key = self._key_of(definition.name.owner)
        may = self._on_network(key.principal, Right.INSTALL)
        self._types[definition.name] = sign_type(definition, key, Credentials.of(may))

    def _name_of(self, known: EventClass[Any]) -> TypeName:
        written = known.owner or OWNER
        owner = Principal.parse(written) if ":" in written else self.key(written).principal
        return TypeName(owner, known.name, known.version or "0")

    def _key_of(self, owner: Principal) -> SigningKey:
        for key in self._keys.values():
            if key.principal == owner:
                return key
        raise MalformedError(
            "testing.no-key",
            f"the key of {owner.short}, who owns a type of this network, is not known",
            hint="give it to `network` in `keys=`",
        )

    def _on_type(self, name: TypeName, who: str, right: Right, **terms: Any) -> Certificate:
        tag = event_tag(name.owner, name.name, None, [right], **terms)
        return issue(Authorisation(name.owner, self.key(who).principal, tag), self._key_of(name.owner))

    def _on_network(self, who: Principal, *rights: Right) -> Certificate:
        tag = network_tag(self.name.owner, self.name.name, rights)
        return issue(Authorisation(self.name.owner, who, tag), self.key(OWNER))

    def _change(self, certificates: list[Certificate]) -> None:
        self._certificates = certificates
        self.node.reload(replace(self.node.settings, credentials=Credentials.of(*certificates)))


def _right(written: str) -> Right:
    try:
        return Right(written)
    except ValueError:
        raise MalformedError(
            "capability.right",
            f"unknown right `{written[:40]}`; expected {', '.join(Right)}",
            hint=did_you_mean(written, Right),
        ) from None


def _now() -> datetime:
    return datetime.now(UTC)
