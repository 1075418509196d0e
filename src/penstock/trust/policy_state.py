"""Compute an owner's policy from its policy events, and which certificates are revoked."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from types import MappingProxyType
from typing import Annotated, ClassVar, Final

from penstock.codec.sexp import SExp, canonical, parse_many
from penstock.crypto import SigningKey, digest
from penstock.errors import LimitError, RefusedError
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.trust.certificates import (
    Certificate,
    Threshold,
    UnverifiedCertificate,
    read_certificate,
    verify_certificate,
)
from penstock.trust.credentials import CertificateVerifier, Credentials, UnverifiedCredentials
from penstock.trust.event_types import UnverifiedType
from penstock.trust.limits import POLICY_CHANGES, POLICY_EVENT_BYTES, TRUST_LIMITS, TrustLimits
from penstock.trust.policy_events import (
    BEGINNING,
    Agree,
    Change,
    EndAgreement,
    ForgetProfiles,
    Install,
    PolicyEvent,
    PublishCertificates,
    PublishProfiles,
    Remove,
    RequireStamps,
    Revoke,
    TimeStamp,
)
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import DIGEST, Claim, SignedValue, malformed, read_signed, sign_value
from penstock.trust.validity import Validity

# ----------------------------------------------------------------------------------------------------------------------
# Revocations: which certificates are revoked, and for which owners.
#
# An owner's revocation applies to all decisions about that owner's types, whoever issued the certificate. A certificate
# that its own issuer revoked is invalid everywhere. So nobody can revoke rights that are not theirs.
#
# A decision about the present removes the certificates that are revoked now. A decision about history uses the owners'
# chains: a revoked certificate was valid until the revocation was signed, and the past stays as it was.


_INSTANT: Final = timedelta(microseconds=1)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)


def _nobody() -> Mapping[Principal, frozenset[str]]:
    return MappingProxyType({})


def _never() -> Mapping[Principal, Mapping[str, Validity]]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Revocations:
    """The ids of revoked certificates by the principal that revoked them."""

    by_owner: Mapping[Principal, frozenset[str]] = field(default_factory=_nobody, repr=False)
    #: the certificates with a known revocation time, and their last validity
    ended: Mapping[Principal, Mapping[str, Validity]] = field(default_factory=_never, repr=False)

    @classmethod
    def of_chains(cls, chains: Iterable[Sequence[SignedValue[PolicyEvent]]]) -> "Revocations":
        """Return the revocations in verified chains of policy events, one chain for each owner.

        If a chain begins with a checkpoint, the times of the revocations in it are unknown, so their certificates are
        never valid.
        """
        by_owner: dict[Principal, frozenset[str]] = {}
        ended: dict[Principal, Mapping[str, Validity]] = {}
        for chain in chains:
            undated: set[str] = set()
            dated: dict[str, Validity] = {}
            for event, ids in _orders(chain):
                end = None if _is_retold(chain[0].value, event) else _before(event.time)
                for id_ in ids:
                    if end is None and id_ not in dated:
                        undated.add(id_)
                    elif end is not None and id_ not in undated:
                        dated.setdefault(id_, end)
            if undated or dated:
                owner = chain[0].value.owner
                by_owner[owner], ended[owner] = frozenset(undated), MappingProxyType(dated)
        return cls(MappingProxyType(by_owner), MappingProxyType(ended))

    def strike(self, credentials: Credentials, root: Principal) -> Credentials:
        """Return the credentials without certificates that are never valid if `root` decides."""
        kept = tuple(one for one in credentials.certificates if not self.revoked(one.id, (root, one.statement.issuer)))
        return credentials if len(kept) == len(credentials) else Credentials(kept, credentials.quorums)

    def revoked(self, certificate: str, by: Iterable[Principal]) -> bool:
        """Return whether a certificate is never valid, because one of these principals has revoked it."""
        return any(certificate in self.by_owner.get(principal, ()) for principal in by)

    def ends(self, credentials: Credentials, root: Principal) -> dict[str, Validity]:
        """Return the last validity of the credentials that were revoked if `root` decides, by id."""
        if not self.ended:
            return {}
        found = ((one.id, self.end(one.id, (root, one.statement.issuer))) for one in credentials.certificates)
        return {id_: end for id_, end in found if end is not None}

    def end(self, certificate: str, by: Iterable[Principal]) -> Validity | None:
        """Return the last validity of a certificate that one of these principals has revoked; None if none has."""
        ends = (self.ended.get(principal, {}).get(certificate) for principal in by)
        return min((end for end in ends if end is not None), key=lambda end: end.end, default=None)

    def about(self, certificates: frozenset[str]) -> "Revocations":
        """Return the revocations of these certificates only."""
        by_owner = {owner: ids & certificates for owner, ids in self.by_owner.items()}
        ended = {
            owner: MappingProxyType({id_: ends[id_] for id_ in ends if id_ in certificates})
            for owner, ends in self.ended.items()
        }
        return Revocations(
            MappingProxyType({owner: ids for owner, ids in by_owner.items() if ids}),
            MappingProxyType({owner: ends for owner, ends in ended.items() if ends}),
        )

    def listed(self) -> list[tuple[str, str, str]]:
        """Return the content of one revocation: its author, certificates, and until when they counted."""
        found = [(str(owner), id_, "") for owner, ids in self.by_owner.items() for id_ in ids]
        for owner, ends in self.ended.items():
            found += [(str(owner), id_, (end.not_after or b"").decode()) for id_, end in ends.items()]
        return sorted(found)


def _orders(chain: Sequence[SignedValue[PolicyEvent]]) -> Iterator[tuple[PolicyEvent, tuple[str, ...]]]:
    for event in chain:
        for change in event.value.changes:
            if isinstance(change, Revoke):
                yield event.value, change.certificates


def _is_retold(first: PolicyEvent, event: PolicyEvent) -> bool:
    """Return whether an event belongs to a checkpoint that repeats changes from before the chain's beginning."""
    return first.number > 1 and first.checkpoint is not None and event.number <= first.number + first.checkpoint


