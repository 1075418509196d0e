"""Who may hold the key of a group, and for how long: decided by `decide()` alone.

A broker shows the same capabilities as for publishing and subscribing (section 7.6); whoever asks the door passes on
both question and answer. What counts here:

1. The question was asked for this broker, about this type, and about a right that needs the key. `route` needs none:
   who only carries events cannot read them.
2. A right that covers all events: a key opens all of them, so that one which depends on values, guards, the environment
   or an on-line test does not count. Such conditions bind clients, at their brokers.
3. A right on every version of the type that is served, since they share their keys.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from penstock.errors import RefusedError
from penstock.guard.decision import Decision, EventRequest
from penstock.guard.restriction import Branch
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.selector import ALWAYS as TRUE
from penstock.trust.capabilities import Right
from penstock.trust.key_statements import KeyGroup

Grounds: TypeAlias = Iterable[tuple[EventRequest, Decision]]
"""What was asked about a broker, and what the answers were: for each version, one of the rights at least."""

MEMBERS: Final = frozenset((Right.PUBLISH, Right.SUBSCRIBE))
READERS: Final = frozenset((Right.HISTORY,))
PUBLISHERS: Final = frozenset((Right.PUBLISH,))


@dataclass(frozen=True, slots=True)
class KeyEntitlement:
    """From when to when a right holds, without a break; both included, and open where there is no date."""

    since: datetime | None = None
    until: datetime | None = None

    def covers(self, instant: datetime) -> bool:
        """Say whether the right held at an instant before now."""
        return self.since is None or self.since <= instant


def entitlement(  # noqa: PLR0913  # each argument is one of the facts that a right rests on
    grounds: Grounds,
    broker: Principal,
    group: KeyGroup,
    served: Collection[TypeName],
    now: datetime,
    *,
    rights: frozenset[Right] = MEMBERS,
) -> KeyEntitlement:
    """Return how long a broker has had the right to a key, and will have it; `served` are the versions of the type.

    Raises `RefusedError` (`keys.not-entitled`).
    """
    versions = _by_version(grounds, broker, group, now, rights)
    # (3) Versions that were not asked about count like those that were refused.
    if not served or not all(versions.get(version) for version in served):
        raise RefusedError(
            "keys.not-entitled",
            f"{broker.short} shows no right to this key of `{group.type.name}`",
            hint="it needs a right on the attribute in all versions, without conditions",
        )
    found = [_longest(versions[version]) for version in served]
    begins = [one.since for one in found if one.since is not None]
    ends = [one.until for one in found if one.until is not None]
    return KeyEntitlement(max(begins, default=None), min(ends, default=None))


def _by_version(
    grounds: Grounds, broker: Principal, group: KeyGroup, now: datetime, rights: frozenset[Right]
) -> Mapping[TypeName, list[Branch]]:
    found: dict[TypeName, list[Branch]] = {}
    for request, decision in grounds:
        # (1) An answer to another question is not an answer.
        name = request.type.event_type.name
        if request.principal != broker or name.key != group.type or request.action not in rights:
            continue
        branches = found.setdefault(name, [])
        branches += [branch for branch in decision.restriction.branches if _opens(branch, request, group, now)]
    return found


def _opens(branch: Branch, request: EventRequest, group: KeyGroup, now: datetime) -> bool:
    """Say whether a branch holds now for all events, and shows what the key opens (2)."""
    validity = branch.when.validity
    bare = branch.where == TRUE and branch.when.condition == TRUE and branch.only is None
    whole = bare and not (branch.forced or branch.guards)
    shown = group.attribute is None or branch.shows(group.attribute)
    return whole and shown and branch.action is request.action and not validity.online and validity.contains(now)


def _longest(branches: Iterable[Branch]) -> KeyEntitlement:
    """Return what is covered by branches that all hold now: from the first beginning to the last end."""
    validities = [branch.when.validity for branch in branches]
    begins = [validity.starts for validity in validities]
    ends = [validity.ends for validity in validities]
    since = None if None in begins else min(filter(None, begins))
    return KeyEntitlement(since, None if None in ends else max(filter(None, ends)))
