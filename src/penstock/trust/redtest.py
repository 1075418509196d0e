"""Reduction cases in the `(red-test …)` form that several SPKI implementations share.

    (red-test (acl (entry …) …) (sequence …) (subject …) (tag …) (valid …))  ->  (acl (entry …) …)

The list is reduced with the sequence; `subject`, `tag` and `valid`, where given, narrow the result. These cases are
about reduction alone: certificates carry no signatures, keys may be any `(public-key …)`, and hashes of 1999 are
understood, which nothing else in Penstock does.
"""

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from penstock.codec.sexp import SExp, canonical
from penstock.codec.sexp import field as sexp_field
from penstock.crypto import digest
from penstock.errors import MalformedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.principals import Principal
from penstock.trust.closure import Closure
from penstock.trust.reduction import FiveTuple, FourTuple
from penstock.trust.subjects import Name, Threshold, read_subject, subject_to_sexp, thresholds
from penstock.trust.tags import Tag, intersect, parse_tag, to_sexp
from penstock.trust.validity import ALWAYS, Validity, parse_validity, validity_to_sexp

_HASHES = (b"md5", b"sha1", b"sha256")
_ANY: SExp = (b"*",)


def reduce_case(case: SExp, *, limits: Limits = DEFAULT_LIMITS) -> SExp:
    """Reduce a `(red-test …)` to an `(acl …)`.

    What was derived last stands first, the entries of the given list last. Raises `MalformedError` (`redtest.malformed`
    and what the parts raise) and `LimitError`.
    """
    if not isinstance(case, tuple) or not case or case[0] != b"red-test":
        raise _malformed("not a reduction case", "expected `(red-test (acl …) (sequence …) …)`")
    for part in case[1:]:
        if (
            not isinstance(part, tuple)
            or not part
            or part[0] not in (b"acl", b"sequence", b"subject", b"tag", b"valid")
        ):
            raise _malformed("a part of the case is not known", "known: acl, sequence, subject, tag, valid")
    ring = _Ring(case)
    acl = sexp_field(case, b"acl")
    if acl is None:
        raise _malformed("the case has no access control list", "add `(acl …)`")
    entries = [_entry(value, ring) for value in acl[1:]]
    fives: list[FiveTuple] = []
    fours: list[FourTuple] = []
    for value in (sexp_field(case, b"sequence") or (b"",))[1:]:
        _collect(value, ring, fives, fours)
    closure = Closure(fives, fours, ring.quorums, exhaustive=True, limits=limits)
    originals = {id(entry) for entry in entries}
    found = closure.follow(entries)
    derived = [grant for grant in found if id(grant) not in originals]
    # An entry about a name is not itself a grant to anybody, but it stays in the list.
    narrowed = _narrow(derived[::-1] + entries, case, ring)
    return (b"acl", *(_entry_to_sexp(entry, ring) for entry in narrowed))


def _narrow(entries: list[FiveTuple], case: tuple[SExp, ...], ring: "_Ring") -> list[FiveTuple]:
    if (subject := sexp_field(case, b"subject")) is not None:
        wanted = ring.subject(_only(subject))
        entries = [entry for entry in entries if entry.subject == wanted]
    if (tag := sexp_field(case, b"tag")) is not None:
        asked = parse_tag(_only(tag))
        entries = [replace(entry, tag=found) for entry in entries if (found := intersect(entry.tag, asked)) is not None]
    if (valid := sexp_field(case, b"valid")) is not None:
        period = parse_validity(valid[1:])
        entries = [
            replace(entry, validity=both) for entry in entries if (both := entry.validity.intersect(period)) is not None
        ]
    return entries


