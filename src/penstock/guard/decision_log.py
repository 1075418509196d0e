"""The decision log: the requests, who made them, and what the answers are based on, as a value and as CloudEvents 1.0.

A record of type `io.penstock.decision` is the answer to one request; its id is the decision id. Records of type
`io.penstock.decision.enforced` may follow it. Each has an id of its own, repeats the answer, and says how many events
were let through under it, and how many were not, since the one before. So decisions are counted by records of the first
type, and events by those of the second.

A record of type `io.penstock.revocation` says that one broker has carried out a revocation: when it was ordered, and
when nothing was delivered any more by the revoked certificates.

A record of type `io.penstock.pdp.decision` is the answer of policies to a question about anything: the decision service
writes it, and `penstock pipeline evaluate`.

A record names principals, types and credentials, and carries codes in place of messages: no attribute value of any
event stands in it, and no secret. The caller chooses ids, reads the clock and takes the time: see `Recorder`.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, NoReturn, TypeAlias

from penstock.errors import LimitError, MalformedError
from penstock.guard.decision import Authority, Decision, Effect, EventRequest, NetworkRequest, Request, decide
from penstock.guard.limits import RECORD_BYTES
from penstock.model.instants import in_utc, parse_instant
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Domain, Principal
from penstock.trust.capabilities import Right

# ----------------------------------------------------------------------------------------------------------------------
# Records of the decision log as CloudEvents 1.0: their types, the envelope, and the parts of their data.
#
# Unknown attributes of the envelope are ignored, because CloudEvents allows extensions. Unknown fields of the data are
# refused.


DECIDED: Final = "io.penstock.decision"
ENFORCED: Final = "io.penstock.decision.enforced"
REVOKED: Final = "io.penstock.revocation"
ANSWERED: Final = "io.penstock.pdp.decision"

_ENVELOPE: Final = frozenset({"specversion", "id", "source", "type", "time", "data"})
_OPTIONAL: Final = frozenset({"datacontenttype", "dataschema", "subject"})
_EXTENSION: Final = re.compile(r"[a-z0-9]+", re.ASCII)
URI_REFERENCE: Final = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+", re.ASCII)


def parsed(text: str | bytes) -> object:
    """Read one record as JSON. Raises `LimitError` (`log.limit`) and `MalformedError` (`log.json`)."""
    if len(text) > RECORD_BYTES:
        raise LimitError("log.limit", f"a record is longer than {RECORD_BYTES} bytes")
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedError("log.json", "a record is not JSON", hint="expected one CloudEvent a line") from error


@contextmanager
def named_field() -> Iterator[None]:
    """Convert an error in a part of a record to `log.field`."""
    try:
        yield
    except ValueError as error:
        raise wrong_field("action", "the action or the effect is not one that Penstock knows") from error
    except MalformedError as error:
        if error.code.startswith("log."):
            raise
        raise MalformedError("log.field", f"a part of a record is malformed: {error.message}") from error


def open_envelope(event: object, *types: str) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Return the attributes of a CloudEvent of one of some types, and its data.

    Raises `MalformedError`: `log.envelope`, `log.field`.
    """
    if not isinstance(event, dict) or not all(isinstance(name, str) for name in event):
        raise MalformedError("log.envelope", "a record is not a JSON object")
    missing = _ENVELOPE - event.keys()
    if missing:
        raise MalformedError("log.envelope", f"a record lacks `{min(missing)}`")
    for name in event.keys() - _ENVELOPE - _OPTIONAL:
        if not _EXTENSION.fullmatch(name):
            raise MalformedError("log.envelope", f"`{name[:80]}` is not the name of a CloudEvents attribute")
    if event["specversion"] != "1.0" or event.get("datacontenttype", "application/json") != "application/json":
        raise MalformedError("log.envelope", "a record is a CloudEvent 1.0 with JSON data")
    if event["type"] not in types:
        raise MalformedError("log.envelope", "a CloudEvent is of another type", hint=f"expected `{types[0]}`")
    if not isinstance(event["data"], dict):
        raise wrong_field("data", "expected an object")
    return event, event["data"]


