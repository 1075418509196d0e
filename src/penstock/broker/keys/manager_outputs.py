"""What a key manager wants done, in the order in which it returns it."""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import PenstockError
from penstock.model.principals import Principal
from penstock.trust.key_statements import (
    KeyCheckpoint,
    KeyEpoch,
    KeyGroup,
    KeyHistory,
    KeyNotice,
    KeyPathAnswer,
    KeyRecord,
    KeyWelcome,
)
from penstock.trust.signed import SignedValue

Told: TypeAlias = KeyEpoch | KeyNotice
Answer: TypeAlias = KeyWelcome | KeyPathAnswer | KeyHistory
Record: TypeAlias = KeyRecord | KeyCheckpoint


@dataclass(frozen=True, slots=True)
class Append:
    """To be written to the log at a place, if it ends there. What the log has from there on is then to be taken."""

    number: int
    record: SignedValue[Record]


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """All records of the log before a place are to be forgotten: a checkpoint begins there."""

    number: int


@dataclass(frozen=True, slots=True)
class Tell:
    """To be sent to all members of a group. Anybody may hear it."""

    group: KeyGroup
    value: SignedValue[Told]


@dataclass(frozen=True, slots=True)
class Reply:
    """To be sent to one broker."""

    broker: Principal
    value: SignedValue[Answer]


@dataclass(frozen=True, slots=True)
class Noted:
    """A report to operators: something is wrong, and everything continues."""

    reason: PenstockError


Sent: TypeAlias = Tell | Reply | Noted
Output: TypeAlias = Append | TruncateLog | Sent
