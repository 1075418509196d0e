"""Messages between brokers, as values and as plain trees for the wire.

Every message between two neighbours travels in a `Hop`, which names the sender's session and a number:

| body           | means                                                                       | counted |
|----------------|-----------------------------------------------------------------------------|---------|
| `Greeting`     | a session starts: forget my earlier messages                                | no      |
| `Pulse`        | I am alive, and have sent so many counted messages                          | no      |
| `Again`        | start a later session: I have missed messages                               | no      |
| `Announcement` | a broker's links, numbered by that broker; forwarded to all                 | yes     |
| `Disclosure`   | a broker's credentials, numbered likewise; forwarded to all                 | yes     |
| `Enter`        | add an interest, advertisement or subscription under this handle            | yes     |
| `WithdrawEntry` | remove the entry under this handle                                         | yes     |
| `Confirm`      | answer when my entries in a tree have reached all brokers that need them    | yes     |
| `Confirmed`    | they have                                                                   | yes     |
| `Publications` | events                                                                      | yes     |

`to_tree` gives None, bool, int, float, str, bytes, datetime, and lists and string-keyed dicts of them. `from_tree`
reads exactly what `to_tree` writes, within `BrokerLimits`. For any other tree it raises `MalformedError`
(`message.malformed`), `LimitError` (`message.limit`) or what the parts of a message raise, and nothing else.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Final, TypeAlias

from penstock.broker.limits import NETWORK_DISCLOSURE, NETWORK_LINKS, NETWORK_PROOF
from penstock.broker.sealing.blocks import SealedPublications
from penstock.broker.wire.entries import Entry, read_entry
from penstock.broker.wire.plain_trees import (
    Fields,
    Tree,
    key_tree,
    malformed,
    principal_tree,
    read_key,
    read_principal,
    too_many,
)
from penstock.broker.wire.publications import Publications
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.values import INTEGER_MAX


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first message of a session."""

    KIND: ClassVar = "greeting"
    COUNTED: ClassVar = False

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {}

    @classmethod
    def _read(cls, _fields: Fields) -> "Greeting":
        return cls()


@dataclass(frozen=True, slots=True)
class Pulse:
    """A sign of life. Its hop has the number of the sender's last counted message."""

    KIND: ClassVar = "pulse"
    COUNTED: ClassVar = False

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {}

    @classmethod
    def _read(cls, _fields: Fields) -> "Pulse":
        return cls()


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """Identifies a session of one broker with one neighbour. Later sessions are greater."""

    incarnation: int
    session: int


@dataclass(frozen=True, slots=True)
class Again:
    """Requests a session after `after`: messages were lost, or the receiver's clock went backwards."""

    KIND: ClassVar = "again"
    COUNTED: ClassVar = False
    after: Stamp

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {"incarnation": self.after.incarnation, "session": self.after.session}

    @classmethod
    def _read(cls, fields: Fields) -> "Again":
        return cls(Stamp(fields.count("incarnation"), fields.count("session")))


@dataclass(frozen=True, slots=True)
class Announcement:
    """One broker's own announcement of its links. Later numbers of a later incarnation win.

    `proof` shows that the broker made the announcement (see `Membership`).
    """

    KIND: ClassVar = "announcement"
    COUNTED: ClassVar = True
    broker: Principal
    incarnation: int
    number: int
    links: tuple[Principal, ...] = ()
    proof: bytes = b""

    @property
    def order(self) -> tuple[int, int]:
        """The sort key: the later of two announcements of a broker has the greater one."""
        return self.incarnation, self.number

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {
            "broker": principal_tree(self.broker),
            "incarnation": self.incarnation,
            "number": self.number,
            "links": [principal_tree(link) for link in self.links],
            "proof": self.proof,
        }

    @classmethod
    def _read(cls, fields: Fields) -> "Announcement":
        broker = read_principal(fields.any("broker"))
        order = fields.count("incarnation"), fields.count("number")
        links = fields.many("links", NETWORK_LINKS, read_principal)
        if any(one >= other for one, other in pairwise(links)) or broker in links:
            malformed("the links of an announcement are not a sorted set of other brokers")
        return cls(broker, *order, links, _read_bytes(fields, "proof", NETWORK_PROOF))


