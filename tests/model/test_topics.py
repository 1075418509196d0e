"""Topic names, patterns, and the event types that topics are."""

import pytest
from tests.trust.kit import refused, who

from penstock.model.limits import TYPE_DEPTH, TYPE_NAME_LENGTH
from penstock.model.names import TypeKey, TypeName
from penstock.model.topics import (
    TopicName,
    TopicPattern,
    check_topic,
    is_topic,
    message,
    topic_attribute,
    topic_definition,
)
from penstock.model.types import AttributeDefinition, EventType, TypeDefinition
from penstock.model.values import AttributeSpec, Kind

OWNER, OTHER = who(1), who(2)
TENNIS = TopicName(OWNER, "news/sport/tennis")
DEEP = "/".join("a" * TYPE_DEPTH)


def resolve(topic: TopicName) -> EventType:
    above = topic.super_topics
    return EventType.of(topic_definition(topic), resolve(above[0]) if above else None)


def test_a_name_is_owner_and_path() -> None:
    assert TopicName.parse(str(TENNIS)) == TENNIS
    assert TopicName(OTHER, TENNIS.path) != TENNIS
    assert [topic.path for topic in TENNIS.super_topics] == ["news/sport", "news"]
    assert TopicName(OWNER, "news").super_topics == ()
    assert len(TopicName(OWNER, DEEP).super_topics) == TYPE_DEPTH - 1


def test_the_type_of_a_topic_names_it() -> None:
    assert TENNIS.type_name == TypeName(OWNER, "topic.news.sport.tennis")
    assert TopicName.of_type(TENNIS.type_name) == TopicName.of_type(TENNIS.key) == TENNIS
    assert not is_topic(TypeKey(OWNER, "topic"))
    assert not is_topic(TypeKey(OWNER, "topics.news"))
    with refused("topic.type"):
        TopicName.of_type(TypeKey(OWNER, "news.topic.sport"))


@pytest.mark.parametrize(
    "path", ["", "/", "news/", "/news", "news//sport", "1st", "-a", "a.b", "a b", "*", "news/**", "naïve", "a\n"]
)
def test_what_is_no_topic(path: str) -> None:
    with refused("topic.malformed"):
        TopicName(OWNER, path)


@pytest.mark.parametrize("path", [f"{DEEP}/a", "a" * TYPE_NAME_LENGTH, "a" * 251])
def test_topics_are_bounded(path: str) -> None:
    with refused("topic.limit"):
        TopicName(OWNER, path)
    with refused("topic.limit"):
        TopicPattern(path)


def test_the_longest_topic_is_a_type() -> None:
    longest = TopicName(OWNER, "a" * 250)
    assert TopicName.of_type(longest.type_name) == longest
    assert EventType.of(topic_definition(longest)).key == longest.key


@pytest.mark.parametrize("text", [str(OWNER), "news", "news/sport"])
def test_names_that_cannot_be_read(text: str) -> None:
    with refused("topic.malformed", "principal.malformed"):
        TopicName.parse(text)


def test_topics_form_a_tree_of_types_with_one_kind_of_message() -> None:
    tennis, news = resolve(TENNIS), resolve(TopicName(OWNER, "news"))
    assert [key.name for key in tennis.ancestors] == ["topic.news.sport", "topic.news"]
    assert list(tennis.by_name) == ["topic", "content_type", "payload"]
    assert tennis.attributes == news.attributes
    assert tennis.by_name["topic"].id == topic_attribute(TENNIS) == topic_attribute(TopicName(OWNER, "news"))


def test_a_message_says_its_topic() -> None:
    event = message(resolve(TENNIS), "6:4", id="1")
    assert dict(event.values) == {"topic": TENNIS.path, "content_type": "text/plain", "payload": "6:4"}
    with refused("topic.type"):
        message(EventType.of(TypeDefinition(TypeName(OWNER, "News"), ())), "6:4")


NEWS, SPORT = topic_definition(TopicName(OWNER, "news")), topic_definition(TopicName(OWNER, "news/sport"))
EXTRA = AttributeDefinition("extra", "0", AttributeSpec(Kind.STRING))


@pytest.mark.parametrize(
    "definition",
    [
        TypeDefinition(NEWS.name, ()),
        TypeDefinition(NEWS.name, (*NEWS.attributes, EXTRA)),
        NEWS.remove("payload", version="1"),
        TypeDefinition(SPORT.name, ()),
        TypeDefinition(SPORT.name, (EXTRA,), NEWS.name),
        TypeDefinition(SPORT.name, (), TypeName(OTHER, NEWS.name.name)),
        TypeDefinition(SPORT.name, (), TypeName(OWNER, "topic.other")),
        TypeDefinition(SPORT.name, (), TypeName(OWNER, "News")),
        TypeDefinition(TypeName(OWNER, "Flash"), (), NEWS.name),
    ],
)
def test_reserved_names_are_for_topics_alone(definition: TypeDefinition) -> None:
    check_topic(NEWS)
    check_topic(SPORT)
    with refused("topic.definition"):
        check_topic(definition)


def test_patterns_of_rights() -> None:
    assert TopicPattern("news/sport").type_pattern == "topic.news.sport"
    assert TopicPattern("news/**/tennis").type_pattern == "topic.news.*.tennis"
    assert TopicPattern("**").type_pattern == "topic.*"
    assert [above.text for above in TopicPattern("news/**/tennis").super_patterns] == ["news/**", "news"]
    with refused("topic.pattern"):
        _ = TopicPattern("news/*").type_pattern


@pytest.mark.parametrize("text", ["", "news/", "news/sp*", "news/***", "*/**", "a b", "news/?", "news.**"])
def test_what_is_no_pattern(text: str) -> None:
    with refused("topic.pattern"):
        TopicPattern(text)
