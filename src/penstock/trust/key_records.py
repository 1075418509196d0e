"""What stands in the log of key managers, signed: each step of a group, and checkpoints in the place of what was.

    (key-record <word> (number <n>) (previous <octets>) (time <date>) (refresh <0|1>) (salt <octets>) (seed <octets>)
                (admitted (<principal> <date>) …) (left <principal> …) (evicted <principal> …))
    (key-checkpoint (manager <principal>) (number <n>) (previous <octets>) (time <date>) (part <n> <of>) (salt <octets>)
                    (sealed <octets>))

`<word>` is as in `key_messages`. Seeds lie under a key that only managers have, and so does the state of all groups
that a checkpoint holds: cut into parts, which follow each other in the log without anything between.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from penstock.codec.sexp import SExp
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.principals import Principal
from penstock.trust.key_forms import (
    count,
    principal_field,
    read_end,
    read_list,
    read_octets,
    read_pair,
    read_pairs,
    write_end,
)
from penstock.trust.key_messages import Word
from penstock.trust.signed import malformed, one, read_count, read_digest, read_owner, read_time, time_field


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
            Word.read(body),
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
