"""The London congestion charge: one network, three organisations, and who sees what of every passing car.

The running example of Pesonen's dissertation (sections 3.7 and 5.2.2), in one process. PITO, the Police Information
Technology Organisation, coordinates the network and owns the event type `Numberplate`. Cameras of the Congestion
Charge Service publish sightings. Its billing office may see plates but not places, its statistics office places but
not plates, and a detective of the Metropolitan Police one plate only, by court order, for a month.

Run it with `make demo`, or `python examples/london.py [--events N] [--seed N]`.
"""

import argparse
import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from rich.console import Console
from rich.progress import track
from rich.table import Table

import london_pipeline
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.guard import (
    CapabilityAuthority,
    Decision,
    Delivery,
    EventRequest,
    NetworkRequest,
    Publication,
    decide,
    environment,
)
from penstock.model import (
    AttributeDefinition,
    AttributeSpec,
    Domain,
    Event,
    EventType,
    Kind,
    NetworkName,
    Petnames,
    Principal,
    Scalar,
    TypeDefinition,
    TypeName,
)
from penstock.pipeline.policy import Policy, Subscriber
from penstock.selector import parse
from penstock.trust import (
    Authorisation,
    Certificate,
    Credentials,
    Name,
    Naming,
    Right,
    Subject,
    Tag,
    TypeCache,
    UnverifiedType,
    Validity,
    VerifiedType,
    event_tag,
    issue,
    network_tag,
    read_type,
    sign_type,
)

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
YEAR = Validity.between(NOW - timedelta(days=60), NOW + timedelta(days=305))
MONTH = Validity.between(NOW - timedelta(days=3), NOW + timedelta(days=27))
LAST_YEAR = Validity.between(NOW - timedelta(days=500), NOW - timedelta(days=135))
PLACES = ["Victoria", "Vauxhall", "Old Street", "Tower Hill", "Marylebone", "Elephant and Castle"]
SUSPECT = "AE05 XYZ"
PLATE_FILTER = parse(f"\"license-plate\" = '{SUSPECT}'")


# --- Who takes part --------------------------------------------------------------------------------------------------


def key(name: str) -> SigningKey:
    """Make a key for the demonstration. Real keys come from `penstock key new`, never from a name."""
    return SigningKey(hashlib.sha256(f"london demonstration: {name}".encode()).digest())


PITO, CCS, MET = key("PITO"), key("CCS"), key("Met")
MANAGER, CCS_BROKER, MET_BROKER = key("Type Manager"), key("CCS Broker"), key("Met Broker")
BILLING, STATISTICS, SMITH, MALLORY = key("Billing"), key("Statistics"), key("Detective Smith"), key("Mallory")
CAMERAS = {place: key(f"Camera {place}") for place in PLACES}

DOMAINS = [
    Domain("PITO", PITO.principal),
    Domain(
        "Congestion Charge Service",
        CCS.principal,
        brokers=(CCS_BROKER.principal,),
        clients=(BILLING.principal, STATISTICS.principal, *(camera.principal for camera in CAMERAS.values())),
    ),
    Domain("Metropolitan Police", MET.principal, brokers=(MET_BROKER.principal,), clients=(SMITH.principal,)),
]
NAMES = Petnames(
    {
        PITO.principal: "PITO",
        CCS.principal: "CCS",
        MET.principal: "Met",
        MANAGER.principal: "Type Manager",
        CCS_BROKER.principal: "CCS Broker",
        MET_BROKER.principal: "Met Broker",
        BILLING.principal: "Billing Office",
        STATISTICS.principal: "Statistics Office",
        SMITH.principal: "Detective Smith",
        MALLORY.principal: "Mallory",
        **{camera.principal: f"Camera {place}" for place, camera in CAMERAS.items()},
    }
)
NETWORK = NetworkName(PITO.principal, "UK Police Network")
PLATE_TYPE = "uk.gov.pito.Numberplate"


