"""A policy as the pipeline uses it: verified types, credentials, readers, and the environment of its conditions.

Decisions are made once, on the driver, about all times. Each branch says when it holds, and is asked at the time of
each event, so that a history is judged by what was valid then.

With a recorder, what is decided is written down: a subscription when it is decided, since a subscriber has asked for
it; the right to publish when events of that publisher are counted, since admission looks at everybody who could have
published, and most of them have not.
"""

import base64
import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from itertools import chain
from pathlib import Path
from typing import Final, Literal, TypeAlias

from penstock.codec.sexp import parse as parse_sexp
from penstock.errors import MalformedError, RefusedError
from penstock.guard import (
    NO_AGREEMENTS,
    Agreements,
    Authority,
    CapabilityAuthority,
    Decision,
    DecisionRecord,
    EventCounts,
    EventRequest,
    Recorder,
    decide,
    environment_schema,
)
from penstock.guard.capabilities import Revoking
from penstock.guard.policies import NO_POLICIES, Policies
from penstock.guard.restriction import Restriction
from penstock.model.names import TypeKey, TypeName
from penstock.model.principals import Domain, Petnames, Principal
from penstock.model.types import EventType
from penstock.model.values import AttributeSpec, Schema, Value, kind_of
from penstock.pipeline.event_columns import METADATA, SOURCE
from penstock.pipeline.limits import PIPELINE_LIMITS, PipelineLimits
from penstock.selector import ALWAYS, Selector, parse
from penstock.store.files.files import read_file, within
from penstock.store.files.named_files import (
    NamedFiles,
    NamedPrincipals,
    NameErrors,
    PoliciesTable,
    load_policies,
    read_policies_table,
)
from penstock.store.files.strict_tables import Strict
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Subject, Threshold
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType, verify_type
from penstock.trust.policy_state import Revocations
from penstock.trust.signed import read_signed
from penstock.trust.statement_book import NO_STATEMENTS, StatementHistory

ConstantsIn: TypeAlias = Literal["public", "hidden"]
"""Whether plans of Spark may contain a policy's constants. If they are hidden, nothing is pushed down to files."""


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
    """Cached results of a policy. It belongs to one policy: one with other credentials begins again."""

    answers: dict[tuple[Principal, Right, str], _Answer] = field(default_factory=dict)
    revision: str = ""


