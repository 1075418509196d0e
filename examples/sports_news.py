"""A sports news service: one request, three packages, and a policy that changes while news flows.

The application of Belokosztolszki et al., section 7 and Figure 8. A news agency owns the types, and sells a tennis, a
match and a live package. Each subscriber asks for `SportsNews`, the root of the types, and its local broker makes of
that what the package allows. Brokers of three organisations carry the news over TLS.

Run it with `python examples/sports_news.py`; it takes some seconds.
"""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

import stage
from penstock.broker.client.client import Client, Subscription
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.model import Event, Kind, NetworkName, Petnames, TypeDefinition
from penstock.trust import (
    BROKER_RIGHTS,
    Certificate,
    Credentials,
    Name,
    NameCertificate,
    Right,
    event_tag,
    issue,
    network_tag,
    sign_type,
    verify_type,
)
from penstock.trust.policy_events import Revoke
from penstock.trust.policy_state import PolicyAuthor, publish
from stage import Place, Rounds, Stage, define, grant, now


def key(name: str) -> SigningKey:
    """Make a key of this demonstration."""
    return stage.key("sports news", name)


# --- Who takes part --------------------------------------------------------------------------------------------------

AGENCY, REPORTER, PARTNER = key("Agency"), key("Reporter"), key("Manchester Agency")
BROKERS = [("Agency Broker", key("Agency Broker")), ("Carrier", key("Carrier")), ("Provider", key("Provider"))]
NETWORK = NetworkName(AGENCY.principal, "Sports")
TENNIS_PACKAGE, MATCH_PACKAGE, LIVE_PACKAGE = "tennis", "match", "live"
PACKAGES = {"Tessa's PDA": TENNIS_PACKAGE, "Sam's phone": MATCH_PACKAGE, "The Pub": LIVE_PACKAGE}
READERS = {name: key(name) for name in PACKAGES}
NAMES = Petnames(
    {
        AGENCY.principal: "the agency",
        REPORTER.principal: "the reporter",
        PARTNER.principal: "the Manchester Agency",
        **{broker.principal: name for name, broker in BROKERS},
        **{reader.principal: name for name, reader in READERS.items()},
    }
)

# --- The types, Figure 8 ---------------------------------------------------------------------------------------------

NEWS = define(AGENCY, "SportsNews", headline=Kind.STRING, location=Kind.STRING, agency=Kind.STRING)
TENNIS_MATCH = define(AGENCY, "TennisMatch", NEWS.name, sets=Kind.STRING)
SOCCER_MATCH = define(AGENCY, "SoccerMatch", NEWS.name, result=Kind.STRING)
LIVE_FEED = define(AGENCY, "LiveFeed", NEWS.name)
TENNIS_SET = define(AGENCY, "TennisSet", LIVE_FEED.name, games=Kind.STRING)
SOCCER_GOAL = define(AGENCY, "SoccerGoal", LIVE_FEED.name, minute=Kind.INTEGER)
TYPES = (NEWS, TENNIS_MATCH, SOCCER_MATCH, LIVE_FEED, TENNIS_SET, SOCCER_GOAL)
#: what reporters write about
STORIES = (TENNIS_MATCH, SOCCER_MATCH, TENNIS_SET, SOCCER_GOAL)


# --- Who may do what -------------------------------------------------------------------------------------------------


def package(name: str) -> Name:
    """Return a package: a group, whose members the agency names when they have paid."""
    return Name(AGENCY.principal, (name.encode(),))


def reading(of: str, definition: TypeDefinition) -> Certificate:
    """Let the holders of a package read a type and its sub-types."""
    return grant(AGENCY, package(of), event_tag(AGENCY.principal, definition.name.name, None, [Right.SUBSCRIBE]))


