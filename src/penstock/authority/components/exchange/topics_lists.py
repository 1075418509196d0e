"""Topics-lists: which topics a component with a role can write, and which it can read (paper 4, Figure 4)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from penstock.authority.components.exchange.topics import (
    JOINING_TOPICS,
    TOPICS,
    ComponentKind,
    TopicInstance,
    TopicKind,
    applied_topic,
    reconfiguration_topic,
)
from penstock.codec.sexp import Form, text
from penstock.errors import MalformedError, RefusedError
from penstock.trust.signed import StatementRecord, malformed

#: topics in one list
LISTED_TOPICS: Final = 1_000
_INSTANCE: Final[Form[TopicInstance]] = Form(
    lambda instance: str(instance).encode(), lambda value: TopicInstance.parse(text(value))
)


@dataclass(frozen=True, slots=True)
class TopicsList(StatementRecord):
    """The topics that a component can write and read.

    >>> TopicsList.of(["APEP_1", "QPEP_1", "DREQ_1"], ["RPEP_1", "DREP_1"]).verify_for(ComponentKind.PEP)
    """

    HEAD: ClassVar = b"topics"
    write: Annotated[frozenset[TopicInstance], _INSTANCE] = frozenset()
    read: Annotated[frozenset[TopicInstance], _INSTANCE] = frozenset()

    @classmethod
    def of(cls, write: Iterable[str], read: Iterable[str]) -> "TopicsList":
        """Return the list of these instances. Raises `MalformedError` (`component.topic`)."""
        return cls(frozenset(map(TopicInstance.parse, write)), frozenset(map(TopicInstance.parse, read)))

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`evolution.malformed`) for a list that is too long."""
        if len(self.write) + len(self.read) > LISTED_TOPICS:
            raise malformed(f"a topics-list has more than {LISTED_TOPICS} topics")

    def verify_for(self, kind: ComponentKind) -> None:
        """Raise `RefusedError` (`component.topics-list`) if a component of this kind cannot have the list.

        (1) JOIN and CONF are in no list. (2) Table 2 says which kinds write and read a topic. (3) A component that is
        reconfigured reads one instance of its R* topic, and writes its apply times to one instance of its A* topic.
        """
        for verb, instances, kinds in (
            ("write", self.write, {one: TOPICS[one].writers for one in TopicKind}),
            ("read", self.read, {one: TOPICS[one].readers for one in TopicKind}),
        ):
            for instance in sorted(instances):
                if instance.kind in JOINING_TOPICS:  # (1)
                    raise _refused(f"{instance} is in no topics-list", "leave it out: it is used while joining")
                if kind not in kinds[instance.kind]:  # (2)
                    allowed = ", ".join(sorted(kinds[instance.kind]))
                    raise _refused(f"a {kind} cannot {verb} {instance}", f"only {allowed} can")
        replanned, applied = reconfiguration_topic(kind), applied_topic(kind)
        if replanned is not None and applied is not None:  # (3)
            if len(self.reading(replanned)) != 1:
                raise _refused(f"a {kind} reads one {replanned} topic", f"list `{replanned}_1`, or another instance")
            if len(self.writing(applied)) != 1:
                raise _refused(f"a {kind} writes one {applied} topic", f"list `{applied}_1`, or another instance")

    def writing(self, kind: TopicKind) -> tuple[TopicInstance, ...]:
        """Return the instances of a type that can be written, in order."""
        return tuple(sorted(one for one in self.write if one.kind is kind))

    def reading(self, kind: TopicKind) -> tuple[TopicInstance, ...]:
        """Return the instances of a type that can be read, in order."""
        return tuple(sorted(one for one in self.read if one.kind is kind))


def _refused(message: str, hint: str) -> RefusedError:
    return RefusedError("component.topics-list", message, hint=hint)


def role_text(name: str, arguments: Iterable[object]) -> str:
    """Return a role as people write it.

    >>> role_text("ER", [1])
    'ER(1)'
    """
    return f"{name}({', '.join(repr(one) if isinstance(one, str) else str(one) for one in arguments)})"


def parse_role(written: str) -> tuple[str, tuple[str | int, ...]]:
    """Read a role with arguments that are integers or quoted texts. Raises `MalformedError` (`component.role`).

    >>> parse_role("ER(1)")
    ('ER', (1,))
    >>> parse_role("LR(2, 'night')")
    ('LR', (2, 'night'))
    """
    name, bracket, rest = written.strip().partition("(")
    arguments: list[str | int] = []
    wrong = MalformedError(
        "component.role", f"`{written[:80]}` is not a role", hint="write it as `ER(1)` or `LR(2, 'night')`"
    )
    if not name.isidentifier() or not name.isascii() or (bracket and not rest.endswith(")")):
        raise wrong
    for part in filter(None, map(str.strip, rest[:-1].split(","))):
        if len(part) > 1 and part[0] == part[-1] == "'":
            arguments.append(part[1:-1])
        elif part.isascii() and part.removeprefix("-").isdigit() and len(part) < 19:  # within 64 bits
            arguments.append(int(part))
        else:
            raise wrong
    return name, tuple(arguments)
