"""Words are believed when the broker that they speak for has signed them, for this network."""

from dataclasses import replace

import pytest
from tests.broker.domains import NEWS, check_delivery
from tests.broker.network import Network, principal
from tests.spoiled import flipped

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.membership import Membership, SignedProof, announced_words, disclosed_words
from penstock.broker.routing.messages import Announcement, Disclosure
from penstock.broker.routing.outputs import RouterSettings
from penstock.broker.routing.router import Router
from penstock.crypto.keys import KEY_BYTES, SigningKey
from penstock.errors import RefusedError
from penstock.model.names import NetworkName
from penstock.model.principals import Principal

ALICE, BOB, EVE = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
NETWORK = NetworkName(ALICE.principal, "London")
WORDS = bytes(32)


def refused(proof: SignedProof, broker: Principal, words: bytes, octets: bytes) -> str:
    with pytest.raises(RefusedError) as caught:
        proof.verify(broker, words, octets)
    return caught.value.code


def announced(key: SigningKey, *links: Principal, network: NetworkName = NETWORK, number: int = 1) -> Announcement:
    plain = Announcement(key.principal, 1, number, tuple(sorted(links)))
    return replace(plain, proof=SignedProof(key, network, limits=BrokerLimits()).sign(announced_words(plain)))


def disclosed(key: SigningKey, octets: bytes, number: int = 1) -> Disclosure:
    plain = Disclosure(key.principal, 1, number, octets)
    return replace(plain, proof=SignedProof(key, NETWORK, limits=BrokerLimits()).sign(disclosed_words(plain)))


class TestSignatures:
    def test_what_a_broker_signed_is_believed(self) -> None:
        octets = SignedProof(BOB, NETWORK, limits=BrokerLimits()).sign(WORDS)
        proof = SignedProof(ALICE, NETWORK, limits=BrokerLimits())
        for _ in range(2):
            proof.verify(BOB.principal, WORDS, octets)

    def test_anything_else_is_not(self) -> None:
        proof = SignedProof(ALICE, NETWORK, limits=BrokerLimits())
        good = SignedProof(BOB, NETWORK, limits=BrokerLimits()).sign(WORDS)
        elsewhere = SignedProof(BOB, NetworkName(ALICE.principal, "Paris"), BrokerLimits()).sign(WORDS)
        spliced = BOB.public.raw + SignedProof(EVE, NETWORK, limits=BrokerLimits()).sign(WORDS)[KEY_BYTES:]
        # What was found right once makes nothing else right.
        proof.verify(BOB.principal, WORDS, good)
        wrong = [
            (BOB.principal, WORDS, b""),
            (BOB.principal, WORDS, good + b"x"),
            (BOB.principal, WORDS, flipped(good)),
            (BOB.principal, b"x" * 32, good),
            (EVE.principal, WORDS, good),
            (BOB.principal, WORDS, elsewhere),
            (BOB.principal, WORDS, spliced),
            (BOB.principal, WORDS, SignedProof(EVE, NETWORK, limits=BrokerLimits()).sign(WORDS)),
        ]

        assert {refused(proof, *each) for each in wrong} == {"network.proof"}

    def test_the_memory_is_bounded(self) -> None:
        proof = SignedProof(ALICE, NETWORK, BrokerLimits(cache_entries=2))
        for number in range(5):
            words = bytes([number]) * 32
            proof.verify(BOB.principal, words, SignedProof(BOB, NETWORK, limits=BrokerLimits()).sign(words))

        assert len(proof._right) == 2


class TestMembership:
    def members(self) -> Membership:
        return Membership(
            ALICE.principal, 1, proof=SignedProof(ALICE, NETWORK, limits=BrokerLimits()), limits=BrokerLimits()
        )

    def test_signed_words_are_passed_on(self) -> None:
        members, announcement, disclosure = self.members(), announced(BOB), disclosed(BOB, b"shown")

        assert members.hear(announcement, 0) == announcement
        assert members.hear_disclosure(disclosure) == (None, b"shown")
        assert members.believe(BOB.principal, b"shown") == disclosure

    def test_changed_words_are_refused(self) -> None:
        members = self.members()
        with pytest.raises(RefusedError):
            members.hear(replace(announced(BOB), number=2), 0)
        with pytest.raises(RefusedError):
            members.hear(announced(BOB, network=NetworkName(ALICE.principal, "Paris")), 0)
        members.hear(announced(BOB), 0)
        for changes in ({"data": b"other"}, {"number": 2}, {"incarnation": 2}):
            with pytest.raises(RefusedError):
                members.hear_disclosure(replace(disclosed(BOB, b"shown"), **changes))

    def test_an_announcement_is_no_proof_of_a_disclosure(self) -> None:
        members = self.members()
        members.hear(announced(BOB), 0)
        with pytest.raises(RefusedError):
            members.hear_disclosure(Disclosure(BOB.principal, 1, 1, b"", announced(BOB).proof))

    def test_nobody_discloses_anything_for_another(self) -> None:
        members = self.members()
        members.disclose(b"mine")
        forged = Disclosure(ALICE.principal, 9, 9, b"forged", disclosed(BOB, b"").proof)

        assert members.hear_disclosure(forged) == (None, None)
        assert b"forged" not in {body.data for body in members.announcements() if isinstance(body, Disclosure)}


def test_a_network_of_signing_brokers_works() -> None:
    keys = {name: SigningKey(name.encode().ljust(32)) for name in ("a", "b", "c")}
    network = Network(0)
    network.principals.update({name: key.principal for name, key in keys.items()})
    for name, key in keys.items():
        network.settings = RouterSettings(proof=SignedProof(key, NETWORK, limits=BrokerLimits()), limits=BrokerLimits())
        network.start(name)
    network.connect(("a", "b"), ("b", "c"))
    network.advertise("a", "pub", NEWS)
    network.subscribe("c", "sub", NEWS)
    network.run()

    assert check_delivery(network, [("a", "pub", {})]) == 1
    assert not network.cuts


def test_who_passes_on_forged_words_is_cut_off() -> None:
    network = Network(0, settings=RouterSettings(limits=BrokerLimits()))
    network.principals["a"] = ALICE.principal
    network.start("b")
    network.settings = RouterSettings(proof=SignedProof(ALICE, NETWORK, limits=BrokerLimits()), limits=BrokerLimits())
    network.start("a")
    network.connect(("a", "b"))
    network.run()

    assert [cut.reason.code for cut in network.cuts] == ["network.proof"]
    assert isinstance(network.routers["a"], Router)
    assert principal("b") not in network.routers["a"].view.links
