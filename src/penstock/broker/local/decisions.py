"""The only entry point for decisions of a local broker: each request of its clients is decided, recorded and cached.

An answer is remembered until something changes, or until an instant at which a credential that was looked at begins
or ends. So the same question costs a client's broker once, however often it is asked.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Final

from penstock.broker.limits import BrokerLimits
from penstock.broker.local.sessions import Session
from penstock.guard import (
    NO_AGREEMENTS,
    Agreements,
    Authority,
    CapabilityAuthority,
    Decision,
    EventRequest,
    NetworkRequest,
    Recorded,
    Recorder,
)
from penstock.guard.capabilities import Revoking
from penstock.guard.policies import NO_POLICIES, KnownTypes, Policies, no_other_types
from penstock.model.names import NetworkName
from penstock.model.values import Schema
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import OnlineChecker, no_online_checker
from penstock.trust.event_types import VerifiedType
from penstock.trust.policy_state import Revocations
from penstock.trust.validity import earliest, turning_point

# ----------------------------------------------------------------------------------------------------------------------
# Answers about rights that are asked for with every event, remembered while they are certainly the same.
#
# An answer rests on policy, on what somebody shows, and on dates. It is asked again when one of these differs, and at
# the first instant at which one of the dates could make a difference.


_NEVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Answer:
    by: tuple[object, ...]
    until: datetime
    answer: bool


class DecisionCache:
    """See the module. Of so many as `BrokerLimits.cache_entries` says the oldest are forgotten."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._known: dict[Hashable, _Answer] = {}

    def known(self, about: Hashable, by: tuple[object, ...], now: datetime) -> bool | None:
        """Return the cached answer if it was given on the same facts and has not ended, and None otherwise."""
        known = self._known.get(about)
        return None if known is None or now >= known.until or known.by != by else known.answer

    def forget(self) -> None:
        """Clear the cache: the clock was corrected, or answers could not be recorded."""
        self._known.clear()

    def keep(self, about: Hashable, by: tuple[object, ...], until: datetime | None, *, answer: bool) -> bool:
        """Cache an answer until the first of the dates that it depends on, if there is one; return it."""
        self._known.pop(about, None)
        if len(self._known) >= self._limits.cache_entries:
            self._known.pop(next(iter(self._known)))
        self._known[about] = _Answer(by, until or _NEVER, answer)
        return answer


# ----------------------------------------------------------------------------------------------------------------------
# The only entry point for decisions of a local broker: each request of its clients is decided, recorded and cached.


@dataclass(frozen=True, slots=True)
class AuthoritySources:
    """The sources of authority besides the credentials of clients: all that a broker knows at one time."""

    credentials: Credentials = field(default_factory=Credentials)
    others: tuple[Authority, ...] = ()
    #: under which decisions are recorded
    revision: str = ""
    online: OnlineChecker = no_online_checker
    #: certificates that issuers of validity statements give in the place of others
    successors: Credentials = field(default_factory=Credentials)
    #: revoked credentials, which do not count even if a client discloses them
    revocations: Revocations = field(default_factory=Revocations)
    #: certificates that owners published and then revoked: they grant nothing, and explain refusals
    withdrawn: Credentials = field(default_factory=Credentials)
    #: what was agreed on about who publishes and who subscribes
    agreements: Agreements = NO_AGREEMENTS
    #: what the domain says about its clients
    policies: Policies = NO_POLICIES

    def authorities(self, shown: Credentials, environment: Schema) -> tuple[Authority, ...]:
        """Return the authorities to ask about a principal that shows these credentials."""
        return (self._certified(shown, environment), *self.others)

    def for_clients(
        self, shown: Credentials, environment: Schema, types: KnownTypes = no_other_types
    ) -> tuple[Authority, ...]:
        """Return the authorities to ask about a client.

        Brokers publish and read for others: agreements and policies do not concern them.
        """
        certified = self._certified(shown, environment)
        agreed = map(self.agreements.over, (certified, *self.others))
        return tuple(self.policies.over(authority, certified, types, environment) for authority in agreed)

    def _certified(self, shown: Credentials, environment: Schema) -> Revoking:
        known = CapabilityAuthority(self.credentials + self.successors + shown, self.online, environment)
        return Revoking(known, self.revocations)

    @property
    def name(self) -> str:
        """What decisions are recorded under: the revision, and that of policies."""
        return f"{self.revision} {self.policies.revision}".strip()

    def turns(self, now: datetime) -> datetime | None:
        """Return when one of the credentials or agreements next begins or ends."""
        held = (one.statement.validity for one in (*self.credentials, *self.successors))
        dates = chain(held, self.agreements.validities())
        return turning_point(dates, now)


@dataclass(slots=True)
class DecisionPoint:
    """See the module. `environment` is the schema that dynamic conditions can refer to."""

    network: NetworkName
    recorder: Recorder
    sources: AuthoritySources
    environment: Schema
    #: which types are known
    types: KnownTypes = no_other_types

    def introduce(self, client: Session, now: datetime) -> Decision:
        """Forget all answers to a client, and decide whether it may connect."""
        client.authorities = self.sources.for_clients(client.credentials, self.environment, self.types)
        client.answers = {}
        client.revoked = {}
        client.until = turning_point((certificate.statement.validity for certificate in client.credentials), now)
        return self.ask_network(client, Right.CONNECT, now)

    def ask(self, client: Session, right: Right, verified: VerifiedType, now: datetime) -> Recorded:
        """Decide about an event type. Raises what the recorder's sink raises."""
        found = client.answers.get((right, verified.id))
        if found is None:
            request = EventRequest(client.principal, right, verified, now)
            found = self.recorder.decide(request, client.authorities, self.sources.name)
            client.answers[right, verified.id] = found
            _note_dates(client, found.decision, now)
        return found

    def ask_network(self, client: Session, right: Right, now: datetime) -> Decision:
        """Decide about the network. Raises what the recorder's sink raises."""
        request = NetworkRequest(client.principal, right, self.network, now)
        decision = self.recorder.decide(request, client.authorities, self.sources.name).decision
        _note_dates(client, decision, now)
        return decision

    def write(self, client: Session) -> None:
        """Record on how many events each decision was enforced. Raises what the recorder's sink raises."""
        for recorded, counts in client.tally.take():
            self.recorder.enforced(recorded.record, counts)


def _note_dates(client: Session, decision: Decision, now: datetime) -> None:
    # Answers to on-line tests and the credentials of types end too, and are not in the certificates of the client.
    ends = turning_point((branch.when.validity for branch in decision.restriction.branches), now)
    client.until = earliest(client.until, ends)