def cloud_event(id_: str, source: str, kind: str, time: datetime, data: Mapping[str, object]) -> dict[str, object]:
    """Return a CloudEvent 1.0 in structured mode, as plain data."""
    return {
        "specversion": "1.0",
        "id": id_,
        "source": source,
        "type": kind,
        "time": written(time),
        "datacontenttype": "application/json",
        "data": data,
    }


def json_line(event: Mapping[str, object]) -> str:
    """Write plain data as one line of JSON."""
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))


def check_names(found: Mapping[str, object], needed: Collection[str], allowed: Collection[str] = ()) -> None:
    """Check which names an object has. Raises `MalformedError` (`log.field`), as all that follow."""
    if missing := set(needed) - found.keys():
        raise wrong_field(min(missing), "it is missing")
    if unknown := found.keys() - set(needed) - set(allowed):
        raise wrong_field(min(unknown), "it is not known")


def text_of(found: Mapping[str, object], name: str) -> str:
    """Return a part that is a text."""
    value = found[name]
    if not isinstance(value, str):
        raise wrong_field(name, "expected a text")
    return value


def texts_of(found: Mapping[str, object], name: str) -> tuple[str, ...]:
    """Return a part that is a list of texts."""
    value = found[name]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise wrong_field(name, "expected a list of texts")
    return tuple(value)


def count_of(found: Mapping[str, object], name: str) -> int:
    """Return a part that is a whole number."""
    value = found[name]
    if type(value) is not int:
        raise wrong_field(name, "expected a whole number")
    return value


def time_of(text: str) -> datetime:
    """Read an instant."""
    # RFC 3339 asks for the zone; what has none would be read as UTC, which is a guess.
    if "T" not in text or not re.search(r"(?:Z|[+-]\d\d:\d\d)$", text):
        raise wrong_field("time", "expected a date and time with a zone")
    return parse_instant(text)


