"""Validity statements along the tree of their issuer: cached on the way, asked for on a miss, verified everywhere."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from tests.trust.kit import NOW, grant, key, refused, who

from penstock.broker.evolution.validity import ValidityTree
from penstock.broker.limits import BrokerLimits
from penstock.codec.sexp import canonical
from penstock.codec.wire import Wire, Writable, decode, encode
from penstock.model.principals import Principal
from penstock.trust.signed import SignedValue
from penstock.trust.statement_book import OnlineState, StatementBook
from penstock.trust.statements import (
    OneTimeQuestion,
    OnlineKind,
    OnlineTerms,
    StatementAuthor,
    ValidityClaim,
)

ISSUER = 7
HOUR = timedelta(hours=1)
CERTIFICATE = grant(1, 2).id
CRL = OnlineTerms(OnlineKind.CRL, who(ISSUER))
ONCE = OnlineTerms(OnlineKind.ONE_TIME, who(ISSUER), (), HOUR)
LIMITS = BrokerLimits()


@dataclass
class Place:
    """A broker: its book, its tree, and what its instances of the issuer are asked."""

    world: "World"
    name: int
    parent: int | None
    book: StatementBook = field(init=False)
    tree: ValidityTree = field(init=False)
    requests: list[OneTimeQuestion | None] = field(default_factory=list)
    unknowns: int = 0
    #: statements that arrived, also those that were known
    verified: int = 0

    def __post_init__(self) -> None:
        self.book = StatementBook(who(self.name))
        self.tree = ValidityTree(self, self._next, lambda: self.world.time, self._send, LIMITS)

    def _next(self, _issuer: Principal) -> Principal | None:
        return None if self.parent is None else who(self.parent)

    def _send(self, peer: Principal, message: Writable) -> None:
        self.world.queue.append((self.name, peer, decode(encode(message))))

    def state(self, terms: OnlineTerms = CRL) -> OnlineState:
        return self.book.status(terms, CERTIFICATE, NOW).state

    # The `ValidityBook` port.

    def held(self, issuer: Principal) -> Iterable[SignedValue[ValidityClaim]]:
        return tuple(self.book.statements(issuer))

    def is_current(self, issuer: Principal) -> bool:
        return self.book.is_current(issuer, NOW)

    def take(self, statement: SignedValue[ValidityClaim]) -> bool:
        self.verified += 1
        return self.book.take(statement, NOW)

    def asked(self, issuer: Principal) -> None:
        assert issuer == who(ISSUER)
        self.requests.append(None)

    def questioned(self, question: OneTimeQuestion) -> None:
        self.requests.append(question)

    def unknown(self, issuer: Principal) -> None:
        self.unknowns += issuer == who(ISSUER)


class World:
    """Brokers in a line, the first of which is the rendezvous node."""

    def __init__(self, number: int) -> None:
        self.time = 0.0
        self.queue: deque[tuple[int, Principal, Wire]] = deque()
        self.messages: list[Wire] = []
        self.places = {20 + at: Place(self, 20 + at, None if at == 0 else 19 + at) for at in range(number)}
        for one, other in zip(self.places, [*self.places][1:], strict=False):
            self.link(one, other)

    def __getitem__(self, at: int) -> Place:
        return self.places[20 + at]

    def link(self, one: int, other: int) -> None:
        self.places[one].tree.linked(who(other))
        self.places[other].tree.linked(who(one))

    def settle(self, meddle: Callable[[Wire], Wire] = lambda message: message) -> None:
        by_principal = {who(name): place for name, place in self.places.items()}
        while self.queue:
            sender, peer, message = self.queue.popleft()
            self.messages.append(message)
            assert isinstance(message, list)
            assert message[0] == "validity"
            changed = meddle(message)
            assert isinstance(changed, list)
            by_principal[peer].tree.heard(who(sender), changed[1:])

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        for place in self.places.values():
            place.tree.tick()
        self.settle()

    def publish(self, at: int, *statements: SignedValue[ValidityClaim]) -> None:
        place = self[at]
        place.tree.offer(who(ISSUER))
        for statement in statements:
            if place.take(statement):
                place.tree.publish(statement)
        self.settle()


def test_a_statement_reaches_those_who_want_it_and_is_cached_on_the_way() -> None:
    world, author = World(4), StatementAuthor(key(ISSUER))
    world[3].tree.follow(who(ISSUER))
    world.settle()
    assert world[3].unknowns == 1
    world.publish(1, author.revocation_list(NOW, HOUR, []))
    assert [world[at].state() for at in range(4)] == [OnlineState.VALID] * 4


def test_it_goes_up_to_the_rendezvous_node_also_if_nobody_wants_it_yet() -> None:
    world, author = World(4), StatementAuthor(key(ISSUER))
    world.publish(2, author.revocation_list(NOW, HOUR, []))
    assert [world[at].state() for at in range(3)] == [OnlineState.VALID] * 3
    assert world[3].state() is OnlineState.UNKNOWN


def test_a_late_subscriber_gets_it_from_the_next_broker_that_has_it() -> None:
    world, author = World(4), StatementAuthor(key(ISSUER))
    world.publish(0, author.revocation_list(NOW, HOUR, []))
    world[2].tree.follow(who(ISSUER))
    world.settle()
    before = len(world.messages)
    world[3].tree.follow(who(ISSUER))
    world.settle()
    assert world[3].state() is OnlineState.VALID
    assert len(world.messages) == before + 2, "want and state"


def test_on_a_miss_the_instances_are_asked() -> None:
    world = World(3)
    world[1].tree.offer(who(ISSUER))
    world.settle()
    world[2].tree.follow(who(ISSUER))
    world.settle()
    assert world[1].requests
    assert world[2].unknowns == 0
    asked = len(world[1].requests)
    world.sleep(LIMITS.policy_heads / 1_000)
    assert len(world[1].requests) > asked, "as long as nothing is known"
    world.publish(1, StatementAuthor(key(ISSUER)).revocation_list(NOW, HOUR, []))
    asked = len(world[1].requests)
    world.sleep(LIMITS.policy_heads / 1_000)
    assert len(world[1].requests) == asked
    assert world[2].state() is OnlineState.VALID


def test_a_link_that_comes_back_brings_what_was_missed() -> None:
    world, author = World(3), StatementAuthor(key(ISSUER))
    world[2].tree.follow(who(ISSUER))
    world.settle()
    world[1].tree.unlinked(who(22))
    world[2].tree.unlinked(who(21))
    world.publish(0, author.revocation_list(NOW, HOUR, []))
    assert world[2].state() is OnlineState.UNKNOWN
    world.link(21, 22)
    world.settle()
    assert world[2].state() is OnlineState.VALID


def test_another_parent_takes_over() -> None:
    world, author = World(3), StatementAuthor(key(ISSUER))
    world[2].tree.follow(who(ISSUER))
    world.settle()
    world.link(20, 22)
    world[2].parent = 20
    world.sleep(1)
    world.publish(0, author.revocation_list(NOW, HOUR, []))
    assert world[2].state() is OnlineState.VALID
    assert world[1].state() is OnlineState.UNKNOWN, "nobody below it wants it any longer"


def test_a_forged_statement_is_refused_and_a_replayed_one_is_ignored() -> None:
    world, author = World(2), StatementAuthor(key(ISSUER))
    world[1].tree.follow(who(ISSUER))
    world.settle()
    first, second = author.revoke(NOW, [CERTIFICATE]), author.revoke(NOW, [])
    world.publish(0, first, second)
    forged = StatementAuthor(key(8)).revoke(NOW, [])
    third = author.revoke(NOW, []).unverified()
    unsigned = canonical(replace(third, signature=bytes(64)).to_sexp())
    foreign = replace(third, key=key(8).public, signature=key(8).sign(canonical(third.body)))
    for data, code in ((unsigned, "key.bad-signature"), (canonical(foreign.to_sexp()), "evolution.wrong-key")):
        with refused(code):
            world[1].tree.heard(who(20), ["state", [data]])
    tampered = second.to_bytes()[:-3] + b"xx)"
    for data in (tampered, b"", b"(a", forged.to_bytes()[:40]):
        with pytest.raises(Exception) as caught:  # noqa: PT011  # the code is next
            world[1].tree.heard(who(20), ["state", [data]])
        assert getattr(caught.value, "code", "")
    before = world[1].verified
    world[1].tree.heard(who(20), ["state", [first.to_bytes(), second.to_bytes(), forged.to_bytes()]])
    assert world[1].verified == before + 1, "the older one; the known one is not verified again, nobody wants the other"
    assert world[1].book.status(CRL, CERTIFICATE, NOW).state is OnlineState.UNKNOWN


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["want"],
        ["want", 1],
        ["want", b"x"],
        ["state", b""],
        ["state", [1]],
        ["state", [b""] * 65],
        ["question", b"x"],
        ["ask"],
        ["hello", b""],
        ["gone", []],
        ["unknown", None],
    ],
)
def test_malformed_messages_are_refused(words: list[Wire]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # the code is next
        World(2)[1].tree.heard(who(20), words)
    assert getattr(caught.value, "code", "")


def test_messages_of_strangers_are_ignored() -> None:
    place = World(1)[0]
    place.tree.heard(who(99), ["nonsense"])


def test_issuers_are_bounded() -> None:
    world = World(1)
    tree = ValidityTree(
        world[0], lambda _issuer: None, lambda: 0.0, lambda _peer, _message: None, BrokerLimits(policy_owners=2)
    )
    tree.follow(who(1))
    tree.follow(who(2))
    with refused("statement.limit"):
        tree.follow(who(3))


def test_a_one_time_question_reaches_one_instance_and_its_answer_comes_back() -> None:
    world, author = World(4), StatementAuthor(key(ISSUER))
    world[1].tree.offer(who(ISSUER))
    world.settle()
    world[3].tree.ask(world[3].book.ask(ONCE, CERTIFICATE, b"n" * 16, NOW))
    world.settle()
    [question] = world[1].requests
    assert isinstance(question, OneTimeQuestion)
    assert question.verifier == who(23)
    answer = author.answer(question, NOW, revoked=False)
    world[1].tree.publish(answer)
    world.settle()
    assert world[3].state(ONCE) is OnlineState.VALID
    assert world[2].state(ONCE) is OnlineState.UNKNOWN, "it is for one verifier"
    before = len(world.messages)
    with refused("statement.nonce"):
        world[1].tree.publish(answer)
    assert len(world.messages) == before, "and is passed on once"


def test_a_question_without_an_instance_has_no_answer() -> None:
    world = World(3)
    world[2].tree.ask(world[2].book.ask(ONCE, CERTIFICATE, b"n" * 16, NOW))
    world.settle()
    assert world[2].state(ONCE) is OnlineState.UNKNOWN
