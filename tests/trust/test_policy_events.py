"""Policy events: what can be said in one."""

import pytest
from tests.trust.kit import NOW, grant, key, refused, who
from tests.trust.policy_kit import OTHER, OWNER, RIGHTS, author, install, remove, revoke
from tests.trust.types_kit import PLATE, define

from penstock.codec.sexp import SExp, parse
from penstock.trust.event_types import sign_type
from penstock.trust.policy_events import BEGINNING, Install, PolicyEvent, Remove, Revoke
from penstock.trust.policy_state import publish
from penstock.trust.signed import sign_value


def event(number: int = 1, previous: bytes = BEGINNING, *changes: Install | Remove | Revoke) -> PolicyEvent:
    return PolicyEvent(who(OWNER), number, previous, NOW, changes)


@pytest.mark.parametrize(("number", "previous"), [(0, BEGINNING), (2, BEGINNING), (1, b"x" * 32), (2, b"x" * 31)])
def test_numbers_begin_with_one_which_alone_follows_nothing(number: int, previous: bytes) -> None:
    with refused("evolution.malformed"):
        sign_value(event(number, previous), key(OWNER))


def test_the_number_has_a_bound() -> None:
    sign_value(event(10**15 - 1, b"x" * 32), key(OWNER))
    for number in (10**15, -1):
        with refused("evolution.malformed"):
            sign_value(event(number, b"x" * 32), key(OWNER))


def test_owners_speak_about_their_own_types() -> None:
    foreign = define(OTHER, called="a.B")
    for change in (Install(sign_type(foreign, key(OTHER))), Remove(foreign.name)):
        with refused("evolution.foreign-type"):
            sign_value(event(1, BEGINNING, change), key(OWNER))


def test_a_checkpoint_removes_nothing() -> None:
    with refused("evolution.malformed"):
        author().change(NOW, remove(), checkpoint=0)


@pytest.mark.parametrize(
    "written", ["", "cert:", "cert:UPPER", f"cert:{'a' * 51}", f"cert:{'a' * 53}", f"type:{'a' * 52}"]
)
def test_what_is_revoked_is_a_certificate(written: str) -> None:
    with refused("evolution.malformed"):
        author().change(NOW, Revoke((written,)))


@pytest.mark.parametrize(
    "change", ["()", "(unknown)", "publish", "(remove a)", "(install x)", "(require-stamps now)", "(publish (cert))"]
)
def test_changes_that_are_not_known_are_refused(change: str) -> None:
    body = event().to_sexp()
    assert isinstance(body, tuple)
    changed: SExp = (*body[:-1], (b"changes", parse(change.encode())))
    with refused("evolution.malformed", "cert.unsigned", "cert.malformed"):
        PolicyEvent.from_sexp(changed)


def test_an_event_has_bounds() -> None:
    with refused("evolution.limit"):
        author().change(NOW, *[revoke(RIGHTS[0])] * 4097)
    with refused("evolution.limit"):
        author().change(NOW, revoke(*RIGHTS[:1] * 5000))
    author().change(NOW, *[revoke(RIGHTS[0])] * 1000)


def test_nothing_of_the_policy_is_in_a_repr() -> None:
    secret = grant(OWNER, OTHER)
    signed = author().change(NOW, publish(secret), install(PLATE))
    shown = repr(signed) + repr(signed.value.changes)
    assert "Numberplate" not in shown
    assert str(who(OTHER)) not in shown