def credentials() -> list[Certificate]:
    """Issue what holds on the first day."""
    connect = network_tag(AGENCY.principal, NETWORK.name, [Right.CONNECT])
    broker = network_tag(AGENCY.principal, NETWORK.name, BROKER_RIGHTS)
    members = [REPORTER, PARTNER, *READERS.values()]
    location = verify_type(sign_type(NEWS, AGENCY), now()).event_type.by_name["location"].id
    writing = [Right.PUBLISH]
    carrying = event_tag(AGENCY.principal, None, None, [Right.ROUTE, Right.STAMP])
    asking = event_tag(AGENCY.principal, None, None, [Right.RESTRICTIONS])
    return [
        *(grant(AGENCY, member.principal, connect) for member in members),
        *(grant(AGENCY, one.principal, broker) for _, one in BROKERS),
        *(grant(AGENCY, broker.principal, carrying) for _, broker in BROKERS),
        *(grant(AGENCY, REPORTER.principal, event_tag(AGENCY.principal, t.name.name, None, writing)) for t in STORIES),
        # A partner writes about soccer, from one place only.
        grant(AGENCY, PARTNER.principal,
              event_tag(AGENCY.principal, SOCCER_MATCH.name.name, None, writing, forced={location: "Manchester"})),
        # Customers may ask what has become of their requests.
        *(grant(AGENCY, package(of), asking) for of in PACKAGES.values()),
        # Three packages, each the one before and more.
        reading(TENNIS_PACKAGE, TENNIS_MATCH),
        reading(MATCH_PACKAGE, TENNIS_MATCH),
        reading(MATCH_PACKAGE, SOCCER_MATCH),
        reading(LIVE_PACKAGE, NEWS),
        *(
            issue(NameCertificate(AGENCY.principal, of.encode(), READERS[who].principal), AGENCY)
            for who, of in PACKAGES.items()
        ),
    ]  # fmt: skip


def places() -> list[Place]:
    """Return the brokers, in a line. All use the agency's certificates here."""
    held = Credentials.of(*credentials())
    return [
        Place(name, broker, held, calls) for (name, broker), calls in zip(BROKERS, ("", *dict(BROKERS)), strict=False)
    ]


# --- The news --------------------------------------------------------------------------------------------------------


@dataclass
class Audience:
    """The subscribers, and the stories that each has got."""

    console: Console
    got: dict[str, list[Event]]

    def since(self, first: int) -> dict[str, set[str]]:
        """Return the types of the stories that each has got, of a round and all later ones."""
        return {
            name: {of for of, number in map(_story, events) if number >= first} for name, events in self.got.items()
        }

    def show(self, first: int) -> None:
        """Print who has got what."""
        table = Table("subscriber", "package", *(story.name.name for story in STORIES))
        for name, types in self.since(first).items():
            table.add_row(name, PACKAGES[name], *("✓" if s.name.name in types else "—" for s in STORIES))
        self.console.print(table)


def _story(event: Event) -> tuple[str, int]:
    name, _, number = str(event["headline"]).rpartition(" ")
    return name, int(number)


TENNIS, SOCCER = {TENNIS_MATCH.name.name}, {SOCCER_MATCH.name.name}
EVERYTHING = {story.name.name for story in STORIES}


# --- What happens ----------------------------------------------------------------------------------------------------


async def main() -> None:
    """Run the example."""
    started = time.perf_counter()
    console = Console()
    console.rule("[bold]Sports news[/]")
    signed = [sign_type(definition, AGENCY) for definition in TYPES]
    async with AsyncExitStack() as stack:
        on = await stack.enter_async_context(
            stage.brokers(NETWORK, places(), types=signed, operator=AGENCY, names=NAMES, console=console)
        )
        on.say(f"{' — '.join(on.nodes)}: brokers of three organisations, over TLS.")
        agency = await stack.enter_async_context(on.client("Agency Broker", AGENCY))
        reporter = await stack.enter_async_context(on.client("Agency Broker", REPORTER))
        partner = await stack.enter_async_context(on.client("Carrier", PARTNER))
        readers = {name: await stack.enter_async_context(on.client("Provider", who)) for name, who in READERS.items()}

        on.chapter("Three packages, and everybody asks for SportsNews")
        audience = Audience(console, {name: [] for name in READERS})
        subscriptions = {
            name: await client.subscribe(NEWS.name, callback=audience.got[name].append)
            for name, client in readers.items()
        }
        feeds = {t.name.name: await reporter.advertise(t.name) for t in STORIES}

        async def write(number: int) -> None:
            for name, feed in feeds.items():
                await feed.publish(headline=f"{name} {number}", location="London", agency="Sports Agency")

        news = Rounds(write, audience.since)
        audience.show(await news.until(_PAID, "each gets what the package allows"))
        await explain(on, subscriptions["Tessa's PDA"])
        await refusals(on, readers["Tessa's PDA"], readers["Sam's phone"])
        await forced_place(on, partner, audience)
        await evolve(on, agency, news, audience)
    console.print(f"\n[bold green]done[/] in {time.perf_counter() - started:.1f} s", highlight=False)


