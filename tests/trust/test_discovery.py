"""Discovery: the examples of the dissertation, unusable certificates, on-line tests, and bags of thousands."""

import random
from datetime import datetime

import pytest
from tests.trust.kit import (
    CURRENT,
    DAY,
    FUTURE,
    NOW,
    PAST,
    grant,
    name,
    naming,
    passing,
    refused,
    tag,
    who,
)

from penstock.errors import RefusedError
from penstock.model.names import AttributeId, NetworkName, TypeName
from penstock.trust.capabilities import Right, event_tag, network_request, network_tag, type_request
from penstock.trust.certificates import Certificate, Threshold
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import Findings, discover, sift
from penstock.trust.tags import ANY, Tag
from penstock.trust.validity import ALWAYS, OnlineTest, Validity

PITO, MET, BROKER, SMITH, CCS, OTHER = 1, 2, 3, 4, 5, 6
NETWORK = NetworkName(who(PITO), "UK Police Network")
CONNECT = network_request(NETWORK, Right.CONNECT)
PLATE = TypeName(who(PITO), "uk.gov.pito.Numberplate")
SUBSCRIBE = type_request(PLATE, Right.SUBSCRIBE)


def found(
    certificates: list[Certificate], asks: int, request: Tag = ANY, root: int = PITO, now: datetime = NOW
) -> Findings:
    return discover(Credentials.of(*certificates), who(root), who(asks), request, now)


def test_the_met_brokers() -> None:
    """Section 5.2.1: a group of brokers, and a detective, connect by the word of the coordinating principal."""
    connect = network_tag(who(PITO), "UK Police Network", [Right.CONNECT])
    invitation = passing(PITO, MET, connect)
    to_brokers = grant(MET, name(MET, "Met Brokers"), connect)
    member = naming(MET, "Met Brokers", BROKER)
    to_smith = grant(MET, SMITH, connect)
    bag = [to_smith, member, to_brokers, invitation]
    (broker,) = found(bag, BROKER, CONNECT).grants
    assert broker.tag == CONNECT
    assert set(broker.because) == {invitation.id, to_brokers.id, member.id}
    assert not broker.propagate
    (smith,) = found(bag, SMITH, CONNECT).grants
    assert smith.because == (invitation.id, to_smith.id)
    for missing in (invitation, to_brokers, member):
        assert not found([c for c in bag if c is not missing], BROKER, CONNECT).grants
    assert not found(bag, BROKER, network_request(NETWORK, Right.INSTALL)).grants
    assert not found(bag, OTHER, CONNECT).grants
    # Another group of the same name, in somebody else's name space, is another group.
    assert not found([invitation, to_brokers, naming(OTHER, "Met Brokers", OTHER)], OTHER, CONNECT).grants


def test_the_owner_needs_no_certificate() -> None:
    (own,) = found([], PITO, SUBSCRIBE).grants
    assert (own.tag, own.because, own.validity) == (SUBSCRIBE, (), ALWAYS)
    assert not found([], MET, SUBSCRIBE).grants


def test_root_authority_is_delegated() -> None:
    """Section 5.4: all rights without a date make another principal as good as the owner, as long as it shows why."""
    root = passing(PITO, MET)
    by_met = passing(MET, BROKER, event_tag(who(PITO)))
    (grant_,) = found([by_met, root], BROKER, SUBSCRIBE).grants
    assert grant_.validity == ALWAYS
    assert not found([by_met], BROKER, SUBSCRIBE).grants
    assert found([by_met, root], PITO, SUBSCRIBE).grants


def test_a_type_of_another_owner_is_not_ones_own() -> None:
    own = grant(MET, SMITH, event_tag(who(MET)))
    assert not found([own], SMITH, SUBSCRIBE).grants
    assert not found([own], SMITH, SUBSCRIBE, root=MET).grants
    assert found(
        [grant(MET, SMITH)], SMITH, type_request(TypeName(who(MET), "met.Case"), Right.SUBSCRIBE), root=MET
    ).grants


def test_several_grants_stand_beside_each_other() -> None:
    plate, where = (AttributeId(who(PITO), PLATE.name, uid) for uid in "01")
    bag = [
        grant(PITO, SMITH, event_tag(who(PITO), PLATE.name, None, [Right.SUBSCRIBE], attributes=[plate])),
        grant(PITO, SMITH, event_tag(who(PITO), PLATE.name, None, [Right.SUBSCRIBE], attributes=[where])),
        grant(
            PITO, SMITH, event_tag(who(PITO), PLATE.name, None, [Right.SUBSCRIBE], attributes=[where]), validity=CURRENT
        ),
    ]
    findings = found(bag, SMITH, SUBSCRIBE)
    assert {one.because for one in findings.grants} == {(bag[0].id,), (bag[1].id,)}
    assert not findings.truncated


