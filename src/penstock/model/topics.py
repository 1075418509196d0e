"""Topics: plain messages under names that form a tree (paper 5, sections 2.2.1, 4.6 and 5.5).

| name  | tuple         | written                         |
|-------|---------------|---------------------------------|
| topic | [owner, path] | `ed25519:…/news/sport/tennis`   |

A topic is the simple case of an event type, under a reserved name: the path with dots instead of slashes, after
the word `topic`. It has one version, and extends the type of its super-topic, so that a subscription to a topic
includes its sub-topics too. The type of the first level defines what a plain message consists of; the others add
nothing.

All topics of a tree have one owner. Others can manage a part of it by certificates.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from penstock.errors import LimitError, MalformedError
from penstock.model.events import Event
from penstock.model.limits import TYPE_DEPTH, TYPE_NAME_LENGTH
from penstock.model.names import AttributeId, TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.types import AttributeDefinition, EventType, TypeDefinition
from penstock.model.values import AttributeSpec, Kind

_RESERVED: Final = "topic"
# The words of type names, so that a path can be one.
_LEVEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_TEXT: Final = AttributeSpec(Kind.STRING)

#: the attributes of a plain message
TOPIC, CONTENT_TYPE, PAYLOAD = "topic", "content_type", "payload"
_MESSAGE: Final = tuple(AttributeDefinition(n, n.replace("_", "-"), _TEXT) for n in (TOPIC, CONTENT_TYPE, PAYLOAD))

#: in patterns: exactly one level, and one or more of them
ONE, SOME = "*", "**"


def _check_levels(levels: list[str], path: str, *, wild: bool) -> None:
    if len(levels) > TYPE_DEPTH:
        raise LimitError("topic.limit", f"a topic has more than {TYPE_DEPTH} levels")
    if len(path) + len(_RESERVED) >= TYPE_NAME_LENGTH:
        raise LimitError("topic.limit", f"the path of a topic is longer than {TYPE_NAME_LENGTH - 6}")
    if all(_LEVEL.fullmatch(level) or (wild and level in (ONE, SOME)) for level in levels):
        return
    if wild:
        raise MalformedError(
            "topic.pattern",
            f"`{path[:80]}` is not a pattern of topics",
            hint="a level is a word, or wholly `*` for one level, or wholly `**` for one or more",
        )
    raise MalformedError(
        "topic.malformed",
        f"`{path[:80]}` is not a topic",
        hint="words with `/` between them, of ASCII letters, digits, `_` and `-`, not beginning with a digit or `-`",
    )


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """The name tuple of a topic: [owner, path]. Raises `MalformedError` (`topic.malformed`), `LimitError`.

    >>> tennis = TopicName(Principal(bytes(32)), "news/sport/tennis")
    >>> tennis.type_name.name, [topic.path for topic in tennis.super_topics]
    ('topic.news.sport.tennis', ['news/sport', 'news'])
    """

    owner: Principal
    path: str

    def __post_init__(self) -> None:
        _check_levels(self.path.split("/"), self.path, wild=False)

    def __str__(self) -> str:
        return f"{self.owner}/{self.path}"

    @classmethod
    def parse(cls, text: str) -> "TopicName":
        """Read `owner/path`. Raises `MalformedError` (`topic.malformed`, `principal.malformed`)."""
        owner, slash, path = text.partition("/")
        if not slash:
            raise MalformedError("topic.malformed", f"`{text[:80]}` is not a topic", hint="write `owner/path`")
        return cls(Principal.parse(owner), path)

    @classmethod
    def of_type(cls, name: TypeName | TypeKey) -> "TopicName":
        """Return a type's topic. Raises `MalformedError` (`topic.type`) if the type is not a topic."""
        if not is_topic(name):
            raise MalformedError(
                "topic.type", f"`{name.name}` is an event type, no topic", hint="`penstock type` is for those"
            )
        return cls(name.owner, name.name.removeprefix(f"{_RESERVED}.").replace(".", "/"))

    @property
    def super_topics(self) -> tuple["TopicName", ...]:
        """The topics that this one is part of, from the nearest to the first level."""
        return tuple(TopicName(self.owner, path) for path in _above(self.path))

    @property
    def type_name(self) -> TypeName:
        """The event type that the topic is."""
        return TypeName(self.owner, _type_name(self.path))

    @property
    def key(self) -> TypeKey:
        """Return the key of the topic in routing."""
        return self.type_name.key


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _type_name(path: str) -> str:
    return f"{_RESERVED}.{path.replace('/', '.')}"


