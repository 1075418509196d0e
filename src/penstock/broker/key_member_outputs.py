"""What a member of a key group wants done, in the order in which it returns it."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from penstock.crypto.wrapping import Secret
from penstock.trust.key_messages import KeyGroup, KeyRequest
from penstock.trust.signed import SignedValue


@dataclass(frozen=True, slots=True)
class Ask:
    """To be sent to a key manager of the group."""

    request: SignedValue[KeyRequest]


@dataclass(frozen=True, slots=True)
class Opened:
    """The key of an epoch is known. With `live` it is that of the newest epoch, under which events are sealed."""

    group: KeyGroup
    epoch: int
    key: Secret = field(repr=False)
    live: bool = True
    #: when the epoch began, where it is the newest
    begun: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Closed:
    """The key of an epoch is to be forgotten."""

    group: KeyGroup
    epoch: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing may be sealed: publications wait."""

    group: KeyGroup


@dataclass(frozen=True, slots=True)
class Resume:
    """What waits may be sealed."""

    group: KeyGroup


@dataclass(frozen=True, slots=True)
class Refused:
    """A manager does not give what was asked for last, and says why."""

    group: KeyGroup
    code: str


Output: TypeAlias = Ask | Opened | Closed | Hold | Resume | Refused
