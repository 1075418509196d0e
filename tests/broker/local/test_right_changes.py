"""Clients that watch their rights learn exactly what asking again would tell them, and when it differs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.sports import NEWS, NOW, PDA, REPORTER, SOCCER, TENNIS, Node, grant, signed

from penstock.broker.local import requests
from penstock.broker.local.decisions import AuthoritySources
from penstock.broker.local.requests import Accepted, Output, Refused, RightChanged
from penstock.errors import FailedError
from penstock.guard.decision_log import DecisionRecord
from penstock.model import TypeDefinition
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.policy_state import Revocations
from penstock.trust.refusals import RightChange
from penstock.trust.validity import Validity

TOP = grant(PDA, NEWS, Right.SUBSCRIBE)
HEADLINES = grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"])
BELOW = grant(PDA, TENNIS, Right.SUBSCRIBE)
ASKING = grant(PDA, NEWS, Right.RESTRICTIONS)
PUBLISHING = grant(REPORTER, SOCCER, Right.PUBLISH)


def watching(*policy: Certificate, **options: object) -> Node:
    made = Node(**options)  # type: ignore[arg-type]  # of Node
    made.policy(*policy)
    made.connect(PDA)
    made.connect(REPORTER)
    for who in ("pda", "reporter"):
        (accepted,) = made.run(made.broker.watch_rights(made.now, who))
        assert isinstance(accepted, Accepted)
    return made


def subscribe(made: Node, id: str = "s", one: TypeDefinition = NEWS) -> list[Output]:  # noqa: A002  # as clients call it
    return made.run(made.broker.subscribe(made.now, "pda", id, one.name))


def changes(outputs: Iterable[Output]) -> list[tuple[str, str]]:
    return [(one.asked.id, str(one.change)) for one in outputs if isinstance(one, RightChanged)]


def test_a_right_that_is_withdrawn_is_told_as_the_refusal_that_asking_again_gives_and_comes_back() -> None:
    made = watching(TOP)
    assert changes(subscribe(made)) == []
    (told,) = made.policy()
    assert isinstance(told, RightChanged)
    assert told.change is RightChange.WITHDRAWN
    (asked_again,) = subscribe(made, "other")
    assert isinstance(asked_again, Refused)
    assert told.refused is not None
    assert (told.refused.code, told.refused.message, told.refused.hint, told.refused.lacked) == (
        asked_again.code,
        asked_again.message,
        asked_again.hint,
        asked_again.lacked,
    )
    assert changes(made.policy()) == []
    assert changes(made.policy(BELOW)) == [("s", "restored")]
    assert changes(made.policy(BELOW)) == []


def test_the_refusal_names_the_certificate_that_was_revoked() -> None:
    made = watching()
    made.run(made.broker.disclose(made.now, "pda", Credentials.of(TOP)))
    subscribe(made)
    gone = Revocations({TOP.statement.issuer: frozenset((TOP.id,))})
    connecting = Credentials.of(grant(PDA, None, Right.CONNECT), grant(REPORTER, None, Right.CONNECT))
    sources = AuthoritySources(connecting, revocations=gone)
    (told,) = made.run(made.broker.change(made.now, sources=sources))
    assert isinstance(told, RightChanged)
    assert told.refused is not None
    assert [one.certificate for one in told.refused.revoked] == [TOP.id]


def test_how_a_request_is_restricted_is_told_only_where_the_owner_lets_the_client_ask() -> None:
    made = watching(TOP)
    subscribe(made)
    assert made.policy(HEADLINES) == []
    assert changes(made.policy(HEADLINES, ASKING)) == [], "another right to ask does not change the restriction"
    (told,) = made.policy(TOP, ASKING)
    assert isinstance(told, RightChanged)
    assert told.change is RightChange.RESTRICTED
    assert told.detail is not None
    assert told.detail.missing == ()
    (told,) = made.policy(ASKING)
    assert isinstance(told, RightChanged)
    assert told.detail is not None
    assert [one.about for one in told.detail.missing][:1] == [NEWS.name]
    assert made.policy() == []
    (told,) = made.policy(HEADLINES)
    assert isinstance(told, RightChanged)
    assert (told.change, told.detail) == (RightChange.RESTORED, None)


def test_another_certificate_for_the_same_right_and_a_later_end_change_nothing() -> None:
    def until(days: int) -> Certificate:
        return grant(PDA, NEWS, Right.SUBSCRIBE, valid=Validity.between(NOW, NOW + timedelta(days=days)))

    made = watching(until(1), ASKING)
    subscribe(made)
    assert made.policy(until(2), ASKING) == []
    made.now = NOW + timedelta(days=3)
    said, _ = made.broker.tick(made.now)
    assert changes(made.run(said)) == [("s", "withdrawn")]


def test_a_type_that_goes_takes_the_right_with_it_and_brings_it_back() -> None:
    made = watching(TOP)
    subscribe(made)
    (told,) = made.run(made.broker.change(made.now, removed=[NEWS.name]))
    assert isinstance(told, RightChanged)
    assert told.refused is not None
    assert told.refused.code == "broker.unknown-type"
    assert changes(made.run(made.broker.change(made.now, installed=[signed(NEWS)]))) == [("s", "restored")]


def test_publishers_are_told_too() -> None:
    made = watching(PUBLISHING)
    made.run(made.broker.advertise(made.now, "reporter", "a", SOCCER.name))
    (told,) = made.policy()
    assert isinstance(told, RightChanged)
    assert told.session == "reporter"
    assert told.refused is not None
    assert told.refused.lacked is not None
    assert told.refused.lacked.right is Right.PUBLISH
    assert changes(made.policy(PUBLISHING)) == [("a", "restored")]


def test_who_begins_to_watch_is_told_what_has_no_right_and_who_does_not_watch_is_told_nothing() -> None:
    made = Node()
    made.policy(TOP, BELOW)
    made.connect(PDA)
    subscribe(made, "news")
    subscribe(made, "tennis", TENNIS)
    assert made.policy(BELOW) == []
    made.policy()
    made.policy(grant(PDA, TENNIS, Right.SUBSCRIBE, attributes=["sets"]))
    made.run(made.broker.change(made.now, removed=[NEWS.name]))
    assert changes(made.run(made.broker.watch_rights(made.now, "pda"))) == [("news", "withdrawn")]
    assert changes(made.run(made.broker.watch_rights(made.now, "pda"))) == [], "asking again does not flood the client"


def test_what_could_not_be_recorded_is_told_once_when_it_could() -> None:
    made = watching(TOP)
    subscribe(made)

    def full(_record: DecisionRecord) -> None:
        raise FailedError("log.write", "the disk is full")

    made.sink = full
    with pytest.raises(FailedError):
        made.policy()
    made.sink = None
    assert changes(made.run(made.broker.catch_up(made.now))) == [("s", "withdrawn")]
    assert changes(made.run(made.broker.catch_up(made.now))) == []


# Random policies, against asking again at each step.


HOUR = timedelta(hours=1)
CERTIFICATES = (
    TOP,
    HEADLINES,
    BELOW,
    ASKING,
    grant(PDA, NEWS, Right.SUBSCRIBE, forced={"location": "London"}),
    grant(PDA, NEWS, Right.SUBSCRIBE, forced={"location": "London"}, valid=Validity.between(NOW, NOW + 5 * HOUR)),
    grant(PDA, NEWS, Right.SUBSCRIBE, valid=Validity.between(NOW + 2 * HOUR, NOW + 9 * HOUR)),
    grant(PDA, NEWS, Right.SUBSCRIBE, forced={"agency": "A"}),
)


@dataclass
class _Asked:
    """The outcome of asking again: the code of the refusal, what is granted, and whether the client may know that."""

    code: str = ""
    message: str = ""
    granted: list[object] = field(default_factory=list)
    may_know: bool = False


def ask_again(made: Node) -> _Asked:
    made.connect(PDA, "again")
    said = made.run(made.broker.subscribe(made.now, "again", "s", NEWS.name))
    report = made.reports[-1] if made.reports[-1].session == "again" else None
    asked = _Asked()
    for one in said:
        if isinstance(one, Refused):
            asked = _Asked(one.code, one.message, may_know=one.detail is not None)
    if not asked.code:
        assert report is not None
        asked.granted = [(key, _undated(restriction)) for key, restriction in report.detail.granted]
        answers = made.run(made.broker.restrictions(made.now, "again", "s"))
        asked.may_know = any(isinstance(one, requests.Answered) for one in answers)
    made.run(made.broker.disconnect(made.now, "again"))
    return asked


def _undated(restriction: object) -> object:
    assert isinstance(restriction, dict)
    branches = [
        {name: value for name, value in one.items() if name not in ("because", "until")}
        for one in restriction["branches"]
    ]
    return sorted(map(str, branches))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.frozensets(st.sampled_from(CERTIFICATES), max_size=3), st.integers(0, 3), st.sampled_from("pppphri")
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_client_is_told_exactly_when_asking_again_would_tell_it_something_else(
    steps: list[tuple[frozenset[Certificate], int, str]],
) -> None:
    made = watching(TOP)
    subscribe(made)
    before = ask_again(made)
    for policy, hours, action in steps:
        made.now += hours * HOUR
        if action == "r":
            said = made.run(made.broker.change(made.now, removed=[NEWS.name]))
        elif action == "i":
            said = made.run(made.broker.change(made.now, installed=[signed(NEWS)]))
        elif action == "h":
            outputs, _ = made.broker.tick(made.now)
            said = made.run(outputs)
        else:
            said = made.policy(*policy)
        told = [one for one in said if isinstance(one, RightChanged)]
        after = ask_again(made)
        if after.code != before.code:
            change = RightChange.WITHDRAWN if after.code else RightChange.RESTORED
        elif not after.code and sorted(map(str, after.granted)) != sorted(map(str, before.granted)) and after.may_know:
            change = RightChange.RESTRICTED
        else:
            change = None
        assert [one.change for one in told] == ([] if change is None else [change])
        for one in told:
            refusal = ("", "") if one.refused is None else (one.refused.code, one.refused.message)
            assert refusal == (after.code, after.message)
            assert (one.detail is not None) == after.may_know
        before = after
