"""Remote decision points in a broker: they give rights, live subscriptions follow them, and silence ends them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from tests.apps.acs.test_push import is_cut_off
from tests.apps.conftest import Shell
from tests.apps.node_kit import lay_out, node_file, running
from tests.authority.decisions.kit import NOW, OTHER, OWNER, PDP, PEP, POLICY, Policies, answer

from penstock.apps.cli.shared.options import open_key
from penstock.apps.node import decision_points
from penstock.apps.node.config import read_node_file
from penstock.apps.node.decision_points import BrokerPoints
from penstock.apps.node.load import PointsPlace
from penstock.authority.decisions.decision_point import PolicyDecisionPoint
from penstock.authority.decisions.messages import AnswerEffect
from penstock.authority.decisions.modes import AskedDecision
from penstock.authority.decisions.policy_feed import PolicyFeed
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.updates import PolicyChange, ResourceChange, RolePermissionChange, UpdateAuthor
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, RefusedError
from penstock.fabric.nats import NatsFabric
from penstock.guard import point_answers
from penstock.guard.point_answers import PointQuestion
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.policy.language.results import XacmlDecision
from penstock.testing.nats import NatsServer
from penstock.trust.capabilities import Right
from penstock.trust.signed import sign_value

NAME = TypeName(OWNER.principal, "org.london.Sighting", "3")
READER, WRITER = PEP.principal, OTHER.principal
ASKED = PointQuestion(READER, Right.SUBSCRIBE, NAME.key)


class Points:
    """Decision points that say what a test wants, and the broker's source of authority that asks them."""

    def __init__(self, refresh: float = 0.0) -> None:
        self.says: AnswerEffect | None = AnswerEffect.PERMIT
        self.asked: list[AccessQuestion] = []
        self.problems: list[str] = []
        self.now = NOW
        self.held = asyncio.Event()
        self.held.set()
        self.policies = [POLICY]
        self.author = UpdateAuthor(PDP, NOW, self.policies)
        place = PointsPlace(OWNER.principal, frozenset({OWNER.principal}), refresh=refresh)
        self.broker = BrokerPoints(place, self, lambda: self.now, lambda error: self.problems.append(error.code))

    async def ask(self, question: AccessQuestion) -> AskedDecision:
        self.asked.append(question)
        await self.held.wait()
        if self.says is None:
            raise RefusedError("pep.no-answer", "nobody answered")
        # Behind until it uses what it announced.
        rests_on = (self.policies.pop(0) if len(self.policies) > 1 else self.policies[0],)
        found = answer(question, key=PDP, effect=self.says, until=self.now + timedelta(seconds=5), rests_on=rests_on)
        return AskedDecision(self.says, (sign_value(found, PDP),))

    def permits(self) -> bool | None:
        found = self.broker.authority.questions.get(ASKED)
        return None if found is None else found.permits

    async def look(self, *live: Principal) -> set[Principal]:
        """Look twice, with time for answers in between, and return whose answers have changed."""
        first = self.broker.look(live or (READER,))
        for _ in range(10):
            await asyncio.sleep(0)
        return {*first, *self.broker.look(live or (READER,))}


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_request_waits_for_the_answer() -> None:
    async def test() -> None:
        points = Points()
        points.held.clear()
        preparing = asyncio.ensure_future(points.broker.prepare(READER, Right.SUBSCRIBE, NAME))
        again = asyncio.ensure_future(points.broker.prepare(READER, Right.SUBSCRIBE, NAME))
        for _ in range(10):
            await asyncio.sleep(0)
        assert (preparing.done(), points.permits()) == (False, None)
        points.held.set()
        await asyncio.gather(preparing, again)
        assert points.permits() is True
        assert [one.text for one in points.asked] == [
            AccessQuestion.of(("principal", str(READER)), "subscribe", ("event-type", str(NAME.key))).text
        ]
        # What is known is not asked, and neither are types of others.
        await points.broker.prepare(READER, Right.SUBSCRIBE, NAME)
        await points.broker.prepare(READER, Right.SUBSCRIBE, TypeName(READER, "x"))
        assert len(points.asked) == 1

    run(test)


def test_a_changed_answer_names_who_is_concerned() -> None:
    async def test() -> None:
        points = Points()
        await points.broker.prepare(READER, Right.SUBSCRIBE, NAME)
        assert await points.look() == {READER}
        assert await points.look() == set()
        for says, permitted in (
            (AnswerEffect.DENY, False),
            (AnswerEffect.PERMIT, True),
            (AnswerEffect.NOT_APPLICABLE, False),
        ):
            points.says = says
            assert (await points.look(), points.permits()) == ({READER}, permitted)

    run(test)


