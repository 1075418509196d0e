"""Topics through the local broker and the router, as they are: who publishes, who receives, who is refused."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.sports import AGENCY, NETWORK, NOW, PDA, REPORTER, Node, grant
from tests.budget import examples
from tests.trust.kit import refused

from penstock.broker.limits import BrokerLimits
from penstock.broker.local import requests
from penstock.broker.local.topics import judge, stands_for, subscription
from penstock.broker.local.type_library import Library
from penstock.crypto import SigningKey
from penstock.guard import CapabilityAuthority, Effect
from penstock.model.events import Event
from penstock.model.limits import TYPE_DEPTH
from penstock.model.topics import TopicName, message
from penstock.selector import ALWAYS, evaluate
from penstock.trust.capabilities import Right, topic_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import sign_topic

PATHS = ("news", "news/sport", "news/sport/tennis", "news/sport/soccer", "news/weather", "newsletter")


def topic(path: str) -> TopicName:
    return TopicName(AGENCY.principal, path)


def stocked() -> Library:
    library = Library(NETWORK, limits=BrokerLimits())
    for path in PATHS:
        library.add(sign_topic(topic(path), AGENCY), NOW)
    return library


LIBRARY = stocked()


def on(who: SigningKey, right: Right, *patterns: str, super_topics: bool = False) -> Certificate:
    tag = topic_tag(AGENCY.principal, patterns, [right], super_topics=super_topics)
    return issue(Authorisation(AGENCY.principal, who.principal, tag, propagate=False), AGENCY)


def node(*certificates: Certificate) -> Node:
    made = Node(library=stocked())
    made.policy(*certificates)
    for who in (PDA, REPORTER):
        made.connect(who)
    return made


def advertise(node: Node, path: str) -> list[str]:
    return codes(node.run(node.broker.advertise(node.now, "reporter", path, topic(path).type_name)))


def publish(node: Node, path: str, payload: str, advertised: str | None = None) -> list[requests.Output]:
    event = message(LIBRARY.get(topic(path).type_name, NOW).event_type, payload)
    return node.publish_as("reporter", advertised or path, event)


def subscribe(node: Node, pattern: str) -> list[str]:
    name, selector = subscription(AGENCY.principal, pattern)
    return codes(node.run(node.broker.subscribe(node.now, "pda", pattern, name, selector)))


def codes(said: Iterable[requests.Output]) -> list[str]:
    return [one.code for one in said if isinstance(one, requests.Refused)]


def given_to(said: Iterable[requests.Output]) -> list[Event]:
    return [event for one in said if isinstance(one, requests.Given) for event in one.events]


def test_a_message_reaches_the_subscribers_of_super_topics() -> None:
    here = node(
        on(REPORTER, Right.PUBLISH, "news/sport/tennis", super_topics=True), on(PDA, Right.SUBSCRIBE, "news/sport")
    )
    assert subscribe(here, "news/sport") == advertise(here, "news/sport/tennis") == []
    (event,) = given_to(publish(here, "news/sport/tennis", "6:4"))
    assert dict(event.values) == {"topic": "news/sport/tennis", "content_type": "text/plain", "payload": "6:4"}
    assert event.type.name == topic("news/sport").type_name


def test_a_publisher_without_a_super_topic_is_refused() -> None:
    for missing in ("news", "news/sport", "news/sport/tennis"):
        kept = {"news", "news/sport", "news/sport/tennis"} - {missing}
        here = node(on(REPORTER, Right.PUBLISH, *sorted(kept)), on(PDA, Right.SUBSCRIBE, "news"))
        subscribe(here, "news")
        assert advertise(here, "news/sport/tennis") == ["broker.not-permitted"]
        refusal = publish(here, "news/sport/tennis", "6:4")
        assert codes(refusal) == ["broker.not-advertised"]
        assert not given_to(refusal)


def test_a_subscriber_needs_no_super_topic_and_gets_no_more_than_its_topic() -> None:
    here = node(on(REPORTER, Right.PUBLISH, "**"), on(PDA, Right.SUBSCRIBE, "news/sport"))
    assert subscribe(here, "news/sport") == []
    assert subscribe(here, "news/weather") == ["broker.not-permitted"]
    for path, got in (("news/sport", 1), ("news/sport/soccer", 1), ("news", 0), ("news/weather", 0), ("newsletter", 0)):
        advertise(here, path)
        assert len(given_to(publish(here, path, "…"))) == got


def test_subscribing_above_one_s_rights_gives_the_part_one_may_have() -> None:
    here = node(on(REPORTER, Right.PUBLISH, "**"), on(PDA, Right.SUBSCRIBE, "news/sport/tennis"))
    assert subscribe(here, "news") == []
    for path, got in (("news/sport/tennis", 1), ("news/sport", 0), ("news", 0)):
        advertise(here, path)
        assert len(given_to(publish(here, path, "…"))) == got


def test_an_advertisement_of_a_topic_is_none_of_its_sub_topics() -> None:
    here = node(on(REPORTER, Right.PUBLISH, "news"))
    assert advertise(here, "news") == []
    assert codes(publish(here, "news/sport", "6:4", advertised="news")) == ["broker.not-advertised"]


def test_a_right_above_that_is_revoked_ends_publishing_below() -> None:
    below, above = on(REPORTER, Right.PUBLISH, "news/sport"), on(REPORTER, Right.PUBLISH, "news")
    reader = on(PDA, Right.SUBSCRIBE, "news/sport")
    here = node(below, above, reader)
    subscribe(here, "news/sport")
    advertise(here, "news/sport")
    assert given_to(publish(here, "news/sport", "6:4"))
    here.policy(below, reader)
    assert codes(publish(here, "news/sport", "6:4")) == ["broker.not-advertised"]
    here.policy(below, above, reader)
    assert given_to(publish(here, "news/sport", "6:4"))


def test_topics_are_created_by_those_who_may_install() -> None:
    here = node()
    chess = sign_topic(topic("news/sport/chess"), AGENCY)
    assert codes(here.run(here.broker.add_type(here.now, "reporter", chess))) == ["broker.not-permitted"]
    here.policy(grant(REPORTER, None, Right.INSTALL))
    assert codes(here.run(here.broker.add_type(here.now, "reporter", chess))) == []
    assert topic("news/sport/chess").key in stands_for(topic("news"), here.library, NOW)


def test_what_a_topic_stands_for() -> None:
    names = [key.name.removeprefix("topic.") for key in stands_for(topic("news/sport"), LIBRARY, NOW)]
    assert names == ["news.sport", "news.sport.soccer", "news.sport.tennis"]
    with refused("broker.unknown-type"):
        stands_for(topic("nothing"), LIBRARY, NOW)


def test_a_verdict_names_the_first_right_that_is_missing() -> None:
    def verdict(right: Right, path: str, *certificates: Certificate) -> tuple[Effect, TopicName | None, int]:
        sources = [CapabilityAuthority(Credentials.of(*certificates))]
        found = judge(REPORTER.principal, right, topic(path), LIBRARY, sources, NOW)
        return found.decision.effect, found.lacking, len(found.types)

    tennis = "news/sport/tennis"
    lower, upper = on(REPORTER, Right.PUBLISH, tennis), on(REPORTER, Right.PUBLISH, "news")
    assert verdict(Right.PUBLISH, tennis, lower) == (Effect.DENY, topic("news"), 1)
    assert verdict(Right.PUBLISH, tennis, lower, upper) == (Effect.DENY, topic("news/sport"), 1)
    assert verdict(Right.PUBLISH, tennis, on(REPORTER, Right.PUBLISH, "**")) == (Effect.PERMIT, None, 1)
    assert verdict(Right.SUBSCRIBE, "news/sport", lower) == (Effect.DENY, topic("news/sport"), 3)
    reader = on(REPORTER, Right.SUBSCRIBE, "news/sport")
    assert verdict(Right.SUBSCRIBE, "news/sport", reader) == (Effect.PERMIT, None, 3)


GRANTS = st.sets(st.sampled_from([*PATHS, "**", "news/**"]), max_size=4)


def lies_in(patterns: set[str], path: str) -> bool:
    return path in patterns or "**" in patterns or ("news/**" in patterns and path.startswith("news/"))


@settings(max_examples=examples(40), deadline=None)
@given(GRANTS, GRANTS, st.sampled_from(PATHS), st.sampled_from(PATHS))
def test_messages_go_from_those_who_may_to_those_who_may(
    written: set[str], read: set[str], path: str, asked: str
) -> None:
    """Section 5.5 in words: the writer has every level; the reader has one at or below what it asked for."""
    here = node(
        *(on(REPORTER, Right.PUBLISH, pattern) for pattern in written),
        *(on(PDA, Right.SUBSCRIBE, pattern) for pattern in read),
    )
    subscribe(here, asked)
    advertise(here, path)
    line = [path, *(above.path for above in topic(path).super_topics)]
    may_write = all(lies_in(written, level) for level in line)
    may_read = asked in line and any(lies_in(read, level) for level in line[: line.index(asked) + 1])
    assert bool(given_to(publish(here, path, "…"))) is (may_write and may_read)


WORDS = st.sampled_from(["a", "b", "a_b", "aXb"])
PATTERN = st.tuples(
    WORDS,
    st.one_of(
        st.lists(st.one_of(WORDS, st.just("*")), max_size=3),
        st.lists(st.one_of(WORDS, st.just("**")), max_size=3),
    ),
).map(lambda parts: [parts[0], *parts[1]])


def means(pattern: list[str], levels: list[str]) -> bool:
    if not pattern or not levels:
        return not pattern and not levels
    most = {"*": 1, "**": len(levels)}.get(pattern[0])
    if most is None:
        return pattern[0] == levels[0] and means(pattern[1:], levels[1:])
    return any(means(pattern[1:], levels[taken:]) for taken in range(1, most + 1))


@settings(max_examples=examples(200))
@given(PATTERN, st.lists(WORDS, min_size=1, max_size=5))
def test_a_pattern_subscribes_to_what_it_means(pattern: list[str], levels: list[str]) -> None:
    name, selector = subscription(AGENCY.principal, "/".join(pattern))
    path = "/".join(levels)
    wild = "*" in pattern or "**" in pattern
    reached = name.key in {above.key for above in (topic(path), *topic(path).super_topics)}
    wanted = reached and evaluate(selector, {"topic": path}) is True
    # Without a wildcard the sub-topics come along.
    assert wanted is (means(pattern, levels) if wild else levels[: len(pattern)] == pattern)
    assert (selector == ALWAYS) is not wild


def test_a_pattern_filters_at_the_broker() -> None:
    here = node(on(REPORTER, Right.PUBLISH, "**"), on(PDA, Right.SUBSCRIBE, "news"))
    subscribe(here, "news/*")
    for path, got in (("news/weather", 1), ("news/sport", 1), ("news", 0), ("news/sport/tennis", 0)):
        advertise(here, path)
        assert len(given_to(publish(here, path, "…"))) == got


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("*", "topic.pattern"),
        ("**/tennis", "topic.pattern"),
        ("news/*/**", "topic.pattern"),
        ("news/", "topic.pattern"),
        ("", "topic.pattern"),
        ("/".join("a" * (TYPE_DEPTH + 1)), "topic.limit"),
    ],
)
def test_patterns_that_subscribe_to_nothing(pattern: str, code: str) -> None:
    with refused(code):
        subscription(AGENCY.principal, pattern)
