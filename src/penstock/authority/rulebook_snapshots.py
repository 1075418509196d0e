"""Snapshots of a rule book count by the word of its moderator.

    (kept <state> [<signed statement>])
    (rule-book-snapshot (book <digest>) (by <moderator>) (number <number>) (hash <hash>) (state <digest>))

Who opens a book from a snapshot does not see what led there. So the moderator signs which state, of which head, and one
without its signature is passed over; in a book in which nobody signs anything, they are kept as they are.

Whoever else writes to a book keeps snapshots too, beside those of the moderator and signed with its own key. They count
for nobody else: they say what it has verified itself before.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import ClassVar

from penstock.authority.rulebook_records import malformed, read_founding
from penstock.codec.sexp import SExp, canonical, parse_canonical
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.model.limits import wide
from penstock.model.principals import Principal
from penstock.moderator.founding import Founding
from penstock.store.ledgers import Ledger
from penstock.store.records import Head
from penstock.trust.signed import one, read_count, read_digest, read_owner, read_signed, sign_value


@dataclass(frozen=True, slots=True)
class Vouched:
    """What a rule book has come to at a head, by the word of its moderator, or of whoever keeps it for itself."""

    HEAD: ClassVar = b"rule-book-snapshot"
    book: bytes = field(repr=False)
    by: Principal
    number: int
    hash: bytes = field(repr=False)
    #: the digest of the state
    state: bytes = field(repr=False)

    @classmethod
    def of(cls, founding: Founding, head: Head, data: bytes, by: Principal | None = None) -> "Vouched":
        """Return what is to be signed, by the moderator if nobody else is named."""
        return cls(founding.digest, by or founding.moderator, head.number, head.hash, sha256(data).digest())

    @property
    def signer(self) -> Principal:
        """The moderator, or whoever it counts for alone."""
        return self.by

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        return (
            self.HEAD,
            (b"book", self.book),
            (b"by", str(self.by).encode()),
            (b"number", b"%d" % self.number),
            (b"hash", self.hash),
            (b"state", self.state),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "Vouched":
        """Read a body. Raises `MalformedError` (`evolution.malformed`, and what the parts raise)."""
        return cls(
            read_digest(one(body, b"book")),
            read_owner(one(body, b"by")),
            read_count(one(body, b"number")),
            read_digest(one(body, b"hash")),
            read_digest(one(body, b"state")),
        )


class Snapshots:
    """See `penstock.store.folds.Keeping`: snapshots of the rule book of a ledger."""

    def __init__(self, ledger: Ledger, own: Principal | None = None) -> None:
        self._ledger = ledger
        #: whose own snapshots count here, beside those of the moderator
        self._own = own
        self._key: SigningKey | None = None
        self._begun: Founding | None = None

    @property
    def _founding(self) -> Founding:
        """What the book began with, read once."""
        if self._begun is None:
            self._begun = read_founding(self._ledger)
        return self._begun

    @contextmanager
    def signed_by(self, key: SigningKey | None) -> Iterator[None]:
        """Have the moderator's key at hand for a while."""
        self._key, before = key, self._key
        try:
            yield
        finally:
            self._key = before

    @property
    def able(self) -> bool:
        """True where the moderator's key is at hand, or one's own, or none is needed."""
        founding = self._founding
        return founding.unsafe_unsigned or (
            self._key is not None and self._key.principal in (founding.moderator, self._own)
        )

    def slots(self, fold: str) -> Sequence[str]:
        """Return the names of the moderator's snapshots and of one's own, the one first that can be kept."""
        own = () if self._own is None else (f"{fold}/{self._own.digest.hex()}",)
        return (*own, fold) if self._keeps_own() else (fold, *own)

    def _keeps_own(self) -> bool:
        """Say whether the key at hand is one's own, and not the moderator's."""
        if self._key is None or self._key.principal != self._own:
            return False
        founding = self._founding
        return not founding.unsafe_unsigned and self._own != founding.moderator

    def wrap(self, head: Head, data: bytes) -> bytes:
        """Return a state as it is kept. Raises `RefusedError`: `moderator.unsigned`, `evolution.wrong-key`."""
        founding = self._founding
        if founding.unsafe_unsigned:
            return canonical((b"kept", data))
        if self._key is None:
            raise RefusedError(
                "moderator.unsigned", "a snapshot counts if the moderator signed it", hint="use the moderator's key"
            )
        vouched = Vouched.of(founding, head, data, self._own if self._keeps_own() else None)
        return canonical((b"kept", data, sign_value(vouched, self._key).to_sexp()))

    def unwrap(self, head: Head, octets: bytes) -> bytes:
        """Return a state that was kept. Raises `MalformedError` where neither the moderator nor oneself signed it."""
        try:
            founding = self._founding
            match parse_canonical(octets, limits=wide(len(octets))):
                case (b"kept", bytes(data)) if founding.unsafe_unsigned:
                    return data
                case (b"kept", bytes(data), signed):
                    # Whoever signed something else, or is somebody else, did not sign this.
                    vouched = read_signed(signed, Vouched).verify().value
                    by = vouched.by if vouched.by == self._own else founding.moderator
                    if vouched == Vouched.of(founding, head, data, by):
                        return data
        except RefusedError as error:
            raise malformed("a snapshot that nobody vouches for") from error
        raise malformed("not a snapshot of this rule book that its moderator signed")
