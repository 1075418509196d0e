"""Agreed rules at nodes that run: owners announce them, and what is delivered changes while clients notice nothing."""

import asyncio
from dataclasses import replace
from datetime import datetime

from tests.broker.node.test_policies import READING, WRITING, complete_at, now, number_at, two_brokers
from tests.broker.node_kit import LONG, client_of, flow, refused, run, running, settings, until
from tests.broker.sports import (
    AGENCY,
    CONNECT,
    LIBRARY_TYPES,
    LIVE,
    NEWS,
    NOW,
    PDA,
    REPORTER,
    SOCCER,
    SOCCER_GOAL,
    STRANGER,
    TENNIS,
    TYPES,
    Node,
    grant,
    stocked,
)

from penstock.broker.client.client import Feed, Subscription
from penstock.broker.local.decisions import AuthoritySources
from penstock.broker.local.requests import Given, Refused
from penstock.crypto import SigningKey
from penstock.guard import ENVIRONMENT, Agreement, AgreementMode, Agreements, Effect, EventRequest, decide
from penstock.guard.agreements import AgreedRules, described
from penstock.model import Event
from penstock.model.names import TypeKey
from penstock.model.profiles import ProfileSchema, alphabetic
from penstock.model.tree import TreeScope, TypeTree
from penstock.model.values import AttributeSpec, Kind
from penstock.moderator.rules.rules import PublishRule, Rule, SubscribeRule
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.selector import parse
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.policy_events import Agree, EndAgreement, ForgetProfiles, PublishProfiles
from penstock.trust.policy_state import PolicyAuthor, publish
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import SignedValue, sign_value
from penstock.trust.validity import Validity

MAKERS = ProfileSchema({"licensed": AttributeSpec(Kind.BOOLEAN)})
READERS = ProfileSchema({"role": alphabetic("fan", "player")})
PARENTS = {one.name.key: None if one.extends is None else one.extends.key for one in TYPES}


def rule(
    id_: str,
    fnc_s: str = "TRUE",
    fnc_p: str = "TRUE",
    *,
    about: TypeKey = NEWS.name.key,
    of: SigningKey = REPORTER,
) -> PublishRule:
    return PublishRule(id_, about, (of.principal,), of.principal, parse(fnc_p), parse(fnc_s))


def agreement(
    *rules: Rule, scope: TreeScope = TreeScope.DOWNWARD, combining: AgreementMode = AgreementMode.BOTH
) -> Agreement:
    words = Vocabulary(TypeTree.of(PARENTS, scope), MAKERS, READERS)
    return Agreement(AGENCY.principal, "sports", words, rules, combining=combining, publisher_attribute="agency")


def agree(*rules: Rule, **more: object) -> Agree:
    return Agree("sports", sign_value(agreement(*rules, **more), AGENCY).to_sexp())  # type: ignore[arg-type]  # so


def profile(of: SigningKey, validity: Validity | None = None, **values: str | bool) -> SignedValue[ProfileClaim]:
    reads = of is PDA
    claim = ProfileClaim(of.principal, AGENCY.principal, None if reads else values, values if reads else None)
    return sign_value(claim if validity is None else replace(claim, validity=validity), AGENCY)


def describe(*profiles: SignedValue[ProfileClaim]) -> PublishProfiles:
    return PublishProfiles(tuple(one.unverified() for one in profiles))


PEOPLE = (profile(REPORTER, licensed=True), profile(PDA, role="fan"))


async def nothing(feed: Feed, sub: Subscription) -> None:
    """Publish, and see that nothing arrives."""
    while sub.waiting:
        await anext(sub)
    await feed.publish(headline="secret")
    await asyncio.sleep(0.15)
    assert not sub.waiting