def grant(
    issuer: SigningKey, subject: Subject, tag: Tag, validity: Validity = YEAR, *, pass_on: bool = False
) -> Certificate:
    """Issue one capability."""
    return issue(Authorisation(issuer.principal, subject, tag, pass_on, validity), issuer)


# --- The event type, in two versions ---------------------------------------------------------------------------------

INSTALL = network_tag(PITO.principal, NETWORK.name, [Right.INSTALL])


def define_types() -> tuple[UnverifiedType, UnverifiedType]:
    """PITO defines `Numberplate`; a type manager, who may do no more than rename, makes the second version."""
    first = TypeDefinition(
        TypeName(PITO.principal, PLATE_TYPE),
        (
            AttributeDefinition("license-plate", "0", AttributeSpec(Kind.STRING)),
            AttributeDefinition("timestamp", "1", AttributeSpec(Kind.TIMESTAMP)),
            AttributeDefinition("location", "2", AttributeSpec(Kind.STRING)),
        ),
    )
    second = first.rename("license-plate", "numberplate", version="7f3a")
    to_manager = Credentials.of(
        grant(PITO, MANAGER.principal, event_tag(PITO.principal, PLATE_TYPE, None, [Right.MANAGE_RENAME])),
        grant(PITO, MANAGER.principal, INSTALL),
    )
    return sign_type(first, PITO), sign_type(second, MANAGER, to_manager)


# --- The capabilities ------------------------------------------------------------------------------------------------


def issue_credentials(plates: EventType) -> Credentials:
    """Issue every capability of the example, in the two tiers of section 5.1: owners to domains, domains to members."""
    uid = {attribute.name: attribute.id for attribute in plates.attributes}
    connect = network_tag(PITO.principal, NETWORK.name, [Right.CONNECT])
    use, read = [Right.PUBLISH, Right.SUBSCRIBE], [Right.SUBSCRIBE]
    met_brokers = Name(MET.principal, (b"Met Brokers",))
    certificates = [
        # First tier: the owner authorises domains, and lets them pass it on.
        grant(PITO, CCS.principal, connect, pass_on=True),
        grant(PITO, MET.principal, connect, pass_on=True),
        grant(PITO, CCS.principal, event_tag(PITO.principal, PLATE_TYPE, None, use), pass_on=True),
        grant(PITO, MET.principal, event_tag(PITO.principal, PLATE_TYPE, None, read), pass_on=True),
        # Second tier, brokers: CCS issues a blanket capability, the Met a group (section 5.1.3).
        grant(CCS, CCS_BROKER.principal, network_tag(PITO.principal)),
        grant(CCS, CCS_BROKER.principal, event_tag(PITO.principal)),
        grant(MET, met_brokers, connect),
        grant(MET, met_brokers, event_tag(PITO.principal, PLATE_TYPE, None, read)),
        issue(Naming(MET.principal, b"Met Brokers", MET_BROKER.principal, YEAR), MET),
        # Second tier, clients: no more than each needs (section 5.2.2).
        grant(CCS, BILLING.principal, event_tag(PITO.principal, PLATE_TYPE, None, read,
                                                attributes=[uid["numberplate"], uid["timestamp"]])),
        grant(CCS, STATISTICS.principal, event_tag(PITO.principal, PLATE_TYPE, None, read,
                                                   attributes=[uid["location"], uid["timestamp"]])),
        grant(MET, SMITH.principal, event_tag(PITO.principal, PLATE_TYPE, None, read, attributes=uid.values(),
                                              forced={uid["numberplate"]: SUSPECT}), MONTH),
        *(grant(CCS, client.principal, connect) for client in (BILLING, STATISTICS, *CAMERAS.values())),
        grant(MET, SMITH.principal, connect, MONTH),
        *(
            grant(CCS, camera.principal, event_tag(PITO.principal, PLATE_TYPE, None, [Right.PUBLISH],
                                                   attributes=uid.values(), forced={uid["location"]: place}))
            for place, camera in CAMERAS.items()
        ),
    ]  # fmt: skip
    return Credentials.of(*certificates)


# --- Twenty thousand sightings ---------------------------------------------------------------------------------------


