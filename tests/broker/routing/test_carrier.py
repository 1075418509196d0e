"""A broker that refuses a sealed block refuses it to its own clients, and to nobody behind it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.broker.sealed_kit import ALL, CARS, KEYS, NOW, SKEW, Line
from tests.broker.sealing.test_blocks_hostile import LIE, hand_on, renumbered, sent, spoil

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.messages import Hop
from penstock.broker.sealing.blocks import SealedPublications
from penstock.broker.sealing.vault import KeyVault, Replays
from penstock.crypto.wrapping import Secret
from penstock.errors import MalformedError
from penstock.model.types import Protection, Sealing

Spoil = Callable[[Line, KeyVault], None]


def row(**more: object) -> Line:
    """A publisher, a reader, and a reader behind that one."""
    line = Line({"pub": ALL, "mid": ALL, "sub": ALL}, **more)  # type: ignore[arg-type]  # of a line
    line.advertise("pub")
    line.subscribe("mid")
    line.subscribe("sub")
    return line


def vault_of(line: Line) -> KeyVault:
    vault = line.routers["mid"]._carrier._vault
    assert isinstance(vault, KeyVault)
    return vault


def clock_behind(_line: Line, mid: KeyVault) -> None:
    mid._clock = lambda: NOW - timedelta(minutes=1)


def clock_ahead(_line: Line, mid: KeyVault) -> None:
    mid._clock = lambda: NOW + timedelta(hours=1)


def started_anew(_line: Line, mid: KeyVault) -> None:
    mid._replays = Replays(lambda: NOW + SKEW, limits=BrokerLimits())


def epoch_over(line: Line, _mid: KeyVault) -> None:
    for scope in KEYS:
        line.rings["mid"].begin(scope, 2, Secret(b"2" * 32))
        line.rings["mid"].close(scope, 1)


def signer_unknown(line: Line, mid: KeyVault) -> None:
    line.signed = True
    assert mid._signatures is not None
    mid._signatures = mid._signatures._replace(may_sign=lambda _broker, _of_type, _attributes: False)


def signatures_demanded(_line: Line, mid: KeyVault) -> None:
    mid._protection_of = lambda _key: Protection(Sealing.ATTRIBUTE, signed=True)


def old_definition(line: Line, mid: KeyVault) -> None:
    line.sealing = Sealing.EVENT
    mid._protection_of = lambda _key: Protection(Sealing.ATTRIBUTE)


def lied_to(line: Line, _mid: KeyVault) -> None:
    """What stands beside a genuine block is not what was signed."""
    line.signed = True
    line.equals |= {(one, other) for one in line.scopes for other in line.scopes}

    def lie(here: str, hop: Hop) -> Hop:
        body = hop.body
        if here == "pub" and isinstance(body, SealedPublications):
            told = replace(body, events=(LIE,) * len(body.events), closed=False, beside=True, _columns=b"")
            return replace(hop, body=SealedPublications.from_tree(told.to_tree()))
        return hop

    line.meddle = lie


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (clock_behind, "seal.future"),
        (clock_ahead, "seal.too-old"),
        (started_anew, "seal.too-old"),
        (epoch_over, "seal.closed-epoch"),
        (signer_unknown, "seal.signer"),
        (signatures_demanded, "seal.unsigned"),
        (old_definition, "seal.cannot-open"),
        (lied_to, "seal.bad-signature"),
    ],
)
def test_what_one_broker_refuses_is_for_those_behind_it_to_judge(spoil: Spoil, code: str) -> None:
    line = row()
    spoil(line, vault_of(line))
    line.publish("pub", *CARS)
    assert line.codes() == [("mid", code)]
    assert line.unopened[0][1].block == sent(line, "pub", "mid")[0].block
    assert not line.ids("mid")
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]
    # It goes on as it came, and nothing beside it that was refused.
    (onward,) = sent(line, "mid", "sub")
    assert onward.block == sent(line, "pub", "mid")[0].block
    assert not onward.beside


def test_a_broker_that_looks_into_blocks_for_others_alone_carries_on_what_it_refuses() -> None:
    line = Line({"pub": ALL, "mid": ALL, "sub": ALL})
    line.advertise("pub")
    line.subscribe("sub", "speed > 50")
    clock_behind(line, vault_of(line))
    line.publish("pub", *CARS)
    assert line.codes() == [("mid", "seal.future")]
    assert line.ids("sub") == ["SECRET-2"]


def test_what_is_sent_again_goes_no_further_than_the_first_who_knows_it() -> None:
    line = row()
    line.publish("pub", *CARS)
    hand_on(line, renumbered(sent(line, "pub", "mid")[0], 100), "pub", "mid")
    assert line.codes() == [("mid", "seal.replayed")]
    assert len(sent(line, "mid", "sub")) == 1


def test_what_is_no_block_goes_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    line = row()

    def refuse(_octets: bytes) -> None:
        raise MalformedError("block.malformed", "a block of an algorithm that is not known")

    monkeypatch.setattr(vault_of(line), "open", refuse)
    line.publish("pub", *CARS)
    assert line.codes() == [("mid", "block.malformed")]
    assert ("mid", "sub") not in line.wire or not sent(line, "mid", "sub")


def test_a_copy_of_what_was_refused_goes_on_once() -> None:
    line = row()
    clock_behind(line, vault_of(line))
    line.publish("pub", *CARS)
    hand_on(line, sent(line, "pub", "mid")[0], "pub", "mid")
    assert line.codes() == [("mid", "seal.future")] * 2
    assert len(sent(line, "mid", "sub")) == 1


def test_what_is_refused_uses_up_no_numbers_where_blocks_are_read() -> None:
    line = row()
    spoil(line, "pub")
    line.publish("pub", *CARS)
    assert line.codes() == [("mid", "seal.cannot-open"), ("sub", "seal.cannot-open")]
    line.meddle = lambda _here, hop: hop
    # The true one comes by another way, under the same numbers.
    hand_on(line, sent(line, "pub", "mid")[0], "pub", "mid")
    assert line.ids("mid") == line.ids("sub") == ["SECRET-1", "SECRET-2"]


def test_what_was_refused_is_read_when_it_comes_again_and_nothing_is_wrong_any_more() -> None:
    line = row()
    mid = vault_of(line)
    clock_behind(line, mid)
    line.publish("pub", *CARS)
    mid._clock = lambda: NOW
    hand_on(line, sent(line, "pub", "mid")[0], "pub", "mid")
    assert line.ids("mid") == line.ids("sub") == ["SECRET-1", "SECRET-2"]
    assert line.codes() == [("mid", "seal.future")]
