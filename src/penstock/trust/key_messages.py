"""What brokers and key managers say about key groups, signed.

    (key-request (wish join|leave|path|refresh|history) (broker <principal>) <group> (epochs <first> <last>)
                 (key <octets>) (time <date>) [(credentials <octets>)])
    (key-epoch <word> (part <n> <of>) (salt <octets>) (check <octets>) (placed (<handle> <place>) …)
               (moves (<from> <to>) …) (renewed (<node> <heir> (<child> <octets>) …) …))
    (key-welcome <word> (broker <principal>) (key <octets>) (sealed <octets>))
    (key-path <word> (broker <principal>) (salt <octets>) (sealed <octets>) [(missed <octets>)])
    (key-history <word> (broker <principal>) (key <octets>) (first <epoch>) (sealed <octets>))
    (key-notice <word> (time <date>))
    <group>  (group <owner> <name>) | (group <owner> <name> (attr …)) | (group <owner> <name> (labels))
    <word>   (manager <principal>) <group> (epoch <n>) (begun <date>) (longest <milliseconds>) [(blocks <n>)]

A request's `key` is a fresh public key, to which the answer is sealed; `credentials` are what somebody shows whom
managers may not know. What anybody may hear names no member, and all secrets in it are wrapped. What managers write to
their log is in `key_records`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar

from penstock.codec.sexp import SExp, text
from penstock.codec.sexp import field as sexp_field
from penstock.crypto import digest
from penstock.crypto.key_tree import Rekey, Renewed
from penstock.crypto.keys import KEY_BYTES
from penstock.crypto.seal_keys import column_scope, label_scope
from penstock.model.instants import format_date, parse_date
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.trust.capabilities import attribute_from_sexp, attribute_to_sexp
from penstock.trust.key_forms import count, principal_field, read_list, read_octets, read_pair, read_pairs, read_two
from penstock.trust.signed import malformed, one, read_count, read_owner, read_time, time_field


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """The brokers that share a key of a type, in all its versions: its own, that of one attribute, or of its labels."""

    type: TypeKey
    attribute: AttributeId | None = None
    #: whether the key is that of the labels which stand for the type where it is blinded
    labels: bool = False

    @property
    def id(self) -> bytes:
        """The digest of the written form: what keys are bound to."""
        return digest(self.to_sexp())

    @property
    def scope(self) -> str:
        """The text under which sealed blocks name the key, and people all of them."""
        if self.labels:
            return label_scope(self.type)
        return str(self.type) if self.attribute is None else column_scope(self.type, self.attribute)

    def to_sexp(self) -> SExp:
        """Return the written form."""
        which: tuple[SExp, ...] = ((b"labels",),) if self.labels else ()
        if self.attribute is not None:
            which = (attribute_to_sexp(self.attribute),)
        return (b"group", str(self.type.owner).encode(), self.type.name.encode(), *which)

    @classmethod
    def from_sexp(cls, value: SExp) -> "KeyGroup":
        """Read the written form. Raises `MalformedError`."""
        match value:
            case (b"group", owner, name):
                return cls(TypeKey(read_owner(owner), text(name)))
            case (b"group", owner, name, (b"labels",)):
                return cls(TypeKey(read_owner(owner), text(name)), labels=True)
            case (b"group", owner, name, attribute):
                return cls(TypeKey(read_owner(owner), text(name)), attribute_from_sexp(attribute))
        raise malformed("not a key group")


class Wish(StrEnum):
    """What a broker asks of a key manager."""

    JOIN = "join"
    LEAVE = "leave"
    PATH = "path"
    REFRESH = "refresh"
    HISTORY = "history"


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A broker wants something of a group; for a history, of which epochs."""

    HEAD: ClassVar = b"key-request"
    wish: Wish
    broker: Principal
    group: KeyGroup
    time: datetime
    first: int = 0
    last: int = 0
    public: bytes = field(default=b"", repr=False)
    credentials: bytes = field(default=b"", repr=False)

    @property
    def signer(self) -> Principal:
        """The broker."""
        return self.broker

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        return (
            self.HEAD,
            (b"wish", self.wish.encode()),
            principal_field(b"broker", self.broker),
            self.group.to_sexp(),
            (b"epochs", count(self.first), count(self.last)),
            (b"key", self.public),
            time_field(self.time),
            *(((b"credentials", self.credentials),) if self.credentials else ()),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyRequest":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        wish = text(one(body, b"wish"))
        if wish not in {*Wish}:
            raise malformed("a request asks for something that is not known")
        public = read_octets(one(body, b"key"))
        if len(public) != (KEY_BYTES if wish in (Wish.JOIN, Wish.HISTORY) else 0):
            raise malformed("a request has a key where the answer is sealed to it, and no other has")
        first, last = (read_count(value) for value in read_pair(body, b"epochs"))
        broker = read_owner(one(body, b"broker"))
        shown = read_octets(one(body, b"credentials")) if sexp_field(body, b"credentials") else b""
        return cls(Wish(wish), broker, _group(body), read_time(body), first, last, public, shown)


@dataclass(frozen=True, slots=True)
class Word:
    """What a manager's statements have in common: the epoch of a group, when it began, and how long it can last.

    A broker that has sealed so many `blocks` in it asks for the next one; the default is not written.
    """

    manager: Principal
    group: KeyGroup
    epoch: int
    begun: datetime
    longest: int
    blocks: int = DEFAULT_LIMITS.key_blocks

    @property
    def until(self) -> datetime:
        """When the epoch is over at the latest."""
        room = datetime.max.replace(tzinfo=self.begun.tzinfo) - self.begun
        return self.begun + min(timedelta(milliseconds=self.longest), room)

    def parts(self) -> tuple[SExp, ...]:
        """Return the fields."""
        return (
            principal_field(b"manager", self.manager),
            self.group.to_sexp(),
            (b"epoch", count(self.epoch)),
            (b"begun", format_date(self.begun)),
            (b"longest", count(self.longest)),
            *(((b"blocks", count(self.blocks)),) if self.blocks != DEFAULT_LIMITS.key_blocks else ()),
        )

    @classmethod
    def read(cls, body: SExp) -> "Word":
        """Read the fields. Raises `MalformedError`."""
        begun = parse_date(read_octets(one(body, b"begun")))
        manager, epoch = read_owner(one(body, b"manager")), read_count(one(body, b"epoch"))
        longest = read_count(one(body, b"longest"), DEFAULT_LIMITS.label_longest)
        return cls(manager, _group(body), epoch, begun, longest, _blocks(body))


@dataclass(frozen=True, slots=True)
class KeyEpoch:
    """A part of what the members of a group are told when an epoch begins; parts are counted from 0."""

    HEAD: ClassVar = b"key-epoch"
    word: Word
    part: int
    parts: int
    rekey: Rekey

    @property
    def signer(self) -> Principal:
        """The manager."""
        return self.word.manager

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        rekey = self.rekey
        return (
            self.HEAD,
            *self.word.parts(),
            (b"part", count(self.part), count(self.parts)),
            (b"salt", rekey.salt),
            (b"check", rekey.check),
            (b"placed", *((handle, count(place)) for handle, place in rekey.placed)),
            (b"moves", *((count(old), count(new)) for old, new in rekey.moves)),
            (b"renewed", *(_renewed_to_sexp(node) for node in rekey.renewed)),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyEpoch":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        word = Word.read(body)
        part, parts = (read_count(value, DEFAULT_LIMITS.key_members) for value in read_pair(body, b"part"))
        if part >= parts:
            raise malformed("a part of an epoch is none of its parts")
        rekey = Rekey(
            word.group.id,
            word.epoch,
            read_octets(one(body, b"salt")),
            read_octets(one(body, b"check")),
            tuple((read_octets(handle), _node(place)) for handle, place in read_pairs(body, b"placed")),
            tuple((_node(old), _node(new)) for old, new in read_pairs(body, b"moves")),
            tuple(_read_renewed(value) for value in read_list(body, b"renewed")),
        )
        return cls(word, part, parts, rekey)


@dataclass(frozen=True, slots=True)
class KeyWelcome:
    """To a broker that joins: its leaf and what it needs to find the key, sealed to the key of its request."""

    HEAD: ClassVar = b"key-welcome"
    word: Word
    broker: Principal
    public: bytes = field(repr=False)
    sealed: bytes = field(repr=False)

    @property
    def signer(self) -> Principal:
        """The manager."""
        return self.word.manager

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        to = (principal_field(b"broker", self.broker), (b"key", self.public))
        return (self.HEAD, *self.word.parts(), *to, (b"sealed", self.sealed))

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyWelcome":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        broker, public = read_owner(one(body, b"broker")), read_octets(one(body, b"key"))
        return cls(Word.read(body), broker, public, read_octets(one(body, b"sealed")))


@dataclass(frozen=True, slots=True)
class KeyPathAnswer:
    """To a member that has missed something: where it is now, wrapped under its leaf.

    So are the keys of the epochs that it has `missed`, the last ones before this.
    """

    HEAD: ClassVar = b"key-path"
    word: Word
    broker: Principal
    salt: bytes = field(repr=False)
    sealed: bytes = field(repr=False)
    missed: bytes = field(default=b"", repr=False)

    @property
    def signer(self) -> Principal:
        """The manager."""
        return self.word.manager

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        to = (principal_field(b"broker", self.broker), (b"salt", self.salt))
        missed = ((b"missed", self.missed),) if self.missed else ()
        return (self.HEAD, *self.word.parts(), *to, (b"sealed", self.sealed), *missed)

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyPathAnswer":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        broker, salt = read_owner(one(body, b"broker")), read_octets(one(body, b"salt"))
        missed = read_octets(one(body, b"missed")) if sexp_field(body, b"missed") else b""
        return cls(Word.read(body), broker, salt, read_octets(one(body, b"sealed")), missed)


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """To a broker with the right `history`: keys of epochs that are over, from `first` on, sealed to its request."""

    HEAD: ClassVar = b"key-history"
    word: Word
    broker: Principal
    public: bytes = field(repr=False)
    first: int
    sealed: bytes = field(repr=False)

    @property
    def signer(self) -> Principal:
        """The manager."""
        return self.word.manager

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        to = (principal_field(b"broker", self.broker), (b"key", self.public), (b"first", count(self.first)))
        return (self.HEAD, *self.word.parts(), *to, (b"sealed", self.sealed))

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyHistory":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        broker, public = read_owner(one(body, b"broker")), read_octets(one(body, b"key"))
        first = read_count(one(body, b"first"))
        return cls(Word.read(body), broker, public, first, read_octets(one(body, b"sealed")))


@dataclass(frozen=True, slots=True)
class KeyNotice:
    """From time to time: the epoch of a group is this one. Who has another has missed something."""

    HEAD: ClassVar = b"key-notice"
    word: Word
    time: datetime

    @property
    def signer(self) -> Principal:
        """The manager."""
        return self.word.manager

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        return (self.HEAD, *self.word.parts(), time_field(self.time))

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyNotice":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        return cls(Word.read(body), read_time(body))


def split(word: Word, rekey: Rekey, most: int = DEFAULT_LIMITS.key_nodes) -> Iterator[KeyEpoch]:
    """Yield the parts in which an epoch is told: at most so many nodes, moves and new places in each."""
    parts = -(-max(1, len(rekey.renewed), len(rekey.moves), len(rekey.placed)) // most)
    for part in range(parts):
        some = slice(part * most, (part + 1) * most)
        lists = rekey.placed[some], rekey.moves[some], rekey.renewed[some]
        yield KeyEpoch(word, part, parts, Rekey(rekey.group, rekey.epoch, rekey.salt, rekey.check, *lists))


def join_parts(parts: Iterable[KeyEpoch]) -> Rekey:
    """Return what the parts of one epoch say together; all of them, in order."""
    told = [part.rekey for part in parts]
    first = told[0]
    return Rekey(
        first.group,
        first.epoch,
        first.salt,
        first.check,
        tuple(place for rekey in told for place in rekey.placed),
        tuple(move for rekey in told for move in rekey.moves),
        tuple(node for rekey in told for node in rekey.renewed),
    )


def _renewed_to_sexp(node: Renewed) -> SExp:
    boxes = ((count(child), box) for child, box in node.boxes)
    return (count(node.node), count(node.heir), *boxes)


def _read_renewed(value: SExp) -> Renewed:
    match value:
        case (bytes(node), bytes(heir), *boxes) if len(boxes) <= 2:
            read = tuple((_node(child), read_octets(box)) for child, box in map(read_two, boxes))
            return Renewed(_node(node), read_count(heir, 4 * DEFAULT_LIMITS.key_members), read)
    raise malformed("not a node of a key group")


def _blocks(body: SExp) -> int:
    if not sexp_field(body, b"blocks"):
        return DEFAULT_LIMITS.key_blocks
    found = read_count(one(body, b"blocks"), DEFAULT_LIMITS.key_blocks)
    if not found:
        raise malformed("an epoch in which nothing may be sealed")
    return found


def _group(body: SExp) -> KeyGroup:
    return KeyGroup.from_sexp(sexp_field(body, b"group") or ())


def _node(value: SExp) -> int:
    return read_count(value, 4 * DEFAULT_LIMITS.key_members)