def sightings(versions: dict[str, EventType], count: int, seed: int) -> Iterator[tuple[str, Event]]:
    """Yield the camera and the event of each sighting. Half of the cameras still use the first version."""
    chance = random.Random(seed)  # noqa: S311  # a traffic simulation, not a secret
    plates = [f"{chance.choice('ABCDEFGHKLMNPRSTVWXY')}{chance.choice('ABCDEFGHJKLMNPRSTUVWXYZ')}"
              f"{chance.randrange(2, 27):02} {''.join(chance.choices('ABCDEFGHJKLMNPRSTUVWXYZ', k=3))}"
              for _ in range(4_000)]  # fmt: skip
    for number in range(count):
        place = chance.choice(PLACES)
        event_type = versions["0" if PLACES.index(place) % 2 else "7f3a"]
        plate = SUSPECT if chance.random() < 0.002 else chance.choice(plates)
        seen = NOW + timedelta(seconds=number * 43_200 / count)
        values: dict[str, Scalar] = {"timestamp": seen, "location": place}
        # One camera claims to stand elsewhere; its broker knows better.
        if place == "Vauxhall" and number % 3 == 0:
            values["location"] = "Buckingham Palace"
        values["license-plate" if event_type is versions["0"] else "numberplate"] = plate
        yield place, Event.of(event_type, values, id=f"sighting-{number}", time=seen)


# --- The story -------------------------------------------------------------------------------------------------------


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


def main(count: int, seed: int) -> None:
    """Run the example."""
    started = time.perf_counter()
    console = Console()
    console.rule("[bold]London congestion charge[/]")

    first, second = define_types()
    library = {first.definition.name: first, second.definition.name: second}
    types = TypeCache(network=NETWORK, types=library.get)
    v0, v1 = types.verify(first, NOW), types.verify(second, NOW)
    versions = {"0": v0.event_type, "7f3a": v1.event_type}
    authority = CapabilityAuthority(issue_credentials(v1.event_type))
    story = Story(console, authority)

    def ask(who: SigningKey, right: Right, version: str = "7f3a") -> Decision:
        return decide(EventRequest(who.principal, right, v0 if version == "0" else v1, NOW), [authority])

    story.chapter("Who may do what, and through which chain")
    table = Table("principal", "right", "attributes", "forced", "chain")
    for who, right in [
        (CAMERAS["Victoria"], Right.PUBLISH),
        (BILLING, Right.SUBSCRIBE),
        (STATISTICS, Right.SUBSCRIBE),
        (SMITH, Right.SUBSCRIBE),
        (CCS_BROKER, Right.PUBLISH),
        (MET_BROKER, Right.SUBSCRIBE),
    ]:
        (branch,) = ask(who, right).require().branches
        plain = branch.as_dict({a.id: a.name for a in v1.event_type.attributes})
        shown = plain["attributes"] if isinstance(plain["attributes"], str) else ", ".join(plain["attributes"])  # type: ignore[arg-type]  # as_dict gives names
        forced = ", ".join(f"{name} = {value}" for name, value in plain.get("forced", {}).items())  # type: ignore[attr-defined]  # as_dict gives a dict
        table.add_row(
            NAMES.show(who.principal), right, shown, forced, story.chain(EventRequest(who.principal, right, v1, NOW))
        )
    console.print(table)
    for member in (*CAMERAS.values(), BILLING, STATISTICS, SMITH, CCS_BROKER, MET_BROKER):
        decide(NetworkRequest(member.principal, Right.CONNECT, NETWORK, NOW), [authority]).require()
    console.print(f"  All brokers and clients of {len(DOMAINS)} domains may connect to {NETWORK.name}.")
    console.print(f"  Version 7f3a was made by {NAMES.show(v1.signer)}, who may rename attributes and nothing else.")

    story.chapter(f"{count:,} sightings, seed {seed}")
    publications = {
        place: Publication(ask(camera, Right.PUBLISH, version).require(), versions[version])
        for place, camera in CAMERAS.items()
        for version in ["0" if PLACES.index(place) % 2 else "7f3a"]
    }
    deliveries = {
        "Billing Office": Delivery(ask(BILLING, Right.SUBSCRIBE).require(), v1.event_type),
        "Statistics Office": Delivery(ask(STATISTICS, Right.SUBSCRIBE, "0").require(), v0.event_type),
        "Detective Smith": Delivery(ask(SMITH, Right.SUBSCRIBE).require(), v1.event_type),
        "Statistics Office, asking for the plate": Delivery(
            ask(STATISTICS, Right.SUBSCRIBE, "0").require(), v0.event_type, PLATE_FILTER
        ),
    }
    live: dict[str, dict[str, Mapping[str, object]]] = {name: {} for name in deliveries}
    sent: list[tuple[Principal, Event]] = []
    seen: dict[str, Counter[str]] = {name: Counter() for name in deliveries}
    corrected = 0
    for place, event in track(
        sightings(versions, count, seed), "  publishing", total=count, console=console, transient=True
    ):
        moment = environment(NOW)
        transit = publications[place](event, moment)
        sent.append((CAMERAS[place].principal, event))
        corrected += event["location"] not in transit.values.values()
        for name, delivery in deliveries.items():
            if (copy := delivery(transit, moment)) is not None:
                live[name][event.id] = copy.values
                seen[name].update(attribute for attribute, value in copy.values.items() if value is not None)
    table = Table("subscriber", "events", "version", "saw", "never saw")
    for name, delivery in deliveries.items():
        attributes = list(delivery.event_type.by_name)
        table.add_row(
            name,
            f"{len(live[name]):,}",
            delivery.event_type.name.version,
            ", ".join(a for a in attributes if seen[name][a]) or "nothing",
            ", ".join(a for a in attributes if not seen[name][a]) or "—",
        )
    console.print(table)
    console.print(f"  {corrected:,} sightings claimed another place than their camera's; the broker set the right one.")
    console.print("  A filter sees what its owner sees: asking for the plate gives the statistics office nothing.")

    story.chapter("What is refused, and why")
    refusals(story, library, ask)

    story.chapter("The same sightings in bulk, on Spark")
    bulk(console, authority, (v0, v1), sent, live)
    console.print(f"\n[bold green]done[/] in {time.perf_counter() - started:.1f} s", highlight=False)


