"""What a chain of policy events comes to, and the owner's side of it."""

import pytest
from tests.trust.kit import NOW, key, refused, who
from tests.trust.policy_kit import (
    OTHER,
    OWNER,
    PERIOD,
    RIGHTS,
    SECOND,
    author,
    install,
    remove,
    revoke,
    right,
)
from tests.trust.types_kit import PLATE, define

from penstock.errors import LimitError
from penstock.trust.certificates import Authorisation, Threshold, UnverifiedCertificate, issue, read_certificate
from penstock.trust.credentials import UnverifiedCredentials
from penstock.trust.limits import TrustLimits
from penstock.trust.policy_events import BEGINNING, Install, PolicyEvent, PublishCertificates, RequireStamps
from penstock.trust.policy_state import PolicyState, publish
from penstock.trust.tags import ANY

QUORUM = Threshold(1, (who(1), who(2)))


def ids(state: PolicyState) -> set[str]:
    return {certificate.id for certificate in state.credentials}


def test_what_was_published_holds_until_it_is_revoked() -> None:
    policy = author()
    policy.change(NOW, publish(*RIGHTS, quorums=[QUORUM]))
    assert ids(policy.state) == {certificate.id for certificate in RIGHTS}
    assert policy.state.credentials.quorums == (QUORUM,)
    policy.change(NOW, revoke(RIGHTS[0], RIGHTS[2]))
    assert ids(policy.state) == {RIGHTS[i].id for i in (1, 3, 4, 5)}
    assert policy.state.revoked == {RIGHTS[0].id, RIGHTS[2].id}
    policy.change(NOW, publish(RIGHTS[0]))
    assert {one.id for one in policy.state.withdrawn} == policy.state.revoked
    assert [*policy.state.withdrawn] == [RIGHTS[0], RIGHTS[2]]
    policy.checkpoint(NOW)
    assert [*policy.state.withdrawn] == []


def test_publishing_again_does_not_undo_a_revocation() -> None:
    policy = author()
    policy.change(NOW, revoke(RIGHTS[0]), publish(RIGHTS[0]))
    policy.change(NOW, publish(RIGHTS[0]))
    assert ids(policy.state) == set()
    policy.checkpoint(NOW)
    policy.change(NOW, publish(RIGHTS[0]))
    assert ids(policy.state) == set()


def test_types_come_go_and_are_replaced() -> None:
    policy = author()
    policy.change(NOW, install())
    assert set(policy.state.types) == {PLATE.name}
    other = install(define(called=PLATE.name.name))
    policy.change(NOW, other)
    assert policy.state.types[PLATE.name] == other.type
    policy.change(NOW, remove())
    policy.change(NOW, remove())
    assert not policy.state.types


def test_a_checkpoint_says_everything_and_starts_from_nothing() -> None:
    policy = author()
    policy.change(NOW, publish(*RIGHTS, quorums=[QUORUM]), install(), RequireStamps(), revoke(RIGHTS[0]))
    before = policy.state
    (checkpoint,) = policy.checkpoint(NOW)
    assert policy.state == before
    assert PolicyState().after(checkpoint.value) == before
    narrow = policy.change(NOW, publish(RIGHTS[1]), checkpoint=0)
    assert ids(policy.state) == {RIGHTS[1].id}
    assert not policy.state.types
    assert not policy.state.stamps_required
    assert before.after(narrow.value) == policy.state


def test_a_large_policy_takes_a_checkpoint_of_several_events() -> None:
    policy = author()
    for number in range(5):
        statement = Authorisation(who(OWNER), who(number), ANY, comment="x" * 90_000)
        policy.change(NOW, publish(issue(statement, key(OWNER))), revoke(RIGHTS[number]))
    before = policy.state
    first, *rest = policy.checkpoint(NOW)
    assert first.value.checkpoint == len(rest) == 2
    assert policy.state == before
    again = author()
    again.resume([first, *rest])
    assert (again.number, again.state) == (policy.number, before)


def test_a_certificate_that_does_not_verify_spoils_the_whole_event() -> None:
    body, _ = RIGHTS[0].to_sexps()
    good = read_certificate(*RIGHTS[1].to_sexps())
    spoilt = UnverifiedCertificate(RIGHTS[0].statement, body, key(OWNER).public, bytes(64), b"")
    event = PolicyEvent(who(OWNER), 1, BEGINNING, NOW, (PublishCertificates(UnverifiedCredentials((good, spoilt))),))
    with refused("key.bad-signature"):
        PolicyState().after(event)


@pytest.mark.parametrize(
    ("limits", "change"),
    [
        (TrustLimits(certificates=1), publish(*RIGHTS[:2])),
        (TrustLimits(policy_revoked=1), revoke(*RIGHTS[:2])),
        (TrustLimits(policy_types=0), install()),
        (TrustLimits(certificates=0), publish(quorums=[QUORUM])),
    ],
)
def test_a_policy_has_bounds(limits: TrustLimits, change: PublishCertificates | Install) -> None:
    event = PolicyEvent(who(OWNER), 1, BEGINNING, NOW, (change,))
    PolicyState().after(event)
    with pytest.raises(LimitError, match=r"evolution\.limit"):
        PolicyState().after(event, limits=limits)


def test_certificates_of_others_can_be_published() -> None:
    policy = author()
    policy.change(NOW, publish(right(OTHER, issuer=OTHER)))
    (found,) = policy.state.credentials
    assert isinstance(found.statement, Authorisation)
    assert found.statement.issuer == who(OTHER)


def test_an_author_goes_on_where_it_was() -> None:
    policy = author()
    log = [policy.change(NOW, publish(*RIGHTS)), policy.change(NOW + SECOND, revoke(RIGHTS[0]))]
    stamp = policy.stamp(NOW + 2 * SECOND, PERIOD)
    again = author()
    again.resume(log, stamp)
    assert (again.number, again.head, again.state) == (policy.number, policy.head, policy.state)
    with refused("evolution.backwards"):
        again.change(NOW + SECOND)
    with refused("evolution.backwards"):
        again.stamp(NOW + SECOND, PERIOD)
    checkpoint = again.checkpoint(NOW + 3 * SECOND)
    short = author()
    short.resume(checkpoint)
    assert (short.number, short.head, short.state) == (again.number, again.head, again.state)


def test_an_author_does_not_go_on_from_the_wrong_place() -> None:
    policy = author()
    log = [policy.change(NOW, publish(RIGHTS[0])), policy.change(NOW, publish(RIGHTS[1])), policy.change(NOW)]
    for wrong in ([log[1]], [log[0], log[2]], [log[0], log[0]]):
        with refused("evolution.not-next"):
            author().resume(wrong)
    with refused("evolution.not-next"):
        author(OTHER).resume(log)
    fork = author()
    first = fork.change(NOW)
    with refused("evolution.not-next"):
        author().resume([first, log[1]])


def test_what_is_refused_is_not_signed() -> None:
    policy = author()
    with refused("evolution.limit"):
        policy.change(NOW, revoke(*RIGHTS[:1] * 5000))
    assert (policy.number, policy.head) == (0, BEGINNING)
