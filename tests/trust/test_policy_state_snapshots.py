"""What a broker keeps of an owner's policy: all of it, and nothing else, comes back."""

import pytest
from tests.trust.kit import NOW, key, refused, who
from tests.trust.policy_kit import BROKER, NEIGHBOUR, OTHER, OWNER, PERIOD, RIGHTS, author, revoke

from penstock.codec.sexp import canonical, parse_many
from penstock.crypto import digest
from penstock.errors import PenstockError
from penstock.trust.policy_state import PolicySnapshot, publish, read_snapshot, write_snapshot
from penstock.trust.signed import sign_value

POLICY = author()
EVENTS = [POLICY.change(NOW, publish(RIGHTS[0])), POLICY.change(NOW, revoke(RIGHTS[0]))]
STAMPS = [POLICY.stamp(NOW, PERIOD)]
DATA = write_snapshot(who(OWNER), EVENTS, STAMPS, NOW, key(BROKER))


def test_a_snapshot_is_read_back() -> None:
    assert read_snapshot(DATA, who(BROKER)) == (who(OWNER), EVENTS, STAMPS)
    empty = write_snapshot(who(OWNER), (), (), NOW, key(BROKER))
    assert read_snapshot(empty, who(BROKER)) == (who(OWNER), [], [])


def test_the_snapshot_of_another_broker_is_refused() -> None:
    with refused("evolution.snapshot"):
        read_snapshot(DATA, who(NEIGHBOUR))


def test_whatever_is_left_out_or_added_or_moved_is_noticed() -> None:
    *values, seal = parse_many(DATA)
    for order in ((0, 1), (0, 1, 2, 0), (1, 0, 2), ()):
        changed = [values[place] for place in order]
        with refused("evolution.snapshot"):
            read_snapshot(b"".join(canonical(value) for value in (*changed, seal)), who(BROKER))
    with refused("evolution.malformed"):
        read_snapshot(b"".join(canonical(value) for value in values), who(BROKER))
    with refused("evolution.malformed"):
        read_snapshot(b"", who(BROKER))


def test_every_changed_byte_is_refused() -> None:
    for place in range(0, len(DATA), 3):
        changed = bytearray(DATA)
        changed[place] ^= 1 << place % 8
        with pytest.raises(PenstockError):
            read_snapshot(bytes(changed), who(BROKER))


def test_a_snapshot_is_about_one_owner_and_holds_its_words_alone() -> None:
    foreign = author(OTHER).change(NOW)
    with refused("evolution.malformed"):
        read_snapshot(write_snapshot(who(OWNER), [foreign], (), NOW, key(BROKER)), who(BROKER))
    for value in (b"junk", (), (b"sequence",)):
        seal = sign_value(PolicySnapshot(who(BROKER), who(OWNER), NOW, 1, digest((value,))), key(BROKER))
        with refused("evolution.malformed"):
            read_snapshot(canonical(value) + seal.to_bytes(), who(BROKER))
