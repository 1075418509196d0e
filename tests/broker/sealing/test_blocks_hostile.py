"""Sealed events and a hostile broker between: sent again, spliced, cut, forged, and at other times than their own."""

import secrets
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.broker.network import principal
from tests.broker.sealed_kit import ALL, CAR, CARS, KEYS, NOW, PLATE, SKEW, SPEED, Line, Meddle, signer
from tests.spoiled import flipped

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.messages import Hop
from penstock.broker.sealing.blocks import SealedPublications, write_runs
from penstock.broker.wire.plain_trees import principal_tree
from penstock.broker.wire.publications import Publications
from penstock.codec.blocks import (
    Block,
    Level,
    PlainNames,
    bundle,
    encode_events,
    join,
    names,
    read_header,
    split,
    with_route,
    write_route,
)
from penstock.codec.wire import decode
from penstock.crypto.sealer import Sealer
from penstock.crypto.wrapping import Secret
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.events import Event, TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import THRESHOLD, Principal
from penstock.model.types import Sealing

SECOND = timedelta(seconds=1)


def row(**more: object) -> Line:
    """A publisher, somebody who may only carry, and a reader."""
    line = Line({"pub": ALL, "between": (), "sub": ALL}, **more)  # type: ignore[arg-type]  # of a line
    line.advertise("pub")
    line.subscribe("sub")
    return line


def sent(line: Line, here: str = "between", there: str = "sub") -> list[SealedPublications]:
    bodies = [Hop.from_tree(decode(octets)).body for octets in line.wire[here, there]]
    return [body for body in bodies if isinstance(body, SealedPublications)]


def hand_on(line: Line, block: Publications, here: str = "between", there: str = "sub") -> None:
    """Let the one between say something to the reader, or another to another."""
    router = line.routers[here]
    router._say(principal(there), block)
    line.run(here, router._settle())


def changed(block: SealedPublications, place: int, value: object) -> SealedPublications:
    tree: list[object] = [*block.to_tree()]
    tree[place] = value
    return SealedPublications.from_tree(tree)


def spoil(line: Line, by: str) -> None:
    """Let somebody break the seals of all blocks that it says."""

    def meddle(here: str, hop: Hop) -> Hop:
        if here == by and isinstance(hop.body, SealedPublications):
            return replace(hop, body=changed(hop.body, 7, flipped(hop.body.block)))
        return hop

    line.meddle = meddle


def renumbered(block: SealedPublications, by: int) -> SealedPublications:
    return changed(block, 5, write_runs([number + by for number in block.numbers]))


def test_a_block_that_is_sent_again_under_other_numbers_is_refused() -> None:
    line = row()
    line.publish("pub", *CARS)
    (block,) = sent(line)
    hand_on(line, renumbered(block, 100))
    hand_on(line, changed(block, 1, 2))
    hand_on(line, changed(block, 0, principal_tree(principal("between"))))
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]
    assert line.codes() == [("sub", "seal.replayed")] * 3
    assert [unopened.peer for _, unopened in line.unopened] == [principal("between")] * 3
    line.publish("pub", ("SECRET-3", 1))
    assert line.ids("sub")[2:] == ["SECRET-3"]


def under_other_counts(place: int, value: object) -> Meddle:
    """Let the one between hand on blocks as they are, with something else outside of them."""
    return lambda here, hop: (
        replace(hop, body=changed(hop.body, place, value))
        if here == "between" and isinstance(hop.body, SealedPublications)
        else hop
    )


@pytest.mark.parametrize(("place", "value"), [(1, 1 << 40), (5, write_runs([3, 4]))])
def test_who_carries_one_block_does_not_use_up_the_numbers_of_those_that_come_later(place: int, value: object) -> None:
    line = row()
    line.meddle = under_other_counts(place, value)
    line.publish("pub", *CARS)
    line.meddle = lambda _here, hop: hop
    line.publish("pub", ("SECRET-3", 1))
    line.publish("pub", ("SECRET-4", 1), ("SECRET-5", 1))
    assert line.ids("sub") == [f"SECRET-{number}" for number in range(1, 6)]
    assert not line.unopened


