"""What the parts of a node share: what is wanted is done in order."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import hypothesis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.broker.core_kit import LonePorts, lone_core
from tests.broker.node_kit import BROKERS, settings
from tests.broker.sports import AGENCY, NEWS, NOW, PDA, REPORTER, SOCCER, grant
from tests.budget import examples

from penstock.broker.core.core import Core
from penstock.broker.core.exchange import Outward
from penstock.broker.local.requests import Unadvertise
from penstock.broker.routing.outputs import Cut
from penstock.broker.sealing.blocks import Lingering
from penstock.errors import RefusedError
from penstock.model.events import TransitEvent
from penstock.trust.capabilities import BROKER_RIGHTS, Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import sign_type
from penstock.trust.policy_state import Revocations
from penstock.trust.validity import OnlineTest, Validity


def cut(code: str) -> Cut:
    """Return something that is to be done outside."""
    return Cut(BROKERS[1].principal, RefusedError(code, "because"))


class Cutting(LonePorts):
    """Surroundings that cut what a test says."""

    def __init__(self, carry_out: Callable[[Core, Cut], None]) -> None:
        super().__init__()
        self._carry_out = carry_out
        self.core = lone_core(settings(), self)

    def carry_out(self, output: Outward) -> None:
        assert isinstance(output, Cut)
        self._carry_out(self.core, output)


def test_what_is_wanted_while_something_is_done_comes_after_it() -> None:
    done = list[str]()
    first, second, third = map(cut, ("first", "second", "third"))

    def carry_out(core: Core, wanted: Cut) -> None:
        done.append(wanted.reason.code)
        if wanted is first:
            core.settle([third])

    Cutting(carry_out).core.settle([first, second])
    assert done == ["first", "second", "third"]


def test_what_fails_keeps_nothing_else_from_being_done() -> None:
    done = list[str]()
    bad, after, later = map(cut, ("bad", "after", "later"))

    def carry_out(core: Core, wanted: Cut) -> None:
        if wanted is bad:
            core.settle([after])
            raise RefusedError("some.code", "it fails")
        done.append(wanted.reason.code)

    with pytest.raises(RefusedError):
        Cutting(carry_out).core.settle([bad, later])
    assert done == ["later", "after"]


def test_whoever_wants_something_is_told_of_its_own_failures_and_operators_of_the_others() -> None:
    done = list[str]()
    first, second, third = map(cut, ("first", "second", "third"))

    def carry_out(core: Core, wanted: Cut) -> None:
        done.append(wanted.reason.code)
        if wanted is first:
            core.settle([third])
        else:
            raise wanted.reason

    around = Cutting(carry_out)
    # Nothing was advertised: that fails inside.
    with pytest.raises(RefusedError) as caught:
        around.core.settle([Unadvertise("none"), first, second])
    assert caught.value.code == "route.unknown"
    assert done == ["first", "second", "third"]
    assert around.codes == ["second", "third"]


def test_who_is_woken_too_early_is_woken_again() -> None:
    around = LonePorts()
    core = lone_core(settings(sealing=Lingering(linger=timedelta(seconds=1))), around)
    core.exchange.gathering.put(core.now(), [TransitEvent(NEWS.name.key, (), {})])
    core.settle(())
    core.flush()
    assert len(around.woken) == 2
    assert len(core.exchange.gathering) == 1


ME, PEER = BROKERS[:2]
END = Validity.between(not_after=NOW + timedelta(minutes=1))
BROKER = [grant(PEER, None, right) for right in BROKER_RIGHTS]
#: what the neighbour shows, or the broker has
BAGS = [
    (),
    (*BROKER,),
    (*BROKER, grant(PEER, NEWS, Right.ROUTE), grant(PEER, SOCCER, Right.ROUTE, valid=END)),
    (*(grant(PEER, None, right, valid=END) for right in BROKER_RIGHTS), grant(PEER, NEWS, Right.ROUTE)),
    (grant(ME, NEWS, Right.ROUTE),),
    (grant(ME, NEWS, Right.ROUTE, valid=END), grant(ME, SOCCER, Right.ROUTE), grant(PEER, SOCCER, Right.ROUTE)),
    (grant(ME, NEWS, Right.ROUTE), grant(PEER, NEWS, Right.ROUTE), *BROKER),
]


@hypothesis.settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.just("show") | st.just("policy"), st.sampled_from(BAGS))
        | st.tuples(st.just("wait"), st.sampled_from([1, 59, 61])),
        max_size=8,
    )
)
def test_what_may_pass_to_a_neighbour_is_what_both_may_carry_whatever_was_cached(steps: list[tuple[str, Any]]) -> None:
    now = [NOW]
    core = lone_core(settings(), LonePorts(), lambda: now[0])
    types = [one.name.key for one in (NEWS, SOCCER)]
    for step, what in [("show", BAGS[3]), ("policy", BAGS[4]), *steps, ("wait", 61)]:
        if step == "show":
            core.disclose(PEER.principal, Credentials.of(*what) if what else None)
        elif step == "policy":
            core.change_sources(replace(core.sources, credentials=Credentials.of(*what)))
        else:
            now[0] += timedelta(seconds=what)
        core.begin()
        for _ in range(2):
            found = [core.may_pass(one, PEER.principal) for one in types]
            both = [core.may_route(one, ME.principal) and core.may_route(one, PEER.principal) for one in types]
            assert found == [core.admitted(PEER.principal) and one for one in both]


OTHER = BROKERS[2]
TEST = OnlineTest("reval", (b"online", b"reval"))
ONLINE = Validity(online=(TEST,))
#: what the neighbour, a third broker and policy have parts of
WANTED = [
    *(grant(PEER, None, right, valid=ONLINE) for right in BROKER_RIGHTS),
    grant(PEER, NEWS, Right.ROUTE),
    grant(PEER, SOCCER, Right.ROUTE, valid=ONLINE),
    grant(ME, NEWS, Right.ROUTE, valid=END),
    grant(ME, SOCCER, Right.ROUTE),
]
HELD = st.sets(st.sampled_from(range(len(WANTED)))).map(lambda places: tuple(WANTED[place] for place in sorted(places)))


class Online(LonePorts):
    """Surroundings in which on-line tests hold until a date, if at all."""

    def __init__(self) -> None:
        super().__init__()
        self.until: datetime | None = NOW + timedelta(seconds=30)

    def check_online(self, test: OnlineTest, certificate: str, now: datetime) -> Validity:
        if self.until is None or now > self.until:
            return super().check_online(test, certificate, now)
        return Validity.between(None, self.until)


@hypothesis.settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["show", "other", "policy", "successors", "revoke"]), HELD)
        | st.tuples(st.just("wait"), st.sampled_from([1, 29, 31, 61]))
        | st.tuples(st.just("online"), st.none() | st.sampled_from([0, 30])),
        max_size=10,
    )
)
# The right to be a broker ends, or the right to carry that somebody else has brought.
@example([("policy", (*WANTED[:-4], WANTED[-4], WANTED[-2])), ("wait", 31)])
@example([("policy", (*BROKER, WANTED[-1])), ("other", (WANTED[-3],)), ("wait", 31)])
# The right to be a broker is that of a successor, which is withdrawn or ends.
@example([("policy", WANTED[-4:]), ("successors", BROKER), ("successors", ())])
@example([("policy", WANTED[-4:]), ("successors", WANTED[:-4]), ("wait", 31)])
def test_no_cached_answer_outlives_what_it_depends_on(steps: list[tuple[str, Any]]) -> None:
    now, ports = [NOW], Online()
    core = lone_core(settings(), ports, lambda: now[0])
    types = [one.name.key for one in (NEWS, SOCCER)]
    for step, what in [("policy", WANTED), *steps, ("wait", 31)]:
        match step:
            case "show":
                core.disclose(PEER.principal, Credentials.of(*what) if what else None)
            case "other":
                core.disclose(OTHER.principal, Credentials.of(*what) if what else None)
            case "policy":
                core.change_sources(replace(core.sources, credentials=Credentials.of(*what)))
            case "successors":
                core.change_sources(replace(core.sources, successors=Credentials.of(*what)))
            case "revoke":
                gone = Revocations({AGENCY.principal: frozenset(one.id for one in what)})
                core.change_sources(replace(core.sources, revocations=gone))
            case "online":
                ports.until = None if what is None else now[0] + timedelta(seconds=what)
                core.online_changed(frozenset(one.id for one in WANTED if one.statement.validity.online))
            case _:
                now[0] += timedelta(seconds=what)
        core.begin()
        cached = [core.may_pass(one, PEER.principal) for one in types]
        core._answers.forget()
        core.overlay.recheck()
        both = [core.may_route(one, ME.principal) and core.may_route(one, PEER.principal) for one in types]
        assert cached == [core.admitted(PEER.principal) and one for one in both]
        # These answers are cached for the next step.
        assert cached == [core.may_pass(one, PEER.principal) for one in types]


def test_a_client_that_shows_the_certificate_of_a_type_does_not_keep_the_type_valid() -> None:
    ports = Online()
    core = lone_core(settings(), ports)
    manages = grant(REPORTER, NEWS, Right.MANAGE, valid=ONLINE)
    bag = Credentials.of(manages, grant(REPORTER, None, Right.INSTALL))
    core.library.add(sign_type(NEWS, REPORTER, bag), NOW)
    core.change_sources(replace(core.sources, credentials=Credentials.of(grant(PDA, None, Right.CONNECT))))
    # Whoever has the type has the certificate, and anybody can show it.
    core.settle(core.local.connect(NOW, "pda", PDA.principal, Credentials.of(manages)))
    assert core.local.shows(frozenset({manages.id})) == {manages.id}
    assert core.library.get(NEWS.name, NOW).event_type.name == NEWS.name
    ports.until = None
    core.online_changed(frozenset({manages.id}))
    with pytest.raises(RefusedError):
        core.library.get(NEWS.name, NOW)


def test_a_client_that_shows_a_successor_does_not_keep_it_valid_for_others() -> None:
    ports = Online()
    core = lone_core(settings(), ports)
    enters = grant(PDA, None, Right.CONNECT)
    successor = grant(REPORTER, None, Right.CONNECT, valid=ONLINE)
    core.change_sources(replace(core.sources, credentials=Credentials.of(enters), successors=Credentials.of(successor)))
    core.settle(core.local.connect(NOW, "reporter", REPORTER.principal, Credentials()))
    core.settle(core.local.connect(NOW, "pda", PDA.principal, Credentials.of(successor)))
    ports.until = None
    core.online_changed(frozenset({successor.id}))
    with pytest.raises(RefusedError) as caught:
        core.local.session("reporter")
    assert caught.value.code == "broker.session"
