"""What is refused in the London example, and why: attempts at the brokers, and types that do not verify."""

from collections.abc import Awaitable, Callable, Mapping

from rich.console import Console

import penstock
from london_cast import (
    BILLING,
    CCS,
    INSTALL,
    JONES,
    MALLORY,
    MANAGER,
    MET,
    NAMES,
    NETWORK,
    NOW,
    PITO,
    PLATE_TYPE,
    SMITH,
    Issued,
    grant,
)
from penstock.broker.client.client import Client
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.guard import CapabilityAuthority, EventRequest
from penstock.model import TypeDefinition, TypeName
from penstock.trust import Credentials, Right, TypeCache, UnverifiedType, event_tag, network_tag, read_type, sign_type

#: whose broker it is
DOMAINS = {"CCS Broker": CCS, "Met Broker": MET}


class Refusals:
    """Tries what must fail, and shows how it fails."""

    def __init__(
        self, console: Console, urls: Mapping[str, str], issued: Issued, library: Mapping[TypeName, UnverifiedType]
    ) -> None:
        self._console = console
        self._urls = urls
        self._issued = issued
        self._types = TypeCache(network=NETWORK, types=library.get)
        self._first = library[TypeName(PITO.principal, PLATE_TYPE)]

    async def show(self) -> None:
        """Try to get more than was granted, in every way that the example has to offer."""
        await self._at_broker("the billing office publishes", "CCS Broker", BILLING, Right.PUBLISH)
        await self._at_broker("Detective Jones has a certificate of last year", "Met Broker", JONES, Right.SUBSCRIBE)
        everything = grant(MET, SMITH.principal, event_tag(PITO.principal, PLATE_TYPE))
        await self._at_broker(
            "the Met, which may only read, grants its detective everything, and she publishes",
            "Met Broker", SMITH, Right.PUBLISH, Credentials.of(everything),
        )  # fmt: skip
        passed_on = Credentials.of(
            grant(BILLING, MALLORY.principal, event_tag(PITO.principal, PLATE_TYPE, None, [Right.SUBSCRIBE])),
            grant(CCS, MALLORY.principal, network_tag(PITO.principal, NETWORK.name, [Right.CONNECT])),
        ) + self._issued.of(BILLING)
        await self._at_broker(
            "the billing office passes its right on to Mallory", "CCS Broker", MALLORY, Right.SUBSCRIBE, passed_on
        )
        self._types_that_do_not_verify()

    async def _at_broker(
        self,
        what: str,
        broker: str,
        who: SigningKey,
        right: Right,
        shown: Credentials | None = None,
    ) -> None:
        """Ask a broker, then show what an operator sees: the chain, and where it ends."""
        mine = shown or Credentials()
        if who.principal in self._issued.held:
            mine += self._issued.of(who)

        async def ask() -> None:
            async with penstock.connect(self._urls[broker], key=who, network=NETWORK, credentials=mine) as client:
                await _request(client, right, self._first.definition.name)

        await self._refused(what, ask())
        request = EventRequest(who.principal, right, self._types.verify(self._first, NOW), NOW)
        for line in CapabilityAuthority(self._issued.of(DOMAINS[broker]) + mine).explain(request).lines(NAMES):
            self._console.print(f"             {line}", highlight=False)

    def _types_that_do_not_verify(self) -> None:
        forged = TypeDefinition(self._first.definition.name, self._first.definition.attributes[:1])
        self._does_not_verify("Mallory signs a type in PITO's name", lambda: sign_type(forged, MALLORY))
        tampered = self._first.to_bytes().replace(b"8:location", b"8:whatever")
        self._does_not_verify("someone changes a signed type on its way", lambda: read_type(tampered))
        too_much = self._first.definition.remove("location", version="8aaa")
        rename_only = Credentials.of(
            grant(PITO, MANAGER.principal, event_tag(PITO.principal, PLATE_TYPE, None, [Right.MANAGE_RENAME])),
            grant(PITO, MANAGER.principal, INSTALL),
        )
        self._does_not_verify(
            "the type manager, who may rename, removes an attribute",
            lambda: sign_type(too_much, MANAGER, rename_only),
        )

    def _does_not_verify(self, what: str, made: Callable[[], UnverifiedType]) -> None:
        try:
            self._types.verify(made(), NOW)
        except PenstockError as error:
            self._say(what, error)
        else:
            raise SystemExit(f"this should have been refused: {what}")

    async def _refused(self, what: str, attempt: Awaitable[None]) -> None:
        try:
            await attempt
        except PenstockError as error:
            self._say(what, error)
        else:
            raise SystemExit(f"this should have been refused: {what}")

    def _say(self, what: str, error: PenstockError) -> None:
        message = error.message
        for principal, name in NAMES.items():
            message = message.replace(principal.short, name)
        self._console.print(f"  [green]refused[/]  {what}", highlight=False)
        self._console.print(f"           {message} [{error.code}]", style="dim", markup=False, highlight=False)


async def _request(client: Client, right: Right, name: TypeName) -> None:
    await (client.advertise(name) if right is Right.PUBLISH else client.subscribe(name))