def test_what_waits_for_a_key_under_numbers_that_are_used_up_waits_once() -> None:
    line = row()
    line.meddle = under_other_counts(1, 1 << 40)
    line.publish("pub", CARS[0])
    line.meddle = lambda _here, hop: hop
    for scope in KEYS:
        line.rings["pub"].begin(scope, 2, Secret(b"2" * 32))
    line.publish("pub", CARS[1])
    hand_on(line, sent(line)[-1])
    assert line.routers["sub"].waiting == 1
    for scope in KEYS:
        line.rings["sub"].begin(scope, 2, Secret(b"2" * 32))
    line.run("sub", line.routers["sub"].keys_changed())
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]
    assert not line.unopened


def test_a_copy_is_no_attack_and_is_not_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    line = row()
    line.publish("pub", *CARS)
    vault = line.routers["sub"]._carrier._vault
    monkeypatch.setattr(vault, "open", lambda _octets: pytest.fail("it was opened"))
    hand_on(line, sent(line)[0])
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]
    assert not line.unopened


def test_rows_that_were_left_out_can_come_later_and_none_comes_twice() -> None:
    line = row()
    line.meddle = lambda here, hop: (
        replace(hop, body=hop.body.pick([1])) if here == "between" and isinstance(hop.body, SealedPublications) else hop
    )
    line.publish("pub", *CARS)
    assert line.ids("sub") == ["SECRET-2"]
    (block,) = sent(line)
    line.meddle = lambda _here, hop: hop
    hand_on(line, renumbered(block, 100))
    assert line.ids("sub") == ["SECRET-2", "SECRET-1"]
    hand_on(line, renumbered(block, 200))
    assert line.codes() == [("sub", "seal.replayed")]


def test_what_a_broker_has_sealed_does_not_come_back_to_it() -> None:
    line = Line({"pub": ALL, "between": ()})
    line.advertise("pub")
    line.subscribe("pub")
    line.subscribe("between")
    line.publish("pub", *CARS)
    (block,) = sent(line, "pub", "between")
    hand_on(line, renumbered(block, 100), "between", "pub")
    assert line.ids("pub") == ["SECRET-1", "SECRET-2"]
    assert line.codes() == [("pub", "seal.replayed")]


def test_who_writes_the_owner_of_a_type_otherwise_changes_it_for_nobody() -> None:
    line = row()
    line.publish("pub", CARS[0])
    (honest,) = sent(line)
    written = TypeKey(Principal(CAR.key.owner.digest, THRESHOLD), CAR.key.name)
    wrong = changed(honest, 7, with_route(honest.block, write_route(PlainNames(names(written, (), ())))))
    assert str(wrong.type) == str(written)
    assert str(SealedPublications.from_tree(honest.to_tree()).type) == str(CAR.key)
    hand_on(line, wrong)
    line.publish("pub", CARS[1])
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]


def test_columns_of_another_block_do_not_fit() -> None:
    line = row()
    line.publish("pub", CARS[0])
    line.publish("pub", CARS[1])
    one, other = sent(line)
    header, columns = split(one.block)
    spliced = join(header, columns | {PLATE: split(other.block)[1][PLATE]})
    hand_on(line, renumbered(changed(one, 7, spliced), 100))
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]
    assert line.codes() == [("sub", "seal.cannot-open")]


def forged(line: Line) -> SealedPublications:
    """A genuine block, with something else beside it."""
    lie = Event.of(CAR, {"plate": "LIE", "speed": 1}, id="lie", time=NOW).to_transit()
    genuine = sent(line)[0]
    return replace(genuine, events=(lie,) * len(genuine.events), closed=False, beside=True)


def test_plaintext_beside_is_not_believed_of_who_may_not_read_as_much() -> None:
    line = row()
    line.meddle = lambda here, hop: (
        replace(hop, body=forged(line)) if here == "between" and isinstance(hop.body, SealedPublications) else hop
    )
    line.publish("pub", *CARS)
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]


def test_plaintext_beside_of_an_equal_is_opened_no_more_and_stops_with_its_rights() -> None:
    equals = {("pub", "sub"), ("sub", "pub")}
    line = Line({"pub": ALL, "sub": ALL}, equals=equals)
    line.advertise("pub")
    line.subscribe("sub")
    line.publish("pub", CARS[0])
    assert b"SECRET-1" in line.over("pub", "sub")
    equals.clear()
    line.publish("pub", CARS[1])
    assert b"SECRET-2" not in line.over("pub", "sub")
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]


