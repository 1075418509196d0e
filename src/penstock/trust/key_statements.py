"""What brokers and key managers say about key groups, signed.

    (key-request (wish join|leave|path|refresh|history) (broker <principal>) <group> (epochs <first> <last>)
                 (key <bytes>) (time <date>) [(credentials <bytes>)])
    (key-epoch <word> (part <n> <of>) (salt <bytes>) (check <bytes>) (placed (<handle> <place>) …)
               (moves (<from> <to>) …) (renewed (<node> <heir> (<child> <bytes>) …) …))
    (key-welcome <word> (broker <principal>) (key <bytes>) (sealed <bytes>))
    (key-path <word> (broker <principal>) (salt <bytes>) (sealed <bytes>) [(missed <bytes>)])
    (key-history <word> (broker <principal>) (key <bytes>) (first <epoch>) (sealed <bytes>))
    (key-notice <word> (time <date>))
    <group>  (group <owner> <name>) | (group <owner> <name> (attr …)) | (group <owner> <name> (labels))
    <word>   (manager <principal>) <group> (epoch <n>) (begun <date>) (longest <milliseconds>) [(blocks <n>)]

A request's `key` is a fresh public key, to which the answer is sealed; `credentials` are what somebody shows whom
managers may not know. What anybody may hear names no member, and all secrets in it are wrapped. What managers write to
their log is in `key_statements`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, Final

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
from penstock.trust.signed import malformed, one, read_count, read_digest, read_owner, read_time, time_field

# ----------------------------------------------------------------------------------------------------------------------
# The forms that statements about keys have in common.


_FOREVER: Final = b""


def principal_field(name: bytes, principal: Principal) -> SExp:
    """Return a field with a principal."""
    return (name, str(principal).encode())


def count(value: int) -> bytes:
    """Return a number as it is written."""
    return str(value).encode()


def read_octets(value: SExp) -> bytes:
    """Read bytes. Raises `MalformedError`."""
    if not isinstance(value, bytes):
        raise malformed("octets are an atom")
    return value


def read_list(body: SExp, name: bytes) -> tuple[SExp, ...]:
    """Return the values of a field. Raises `MalformedError`."""
    found = sexp_field(body, name)
    if found is None:
        raise malformed(f"a statement has one `({name.decode()} …)`")
    return found[1:]


def read_two(value: SExp) -> tuple[SExp, SExp]:
    """Return the two values of a list. Raises `MalformedError`."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise malformed("two values are a list of two")
    return value[0], value[1]


def read_pair(body: SExp, name: bytes) -> tuple[SExp, SExp]:
    """Return the two values of a field. Raises `MalformedError`."""
    return read_two(read_list(body, name))


def read_pairs(body: SExp, name: bytes) -> Iterator[tuple[SExp, SExp]]:
    """Return the pairs in a field. Raises `MalformedError`."""
    return map(read_two, read_list(body, name))


def write_end(until: datetime | None) -> bytes:
    """Write when a right ends, if it does."""
    return _FOREVER if until is None else format_date(until)


def read_end(value: SExp) -> datetime | None:
    """Read what `write_end` wrote. Raises `MalformedError`."""
    return None if value == _FOREVER else parse_date(read_octets(value))


# ----------------------------------------------------------------------------------------------------------------------
# What brokers and key managers say about key groups, signed.


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


class KeyWish(StrEnum):
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
    wish: KeyWish
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
        if wish not in {*KeyWish}:
            raise malformed("a request asks for something that is not known")
        public = read_octets(one(body, b"key"))
        if len(public) != (KEY_BYTES if wish in (KeyWish.JOIN, KeyWish.HISTORY) else 0):
            raise malformed("a request has a key where the answer is sealed to it, and no other has")
        first, last = (read_count(value) for value in read_pair(body, b"epochs"))
        broker = read_owner(one(body, b"broker"))
        shown = read_octets(one(body, b"credentials")) if sexp_field(body, b"credentials") else b""
        return cls(KeyWish(wish), broker, _group(body), read_time(body), first, last, public, shown)


