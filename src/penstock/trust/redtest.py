"""Reduction cases in the `(red-test …)` form that several SPKI implementations share.

    (red-test (acl (entry …) …) (sequence …) (subject …) (tag …) (valid …))  ->  (acl (entry …) …)

The list is reduced with the sequence; `subject`, `tag` and `valid`, where given, narrow the result. These cases are
about reduction alone: certificates carry no signatures, keys may be any `(public-key …)`, and what implementations of
1999 wrote is understood, which nothing else in Penstock does:

    (hash md5|sha1 …)             the hash of a key or a threshold in the case
    (* range date (g "1998"))     limits in lists of their own, in either order
    (* range time ge <date>)      a range of dates
    (not-after "1998")            a date cut short, which means its first instant
    (k-of-n #02# #03# …)          numbers in binary
    (subject (name fred))         a name relative to the issuer of the certificate

A field that is not known is refused, since it might restrict.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from penstock.codec.limits import SEXP_DEPTH
from penstock.codec.sexp import SExp, canonical, head
from penstock.codec.sexp import field as sexp_field
from penstock.crypto import digest
from penstock.errors import MalformedError
from penstock.model.principals import Principal
from penstock.trust.certificates import Name, Threshold, read_subject, subject_to_sexp
from penstock.trust.discovery import Closure, FiveTuple, FourTuple
from penstock.trust.limits import TRUST_LIMITS, TrustLimits
from penstock.trust.tags import Tag, intersect, parse_tag, to_sexp
from penstock.trust.validity import ALWAYS, Validity, parse_validity, validity_to_sexp

_HASHES = (b"md5", b"sha1", b"sha256")
_ANY: SExp = (b"*",)
#: fields that restrict nothing: notes for people, and where keys and certificates can be found
_NOTES: Final = frozenset({b"comment", b"display", b"issuer-loc", b"subject-loc"})
_ENTRY: Final = _NOTES | {b"entry", b"subject", b"propagate", b"tag", b"valid"}
_CERT: Final = _NOTES | {b"cert", b"issuer", b"subject", b"propagate", b"tag", b"valid"}
_SHORT_DATE: Final = re.compile(rb"[0-9]{4}(-[0-9]{2})?")
_LONG_DATE: Final = re.compile(rb"[0-9]{4}(-[0-9]{2}(-[0-9]{2}(_.*)?)?)?", re.DOTALL)
_LOWER: Final = (b"g", b"ge")
_UPPER: Final = (b"l", b"le")


def reduce_case(case: SExp, *, limits: TrustLimits = TRUST_LIMITS) -> SExp:
    """Reduce a `(red-test …)` to an `(acl …)`.

    The last derived entry comes first, the entries of the given list last. Names that led to a grant are listed, and
    the members of a `(k-of-n k n …)` that led to one, as `(k-of-n k k …)`. Raises `MalformedError` (`redtest.malformed`
    and errors of the parts) and `LimitError`.
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
    case = tuple(_modern(part, SEXP_DEPTH) for part in case)
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
    derived = [ring.listed(grant) for grant in found if id(grant) not in originals]
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
    """The keys and quorums that a case mentions, so that a hash can be replaced by them."""

    def __init__(self, case: SExp) -> None:
        self.quorums: dict[Principal, Threshold] = {}
        self._written: dict[Principal, SExp] = {}
        self._hashed: dict[tuple[bytes, bytes], SExp] = {}
        self._read: dict[SExp, Principal] = {}
        self._depth = 0
        for value in _mentioned(case):
            data = canonical(value)
            for algorithm in _HASHES:
                # Not for security: the cases name keys by these hashes.
                hashed = hashlib.new(algorithm.decode(), data, usedforsecurity=False).digest()
                self._hashed[algorithm, hashed] = _modern(value, SEXP_DEPTH)

    def principal(self, value: SExp) -> Principal:
        match value:
            case (b"public-key", _, *_):
                return self._note(Principal(digest(value)), value)
            case (b"hash", bytes(algorithm), bytes(hashed)) if algorithm in _HASHES:
                meant = self._hashed.get((algorithm, hashed))
                if meant is None:
                    return self._note(Principal(digest(value)), value)
                return self._quorum(meant) if head(meant) == b"k-of-n" else self.principal(meant)
        raise _malformed("not a principal", "expected `(public-key …)` or `(hash md5|sha1|sha256 …)`")

    def subject(self, value: SExp, issuer: Principal | None = None) -> Principal | Name:
        """Read a subject; a name without a principal is one of its issuer's."""
        if head(value) == b"k-of-n":
            return self._quorum(value)
        match value:
            case (b"name", bytes(), *_) if issuer is None:
                raise _malformed("a relative name has no issuer here", "write `(name <principal> <name> …)`")
            case (b"name", bytes(), *_) if issuer is not None and isinstance(value, tuple):
                value = (b"name", self.write(issuer), *value[1:])
        subject = read_subject(value, self.principal)
        return subject.principal if isinstance(subject, Threshold) else subject

    def listed(self, grant: FiveTuple) -> FiveTuple:
        """Return a grant to members of a quorum as one to the quorum that these are, which can be written then."""
        if not isinstance(grant.subject, Threshold):
            return grant
        return replace(grant, subject=self._quorum(subject_to_sexp(grant.subject, self.write)))

    def write(self, principal: Principal) -> SExp:
        return self._written[principal]

    def _quorum(self, value: SExp) -> Principal:
        """Read a quorum, and those within it; each once, since many may name one by its hash."""
        if value not in self._read:
            if self._depth > SEXP_DEPTH:
                raise _malformed("quorums name each other by hash too deeply", "write them out")
            self._depth += 1
            quorum = read_subject(value, self.principal)
            for member in value[3:] if isinstance(value, tuple) else ():
                if head(member) == b"k-of-n":
                    self._quorum(member)
            self._depth -= 1
            if not isinstance(quorum, Threshold):
                raise _malformed("not a quorum", "expected `(k-of-n k n subject …)`")
            self.quorums[quorum.principal] = quorum
            self._read[value] = self._note(quorum.principal, value)
        return self._read[value]

    def _note(self, principal: Principal, value: SExp) -> Principal:
        self._written[principal] = value
        return principal


