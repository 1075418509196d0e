"""Who may decide about a resource, and who may ask: capabilities from the owner of the decisions.

(decision <owner> <resource type> <resource id> decide|ask)
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from penstock.authority.decisions.questions import Entity
from penstock.model.instants import instant_key
from penstock.model.principals import Principal
from penstock.trust.capabilities import DecisionRight, decision_request, decision_tag
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import FiveTuple, follow_all, sift
from penstock.trust.tags import matches
from penstock.trust.validity import State, Validity

_NO_ENDS: Final[Mapping[str, Validity]] = {}


class DecisionRights:
    """The rights of all principals, from verified certificates of which the chains were followed once.

    `ends` has the last validity of revoked certificates, by id. A certificate with an on-line test grants nothing here.
    """

    def __init__(self, owner: Principal, credentials: Credentials, *, ends: Mapping[str, Validity] = _NO_ENDS) -> None:
        self.owner = owner
        self._ends = ends
        self._grants: Mapping[Principal, tuple[FiveTuple, ...]] = {}
        self.replace(credentials, ends)

    def replace(self, credentials: Credentials, ends: Mapping[str, Validity] = _NO_ENDS) -> None:
        """Use other certificates from now on."""
        found = follow_all(sift(credentials, None, ends=ends), self.owner, decision_tag(self.owner))
        self._grants = {principal: findings.grants for principal, findings in found.items()}

    def may(self, principal: Principal, right: DecisionRight, resource: Entity, now: datetime) -> bool:
        """Return whether a principal has a right on decisions about a resource now. The owner has all of them."""
        if principal == self.owner:
            return True
        request, moment = decision_request(self.owner, resource.type, resource.id, right), instant_key(now)
        return any(
            grant.validity.state(moment) is State.VALID and matches(request, grant.tag)
            for grant in self._grants.get(principal, ())
        )

    def may_decide(self, principal: Principal, resource: Entity, now: datetime) -> bool:
        """Return whether a principal may decide about a resource now."""
        return self.may(principal, DecisionRight.DECIDE, resource, now)
