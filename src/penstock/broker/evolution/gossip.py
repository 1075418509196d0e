"""Policy gossip: neighbours compare their policies, and a broker that is behind asks for what is missing.

A state machine. Its driver passes in links and messages, and calls `tick`. The messages:

    ["policy", "heads", [[owner, number, digest, acknowledgements], …], whole]   what I have; all of it if `whole`
    ["policy", "ask", owner, after]                                              send me events after this number
    ["policy", "events", owner, [[number, digest, signed], …], upto]             an answer; 0 for new events
    ["policy", "have", owner, [[broker, time], …]]                               send me later acknowledgements
    ["policy", "acks", owner, [[broker, time, signed], …]]                       an answer, or new acknowledgements

1. A statement is verified before it is kept or forwarded. The fields beside it (number, digest, time) tell whether it
   is needed before anything is parsed. Honest brokers send only valid statements: the link to any other is cut.
2. New statements go to all neighbours that may have them, over every link. A broker that drops them suppresses nothing
   if there is another path. Events go immediately. Acknowledgements of one turn of the event loop go in one message:
   each broker acknowledges, so there are as many as brokers. While this broker is idle, none waits for another.
3. Heads are compared when a link comes up, when they change, and every `BrokerLimits.policy_heads`. So a lost
   statement is noticed after that time at most, if any neighbour has it.
4. A head is a neighbour's claim until the signed event is here. This broker asks one neighbour after the other for it.
   A claim that is not proven within `BrokerLimits.policy_proof` is reported and no longer waited for.
5. An owner's policy goes only to brokers that follow the owner (`Trusts`), because it says who was granted what.
   Acknowledgements are accepted only from them.
6. Only claims are kept here: a number and a digest for each owner and neighbour. Policy is in the `PolicyBook`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Final, NamedTuple, TypeAlias

from penstock.broker.evolution.policy_keeper import Trusts
from penstock.broker.evolution.statements import PolicyBook, Statement
from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.plain_trees import malformed, principal_tree, read_principal
from penstock.codec.sexp import canonical
from penstock.codec.wire import Wire, Writable
from penstock.errors import PenstockError, RefusedError
from penstock.model.principals import DIGEST_BYTES, Principal
from penstock.trust.limits import POLICY_NUMBER
from penstock.trust.policy_events import BEGINNING, Acknowledgement, PolicyEvent, TimeStamp
from penstock.trust.signed import SignedValue, UnverifiedValue, parse_signed

Send: TypeAlias = Callable[[Principal, Writable], object]
Soon: TypeAlias = Callable[[Callable[[], None]], object]
"""Calls a function in the next turn of the event loop."""
Note: TypeAlias = Callable[[PenstockError], None]

POLICY: Final = "policy"
"""The first element of messages about policy."""

_SUMMARY_BYTES: Final = 16
#: owners whose events are requested at the same time: the answers must fit into a link's buffer
_PULLS: Final = 8
#: new acknowledgements in one message: verifying them takes some milliseconds, and events wait no longer than that
_TOGETHER: Final = 64


class _Head(NamedTuple):
    """The last event of an owner's chain, as a broker claims."""

    number: int
    digest: bytes


_NOTHING: Final = _Head(0, BEGINNING)


@dataclass(slots=True)
class _Neighbour:
    """A neighbour's claims since it was linked."""

    claims: dict[Principal, _Head] = field(default_factory=dict)
    #: whether it has sent all its heads
    whole: bool = False
    #: answers to it since heads were compared last
    answers: int = 0
    #: by owner, verified acknowledgements for it from this turn: their bytes, and the words of a message
    gathered: dict[Principal, dict[bytes, Writable]] = field(default_factory=dict)


@dataclass(slots=True)
class _Doubt:
    """Heads that a neighbour has not sent or proven yet, and since when; `noted` once that took too long."""

    since: float
    noted: bool = False
    #: whether the neighbour was asked to prove it
    asked: bool = False


