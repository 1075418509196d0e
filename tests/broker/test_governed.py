"""Policies at nodes that run: what clients get changes with them, and clients notice nothing."""

from tests.broker.local.test_agreed import ALL, arrives, nothing, subscribe
from tests.broker.node.test_policies import READING, WRITING
from tests.broker.node_kit import client_of, refused, run, running, settings
from tests.broker.sports import (
    AGENCY,
    CONNECT,
    NEWS,
    NOW,
    PDA,
    REPORTER,
    Node,
    definition,
    grant,
    signed,
    stocked,
)
from tests.guard.policy_kit import policy

from penstock.broker.client.client import Feed, Subscription
from penstock.broker.local.decisions import AuthoritySources
from penstock.broker.local.requests import Given
from penstock.guard import ENVIRONMENT, Effect, EventRequest, decide
from penstock.guard.policies import Policies, PolicyCombining
from penstock.model import Domain, Event, TransitEvent
from penstock.policy.language.policies import Root
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Certificate, NameCertificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.policy_state import Revocations
from penstock.trust.validity import Validity

#: the headline is for the press, by the word of the owner, at home where the owner is
PRESS = policy(
    'permit target clause does == "publish"',
    'deny target clause part == "headline" condition not ("press" in role and home == owner_home)',
    "permit",
    apply="first-applicable",
)
HOME = Domain("Agency", AGENCY.principal, clients=(PDA.principal, REPORTER.principal))
MEMBER = issue(NameCertificate(AGENCY.principal, b"press", PDA.principal), AGENCY)


def policies(*roots: Root, **more: object) -> Policies:
    return Policies.of(*roots, domains=(HOME,), **more)  # type: ignore[arg-type]  # of `Policies.of`


def reading(condition: str) -> Root:
    """Return a policy for readers; whoever may publish may go on."""
    return policy('permit target clause does == "publish"', f"permit condition {condition}", apply="permit-overrides")


async def arriving(feed: Feed, sub: Subscription, headline: str | None) -> Event:
    """Publish until an event arrives that shows this headline."""
    while True:
        await feed.publish(headline="won", location="Rome")
        try:
            event = await sub.next(0.2)
        except TimeoutError:
            continue
        if event["headline"] == headline:
            return event


def test_what_policies_say_changes_what_is_delivered_and_clients_notice_nothing() -> None:
    async def test() -> None:
        plain = (READING, WRITING)
        async with (
            running(*plain, policies=policies(PRESS)) as node,
            client_of(node, PDA) as reader,
            client_of(node, REPORTER) as writer,
        ):
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            event = await arriving(feed, news, None)
            assert event["location"] == "Rome"
            # The owner gives the reader a role.
            node.reload(settings(*plain, MEMBER, policies=policies(PRESS)))
            await arriving(feed, news, "won")
            # At home elsewhere, the role is not enough.
            node.reload(settings(*plain, MEMBER, policies=Policies.of(PRESS)))
            await arriving(feed, news, None)
            # A policy that looks at the event, and one that looks at the clock.
            node.reload(settings(*plain, policies=policies(reading('place == "Rome"'))))
            await arriving(feed, news, "won")
            node.reload(settings(*plain, policies=policies(reading("hour > 23"))))
            await nothing(feed, news)
            node.reload(settings(*plain, policies=policies(reading("hour < 24"))))
            await arriving(feed, news, "won")
            # Without rights by certificates there is nothing that policies could leave.
            node.reload(settings(WRITING, policies=policies(policy("permit"))))
            await nothing(feed, news)
            alone = {"combining": PolicyCombining.ALONE, "owners": [AGENCY.principal]}
            node.reload(settings(WRITING, policies=policies(policy("permit"), **alone)))
            await arriving(feed, news, "won")
            # Publishers are asked as well, and told.
            node.reload(settings(*plain, policies=policies(policy('permit target clause does == "subscribe"'))))
            await refused("broker.not-advertised", feed.publish(headline="won"))
            node.reload(settings(*plain))
            await arriving(feed, news, "won")

    run(test())


# Without a network: which events a subscription brings, type by type, and while roles last.


def node(made: Policies, *certificates: Certificate, revoked: tuple[str, ...] = ()) -> Node:
    found = Node()
    known = Credentials.of(*CONNECT, *ALL, *certificates)
    revocations = Revocations({AGENCY.principal: frozenset(revoked)})
    found.run(
        found.broker.change(NOW, sources=AuthoritySources(known, revocations=revocations, policies=made, revision="r"))
    )
    for who in (PDA, REPORTER):
        found.connect(who)
    subscribe(found)
    return found


def test_with_a_right_on_a_type_come_those_below_as_far_as_policies_permit() -> None:
    deny = policy('deny target clause type_name == "SoccerMatch" or type_name == "LiveFeed"', "permit")
    assert arrives(node(policies(deny))) == ["SportsNews", "TennisMatch", "SoccerGoal"]
    # What lies below can be had without what lies above, and by what it has of its own.
    below = reading('"sets" in has')
    assert arrives(node(policies(below))) == ["TennisMatch"]


def test_a_type_that_comes_later_is_asked_about() -> None:
    made = policies(policy('deny target clause type_name == "Regatta"', "permit"))
    found = node(made, grant(REPORTER, NEWS, Right.PUBLISH))
    for name, heard in (("Rowing", True), ("Regatta", False)):
        new = definition(name, {}, NEWS.name)
        event = TransitEvent(new.name.key, (NEWS.name.key,), {}, name, NOW)
        # As long as nobody here knows it, nothing is known of it.
        assert not any(isinstance(said, Given) for said in found.inject(event))
        found.run(found.broker.change(NOW, installed=[signed(new)]))
        assert any(isinstance(said, Given) for said in found.inject(event)) is heard, name


def test_a_role_ends_with_its_certificate() -> None:
    later = NOW.replace(hour=13)
    until_then = issue(
        NameCertificate(AGENCY.principal, b"press", PDA.principal, Validity.between(None, later)), AGENCY
    )
    press = policies(reading('"press" in role'))
    found = node(press, until_then)
    found.run(found.broker.advertise(NOW, "reporter", NEWS.name.name, NEWS.name))
    for moment, heard in ((NOW, True), (later.replace(minute=1), False)):
        found.now = moment
        assert any(isinstance(said, Given) for said in found.publish(NEWS, headline="h")) is heard
    # What was revoked is not a role.
    assert arrives(node(press, until_then)) != []
    assert arrives(node(press, until_then, revoked=(until_then.id,))) == []


def test_decisions_are_recorded_with_policies() -> None:
    made = Policies.of(policy("permit"))
    found = node(made)
    record = next(one for one in found.records if one.action is Right.SUBSCRIBE and one.resource == NEWS.name)
    assert record.revision == f"r {made.revision}"
    assert "policy:t.plates" in record.because


def test_brokers_publish_and_read_for_others_and_are_not_asked() -> None:
    sources = AuthoritySources(Credentials.of(*ALL), policies=policies(policy("deny")))
    news = stocked().get(NEWS.name, NOW)
    request = EventRequest(PDA.principal, Right.SUBSCRIBE, news, NOW)
    shown = Credentials(), ENVIRONMENT
    assert decide(request, sources.authorities(*shown)).effect is Effect.PERMIT
    assert decide(request, sources.for_clients(*shown)).effect is Effect.DENY
