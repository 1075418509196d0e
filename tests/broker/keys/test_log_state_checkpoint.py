"""Checkpoints: a log that begins again, and whoever reads it knows the same as before."""

from dataclasses import replace
from datetime import datetime

import pytest
from tests.broker.key_kit import GROUP, KEK, MANAGER, REPLICA, World, at, carry_out, catch_up, manager, right
from tests.trust.kit import NOW, key, refused, who

from penstock.broker.keys.log import MemoryLog, read_record
from penstock.broker.keys.manager import Append, KeyManager, Output, TruncateLog
from penstock.broker.limits import BrokerLimits
from penstock.crypto.wrapping import Secret
from penstock.trust.capabilities import Right
from penstock.trust.key_statements import KeyCheckpoint, KeyRecord
from penstock.trust.signed import sign_value

#: so that a checkpoint has several parts
SMALL = BrokerLimits(key_checkpoint_bytes=700)


def parts(log: MemoryLog) -> list[KeyCheckpoint]:
    found = (read_record(record).value for record in log.records)
    return [value for value in found if isinstance(value, KeyCheckpoint)]


def condense(world: World, since: datetime | None = None) -> None:
    world.run(world.manager.condense(world.now, since))


def aged(limits: BrokerLimits = SMALL, epochs: int = 4) -> World:
    """A group with some epochs, members that are in the tree, some that are not yet, and some that are gone."""
    world = World(20, 21, 22, 23, limits=limits)
    for _ in range(epochs - 1):
        world.pass_time(601)
    world.leave(22)
    world.evict(23)
    world.join(24)
    return world


def same(one: KeyManager, other: KeyManager) -> bool:
    first, second = one._state(GROUP), other._state(GROUP)
    return first.to_sexp() == second.to_sexp() and one._fold.archive.to_sexp() == other._fold.archive.to_sexp()


def test_a_log_that_begins_anew_says_the_same() -> None:
    world = aged()
    before = world.log_length
    condense(world)
    assert len(parts(world.log)) > 1
    assert world.log.first == before
    held, kept = world.manager._state(GROUP), world.manager._fold.archive.to_sexp()
    world.restart()
    assert world.manager._state(GROUP).to_sexp() == held.to_sexp()
    assert world.manager._fold.archive.to_sexp() == kept
    # Everything goes on: the members follow, and who joined without a place has one.
    world.pass_time(601)
    assert world.epoch == held.epoch + 1
    assert {world.brokers[number].keys[world.epoch] for number in (20, 21, 24)} == {world.key()}
    assert world.brokers[23].had.keys() < set(range(1, 6))


def test_who_reads_all_records_and_who_reads_the_checkpoint_know_the_same() -> None:
    world = aged()
    condense(world)
    world.join(25)
    one, other = manager(REPLICA, limits=SMALL), manager(REPLICA, limits=SMALL)
    for record in world.log.ever:
        one.take(NOW, read_record(record))
    catch_up(NOW, other, world.log)
    assert same(one, other)
    assert one.position == other.position == world.log_length


def test_one_that_was_asleep_goes_on_with_the_checkpoint() -> None:
    world = aged()
    sleeper = manager(REPLICA, limits=SMALL)
    for record in world.log.ever[:2]:
        sleeper.take(NOW, read_record(record))
    condense(world)
    catch_up(NOW, sleeper, world.log)
    assert same(sleeper, world.manager)


def test_a_manager_that_dies_in_between_has_lost_nothing() -> None:
    world = aged()
    append = world.manager.condense(world.now)
    while isinstance(append[0], Append) and append[0].record.value.number < world.log_length + 2:
        world.log.records.append(append[0].record.to_bytes())
        append = world.manager.take(world.now, append[0].record.unverified())
        if len(parts(world.log)) == 2:
            break
    state = world.manager._state(GROUP).to_sexp()
    world.restart()
    assert world.manager._state(GROUP).to_sexp() == state
    condense(world)
    world.restart()
    assert world.manager._state(GROUP).to_sexp() == state


