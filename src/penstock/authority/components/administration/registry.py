"""Who has joined a domain with which role, and how far reconfigurations are: the state of its PAPs. It is pure.

The state is a fold over what is on CONF, in order: answers to requests to join, and plans. Only the owner of CONF
writes there, so all PAPs of a domain have the same state, and each of them can go on where another one stopped. Roles
are those of `penstock.roles`: each member has a session, and the record of its certificate is the session's name.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

import msgspec

from penstock.authority.components.exchange.certificates import (
    ComponentCertificate,
    certificate_bytes,
    read_component_certificate,
)
from penstock.authority.components.exchange.samples import (
    MISSED,
    ComponentSample,
    Configuration,
    JoinRequest,
    NewTopicKeys,
    Reconfiguration,
    ReconfigurationPlan,
    RoleConfiguration,
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
    ComponentKind,
    TopicInstance,
    TopicKind,
    TopicLevels,
    check_component_name,
    reconfiguration_topic,
)
from penstock.authority.components.exchange.topics_lists import parse_role, role_text
from penstock.codec.sexp import canonical, parse_canonical
from penstock.crypto import PublicKey, Signer
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.fabric import FOREVER, RandomBytes
from penstock.fabric.limits import FABRIC_BYTES
from penstock.model.principals import Principal
from penstock.roles.credentials import accepted, read_role_certificate
from penstock.roles.engine import (
    AcceptCredential,
    ActivateRole,
    DropCredential,
    EndSession,
    ForeignCredential,
    OpenSession,
    RoleChange,
    RoleEngine,
    RoleOutcome,
    change_from_sexp,
    change_to_sexp,
)
from penstock.roles.language import CredentialKind, read_policy
from penstock.trust.validity import ALWAYS, Validity, earliest

#: the topic that the state of a domain is on
CONF: Final = f"{TopicKind.CONF}_1"
#: requests to join that wait, and certificates in one of them
JOINS_WAITING: Final = 10_000
JOIN_CERTIFICATES: Final = 32
#: bytes of a certificate in a reconfiguration, without its topics
CERTIFICATE_SIZE: Final = 700
#: bytes of a topic key for one component there
KEYS_SIZE: Final = 100


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

    @property
    def base(self) -> float | None:
        """The base time: the earliest apply time, when all have applied it or are gone."""
        return None if self.waiting else min(self.applied.values(), default=self.plan.expected)


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
        #: seconds in which this PAP did not run, and apply times may have waited for it unread
        self.excused = 0.0
        #: the source of topic keys, and the numbers of keys that components may still write under, in order
        self.keys = DerivedTopicKeys(settings.domain, settings.topic_secret) if settings.topic_secret else None
        self.key_numbers = [self.number]
        #: roles that have ended since topic keys changed: by component, the record; and when the first one ended
        self._ended: dict[str, str] = {}
        self._ended_at: float | None = None
        self._now = 0.0
        self._answered: set[bytes] = set()
        self._partner_ended: set[tuple[Principal, str]] = set()
        names = {name: min(who) for name, who in settings.partners.items()}
        self.engine = RoleEngine(read_policy(settings.roles), min(settings.administrators), names)
        for change in settings.founding:
            self.engine.apply(change)

    # ------------------------------------------------------------------------------------------------------------------
    # Joining.

    def request(self, sample: ComponentSample) -> None:
        """Take in a verified request to join. Raises `RefusedError` (`component.flood`) if too many wait."""
        known = join_id(sample)
        if known in self._answered:
            return
        if len(self.waiting) >= JOINS_WAITING:
            raise RefusedError("component.flood", f"{JOINS_WAITING} requests to join wait already")
        self.waiting[known] = sample

    def answer(self, sample: ComponentSample, key: Signer, now: float, random: RandomBytes) -> Configuration:
        """Decide about a request to join by the role policy, and return the answer. The state does not change."""
        try:
            return self._admit(sample, key, now, random)
        except PenstockError as error:
            return self.refusal(sample, error.code)

    def refusal(self, sample: ComponentSample, code: str) -> Configuration:
        """Return the refusal of a request to join."""
        return Configuration(self.settings.domain, sample.id, self.number, join=join_id(sample), refusal=code)

    def _admit(self, sample: ComponentSample, key: Signer, now: float, random: RandomBytes) -> Configuration:
        """Return the configuration of a newcomer.

        (1) The role is in the table, for components of this kind. (2) The id is free, or the newcomer's own. (3) The
        certificates that it shows are genuine. (4) A rule of the role policy is satisfied. (5) Where topics are sealed,
        it has a key to which its topic keys can be sealed.
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
        moment = datetime.fromtimestamp(now, UTC)
        principal = PublicKey(request.key).principal
        if len(request.certificates) > JOIN_CERTIFICATES:
            raise MalformedError("component.limit", f"more than {JOIN_CERTIFICATES} certificates")
        shown = [change for one in request.certificates for change in self._accept(one, moment)]  # (3)
        session = f"{sample.id}.{sample.number}"
        trial: list[RoleChange] = [*shown, OpenSession(session, principal)]
        self._advance(now)
        for change in trial:
            self.engine.apply(change)
        try:
            activate = ActivateRole(session, name, arguments)
            self.engine.check(activate)  # (4)
            _, found, relied = next(self.engine.ways(session, name, arguments))
        finally:
            self.engine.apply(EndSession(session))
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
        ended = [] if before is None else [EndSession(before.certificate.record)]
        levels = self.settings.levels
        private = self._private(certificate, request.box_key, row, random)
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
            role_changes=tuple(canonical(change_to_sexp(one)) for one in (*ended, *trial, activate)),
        )

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
        if (issuer, record) in self._partner_ended:
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

    def follow(self, content: Configuration | ReconfigurationPlan, time: float) -> None:
        """Take in what the owner of CONF has written. Raises what `RoleEngine.apply` raises."""
        self._advance(time)
        if isinstance(content, Configuration):
            self._answered.add(content.join)
            self.waiting.pop(content.join, None)
            if content.refusal:
                return
            self._change(content.role_changes)
            certificate = read_component_certificate(content.certificate)
            self.members[content.id] = JoinedComponent(certificate, content.box_key)
            return
        self._change(content.role_changes, content.reason)
        if content.number:
            self._reconfigure(content)

    def announced(self, records: Mapping[str, str]) -> None:
        """Take in that the ends of these roles were announced."""
        for component, record in records.items():
            if self.endings.get(component) == record:
                del self.endings[component]
                self.missed.pop(component, None)

    def can_end(self, change: RoleChange) -> bool:
        """Return whether a session, or a credential of another domain, that a change ends is still there."""
        if isinstance(change, EndSession):
            return self.engine.session(change.session) is not None
        return isinstance(change, DropCredential) and self.engine.record(change.record, change.issuer) is not None

    def partner_ended(self, partner: str, record: str) -> tuple[RoleChange, ...]:
        """Take in that a role has ended in another domain; return the changes of roles that follow here."""
        issuer = min(self.settings.partners[partner])
        self._partner_ended.add((issuer, record))
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
                self.endings[component] = session
                self.missed.pop(component, None)
                if reason in MISSED:
                    self.missed[component] = reason
                if self.keys is not None:
                    self._ended[component] = session
                    self._ended_at = self._now if self._ended_at is None else self._ended_at
                for progress in self.progress.values():
                    progress.waiting.discard(component)

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
        for component in removed:
            self._collect(self.engine.apply(EndSession(self.members[component].certificate.record)))
        if rekeyed:
            self.key_numbers.append(plan.number)
            self._ended, self._ended_at = {}, None

    def check_size(self, roles: Mapping[str, RoleConfiguration | None]) -> None:
        """Check that a reconfiguration fits into one sample for each R* topic. Raises `LimitError`."""
        sizes: Counter[TopicInstance] = Counter()
        for member in self.members.values():
            route, row = member.reconfigured_by, roles.get(member.certificate.role_name)
            if route is not None and self.keys is not None:
                topics = len(member.certificate.topics.write | member.certificate.topics.read)
                sizes[route] += KEYS_SIZE * len(self.key_numbers) * (1 + topics)
            if route is not None and row is not None and row.topics != member.certificate.topics:
                sizes[route] += CERTIFICATE_SIZE + sum(map(len, (*row.write, *row.read)))
        largest = max(sizes.values(), default=0) + len(msgspec.msgpack.encode(roles))
        if largest > FABRIC_BYTES:
            raise LimitError(
                "component.limit",
                f"a reconfiguration has about {largest} bytes, more than {FABRIC_BYTES}",
                hint="let roles read different instances of their R* topic, and change fewer of them at a time",
            )

    def reconfiguration(
        self, number: int, instance: TopicInstance, key: Signer, random: RandomBytes
    ) -> Reconfiguration:
        """Return the part of a reconfiguration that those get who read an R* topic."""
        progress = self.progress[number]
        readers = [one for one, route in progress.routes.items() if route == instance]
        roles = {self.members[one].certificate.role_name for one in readers if one in self.members}
        certificates = {
            one: certificate_bytes(replace(self.members[one].certificate, issuer=key.principal), key)
            for one in readers
            if one in progress.replaced and one in self.members
        }
        return Reconfiguration(
            number,
            progress.plan.expected,
            {role: row for role, row in progress.plan.roles.items() if row is not None and role in roles},
            certificates,
            tuple(sorted(progress.replaced | progress.removed)),
            {
                one: self._private(self.members[one].certificate, self.members[one].box_key, None, random)
                for one in readers
                if progress.rekeyed and one in self.members
            },
        )

    def new_topic_keys(self, number: int, random: RandomBytes) -> Iterator[NewTopicKeys]:
        """Yield the topic keys of a reconfiguration for each component that reads no R* topic."""
        for id_, one in self.members.items():
            if self.progress[number].rekeyed and one.reconfigured_by is None:
                private = self._private(one.certificate, one.box_key, None, random)
                yield NewTopicKeys(self.settings.domain, id_, self.key_numbers[-1], private)

    def applied(self, component: str, number: int, time: float) -> None:
        """Take in an apply time. Raises `RefusedError` (`component.apply-time`) if it is before the expected time."""
        progress = self.progress.get(number)
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
                if now > progress.plan.expected + self.settings.patience + self.excused
                for component in progress.waiting
            }
        )

    def due(self) -> float | None:
        """Return when something happens without a sample: a role ends, or the patience with a component."""
        patience = self.settings.patience + self.excused
        times = [one.plan.expected + patience for one in self.progress.values() if one.waiting]
        if self.engine.next_due is not None:
            times.append(self.engine.next_due.timestamp())
        if self._ended_at is not None:
            times.append(self._ended_at + self.settings.rekey_within)
        return min(times, default=None)

    def rekey_due(self, now: float) -> bool:
        """Return whether topic keys must change now, because roles have ended."""
        return self._ended_at is not None and now >= self._ended_at + self.settings.rekey_within

    def finish(self, number: int, base: float) -> None:
        """Take in that the base time of a reconfiguration was announced."""
        self.progress.pop(number, None)
        self.finished[number] = base
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