def test_live_subscriptions_follow_an_answer_before_a_request_is_decided_by_it() -> None:
    async def test() -> None:
        points = Points()
        told: list[frozenset[Principal]] = []
        following = asyncio.ensure_future(points.broker.follow(lambda: (READER,), told.append))
        await asyncio.sleep(0)
        await points.broker.prepare(READER, Right.SUBSCRIBE, NAME)
        assert told == [{READER}]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run(test)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_an_update_of_a_point_has_the_broker_ask_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_points, "_AGAIN", 0.0)

    async def test() -> None:
        points = Points(refresh=3_600.0)
        told: list[frozenset[Principal]] = []
        following = asyncio.ensure_future(points.broker.follow(lambda: (READER,), told.append))
        await asyncio.sleep(0)
        hear = points.broker.hear
        # Nobody has answered yet, so that nobody is listened to.
        hear(points.author.heartbeat(NOW).to_bytes())
        await points.broker.prepare(READER, Right.SUBSCRIBE, NAME)
        told.clear()
        # Something may have changed between the answer and the first heartbeat.
        hear(points.author.heartbeat(NOW).to_bytes())
        await settle()
        assert (len(points.asked), told) == (2, [])
        newer = replace(POLICY, revision="newer")

        def announced(revision: str, *changes: PolicyChange) -> bytes:
            return points.author.update(NOW, POLICY.id, replace(POLICY, revision=revision), changes).to_bytes()

        # An update about something else, junk, and a copy.
        update = announced("other", ResourceChange("document"), RolePermissionChange("r", "read", "event-type", "x"))
        points.policies = [replace(POLICY, revision="other")]
        for data in (update, b"junk", update, points.author.heartbeat(NOW).to_bytes()):
            hear(data)
        await settle()
        assert len(points.asked) == 2
        # The point is asked until it uses what it announced.
        points.says, points.policies = AnswerEffect.DENY, [points.policies[0], points.policies[0], newer]
        hear(announced("newer", ResourceChange("event-type", str(NAME.key), exact=True)))
        await settle()
        assert (len(points.asked), told, points.permits()) == (5, [frozenset({READER})], False)
        # What others sign is not listened to.
        hear(UpdateAuthor(OTHER, NOW, [POLICY]).heartbeat(NOW).to_bytes())
        missed = points.author.update(NOW, POLICY.id, replace(POLICY, revision="missed"), [ResourceChange()])
        hear(replace(missed, signature=bytes(64)).to_bytes())
        await settle()
        assert len(points.asked) == 5
        # After a gap, everything may have changed.
        points.policies = [replace(POLICY, revision="last")]
        points.says = AnswerEffect.PERMIT
        hear(announced("last", ResourceChange("document")))
        await settle()
        assert (len(points.asked), points.permits()) == (6, True)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run(test)


def test_silence_ends_what_was_permitted_when_the_answer_ends() -> None:
    async def test() -> None:
        points = Points()
        await points.broker.prepare(READER, Right.SUBSCRIBE, NAME)
        assert await points.look() == {READER}
        points.says = None
        points.now += timedelta(seconds=4)
        assert (await points.look(), points.permits()) == (set(), True)
        points.now += timedelta(seconds=2)
        assert (await points.look(), points.permits()) == ({READER}, None)
        assert points.problems == ["pep.no-answer"]
        points.says = AnswerEffect.PERMIT
        assert (await points.look(), points.permits()) == ({READER}, True)

    run(test)


def test_a_point_that_hangs_does_not_keep_answers_from_ending() -> None:
    async def test() -> None:
        points = Points()
        await points.broker.prepare(READER, Right.SUBSCRIBE, NAME)
        await points.look()
        points.held.clear()
        points.now += timedelta(seconds=6)
        assert (await points.look(), points.permits()) == ({READER}, None)
        asked = len(points.asked)
        await points.look()
        assert len(points.asked) == asked
        points.broker.close()

    run(test)


def test_questions_of_those_who_left_are_forgotten() -> None:
    async def test() -> None:
        points = Points()
        await points.broker.prepare(READER, Right.SUBSCRIBE, NAME)
        await points.look(WRITER)
        assert not points.broker.authority.questions
        asked = len(points.asked)
        await points.look(WRITER)
        assert len(points.asked) == asked

    run(test)


def test_points_are_asked_no_more_often_than_configured() -> None:
    async def test() -> None:
        points = Points(refresh=3_600.0)
        await points.broker.prepare(READER, Right.SUBSCRIBE, NAME)
        await points.look()
        assert len(points.asked) == 1

    run(test)


