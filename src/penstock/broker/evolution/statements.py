"""How statements about policy travel on a fabric: as retained events of types that every owner has.

| type              | slot                     | what it holds                                                 |
|-------------------|--------------------------|---------------------------------------------------------------|
| `penstock.policy` | the number, in 15 digits | a policy event                                                |
| `penstock.stamp`  | `stamp`                  | the last time-stamp, signed by the broker that hands it on    |
| `penstock.ack`    | the broker               | its last acknowledgement                                      |

An event of these types has one attribute, the statement in base64. It is retained under its slot, so that a
subscription doubles as a request for the current state (paper 5, section 6.3). No client can name these types. Over
links statements do not travel as events (`gossip`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from penstock.codec.sexp import SExp, parse, transport
from penstock.errors import RefusedError
from penstock.model.events import TransitEvent
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.trust.limits import POLICY_EVENT_BYTES, POLICY_NUMBER
from penstock.trust.policy_events import Acknowledgement, CarriedStamp, PolicyEvent, TimeStamp
from penstock.trust.signed import SignedValue, UnverifiedValue, malformed, read_signed

POLICY: Final = "penstock.policy"
STAMP: Final = "penstock.stamp"
ACKNOWLEDGEMENT: Final = "penstock.ack"
KEYS: Final = "penstock.keys"
_RESERVED: Final = "penstock"
_DIGITS: Final = len(str(POLICY_NUMBER))
_UID: Final = "statement"
#: base64 takes four bytes for three; a signature, a key and white space take some more
_MOST: Final = POLICY_EVENT_BYTES * 4 // 3 + 4_096

Statement: TypeAlias = UnverifiedValue[PolicyEvent] | CarriedStamp | UnverifiedValue[Acknowledgement]


@dataclass(frozen=True, slots=True)
class RetainedStatement:
    """An event, and the slot under which the last one is kept."""

    slot: str
    event: TransitEvent


def is_reserved(name: str) -> bool:
    """Say whether a type name belongs to Penstock itself."""
    return name == _RESERVED or name.startswith(f"{_RESERVED}.")


def refuse_reserved(name: str) -> None:
    """Keep a client from types that are not for clients. Raises `RefusedError` (`broker.reserved-type`)."""
    if is_reserved(name):
        raise RefusedError(
            "broker.reserved-type", f"`{name}` is for brokers", hint="choose a name that begins otherwise"
        )


def reserved_types(owner: Principal) -> tuple[TypeKey, ...]:
    """Return the types to which a broker that follows an owner subscribes."""
    return tuple(TypeKey(owner, name) for name in (POLICY, STAMP, ACKNOWLEDGEMENT))


def wrap(statement: Statement) -> RetainedStatement:
    """Return a statement as it travels."""
    key, slot = _place(statement)
    text = transport(statement.to_sexp()).decode("ascii")
    values = MappingProxyType({str(AttributeId(key.owner, key.name, _UID)): text})
    return RetainedStatement(slot, TransitEvent(key, (), values))


def unwrap(event: TransitEvent, slot: str | None = None) -> Statement:
    """Return the statement that an event holds, not verified yet; with the slot it came under, if it is known.

    Raises `MalformedError`, `LimitError` and `RefusedError` as the readers of statements do; among them
    `evolution.malformed` where a statement travels under another owner, type or slot than its own.
    """
    held = event.values.get(AttributeId(event.key.owner, event.key.name, _UID))
    if len(event.values) != 1 or not isinstance(held, str) or len(held) > _MOST or not held.isascii():
        raise malformed("an event about policy has one attribute, which is not too long")
    statement = _read(event.key.name, parse(held.encode("ascii")))
    own, place = _place(statement)
    if own != event.key or event.ancestors or slot not in (None, place):
        raise malformed("a statement travels as what it is not")
    return statement


def _read(name: str, value: SExp) -> Statement:
    if name == POLICY:
        return read_signed(value, PolicyEvent)
    if name == STAMP:
        return CarriedStamp.from_sexp(value)
    if name == ACKNOWLEDGEMENT:
        return read_signed(value, Acknowledgement)
    raise malformed("an event of this type holds no statement about policy")


def _place(statement: Statement) -> tuple[TypeKey, str]:
    if isinstance(statement, CarriedStamp):
        stamp = statement.stamp.value
        return TypeKey(stamp.owner, STAMP), "stamp" if stamp.by is None else str(stamp.by)
    value = statement.value
    if isinstance(value, PolicyEvent):
        return TypeKey(value.owner, POLICY), f"{value.number:0{_DIGITS}}"
    return TypeKey(value.owner, ACKNOWLEDGEMENT), str(value.broker)


# ----------------------------------------------------------------------------------------------------------------------
# What carries statements about policy between brokers: a port. Behind it are `gossip` and `fabric.network`.
#
# Brokers keep policy themselves, verified and bounded by owner (`evolution`), and serve it from there: a network keeps
# nothing. Over links, neighbours compare how far they are (`gossip`). On a fabric, statements have topics. Time-stamps
# over links are signed by each neighbour for the next (section 6.3), because a broker that is not trusted any more must
# get none. On a fabric they come from their owner alone.


class PolicyBook(Protocol):
    """What a broker knows of owners' policies: verified statements only. `Policies` is one."""

    def owners(self) -> Iterable[Principal]:
        """Return the owners whose policy this broker keeps."""

    def carries(self, owner: Principal) -> bool:
        """Say whether this broker keeps the policy of an owner; begin to keep it if it must."""

    def top(self, owner: Principal) -> SignedValue[PolicyEvent] | None:
        """Return the owner's event with the highest number."""

    def applied(self, owner: Principal) -> int:
        """Return the number of the last event that was applied."""

    def has(self, owner: Principal, number: int, digest: bytes) -> bool:
        """Say whether an event of the owner would change nothing, by its number and digest."""

    def events(self, owner: Principal) -> Sequence[SignedValue[PolicyEvent]]:
        """Return the owner's events from the last checkpoint on."""

    def fork(self, owner: Principal) -> Sequence[SignedValue[PolicyEvent]]:
        """Return the events that show that an owner has forked its policy; none if it has not."""

    def acknowledgements(self, owner: Principal) -> Iterable[SignedValue[Acknowledgement]]:
        """Return the last acknowledgement of each broker to an owner."""

    def acknowledged(self, owner: Principal, broker: Principal) -> datetime | None:
        """Return when the last acknowledgement of a broker was signed."""

    def statements(self) -> Iterable[Statement]:
        """Return what this broker knows of all owners' policies, and has acknowledged itself."""

    def take_events(self, now: datetime, events: Sequence[SignedValue[PolicyEvent]]) -> None:
        """Take in verified events of one owner."""

    def take_acknowledgement(self, now: datetime, acknowledgement: SignedValue[Acknowledgement]) -> None:
        """Take in a verified acknowledgement."""

    def arrived(self, now: datetime, event: TransitEvent) -> None:
        """Take a statement that came as an event, and that nobody has verified yet."""

    def heard_stamp(self, peer: Principal, stamp: bytes) -> None:
        """Take a time-stamp that a neighbour hands on, and that nobody has verified yet."""

    def linked(self, peer: Principal) -> None:
        """Record a new link to a neighbour."""

    def compared(self) -> None:
        """Record that a network may have learned how far owners' chains go."""


class PolicyNetwork(Protocol):
    """See the module."""

    def follow(self, owner: Principal) -> None:
        """Ask for what an owner says, and for what is acknowledged to it: now, and from now on. Called once."""

    def ask_again(self, owner: Principal) -> None:
        """Ask again for what there is of an owner that is followed."""

    def is_compared(self, owner: Principal) -> bool:
        """Say whether it is known how far an owner's chain goes, as far as other brokers can tell."""

    def publish(self, statement: Statement) -> None:
        """Send a verified statement to all brokers that follow its owner."""

    def stamped(self, stamp: SignedValue[TimeStamp]) -> None:
        """Let others have a time-stamp that its owner has handed in here, if no broker has to sign for it."""

    def neighbours(self) -> Iterable[Principal]:
        """Return the neighbours for which stamps are signed here."""

    def hand_on(self, peer: Principal, stamp: bytes) -> None:
        """Give a neighbour a stamp that was signed for it."""
