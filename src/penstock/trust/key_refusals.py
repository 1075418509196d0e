"""What a key manager answers to somebody whom it does not give what it asked for.

    (key-refusal (manager <principal>) <group> (broker <principal>) (key <octets>) (code <code>) (time <date>))

`key` is that of the request, or the digest of a request that has none. Nothing is told but the code, which is one of
few.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import ClassVar, Final

from penstock.codec.sexp import SExp, text
from penstock.codec.sexp import field as sexp_field
from penstock.crypto.keys import KEY_BYTES
from penstock.model.principals import Principal
from penstock.trust.key_messages import KeyGroup, Wish
from penstock.trust.signed import malformed, one, read_owner, read_time, time_field

#: why: no right, nothing to give, no place left, not for clients, not for who was evicted
NOT_ENTITLED: Final = "keys.not-entitled"
NO_HISTORY: Final = "keys.no-history"
NO_PLACE: Final = "keys.members"
NOT_BROKER: Final = "keys.not-broker"
NOT_MEMBER: Final = "keys.not-member"
#: which refusals are answered. Others are not: who asks too early is to ask again, and copies are not answered
ANSWERED: Final[Mapping[Wish, frozenset[str]]] = MappingProxyType(
    {
        Wish.JOIN: frozenset((NO_PLACE, NOT_BROKER)),
        Wish.PATH: frozenset((NOT_MEMBER,)),
        Wish.HISTORY: frozenset((NOT_ENTITLED, NO_HISTORY)),
    }
)
REASONS: Final = frozenset().union(*ANSWERED.values())


@dataclass(frozen=True, slots=True)
class KeyRefusal:
    """See the module."""

    HEAD: ClassVar = b"key-refusal"
    manager: Principal
    group: KeyGroup
    broker: Principal
    public: bytes = field(repr=False)
    code: str
    time: datetime

    @property
    def signer(self) -> Principal:
        """The manager."""
        return self.manager

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        return (
            self.HEAD,
            (b"manager", str(self.manager).encode()),
            self.group.to_sexp(),
            (b"broker", str(self.broker).encode()),
            (b"key", self.public),
            (b"code", self.code.encode()),
            time_field(self.time),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "KeyRefusal":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        manager, broker = read_owner(one(body, b"manager")), read_owner(one(body, b"broker"))
        public, code = one(body, b"key"), text(one(body, b"code"))
        if not isinstance(public, bytes) or len(public) != KEY_BYTES or code not in REASONS:
            raise malformed("a refusal has the key of a request, and a reason that is known")
        group = KeyGroup.from_sexp(sexp_field(body, b"group") or ())
        return cls(manager, group, broker, public, code, read_time(body))
