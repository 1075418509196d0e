"""A policy as the pipeline uses it: verified types, credentials, readers, and the environment of its conditions.

Decisions are made once, on the driver, about all times. Each branch says when it holds, and is asked at the time of
each event, so that a history is judged by what was valid then.

With a recorder, what is decided is written down: a subscription when it is decided, since a subscriber has asked for
it; the right to publish when events of that publisher are counted, since admission looks at everybody who could have
published, and most of them have not.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo

from penstock.guard import (
    NO_AGREEMENTS,
    Agreements,
    Authority,
    CapabilityAuthority,
    Counts,
    Decision,
    DecisionRecord,
    EventRequest,
    Recorder,
    decide,
    environment_schema,
)
from penstock.guard.policies import NO_POLICIES, Policies
from penstock.guard.revoking import Revoking
from penstock.model.domains import Domain
from penstock.model.names import TypeKey
from penstock.model.principals import Petnames, Principal
from penstock.model.values import AttributeSpec, Schema, Value, kind_of
from penstock.selector import ALWAYS, Selector
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType
from penstock.trust.revocations import Revocations
from penstock.trust.subjects import Subject, Threshold


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A reader: who, of which version of which type, and with which filter of its own."""

    name: str
    principal: Principal
    type: VerifiedType
    selector: Selector = ALWAYS


@dataclass(slots=True)
class _Answer:
    decision: Decision
    record: DecisionRecord | None = None
    written: bool = False