def test_another_record_between_the_parts_makes_the_checkpoint_begin_anew() -> None:
    world = aged()
    other = manager(REPLICA, limits=SMALL)
    catch_up(NOW, other, world.log)
    first = world.manager.condense(world.now)
    [append] = first
    assert isinstance(append, Append)
    world.log.records.append(append.record.to_bytes())
    said = world.manager.take(world.now, append.record.unverified())
    # The other one has not seen the first part, and is faster with the second place.
    catch_up(world.now, other, world.log)
    carry_out(at(9_999), other, world.log, other.rotate(at(9_999), GROUP))
    world.run(said)
    assert world.log.first > append.number
    fresh = manager(REPLICA, limits=SMALL)
    catch_up(NOW, fresh, world.log)
    assert same(fresh, world.manager)


def test_a_replica_waits_while_another_one_writes_its_checkpoint() -> None:
    world = aged()
    other = manager(REPLICA, limits=SMALL)
    [append] = world.manager.condense(world.now)
    assert isinstance(append, Append)
    world.log.records.append(append.record.to_bytes())
    catch_up(world.now, other, world.log)
    assert other.rotate(world.now, GROUP) == []
    later = world.now.replace(year=world.now.year + 1)
    assert [type(output) for output in other.rotate(later, GROUP)] == [Append]


def test_old_epochs_are_kept_until_they_are_to_be_forgotten() -> None:
    world = aged()
    reader = world.join(30, right(30, Right.SUBSCRIBE, Right.HISTORY))
    condense(world)
    reader.take(reader.member.history(world.now, 1, 99))
    world.post(30)
    assert {1, 2, 3} < reader.had.keys()
    # The second epoch was over with the third, which began after 1202 seconds.
    condense(world, since=at(1_202))
    for _ in range(2):
        reader.had.clear()
        world.now = at(9_000 + world.log_length)
        reader.take(reader.member.history(world.now, 1, 99))
        world.post(30)
        assert min(reader.had) == 2
        world.restart()
    assert world.refusals == []


def test_a_long_log_begins_anew_by_itself() -> None:
    world = World(20, limits=replace(SMALL, key_log=5))
    for _ in range(12):
        world.pass_time(601)
    assert len(world.log.records) < 12
    assert world.log.first > 0
    world.restart()
    assert world.epoch == 13


def test_what_is_too_much_for_a_checkpoint_is_told_and_nothing_stops() -> None:
    world = World(20, limits=BrokerLimits(key_checkpoint_bytes=64, key_checkpoint_parts=2))
    with refused("keys.checkpoint"):
        world.manager.condense(world.now)
    world.pass_time(601)
    assert world.epoch == 2


def test_what_is_too_much_for_a_checkpoint_keeps_nobody_from_being_told() -> None:
    world = World(20, 21, limits=BrokerLimits(key_checkpoint_bytes=64, key_checkpoint_parts=2))
    told = len(world.told)
    outputs = world.manager.evict(world.now, GROUP, who(21))
    # While a record is under way: it is tried when that has come back.
    assert world.manager.condense(world.now) == []
    world.run(outputs)
    assert (world.epoch, len(world.told)) == (2, told + 1)


# What is forgotten.


def test_what_lies_before_a_checkpoint_is_forgotten_however_often_it_takes() -> None:
    """By the one who wrote it, by itself in another life, and by another replica."""
    for starts_again in (False, True):
        for number in (MANAGER, REPLICA):
            world = aged()
            before = world.log_length
            only_written(world, world.manager.condense(world.now))
            assert world.log.first == 0
            if starts_again:
                world.manager = manager(number, limits=SMALL)
                catch_up(world.now, world.manager, world.log)
            world.pass_time(1)
            assert world.log.first == before
            assert not any(isinstance(output, TruncateLog) for output in world.manager.tick(world.now)[0])


def only_written(world: World, outputs: list[Output]) -> None:
    """Write what a manager wants written, and let it die before anything else."""
    while outputs and isinstance(append := outputs[0], Append):
        world.log.records.append(append.record.to_bytes())
        outputs = world.manager.take(world.now, append.record.unverified())


