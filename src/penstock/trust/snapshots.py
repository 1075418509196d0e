"""What a broker keeps of an owner's policy, as bytes: the statements of the owner, and the broker's own word on them.

    <statement> … (sequence (policy-snapshot (broker <principal>) (owner <principal>) (time <date>) (values <n>)
                                             (digest <octets>)) (signature …))

The owner's signatures show that nothing was changed, the broker's that nothing was left out since it was written. That
it is the latest that was written no signature can show: the owner's time-stamps do.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from penstock.codec.sexp import SExp, canonical, parse_many
from penstock.crypto import SigningKey, digest
from penstock.errors import RefusedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.principals import Principal
from penstock.trust.policy_events import PolicyEvent
from penstock.trust.signed import (
    SignedValue,
    malformed,
    one,
    read_count,
    read_digest,
    read_owner,
    read_signed,
    read_time,
    sign_value,
    time_field,
)
from penstock.trust.stamps import TimeStamp


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A broker kept so many statements of an owner, and these."""

    HEAD: ClassVar = b"policy-snapshot"
    broker: Principal
    owner: Principal
    time: datetime
    values: int
    digest: bytes = field(repr=False)

    @property
    def signer(self) -> Principal:
        """The broker."""
        return self.broker

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        return (
            self.HEAD,
            (b"broker", str(self.broker).encode()),
            (b"owner", str(self.owner).encode()),
            time_field(self.time),
            (b"values", str(self.values).encode()),
            (b"digest", self.digest),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "Snapshot":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        return cls(
            read_owner(one(body, b"broker")),
            read_owner(one(body, b"owner")),
            read_time(body),
            read_count(one(body, b"values")),
            read_digest(one(body, b"digest")),
        )


def write_snapshot(
    owner: Principal,
    events: Iterable[SignedValue[PolicyEvent]],
    stamps: Iterable[SignedValue[TimeStamp]],
    now: datetime,
    key: SigningKey,
) -> bytes:
    """Return statements of an owner as bytes, signed by the broker that keeps them."""
    values = (*(event.to_sexp() for event in events), *(stamp.to_sexp() for stamp in stamps))
    seal = sign_value(Snapshot(key.principal, owner, now, len(values), digest(values)), key)
    return b"".join(canonical(value) for value in (*values, seal.to_sexp()))


def read_snapshot(
    data: bytes, broker: Principal, *, limits: Limits = DEFAULT_LIMITS
) -> tuple[Principal, list[SignedValue[PolicyEvent]], list[SignedValue[TimeStamp]]]:
    """Return the owner and what it said, all verified.

    Raises `MalformedError` and `LimitError` for what cannot be read, `RefusedError` for what does not verify, among
    them `evolution.snapshot` for one of another broker, or with something added, changed or left out.
    """
    values = parse_many(data, limits=limits)
    if not values:
        raise malformed("a snapshot of a policy is empty")
    seal = read_signed(values.pop(), Snapshot).verify().value
    if seal.broker != broker or (seal.values, seal.digest) != (len(values), digest(tuple(values))):
        raise RefusedError(
            "evolution.snapshot",
            "a snapshot of a policy was changed, or is another broker's",
            hint="remove it: the policy comes anew from the network",
        )
    events: list[SignedValue[PolicyEvent]] = []
    stamps: list[SignedValue[TimeStamp]] = []
    for value in values:
        if _is_stamp(value):
            stamps.append(read_signed(value, TimeStamp).verify())
        else:
            events.append(read_signed(value, PolicyEvent).verify())
    if not {event.value.owner for event in events} | {stamp.value.owner for stamp in stamps} <= {seal.owner}:
        raise malformed("a snapshot speaks about several owners")
    return seal.owner, events, stamps


def _is_stamp(value: SExp) -> bool:
    body = value[1] if isinstance(value, tuple) and len(value) > 1 else ()
    return isinstance(body, tuple) and body[:1] == (TimeStamp.HEAD,)
