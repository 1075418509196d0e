"""Validity statements between brokers: one topic for each issuer, cached along its dissemination tree (paper 5, 6.3).

A state machine. Its driver passes in links and messages, and calls `tick`. An issuer's topic is the reserved type
`penstock.validity` of the issuer, whose tree consists of the shortest paths to its rendezvous node. The messages:

    ["validity", "want", issuer]           up: send me the issuer's statements, those of now and later ones
    ["validity", "offer", issuer]          up: an instance of the issuer is connected on this side
    ["validity", "gone", issuer]           up: neither of the two any longer
    ["validity", "state", [signed, …]]     up and down: statements
    ["validity", "unknown", issuer]        down: nobody has a statement, and no instance is connected
    ["validity", "ask", issuer]            down, to instances: publish a new statement
    ["validity", "question", question]     up, then down to one instance: answer this one-time question

1. Every broker on the path is a verifier: it keeps statements in its `ValidityBook` once they are verified, and answers
   for its part of the tree from there. Honest brokers send only valid statements: the link to any other is cut.
2. On a miss a broker asks towards the rendezvous node. The rendezvous node asks the issuer's instances, and its
   neighbours get what arrives. If there are no instances it says that nothing is known. Whoever asked asks again every
   `BrokerLimits.policy_heads`.
3. A new statement goes up to the rendezvous node, and down to all who want it. It is taken only from a side that wants
   or offers its issuer, or from the parent.
4. A one-time answer goes back along the path of its question. It is not cached.
5. Sides, issuers and open questions are bounded (`BrokerLimits.policy_owners`, `cache_entries`).
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeAlias

from penstock.broker.evolution.gossip import Send
from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.plain_trees import malformed, principal_tree, read_principal
from penstock.codec.sexp import canonical, parse_canonical
from penstock.codec.wire import Wire, Writable
from penstock.errors import LimitError, RefusedError
from penstock.model.principals import Principal
from penstock.trust.signed import SignedValue, parse_signed
from penstock.trust.statements import VALIDITY_KINDS, OneTimeAnswer, OneTimeQuestion, ValidityClaim

VALIDITY: Final = "validity"
"""The first element of messages about validity."""

#: statements in one message
_TOGETHER: Final = 64

Side: TypeAlias = Principal | None
"""A neighbour, or None: this broker and its clients."""


class ValidityBook(Protocol):
    """What a broker does with statements. `NodeValidity` implements it."""

    def held(self, issuer: Principal) -> Iterable[SignedValue[ValidityClaim]]:
        """Return the issuer's verified statements that can be passed on."""

    def is_current(self, issuer: Principal) -> bool:
        """Return whether one of the issuer's statements counts now."""

    def take(self, statement: SignedValue[ValidityClaim]) -> bool:
        """Take a verified statement; return whether it is new. Raises `RefusedError` (`statement.*`), `LimitError`."""

    def asked(self, issuer: Principal) -> None:
        """Ask the issuer's instances here for a new statement."""

    def questioned(self, question: OneTimeQuestion) -> None:
        """Pass a one-time question to an instance of the issuer here."""

    def unknown(self, issuer: Principal) -> None:
        """Record that nobody has a statement of an issuer."""


class ValidityNetwork(Protocol):
    """Carries validity statements between brokers. `ValidityTree` and `fabric.validity` implement it."""

    def follow(self, issuer: Principal) -> None:
        """Want an issuer's statements, now and later."""

    def offer(self, issuer: Principal) -> None:
        """Say that an instance of an issuer is connected here."""

    def withdraw(self, issuer: Principal) -> None:
        """Say that no instance of an issuer is connected here any longer."""

    def publish(self, statement: SignedValue[ValidityClaim]) -> None:
        """Send a verified statement that was handed in here."""

    def ask(self, question: OneTimeQuestion) -> None:
        """Send a one-time question to an instance of its issuer."""

    def follows(self, issuer: Principal) -> bool:
        """Return whether statements of an issuer are needed here."""

    def tick(self) -> None:
        """Ask again for what is not known."""


