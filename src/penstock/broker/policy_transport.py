"""How statements about policy travel on a fabric: as retained events of types that every owner has.

| type              | slot                     | what it holds                                                 |
|-------------------|--------------------------|---------------------------------------------------------------|
| `penstock.policy` | the number, in 15 digits | a policy event                                                |
| `penstock.stamp`  | `stamp`                  | the last time-stamp, signed by the broker that hands it on    |
| `penstock.ack`    | the broker               | its last acknowledgement                                      |

An event of these types has one attribute, the statement in base64. It is retained under its slot, so that a
subscription doubles as a request for the current state (paper 5, section 6.3). No client can name these types. Over
links statements do not travel as events (`policy_gossip`).
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from penstock.codec.sexp import SExp, parse, transport
from penstock.errors import RefusedError
from penstock.model.events import TransitEvent
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.trust.policy_events import PolicyEvent
from penstock.trust.signed import UnverifiedValue, malformed, read_signed
from penstock.trust.stamps import Acknowledgement, CarriedStamp

POLICY: Final = "penstock.policy"
STAMP: Final = "penstock.stamp"
ACKNOWLEDGEMENT: Final = "penstock.ack"
KEYS: Final = "penstock.keys"
_RESERVED: Final = "penstock"
_DIGITS: Final = len(str(DEFAULT_LIMITS.policy_number))
_UID: Final = "statement"
#: base64 takes four octets for three; a signature, a key and white space take some more
_MOST: Final = DEFAULT_LIMITS.policy_event_bytes * 4 // 3 + 4_096

Statement: TypeAlias = UnverifiedValue[PolicyEvent] | CarriedStamp | UnverifiedValue[Acknowledgement]


@dataclass(frozen=True, slots=True)
class Retained:
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


def wrap(statement: Statement) -> Retained:
    """Return a statement as it travels."""
    key, slot = _place(statement)
    text = transport(statement.to_sexp()).decode("ascii")
    values = MappingProxyType({str(AttributeId(key.owner, key.name, _UID)): text})
    return Retained(slot, TransitEvent(key, (), values))


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