@dataclass(frozen=True, slots=True)
class EpochStatement:
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
    def read(cls, body: SExp) -> "EpochStatement":
        """Read the fields. Raises `MalformedError`."""
        begun = parse_date(read_octets(one(body, b"begun")))
        manager, epoch = read_owner(one(body, b"manager")), read_count(one(body, b"epoch"))
        longest = read_count(one(body, b"longest"), DEFAULT_LIMITS.label_longest)
        return cls(manager, _group(body), epoch, begun, longest, _blocks(body))


@dataclass(frozen=True, slots=True)
class KeyEpoch:
    """A part of what the members of a group are told when an epoch begins; parts are counted from 0."""

    HEAD: ClassVar = b"key-epoch"
    word: EpochStatement
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
        word = EpochStatement.read(body)
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
    word: EpochStatement
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
        return cls(EpochStatement.read(body), broker, public, read_octets(one(body, b"sealed")))


@dataclass(frozen=True, slots=True)
class KeyPathAnswer:
    """To a member that has missed something: where it is now, wrapped under its leaf.

    So are the keys of the epochs that it has `missed`, the last ones before this.
    """

    HEAD: ClassVar = b"key-path"
    word: EpochStatement
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
        return cls(EpochStatement.read(body), broker, salt, read_octets(one(body, b"sealed")), missed)


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """To a broker with the right `history`: keys of epochs that are over, from `first` on, sealed to its request."""

    HEAD: ClassVar = b"key-history"
    word: EpochStatement
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
        return cls(EpochStatement.read(body), broker, public, first, read_octets(one(body, b"sealed")))


@dataclass(frozen=True, slots=True)
class KeyNotice:
    """From time to time: the epoch of a group is this one. Who has another has missed something."""

    HEAD: ClassVar = b"key-notice"
    word: EpochStatement
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
        return cls(EpochStatement.read(body), read_time(body))


def split(word: EpochStatement, rekey: Rekey, most: int = DEFAULT_LIMITS.key_nodes) -> Iterator[KeyEpoch]:
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