@dataclass(frozen=True, slots=True)
class PipelinePolicy:
    """A policy of the pipeline: credentials, agreements, policies and facts, and optionally a recorder of decisions.

    A policy is whole: `load_policy` returns one, and every function of the pipeline takes one. Conditions are asked in
    its `zone` and with its `facts`, so that nobody can ask them without. Use `dataclasses.replace` to change a part.
    """

    credentials: Credentials
    subscribers: tuple[Subscriber, ...] = ()
    others: tuple[Authority, ...] = ()
    recorder: Recorder | None = None
    #: agreed rules about who publishes and who subscribes
    agreements: Agreements = NO_AGREEMENTS
    #: the domain's policies about who publishes and who subscribes
    policies: Policies = NO_POLICIES
    #: credentials, also of types, that counted until a time
    revocations: Revocations = field(default_factory=Revocations)
    #: validity statements of all times, for credentials with on-line tests
    statements: StatementHistory = NO_STATEMENTS
    #: types that are known: policies are asked about those below the one that somebody subscribes to
    types: tuple[VerifiedType, ...] = ()
    #: where `hour`, `minute` and `weekday` of conditions are those of the clock on the wall
    zone: tzinfo = UTC
    #: facts for conditions besides the time
    facts: Mapping[str, Value] = field(default_factory=dict)
    #: for display only: no decision uses them
    names: Petnames = field(default_factory=Petnames)
    #: for records of decisions, and for policies that ask where somebody is at home
    domains: tuple[Domain, ...] = ()
    #: whether plans may contain what rights and filters compare with; no decision uses it
    constants: ConstantsIn = "public"
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
            rest += [revision for one in self.others if (revision := getattr(one, "revision", ""))]
            if revoked := self.revocations.listed():
                rest.append(revoked)
            if self.statements.statements:
                rest.append({"statements": sorted(one.digest.hex() for one in self.statements.statements)})
            if self.facts or str(self.zone) != "UTC":
                facts = sorted((name, kind_of(fact), str(fact)) for name, fact in self.facts.items())
                rest.append({"zone": str(self.zone), "facts": facts})
            found = hashlib.sha256(json.dumps([parts, readers, *rest]).encode()).digest()
            self._memory.revision = f"policy:{base64.b32encode(found).decode().rstrip('=').lower()}"
        return self._memory.revision

    def decide(self, principal: Principal, action: Right, verified: VerifiedType) -> Decision:
        """Decide about all times. The same request is decided and recorded once.

        Raises what the recorder's sink raises: without a record there is no answer.
        """
        return self._answer(principal, action, verified).decision

    def enforced(self, principal: Principal, action: Right, verified: VerifiedType, counts: EventCounts) -> None:
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
            known_rights = CapabilityAuthority(
                self.credentials, environment=environment, history=self.statements.periods
            )
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

    def of_brokers(self) -> "PipelinePolicy":
        """Return what certificates alone say: by that brokers publish and read for others."""
        if self.agreements == NO_AGREEMENTS and self.policies is NO_POLICIES:
            return self
        return replace(self, agreements=NO_AGREEMENTS, policies=NO_POLICIES)

    def _below(self, key: TypeKey, _now: datetime | None) -> Iterator[VerifiedType]:
        """Yield every known version of a type, and of all that extends it."""
        return (one for one in self.types if key in (one.event_type.key, *one.event_type.ancestors))

    def principals(self) -> tuple[Principal, ...]:
        """Return every principal that is mentioned: by credentials, agreed rules, policies, and as owners of types.

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


@dataclass(frozen=True, slots=True)
class RecordingPolicy:
    """A policy with a recorder that decides in a job, and the records so far."""

    policy: PipelinePolicy
    records: list[DecisionRecord] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        policy: PipelinePolicy,
        source: str,
        *,
        clock: Callable[[], datetime],
        timer: Callable[[], int],
        ids: Callable[[], str],
    ) -> "RecordingPolicy":
        """Return a desk; `source` says in the log who decided."""
        records: list[DecisionRecord] = []
        recorder = Recorder(
            source=source, sink=records.append, clock=clock, timer=timer, ids=ids, domains=policy.domains
        )
        return cls(replace(policy, recorder=recorder), records)

    @property
    def types(self) -> list[EventType]:
        """The versions that events may be of."""
        return [verified.event_type for verified in self.policy.types]

    def lines(self) -> list[str]:
        """Return the records since the last batch as lines, and forget them."""
        lines = [record.to_json() for record in self.records]
        self.records.clear()
        return lines


# ----------------------------------------------------------------------------------------------------------------------
# Programs: what must be evaluated for readers. Those with equal restrictions, versions and filters share one.


@dataclass(frozen=True, slots=True)
class Program:
    """One program to evaluate, and its readers."""

    number: int
    restriction: Restriction
    event_type: EventType
    selector: Selector
    readers: tuple[str, ...]

    @property
    def metadata(self) -> tuple[str, ...]:
        """The metadata of an event that its readers see: without the source if a right hides it."""
        return METADATA if self.restriction.source else tuple(name for name in METADATA if name != SOURCE)


def known_types(*policies: PipelinePolicy) -> tuple[EventType, ...]:
    """Return the versions that some policies have; of one that two have, that of the later policy."""
    found = {verified.event_type.name: verified.event_type for policy in policies for verified in policy.types}
    return tuple(found.values())


def programs_of(policy: PipelinePolicy) -> tuple[Program, ...]:
    """Return the programs of a policy's subscribers; one who may see nothing has none.

    Raises `SelectorError` for a filter that does not fit, and `RefusedError` (`guard.online-test`).
    """
    found: dict[tuple[Restriction, EventType, Selector], list[Subscriber]] = {}
    for subscriber in policy.subscribers:
        decision = policy.decide(subscriber.principal, Right.SUBSCRIBE, subscriber.type)
        event_type = subscriber.type.event_type
        subscriber.selector.check(event_type.schema)
        restriction = answered(decision.restriction.for_type(event_type, Right.SUBSCRIBE))
        if restriction.branches:
            found.setdefault((restriction, event_type, subscriber.selector), []).append(subscriber)
    return tuple(
        Program(number, restriction, event_type, selector, tuple(s.name for s in subscribers))
        for number, ((restriction, event_type, selector), subscribers) in enumerate(found.items())
    )


def unfiltered(programs: Iterable[Program]) -> tuple[Program, ...]:
    """Return programs of the rights alone, for those readers who have a filter of their own; numbered from 0."""
    found: dict[tuple[Restriction, EventType], list[str]] = {}
    for program in programs:
        if program.selector != ALWAYS:
            found.setdefault((program.restriction, program.event_type), []).extend(program.readers)
    return tuple(
        Program(number, restriction, event_type, ALWAYS, tuple(readers))
        for number, ((restriction, event_type), readers) in enumerate(found.items())
    )


def answered(restriction: Restriction) -> Restriction:
    """Return a restriction without on-line tests. Raises `RefusedError` (`guard.online-test`)."""
    if any(branch.when.validity.online for branch in restriction.branches):
        raise RefusedError("guard.online-test", "a branch has on-line tests that were not answered")
    return restriction


# ----------------------------------------------------------------------------------------------------------------------
# Policy files: which types, credentials and subscribers a job works with.
#
# `read_policy_file` reads the file, strictly and without touching anything else. `PolicyFile.load` reads what it names,
# verifies all of it, and returns the `PipelinePolicy`. The keys are described in docs/reference/policy-file.md.


_HELP: Final = "see docs/reference/policy-file.md"
_FILE: Final = Strict.of("policy.", _HELP, zone="zone")
_NAMING: Final = NameErrors.of("policy.", "policy file", _HELP)
_KEYS: Final = frozenset(
    {"types", "history", "credentials", "revocations", "agreements", "policies", "names", "subscribers", "domains"}
    | {"statements", "roles", "zone", "facts", "constants"}
)


@dataclass(frozen=True, slots=True)
class SubscriberEntry:
    """A subscriber as a policy file writes it: principal and type are words that are looked up when it is loaded."""

    name: str
    principal: str
    type: str
    selector: Selector = ALWAYS


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy file as it was read. Paths are as it writes them, and relative to where it stands.

    `names` is a table of petnames, or the file that they stand in; `domains` says where principals and petnames
    are at home.
    """

    types: tuple[str, ...]
    history: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    revocations: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    agreements: tuple[str, ...] = ()
    #: domains' roles with their history, as `penstock role export` writes them
    roles: tuple[str, ...] = ()
    policies: PoliciesTable | None = None
    names: Mapping[str, Principal] | str = field(default_factory=dict)
    subscribers: tuple[SubscriberEntry, ...] = ()
    domains: Mapping[str, str] = field(default_factory=dict)
    zone: tzinfo = UTC
    facts: Mapping[str, Value] = field(default_factory=dict)
    constants: ConstantsIn = "public"

    def named(self) -> tuple[tuple[str, ...], ...]:
        """Return all files, patterns and folders that it names, those of each key together."""
        policies = ((), ()) if self.policies is None else (self.policies.files, self.policies.refer)
        names = (glob.escape(self.names),) if isinstance(self.names, str) else ()
        rights = (self.credentials, self.revocations, self.statements, self.agreements, self.roles)
        return (self.types, self.history, *rights, *policies, names)

    def load(self, folder: Path, now: datetime, *, limits: PipelineLimits = PIPELINE_LIMITS) -> PipelinePolicy:
        """Read what the file names, and verify all of it at a time.

        Raises `MalformedError`: `policy.no-match` for a pattern without files, `policy.type`, `policy.principal`,
        `policy.twice`; `LimitError` (`policy.limit`); `SelectorError` for a filter that does not fit its type; and
        what reading and verifying types, credentials, revocations and agreements, and reading policies raise.
        """
        files = NamedFiles(folder, _NAMING, limits)
        names = files.principals(self.names)
        unverified = files.types(self.types)
        known = {name: definition for name, (_, definition) in files.types(self.history, beside=unverified).items()}
        types: dict[TypeName, VerifiedType] = {}
        credentials = Credentials()
        for name, (file, definition) in unverified.items():
            with within(file):
                types[name] = verify_type(definition, now, types=known.get, limits=limits)
                # Whose type it is, is part of the type: a quorum that owns it need not be shown a second time.
                quorums = definition.credentials.verify().thresholds().values()
                credentials += Credentials.of(quorums=tuple(quorums))
        credentials += files.credentials(self.credentials)
        asked = frozenset(one.id for one in credentials).union(*(verified.because for verified in types.values()))
        subscribers = tuple(_subscriber(one, names, types) for one in self.subscribers)
        domains = names.domains(self.domains)
        return PipelinePolicy(
            credentials,
            subscribers,
            others=tuple(_roles(file, data, now, self.facts) for file, data in files.read(self.roles)),
            agreements=files.agreements(self.agreements),
            policies=load_policies(self.policies, files, names, domains),
            revocations=files.revocations(self.revocations).about(asked),
            statements=files.statements(self.statements),
            types=tuple(types.values()),
            zone=self.zone,
            facts=self.facts,
            names=names.petnames,
            domains=domains,
            constants=self.constants,
        )


