"""Who is authorised: nothing is taken that others would have had to ask for, or to agree to, and nothing twice."""

from dataclasses import replace

import pytest
from tests.authority.kit import K1, K2, K3, MODERATOR, NOW, OWNER_KEY, book_in, founding, ledger
from tests.authority.rights_kit import AT_A, DAY, ENGINEERS, STRANGER, agreed, colliding, planned, refuses
from tests.moderator.kit import OWNER, P1, P2, P3, event, rule
from tests.trust.kit import refused

from penstock.authority.limits import AuthorityLimits
from penstock.authority.rulebook import RuleBook
from penstock.authority.rulebook_records import ModeratorRequest, take
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.moderator.rules.rules import SubscribeRule
from penstock.moderator.rules.steps import (
    CLOCK,
    Add,
    AddType,
    Leave,
    MoveType,
    Note,
    Pass,
    RemoveType,
    RenameType,
    Request,
    Resolve,
    Return,
    RuleStatus,
    StateSubscriberRule,
    Strategy,
    Undo,
    WithdrawRule,
)
from penstock.moderator.settlement.addition import Tightening
from penstock.moderator.settlement.proposals import poll_reason, subject_of
from penstock.trust.signed import UnverifiedValue, sign_value
from penstock.trust.validity import Validity


@pytest.fixture
def book() -> RuleBook:
    return book_in(ledger())


# --- requests -------------------------------------------------------------------------------------------------------


def test_a_request_that_somebody_changed_is_none(book: RuleBook) -> None:
    signed = book.sign(K1, Add(rule("r1", "A1")), NOW).unverified()
    other = book.sign(K1, Add(rule("r1", "A2")), NOW).unverified()
    forged = UnverifiedValue(other.value, other.digest, other.body, other.key, signed.signature)
    with refused("key.bad-signature"):
        book.take(forged, NOW)
    stranger = ModeratorRequest(book.id, P1, 1, NOW, Add(rule("r1", "A1")))
    body = sign_value(ModeratorRequest(book.id, STRANGER.principal, 1, NOW, Pass()), STRANGER)
    with refused("evolution.wrong-key"):
        book.take(UnverifiedValue(stranger, body.digest, body.body, body.key, body.signature), NOW)


def test_a_request_counts_once(book: RuleBook) -> None:
    signed = book.sign(K1, Add(rule("r1", "A1")), NOW).unverified()
    book.take(signed, NOW)
    with refused("moderator.repeated") as found:
        book.take(signed, NOW)
    assert found.value.fields["serial"] == 2
    book.ask(K1, WithdrawRule("r1"), NOW)
    with refused("moderator.repeated"):
        book.take(signed, NOW)
    again = RuleBook.open(book.ledger)  # the same ledger
    with refused("moderator.repeated"):
        again.take(signed, NOW)
    book.keep(MODERATOR)
    with refused("moderator.repeated"):
        RuleBook.open(book.ledger).take(signed, NOW)


def test_a_request_that_was_overtaken_does_not_count(book: RuleBook) -> None:
    earlier = book.sign(K1, Add(rule("r1", "A1")), NOW)
    later = sign_value(ModeratorRequest(book.id, P1, 7, NOW, Add(rule("r2", "A1"))), K1)
    book.take(later.unverified(), NOW)
    with refused("moderator.repeated"):
        book.take(earlier.unverified(), NOW)
    assert book.next_serial(P1) == 8


@pytest.mark.parametrize("days", [-2, 2])
def test_a_request_counts_for_a_while(book: RuleBook, days: int) -> None:
    signed = book.sign(K1, Add(rule("r1", "A1")), NOW + days * DAY)
    with refused("moderator.untimely"):
        book.take(signed.unverified(), NOW)


def test_a_request_counts_in_one_book(book: RuleBook) -> None:
    other = book_in(ledger(), time=NOW - DAY)
    with refused("moderator.wrong-book"):
        book.take(other.sign(K1, Add(rule("r1", "A1")), NOW).unverified(), NOW)


