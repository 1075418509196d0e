"""Who is live, who is the rendezvous node, and which announcements count."""

import hashlib
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.network import OWNER, principal

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.membership import Membership, NetworkView, announced_words, rendezvous, weight
from penstock.broker.routing.messages import Announcement, Disclosure, Hop, Pulse, Stamp, WithdrawEntry
from penstock.broker.routing.peers import Heard, Hops
from penstock.codec.sexp import canonical
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.names import TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.values import INTEGER_MAX

A, B, C, D = (principal(name) for name in "abcd")
NEWS = TypeKey(OWNER, "News")


def said(broker: Principal, number: int, *links: Principal, incarnation: int = 1) -> Announcement:
    return Announcement(broker, incarnation, number, tuple(sorted(links)))


def line_of_three() -> Membership:
    """Return what A knows of A - B - C."""
    members = Membership(A, 1, limits=BrokerLimits())
    members.link_up(B)
    members.hear(said(B, 1, A, C), 0)
    members.hear(said(C, 1, B), 0)
    return members


class TestRendezvous:
    def test_the_weight_is_a_hash_of_owner_name_and_broker(self) -> None:
        of_type = hashlib.sha256(canonical((b"type", OWNER.digest, b"News"))).digest()

        assert weight(NEWS, A) == hashlib.sha256(of_type + A.digest).digest()

    def test_all_versions_of_a_type_meet(self) -> None:
        keys = {TypeName(OWNER, "News", version).key for version in ("0", "1", "7e57")}

        assert len({rendezvous(key, iter((A, B, C, D))) for key in keys}) == 1

    def test_the_owner_counts(self) -> None:
        roots = {rendezvous(TypeKey(principal(f"owner {i}"), "News"), iter((A, B, C, D))) for i in range(40)}

        assert roots == {A, B, C, D}

    @given(st.integers(0, 10**6))
    def test_a_broker_that_comes_or_goes_moves_only_its_own_types(self, seed: int) -> None:
        key = TypeKey(OWNER, f"type_{seed}")
        before, after = rendezvous(key, iter((A, B, C))), rendezvous(key, iter((A, B, C, D)))

        assert after in (before, D)

    def test_types_are_spread_evenly(self) -> None:
        counts = Counter(rendezvous(TypeKey(OWNER, f"t{i}"), iter((A, B, C, D))) for i in range(2000))

        assert all(400 < count < 600 for count in counts.values())

    def test_there_is_none_of_none(self) -> None:
        assert rendezvous(NEWS, iter(())) is None


class TestView:
    def test_a_link_counts_when_both_ends_announce_it(self) -> None:
        members = Membership(A, 1, limits=BrokerLimits())
        members.link_up(B)
        assert set(members.view.links) == {A}

        members.hear(said(B, 1, C), 0)
        assert set(members.view.links) == {A}

        members.hear(said(B, 2, A), 0)
        assert set(members.view.links) == {A, B}

    def test_a_broker_is_gone_as_soon_as_its_neighbours_say_so(self) -> None:
        members = line_of_three()
        assert set(members.view.links) == {A, B, C}

        members.hear(said(B, 2, A), 1)
        assert set(members.view.links) == {A, B}

    def test_parents_of_all_brokers_make_one_tree(self) -> None:
        links = {A: {B, C}, B: {A, D}, C: {A, D}, D: {B, C}}
        frozen = {broker: frozenset(others) for broker, others in links.items()}
        for i in range(50):
            key = TypeKey(OWNER, f"t{i}")
            views = {broker: NetworkView(broker, frozen) for broker in links}
            roots = {view.root(key) for view in views.values()}
            assert len(roots) == 1
            for start in links:
                path = [start]
                while (parent := views[path[-1]].parent(key)) is not None:
                    path.append(parent)
                assert {path[-1]} == roots
                assert len(path) <= 3

    def test_of_equal_paths_types_take_different_ones(self) -> None:
        links = {A: frozenset({B, C}), B: frozenset({A, D}), C: frozenset({A, D}), D: frozenset({B, C})}
        keys = [TypeKey(OWNER, f"t{i}") for i in range(100)]
        view = NetworkView(A, links)

        assert {view.parent(key) for key in keys if view.root(key) == D} == {B, C}

    def test_an_overlay_keeps_to_brokers_that_may_route_the_type(self) -> None:
        links = {A: frozenset({B, C}), B: frozenset({A, D}), C: frozenset({A, D}), D: frozenset({B, C})}
        keys = [TypeKey(OWNER, f"t{i}") for i in range(50)]

        def without_b(_key: TypeKey, broker: Principal) -> bool:
            return broker != B

        assert {NetworkView(A, links).root(key, without_b) for key in keys} == {A, C, D}
        assert {NetworkView(A, links).parent(key, without_b) for key in keys} == {None, C}
        assert {NetworkView(B, links).root(key, without_b) for key in keys} == {None}

    def test_an_overlay_that_is_apart_has_a_rendezvous_node_in_each_part(self) -> None:
        links = {A: frozenset({B}), B: frozenset({A, C}), C: frozenset({B})}

        def without_b(_key: TypeKey, broker: Principal) -> bool:
            return broker != B

        assert NetworkView(A, links).root(NEWS, without_b) == A
        assert NetworkView(C, links).root(NEWS, without_b) == C


