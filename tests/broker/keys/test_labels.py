"""The keys of labels at managers: they stay when brokers join, change immediately when one has to go, one at a time."""

from dataclasses import replace

import pytest
from tests.broker.key_kit import (
    GROUP,
    REFRESHING,
    SECOND,
    Broker,
    World,
    at,
    at_once,
    catch_up,
    grounds,
    joining,
    right,
)
from tests.trust.kit import CURRENT, DAY, NOW, who

from penstock.broker.keys.group import Refreshing
from penstock.broker.keys.manager import Append, Reply
from penstock.broker.limits import BrokerLimits
from penstock.trust.capabilities import Right
from penstock.trust.key_statements import KeyGroup
from penstock.trust.limits import LABEL_LONGEST
from penstock.trust.validity import Validity

LABELS = KeyGroup(GROUP.type, labels=True)
OVERLAP = BrokerLimits().label_overlap / 1000


def world(*numbers: int) -> World:
    return World(*numbers, group=LABELS)


def test_joining_never_makes_new_labels() -> None:
    keys = world(20)
    # With a right that began after the labels did, and with one that was taken away and given again.
    keys.now = at(10)
    keys.join(21, right(21, validity=Validity.between(at(5), NOW + DAY)))
    assert keys.epoch == 1
    keys.evict(21)
    assert keys.epoch == 2
    keys.pass_time(OVERLAP)
    keys.join(21, right(21, validity=Validity.between(at(8), NOW + DAY)))
    assert keys.epoch == 2
    assert keys.brokers[20].keys[2] == keys.brokers[21].keys[2] == keys.key()


def test_labels_last_when_keys_do_not() -> None:
    keys = world(20)
    keys.pass_time(REFRESHING.period / 1000 + 1)
    assert keys.epoch == 1
    assert keys.brokers[20].seals
    keys.pass_time(BrokerLimits().label_epoch / 1000)
    assert keys.epoch == 2


def test_the_next_change_waits_until_the_last_one_is_over() -> None:
    keys = world(20, 21, 22)
    keys.evict(21)
    assert keys.epoch == 2
    keys.evict(22)
    assert keys.epoch == 2
    assert keys.manager.turns() is not None
    keys.join(23)
    assert keys.epoch == 2
    assert keys.brokers[23].keys == {2: keys.key()}
    keys.pass_time(OVERLAP - 1)
    assert keys.epoch == 2
    keys.pass_time(1)
    assert keys.epoch == 3
    assert keys.members() == {20, 23}
    assert 3 not in keys.brokers[22].had


def test_who_has_a_right_again_before_it_is_evicted_stays() -> None:
    keys = world(20, 21)
    keys.rotate()
    # Its right is revoked, and is there again while the labels are changing.
    assert keys.manager.review(keys.now, LABELS, lambda _: [], {who(20)}) == []
    keys.now = at(1)
    keys.join(21)
    keys.pass_time(OVERLAP)
    assert keys.members() == {20, 21}
    assert keys.epoch == 2


@pytest.mark.parametrize("asks", [19, 25], ids=["before its right ends", "after it"])
def test_who_renews_its_right_while_labels_change_stays(asks: float) -> None:
    keys = world(20, 22)
    keys.join(21, right(21, validity=Validity.between(NOW - DAY, at(20))))
    keys.now = at(5)
    keys.evict(22)
    keys.now = at(asks)
    assert keys.manager.tick(keys.now)[0] == []
    (append,) = keys.manager.join(keys.now, joining(21, keys.now, LABELS), grounds(21, right(21), now=keys.now))
    # The log takes its time.
    keys.now = at(26)
    keys.manager.tick(keys.now)
    assert isinstance(append, Append)
    assert at_once(keys.log.append(append.number, append.record.to_bytes()))
    (welcome,) = catch_up(keys.now, keys.manager, keys.log)
    assert isinstance(welcome, Reply)
    keys.now = at(5 + OVERLAP + 1)
    assert not [said for said in keys.manager.tick(keys.now)[0] if isinstance(said, Append)]
    assert keys.members() == {20, 21}


