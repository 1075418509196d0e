"""A stock ticker: an exchange sells flows of trades to brokerage firms, and these to their investors.

The first scenario of Pesonen's dissertation (section 1.2.1, Figure 1.3 and Table 1.1). The exchange owns the types and
grants each firm the flows that it pays for. Firms pass on to their investors what these pay for, and cannot pass on
more than they have. Four domains, each with a broker of its own, over TLS; no broker holds all certificates: whoever
asks for something shows what it has.

Run it with `python examples/stock_ticker.py`; it takes some seconds.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

import stage
from penstock.broker.client.client import Client
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.guard import CapabilityAuthority, EventRequest
from penstock.model import Event, EventType, Kind, NetworkName, Petnames, Scalar, TypeDefinition
from penstock.trust import (
    BROKER_RIGHTS,
    BoundSelector,
    Certificate,
    Credentials,
    Right,
    Tag,
    VerifiedType,
    event_tag,
    network_tag,
    sign_type,
    verify_type,
)
from penstock.trust.policy_events import Revoke
from penstock.trust.policy_state import PolicyAuthor
from stage import Place, Rounds, Stage, define, grant, now


def key(name: str) -> SigningKey:
    """Make a key of this demonstration."""
    return stage.key("stock ticker", name)


# --- Who takes part --------------------------------------------------------------------------------------------------

EXCHANGE, FLOOR = key("Exchange"), key("Trading Floor")
FIRMS = {name: key(name) for name in ("Alder", "Birch", "Cedar")}
ALDER, BIRCH, CEDAR = FIRMS.values()
INVESTORS = {"Ann": "Alder", "Bob": "Birch", "Bea": "Birch", "Carl": "Cedar"}
KEYS = {name: key(name) for name in INVESTORS}
ANN, BOB, BEA, CARL = KEYS.values()
BROKERS = {name: key(f"{name} Broker") for name in ("Exchange", *FIRMS)}
NETWORK = NetworkName(EXCHANGE.principal, "Ticker")
NAMES = Petnames(
    {
        EXCHANGE.principal: "Exchange",
        FLOOR.principal: "Trading Floor",
        **{broker.principal: f"{name} Broker" for name, broker in BROKERS.items()},
        **{firm.principal: name for name, firm in FIRMS.items()},
        **{investor.principal: name for name, investor in KEYS.items()},
    }
)

# --- The types: Table 1.1, and a sub-type for each flow -------------------------------------------------------------

TICKER = define(
    EXCHANGE,
    "StockTicker",
    time=Kind.TIMESTAMP,
    stock=Kind.STRING,
    shares=Kind.INTEGER,
    price=Kind.FLOAT,
    seller=Kind.STRING,
    buyer=Kind.STRING,
)
SHARES = define(EXCHANGE, "StockTicker.Shares", TICKER.name)
COMMODITIES = define(EXCHANGE, "StockTicker.Commodities", TICKER.name)
DERIVATIVES = define(EXCHANGE, "StockTicker.Derivatives", TICKER.name)
FLOWS = {"shares": SHARES, "commodities": COMMODITIES, "derivatives": DERIVATIVES}
SIGNED = [sign_type(definition, EXCHANGE) for definition in (TICKER, *FLOWS.values())]
ROOT: EventType = verify_type(SIGNED[0], now()).event_type
IDS = {attribute.name: attribute.id for attribute in ROOT.attributes}
#: one round of trades: the flow, what is traded, the price
TRADES = (
    ("shares", "NOK", 4.2),
    ("shares", "ERIC", 7.1),
    ("shares", "VOD", 0.9),
    ("commodities", "cocoa", 8_300.0),
    ("derivatives", "NOK call", 0.3),
)


# --- Who may do what, in two tiers ----------------------------------------------------------------------------------


@dataclass
class Contracts:
    """All certificates, by who got them."""

    held: dict[SigningKey, list[Certificate]] = field(default_factory=dict)

    def add(self, to: SigningKey, certificate: Certificate) -> Certificate:
        """Hand a certificate to somebody."""
        self.held.setdefault(to, []).append(certificate)
        return certificate

    def shows(self, *who: SigningKey) -> Credentials:
        """Return what somebody can show: its own certificates, and those of the firm that gave them."""
        return Credentials.of(*(certificate for one in who for certificate in self.held.get(one, ())))


def reading(flow: TypeDefinition | None, *attributes: str, only: str = "") -> Tag:
    """Return the right to read a flow, or all of them; some attributes only, and only where a condition holds."""
    return event_tag(
        EXCHANGE.principal,
        "StockTicker*" if flow is None else flow.name.name,
        None,
        [Right.SUBSCRIBE],
        attributes=[IDS[name] for name in attributes] or None,
        where=[BoundSelector.of(only, ROOT)] if only else (),
    )


def sell(contracts: Contracts) -> Certificate:
    """Issue what was sold. Return the certificate by which Birch may read shares."""
    connect = network_tag(EXCHANGE.principal, NETWORK.name, [Right.CONNECT])
    broker = network_tag(EXCHANGE.principal, NETWORK.name, BROKER_RIGHTS)
    carry = event_tag(EXCHANGE.principal, None, None, [Right.ROUTE])
    # First tier: the exchange lets firms in, and sells flows to them, to pass on.
    contracts.add(FLOOR, grant(EXCHANGE, FLOOR.principal, connect))
    stamp = event_tag(EXCHANGE.principal, None, None, [Right.STAMP])
    for tag in (broker, carry, stamp):
        contracts.add(BROKERS["Exchange"], grant(EXCHANGE, BROKERS["Exchange"].principal, tag))
    writing = event_tag(EXCHANGE.principal, "StockTicker*", None, [Right.PUBLISH])
    contracts.add(FLOOR, grant(EXCHANGE, FLOOR.principal, writing))
    for name, firm in FIRMS.items():
        for tag in (broker, carry):
            contracts.add(firm, grant(EXCHANGE, firm.principal, tag, pass_on=True))
            contracts.add(BROKERS[name], grant(firm, BROKERS[name].principal, tag))
        # The broker carries what the firm itself says about policy, too.
        own = event_tag(firm.principal, None, None, [Right.ROUTE])
        contracts.add(BROKERS[name], grant(firm, BROKERS[name].principal, own))

    def to_firm(firm: SigningKey, tag: Tag) -> Certificate:
        return contracts.add(firm, grant(EXCHANGE, firm.principal, tag, pass_on=True))

    to_firm(ALDER, reading(SHARES))
    to_firm(ALDER, reading(DERIVATIVES))
    birch_shares = to_firm(BIRCH, reading(SHARES, "time", "stock", "shares", "price"))
    to_firm(CEDAR, reading(COMMODITIES))

    # Second tier: firms sell to their investors.
    for name, investor in KEYS.items():
        seller = FIRMS[INVESTORS[name]]
        contracts.add(investor, grant(seller, investor.principal, connect))
        if investor != ANN:
            # Everything that the firm has, whatever that is.
            contracts.add(investor, grant(seller, investor.principal, reading(None)))
    contracts.add(
        ANN, grant(ALDER, ANN.principal, reading(SHARES, "time", "stock", "price", only="stock IN ('NOK', 'ERIC')"))
    )
    contracts.add(ANN, grant(ALDER, ANN.principal, reading(DERIVATIVES, "time", "stock", "price")))
    return birch_shares


# --- What investors see ----------------------------------------------------------------------------------------------


@dataclass
class Screens:
    """What each investor has got."""

    console: Console
    got: dict[str, list[Event]]

    def since(self, first: int) -> dict[str, set[str]]:
        """Return what was traded in the trades that each has seen, of a round and all later ones."""
        return {name: {str(e["stock"]) for e in _later(events, first)} for name, events in self.got.items()}

    def show(self, first: int) -> None:
        """Print what each has seen, and what nobody showed to it."""
        table = Table("investor", "firm", "trades in", "saw", "never saw")
        for name, events in self.got.items():
            later = _later(events, first)
            saw = [a for a in IDS if any(event[a] is not None for event in later)]
            traded = [stock for _, stock, _ in TRADES if stock in self.since(first)[name]]
            hidden = ", ".join(a for a in IDS if a not in saw) or "—"
            table.add_row(name, INVESTORS[name], ", ".join(traded) or "nothing", ", ".join(saw) or "—", hidden)
        self.console.print(table)


def _later(events: list[Event], first: int) -> list[Event]:
    return [event for event in events if int(event.id.partition("/")[0]) >= first]


# --- What happens ----------------------------------------------------------------------------------------------------

NOK_ERIC, ALL_SHARES = {"NOK", "ERIC"}, {"NOK", "ERIC", "VOD"}
SOLD = {"Ann": NOK_ERIC | {"NOK call"}, "Bob": ALL_SHARES, "Carl": {"cocoa"}}


async def main() -> None:
    """Run the example."""
    started = time.perf_counter()
    console = Console()
    console.rule("[bold]Stock ticker[/]")
    contracts = Contracts()
    birch_shares = sell(contracts)
    places = [Place("Exchange", BROKERS["Exchange"], contracts.shows(BROKERS["Exchange"]))]
    places += [
        Place(name, BROKERS[name], contracts.shows(firm, BROKERS[name]), "Exchange") for name, firm in FIRMS.items()
    ]
    async with AsyncExitStack() as stack:
        on = await stack.enter_async_context(
            stage.brokers(NETWORK, places, types=SIGNED, operator=EXCHANGE, names=NAMES, console=console)
        )
        on.say("The brokers of Alder, Birch and Cedar are linked to that of the exchange, over TLS.")

        async def enter(broker: str, who: SigningKey) -> Client:
            return await stack.enter_async_context(on.client(broker, who, *contracts.held.get(who, ())))

        exchange, floor = await enter("Exchange", EXCHANGE), await enter("Exchange", FLOOR)
        clients = {name: await enter(firm, KEYS[name]) for name, firm in INVESTORS.items()}

        on.chapter("Everybody asks for the whole ticker")
        screens = Screens(console, {name: [] for name in SOLD})
        for name, got in screens.got.items():
            await clients[name].subscribe(TICKER.name, callback=got.append)
        ticker = await open_ticker(floor, screens)
        screens.show(await ticker.until(SOLD, "each sees what was sold"))
        on.say("Birch gave Bob everything, and could not give seller and buyer: it does not have them.")

        await refusals(on, contracts, clients)
        await close_account(on, contracts, await enter("Alder", ALDER), ticker, screens)
        await stop_firm(on, exchange, birch_shares, ticker, screens)
        await shut_out(on, clients["Bob"])
    console.print(f"\n[bold green]done[/] in {time.perf_counter() - started:.1f} s", highlight=False)


async def open_ticker(floor: Client, screens: Screens) -> Rounds:
    """Announce all flows, and return trades that go on."""
    feeds = {flow: await floor.advertise(definition.name) for flow, definition in FLOWS.items()}

    async def trade(number: int) -> None:
        for flow, stock, price in TRADES:
            values: dict[str, Scalar] = {"time": now(), "stock": stock, "shares": 100 * number, "price": price}
            feed, values = feeds[flow], {**values, "seller": "Alder", "buyer": "Cedar"}
            await feed.publish(Event.of(feed.type, values, id=f"{number}/{stock}"))

    return Rounds(trade, screens.since)


async def refusals(on: Stage, contracts: Contracts, clients: Mapping[str, Client]) -> None:
    """Ask for what was not sold, and for what was passed on without a right to."""
    on.chapter("What a firm does not have, it cannot pass on")
    derivatives = verify_type(SIGNED[-1], now(), types={one.definition.name: one for one in SIGNED}.get)
    try:
        await clients["Bea"].subscribe(DERIVATIVES.name)
    except RefusedError as error:
        on.refused("Bea asks for derivatives, of which Birch has none", error)
    else:
        raise SystemExit("Bea should have been refused")
    explain(on, contracts.shows(BIRCH, BEA), BEA, derivatives)

    mallory = key("Mallory")
    connect = network_tag(EXCHANGE.principal, NETWORK.name, [Right.CONNECT])
    passed_on = [grant(BOB, mallory.principal, reading(None)), grant(BOB, mallory.principal, connect)]
    shown = contracts.shows(BIRCH, BOB) + Credentials.of(*passed_on)
    try:
        async with on.client("Birch", mallory, *shown):
            pass
    except RefusedError as error:
        on.refused("Mallory comes with what Bob has passed on to her", error)
    else:
        raise SystemExit("Mallory should have been refused")


def explain(on: Stage, shown: Credentials, who: SigningKey, about: VerifiedType) -> None:
    """Show the operator's view: which link of the chain fails."""
    request = EventRequest(who.principal, Right.SUBSCRIBE, about, now())
    for line in CapabilityAuthority(shown).explain(request).lines(NAMES):
        on.console.print(f"             {line}", highlight=False, markup=False)