class ValidityTree:
    """See the module. A `ValidityNetwork` over links.

    `parent` returns the next hop to an issuer's rendezvous node; None if it is this broker.
    """

    def __init__(
        self,
        book: ValidityBook,
        parent: Callable[[Principal], Principal | None],
        timer: Callable[[], float],
        send: Send,
        limits: BrokerLimits,
    ) -> None:
        self._book = book
        self._parent = parent
        self._timer = timer
        self._send = send
        self._limits = limits
        self._linked: set[Principal] = set()
        self._wants: dict[Principal, set[Side]] = {}
        self._offers: dict[Principal, set[Side]] = {}
        #: the parent that knows what this broker wants and offers, by issuer: the words that it was sent
        self._told: dict[Principal, tuple[Principal, frozenset[str]]] = {}
        #: where one-time answers go, by nonce
        self._questions: dict[bytes, Side] = {}
        self._next = timer()

    # This broker and its clients.

    def follow(self, issuer: Principal) -> None:
        """Want an issuer's statements, now and later. If nothing is known, ask for it."""
        self._want(issuer, None)

    def offer(self, issuer: Principal) -> None:
        """Say that an instance of an issuer is connected here. It is asked for what is missing."""
        self._add(self._offers, issuer, None)
        self._tell_parent(issuer)
        if issuer in self._wants and not self._book.is_current(issuer):
            self._book.asked(issuer)

    def withdraw(self, issuer: Principal) -> None:
        """Say that no instance of an issuer is connected here any longer."""
        self._discard(self._offers, issuer, None)
        self._tell_parent(issuer)

    def publish(self, statement: SignedValue[ValidityClaim]) -> None:
        """Send a verified statement that was handed in here."""
        value = statement.value
        if isinstance(value, OneTimeAnswer):
            self._hand_back(statement, value)
        else:
            self._spread(statement, None)

    def ask(self, question: OneTimeQuestion) -> None:
        """Send a one-time question to an instance of its issuer."""
        self._question(question, None)

    def follows(self, issuer: Principal) -> bool:
        """Return whether this broker wants or offers an issuer's statements, for itself or for others."""
        return issuer in self._wants or issuer in self._offers

    # Links, time and messages.

    def linked(self, peer: Principal) -> None:
        """Record a new link: its other side knows nothing of what was said before."""
        self._linked.add(peer)
        for issuer in [issuer for issuer, (parent, _) in self._told.items() if parent == peer]:
            del self._told[issuer]
        self._find_parents()

    def unlinked(self, peer: Principal) -> None:
        """Forget a neighbour: its link is gone."""
        self._linked.discard(peer)
        for sides in (self._wants, self._offers):
            for issuer in list(sides):
                self._discard(sides, issuer, peer)
        self._find_parents()

    def tick(self) -> None:
        """Follow the trees where they have changed, and ask again for what is not known."""
        self._find_parents()
        now = self._timer()
        if now >= self._next:
            self._next = now + self._limits.policy_heads / 1_000
            for issuer in [issuer for issuer in self._wants if not self._book.is_current(issuer)]:
                self._ask(issuer)

    def heard(self, peer: Principal, words: Sequence[Wire]) -> None:
        """Process a neighbour's message.

        Raises `MalformedError`, `LimitError`, `RefusedError` for what an honest neighbour never sends.
        """
        if peer not in self._linked:
            return
        match words:
            case ["want", issuer]:
                self._want(read_principal(issuer), peer)
            case ["offer", issuer]:
                found = read_principal(issuer)
                self._add(self._offers, found, peer)
                self._tell_parent(found)
                if found in self._wants and not self._book.is_current(found):
                    self._ask(found)
            case ["gone", issuer]:
                found = read_principal(issuer)
                self._discard(self._wants, found, peer)
                self._discard(self._offers, found, peer)
                self._tell_parent(found)
            case ["state", list(statements)] if len(statements) <= _TOGETHER:
                for data in statements:
                    if not isinstance(data, bytes):
                        malformed("a validity statement")
                    self._hear_statement(peer, data)
            case ["unknown", issuer]:
                self._unknown(read_principal(issuer))
            case ["ask", issuer]:
                self._ask_instances(read_principal(issuer), but=peer)
            case ["question", bytes(data)]:
                self._question(OneTimeQuestion.from_sexp(parse_canonical(data)), peer)
            case _:
                malformed("a message about validity")

    # Wants and offers.

    def _want(self, issuer: Principal, side: Side) -> None:
        self._add(self._wants, issuer, side)
        if side is not None:
            self._state_to(side, issuer)
        asked = self._tell_parent(issuer)
        if not asked and not self._book.is_current(issuer):
            self._ask(issuer)

    def _ask(self, issuer: Principal) -> None:
        """Ask for an issuer's statements: the parent, or at the rendezvous node the instances."""
        parent = self._parent(issuer)
        if parent is not None:
            self._post(parent, "want", principal_tree(issuer))
        elif not self._ask_instances(issuer):
            self._unknown(issuer)

    def _ask_instances(self, issuer: Principal, but: Side = None) -> bool:
        sides = self._offers.get(issuer, set()) - {but}
        if None in self._offers.get(issuer, ()):
            self._book.asked(issuer)
        for side in sides:
            if side is not None:
                self._post(side, "ask", principal_tree(issuer))
        return issuer in self._offers

    def _unknown(self, issuer: Principal) -> None:
        if self._book.is_current(issuer):
            return
        sides = self._wants.get(issuer, set())
        if None in sides:
            self._book.unknown(issuer)
        for side in sides:
            if side is not None:
                self._post(side, "unknown", principal_tree(issuer))

    def _add(self, sides: dict[Principal, set[Side]], issuer: Principal, side: Side) -> None:
        """Add a side. Raises `LimitError` (`statement.limit`) if there are too many issuers."""
        if issuer not in sides and len(sides) >= self._limits.policy_owners:
            raise LimitError("statement.limit", f"more than {self._limits.policy_owners} issuers are followed here")
        sides.setdefault(issuer, set()).add(side)

    def _discard(self, sides: dict[Principal, set[Side]], issuer: Principal, side: Side) -> None:
        known = sides.get(issuer)
        if known is not None:
            known.discard(side)
            if not known:
                del sides[issuer]

    def _tell_parent(self, issuer: Principal) -> bool:
        """Let the parent know what this part of the tree wants and offers, and the former parent that it has gone.

        Return whether the parent was asked for statements.
        """
        parent = self._parent(issuer)
        words = {word for word, sides in (("want", self._wants), ("offer", self._offers)) if issuer in sides}
        told = self._told.pop(issuer, None)
        if told is not None and told[0] != parent:
            self._post(told[0], "gone", principal_tree(issuer))
            told = None
        if parent is None or parent not in self._linked:
            return False
        known = told[1] if told is not None else frozenset()
        if known - words:
            self._post(parent, "gone", principal_tree(issuer))
            known = frozenset()
        for word in sorted(words - known):
            self._post(parent, word, principal_tree(issuer))
        if words:
            self._told[issuer] = parent, frozenset(words)
            if "offer" in words - known:
                # It may be the rendezvous node, and new to the issuer.
                self._state_to(parent, issuer)
        return "want" in words - known

    def _find_parents(self) -> None:
        for issuer in {*self._wants, *self._offers, *self._told}:
            self._tell_parent(issuer)

    # Statements.

    def _hear_statement(self, peer: Principal, data: bytes) -> None:
        unverified = parse_signed(data, *VALIDITY_KINDS)
        value = unverified.value
        if isinstance(value, OneTimeAnswer):
            if value.nonce in self._questions:
                answer = unverified.verify()
                with suppress(RefusedError):
                    # It may have come too late.
                    self._hand_back(answer, value)
            return
        issuer = value.issuer
        sides = {self._parent(issuer), *self._offers.get(issuer, ()), *self._wants.get(issuer, ())}
        if not self.follows(issuer) or peer not in sides:
            return
        if any(known.digest == unverified.digest for known in self._book.held(issuer)):
            return
        statement = unverified.verify()
        # It is properly signed: if it does not count, the neighbour may not know a later one yet.
        with suppress(RefusedError, LimitError):
            if self._book.take(statement):
                self._spread(statement, peer)

    def _spread(self, statement: SignedValue[ValidityClaim], but: Side) -> None:
        issuer = statement.value.issuer
        sides = {side for side in self._wants.get(issuer, ()) if side is not None}
        parent = self._parent(issuer)
        sides |= set() if parent is None else {parent}
        for side in sides - {but}:
            self._post(side, "state", [statement.to_bytes()])

    def _state_to(self, side: Principal, issuer: Principal) -> None:
        # Several large ones do not fit into one message.
        for statement in self._book.held(issuer):
            self._post(side, "state", [statement.to_bytes()])

    # One-time questions.

    def _question(self, question: OneTimeQuestion, side: Side) -> None:
        if len(self._questions) >= self._limits.cache_entries:
            del self._questions[next(iter(self._questions))]
        if question.nonce in self._questions:
            return
        self._questions[question.nonce] = side
        sides = self._offers.get(question.issuer, set()) - {side}
        parent = self._parent(question.issuer)
        if None in self._offers.get(question.issuer, ()):
            self._book.questioned(question)
        elif sides:
            self._post(min(one for one in sides if one is not None), "question", canonical(question.to_sexp()))
        elif parent is not None and parent != side:
            self._post(parent, "question", canonical(question.to_sexp()))

    def _hand_back(self, statement: SignedValue[ValidityClaim], answer: OneTimeAnswer) -> None:
        side = self._questions.pop(answer.nonce, None)
        if side is None:
            self._book.take(statement)
        else:
            self._post(side, "state", [statement.to_bytes()])

    def _post(self, peer: Principal, word: str, content: Writable) -> None:
        if peer in self._linked:
            self._send(peer, [VALIDITY, word, content])