def test_what_is_agreed_on_changes_what_is_delivered_and_clients_notice_nothing() -> None:
    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        async with two_brokers() as (one, other), client_of(one, PDA) as reader, client_of(other, REPORTER) as writer:

            async def evolve(*changes: Agree | PublishProfiles | ForgetProfiles | EndAgreement) -> None:
                await writer.evolve(author.change(now(), *changes).to_bytes())
                await until(lambda: complete_at(one, author.number))

            await writer.evolve(author.change(now(), publish(READING, WRITING)).to_bytes())
            await evolve(agree(rule("all")), describe(*PEOPLE))
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await flow(feed, news)
            # Events say who published them, whatever their publisher says.
            await feed.publish(headline="h", agency="somebody else")
            while (event := await news.next(LONG))["headline"] != "h":
                pass
            assert event["agency"] == str(REPORTER.principal)
            # A rule that takes the place of another one: certificates are as they were.
            await evolve(agree(rule("players", "role = 'player'")))
            await nothing(feed, news)
            await evolve(describe(profile(PDA, role="player")))
            await flow(feed, news)
            # Nothing is known about the reader, and then what was agreed on is over.
            await evolve(ForgetProfiles((PDA.principal,)))
            await nothing(feed, news)
            await evolve(EndAgreement("sports"))
            await flow(feed, news)
            # A rule that the publisher does not satisfy itself.
            await evolve(agree(rule("strict", "TRUE", "NOT licensed")))
            await refused("broker.not-advertised", feed.publish(headline="h"))

    run(test())


def test_a_broker_that_comes_later_knows_what_was_agreed_on() -> None:
    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        async with running() as one, client_of(one, REPORTER) as writer:
            await writer.evolve(author.change(now(), publish(READING, WRITING)).to_bytes())
            await writer.evolve(author.change(now(), agree(rule("r", "role = 'player'")), describe(*PEOPLE)).to_bytes())
            for event in author.checkpoint(now()):
                await writer.evolve(event.to_bytes())
            async with running(key=SigningKey(bytes([62]) * 32), peers=(one.address,)) as late:
                await until(lambda: number_at(late) == author.number)
                async with client_of(late, PDA) as reader:
                    await refused("broker.not-permitted", reader.subscribe(NEWS.name))
                    await writer.evolve(author.change(now(), describe(profile(PDA, role="player"))).to_bytes())
                    await until(lambda: number_at(late) == author.number)
                    await flow(await writer.advertise(NEWS.name), await reader.subscribe(NEWS.name))

    run(test())


def test_an_agreement_that_cannot_be_read_lets_nothing_pass_and_operators_know() -> None:
    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        good = agree(rule("r"))
        assert isinstance(good.agreement, tuple)
        body = good.agreement[1]
        assert isinstance(body, tuple)
        spoilt = Agree("sports", (good.agreement[0], (*body, (b"unheard-of",)), good.agreement[2]))
        async with running() as one, client_of(one, REPORTER) as writer:
            await writer.evolve(author.change(now(), publish(READING, WRITING), describe(*PEOPLE), spoilt).to_bytes())
            assert "evolution.signature-mismatch" in one.codes
            await refused("broker.not-permitted", writer.advertise(NEWS.name))
            await writer.evolve(author.change(now(), good).to_bytes())
            await writer.advertise(NEWS.name)

    run(test())


def test_a_broker_may_know_from_its_files_what_was_agreed_on() -> None:
    def known(*rules: Rule) -> Agreements:
        made = agreement(*rules)
        return Agreements((AgreedRules(made, described(made, PEOPLE)),))

    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        policy = (READING, WRITING)
        async with (
            running(*policy, agreements=known(rule("r"))) as one,
            client_of(one, PDA) as reader,
            client_of(one, REPORTER) as writer,
        ):
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await flow(feed, news)
            one.reload(settings(*policy, agreements=known(rule("r", "role = 'player'"))))
            await nothing(feed, news)
            # What the owner announces is asked besides.
            await writer.evolve(author.change(now(), agree(rule("all")), describe(*PEOPLE)).to_bytes())
            await nothing(feed, news)
            one.reload(settings(*policy))
            await flow(feed, news)

    run(test())


# Without a network: which events a subscription brings, type by type.


def node(made: Agreement, *certificates: Certificate, profiles: tuple[SignedValue[ProfileClaim], ...] = PEOPLE) -> Node:
    found = Node()
    rules = AgreedRules(made, described(made, profiles))
    policy = Credentials.of(*CONNECT, grant(STRANGER, None, Right.CONNECT), *certificates)
    found.run(found.broker.change(NOW, sources=AuthoritySources(policy, agreements=Agreements((rules,)))))
    for who in (PDA, REPORTER, STRANGER):
        found.connect(who)
    return found


def subscribe(found: Node) -> None:
    found.run(found.broker.subscribe(NOW, "pda", "s", NEWS.name))


def arrives(found: Node) -> list[str]:
    """Return of which types events arrive when one of each is published."""
    arrived = []
    for one in (NEWS, TENNIS, SOCCER, LIVE, SOCCER_GOAL):
        found.run(found.broker.advertise(NOW, "reporter", one.name.name, one.name))
        if any(isinstance(said, Given) for said in found.publish(one, headline="h")):
            arrived.append(one.name.name)
    return arrived


