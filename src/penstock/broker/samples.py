"""Samples: what a broker says to all others at once, across a fabric that nobody has to trust.

    [origin, incarnation, number, time, body, proof]

The proof is the origin's public key and its signature over a label, the network, the topic, and everything else; one
signature stands for all events in the body. Numbers of an origin rise on each topic, so that what comes twice or out of
order is refused (`Succession`), and what is missing is counted.
"""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import ClassVar, Final

from penstock.broker.proofs import Proof
from penstock.broker.reading import malformed, principal_tree, read_principal
from penstock.codec.wire import decode, encode
from penstock.crypto.keys import digest
from penstock.errors import RefusedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.principals import Principal
from penstock.model.values import INTEGER_MAX

LABEL: Final = b"penstock-sample-1"


@dataclass(frozen=True, slots=True)
class SignedSample:
    """See the module. Nothing that was read is true before `verify`."""

    origin: Principal
    incarnation: int
    number: int
    time: datetime
    body: bytes = field(repr=False)
    proof: bytes = field(default=b"", repr=False)

    def sign(self, topic: str, proof: Proof) -> "SignedSample":
        """Return the same, with this broker's proof for one topic."""
        return replace(self, proof=proof.sign(self._words(topic)))

    def verify(self, topic: str, proof: Proof) -> None:
        """Check that the origin said this, on this topic. Raises `RefusedError` (`network.proof`)."""
        proof.verify(self.origin, self._words(topic), self.proof)

    def _words(self, topic: str) -> bytes:
        order = (str(self.incarnation).encode(), str(self.number).encode(), self.time.isoformat().encode())
        return digest((LABEL, topic.encode(), self.origin.digest, *order, sha256(self.body).digest()))

    def to_bytes(self) -> bytes:
        """Return the octets that cross the fabric."""
        origin = principal_tree(self.origin)
        return encode([origin, self.incarnation, self.number, self.time, self.body, self.proof])

    @classmethod
    def from_bytes(cls, octets: bytes) -> "SignedSample":
        """Read octets. Raises `MalformedError` and `LimitError`."""
        tree = decode(octets)
        if type(tree) is not list or tuple(map(type, tree)) != cls._FORM:
            malformed("a sample")
        origin, incarnation, number, time, body, proof = tree
        if not (0 <= incarnation <= INTEGER_MAX and 0 <= number <= INTEGER_MAX):  # type: ignore[operator]  # of the form
            malformed("the counts of a sample")
        return cls(read_principal(origin), incarnation, number, time, body, proof)  # type: ignore[arg-type]  # so too

    #: the kinds of what stands in a tree
    _FORM: ClassVar = (bytes, int, int, datetime, bytes, bytes)


class Succession:
    """What came last of each origin on each topic. The memory is bounded, the least recent being forgotten first."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._most = limits.route_streams
        self._last: OrderedDict[tuple[str, Principal], tuple[int, int]] = OrderedDict()

    def is_new(self, topic: str, sample: SignedSample) -> bool:
        """Say whether a sample follows those that came, whoever may have made it."""
        last = self._last.get((topic, sample.origin))
        return last is None or (sample.incarnation, sample.number) > last

    def take(self, topic: str, sample: SignedSample) -> int:
        """Take in a sample that was verified; return how many are missing before it.

        Raises `RefusedError` (`network.replay`) when it came before, or a later one did.
        """
        name, order = (topic, sample.origin), (sample.incarnation, sample.number)
        last = self._last.get(name)
        if last is not None and order <= last:
            raise RefusedError(
                "network.replay", f"a sample of {sample.origin.short} came twice, or too late", hint="watch the fabric"
            )
        self._last[name] = order
        self._last.move_to_end(name)
        if len(self._last) > self._most:
            self._last.popitem(last=False)
        # What was said before anybody listened is not missing.
        return order[1] - last[1] - 1 if last is not None and last[0] == order[0] else 0
