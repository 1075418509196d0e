"""Validity statements over a fabric: each issuer has a topic, which all brokers read that need its statements.

An event of the reserved type `penstock.validity` of an issuer has one attribute with one of these:

    (want)                               send me the issuer's statements
    (state <signed statement> …)         statements, also one-time answers
    (part <digest> <n> <of> <bytes>)     the n-th part of a statement that does not fit into one event
    (one-time-question …)                answer this

There are no trees, so the brokers to which instances of an issuer have handed in statements cache them for others.
Every broker verifies what it reads. A broker that misses statements asks again every `BrokerLimits.policy_heads`.
"""

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from types import MappingProxyType
from typing import Final

from penstock.broker.core.core import Core
from penstock.broker.core.exchange import OWN
from penstock.broker.evolution.validity import ValidityBook
from penstock.broker.local.requests import Advertise, Publish, Subscribe
from penstock.broker.wire.entries import Filter
from penstock.codec.sexp import SExp, parse, parse_canonical, transport
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.events import TransitEvent
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.trust.limits import STATEMENT_BYTES
from penstock.trust.signed import SignedValue, malformed, read_count, read_signed
from penstock.trust.statements import VALIDITY_KINDS, VALIDITY_TOPIC, OneTimeAnswer, OneTimeQuestion, ValidityClaim

