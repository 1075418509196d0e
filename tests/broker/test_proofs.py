"""Words of a broker that others pass on."""

import pytest
from tests.broker.sports import AGENCY, NETWORK, PDA

from penstock.broker.proofs import KeyProof
from penstock.errors import RefusedError
from penstock.model import NetworkName

PROOF = KeyProof(PDA, NETWORK)
WORDS = bytes(32)


def test_a_broker_proves_its_own_words() -> None:
    KeyProof(AGENCY, NETWORK).verify(PDA.principal, WORDS, PROOF.sign(WORDS))


@pytest.mark.parametrize(
    "proof",
    [
        b"",
        PROOF.sign(WORDS)[:-1],
        PROOF.sign(WORDS) + b"\0",
        PROOF.sign(bytes(31) + b"\1"),
        KeyProof(AGENCY, NETWORK).sign(WORDS),
        PDA.public.raw + KeyProof(AGENCY, NETWORK).sign(WORDS)[32:],
        KeyProof(PDA, NetworkName(AGENCY.principal, "Other")).sign(WORDS),
    ],
)
def test_no_other_words_are_believed(proof: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        PROOF.verify(PDA.principal, WORDS, proof)
    assert caught.value.code == "network.proof"