# ----------------------------------------------------------------------------------------------------------------------
# What stands in the log of key managers, signed: each step of a group, and checkpoints in the place of what was.
#
#     (key-record <word> (number <n>) (previous <bytes>) (time <date>) (refresh <0|1>) (salt <bytes>) (seed <bytes>)
# (admitted (<principal> <date>) …) (left <principal> …) (evicted <principal> …)) (key-checkpoint (manager <principal>)
# (number <n>) (previous <bytes>) (time <date>) (part <n> <of>) (salt <bytes>) (sealed <bytes>))
#
# `<word>` is as in `key_statements`. Seeds lie under a key that only managers have, and so does the state of all groups
# that a checkpoint holds: cut into parts, which follow each other in the log without anything between.


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One step of a group in the managers' log, which is all that its state rests on.

    `number` counts the records before it, of all groups. With `refresh` a new epoch begins, and `word` is of that one.
    """

    HEAD: ClassVar = b"key-record"
    word: EpochStatement
    number: int
    previous: bytes = field(repr=False)
    time: datetime
    refresh: bool
    salt: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    #: brokers, and when their right ends
    admitted: tuple[tuple[Principal, datetime | None], ...] = ()
    left: tuple[Principal, ...] = ()
    evicted: tuple[Principal, ...] = ()

    @property
    def signer(self) -> Principal:
        """The manager, or the replica of it, that wrote the record."""
        return self.word.manager

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        return (
            self.HEAD,
            *self.word.parts(),
            (b"number", count(self.number)),
            (b"previous", self.previous),
            time_field(self.time),
            (b"refresh", b"1" if self.refresh else b"0"),
            (b"salt", self.salt),
            (b"seed", self.seed),
            (b"admitted", *((str(who).encode(), write_end(until)) for who, until in self.admitted)),
            (b"left", *(str(who).encode() for who in self.left)),
            (b"evicted", *(str(who).encode() for who in self.evicted)),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyRecord":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        return cls(
            EpochStatement.read(body),
            read_count(one(body, b"number")),
            read_digest(one(body, b"previous")),
            read_time(body),
            read_count(one(body, b"refresh"), 1) == 1,
            read_octets(one(body, b"salt")),
            read_octets(one(body, b"seed")),
            tuple((read_owner(who), read_end(until)) for who, until in read_pairs(body, b"admitted")),
            tuple(read_owner(who) for who in read_list(body, b"left")),
            tuple(read_owner(who) for who in read_list(body, b"evicted")),
        )


@dataclass(frozen=True, slots=True)
class KeyCheckpoint:
    """A part of a checkpoint; parts are counted from 0. `number` counts the records before it, as in any record."""

    HEAD: ClassVar = b"key-checkpoint"
    manager: Principal
    number: int
    previous: bytes = field(repr=False)
    time: datetime
    part: int
    parts: int
    salt: bytes = field(repr=False)
    sealed: bytes = field(repr=False)

    @property
    def signer(self) -> Principal:
        """The manager, or the replica of it, that wrote the record."""
        return self.manager

    @property
    def first(self) -> int:
        """Where the checkpoint begins: nothing before it is needed any more."""
        return self.number - self.part

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        return (
            self.HEAD,
            principal_field(b"manager", self.manager),
            (b"number", count(self.number)),
            (b"previous", self.previous),
            time_field(self.time),
            (b"part", count(self.part), count(self.parts)),
            (b"salt", self.salt),
            (b"sealed", self.sealed),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyCheckpoint":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        number = read_count(one(body, b"number"))
        most = DEFAULT_LIMITS.key_checkpoint_parts
        part, parts = (read_count(value, most) for value in read_pair(body, b"part"))
        if not part < parts or part > number:
            raise malformed("a part of a checkpoint is none of its parts")
        manager, previous = read_owner(one(body, b"manager")), read_digest(one(body, b"previous"))
        salt, sealed = (read_octets(one(body, name)) for name in (b"salt", b"sealed"))
        return cls(manager, number, previous, read_time(body), part, parts, salt, sealed)


# ----------------------------------------------------------------------------------------------------------------------
# What a key manager answers to somebody whom it does not give what it asked for.
#
#     (key-refusal (manager <principal>) <group> (broker <principal>) (key <bytes>) (code <code>) (time <date>))
#
# `key` is that of the request, or the digest of a request that has none. Nothing is told but the code, which is one of
# few.


#: why: no right, nothing to give, no place left, not for clients, not for who was evicted
NOT_ENTITLED: Final = "keys.not-entitled"
NO_HISTORY: Final = "keys.no-history"
NO_PLACE: Final = "keys.members"
NOT_BROKER: Final = "keys.not-broker"
NOT_MEMBER: Final = "keys.not-member"
#: which refusals are answered. Others are not: who asks too early is to ask again, and copies are not answered
ANSWERED: Final[Mapping[KeyWish, frozenset[str]]] = MappingProxyType(
    {
        KeyWish.JOIN: frozenset((NO_PLACE, NOT_BROKER)),
        KeyWish.PATH: frozenset((NOT_MEMBER,)),
        KeyWish.HISTORY: frozenset((NOT_ENTITLED, NO_HISTORY)),
    }
)
REASONS: Final = frozenset().union(*ANSWERED.values())


@dataclass(frozen=True, slots=True)
class KeyRefusal:
    """See the module."""

    HEAD: ClassVar = b"key-refusal"
    manager: Principal
    group: KeyGroup
    broker: Principal
    public: bytes = field(repr=False)
    code: str
    time: datetime

    @property
    def signer(self) -> Principal:
        """The manager."""
        return self.manager

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        return (
            self.HEAD,
            (b"manager", str(self.manager).encode()),
            self.group.to_sexp(),
            (b"broker", str(self.broker).encode()),
            (b"key", self.public),
            (b"code", self.code.encode()),
            time_field(self.time),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyRefusal":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        manager, broker = read_owner(one(body, b"manager")), read_owner(one(body, b"broker"))
        public, code = one(body, b"key"), text(one(body, b"code"))
        if not isinstance(public, bytes) or len(public) != KEY_BYTES or code not in REASONS:
            raise malformed("a refusal has the key of a request, and a reason that is known")
        group = KeyGroup.from_sexp(sexp_field(body, b"group") or ())
        return cls(manager, group, broker, public, code, read_time(body))