def is_topic(name: TypeName | TypeKey) -> bool:
    """Return whether the name of a type is reserved for topics."""
    return name.name.startswith(f"{_RESERVED}.")


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Topics of one owner: `news/sport` alone, `news/**` all below `news`, `news/*/tennis` with one level between.

    Raises `MalformedError` (`topic.pattern`) also where both wildcards occur, and `LimitError` (`topic.limit`).
    """

    text: str

    def __post_init__(self) -> None:
        levels = self.levels
        _check_levels(levels, self.text, wild=True)
        if ONE in levels and SOME in levels:
            raise MalformedError(
                "topic.pattern", f"`{self.text}` has both `*` and `**`", hint="use one of the two in a pattern"
            )

    @property
    def levels(self) -> list[str]:
        """The words and wildcards."""
        return self.text.split("/")

    @property
    def super_patterns(self) -> tuple["TopicPattern", ...]:
        """Patterns of all super-topics of the topics of this one; some may be topics of this one as well."""
        return tuple(TopicPattern(text) for text in _above(self.text))

    @property
    def type_pattern(self) -> str:
        """The pattern of type names, for rights: there `*` is any text, which between dots is one or more levels.

        Raises `MalformedError` (`topic.pattern`) for a pattern of exactly one level, which rights cannot express.
        """
        if ONE in self.levels:
            raise MalformedError(
                "topic.pattern",
                f"`{self.text}`: a right cannot count the levels that `*` matches",
                hint="write `**` for one or more levels, or name the topics",
            )
        return _type_name(self.text).replace(SOME, "*")


def topic_definition(topic: TopicName) -> TypeDefinition:
    """Return the definition of the event type that a topic is."""
    above = topic.super_topics
    return TypeDefinition(topic.type_name, () if above else _MESSAGE, above[0].type_name if above else None)


def check_topic(definition: TypeDefinition) -> None:
    """Check that a definition uses reserved names as topics do: rights on topics depend on these names.

    Raises `MalformedError` (`topic.definition`) and `LimitError` (`topic.limit`).
    """
    if is_topic(definition.name):
        if definition != topic_definition(TopicName.of_type(definition.name)):
            raise MalformedError(
                "topic.definition",
                f"`{definition.name.name}` is a name of a topic, and the definition is not that of one",
                hint="`penstock topic new` makes topics; other types have other names",
            )
    elif definition.extends is not None and is_topic(definition.extends):
        raise MalformedError(
            "topic.definition",
            f"`{definition.name.name}` extends a topic, which only topics do",
            hint="its readers would receive events that were not permitted there",
        )


def topic_attribute(topic: TopicName) -> AttributeId:
    """Return the attribute of its messages that says on which topic they were published."""
    first = topic.super_topics[-1:] or (topic,)
    return AttributeId(topic.owner, first[0].type_name.name, TOPIC)


def message(
    event_type: EventType,
    payload: str,
    content_type: str = "text/plain",
    *,
    id: str = "",  # noqa: A002  # CloudEvents calls it so
    time: datetime | None = None,
) -> Event:
    """Return a message on a topic. Raises `MalformedError` (`topic.type`, `value.*`)."""
    topic = TopicName.of_type(event_type.name)
    values = {TOPIC: topic.path, CONTENT_TYPE: content_type, PAYLOAD: payload}
    return Event.of(event_type, values, id=id, time=time)
