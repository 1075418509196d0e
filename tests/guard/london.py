"""The cast of the paper's example (section 3.7), and what they ask and say."""

from datetime import UTC, datetime, timedelta

from penstock.crypto import SigningKey
from penstock.guard import CapabilityAuthority, Decision, EventRequest, NetworkRequest, decide
from penstock.model import (
    AttributeDefinition,
    AttributeId,
    AttributeSpec,
    Event,
    EventType,
    Kind,
    NetworkName,
    Scalar,
    TransitEvent,
    TypeDefinition,
    TypeName,
)
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Authorisation, Certificate, NameCertificate, Subject, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType, sign_type, verify_type
from penstock.trust.tags import Tag
from penstock.trust.validity import Validity

PITO, CCS, MET, SMITH, BILLING, STATISTICS, CAMERA, MANAGER, MALLORY = [
    SigningKey(bytes([i]) * 32) for i in range(1, 10)
]

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
YEAR = Validity.between(NOW - timedelta(days=30), NOW + timedelta(days=335))
NETWORK = NetworkName(PITO.principal, "UK Police Network")

# Figure 4.3: one attribute under two names, in two versions.
OLD = TypeDefinition(
    TypeName(PITO.principal, "uk.gov.pito.Numberplate", "4799"),
    (
        AttributeDefinition("license-plate", "9525", AttributeSpec(Kind.STRING)),
        AttributeDefinition("timestamp", "9058", AttributeSpec(Kind.TIMESTAMP)),
        AttributeDefinition("location", "3467", AttributeSpec(Kind.STRING)),
    ),
)
NEW = OLD.rename("license-plate", "numberplate", version="8516")


def verified(definition: TypeDefinition) -> VerifiedType:
    return verify_type(sign_type(definition, PITO), NOW)


V4799, V8516 = verified(OLD), verified(NEW)
TYPE: EventType = V8516.event_type
PLATE, TIMESTAMP, LOCATION = (TYPE.by_name[name].id for name in ("numberplate", "timestamp", "location"))
SUSPECT = "AE05 XYZ"


def sighting(plate: str = SUSPECT, location: str | None = "Victoria", **more: Scalar) -> Event:
    return Event.of(TYPE, {"numberplate": plate, "timestamp": NOW, "location": location, **more}, id="e1", time=NOW)


def transit(plate: str = SUSPECT, location: str | None = "Victoria") -> TransitEvent:
    return sighting(plate, location).to_transit()


def grant(
    issuer: SigningKey, subject: Subject, tag: Tag, *, passes: bool = False, valid: Validity = YEAR
) -> Certificate:
    return issue(Authorisation(issuer.principal, subject, tag, passes, valid), issuer)


def name(issuer: SigningKey, word: bytes, subject: Subject, valid: Validity = YEAR) -> Certificate:
    return issue(NameCertificate(issuer.principal, word, subject, valid), issuer)


def numberplate(
    *rights: Right,
    attributes: list[AttributeId] | None = None,
    forced: dict[AttributeId, str] | None = None,
    when: tuple[str, ...] = (),
) -> Tag:
    """Return a right on every version of Numberplate, as in the tables of section 5.2.2."""
    return event_tag(PITO.principal, OLD.name.name, None, rights, attributes=attributes, forced=forced, when=when)


TO_CCS = grant(PITO, CCS.principal, numberplate(Right.PUBLISH, Right.SUBSCRIBE), passes=True)
TO_MET = grant(PITO, MET.principal, numberplate(Right.SUBSCRIBE), passes=True)
TO_BILLING = grant(CCS, BILLING.principal, numberplate(Right.SUBSCRIBE, attributes=[PLATE, TIMESTAMP]))
TO_STATISTICS = grant(CCS, STATISTICS.principal, numberplate(Right.SUBSCRIBE, attributes=[LOCATION, TIMESTAMP]))
TO_CAMERA = grant(
    CCS,
    CAMERA.principal,
    numberplate(Right.PUBLISH, attributes=[PLATE, TIMESTAMP], forced={LOCATION: "Victoria"}),
)
TO_SMITH = grant(
    MET,
    SMITH.principal,
    numberplate(Right.SUBSCRIBE, attributes=[LOCATION, TIMESTAMP], forced={PLATE: SUSPECT}),
)
BAG = Credentials.of(TO_CCS, TO_MET, TO_BILLING, TO_STATISTICS, TO_CAMERA, TO_SMITH)


def ask(
    who: SigningKey,
    right: Right,
    bag: Credentials = BAG,
    type_: VerifiedType = V8516,
    now: datetime = NOW,
) -> Decision:
    return decide(EventRequest(who.principal, right, type_, now), [CapabilityAuthority(bag)])


def ask_network(who: SigningKey, right: Right, bag: Credentials) -> Decision:
    return decide(NetworkRequest(who.principal, right, NETWORK, NOW), [CapabilityAuthority(bag)])
