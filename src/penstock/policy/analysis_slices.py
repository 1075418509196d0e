"""The part of a policy that matters where a rule applies, so that questions about one of many rules are small.

Where an attribute has the value that a rule wants, a target that wants another does not match, whatever else is in it:
what stands under it is not applicable and may be left out, as long as nothing counts it. An attribute that must be
present, and is not, makes an error on both sides: what the rule wants of those tells nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from penstock.policy.combine import POLICY_ALGORITHMS, RULE_ALGORITHMS
from penstock.policy.datatypes import Value
from penstock.policy.index import necessary
from penstock.policy.policies import Policy, PolicyReference, PolicySet, Root, Target
from penstock.policy.requests import Key

Needs: TypeAlias = Mapping[Key, frozenset[Value]]
"""Values of which attributes must have one, as long as they have one value."""

#: algorithms to which children that are not applicable make no difference
_INDIFFERENT: Final = {*RULE_ALGORITHMS, *POLICY_ALGORITHMS} - {
    "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:on-permit-apply-second"
}


def needs(targets: Sequence[Target], *, present: bool = False) -> Needs:
    """Return the values of which attributes must have one, for all targets to match.

    With `present`, those without which no target can even fail: attributes that need not be there.
    """
    found: dict[Key, frozenset[Value]] = {}
    for target in targets:
        for attribute, values in necessary(target).items():
            if not (present and attribute.must_be_present):
                found[attribute.key] = found[attribute.key] & values if attribute.key in found else values
    return found


def apart(one: Needs, other: Needs) -> bool:
    """Say whether an attribute with one value cannot have what both need."""
    return any(not (values & other[key]) for key, values in one.items() if key in other)


class Slices:
    """Parts of policies; what their targets want is worked out once."""

    def __init__(self) -> None:
        #: by what targets are, not by what they say: each is kept beside, so that no other takes its place
        self._known: dict[int, tuple[Target, Needs]] = {}

    def _apart(self, wanted: Needs, target: Target) -> bool:
        found = self._known.get(id(target))
        if found is None:
            found = self._known[id(target)] = (target, needs((target,)))
        return apart(wanted, found[1])

    def near(self, root: Root, wanted: Needs) -> Root:
        """Return a policy without what is not applicable where attributes have what is wanted."""
        if not wanted:
            return root
        leave_out = root.combining in _INDIFFERENT
        if isinstance(root, Policy):
            rules = [one for one in root.rules if not leave_out or not self._apart(wanted, one.target)]
            return replace(root, rules=tuple(rules))
        members: list[Policy | PolicySet | PolicyReference] = []
        for member in root.members:
            if isinstance(member, PolicyReference):
                members.append(member)
            elif not leave_out or not self._apart(wanted, member.target):
                members.append(self.near(member, wanted))
        return replace(root, members=tuple(members))
