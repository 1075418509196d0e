"""Trust: reduction against signatures, subscriptions to signed types, and Figure 4.5 of the dissertation.

The paper measured 5-tuple reduction against RSA (Table 4.7: 5.5 against 292 µs), subscriptions with the type cache
against plain types (Table 4.8: 7.1 against 6.8 µs), and both caches against the length of the manager's chain
(Figure 4.5). The same three are measured here, as ratios.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce

from harness import Result, at_most, microseconds, observed, seconds
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
from penstock.trust.certificates import Authorisation, Certificate, issue, verify_certificate
from penstock.trust.credentials import CertificateVerifier, Credentials, UnverifiedCredentials, read_credentials
from penstock.trust.discovery import FiveTuple, discover, reduce_pair, sift
from penstock.trust.event_types import UnverifiedType, sign_type, verify_type
from penstock.trust.tags import Tag
from penstock.trust.validity import Validity

NOW = datetime(2026, 5, 1, tzinfo=UTC)
VALID = Validity.between(NOW - timedelta(days=30), NOW + timedelta(days=365))
KEYS = [SigningKey(number.to_bytes(32, "big")) for number in range(1, 32)]
OWNER, CLIENT = KEYS[0], KEYS[30]
NAME = "uk.gov.pito.Numberplate"
DEFINITION = TypeDefinition(
    TypeName(OWNER.principal, NAME),
    (
        AttributeDefinition("numberplate", "0", AttributeSpec(Kind.STRING)),
        AttributeDefinition("timestamp", "1", AttributeSpec(Kind.TIMESTAMP)),
        AttributeDefinition("location", "2", AttributeSpec(Kind.STRING)),
    ),
)
FILTER = "location LIKE 'Victoria%' AND numberplate IN ('AE05 XYZ', 'LN06 ABC')"


def run() -> list[Result]:
    return [*reduction(), subscription(), *chain_lengths()]


def link(position: int, last: int, tag: Tag, subject: Principal | None = None) -> Certificate:
    """Issue one certificate of a chain that begins at the owner."""
    issuer = KEYS[position]
    to = subject or KEYS[position + 1].principal
    return issue(Authorisation(issuer.principal, to, tag, position < last, VALID), issuer)


def realistic_chain() -> list[Certificate]:
    """Return owner, country, domain, sub-domain, blanket to a group's key, client: five rights, each its own."""
    owner = OWNER.principal
    ids = [AttributeId(owner, NAME, uid) for uid in ("0", "1", "2")]
    tags = [
        event_tag(owner, "uk.gov.*"),
        event_tag(owner, "uk.gov.pito.*", None, [Right.PUBLISH, Right.SUBSCRIBE]),
        event_tag(owner),
        event_tag(owner, NAME, None, [Right.SUBSCRIBE, Right.PUBLISH], attributes=ids),
        event_tag(owner, NAME, None, [Right.SUBSCRIBE], attributes=ids[:2], forced={ids[2]: "Victoria"}),
    ]
    return [link(i, 4, tag, CLIENT.principal if i == 4 else None) for i, tag in enumerate(tags)]


def reduction() -> list[Result]:
    chain = realistic_chain()
    evidence = sift(Credentials.of(*chain), NOW)
    tuples = sorted(evidence.fives, key=lambda five: [link.id for link in chain].index(five.because[0]))
    message, signature = canonical(chain[0].body), OWNER.sign(canonical(chain[0].body))
    plain, verify = seconds(
        lambda: reduce(_reduced, tuples),
        lambda: OWNER.public.verify(message, signature),
        repeat=40,
        rounds=41,
    )
    verification = f"Ed25519 verification {microseconds(verify)}"
    return [
        at_most("reduction-5-chain", plain / verify, 1, f"reduction {microseconds(plain)}, {verification}"),
        observed(
            "table-4.7",
            verify / plain,
            f"verification over reduction: {microseconds(verify)} over {microseconds(plain)}; the paper, with RSA: 53",
        ),
    ]