class _Ring:
    """The keys and quorums that a case mentions, so that a hash can be written as what it stands for."""

    def __init__(self, case: SExp) -> None:
        self.quorums: dict[Principal, Threshold] = {}
        self._written: dict[Principal, SExp] = {}
        self._hashed: dict[tuple[bytes, bytes], Principal] = {}
        # Inner lists first, so that a quorum finds its members by their hashes; beside each other, as they stand.
        for _, value in sorted(_mentioned(case), key=lambda found: -found[0]):
            try:
                principal = self._quorum(value) if value[0] == b"k-of-n" else Principal(digest(value))
            except MalformedError:
                continue  # in a tag it may be anything; where a subject is wanted it is read again
            self._written[principal] = value
            data = canonical(value)
            for algorithm in _HASHES:
                # Not for security: the cases name keys by these hashes.
                octets = hashlib.new(algorithm.decode(), data, usedforsecurity=False).digest()
                self._hashed[algorithm, octets] = principal

    def principal(self, value: SExp) -> Principal:
        match value:
            case (b"public-key", _, *_):
                return Principal(digest(value))
            case (b"hash", bytes(algorithm), bytes(octets)) if algorithm in _HASHES:
                known = self._hashed.get((algorithm, octets))
                if known is None:
                    known = Principal(digest(value))
                    self._written[known] = value
                return known
        raise _malformed("not a principal", "expected `(public-key …)` or `(hash md5|sha1|sha256 …)`")

    def subject(self, value: SExp) -> Principal | Name:
        subject = read_subject(value, self.principal)
        return subject.principal if isinstance(subject, Threshold) else subject

    def _quorum(self, value: SExp) -> Principal:
        (quorum, *_) = thresholds(read_subject(value, self.principal))
        return self.quorums.setdefault(quorum.principal, quorum).principal

    def write(self, principal: Principal) -> SExp:
        return self._written[principal]


def _mentioned(value: SExp) -> Iterator[tuple[int, tuple[SExp, ...]]]:
    """Yield all keys and quorums in a value, with their depth in it."""
    pending = deque([(0, value)])
    while pending:
        depth, current = pending.popleft()
        if isinstance(current, tuple):
            if len(current) > 1 and current[0] in (b"public-key", b"k-of-n"):
                yield depth, current
            pending += [(depth + 1, part) for part in current]


def _entry(value: SExp, ring: _Ring) -> FiveTuple:
    if not isinstance(value, tuple) or not value or value[0] != b"entry":
        raise _malformed("a list holds something else than entries", "expected `(entry (subject …) (tag …) …)`")
    return _five(value, None, ring)


def _five(value: tuple[SExp, ...], issuer: Principal | None, ring: _Ring) -> FiveTuple:
    subject = sexp_field(value, b"subject")
    if subject is None:
        raise _malformed("an entry or certificate has no subject", "add `(subject …)`")
    return FiveTuple(
        issuer, ring.subject(_only(subject)), sexp_field(value, b"propagate") is not None, _tag(value), _validity(value)
    )


def _tag(value: tuple[SExp, ...]) -> Tag:
    tag = sexp_field(value, b"tag")
    return parse_tag(_ANY if tag is None else _only(tag))


def _validity(value: tuple[SExp, ...]) -> Validity:
    valid = sexp_field(value, b"valid")
    return ALWAYS if valid is None else parse_validity(valid[1:])


def _collect(value: SExp, ring: _Ring, fives: list[FiveTuple], fours: list[FourTuple]) -> None:
    match value:
        case (b"cert", *_):
            issuer = sexp_field(value, b"issuer")
            subject = sexp_field(value, b"subject")
            if issuer is None or subject is None:
                raise _malformed("a certificate lacks issuer or subject", "add them")
            match _only(issuer):
                case (b"name", tuple(principal), bytes(name)):
                    meaning = ring.subject(_only(subject))
                    fours.append(FourTuple(ring.principal(principal), name, meaning, _validity(value)))
                case other:
                    fives.append(_five(value, ring.principal(other), ring))
        case (b"public-key" | b"k-of-n" | b"signature" | b"do", *_):
            pass  # keys and quorums are in the ring already; signatures are not what these cases are about
        case _:
            raise _malformed("a sequence holds something unknown", "known: cert, public-key, k-of-n, signature, do")


def _entry_to_sexp(entry: FiveTuple, ring: _Ring) -> SExp:
    parts: list[SExp] = [(b"subject", subject_to_sexp(entry.subject, ring.write))]
    if entry.propagate:
        parts.append((b"propagate",))
    parts.append((b"tag", to_sexp(entry.tag)))
    if (valid := validity_to_sexp(entry.validity)) is not None:
        parts.append(valid)
    return (b"entry", *parts)


def _only(value: tuple[SExp, ...]) -> SExp:
    if len(value) != 2:
        raise _malformed("a field has not exactly one value", "write `(field value)`")
    return value[1]


def _malformed(message: str, hint: str) -> MalformedError:
    return MalformedError("redtest.malformed", message, hint=hint)
