"""Checkers: what must hold in every run, read from its log alone.

Worlds note what happens; each checker says which notes it reads, as `kind(field, …)`. It knows nothing of the code that
wrote them, so that a fault in the code cannot hide itself. Each has a planted bug that it finds
(docs/explanation/simulator.md).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.simulate.simulation import Entry

Log = Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Violation:
    """What must not be: which checker found it, when it happened, and what it is about."""

    checker: str
    at: float
    message: str


def _of(log: Log, *kinds: str) -> Iterator[tuple[Entry, dict[str, Any]]]:
    return ((entry, entry.fields) for entry in log if entry.kind in kinds)


def no_delivery_after_revocation(log: Log) -> Iterable[Violation]:
    """Nobody gets an event after its right was revoked and the revocation is complete.

    `granted(reader, topic)`, `revoked(reader, topic)` when it is complete, `delivered(reader, topic, event)`, and
    `trusted(reader, topic, event)` when a broker may send another one an event that is not sealed.
    """
    revoked: dict[tuple[str, str], float] = {}
    for entry, fields in _of(log, "granted", "revoked", "delivered", "trusted"):
        right = fields["reader"], fields["topic"]
        if entry.kind == "revoked":
            revoked[right] = entry.at
        elif entry.kind == "granted":
            revoked.pop(right, None)
        elif right in revoked:
            yield Violation(
                "no_delivery_after_revocation",
                entry.at,
                f"{right[0]} got {fields['event']} of {right[1]}, of which the revocation was complete at "
                f"{revoked[right]:.6f}",
            )


def only_allowed_deliveries(log: Log) -> Iterable[Violation]:
    """Each process delivers only what its last decision about this reader allows.

    `decided(reader, topic, shows)` with the attributes that it shows, none if it refuses; `delivered(reader, topic,
    event, shown)`.
    """
    allowed: dict[tuple[str, str, str], frozenset[str]] = {}
    for entry, fields in _of(log, "decided", "delivered"):
        right = entry.process, fields["reader"], fields["topic"]
        if entry.kind == "decided":
            allowed[right] = frozenset(fields["shows"])
            continue
        found = allowed.get(right, frozenset())
        if not found or not found.issuperset(fields["shown"]):
            yield Violation(
                "only_allowed_deliveries",
                entry.at,
                f"{entry.process} delivered {fields['event']} to {right[1]} with {', '.join(fields['shown'])}; allowed "
                f"is {', '.join(sorted(found)) or 'nothing'}",
            )


def no_acknowledged_change_lost(log: Log) -> Iterable[Violation]:
    """Whatever was acknowledged is there in the end.

    `acknowledged(of, change)`; `holds(of, changes)`, of which the last one of each process counts.
    """
    acknowledged: defaultdict[str, dict[str, None]] = defaultdict(dict)
    held: dict[tuple[str, str], Entry] = {}
    for entry, fields in _of(log, "acknowledged", "holds"):
        if entry.kind == "acknowledged":
            acknowledged[fields["of"]][fields["change"]] = None
        else:
            held[entry.process, fields["of"]] = entry
    for (process, of), entry in held.items():
        changes: Any = entry.fields["changes"]
        for change in sorted(acknowledged[of].keys() - {*changes}):
            yield Violation(
                "no_acknowledged_change_lost",
                entry.at,
                f"{process} does not have {change} of {of}, acknowledged before",
            )


def events_once(log: Log) -> Iterable[Violation]:
    """Every event reaches a reader at most once, and exactly once if that was promised.

    `delivered(reader, event, session)` when a broker sends it; `received(reader, event)` when the application has it,
    or `applied(reader, event)`; `subscribed(reader)` when the application subscribes; `promised(reader, event)`. A
    broker that has crashed (`fault`) does not know any more what it has delivered: the client does. It may not know yet
    that a client has crashed, and sends to that client's session too.
    """
    times: Counter[tuple[str, object, str, str]] = Counter()
    received: set[tuple[str, str]] = set()
    for entry, fields in _of(log, "delivered", "received", "applied", "subscribed", "fault"):
        if entry.kind in ("subscribed", "fault"):
            crashed = entry.process if fields.get("fault") == "crash" else None
            for known in [*times]:
                if known[0] == crashed or (not known[0] and known[2] == fields.get("reader")):
                    del times[known]
            continue
        reader, event = fields["reader"], fields["event"]
        one = entry.process if entry.kind == "delivered" else "", fields.get("session"), reader, event
        times[one] += 1
        if times[one] == 2:
            yield Violation("events_once", entry.at, f"{reader} got {event} twice")
        if entry.kind != "delivered":
            received.add((reader, event))
    for entry, fields in _of(log, "promised"):
        if (fields["reader"], fields["event"]) not in received:
            yield Violation("events_once", entry.at, f"{fields['reader']} never got {fields['event']}")


@dataclass(slots=True)
class _Policies:
    """The policies that were in force: their answers, and from when until when."""

    answers: dict[str, dict[str, str]]
    spans: dict[str, tuple[float, float]]

    @classmethod
    def of(cls, log: Log) -> "_Policies":
        answers, spans = dict[str, dict[str, str]](), dict[str, tuple[float, float]]()
        for entry, fields in _of(log, "policy", "policy-ended"):
            version = fields["version"]
            if entry.kind == "policy":
                answers[version] = dict(fields["answers"])
                spans[version] = entry.at, float("inf")
            else:
                spans[version] = spans[version][0], entry.at
        return cls(answers, spans)


def decisions_by_policies_in_force(log: Log) -> Iterable[Violation]:
    """Each decision is one that a policy gives which was in force between question and answer.

    `policy(version, answers)` when a version comes into force, with pairs of requests and effects, and
    `policy-ended(version)` when nobody may use it any more; `answered(request, effect, asked)`.
    """
    policies = _Policies.of(log)
    for entry, fields in _of(log, "answered"):
        given = {
            policies.answers[version].get(fields["request"])
            for version, (start, end) in policies.spans.items()
            if start <= entry.at and end >= fields["asked"]
        }
        if fields["effect"] not in given:
            shown = ", ".join(sorted(map(str, given))) or "no answer"
            yield Violation(
                "decisions_by_policies_in_force",
                entry.at,
                f"{entry.process} decided {fields['effect']} about {fields['request']}; policies in force give {shown}",
            )


def recycled_answers_equal(log: Log) -> Iterable[Violation]:
    """A recycled answer is what the decision point would answer by the same version of the policy.

    `policy(version, answers)`, `recycled(request, effect, version)`.
    """
    policies = _Policies.of(log)
    for entry, fields in _of(log, "recycled"):
        given = policies.answers[fields["version"]].get(fields["request"])
        if given != fields["effect"]:
            yield Violation(
                "recycled_answers_equal",
                entry.at,
                f"{entry.process} recycled {fields['effect']} for {fields['request']}; version {fields['version']} "
                f"gives {given}",
            )


def key_groups_closed(log: Log) -> Iterable[Violation]:
    """No member opens what was sealed before it joined or after it left.

    `joined(member, group, epoch)` with the first epoch that it may open, `left(member, group, epoch)` with the first
    one that it may not, `sealed(group, block, epoch)`, `opened(member, group, block)`.
    """
    member_of: defaultdict[tuple[str, str], list[list[float]]] = defaultdict(list)
    sealed: dict[tuple[str, str], int] = {}
    for entry, fields in _of(log, "joined", "left", "sealed", "opened"):
        group = fields["group"]
        if entry.kind == "sealed":
            sealed[group, fields["block"]] = fields["epoch"]
        elif entry.kind == "joined":
            member_of[fields["member"], group].append([fields["epoch"], float("inf")])
        elif entry.kind == "left":
            for span in member_of[fields["member"], group]:
                span[1] = min(span[1], fields["epoch"])
        else:
            epoch = sealed[group, fields["block"]]
            spans = member_of[fields["member"], group]
            if not any(first <= epoch < end for first, end in spans):
                yield Violation(
                    "key_groups_closed",
                    entry.at,
                    f"{fields['member']} opened {fields['block']} of epoch {epoch}; it was a member of {group} in "
                    f"{', '.join(f'{first} to {end}' for first, end in spans) or 'no epoch'}",
                )


def no_mixed_configurations(log: Log) -> Iterable[Violation]:
    """Everything that a decision uses was written under one configuration.

    `decision(request, configurations)`.
    """
    for entry, fields in _of(log, "decision"):
        if len({*fields["configurations"]}) > 1:
            numbers = ", ".join(map(str, fields["configurations"]))
            yield Violation(
                "no_mixed_configurations", entry.at, f"the decision about {fields['request']} mixes {numbers}"
            )


def no_role_outlives_conditions(log: Log) -> Iterable[Violation]:
    """No role is active in a process after the process knows that a condition of it has ended.

    `condition(name, holds)`, `role(holder, role, conditions)` whenever a role is used or found active.
    """
    ended: dict[tuple[str, str], float] = {}
    for entry, fields in _of(log, "condition", "role"):
        if entry.kind == "condition":
            if fields["holds"]:
                ended.pop((entry.process, fields["name"]), None)
            else:
                ended.setdefault((entry.process, fields["name"]), entry.at)
            continue
        for name in fields["conditions"]:
            if (entry.process, name) in ended:
                yield Violation(
                    "no_role_outlives_conditions",
                    entry.at,
                    f"{fields['holder']} has role {fields['role']} at {entry.process}, where {name} ended at "
                    f"{ended[entry.process, name]:.6f}",
                )


def no_access_after_statement(log: Log) -> Iterable[Violation]:
    """Nobody has access by a credential after the last validity statement about it has ended.

    `revocation(of, number, credentials)` when an issuer signs one, with all that it revokes; `statement(of, until,
    number)` when a process hears that the issuer's last revocation has this number, which vouches for all others;
    `statement-ended(credential)` when it hears of a revocation; `access(of, credential, clock)` with the time of the
    process.
    """
    revoked: dict[tuple[str, int], frozenset[str]] = {}
    #: by process and issuer: until when each number of a revocation was the last one
    until: defaultdict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    ended: set[tuple[str, str]] = set()
    for entry, fields in _of(log, "revocation", "statement", "statement-ended", "access"):
        process = entry.process
        if entry.kind == "revocation":
            revoked[fields["of"], fields["number"]] = frozenset(fields["credentials"])
        elif entry.kind == "statement":
            known, number = until[process, fields["of"]], fields["number"]
            known[number] = max(known.get(number, 0.0), fields["until"])
        elif entry.kind == "statement-ended":
            ended.add((process, fields["credential"]))
        else:
            vouching = (
                end
                for number, end in until[process, fields["of"]].items()
                if fields["credential"] not in revoked.get((fields["of"], number), frozenset())
            )
            last = max(vouching, default=0.0)
            if fields["clock"] > last or (process, fields["credential"]) in ended:
                why = "after it was revoked" if fields["clock"] <= last else f"after {last:.3f}, when statements end"
                yield Violation(
                    "no_access_after_statement",
                    entry.at,
                    f"{process} gave access by {fields['credential']} at {fields['clock']:.3f}, {why}",
                )


def suspended_requests_end(log: Log) -> Iterable[Violation]:
    """Every request that waits is answered, refused or ends with its process.

    `asked(request)`, `ended(request)`, `fault(fault)`, of which `crash` ends what its process does.
    """
    return _unended(log, "suspended_requests_end", "asked", "ended", "request")


def joins_end(log: Log) -> Iterable[Violation]:
    """Every request to join is admitted, rejected or ends with its process.

    `joining(component)`, `join-ended(component)`, `fault(fault)`.
    """
    return _unended(log, "joins_end", "joining", "join-ended", "component")


def _unended(log: Log, checker: str, start: str, end: str, what: str) -> Iterable[Violation]:
    open_since: dict[str, Entry] = {}
    for entry, fields in _of(log, start, end, "fault"):
        if entry.kind == start:
            open_since[fields[what]] = entry
        elif entry.kind == end:
            open_since.pop(fields[what], None)
        elif fields["fault"] == "crash":
            open_since = {name: since for name, since in open_since.items() if since.process != entry.process}
    return [Violation(checker, since.at, f"{what} {name} has not ended") for name, since in open_since.items()]


def replicas_converge(log: Log) -> Iterable[Violation]:
    """All replicas are equal when the faults have stopped.

    `replica(of, state)`, of which the last one of each process counts.
    """
    last: defaultdict[str, dict[str, Entry]] = defaultdict(dict)
    for entry, fields in _of(log, "replica"):
        last[fields["of"]][entry.process] = entry
    for of, entries in last.items():
        states = {str(entry.fields["state"]) for entry in entries.values()}
        if len(states) > 1:
            shown = "; ".join(f"{process} has {entry.fields['state']!s}" for process, entry in entries.items())
            at = max(entry.at for entry in entries.values())
            yield Violation("replicas_converge", at, f"replicas of {of} differ: {shown}")


#: all checkers; each world runs all of them, since a log without their notes violates nothing
CHECKERS: Final = (
    no_delivery_after_revocation,
    only_allowed_deliveries,
    no_acknowledged_change_lost,
    events_once,
    decisions_by_policies_in_force,
    recycled_answers_equal,
    key_groups_closed,
    no_mixed_configurations,
    no_role_outlives_conditions,
    no_access_after_statement,
    suspended_requests_end,
    replicas_converge,
    joins_end,
)


def check(log: Log) -> list[Violation]:
    """Return what all checkers find, ordered by time."""
    return sorted((found for checker in CHECKERS for found in checker(log)), key=lambda one: one.at)
