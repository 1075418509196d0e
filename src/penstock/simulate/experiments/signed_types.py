"""Signed event types and certificate chains as the dissertation's chapter 4 measures them, and the jobs to be timed."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import reduce

from penstock.codec.sexp import canonical
from penstock.crypto import SigningKey
from penstock.model.names import AttributeId, TypeName
from penstock.model.principals import Principal
from penstock.model.types import AttributeDefinition, EventType, TypeDefinition
from penstock.model.values import AttributeSpec, Kind
from penstock.selector import Selector
from penstock.selector import parse as parse_selector
from penstock.trust.caches import CertificateCache, TypeCache
from penstock.trust.capabilities import Right, RightTerms, event_tag, read_terms, type_request
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import CertificateVerifier, Credentials, UnverifiedCredentials, read_credentials
from penstock.trust.discovery import FiveTuple, discover, reduce_pair, sift
from penstock.trust.event_types import UnverifiedType, sign_type, verify_type
from penstock.trust.tags import Tag
from penstock.trust.validity import Validity

TimedJob = Callable[[], object]

_NOW = datetime(2026, 5, 1, tzinfo=UTC)
_VALID = Validity.between(_NOW - timedelta(days=30), _NOW + timedelta(days=365))
_KEYS = [SigningKey(number.to_bytes(32, "big")) for number in range(1, 32)]
_OWNER, _CLIENT = _KEYS[0], _KEYS[30]
_NAME = "uk.gov.pito.Numberplate"
DEFINITION = TypeDefinition(
    TypeName(_OWNER.principal, _NAME),
    (
        AttributeDefinition("numberplate", "0", AttributeSpec(Kind.STRING)),
        AttributeDefinition("timestamp", "1", AttributeSpec(Kind.TIMESTAMP)),
        AttributeDefinition("location", "2", AttributeSpec(Kind.STRING)),
    ),
)
_FILTER = "location LIKE 'Victoria%' AND numberplate IN ('AE05 XYZ', 'LN06 ABC')"


def _link(position: int, last: int, tag: Tag, subject: Principal | None = None) -> Certificate:
    """Issue one certificate of a chain that begins at the owner."""
    issuer = _KEYS[position]
    to = subject or _KEYS[position + 1].principal
    return issue(Authorisation(issuer.principal, to, tag, position < last, _VALID), issuer)


def realistic_chain() -> list[Certificate]:
    """Return owner, country, domain, sub-domain, blanket to a group's key, client: five rights, each its own."""
    owner = _OWNER.principal
    ids = [AttributeId(owner, _NAME, uid) for uid in ("0", "1", "2")]
    tags = [
        event_tag(owner, "uk.gov.*"),
        event_tag(owner, "uk.gov.pito.*", None, [Right.PUBLISH, Right.SUBSCRIBE]),
        event_tag(owner),
        event_tag(owner, _NAME, None, [Right.SUBSCRIBE, Right.PUBLISH], attributes=ids),
        event_tag(owner, _NAME, None, [Right.SUBSCRIBE], attributes=ids[:2], forced={ids[2]: "Victoria"}),
    ]
    return [_link(i, 4, tag, _CLIENT.principal if i == 4 else None) for i, tag in enumerate(tags)]


def reduction_and_verification() -> tuple[TimedJob, TimedJob]:
    """Return the reduction of a chain of five certificates, and the verification of one signature."""
    chain = realistic_chain()
    ids = [link.id for link in chain]
    tuples = sorted(sift(Credentials.of(*chain), _NOW).fives, key=lambda five: ids.index(five.because[0]))
    message = canonical(chain[0].body)
    signature = _OWNER.sign(message)
    return lambda: reduce(_reduced, tuples), lambda: _OWNER.public.verify(message, signature)


def _reduced(upper: FiveTuple, lower: FiveTuple) -> FiveTuple:
    both = reduce_pair(upper, lower)
    if both is None:
        raise ValueError("the chain gives no right")
    return both


def _check(event_type: EventType, credentials: Credentials) -> tuple[list[RightTerms], Selector]:
    """Do what a local broker does with a subscription whose type it knows."""
    request = type_request(event_type.name, Right.SUBSCRIBE)
    findings = discover(credentials, event_type.name.owner, _CLIENT.principal, request, _NOW)
    selector = parse_selector(_FILTER)
    selector.check(event_type.schema)
    terms = [read_terms(grant.tag, event_type) for grant in findings.grants]
    if not terms:
        raise ValueError("the subscription is not allowed")
    return terms, selector


def subscriptions() -> tuple[TimedJob, TimedJob, TimedJob]:
    """Return a request for a type that needs no signature, one with a signed type seen before, and its cache alone."""
    bag: UnverifiedCredentials = read_credentials(Credentials.of(*realistic_chain()).to_bytes())
    manager = _KEYS[20]
    right = issue(
        Authorisation(_OWNER.principal, manager.principal, event_tag(_OWNER.principal), False, _VALID), _OWNER
    )
    signed = {DEFINITION.name: sign_type(DEFINITION, manager, Credentials.of(right))}
    known = {DEFINITION.name: EventType.of(DEFINITION)}
    certificates = CertificateCache()
    types = TypeCache(certificates=certificates)

    def plain_type() -> object:
        return _check(known[DEFINITION.name], bag.verify(certificates))

    def signed_type() -> object:
        verified = types.verify(signed[DEFINITION.name], _NOW)
        return _check(verified.event_type, bag.verify(certificates))

    return plain_type, signed_type, lambda: types.verify(signed[DEFINITION.name], _NOW)


def managed_type(length: int) -> UnverifiedType:
    """Return a type whose manager shows a chain of so many certificates."""
    tag = event_tag(_OWNER.principal, "uk.gov.*", None, [Right.MANAGE])
    chain = [_link(position, length - 1, tag) for position in range(length)]
    return sign_type(DEFINITION, _KEYS[length], Credentials.of(*reversed(chain)))


def type_verification(signed: UnverifiedType, verifier: CertificateVerifier) -> TimedJob:
    """Return the verification of a signed type, without the type cache."""
    return lambda: verify_type(signed, _NOW, verifier=verifier)
