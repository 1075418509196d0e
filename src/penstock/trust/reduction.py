"""Tuples, and the reduction of a chain of them (RFC 2693, section 6; paper 5, section 2.6.1).

    (I1, S1, D1, A1, V1) + (I2, S2, D2, A2, V2)  =>  (I1, S2, D2, A1 ∩ A2, V1 ∩ V2)
    iff A1 ∩ A2 and V1 ∩ V2 are not empty, S1 = I2 and D1 holds

A certificate lower in a chain may therefore be wider than one above it: the result is the intersection.

This module reduces one ordered chain. For a bag of certificates see `discovery` and `closure`.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import LimitError, RefusedError
from penstock.model.limits import CACHE_ENTRIES
from penstock.model.principals import Principal
from penstock.trust.certificates import Authorisation, Certificate
from penstock.trust.limits import CHAIN_LENGTH
from penstock.trust.subjects import Subject, describe
from penstock.trust.tags import NOTHING, Tag, TagBudget, intersect
from penstock.trust.validity import Validity


@dataclass(frozen=True, slots=True)
class FiveTuple:
    """An authorisation without its signature. `issuer` is None for an entry of the verifier's own list (ACL)."""

    issuer: Principal | None
    subject: Subject
    propagate: bool
    tag: Tag
    validity: Validity
    because: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FourTuple:
    """A name without its signature."""

    issuer: Principal
    name: bytes
    subject: Subject
    validity: Validity
    because: tuple[str, ...] = ()


def reduce_pair(upper: FiveTuple, lower: FiveTuple, room: TagBudget | None = None) -> FiveTuple | None:
    """Apply the reduction rule once; None where it does not apply. Raises `LimitError` as `intersect` does."""
    if not upper.propagate or upper.subject != lower.issuer:
        return None
    tag = intersect(upper.tag, lower.tag, room=room)
    validity = upper.validity.intersect(lower.validity)
    if tag is None or validity is None:
        return None
    return FiveTuple(upper.issuer, lower.subject, lower.propagate, tag, validity, upper.because + lower.because)


def reduce_chain(chain: Sequence[Certificate]) -> FiveTuple:
    """Collapse a chain of authorisations, from the root's to the last, into one 5-tuple.

    The certificates are verified, and stand in order; `discover` finds such a chain in a bag. Raises
    `RefusedError` that names the link at fault: `chain.empty`, `chain.not-linked`, `chain.no-propagate`,
    `chain.no-authority`, `chain.no-validity`; `LimitError` (`chain.limit`).
    """
    if not chain or len(chain) > CHAIN_LENGTH:
        raise _bad_length(len(chain))
    first = _authorisation(chain[0], 0)
    subject, propagate, tag, validity = first.subject, first.propagate, first.tag, first.validity
    if tag == NOTHING:
        raise _broken("chain.no-authority", 0, "gives no right at all", chain)
    for position in range(1, len(chain)):
        link = _authorisation(chain[position], position)
        if subject != link.issuer:
            raise _broken(
                "chain.not-linked", position, f"is issued by {link.issuer.short}, not by {describe(subject)}", chain
            )
        if not propagate:
            raise _broken("chain.no-propagate", position, "follows one that may not be passed on", chain)
        narrowed = intersect(tag, link.tag)
        if narrowed is None:
            raise _broken("chain.no-authority", position, "has no right in common with those above it", chain)
        period = validity.intersect(link.validity)
        if period is None:
            raise _broken("chain.no-validity", position, "is valid at no time at which those above it are", chain)
        subject, propagate, tag, validity = link.subject, link.propagate, narrowed, period
    return FiveTuple(first.issuer, subject, propagate, tag, validity, tuple([link.id for link in chain]))


def _authorisation(certificate: Certificate, position: int) -> Authorisation:
    statement = certificate.statement
    if isinstance(statement, Authorisation):
        return statement
    raise RefusedError(
        "chain.not-linked",
        f"certificate {position + 1} of the chain is a name certificate",
        hint="resolve names with `discover`",
    )


def _bad_length(length: int) -> RefusedError | LimitError:
    if not length:
        return RefusedError("chain.empty", "a chain of no certificates authorises nothing")
    return LimitError("chain.limit", f"a chain of {length} certificates is longer than {CHAIN_LENGTH}")


def _broken(code: str, position: int, what: str, chain: Sequence[Certificate]) -> RefusedError:
    return RefusedError(
        code,
        f"certificate {position + 1} of the chain {what}",
        hint="`penstock explain` shows which link is missing",
        certificate=chain[position].id,
    )


class ReductionCache:
    """Remembers what chains reduce to. Bounded; what was used least recently goes first.

    A reduction does not depend on the time: dates are part of the result and are asked at each use.
    """

    def __init__(self, entries: int = CACHE_ENTRIES) -> None:
        self._entries: Final = entries
        self._known: OrderedDict[tuple[str, ...], FiveTuple] = OrderedDict()

    def reduce(self, chain: Sequence[Certificate]) -> FiveTuple:
        """Return `reduce_chain(chain)`, computed once. Raises what it raises; failures are not remembered."""
        key = tuple([link.id for link in chain])
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = reduce_chain(chain)
            if len(self._known) > self._entries:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return known

    def __len__(self) -> int:
        return len(self._known)
