"""Announcements and disclosures count when the broker that they speak for has signed them, for this network."""

from dataclasses import replace

import pytest
from tests.broker.domains import NEWS, check_delivery
from tests.broker.network import Network, principal

from penstock.broker.membership import Membership, announced_words, disclosed_words
from penstock.broker.messages import Announcement, Disclosure
from penstock.broker.proofs import KeyProof
from penstock.broker.routing import Router, Settings
from penstock.crypto.keys import SigningKey
from penstock.errors import RefusedError
from penstock.model.names import NetworkName
from penstock.model.principals import Principal

ALICE, BOB = (SigningKey(bytes([number]) * 32) for number in (1, 2))
NETWORK = NetworkName(ALICE.principal, "London")


def announced(key: SigningKey, *links: Principal, network: NetworkName = NETWORK, number: int = 1) -> Announcement:
    plain = Announcement(key.principal, 1, number, tuple(sorted(links)))
    return replace(plain, proof=KeyProof(key, network).sign(announced_words(plain)))


def disclosed(key: SigningKey, octets: bytes, number: int = 1) -> Disclosure:
    plain = Disclosure(key.principal, 1, number, octets)
    return replace(plain, proof=KeyProof(key, NETWORK).sign(disclosed_words(plain)))


class TestMembership:
    def members(self) -> Membership:
        return Membership(ALICE.principal, 1, proof=KeyProof(ALICE, NETWORK))

    def test_signed_words_are_passed_on(self) -> None:
        members, announcement, disclosure = self.members(), announced(BOB), disclosed(BOB, b"shown")

        assert members.hear(announcement, 0) == announcement
        assert members.hear_disclosure(disclosure) == (disclosure, b"shown")

    def test_changed_words_are_refused(self) -> None:
        members = self.members()
        with pytest.raises(RefusedError):
            members.hear(replace(announced(BOB), number=2), 0)
        with pytest.raises(RefusedError):
            members.hear(announced(BOB, network=NetworkName(ALICE.principal, "Paris")), 0)
        members.hear(announced(BOB), 0)
        for changes in ({"octets": b"other"}, {"number": 2}, {"incarnation": 2}):
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
        assert b"forged" not in {body.octets for body in members.announcements() if isinstance(body, Disclosure)}


def test_a_network_of_signing_brokers_works() -> None:
    keys = {name: SigningKey(name.encode().ljust(32)) for name in ("a", "b", "c")}
    network = Network(0)
    network.principals.update({name: key.principal for name, key in keys.items()})
    for name, key in keys.items():
        network.settings = Settings(proof=KeyProof(key, NETWORK))
        network.start(name)
    network.connect(("a", "b"), ("b", "c"))
    network.advertise("a", "pub", NEWS)
    network.subscribe("c", "sub", NEWS)
    network.run()

    assert check_delivery(network, [("a", "pub", {})]) == 1
    assert not network.cuts


def test_who_passes_on_forged_words_is_cut_off() -> None:
    network = Network(0, settings=Settings())
    network.principals["a"] = ALICE.principal
    network.start("b")
    network.settings = Settings(proof=KeyProof(ALICE, NETWORK))
    network.start("a")
    network.connect(("a", "b"))
    network.run()

    assert [cut.reason.code for cut in network.cuts] == ["network.proof"]
    assert isinstance(network.routers["a"], Router)
    assert principal("b") not in network.routers["a"].view.links
