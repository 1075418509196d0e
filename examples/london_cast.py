"""Who takes part in the London example: keys, domains, the event type in two versions, capabilities, the traffic."""

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from penstock.broker.routing.membership import rendezvous
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
    Principal,
    Scalar,
    TypeDefinition,
    TypeName,
)
from penstock.model.names import TypeKey
from penstock.model.types import Sealing
from penstock.pipeline.enforce.policy import Subscriber
from penstock.selector import parse
from penstock.trust import (
    BROKER_RIGHTS,
    Authorisation,
    Certificate,
    Credentials,
    Name,
    NameCertificate,
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

NOW = datetime.now(UTC).replace(microsecond=0)
YEAR = Validity.between(NOW - timedelta(days=60), NOW + timedelta(days=305))
MONTH = Validity.between(NOW - timedelta(days=3), NOW + timedelta(days=27))
LAST_YEAR = Validity.between(NOW - timedelta(days=500), NOW - timedelta(days=135))
PLACES = ["Victoria", "Vauxhall", "Old Street", "Tower Hill", "Marylebone", "Elephant and Castle"]
SUSPECT = "AE05 XYZ"
CASE = "C7"
PLATE_QUESTION = f"\"license-plate\" = '{SUSPECT}'"


# --- Who takes part --------------------------------------------------------------------------------------------------


def key(name: str) -> SigningKey:
    """Make a key for the demonstration. Real keys come from `penstock key new`, never from a name."""
    return SigningKey(hashlib.sha256(f"london demonstration: {name}".encode()).digest())


PITO, CCS, MET, THAMES = key("PITO"), key("CCS"), key("Met"), key("Thames Valley")
MANAGER, PITO_BROKER = key("Type Manager"), key("PITO Broker")
CCS_BROKER, MET_BROKER = key("CCS Broker"), key("Met Broker")
BILLING, STATISTICS, SMITH, MALLORY = key("Billing"), key("Statistics"), key("Detective Smith"), key("Mallory")
JONES = key("Detective Jones")
TRAFFIC = key("Traffic Desk")
COURT, JUDGE = key("Court"), key("Judge Judy")
BROKER_OF_STATISTICS = key("Statistics Broker")
CAMERAS = {place: key(f"Camera {place}") for place in PLACES}

NETWORK = NetworkName(PITO.principal, "UK Police Network")
PLATE_TYPE = "uk.gov.pito.Numberplate"


def _meeting_place() -> SigningKey:
    """Return a key for the broker of a foreign domain that makes it the rendezvous node of the type.

    Elsewhere that is left to chance. Here it shows that publishers and subscribers may meet at a stranger's.
    """
    others = (PITO_BROKER.principal, CCS_BROKER.principal, MET_BROKER.principal)
    wanted = TypeKey(PITO.principal, PLATE_TYPE)
    candidates = (key(f"Thames Valley Broker {number}") for number in count())
    return next(one for one in candidates if rendezvous(wanted, iter((*others, one.principal))) == one.principal)


THAMES_BROKER = _meeting_place()
DOMAINS = [
    Domain("PITO", PITO.principal, brokers=(PITO_BROKER.principal,)),
    Domain("Thames Valley Police", THAMES.principal, brokers=(THAMES_BROKER.principal,)),
    Domain(
        "Congestion Charge Service",
        CCS.principal,
        brokers=(CCS_BROKER.principal, BROKER_OF_STATISTICS.principal),
        clients=(BILLING.principal, STATISTICS.principal, *(camera.principal for camera in CAMERAS.values())),
    ),
    Domain(
        "Metropolitan Police",
        MET.principal,
        brokers=(MET_BROKER.principal,),
        clients=(SMITH.principal, JONES.principal, TRAFFIC.principal),
    ),
]
NAMES = Petnames(
    {
        PITO.principal: "PITO",
        CCS.principal: "CCS",
        MET.principal: "Met",
        THAMES.principal: "Thames Valley",
        MANAGER.principal: "Type Manager",
        PITO_BROKER.principal: "PITO Broker",
        THAMES_BROKER.principal: "Thames Valley Broker",
        CCS_BROKER.principal: "CCS Broker",
        MET_BROKER.principal: "Met Broker",
        BILLING.principal: "Billing Office",
        STATISTICS.principal: "Statistics Office",
        SMITH.principal: "Detective Smith",
        JONES.principal: "Detective Jones",
        TRAFFIC.principal: "Traffic Desk",
        COURT.principal: "Court",
        JUDGE.principal: "Judge Judy",
        BROKER_OF_STATISTICS.principal: "Statistics Broker",
        MALLORY.principal: "Mallory",
        **{camera.principal: f"Camera {place}" for place, camera in CAMERAS.items()},
    }
)


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
        # Each attribute under keys of its own, which only brokers get that may read it.
        sealing=Sealing.ATTRIBUTE,
    )
    second = first.rename("license-plate", "numberplate", version="7f3a")
    to_manager = Credentials.of(
        grant(PITO, MANAGER.principal, event_tag(PITO.principal, PLATE_TYPE, None, [Right.MANAGE_RENAME])),
        grant(PITO, MANAGER.principal, INSTALL),
    )
    return sign_type(first, PITO), sign_type(second, MANAGER, to_manager), to_manager


