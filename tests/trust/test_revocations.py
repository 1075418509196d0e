"""Whose revocation counts where."""

from tests.trust.kit import passing, who
from tests.trust.policy_kit import OTHER, OWNER, RIGHTS, right
from tests.trust.test_policy_state import QUORUM

from penstock.trust.credentials import Credentials
from penstock.trust.revocations import Revocations

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
