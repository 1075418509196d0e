"""Signed events between routers: readers hold the keys, and cannot write."""

import secrets
from dataclasses import replace

import pytest
from tests.broker.network import principal
from tests.broker.sealed_kit import ALL, CAR, CARS, NOW, PLATE, SPEED, Line, signer
from tests.broker.sealing.test_blocks_hostile import changed, hand_on, renumbered, sent

from penstock.broker.sealing.blocks import SealedPublications
from penstock.codec.blocks import Block, Level, PlainNames, read_header
from penstock.crypto.opener import Opener
from penstock.crypto.sealer import Sealer
from penstock.crypto.signed_blocks import verify_proof
from penstock.model.events import Event
from penstock.model.types import Sealing


def row(*, between: tuple[str, ...] = ALL, sealing: Sealing = Sealing.ATTRIBUTE, **more: object) -> Line:
    """A publisher, a broker that reads, and another."""
    line = Line({"pub": ALL, "between": between, "sub": ALL}, sealing, signed=True, **more)  # type: ignore[arg-type]  # of a line
    line.advertise("pub")
    line.subscribe("sub")
    return line


def forged(line: Line, name: str, *, signs: bool, like: bytes = b"", number: int = 0) -> SealedPublications:
    """A block of a reader's own making, under its own name, or that of who sealed another one."""
    lie = Event.of(CAR, {"plate": "LIE", "speed": 1}, id="lie", time=NOW).to_transit()
    who, random = signer(name).principal, secrets.token_bytes(16)
    if like:
        header = read_header(like)
        who, random = header.sender, header.fixed.incarnation
    sealer = Sealer(line.rings[name], who, lambda _size: random, signing=signer(name) if signs else None)
    octets = [sealer.seal(Block.of([lie]), NOW, Level.ATTRIBUTE) for _ in range(number + 1)][-1]
    event = replace(lie, values={})
    return SealedPublications(
        principal("pub"), 1, (900,), (event,), block=octets, places=(0,), header=read_header(octets)
    )


@pytest.mark.parametrize("sealing", [Sealing.ATTRIBUTE, Sealing.EVENT])
def test_what_a_publisher_has_signed_is_delivered_and_can_be_proven(sealing: Sealing) -> None:
    line = row(sealing=sealing)
    line.publish("pub", *CARS)
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]
    assert not line.unopened
    opener, block = Opener(line.rings["sub"]), sent(line)[0].block
    proven = verify_proof(opener.verify(block, opener.open(block)).prove(1, [PLATE]))
    assert (proven.sender, proven.event.id) == (signer("pub").principal, "SECRET-2")


def test_who_reads_some_attributes_checks_these() -> None:
    line = Line({"pub": ALL, "sub": (str(CAR.key), SPEED)}, signed=True)
    line.advertise("pub")
    line.subscribe("sub")
    line.publish("pub", *CARS)
    assert [dict(event.values) for event in line.delivered["sub"]] == [{SPEED: 30}, {SPEED: 90}]


@pytest.mark.parametrize(("signs", "code"), [(False, "seal.unsigned"), (True, "seal.signer")])
def test_who_only_reads_cannot_write(signs: bool, code: str) -> None:  # a case
    line = row()
    hand_on(line, forged(line, "between", signs=signs))
    assert not line.delivered
    assert line.codes() == [("sub", code)]
    assert line.unopened[0][1].block


def test_who_only_reads_writes_under_no_other_name_and_uses_up_no_numbers() -> None:
    line = Line(dict.fromkeys(("pub", "bad", "between", "sub"), ALL), signed=True)
    line.advertise("pub")
    # The one between has to look into blocks to know their way, and has nobody who reads them.
    line.subscribe("sub", "speed > 0")
    line.publish("pub", CARS[0])
    for number in range(3):
        lie = forged(line, "bad", signs=False, like=sent(line)[0].block, number=number)
        hand_on(line, replace(lie, numbers=(900 + number,)), "bad", "between")
    assert line.codes() == [("sub", "seal.unsigned")] * 3
    line.publish("pub", CARS[1])
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]


def test_a_signature_of_another_block_does_not_count() -> None:
    line = row()
    line.publish("pub", *CARS)
    block = bytearray(sent(line)[0].block)
    place = bytes(block).index(signer("pub").public.raw) + 40
    block[place] ^= 1
    hand_on(line, renumbered(changed(sent(line)[0], 7, bytes(block)), 100))
    assert line.codes() == [("sub", "seal.bad-signature")]


def test_a_signature_counts_while_its_signer_may_publish() -> None:
    line = row()
    line.publish("pub", CARS[0])
    line.publishers = ()
    line.publish("pub", CARS[1])
    assert line.ids("sub") == ["SECRET-1"]
    assert line.codes() == [("sub", "seal.signer")]


def test_plaintext_beside_is_checked_against_what_was_signed() -> None:
    equals = {("between", "sub"), ("sub", "between")}
    line = row(equals=equals)
    line.subscribe("between")
    line.publish("pub", *CARS)
    (block,) = sent(line)
    assert block.beside
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]
    lie = Event.of(CAR, {"plate": "LIE", "speed": 1}, id="lie", time=NOW).to_transit()
    hand_on(line, replace(block, numbers=(101, 102), events=(lie, block.events[1]), _header=None, _columns=b""))
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]
    assert line.codes() == [("sub", "seal.bad-signature")]


def test_of_a_part_of_a_block_nothing_is_believed_but_what_was_sealed() -> None:
    equals = {("between", "sub"), ("sub", "between")}
    line = row(equals=equals)
    line.meddle = lambda here, hop: (
        replace(hop, body=forged_part(hop.body))
        if here == "between" and isinstance(hop.body, SealedPublications)
        else hop
    )
    line.publish("pub", *CARS)
    assert line.ids("sub") == ["SECRET-2"]
    assert line.delivered["sub"][0].values[PLATE] == "SECRET-2"


def forged_part(body: SealedPublications) -> SealedPublications:
    lie = Event.of(CAR, {"plate": "LIE", "speed": 1}, id="lie", time=NOW).to_transit()
    made = replace(body.pick([1]), events=(lie,), closed=False, beside=True)
    return SealedPublications.from_tree(made.to_tree())


def test_a_broker_without_readers_carries_what_it_does_not_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    line = row()
    vault = line.routers["between"]._carrier._vault
    monkeypatch.setattr(vault, "verify", lambda *_: pytest.fail("nobody reads here"))
    line.publish("pub", *CARS)
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]
    assert isinstance(read_header(sent(line)[0].block).route, PlainNames)
