"""Determine which certificates no longer count, and for which owners.

An owner's revocation counts in everything that is decided by that owner's word, whoever issued the certificate; and a
certificate that its own issuer revoked counts nowhere. So nobody takes from others what is not his to give.

Whoever decides about the moment knows what is revoked now, and strikes it out. A decision about a history uses
the chains of owners: what was revoked counted until the order was signed, and the past stays as it was.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from penstock.model.principals import Principal
from penstock.trust.credentials import Credentials
from penstock.trust.policy.events import PolicyEvent, Revoke
from penstock.trust.signed import SignedValue
from penstock.trust.validity import Validity

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
    #: those that have counted, until when
    ended: Mapping[Principal, Mapping[str, Validity]] = field(default_factory=_never, repr=False)

    @classmethod
    def of_chains(cls, chains: Iterable[Sequence[SignedValue[PolicyEvent]]]) -> "Revocations":
        """Return what is revoked by chains of policy events, which are verified, one chain an owner.

        What a checkpoint says that a chain begins with, was said before, nobody knows when: it counts at no time.
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
        """Return the credentials without those that count at no time where `root` decides; the same where none is."""
        kept = tuple(one for one in credentials.certificates if not self.revoked(one.id, (root, one.statement.issuer)))
        return credentials if len(kept) == len(credentials) else Credentials(kept, credentials.quorums)

    def revoked(self, certificate: str, by: Iterable[Principal]) -> bool:
        """Say whether a certificate counts at no time, since one of these principals has revoked it."""
        return any(certificate in self.by_owner.get(principal, ()) for principal in by)

    def ends(self, credentials: Credentials, root: Principal) -> dict[str, Validity]:
        """Return until when those of some credentials count, by id, that were revoked where `root` decides."""
        if not self.ended:
            return {}
        found = ((one.id, self.end(one.id, (root, one.statement.issuer))) for one in credentials.certificates)
        return {id_: end for id_, end in found if end is not None}

    def end(self, certificate: str, by: Iterable[Principal]) -> Validity | None:
        """Return until when a certificate counts that one of these principals has revoked; None where none has."""
        ends = (self.ended.get(principal, {}).get(certificate) for principal in by)
        return min((end for end in ends if end is not None), key=lambda end: end.end, default=None)

    def about(self, certificates: frozenset[str]) -> "Revocations":
        """Return what is said of some certificates, and nothing of others."""
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
    """Say whether an event tells what was said before a chain begins: there is something before, and it is of that."""
    return first.number > 1 and first.checkpoint is not None and event.number <= first.number + first.checkpoint


def _before(time: datetime) -> Validity | None:
    return Validity.between(None, time - _INSTANT) if time > _FIRST else None
