"""HPKE: what we write others read, and the other way round."""

import pickle
from random import Random

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from tests.spoiled import flipped
from tests.trust.kit import refused

from penstock.crypto.hpke import SealingKey, seal_to
from penstock.crypto.keys import RandomBytes

LIBRARY = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def octets(seed: int) -> RandomBytes:
    return Random(seed).randbytes  # noqa: S311  # the same each time


def sealing_key(seed: int = 1) -> SealingKey:
    return SealingKey(octets(seed))


def test_the_library_reads_what_we_seal() -> None:
    private = X25519PrivateKey.from_private_bytes(octets(1)(32))
    sealed = seal_to(sealing_key().public, b"content", b"info", octets(2))
    assert LIBRARY.decrypt(sealed, private, b"info") == b"content"


def test_we_read_what_the_library_seals() -> None:
    key = sealing_key()
    sealed = LIBRARY.encrypt(b"content", X25519PublicKey.from_public_bytes(key.public), b"info")
    assert key.open(sealed, b"info") == b"content"


def test_it_opens_with_one_key_and_for_one_purpose() -> None:
    sealed = seal_to(sealing_key().public, b"content", b"info", octets(2))
    for key, box, info in (
        (sealing_key(3), sealed, b"info"),
        (sealing_key(), sealed, b"other"),
        (sealing_key(), sealed[:-1], b"info"),
        (sealing_key(), flipped(sealed, 0), b"info"),
        (sealing_key(), bytes(64), b"info"),
        (sealing_key(), b"", b"info"),
    ):
        with refused("keys.unopened"):
            key.open(box, info)


def test_a_key_that_leaves_no_secret_is_refused() -> None:
    for public in (bytes(32), b"\x01" + bytes(31), b"short"):
        with refused("keys.weak-key"):
            seal_to(public, b"content", b"info", octets(2))


def test_a_private_key_is_not_pickled() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(sealing_key())