def policy_digest(path: str, *, limits: PipelineLimits = PIPELINE_LIMITS) -> bytes:
    """Return a digest of a policy file and of everything that it names, as they are now; nothing is verified.

    Raises as `read_policy_file` does, and what reading the files raises.
    """
    data = read_file(path, limits.policy_bytes)
    with within(path):
        files = NamedFiles(Path(path).parent, _NAMING, limits)
        groups = read_policy_file(data, limits=limits).named()
        found = hashlib.sha256(hashlib.sha256(data).digest())
        for file, content in chain.from_iterable(map(files.read, groups)):
            for part in (os.fsencode(file), content):
                found.update(hashlib.sha256(part).digest())
    return found.digest()


def load_policy(path: str, now: datetime, *, limits: PipelineLimits = PIPELINE_LIMITS) -> PipelinePolicy:
    """Read a policy file and everything that it names. Raises as `read_policy_file` and `PolicyFile.load`."""
    data = read_file(path, limits.policy_bytes)
    with within(path):
        return read_policy_file(data, limits=limits).load(Path(path).parent, now, limits=limits)


# --- Reading the file ------------------------------------------------------------------------------------------------


def read_policy_file(data: str | bytes, *, limits: PipelineLimits = PIPELINE_LIMITS) -> PolicyFile:
    """Read a policy file.

    Raises `MalformedError`: `policy.syntax` if it is not TOML, `policy.unknown-key`, `policy.missing`, `policy.value`,
    `policy.zone`, `policy.twice` for two subscribers of one name, `environment.reserved` for a fact that every broker
    knows, `petname.malformed`; `LimitError` (`policy.limit`); and `SelectorError`.
    """
    if len(data) > limits.policy_bytes:
        raise _NAMING.too_many(f"{limits.policy_bytes} bytes")
    table = _FILE.parse(data)
    _FILE.known("the policy", table, _KEYS)
    return PolicyFile(
        types=_FILE.some("types", _FILE.texts("types", _FILE.needed("the policy", table, "types"))),
        history=_FILE.texts("history", table.get("history", [])),
        credentials=_FILE.texts("credentials", table.get("credentials", [])),
        revocations=_FILE.texts("revocations", table.get("revocations", [])),
        statements=_FILE.texts("statements", table.get("statements", [])),
        agreements=_FILE.texts("agreements", table.get("agreements", [])),
        roles=_FILE.texts("roles", table.get("roles", [])),
        policies=read_policies_table(_FILE, table),
        names=_FILE.petnames("names", table.get("names", {})),
        subscribers=_subscribers(table.get("subscribers", []), limits),
        domains=_FILE.homes("domains", table.get("domains", {})),
        zone=_FILE.time_zone("zone", table["zone"]) if "zone" in table else UTC,
        facts=_FILE.facts("facts", table.get("facts", {})),
        constants=_constants(table.get("constants", "public")),
    )


