"""Policies at nodes that run: what clients get changes with them, and clients notice nothing."""

from tests.broker.node_kit import client_of, refused, run, running, settings
from tests.broker.sports import AGENCY, NEWS, PDA, REPORTER
from tests.broker.test_agreed import nothing
from tests.broker.test_policy import READING, WRITING
from tests.guard.policy_kit import policy

from penstock.broker.feeds import Feed, Subscription
from penstock.guard.policies import Policies, PolicyCombining
from penstock.model import Domain, Event
from penstock.policy.policies import Root
from penstock.trust.certificates import Naming, issue

#: the headline is for the press, by the word of the owner, at home where the owner is
PRESS = policy(
    'permit target clause does == "publish"',
    'deny target clause part == "headline" condition not ("press" in role and home == owner_home)',
    "permit",
    apply="first-applicable",
)
HOME = Domain("Agency", AGENCY.principal, clients=(PDA.principal, REPORTER.principal))
MEMBER = issue(Naming(AGENCY.principal, b"press", PDA.principal), AGENCY)


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
