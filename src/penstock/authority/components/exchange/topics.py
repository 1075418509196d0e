"""The 18 types of topics by which components communicate, and their quality of service (paper 4, 4.1.1.1).

`TOPICS` is Table 2, and `qos_of` Table 3. Table 3 has 16 types; here SPOL is as JOIN, and APOL as CONF. A policy
specification point joins as the other components do, so it also writes JOIN and reads CONF.

A topic type can have several instances: `DREQ_1`, `DREQ_2`. On a fabric the topic of an instance is
`DOMAIN-DREQ_1`. Samples have keys, so that neither keep-last nor the order by source time drops what matters:

| samples | key |
|---|---|
| requests | domain, id and number of the request |
| replies | domain, id and number of the request, and the replier's id |
| CONF, APOL | domain and id of the component that they are for |
| all others | domain and id of their writer |

Content filters are choices of keys. They save work and protect nothing: every reader checks what arrives.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.errors import MalformedError
from penstock.fabric import FOREVER, KEEP_ALL, Durability, Order, Ownership, Priority, Qos, Reliability


class ComponentKind(StrEnum):
    """The kinds of authorization components."""

    PAP = "PAP"  #: administration
    PEP = "PEP"  #: enforcement
    PDP = "PDP"  #: decision
    PIP = "PIP"  #: information
    PLP = "PLP"  #: logging
    PSP = "PSP"  #: policy specification


#: the conceptual role of each kind of component
CONCEPTUAL_ROLES: Final[Mapping[ComponentKind, str]] = {
    ComponentKind.PAP: "AR",
    ComponentKind.PEP: "ER",
    ComponentKind.PDP: "DR",
    ComponentKind.PIP: "IR",
    ComponentKind.PLP: "LR",
    ComponentKind.PSP: "SR",
}


class TopicKind(StrEnum):
    """The types of topics, in the order of Table 2."""

    JOIN = "JOIN"
    CONF = "CONF"
    RPEP = "RPEP"
    APEP = "APEP"
    RPDP = "RPDP"
    APDP = "APDP"
    RPIP = "RPIP"
    APIP = "APIP"
    RPLP = "RPLP"
    APLP = "APLP"
    QPEP = "QPEP"
    DREQ = "DREQ"
    DREP = "DREP"
    QPDP = "QPDP"
    IREQ = "IREQ"
    IREP = "IREP"
    SPOL = "SPOL"
    APOL = "APOL"


@dataclass(frozen=True, slots=True)
class TopicType:
    """A row of Table 2."""

    #: the fields of the paper that a sample has, without ours
    fields: tuple[str, ...]
    writers: frozenset[ComponentKind]
    readers: frozenset[ComponentKind]
    #: whether a sample is for one component
    filtered: bool = False
    #: whether there can be several instances in a domain
    multiple: bool = True


def _kinds(text: str) -> frozenset[ComponentKind]:
    return frozenset(map(ComponentKind, text.split()))


def _row(fields: str, writers: str, readers: str, **other: bool) -> TopicType:
    return TopicType(tuple(fields.split()), _kinds(writers), _kinds(readers), **other)


_JOINING: Final = "PEP PDP PIP PLP PSP"
TOPICS: Final[Mapping[TopicKind, TopicType]] = {
    TopicKind.JOIN: _row("CE DN ID RR AR", _JOINING, "PAP", multiple=False),
    TopicKind.CONF: _row("DN ID RC TL CA PR PO", "PAP", _JOINING, filtered=True, multiple=False),
    **{
        TopicKind(direction + kind): _row(fields, writer, reader)
        for kind in ("PEP", "PDP", "PIP", "PLP")
        for direction, fields, writer, reader in (("R", "RE ET", "PAP", kind), ("A", "DN ID AT", kind, "PAP"))
    },
    TopicKind.QPEP: _row("DN ID RA", "PEP", "PDP PLP"),
    TopicKind.DREQ: _row("DN ID RQ", "PEP", "PDP PLP", filtered=True),
    TopicKind.DREP: _row("DN ID RP", "PDP", "PEP PLP", filtered=True),
    TopicKind.QPDP: _row("DN ID RA", "PDP", "PIP PLP"),
    TopicKind.IREQ: _row("DN ID RQ", "PDP", "PIP PLP", filtered=True),
    TopicKind.IREP: _row("DN ID RP", "PIP", "PDP PLP", filtered=True),
    TopicKind.SPOL: _row("DN ID PO", "PAP PSP", "PAP", multiple=False),
    TopicKind.APOL: _row("DN ID AT", "PAP", "PAP PSP", filtered=True, multiple=False),
}
#: topics that every newcomer uses until it has joined, and that are in no topics-list
JOINING_TOPICS: Final = frozenset({TopicKind.JOIN, TopicKind.CONF})
REQUESTS: Final = frozenset({TopicKind.DREQ, TopicKind.IREQ})
REPLIES: Final = frozenset({TopicKind.DREP, TopicKind.IREP})
#: topics whose readers learn that a writer is gone: repliers of those that ask, and PAPs of all
LEASED: Final = frozenset({TopicKind.QPEP, TopicKind.QPDP})
WATCHED: Final = LEASED | {TopicKind.APEP, TopicKind.APDP, TopicKind.APIP, TopicKind.APLP}
#: topics that keep all samples until the owner of CONF discards what nobody needs any more
COMPACTED: Final = frozenset(TopicKind) - REQUESTS - REPLIES - LEASED - {TopicKind.SPOL, TopicKind.APOL}
_DECIDING: Final = REQUESTS | REPLIES


def reconfiguration_topic(kind: ComponentKind) -> TopicKind | None:
    """Return the type of topic by which components of a kind are reconfigured; PAPs and PSPs are not."""
    return _REPLANNED.get(kind)


def applied_topic(kind: ComponentKind) -> TopicKind | None:
    """Return the type of topic on which components of a kind write their apply times."""
    return _APPLIED.get(kind)


_RECONFIGURED: Final = (ComponentKind.PEP, ComponentKind.PDP, ComponentKind.PIP, ComponentKind.PLP)
_REPLANNED: Final = {kind: TopicKind(f"R{kind}") for kind in _RECONFIGURED}
_APPLIED: Final = {kind: TopicKind(f"A{kind}") for kind in _RECONFIGURED}

# ----------------------------------------------------------------------------------------------------------------------
# Table 3.


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLevels:
    """The values that a domain chooses for Table 3: three latency budgets, three priorities, and LS, in seconds.

    `lease` is ours: after so many seconds without a word of a component, others know that it has crashed, and its role
    ends; and so long a component works without a word of the PAPs. Without one nobody says that it is alive, nobody
    learns of a crash, and who hears of a reconfiguration late works by the old one until then.

    Raises `MalformedError` (`component.levels`) unless LB3 > LB2 > LB1 >= 0, TP1 > TP2 > TP3, and LS > 0.
    """

    lb1: float = 0.05
    lb2: float = 0.5
    lb3: float = 5.0
    tp1: Priority = Priority.HIGH
    tp2: Priority = Priority.NORMAL
    tp3: Priority = Priority.LOW
    #: the longest time that a request or a reply is valid: the request time-out
    lifespan: float = 5.0
    lease: float = FOREVER

    def __post_init__(self) -> None:
        if not FOREVER > self.lb3 > self.lb2 > self.lb1 >= 0:  # equation (3)
            raise _levels("latency budgets are LB3 > LB2 > LB1 >= 0")
        ranks = [*Priority]
        if not ranks.index(self.tp1) > ranks.index(self.tp2) > ranks.index(self.tp3):  # equation (4)
            raise _levels("transport priorities are TP1 > TP2 > TP3")
        if not 0 < self.lifespan < FOREVER or not self.lease > 0:
            raise _levels("the lifespan of requests and a lease are numbers of seconds")


def _levels(message: str) -> MalformedError:
    return MalformedError("component.levels", message, hint="see Table 3 in docs/explanation/components.md")


def qos_of(kind: TopicKind, levels: TopicLevels) -> Qos:
    """Return the quality of service of a type of topic: Table 3.

    >>> qos_of(TopicKind.DREQ, TopicLevels(lifespan=2)).lifespan
    2
    """
    deciding = kind in _DECIDING
    if kind in (TopicKind.JOIN, TopicKind.CONF, TopicKind.SPOL, TopicKind.APOL):
        budget, priority = levels.lb3, levels.tp3
    elif kind in _REPLANNED.values():
        budget, priority = levels.lb1, levels.tp1
    else:
        budget, priority = levels.lb2, levels.tp2
    return Qos(
        durability=Durability.VOLATILE if deciding else Durability.PERSISTENT,
        history=1 if deciding or kind in (TopicKind.QPEP, TopicKind.QPDP) else KEEP_ALL,
        ownership=Ownership.EXCLUSIVE if kind in (TopicKind.CONF, TopicKind.APOL) else Ownership.SHARED,
        source_order=Order.BY_SOURCE,
        reliability=Reliability.RELIABLE,
        time_filter=0.0,
        deadline=FOREVER,
        lifespan=levels.lifespan if deciding else FOREVER,
        latency_budget=budget,
        priority=priority,
        lease=levels.lease if kind in WATCHED else FOREVER,
    )


# ----------------------------------------------------------------------------------------------------------------------
# Instances, names and keys.


#: instances of one type in a domain
TOPIC_INSTANCES: Final = 100_000
NAME_LENGTH: Final = 32
_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_LENGTH}}}", re.ASCII)
_INSTANCE: Final = re.compile(r"([A-Z]{4})_([1-9][0-9]{0,5})", re.ASCII)


def check_component_name(name: str) -> None:
    """Check the name of a domain or the id of a component. Raises `MalformedError` (`component.name`)."""
    if not _NAME.fullmatch(name):
        raise MalformedError(
            "component.name",
            f"`{name[:40]}` is not the name of a domain or a component",
            hint=f"1 to {NAME_LENGTH} letters, digits, `-` and `_`",
        )


@dataclass(frozen=True, slots=True, order=True)
class TopicInstance:
    """An instance of a type of topic. Raises `MalformedError` (`component.topic`).

    >>> str(TopicInstance(TopicKind.DREQ, 2))
    'DREQ_2'
    """

    kind: TopicKind
    number: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= (TOPIC_INSTANCES if TOPICS[self.kind].multiple else 1):
            raise MalformedError(
                "component.topic",
                f"there is no instance {self.number} of {self.kind}",
                hint=f"JOIN, CONF, SPOL and APOL have one instance, others up to {TOPIC_INSTANCES}",
            )

    def __str__(self) -> str:
        return f"{self.kind}_{self.number}"

    @classmethod
    def parse(cls, text: str) -> "TopicInstance":
        """Read the written form. Raises `MalformedError` (`component.topic`)."""
        known = _PARSED.get(text)
        if known is not None:
            return known
        found = _INSTANCE.fullmatch(text)
        if found is None or found[1] not in [*TopicKind]:
            raise MalformedError(
                "component.topic", f"`{text[:40]}` is not an instance of a topic", hint="write it as `DREQ_1`"
            )
        return cls(TopicKind(found[1]), int(found[2]))


#: the instances that are used again and again
_PARSED: Final[Mapping[str, TopicInstance]] = {
    f"{kind}_{number}": TopicInstance(kind, number)
    for kind in TopicKind
    for number in (range(1, 17) if TOPICS[kind].multiple else (1,))
}


def topic_name(domain: str, instance: TopicInstance) -> str:
    """Return the name of the topic on a fabric.

    >>> topic_name("bank", TopicInstance(TopicKind.DREQ))
    'bank-DREQ_1'
    """
    return f"{domain}-{instance}"


def component_key(domain: str, component: str) -> str:
    """Return the key of the samples of one component, and of those for one component."""
    return f"{domain}/{component}"


def request_sample_key(domain: str, component: str, number: int) -> str:
    """Return the key of a request."""
    return f"{domain}/{component}/{number}"


def reply_sample_key(domain: str, component: str, number: int, replier: str) -> str:
    """Return the key of a reply: that of the request, and who replies."""
    return f"{domain}/{component}/{number}/{replier}"
