"""Time-stamps that a broker signs by itself: for its own principal's types, and for owners that grant it `stamp`.

It signs the head of a policy that it has enforced, and none while it knows of a later one, or while the owner's policy
is forked. For each owner:

1. A stamp is due every so often, and as soon as the head is another. After a change it goes out immediately, but no
   sooner than `_APART` after the last one: an owner that changes its policy many times a second is stamped once for
   many of them. It is counted from the last stamp, never from the last change, or changes would put stamps off until
   the last one is over.
2. Time does not go back in what is signed here, across restarts either: the last stamp is kept. One that lies further
   in the future than clocks may differ is from a clock that was wrong and has been set right. Nobody else took it, so
   that it is forgotten.
3. A broker that starts and knows nothing of an owner begins with the empty policy only where it has never run before,
   or what it has kept of others shows that nothing was lost (`begins`). Otherwise it may have lost what it knew, and
   would vouch for a policy that is long over: it waits until an event or a stamp of the owner has come, from a
   neighbour or from the owner.

A plain state machine: `due` says what to sign now, and when to ask again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from penstock.crypto import SigningKey
from penstock.model.instants import in_utc
from penstock.model.principals import Principal
from penstock.trust.policy_events import TimeStamp
from penstock.trust.signed import SignedValue, sign_value
from penstock.trust.validity import earliest

Head: TypeAlias = Callable[[Principal], tuple[int, bytes] | None]
"""Returns number and digest of an owner's last event, where it is enforced and nothing later is known."""

#: the least between two stamps for one owner
_APART: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StampSettings:
    """How a broker stamps for those who let it."""

    #: for how long a stamp is good, and how often one is signed
    period: timedelta = timedelta(seconds=30)
    every: timedelta = timedelta(seconds=10)
    #: whether a broker that knows nothing of an owner may take its policy to be empty: it has never run before
    begins: bool = True


@dataclass(slots=True)
class _Last:
    time: datetime
    number: int


class StampIssuer:
    """See the module."""

    def __init__(self, key: SigningKey, settings: StampSettings, head: Head, skew: timedelta) -> None:
        self._key = key
        self._skew = skew
        self._settings = settings
        #: whether a broker that knows nothing of an owner may take its policy to be empty
        self.begins = settings.begins
        self._head = head
        self._last: dict[Principal, _Last] = {}
        #: owners of which anything was kept or has come
        self._known: set[Principal] = set()

    def heard(self, owner: Principal) -> None:
        """Take in that something of an owner was kept or has come: it is known how far its policy is."""
        self._known.add(owner)

    def stamped(self, stamp: TimeStamp) -> None:
        """Take in a stamp that counts; of this broker's own, the time must not go back."""
        self.heard(stamp.owner)
        last = self._last.get(stamp.owner)
        if stamp.signer == self._key.principal and (last is None or last.time < stamp.time):
            self._last[stamp.owner] = _Last(stamp.time, stamp.number)

    def waits(self, owner: Principal) -> bool:
        """Say whether nothing is signed for an owner because nothing is known of it and it may have been."""
        return not self.begins and owner not in self._known

    def due(self, now: datetime, owners: frozenset[Principal]) -> tuple[list[SignedValue[TimeStamp]], datetime | None]:
        """Return the stamps that are due for these owners, and when to ask again if nothing changes."""
        signed: list[SignedValue[TimeStamp]] = []
        turn: datetime | None = None
        for owner in sorted(owners):
            head = None if self.waits(owner) else self._head(owner)
            if head is None:
                continue
            last = self._last.get(owner)
            if last is not None and last.time - self._skew <= now:
                wait = self._settings.every if last.number == head[0] else _APART
                if now < last.time + wait:
                    turn = earliest(turn, last.time + wait)
                    continue
            signed.append(self._sign(now, owner, head))
            self._last[owner] = _Last(in_utc(now), head[0])
            turn = earliest(turn, now + self._settings.every)
        return signed, turn

    def _sign(self, now: datetime, owner: Principal, head: tuple[int, bytes]) -> SignedValue[TimeStamp]:
        own = self._key.principal
        period = self._settings.period // timedelta(milliseconds=1)
        return sign_value(TimeStamp(owner, *head, in_utc(now), period, None if own == owner else own), self._key)
