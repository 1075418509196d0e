"""What a change of policies can affect: the requests for which another answer is possible, as caches understand it.

Two policies are compared member by member. A rule or a policy that differs matters only where one of the two can be
applicable, which its target and the targets around it say: for which resources, actions and roles. This holds for the
standard's algorithms, to which a member that is not applicable is as good as absent. Otherwise everything within the
policy around it counts as changed.

1. A rule that permits, and differs, is a role that got or lost a permission, if the point declares that its policies
   are a union over roles, and if one more Permit cannot lead to anything but a Permit.
2. Everything else that differs is announced with the resources that it can be applicable to.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Final, NamedTuple, TypeAlias

from penstock.authority.decisions.questions import KEY_ACTION_ID, KEY_RESOURCE_ID, KEY_RESOURCE_TYPE
from penstock.authority.decisions.updates import EVERYTHING, PolicyChange, ResourceChange, RolePermissionChange
from penstock.authority.limits import ANSWER_TEXT, UPDATE_CHANGES
from penstock.errors import PenstockError
from penstock.policy.combining import POLICY_COMBINING, RULE_COMBINING, standard
from penstock.policy.engine.index import necessary
from penstock.policy.engine.lookup import PolicySources
from penstock.policy.language.datatypes import STRING
from penstock.policy.language.policies import (
    ApplyPath,
    Duties,
    Policy,
    PolicyReference,
    Root,
    Rule,
    RuleEffect,
    Target,
    parts_of,
)
from penstock.policy.language.requests import SUBJECT, Key, key_of

#: algorithms to which members that are not applicable are as good as absent; `on-permit-apply-second` is not among them
_IGNORING: Final = (
    "deny-overrides", "permit-overrides", "first-applicable", "only-one-applicable", "deny-unless-permit",
    "permit-unless-deny",
)  # fmt: skip
#: algorithms of XACML 3.0 under which one more Permit, or an error in its place, does not end another Permit
_MONOTONE: Final = frozenset(
    names[name]
    for names in (RULE_COMBINING, POLICY_COMBINING)
    for name in ("deny-overrides", "permit-overrides", "deny-unless-permit", "permit-unless-deny")
)
Member: TypeAlias = Rule | Root


class _UnboundedError(Exception):
    """Raised if everything may have changed; caught in this module."""


def policy_changes(
    before: Root, after: Root, known_before: PolicySources, known_after: PolicySources, roles: str | None = None
) -> tuple[PolicyChange, ...]:
    """Return the changes between two policies, each with those that it refers to.

    `roles` is the attribute of the subject of which the point declares that the policies are a union over its values.
    """
    try:
        if before.id != after.id:
            return EVERYTHING
        comparison = _Comparison(known_before, known_after, roles)
        return bounded(comparison.policies(before, after, _Scope({}, monotone=True)))
    except _UnboundedError:
        return EVERYTHING


def bounded(changes: Iterable[PolicyChange]) -> tuple[PolicyChange, ...]:
    """Return changes, each once. If there are too many for an update, return the resources' types, or everything."""
    found = tuple(dict.fromkeys(changes))
    if len(found) > UPDATE_CHANGES:
        found = tuple(dict.fromkeys(ResourceChange(change.resource_type) for change in found))
    whole = len(found) > UPDATE_CHANGES or EVERYTHING[0] in found
    return EVERYTHING if whole or not all(map(_can_be_written, found)) else found


def _can_be_written(change: PolicyChange) -> bool:
    texts = [change.resource_type]
    if isinstance(change, RolePermissionChange):
        texts += (change.role, change.action, change.resource_id)
    else:
        texts.append(change.prefix)
    try:
        lengths = [len(text) for text in texts if text.encode() or isinstance(change, RolePermissionChange)]
    except UnicodeEncodeError:
        return False
    return all(0 < length <= ANSWER_TEXT for length in lengths)


class _Scope(NamedTuple):
    """The values without which nothing within some policies is applicable."""

    needs: Mapping[Key, frozenset[str]]
    monotone: bool

    def within(self, target: Target) -> "_Scope":
        """Return the scope of a part with this target."""
        needs = dict(self.needs)
        for attribute, values in necessary(target).items():
            key = attribute.key
            if attribute.must_be_present and key not in _ALWAYS:
                # A request without it is an error, and not outside.
                continue
            known = needs.get(key, values)
            # Only attributes that have exactly one value need a value that suits all targets.
            needs[key] = known & values if key in _ALWAYS else min(known, values, key=len)
        return self._replace(needs=needs)


