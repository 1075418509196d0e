"""What can be sealed at all, by the keys that are there and those that are to come."""

import secrets
from datetime import UTC, datetime
from functools import partial

import pytest
from tests.broker.sealed_kit import ALL, CAR, KEYS, PLATE, SPEED, ring, signer

from penstock.broker.limits import BrokerLimits
from penstock.broker.sealing.vault import KeyVault
from penstock.codec.blocks import Padding, read_header
from penstock.crypto.aead import CipherAlgorithm
from penstock.crypto.limits import CryptoLimits
from penstock.crypto.seal_keys import LiveKeys
from penstock.crypto.sealer import SealerSettings
from penstock.errors import LimitError, RefusedError
from penstock.model.events import Event, TransitEvent
from penstock.model.types import Protection, Sealing

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def vault(
    keys: LiveKeys, sealing: Sealing = Sealing.ATTRIBUTE, settings: SealerSettings | None = None, **limits: int
) -> KeyVault:
    return KeyVault(
        keys,
        signer("here").principal,
        lambda _of_type: Protection(sealing),
        lambda _peer, _of_type: False,
        clock=lambda: NOW,
        began=lambda: NOW,
        random=secrets.token_bytes,
        settings=settings,
        limits=BrokerLimits(**limits),  # type: ignore[arg-type]  # numbers alone
    )


def car(**values: object) -> TransitEvent:
    return Event.of(CAR, values).to_transit()  # type: ignore[arg-type]  # of a car


def refused(made: KeyVault, *events: TransitEvent) -> bool:
    try:
        made.check(events)
    except RefusedError as error:
        return error.code == "seal.unknown-key"
    return False


def test_events_with_an_attribute_for_which_no_key_will_come_are_refused() -> None:
    keys = ring(str(CAR.key), SPEED)
    made = vault(keys)
    assert not refused(made, car(speed=1))
    assert refused(made, car(speed=1), car(plate="P"))
    keys.expect(PLATE)
    assert not refused(made, car(plate="P"))
    keys.leave(PLATE)
    with pytest.raises(RefusedError, match=f"attribute `{PLATE.rpartition('#')[2]}` of"):
        made.check([car(plate="P")])


def test_all_of_an_event_that_is_sealed_as_a_whole_has_the_key_of_its_type() -> None:
    assert not refused(vault(ring(str(CAR.key)), Sealing.EVENT), car(plate="P"))


def test_events_wait_while_nothing_is_known_of_the_keys_of_their_type() -> None:
    assert not refused(vault(LiveKeys()), car(plate="P"))


@pytest.mark.parametrize("padding", [Padding.POWERS, Padding.SIZES])
def test_events_that_are_too_long_when_lengths_are_hidden_are_refused_before_they_are_taken(padding: Padding) -> None:
    made = vault(ring(*ALL), settings=SealerSettings(CipherAlgorithm.AES_GCM_SIV, padding), route_block_bytes=4_000)
    made.check([car(plate="P" * 900, speed=1)])
    block = made.seal([car(plate="P" * 900, speed=1)])
    assert len(block) > 1_000
    assert len(block) == len(made.seal([car(plate="P" * 600, speed=1)]))
    assert made.open(block)[0].values[PLATE] == "P" * 900
    with pytest.raises(LimitError) as caught:
        made.check([car(plate="P" * 3_000, speed=1)])
    assert caught.value.code == "route.event-size"


def test_what_was_sealed_enough_goes_on_in_another_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    # It is the same in all brokers, and so high that no test reaches it.
    monkeypatch.setattr("penstock.broker.sealing.vault.CryptoLimits", partial(CryptoLimits, seal_blocks=2))
    made = vault(ring(*ALL))
    blocks = [made.seal([car(plate="P", speed=1)]) for _ in range(3)]
    first, second, third = (read_header(block).fixed.incarnation for block in blocks)
    assert first == second != third
    assert made.sealed[CAR.key] == 3


def test_an_epoch_that_is_over_is_not_sealed_under_and_not_opened() -> None:
    keys = ring(*ALL)
    made = vault(keys)
    block = made.seal([car(plate="P", speed=1)])
    assert made.open(block)
    for scope in ALL:
        keys.begin(scope, 2, KEYS[scope])
        keys.close(scope, 1)
    with pytest.raises(RefusedError) as caught:
        made.open(block)
    assert caught.value.code == "seal.closed-epoch"
    for scope in ALL:
        keys.close(scope, 2)
    with pytest.raises(RefusedError) as caught:
        made.seal([car(plate="P", speed=1)])
    assert caught.value.code == "seal.unknown-key"
