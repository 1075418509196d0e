"""A policy as the pipeline uses it: verified types, credentials, and the readers that are delivered to.

Decisions are made once, on the driver, about all times. Each branch says when it holds, and is asked at the time of
each event, so that a history is judged by what was valid then.
"""

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.guard import Authority, CapabilityAuthority, Decision, EventRequest, decide
from penstock.model.principals import Principal
from penstock.selector import ALWAYS, Selector
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType
from penstock.trust.subjects import Subject, Threshold


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A reader: who, of which version of which type, and with which filter of its own."""

    name: str
    principal: Principal
    type: VerifiedType
    selector: Selector = ALWAYS


@dataclass(frozen=True, slots=True)
class Policy:
    """What is known at one time about who may do what."""

    credentials: Credentials
    subscribers: tuple[Subscriber, ...] = ()
    others: tuple[Authority, ...] = ()
    _known: dict[tuple[Principal, Right, str], Decision] = field(default_factory=dict, repr=False, compare=False)

    @property
    def revision(self) -> str:
        """A digest of everything that decides, for logs: equal policies have equal revisions."""
        parts = sorted(certificate.id for certificate in self.credentials)
        parts += [f"{s.name} {s.principal} {s.type.id} {s.selector.text}" for s in self.subscribers]
        found = hashlib.sha256("\n".join(parts).encode()).digest()
        return f"policy:{base64.b32encode(found).decode().rstrip('=').lower()}"

    def decide(self, principal: Principal, action: Right, verified: VerifiedType) -> Decision:
        """Decide about all times. Asked twice, it answers once."""
        key = (principal, action, verified.id)
        known = self._known.get(key)
        if known is None:
            authorities = (CapabilityAuthority(self.credentials), *self.others)
            known = self._known[key] = decide(EventRequest(principal, action, verified, None), authorities)
        return known

    def principals(self) -> tuple[Principal, ...]:
        """Return everyone whom a credential speaks of, and every owner of a type that is subscribed to."""
        found: dict[Principal, None] = {}
        for certificate in self.credentials:
            found[certificate.statement.issuer] = None
            found.update(dict.fromkeys(_mentioned(certificate.statement.subject)))
        found.update(dict.fromkeys(subscriber.type.event_type.name.owner for subscriber in self.subscribers))
        return tuple(found)


def _mentioned(subject: Subject) -> Iterator[Principal]:
    if isinstance(subject, Principal):
        yield subject
    elif isinstance(subject, Threshold):
        for member in subject.subjects:
            yield from _mentioned(member)