ALL = [grant(PDA, NEWS, Right.SUBSCRIBE), *(grant(REPORTER, one, Right.PUBLISH) for one in TYPES)]


def test_with_a_right_on_a_type_come_those_below_as_far_as_was_agreed() -> None:
    down = node(agreement(rule("r")), *ALL)
    subscribe(down)
    assert arrives(down) == [one.name.name for one in (NEWS, TENNIS, SOCCER, LIVE, SOCCER_GOAL)]
    # Upwards a rule on a type says nothing about those below, and the one on goals lets nobody in.
    rules = (
        rule("news"),
        rule("live", about=LIVE.name.key),
        rule("goal", "role = 'player'", about=SOCCER_GOAL.name.key),
        rule("tennis", about=TENNIS.name.key),
    )
    up = node(agreement(*rules, scope=TreeScope.UPWARD), *ALL)
    subscribe(up)
    assert arrives(up) == ["SportsNews", "TennisMatch", "LiveFeed"]


def test_what_lies_below_can_be_had_without_what_lies_above() -> None:
    rules = (rule("news", "role = 'player'"), rule("tennis", about=TENNIS.name.key))
    found = node(agreement(*rules), *ALL)
    subscribe(found)
    assert arrives(found) == ["TennisMatch"]


def test_whom_a_reader_does_not_want_it_does_not_hear() -> None:
    wish = SubscribeRule("w", NEWS.name.key, PDA.principal, PDA.principal, parse("licensed"))
    both = (rule("r"), rule("s", of=STRANGER), wish)
    people = (*PEOPLE, profile(STRANGER, licensed=False))
    found = node(agreement(*both, combining=AgreementMode.ALONE), profiles=people)
    subscribe(found)
    for session, heard in (("reporter", 1), ("stranger", 0)):
        found.run(found.broker.advertise(NOW, session, "SportsNews", NEWS.name))
        event = Event.of(LIBRARY_TYPES[NEWS.name], {"headline": "h"}, id=session, time=NOW)
        said = found.publish_as(session, "SportsNews", event)
        assert sum(isinstance(one, Given) for one in said) == heard, said


def test_a_profile_that_ends_ends_what_rests_on_it() -> None:
    later = NOW.replace(hour=13)
    people = (PEOPLE[0], profile(PDA, Validity.between(None, later), role="fan"))
    found = node(agreement(rule("r")), *ALL, profiles=people)
    subscribe(found)
    assert arrives(found)[:1] == ["SportsNews"]
    found.now = later.replace(minute=1)
    found.run(found.broker.tick(found.now)[0])
    assert not any(isinstance(said, Given) for said in found.publish(NEWS, headline="h"))
    said = found.run(found.broker.subscribe(found.now, "pda", "again", NEWS.name))
    assert [one.code for one in said if isinstance(one, Refused)] == ["broker.not-permitted"]


def test_rules_begin_and_end_on_their_dates() -> None:
    def at(hour: int, minute: int) -> datetime:
        return NOW.replace(hour=hour, minute=minute)

    first = replace(rule("first"), validity=Validity.between(None, at(12, 30)))
    second = replace(rule("second"), validity=Validity.between(at(13, 0), None))
    found = node(agreement(first, second), *ALL)
    subscribe(found)
    found.run(found.broker.advertise(NOW, "reporter", "SportsNews", NEWS.name))
    for moment, heard in ((at(12, 10), True), (at(12, 40), False), (at(13, 10), True)):
        found.now = moment
        assert any(isinstance(said, Given) for said in found.publish(NEWS, headline="h")) is heard, moment


def test_brokers_publish_and_read_for_others_and_are_not_asked_for_profiles() -> None:
    made = agreement(rule("r"), combining=AgreementMode.ALONE)
    sources = AuthoritySources(Credentials.of(*ALL), agreements=Agreements((AgreedRules(made, described(made, ())),)))
    news = stocked().get(NEWS.name, NOW)
    for right, who in ((Right.SUBSCRIBE, PDA), (Right.PUBLISH, REPORTER)):
        request = EventRequest(who.principal, right, news, NOW)
        shown = Credentials(), ENVIRONMENT
        assert decide(request, sources.authorities(*shown)).effect is Effect.PERMIT
        assert decide(request, sources.for_clients(*shown)).effect is Effect.INDETERMINATE