def _before(time: datetime) -> Validity | None:
    return Validity.between(None, time - _INSTANT) if time > _FIRST else None


# ----------------------------------------------------------------------------------------------------------------------
# Snapshots: a broker's copy of an owner's policy as bytes. The owner's statements, and the broker's signature on them.
#
#     <statement> … (sequence (policy-snapshot (broker <principal>) (owner <principal>) (time <date>) (values <n>)
#                                              (digest <bytes>)) (signature …))
#
# The owner's signatures prove that nothing was changed, the broker's that nothing was removed since it was written. No
# signature can prove that it is the latest one. The owner's time-stamps do.


@dataclass(frozen=True, slots=True)
class PolicySnapshot(Claim):
    """A broker kept so many statements of an owner, and these."""

    HEAD: ClassVar = b"policy-snapshot"
    SIGNER: ClassVar = "broker"
    broker: Principal
    owner: Principal
    time: datetime
    values: int
    digest: Annotated[bytes, DIGEST] = field(repr=False)


def write_snapshot(
    owner: Principal,
    events: Iterable[SignedValue[PolicyEvent]],
    stamps: Iterable[SignedValue[TimeStamp]],
    now: datetime,
    key: SigningKey,
) -> bytes:
    """Return statements of an owner as bytes, signed by the broker that keeps them."""
    return seal_values(owner, [*(event.to_bytes() for event in events), *(one.to_bytes() for one in stamps)], now, key)


def seal_values(owner: Principal, values: Sequence[bytes], now: datetime, key: SigningKey) -> bytes:
    """Return canonical S-expressions about somebody as one file, signed by the broker that stores it."""
    written = b"".join(values)
    # The canonical form of a list is that of its parts, within parentheses.
    seal = sign_value(PolicySnapshot(key.principal, owner, now, len(values), sha256(b"(%b)" % written).digest()), key)
    return written + seal.to_bytes()


def read_snapshot(
    data: bytes, broker: Principal, *, limits: TrustLimits = TRUST_LIMITS
) -> tuple[Principal, list[SignedValue[PolicyEvent]], list[SignedValue[TimeStamp]]]:
    """Return the owner, its policy events and its time-stamps, all verified.

    Raises `MalformedError` and `LimitError` if it cannot be read, and `RefusedError` if it does not verify:
    `evolution.snapshot` for another broker's, or with something added, changed or removed.
    """
    owner, values = open_values(data, broker, limits=limits)
    events: list[SignedValue[PolicyEvent]] = []
    stamps: list[SignedValue[TimeStamp]] = []
    for value in values:
        if _is_stamp(value):
            stamps.append(read_signed(value, TimeStamp).verify())
        else:
            events.append(read_signed(value, PolicyEvent).verify())
    if not {event.value.owner for event in events} | {stamp.value.owner for stamp in stamps} <= {owner}:
        raise malformed("a snapshot speaks about several owners")
    return owner, events, stamps


def open_values(data: bytes, broker: Principal, *, limits: TrustLimits = TRUST_LIMITS) -> tuple[Principal, list[SExp]]:
    """Return what `seal_values` was given. Raises as `read_snapshot`."""
    values = parse_many(data, limits=limits)
    if not values:
        raise malformed("a snapshot of a policy is empty")
    seal = read_signed(values.pop(), PolicySnapshot).verify().value
    if seal.broker != broker or (seal.values, seal.digest) != (len(values), digest(tuple(values))):
        raise RefusedError(
            "evolution.snapshot",
            "a snapshot of policy or of validity statements was changed, or is another broker's",
            hint="remove it: what it contains is fetched from the network again",
        )
    return seal.owner, values


