"""Agreements and profiles in an owner's policy: announced, replaced, ended, and carried by checkpoints."""

from dataclasses import replace

import pytest
from tests.trust.kit import CURRENT, NOW, key, refused, who
from tests.trust.policy_kit import OTHER, OWNER, author

from penstock.codec.sexp import SExp, parse
from penstock.errors import LimitError
from penstock.trust.limits import TrustLimits
from penstock.trust.policy_events import (
    BEGINNING,
    Agree,
    Change,
    EndAgreement,
    ForgetProfiles,
    PolicyEvent,
    PublishProfiles,
)
from penstock.trust.policy_state import PolicyState
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import SignedValue, parse_signed, sign_value


def agreement(name: str = "plant", owner: int = OWNER, said: bytes = b"this") -> Agree:
    """What it says is nothing to whoever carries it."""
    body: SExp = (b"agreement", (b"owner", str(who(owner)).encode()), (b"name", name.encode()), (b"rules", said))
    return Agree(name, (b"sequence", body, (b"signature",)))


def claim(of: int, by: int = OWNER, **values: str | int) -> SignedValue[ProfileClaim]:
    return sign_value(ProfileClaim(who(of), who(by), None, values, CURRENT), key(by))


def describe(*claims: SignedValue[ProfileClaim]) -> PublishProfiles:
    return PublishProfiles(tuple(one.unverified() for one in claims))


def test_a_profile_is_written_and_read() -> None:
    signed = claim(20, role="engineer", age=40)
    read = parse_signed(signed.to_bytes(), ProfileClaim).verify()
    assert read.value == signed.value
    assert list(read.value.subscriber or ()) == ["age", "role"]
    assert read.value.publisher is None
    assert "engineer" not in repr(signed)


@pytest.mark.parametrize(
    "values", ["", "(subscriber (role))", "(publisher role)", '(subscriber ("no name" (integer "1")))']
)
def test_what_is_no_profile(values: str) -> None:
    body = parse(f"(profile (of {who(20)}) (said-by {who(OWNER)}) {values})".encode())
    with refused("evolution.malformed", "name.malformed"):
        ProfileClaim.from_sexp(body)


def test_a_profile_has_a_bound() -> None:
    with refused("moderator.limit"):
        ProfileClaim(who(20), who(OWNER), {f"a{number}": 1 for number in range(300)})


def test_agreements_are_replaced_by_name_and_end() -> None:
    policy = author()
    policy.change(NOW, agreement(), agreement("office"))
    policy.change(NOW, agreement(said=b"that"))
    assert policy.state.agreements == {
        "plant": agreement(said=b"that").agreement,
        "office": agreement("office").agreement,
    }
    policy.change(NOW, EndAgreement("plant"), EndAgreement("nothing"))
    assert list(policy.state.agreements) == ["office"]


def test_profiles_are_replaced_by_whom_they_are_of_and_forgotten() -> None:
    policy = author()
    policy.change(NOW, describe(claim(20, role="engineer"), claim(21, OTHER)))
    policy.change(NOW, describe(claim(20, OTHER, role="worker")))
    assert {of: one.value.said_by for of, one in policy.state.profiles.items()} == {
        who(20): who(OTHER),
        who(21): who(OTHER),
    }
    policy.change(NOW, ForgetProfiles((who(20), who(22))))
    assert list(policy.state.profiles) == [who(21)]


def test_a_checkpoint_says_them_too() -> None:
    policy = author()
    policy.change(NOW, agreement(), describe(claim(20, role="engineer")))
    before = policy.state
    (checkpoint,) = policy.checkpoint(NOW)
    assert PolicyState().after(checkpoint.value) == policy.state == before
    for change in (EndAgreement("plant"), ForgetProfiles((who(20),))):
        with refused("evolution.malformed"):
            policy.change(NOW, change, checkpoint=0)


def test_a_profile_that_does_not_verify_spoils_the_whole_event() -> None:
    forged = replace(claim(20).unverified(), signature=bytes(64))
    event = PolicyEvent(who(OWNER), 1, BEGINNING, NOW, (agreement(), PublishProfiles((forged,))))
    with refused("key.bad-signature"):
        PolicyState().after(event)


def test_agreements_are_about_ones_own_types() -> None:
    with refused("evolution.foreign-agreement"):
        author().change(NOW, agreement(owner=OTHER))


@pytest.mark.parametrize("name", ["", "two words", "-", "x" * 65, "é"])
def test_names_that_no_agreement_has(name: str) -> None:
    for change in (agreement(name), EndAgreement(name)):
        with refused("evolution.malformed", "sexp.text"):
            author().change(NOW, change)


@pytest.mark.parametrize(
    "change", ["(agree)", "(agree plant)", "(agree (sequence (agreement)))", "(end-agreement)", "(describe x)"]
)
def test_changes_that_are_none(change: str) -> None:
    body = PolicyEvent(who(OWNER), 1, BEGINNING, NOW, ()).to_sexp()
    assert isinstance(body, tuple)
    with refused("evolution.malformed"):
        PolicyEvent.from_sexp((*body[:-1], (b"changes", parse(change.encode()))))


@pytest.mark.parametrize(
    ("limits", "change"),
    [(TrustLimits(policy_agreements=0), agreement()), (TrustLimits(policy_profiles=0), describe(claim(20)))],
)
def test_they_have_bounds(limits: TrustLimits, change: Change) -> None:
    event = PolicyEvent(who(OWNER), 1, BEGINNING, NOW, (change,))
    PolicyState().after(event)
    with pytest.raises(LimitError, match=r"evolution\.limit"):
        PolicyState().after(event, limits=limits)
