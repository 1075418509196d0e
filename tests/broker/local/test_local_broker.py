"""Local brokers: what policy leaves of requests, live to change, and against an oracle that decides for each event."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.broker.sports import (
    AGENCY,
    CONNECT,
    LIBRARY_TYPES,
    LIVE,
    NETWORK,
    NEWS,
    NOW,
    PDA,
    REPORTER,
    SOCCER,
    SOCCER_GOAL,
    TENNIS,
    Node,
    definition,
    grant,
    signed,
)

from penstock.broker.limits import BrokerLimits
from penstock.broker.local import requests
from penstock.broker.local.decisions import AuthoritySources
from penstock.broker.local.effective_requests import SubscriptionPart
from penstock.broker.local.requests import Accepted, Closed, Given, Output, Quenched, Refused
from penstock.broker.local.sessions import SessionSubscription
from penstock.broker.local.type_library import Library
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.guard.decision_log import DecisionRecord
from penstock.model import Event, TypeDefinition
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.types import Sealing
from penstock.selector import ALWAYS, parse
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials
from penstock.trust.validity import ALWAYS as FOREVER
from penstock.trust.validity import Validity

PUBLISHING = tuple(grant(REPORTER, one, Right.PUBLISH) for one in (NEWS, TENNIS, SOCCER, LIVE, SOCCER_GOAL))
BOTTOM = grant(PDA, TENNIS, Right.SUBSCRIBE)
MEDIUM = grant(PDA, SOCCER, Right.SUBSCRIBE)
TOP = grant(PDA, NEWS, Right.SUBSCRIBE)


def node(*policy: object, **options: object) -> Node:
    made = Node(**options)  # type: ignore[arg-type]  # of Node
    made.policy(*PUBLISHING, *policy)  # type: ignore[arg-type]  # certificates
    made.connect(PDA)
    made.connect(REPORTER)
    for one in (NEWS, TENNIS, SOCCER, LIVE, SOCCER_GOAL):
        made.run(made.broker.advertise(made.now, "reporter", one.name.name, one.name))
    return made


def subscribe(made: Node, one: TypeDefinition = NEWS, text: str | None = None, id: str = "s") -> list[Output]:  # noqa: A002  # as clients call it
    selector = parse(text) if text else ALWAYS
    return made.run(made.broker.subscribe(made.now, "pda", id, one.name, selector))


def given_to(outputs: Iterable[Output], session: str = "pda") -> list[str]:
    given = (output.events for output in outputs if isinstance(output, Given) and output.session == session)
    return [event.id for events in given for event in events]


def refusals(outputs: Iterable[Output]) -> list[str]:
    return [output.code for output in outputs if isinstance(output, Refused)]


def round_of_news(made: Node) -> list[str]:
    said: list[Output] = []
    for one in (NEWS, TENNIS, SOCCER, SOCCER_GOAL):
        said += made.publish(one, id=one.name.name, headline="h", location="London")
    return given_to(said)


# Section 7: three packages, the downgrade of a subscription and its live upgrade.


@pytest.mark.parametrize(
    ("package", "seen"),
    [
        ([BOTTOM], ["TennisMatch"]),
        ([BOTTOM, MEDIUM], ["TennisMatch", "SoccerMatch"]),
        ([TOP], ["SportsNews", "TennisMatch", "SoccerMatch", "SoccerGoal"]),
    ],
)
def test_a_subscription_is_downgraded_to_the_sub_types_of_the_package(package: list[object], seen: list[str]) -> None:
    made = node(*package)
    (said,) = subscribe(made)
    assert isinstance(said, Accepted)
    assert round_of_news(made) == seen


def test_a_policy_change_upgrades_a_live_subscription_and_another_takes_it_back() -> None:
    made = node(BOTTOM)
    subscribe(made)
    assert round_of_news(made) == ["TennisMatch"]
    assert made.policy(*PUBLISHING, BOTTOM, MEDIUM) == []
    assert round_of_news(made) == ["TennisMatch", "SoccerMatch"]
    assert made.policy(*PUBLISHING, TOP) == []
    assert len(round_of_news(made)) == 4
    assert made.policy(*PUBLISHING) == []
    assert round_of_news(made) == []
    assert made.policy(*PUBLISHING, BOTTOM) == []
    assert round_of_news(made) == ["TennisMatch"]


def test_a_policy_change_that_does_not_concern_a_subscription_costs_it_little() -> None:
    made = node(TOP)
    subscribe(made)

    def part() -> SubscriptionPart:
        held = made.broker._sessions["pda"].held["s"]
        assert isinstance(held, SessionSubscription)
        return held.parts[NEWS.name.key]

    before = part()
    made.policy(*PUBLISHING, TOP, grant(REPORTER, NEWS, Right.RESTRICTIONS))
    after = part()
    # It was asked again, and the answer recorded; what follows from the same answer is the same.
    assert after.recorded.record.id != before.recorded.record.id
    assert (after.checked, after.narrow) == (before.checked, before.narrow)
    assert after.checked is before.checked
    assert given_to(made.publish(NEWS, id="1")) == ["1"]
    made.policy(*PUBLISHING, grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"]))
    assert part().checked is not before.checked
    made.policy(*PUBLISHING)
    assert given_to(made.publish(NEWS, id="2")) == []


def test_events_of_sub_types_come_in_the_version_that_was_asked_for() -> None:
    made = node(BOTTOM)
    subscribe(made)
    (said,) = made.publish(TENNIS, headline="h", sets=3)
    assert isinstance(said, Given)
    assert said.events[0].type == LIBRARY_TYPES[NEWS.name]
    assert dict(said.events[0].values) == {"headline": "h", "location": None, "agency": None}


def test_rights_on_a_sub_type_reach_further_than_those_on_the_type() -> None:
    made = node(grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"]), BOTTOM)
    subscribe(made)
    (news,) = made.publish(NEWS, headline="h", location="London")
    (tennis,) = made.publish(TENNIS, headline="h", location="London")
    assert isinstance(news, Given)
    assert isinstance(tennis, Given)
    assert (news.events[0]["location"], tennis.events[0]["location"]) == (None, "London")


def test_what_rights_on_a_type_and_on_a_sub_type_show_is_seen_together() -> None:
    by_type = grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"])
    made = node(by_type, grant(PDA, TENNIS, Right.SUBSCRIBE, attributes=["location"]))
    subscribe(made, text="headline = 'h' AND location = 'London'")
    (said,) = made.publish(TENNIS, headline="h", location="London", agency="a")
    assert isinstance(said, Given)
    assert dict(said.events[0].values) == {"headline": "h", "location": "London", "agency": None}
    assert made.publish(NEWS, headline="h", location="London") == []


def test_a_selector_sees_what_several_rights_show_together() -> None:
    rights = (grant(PDA, NEWS, Right.SUBSCRIBE, attributes=[name]) for name in ("headline", "location", "agency"))
    made = node(*rights)
    subscribe(made, text="headline = 'h' AND location = 'London' AND agency = 'a'")
    assert given_to(made.publish(NEWS, id="1", headline="h", location="London", agency="a")) == ["1"]
    assert "'London'" in filters(made)[0]


def test_a_right_that_depends_on_the_moment_does_not_stand_for_one_that_does_not() -> None:
    rights = [
        grant(PDA, NEWS, Right.SUBSCRIBE, when=("hour < 10",)),
        grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"]),
    ]
    for order in (rights, rights[::-1]):
        made = node(*order)
        subscribe(made)
        (said,) = made.publish(NEWS, headline="h", location="London")
        assert isinstance(said, Given)
        assert (said.events[0]["headline"], said.events[0]["location"]) == ("h", None)


def test_a_right_on_one_version_of_a_sub_type_shows_nothing_that_this_version_lacks() -> None:
    news = NEWS.add("odds", "odds", AttributeSpecs.NUMBER, version="1")
    tennis = replace(TENNIS, name=replace(TENNIS.name, version="1"), extends=news.name, previous="0")
    for version, seen in [("0", None), ("1", 7)]:
        tag = event_tag(AGENCY.principal, "TennisMatch", version, [Right.SUBSCRIBE])
        made = node(issue(Authorisation(AGENCY.principal, PDA.principal, tag, False, FOREVER), AGENCY))
        made.run(made.broker.change(NOW, installed=[signed(news), signed(tennis)]))
        subscribe(made, news)
        event = Event.of(made.library.get(tennis.name, NOW).event_type, {"headline": "h", "odds": 7})
        (said,) = made.inject(event.to_transit())
        assert isinstance(said, Given)
        assert (said.events[0]["headline"], said.events[0]["odds"]) == ("h", seen)


def test_a_new_sub_type_reaches_subscriptions_that_stand() -> None:
    made = node(grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"]))
    subscribe(made)
    golf = definition("Golf", {}, NEWS.name)
    made.run(made.broker.change(NOW, installed=[signed(golf)]))
    event_type = made.library.get(golf.name, NOW).event_type
    event = Event.of(event_type, {"headline": "h", "agency": "a"}, id="golf")
    assert given_to(made.inject(event.to_transit())) == ["golf"]


@pytest.mark.parametrize(("sealing", "seen"), [(Sealing.NONE, ["true", "said"]), (Sealing.ATTRIBUTE, ["true"])])
def test_what_extends_a_sealed_type_is_what_is_known_to_do(sealing: Sealing, seen: list[str]) -> None:
    made = node(TOP, library=Library(NETWORK, limits=BrokerLimits()))
    for one in (NEWS, TENNIS):
        made.library.add(signed(replace(one, sealing=sealing)), NOW)
    subscribe(made)
    headline = str(LIBRARY_TYPES[NEWS.name].by_name["headline"].id)
    invented = TypeKey(REPORTER.principal, "Invented")
    found: list[str] = []
    for key, name in ((TENNIS.name.key, "true"), (invented, "said")):
        event = TransitEvent(key, (NEWS.name.key,), {headline: "h"}, name, NOW)
        found += given_to(made.inject(event))
    assert found == seen


# What the event path pays.


def filters(made: Node) -> list[str]:
    return [o.filter.selector.text for o in made.routed if isinstance(o, requests.Subscribe)]


def test_restrictions_and_selector_go_into_the_filter_with_null_in_the_place_of_what_is_hidden() -> None:
    made = node(grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"], forced={"location": "London"}))
    subscribe(made, text="headline = 'h' AND agency IS NULL")
    headline, location = (LIBRARY_TYPES[NEWS.name].by_name[name].id for name in ("headline", "location"))
    assert filters(made) == [f"\"{location}\" = 'London' AND \"{headline}\" = 'h' AND NULL IS NULL"]
    assert given_to(made.publish(NEWS, id="1", headline="h", location="London", agency="x")) == ["1"]
    assert given_to(made.publish(NEWS, id="2", headline="h", location="Paris")) == []


def test_a_filter_tells_nothing_of_what_is_hidden() -> None:
    made = node(grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"]))
    subscribe(made, text="agency = 'x'")
    assert given_to(made.publish(NEWS, id="1", headline="h", agency="x")) == []


def test_what_comes_by_an_old_key_is_asked_everything() -> None:
    made = node(TOP)
    subscribe(made)
    (old,) = [o.key for o in made.routed if isinstance(o, requests.Subscribe)]
    made.policy(*PUBLISHING, grant(PDA, NEWS, Right.SUBSCRIBE, forced={"location": "London"}))
    for place, seen in [("London", 1), ("Paris", 0)]:
        event = Event.of(LIBRARY_TYPES[NEWS.name], {"location": place}).to_transit()
        assert len(made.path.deliver([((old, "somebody-else's"), event)], NOW)) == seen


def test_new_paths_come_before_old_ones_go_and_the_same_ones_stay() -> None:
    made = node(BOTTOM)
    subscribe(made)
    made.routed.clear()
    made.policy(*PUBLISHING, TOP)
    assert [type(o) for o in made.routed] == [requests.Subscribe, requests.Unsubscribe]
    made.routed.clear()
    made.policy(*PUBLISHING, grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"]))
    assert made.routed == []
    (said,) = made.publish(NEWS, headline="h", location="London")
    assert isinstance(said, Given)
    assert said.events[0]["location"] is None


# Time, credentials and failure.


def test_rights_begin_and_end_at_their_times() -> None:
    first, last = NOW + timedelta(hours=1), NOW + timedelta(hours=2)
    made = node(BOTTOM, grant(PDA, SOCCER, Right.SUBSCRIBE, valid=Validity.between(first, last)))
    subscribe(made)
    assert round_of_news(made) == ["TennisMatch"]
    assert made.broker.tick(made.now)[1] == first
    made.now = first
    outputs, then = made.broker.tick(made.now)
    made.run(outputs)
    assert round_of_news(made) == ["TennisMatch", "SoccerMatch"]
    assert then == last + timedelta(microseconds=1)
    made.now = then
    assert round_of_news(made) == ["TennisMatch"]
    assert made.broker.tick(made.now)[1] is None


def test_what_a_client_disclosed_ends_at_its_time() -> None:
    made = node()
    last = NOW + timedelta(hours=1)
    brief = grant(PDA, TENNIS, Right.SUBSCRIBE, valid=Validity.between(None, last))
    made.run(made.broker.disclose(NOW, "pda", Credentials.of(brief)))
    subscribe(made)
    assert round_of_news(made) == ["TennisMatch"]
    then = made.broker.tick(NOW)[1]
    assert then == last + timedelta(microseconds=1)
    made.now = then
    made.routed.clear()
    made.run(made.broker.tick(then)[0])
    assert [type(o) for o in made.routed] == [requests.Unsubscribe]


def test_a_session_ends_with_the_right_to_connect() -> None:
    made = node(TOP)
    subscribe(made)
    said = made.run(made.broker.change(NOW, sources=AuthoritySources(Credentials.of(CONNECT[1], *PUBLISHING, TOP))))
    assert [type(o) for o in said] == [Refused, Closed]
    assert round_of_news(made) == []
    with pytest.raises(RefusedError) as caught:
        made.broker.subscribe(NOW, "pda", "t", NEWS.name)
    assert caught.value.code == "broker.session"


def test_credentials_disclosed_later_widen_what_was_asked_for() -> None:
    made = node(BOTTOM)
    subscribe(made)
    assert made.run(made.broker.disclose(NOW, "pda", Credentials.of(MEDIUM))) == []
    assert round_of_news(made) == ["TennisMatch", "SoccerMatch"]


def test_what_cannot_be_recorded_is_not_delivered_and_is_made_good_later() -> None:
    made = node(TOP)
    subscribe(made)

    def full(_record: DecisionRecord) -> None:
        raise FailedError("store.failed", "the disk is full")

    made.sink = full
    with pytest.raises(FailedError):
        made.policy(*PUBLISHING, TOP)
    with pytest.raises(FailedError):
        made.publish(NEWS, id="lost")
    made.sink = None
    made.run(made.broker.tick(NOW)[0])
    assert given_to(made.publish(NEWS, id="1")) == ["1"]


def test_a_removed_type_stops_at_once_and_comes_back() -> None:
    made = node(TOP)
    subscribe(made)
    made.run(made.broker.change(NOW, removed=[NEWS.name]))
    assert given_to(made.inject(Event.of(LIBRARY_TYPES[NEWS.name], {}, id="1").to_transit())) == []
    assert made.reports[-1].code in ("broker.unknown-type", "")
    made.run(made.broker.change(NOW, installed=[signed(NEWS)]))
    assert given_to(made.inject(Event.of(LIBRARY_TYPES[NEWS.name], {}, id="2").to_transit())) == ["2"]


# Types.


def test_types_are_added_by_who_may_install_and_removed_by_who_may_manage() -> None:
    golf = definition("Golf", {"holes": AttributeSpecs.NUMBER}, NEWS.name)
    made = node(TOP)
    assert refusals(made.run(made.broker.add_type(NOW, "pda", signed(golf)))) == ["broker.not-permitted"]
    made.policy(TOP, grant(PDA, None, Right.INSTALL))
    assert refusals(made.run(made.broker.add_type(NOW, "pda", signed(golf)))) == []
    other = signed(replace(golf, attributes=()))
    assert refusals(made.run(made.broker.add_type(NOW, "pda", other))) == ["broker.type-exists"]
    assert refusals(subscribe(made, golf, id="golf")) == ["broker.not-permitted"]
    assert refusals(made.run(made.broker.remove_type(NOW, "pda", golf.name))) == ["broker.not-permitted"]
    made.policy(TOP, grant(PDA, golf_of(made, golf), Right.MANAGE))
    assert refusals(made.run(made.broker.remove_type(NOW, "pda", golf.name))) == []
    assert refusals(subscribe(made, golf, id="golf")) == ["broker.unknown-type"]


class AttributeSpecs:
    NUMBER = LIBRARY_TYPES[TENNIS.name].by_name["sets"].spec


def golf_of(made: Node, golf: TypeDefinition) -> TypeDefinition:
    LIBRARY_TYPES[golf.name] = made.library.get(golf.name, NOW).event_type
    return golf


# Publishing.


def test_publication_is_held_to_the_advertisement() -> None:
    made = Node()
    made.policy(TOP, grant(REPORTER, NEWS, Right.PUBLISH, attributes=["headline"], forced={"location": "London"}))
    made.connect(PDA)
    made.connect(REPORTER)
    subscribe(made)
    assert refusals(made.publish(NEWS)) == ["broker.not-advertised"]
    made.run(made.broker.advertise(NOW, "reporter", "SportsNews", NEWS.name))
    (said,) = made.publish(NEWS, headline="h", agency="x", location="Paris")
    assert isinstance(said, Given)
    assert dict(said.events[0].values) == {"headline": "h", "location": "London", "agency": None}
    with pytest.raises(MalformedError) as caught:
        made.publish_as("reporter", "SportsNews", Event(LIBRARY_TYPES[NEWS.name], {"odds": 3}))
    assert caught.value.code == "protocol.row"


def test_an_advertisement_is_downgraded_and_upgraded() -> None:
    made = Node()
    made.policy(TOP, PUBLISHING[1])
    made.connect(PDA)
    made.connect(REPORTER)
    subscribe(made)
    made.run(made.broker.advertise(NOW, "reporter", "all", NEWS.name))
    tennis, news = (Event.of(LIBRARY_TYPES[one.name], {}, id=one.name.name) for one in (TENNIS, NEWS))
    assert given_to(made.publish_as("reporter", "all", tennis)) == ["TennisMatch"]
    assert refusals(made.publish_as("reporter", "all", news)) == ["broker.not-advertised"]
    made.policy(TOP, PUBLISHING[0])
    assert given_to(made.publish_as("reporter", "all", news)) == ["SportsNews"]
    assert refusals(made.publish_as("reporter", "all", tennis)) == ["broker.not-advertised"]


def test_publishers_are_quenched_while_nobody_wants_their_events() -> None:
    made = Node()
    made.policy(TOP, PUBLISHING[0])
    made.connect(REPORTER)
    made.run(made.broker.advertise(NOW, "reporter", "news", NEWS.name))
    (key,) = [o.key for o in made.routed if isinstance(o, requests.Advertise)]
    assert made.broker.wanted(key, wanted=False) == [Quenched("reporter", "news", True)]
    assert made.broker.wanted(key, wanted=False) == []
    assert made.broker.wanted(key, wanted=True) == [Quenched("reporter", "news", False)]