class TestAnnouncements:
    def test_only_news_is_passed_on(self) -> None:
        members = Membership(A, 1, limits=BrokerLimits())
        first, second = said(B, 1, A), said(B, 2, A, C)

        assert members.hear(second, 0) == second
        assert members.hear(second, 0) is None
        assert members.hear(first, 0) is None
        assert members.announcements() == [members.own, second]

    def test_a_later_incarnation_wins_whatever_its_number(self) -> None:
        members = Membership(A, 1, limits=BrokerLimits())
        members.link_up(B)
        members.hear(said(B, 99, A), 0)

        assert members.hear(said(B, 1, incarnation=2), 0) is not None
        assert set(members.view.links) == {A}
        assert members.hear(said(B, 100, A), 0) is None

    def test_my_own_announcements_are_numbered(self) -> None:
        members = Membership(A, 7, limits=BrokerLimits())
        first, second, third = members.link_up(B), members.link_up(C), members.link_down(B)
        assert first is not None
        assert second is not None
        assert third is not None

        assert first.order < second.order < third.order
        assert third.links == (C,)
        assert members.link_up(C) is members.link_down(B) is None

    def test_words_of_my_earlier_life_are_outlived(self) -> None:
        members = Membership(A, 3, limits=BrokerLimits())
        members.link_up(B)
        own = members.hear(said(A, 4, C, incarnation=8), 0)

        assert own is not None
        assert own.order > (8, 4)
        assert own.links == (B,)
        assert members.incarnation == 9
        assert members.hear(said(A, 4, C, incarnation=8), 0) is None
        assert members.hear(said(A, 4, incarnation=INTEGER_MAX), 0) is None

    def test_who_cannot_be_reached_is_remembered_for_a_while(self) -> None:
        members = line_of_three()
        members.forget(100, 60)
        assert len(members.announcements()) == 3

        members.hear(said(B, 2, A), 100)
        members.forget(160, 60)
        assert len(members.announcements()) == 3
        members.forget(161, 60)
        assert {announcement.broker for announcement in members.announcements()} == {A, B}

    def test_who_has_left_stays_away(self) -> None:
        members = line_of_three()
        own = members.leave()

        assert own.links == ()
        assert members.link_up(B) is None
        assert set(members.view.links) == {A}

    def test_bounds(self) -> None:
        members = Membership(A, 1, limits=BrokerLimits(network_brokers=1, network_links=1))
        members.link_up(B)
        members.hear(said(B, 1), 0)
        members.hear(said(B, 2), 0)
        for error in (pytest.raises(LimitError), pytest.raises(LimitError)):
            with error as caught:
                members.hear(said(C, 1), 0)
            assert caught.value.code == "network.limit"
        with pytest.raises(LimitError) as caught:
            members.link_up(C)
        assert caught.value.code == "network.limit"
        with pytest.raises(MalformedError) as malformed:
            Membership(A, 1, limits=BrokerLimits()).link_up(A)
        assert malformed.value.code == "network.self"


