"""The decision log: what was asked, by whom, and what the answer rested on, as a value and as CloudEvents 1.0.

A record of type `io.penstock.decision` is the answer to one request; its id is the decision id. Records of type
`io.penstock.decision.enforced` may follow it. Each has an id of its own, repeats the answer, and says how many events
were let through under it, and how many were not, since the one before. So decisions are counted by records of the first
type, and events by those of the second.

A record of type `io.penstock.revocation` says that one broker has carried out a revocation: when it was ordered, and
when nothing passed any more by what was revoked (`revocation_log`).

A record of type `io.penstock.pdp.decision` is the answer of policies to a question about anything: the decision service
writes it, and `penstock pipeline evaluate`.

A record names principals, types and credentials, and carries codes in place of messages: no attribute value of any
event stands in it, and no secret. The caller chooses ids, reads the clock and takes the time: see `Recorder`.
"""

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from penstock.guard.decision import Decision, Effect, NetworkRequest, Request
from penstock.guard.log_envelopes import (
    DECIDED,
    ENFORCED,
    URI_REFERENCE,
    check_names,
    cloud_event,
    count_of,
    is_text,
    json_line,
    named_field,
    open_envelope,
    parsed,
    text_of,
    texts_of,
    time_of,
    wrong_field,
)
from penstock.model.instants import in_utc
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right

Resource: TypeAlias = TypeName | NetworkName

_MAX: Final = 2**63 - 1
_MICROSECOND: Final = timedelta(microseconds=1)
_CODE: Final = re.compile(r"[a-z]+(?:\.[a-z][a-z-]*)+", re.ASCII)
_ANSWER: Final = frozenset({"principal", "action", "resource", "effect", "because", "errors", "revision", "took"})
_DOMAINS: Final = frozenset({"domain", "owner-domain"})
_ENFORCEMENT: Final = frozenset({"decision", "passed", "refused"})


