"""What README shows first works: its client at a broker, its commands in the tutorial, and links to every page."""

import asyncio
import re
import textwrap

import pytest
from tests.broker.node_kit import BROKERS, LONG, client_of, run, running, until
from tests.broker.sports import AGENCY, NETWORK, NUMBER, PDA, REPORTER, TEXT, definition, signed
from tests.examples.running import ROOT

import penstock
from penstock.crypto import SigningKey
from penstock.model import AttributeId
from penstock.trust import Authorisation, Certificate, Credentials, Right, event_tag, issue

README = (ROOT / "README.md").read_text(encoding="utf-8")
READING = definition("Reading", {"meter": TEXT, "power": NUMBER})


def grant(to: SigningKey, right: Right, *attributes: str) -> Certificate:
    ids = [AttributeId(AGENCY.principal, "Reading", name) for name in attributes] or None
    tag = event_tag(AGENCY.principal, "Reading", None, [right], attributes=ids)
    return issue(Authorisation(AGENCY.principal, to.principal, tag), AGENCY)


def test_the_client_reads_and_sees_what_it_may(capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = re.findall(r"^```py\n(.*?)^```", README, re.DOTALL | re.MULTILINE)

    async def test() -> None:
        policy = grant(BROKERS[0], Right.ROUTE), grant(REPORTER, Right.PUBLISH)
        async with running(*policy, types=(signed(READING),)) as node, client_of(node, REPORTER) as writer:
            given: dict[str, object] = {
                "penstock": penstock,
                "url": f"penstock://127.0.0.1:{node.port}",
                "key": PDA,
                "network": NETWORK,
                "mine": Credentials.of(grant(PDA, Right.SUBSCRIBE, "power")),
                "reading": READING.name,
            }
            exec(f"async def read():\n{textwrap.indent(shown, '    ')}", given)  # noqa: S102  # our own documentation
            reading = asyncio.create_task(given["read"]())  # type: ignore[operator]  # defined just now
            await until(lambda: node.held == 1 or reading.done())
            feed = await writer.advertise(READING.name)
            for power in (1, 2):
                await feed.publish(meter="M-17", power=power)
            printed = ""
            async with asyncio.timeout(LONG):
                while not printed:
                    printed += capsys.readouterr().out
                    await asyncio.sleep(0.01)
            assert printed == "2 None\n"
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    run(test())


def test_its_first_commands_are_those_of_the_tutorial() -> None:
    tutorial = (ROOT / "docs" / "tutorial" / "first-network.md").read_text(encoding="utf-8")
    # Those of the moderator are run from here.
    commands = re.findall(r"^\$ (penstock (?!moderator).*?)(?: &)?$", README, re.MULTILINE)
    assert len(commands) == 4
    assert [command for command in commands if command not in tutorial] == []
