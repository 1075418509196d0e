"""Statements about policy travel on a fabric as retained events of types that every owner has.

| type              | slot                     | what it holds                                                 |
|-------------------|--------------------------|---------------------------------------------------------------|
| `penstock.policy` | the number, in 15 digits | a policy event                                                |
| `penstock.stamp`  | `stamp`                  | the last time-stamp, signed by the broker that forwards it    |
| `penstock.ack`    | the broker               | its last acknowledgement                                      |

An event of these types has one attribute, the statement in base64. It is retained under its slot, so a subscription
also requests the current state (paper 5, section 6.3). Clients cannot name these types. Over links, statements do not
travel as events (`gossip`).
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
    """An event, and the slot under which it is retained."""

    slot: str
    event: TransitEvent


def is_reserved(name: str) -> bool:
    """Return whether a type name belongs to Penstock itself."""
    return name == _RESERVED or name.startswith(f"{_RESERVED}.")


def refuse_reserved(name: str) -> None:
    """Raise `RefusedError` (`broker.reserved-type`) for a type name that clients may not use."""
    if is_reserved(name):
        raise RefusedError(
            "broker.reserved-type", f"type `{name}` is reserved for brokers", hint="choose a name outside of `penstock`"
        )


def reserved_types(owner: Principal) -> tuple[TypeKey, ...]:
    """Return the types that a broker subscribes to if it follows an owner."""
    return tuple(TypeKey(owner, name) for name in (POLICY, STAMP, ACKNOWLEDGEMENT))


def wrap(statement: Statement) -> RetainedStatement:
    """Return a statement as an event."""
    key, slot = _place(statement)
    text = transport(statement.to_sexp()).decode("ascii")
    values = MappingProxyType({str(AttributeId(key.owner, key.name, _UID)): text})
    return RetainedStatement(slot, TransitEvent(key, (), values))


def unwrap(event: TransitEvent, slot: str | None = None) -> Statement:
    """Return the unverified statement of an event, which arrived under `slot` if that is known.

    Raises `MalformedError`, `LimitError` and `RefusedError` as the readers of statements do; among them
    `evolution.malformed` for a statement under another owner, type or slot than its own.
    """
    held = event.values.get(AttributeId(event.key.owner, event.key.name, _UID))
    if len(event.values) != 1 or not isinstance(held, str) or len(held) > _MOST or not held.isascii():
        raise malformed("an event about policy does not have exactly one text of permitted length")
    statement = _read(event.key.name, parse(held.encode("ascii")))
    own, place = _place(statement)
    if own != event.key or event.ancestors or slot not in (None, place):
        raise malformed("a statement travels under another owner, type or slot than its own")
    return statement


def _read(name: str, value: SExp) -> Statement:
    if name == POLICY:
        return read_signed(value, PolicyEvent)
    if name == STAMP:
        return CarriedStamp.from_sexp(value)
    if name == ACKNOWLEDGEMENT:
        return read_signed(value, Acknowledgement)
    raise malformed("events of this type contain no statement about policy")


def _place(statement: Statement) -> tuple[TypeKey, str]:
    if isinstance(statement, CarriedStamp):
        stamp = statement.stamp.value
        return TypeKey(stamp.owner, STAMP), "stamp" if stamp.by is None else str(stamp.by)
    value = statement.value
    if isinstance(value, PolicyEvent):
        return TypeKey(value.owner, POLICY), f"{value.number:0{_DIGITS}}"
    return TypeKey(value.owner, ACKNOWLEDGEMENT), str(value.broker)


# ----------------------------------------------------------------------------------------------------------------------
# The port that carries statements about policy between brokers. `gossip` and `fabric.network` implement it.
#
# Brokers keep verified policy themselves, bounded by owner, and serve it from there: a network keeps nothing. Over
# links, neighbours compare their heads (`gossip`). On a fabric, statements have topics. Over links, each neighbour
# signs time-stamps for the next one (section 6.3), because a broker that is no longer trusted must not get any. On a
# fabric they come directly from their signer.


class PolicyBook(Protocol):
    """The verified statements about policy that a broker has. `NodePolicies` implements it."""

    def owners(self) -> Iterable[Principal]:
        """Return the owners that this broker follows."""

    def carries(self, owner: Principal) -> bool:
        """Return whether this broker follows an owner; start to follow it if it must."""

    def top(self, owner: Principal) -> SignedValue[PolicyEvent] | None:
        """Return the owner's event with the highest number."""

    def applied(self, owner: Principal) -> int:
        """Return the number of the last applied event."""

    def has(self, owner: Principal, number: int, digest: bytes) -> bool:
        """Return whether an event of the owner would change nothing, by its number and digest."""

    def events(self, owner: Principal) -> Sequence[SignedValue[PolicyEvent]]:
        """Return the owner's events from the last checkpoint on."""

    def fork(self, owner: Principal) -> Sequence[SignedValue[PolicyEvent]]:
        """Return the events that prove an owner's fork; none if there is no fork."""

    def acknowledgements(self, owner: Principal) -> Iterable[SignedValue[Acknowledgement]]:
        """Return the last acknowledgement of each broker to an owner."""

    def acknowledged(self, owner: Principal, broker: Principal) -> datetime | None:
        """Return when the last acknowledgement of a broker was signed."""

    def statements(self) -> Iterable[Statement]:
        """Return all known statements of owners, and this broker's own acknowledgements."""

    def take_events(self, now: datetime, events: Sequence[SignedValue[PolicyEvent]]) -> None:
        """Process verified events of one owner."""

    def take_acknowledgement(self, now: datetime, acknowledgement: SignedValue[Acknowledgement]) -> None:
        """Process a verified acknowledgement."""

    def arrived(self, now: datetime, event: TransitEvent) -> None:
        """Process an unverified statement that arrived as an event."""

    def heard_stamp(self, peer: Principal, stamp: bytes) -> None:
        """Take a time-stamp that a neighbour hands on, and that nobody has verified yet."""

    def linked(self, peer: Principal) -> None:
        """Record a new link to a neighbour."""

    def compared(self) -> None:
        """Process that the network may have learned how far owners' chains go."""


class PolicyNetwork(Protocol):
    """Carries statements about policy between brokers."""

    def follow(self, owner: Principal) -> None:
        """Request an owner's statements and acknowledgements, now and in future. Called once."""

    def ask_again(self, owner: Principal) -> None:
        """Request the statements of a followed owner again."""

    def is_compared(self, owner: Principal) -> bool:
        """Return whether this broker knows how far an owner's chain goes, as far as other brokers can tell."""

    def publish(self, statement: Statement) -> None:
        """Send a verified statement to all brokers that follow its owner."""

    def stamped(self, stamp: SignedValue[TimeStamp]) -> None:
        """Publish a time-stamp that was handed in here, if brokers do not have to sign it for each other."""

    def neighbours(self) -> Iterable[Principal]:
        """Return the neighbours for which this broker signs stamps."""

    def hand_on(self, peer: Principal, stamp: bytes) -> None:
        """Send a neighbour a stamp that was signed for it."""
