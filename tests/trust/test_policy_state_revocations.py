"""Whose revocation counts where, and from when on."""

from datetime import UTC, datetime, timedelta

from tests.trust.kit import NOW, passing, who
from tests.trust.policy_kit import OTHER, OWNER, RIGHTS, at, author, revoke, right
from tests.trust.test_policy_state import QUORUM

from penstock.trust.credentials import Credentials
from penstock.trust.discovery import sift
from penstock.trust.policy_state import Revocations

FOREIGN = right(30, issuer=OTHER)
BAG = Credentials.of(passing(OWNER, OTHER), FOREIGN, *RIGHTS, quorums=[QUORUM])


def by(principal: int, *certificates: str) -> Revocations:
    return Revocations({who(principal): frozenset(certificates)})


def test_nothing_is_struck_where_nothing_is_revoked() -> None:
    assert Revocations().strike(BAG, who(OWNER)) is BAG
    assert by(OWNER, "cert:other").strike(BAG, who(OWNER)) is BAG


def test_what_the_issuer_revoked_counts_nowhere() -> None:
    revocations = by(OTHER, FOREIGN.id)
    for root in (OWNER, OTHER, 99):
        left = revocations.strike(BAG, who(root))
        assert FOREIGN not in left.certificates
        assert len(left) == len(BAG) - 1
        assert left.quorums == BAG.quorums


def test_what_an_owner_revoked_counts_no_longer_by_its_word() -> None:
    revocations = by(OWNER, FOREIGN.id)
    assert FOREIGN not in revocations.strike(BAG, who(OWNER)).certificates
    # What others decide by it is theirs.
    assert revocations.strike(BAG, who(OTHER)) is BAG


def test_a_stranger_revokes_nothing() -> None:
    assert by(99, FOREIGN.id, RIGHTS[0].id).strike(BAG, who(OWNER)) is BAG


def test_a_chain_says_until_when_a_certificate_counted() -> None:
    owner = author()
    first, again, other = RIGHTS[0], RIGHTS[0], RIGHTS[1]
    chain = [owner.change(at(5), revoke(first)), owner.change(at(6), revoke(again, other)), *owner.checkpoint(at(7))]
    found = Revocations.of_chains([chain])
    assert found.strike(BAG, who(OWNER)) is BAG, "the past stays as it was"
    ends = found.ends(BAG, who(OWNER))
    assert {id_: end.ends for id_, end in ends.items()} == {
        first.id: at(5) - timedelta(microseconds=1),
        other.id: at(6) - timedelta(microseconds=1),
    }
    assert found.listed() == [(str(who(OWNER)), id_, str(ends[id_]).split()[-1]) for id_ in sorted(ends)]


def test_a_chain_that_begins_with_a_checkpoint_does_not_say_when() -> None:
    owner = author()
    owner.change(at(1), revoke(RIGHTS[0]))
    chain = [*owner.checkpoint(at(2)), owner.change(at(3), revoke(RIGHTS[0], RIGHTS[1]))]
    found = Revocations.of_chains([chain])
    assert found.by_owner == {who(OWNER): {RIGHTS[0].id}}
    assert found.ended.keys() == {who(OWNER)}
    assert found.ended[who(OWNER)].keys() == {RIGHTS[1].id}
    # The very first event of all says nothing that was said before.
    begun = author()
    begun.state = owner.state
    assert not Revocations.of_chains([begun.checkpoint(at(2))]).by_owner[who(OWNER)]


def test_an_order_from_the_beginning_of_time_leaves_nothing() -> None:
    chain = [author().change(datetime.min.replace(tzinfo=UTC), revoke(RIGHTS[0]))]
    assert Revocations.of_chains([chain]).revoked(RIGHTS[0].id, [who(OWNER)])


def test_the_first_of_two_orders_counts_and_those_of_strangers_do_not() -> None:
    chains = [[author(number).change(at(seconds), revoke(FOREIGN))] for number, seconds in ((OWNER, 9), (OTHER, 4))]
    found = Revocations.of_chains([*chains, [author(99).change(at(1), revoke(FOREIGN, RIGHTS[0]))]])
    assert found.ends(BAG, who(OWNER)).keys() == {FOREIGN.id}
    assert found.ends(BAG, who(OWNER))[FOREIGN.id].ends == at(4) - timedelta(microseconds=1)
    assert found.about(frozenset({RIGHTS[0].id})).ended.keys() == {who(99)}


def test_what_was_revoked_is_no_evidence_afterwards() -> None:
    ends = Revocations.of_chains([[author().change(at(5), revoke(RIGHTS[0]))]]).ends(BAG, who(OWNER))
    for now, left in ((at(4.9), True), (at(5), False), (None, True)):
        found = sift(BAG, now, ends=ends)
        assert ([one.code for one in found.unusable] == []) is left
        validities = {five.because: five.validity for five in found.fives}
        if left:
            assert validities[RIGHTS[0].id,].ends == at(5) - timedelta(microseconds=1)
    assert [one.code for one in sift(BAG, NOW + timedelta(days=1), ends=ends).unusable] == ["cert.revoked"]
