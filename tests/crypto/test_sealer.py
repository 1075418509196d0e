"""Sealing: which keys, which nonces, what is bound to a column, and when a sealer stops."""

import hashlib
import hmac
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.crypto.seal_kit import BROKER, NOW, OTHER, TYPE, attributes, block_of, code_of, fresh, ring, secret, small

from penstock.codec.blocks import Block, Level, Padding, names, pad, read_block, read_header, unpad
from penstock.codec.columns import encode_bundle, encode_column, microseconds
from penstock.crypto import seal_keys
from penstock.crypto.aead import TAG_BYTES, CipherAlgorithm
from penstock.crypto.limits import CryptoLimits
from penstock.crypto.opener import Opener
from penstock.crypto.sealer import Sealer, SealerSettings
from penstock.errors import MalformedError, RefusedError
from penstock.model.principals import Principal

ALL = attributes(3)
NAMES = f"{TYPE} {small().names.ancestors[0]} {ALL[0]} #1 #2".encode()


def sealer(limits: CryptoLimits | None = None, **options: object) -> Sealer:
    settings = SealerSettings(**options)  # type: ignore[arg-type]  # by name
    return Sealer(ring(ALL), BROKER.principal, fresh, limits=limits or CryptoLimits(), settings=settings)


def hkdf(key: bytes, info: bytes) -> bytes:
    """Return 32 bytes as RFC 5869 has them, written out."""
    extracted = hmac.digest(bytes(32), key, "sha256")
    return hmac.digest(extracted, info + b"\1", "sha256")


#: what a type inherits is sealed with the type's own key for it
SCOPES = [f"{TYPE} {ALL[0]}", *ALL[1:]]


def test_blocks_are_what_everybody_would_write() -> None:
    # Decision 6 of the plan, written out from the primitives.
    incarnation = b"i" * 16
    made = Sealer(ring(ALL), BROKER.principal, lambda _: incarnation)
    made.seal(small(), NOW)
    data = made.seal(small(), NOW)
    sender = BROKER.principal.digest
    fixed = bytes((1, 0, 1, 0, 0, 4)) + sender + incarnation + (7).to_bytes(8, "big") * 4
    counts = (1).to_bytes(8, "big") + microseconds(NOW).to_bytes(8, "big") + (2).to_bytes(4, "big")
    assert small().names.written == NAMES
    bound = fixed + counts + hashlib.sha256(b"penstock-names-1 " + NAMES).digest()
    block, columns = small(), []
    plain = [encode_bundle([encode_column(block.ids), encode_column(block.times)]), *map(encode_column, block.columns)]  # type: ignore[arg-type]  # all are open
    for place, (scope, purpose) in enumerate([(str(TYPE), "ids"), *((name, "attribute") for name in SCOPES)]):
        info = b"".join(
            (
                b"penstock-seal-1 ",
                sender,
                incarnation,
                len(scope).to_bytes(2, "big"),
                f"{scope}{purpose} AES_GCM".encode(),
            )
        )
        key = hkdf(secret(scope, 7).expose(), info)
        aad = bound + place.to_bytes(2, "big")
        columns.append(AESGCM(key).encrypt((1).to_bytes(12, "big"), plain[place], aad))
    lengths = b"".join(len(column).to_bytes(4, "big") for column in columns)
    route = b"\0" + len(NAMES).to_bytes(4, "big") + NAMES
    assert data == b"".join((fixed, counts, route, bytes(4), lengths, *columns))


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_no_nonce_meets_a_key_twice(lives: list[int]) -> None:
    # Each life of a process seals some blocks; keys follow from the incarnation, and nonces are numbers of blocks.
    seen: set[tuple[bytes, int]] = set()
    for blocks in lives:
        made = sealer()
        for _ in range(blocks):
            header = read_header(made.seal(small(), NOW))
            assert header.fixed.incarnation == made.incarnation
            seen.add((made.incarnation, header.number))
    assert len(seen) == sum(lives)


def test_keys_and_nonces_are_those_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[bytes, bytes]] = []

    class Recording:
        def __init__(self, key: bytes) -> None:
            self._key, self._cipher = key, AESGCM(key)

        def encrypt(self, nonce: bytes, data: bytes, bound: bytes) -> bytes:
            used.append((self._key, nonce))
            return self._cipher.encrypt(nonce, data, bound)

    monkeypatch.setattr(CipherAlgorithm, "cipher", lambda _, key: Recording(key))
    keys = ring(ALL)
    for _ in range(3):
        made = Sealer(keys, BROKER.principal, fresh)
        for epoch in (7, 8):
            for scope in (str(TYPE), *ALL):
                keys.put(scope, epoch, secret(scope, epoch))
            for level in Level:
                for _ in range(3):
                    made.seal(small(), NOW, level)
                    made.seal(block_of(["a"], [1]), NOW, level)
    assert len(used) == 3 * 2 * 3 * (4 + 3 + 1 + 1)
    assert len({*used}) == len(used)


def test_threads_get_different_numbers() -> None:
    made = sealer()
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda _: read_header(made.seal(small(), NOW)).number, range(400))]
    assert sorted(found) == [*range(400)]


def test_purposes_and_scopes_have_keys_of_their_own() -> None:
    arguments = [
        (BROKER.principal.digest, b"i" * 16, ALL[0], "attribute"),
        (OTHER.principal.digest, b"i" * 16, ALL[0], "attribute"),
        (BROKER.principal.digest, b"j" * 16, ALL[0], "attribute"),
        (BROKER.principal.digest, b"i" * 16, ALL[1], "attribute"),
        (BROKER.principal.digest, b"i" * 16, ALL[0], "filter"),
        # Where one name ends and the other begins is part of the key.
        (BROKER.principal.digest, b"i" * 16, ALL[0] + "a", "ttribute"),
    ]
    keys = {seal_keys.derive(secret("x", 1), *each) for each in arguments}
    keys.add(seal_keys.derive(secret("x", 2), *arguments[0]))
    assert len(keys) == len(arguments) + 1