def test_only_the_passing_of_time_needs_no_signature(book: RuleBook) -> None:
    with refused("moderator.unsigned"):
        book.take_unsigned(Add(rule("r1", "A1")), Note(P1, NOW))
    assert book.take_unsigned(Pass(), Note(CLOCK, NOW)).step.number == 1
    book.verify()


def test_that_time_passes_is_in_nobodys_name_who_has_not_signed_it(book: RuleBook) -> None:
    for who in (P3, MODERATOR.principal):
        head = book.head
        with refused("moderator.unsigned"):
            book.take_unsigned(Pass(), Note(who, NOW))
        assert book.head == head
    assert book.ask(K3, Pass(), NOW).step.note.who == P3
    ended = replace(rule("r1", "A1"), validity=Validity.between(None, NOW + DAY))
    book.ask(K1, Add(ended), NOW)
    # It is not the moderator's either, nor theirs who asked for something else.
    book.ask(K2, Add(rule("r2", "A1", AT_A, of=[P2])), NOW + 2 * DAY)
    assert [(taken.step.note.who, taken.word is None) for taken in book.log()] == [
        (P3, False),
        (P1, False),
        (CLOCK, True),
        (P2, False),
    ]
    book.verify()


@pytest.mark.parametrize("who", [P3, MODERATOR.principal])
def test_what_was_written_in_a_name_that_nobody_signed_for_is_read_as_nobodys(book: RuleBook, who: Principal) -> None:
    """Books of old have such steps, and who can write to a ledger writes any name."""
    step = replace(book.plan(Pass(), Note(CLOCK, NOW)).step, note=Note(who, NOW, "of old"))
    book.ledger.append(book.head, [*take(step, None).entries(AuthorityLimits())])
    again = RuleBook.open(book.ledger)
    assert [each.note for each in again.base.steps] == [Note(CLOCK, NOW, "of old")]
    assert [taken.step.note.who for taken in again.log()] == [CLOCK]
    again.verify()
    again.ask(K1, Add(rule("r1", "A1")), NOW)


def test_nobody_is_the_clock() -> None:
    assert CLOCK.digest == bytes(32)
    assert str(CLOCK).startswith("ed25519:aaaa")


def test_a_book_without_signatures_says_so() -> None:
    place = ledger()
    with refused("moderator.unsigned"):
        RuleBook.create_unsigned(place, founding(), NOW)
    book = RuleBook.create_unsigned(place, founding(unsafe_unsigned=True), NOW)
    book.take_unsigned(Add(rule("r1", "A1")), Note(P1, NOW))
    assert [*RuleBook.open(place).base.standings] == ["r1"]
    book.verify()


# --- who may ask for what -------------------------------------------------------------------------------------------


def test_rules_are_for_those_who_state_them(book: RuleBook) -> None:
    refuses(book, "moderator.not-yours", K2, Add(rule("r1", "A1")))
    book.ask(K1, Add(rule("r1", "A1")), NOW)
    refuses(book, "moderator.not-yours", K2, WithdrawRule("r1"))
    refuses(book, "moderator.not-yours", MODERATOR, WithdrawRule("r1"))
    refuses(book, "moderator.unknown-rule", K1, WithdrawRule("r2"))
    wish = SubscribeRule("s1", event("A1"), P2, P2)
    refuses(book, "moderator.not-yours", K1, StateSubscriberRule(wish))
    book.ask(K2, StateSubscriberRule(wish), NOW)
    refuses(book, "moderator.not-yours", K1, WithdrawRule("s1"))


def test_a_rule_needs_the_word_of_all_whose_it_is(book: RuleBook) -> None:
    joint = Add(rule("r1", "A1", of=[P1, P2, P3]))
    refuses(book, "moderator.consent", K1, joint)
    refuses(book, "moderator.consent", K1, joint, agreed(book, K2, joint))
    refuses(book, "moderator.consent", K1, joint, agreed(book, K2, joint), agreed(book, STRANGER, joint))
    other = Add(rule("r1", "A2", of=[P1, P2, P3]))
    refuses(book, "moderator.consent", K1, joint, agreed(book, K2, joint), agreed(book, K3, other))
    book.ask(K1, joint, NOW, consents=[agreed(book, K2, joint), agreed(book, K3, joint)])
    book.verify()


