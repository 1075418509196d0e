"""Signed topics and rights on them (paper 5, sections 4.6 and 5.5): event types and capabilities, by the topics' names.

A definition carries name, owner, credentials and a signature, so that every broker verifies it for itself; the right to
create topics on a network is `install`. Nothing here is a second vocabulary: a right on a topic is a right on its type.

Who may publish on a topic, beyond the right on it, is for `guard` to say: the rights on all super-topics count too.
"""

from collections.abc import Iterable
from datetime import datetime

from penstock.crypto import SigningKey
from penstock.errors import MalformedError
from penstock.model.names import NetworkName
from penstock.model.principals import Principal
from penstock.model.topics import TopicName, TopicPattern, topic_definition
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import (
    TypeSource,
    UnverifiedType,
    VerifiedType,
    no_types,
    sign_type,
    verify_type,
)
from penstock.trust.tags import Tag, covers, parse_tag, to_sexp

_NAME = 2


def sign_topic(topic: TopicName, key: SigningKey, credentials: Credentials | None = None) -> UnverifiedType:
    """Sign the definition of a topic, with the credentials that a verifier will need. Signing is not a proof."""
    return sign_type(topic_definition(topic), key, credentials)


def verify_topic(
    unverified: UnverifiedType,
    now: datetime,
    *,
    topics: TypeSource = no_types,
    network: NetworkName | None = None,
) -> VerifiedType:
    """Verify the definition of a topic; `topics` is asked for its super-topics.

    Raises `MalformedError` (`topic.type`) for an event type that is not a topic, and what `verify_type` raises.
    """
    TopicName.of_type(unverified.definition.name)
    return verify_type(unverified, now, types=topics, network=network)


def topic_tag(
    owner: Principal | None,
    patterns: Iterable[str],
    rights: Iterable[Right],
    *,
    super_topics: bool = False,
    when: Iterable[str] = (),
) -> Tag:
    """Return rights on the topics of an owner, or of all, that match a pattern; `**` in it is one or more levels.

    With `super_topics` the rights are on all their super-topics too, as somebody needs who shall publish. Raises
    `MalformedError` (`topic.pattern`, `capability.right`), `LimitError` (`topic.limit`), and `SelectorError` for a
    condition in `when` that does not parse.
    """
    chosen = [TopicPattern(text) for text in patterns]
    if not chosen:
        raise MalformedError("topic.pattern", "the right is on no topic", hint="name one, or `**` for all")
    if super_topics:
        chosen += [above for pattern in chosen for above in pattern.super_patterns]
    names = sorted({pattern.type_pattern for pattern in chosen})
    body = to_sexp(event_tag(owner, None, None, rights, when=when))
    members = ((b"*", b"glob", name.encode()) if "*" in name else name.encode() for name in names)
    if not isinstance(body, tuple):
        raise MalformedError("capability.malformed", "a right on event types is a list")
    return parse_tag((*body[:_NAME], (b"*", b"set", *members), *body[_NAME + 1 :]))


def lacking_above(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return patterns of the super-topics that rights on these topics are not on, those of the first levels first.

    Raises as `topic_tag` does.
    """
    chosen = tuple(patterns)
    given = topic_tag(None, chosen, [Right.PUBLISH])
    needed = {above.text for text in chosen for above in TopicPattern(text).super_patterns}
    found = (text for text in needed if not covers(given, topic_tag(None, [text], [Right.PUBLISH])))
    return tuple(sorted(found, key=lambda text: (text.count("/"), text)))
