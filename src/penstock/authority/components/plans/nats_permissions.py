"""The permissions that each component needs at NATS servers: topics-lists that the servers enforce.

`domain_permissions` returns them for the components of a domain plan, and `server_configuration` as text for a server.

| component | writes | reads |
|---|---|---|
| one that joins | JOIN, under its own key | CONF, its own key only |
| one that has joined | its write-list: requests in its own instance, replies in any, others under its own key | |
| | | its read-list: replies in its own instance (a PLP: all), APOL its own key only, others all |
| PAP | CONF, R*, SPOL, APOL | JOIN, CONF, A*, SPOL, APOL; withdrawals on CONF of partner domains |

A component that is not a PAP has two users: one to join, which it leaves when it has joined, and one to work. Only PAPs
make streams, claim topics, and discard what JOIN, CONF, R* and A* need no more. What these permissions cannot say is in
docs/adr/0066.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.authority.components.exchange.samples import WITHDRAWALS_KEY
from penstock.authority.components.exchange.topics import (
    COMPACTED,
    REPLIES,
    REQUESTS,
    TOPICS,
    WATCHED,
    ComponentKind,
    TopicInstance,
    TopicKind,
    TopicLevels,
    component_key,
    qos_of,
    topic_name,
)
from penstock.authority.components.exchange.topics_lists import TopicsList
from penstock.authority.components.plans.domain_plan import DomainPlan
from penstock.fabric import FOREVER, Ownership
from penstock.fabric.nats_names import NatsNames

_JOIN: Final = TopicInstance(TopicKind.JOIN)
_CONF: Final = TopicInstance(TopicKind.CONF)
_OF_ALL_DOMAINS: Final = frozenset({_JOIN, _CONF, TopicInstance(TopicKind.SPOL), TopicInstance(TopicKind.APOL)})
_NO_TOPICS: Final = TopicsList()


@dataclass(frozen=True, slots=True)
class NatsPermissions:
    """The subjects that one user may publish and subscribe to, and the prefix of its inboxes."""

    component: str
    kind: ComponentKind
    role: str
    #: whether the component joins as this user, and works as another
    joining: bool
    inbox: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]

    @property
    def user(self) -> str:
        """The user's name in a server's configuration."""
        return f"{self.component}_JOINING" if self.joining else self.component

    def as_dict(self) -> dict[str, object]:
        """Return the permissions as JSON values."""
        return {
            "component": self.component,
            "kind": str(self.kind),
            "role": self.role,
            "joining": self.joining,
            "inbox": self.inbox,
            "publish": [*self.publish],
            "subscribe": [*self.subscribe],
        }


@dataclass(slots=True)
class _Subjects:
    """Collect the subjects of a component."""

    names: NatsNames
    domain: str
    levels: TopicLevels
    publish: set[str] = field(default_factory=set)
    subscribe: set[str] = field(default_factory=set)

    def call(self, what: str) -> None:
        self.publish.add(f"{self.names.api}.{what}")

    def declare(self, instance: TopicInstance, domain: str, *, make: bool) -> None:
        """Allow to find a topic, or also to make it."""
        topic, named = topic_name(domain, instance), instance.kind in REQUESTS | REPLIES
        for stream in [self.names.stream(topic), *([self.names.stream(topic, named=True)] if named else ())]:
            self.call(f"STREAM.INFO.{stream}")
            if make:
                self.call(f"STREAM.CREATE.{stream}")
        if make:
            self.publish.add(f"{self.names.prefix}.topics.{topic}")

    def write(self, instance: TopicInstance, key: str | None, named: str = "") -> None:
        """Allow to write a topic: under one key, or under all, and to one named instance, or to those of a wildcard."""
        topic = topic_name(self.domain, instance)
        self.publish.add(self.names.subject(topic, key, named))
        if instance.kind in WATCHED and self.levels.lease != FOREVER:
            self.publish.add(self.names.alive(topic))

    def read(self, instance: TopicInstance, filter_: str = "", *, domain: str = "", named: bool = False) -> None:
        """Allow to read the stream of a topic: all of it, or with this filter only."""
        topic = topic_name(domain or self.domain, instance)
        stream = self.names.stream(topic, named=named)
        self.call(f"CONSUMER.CREATE.{stream}.*.{filter_}" if filter_ else f"CONSUMER.CREATE.{stream}.>")
        for verb in ("MSG.NEXT", "DELETE"):
            self.call(f"CONSUMER.{verb}.{stream}.*")
        if not qos_of(instance.kind, self.levels).durable:
            self.publish |= {f"$JS.ACK.{stream}.>", f"$JS.ACK.*.*.{stream}.>"}  # without and with a JetStream domain
        if instance.kind in WATCHED and self.levels.lease != FOREVER:
            self.subscribe.add(self.names.alive(topic))


def component_permissions(  # noqa: PLR0913  # a component, and the settings of its domain
    domain: str,
    component: str,
    kind: ComponentKind,
    topics: TopicsList,
    *,
    role: str = "",
    levels: TopicLevels | None = None,
    partners: Iterable[str] = (),
    names: NatsNames | None = None,
) -> list[NatsPermissions]:
    """Return the permissions of one component's users. The topics of a PAP are all those of the roles of its domain."""
    names = names or NatsNames()

    def user(allow: Callable[[_Subjects], None], *, joining: bool = False) -> NatsPermissions:
        allowed = _Subjects(names, domain, levels or TopicLevels())
        inbox = f"_INBOX.joining.{domain}-{component}" if joining else f"_INBOX.{domain}-{component}"
        allowed.subscribe.add(f"{inbox}.>")
        allowed.call(f"STREAM.INFO.{names.registry}")
        allowed.call(f"STREAM.MSG.GET.{names.registry}")
        allow(allowed)
        subjects = map(tuple, map(sorted, (allowed.publish, allowed.subscribe)))
        return NatsPermissions(component, kind, role, joining, inbox, *subjects)

    if kind is ComponentKind.PAP:
        return [user(lambda allowed: _administer(allowed, topics, partners))]
    return [
        user(lambda allowed: _join(allowed, component), joining=True),
        user(lambda allowed: _take_part(allowed, component, kind, topics)),
    ]