# --- The capabilities ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Issued:
    """Every capability of the example that people issue, by who holds it, and what all of the Met's reading rests on.

    What Detective Smith reads, her domain's service issues from her role.
    """

    held: Mapping[Principal, Credentials]
    met_reads: Certificate

    def of(self, *holders: SigningKey) -> Credentials:
        """Return what some can show."""
        return sum((self.held[one.principal] for one in holders), Credentials())

    @property
    def all(self) -> Credentials:
        """All of them."""
        return sum(self.held.values(), Credentials())


def issue_credentials(plates: EventType) -> Issued:
    """Issue every capability of the example, in the two tiers of section 5.1: owners to domains, domains to members."""
    uid = {attribute.name: attribute.id for attribute in plates.attributes}
    connect = network_tag(PITO.principal, NETWORK.name, [Right.CONNECT])
    broker = network_tag(PITO.principal, NETWORK.name, BROKER_RIGHTS)

    def on_plates(*rights: Right, **terms: Any) -> Tag:
        return event_tag(PITO.principal, PLATE_TYPE, None, rights, **terms)

    route, read = on_plates(Right.ROUTE), on_plates(Right.SUBSCRIBE)
    met_brokers = Name(MET.principal, (b"Met Brokers",))
    seeing = {
        BILLING: [uid["numberplate"], uid["timestamp"]],
        STATISTICS: [uid["location"], uid["timestamp"]],
    }
    # Events as they come, and logs of them.
    met_reads = grant(PITO, MET.principal, on_plates(Right.SUBSCRIBE, Right.HISTORY), pass_on=True)
    held: dict[SigningKey, list[Certificate]] = {
        # First tier: the owner authorises domains, and lets them pass it on.
        CCS: [
            grant(PITO, CCS.principal, tag, pass_on=True)
            for tag in (broker, route, on_plates(Right.PUBLISH, Right.SUBSCRIBE))
        ],
        MET: [met_reads, *(grant(PITO, MET.principal, tag, pass_on=True) for tag in (broker, route))],
        # A domain that has the right to carry events, and no other.
        THAMES: [grant(PITO, THAMES.principal, tag, pass_on=True) for tag in (broker, route)],
        # Second tier, brokers: CCS issues a blanket capability, the Met a group (section 5.1.3).
        # PITO has its broker keep the keys.
        PITO_BROKER: [
            grant(PITO, PITO_BROKER.principal, tag)
            for tag in (broker, route, on_plates(Right.KEYS), event_tag(PITO.principal, None, None, [Right.STAMP]))
        ],
        THAMES_BROKER: [grant(THAMES, THAMES_BROKER.principal, tag) for tag in (broker, route)],
        CCS_BROKER: [
            grant(CCS, CCS_BROKER.principal, network_tag(PITO.principal)),
            grant(CCS, CCS_BROKER.principal, event_tag(PITO.principal)),
        ],
        MET_BROKER: [
            grant(MET, met_brokers, broker),
            grant(MET, met_brokers, on_plates(Right.ROUTE, Right.SUBSCRIBE, Right.HISTORY)),
            issue(NameCertificate(MET.principal, b"Met Brokers", MET_BROKER.principal, YEAR), MET),
        ],
        # An office that wants a broker of its own: it reads what the office reads.
        BROKER_OF_STATISTICS: [
            grant(CCS, BROKER_OF_STATISTICS.principal, tag)
            for tag in (broker, route, on_plates(Right.SUBSCRIBE, attributes=seeing[STATISTICS]))
        ],
        # Second tier, clients: no more than each needs (section 5.2.2).
        **{
            office: [
                grant(CCS, office.principal, connect),
                grant(CCS, office.principal, on_plates(Right.SUBSCRIBE, attributes=ids)),
                # For logs: keys of epochs that are over, of what it may read.
                grant(PITO, office.principal, on_plates(Right.HISTORY, attributes=ids)),
            ]
            for office, ids in seeing.items()
        },
        **{
            camera: [
                grant(CCS, camera.principal, connect),
                grant(CCS, camera.principal,
                      on_plates(Right.PUBLISH, attributes=uid.values(), forced={uid["location"]: place})),
            ]
            for place, camera in CAMERAS.items()
        },
        SMITH: [grant(MET, SMITH.principal, connect, MONTH)],
        # At the same broker as the detective: places and no plates.
        TRAFFIC: [
            grant(MET, TRAFFIC.principal, connect),
            grant(MET, TRAFFIC.principal, on_plates(Right.SUBSCRIBE, attributes=seeing[STATISTICS])),
        ],
        JONES: [grant(MET, JONES.principal, connect), grant(MET, JONES.principal, read, LAST_YEAR)],
    }  # fmt: skip
    return Issued({holder.principal: Credentials.of(*given) for holder, given in held.items()}, met_reads)


