"""The hierarchical rule: publishing needs the right on all super-topics, subscribing on the topic alone."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.kit import DAY, NOW, grant, refused, who
from tests.trust.types_kit import Registry

from penstock.guard import (
    Authority,
    Branch,
    CapabilityAuthority,
    Decision,
    Effect,
    EventRequest,
    Publication,
    Restriction,
    Ruling,
    decide,
    environment,
)
from penstock.guard.decision import Request, super_topics
from penstock.model.names import TypeName
from penstock.model.topics import TopicName, message, topic_attribute, topic_definition
from penstock.model.types import TypeDefinition
from penstock.trust.capabilities import BoundSelector, Right, event_tag, topic_tag
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType
from penstock.trust.tags import Tag
from penstock.trust.validity import ALWAYS, Validity

OWNER, REPORTER, OTHER = 1, 2, 3


def topic(path: str) -> TopicName:
    return TopicName(who(OWNER), path)


@cache
def verified(path: str) -> VerifiedType:
    registry = Registry()
    line = (topic(path), *topic(path).super_topics)
    for one in line:
        registry.sign(topic_definition(one))
    return registry.verify(registry[line[0].type_name])


def on(*patterns: str, rights: Iterable[Right] = (Right.PUBLISH,), validity: Validity = ALWAYS) -> Certificate:
    return give(topic_tag(who(OWNER), patterns, rights), validity)


def give(tag: Tag, validity: Validity = ALWAYS) -> Certificate:
    return grant(OWNER, REPORTER, tag, validity=validity)


def ask(path: str, *certificates: Certificate, right: Right = Right.PUBLISH, by: int = REPORTER) -> Decision:
    authority = CapabilityAuthority(Credentials.of(*certificates))
    return decide(EventRequest(who(by), right, verified(path), NOW), [authority])


def test_a_publisher_needs_the_right_on_all_super_topics() -> None:
    assert ask("news/sport", on("news/sport")).effect is Effect.DENY
    assert ask("news/sport", on("news")).effect is Effect.DENY
    assert ask("news/sport", on("news"), on("news/sport")).effect is Effect.PERMIT
    assert ask("news/sport/tennis", on("news"), on("news/sport/**")).effect is Effect.DENY
    assert ask("news/sport/tennis", on("news/**")).effect is Effect.DENY
    assert ask("news/sport/tennis", on("news"), on("news/**")).effect is Effect.PERMIT


def test_a_publisher_needs_no_right_below() -> None:
    assert ask("news", on("news")).effect is Effect.PERMIT


def test_a_subscriber_needs_the_right_on_the_topic_alone() -> None:
    subscribe = on("news/sport", rights=[Right.SUBSCRIBE])
    assert ask("news/sport", subscribe, right=Right.SUBSCRIBE).effect is Effect.PERMIT
    assert ask("news", subscribe, right=Right.SUBSCRIBE).effect is Effect.DENY


def test_the_owner_may_everything() -> None:
    assert ask("news/sport/tennis", by=OWNER).effect is Effect.PERMIT


def test_the_stock_exchange_of_the_paper() -> None:
    """Section 2.2.1: company topics below `Stocks` and `Derivatives`, all below `MarketQuotes`."""
    nokia = on("MarketQuotes/**/Nokia", rights=[Right.PUBLISH, Right.SUBSCRIBE])
    for kind in ("Stocks", "Derivatives"):
        path = f"MarketQuotes/{kind}/Nokia"
        assert ask(path, nokia, right=Right.SUBSCRIBE).effect is Effect.PERMIT
        assert ask(path, nokia).effect is Effect.DENY
        assert ask(path, nokia, on("MarketQuotes", f"MarketQuotes/{kind}")).effect is Effect.PERMIT
    assert ask("MarketQuotes/Stocks/Ericsson", nokia, right=Right.SUBSCRIBE).effect is Effect.DENY
    assert ask("MarketQuotes/Stocks", nokia, right=Right.SUBSCRIBE).effect is Effect.DENY


def test_rights_may_come_from_several_sources() -> None:
    class Roles:
        def rule(self, request: Request, /) -> Ruling:
            assert isinstance(request, EventRequest)
            return Ruling((Branch(action=Right.PUBLISH),) if request.type == verified("news") else ())

    below = CapabilityAuthority(Credentials.of(on("news/sport")))
    request = EventRequest(who(REPORTER), Right.PUBLISH, verified("news/sport"), NOW)
    assert decide(request, [below]).effect is Effect.DENY
    sources: list[Authority] = [below, Roles()]
    assert decide(request, iter(sources)).effect is Effect.PERMIT


def test_what_a_right_above_demands_counts_below() -> None:
    news = verified("news").event_type
    plain = event_tag(
        who(OWNER), news.name.name, None, [Right.PUBLISH], where=[BoundSelector.of("content_type = 'text/plain'", news)]
    )
    decision = ask("news/sport", give(plain), on("news/sport"))
    publish = Publication(decision.require(), verified("news/sport").event_type)
    publish(message(verified("news/sport").event_type, "6:4"), environment(NOW))
    with refused("guard.not-permitted"):
        publish(message(verified("news/sport").event_type, "<b>6:4</b>", "text/html"), environment(NOW))


def test_rights_that_are_never_valid_together_give_none() -> None:
    today, tomorrow = Validity.between(NOW, NOW + DAY), Validity.between(NOW + 2 * DAY, NOW + 3 * DAY)
    request = EventRequest(who(REPORTER), Right.PUBLISH, verified("news/sport"), None)
    for above, effect in ((today, Effect.PERMIT), (tomorrow, Effect.DENY)):
        bag = Credentials.of(on("news", validity=above), on("news/sport", validity=today))
        assert decide(request, [CapabilityAuthority(bag)]).effect is effect


def test_the_decision_rests_on_the_rights_of_every_level() -> None:
    certificates = on("news"), on("news/sport")
    assert set(ask("news/sport", *certificates).because) == {certificate.id for certificate in certificates}


def test_a_message_says_the_topic_it_was_published_on() -> None:
    tennis = verified("news/sport/tennis").event_type
    payload = tennis.by_name["payload"].id
    narrow = event_tag(who(OWNER), "topic.*", None, [Right.PUBLISH], attributes=[payload])
    restriction = ask("news/sport/tennis", give(narrow)).require()
    said = message(tennis, "6:4")
    lie = replace(said, values={**said.values, "topic": "news/weather"})
    sent = Publication(restriction, tennis)(lie, environment(NOW))
    assert dict(sent.values) == {topic_attribute(topic("news")): "news/sport/tennis", payload: "6:4"}
    other = event_tag(who(OWNER), "topic.*", None, [Right.PUBLISH], forced={topic_attribute(topic("news")): "news"})
    assert ask("news", give(other)).effect is Effect.PERMIT
    assert ask("news/sport", give(other)).effect is Effect.DENY


def test_a_topic_whose_super_topics_are_not_shown_is_not_published_on() -> None:
    alone = replace(verified("news/sport"), parent=None)
    authority = CapabilityAuthority(Credentials.of(on("**")))
    decision = decide(EventRequest(who(REPORTER), Right.PUBLISH, alone, NOW), [authority])
    assert decision.effect is Effect.INDETERMINATE
    assert [problem.code for problem in decision.errors] == ["topic.super-topics"]
    reading = decide(EventRequest(who(OWNER), Right.SUBSCRIBE, alone, NOW), [authority])
    assert reading.effect is Effect.PERMIT


def test_other_types_have_no_super_topics() -> None:
    registry = Registry()
    parent = TypeDefinition(TypeName(who(OWNER), "News"), ())
    registry.sign(parent)
    child = registry.verify(registry.sign(TypeDefinition(TypeName(who(OWNER), "News.Sport"), (), parent.name)))
    assert child.parent is not None
    assert super_topics(child) == ()
    only = give(event_tag(who(OWNER), "News.Sport", None, [Right.PUBLISH]))
    authority = CapabilityAuthority(Credentials.of(only))
    assert decide(EventRequest(who(REPORTER), Right.PUBLISH, child, NOW), [authority]).effect is Effect.PERMIT


def test_too_many_rights_are_cut_and_said() -> None:
    class Many:
        def rule(self, request: Request, /) -> Ruling:
            assert isinstance(request, EventRequest)
            level = request.type.event_type.name.name
            return Ruling(tuple(Branch(action=Right.PUBLISH, guards=frozenset({f"{level}{i}"})) for i in range(9)))

    decision = decide(EventRequest(who(REPORTER), Right.PUBLISH, verified("a/b"), NOW), [Many()])
    assert len(decision.restriction.branches) == 64
    assert [problem.code for problem in decision.errors] == ["guard.truncated"]


# Against the definition.

WORDS = ("a", "b")
PATHS = ["/".join(levels) for levels in [("a",), ("a", "a"), ("a", "b"), ("a", "b", "a"), ("a", "b", "a", "b"), ("b",)]]
GRANTS = st.lists(
    st.tuples(
        st.lists(st.sampled_from([*WORDS, "**"]), min_size=1, max_size=4).map("/".join),
        st.sets(st.sampled_from([Right.PUBLISH, Right.SUBSCRIBE]), min_size=1),
    ),
    max_size=4,
)
Grants = list[tuple[str, set[Right]]]


def means(pattern: list[str], levels: list[str]) -> bool:
    if not pattern or not levels:
        return not pattern and not levels
    if pattern[0] == "**":
        return any(means(pattern[1:], levels[taken:]) for taken in range(1, len(levels) + 1))
    return pattern[0] == levels[0] and means(pattern[1:], levels[1:])


def has(grants: Grants, right: Right, levels: list[str]) -> bool:
    return any(right in rights and means(pattern.split("/"), levels) for pattern, rights in grants)


def naive(grants: Grants, right: Right, path: str) -> bool:
    """Say by the words of section 5.5 whether somebody may."""
    levels = path.split("/")
    if right is Right.SUBSCRIBE:
        return has(grants, right, levels)
    return all(has(grants, right, levels[:depth]) for depth in range(1, len(levels) + 1))


@settings(max_examples=examples(60))
@given(GRANTS, st.sampled_from(PATHS), st.sampled_from([Right.PUBLISH, Right.SUBSCRIBE]))
def test_the_rule_is_its_definition(grants: Grants, path: str, right: Right) -> None:
    certificates = [on(pattern, rights=rights) for pattern, rights in grants]
    assert (ask(path, *certificates, right=right).effect is Effect.PERMIT) is naive(grants, right, path)


@pytest.mark.parametrize("right", [Right.PUBLISH, Right.SUBSCRIBE])
def test_the_definition_tells_the_two_apart(right: Right) -> None:
    assert naive([("a/b", {right})], right, "a/b") is (right is Right.SUBSCRIBE)


def test_restrictions_are_about_the_topic() -> None:
    restriction = ask("news/sport", on("**")).require()
    assert isinstance(restriction, Restriction)
    assert restriction.for_type(verified("news/sport").event_type, Right.PUBLISH).branches
    assert not restriction.for_type(verified("news").event_type, Right.PUBLISH).branches
