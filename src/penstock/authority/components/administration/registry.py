"""Who has joined a domain with which role, and how far reconfigurations are: the state of its PAPs. It is pure.

The state is a fold over what is on CONF, in order: answers to requests to join, and plans. Only the owner of CONF
writes there, so all PAPs of a domain have the same state, and each of them can go on where another one stopped. Roles
are those of `penstock.roles`: each member has a session, and the record of its certificate is the session's name.

A checkpoint is the whole state on CONF, so that what was there before can be discarded. It has a digest of the samples
that led to it: a PAP that has followed others takes over the state of the checkpoint.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any, Final

import msgspec

from penstock.authority.components.exchange.certificates import (
    ComponentCertificate,
    certificate_bytes,
    read_component_certificate,
    record_number,
)
from penstock.authority.components.exchange.samples import (
    CHECKPOINT_SAMPLES,
    MISSED,
    RECONFIGURATION_SAMPLES,
    BaseTime,
    ComponentSample,
    Configuration,
    ConfigurationLease,
    DomainCheckpoint,
    JoinRequest,
    NewTopicKeys,
    Reconfiguration,
    ReconfigurationPlan,
    RoleConfiguration,
    SampleContent,
    Withdrawal,
    join_id,
)
from penstock.authority.components.exchange.topic_keys import (
    FIXED_NUMBER,
    DerivedTopicKeys,
    PrivateConfiguration,
    is_sealed,
    seal_private,
)
from penstock.authority.components.exchange.topics import (
    NAME_LENGTH,
    ComponentKind,
    TopicInstance,
    TopicKind,
    TopicLevels,
    check_component_name,
    reconfiguration_topic,
)
from penstock.authority.components.exchange.topics_lists import parse_role, role_text
from penstock.codec.limits import CodecLimits
from penstock.codec.sexp import canonical, parse_canonical
from penstock.crypto import PublicKey, Signer
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.fabric import FOREVER, RandomBytes
from penstock.fabric.limits import FABRIC_BYTES
from penstock.model.principals import Principal
from penstock.model.values import Value
from penstock.roles.credentials import accepted, read_role_certificate
from penstock.roles.engine import (
    AcceptCredential,
    ActivateRole,
    DropCredential,
    EndSession,
    ForeignCredential,
    OpenSession,
    RelianceRecord,
    ReplacePolicy,
    RoleChange,
    RoleEngine,
    RoleImage,
    RoleOutcome,
    SetFact,
    change_from_sexp,
    change_to_sexp,
)
from penstock.roles.language import CredentialKind, read_policy
from penstock.trust.validity import ALWAYS, Validity, earliest

#: the topic that the state of a domain is on
CONF: Final = f"{TopicKind.CONF}_1"
#: requests to join that wait or whose answers are remembered, and certificates in one of them
JOINS_WAITING: Final = 10_000
JOIN_CERTIFICATES: Final = 32
#: ids that components of a domain have had, each of which is remembered
COMPONENT_IDS: Final = 100_000
#: base times that are remembered
BASE_TIMES: Final = 1_000
#: ends of roles in one sample
ENDED_TOGETHER: Final = 1_000
#: bytes of what one sample carries, beside certificates, signatures and seals
SAMPLE_BYTES: Final = FABRIC_BYTES - (64 << 10)
#: the most bytes of a certificate in a reconfiguration, of a component's sealed keys, and of a topic in each
CERTIFICATE_SIZE: Final = 1_000
KEYS_SIZE: Final = 200
TOPIC_SIZE: Final = 50
#: bytes of a reconfiguration for one R* topic: the last entry of a part, and the configurations of roles, leave room
_RECONFIGURATION_BYTES: Final = (RECONFIGURATION_SAMPLES - 2) * SAMPLE_BYTES
_IMAGE: Final = CodecLimits(sexp_bytes=256 << 20, sexp_nodes=64 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdministrationSettings:
    """What the file of a PAP says. All PAPs of a domain have the same, except for `id` and `strength`."""

    domain: str
    id: str
    #: who can be a PAP of the domain
    administrators: frozenset[Principal]
    #: the role policy: who can activate which component role
    roles: str
    #: the table of component roles: by role, as `ER(1)`
    table: Mapping[str, RoleConfiguration]
    #: facts and appointments that the role policy begins with
    founding: tuple[RoleChange, ...] = ()
    #: the administrators of other domains, by the name that the role policy uses
    partners: Mapping[str, frozenset[Principal]] = field(default_factory=dict)
    levels: TopicLevels = field(default_factory=TopicLevels)
    #: of the claim to CONF: of two PAPs the stronger one owns it
    strength: int = 0
    #: seconds from a reconfiguration to its expected time, if nobody says it
    notice: float = 1.0
    #: seconds after the expected time in which every component must have applied a reconfiguration
    patience: float = 10.0
    #: 32 random bytes that the PAPs of the domain share, from which topic keys are derived; without, nothing is sealed
    topic_secret: bytes = field(default=b"", repr=False)
    #: seconds after the end of a role in which topic keys change
    rekey_within: float = 60.0
    #: samples on CONF and A* topics after which the owner of CONF writes a checkpoint, and four for each component
    compact_after: int = 1_000

    def __post_init__(self) -> None:
        check_component_name(self.domain)
        check_component_name(self.id)
        if not self.administrators:
            raise MalformedError("component.settings", "a domain needs an administrator")
        for role, row in self.table.items():
            if role_text(*parse_role(role)) != role:
                raise MalformedError("component.role", f"`{role}` is written `{role_text(*parse_role(role))}`")
            _ = row.topics


@dataclass(frozen=True, slots=True)
class JoinedComponent:
    """A component that has joined."""

    certificate: ComponentCertificate
    box_key: bytes = b""

    @property
    def reconfigured_by(self) -> TopicInstance | None:
        """The R* topic that it reads."""
        kind = reconfiguration_topic(self.certificate.kind)
        return None if kind is None else next(iter(self.certificate.topics.reading(kind)), None)


@dataclass(slots=True)
class ReconfigurationProgress:
    """A reconfiguration under way: who has to apply it, and the apply times."""

    plan: ReconfigurationPlan
    #: the R* topic of each component that was a member
    routes: dict[str, TopicInstance]
    #: components that get another certificate, and those whose role ends
    replaced: frozenset[str]
    removed: frozenset[str]
    waiting: set[str]
    #: R* topics that nobody read before
    opened: frozenset[TopicInstance] = frozenset()
    #: whether topic keys change
    rekeyed: bool = False
    applied: dict[str, float] = field(default_factory=dict)
    #: seconds in which this PAP did not run, and apply times may have waited for it unread; and by which its clock was
    #: set forward
    starved: float = 0.0
    stepped: float = 0.0

    def patient_until(self, patience: float) -> float:
        """Return until when components are waited for."""
        return self.plan.expected + patience + self.starved + max(0.0, self.stepped)

    @property
    def base(self) -> float | None:
        """The base time: the earliest apply time, when all have applied it or are gone."""
        return None if self.waiting else min(self.applied.values(), default=self.plan.expected)


class StoredProgress(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A `ReconfigurationProgress` in a checkpoint."""

    plan: ReconfigurationPlan
    routes: dict[str, str]
    replaced: tuple[str, ...]
    removed: tuple[str, ...]
    waiting: tuple[str, ...]
    opened: tuple[str, ...]
    rekeyed: bool
    applied: dict[str, float]