def _join(allowed: _Subjects, component: str) -> None:
    key = component_key(allowed.domain, component)
    for instance in (_JOIN, _CONF):
        allowed.declare(instance, allowed.domain, make=False)
    allowed.write(_JOIN, key)
    allowed.read(_CONF, allowed.names.subject(topic_name(allowed.domain, _CONF), key))


def _take_part(allowed: _Subjects, component: str, kind: ComponentKind, topics: TopicsList) -> None:
    key = component_key(allowed.domain, component)
    for instance in topics.write | topics.read:
        allowed.declare(instance, allowed.domain, make=False)
    for instance in topics.write:
        if instance.kind in REQUESTS | REPLIES:
            allowed.write(instance, None, component if instance.kind in REQUESTS else "*")
        else:
            allowed.write(instance, key)
    own = [one for one in topics.read if one.kind is TopicKind.APOL and kind is not ComponentKind.PLP]
    for instance in own:
        allowed.read(instance, allowed.names.subject(topic_name(allowed.domain, instance), key))
    for instance in topics.read.difference(own):
        if instance.kind in REPLIES and kind is not ComponentKind.PLP:
            topic = topic_name(allowed.domain, instance)
            allowed.read(instance, allowed.names.subject(topic, instance=component), named=True)
            continue
        allowed.read(instance)
        if instance.kind in REQUESTS | REPLIES:
            allowed.read(instance, named=True)


def _administer(allowed: _Subjects, topics: TopicsList, partners: Iterable[str]) -> None:
    names = allowed.names
    allowed.call(f"STREAM.CREATE.{names.registry}")
    for instance in topics.write | topics.read | _OF_ALL_DOMAINS:
        topic = topic_name(allowed.domain, instance)
        allowed.declare(instance, allowed.domain, make=True)
        if ComponentKind.PAP in TOPICS[instance.kind].writers:
            allowed.write(instance, None)
        if ComponentKind.PAP in TOPICS[instance.kind].readers or instance == _CONF:
            allowed.read(instance)
        if qos_of(instance.kind, allowed.levels).ownership is Ownership.EXCLUSIVE:
            allowed.publish.add(f"{names.prefix}.owners.{topic}")
        if instance.kind in COMPACTED:
            allowed.call(f"STREAM.PURGE.{names.stream(topic)}")
        if instance.kind in COMPACTED | {TopicKind.APOL}:
            for named in (False, True):  # a PAP reads the state of a topic, and looks for named instances too
                allowed.call(f"CONSUMER.CREATE.{names.stream(topic, named=named)}")
    for partner in partners:
        allowed.declare(_CONF, partner, make=True)
        allowed.read(_CONF, names.subject(topic_name(partner, _CONF), WITHDRAWALS_KEY), domain=partner)


def domain_permissions(plan: DomainPlan, others: Iterable[DomainPlan] = ()) -> list[NatsPermissions]:
    """Return the users of the components of a plan, and of those in component files of the same domain."""
    roles = plan.roles.values()
    everything = TopicsList(
        frozenset(one for role in roles for one in role.topics.write),
        frozenset(one for role in roles for one in role.topics.read),
    )
    components = [one for each in (plan, *others) for one in each.components.values()]
    found: list[NatsPermissions] = []
    for one in components:
        planned = plan.roles.get(one.role)
        topics = everything if one.kind is ComponentKind.PAP else _NO_TOPICS if planned is None else planned.topics
        found += component_permissions(
            plan.name, one.id, one.kind, topics, role=one.role, levels=plan.levels, partners=plan.partners
        )
    return found


def server_configuration(domain: str, permissions: Iterable[NatsPermissions]) -> Iterator[str]:
    """Yield the lines of a configuration of nats-server: the users, each with a placeholder as its nkey."""
    yield f"# The components of domain {domain}. Put the public nkey of each user in place of NKEY_OF_…"
    yield "authorization {"
    yield "  users: ["
    for one in permissions:
        what = f"{one.kind}{' ' if one.role else ''}{one.role}{', joining' if one.joining else ''}"
        yield f"    # {one.component}: {what}; inbox = {json.dumps(one.inbox)}"
        yield f"    {{nkey: NKEY_OF_{one.user}, permissions: {{"
        for verb, subjects in (("publish", one.publish), ("subscribe", one.subscribe)):
            yield f"      {verb}: {{allow: ["
            yield from (f"        {json.dumps(subject)}" for subject in subjects)
            yield "      ]}"
        yield "    }}"
    yield "  ]"
    yield "}"
