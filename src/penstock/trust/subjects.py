"""Subjects of certificates: a key or its hash, a name chain, a k-of-n threshold (RFC 2693; paper 5, 2.6).

    principal   (public-key …) | (hash sha256 <bytes>)
    name        (name <principal> <name> …)
    threshold   (k-of-n <k> <n> <subject> …)

A principal is identified by the SHA-256 of its canonical S-expression. The weaker hashes of 1999 are refused here;
the reader of test cases passes its own `principal` function that accepts them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from penstock.codec.sexp import SExp
from penstock.crypto import PublicKey, digest
from penstock.errors import LimitError, MalformedError
from penstock.model.principals import DIGEST_BYTES, THRESHOLD, Principal
from penstock.trust.limits import NAME_LENGTH, THRESHOLD_MEMBERS

#: thresholds inside each other, written out
QUORUM_DEPTH: Final = 8


@dataclass(frozen=True, slots=True)
class Name:
    """A name in a principal's own name space: `(name Met "Met Brokers")`, possibly chained through others'."""

    principal: Principal
    names: tuple[bytes, ...]

    def __str__(self) -> str:
        return f"{self.principal.short} {' '.join(repr(name.decode(errors='replace')) for name in self.names)}"


@dataclass(frozen=True, slots=True)
class Threshold:
    """Any k of n subjects acting together; `principal` is the hash of its written form, and what it is compared by.

    Raises `MalformedError` (`subject.threshold`), `LimitError` (`subject.limit`).
    """

    k: int = field(compare=False)
    subjects: tuple["Subject", ...] = field(compare=False)
    principal: Principal = field(init=False, repr=False)
    depth: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.subjects) > THRESHOLD_MEMBERS:
            raise LimitError("subject.limit", f"a threshold has more than {THRESHOLD_MEMBERS} members")
        depth = 1 + max((member.depth for member in self.subjects if isinstance(member, Threshold)), default=0)
        if depth > QUORUM_DEPTH:
            raise LimitError("subject.limit", f"more than {QUORUM_DEPTH} thresholds inside each other")
        if not 1 <= self.k <= len(self.subjects):
            raise MalformedError(
                "subject.threshold",
                f"{self.k} of {len(self.subjects)} subjects make no quorum",
                hint="k lies between 1 and the number of subjects",
            )
        # A quorum within this one is the same subject written out and by its hash.
        members = {member.principal if isinstance(member, Threshold) else member for member in self.subjects}
        if len(members) != len(self.subjects):
            raise MalformedError("subject.threshold", "a threshold names a subject twice, who would count twice")
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "principal", Principal(digest(subject_to_sexp(self)), THRESHOLD))

    def __str__(self) -> str:
        return f"{self.k} of {len(self.subjects)} ({self.principal.short})"


Subject: TypeAlias = Principal | Name | Threshold


def read_principal(value: SExp) -> Principal:
    """Read a key or its hash. Raises `MalformedError` (`subject.malformed`, `subject.weak-hash`, `key.malformed`)."""
    match value:
        case (b"public-key", *_):
            return PublicKey.from_sexp(value).principal
        case (b"hash", b"sha256", bytes(octets)) if len(octets) == DIGEST_BYTES:
            return Principal(octets)
        case (b"hash", bytes(algorithm), bytes(), *_) if algorithm != b"sha256":
            raise MalformedError("subject.weak-hash", f"hash `{algorithm[:20]!r}` is not accepted", hint="use sha256")
    raise MalformedError("subject.malformed", "not a principal", hint="expected `(public-key …)` or `(hash sha256 …)`")


def read_subject(value: SExp, principal: Callable[[SExp], Principal] = read_principal) -> Subject:
    """Read a subject.

    Raises `MalformedError`: `subject.malformed`, `subject.threshold`, what `principal` raises; `LimitError`
    (`subject.limit`).
    """
    match value:
        case (b"name", tuple(base), *names):
            return Name(principal(base), _names(names))
        case (b"k-of-n", bytes(k), bytes(n), *members):
            count, total = _number(k), _number(n)
            if total != len(members):
                raise MalformedError("subject.threshold", f"a threshold of {total} lists {len(members)} subjects")
            # S-expressions are bounded in depth, and so is this recursion.
            return Threshold(count, tuple(read_subject(member, principal) for member in members))
    return principal(value)


def _names(names: list[SExp]) -> tuple[bytes, ...]:
    if not names or len(names) > NAME_LENGTH:
        raise MalformedError("subject.malformed", f"a name chain has 1 to {NAME_LENGTH} names, not {len(names)}")
    checked = tuple(name for name in names if isinstance(name, bytes) and name)
    if len(checked) != len(names):
        raise MalformedError("subject.malformed", "a name in a name chain is not a non-empty byte string")
    return checked


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 4 or (text[:1] == b"0" and text != b"0"):
        raise MalformedError("subject.threshold", "a threshold's k and n are decimal numbers")
    return int(text)


def principal_to_sexp(principal: Principal) -> SExp:
    """Return the hash form, which every principal has."""
    return (b"hash", b"sha256", principal.digest)


def subject_to_sexp(subject: Subject, principal: Callable[[Principal], SExp] = principal_to_sexp) -> SExp:
    """Return the written form of a subject."""
    if isinstance(subject, Principal):
        return principal(subject)
    if isinstance(subject, Name):
        return (b"name", principal(subject.principal), *subject.names)
    members = tuple(subject_to_sexp(member, principal) for member in subject.subjects)
    return (b"k-of-n", str(subject.k).encode(), str(len(members)).encode(), *members)


def thresholds(subject: Subject) -> Iterator[Threshold]:
    """Yield every threshold within a subject, outermost first."""
    if isinstance(subject, Threshold):
        yield subject
        for member in subject.subjects:
            yield from thresholds(member)


def describe(subject: Subject) -> str:
    """Return a short text for people."""
    return subject.short if isinstance(subject, Principal) else str(subject)