#: attributes that every question has, each with one value
_ALWAYS: Final = frozenset({KEY_RESOURCE_TYPE, KEY_RESOURCE_ID, KEY_ACTION_ID})


class _Comparison:
    def __init__(self, before: PolicySources, after: PolicySources, roles: str | None) -> None:
        self._before = before
        self._after = after
        self._roles = None if roles is None else key_of(SUBJECT, roles, STRING)

    def policies(self, before: Root, after: Root, scope: _Scope) -> Iterator[PolicyChange]:
        """Yield what differs. Raises `_UnboundedError`."""
        old, new = _members(before, self._before), _members(after, self._after)
        if old is None or new is None or not _comparable(before, after, old, new):
            yield from self._differing(before, scope, granted=False)
            yield from self._differing(after, scope, granted=True)
            return
        _refuse_nested(_frame(before))
        inner = scope.within(before.target)
        inner = inner._replace(monotone=scope.monotone and before.combining in _MONOTONE and before.duties == Duties())
        for name in dict.fromkeys((*old, *new)):
            one, other = old.get(name), new.get(name)
            if isinstance(one, Rule) or isinstance(other, Rule) or one is None or other is None:
                if _same(one, other):
                    _refuse_nested(one)
                    continue
                for member, granted in ((one, False), (other, True)):
                    if member is not None:
                        yield from self._differing(member, inner, granted=granted)
            else:
                yield from self.policies(one, other, inner)

    def _differing(self, member: Member, scope: _Scope, *, granted: bool) -> Iterator[PolicyChange]:
        """Yield where a member that differs can be applicable."""
        needs = scope.within(member.target).needs
        kinds, names = needs.get(KEY_RESOURCE_TYPE), needs.get(KEY_RESOURCE_ID)
        actions = needs.get(KEY_ACTION_ID)
        roles = None if self._roles is None else needs.get(self._roles)
        permits = isinstance(member, Rule) and member.effect is RuleEffect.PERMIT and member.duties == Duties()
        if permits and scope.monotone and roles and kinds is not None and names is not None and actions is not None:
            for role, action, kind, name in product(*map(_texts, (roles, actions, kinds, names))):
                yield RolePermissionChange(role, action, kind, name, granted=granted)
            return
        for kind, name in product(_texts(kinds), _texts(names)):
            yield ResourceChange(kind, name, exact=names is not None)


def _members(root: Root, known: PolicySources) -> dict[str, Member] | None:
    """Return the members by their ids; None if two have the same. Raises `_UnboundedError`."""
    if isinstance(root, Policy):
        found: dict[str, Member] = {rule.id: rule for rule in root.rules}
        return found if len(found) == len(root.rules) else None
    found = {}
    for member in root.members:
        try:
            policy = known.policy(member) if isinstance(member, PolicyReference) else member
        except PenstockError:
            raise _UnboundedError from None
        found[policy.id] = policy
    return found if len(found) == len(root.members) else None


def _comparable(before: Root, after: Root, old: Mapping[str, Member], new: Mapping[str, Member]) -> bool:
    """Return whether two policies can be compared member by member: those in both are in the same order."""
    if not _same(_frame(before), _frame(after)) or not before.combining.endswith(_IGNORING):
        return False
    if standard(before.combining) is None:
        return False  # a decision tuple or priorities, which can end like this
    return [name for name in old if name in new] == [name for name in new if name in old]


def _frame(root: Root) -> tuple[object, ...]:
    """Return everything of a policy but its members and its version, which is not used by decisions."""
    variables = dict(root.variables) if isinstance(root, Policy) else None
    return (type(root), root.combining, root.target, root.duties, root.issuer, variables)


def _same(one: object, other: object) -> bool:
    # Values that are written differently can be equal, and still differ as texts.
    return one == other and repr(one) == repr(other)


def _refuse_nested(part: object) -> None:
    """Raise `_UnboundedError` if a part that stays depends on the decision about other requests."""
    if next(parts_of(part, ApplyPath), None) is not None:
        raise _UnboundedError


def _texts(values: frozenset[str] | None) -> Iterable[str]:
    """Return values as they are written in a change: an empty one for all."""
    return ("",) if values is None else sorted(values)