def _mentioned(value: SExp) -> Iterator[SExp]:
    """Yield all keys and quorums in a value."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, tuple):
            if len(current) > 1 and current[0] in (b"public-key", b"k-of-n"):
                yield current
            pending += current


def _modern(value: SExp, depth: int) -> SExp:
    """Return a part of a case with older notation written as RFC 2693 has it."""
    if not isinstance(value, tuple) or not depth:
        return value
    match value:
        case (b"not-before" | b"not-after", bytes(date)):
            return (value[0], _whole_date(date))
        case (b"valid", bytes(date)):
            return (b"valid", _whole_date(date))
        case (b"k-of-n", bytes(k), bytes(n), *members):
            return (b"k-of-n", _decimal(k), _decimal(n), *(_modern(one, depth - 1) for one in members))
        case (b"tag", *tags):
            return (b"tag", *(_modern_tag(tag, depth - 1) for tag in tags))
    return tuple(_modern(part, depth - 1) for part in value)


def _modern_tag(tag: SExp, depth: int) -> SExp:
    if not isinstance(tag, tuple) or not depth:
        return tag
    match tag:
        case (b"*", b"range", bytes(ordering), *limits) if limits:
            return _range(ordering, limits)
    return tuple(_modern_tag(part, depth - 1) for part in tag)


def _whole_date(date: bytes) -> bytes:
    """Return a year or a month as its first day; every other date as it is."""
    return date + b"-01-01"[len(date) - 4 :] if _SHORT_DATE.fullmatch(date) else date


def _decimal(number: bytes) -> bytes:
    """Return a binary number in decimal; one in decimal as it is."""
    return number if number.isdigit() or not 1 <= len(number) <= 2 else str(int.from_bytes(number, "big")).encode()


def _range(ordering: bytes, limits: list[SExp]) -> SExp:
    """Return a range with its limits as words, the lower one first."""
    words: list[SExp] = []
    for limit in limits:
        match limit:
            case (bytes(word), bytes(bound)):
                words += (word, bound)
            case _:
                words.append(limit)
    if len(words) == 4 and words[0] in _UPPER and words[2] in _LOWER:
        words = words[2:] + words[:2]
    bounds = [bound for bound in words[1::2] if isinstance(bound, bytes)]
    if ordering == b"time" and all(_LONG_DATE.fullmatch(bound) for bound in bounds):
        ordering = b"date"
    return (b"*", b"range", ordering, *words)


def _check_fields(value: tuple[SExp, ...], known: frozenset[bytes]) -> None:
    for part in value[1:]:
        name = part[0] if isinstance(part, tuple) and part else None
        if name not in known:
            shown = name.decode("ascii", "backslashreplace")[:40] if isinstance(name, bytes) else "…"
            raise _malformed(
                f"the field `{shown}` is not known, and might restrict",
                f"known: {', '.join(sorted(one.decode() for one in known - {b'entry', b'cert'}))}",
            )


def _entry(value: SExp, ring: _Ring) -> FiveTuple:
    if not isinstance(value, tuple) or not value or value[0] != b"entry":
        raise _malformed("a list holds something else than entries", "expected `(entry (subject …) (tag …) …)`")
    _check_fields(value, _ENTRY)
    return _five(value, None, ring)


def _five(value: tuple[SExp, ...], issuer: Principal | None, ring: _Ring) -> FiveTuple:
    subject = sexp_field(value, b"subject")
    if subject is None:
        raise _malformed("an entry or certificate has no subject", "add `(subject …)`")
    propagate = sexp_field(value, b"propagate") is not None
    return FiveTuple(issuer, ring.subject(_only(subject), issuer), propagate, _tag(value), _validity(value))


def _tag(value: tuple[SExp, ...]) -> Tag:
    tag = sexp_field(value, b"tag")
    return parse_tag(_ANY if tag is None else _only(tag))


def _validity(value: tuple[SExp, ...]) -> Validity:
    valid = sexp_field(value, b"valid")
    return ALWAYS if valid is None else parse_validity(valid[1:])


def _collect(value: SExp, ring: _Ring, fives: list[FiveTuple], fours: list[FourTuple]) -> None:
    match value:
        case (b"cert", *_):
            _check_fields(value, _CERT)
            issuer = sexp_field(value, b"issuer")
            subject = sexp_field(value, b"subject")
            if issuer is None or subject is None:
                raise _malformed("a certificate lacks issuer or subject", "add them")
            match _only(issuer):
                case (b"name", tuple(principal), bytes(name)):
                    namer = ring.principal(principal)
                    fours.append(FourTuple(namer, name, ring.subject(_only(subject), namer), _validity(value)))
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