class Seal:
    """A proof that stands for a signature: a hash that only this test can make."""

    def __init__(self, me: Principal) -> None:
        self.me = me

    def sign(self, words: bytes) -> bytes:
        return hashlib.sha256(b"key of " + self.me.digest + words).digest()

    def verify(self, broker: Principal, words: bytes, proof: bytes) -> None:
        if Seal(broker).sign(words) != proof:
            raise RefusedError("test.forged", "forged")


class TestProofs:
    def test_announcements_are_believed_by_their_proof(self) -> None:
        members, other = (
            Membership(A, 1, proof=Seal(A), limits=BrokerLimits()),
            Membership(B, 1, proof=Seal(B), limits=BrokerLimits()),
        )
        announcement = other.link_up(A)
        assert announcement is not None

        assert members.hear(announcement, 0) == announcement

    @pytest.mark.parametrize("changes", [{"number": 9}, {"incarnation": 9}, {"links": (C,)}, {"broker": C}])
    def test_changed_words_are_not(self, changes: dict[str, object]) -> None:
        members, other = (
            Membership(A, 1, proof=Seal(A), limits=BrokerLimits()),
            Membership(B, 1, proof=Seal(B), limits=BrokerLimits()),
        )
        announcement = other.link_up(A)
        assert announcement is not None
        forged = replace(announcement, **changes)  # type: ignore[arg-type]  # one field at a time

        with pytest.raises(RefusedError):
            members.hear(forged, 0)
        assert members.announcements() == [members.own]

    def test_nobody_can_make_me_outlive_what_i_did_not_say(self) -> None:
        members = Membership(A, 1, proof=Seal(A), limits=BrokerLimits())

        assert members.hear(said(A, 1, incarnation=5), 0) is None
        assert members.incarnation == 1

    def test_the_words_hold_everything_but_the_proof(self) -> None:
        one = said(A, 1, B, C)
        others = [said(A, 2, B, C), said(A, 1, B, C, incarnation=2), said(B, 1, A, C), said(A, 1, B)]

        assert announced_words(one) == announced_words(replace(one, proof=b"any"))
        assert len({announced_words(each) for each in (one, *others)}) == 5


