"""Rules agreed through the moderator as a source of authority, and how it meets the others.

For types that an agreement concerns, publishing and subscribing need what was agreed: together with certificates, both
of which must allow (`AgreementMode.BOTH`), or by itself (`AgreementMode.ALONE`). All other rights, and all other types,
are not touched. It fails closed: who has no profile, a type below the agreed ones that is not among them, an agreement
that cannot be read, or two that do not overlap give nothing.

It is about those who publish and subscribe. Brokers that carry, seal and open events for others are not asked for
profiles; their rights come from certificates alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from types import MappingProxyType
from typing import Final

from penstock.codec.sexp import SExp
from penstock.crypto import digest
from penstock.errors import PenstockError, RefusedError
from penstock.guard.agreed_rules import AgreedRules
from penstock.guard.agreements import Agreement, AgreementMode, described
from penstock.guard.decision import Authority, DecisionProblem, EventRequest, Request, Ruling
from penstock.model.limits import CACHE_ENTRIES
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.trust.capabilities import Right
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import SignedValue, read_signed
from penstock.trust.validity import Validity

_RIGHTS: Final = frozenset({Right.PUBLISH, Right.SUBSCRIBE})


@dataclass(frozen=True, slots=True)
class Agreements:
    """All known agreements."""

    rules: tuple[AgreedRules, ...] = ()
    #: owners with an agreement that could not be parsed: nothing of theirs is permitted until that is settled
    unread: Mapping[Principal, DecisionProblem] = field(default_factory=lambda: MappingProxyType({}))
    #: tells what was agreed on from anything else, for logs
    revision: str = ""

    def __add__(self, other: "Agreements") -> "Agreements":
        """Return all that either holds: where both are about a type, both must allow."""
        unread = MappingProxyType({**self.unread, **other.unread})
        revision = " ".join(one for one in (self.revision, other.revision) if one)
        return Agreements((*self.rules, *other.rules), unread, revision)

    def about(self, event_type: EventType) -> tuple[AgreedRules, ...]:
        """Return the agreed rules about a type. Raises `RefusedError` with the reason if they could not be parsed."""
        problem = self.unread.get(event_type.name.owner)
        if problem is not None:
            raise RefusedError(problem.code, problem.message)
        return tuple(rules for rules in self.rules if rules.agreement.concerns(event_type))

    def validities(self) -> Iterator[Validity]:
        """Yield while the rules and profiles hold on which rights rest."""
        for rules in self.rules:
            yield from rules.validities()

    def over(self, authority: Authority) -> Authority:
        """Return a source of authority that is restricted by the agreed rules."""
        return Agreed(authority, self) if self.rules or self.unread else authority


NO_AGREEMENTS: Final = Agreements()


@dataclass(frozen=True, slots=True)
class Agreed:
    """A source of authority, restricted by agreed rules. See the module."""

    authority: Authority
    agreements: Agreements

    def rule(self, request: Request) -> Ruling:
        """Return the ruling. Raises errors of the source and of `AgreedRules.rule`."""
        if not isinstance(request, EventRequest) or request.action not in _RIGHTS:
            return self.authority.rule(request)
        found = self.agreements.about(request.type.event_type)
        if not found:
            return self.authority.rule(request)
        rulings = [rules.rule(request) for rules in found]
        if any(rules.agreement.combining is AgreementMode.BOTH for rules in found):
            rulings.insert(0, self.authority.rule(request))
        return reduce(and_, rulings[1:], Ruling() | rulings[0])


class AgreementReader:
    """Reads what owners announce, each agreement and its profiles once while they stay the same."""

    def __init__(self, entries: int = CACHE_ENTRIES) -> None:
        self._entries = entries
        self._agreements: dict[bytes, Agreement] = {}
        self._rules: dict[tuple[bytes, ...], AgreedRules] = {}

    def read(self, announced: Iterable["Announced"]) -> Agreements:
        """Return everything that owners have announced; nothing of an owner with something that cannot be parsed."""
        agreements, rules = self._agreements, self._rules
        self._agreements, self._rules = {}, {}
        found: list[AgreedRules] = []
        unread: dict[Principal, DecisionProblem] = {}
        for one in announced:
            claims = tuple(one.profiles.values())
            for name, signed in one.agreements.items():
                key = digest(signed)
                about = (key, *(claim.digest for claim in claims))
                try:
                    agreement = agreements.get(key) or read_agreement(signed, one.owner)
                    kept = rules.get(about) or AgreedRules(agreement, described(agreement, claims), self._entries)
                except PenstockError as error:
                    message = f"the agreement `{name}` of {one.owner.short} cannot be read: {error.message}"
                    unread[one.owner] = DecisionProblem(error.code, message)
                    continue
                self._agreements[key], self._rules[about] = agreement, kept
                found.append(kept)
        return Agreements(tuple(found), MappingProxyType(unread), _revision(self._rules, unread))


def agreed_on(
    agreements: Iterable[Agreement], claims: Sequence[SignedValue[ProfileClaim]], entries: int = CACHE_ENTRIES
) -> Agreements:
    """Return agreements that somebody has read and verified, with the profiles that count for each."""
    found: dict[tuple[bytes, ...], AgreedRules] = {}
    said = sorted(claim.digest for claim in claims)
    for agreement in agreements:
        about = (digest(agreement.to_sexp()), *said)
        found[about] = AgreedRules(agreement, described(agreement, claims), entries)
    return Agreements(tuple(found.values()), revision=_revision(found, ()))


def _revision(keys: Iterable[tuple[bytes, ...]], unread: Iterable[Principal]) -> str:
    parts: tuple[SExp, ...] = (*sorted(keys), *(str(owner).encode() for owner in sorted(unread)))
    return f"agreed:{digest(parts).hex()[:16]}" if parts else ""


@dataclass(frozen=True, slots=True)
class Announced:
    """The announcements of one owner: signed agreements, and verified profiles."""

    owner: Principal
    agreements: Mapping[str, SExp] = field(repr=False)
    profiles: Mapping[Principal, SignedValue[ProfileClaim]] = field(repr=False)


def read_agreement(signed: SExp, owner: Principal | None = None) -> Agreement:
    """Read and verify an agreement, as that of an owner if one is given.

    Raises `MalformedError` (`evolution.malformed`, and what its parts raise), `RefusedError`
    (`evolution.wrong-key`, `evolution.signature-mismatch`, `evolution.foreign-agreement`, `key.bad-signature`).
    """
    agreement = read_signed(signed, Agreement).verify().value
    if owner is not None and agreement.owner != owner:
        raise RefusedError("evolution.foreign-agreement", "an agreement is about the types of somebody else")
    return agreement
