"""The London congestion charge: one network, three organisations, and who sees what of every passing car.

The running example of Pesonen's dissertation (sections 3.7 and 5.2.2), in one process. PITO, the Police Information
Technology Organisation, coordinates the network and owns the event type `Numberplate`. Cameras of the Congestion
Charge Service publish sightings. Its billing office may see plates but not places, its statistics office places but
not plates, and a detective of the Metropolitan Police one plate only, by court order, for a month.

Run it with `make demo`, or `python examples/london.py [--events N] [--seed N] [--out FOLDER]`.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

import london_pipeline
import london_reports
from london_cast import (
    BILLING,
    CAMERAS,
    CCS,
    CCS_BROKER,
    DOMAINS,
    INSTALL,
    LAST_YEAR,
    MALLORY,
    MANAGER,
    MET,
    MET_BROKER,
    NAMES,
    NETWORK,
    NOW,
    PITO,
    PLACES,
    PLATE_TYPE,
    SMITH,
    STATISTICS,
    define_types,
    grant,
    issue_credentials,
    sightings,
    subscribers,
)
from london_log import Desk
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.guard import (
    CapabilityAuthority,
    Counts,
    Decision,
    Delivery,
    EventRequest,
    NetworkRequest,
    Publication,
    Recorded,
    decide,
    environment,
)
from penstock.model import Event, Principal, TypeDefinition, TypeName
from penstock.pipeline.policy import Policy
from penstock.selector import ALWAYS
from penstock.trust import (
    Certificate,
    Credentials,
    Right,
    TypeCache,
    UnverifiedType,
    VerifiedType,
    event_tag,
    read_type,
    sign_type,
)

Versions = Mapping[str, VerifiedType]
"""The two versions of the type, by their names."""


class Story:
    """Prints what happens."""

    def __init__(self, console: Console, authority: CapabilityAuthority) -> None:
        self.console = console
        self.authority = authority

    def chapter(self, title: str) -> None:
        """Begin a part."""
        self.console.print(f"\n[bold]{title}[/]")

    def chain(self, request: EventRequest | NetworkRequest) -> str:
        """Return the principals on the chain that allows a request."""
        links = self.authority.explain(request).links
        issuers = [NAMES.show(link.certificate.statement.issuer) for link in links]
        return " → ".join([*dict.fromkeys(issuers), NAMES.show(request.principal)])

    def refused(self, what: str, attempt: Callable[[], object]) -> None:
        """Try what must fail, and show how it fails. Stop the demonstration when it does not."""
        try:
            attempt()
        except PenstockError as error:
            message = error.message
            for principal, name in NAMES.items():
                message = message.replace(principal.short, name)
            self.console.print(f"  [green]refused[/]  {what}", highlight=False)
            self.console.print(f"           {message} [{error.code}]", style="dim", markup=False, highlight=False)
        else:
            raise SystemExit(f"this should have been refused: {what}")


def main(count: int, seed: int, out: Path) -> None:
    """Run the example."""
    started = time.perf_counter()
    console = Console()
    console.rule("[bold]London congestion charge[/]")

    first, second, to_manager = define_types()
    library = {first.definition.name: first, second.definition.name: second}
    types = TypeCache(network=NETWORK, types=library.get)
    versions = {"0": types.verify(first, NOW), "7f3a": types.verify(second, NOW)}
    credentials = issue_credentials(versions["7f3a"].event_type) + to_manager
    policy = Policy(credentials, subscribers(*versions.values()))
    story = Story(console, CapabilityAuthority(policy.credentials))
    desk = Desk(out / "decisions.jsonl", policy)

    story.chapter("Who may do what, and through which chain")
    introduce(story, versions["7f3a"])
    for member in (*CAMERAS.values(), BILLING, STATISTICS, SMITH, CCS_BROKER, MET_BROKER):
        desk.ask(NetworkRequest(member.principal, Right.CONNECT, NETWORK, desk.now)).decision.require()
    console.print(f"  All brokers and clients of {len(DOMAINS)} domains may connect to {NETWORK.name}.")
    signer = NAMES.show(versions["7f3a"].signer)
    console.print(f"  Version 7f3a was made by {signer}, who may rename attributes and nothing else.")

    story.chapter(f"{count:,} sightings, seed {seed}")
    sent, live = publish(console, desk, versions, policy, count, seed)

    story.chapter("What is refused, and why")
    refusals(story, library, desk)

    story.chapter("The same sightings in bulk, on Spark")
    with console.status("  starting Spark"):
        spark = london_pipeline.session()
    with console.status("  admitting and delivering"):
        transit, delivered = london_pipeline.batch(spark, list(versions.values()), sent, policy)
        london_pipeline.show(console, delivered, live)
    story.chapter("What if the statistics office could see the plate?")
    london_reports.whatif(console, transit, policy, versions, out)
    story.chapter("What the brokers decided today, from their log")
    london_reports.audit_log(console, spark, desk.path, policy, out)
    spark.stop()
    console.print(f"\n[bold green]done[/] in {time.perf_counter() - started:.1f} s", highlight=False)


def introduce(story: Story, verified: VerifiedType) -> None:
    """Show what some of them may do. These are questions, so that nothing is recorded."""
    table = Table("principal", "right", "attributes", "forced", "chain")
    for who, right in [
        (CAMERAS["Victoria"], Right.PUBLISH),
        (BILLING, Right.SUBSCRIBE),
        (STATISTICS, Right.SUBSCRIBE),
        (SMITH, Right.SUBSCRIBE),
        (CCS_BROKER, Right.PUBLISH),
        (MET_BROKER, Right.SUBSCRIBE),
    ]:
        request = EventRequest(who.principal, right, verified, NOW)
        (branch,) = decide(request, [story.authority]).require().branches
        plain = branch.as_dict({a.id: a.name for a in verified.event_type.attributes})
        shown = plain["attributes"] if isinstance(plain["attributes"], str) else ", ".join(plain["attributes"])  # type: ignore[arg-type]  # as_dict gives names
        forced = ", ".join(f"{name} = {value}" for name, value in plain.get("forced", {}).items())  # type: ignore[attr-defined]  # as_dict gives a dict
        table.add_row(NAMES.show(who.principal), right, shown, forced, story.chain(request))
    story.console.print(table)


@dataclass
class Link:
    """A client's link to its broker: what was decided about it, and how many events have passed."""

    recorded: Recorded
    passed: int = 0
    refused: int = 0


