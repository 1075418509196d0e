"""Topics at a broker: which event types a topic stands for there, who may use it, and what a pattern subscribes to.

A broker's library is the registry of topics that section 5.5 of paper 5 asks for: definitions come to it by `add_type`,
from somebody who may install, and every broker verifies them for itself.

Programs call these functions (docs/how-to/use-topics.md). No other module does: brokers route by event types, and
topics are a layer above them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from penstock.broker.local.type_library import Library
from penstock.errors import MalformedError
from penstock.guard import Authority, Decision, Effect, EventRequest, decide
from penstock.guard.decision import super_topics
from penstock.model.names import TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.topics import ONE, SOME, TOPIC, TopicName, TopicPattern
from penstock.selector import ALWAYS, Selector, parse
from penstock.trust.capabilities import Right


@dataclass(frozen=True, slots=True)
class TopicVerdict:
    """Whether somebody may use a topic.

    `types` are the event types that the request is about: the topic alone on publishing, and its sub-topics too on
    subscribing. `lacking` is the first topic, from the first level down, on which the right is missing.
    """

    topic: TopicName
    right: Right
    decision: Decision
    types: tuple[TypeKey, ...]
    lacking: TopicName | None = None


def stands_for(topic: TopicName, library: Library, now: datetime) -> tuple[TypeKey, ...]:
    """Return the event types of a topic and of all its sub-topics, the topic first.

    Raises `RefusedError` (`broker.unknown-type`) and what `verify_type` raises.
    """
    library.get(topic.type_name, now)
    return tuple(verified.event_type.key for verified in library.below(topic.key, now))


def judge(  # noqa: PLR0913, PLR0917  # who, what, where, and by which sources
    principal: Principal,
    right: Right,
    topic: TopicName,
    library: Library,
    authorities: Iterable[Authority],
    now: datetime,
) -> TopicVerdict:
    """Say whether a principal may use a topic. This is `decide()`'s answer to a question, and enforces nothing.

    Raises as `stands_for` does, and `MalformedError` (`guard.action`) for a right on networks.
    """
    verified, known = library.get(topic.type_name, now), tuple(authorities)

    decision = decide(EventRequest(principal, right, verified, now), known)
    publishing = right is Right.PUBLISH
    types = (topic.key,) if publishing else stands_for(topic, library, now)
    if decision.effect is Effect.PERMIT:
        return TopicVerdict(topic, right, decision, types)
    for above in reversed(super_topics(verified) if publishing else ()):
        if decide(EventRequest(principal, right, above, now), known).effect is not Effect.PERMIT:
            return TopicVerdict(topic, right, decision, types, TopicName.of_type(above.event_type.name))
    return TopicVerdict(topic, right, decision, types, topic)


def subscription(owner: Principal, pattern: str) -> tuple[TypeName, Selector]:
    """Return what to subscribe to for a pattern: the topic that it begins with, and a selector for the rest.

    Raises `MalformedError` (`topic.pattern`), `LimitError` (`topic.limit`).
    """
    levels = TopicPattern(pattern).levels
    wild = next((place for place, level in enumerate(levels) if level in (ONE, SOME)), None)
    if wild == 0:
        raise MalformedError(
            "topic.pattern",
            f"`{pattern}` begins with a wildcard, and topics of the first level have nothing above them",
            hint="subscribe to each topic of the first level",
        )
    topic = TopicName(owner, "/".join(levels[:wild]))
    if wild is None:
        return topic.type_name, ALWAYS
    condition = _like("/".join("%" if level in (ONE, SOME) else _literal(level) for level in levels))
    if ONE in levels:
        # As many levels as the pattern has and no more: then no `%` can hold a slash.
        condition += f" AND NOT {_like('/'.join('%' * (len(levels) + 1)))}"
    return topic.type_name, parse(condition)


def _like(pattern: str) -> str:
    return f"{TOPIC} LIKE '{pattern}' ESCAPE '!'"


def _literal(level: str) -> str:
    return level.replace("_", "!_")