class RegistryState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state of a domain's PAPs, as a checkpoint has it."""

    #: of all samples of CONF that led to it
    digest: bytes
    time: float
    number: int
    #: rows of the table that reconfigurations have changed; None for those that have ended
    changed: dict[str, RoleConfiguration | None]
    #: by component: its certificate, without a signature, and its box key
    members: dict[str, tuple[bytes, bytes]]
    replaced: dict[str, int]
    last_ended: dict[str, str]
    endings: dict[str, str]
    missed: dict[str, str]
    last_missed: dict[str, str]
    progress: tuple[StoredProgress, ...]
    finished: tuple[tuple[int, float], ...]
    key_numbers: tuple[int, ...]
    ended_with_keys: dict[str, str]
    ended_at: float | None
    partner_ended: tuple[tuple[str, str, str], ...]
    #: the image of the role engine, and the facts and appointments that it began with
    roles: bytes
    founding: tuple[bytes, ...]
    #: what extensions of a PAP know
    extension: bytes = b""
    #: of leases of configurations: the number of the last one, and when the last one ends
    grants: int = 0
    lease_end: float = 0.0


class DomainRegistry:
    """See the module."""

    def __init__(self, settings: AdministrationSettings) -> None:
        self.settings = settings
        self.number = 1
        self.table = dict(settings.table)
        self.members: dict[str, JoinedComponent] = {}
        #: requests to join that were not answered, by `join_id`
        self.waiting: dict[bytes, ComponentSample] = {}
        self.progress: dict[int, ReconfigurationProgress] = {}
        #: the base times of reconfigurations that all have applied
        self.finished: dict[int, float] = {}
        #: roles that have ended and whose end was not announced: by component, the record
        self.endings: dict[str, str] = {}
        #: the components among them that a PAP missed, and the code: they can join again
        self.missed: dict[str, str] = {}
        #: by component: the record of its last role that has ended
        self.last_ended: dict[str, str] = {}
        #: the components among them that a PAP missed, and the code
        self.last_missed: dict[str, str] = {}
        #: by member: the configuration number before which its certificates have ended, if it got another one
        self.replaced: dict[str, int] = {}
        #: the number of the last lease of a configuration that was given, and when the last one ends
        self.grants = 0
        self.lease_end = 0.0
        #: how often this PAP has seen that a lease was given, also with a configuration
        self.leases_seen = 0
        #: of all samples of CONF that led to this state
        self.digest = b""
        #: rows of the table that reconfigurations have changed
        self._altered: dict[str, RoleConfiguration | None] = {}
        #: apply times of reconfigurations that were not followed yet: by number and component
        self._early: dict[int, dict[str, float]] = {}
        #: the most topics that a newcomer had
        self._widest = 0
        self._parts: dict[int, DomainCheckpoint] = {}
        #: the source of topic keys, and the numbers of keys that components may still write under, in order
        self.keys = DerivedTopicKeys(settings.domain, settings.topic_secret) if settings.topic_secret else None
        self.key_numbers = [self.number]
        #: roles that have ended since topic keys changed: by component, the record; and when the first one ended
        self._ended: dict[str, str] = {}
        self._ended_at: float | None = None
        self._now = 0.0
        #: requests to join that were answered; the oldest are forgotten
        self._answered: OrderedDict[bytes, None] = OrderedDict()
        #: by administrator and component of a partner domain: the record of its last role that has ended there
        self._partner_ended: dict[tuple[Principal, str], str] = {}
        names = {name: min(who) for name, who in settings.partners.items()}
        self.engine = RoleEngine(read_policy(settings.roles), min(settings.administrators), names)
        for change in settings.founding:
            self.engine.apply(change)

    # ------------------------------------------------------------------------------------------------------------------
    # Joining.

    def knows(self, sample: ComponentSample) -> bool:
        """Return whether a request to join waits, or was answered."""
        known = join_id(sample)
        return self._is_role_of(sample) or known in self._answered or known in self.waiting

    def _is_role_of(self, sample: ComponentSample) -> bool:
        """Return whether a member has its role by this request to join."""
        member, request = self.members.get(sample.id), sample.content
        return (
            member is not None
            and isinstance(request, JoinRequest)
            and (member.certificate.record, member.certificate.key) == (self._session(sample), request.key)
        )

    def expects(self, principal: Principal) -> bool:
        """Return whether the domain knows a principal: a fact or a credential names it, or it is a member."""
        return self.engine.mentions(principal)

    def request(self, sample: ComponentSample) -> None:
        """Take in a verified request to join. Raises `RefusedError` (`component.flood`) if too many wait."""
        if self.knows(sample):
            return
        if len(self.waiting) >= JOINS_WAITING:
            raise RefusedError("component.flood", f"{JOINS_WAITING} requests to join wait already")
        self.waiting[join_id(sample)] = sample

    def keep_waiting(self, left: Collection[bytes]) -> None:
        """Forget requests to join that are not on JOIN any more."""
        self.waiting = {known: sample for known, sample in self.waiting.items() if known in left}

    def answer(self, sample: ComponentSample, key: Signer, now: float, random: RandomBytes) -> Configuration:
        """Decide about a request to join by the role policy, and return the answer. The state does not change."""
        try:
            return self._admit(sample, key, now, random)
        except PenstockError as error:
            return self.refusal(sample, error.code)

    def refusal(self, sample: ComponentSample, code: str) -> Configuration:
        """Return the refusal of a request to join."""
        return Configuration(self.settings.domain, sample.id, self.number, join=join_id(sample), refusal=code)

    @staticmethod
    def _session(sample: ComponentSample) -> str:
        return f"{sample.id}.{sample.number}"

    def _admit(self, sample: ComponentSample, key: Signer, now: float, random: RandomBytes) -> Configuration:
        """Return the configuration of a newcomer.

        (1) The role is in the table, for components of this kind. (2) The id is free, or the newcomer's own, and the
        request is newer than its last one. (3) The certificates that it shows are genuine. (4) A rule of the role
        policy is satisfied. Roles that its principal has active as other components count too. (5) Reconfigurations
        still fit into their samples. (6) Where topics are sealed, it has a key to which its topic keys can be sealed.
        """
        request = sample.content
        if not isinstance(request, JoinRequest):
            raise TypeError("a request to join")
        name, arguments = parse_role(request.requested_role)
        row = self.table.get(role_text(name, arguments))
        if row is None or row.kind != request.kind:  # (1)
            raise RefusedError("component.role-unknown", f"no {request.kind} can have `{request.requested_role}`")
        before = self.members.get(sample.id)
        if before is not None and before.certificate.key != request.key:  # (2)
            raise RefusedError("component.id-taken", f"another component is `{sample.id}`")
        records = [self.last_ended.get(sample.id, ""), "" if before is None else before.certificate.record]
        if sample.number <= max(map(record_number, records)):
            raise RefusedError("component.copy", f"`{sample.id}` has joined later than this request says")
        if sample.id not in self.last_ended and len(self.last_ended) >= COMPONENT_IDS:
            raise LimitError("component.limit", f"{COMPONENT_IDS} ids were used", hint="use ids again")
        moment = datetime.fromtimestamp(now, UTC)
        principal = PublicKey(request.key).principal
        if len(request.certificates) > JOIN_CERTIFICATES:
            raise MalformedError("component.limit", f"more than {JOIN_CERTIFICATES} certificates")
        shown = [change for one in request.certificates for change in self._accept(one, moment)]  # (3)
        beside = tuple(map(partial(self._active_role, principal), request.active_roles[:JOIN_CERTIFICATES]))
        session = self._session(sample)
        trial: list[RoleChange] = [*shown, OpenSession(session, principal)]
        activate = ActivateRole(session, name, arguments, beside)
        self._advance(now)
        found, relied = self._tried(trial, activate)  # (4)
        own = [one for one in relied if before is not None and one.member and self._rests_on(one, before)]
        if own:
            raise RefusedError("component.role-needed", f"`{sample.id}` would lose the role that it needs for this one")
        home, until = self._home(one.key for one in relied if one.member)
        certificate = ComponentCertificate(
            key.principal,
            self.settings.domain,
            sample.id,
            request.key,
            ComponentKind(request.kind),
            name,
            found,
            session,
            home,
            row.topics,
            self.number,
            ALWAYS if until is None else Validity.between(None, until),
        )
        self._check_room(JoinedComponent(certificate, request.box_key))  # (5)
        ended = [] if before is None else [EndSession(before.certificate.record)]
        levels = self.settings.levels
        private = self._private(certificate, request.box_key, row, random)  # (6)
        told, recorded = row, b""
        if self.keys is not None:
            told = RoleConfiguration(row.kind, (), ())
            recorded = self.keys.seal(CONF, FIXED_NUMBER, msgspec.msgpack.encode(row), random)
        return Configuration(
            self.settings.domain,
            sample.id,
            self.number,
            certificate_bytes(certificate, key),
            told.combining,
            told.priorities,
            told.policies,
            float(levels.lifespan),
            (float(levels.lb1), float(levels.lb2), float(levels.lb3)),
            0.0 if levels.lease == FOREVER else float(levels.lease),
            request.box_key,
            private,
            recorded,
            join=join_id(sample),
            role_changes=tuple(canonical(change_to_sexp(one)) for one in (*trial, activate, *ended)),
            since=max((one.plan.expected for one in self.progress.values()), default=0.0),
            grant=self.grants,
        )

    def _tried(
        self, trial: Iterable[RoleChange], activate: ActivateRole
    ) -> tuple[tuple[Value, ...], tuple[RelianceRecord, ...]]:
        """Return the arguments of a role that could be activated, and what it would rely on. Nothing changes.

        Raises as `RoleEngine.check`.
        """
        engine, undone = self.engine, list[tuple[Principal, str]]()
        try:
            for change in trial:
                if isinstance(change, AcceptCredential):
                    shown = change.credential
                    if engine.record(shown.record, shown.issuer) is None:
                        engine.apply(change)
                        undone.append((shown.issuer, shown.record))
                        continue
                engine.apply(change)
            engine.check(activate)
            _, found, relied = next(engine.ways(activate.session, activate.role, activate.arguments, activate.beside))
            return found, relied
        finally:
            if engine.session(activate.session) is not None:
                engine.apply(EndSession(activate.session))
            for issuer, record in undone:
                engine.retract(issuer, record)

    def _active_role(self, principal: Principal, data: bytes) -> str:
        """Return the session of a role that a newcomer's principal has active. Raises `RefusedError`."""
        shown = read_component_certificate(data)
        member = self.members.get(shown.id)
        if member is None or member.certificate.record != shown.record or shown.principal != principal:
            raise RefusedError("component.certificate", f"`{shown.id}` does not show an active role of its own")
        return shown.record

    def _rests_on(self, relied: RelianceRecord, member: JoinedComponent) -> bool:
        key = relied.key
        record = self.engine.record(str(key[2])) if key[0] == "credential" and key[1] == self.engine.domain else None
        return record is not None and record.session == member.certificate.record

    def _private(
        self, certificate: ComponentCertificate, box_key: bytes, row: RoleConfiguration | None, random: RandomBytes
    ) -> bytes:
        """Return what a PAP tells one component alone: its topic keys, and its configuration if it joins now."""
        if self.keys is None:
            return b""
        topics = [str(one) for one in certificate.topics.write | certificate.topics.read]
        if row is None:  # it has the first keys
            told = PrivateConfiguration(keys=self.keys.keys_of(topics, self.key_numbers[1:]))
        else:
            keys = self.keys.keys_of(topics, self.key_numbers)
            told = PrivateConfiguration(row.combining, row.priorities, row.policies, keys, self._ended)
        return seal_private(told, box_key, self.settings.domain, certificate.id, random)

    def opened(self, topic: str, data: bytes) -> bytes:
        """Return a sample as a PAP reads it: opened, if it is sealed or has to be. Raises as `TopicKeys.open`."""
        return data if self.keys is None or (topic == CONF and not is_sealed(data)) else self.keys.open(topic, data)

    def recorded_row(self, answer: Configuration) -> RoleConfiguration:
        """Return what a configuration gave to a component. Raises as `TopicKeys.open`, and `MalformedError`."""
        certificate = read_component_certificate(answer.certificate)
        if answer.recorded:
            try:
                return msgspec.msgpack.decode(self.opened(CONF, answer.recorded), type=RoleConfiguration)
            except msgspec.MsgspecError:
                raise MalformedError("component.sample", "what a PAP has recorded is not a configuration") from None
        write, read = (tuple(sorted(map(str, those))) for those in (certificate.topics.write, certificate.topics.read))
        return RoleConfiguration(certificate.kind, write, read, answer.combining, answer.priorities, answer.policies)

    def _accept(self, data: bytes, now: datetime) -> Iterable[RoleChange]:
        """Yield the change by which a certificate of a partner domain is accepted; those of this domain are known."""
        value = parse_canonical(data)
        match value:
            case (b"sequence", (b"component-certificate", *_), *_):
                found = read_component_certificate(data)
                issuer, record = self._partner(found.issuer, found.domain), found.record
                if not found.validity.contains(now):
                    raise RefusedError("role.expired", "the certificate is not valid now")
                change = AcceptCredential(
                    ForeignCredential(
                        issuer, record, CredentialKind.ROLE, found.role, found.principal, found.arguments,
                        found.validity.ends,
                    )
                )  # fmt: skip
            case _:
                certificate = read_role_certificate(value)
                if certificate.issuer in self.settings.administrators:
                    return
                issuer, record = self._partner(certificate.issuer, None), certificate.record
                change = AcceptCredential(replace(accepted(certificate, now).credential, issuer=issuer))
        ended = self._partner_ended.get((issuer, record.rpartition(".")[0]), "")
        if record == ended or 0 <= record_number(record) <= record_number(ended):
            raise RefusedError("role.revoked", "the role has ended in its domain", hint="show another certificate")
        yield change

    def _partner(self, issuer: Principal, domain: str | None) -> Principal:
        """Return the principal that stands for the domain of an administrator in the role policy."""
        for name, administrators in self.settings.partners.items():
            if issuer in administrators and domain in (None, name):
                return min(administrators)
        raise RefusedError("component.certificate", f"{issuer.short} is not an administrator of a partner domain")

    def _home(self, relied: Iterable[tuple[object, ...]]) -> tuple[str, datetime | None]:
        """Return the domain that a role rests on, and when the first of its credentials ends."""
        home, until = self.settings.domain, None
        for key in relied:
            if key[0] != "credential":
                continue
            issuer, record = key[1], key[2]
            if not isinstance(issuer, Principal) or not isinstance(record, str):
                continue
            found = self.engine.record(record, issuer)
            until = earliest(until, None if found is None else found.until)
            home = next((name for name, who in self.settings.partners.items() if min(who) == issuer), home)
        return home, until

    # ------------------------------------------------------------------------------------------------------------------
    # The fold.

    def follow(self, content: SampleContent, time: float) -> RegistryState | None:
        """Take in what the owner of CONF has written; return the state of a checkpoint that is whole now.

        Raises what `RoleEngine.apply` raises, and `MalformedError` for a checkpoint that is none.
        """
        match content:
            case DomainCheckpoint():
                return self._follow_checkpoint(content)
            case Configuration():
                self._advance(time)
                self._follow_answer(content)
                if content.certificate and content.lease:
                    self._follow_lease(time + content.lease)
            case ReconfigurationPlan():
                self._advance(time)
                self._change(content.role_changes, content.reason)
                if content.number:
                    self._reconfigure(content)
            case Withdrawal():
                for component, record in content.records.items():
                    if self.endings.get(component) == record:
                        del self.endings[component]
                        self.missed.pop(component, None)
            case BaseTime():
                self._finish(content.number, content.time)
            case ConfigurationLease():
                self.grants = content.grant
                self._follow_lease(content.until)
        self.digest = sha256(self.digest + _encode((time, content))).digest()
        return None

    def _follow_lease(self, until: float) -> None:
        self.lease_end = max(self.lease_end, until)
        self.leases_seen += 1

    def _follow_answer(self, answer: Configuration) -> None:
        self._answered[answer.join] = None
        if len(self._answered) > JOINS_WAITING:
            self._answered.popitem(last=False)
        self.waiting.pop(answer.join, None)
        if answer.refusal:
            return
        certificate = read_component_certificate(answer.certificate)
        self._change(answer.role_changes)
        self.members[answer.id] = JoinedComponent(certificate, answer.box_key)
        self.last_missed.pop(answer.id, None)

    def can_end(self, change: RoleChange) -> bool:
        """Return whether a session, or a credential of another domain, that a change ends is still there."""
        if isinstance(change, EndSession):
            return self.engine.session(change.session) is not None
        return isinstance(change, DropCredential) and self.engine.record(change.record, change.issuer) is not None

    def partner_ended(self, partner: str, record: str) -> tuple[RoleChange, ...]:
        """Take in that a role has ended in another domain; return the changes of roles that follow here."""
        issuer = min(self.settings.partners[partner])
        place = issuer, record.rpartition(".")[0]
        if place not in self._partner_ended or record_number(self._partner_ended[place]) < record_number(record):
            self._partner_ended[place] = record
        return () if self.engine.record(record, issuer) is None else (DropCredential(issuer, record),)

    def _advance(self, now: float) -> None:
        self._now = max(self._now, now)
        self._collect(self.engine.advance(datetime.fromtimestamp(now, UTC)))

    def _change(self, changes: Iterable[bytes], reason: str = "") -> None:
        for change in changes:
            self._collect(self.engine.apply(change_from_sexp(parse_canonical(change))), reason)

    def _collect(self, outcome: RoleOutcome, reason: str = "") -> None:
        for one in outcome.ended:
            session = one.record.session
            component = session.rpartition(".")[0]
            member = self.members.get(component)
            if member is not None and member.certificate.record == session:
                del self.members[component]
                self.replaced.pop(component, None)
                self._has_ended(component, session)
                self.missed.pop(component, None)
                self.last_missed.pop(component, None)
                if reason in MISSED:
                    self.missed[component] = self.last_missed[component] = reason
                for progress in self.progress.values():
                    progress.waiting.discard(component)

    def _has_ended(self, component: str, record: str) -> None:
        self.endings[component] = self.last_ended[component] = record
        if self.keys is not None:
            self._ended[component] = record
            self._ended_at = self._now if self._ended_at is None else self._ended_at

    def standing(self) -> Iterator[Withdrawal]:
        """Yield which roles have ended and which certificates were replaced, as a newcomer must know it."""
        ended, replaced = iter(sorted(self.last_ended.items())), iter(sorted(self.replaced.items()))
        while found := (dict(islice(ended, ENDED_TOGETHER)), dict(islice(replaced, ENDED_TOGETHER))):
            if not any(found):
                return
            missed = {
                component: self.last_missed[component]
                for component in sorted(found[0].keys() & self.last_missed.keys())
            }
            yield Withdrawal(found[0], missed, found[1])

    # ------------------------------------------------------------------------------------------------------------------
    # Reconfigurations.

    def _reconfigure(self, plan: ReconfigurationPlan) -> None:
        routes: dict[str, TopicInstance] = {}
        replaced: set[str] = set()
        removed: set[str] = set()
        before = self.reconfiguration_topics()
        for component, member in self.members.items():
            route = member.reconfigured_by
            if route is not None:
                routes[component] = route
            role = member.certificate.role_name
            if role in plan.roles:
                row = plan.roles[role]
                if row is None:
                    removed.add(component)
                elif row.topics != member.certificate.topics:
                    replaced.add(component)
                    renewed = replace(member.certificate, topics=row.topics, since=plan.number)
                    self.members[component] = replace(member, certificate=renewed)
                    self.replaced[component] = plan.number
        self._altered.update(plan.roles)
        for role, row in plan.roles.items():
            if row is None:
                self.table.pop(role, None)
            else:
                self.table[role] = row
        self.number = plan.number
        waiting = routes.keys() - removed
        rekeyed = self.keys is not None and bool(plan.rekey or replaced or removed)
        opened = frozenset(self.reconfiguration_topics()).difference(before)
        self.progress[plan.number] = ReconfigurationProgress(
            plan, routes, frozenset(replaced), frozenset(removed), set(waiting), opened, rekeyed
        )
        for component, time in self._early.pop(plan.number, {}).items():
            if time >= plan.expected:
                self.applied(component, plan.number, time)
        for component in removed:
            self._collect(self.engine.apply(EndSession(self.members[component].certificate.record)))
        if rekeyed:
            self.key_numbers.append(plan.number)
            self._ended, self._ended_at = {}, None

    def check_size(self, roles: Mapping[str, RoleConfiguration | None]) -> None:
        """Check that a reconfiguration can be planned and announced. Raises `LimitError` (`component.limit`)."""
        self._check_size(roles)

    def _check_room(self, newcomer: JoinedComponent) -> None:
        """Check that new topic keys for all still fit into their samples. Raises `LimitError`."""
        topics = newcomer.certificate.topics
        self._widest = max(self._widest, len(topics.write | topics.read))
        each = NAME_LENGTH + KEYS_SIZE + TOPIC_SIZE * self._widest * len(self.key_numbers)
        if self.keys is not None and (len(self.members) + 1) * each > _RECONFIGURATION_BYTES:
            self._check_size({}, newcomer)  # it costs a look at each member

    def _check_size(
        self, roles: Mapping[str, RoleConfiguration | None], newcomer: JoinedComponent | None = None
    ) -> None:
        """Check the most bytes that a reconfiguration of roles, or new topic keys, can have on each R* topic."""
        planned = len(_encode(roles))
        if planned > SAMPLE_BYTES:
            raise _too_large("the configurations of roles", planned, SAMPLE_BYTES)
        sizes: Counter[TopicInstance] = Counter()
        for member in [*self.members.values(), *([] if newcomer is None else [newcomer])]:
            route, row = member.reconfigured_by, roles.get(member.certificate.role_name)
            if route is None:
                continue
            sizes[route] += len(member.certificate.id)
            if self.keys is not None:
                topics = member.certificate.topics if row is None else row.topics
                sizes[route] += KEYS_SIZE + TOPIC_SIZE * len(topics.write | topics.read) * len(self.key_numbers)
            if row is not None and row.topics != member.certificate.topics:
                sizes[route] += CERTIFICATE_SIZE + TOPIC_SIZE * (len(row.write) + len(row.read))
        largest = max(sizes.values(), default=0)
        if largest > _RECONFIGURATION_BYTES:
            raise _too_large("a reconfiguration", largest, _RECONFIGURATION_BYTES)

    def reconfigurations(
        self, number: int, instance: TopicInstance, key: Signer, random: RandomBytes, announcement: int
    ) -> list[Reconfiguration]:
        """Return the parts of a reconfiguration that those get who read an R* topic."""
        progress = self.progress[number]
        readers = [one for one, route in progress.routes.items() if route == instance]
        roles = {self.members[one].certificate.role_name for one in readers if one in self.members}
        chosen = {role: row for role, row in progress.plan.roles.items() if row is not None and role in roles}
        parts: list[dict[str, Any]] = [{"roles": chosen, "certificates": {}, "withdrawn": [], "private": {}}]
        size = len(_encode(chosen))

        def put(name: str, component: str, data: bytes = b"") -> None:
            nonlocal size
            size += len(component) + len(data) + 16
            if size > SAMPLE_BYTES:
                parts.append({"certificates": {}, "withdrawn": [], "private": {}})
                size = len(component) + len(data) + 16
            if name == "withdrawn":
                parts[-1][name].append(component)
            else:
                parts[-1][name][component] = data

        for component in sorted(progress.replaced | progress.removed):
            put("withdrawn", component)
        for component in readers:
            member = self.members.get(component)
            if member is not None and component in progress.replaced:
                renewed = replace(member.certificate, issuer=key.principal)
                put("certificates", component, certificate_bytes(renewed, key))
            if member is not None and progress.rekeyed:
                put("private", component, self._private(member.certificate, member.box_key, None, random))
        return [
            Reconfiguration(
                number,
                progress.plan.expected,
                part.get("roles", {}),
                part["certificates"],
                tuple(part["withdrawn"]),
                part["private"],
                part=place,
                parts=len(parts),
                announcement=announcement,
            )
            for place, part in enumerate(parts, 1)
        ]

    def new_topic_keys(self, number: int, random: RandomBytes) -> Iterator[NewTopicKeys]:
        """Yield the topic keys of a reconfiguration for each component that reads no R* topic."""
        for id_, one in self.members.items():
            if self.progress[number].rekeyed and one.reconfigured_by is None:
                private = self._private(one.certificate, one.box_key, None, random)
                yield NewTopicKeys(self.settings.domain, id_, self.key_numbers[-1], private)

    def applied(self, component: str, number: int, time: float) -> None:
        """Take in an apply time. Raises `RefusedError` (`component.apply-time`) if it is before the expected time."""
        progress = self.progress.get(number)
        if progress is None and self.number < number <= self.number + len(self._early) + 1:
            self._early.setdefault(number, {})[component] = time  # this PAP is behind
        if progress is None or component not in progress.waiting:
            return
        if time < progress.plan.expected:
            raise RefusedError(
                "component.apply-time",
                f"`{component}` says that it applied reconfiguration {number} before the expected time",
                component=component,
            )
        progress.waiting.discard(component)
        progress.applied[component] = time

    def overdue(self, now: float) -> list[str]:
        """Return the components that should have applied a reconfiguration by now."""
        return sorted(
            {
                component
                for progress in self.progress.values()
                if now > progress.patient_until(self.settings.patience)
                for component in progress.waiting
            }
        )

    def due(self) -> float | None:
        """Return when something happens without a sample: a role ends, or the patience with a component."""
        times = [one.patient_until(self.settings.patience) for one in self.progress.values() if one.waiting]
        if self.engine.next_due is not None:
            times.append(self.engine.next_due.timestamp())
        if self._ended_at is not None:
            times.append(self._ended_at + self.settings.rekey_within)
        return min(times, default=None)

    def rekey_due(self, now: float) -> bool:
        """Return whether topic keys must change now, because roles have ended; newcomers must learn of all of them."""
        due = self._ended_at is not None and now >= self._ended_at + self.settings.rekey_within
        return due or len(self._ended) >= ENDED_TOGETHER

    def _finish(self, number: int, base: float) -> None:
        """Take in that the base time of a reconfiguration was announced."""
        self.progress.pop(number, None)
        self.finished[number] = base
        while len(self.finished) > BASE_TIMES:
            del self.finished[min(self.finished)]
        if number in self.key_numbers:  # nobody writes under the keys from before
            self.key_numbers = [one for one in self.key_numbers if one >= number]

    def pass_time(self, now: float) -> None:
        """Let roles end whose time is over."""
        self._advance(now)

    def announced_topics(self, number: int) -> list[TopicInstance]:
        """Return the R* topics that a reconfiguration is announced on."""
        return sorted({*self.progress[number].routes.values(), *self.reconfiguration_topics()})

    def reconfiguration_topics(self) -> list[TopicInstance]:
        """Return the R* topics of all roles and members, in order."""
        found = {member.reconfigured_by for member in self.members.values()}
        for row in self.table.values():
            kind = reconfiguration_topic(ComponentKind(row.kind))
            found |= set() if kind is None else set(row.topics.reading(kind))
        return sorted(one for one in found if one is not None)

    # ------------------------------------------------------------------------------------------------------------------
    # Checkpoints.

    def checkpoint(self, number: int, extension: bytes = b"") -> list[DomainCheckpoint]:
        """Return the parts of a checkpoint with the state. Raises `LimitError` (`component.limit`)."""
        state = RegistryState(
            self.digest,
            self._now,
            self.number,
            self._altered,
            {name: (canonical(one.certificate.to_sexp()), one.box_key) for name, one in self.members.items()},
            self.replaced,
            self.last_ended,
            self.endings,
            self.missed,
            self.last_missed,
            tuple(
                StoredProgress(
                    one.plan,
                    {name: str(route) for name, route in one.routes.items()},
                    tuple(sorted(one.replaced)),
                    tuple(sorted(one.removed)),
                    tuple(sorted(one.waiting)),
                    tuple(map(str, sorted(one.opened))),
                    one.rekeyed,
                    one.applied,
                )
                for one in self.progress.values()
            ),
            tuple(self.finished.items()),
            tuple(self.key_numbers),
            self._ended,
            self._ended_at,
            tuple((str(issuer), name, record) for (issuer, name), record in self._partner_ended.items()),
            canonical(self.engine.image().to_sexp()),
            tuple(canonical(change_to_sexp(one)) for one in self.settings.founding),
            extension,
            self.grants,
            self.lease_end,
        )
        data = _encode(state)
        chunks = [data[at : at + SAMPLE_BYTES] for at in range(0, len(data), SAMPLE_BYTES)]
        if len(chunks) > CHECKPOINT_SAMPLES:
            raise _too_large("the state of the domain", len(data), CHECKPOINT_SAMPLES * SAMPLE_BYTES)
        return [DomainCheckpoint(part, len(chunks), number, chunk) for part, chunk in enumerate(chunks, 1)]

    def _follow_checkpoint(self, part: DomainCheckpoint) -> RegistryState | None:
        if any(one.checkpoint != part.checkpoint for one in self._parts.values()):
            self._parts = {}  # its writer was interrupted
        self._parts[part.part] = part
        if len(self._parts) < part.parts:
            return None
        data = b"".join(one.data for _, one in sorted(self._parts.items()))
        self._parts = {}
        try:
            state = _decode(data)
        except msgspec.MsgspecError:
            raise MalformedError("component.sample", "a checkpoint is not the state of a domain") from None
        if state.digest != self.digest:
            self._restore(state)
        for stored in state.progress:  # apply times that this PAP may have missed
            for component, time in stored.applied.items():
                self.applied(component, stored.plan.number, time)
        return state

    def _restore(self, state: RegistryState) -> None:
        """Take over the state of a checkpoint. What the settings say now counts, as for a domain that begins."""
        settings, before = self.settings, self.progress
        self.digest, self.number = state.digest, state.number
        self.grants, self.lease_end = state.grants, state.lease_end
        self._now = max(self._now, state.time)
        self._altered = dict(state.changed)
        changed = {**settings.table, **state.changed}
        self.table = {role: row for role, row in changed.items() if row is not None}
        self.members = {
            name: JoinedComponent(ComponentCertificate.from_sexp(parse_canonical(certificate)), box_key)
            for name, (certificate, box_key) in state.members.items()
        }
        self.replaced, self.last_ended = dict(state.replaced), dict(state.last_ended)
        self.endings, self.missed = dict(state.endings), dict(state.missed)
        self.last_missed = dict(state.last_missed)
        self.finished = dict(state.finished)
        self.progress = {
            one.plan.number: ReconfigurationProgress(
                one.plan,
                {name: TopicInstance.parse(route) for name, route in one.routes.items()},
                frozenset(one.replaced),
                frozenset(one.removed),
                set(one.waiting),
                frozenset(map(TopicInstance.parse, one.opened)),
                one.rekeyed,
                dict(one.applied),
            )
            for one in state.progress
        }
        for number in self.progress.keys() & before.keys():
            self.progress[number].starved = before[number].starved
            self.progress[number].stepped = before[number].stepped
        self.key_numbers = [*state.key_numbers]
        self._ended, self._ended_at = dict(state.ended_with_keys), state.ended_at
        for issuer, name, record in state.partner_ended:
            self._partner_ended.setdefault((Principal.parse(issuer), name), record)
        self.waiting = {known: sample for known, sample in self.waiting.items() if not self._is_role_of(sample)}
        image = RoleImage.from_sexp(parse_canonical(state.roles, limits=_IMAGE))
        self.engine = image.engine(self.engine.domain)
        self._change_founding([change_from_sexp(parse_canonical(one)) for one in state.founding], image)
        for number, progress in before.items():
            for component, time in progress.applied.items():
                self.applied(component, number, time)

    def _change_founding(self, founding: list[RoleChange], image: RoleImage) -> None:
        """Let the role policy, the facts and the appointments of the settings count, if they have changed since."""
        names = {name: min(who) for name, who in self.settings.partners.items()}
        if image.policy != self.settings.roles or not set(names.items()) <= set(image.names):
            self._collect(self.engine.apply(ReplacePolicy(self.settings.roles, tuple(sorted(names.items())))))
        for change in founding:
            if isinstance(change, SetFact) and change not in self.settings.founding:
                self._collect(self.engine.apply(SetFact(change.fact, None, change.arguments)))
        for change in self.settings.founding:
            if change not in founding:
                self._collect(self.engine.apply(change))


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_decode: Final = msgspec.msgpack.Decoder(RegistryState).decode


def _too_large(what: str, size: int, bound: int) -> LimitError:
    return LimitError(
        "component.limit",
        f"{what} would have up to {size} bytes, more than {bound}",
        hint="let roles read different instances of their R* topic, and change fewer of them at a time",
    )