@pytest.mark.parametrize("ends", [CURRENT, Validity.between(NOW - DAY, NOW + 9 * DAY)], ids=["same", "later"])
def test_whom_an_operator_evicts_goes_whatever_its_right(ends: Validity) -> None:
    keys = world(20, 21, 22)
    keys.evict(22)
    # The labels are changing already, so this waits. Meanwhile everybody's right is looked at, and it renews its own.
    keys.evict(21)
    shown = {who(20): grounds(20, right(20)), who(21): grounds(21, right(21, validity=ends))}
    keys.run(keys.manager.review(keys.now, LABELS, shown.__getitem__))
    keys.now = at(1)
    keys.join(21, right(21, validity=ends))
    assert keys.refusals == ["keys.not-member"]
    keys.now = at(1 + OVERLAP)
    keys.run(keys.manager.tick(keys.now)[0])
    assert (keys.members(), keys.epoch) == ({20}, 3)
    # A broker that still asks to join, because its operator says so, comes back then.
    keys.pass_time(5)
    assert keys.members() == {20, 21}


def test_a_broker_that_starts_in_between_gets_the_old_labels_too() -> None:
    keys = world(20)
    old = keys.key()
    keys.rotate()
    keys.now = at(1)
    late = keys.join(21)
    assert late.keys == {2: keys.key()}
    for wanted in (1, 1):
        keys.now = at(2)
        late.take(late.member.history(keys.now, wanted, wanted))
        keys.post(21)
    assert late.keys == {1: old, 2: keys.key()}


@pytest.mark.parametrize(("seconds", "epochs", "first"), [(OVERLAP, 2, 1), (1, 3, 1), (1, 2, 2)])
def test_other_labels_are_not_told(seconds: float, epochs: int, first: int) -> None:
    keys = world(20)
    for _ in range(epochs - 1):
        keys.pass_time(OVERLAP)
        keys.rotate()
    keys.pass_time(seconds)
    late = keys.join(21)
    late.take(late.member.history(keys.now, first, first))
    keys.post(21)
    assert keys.epoch == epochs
    assert keys.refusals[-1] == "keys.not-entitled"
    assert late.keys == {epochs: keys.key()}


def test_who_reads_logs_gets_all_labels_that_were_ever_in_use() -> None:
    keys = world(20)
    for _ in range(2):
        keys.rotate()
        keys.pass_time(OVERLAP)
    reader = keys.brokers[21] = Broker(21, LABELS)
    keys.certificates[21] = right(21, Right.HISTORY)
    for first, last, told in ((1, 99, {1, 2, 3}), (2, 2, {2}), (3, 3, {3}), (4, 9, set())):
        keys.now += SECOND
        reader.keys.clear()
        reader.take(reader.member.history(keys.now, first, last))
        keys.post(21)
        assert {*reader.keys} == told
    assert keys.refusals == ["keys.no-history"]
    assert reader.had == {1: reader.had[1], 2: reader.had[2], 3: keys.key()}
    assert keys.brokers[20].had == reader.had


def test_members_forget_labels_when_nobody_uses_them() -> None:
    keys = world(20)
    keys.rotate()
    keys.pass_time(OVERLAP - 1)
    assert set(keys.brokers[20].keys) == {1, 2}
    keys.pass_time(1)
    assert set(keys.brokers[20].keys) == {2}


def test_a_manager_that_starts_again_knows_that_labels_are_changing() -> None:
    keys = world(20, 21)
    keys.rotate()
    keys.now = at(1)
    keys.restart()
    keys.evict(21)
    assert keys.epoch == 2
    keys.pass_time(OVERLAP)
    assert keys.epoch == 3


def test_groups_are_told_apart() -> None:
    assert LABELS.id != GROUP.id
    assert KeyGroup.from_sexp(LABELS.to_sexp()) == LABELS
    assert LABELS.scope == f"{GROUP.type} labels"


def test_other_groups_go_by_what_was_set() -> None:
    refreshing = replace(Refreshing.by(BrokerLimits()), labels=7_000)
    assert refreshing.of(GROUP) is refreshing
    assert (refreshing.of(LABELS).period, refreshing.of(LABELS).longest) == (7_000, LABEL_LONGEST)
    limits = BrokerLimits(key_epoch=1, key_blocks=2, key_longest=3, label_epoch=4, label_overlap=5)
    assert Refreshing.by(limits) == Refreshing(1, 2, 3, 4, 5)
