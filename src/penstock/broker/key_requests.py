"""What is asked of a key manager: each request is signed, of now, and comes once.

The last request of each broker is remembered, and an older one is a copy. A manager that has just started remembers
nothing: whoever sends again what a broker said before that must not be able to put it out of a group, so that requests
to leave count only if they were made since then. All others give their broker nothing that it has no right to.
"""

from datetime import datetime, timedelta
from typing import TypeAlias

from penstock.crypto.hpke import check_public
from penstock.errors import RefusedError
from penstock.model.instants import in_utc
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.principals import Principal
from penstock.trust.key_messages import KeyGroup, KeyRequest, Wish
from penstock.trust.signed import UnverifiedValue

_Asker: TypeAlias = tuple[Principal, KeyGroup]


class KeyRequests:
    """See the module."""

    def __init__(self, skew: timedelta, limits: Limits = DEFAULT_LIMITS) -> None:
        self._window = timedelta(milliseconds=limits.key_request) + skew
        self._begun: datetime | None = None
        self._last: dict[_Asker, datetime] = {}

    def begin(self, now: datetime) -> None:
        """Take note that the manager runs from now on, if it did not before."""
        self._begun = self._begun or in_utc(now)

    def check(self, now: datetime, unverified: UnverifiedValue[KeyRequest], wish: Wish) -> KeyRequest:
        """Check a request: signed, of the right kind, of now, and no copy of an earlier one.

        Raises `RefusedError`: `keys.wrong-request`, `keys.old-request`, `keys.weak-key`, and what signatures raise.
        """
        request = unverified.verify().value
        if request.wish is not wish:
            raise RefusedError("keys.wrong-request", f"a request to {request.wish}, not to {wish}")
        last = self._last.get((request.broker, request.group), self._begun if wish is Wish.LEAVE else None)
        if abs(in_utc(now) - request.time) > self._window or (last is not None and request.time <= last):
            raise RefusedError(
                "keys.old-request", "a request is too old, or has come before", hint="sign a new one; set the clocks"
            )
        if request.public:
            # Before anything is recorded: what is in the log can be answered.
            check_public(request.public)
        return request

    def remember(self, request: KeyRequest) -> None:
        """Remember a request of somebody who has a right to something: others could fill any memory."""
        self._last[request.broker, request.group] = request.time