def written(moment: datetime) -> str:
    """Write an instant that is in UTC."""
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def is_text(text: str) -> bool:
    """Return whether a text can be written as UTF-8."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def wrong_field(name: str, why: str) -> MalformedError:
    """Return the error for a part of a record."""
    return MalformedError("log.field", f"`{name[:80]}` of a record cannot be used", hint=why, field=name[:80])


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has two fields of the same name")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# ----------------------------------------------------------------------------------------------------------------------
# Records of revocations in the decision log: when one was ordered, and when a broker had carried it out.


_REVOCATION: Final = frozenset({"owner", "revocation", "because", "ordered"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationRecord:
    """A revocation as one broker has carried it out.

    `source` is that broker, `time` when it was complete there, and `ordered` when `owner` ordered it. `revocation` is
    the id of the order, the same for all brokers, and `because` the ids of the credentials that count no longer. Raises
    `MalformedError` (`log.field`, `value.zone`, `value.range`).
    """

    id: str
    source: str
    time: datetime
    owner: Principal
    revocation: str
    because: tuple[str, ...]
    ordered: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "time", in_utc(self.time))
        object.__setattr__(self, "ordered", in_utc(self.ordered))
        if not URI_REFERENCE.fullmatch(self.source):
            raise wrong_field("source", "expected a URI reference, such as a principal or a name without spaces")
        if not self.id or not self.revocation:
            raise wrong_field("id", "every record has an id of its own, and names the revocation")
        if not self.because:
            raise wrong_field("because", "a revocation must name the revoked certificates")
        if self.time < self.ordered:
            raise wrong_field("ordered", "nothing is complete before it was ordered")
        if not all(map(is_text, (self.id, self.revocation, *self.because))):
            raise wrong_field("text", "a lone surrogate is not Unicode text")

    @property
    def took(self) -> timedelta:
        """The time to revoke."""
        return self.time - self.ordered

    def to_cloud_event(self) -> dict[str, object]:
        """Return the record as a CloudEvent in structured mode, as plain data."""
        data = {
            "owner": str(self.owner),
            "revocation": self.revocation,
            "because": list(self.because),
            "ordered": written(self.ordered),
        }
        return cloud_event(self.id, self.source, REVOKED, self.time, data)

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json_line(self.to_cloud_event())


def read_revocation(text: str | bytes) -> RevocationRecord:
    """Read a record of a revocation from JSON, as programs do that follow the log. Raises as `read_record`."""
    envelope, data = open_envelope(parsed(text), REVOKED)
    check_names(data, _REVOCATION)
    with named_field():
        return RevocationRecord(
            id=text_of(envelope, "id"),
            source=text_of(envelope, "source"),
            time=time_of(text_of(envelope, "time")),
            owner=Principal.parse(text_of(data, "owner")),
            revocation=text_of(data, "revocation"),
            because=texts_of(data, "because"),
            ordered=time_of(text_of(data, "ordered")),
        )


# ----------------------------------------------------------------------------------------------------------------------
# Records of decisions.


Resource: TypeAlias = TypeName | NetworkName

_MAX: Final = 2**63 - 1
_MICROSECOND: Final = timedelta(microseconds=1)
_CODE: Final = re.compile(r"[a-z]+(?:\.[a-z][a-z-]*)+", re.ASCII)
_ANSWER: Final = frozenset({"principal", "action", "resource", "effect", "because", "errors", "revision", "took"})
_DOMAINS: Final = frozenset({"domain", "owner-domain"})
_ENFORCEMENT: Final = frozenset({"decision", "passed", "refused"})


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Numbers of events that passed under a decision, and that it withheld.

    Events that a reader's own filter rejects are in neither number.
    """

    passed: int
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """A decision as it is logged, or its enforcement.

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
    counts: EventCounts | None = None

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
                raise wrong_field("text", "a lone surrogate is not Unicode text")

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

    def enforced(self, *, id: str, at: datetime, counts: EventCounts) -> "DecisionRecord":  # noqa: A002  # as CloudEvents
        """Return a record of the events that this decision was enforced on since the last one.

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
    that is not an instant).
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


def read_record(text: str | bytes) -> DecisionRecord:
    """Read a record of a decision from JSON.

    Unknown attributes of the envelope are ignored. Unknown fields of the data are refused.
    Raises `LimitError` (`log.limit`) and `MalformedError`: `log.json`, `log.envelope`, `log.field`.
    """
    return from_cloud_event(parsed(text))