def _is_stamp(value: SExp) -> bool:
    body = value[1] if isinstance(value, tuple) and len(value) > 1 else ()
    return isinstance(body, tuple) and body[:1] == (TimeStamp.HEAD,)


# ----------------------------------------------------------------------------------------------------------------------
# The state of an owner's policy: a fold of its policy events.


#: revoked certificates in one change of a checkpoint
_TOGETHER: Final = 1_000
#: withdrawn certificates that are remembered, to explain refusals
_WITHDRAWN: Final = 256


def _no_types() -> Mapping[TypeName, UnverifiedType]:
    return MappingProxyType({})


def _no_agreements() -> Mapping[str, SExp]:
    return MappingProxyType({})


def _no_profiles() -> Mapping[Principal, SignedValue[ProfileClaim]]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PolicyState:
    """An owner's policy after some number of policy events. Revoked certificates are not among the credentials."""

    credentials: Credentials = field(default_factory=Credentials, repr=False)
    revoked: frozenset[str] = field(default=frozenset(), repr=False)
    types: Mapping[TypeName, UnverifiedType] = field(default_factory=_no_types, repr=False)
    stamps_required: bool = False
    #: the agreements about the owner's types, by name and as they are signed
    agreements: Mapping[str, SExp] = field(default_factory=_no_agreements, repr=False)
    #: verified; the agreements say which signers are authorised
    profiles: Mapping[Principal, SignedValue[ProfileClaim]] = field(default_factory=_no_profiles, repr=False)
    #: the last certificates that were published and then revoked: a checkpoint does not repeat them
    withdrawn: tuple[Certificate, ...] = field(default=(), repr=False, compare=False)

    def after(
        self,
        event: PolicyEvent,
        verifier: CertificateVerifier = verify_certificate,
        *,
        limits: TrustLimits = TRUST_LIMITS,
    ) -> "PolicyState":
        """Return the state after one more event: all of its changes, or none.

        A checkpoint of several events takes effect with the last of them.

        Raises the errors of the verifier and of verifying a profile, and `LimitError` (`evolution.limit`).
        """
        fold = _Fold(self if event.checkpoint is None else PolicyState())
        for change in event.changes:
            fold.take(change, verifier)
        return fold.finish(limits)

    def as_changes(self) -> Iterator[Change]:
        """Yield small changes that lead here from nothing: those of a checkpoint."""
        if self.stamps_required:
            yield RequireStamps()
        revoked = sorted(self.revoked)
        for start in range(0, len(revoked), _TOGETHER):
            yield Revoke(tuple(revoked[start : start + _TOGETHER]))
        for quorum in self.credentials.quorums:
            yield publish(quorums=[quorum])
        yield from (publish(certificate) for certificate in self.credentials)
        yield from (Install(definition) for definition in self.types.values())
        yield from (Agree(name, agreement) for name, agreement in self.agreements.items())
        yield from (PublishProfiles((profile.unverified(),)) for profile in self.profiles.values())


class _Fold:
    """A state that changes; thresholds stay while they are there, since they grant nothing by themselves."""

    def __init__(self, state: PolicyState) -> None:
        self.certificates = {certificate.id: certificate for certificate in state.credentials}
        self.quorums = dict.fromkeys(state.credentials.quorums)
        self.revoked = state.revoked
        self.types = dict(state.types)
        self.stamps_required = state.stamps_required
        self.agreements = dict(state.agreements)
        self.profiles = dict(state.profiles)
        self.withdrawn = state.withdrawn

    def take(self, change: Change, verifier: CertificateVerifier) -> None:
        match change:
            case PublishCertificates(bag):
                found = bag.verify(verifier)
                self.certificates |= {certificate.id: certificate for certificate in found}
                self.quorums |= dict.fromkeys(found.quorums)
            case Revoke(certificates):
                self.revoked |= set(certificates)
            case Install(definition):
                self.types[definition.definition.name] = definition
            case Remove(name):
                self.types.pop(name, None)
            case RequireStamps():
                self.stamps_required = True
            case Agree(agreed, agreement):
                self.agreements[agreed] = agreement
            case EndAgreement(ended):
                self.agreements.pop(ended, None)
            case PublishProfiles(profiles):
                self.profiles |= {profile.value.of: profile.verify() for profile in profiles}
            case ForgetProfiles(principals):
                for principal in principals:
                    self.profiles.pop(principal, None)

    def finish(self, limits: TrustLimits) -> PolicyState:
        # Whatever the order: publishing again does not undo a revocation.
        gone = [self.certificates.pop(id_) for id_ in sorted(self.revoked & self.certificates.keys())]
        sizes = (
            (len(self.certificates), limits.certificates, "certificates"),
            (len(self.quorums), limits.certificates, "quorums"),
            (len(self.revoked), limits.policy_revoked, "revoked certificates"),
            (len(self.types), limits.policy_types, "types"),
            (len(self.agreements), limits.policy_agreements, "agreements"),
            (len(self.profiles), limits.policy_profiles, "profiles"),
        )
        for size, most, what in sizes:
            if size > most:
                raise LimitError("evolution.limit", f"the policy of one owner has more than {most} {what}")
        credentials = Credentials(tuple(self.certificates.values()), tuple(self.quorums))
        return PolicyState(
            credentials,
            self.revoked,
            MappingProxyType(self.types),
            self.stamps_required,
            MappingProxyType(self.agreements),
            MappingProxyType(self.profiles),
            tuple({one.id: one for one in (*self.withdrawn, *gone)}.values())[-_WITHDRAWN:],
        )