class TestHops:
    def pair(self) -> tuple[Hops, Hops]:
        one, other = Hops(1), Hops(1)
        assert other.hear(one.begin()) is Heard.NEW
        assert one.hear(other.begin()) is Heard.NEW
        return one, other

    def test_words_count_once_and_in_order(self) -> None:
        one, other = self.pair()
        first, second = one.say(WithdrawEntry(1)), one.say(WithdrawEntry(2))

        assert [other.hear(hop) for hop in (first, second, first, second)] == [Heard.NEXT] * 2 + [Heard.NOTHING] * 2
        assert other.hear(one.say(Pulse())) is Heard.NOTHING

    def test_a_missing_word_is_noticed_at_the_next_and_asked_for(self) -> None:
        one, other = self.pair()
        one.say(WithdrawEntry(1))

        assert other.hear(one.say(WithdrawEntry(2))) is Heard.LOST
        assert not other.greeted
        assert other.hear(one.say(WithdrawEntry(3))) is Heard.NOTHING
        assert one.hear(other.again()) is Heard.ASKED
        assert other.hear(one.begin()) is Heard.NEW
        assert other.hear(one.say(WithdrawEntry(1))) is Heard.NEXT

    def test_a_missing_word_is_noticed_at_the_next_pulse(self) -> None:
        one, other = self.pair()
        one.say(WithdrawEntry(1))

        assert other.hear(one.say(Pulse())) is Heard.LOST
        assert other.hear(one.say(Pulse())) is Heard.LOST

    def test_a_missing_greeting_is_noticed_at_the_next_pulse(self) -> None:
        one, other = Hops(1), Hops(1)
        one.begin()

        assert other.hear(one.say(WithdrawEntry(1))) is Heard.NOTHING
        assert other.hear(one.say(Pulse())) is Heard.LOST
        assert one.hear(other.again()) is Heard.ASKED
        assert other.hear(one.begin()) is Heard.NEW

    def test_words_of_earlier_sessions_are_nothing(self) -> None:
        one, other = self.pair()
        old, pulse, again = one.say(WithdrawEntry(1)), one.say(Pulse()), other.again()
        assert one.hear(again) is Heard.ASKED
        greeting = one.begin()
        assert other.hear(greeting) is Heard.NEW

        assert [other.hear(hop) for hop in (old, pulse, greeting)] == [Heard.NOTHING] * 3
        assert one.hear(again) is Heard.NOTHING

    def test_a_restarted_neighbour_has_forgotten_me(self) -> None:
        _, other = self.pair()

        assert other.hear(Hops(2).begin()) is Heard.REBORN
        assert other.hear(Hop(Stamp(1, 9), 0, Pulse())) is Heard.NOTHING

    def test_a_neighbour_whose_clock_went_backwards_catches_up(self) -> None:
        _, other = self.pair()
        reborn = Hops(0)
        other.connect()

        assert other.hear(reborn.begin()) is Heard.LOST
        assert other.hear(reborn.say(Pulse())) is Heard.LOST
        assert reborn.hear(other.again()) is Heard.ASKED
        assert other.hear(reborn.begin()) is Heard.NEW

    def test_there_is_a_last_stamp(self) -> None:
        one, other = Hops(1), Hops(1)
        other.hear(Hop(Stamp(INTEGER_MAX, 1), 0, Pulse()))
        with pytest.raises(RefusedError) as caught:
            one.hear(other.again())
        assert caught.value.code == "network.stamp"


class TestDisclosures:
    def told(self, number: int, octets: bytes, incarnation: int = 1) -> Disclosure:
        return Disclosure(B, incarnation, number, octets)

    def test_the_latest_wins_and_is_told_to_new_neighbours(self) -> None:
        members = line_of_three()
        first, second = self.told(1, b"1"), self.told(2, b"2")

        assert members.hear_disclosure(second) == (None, b"2")
        assert members.hear_disclosure(first) == (None, None)
        assert members.believe(B, b"2") == second
        own = members.disclose(b"mine")
        bodies = members.announcements()
        assert bodies[-2:] == [own, second]
        assert all(isinstance(body, Announcement) for body in bodies[:-2])

    def test_only_what_is_new_is_reported(self) -> None:
        members = line_of_three()
        again = self.told(2, b"same")
        members.hear_disclosure(self.told(1, b"same"))
        members.believe(B, b"same")

        assert members.hear_disclosure(again) == (again, None)

    def test_what_nobody_has_read_goes_no_further(self) -> None:
        members = line_of_three()
        junk, good = self.told(1, b"junk"), self.told(2, b"good")

        assert members.hear_disclosure(junk) == (None, b"junk")
        assert members.is_unread(B, b"junk")
        assert junk not in members.announcements()
        members.disbelieve(B, b"junk")
        assert members.believe(B, b"junk") is None
        assert members.hear_disclosure(junk) == (None, None)
        assert junk not in members.announcements()

        assert members.hear_disclosure(good) == (None, b"good")
        assert members.believe(B, b"other") is None
        assert members.believe(B, b"good") == good
        assert members.announcements()[-1] == good

    def test_nothing_is_taken_of_strangers(self) -> None:
        members = line_of_three()

        assert members.hear_disclosure(Disclosure(D, 1, 1, b"x")) == (None, None)

    def test_what_an_earlier_life_disclosed_is_outdone(self) -> None:
        members = Membership(A, 1, limits=BrokerLimits())
        assert members.hear_disclosure(Disclosure(A, 7, 7, b"old")) == (None, None)
        members.disclose(b"new")
        corrected, _ = members.hear_disclosure(Disclosure(A, 7, 7, b"old"))

        assert corrected is not None
        assert corrected.order > (7, 7)
        assert corrected.data == b"new"
        assert members.disclose(b"newer").order > corrected.order

    def test_it_goes_with_the_broker(self) -> None:
        members = line_of_three()
        members.hear_disclosure(self.told(1, b"1"))
        members.believe(B, b"1")
        members.link_down(B)

        assert members.forget(100, 60) == [B]
        assert not [body for body in members.announcements() if isinstance(body, Disclosure)]
        assert members.forget(200, 60) == []

    def test_its_length_is_bounded(self) -> None:
        members = Membership(A, 1, limits=BrokerLimits(network_disclosure=3))
        members.disclose(b"abc")
        with pytest.raises(LimitError):
            members.disclose(b"abcd")

    def test_what_is_renewed_is_later_than_before(self) -> None:
        members = Membership(A, 1, limits=BrokerLimits())
        before: list[Announcement | Disclosure] = [members.own, members.disclose(b"x")]

        assert all(old.order < new.order for old, new in zip(before, members.renew(), strict=True))