def _constants(value: object) -> ConstantsIn:
    match value:
        case "public" | "hidden":
            return value
    raise _FILE.wrong("constants", "`public` or `hidden`")


def _subscribers(value: object, limits: PipelineLimits) -> tuple[SubscriberEntry, ...]:
    if not isinstance(value, list):
        raise _FILE.wrong("subscribers", "a list of tables: write `[[subscribers]]`")
    if len(value) > limits.policy_subscribers:
        raise _NAMING.too_many(f"{limits.policy_subscribers} subscribers")
    found: dict[str, SubscriberEntry] = {}
    for number, one in enumerate(value, start=1):
        where = f"subscriber {number}"
        table = _FILE.table(where, one)
        _FILE.known(where, table, {"name", "principal", "type", "where"})
        name = _FILE.name(f"{where}: name", _FILE.needed(where, table, "name"))
        if name in found:
            raise _NAMING.given_twice(f"subscriber `{name}`")
        found[name] = SubscriberEntry(
            name,
            _FILE.text(f"{where}: principal", table.get("principal", name)),
            _FILE.text(f"{where}: type", _FILE.needed(where, table, "type")),
            parse(_FILE.text(f"{where}: where", table["where"])) if "where" in table else ALWAYS,
        )
    return tuple(found.values())


