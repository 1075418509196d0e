"""Who may decide about a resource, and who may ask: capabilities from the owner of the decisions.

(decision <owner> <resource type> <resource id> decide|ask)
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from penstock.authority.decisions.questions import Entity
from penstock.model.principals import Principal
from penstock.trust.capabilities import DecisionRight, decision_request, decision_tag
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import FiveTuple, follow_all, sift
from penstock.trust.tags import matches
from penstock.trust.validity import Validity

_NO_ENDS: Final[Mapping[str, Validity]] = {}
#: where a certificate does not say when it begins and ends
_EVER: Final = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
#: resources of which it is kept when somebody has a right on them, and characters of type and id: a forger can name
#: any. If there are more, all are looked up again
_KEPT: Final = 16_384
_KEPT_TEXT: Final = 512


class DecisionRights:
    """The rights of all principals, from verified certificates of which the chains were followed once.

    `ends` has the last validity of revoked certificates, by id. A certificate with an on-line test grants nothing here.
    """

    def __init__(self, owner: Principal, credentials: Credentials, *, ends: Mapping[str, Validity] = _NO_ENDS) -> None:
        self.owner = owner
        self._ends = ends
        self._grants: Mapping[Principal, tuple[FiveTuple, ...]] = {}
        #: the periods (first and last instant) in which a principal, by its digest, has a right on a resource
        self._periods: dict[tuple[bytes, str, str, bool], tuple[tuple[datetime, datetime], ...]] = {}
        self.replace(credentials, ends)

    def replace(self, credentials: Credentials, ends: Mapping[str, Validity] = _NO_ENDS) -> None:
        """Use other certificates from now on."""
        found = follow_all(sift(credentials, None, ends=ends), self.owner, decision_tag(self.owner))
        self._grants = {principal: findings.grants for principal, findings in found.items()}
        self._periods = {}

    def may(self, principal: Principal, right: DecisionRight, resource: Entity, now: datetime) -> bool:
        """Return whether a principal has a right on decisions about a resource now. The owner has all of them."""
        if principal == self.owner:
            return True
        key = (principal.digest, resource.type, resource.id, right is DecisionRight.DECIDE)
        periods = self._periods.get(key)
        if periods is None:
            grants = self._grants.get(principal)
            if not grants:
                return False  # strangers fill nothing
            request = decision_request(self.owner, resource.type, resource.id, right)
            periods = tuple(
                (grant.validity.starts or _EVER[0], grant.validity.ends or _EVER[1])
                for grant in grants
                if matches(request, grant.tag)
            )
            if len(resource.type) + len(resource.id) <= _KEPT_TEXT:
                if len(self._periods) >= _KEPT:
                    self._periods.clear()
                self._periods[key] = periods
        return any(first <= now <= last for first, last in periods)

    def may_decide(self, principal: Principal, resource: Entity, now: datetime) -> bool:
        """Return whether a principal may decide about a resource now."""
        return self.may(principal, DecisionRight.DECIDE, resource, now)
