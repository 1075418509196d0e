"""The hierarchical rule of topics: what publishing and subscribing need in a tree of them (paper 5, section 5.5).

Whoever publishes on a topic needs the right to publish on all its super-topics as well, because their subscribers get
the message too. What the rights say beyond yes counts on each level: a message must satisfy one right on every one of
them. Whoever subscribes needs the right on that topic alone, and none on its super-topics; the sub-topics come with it.

`decide()` asks by this rule, so that brokers, jobs and the command line do. And it has each message say on which topic
it was published, whatever its publisher says.
"""

from dataclasses import replace

from penstock.errors import RefusedError
from penstock.guard.restriction import Branch, Restriction, TypeScope
from penstock.model.topics import TopicName, is_topic, topic_attribute
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType


def super_topics(verified: VerifiedType) -> tuple[VerifiedType, ...]:
    """Return the super-topics of a topic, from the nearest to the first level; none for what is no topic.

    Raises `RefusedError` (`topic.super-topics`) where they are not known.
    """
    if not is_topic(verified.event_type.name):
        return ()
    found: list[VerifiedType] = []
    above = verified.parent
    while above is not None:
        found.append(above)
        above = above.parent
    needed = [topic.type_name for topic in TopicName.of_type(verified.event_type.name).super_topics]
    if [one.event_type.name for one in found] != needed:
        raise RefusedError(
            "topic.super-topics",
            f"the super-topics of `{verified.event_type.name.name}` are not known",
            hint="verify the topic together with them",
        )
    return tuple(found)


def both(on_topic: Restriction, above: Restriction) -> Restriction:
    """Return what rights on a topic allow of it as far as rights on a super-topic allow it there."""
    return on_topic & Restriction(tuple(replace(branch, types=TypeScope()) for branch in above.branches))


def named(restriction: Restriction, verified: VerifiedType) -> Restriction:
    """Return rights to publish on a topic so that each message says its name."""
    topic = TopicName.of_type(verified.event_type.name)
    attribute = topic_attribute(topic)
    told = Branch(action=Right.PUBLISH, forced=((attribute, topic.path),))

    def listing(branch: Branch) -> Branch:
        return branch if branch.attributes is None else replace(branch, attributes=branch.attributes | {attribute})

    return Restriction(tuple(listing(branch) for branch in restriction.branches)) & Restriction((told,))