def publish(  # noqa: PLR0913, PLR0917  # who takes part, and how much traffic there is
    console: Console, desk: Desk, versions: Versions, policy: Policy, count: int, seed: int
) -> tuple[london_pipeline.Sent, london_pipeline.Live]:
    """Publish the sightings, deliver them to everybody, and return what was sent and what each reader got."""

    def link(principal: Principal, right: Right, verified: VerifiedType) -> Link:
        return Link(desk.ask(EventRequest(principal, right, verified, desk.now)))

    spoken = {place: versions["0" if PLACES.index(place) % 2 else "7f3a"] for place in PLACES}
    cameras = {place: link(key.principal, Right.PUBLISH, spoken[place]) for place, key in CAMERAS.items()}
    readers = {s.name: link(s.principal, Right.SUBSCRIBE, s.type) for s in policy.subscribers}
    publications = {
        place: Publication(found.recorded.decision.require(), spoken[place].event_type)
        for place, found in cameras.items()
    }
    deliveries = {
        s.name: Delivery(readers[s.name].recorded.decision.require(), s.type.event_type, s.selector)
        for s in policy.subscribers
    }
    live: dict[str, dict[str, Mapping[str, object]]] = {name: {} for name in deliveries}
    sent: list[tuple[Principal, Event]] = []
    corrected = 0
    types = {name: verified.event_type for name, verified in versions.items()}
    for place, event in track(
        sightings(types, count, seed), "  publishing", total=count, console=console, transient=True
    ):
        moment = environment(NOW)
        transit = publications[place](event, moment)
        cameras[place].passed += 1
        sent.append((CAMERAS[place].principal, event))
        corrected += event["location"] not in transit.values.values()
        for name, delivery in deliveries.items():
            if (copy := delivery(transit, moment)) is not None:
                live[name][event.id] = copy.values
        desk.now = event.time or desk.now
    for s in policy.subscribers:
        readers[s.name].passed = len(live[s.name])
        # What a filter of the reader's own passes over was not refused.
        readers[s.name].refused = count - len(live[s.name]) if s.selector == ALWAYS else 0
    for found in (*cameras.values(), *readers.values()):
        desk.enforced(found.recorded, Counts(found.passed, found.refused))
    show_views(console, deliveries, live)
    console.print(f"  {corrected:,} sightings claimed another place than their camera's; the broker set the right one.")
    console.print("  A filter sees what its owner sees: asking for the plate gives the statistics office nothing.")
    return sent, live