def test_a_client_with_many_questions_neither_displaces_others_nor_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point_answers, "CACHE_ENTRIES", 8)

    async def test() -> None:
        points = Points(refresh=3_600.0)
        for principal in (READER, WRITER):
            await points.broker.prepare(principal, Right.SUBSCRIBE, NAME)
        assert await points.look(READER, WRITER) == {READER, WRITER}
        points.says = None
        for number in range(10):
            await points.broker.prepare(WRITER, Right.SUBSCRIBE, TypeName(OWNER.principal, f"junk{number}"))
        # Nobody would follow the answer that it has lost, so that what was permitted is decided again.
        assert (points.permits(), await points.look(READER, WRITER)) == (True, {WRITER})
        assert len(points.broker.authority.questions) == 8

    run(test)


def test_a_client_with_many_questions_does_not_starve_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_points, "_TOGETHER", 2)

    async def test() -> None:
        points = Points()
        for number in range(4):
            await points.broker.prepare(WRITER, Right.SUBSCRIBE, TypeName(OWNER.principal, f"junk{number}"))
        points.held.clear()
        points.broker.look((READER, WRITER))
        preparing = asyncio.ensure_future(points.broker.prepare(READER, Right.SUBSCRIBE, NAME))
        await asyncio.sleep(0)
        points.held.set()
        await preparing
        # It was asked although there was no place at first, and has its turn again.
        assert points.permits() is True
        points.asked.clear()
        for _ in range(3):
            await points.look(READER, WRITER)
        assert str(READER) in {one.subject.id for one in points.asked}

    run(test)


FILE = """
network = "london/London"
key = "a.key"
listen = "127.0.0.1:0"
[nats]
servers = ["nats://localhost"]
[points.london]
"""


@pytest.mark.parametrize("line", ["refresh = 0", "timeout = 3600", 'refresh = "1s"', "owner = 3", "owners = 3"])
def test_settings_that_make_no_sense_are_refused(line: str) -> None:
    assert read_node_file(f"{FILE}refresh = 5").points["london"].refresh == 5
    with pytest.raises(MalformedError):
        read_node_file(FILE + line)


def test_points_need_servers() -> None:
    with pytest.raises(MalformedError) as caught:
        read_node_file(FILE.replace('[nats]\nservers = ["nats://localhost"]\n', ""))
    assert caught.value.code == "node.missing"


# --- a whole broker --------------------------------------------------------------------------------------------------


@contextmanager
def deciding(url: str, key: SigningKey, policies: Policies) -> Iterator[Callable[[], None]]:
    """Run a decision point in a thread of its own, as another program would; yield what lets it deny and say so."""
    ready, loop, done = Event(), asyncio.new_event_loop(), asyncio.Event()
    announcing: list[PolicyFeed] = []

    async def serve() -> None:
        async with (
            await NatsFabric.connect(url, prefix="penstock") as fabric,
            PolicyDecisionPoint(fabric, key, policies, lifetime=600),
            PolicyFeed(fabric, key, policies.policies) as feed,
        ):
            announcing.append(feed)
            ready.set()
            await done.wait()

    def deny() -> None:
        newer = (replace(POLICY, revision="newer"),)
        asyncio.run_coroutine_threadsafe(announcing[0].replace(newer), loop).result(60)
        policies.decisions, policies.policies = XacmlDecision.DENY, newer

    thread = Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield deny
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


@pytest.mark.parametrize(
    "announced", [False, pytest.param(True, marks=pytest.mark.long)], ids=["asked-again", "announced"]
)
def test_a_live_subscription_follows_a_remote_decision_point(penstock: Shell, *, announced: bool) -> None:
    lay_out(penstock)
    (penstock.folder / "certs" / "subscribe.cert").unlink()
    london = open_key(str(Path(penstock.folder, "london.key")), None)
    policies = Policies(XacmlDecision.PERMIT)
    with NatsServer() as server, deciding(server.url, london, policies) as deny:
        refresh = 60.0 if announced else 0.1
        more = f'[nats]\nservers = ["{server.url}"]\n[points.london]\nrefresh = {refresh}\n'
        with running(penstock, node_file(penstock, "east", more)) as east:

            def withdraw() -> None:
                if announced:
                    deny()
                policies.decisions = XacmlDecision.DENY

            is_cut_off(penstock, east, "certs/reader.cert", withdraw)
            assert east.stop() == 0
    found = {(one.subject.type, one.action.id, one.resource.type) for one in policies.asked}
    assert ("principal", "subscribe", "event-type") in found
