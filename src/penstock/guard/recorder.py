"""Recording: how everything that decides leaves a trace.

A `Recorder` wraps the only entry point. It calls `decide()`, measures it, and passes the record to a sink before the
answer is returned. An error of the sink is raised, and an error never permits anything: if a decision cannot be
written down, nothing is allowed. Clock, timer and ids are given, since guard has none of its own.

A sink may take records before they are safe (`safe` then makes them so). Each decision is safe before it is answered;
of many that belong together, all are made safe in one go (`together`). Counts need not be safe: what a power cut takes
of them is missing from a sum, and allows nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from penstock.errors import MalformedError
from penstock.guard.decision import Authority, Decision, EventRequest, Request, decide
from penstock.guard.decision_log import DecisionRecord, EventCounts, RevocationRecord, record
from penstock.model.domains import Domain
from penstock.model.principals import Principal

Sink: TypeAlias = Callable[[DecisionRecord], None]
"""Where records go. It raises when a record cannot be taken; it is safe now, or when `safe` has returned."""

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
    #: makes safe whatever the sinks have taken, and raises if it cannot
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

        Raises what the sink raises, and `MalformedError` (`log.field`) for what cannot be logged.
        """
        found = self.consider(request, authorities, revision)
        self.write(found.record)
        return found

    def consider(self, request: Request, authorities: Iterable[Authority], revision: str) -> Recorded:
        """Decide without recording. Write the record when somebody makes the request."""
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
        """Make all records safe at the end that are written within. What was decided does not count before.

        Raises what making them safe raises.
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

        Raises what the sink raises, and `MalformedError` (`log.field`) for counts that cannot be.
        """
        self.sink(entry.enforced(id=self.ids(), at=self.clock(), counts=counts))

    def revoked(self, owner: Principal, revocation: str, because: tuple[str, ...], ordered: datetime) -> None:
        """Record that a revocation, which was ordered then, is carried out now. Raises what its sink raises."""
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
