"""Signed topics and rights on them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trust.kit import CURRENT, LATER, NOW, grant, key, refused, who
from tests.trust.types_kit import NETWORK, Registry

from penstock.model.names import TypeName
from penstock.model.topics import TopicName, topic_definition
from penstock.model.types import TypeDefinition
from penstock.trust.capabilities import Right, network_tag, topic_tag, type_request
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import read_type, sign_topic, sign_type, verify_topic
from penstock.trust.tags import intersect

OWNER, MANAGER, OTHER = 1, 2, 4


def topic(path: str, owner: int = OWNER) -> TopicName:
    return TopicName(who(owner), path)


def may(*patterns: str, rights: tuple[Right, ...] = (Right.MANAGE,), to: int = MANAGER) -> Certificate:
    return grant(OWNER, to, topic_tag(who(OWNER), patterns, rights), validity=CURRENT)


@pytest.fixture
def registry() -> Registry:
    found = Registry()
    for path in ("news", "news/sport"):
        found.sign(topic_definition(topic(path)))
    return found


def test_a_topic_is_signed_and_read_and_verified(registry: Registry) -> None:
    signed = sign_topic(topic("news/sport/tennis"), key(OWNER))
    verified = verify_topic(read_type(signed.to_bytes()), NOW, topics=registry.get)
    assert TopicName.of_type(verified.event_type.name) == topic("news/sport/tennis")
    assert verified.parent is not None
    assert verified.parent.event_type.name == topic("news/sport").type_name
    assert verified.parent.parent is not None
    assert verified.parent.parent.parent is None


def test_only_the_owner_makes_topics_in_its_own_name(registry: Registry) -> None:
    forged = sign_topic(topic("news"), key(OTHER))
    with refused("type.forged"):
        verify_topic(forged, NOW)
    assert verify_topic(sign_topic(topic("news", OTHER), key(OTHER)), NOW).signer == who(OTHER)
    with refused("type.unknown-parent"):
        verify_topic(sign_topic(topic("news/sport/tennis", OTHER), key(OTHER)), NOW, topics=registry.get)


def test_a_manager_of_a_part_shows_its_credentials(registry: Registry) -> None:
    tennis = topic("news/sport/tennis")
    below = Credentials.of(may("news/sport/**"))
    with refused("type.extends-foreign"):
        verify_topic(sign_topic(tennis, key(MANAGER), below), NOW, topics=registry.get)
    whole = Credentials.of(may("news/sport", "news/sport/**"))
    verified = verify_topic(sign_topic(tennis, key(MANAGER), whole), NOW, topics=registry.get)
    assert verified.validity.ends == CURRENT.ends
    with refused("type.forged"):
        verify_topic(sign_topic(topic("news/weather"), key(MANAGER), whole), NOW, topics=registry.get)
    with refused("type.forged"):
        verify_topic(sign_topic(tennis, key(MANAGER), whole), LATER + (LATER - NOW), topics=registry.get)


def test_the_coordinating_principal_lets_topics_be_created() -> None:
    news = topic("news", OTHER)
    with refused("type.not-installable"):
        verify_topic(sign_topic(news, key(OTHER)), NOW, network=NETWORK)
    let = grant(OWNER, OTHER, network_tag(NETWORK.owner, NETWORK.name, [Right.INSTALL]))
    verified = verify_topic(sign_topic(news, key(OTHER), Credentials.of(let)), NOW, network=NETWORK)
    assert verified.network == NETWORK


def test_other_types_are_no_topics(registry: Registry) -> None:
    plain = sign_type(TypeDefinition(TypeName(who(OWNER), "News"), ()), key(OWNER))
    with refused("topic.type"):
        verify_topic(plain, NOW)
    for definition in (
        TypeDefinition(topic("news").type_name, ()),
        TypeDefinition(TypeName(who(OWNER), "Flash"), (), topic("news").type_name),
    ):
        with refused("topic.definition"):
            registry.verify(sign_type(definition, key(OWNER)))


def test_rights_that_make_no_sense() -> None:
    for patterns in ([], ["news/*"], ["news/"], ["**/*"]):
        with refused("topic.pattern"):
            topic_tag(who(OWNER), patterns, [Right.PUBLISH])
    for rights in ([], [Right.CONNECT]):
        with refused("capability.right"):
            topic_tag(who(OWNER), ["news"], rights)


LEVELS = st.lists(st.sampled_from(["a", "b", "topic"]), min_size=1, max_size=4)
PATTERNS = st.lists(st.sampled_from(["a", "b", "topic", "**"]), min_size=1, max_size=4)


def naive(pattern: list[str], levels: list[str]) -> bool:
    """Say by its words whether a pattern means a topic."""
    if not pattern or not levels:
        return not pattern and not levels
    if pattern[0] != "**":
        return pattern[0] == levels[0] and naive(pattern[1:], levels[1:])
    return any(naive(pattern[1:], levels[taken:]) for taken in range(1, len(levels) + 1))


def granted(patterns: list[list[str]], levels: list[str], *, super_topics: bool = False) -> bool:
    tag = topic_tag(who(OWNER), ["/".join(p) for p in patterns], [Right.PUBLISH], super_topics=super_topics)
    request = type_request(topic("/".join(levels)).type_name, Right.PUBLISH)
    return intersect(tag, request) == request


@given(st.lists(PATTERNS, min_size=1, max_size=3), LEVELS)
def test_a_right_is_on_the_topics_that_its_patterns_mean(patterns: list[list[str]], levels: list[str]) -> None:
    assert granted(patterns, levels) is any(naive(pattern, levels) for pattern in patterns)


@given(PATTERNS, LEVELS)
def test_a_right_with_super_topics_is_on_all_of_them(pattern: list[str], levels: list[str]) -> None:
    if naive(pattern, levels):
        assert all(granted([pattern], levels[:depth], super_topics=True) for depth in range(1, len(levels) + 1))


def test_a_right_on_one_owner_s_topics_is_none_on_another_s() -> None:
    tag = topic_tag(who(OTHER), ["**"], [Right.PUBLISH])
    assert intersect(tag, type_request(topic("news").type_name, Right.PUBLISH)) is None
    assert intersect(tag, type_request(topic("news", OTHER).type_name, Right.SUBSCRIBE)) is None