def from_cloud_event(event: object) -> DecisionRecord:
    """Read a record from plain data.

    Raises `MalformedError`: `log.envelope` if it is not one of our CloudEvents, `log.field` for a part that is missing,
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
            counts=EventCounts(count_of(data, "passed"), count_of(data, "refused")) if enforced else None,
        )


def _resource(found: object) -> Resource:
    if not isinstance(found, dict) or found.get("kind") not in ("type", "network"):
        raise wrong_field("resource", "expected a type or a network")
    if found["kind"] == "network":
        check_names(found, {"kind", "owner", "name"})
        return NetworkName(Principal.parse(text_of(found, "owner")), text_of(found, "name"))
    check_names(found, {"kind", "owner", "name", "version"})
    return TypeName(Principal.parse(text_of(found, "owner")), text_of(found, "name"), text_of(found, "version"))


# ----------------------------------------------------------------------------------------------------------------------
# Record decisions.
#
# A `Recorder` wraps the only entry point. It calls `decide()`, measures it, and passes the record to a sink before the
# answer is returned. An error of the sink is raised, and an error never permits anything: if a decision cannot be
# written down, nothing is allowed. Clock, timer and ids are given, since guard has none of its own.
#
# A sink may take records before they are safe (`safe` then makes them so). Each decision is safe before it is answered;
# of many that belong together, all are made safe in one go (`together`). Counts need not be safe: what a power cut
# takes of them is missing from a sum, and allows nothing.

Sink: TypeAlias = Callable[[DecisionRecord], None]
"""Stores a record, or raises. The record is durable now, or when `safe` has returned."""

RevocationSink: TypeAlias = Callable[[RevocationRecord], None]
"""Where records of revocations go: the same place, where they are wanted."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A decision, and the record of it, which later counts of events refer to."""

    decision: Decision
    record: DecisionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Decides and records in the name of one source.

    `source` is a URI reference, `clock` gives instants, `timer` nanoseconds that never go back, `ids` a new id at each
    call; an id is unique for its source. `domains` tells where principals are at home. Raises `MalformedError`
    (`domain.duplicate`) when a principal is at home in two of them.
    """

    source: str
    sink: Sink
    clock: Callable[[], datetime]
    timer: Callable[[], int]
    ids: Callable[[], str]
    domains: tuple[Domain, ...] = ()
    revocations: RevocationSink = lambda _record: None
    #: makes all records that the sinks have received durable, or raises
    safe: Callable[[], None] = lambda: None
    #: how many are writing several together, one within the other
    _together: list[None] = field(init=False, default_factory=list, repr=False, compare=False)
    _homes: dict[Principal, str] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for domain in self.domains:
            for principal, name in _homes(domain):
                if principal in self._homes:
                    raise MalformedError("domain.duplicate", f"{principal.short} is at home in two domains")
                self._homes[principal] = name

    def decide(self, request: Request, authorities: Iterable[Authority], revision: str) -> Recorded:
        """Decide a request by a revision of a policy, and record it before anybody has the answer.

        Raises the sink's errors, and `MalformedError` (`log.field`) for values that cannot be logged.
        """
        found = self.consider(request, authorities, revision)
        self.write(found.record)
        return found

    def consider(self, request: Request, authorities: Iterable[Authority], revision: str) -> Recorded:
        """Decide without recording. Write the record when the request is made."""
        at, started = self.clock(), self.timer()
        decision = decide(request, authorities)
        took = timedelta(microseconds=(self.timer() - started) // 1_000)
        owner = request.type.event_type.name.owner if isinstance(request, EventRequest) else request.network.owner
        made = record(
            request,
            decision,
            id=self.ids(),
            source=self.source,
            at=at,
            took=took,
            revision=revision,
            domain=self._homes.get(request.principal),
            owner_domain=self._homes.get(owner),
        )
        return Recorded(decision, made)

    def write(self, entry: DecisionRecord) -> None:
        """Pass a record to the sink, and make it safe. Raises errors of the sink."""
        self.sink(entry)
        self._make_safe()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make all records that are written within this context durable at its end. Do not use decisions before.

        Raises the errors of `safe`.
        """
        self._together.append(None)
        try:
            yield
        finally:
            self._together.pop()
            self._make_safe()

    def _make_safe(self) -> None:
        if not self._together:
            self.safe()

    def enforced(self, entry: DecisionRecord, counts: EventCounts) -> None:
        """Record the events that a decision was enforced on since the last time, without waiting for the disk.

        Raises the sink's errors, and `MalformedError` (`log.field`) for impossible counts.
        """
        self.sink(entry.enforced(id=self.ids(), at=self.clock(), counts=counts))

    def revoked(self, owner: Principal, revocation: str, because: tuple[str, ...], ordered: datetime) -> None:
        """Record that a revocation, which was ordered then, is carried out now. Raises the errors of its sink."""
        # The owner's clock may be ahead of ours.
        at = max(self.clock(), ordered)
        made = RevocationRecord(
            id=self.ids(),
            source=self.source,
            time=at,
            owner=owner,
            revocation=revocation,
            because=because,
            ordered=ordered,
        )
        self.revocations(made)
        self._make_safe()


def _homes(domain: Domain) -> Iterator[tuple[Principal, str]]:
    """Yield every principal of a domain with the name of the innermost domain that it belongs to."""
    for principal in (domain.principal, *domain.brokers, *domain.clients):
        yield principal, domain.name
    for subdomain in domain.subdomains:
        yield from _homes(subdomain)
