"""What brokers and key managers say about key groups, signed.

    (key-request (wish join|leave|path|refresh|history) (broker <principal>) <group> (epochs <first> <last>)
                 (key <octets>) (time <date>) [(credentials <octets>)])
    (key-epoch <word> (part <n> <of>) (salt <octets>) (check <octets>) (placed (<handle> <place>) …)
               (moves (<from> <to>) …) (renewed (<node> <heir> (<child> <octets>) …) …))
    (key-welcome <word> (broker <principal>) (key <octets>) (sealed <octets>))
    (key-path <word> (broker <principal>) (salt <octets>) (sealed <octets>))
    (key-history <word> (broker <principal>) (key <octets>) (first <epoch>) (sealed <octets>))
    (key-notice <word> (time <date>))
    (key-record <word> (number <n>) (previous <octets>) (time <date>) (refresh <0|1>) (salt <octets>) (seed <octets>)
                (admitted (<principal> <date>) …) (left <principal> …) (evicted <principal> …))
    <group>  (group <owner> <name>) | (group <owner> <name> (attr …)) | (group <owner> <name> (labels))
    <word>   (manager <principal>) <group> (epoch <n>) (begun <date>) (longest <milliseconds>)

A request's `key` is a fresh public key, to which the answer is sealed; `credentials` are what somebody shows whom
managers may not know. What anybody may hear names no member,
and all secrets in it are wrapped. Records are for the managers' log; their seeds are wrapped under a key that only
managers have.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar, Final

from penstock.codec.sexp import SExp, text
from penstock.codec.sexp import field as sexp_field
from penstock.crypto import digest
from penstock.crypto.key_tree import Rekey, Renewed
from penstock.crypto.keys import KEY_BYTES
from penstock.crypto.seal_keys import column_scope
from penstock.model.instants import format_date, parse_date
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.trust.capabilities import attribute_from_sexp, attribute_to_sexp
from penstock.trust.signed import malformed, one, read_count, read_digest, read_owner, read_time, time_field

_FOREVER: Final = b""


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
            return f"{self.type} labels"
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
            _principal(b"broker", self.broker),
            self.group.to_sexp(),
            (b"epochs", _number(self.first), _number(self.last)),
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
        public = _octets(one(body, b"key"))
        if len(public) != (KEY_BYTES if wish in (Wish.JOIN, Wish.HISTORY) else 0):
            raise malformed("a request has a key where the answer is sealed to it, and no other has")
        first, last = (read_count(value) for value in _pair(body, b"epochs"))
        broker = read_owner(one(body, b"broker"))
        shown = _octets(one(body, b"credentials")) if sexp_field(body, b"credentials") else b""
        return cls(Wish(wish), broker, _group(body), read_time(body), first, last, public, shown)


@dataclass(frozen=True, slots=True)
class Word:
    """What a manager's statements have in common: the epoch of a group, when it began, and how long it can last."""

    manager: Principal
    group: KeyGroup
    epoch: int
    begun: datetime
    longest: int

    @property
    def until(self) -> datetime:
        """When the epoch is over at the latest."""
        room = datetime.max.replace(tzinfo=self.begun.tzinfo) - self.begun
        return self.begun + min(timedelta(milliseconds=self.longest), room)

    def parts(self) -> tuple[SExp, ...]:
        """Return the fields."""
        return (
            _principal(b"manager", self.manager),
            self.group.to_sexp(),
            (b"epoch", _number(self.epoch)),
            (b"begun", format_date(self.begun)),
            (b"longest", _number(self.longest)),
        )

    @classmethod
    def read(cls, body: SExp) -> "Word":
        """Read the fields. Raises `MalformedError`."""
        begun = parse_date(_octets(one(body, b"begun")))
        manager, epoch = read_owner(one(body, b"manager")), read_count(one(body, b"epoch"))
        return cls(manager, _group(body), epoch, begun, read_count(one(body, b"longest"), DEFAULT_LIMITS.label_longest))


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
            (b"part", _number(self.part), _number(self.parts)),
            (b"salt", rekey.salt),
            (b"check", rekey.check),
            (b"placed", *((handle, _number(place)) for handle, place in rekey.placed)),
            (b"moves", *((_number(old), _number(new)) for old, new in rekey.moves)),
            (b"renewed", *(_renewed_to_sexp(node) for node in rekey.renewed)),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyEpoch":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        word = Word.read(body)
        part, parts = (read_count(value, DEFAULT_LIMITS.key_members) for value in _pair(body, b"part"))
        if part >= parts:
            raise malformed("a part of an epoch is none of its parts")
        rekey = Rekey(
            word.group.id,
            word.epoch,
            _octets(one(body, b"salt")),
            _octets(one(body, b"check")),
            tuple((_octets(handle), _node(place)) for handle, place in _pairs(body, b"placed")),
            tuple((_node(old), _node(new)) for old, new in _pairs(body, b"moves")),
            tuple(_read_renewed(value) for value in _list(body, b"renewed")),
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
        to = (_principal(b"broker", self.broker), (b"key", self.public))
        return (self.HEAD, *self.word.parts(), *to, (b"sealed", self.sealed))

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyWelcome":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        broker, public = read_owner(one(body, b"broker")), _octets(one(body, b"key"))
        return cls(Word.read(body), broker, public, _octets(one(body, b"sealed")))


@dataclass(frozen=True, slots=True)
class KeyPathAnswer:
    """To a member that has missed something: where it is now, wrapped under its leaf."""

    HEAD: ClassVar = b"key-path"
    word: Word
    broker: Principal
    salt: bytes = field(repr=False)
    sealed: bytes = field(repr=False)

    @property
    def signer(self) -> Principal:
        """The manager."""
        return self.word.manager

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        to = (_principal(b"broker", self.broker), (b"salt", self.salt))
        return (self.HEAD, *self.word.parts(), *to, (b"sealed", self.sealed))

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyPathAnswer":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        broker, salt = read_owner(one(body, b"broker")), _octets(one(body, b"salt"))
        return cls(Word.read(body), broker, salt, _octets(one(body, b"sealed")))


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
        to = (_principal(b"broker", self.broker), (b"key", self.public), (b"first", _number(self.first)))
        return (self.HEAD, *self.word.parts(), *to, (b"sealed", self.sealed))

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyHistory":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        broker, public = read_owner(one(body, b"broker")), _octets(one(body, b"key"))
        first = read_count(one(body, b"first"))
        return cls(Word.read(body), broker, public, first, _octets(one(body, b"sealed")))


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


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One step of a group in the managers' log, which is all that its state rests on.

    `number` counts the records before it, of all groups. With `refresh` a new epoch begins, and `word` is of that one.
    """

    HEAD: ClassVar = b"key-record"
    word: Word
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
            (b"number", _number(self.number)),
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
            Word.read(body),
            read_count(one(body, b"number")),
            read_digest(one(body, b"previous")),
            read_time(body),
            read_count(one(body, b"refresh"), 1) == 1,
            _octets(one(body, b"salt")),
            _octets(one(body, b"seed")),
            tuple((read_owner(who), read_end(until)) for who, until in _pairs(body, b"admitted")),
            tuple(read_owner(who) for who in _list(body, b"left")),
            tuple(read_owner(who) for who in _list(body, b"evicted")),
        )


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
    boxes = ((_number(child), box) for child, box in node.boxes)
    return (_number(node.node), _number(node.heir), *boxes)


def _read_renewed(value: SExp) -> Renewed:
    match value:
        case (bytes(node), bytes(heir), *boxes) if len(boxes) <= 2:
            read = tuple((_node(child), _octets(box)) for child, box in map(_two, boxes))
            return Renewed(_node(node), read_count(heir, 4 * DEFAULT_LIMITS.key_members), read)
    raise malformed("not a node of a key group")


def _group(body: SExp) -> KeyGroup:
    return KeyGroup.from_sexp(sexp_field(body, b"group") or ())


def _principal(name: bytes, principal: Principal) -> SExp:
    return (name, str(principal).encode())


def _number(value: int) -> bytes:
    return str(value).encode()


def _node(value: SExp) -> int:
    return read_count(value, 4 * DEFAULT_LIMITS.key_members)


def _octets(value: SExp) -> bytes:
    if not isinstance(value, bytes):
        raise malformed("octets are an atom")
    return value


def _list(body: SExp, name: bytes) -> tuple[SExp, ...]:
    found = sexp_field(body, name)
    if found is None:
        raise malformed(f"a statement has one `({name.decode()} …)`")
    return found[1:]


def _two(value: SExp) -> tuple[SExp, SExp]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise malformed("two values are a list of two")
    return value[0], value[1]


def _pair(body: SExp, name: bytes) -> tuple[SExp, SExp]:
    return _two(_list(body, name))


def _pairs(body: SExp, name: bytes) -> Iterator[tuple[SExp, SExp]]:
    return map(_two, _list(body, name))


def write_end(until: datetime | None) -> bytes:
    """Write when a right ends, if it does."""
    return _FOREVER if until is None else format_date(until)


def read_end(value: SExp) -> datetime | None:
    """Read what `write_end` wrote. Raises `MalformedError`."""
    return None if value == _FOREVER else parse_date(_octets(value))
