"""Signed statements of brokers and key managers about key groups.

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

A request's `key` is a fresh public key, to which the answer is sealed. `credentials` come from brokers that managers
may not know. Statements that anyone can receive do not name members, and all secrets in them are wrapped. The
statements in the managers' log are at the end.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, ClassVar, Final

from penstock.codec.sexp import BARE, OMITTED, Form, ListForm, Named, SExp, text
from penstock.crypto import digest
from penstock.crypto.key_tree import Rekey, Renewed
from penstock.crypto.keys import KEY_BYTES
from penstock.crypto.seal_keys import column_scope, label_scope
from penstock.model.instants import format_date, parse_date
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.trust.capabilities import attribute_from_sexp, attribute_to_sexp
from penstock.trust.limits import KEY_BLOCKS, KEY_CHECKPOINT_PARTS, KEY_MEMBERS, KEY_NODES, LABEL_LONGEST
from penstock.trust.signed import (
    DIGEST,
    Claim,
    StatementRecord,
    bytes_form,
    count_form,
    malformed,
    read_count,
    read_owner,
)

# ----------------------------------------------------------------------------------------------------------------------
# How values are written in statements about keys.


_FOREVER: Final = b""


def _read_end(value: SExp) -> datetime | None:
    if not isinstance(value, bytes):
        raise malformed("a date is an atom")
    return None if value == _FOREVER else parse_date(value)


END: Final[Form[datetime | None]] = Form(lambda end: _FOREVER if end is None else format_date(end), _read_end)
"""When a right ends, if it does."""
_NODE: Final = count_form(4 * KEY_MEMBERS)
_YES: Final[Form[bool]] = Form(lambda yes: b"1" if yes else b"0", lambda value: read_count(value, 1) == 1)


def _write_renewed(node: Renewed) -> SExp:
    boxes = ((_NODE.write(child), box) for child, box in node.boxes)
    return (_NODE.write(node.node), _NODE.write(node.heir), *boxes)


def _read_renewed(value: SExp) -> Renewed:
    match value:
        case (bytes(node), bytes(heir), *boxes) if len(boxes) <= 2:
            return Renewed(_NODE.read(node), _NODE.read(heir), tuple(map(_read_box, boxes)))
    raise malformed("not a node of a key group")


def _read_box(value: SExp) -> tuple[int, bytes]:
    match value:
        case (child, bytes(box)):
            return _NODE.read(child), box
    raise malformed("a wrapped secret must be listed with the node that opens it")


# ----------------------------------------------------------------------------------------------------------------------
# Requests, and the managers' answers and messages.


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """The brokers that share a key of a type, in all its versions: its own, that of one attribute, or of its labels."""

    type: TypeKey
    attribute: AttributeId | None = None
    #: whether the key is for the labels of a blinded type
    labels: bool = False

    @property
    def id(self) -> bytes:
        """The digest of the written form, to which keys are bound."""
        return digest(self.to_sexp())

    @property
    def scope(self) -> str:
        """The text under which sealed blocks name the key, and people all of them."""
        if self.labels:
            return label_scope(self.type)
        return str(self.type) if self.attribute is None else column_scope(self.type, self.attribute)

    def to_sexp(self) -> tuple[SExp, ...]:
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
    """The kinds of requests to a key manager."""

    JOIN = "join"
    LEAVE = "leave"
    PATH = "path"
    REFRESH = "refresh"
    HISTORY = "history"


def _read_group(parts: tuple[SExp, ...]) -> KeyGroup:
    return KeyGroup.from_sexp((b"group", *parts))


GroupField = Annotated[KeyGroup, ListForm(lambda group: group.to_sexp()[1:], _read_group)]
"""The `(group …)` of a statement."""


@dataclass(frozen=True, slots=True)
class KeyRequest(Claim):
    """A broker's request about a group, for `history` with the epochs."""

    HEAD: ClassVar = b"key-request"
    ORDER: ClassVar = ("wish", "broker", "group", "first", "last", "public", "time", "credentials")
    SIGNER: ClassVar = "broker"
    wish: KeyWish
    broker: Principal
    group: GroupField
    time: datetime
    first: Annotated[int, Named(b"epochs")] = 0
    last: Annotated[int, Named(b"epochs")] = 0
    public: Annotated[bytes, Named(b"key")] = field(default=b"", repr=False)
    credentials: Annotated[bytes, OMITTED] = field(default=b"", repr=False)

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`evolution.malformed`) for a missing key, or for one that is not used."""
        if len(self.public) != (KEY_BYTES if self.wish in (KeyWish.JOIN, KeyWish.HISTORY) else 0):
            raise malformed("only requests to join or for a history have a key")


@dataclass(frozen=True, slots=True)
class EpochStatement(StatementRecord):
    """The common part of a manager's statements: a group's epoch, when it began, and how long it can last.

    A broker that has sealed `blocks` blocks in it requests the next epoch. The default is not written.
    """

    manager: Principal
    group: GroupField
    epoch: int
    begun: datetime
    longest: Annotated[int, count_form(LABEL_LONGEST)]
    blocks: Annotated[int, count_form(KEY_BLOCKS, least=1), OMITTED] = KEY_BLOCKS

    @property
    def until(self) -> datetime:
        """The latest end of the epoch."""
        room = datetime.max.replace(tzinfo=self.begun.tzinfo) - self.begun
        return self.begun + min(timedelta(milliseconds=self.longest), room)


@dataclass(frozen=True, slots=True)
class ManagerClaim(Claim):
    """A statement of a manager, or of a replica of it, that begins with the epoch."""

    word: Annotated[EpochStatement, BARE]

    @property
    def signer(self) -> Principal:
        """The manager."""
        return self.word.manager


@dataclass(frozen=True, slots=True)
class KeyEpoch(ManagerClaim):
    """A part of the message to a group's members when an epoch begins. Parts are counted from 0."""

    HEAD: ClassVar = b"key-epoch"
    part: Annotated[int, count_form(KEY_MEMBERS)]
    parts: Annotated[int, count_form(KEY_MEMBERS), Named(b"part")]
    salt: bytes = field(repr=False)
    check: bytes = field(repr=False)
    placed: tuple[tuple[bytes, Annotated[int, _NODE]], ...] = field(repr=False)
    moves: tuple[tuple[Annotated[int, _NODE], Annotated[int, _NODE]], ...] = field(repr=False)
    renewed: Annotated[tuple[Renewed, ...], Form(_write_renewed, _read_renewed)] = field(repr=False)

    @property
    def rekey(self) -> Rekey:
        """The change of the key tree that members apply."""
        group, epoch = self.word.group.id, self.word.epoch
        return Rekey(group, epoch, self.salt, self.check, self.placed, self.moves, self.renewed)

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`evolution.malformed`) for an impossible number of a part."""
        if self.part >= self.parts:
            raise malformed("the number of an epoch's part is above the number of parts")


@dataclass(frozen=True, slots=True)
class KeyWelcome(ManagerClaim):
    """To a broker that joins: its leaf and the secrets to find the key, sealed to the key of its request."""

    HEAD: ClassVar = b"key-welcome"
    broker: Principal
    public: Annotated[bytes, Named(b"key")] = field(repr=False)
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyPathAnswer(ManagerClaim):
    """To a member that has missed something: where it is now, wrapped under its leaf.

    So are the keys of the epochs that it has `missed`, the last ones before this.
    """

    HEAD: ClassVar = b"key-path"
    broker: Principal
    salt: bytes = field(repr=False)
    sealed: bytes = field(repr=False)
    missed: Annotated[bytes, OMITTED] = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class KeyHistory(ManagerClaim):
    """To a broker with the right `history`: keys of epochs that are over, from `first` on, sealed to its request."""

    HEAD: ClassVar = b"key-history"
    broker: Principal
    public: Annotated[bytes, Named(b"key")] = field(repr=False)
    first: int
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyNotice(ManagerClaim):
    """The current epoch of a group, sent from time to time. A member with another epoch has missed a message."""

    HEAD: ClassVar = b"key-notice"
    time: datetime


def split(word: EpochStatement, rekey: Rekey, most: int = KEY_NODES) -> Iterator[KeyEpoch]:
    """Yield the parts of an epoch's message: with a maximum number of nodes, moves and new places in each."""
    parts = -(-max(1, len(rekey.renewed), len(rekey.moves), len(rekey.placed)) // most)
    for part in range(parts):
        some = slice(part * most, (part + 1) * most)
        lists = rekey.placed[some], rekey.moves[some], rekey.renewed[some]
        yield KeyEpoch(word, part, parts, rekey.salt, rekey.check, *lists)


def join_parts(parts: Iterable[KeyEpoch]) -> Rekey:
    """Return the change of the key tree that all parts of one epoch, in order, describe."""
    told = [*parts]
    return replace(
        told[0].rekey,
        placed=tuple(place for part in told for place in part.placed),
        moves=tuple(move for part in told for move in part.moves),
        renewed=tuple(node for part in told for node in part.renewed),
    )


# ----------------------------------------------------------------------------------------------------------------------
# The signed statements in the key managers' log: each step of a group, and checkpoints that replace earlier ones.
#
#     (key-record <word> (number <n>) (previous <bytes>) (time <date>) (refresh <0|1>) (salt <bytes>) (seed <bytes>)
#                 (admitted (<principal> <date>) …) (left <principal> …) (evicted <principal> …))
#     (key-checkpoint (manager <principal>) (number <n>) (previous <bytes>) (time <date>) (part <n> <of>) (salt <bytes>)
#                     (sealed <bytes>))
#
# `<word>` is as above. Seeds are encrypted under a key that only managers have, and so is the state of all groups in a
# checkpoint: it is cut into parts, which follow each other directly in the log.


@dataclass(frozen=True, slots=True)
class KeyRecord(ManagerClaim):
    """One step of a group in the managers' log. A group's state is computed from its steps.

    `number` counts the records before it, of all groups. With `refresh` a new epoch begins, and `word` describes it.
    """

    HEAD: ClassVar = b"key-record"
    number: int
    previous: Annotated[bytes, DIGEST] = field(repr=False)
    time: datetime
    refresh: Annotated[bool, _YES]
    salt: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    #: brokers, and when their right ends
    admitted: tuple[tuple[Principal, Annotated[datetime | None, END]], ...] = ()
    left: tuple[Principal, ...] = ()
    evicted: tuple[Principal, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyCheckpoint(Claim):
    """A part of a checkpoint. Parts are counted from 0. `number` counts the records before it, as in any record."""

    HEAD: ClassVar = b"key-checkpoint"
    SIGNER: ClassVar = "manager"
    manager: Principal
    number: int
    previous: Annotated[bytes, DIGEST] = field(repr=False)
    time: datetime
    part: Annotated[int, count_form(KEY_CHECKPOINT_PARTS)]
    parts: Annotated[int, count_form(KEY_CHECKPOINT_PARTS), Named(b"part")]
    salt: bytes = field(repr=False)
    sealed: bytes = field(repr=False)

    @property
    def first(self) -> int:
        """Where the checkpoint begins: nothing before it is needed any more."""
        return self.number - self.part

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`evolution.malformed`) for an impossible number of a part."""
        if not self.part < self.parts or self.part > self.number:
            raise malformed("the number of a checkpoint's part is above the number of parts")


# ----------------------------------------------------------------------------------------------------------------------
# A key manager's refusal of a request.
#
#     (key-refusal (manager <principal>) <group> (broker <principal>) (key <bytes>) (code <code>) (time <date>))
#
# `key` is that of the request, or the digest of a request without a key. Only the code is sent.


#: why: no right, no history, no place left, not for clients, not for evicted members
NOT_ENTITLED: Final = "keys.not-entitled"
NO_HISTORY: Final = "keys.no-history"
NO_PLACE: Final = "keys.members"
NOT_BROKER: Final = "keys.not-broker"
NOT_MEMBER: Final = "keys.not-member"
#: the refusals that are answered. Others are not: early requests are repeated, and copies are ignored
ANSWERED: Final[Mapping[KeyWish, frozenset[str]]] = MappingProxyType(
    {
        # The last one while an operator's eviction of the broker waits.
        KeyWish.JOIN: frozenset((NO_PLACE, NOT_BROKER, NOT_MEMBER)),
        KeyWish.PATH: frozenset((NOT_MEMBER,)),
        KeyWish.HISTORY: frozenset((NOT_ENTITLED, NO_HISTORY)),
    }
)
REASONS: Final = frozenset().union(*ANSWERED.values())


@dataclass(frozen=True, slots=True)
class KeyRefusal(Claim):
    """See the module."""

    HEAD: ClassVar = b"key-refusal"
    SIGNER: ClassVar = "manager"
    manager: Principal
    group: GroupField
    broker: Principal
    public: Annotated[bytes, bytes_form(KEY_BYTES), Named(b"key")] = field(repr=False)
    code: str
    time: datetime

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`evolution.malformed`) for a reason that is not known."""
        if self.code not in REASONS:
            raise malformed("a refusal has a reason that is known")