def test_plaintext_beside_is_carried_on_to_equals_as_it_came_and_from_others_not_at_all() -> None:
    names = ("pub", "between", "sub")
    equals = {(one, other) for one in names for other in names}
    line = Line(dict.fromkeys(names, ALL), equals=equals)
    line.advertise("pub")
    line.subscribe("sub")
    line.publish("pub", CARS[0])
    assert sent(line, "pub", "between")[0].to_tree()[8] == sent(line)[0].to_tree()[8]
    assert b"SECRET-1" in line.over("between", "sub")
    equals.discard(("between", "pub"))
    line.publish("pub", CARS[1])
    assert b"SECRET-2" in line.over("pub", "between")
    assert b"SECRET-2" not in line.over("between", "sub")
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]


@pytest.mark.parametrize(("octets", "beside"), [(66_500, True), (65_800, False)])
def test_plaintext_goes_beside_where_both_fit_into_a_frame(
    octets: int, *, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.sealing.blocks.FRAME_BYTES", octets)
    line = row(equals={("pub", "between"), ("between", "pub")})
    line.publish("pub", *CARS)
    assert sent(line, "pub", "between")[0].beside is beside
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]


def test_plaintext_beside_of_who_reads_less_hides_nothing() -> None:
    line = Line({"pub": ALL, "less": (str(CAR.key), SPEED), "sub": ALL}, equals={("less", "sub")})
    line.advertise("pub")
    line.subscribe("less")
    line.subscribe("sub")
    line.publish("pub", CARS[0])
    assert sent(line, "less", "sub")[0].beside
    assert dict(line.delivered["sub"][0].values) == {PLATE: "SECRET-1", SPEED: 30}


def plaintext(*events: TransitEvent) -> bytes:
    """What somebody would write beside a block of such events."""
    return bundle(encode_events(events), Level.EVENT)[0]


LIE = Event.of(CAR, {"plate": "LIE", "speed": 1}, id="lie", time=NOW).to_transit()


@pytest.mark.parametrize(
    "octets",
    [
        b"no columns",
        plaintext(LIE, LIE),
        plaintext(TransitEvent(CAR.key, (), {PLATE: "LIE"}, "lie", NOW)),
        plaintext(LIE)[:-1],
        plaintext(LIE) + b"\0",
    ],
    ids=["no columns", "more events", "fewer attributes", "cut off", "longer"],
)
def test_plaintext_beside_that_is_none_is_no_reason_to_believe_less_of_the_block(octets: bytes) -> None:
    equals = {("between", "sub"), ("sub", "between")}
    line = Line({"pub": ALL, "between": ALL, "sub": ALL}, equals=equals)
    line.advertise("pub")
    line.subscribe("sub")
    line.meddle = lambda here, hop: (
        replace(hop, body=changed(hop.body, 8, [octets]))
        if here == "between" and isinstance(hop.body, SealedPublications)
        else hop
    )
    line.publish("pub", CARS[0])
    with pytest.raises(MalformedError):
        changed(sent(line)[0], 8, [octets]).believed()
    assert line.ids("sub") == ["SECRET-1"]
    assert not line.cuts


def test_plaintext_beside_says_nothing_of_attributes_that_the_block_does_not_have() -> None:
    line = row(equals={("pub", "between"), ("between", "pub")})
    line.publish("pub", CARS[0])
    other = TransitEvent(CAR.key, (), {f"{CAR.key}#other": 1, SPEED: 7}, "x", NOW)
    told = replace(sent(line)[0], events=(other,), closed=False, beside=True)
    (event,) = SealedPublications.from_tree(told.to_tree()).believed().events
    assert dict(event.values) == {SPEED: 7}


def test_plaintext_beside_is_bounded_by_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    line = row(equals={("pub", "between"), ("between", "pub")})
    line.publish("pub", *CARS)
    (block,) = sent(line, "pub", "between")
    assert not block.believed().closed
    monkeypatch.setattr("penstock.broker.sealing.blocks.BLOCK_CELLS", 5)
    with pytest.raises(LimitError):
        block.believed()


def made_by(line: Line, name: str, level: Level) -> SealedPublications:
    """A block that somebody seals at a level of its own choosing."""
    lie = Event.of(CAR, {"plate": "LIE", "speed": 1}, id="lie", time=NOW).to_transit()
    octets = Sealer(line.rings[name], signer(name).principal, secrets.token_bytes).seal(Block.of([lie]), NOW, level)
    shown = replace(lie, values={})
    return SealedPublications(
        principal("pub"), 1, (900,), (shown,), block=octets, places=(0,), header=read_header(octets)
    )


