"""Signed blocks: who may read cannot write, single events can be proven, and it reveals nothing hidden."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from traceback import TracebackException
from types import TracebackType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.crypto.seal_kit import (
    BROKER,
    NOW,
    OTHER,
    PARENT,
    TYPE,
    attributes,
    block_of,
    blocks,
    code_of,
    fresh,
    ring,
    small,
)
from tests.spoiled import flipped

from penstock.codec.blocks import Block, Level, names, read_block, read_header, write_block
from penstock.crypto.opener import Opener
from penstock.crypto.seal_keys import held_keys
from penstock.crypto.sealer import Sealer
from penstock.crypto.signed_blocks import EventProof, SignedBlock, seeds, verify_proof
from penstock.errors import RefusedError

ALL = attributes(5)


def sealed(block: Block, level: Level = Level.ATTRIBUTE) -> bytes:
    return Sealer(ring(ALL), BROKER.principal, fresh, signing=BROKER).seal(block, NOW, level)


def signed(block: Block, level: Level = Level.ATTRIBUTE, held: tuple[str, ...] = ALL) -> SignedBlock:
    opener, data = Opener(ring(held)), sealed(block, level)
    return opener.verify(data, opener.open(data))


@settings(max_examples=examples(50), deadline=None)
@given(blocks(), st.sampled_from(Level), st.data())
def test_events_are_proven(block: Block, level: Level, data: st.DataObject) -> None:
    found = signed(block, level)
    assert (found.block, found.sender) == (block, BROKER.principal)
    place = data.draw(st.integers(0, len(block.ids) - 1))
    shown = data.draw(st.sets(st.sampled_from(block.names.attributes)) if block.columns else st.just(set[str]()))
    proof = EventProof.from_bytes(found.prove(place, shown).to_bytes())
    proven = verify_proof(proof)
    whole = block.events()[place]
    assert (proven.sender, proven.sealed, proven.event.key) == (BROKER.principal, NOW, TYPE)
    assert (proven.event.id, proven.event.time, proven.event.ancestors) == (whole.id, whole.time, (PARENT,))
    assert {*proven.attributes} == shown
    assert dict(proven.event.values) == {name: value for name, value in whole.values.items() if name in shown}


@pytest.mark.parametrize("level", Level)
def test_one_who_reads_little_can_verify_and_prove(level: Level) -> None:
    held = ALL[1:2] if level is Level.ATTRIBUTE else ()
    found = signed(small(), level, held)
    assert verify_proof(found.prove(0, ALL[1:2])).event.values == {ALL[1]: 0}
    if level is Level.ATTRIBUTE:
        assert code_of(found.prove, 0, ALL[:2]) == "seal.bad-proof"
    assert code_of(found.prove, 2, ALL[1:2]) == "seal.bad-proof"
    assert code_of(found.prove, -1, ()) == "seal.bad-proof"
    assert code_of(found.prove, 0, ALL[3:4]) == "seal.bad-proof"


def test_a_proof_tells_nothing_of_what_is_not_shown() -> None:
    # Two blocks that differ only in what is hidden: with the salts of their keys the roots differ, and nothing else.
    one, two = (signed(block_of(["shown", "x"], [hidden, 1])) for hidden in (4, 5))
    proofs = [found.prove(0, ALL[:1]) for found in (one, two)]
    assert [len(proof.shown) for proof in proofs] == [2, 2]
    # And equal values have different leaves, in one block and in two, whatever the level.
    twice = [signed(block_of(["v", "v"], ["v", "v"]), level) for level in Level for _ in range(2)]
    leaves = [leaf for found in twice for tree in found._trees[1:] if tree for leaf in tree.levels[0]]
    assert len(leaves) == len({*leaves}) == 16


def test_a_reader_cannot_forge() -> None:
    # Someone with all the keys, but not the one that signs, seals another block under the broker's name.
    data = sealed(small())
    incarnation = read_header(data).fixed.incarnation
    forger = Sealer(ring(ALL), BROKER.principal, lambda _: incarnation)
    forged = forger.seal(small(1), NOW)
    opener = Opener(ring(ALL))
    assert opener.open(forged) == small(1)
    assert code_of(opener.verify, forged, small(1)) == "seal.unsigned"
    # With the signature of the true block put there, and the flag that says so.
    parts, theirs = read_block(forged), read_block(data)
    columns = [column for column in parts.columns if column is not None]
    grafted = write_block(theirs.bound, parts.route, theirs.signature, columns)
    assert code_of(opener.open, grafted) == "seal.cannot-open"
    assert code_of(opener.verify, grafted, small(1)) == "seal.bad-signature"
    # With a signature of his own.
    own = Sealer(ring(ALL), OTHER.principal, fresh, signing=OTHER).seal(small(1), NOW)
    assert opener.verify(own, opener.open(own)).sender == OTHER.principal
    posing = write_block(theirs.bound, parts.route, read_block(own).signature, columns)
    assert code_of(opener.verify, posing, small(1)) == "seal.bad-signature"
    # Over a header that names the broker.
    lying = Sealer(ring(ALL), OTHER.principal, fresh, signing=OTHER)
    lying._sender = BROKER.principal
    data = lying.seal(small(1), NOW)
    assert code_of(opener.verify, data, opener.open(data)) == "seal.bad-signature"


def test_nobody_signs_for_another() -> None:
    assert code_of(lambda: Sealer(ring(ALL), BROKER.principal, fresh, signing=OTHER)) == "seal.signer"


def test_plaintext_beside_is_checked() -> None:
    block = small()
    data = sealed(block)
    opener = Opener(ring(ALL))
    assert opener.verify(data, block).block is block
    wrong: list[Callable[[], Block]] = [
        lambda: small(1),
        lambda: replace(block, ids=["event-1", "event-0"]),
        lambda: replace(block, times=[NOW, NOW]),
        lambda: replace(block, columns=[[*reversed(column or ())] for column in block.columns]),
        lambda: replace(block, names=names(TYPE, (), block.names.attributes)),
        lambda: block_of(["AE05 XYZ"], [0], [True]),
    ]
    for make in wrong:
        assert code_of(opener.verify, data, make()) == "seal.bad-signature"
    # A column for which no key is held here cannot be checked, and so is not believed.
    assert code_of(Opener(ring(ALL[:2])).verify, data, block) == "seal.bad-signature"
    some = replace(block, columns=[*block.columns[:2], None])
    assert Opener(ring(ALL[:2])).verify(data, some).block is some
    # One that is held and was left out beside is one that nobody says anything about.
    assert opener.verify(data, some).block is some


@pytest.mark.parametrize("level", Level)
def test_any_bit_that_is_flipped_is_refused(level: Level) -> None:
    data = sealed(small(), level)
    opener = Opener(ring(ALL))
    parts = read_block(data)
    start = len(parts.bound) + len(parts.route)
    for place in range(start, start + 4 + len(parts.signature)):
        for bit in (0, 3, 7):
            changed = flipped(data, place, bit)
            code = code_of(lambda changed=changed: opener.verify(changed, opener.open(changed)))
            assert code in {"seal.bad-signature", "block.malformed"}
    # To take the signature away is to change the header, which every column is bound to.
    stripped = bytes((parts.bound[0], parts.bound[1] & ~2)) + parts.bound[2:]
    columns = [column for column in parts.columns if column is not None]
    assert code_of(opener.open, write_block(stripped, parts.route, b"", columns)) == "seal.cannot-open"


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_a_changed_proof_proves_nothing_else(data: st.DataObject) -> None:
    octets = bytearray(PROOF)
    octets[data.draw(st.integers(0, len(octets) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    code = code_of(lambda: verify_proof(EventProof.from_bytes(bytes(octets))))
    assert code in {"seal.bad-proof", "wire.malformed", "wire.limit"}


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=100))
def test_octets_of_any_kind_prove_nothing(octets: bytes) -> None:
    assert code_of(lambda: verify_proof(EventProof.from_bytes(octets))) in {"seal.bad-proof", "wire.malformed"}


FOUND = signed(block_of([str(row) for row in range(5)], [*range(5)]))
PROOF = FOUND.prove(3, ALL[:2]).to_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda proof: replace(proof, place=2),
        lambda proof: replace(proof, place=-1),
        lambda proof: replace(proof, place=5),
        lambda proof: replace(proof, shown=proof.shown[1:]),
        lambda proof: replace(proof, shown=()),
        lambda proof: replace(proof, shown=(*proof.shown, proof.shown[-1])),
        lambda proof: replace(proof, shown=(proof.shown[0], proof.shown[1]._replace(column=2))),
        lambda proof: replace(proof, shown=(proof.shown[0], proof.shown[1]._replace(column=9))),
        lambda proof: replace(proof, shown=(proof.shown[0], proof.shown[1]._replace(way=proof.shown[1].way[:-1]))),
        lambda proof: replace(proof, shown=(proof.shown[0], proof.shown[1]._replace(way=(*proof.shown[1].way, b"")))),
        lambda proof: replace(proof, shown=FOUND.prove(2, ALL[:2]).shown),
        lambda proof: replace(proof, section=signed(small())._section),
        lambda proof: replace(proof, section=b""),
        lambda proof: replace(proof, bound=b""),
        lambda proof: replace(proof, bound=proof.bound[:-1] + b"\6"),
        lambda proof: replace(proof, names=b"nothing"),
    ],
)
def test_what_proves_nothing(change: Callable[[EventProof], EventProof]) -> None:
    proof = EventProof.from_bytes(PROOF)
    assert verify_proof(proof).event.values == {ALL[0]: "3", ALL[1]: 3}
    assert code_of(verify_proof, change(proof)) == "seal.bad-proof"


def test_salts_are_derived_once_and_forgotten_with_their_keys() -> None:
    keys = ring(ALL)
    opener = Opener(keys)
    sealer = Sealer(keys, BROKER.principal, fresh, signing=BROKER)
    found = [sealer.seal(small(salt), NOW) for salt in range(3)]
    for salt, data in enumerate(found):
        assert opener.verify(data, opener.open(data)).block == small(salt)
    assert len(opener._ways) == 1
    keys.drop(ALL[1], 7)
    assert code_of(opener.verify, found[2], small(2)) == "seal.bad-signature"


def test_without_the_keys_nothing_is_verified() -> None:
    data = sealed(small())
    assert code_of(Opener(ring(ALL, whole=False)).verify, data, small()) == "seal.unknown-key"


def test_a_report_with_all_variables_shows_no_key() -> None:
    data, keys = sealed(small()), ring(ALL)
    opener, header = Opener(keys), read_header(data)
    block = opener.open(data)
    opener.verify(data, block)
    salting = seeds(held_keys(keys, header.fixed, block.names), header.fixed, block.names)

    def fail(act: Callable[[], object]) -> str:
        with pytest.raises(RefusedError) as caught:
            act()
        # This function knows them, and is not what is asked about.
        inner = next(islice(_behind(caught.value.__traceback__), 2, None))
        return "".join(TracebackException(RefusedError, caught.value, inner, capture_locals=True).format())

    for text in (
        fail(lambda: opener.open(flipped(data))),
        fail(lambda: opener.verify(data, replace(block, ids=["x", "y"]))),
    ):
        assert "way = " in text
        assert not [seed for seed in salting if seed is not None and repr(seed.expose())[2:-1] in text]


def _behind(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next