# --- What it names ---------------------------------------------------------------------------------------------------


def _subscriber(one: SubscriberEntry, names: NamedPrincipals, types: Mapping[TypeName, VerifiedType]) -> Subscriber:
    verified = _type(one, types)
    one.selector.check(verified.event_type.schema)
    principal = names.find(f"subscriber `{one.name}`", one.principal)
    return Subscriber(one.name, principal, verified, one.selector)


def _roles(file: str, data: bytes, now: datetime, facts: Mapping[str, Value]) -> Authority:
    """Return a domain's roles at all times as a source of authority on the domain's own types."""
    # Imported late: few policies have roles, and small commands would take a tenth longer.
    from penstock.guard.roles import RoleAuthority, RoleHistory  # noqa: PLC0415
    from penstock.roles.engine import StoredRoles  # noqa: PLC0415

    with within(file):
        signed = read_signed(parse_sexp(data), StoredRoles).verify()
        stored = signed.value
        history = RoleHistory(stored.founding.engine(), stored.changes)
        history.advance(now)
    environment = environment_schema({name: AttributeSpec(kind_of(fact)) for name, fact in facts.items()})
    return RoleAuthority(history, frozenset({stored.domain}), environment, f"roles:{signed.digest.hex()[:16]}")


def _type(one: SubscriberEntry, types: Mapping[TypeName, VerifiedType]) -> VerifiedType:
    """Find `owner/name@version`, or `name@version` where one owner has that name; without a version it is version 0."""
    if "/" in one.type:
        found = [types[name] for name in [TypeName.parse(one.type)] if name in types]
    else:
        name, _, version = one.type.partition("@")
        found = [verified for key, verified in types.items() if (key.name, key.version) == (name, version or "0")]
    if len(found) == 1:
        return found[0]
    known = ", ".join(sorted(f"{name.name}@{name.version}" for name in types))
    raise MalformedError(
        "policy.type",
        f"subscriber `{one.name}`: `{one.type[:80]}` is {'several types' if found else 'none of the types'}",
        hint=f"write `owner/name@version`; there are: {known[:400]}",
    )