def show_views(console: Console, deliveries: Mapping[str, Delivery], live: london_pipeline.Live) -> None:
    """Print what every reader saw, and what it never saw."""
    table = Table("subscriber", "events", "version", "saw", "never saw")
    for name, delivery in deliveries.items():
        seen = Counter(a for values in live[name].values() for a, value in values.items() if value is not None)
        attributes = list(delivery.event_type.by_name)
        table.add_row(
            name,
            f"{len(live[name]):,}",
            delivery.event_type.name.version,
            ", ".join(a for a in attributes if seen[a]) or "nothing",
            ", ".join(a for a in attributes if not seen[a]) or "—",
        )
    console.print(table)


def refusals(
    story: Story,
    library: dict[TypeName, UnverifiedType],
    desk: Desk,
) -> None:
    """Try to get more than was granted, in every way that the example has to offer."""
    types = TypeCache(network=NETWORK, types=library.get)
    first = library[TypeName(PITO.principal, PLATE_TYPE)]

    def asked(who: SigningKey, right: Right, credentials: Credentials | None = None) -> Decision:
        request = EventRequest(who.principal, right, types.verify(first, NOW), desk.now)
        return desk.ask(request, credentials).decision

    story.refused("the billing office publishes", lambda: asked(BILLING, Right.PUBLISH).require())

    forged = TypeDefinition(first.definition.name, first.definition.attributes[:1])
    story.refused("Mallory signs a type in PITO's name", lambda: types.verify(sign_type(forged, MALLORY), NOW))

    tampered = first.to_bytes().replace(b"8:location", b"8:whatever")
    story.refused("someone changes a signed type on its way", lambda: types.verify(read_type(tampered), NOW))

    too_much = first.definition.remove("location", version="8aaa")
    rename_only = Credentials.of(
        grant(PITO, MANAGER.principal, event_tag(PITO.principal, PLATE_TYPE, None, [Right.MANAGE_RENAME])),
        grant(PITO, MANAGER.principal, INSTALL),
    )
    story.refused(
        "the type manager, who may rename, removes an attribute",
        lambda: types.verify(sign_type(too_much, MANAGER, rename_only), NOW),
    )

    def explained(what: str, who: SigningKey, right: Right, *certificates: Certificate) -> None:
        shown = Credentials.of(*certificates)
        story.refused(what, lambda: asked(who, right, shown).require())
        request = EventRequest(who.principal, right, types.verify(first, NOW), desk.now)
        for line in CapabilityAuthority(shown).explain(request).lines(NAMES):
            story.console.print(f"             {line}", highlight=False)

    everything = event_tag(PITO.principal, PLATE_TYPE)
    reading = event_tag(PITO.principal, PLATE_TYPE, None, [Right.SUBSCRIBE])
    explained(
        "a court order of last year", SMITH, Right.SUBSCRIBE,
        grant(PITO, MET.principal, reading, pass_on=True), grant(MET, SMITH.principal, reading, LAST_YEAR),
    )  # fmt: skip
    explained(
        "the Met, which may only read, grants its detective everything, and she publishes", SMITH, Right.PUBLISH,
        grant(PITO, MET.principal, reading, pass_on=True), grant(MET, SMITH.principal, everything),
    )  # fmt: skip
    explained(
        "the billing office passes its right on to Mallory", MALLORY, Right.SUBSCRIBE,
        grant(PITO, CCS.principal, reading, pass_on=True), grant(CCS, BILLING.principal, reading),
        grant(BILLING, MALLORY.principal, reading),
    )  # fmt: skip


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="The London congestion charge example.")
    arguments.add_argument("--events", type=int, default=20_000, help="how many sightings to publish")
    arguments.add_argument("--seed", type=int, default=2003, help="the seed of the traffic")
    arguments.add_argument("--out", type=Path, default=Path("build/demo"), help="where the log and the reports go")
    given = arguments.parse_args()
    main(given.events, given.seed, given.out)