class TestAdmission:
    def members(self, limits: BrokerLimits | None = None) -> tuple[Membership, set[Principal]]:
        admitted = {A, B}
        return Membership(A, 1, admitted=admitted.__contains__, limits=limits or BrokerLimits()), admitted

    def test_who_is_not_admitted_does_not_count_and_is_not_passed_on(self) -> None:
        members, _ = self.members()
        members.link_up(C)

        assert members.hear(said(C, 1, A), 0) is None
        assert set(members.view.links) == {A}
        assert members.announcements() == [members.own]

    def test_he_can_be_admitted_for_what_he_disclosed(self) -> None:
        members, admitted = self.members()
        members.link_up(C)
        announcement, disclosure = said(C, 1, A), Disclosure(C, 1, 1, b"credentials")
        members.hear(announcement, 0)
        assert members.hear_disclosure(disclosure) == (None, b"credentials")
        assert members.believe(C, b"credentials") is None

        admitted.add(C)
        assert members.review() == [announcement, disclosure]
        assert set(members.view.links) == {A, C}
        assert members.review() == []

    def test_who_is_no_longer_admitted_is_put_aside(self) -> None:
        members, admitted = self.members()
        members.link_up(B)
        members.hear(said(B, 1, A), 0)
        assert set(members.view.links) == {A, B}
        admitted.remove(B)

        assert members.review() == []
        assert set(members.view.links) == {A}
        assert members.hear(said(B, 2, A, C), 0) is None

    def test_a_neighbour_that_brings_many_displaces_nobody_whom_another_has_brought(self) -> None:
        members, _ = self.members(BrokerLimits(network_waiting=4))
        members.hear(said(principal("honest"), 1), 0, principal("neighbour"))
        for number in range(20):
            members.hear(said(principal(f"ghost {number}"), 1), 0, principal("liar"))

        assert principal("honest") in members._waiting
        assert len(members._waiting) == 4
        assert members._brought.keys() == members._waiting.keys()
        members.forget(61, 60)
        assert not members._waiting
        assert not members._brought

    def test_those_who_wait_are_bounded(self) -> None:
        members, _ = self.members(BrokerLimits(network_waiting=3))
        for number in range(9):
            members.hear(said(principal(f"ghost {number}"), 1), 0)
            members.hear_disclosure(Disclosure(principal(f"ghost {number}"), 1, 1, b"x"))
            members.believe(principal(f"ghost {number}"), b"x")

        assert len(members._waiting) == 3
        assert members.forget(0, 60) == [principal(f"ghost {number}") for number in range(6)]
        assert members.forget(61, 60) == [principal(f"ghost {number}") for number in range(6, 9)]