def test_each_of_several_gives_up_a_rule_for_itself(book: RuleBook) -> None:
    joint = Add(rule("r1", "A1", of=[P1, P2, P3]))
    book.ask(K1, joint, NOW, consents=[agreed(book, K2, joint), agreed(book, K3, joint)])
    refuses(book, "moderator.not-yours", STRANGER, WithdrawRule("r1"))
    book.ask(K2, WithdrawRule("r1"), NOW)
    assert book.base.standing("r1").stated.publishers == (P1, P3)
    # That it is of it again is for itself to say.
    refuses(book, "moderator.not-yours", MODERATOR, Undo(2))
    refuses(book, "moderator.consent", MODERATOR, Undo(2, replay=True))
    book.ask(K1, WithdrawRule("r1"), NOW)
    assert book.base.standing("r1").status is RuleStatus.WITHDRAWN
    book.verify()


def test_nobody_is_subscribed_by_others(book: RuleBook) -> None:
    wanted = StateSubscriberRule(SubscribeRule("s1", event("A1"), P2, P1))
    refuses(book, "moderator.consent", K1, wanted)
    book.ask(K1, wanted, NOW, consents=[agreed(book, K2, wanted)])


def test_leaving_and_coming_back(book: RuleBook) -> None:
    refuses(book, "moderator.not-yours", K2, Leave(P1))
    book.ask(K1, Leave(P1), NOW)
    refuses(book, "moderator.not-yours", MODERATOR, Return(P1))
    book.ask(K1, Return(P1), NOW)
    # What somebody demands does not rest on the word of another.
    refuses(book, "moderator.consent", MODERATOR, Leave(P1))
    book.ask(MODERATOR, Leave(P1), NOW, consents=[agreed(book, K1, Leave(P1))])
    assert book.base.away == {P1}
    book.verify()


def test_who_left_is_not_brought_back_by_undoing(book: RuleBook) -> None:
    book.ask(K1, Add(rule("r1", "A1", ENGINEERS)), NOW)
    book.ask(K1, Leave(P1), NOW)
    refuses(book, "moderator.consent", MODERATOR, Undo(2))
    book.ask(K1, Return(P1), NOW)
    refuses(book, "moderator.consent", MODERATOR, Undo(3))
    book.ask(MODERATOR, Undo(3), NOW, consents=[agreed(book, K1, planned(book, Undo(3)))])
    assert book.base.away == {P1}
    book.verify()


@pytest.mark.parametrize(
    "request_",
    [
        AddType(event("B"), event("A1")),
        MoveType(event("A10"), event("A2")),
        RenameType(event("A10"), event("B")),
        RemoveType(event("A10")),
    ],
)
def test_the_tree_is_for_the_owners_of_types(book: RuleBook, request_: Request) -> None:
    refuses(book, "moderator.not-yours", K1, request_)
    refuses(book, "moderator.not-yours", MODERATOR, request_)
    book.ask(OWNER_KEY, request_, NOW)
    book.verify()


def test_who_hangs_a_type_below_anothers_asks_both(book: RuleBook) -> None:
    mine = AddType(TypeKey(P1, "Mine"), event("A1"))
    refuses(book, "moderator.consent", K1, mine)
    refuses(book, "moderator.consent", OWNER_KEY, mine)
    book.ask(K1, mine, NOW, consents=[agreed(book, OWNER_KEY, mine)])
    refuses(book, "moderator.consent", K1, RenameType(TypeKey(P1, "Mine"), event("Ours")))
    assert TypeKey(P1, "Mine") in book.base.tree
    assert OWNER_KEY.principal == OWNER