def bulk(
    console: Console,
    authority: CapabilityAuthority,
    versions: tuple[VerifiedType, VerifiedType],
    sent: list[tuple[Principal, Event]],
    live: Mapping[str, Mapping[str, Mapping[str, object]]],
) -> None:
    """Send the same events through the pipeline, and compare."""
    v0, v1 = versions
    subscribers = (
        Subscriber("Billing Office", BILLING.principal, v1),
        Subscriber("Statistics Office", STATISTICS.principal, v0),
        Subscriber("Detective Smith", SMITH.principal, v1),
        Subscriber("Statistics Office, asking for the plate", STATISTICS.principal, v0, PLATE_FILTER),
    )
    with console.status("  starting Spark"):
        spark = london_pipeline.session()
    with console.status("  admitting and delivering"):
        delivered = london_pipeline.batch(spark, versions, sent, Policy(authority.credentials, subscribers))
        london_pipeline.show(console, delivered, live)
    spark.stop()


def refusals(
    story: Story,
    library: dict[TypeName, UnverifiedType],
    ask: Callable[[SigningKey, Right], Decision],
) -> None:
    """Try to get more than was granted, in every way that the example has to offer."""
    types = TypeCache(network=NETWORK, types=library.get)
    first = library[TypeName(PITO.principal, PLATE_TYPE)]

    story.refused("the billing office publishes", lambda: ask(BILLING, Right.PUBLISH).require())

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
        authority = CapabilityAuthority(Credentials.of(*certificates))
        request = EventRequest(who.principal, right, types.verify(first, NOW), NOW)
        story.refused(what, lambda: decide(request, [authority]).require())
        for line in authority.explain(request).lines(NAMES):
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
    given = arguments.parse_args()
    main(given.events, given.seed)