@dataclass(slots=True)
class _Memory:
    """What a policy has worked out. It belongs to one policy: one with other credentials begins anew."""

    answers: dict[tuple[Principal, Right, str], _Answer] = field(default_factory=dict)
    revision: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """What is known at one time about who may do what, and who records what is decided by it, if anybody does.

    A policy is whole: `load_policy` returns one, and every function of the pipeline takes one. Conditions are asked in
    its `zone` and with its `facts`, so that nobody can ask them without. Use `dataclasses.replace` to change a part.
    """

    credentials: Credentials
    subscribers: tuple[Subscriber, ...] = ()
    others: tuple[Authority, ...] = ()
    recorder: Recorder | None = None
    #: what was agreed on about who publishes and who subscribes
    agreements: Agreements = NO_AGREEMENTS
    #: what the domain says about who publishes and who subscribes
    policies: Policies = NO_POLICIES
    #: which of the credentials, and of what types rest on, counted until when
    revocations: Revocations = field(default_factory=Revocations)
    #: types that are known: policies are asked about those below the one that somebody subscribes to
    types: tuple[VerifiedType, ...] = ()
    #: where `hour`, `minute` and `weekday` of conditions are those of the clock on the wall
    zone: tzinfo = UTC
    #: what conditions may ask for besides the time
    facts: Mapping[str, Value] = field(default_factory=dict)
    #: for display: no decision looks at them
    names: Petnames = field(default_factory=Petnames)
    #: for records of decisions, and for policies that ask where somebody is at home
    domains: tuple[Domain, ...] = ()
    _memory: _Memory = field(init=False, default_factory=_Memory, repr=False, compare=False)

    @property
    def environment(self) -> Schema:
        """What conditions may speak about. Raises `MalformedError` (`environment.reserved`) for a fact's name."""
        return environment_schema({name: AttributeSpec(kind_of(fact)) for name, fact in self.facts.items()})

    @property
    def revision(self) -> str:
        """A digest of all that is decided by, and of subscribers, for logs: equal ones have equal revisions.

        Other sources of authority have no digest; whoever has some says in the source of a record which.
        """
        if not self._memory.revision:
            parts = sorted(certificate.id for certificate in self.credentials)
            parts += sorted(str(quorum.principal) for quorum in self.credentials.quorums)
            readers = [(s.name, str(s.principal), s.type.id, s.selector.text) for s in self.subscribers]
            rest: list[object] = [one for one in (self.agreements.revision, self.policies.revision) if one]
            if revoked := self.revocations.listed():
                rest.append(revoked)
            if self.facts or str(self.zone) != "UTC":
                facts = sorted((name, kind_of(fact), str(fact)) for name, fact in self.facts.items())
                rest.append({"zone": str(self.zone), "facts": facts})
            found = hashlib.sha256(json.dumps([parts, readers, *rest]).encode()).digest()
            self._memory.revision = f"policy:{base64.b32encode(found).decode().rstrip('=').lower()}"
        return self._memory.revision

    def decide(self, principal: Principal, action: Right, verified: VerifiedType) -> Decision:
        """Decide about all times. Asked twice, it answers once, and records once.

        Raises what the recorder's sink raises: without a record there is no answer.
        """
        return self._answer(principal, action, verified).decision

    def enforced(self, principal: Principal, action: Right, verified: VerifiedType, counts: Counts) -> None:
        """Record how many events a decision let through and kept back; the decision first, where it is not yet.

        Several subscriptions of one principal to one version share a decision, and each may be counted. Without a
        recorder nothing happens. Raises what the recorder's sink raises.
        """
        answer = self._answer(principal, action, verified)
        if self.recorder is not None and answer.record is not None:
            self._write(self.recorder, answer)
            self.recorder.enforced(answer.record, counts)

    def _answer(self, principal: Principal, action: Right, verified: VerifiedType) -> _Answer:
        key = (principal, action, verified.id)
        known = self._memory.answers.get(key)
        if known is None:
            request = EventRequest(principal, action, verified, None)
            environment = self.environment
            known_rights = CapabilityAuthority(self.credentials, environment=environment)
            certified = Revoking(known_rights, self.revocations)
            agreed = map(self.agreements.over, (certified, *self.others))
            authorities = tuple(self.policies.over(one, certified, self._below, environment) for one in agreed)
            if self.recorder is None:
                known = _Answer(decide(request, authorities))
            else:
                found = self.recorder.consider(request, authorities, self.revision)
                known = _Answer(found.decision, found.record)
                if action is not Right.PUBLISH:
                    self._write(self.recorder, known)
            # Last, so that an answer whose record was not written is not remembered.
            self._memory.answers[key] = known
        return known

    @staticmethod
    def _write(recorder: Recorder, answer: _Answer) -> None:
        if answer.record is not None and not answer.written:
            recorder.write(answer.record)
            answer.written = True

    def of_brokers(self) -> "Policy":
        """Return what certificates alone say: by that brokers publish and read for others."""
        if self.agreements == NO_AGREEMENTS and self.policies is NO_POLICIES:
            return self
        return replace(self, agreements=NO_AGREEMENTS, policies=NO_POLICIES)

    def _below(self, key: TypeKey, _now: datetime | None) -> Iterator[VerifiedType]:
        """Yield every known version of a type, and of all that extends it."""
        return (one for one in self.types if key in (one.event_type.key, *one.event_type.ancestors))

    def principals(self) -> tuple[Principal, ...]:
        """Return everyone of whom something is said: by credentials, agreed rules, policies, and as owners of types.

        Of types those that are subscribed to, and of policies who is at home somewhere.
        """
        found: dict[Principal, None] = {}
        for certificate in self.credentials:
            found[certificate.statement.issuer] = None
            found.update(dict.fromkeys(_mentioned(certificate.statement.subject)))
        for rules in self.agreements.rules:
            found.update(dict.fromkeys(rules.publishers))
        for domain in self.policies.domains:
            found.update(dict.fromkeys(domain.members()))
        found.update(dict.fromkeys(subscriber.type.event_type.name.owner for subscriber in self.subscribers))
        return tuple(found)


def _mentioned(subject: Subject) -> Iterator[Principal]:
    if isinstance(subject, Principal):
        yield subject
    elif isinstance(subject, Threshold):
        for member in subject.subjects:
            yield from _mentioned(member)