def test_steps_are_undone_by_those_who_asked_for_them(book: RuleBook) -> None:
    book.ask(K1, Add(rule("r1", "A1")), NOW)
    refuses(book, "moderator.not-yours", K2, Undo(1))
    refuses(book, "moderator.not-yours", K1, Undo(1, replay=True))
    refuses(book, "moderator.unknown-step", K1, Undo(2))
    # What somebody states is for nobody else to take back, nor to bring back.
    refuses(book, "moderator.not-yours", MODERATOR, Undo(1))
    book.ask(K1, Undo(1), NOW)
    refuses(book, "moderator.not-yours", MODERATOR, Undo(2))
    book.ask(K1, Undo(2), NOW)
    replayed = Undo(1, replay=True)
    refuses(book, "moderator.consent", MODERATOR, replayed)
    book.ask(MODERATOR, replayed, NOW, consents=[agreed(book, K1, planned(book, replayed))])
    assert not book.base.standings
    # That it was there is not the moderator's to say again.
    refuses(book, "moderator.consent", MODERATOR, Undo(4))
    book.ask(K1, Add(rule("r1", "A1")), NOW)
    book.ask(K1, WithdrawRule("r1"), NOW)
    refuses(book, "moderator.not-yours", MODERATOR, Undo(6))
    refuses(book, "moderator.consent", MODERATOR, Undo(6, replay=True))
    book.verify()


def test_a_replay_deletes_nobodys_restriction(book: RuleBook) -> None:
    colliding(book)
    for request in (Undo(1, replay=True), Undo(2, replay=True)):
        # One would be deleted with what was stated, and the other with what was asked for.
        refuses(book, "moderator.consent", MODERATOR, request)
    # To state a rule again is for whoever withdrew it.
    book.ask(K1, WithdrawRule("r1"), NOW)
    assert book.base.standing("r2").status is RuleStatus.IN_FORCE
    refuses(book, "moderator.consent", MODERATOR, Undo(3, replay=True))
    consent = agreed(book, K1, planned(book, Undo(3, replay=True)))
    refuses(book, "moderator.consent", MODERATOR, Undo(3, replay=True), consent)
    both = [consent, agreed(book, K2, planned(book, Undo(3, replay=True)))]
    book.ask(MODERATOR, Undo(3, replay=True), NOW, consents=both)
    assert book.base.standing("r2").status is RuleStatus.REJECTED
    book.verify()


def test_a_replay_that_others_rules_come_through_needs_no_more_than_its_publisher(book: RuleBook) -> None:
    colliding(book)
    replayed = Undo(1, replay=True)
    book.ask(MODERATOR, replayed, NOW, consents=[agreed(book, K1, planned(book, replayed))])
    # What was rejected is what its publisher asked for.
    assert {each.stated.id: each.status for each in book.base.standings.values()} == {"r2": RuleStatus.IN_FORCE}
    book.verify()


def test_who_changes_its_mind_does_not_take_away_what_others_got_by_it(book: RuleBook) -> None:
    colliding(book)
    book.ask(K1, WithdrawRule("r1"), NOW)
    assert book.base.standing("r2").status is RuleStatus.IN_FORCE
    refuses(book, "moderator.consent", K1, Undo(3))
    book.ask(K1, Undo(3), NOW, consents=[agreed(book, K2, planned(book, Undo(3), P1))])
    assert book.base.standing("r1").status is RuleStatus.IN_FORCE
    book.verify()


def test_a_way_out_is_taken_back_by_who_chose_it(book: RuleBook) -> None:
    book.ask(K1, Add(rule("r1", "A1", ENGINEERS)), NOW)
    book.ask(K2, Add(rule("r2", "A1", AT_A, of=[P2])), NOW)
    book.ask(MODERATOR, Resolve("r2", Strategy.ADD), NOW)
    book.ask(MODERATOR, Undo(3), NOW)
    book.ask(K2, Resolve("r2", Strategy.ADD), NOW)
    # Its rule is in force by its own word.
    refuses(book, "moderator.consent", MODERATOR, Undo(5))
    book.ask(K2, Undo(5), NOW)
    book.verify()


def test_a_wish_is_its_subscribers_in_a_replay_too(book: RuleBook) -> None:
    book.ask(K2, StateSubscriberRule(SubscribeRule("s1", event("A1"), P2, P2)), NOW)
    refuses(book, "moderator.consent", MODERATOR, Undo(1, replay=True))
    book.ask(K2, WithdrawRule("s1"), NOW)
    refuses(book, "moderator.consent", MODERATOR, Undo(2, replay=True))