@dataclass(frozen=True, slots=True)
class _Pull:
    """A request for an owner's events after a number: the neighbour that was asked, and those asked before."""

    peer: Principal
    after: int
    at: float
    tried: frozenset[Principal]


class PolicyGossip:
    """Exchanges policy with neighbours. `peers` is the number of neighbours that this broker calls and waits for.

    `timer` is a monotonic clock in seconds, because a clock that jumps must not end or extend any wait.
    """

    def __init__(  # noqa: PLR0913  # what it needs of its surroundings, each by itself
        self,
        book: PolicyBook,
        clock: Callable[[], datetime],
        timer: Callable[[], float],
        trusts: Trusts,
        send: Send,
        *,
        soon: Soon,
        note: Note,
        peers: int = 0,
        limits: BrokerLimits,
    ) -> None:
        self._clock = clock
        self._timer = timer
        self._trusts = trusts
        self._send = send
        self._soon = soon
        self._note = note
        self._peers = peers
        self._limits = limits
        self._book = book
        self._began = timer()
        self._next = self._began
        self._linked: dict[Principal, _Neighbour] = {}
        self._pulls: dict[Principal, _Pull] = {}
        #: owners whose requests wait for others to finish
        self._queued: dict[Principal, None] = {}
        #: by neighbour and owner, or by neighbour alone while it has not sent all heads; a new link keeps them
        self._doubts: dict[tuple[Principal, Principal | None], _Doubt] = {}
        #: how many acknowledgements this turn has
        self._gathered = 0

    # The `PolicyNetwork` port.

    def follow(self, owner: Principal) -> None:
        """Consider neighbours' claims about an owner that is followed from now on."""
        for peer, neighbour in self._linked.items():
            if owner in neighbour.claims:
                self._consider(peer, owner, neighbour.claims[owner])

    def ask_again(self, owner: Principal) -> None:
        """Ask the next neighbour for an owner's events, whatever it claims to have."""
        self._pull(owner, [peer for peer, _ in self._trusted(owner)])

    def is_compared(self, owner: Principal) -> bool:
        """Return whether this broker knows how far an owner's chain goes, as far as neighbours can tell.

        A broker without links that calls nobody is alone, and knows. Any other needs all heads of at least one
        neighbour, with proof. It waits for all that it calls, for all that are linked, and for proofs of their claims,
        each for `policy_proof` at most.
        """
        if not self._linked:
            return not self._peers
        if len(self._linked) < self._peers and not self._is_over(self._began):
            return False
        shown = False
        for peer, neighbour in self._linked.items():
            shown = shown or (neighbour.whole and (peer, owner) not in self._doubts)
            for about in (None, owner):
                doubt = self._doubts.get((peer, about))
                if doubt is not None and not self._is_over(doubt.since):
                    return False
        return shown

    def publish(self, statement: Statement) -> None:
        """Send a verified statement to the neighbours."""
        if isinstance(statement, UnverifiedValue):
            value, data = statement.value, canonical(statement.to_sexp())
            if isinstance(value, PolicyEvent):
                self._push(value.owner, [(value.number, statement.digest, data)], None)
            else:
                self._gather(value.owner, {data: _acknowledgement_words(value, data)}, None)

    def stamped(self, stamp: SignedValue[TimeStamp]) -> None:
        """Do nothing: each neighbour gets its own signed copy (`hand_on`)."""

    def neighbours(self) -> Iterable[Principal]:
        """Return the linked brokers."""
        return sorted(self._linked)

    def hand_on(self, peer: Principal, stamp: bytes) -> None:
        """Send a stamp over the link."""
        self._send(peer, ["stamp", stamp])

    # Links, time and messages.

    def linked(self, peer: Principal) -> None:
        """Send all heads over a new link."""
        self._linked[peer] = _Neighbour()
        doubt = self._doubts.get((peer, None))
        if doubt is not None and not doubt.noted and self._is_over(doubt.since):
            # It was away, and could not send anything.
            del self._doubts[peer, None]
        self._doubt(peer, None)
        self._tell_all(peer)
        for owner in self._book.owners():
            fork = self._book.fork(owner)
            if fork and self._trusts(self._clock(), owner, peer):
                # Heads do not reveal a fork: the neighbour may have only one of the two events.
                proof: list[Writable] = [[*_event_words(event)] for event in fork]
                self._send(peer, [POLICY, "events", principal_tree(owner), proof, 0])
        self._book.linked(peer)

    def unlinked(self, peer: Principal) -> None:
        """Forget a neighbour's claims: its link is gone."""
        self._linked.pop(peer, None)
        for owner in [owner for owner, pull in self._pulls.items() if pull.peer == peer]:
            self._pull(owner)

    def tick(self) -> None:
        """Compare heads if that is due, ask others for missing events, and report unproven claims."""
        now = self._timer()
        if now >= self._next:
            self._next = now + self._limits.policy_heads / 1_000
            for peer, neighbour in self._linked.items():
                neighbour.answers = 0
                self._tell_all(peer)
        for owner in [*self._pulls, *self._queued]:
            self._pull(owner)
        for (peer, about), doubt in self._doubts.items():
            if about in self._queued and not doubt.asked:
                doubt.since = now
            if peer in self._linked and not doubt.noted and self._is_over(doubt.since):
                doubt.noted = True
                self._note(_unproven(peer, about))
        self._book.compared()

    def heard(self, peer: Principal, words: Sequence[Wire]) -> None:
        """Process a neighbour's message.

        Raises `MalformedError`, `LimitError`, `RefusedError` for what an honest neighbour never sends.
        """
        neighbour, now = self._linked.get(peer), self._clock()
        if neighbour is None:
            return
        match words:
            case ["heads", list(heads), bool(whole)]:
                self._hear_heads(peer, neighbour, heads, whole=whole)
            case ["ask", owner, int(after)]:
                self._answer(now, peer, neighbour, read_principal(owner), after)
            case ["events", owner, list(events), int(upto)]:
                self._hear_events(now, peer, neighbour, read_principal(owner), events, upto)
            case ["have", owner, list(have)]:
                self._answer_acknowledgements(now, peer, neighbour, read_principal(owner), have)
            case ["acks", owner, list(acknowledgements)]:
                self._hear_acknowledgements(now, peer, neighbour, read_principal(owner), acknowledgements)
            case _:
                malformed("a message about policy")

    def heard_stamp(self, peer: Principal, stamp: bytes) -> None:
        """Take a time-stamp that a neighbour hands on."""
        self._book.heard_stamp(peer, stamp)

    # Heads.

    def _tell_all(self, peer: Principal) -> None:
        # Otherwise the neighbour asks for them, because the summary covers them.
        self._send_gathered()
        now = self._clock()
        owners = [owner for owner in self._book.owners() if self._trusts(now, owner, peer)]
        self._send(peer, [POLICY, "heads", [self._head_words(owner) for owner in owners], True])

    def _tell(self, owner: Principal) -> None:
        """Send an owner's head to all neighbours that are behind."""
        head = self._head(owner)
        for peer, neighbour in self._trusted(owner):
            if neighbour.claims.get(owner, _NOTHING).number < head.number:
                self._send(peer, [POLICY, "heads", [self._head_words(owner)], False])

    def _head_words(self, owner: Principal) -> Writable:
        return [principal_tree(owner), *self._head(owner), self._summary(owner)]

    def _head(self, owner: Principal) -> _Head:
        top = self._book.top(owner)
        return _NOTHING if top is None else _Head(top.value.number, top.digest)

    def _hear_heads(self, peer: Principal, neighbour: _Neighbour, heads: list[Wire], *, whole: bool) -> None:
        named: set[Principal] = set()
        for words in heads:
            match words:
                case [data, int(number), bytes(digest), bytes(summary)]:
                    owner = read_principal(data)
                case _:
                    malformed("a head")
            if owner in named:
                malformed("two heads of one owner")
            named.add(owner)
            self._hear_head(peer, neighbour, owner, self._read_head(number, digest), summary)
        if whole:
            neighbour.whole = True
            self._doubts.pop((peer, None), None)
        self._book.compared()

    def _hear_head(
        self, peer: Principal, neighbour: _Neighbour, owner: Principal, claim: _Head, summary: bytes
    ) -> None:
        # Claims about unfollowed owners are kept too: this broker may follow them later.
        if owner in neighbour.claims or len(neighbour.claims) < self._limits.policy_owners:
            neighbour.claims[owner] = claim
        if not self._book.carries(owner):
            return
        self._consider(peer, owner, claim)
        if summary != self._summary(owner) and self._is_answered(neighbour):
            have: list[Writable] = [
                [principal_tree(one.value.broker), one.value.time] for one in self._acknowledgements(owner)
            ]
            self._send(peer, [POLICY, "have", principal_tree(owner), have])

    def _consider(self, peer: Principal, owner: Principal, claim: _Head) -> None:
        """Ask for the events that a neighbour claims to have, if they are missing here."""
        if self._book.has(owner, *claim):
            self._doubts.pop((peer, owner), None)
            if claim.number > self._book.applied(owner):
                # The head is here, but an earlier event is missing.
                self._pull(owner, [peer])
        else:
            self._doubt(peer, owner)
            self._pull(owner)

    def _doubt(self, peer: Principal, owner: Principal | None) -> None:
        if len(self._doubts) >= self._limits.cache_entries:
            del self._doubts[next(iter(self._doubts))]
        self._doubts.setdefault((peer, owner), _Doubt(self._timer()))

    def _is_over(self, since: float) -> bool:
        return self._timer() >= since + self._limits.policy_proof / 1_000

    def _read_head(self, number: int, digest: bytes) -> _Head:
        if not 0 <= number <= POLICY_NUMBER or len(digest) != DIGEST_BYTES:
            malformed("a head")
        return _Head(number, digest)

    # Events.

    def _pull(self, owner: Principal, others: Sequence[Principal] = ()) -> None:
        """Ask a neighbour that claims to have more, or one of `others` if none does. One is asked at a time."""
        pull, now = self._pulls.get(owner), self._timer()
        if pull is not None and pull.peer in self._linked and now < pull.at + self._limits.policy_answer / 1_000:
            return
        claims = {peer: one.claims[owner] for peer, one in self._linked.items() if owner in one.claims}
        behind = {peer: claim for peer, claim in claims.items() if not self._book.has(owner, *claim)}
        asked = list(behind) or others
        self._queued.pop(owner, None)
        if not asked:
            self._finish(owner)
            return
        if pull is None and len(self._pulls) >= _PULLS:
            self._queued[owner] = None
            return
        tried = frozenset[Principal]() if pull is None else pull.tried
        untried = [peer for peer in asked if peer not in tried]
        if not untried and self._queued:
            # Nobody has answered: continue with other owners.
            self._finish(owner)
            self._queued[owner] = None
            return
        if not untried:
            untried, tried = list(asked), frozenset()
        peer, after = untried[0], self._book.applied(owner)
        if peer in behind:
            # A contradicting claim is about that very event.
            after = min(after, behind[peer].number - 1)
        self._ask(owner, _Pull(peer, after, now, tried | {peer}))

    def _finish(self, owner: Principal) -> None:
        """Continue with the next owner."""
        if self._pulls.pop(owner, None) is not None and self._queued:
            self._pull(next(iter(self._queued)))

    def _ask(self, owner: Principal, pull: _Pull) -> None:
        self._pulls[owner] = pull
        doubt = self._doubts.get((pull.peer, owner))
        if doubt is not None:
            doubt.asked = True
        self._send(pull.peer, [POLICY, "ask", principal_tree(owner), pull.after])

    def _answer(self, now: datetime, peer: Principal, neighbour: _Neighbour, owner: Principal, after: int) -> None:
        """Send as many events in order as fit, after the last event of the chain, which proves how far it goes."""
        if not (self._book.carries(owner) and self._trusts(now, owner, peer) and self._is_answered(neighbour)):
            return
        chosen: list[Writable] = []
        room, upto = self._limits.policy_chunk_bytes, after
        for event in self._book.events(owner):
            if event.value.number <= after:
                continue
            words = _event_words(event)
            room -= len(words[2])
            if chosen and room < 0:
                break
            chosen.append([*words])
            upto = event.value.number
        top = self._book.top(owner)
        if top is not None and top.value.number > upto:
            chosen.insert(0, [*_event_words(top)])
        self._send(peer, [POLICY, "events", principal_tree(owner), chosen, upto])

    def _hear_events(  # noqa: PLR0913, PLR0917  # the fields of one message
        self, now: datetime, peer: Principal, neighbour: _Neighbour, owner: Principal, events: list[Wire], upto: int
    ) -> None:
        if not self._book.carries(owner):
            return
        new, best = self._read_events(owner, events)
        if best.number > neighbour.claims.get(owner, _NOTHING).number:
            neighbour.claims[owner] = best
        if new:
            if not upto:
                # Before they are enforced here, because that takes time.
                self._push(owner, [_event_words(event) for event in new], peer)
            self._keep(now, new)
            for other, one in self._linked.items():
                if (other, owner) in self._doubts and self._book.has(owner, *one.claims.get(owner, _NOTHING)):
                    del self._doubts[other, owner]
        pull = self._pulls.get(owner)
        if pull is not None and pull.peer == peer and upto:
            if pull.after < upto < neighbour.claims.get(owner, _NOTHING).number:
                self._ask(owner, _Pull(peer, upto, self._timer(), frozenset((peer,))))
            else:
                self._finish(owner)
        if upto:
            self._tell(owner)
        self._book.compared()

    def _keep(self, now: datetime, events: Sequence[SignedValue[PolicyEvent]]) -> None:
        try:
            self._book.take_events(now, events)
        except PenstockError as error:
            # This broker's problem, not the sender's.
            self._note(error)

    def _read_events(self, owner: Principal, events: list[Wire]) -> tuple[list[SignedValue[PolicyEvent]], _Head]:
        """Return the verified events that are new here, and the highest head of all."""
        new: list[SignedValue[PolicyEvent]] = []
        best = _NOTHING
        for words in events:
            match words:
                case [int(number), bytes(digest), bytes(data)]:
                    head = self._read_head(number, digest)
                case _:
                    malformed("a policy event")
            if not self._book.has(owner, *head):
                event = parse_signed(data, PolicyEvent)
                if (event.value.owner, event.value.number, event.digest) != (owner, *head):
                    malformed("a policy event does not match the fields beside it")
                new.append(event.verify())
            best = max(best, head)
        return new, best

    def _push(self, owner: Principal, events: Sequence[tuple[int, bytes, bytes]], but: Principal | None) -> None:
        """Send events to all neighbours but one, without the head that a neighbour has already."""
        for peer, neighbour in self._trusted(owner):
            claim = neighbour.claims.get(owner, _NOTHING)
            wanted: list[Writable] = [[*words] for words in events if words[:2] != claim]
            if wanted and peer != but:
                self._send(peer, [POLICY, "events", principal_tree(owner), wanted, 0])

    def _trusted(self, owner: Principal) -> list[tuple[Principal, _Neighbour]]:
        now = self._clock()
        return [(peer, one) for peer, one in self._linked.items() if self._trusts(now, owner, peer)]

    # Acknowledgements.

    def _acknowledgements(self, owner: Principal) -> Iterator[SignedValue[Acknowledgement]]:
        """Yield the last acknowledgement of each broker that follows an owner."""
        now = self._clock()
        for one in self._book.acknowledgements(owner):
            if self._trusts(now, owner, one.value.broker):
                yield one

    def _summary(self, owner: Principal) -> bytes:
        """Return a digest of all acknowledgements to an owner; an empty string if there are none."""
        digests = sorted(one.digest for one in self._acknowledgements(owner))
        return sha256(b"".join(digests)).digest()[:_SUMMARY_BYTES] if digests else b""

    def _answer_acknowledgements(
        self, now: datetime, peer: Principal, neighbour: _Neighbour, owner: Principal, have: list[Wire]
    ) -> None:
        if not (self._book.carries(owner) and self._trusts(now, owner, peer) and self._is_answered(neighbour)):
            return
        known: dict[Principal, datetime] = {}
        for words in have:
            match words:
                case [broker, datetime() as time]:
                    known[read_principal(broker)] = time
                case _:
                    malformed("a known acknowledgement")
        chosen: list[Writable] = []
        room = self._limits.policy_chunk_bytes
        for one in self._acknowledgements(owner):
            value, data = one.value, one.to_bytes()
            if value.broker in known and known[value.broker] >= value.time:
                continue
            chosen.append(_acknowledgement_words(value, data))
            room -= len(data)
            if room < 0:
                # The next comparison of heads brings the rest.
                break
        if chosen:
            self._send(peer, [POLICY, "acks", principal_tree(owner), chosen])

    def _hear_acknowledgements(
        self, now: datetime, peer: Principal, neighbour: _Neighbour, owner: Principal, acknowledgements: list[Wire]
    ) -> None:
        if not self._book.carries(owner):
            return
        new: dict[bytes, Writable] = {}
        gathered = neighbour.gathered.get(owner, {})
        try:
            for words in acknowledgements:
                match words:
                    case [broker, datetime() as time, bytes(data)]:
                        principal = read_principal(broker)
                    case _:
                        malformed("an acknowledgement")
                # The neighbour does not need what it has.
                gathered.pop(data, None)
                last = self._book.acknowledged(owner, principal)
                if (last is not None and time <= last) or not self._trusts(now, owner, principal):
                    continue
                read = parse_signed(data, Acknowledgement)
                if (read.value.owner, read.value.broker, read.value.time) != (owner, principal, time):
                    malformed("an acknowledgement does not match the fields beside it")
                self._book.take_acknowledgement(now, read.verify())
                new[data] = _acknowledgement_words(read.value, data)
        finally:
            self._gather(owner, new, peer)

    def _gather(self, owner: Principal, new: Mapping[bytes, Writable], but: Principal | None) -> None:
        """Let verified acknowledgements go to all neighbours but one when this turn of the event loop is over."""
        if not new:
            return
        for peer, neighbour in self._linked.items():
            if peer != but:
                neighbour.gathered.setdefault(owner, {}).update(new)
        is_first = not self._gathered
        self._gathered += len(new)
        if self._gathered >= _TOGETHER:
            self._send_gathered()
        elif is_first:
            self._soon(self._send_gathered)

    def _send_gathered(self) -> None:
        """Send the acknowledgements of this turn: one message to each neighbour, or several if they are many."""
        now, self._gathered = self._clock(), 0
        for peer, neighbour in list(self._linked.items()):
            gathered, neighbour.gathered = neighbour.gathered, {}
            for owner, those in gathered.items():
                if self._trusts(now, owner, peer):
                    words = list(those.values())
                    for start in range(0, len(words), _TOGETHER):
                        self._send(peer, [POLICY, "acks", principal_tree(owner), words[start : start + _TOGETHER]])

    def _is_answered(self, neighbour: _Neighbour) -> bool:
        """Count an answer, and return whether to send it: each costs more than its request."""
        neighbour.answers += 1
        return neighbour.answers <= self._limits.policy_answers


def _event_words(event: SignedValue[PolicyEvent]) -> tuple[int, bytes, bytes]:
    return event.value.number, event.digest, event.to_bytes()


def _acknowledgement_words(value: Acknowledgement, data: bytes) -> Writable:
    return [principal_tree(value.broker), value.time, data]


def _unproven(peer: Principal, owner: Principal | None) -> RefusedError:
    said = "its policy heads" if owner is None else f"the policy of {owner.short} that it claims to have"
    return RefusedError(
        "evolution.unproven",
        f"the neighbour {peer.short} has not sent {said}",
        hint="check that broker: it is overloaded, or makes false claims",
    )