def test_the_shortest_chain_comes_first() -> None:
    long = [passing(PITO, MET, tag("(a)")), passing(MET, CCS, tag("(a)")), grant(CCS, SMITH, tag("(a)"))]
    short = grant(PITO, SMITH, tag("(a b)"))
    grants = found([*long, short], SMITH, tag("(a)")).grants
    assert [len(one.because) for one in grants] == [3]
    grants = found([*long[:2], grant(CCS, SMITH, tag("(a c)")), short], SMITH, tag("(a)")).grants
    assert [len(one.because) for one in grants] == [1, 3]


def test_threshold_owners() -> None:
    """Section 3.4: three domains found a network together, and any two of them invite a fourth."""
    council = Threshold(2, (who(PITO), who(MET), who(CCS)))
    network = NetworkName(council.principal, "Shared")
    request = network_request(network, Right.CONNECT)
    invitations = [passing(member, OTHER, network_tag(council.principal, "Shared")) for member in (PITO, MET)]

    def connects(*certificates: Certificate, quorums: tuple[Threshold, ...] = (council,), asks: int = OTHER) -> bool:
        bag = Credentials.of(*certificates, quorums=quorums)
        return bool(discover(bag, council.principal, who(asks), request, NOW).grants)

    assert connects(*invitations)
    assert not connects(invitations[0])
    assert not connects(invitations[1])
    assert not connects(*invitations, quorums=())
    assert not connects(invitations[0], invitations[0])
    # Two of three replace the third: the new quorum invites, with its old certificates or new ones.
    after = Threshold(2, (who(PITO), who(MET), who(7)))
    change = [passing(PITO, after), passing(MET, after)]
    later = [passing(PITO, 8), passing(7, 8)]
    assert connects(*change, *later, asks=8)
    assert not connects(change[0], *later, asks=8)
    assert not connects(*change, passing(CCS, 8), passing(7, 8), asks=8)


@pytest.mark.parametrize(
    ("validity", "code"), [(PAST, "cert.expired"), (FUTURE, "cert.not-yet-valid")], ids=["expired", "not yet valid"]
)
def test_dates(validity: Validity, code: str) -> None:
    for chain in (
        [passing(PITO, MET, validity=validity), grant(MET, SMITH)],
        [passing(PITO, MET), grant(MET, SMITH, validity=validity)],
        [grant(PITO, name(PITO, "s"), validity=validity), naming(PITO, "s", SMITH)],
        [grant(PITO, name(PITO, "s")), naming(PITO, "s", SMITH, validity)],
    ):
        findings = found(chain, SMITH)
        assert not findings.grants
        (unusable,) = findings.evidence.unusable
        assert unusable.code == code
        assert unusable.certificate.statement.validity == validity
    # It is a matter of now alone.
    middle = NOW - 2 * DAY if validity == PAST else NOW + 2 * DAY
    assert found([grant(PITO, SMITH, validity=validity)], SMITH, now=middle).grants


def test_a_grant_ends_with_the_first_of_its_certificates() -> None:
    chain = [
        passing(PITO, MET, validity=Validity.between(NOW - DAY, NOW + 9 * DAY)),
        grant(MET, SMITH, validity=CURRENT),
    ]
    (one,) = found(chain, SMITH).grants
    assert one.validity.ends == NOW + 9 * DAY
    assert one.validity.starts == NOW - DAY
    assert not found(chain, SMITH, now=NOW + 9 * DAY + DAY).grants


def test_now_has_a_time_zone() -> None:
    with refused("value.zone"):
        found([], SMITH, now=NOW.replace(tzinfo=None))


CRL = OnlineTest("crl", (b"online", b"crl", b"https://pito.example/crl"))
ONE_TIME = OnlineTest("one-time", (b"online", b"one-time", b"https://pito.example/once"))


def online(*tests: OnlineTest) -> Certificate:
    return grant(PITO, SMITH, validity=Validity(CURRENT.not_before, CURRENT.not_after, tests))


def test_online_tests_are_refused_without_a_checker() -> None:
    findings = found([online(CRL)], SMITH)
    assert not findings.grants
    (unusable,) = findings.evidence.unusable
    assert unusable.code == "cert.online-test"


def test_online_tests_are_honoured_with_a_checker() -> None:
    certificate = online(CRL, ONE_TIME)
    asked = []

    def checker(test: OnlineTest, certificate_id: str, now: datetime) -> Validity:
        asked.append((test, certificate_id, now))
        return Validity.between(now, now + (2 if test is CRL else 1) * DAY)

    findings = discover(Credentials.of(certificate), who(PITO), who(SMITH), ANY, NOW, online=checker)
    (one,) = findings.grants
    assert asked == [(CRL, certificate.id, NOW), (ONE_TIME, certificate.id, NOW)]
    assert (one.validity.starts, one.validity.ends, one.validity.online) == (NOW, NOW + DAY, ())