async def close_account(on: Stage, contracts: Contracts, alder: Client, ticker: Rounds, screens: Screens) -> None:
    """Let a firm take back what it has given to an investor. The exchange has nothing to do with it."""
    on.chapter("Alder ends Ann's contract about derivatives")
    author = PolicyAuthor(ALDER)
    await alder.evolve(author.change(now(), Revoke((contracts.held[ANN][-1].id,))).to_bytes())
    screens.show(await ticker.until({**SOLD, "Ann": NOK_ERIC}, "Ann loses derivatives, and nothing else"))


async def stop_firm(on: Stage, exchange: Client, contract: Certificate, ticker: Rounds, screens: Screens) -> None:
    """Let the exchange revoke what it gave to a firm: all that rests on it goes too."""
    on.chapter("Birch has not paid: the exchange revokes its contract")
    author = PolicyAuthor(EXCHANGE)
    await exchange.evolve(author.change(now(), Revoke((contract.id,))).to_bytes())
    seconds = await on.complete(exchange, EXCHANGE.principal, author.number)
    on.say(f"Complete after {seconds * 1000:.0f} ms at every broker that carries the ticker.")
    await on.show_progress(exchange, EXCHANGE.principal, author.number)
    left = {**SOLD, "Ann": NOK_ERIC, "Bob": set[str]()}
    screens.show(await ticker.until(left, "Birch's investors lose with it, and nobody else"))
    on.say("Nobody revoked Bob's certificate. It rests on that of Birch, which counts no longer.")


async def shut_out(on: Stage, bob: Client) -> None:
    """Ask again, with the same certificates as before."""
    try:
        await bob.subscribe(SHARES.name)
    except RefusedError as error:
        on.refused("Bob asks again, and shows what he has", error)
    else:
        raise SystemExit("Bob should have been refused")


if __name__ == "__main__":
    asyncio.run(main())
