"""`penstock conformance`: the suites of others, where they are there, and the answer when there is none."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from threading import Event, Thread

import pytest
from tests.apps.conftest import Shell
from tests.apps.pdp_kit import serving

from penstock.apps.cli.shared.options import open_key
from penstock.authority.decisions.authzen_events import EventDecisionPoint, EventEnforcementPoint
from penstock.authority.decisions.authzen_nats import NatsEvents
from penstock.authority.decisions.cloud_events import key_id
from penstock.authority.decisions.questions import RESOURCE_TYPE, AccessQuestion
from penstock.crypto import SigningKey
from penstock.policy.language.requests import RESOURCE_ID
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.policy.syntax.json.requests import Json
from penstock.testing.nats import NatsServer


def test_every_case_of_the_suite_passes(penstock: Shell, suites: Path) -> None:
    done = penstock("conformance", "xacml", str(suites / "xacml-3.0"), "-o", "json")
    assert done.json["failed"] == []
    # What was not run has not passed.
    assert (done.json["passed"], [*done.json["defective"]]) == (285, ["IIA023"])
    assert done.status == 0


def test_a_case_that_fails_is_told(penstock: Shell, suites: Path) -> None:
    source = min((suites / "xacml-3.0").glob("IIB*Request.xml"))
    case = source.name.removesuffix("Request.xml")
    for part in ("Policy", "Request", "Response"):
        text = source.with_name(f"{case}{part}.xml").read_text("utf-8")
        if part == "Response":
            text = text.replace("<Decision>Permit<", "<Decision>Deny<").replace(
                "<Decision>NotApplicable<", "<Decision>Deny<"
            )
        (penstock.folder / f"{case}{part}.xml").write_text(text, "utf-8")
    done = penstock("conformance", "xacml", ".")
    assert (done.status, done.code) == (1, "conformance.failed")
    assert f"{case}: decision is" in done.out


def test_a_folder_that_is_none(penstock: Shell) -> None:
    done = penstock("conformance", "xacml", "nowhere")
    assert (done.status, done.code) == (3, "file.unreadable")


# --- AuthZEN over publish/subscribe ----------------------------------------------------------------------------------


@contextmanager
def beside(url: str, point: Callable[[NatsEvents], AbstractAsyncContextManager[object]]) -> Iterator[None]:
    """Run a point in a thread of its own, as another program would."""
    ready, loop, done = Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with NatsEvents(url) as transport, point(transport):
            ready.set()
            await done.wait()

    thread = Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


def permit(_asked: AccessQuestion, _now: datetime) -> PolicyOutcome:
    return PolicyOutcome(XacmlDecision.PERMIT)


def test_a_wrong_decision_point_is_found(penstock: Shell) -> None:
    penstock.ok("key", "new", "suite.key")
    suite, point = open_key(str(penstock.folder / "suite.key"), None), SigningKey(bytes(32))
    with NatsServer() as server:
        common = ("conformance", "authzen-pubsub", "--pdp", server.url, "--key", "suite.key", "--wait", "50ms")
        command = (*common, "--timeout", "60s", "--point-key", key_id(point.public))

        def careless(on: NatsEvents) -> EventDecisionPoint:
            return EventDecisionPoint(on, point, permit, senders=[suite.public])

        with beside(server.url, careless):
            done = penstock(*command, "-o", "json")
    # Each check has the number of its section.
    failed = {one["check"]: one["section"] for one in done.json["checks"] if not one["passed"]}
    assert (done.status, failed) == (1, {"D2": "4.1", "D7": "6.1", "D8": "6.2"})


POLICY = f"""
    attribute kind {{ category = resource id = "{RESOURCE_TYPE}" type = string }}
    attribute name {{ category = resource id = "{RESOURCE_ID}" type = string }}
    policy suite {{
        apply deny-unless-permit
        rule r {{ permit target clause kind == "conformance" and name == "permit" }}
    }}
"""


def test_the_decision_service_passes(penstock: Shell) -> None:
    for who in ("suite", "pdp"):
        penstock.ok("key", "new", f"{who}.key", "--name", who)
        penstock.ok("key", "show", f"{who}.key", "--public", f"{who}.pub")
    (penstock.folder / "suite.policy").write_text(POLICY)
    with NatsServer() as server:
        point = ("--fabric", server.url, "--key", "pdp.key", "--authzen-sender", "suite.pub")
        with serving(penstock.folder / "suite.policy", *point):
            check = (
                "conformance",
                "authzen-pubsub",
                "--pdp",
                server.url,
                "--key",
                "suite.key",
                "--point-key",
                "pdp.pub",
            )
            done = penstock(*check, "--wait", "50ms", "--timeout", "60s")
    assert (done.status, "17 of 17 checks passed" in done.out) == (0, True)


@pytest.mark.long
@pytest.mark.parametrize("careless", [False, True])
def test_an_enforcement_point_is_checked(penstock: Shell, *, careless: bool) -> None:
    penstock.ok("key", "new", "suite.key")
    suite, key = open_key(str(penstock.folder / "suite.key"), None), SigningKey(bytes(32))

    def driver(on: NatsEvents) -> AbstractAsyncContextManager[object]:
        point = EventEnforcementPoint(on, key, points=[suite.public], timeout=3.0)

        async def conclude(asked: Mapping[str, Json]) -> Mapping[str, Json]:
            return {"decision": (await point.evaluate(asked)).decision or careless}

        return on.be_asked(conclude)

    with NatsServer() as server, beside(server.url, driver):
        check = ("conformance", "authzen-pubsub", "--pep", server.url, "--key", "suite.key", "--timeout", "60s")
        done = penstock(*check, "--point-key", key_id(key.public), "-o", "json")
    failed = {one["check"] for one in done.json["checks"] if not one["passed"]}
    assert (done.status, bool(failed)) == (int(careless), careless)


def test_what_to_check_must_be_said(penstock: Shell) -> None:
    penstock.ok("key", "new", "suite.key")
    common = (
        "conformance",
        "authzen-pubsub",
        "--key",
        "suite.key",
        "--point-key",
        key_id(SigningKey(bytes(32)).public),
    )
    assert penstock(*common).code == "cli.usage"
    assert penstock(*common, "--pdp", "nats://a", "--pep", "nats://b").code == "cli.usage"
    assert penstock(*common, "--pdp", "https://a").code == "cli.usage"