_KEY: Final = f"{OWN}validity "
_UID: Final = "statement"
_WANT: Final[SExp] = (b"want",)
#: bytes of a part of a statement, which fit into an event, and parts of one statement
_PART: Final = 256 << 10
_PARTS: Final = (STATEMENT_BYTES + 8_192) // _PART + 1
#: statements whose parts are awaited
_AWAITED: Final = 16
#: base64 takes four bytes for three; signatures and keys take some more
_MOST: Final = 8 * (_PART * 4 // 3 + 4_096)


class ValidityTopics:
    """See the module. A `ValidityNetwork`."""

    def __init__(self, core: Core, book: ValidityBook, timer: Callable[[], float]) -> None:
        self._core = core
        self._book = book
        self._timer = timer
        self._next = timer()
        self._read: set[Principal] = set()
        self._wanted: set[Principal] = set()
        self._offered: set[Principal] = set()
        #: the parts of statements that are not complete, by issuer and digest
        self._parts: dict[tuple[Principal, bytes], dict[int, bytes]] = {}

    def follow(self, issuer: Principal) -> None:
        """Read an issuer's topic, and ask for its statements. Raises `LimitError` (`statement.limit`)."""
        self._subscribe(issuer)
        self._wanted.add(issuer)
        if not self._book.is_current(issuer):
            self._send(issuer, _WANT)

    def offer(self, issuer: Principal) -> None:
        """Answer for an issuer, an instance of which is connected here. Raises `LimitError` (`statement.limit`)."""
        self._subscribe(issuer)
        self._offered.add(issuer)
        if issuer in self._wanted and not self._book.is_current(issuer):
            self._book.asked(issuer)

    def withdraw(self, issuer: Principal) -> None:
        """Go on answering with the last statements: other brokers may not have them."""

    def publish(self, statement: SignedValue[ValidityClaim]) -> None:
        """Send a verified statement that was handed in here. An answer to a question of this broker is taken."""
        issuer = statement.value.issuer
        if isinstance(statement.value, OneTimeAnswer):
            with suppress(RefusedError):
                self._book.take(statement)
        self._subscribe(issuer)
        self._send_statement(issuer, statement)

    def ask(self, question: OneTimeQuestion) -> None:
        """Send a one-time question to an instance of its issuer."""
        if question.issuer in self._offered:
            self._book.questioned(question)
        else:
            self._subscribe(question.issuer)
            self._send(question.issuer, question.to_sexp())

    def follows(self, issuer: Principal) -> bool:
        """Return whether this broker reads an issuer's topic."""
        return issuer in self._read

    def tick(self) -> None:
        """Ask again for what is not known."""
        now = self._timer()
        if now >= self._next:
            self._next = now + self._core.settings.limits.policy_heads / 1_000
            for issuer in [issuer for issuer in self._wanted if not self._book.is_current(issuer)]:
                self._send(issuer, _WANT)

    def arrived(self, event: TransitEvent) -> None:
        """Take an event of an issuer's topic. What does not count is ignored and reported."""
        issuer = event.key.owner
        held = event.values.get(AttributeId(issuer, VALIDITY_TOPIC, _UID))
        if issuer not in self._read or event.key.name != VALIDITY_TOPIC:
            return
        try:
            if not isinstance(held, str) or not held.isascii() or len(held) > _MOST:
                raise malformed("an event about validity does not have exactly one text of permitted length")
            self._hear(issuer, parse(held.encode("ascii")))
        except (RefusedError, MalformedError) as error:
            self._core.note(error)

    def _hear(self, issuer: Principal, message: SExp) -> None:
        match message:
            case (b"want",):
                if issuer in self._offered:
                    self._answer(issuer)
            case (b"state", *statements):
                for one in statements:
                    unverified = read_signed(one, *VALIDITY_KINDS)
                    known = any(known.digest == unverified.digest for known in self._book.held(issuer))
                    if unverified.value.issuer == issuer and not known:
                        statement = unverified.verify()
                        with suppress(RefusedError, LimitError):
                            self._book.take(statement)
            case (b"part", bytes(whole), number, of, bytes(data)):
                written = self._join(issuer, whole, read_count(number, _PARTS), read_count(of, _PARTS), data)
                if written:
                    self._hear(issuer, (b"state", parse_canonical(written)))
            case _:
                question = OneTimeQuestion.from_sexp(message)
                if question.issuer == issuer and issuer in self._offered:
                    self._book.questioned(question)

    def _join(self, issuer: Principal, whole: bytes, number: int, of: int, data: bytes) -> bytes:
        """Return a statement when all of its parts have come, or nothing. Raises `MalformedError`."""
        parts = self._parts.setdefault((issuer, whole), {})
        parts[number] = data
        if len(self._parts) > _AWAITED:
            del self._parts[next(iter(self._parts))]
        if not parts.keys() >= {*range(of)}:
            return b""
        del self._parts[issuer, whole]
        written = b"".join(parts[place] for place in range(of))
        if sha256(written).digest() != whole:
            raise malformed("the parts of a validity statement do not belong together")
        return written

    def _answer(self, issuer: Principal) -> None:
        for statement in tuple(self._book.held(issuer)):
            self._send_statement(issuer, statement)
        if not self._book.is_current(issuer):
            self._book.asked(issuer)

    def _subscribe(self, issuer: Principal) -> None:
        if issuer in self._read:
            return
        if len(self._read) >= self._core.settings.limits.policy_owners:
            raise LimitError("statement.limit", "too many issuers of validity statements are followed here")
        self._read.add(issuer)
        of_type = TypeKey(issuer, VALIDITY_TOPIC)
        key = f"{_KEY}{issuer}"
        self._core.settle((Advertise(key, of_type, (), Filter()), Subscribe(key, of_type, Filter(), "")))

    def _send_statement(self, issuer: Principal, statement: SignedValue[ValidityClaim]) -> None:
        data = statement.to_bytes()
        if len(data) <= _PART:
            self._send(issuer, (b"state", statement.to_sexp()))
            return
        parts = [data[start : start + _PART] for start in range(0, len(data), _PART)]
        for number, part in enumerate(parts):
            self._send(issuer, (b"part", sha256(data).digest(), b"%d" % number, b"%d" % len(parts), part))

    def _send(self, issuer: Principal, message: SExp) -> None:
        values = MappingProxyType({str(AttributeId(issuer, VALIDITY_TOPIC, _UID)): transport(message).decode("ascii")})
        id_ = self._core.settings.random(16).hex()
        event = TransitEvent(TypeKey(issuer, VALIDITY_TOPIC), (), values, id_, self._core.now())
        self._core.settle((Publish(f"{_KEY}{issuer}", (event,)),))