@dataclass(frozen=True, slots=True)
class Disclosure:
    """One broker's credentials for all others, which routing treats as bytes. Later ones win, as announcements do.

    It is not longer than `BrokerLimits.network_disclosure`.
    """

    KIND: ClassVar = "disclosure"
    COUNTED: ClassVar = True
    broker: Principal
    incarnation: int
    number: int
    data: bytes = field(default=b"", repr=False)
    proof: bytes = b""

    @property
    def order(self) -> tuple[int, int]:
        """The sort key: the later of two disclosures of a broker has the greater one."""
        return self.incarnation, self.number

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {
            "broker": principal_tree(self.broker),
            "incarnation": self.incarnation,
            "number": self.number,
            "octets": self.data,
            "proof": self.proof,
        }

    @classmethod
    def _read(cls, fields: Fields) -> "Disclosure":
        broker = read_principal(fields.any("broker"))
        order = fields.count("incarnation"), fields.count("number")
        data = _read_bytes(fields, "octets", NETWORK_DISCLOSURE)
        return cls(broker, *order, data, _read_bytes(fields, "proof", NETWORK_PROOF))


def _read_bytes(fields: Fields, name: str, most: int) -> bytes:
    data = fields.take(name, bytes)
    if len(data) > most:
        too_many(f"bytes of `{name}`", most)
    return data


@dataclass(frozen=True, slots=True)
class Enter:
    """Adds an entry, under a handle of the sender's choice that is new in the session."""

    KIND: ClassVar = "enter"
    COUNTED: ClassVar = True
    handle: int
    entry: Entry

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {"handle": self.handle, "entry": self.entry.to_tree()}

    @classmethod
    def _read(cls, fields: Fields) -> "Enter":
        return cls(fields.count("handle"), read_entry(fields.any("entry")))


@dataclass(frozen=True, slots=True)
class WithdrawEntry:
    """Removes an entry of this session."""

    KIND: ClassVar = "withdraw"
    COUNTED: ClassVar = True
    handle: int

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {"handle": self.handle}

    @classmethod
    def _read(cls, fields: Fields) -> "WithdrawEntry":
        return cls(fields.count("handle"))


@dataclass(frozen=True, slots=True)
class Confirm:
    """Asks for an answer when all entries of the sender in a tree have reached the brokers that need them."""

    KIND: ClassVar = "confirm"
    COUNTED: ClassVar = True
    number: int
    tree: TypeKey

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {"number": self.number, "tree": key_tree(self.tree)}

    @classmethod
    def _read(cls, fields: Fields) -> "Confirm":
        return cls(fields.count("number"), read_key(fields.any("tree")))


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Answers a `Confirm`: all entries before the question of this number have arrived."""

    KIND: ClassVar = "confirmed"
    COUNTED: ClassVar = True
    number: int

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {"number": self.number}

    @classmethod
    def _read(cls, fields: Fields) -> "Confirmed":
        return cls(fields.count("number"))


Body: TypeAlias = (
    Greeting | Pulse | Again | Announcement | Disclosure | Enter | WithdrawEntry | Confirm | Confirmed | Publications
)
_BODIES: Final = {
    kind.KIND: kind
    for kind in (Greeting, Pulse, Again, Announcement, Disclosure, Enter, WithdrawEntry, Confirm, Confirmed)
}
#: the types of a hop's elements: session and number, the kind of its body, and the body
_FORMS: Final = frozenset(((int, int, int, str, dict), (int, int, int, str, list)))


@dataclass(frozen=True, slots=True)
class Hop:
    """One message to a neighbour: the sender's session, the number of counted messages, and the body."""

    stamp: Stamp
    number: int
    body: Body

    def to_tree(self) -> list[Tree]:
        """Return the hop as a plain tree."""
        body = self.body
        return [self.stamp.incarnation, self.stamp.session, self.number, body.KIND, body.to_tree()]

    @classmethod
    def from_tree(cls, tree: object) -> "Hop":
        """Read a hop.

        Raises `MalformedError`: `message.malformed`, and what names, principals, values and selectors raise; and
        `LimitError` (`message.limit`, `selector.limit`).
        """
        if type(tree) is not list or tuple(map(type, tree)) not in _FORMS:
            malformed("a hop")
        incarnation, session, number, kind, body = tree
        if not (0 <= incarnation <= INTEGER_MAX and 0 <= session <= INTEGER_MAX and 0 <= number <= INTEGER_MAX):
            malformed("the counts of a hop")
        return cls(Stamp(incarnation, session), number, _read_body(kind, body))


def _read_body(name: str, tree: object) -> Body:
    if name == Publications.KIND:
        return Publications.from_tree(tree)
    if name == SealedPublications.KIND:
        return SealedPublications.from_tree(tree)
    kind = _BODIES.get(name)
    if kind is None:
        malformed("a body of unknown kind")
    fields = Fields(tree, "a body")
    body = kind._read(fields)  # noqa: SLF001  # one reader in several classes
    fields.end()
    return body