def test_a_new_epoch_is_used_at_once() -> None:
    keys = ring(ALL)
    made = Sealer(keys, BROKER.principal, fresh)
    assert read_header(made.seal(small(), NOW)).fixed.epochs == (7,) * 4
    keys.put(str(TYPE), 9, secret(str(TYPE), 9))
    assert read_header(made.seal(small(), NOW)).fixed.epochs == (9, 7, 7, 7)
    keys.drop(str(TYPE), 9)
    assert read_header(made.seal(small(), NOW)).fixed.epochs == (7,) * 4


def test_without_a_key_nothing_is_sealed() -> None:
    for held, whole in ((ALL[:2], True), (ALL, False)):
        made = Sealer(ring(held, whole=whole), BROKER.principal, fresh)
        assert code_of(made.seal, small(), NOW) == "seal.unknown-key"
    # Which key it is, people have to know.
    with pytest.raises(RefusedError, match="attribute `2` of"):
        Sealer(ring(ALL[:2]), BROKER.principal, fresh).seal(small(), NOW)
    # At event level the type's key is all that is needed.
    made = Sealer(ring([]), BROKER.principal, fresh)
    assert Opener(ring([])).open(made.seal(small(), NOW, Level.EVENT)) == small()


def test_a_sealer_stops() -> None:
    made = sealer(CryptoLimits(seal_blocks=3))
    for _ in range(3):
        made.seal(small(), NOW)
    for _ in range(2):
        assert code_of(made.seal, small(), NOW) == "seal.exhausted"
    octets = sum(len(column or b"") - TAG_BYTES for column in read_block(sealer().seal(small(), NOW)).columns)
    made = sealer(CryptoLimits(seal_bytes=2 * octets))
    made.seal(small(), NOW)
    made.seal(small(), NOW)
    assert code_of(made.seal, small(), NOW) == "seal.exhausted"


def test_what_readers_refuse_is_not_sealed() -> None:
    for limits in (CryptoLimits(block_rows=1), CryptoLimits(block_cells=7), CryptoLimits(block_bytes=20)):
        assert code_of(sealer(limits).seal, small(), NOW) == "block.limit"


def test_streams_that_are_remembered_are_bounded() -> None:
    made = sealer(CryptoLimits(seal_streams=2))
    for columns in ([["a"]], [["a"], [1]], [["a"], [1], [True]]):
        for _ in range(2):
            assert Opener(ring(ALL)).open(made.seal(block_of(*columns), NOW)) == block_of(*columns)
    assert len(made._ways) == 2


def test_a_number_is_not_given_twice_when_sealing_fails() -> None:
    made = sealer()
    bad = replace(small(), columns=[["a", 1], [1, 2], [True, None]])
    assert code_of(made.seal, bad, NOW) == "value.kind"
    with pytest.raises(MalformedError):
        made.seal(small(), NOW.replace(tzinfo=None))
    assert read_header(made.seal(small(), NOW)).number == 1


def test_a_closed_column_cannot_be_sealed() -> None:
    assert code_of(sealer().seal, replace(small(), columns=[None, [1, 2], [True, None]]), NOW) == "block.malformed"


def test_randomness_comes_whole() -> None:
    assert code_of(Sealer, ring(ALL), BROKER.principal, lambda size: bytes(size - 1)) == "seal.random"
    assert sealer().incarnation != sealer().incarnation


@pytest.mark.parametrize("level", Level)
def test_padding_hides_lengths(level: Level) -> None:
    lengths = {}
    for padding in Padding:
        made = sealer(padding=padding)
        found = set()
        for size in range(1, 12):
            columns = read_block(made.seal(block_of(["x" * size], [1], [True]), NOW, level)).columns
            found.add(tuple(len(column or b"") - TAG_BYTES for column in columns))
        lengths[padding] = found
    assert len(lengths[Padding.NONE]) == 11
    assert len(lengths[Padding.POWERS]) <= 2
    assert len(lengths[Padding.SIZES]) == 1


@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(0, 300) | st.integers(65_530, 65_540),
    st.binary(max_size=3) | st.just(b"\x80\0"),
    st.sampled_from(Padding),
)
def test_padding_has_one_form(size: int, end: bytes, padding: Padding) -> None:
    content = bytes(size) + end
    padded = pad(padding, content)
    assert unpad(padding, padded) == content
    if padding is Padding.POWERS:
        assert len(padded).bit_count() == 1
    if padding is not Padding.NONE:
        for wrong in (padded + b"\0", padded[:-1], padded + bytes(len(padded)), b"", bytes(len(padded))):
            if wrong != padded:
                assert code_of(unpad, padding, wrong) == "block.column"


def test_times_are_those_of_the_block_not_of_its_events() -> None:
    data = sealer().seal(small(), NOW.replace(year=2030))
    assert read_header(data).time.year == 2030
    assert Opener(ring(ALL)).open(data) == small()


def test_a_type_without_attributes() -> None:
    block = Block(names(TYPE, (), ()), ["a", "b"], [NOW, None], [])
    for level in Level:
        assert Opener(ring([])).open(sealer().seal(block, NOW, level)) == block


def test_a_sealer_names_only_its_sender() -> None:
    assert repr(sealer()) == f"Sealer({BROKER.principal.short})"
    assert isinstance(read_header(sealer().seal(small(), NOW)).sender, Principal)
