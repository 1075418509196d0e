"""Checkpoints in the log of key managers: all that came before them, so that it can be forgotten.

    (key-checkpoint (manager <principal>) (number <n>) (previous <octets>) (time <date>) (part <n> <of>) (salt <octets>)
                    (sealed <octets>))

The state of all groups, wrapped under the key that only managers have, is cut into parts which follow each other in the
log without anything between. What is wrapped stands in `penstock.broker.key_state`.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from penstock.codec.sexp import SExp
from penstock.codec.sexp import field as sexp_field
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.principals import Principal
from penstock.trust.signed import malformed, one, read_count, read_digest, read_owner, read_time, time_field


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
            (b"manager", str(self.manager).encode()),
            (b"number", _number(self.number)),
            (b"previous", self.previous),
            time_field(self.time),
            (b"part", _number(self.part), _number(self.parts)),
            (b"salt", self.salt),
            (b"sealed", self.sealed),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyCheckpoint":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        number = read_count(one(body, b"number"))
        found = sexp_field(body, b"part")
        if found is None or len(found) != 3:
            raise malformed("a part of a checkpoint has two numbers")
        part, parts = (read_count(value, DEFAULT_LIMITS.key_checkpoint_parts) for value in found[1:])
        if not part < parts or part > number:
            raise malformed("a part of a checkpoint is none of its parts")
        manager, previous = read_owner(one(body, b"manager")), read_digest(one(body, b"previous"))
        salt, sealed = (_octets(one(body, name)) for name in (b"salt", b"sealed"))
        return cls(manager, number, previous, read_time(body), part, parts, salt, sealed)


def _number(value: int) -> bytes:
    return str(value).encode()


def _octets(value: SExp) -> bytes:
    if not isinstance(value, bytes):
        raise malformed("octets are an atom")
    return value
