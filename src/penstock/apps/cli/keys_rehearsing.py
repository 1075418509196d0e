"""What a change of keys would concern: groups, epochs and holders, as the status of a broker tells them.

Nothing else is asked of the broker than its status. What a change itself is refused for, this is refused for too, as
far as the status tells: keys that are not managed there, or not by who asks, and brokers that do not hold them.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, TypeAlias

from penstock.apps.cli.told import listed, table
from penstock.broker.key_protocol import LABELS
from penstock.codec.wire import Wire
from penstock.errors import RefusedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal

Rehearsed: TypeAlias = Mapping[str, Mapping[str, Wire]]
"""The groups that a change would concern, by scope: what is told of each, and what would come of it."""

_NOT_OPERATOR: Final = "broker.not-operator"


def rotated(status: Mapping[str, Wire], of_type: TypeKey, attribute: str) -> Rehearsed:
    """Return the groups that would begin an epoch, and which. Raises `RefusedError` (`keys.not-manage…`)."""
    meant = _meant(status, of_type, attribute)
    # Labels change by themselves, where they are not asked for.
    return {
        scope: {**one, "then": _epoch(one) + 1}
        for scope, one in meant.items()
        if attribute == LABELS or one.get("attribute") != LABELS
    }


def evicted(status: Mapping[str, Wire], of_type: TypeKey, attribute: str, broker: Principal) -> Rehearsed:
    """Return the groups that would go on without a broker. Raises as `rotated`, and `keys.not-member`."""
    who = str(broker)
    held = {s: one for s, one in _meant(status, of_type, attribute).items() if who in listed(one.get("holders"))}
    if not held:
        raise RefusedError(
            "keys.not-member", "this broker holds none of these keys", hint="`penstock keys status` shows who does"
        )
    return {
        scope: {
            **one,
            "then": _epoch(one) + 1,
            "holders": [other for other in listed(one.get("holders")) if other != who],
        }
        for scope, one in held.items()
    }


def forgotten(status: Mapping[str, Wire], before: datetime) -> Rehearsed:
    """Return all groups, and up to which epoch keys would be forgotten: `all` of them, or those that were over then.

    Raises as `rotated`.
    """
    return {scope: {**one, "forgotten": _forgotten(one, before)} for scope, one in _meant(status, None, "").items()}


def joined(status: Mapping[str, Wire]) -> Rehearsed:
    """Return the groups whose keys a broker would ask for. Raises `RefusedError` (`broker.not-operator`)."""
    if "held" not in status:
        raise RefusedError(_NOT_OPERATOR, "only operators of the broker may ask this")
    held = {scope: table(one) for scope, one in table(status["held"]).items()}
    return {scope: one for scope, one in held.items() if one.get("seals") is not True}


def of_manager(error: RefusedError) -> RefusedError:
    """Return why a change is refused to somebody whom not even the status is told."""
    return _not_manager() if error.code == _NOT_OPERATOR else error


def _meant(status: Mapping[str, Wire], of_type: TypeKey | None, attribute: str) -> Rehearsed:
    managed = {scope: table(one) for scope, one in table(status.get("managed")).items()}
    whole = None if of_type is None else str(of_type)
    found = {
        scope: one
        for scope, one in managed.items()
        if whole in (None, one.get("type")) and attribute in ("", one.get("attribute"))
    }
    if not found:
        raise RefusedError(
            "keys.not-managed",
            "no such keys are managed here",
            hint="`penstock keys status` shows which keys this broker manages: compare broker, type and attribute",
        )
    if not all("holders" in one for one in found.values()):
        raise _not_manager()
    return found


def _forgotten(one: Mapping[str, Wire], before: datetime) -> dict[str, Wire]:
    begun, epoch = one.get("begun"), _epoch(one)
    # An epoch is over when the next begins; when the earlier ones did is not told.
    whole = isinstance(begun, datetime) and begun < before
    return {"last": max(0, epoch - (1 if whole else 2)), "all": whole}


def _epoch(one: Mapping[str, Wire]) -> int:
    found = one.get("epoch")
    return found if isinstance(found, int) else 0


def _not_manager() -> RefusedError:
    return RefusedError(
        "keys.not-manager",
        "these keys may be changed by the type's owner, and by who has the right `keys`",
        hint="show the certificate that says so with --credential",
    )