_PAID = {"Tessa's PDA": TENNIS, "Sam's phone": TENNIS | SOCCER, "The Pub": EVERYTHING}


async def explain(on: Stage, subscription: Subscription) -> None:
    """Show what the broker made of a request: the agency lets its customers ask."""
    told = await subscription.restrictions()
    granted = [str(pair[0]).rpartition("/")[2] for pair in _list(told.get("granted")) if isinstance(pair, list)]
    on.say(
        f"Tessa's PDA asked for SportsNews and was granted {', '.join(granted)}. Her broker keeps what she asked for."
    )


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


async def refusals(on: Stage, tessa: Client, sam: Client) -> None:
    """Ask for what no package holds, and for more than was paid for."""
    on.chapter("Where nothing is left of a request, it is refused")
    requests: dict[str, Awaitable[object]] = {
        "Tessa's PDA asks for SoccerMatch alone": tessa.subscribe(SOCCER_MATCH.name),
        "Sam's phone asks for LiveFeed": sam.subscribe(LIVE_FEED.name),
        "Sam's phone publishes news of its own": sam.advertise(NEWS.name),
    }
    for what, request in requests.items():
        try:
            await request
        except RefusedError as error:
            on.refused(what, error)
        else:
            raise SystemExit(f"this should have been refused: {what}")


async def forced_place(on: Stage, partner: Client, audience: Audience) -> None:
    """Let a partner publish from elsewhere: its broker sets the place that the agency has granted."""
    on.chapter("A partner agency, for one place only")
    feed = await partner.advertise(SOCCER_MATCH.name)

    def arrived() -> list[Event]:
        return [event for event in audience.got["The Pub"] if event["agency"] == "Manchester Agency"]

    await stage.eventually(lambda: not feed.quiet, "somebody wants the partner's news")
    await feed.publish(headline="SoccerMatch 0", location="Liverpool", agency="Manchester Agency", result="2:1")
    await stage.eventually(arrived, "the partner's story arrives")
    place = arrived()[0]["location"]
    on.say(f"The Manchester Agency wrote `Liverpool`; The Pub read `{place}`, the only place that it may write about.")
    if place != "Manchester":
        raise SystemExit("the place should have been set")


async def evolve(on: Stage, agency: Client, news: Rounds, audience: Audience) -> None:
    """Change the policy while news flows: more for a package, then less again."""
    author = PolicyAuthor(AGENCY)
    on.chapter("The agency gives soccer to the tennis package, while news flows")
    soccer = reading(TENNIS_PACKAGE, SOCCER_MATCH)
    await agency.evolve(author.change(now(), publish(soccer)).to_bytes())
    upgraded = {**_PAID, "Tessa's PDA": TENNIS | SOCCER}
    audience.show(await news.until(upgraded, "the upgrade reaches a subscription that stands"))
    on.say("Tessa did nothing: her broker recomputed her effective subscription.")

    on.chapter("And takes it back")
    await agency.evolve(author.change(now(), Revoke((soccer.id,))).to_bytes())
    seconds = await on.complete(agency, AGENCY.principal, author.number)
    on.say(f"Complete after {seconds * 1000:.0f} ms: every broker that carries the agency's news has acknowledged it.")
    await on.show_progress(agency, AGENCY.principal, author.number)
    audience.show(await news.until(_PAID, "nothing that was revoked is delivered"))


if __name__ == "__main__":
    asyncio.run(main())