def test_a_rule_of_several_stands_again_by_the_word_of_them_all(book: RuleBook) -> None:
    ours = Add(rule("r1", "A1", ENGINEERS, of=[P1, P2]))
    book.ask(K1, ours, NOW, consents=[agreed(book, K2, ours)])
    book.ask(K1, WithdrawRule("r1"), NOW)
    refuses(book, "moderator.consent", K1, Undo(2))
    book.ask(K1, Undo(2), NOW, consents=[agreed(book, K2, planned(book, Undo(2), P1))])
    # Whoever stated it gives it up alone, in whatever way.
    book.ask(K1, Undo(3), NOW)
    book.verify()


def test_a_consent_to_an_undoing_names_the_rules_that_go_by_it(book: RuleBook) -> None:
    colliding(book)
    book.ask(K1, WithdrawRule("r1"), NOW)
    consent = agreed(book, K2, planned(book, Undo(3), P1))
    book.ask(K3, StateSubscriberRule(SubscribeRule("s1", event("A1"), P3, P3)), NOW)
    step = planned(book, Undo(3), P1)
    assert set(step.delta.ceasing) == {"r2"}
    assert set(step.delta.rising) == {"r1"}
    forms = replace(step, delta=replace(step.delta, rules={"r1": step.delta.rules["r1"]}))
    assert subject_of(forms) != subject_of(step) == consent.value.to


def test_nobody_but_the_moderator_turns_back_time(book: RuleBook) -> None:
    ended = replace(rule("r1", "A1"), validity=Validity.between(None, NOW + DAY))
    book.ask(K1, Add(ended), NOW)
    book.take_unsigned(Pass(), Note(CLOCK, NOW + 2 * DAY))
    with refused("moderator.not-yours"):
        book.ask(K1, Undo(2), NOW + 2 * DAY)
    book.ask(K1, Pass(), NOW + 2 * DAY)
    with refused("moderator.not-yours"):
        book.ask(K1, Undo(3), NOW + 2 * DAY)
    book.ask(MODERATOR, Undo(2), NOW + 2 * DAY)


# --- what the founding says of them ---------------------------------------------------------------------------------


def test_where_the_founding_names_who_states_rules_others_do_not() -> None:
    book = book_in(ledger(), speakers=frozenset({P1}))
    book.ask(K1, Add(rule("r1", "A1", ENGINEERS)), NOW)
    shut = rule("x", "A1", "role = 'worker'", of=[STRANGER.principal])
    refuses(book, "moderator.not-yours", STRANGER, Add(shut))
    refuses(book, "moderator.not-yours", K2, StateSubscriberRule(SubscribeRule("s1", event("A1"), P2, P2)))


def stated_by_two(tightening: Tightening) -> RuleBook:
    """A rule of P1 is in force, and one of P2 was rejected."""
    book = book_in(ledger(), tightening=tightening)
    book.ask(K1, Add(rule("r1", "A1", ENGINEERS)), NOW)
    book.ask(K2, Add(rule("r2", "A1", AT_A, of=[P2])), NOW)
    return book


def test_rules_of_others_are_tightened_by_a_poll_alone_where_the_founding_says_so() -> None:
    add = Resolve("r2", Strategy.ADD)
    stated_by_two(Tightening.FREE).ask(K2, add, NOW)
    book = stated_by_two(Tightening.POLL)
    for by in (K2, MODERATOR):
        refuses(book, "moderator.needs-poll", by, add)
    # A poll that is only named is none.
    mine = agreed(book, MODERATOR, planned(book, add))
    named = sign_value(replace(mine.value, poll=bytes(32)), MODERATOR).unverified()
    for consent, code in ((mine, "moderator.needs-poll"), (named, "moderator.consent")):
        with refused(code):
            book.ask(MODERATOR, add, NOW, poll_reason(bytes(32)), [consent])


def test_one_changes_its_own_rule_and_withdraws_it_without_a_poll() -> None:
    book = stated_by_two(Tightening.POLL)
    follow = Resolve("r2", Strategy.FOLLOW, frozenset({P2}))
    book.ask(K2, follow, NOW)
    book.ask(K1, WithdrawRule("r1"), NOW)
    book.verify()
