"""Statements about keys on their way: events of a type that every owner has and no client may name (`penstock.keys`).

They reach the brokers that follow the owner: what members ask, what a manager answers, and what it tells all of them.
Everything in them that is secret is wrapped for its recipients.
"""

from collections.abc import Callable
from datetime import datetime
from types import MappingProxyType
from typing import Final, TypeAlias, cast

from penstock.broker.core.core import Core
from penstock.broker.core.exchange import OWN
from penstock.broker.evolution.statements import KEYS
from penstock.broker.keys.member import Heard
from penstock.broker.local.requests import Publish
from penstock.codec.sexp import head as sexp_head
from penstock.codec.sexp import parse, transport
from penstock.errors import MalformedError, RefusedError
from penstock.model.events import TransitEvent
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.trust.key_statements import (
    KeyEpoch,
    KeyGroup,
    KeyHistory,
    KeyNotice,
    KeyPathAnswer,
    KeyRefusal,
    KeyRequest,
    KeyWelcome,
)
from penstock.trust.signed import SignedValue, UnverifiedValue, malformed, read_signed

_UID: Final = "statement"
_KEY: Final = f"{OWN}keys "
_TOLD: Final = {kind.HEAD: kind for kind in (KeyEpoch, KeyWelcome, KeyPathAnswer, KeyHistory, KeyNotice)}

Statement: TypeAlias = KeyRequest | KeyEpoch | KeyWelcome | KeyPathAnswer | KeyHistory | KeyNotice | KeyRefusal
OnAsked: TypeAlias = Callable[[datetime, UnverifiedValue[KeyRequest]], None]
OnTold: TypeAlias = Callable[[datetime, UnverifiedValue[Heard]], None]
OnRefused: TypeAlias = Callable[[datetime, UnverifiedValue[KeyRefusal]], None]


class KeyTransport:
    """See the module. Messages are passed on unverified; operators see later refusals."""

    def __init__(self, core: Core, *, asked: OnAsked, told: OnTold, refused: OnRefused) -> None:
        self._core = core
        self._asked = asked
        self._told = told
        self._refused = refused
        self._followed: set[Principal] = set()

    def follow(self, owner: Principal) -> None:
        """Hear what is said about the keys of an owner's types."""
        if owner in self._followed:
            return
        self._followed.add(owner)
        core, of_type = self._core, TypeKey(owner, KEYS)
        core.settle(core.router.advertise(f"{_KEY}{owner}", of_type))
        core.settle(core.router.subscribe(f"{_KEY}{owner}", of_type))

    def publish(self, group: KeyGroup, value: SignedValue[Statement]) -> None:
        """Say something about the keys of a group."""
        owner = group.type.owner
        self.follow(owner)
        text = transport(value.to_sexp()).decode("ascii")
        key = TypeKey(owner, KEYS)
        values = MappingProxyType({str(AttributeId(owner, KEYS, _UID)): text})
        event = TransitEvent(key, (), values, value.digest.hex(), self._core.now())
        self._core.settle((Publish(f"{_KEY}{owner}", (event,)),))

    def arrived(self, now: datetime, event: TransitEvent) -> None:
        """Take an event that the broker itself has subscribed to. What does not count is passed over, and noted."""
        if event.key.name != KEYS:
            # A type that says that it extends the one of statements about keys.
            return
        held = event.values.get(AttributeId(event.key.owner, KEYS, _UID))
        try:
            self._hear(now, held)
        except (RefusedError, MalformedError) as error:
            self._core.note(error)

    def _hear(self, now: datetime, held: object) -> None:
        if not isinstance(held, str) or not held.isascii():
            raise malformed("an event about keys has one attribute, which is a text")
        written = parse(held.encode("ascii"))
        head = sexp_head(written[1]) if isinstance(written, tuple) and len(written) > 1 else None
        kind = _TOLD.get(head or b"")
        if head == KeyRefusal.HEAD:
            self._refused(now, read_signed(written, KeyRefusal))
        elif kind is None:
            self._asked(now, read_signed(written, KeyRequest))
        else:
            self._told(now, cast("UnverifiedValue[Heard]", read_signed(written, kind)))