@dataclass(frozen=True, slots=True)
class Counts:
    """How many events were let through under a decision, and how many it kept back.

    What a reader's own filter passes over is neither.
    """

    passed: int
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One decision as it is logged, or what came of it.

    `source` is who decided, as a URI reference: a broker's principal or name. `domain` is that of the principal and
    `owner_domain` that of the resource's owner, where they are known. `took` is in microseconds. Where the record says
    what a decision was enforced on, `decision` is the id of that decision and `counts` the events. Raises
    `MalformedError` (`log.field`, `value.zone`, `value.range`).
    """

    id: str
    source: str
    time: datetime
    principal: Principal
    action: Right
    resource: Resource
    effect: Effect
    because: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    revision: str
    took: int
    domain: str | None = None
    owner_domain: str | None = None
    decision: str | None = None
    counts: Counts | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "time", in_utc(self.time))
        if not URI_REFERENCE.fullmatch(self.source):
            raise wrong_field("source", "expected a URI reference, such as a principal or a name without spaces")
        if not self.id:
            raise wrong_field("id", "every record has an id of its own")
        if (self.decision is None) is not (self.counts is None) or self.decision in ("", self.id):
            raise wrong_field("decision", "an enforcement names its decision, and nothing else does")
        if self.counts is not None and self.counts.passed and self.effect is not Effect.PERMIT:
            raise wrong_field("passed", "nothing passes under a refusal")
        if self.action.on_network is not isinstance(self.resource, NetworkName):
            raise wrong_field("action", "connect and install are rights on a network, all others on event types")
        if not all(map(_CODE.fullmatch, self.errors)):
            raise wrong_field("errors", "errors are logged by code, never by message")
        for name, count in self._numbers().items():
            if not 0 <= count <= _MAX:
                raise wrong_field(name, "expected a count of 63 bits")
        for text in (self.id, self.revision, *self.because, self.decision, self.domain, self.owner_domain):
            if text is not None and not is_text(text):
                raise wrong_field("text", "a lone surrogate is no Unicode text")

    def _numbers(self) -> dict[str, int]:
        counts = {} if self.counts is None else {"passed": self.counts.passed, "refused": self.counts.refused}
        return {"took": self.took, **counts}

    @property
    def type(self) -> str:
        """The CloudEvents type."""
        return DECIDED if self.counts is None else ENFORCED

    def to_cloud_event(self) -> dict[str, object]:
        """Return the record as a CloudEvent in structured mode, as plain data."""
        resource = self.resource
        named = {"owner": str(resource.owner), "name": resource.name}
        if isinstance(resource, TypeName):
            named["version"] = resource.version
        data: dict[str, object] = {"principal": str(self.principal)}
        if self.domain is not None:
            data["domain"] = self.domain
        data["action"] = str(self.action)
        data["resource"] = {"kind": "type" if isinstance(resource, TypeName) else "network", **named}
        if self.owner_domain is not None:
            data["owner-domain"] = self.owner_domain
        data |= {
            "effect": str(self.effect),
            "because": list(self.because),
            "errors": list(self.errors),
            "revision": self.revision,
            **({} if self.decision is None else {"decision": self.decision}),
            **self._numbers(),
        }
        return cloud_event(self.id, self.source, self.type, self.time, data)

    def enforced(self, *, id: str, at: datetime, counts: Counts) -> "DecisionRecord":  # noqa: A002  # as CloudEvents
        """Return a record of what this decision was enforced on, since the last one.

        Raises `MalformedError` (`log.field`, `value.zone`, `value.range`).
        """
        return replace(self, id=id, time=at, decision=self.id, counts=counts)

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json_line(self.to_cloud_event())


def record(  # noqa: PLR0913  # a record has as many parts as this; all but two are named
    request: Request,
    decision: Decision,
    *,
    id: str,  # noqa: A002  # CloudEvents calls it so
    source: str,
    at: datetime,
    took: timedelta,
    revision: str,
    domain: str | None = None,
    owner_domain: str | None = None,
) -> DecisionRecord:
    """Record a decision.

    Raises `MalformedError` (`log.field` for a part that cannot be logged, `value.zone`, `value.range` for a moment
    that is no instant).
    """
    return DecisionRecord(
        id=id,
        source=source,
        time=at,
        principal=request.principal,
        action=request.action,
        resource=request.network if isinstance(request, NetworkRequest) else request.type.event_type.name,
        effect=decision.effect,
        because=decision.because,
        errors=tuple(dict.fromkeys(problem.code for problem in decision.errors)),
        revision=revision,
        took=took // _MICROSECOND,
        domain=domain,
        owner_domain=owner_domain,
    )


def read_record(text: str | bytes, limits: Limits = DEFAULT_LIMITS) -> DecisionRecord:
    """Read a record of a decision from JSON.

    Attributes of the envelope that CloudEvents lets others add are passed over; within the data nothing is unknown.
    Raises `LimitError` (`log.limit`) and `MalformedError`: `log.json`, `log.envelope`, `log.field`.
    """
    return from_cloud_event(parsed(text, limits))


def from_cloud_event(event: object) -> DecisionRecord:
    """Read a record from plain data.

    Raises `MalformedError`: `log.envelope` for what is no CloudEvent of ours, `log.field` for a part that is missing,
    unknown or wrong.
    """
    envelope, data = open_envelope(event, DECIDED, ENFORCED)
    enforced = envelope["type"] == ENFORCED
    check_names(data, _ANSWER | (_ENFORCEMENT if enforced else frozenset()), _DOMAINS)
    with named_field():
        return DecisionRecord(
            id=text_of(envelope, "id"),
            source=text_of(envelope, "source"),
            time=time_of(text_of(envelope, "time")),
            principal=Principal.parse(text_of(data, "principal")),
            action=Right(text_of(data, "action")),
            resource=_resource(data["resource"]),
            effect=Effect(text_of(data, "effect")),
            because=texts_of(data, "because"),
            errors=texts_of(data, "errors"),
            revision=text_of(data, "revision"),
            took=count_of(data, "took"),
            domain=text_of(data, "domain") if "domain" in data else None,
            owner_domain=text_of(data, "owner-domain") if "owner-domain" in data else None,
            decision=text_of(data, "decision") if enforced else None,
            counts=Counts(count_of(data, "passed"), count_of(data, "refused")) if enforced else None,
        )


def _resource(found: object) -> Resource:
    if not isinstance(found, dict) or found.get("kind") not in ("type", "network"):
        raise wrong_field("resource", "expected a type or a network")
    if found["kind"] == "network":
        check_names(found, {"kind", "owner", "name"})
        return NetworkName(Principal.parse(text_of(found, "owner")), text_of(found, "name"))
    check_names(found, {"kind", "owner", "name", "version"})
    return TypeName(Principal.parse(text_of(found, "owner")), text_of(found, "name"), text_of(found, "version"))