def test_who_holds_the_key_of_a_type_forges_no_attributes_under_it() -> None:
    line = Line({"pub": ALL, "between": (str(CAR.key),), "sub": ALL})
    line.advertise("pub")
    line.subscribe("sub")
    hand_on(line, made_by(line, "between", Level.EVENT))
    assert not line.delivered
    assert line.codes() == [("sub", "seal.cannot-open")]


def test_what_is_sealed_by_attribute_waits_where_only_versions_are_known_that_are_sealed_as_a_whole() -> None:
    line = Line({"pub": ALL, "sub": ALL}, Sealing.EVENT)
    line.advertise("pub")
    line.subscribe("sub")
    hand_on(line, made_by(line, "pub", Level.ATTRIBUTE), "pub")
    assert not line.delivered
    line.sealing = Sealing.ATTRIBUTE
    line.run("sub", line.routers["sub"].keys_changed())
    assert line.ids("sub") == ["lie"]


def test_events_of_a_sealed_type_that_come_without_a_seal_are_refused() -> None:
    line = row()
    lie = Event.of(CAR, {"plate": "LIE", "speed": 1}, id="lie", time=NOW).to_transit()
    hand_on(line, Publications(principal("pub"), 1, (50,), (lie,)))
    assert not line.delivered
    assert line.codes() == [("sub", "seal.missing")]
    # Nothing of it is kept: it is not a secret, and nobody's event.
    assert line.unopened[0][1].block == b""


def test_events_that_say_they_extend_a_sealed_type_are_refused_without_a_seal() -> None:
    line = row()
    invented = TypeKey(principal("between"), "Invented")
    lie = TransitEvent(invented, (CAR.key,), {PLATE: "LIE"}, "lie", NOW)
    hand_on(line, Publications(principal("between"), 1, (50,), (lie,)))
    assert not line.delivered
    assert line.codes() == [("sub", "seal.missing")]


def test_a_broker_that_cannot_read_forges_no_numbers() -> None:
    line = row()
    spoil(line, "between")
    line.publish("pub", CARS[0])
    assert line.codes() == [("sub", "seal.cannot-open")]
    line.meddle = lambda _here, hop: hop
    # The true one comes by another way, and is not taken for a copy of what did not open.
    hand_on(line, sent(line)[0])
    assert line.ids("sub") == ["SECRET-1"]


@pytest.mark.parametrize(
    ("late", "code"),
    [
        (-SKEW, None),
        (-SKEW - timedelta(microseconds=1), "seal.future"),
        (300 * SECOND + SKEW, None),
        (300 * SECOND + SKEW + timedelta(microseconds=1), "seal.too-old"),
    ],
)
def test_a_block_is_sealed_lately(late: timedelta, code: str | None) -> None:
    line = row()
    vault = line.routers["sub"]._carrier._vault
    vault._clock = lambda: NOW + late  # type: ignore[attr-defined]  # the reader's clock alone
    line.publish("pub", CARS[0])
    assert line.codes() == ([] if code is None else [("sub", code)])
    assert line.ids("sub") == (["SECRET-1"] if code is None else [])


def test_a_broker_that_starts_anew_takes_nothing_from_before() -> None:
    line = row()
    line.publish("pub", CARS[0])
    old = sent(line)[0]
    again = Line({"pub": ALL, "between": (), "sub": ALL}, now=NOW + 2 * SKEW)
    again.advertise("pub")
    again.subscribe("sub")
    hand_on(again, renumbered(old, 100))
    assert not again.delivered
    assert again.codes() == [("sub", "seal.too-old")]


def test_a_block_that_nobody_has_to_read_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line({"pub": ALL, "between": ALL, "sub": ALL})
    line.advertise("pub")
    line.subscribe("sub")
    monkeypatch.setattr(line.routers["between"]._carrier._vault, "open", lambda _octets: pytest.fail("it was opened"))
    line.publish("pub", *CARS)
    assert line.ids("sub") == ["SECRET-1", "SECRET-2"]