def test_nothing_is_forgotten_before_a_checkpoint_is_whole() -> None:
    world = aged()
    outputs = world.manager.condense(world.now, at(9_999))
    [append] = outputs
    assert isinstance(append, Append)
    assert append.record.value.parts > 1  # type: ignore[union-attr]  # it is a checkpoint
    world.log.records.append(append.record.to_bytes())
    world.manager.take(world.now, append.record.unverified())
    assert not any(isinstance(output, TruncateLog) for output in world.manager.tick(world.now)[0])
    assert not world.manager.has_forgotten(at(9_999), 0)


@pytest.mark.parametrize("limits", [SMALL, BrokerLimits()])
def test_who_wants_less_to_be_kept_while_a_checkpoint_is_written_gets_another_one(limits: BrokerLimits) -> None:
    """Also where the only part of it, or the last, is under way."""
    world = aged(limits)
    place = world.log_length
    outputs = world.manager.condense(world.now, at(700))
    assert world.manager.condense(world.now, at(1_202)) == []
    world.run(outputs)
    assert world.manager.has_forgotten(at(1_202), place)
    assert world.manager._fold.archive.kept(GROUP, 1, 99)[0] == 2
    assert not world.manager.has_forgotten(at(1_203), place)
    assert not world.manager.has_forgotten(at(1_202), world.log_length)


def test_the_checkpoint_of_a_replica_that_keeps_everything_is_not_what_was_asked_for() -> None:
    world = aged()
    other = manager(REPLICA, limits=SMALL)
    catch_up(world.now, other, world.log)
    place, mine = world.log_length, world.manager.condense(world.now, at(1_202))
    carry_out(world.now, other, world.log, other.condense(world.now))
    catch_up(world.now, world.manager, world.log)
    assert not world.manager.has_forgotten(at(1_202), place)
    world.run(mine)
    world.pass_time(6)
    assert world.manager.has_forgotten(at(1_202), place)


@pytest.mark.parametrize("change", ["kek", "signer", "place", "cut", "order"])
def test_a_checkpoint_that_was_changed_is_not_taken(change: str) -> None:
    world = aged()
    condense(world)
    records = [read_record(record) for record in world.log.records]
    fresh = manager(REPLICA, limits=SMALL)
    match change:
        case "kek":
            fresh._fold._kek = Secret(bytes(32))
        case "signer":
            value = replace(parts(world.log)[0], manager=who(99))
            records[0] = sign_value(value, key(99)).unverified()
        case "place":
            value = replace(parts(world.log)[0], number=world.log.first + 1)
            records[0] = sign_value(value, key(50)).unverified()
        case "cut":
            value = parts(world.log)[-1]
            records[-1] = sign_value(replace(value, sealed=value.sealed[:-1]), key(50)).unverified()
        case _:
            records[0], records[1] = records[1], records[0]

    with refused("keys.unopened" if change in ("kek", "cut") else "keys.log"):
        for record in records:
            fresh.take(NOW, record)
    assert not list(fresh.groups())


def test_no_key_can_be_read_in_a_checkpoint() -> None:
    world = aged()
    secrets = [holder.leaf for holder in world.manager._state(GROUP).members.values()]
    secrets += [world.key(), KEK, *world.manager._state(GROUP).tree._inner.values()]
    condense(world)
    written = b"".join(world.log.ever)
    assert not any(secret.expose() in written for secret in secrets)


def test_nothing_counts_after_half_a_checkpoint_for_one_who_has_not_read_what_was_before() -> None:
    world = aged()
    before = read_record(world.log.records[-1]).value
    assert isinstance(before, KeyRecord)
    condense(world)
    fresh = manager(REPLICA, limits=SMALL)
    first = read_record(world.log.records[0])
    fresh.take(NOW, first)
    after = replace(before, number=first.value.number + 1, previous=first.digest)
    with refused("keys.log"):
        fresh.take(NOW, sign_value(after, key(50)).unverified())