@pytest.mark.parametrize("answer", [Validity.between(NOW + DAY), Validity.between(None, NOW - DAY), FUTURE, PAST])
def test_an_online_test_that_does_not_hold_now(answer: Validity) -> None:
    evidence = sift(Credentials.of(online(CRL)), NOW, lambda *_: answer)
    assert not evidence.fives
    assert [item.code for item in evidence.unusable] == ["cert.online-test"]


def test_an_online_test_that_says_no_and_one_that_asks_again() -> None:
    def revoked(_test: OnlineTest, certificate: str, _now: datetime) -> Validity:
        raise RefusedError("cert.revoked", "it was stolen", certificate=certificate)

    assert [item.code for item in sift(Credentials.of(online(CRL)), NOW, revoked).unusable] == ["cert.revoked"]
    # An answer cannot bring in tests that nobody asks.
    (five,) = sift(Credentials.of(online(CRL)), NOW, lambda *_: Validity(online=(ONE_TIME,))).fives
    assert five.validity.online == ()


def test_an_expired_certificate_is_not_asked_about() -> None:
    def never(*_: object) -> Validity:
        raise AssertionError

    late = Validity(PAST.not_before, PAST.not_after, (CRL,))
    assert [item.code for item in sift(Credentials.of(grant(1, 2, validity=late)), NOW, never).unusable] == [
        "cert.expired"
    ]


def bag_of_thousands(shape: str, rng: random.Random) -> tuple[list[Certificate], int]:
    """Return about 2,000 certificates and who is at their end."""
    if shape == "ladder":
        # 8 ** 31 chains of 33 certificates
        steps = [passing(PITO, 100 + i) for i in range(8)]
        for layer in range(31):
            above, below = 100 + 8 * layer, 108 + 8 * layer
            steps += [
                passing(above + i, below + j, tag(f"(q (* set x l{layer}{i}{j}))")) for i in range(8) for j in range(8)
            ]
        return steps, 108 + 8 * 30
    graph = [passing(PITO, 100)]
    for _ in range(1_950):
        letters = " ".join(letter for letter in "abcdefgh" if rng.random() < 0.8)
        graph.append(passing(rng.randrange(100, 300), rng.randrange(100, 300), tag(f"(q (* set x {letters}))")))
    return [*graph, *(passing(100 + i, 101 + i, tag("(q)")) for i in range(49))], 149


@pytest.mark.parametrize("shape", ["ladder", "graph"])
def test_bags_of_thousands(shape: str) -> None:
    rng = random.Random(2026)  # noqa: S311  # a bag that looks random, the same at each run
    certificates, last = bag_of_thousands(shape, rng)
    rng.shuffle(certificates)
    assert len(certificates) >= 1_990
    bag = Credentials.of(*certificates)
    (one,) = discover(bag, who(PITO), who(last), tag("(q x)"), NOW).grants
    chain = {certificate.id: certificate.statement for certificate in certificates}
    # Each certificate of the chain that was found is issued by the subject of the one before.
    links = [chain[credential] for credential in one.because]
    assert [link.issuer for link in links[1:]] == [link.subject for link in links[:-1]]
    assert links[0].issuer == who(PITO)
    assert not discover(bag, who(PITO), who(last), tag("(r)"), NOW).grants
    assert not discover(bag, who(PITO), who(99), ANY, NOW).grants
    assert not discover(bag, who(last), who(PITO), tag("(r)"), NOW).grants


def test_a_group_of_thousands() -> None:
    group = [naming(MET, "Met Brokers", number) for number in range(1_000, 3_000)]
    bag = Credentials.of(
        *group, grant(PITO, name(MET, "Met Brokers")), naming(CCS, "friends", name(MET, "Met Brokers"))
    )
    findings = discover(bag, who(PITO), who(2_999), ANY, NOW)
    assert len(findings.grants) == 1
    assert not findings.truncated


def test_dead_ends_and_detours_change_nothing() -> None:
    chain = [passing(PITO, MET), passing(MET, CCS), grant(CCS, SMITH)]
    noise = [
        passing(PITO, 20),
        passing(20, 21),
        passing(21, 20),
        passing(SMITH, PITO),
        passing(30, SMITH),
        grant(MET, 31),
    ]
    noise += [
        passing(31, SMITH),
        passing(CCS, MET),
        naming(PITO, "n", name(PITO, "n")),
        grant(PITO, name(30, "x", "y")),
    ]
    assert found(chain + noise, SMITH).grants == found(chain, SMITH).grants
    assert not found(noise, SMITH).grants


def test_a_certificate_to_oneself_gives_nothing() -> None:
    assert not found([passing(SMITH, SMITH), naming(SMITH, "owner", SMITH)], SMITH).grants
