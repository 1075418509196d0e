"""Whether events of a type can be sealed now, by the keys that a broker holds; telling operators what waits for keys.

It is asked with each block, and so remembered for as long as it is certain.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from penstock.broker.core import Core
from penstock.broker.key_member import KeyMember
from penstock.errors import FailedError, PenstockError, RefusedError
from penstock.model.names import TypeKey
from penstock.model.types import Sealing
from penstock.trust.key_messages import KeyGroup
from penstock.trust.key_refusals import NO_PLACE, NOT_BROKER, NOT_MEMBER

#: what managers answer to who asks to join, and what can be done about it
_REFUSALS: Final = {
    NO_PLACE: ("the group has as many members as it may", "its owner evicts brokers that need the key no longer"),
    NOT_MEMBER: ("this broker was evicted", "`penstock keys join` asks for its keys again, where it is to have them"),
    NOT_BROKER: ("this broker may not carry the type", "the type's owner grants it `route`"),
}


class KeyReadiness:
    """See the module. `members` are the groups that the broker is in, or wants to join."""

    def __init__(self, core: Core, members: Mapping[KeyGroup, KeyMember]) -> None:
        self._core = core
        self._members = members
        #: until when events of a type can be sealed, as far as was heard about keys; and the library that it goes by
        self._until: dict[TypeKey, datetime] = {}
        self._library = -1
        #: groups without a key to seal under, and since when; None when operators know
        self._waiting: dict[KeyGroup, datetime | None] = {}
        #: why managers give none, by the code
        self._refused: dict[KeyGroup, str] = {}

    def forget(self) -> None:
        """Ask anew: something was heard about keys."""
        self._until.clear()

    def hold(self, group: KeyGroup) -> None:
        """Take note that there is no key of a group to seal under. For a moment that is nothing."""
        self._waiting[group] = self._core.now()

    def resume(self, group: KeyGroup) -> None:
        """Take note that there is one."""
        self._waiting.pop(group, None)
        self._refused.pop(group, None)

    def refused(self, group: KeyGroup, code: str) -> None:
        """Take note why a manager gives none; where that is so for longer than a moment, operators are told."""
        if self._refused.get(group) != code:
            self._refused[group] = code
            self._waiting[group] = self._core.now()

    def holds(self, of_type: TypeKey) -> bool:
        """Say whether events of a type have to wait, because they are sealed and not all keys are there."""
        core = self._core
        if self._library != core.library.changes:
            self._library = core.library.changes
            self.forget()
        known = self._until.get(of_type)
        if known is not None and core.latest <= known:
            return False
        if core.library.sealing(of_type) is Sealing.NONE:
            return False
        until = self._sealable_until(core.now(), of_type)
        if until is None or not core.labels.trees(of_type):
            return True
        self._until[of_type] = until
        return False

    def _sealable_until(self, now: datetime, of_type: TypeKey) -> datetime | None:
        """Return until when all keys of a type are there and current; None where one of them is not, or no more."""
        ends = [member.seals_until for group, member in self._members.items() if group.type == of_type]
        if not ends:
            # It has no right to any of them, as far as it knows; that may change.
            self._waiting.setdefault(KeyGroup(of_type), now)
        until = min([end for end in ends if end is not None], default=now)
        return None if not ends or None in ends or now > until else until

    def tick(self, now: datetime) -> None:
        """Let operators know, once, that publications wait for a key that does not come."""
        pause = timedelta(milliseconds=self._core.settings.limits.key_retry)
        for group, since in self._waiting.items():
            if since is not None and now >= since + pause:
                self._waiting[group] = None
                self._core.note(self._reason(group))

    def _reason(self, group: KeyGroup) -> PenstockError:
        if group not in self._members:
            return _not_entitled(group)
        code = self._refused.get(group)
        return _no_manager(group) if code is None else _refusal(group, code)


def _no_manager(group: KeyGroup) -> FailedError:
    return FailedError(
        "keys.no-manager",
        f"no key of `{group.scope}` is current: publications wait for one",
        hint="is a key manager running, and reached?",
    )


def _refusal(group: KeyGroup, code: str) -> RefusedError:
    why, hint = _REFUSALS[code]
    return RefusedError(code, f"the key manager gives no key of `{group.scope}`: {why}; publications wait", hint=hint)


def _not_entitled(group: KeyGroup) -> RefusedError:
    return RefusedError(
        "keys.not-entitled",
        f"this broker shows no right to the keys of `{group.type.name}`: what clients publish of it waits",
        hint="grant it `publish` or `subscribe` on the type and its attributes, without conditions",
    )