def test_across_a_fabric_a_block_comes_from_who_has_sealed_it_and_may_have_been_kept() -> None:
    line = row()
    line.publish("pub", *CARS)
    away = Line({"sub": ALL}, now=NOW + 3600 * SECOND)
    away.subscribe("sub")
    for origin in (principal("between"), signer("pub").principal):
        block = changed(sent(line)[0], 0, principal_tree(origin))
        away.run("sub", away.routers["sub"].arrived(block))
    assert away.codes() == [("sub", "seal.sender")]
    assert away.ids("sub") == ["SECRET-1", "SECRET-2"]


# Epochs.


def test_what_is_sealed_in_an_epoch_that_is_over_is_refused_and_kept_sealed() -> None:
    line = row()
    keep: list[SealedPublications] = []

    def hold(here: str, hop: Hop) -> Hop:
        if here == "between" and isinstance(hop.body, SealedPublications):
            keep.append(hop.body)
            return replace(hop, body=changed(hop.body, 7, flipped(hop.body.block)))
        return hop

    line.meddle = hold
    line.publish("pub", CARS[0])
    line.meddle = lambda _here, hop: hop
    for name in ("pub", "sub"):
        for scope in KEYS:
            line.rings[name].begin(scope, 2, Secret(b"2" * 32))
            line.rings[name].close(scope, 1)
    hand_on(line, renumbered(keep[0], 100))
    assert not line.delivered
    assert line.codes()[-1] == ("sub", "seal.closed-epoch")
    assert line.unopened[-1][1].block == keep[0].block
    line.publish("pub", CARS[1])
    assert line.ids("sub") == ["SECRET-2"]
    assert {*read_header(sent(line)[-1].block).fixed.epochs} == {2}


@pytest.mark.parametrize("late", [str(CAR.key), PLATE])
def test_what_is_sealed_in_an_epoch_that_is_not_known_yet_waits_whichever_column_it_is(late: str) -> None:
    line = row()
    for scope in KEYS:
        line.rings["pub"].begin(scope, 2, Secret(b"2" * 32))
        if scope != late:
            line.rings["sub"].begin(scope, 2, Secret(b"2" * 32))
    line.publish("pub", *CARS)
    assert not line.delivered
    assert line.rings["sub"].missed() == {late: 2}
    # It arrived in time, however long it has waited since.
    line.now += 3600 * SECOND
    line.run("sub", line.routers["sub"].keys_changed())
    assert not line.delivered
    line.rings["sub"].begin(late, 2, Secret(b"2" * 32))
    line.run("sub", line.routers["sub"].keys_changed())
    assert [event.values[PLATE] for event in line.delivered["sub"]] == ["SECRET-1", "SECRET-2"]
    assert not line.unopened


def test_what_waits_for_a_key_that_never_comes_is_not_lost() -> None:
    line = row()
    for scope in KEYS:
        line.rings["pub"].begin(scope, 2, Secret(b"2" * 32))
    line.publish("pub", CARS[0])
    for scope in KEYS:
        line.rings["sub"].begin(scope, 3, Secret(b"3" * 32))
    line.run("sub", line.routers["sub"].keys_changed())
    assert line.codes() == [("sub", "seal.closed-epoch")]
    assert line.unopened[0][1].block == sent(line)[0].block


@pytest.mark.parametrize("limits", [BrokerLimits(seal_waiting=2), BrokerLimits(seal_waiting_bytes=700)])
def test_what_gives_way_to_others_that_wait_is_not_lost(limits: BrokerLimits) -> None:
    line = Line({"pub": ALL, "sub": ()}, limits=limits)
    line.advertise("pub")
    line.subscribe("sub")
    for number in range(4):
        line.publish("pub", (f"SECRET-{number}", 1))
    first = [block.block for block in sent(line, "pub", "sub")]
    assert line.codes() == [("sub", "seal.unknown-key")] * 2
    assert [unopened.block for _, unopened in line.unopened] == first[:2]
    for scope, key in KEYS.items():
        line.rings["sub"].begin(scope, 1, key)
    line.run("sub", line.routers["sub"].keys_changed())
    assert line.ids("sub") == ["SECRET-2", "SECRET-3"]


def test_sealed_events_are_not_retained() -> None:
    line = row()
    event = Event.of(CAR, {"plate": "P", "speed": 1}).to_transit()
    with pytest.raises(RefusedError) as caught:
        line.routers["pub"].publish("a", [event], "slot")
    assert caught.value.code == "seal.retained"
    line.publish("pub", CARS[0])
    for place, value in ((3, "slot"), (4, True)):
        with pytest.raises(MalformedError):
            changed(sent(line)[0], place, value)
