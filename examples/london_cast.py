"""Who takes part in the London example: keys, domains, the event type in two versions, capabilities, the traffic."""

import hashlib
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from penstock.crypto import SigningKey
from penstock.model import (
    AttributeDefinition,
    AttributeSpec,
    Domain,
    Event,
    EventType,
    Kind,
    NetworkName,
    Petnames,
    Scalar,
    TypeDefinition,
    TypeName,
)
from penstock.pipeline.policy import Subscriber
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
    UnverifiedType,
    Validity,
    VerifiedType,
    event_tag,
    issue,
    network_tag,
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


def define_types() -> tuple[UnverifiedType, UnverifiedType, Credentials]:
    """PITO defines `Numberplate`; a type manager, who may do no more than rename, makes the second version.

    Return both, and the credentials of the type manager.
    """
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
    return sign_type(first, PITO), sign_type(second, MANAGER, to_manager), to_manager


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


# --- Who listens -----------------------------------------------------------------------------------------------------


def subscribers(first: VerifiedType, second: VerifiedType) -> tuple[Subscriber, ...]:
    """Return the readers, each of the version that it knows."""
    return (
        Subscriber("Billing Office", BILLING.principal, second),
        Subscriber("Statistics Office", STATISTICS.principal, first),
        Subscriber("Detective Smith", SMITH.principal, second),
        Subscriber("Statistics Office, asking for the plate", STATISTICS.principal, first, PLATE_FILTER),
    )


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