# --- Who listens -----------------------------------------------------------------------------------------------------


def subscribers(first: VerifiedType, second: VerifiedType) -> tuple[Subscriber, ...]:
    """Return the readers, each of the version that it knows."""
    return (
        Subscriber("Billing Office", BILLING.principal, second),
        Subscriber("Statistics Office", STATISTICS.principal, first),
        Subscriber("Detective Smith", SMITH.principal, second),
        Subscriber("Traffic Desk", TRAFFIC.principal, second),
        Subscriber("Statistics Office, asking for the plate", STATISTICS.principal, first, parse(PLATE_QUESTION)),
    )


# --- Twenty thousand sightings ---------------------------------------------------------------------------------------


def sightings(versions: Mapping[str, EventType], total: int, seed: int) -> Iterator[tuple[str, Event]]:
    """Yield the camera and the event of each sighting. Half of the cameras still use the first version."""
    chance = random.Random(seed)  # noqa: S311  # a traffic simulation, not a secret
    plates = [f"{chance.choice('ABCDEFGHKLMNPRSTVWXY')}{chance.choice('ABCDEFGHJKLMNPRSTUVWXYZ')}"
              f"{chance.randrange(2, 27):02} {''.join(chance.choices('ABCDEFGHJKLMNPRSTUVWXYZ', k=3))}"
              for _ in range(4_000)]  # fmt: skip
    for number in range(total):
        place = chance.choice(PLACES)
        event_type = versions["0" if PLACES.index(place) % 2 else "7f3a"]
        plate = SUSPECT if chance.random() < 0.002 else chance.choice(plates)
        # Half a day, up to now.
        seen = NOW - timedelta(seconds=(total - number) * 43_200 / total)
        values: dict[str, Scalar] = {"timestamp": seen, "location": place}
        # One camera claims to stand elsewhere; its broker knows better.
        if place == "Vauxhall" and number % 3 == 0:
            values["location"] = "Buckingham Palace"
        values["license-plate" if event_type is versions["0"] else "numberplate"] = plate
        yield place, Event.of(event_type, values, id=f"sighting-{number}", time=seen)