def packed(changes: Iterable[Change]) -> list[list[Change]]:
    """Return changes in portions that fit into an event each; the first may be empty."""
    most = POLICY_EVENT_BYTES * 3 // 4
    portions: list[list[Change]] = [[]]
    room = most
    for change in changes:
        size = len(canonical(change.to_sexp()))
        if size > room or len(portions[-1]) >= POLICY_CHANGES:
            portions.append([])
            room = most
        portions[-1].append(change)
        room -= size
    return portions


def publish(*certificates: Certificate, quorums: Iterable[Threshold] = ()) -> PublishCertificates:
    """Return the change that publishes certificates."""
    return PublishCertificates(UnverifiedCredentials(tuple(_unverified(one) for one in certificates), tuple(quorums)))


def _unverified(certificate: Certificate) -> UnverifiedCertificate:
    return read_certificate(*certificate.to_sexps())


class PolicyAuthor:
    """The owner's side: writes the chain, one event after the other, and the time-stamps that carry its head.

    Time does not go back in a chain: waiting for a revocation to be complete depends on it.
    """

    def __init__(self, key: SigningKey, *, verifier: CertificateVerifier = verify_certificate) -> None:
        self._key = key
        self._verifier = verifier
        self.state = PolicyState()
        self.number = 0
        self.head = BEGINNING
        self._time: datetime | None = None

    @property
    def owner(self) -> Principal:
        """The owner of the policy."""
        return self._key.principal

    def resume(self, log: Iterable[SignedValue[PolicyEvent]], latest: SignedValue[TimeStamp] | None = None) -> None:
        """Continue a chain from its events, at least from the last checkpoint, and the last time-stamp.

        Raises `RefusedError` (`evolution.not-next`): continuing from the wrong place would fork the chain.
        """
        for event in log:
            value = event.value
            linked = value.number == self.number + 1 and value.previous == self.head
            if value.owner != self.owner or not (linked or (value.checkpoint is not None and not self.number)):
                raise RefusedError("evolution.not-next", f"policy event {value.number} does not follow {self.number}")
            self._extend(event)
        if latest is not None:
            self._advance(latest.value.time)

    def change(self, now: datetime, *changes: Change, checkpoint: int | None = None) -> SignedValue[PolicyEvent]:
        """Sign the next event. Raises `RefusedError` (`evolution.backwards`), and the errors of reading it back."""
        self._check_time(now)
        value = PolicyEvent(self.owner, self.number + 1, self.head, now, changes, checkpoint)
        event = sign_value(value, self._key)
        self._extend(event)
        return event

    def checkpoint(self, now: datetime) -> list[SignedValue[PolicyEvent]]:
        """Sign events that together hold everything, so that earlier ones can be forgotten."""
        first, *rest = packed(self.state.as_changes())
        return [self.change(now, *first, checkpoint=len(rest)), *(self.change(now, *part) for part in rest)]

    def stamp(self, now: datetime, period: int) -> SignedValue[TimeStamp]:
        """Sign a time-stamp: a broker may go on with it for so many milliseconds."""
        self._check_time(now)
        stamp = sign_value(TimeStamp(self.owner, self.number, self.head, now, period), self._key)
        self._advance(now)
        return stamp

    def _extend(self, event: SignedValue[PolicyEvent]) -> None:
        self.state = self.state.after(event.value, self._verifier)
        self.number, self.head = event.value.number, event.digest
        self._advance(event.value.time)

    def _advance(self, now: datetime) -> None:
        self._time = now if self._time is None else max(self._time, now)

    def _check_time(self, now: datetime) -> None:
        if self._time is not None and now < self._time:
            raise RefusedError(
                "evolution.backwards", "the clock is behind the last signed statement", hint="set the owner's clock"
            )