def _reduced(upper: FiveTuple, lower: FiveTuple) -> FiveTuple:
    both = reduce_pair(upper, lower)
    assert both is not None
    return both


def check(event_type: EventType, credentials: Credentials) -> tuple[list[RightTerms], Selector]:
    """Do what a local broker does with a subscription whose type it knows."""
    request = type_request(event_type.name, Right.SUBSCRIBE)
    findings = discover(credentials, event_type.name.owner, CLIENT.principal, request, NOW)
    selector = parse_selector(FILTER)
    selector.check(event_type.schema)
    terms = [read_terms(grant.tag, event_type) for grant in findings.grants]
    assert terms
    return terms, selector


def subscription() -> Result:
    """Compare requests that bring a signed type, already seen, with requests for a type that needs no signature."""
    bag: UnverifiedCredentials = read_credentials(Credentials.of(*realistic_chain()).to_bytes())
    manager = KEYS[20]
    right = issue(Authorisation(OWNER.principal, manager.principal, event_tag(OWNER.principal), False, VALID), OWNER)
    signed = {DEFINITION.name: sign_type(DEFINITION, manager, Credentials.of(right))}
    known = {DEFINITION.name: EventType.of(DEFINITION)}
    certificates = CertificateCache()
    types = TypeCache(certificates=certificates)

    def plain_type() -> object:
        return check(known[DEFINITION.name], bag.verify(certificates))

    def signed_type() -> object:
        verified = types.verify(signed[DEFINITION.name], NOW)
        return check(verified.event_type, bag.verify(certificates))

    # There and back again, so that neither side always comes second; whoever runs first in a round finds everything
    # cold behind the garbage collection, so that one is not counted.
    jobs = (plain_type, plain_type, signed_type, signed_type, plain_type)
    _, first, second, third, fourth = seconds(*jobs, repeat=3, rounds=61)
    plain, cached = first + fourth, second + third
    (lookup,) = seconds(lambda: types.verify(signed[DEFINITION.name], NOW), repeat=100)
    detail = (
        f"signed and cached {microseconds(cached / 2)}, plain {microseconds(plain / 2)}; "
        f"the type cache alone {microseconds(lookup)}"
    )
    return at_most("subscription-signed-types", cached / plain, 1.3, detail)


def managed(length: int) -> UnverifiedType:
    """Return a type whose manager shows a chain of so many certificates."""
    tag = event_tag(OWNER.principal, "uk.gov.*", None, [Right.MANAGE])
    chain = [link(position, length - 1, tag) for position in range(length)]
    return sign_type(DEFINITION, KEYS[length], Credentials.of(*reversed(chain)))


def verification(signed: UnverifiedType, verifier: CertificateVerifier) -> Callable[[], object]:
    return lambda: verify_type(signed, NOW, verifier=verifier)


def chain_lengths() -> list[Result]:
    """Figure 4.5: what verifying a type costs as the manager's chain grows; the type cache is off."""
    lengths = range(1, 11)
    without: list[float] = []
    cached: list[float] = []
    plain: list[float] = []
    for length in lengths:
        signed = managed(length)
        bare, warm, believed = seconds(
            verification(signed, verify_certificate),
            verification(signed, CertificateCache()),
            lambda: EventType.of(DEFINITION),
            repeat=3,
            rounds=21,
        )
        without.append(bare)
        cached.append(warm)
        plain.append(believed)
    detail = f"µs for chains of 1 to 10: without cache {series(without)}; with {series(cached)}; plain {series(plain)}"
    return [
        observed(
            f"figure-4.5-chain-{length}",
            cached[length - 1] / without[length - 1],
            detail
            if length == lengths[-1]
            else f"{microseconds(cached[length - 1])} over {microseconds(without[length - 1])}",
        )
        for length in (1, 5, 10)
    ]


def series(values: Sequence[float]) -> str:
    return " ".join(f"{value * 1e6:.0f}" for value in values)
