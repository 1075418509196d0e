"""A running service announces another bundle until it is known."""

import asyncio
from pathlib import Path

import pytest

from penstock.apps.http import service
from penstock.apps.http.bundles import Bundle, load
from penstock.apps.http.service import DecisionService, RunningService, ServiceConfig, ServiceSettings
from penstock.errors import FailedError

POLICY = "policy all {{ apply deny-unless-permit rule {} {{ permit }} }}"


def test_a_revision_that_could_not_be_announced_is_announced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_AGAIN", 0.001)
    place, asked, notes = tmp_path / "all.policy", list[str](), list[str]()
    place.write_text(POLICY.format("a"), encoding="utf-8")

    async def changed(bundle: Bundle) -> None:
        asked.append(bundle.revision)
        if len(asked) < 3:
            raise FailedError("fabric.unreachable", "the server does not answer")

    async def whole() -> str:
        decides = DecisionService(load(place), ServiceSettings("http://test"))
        running = RunningService(decides, ServiceConfig("127.0.0.1", 0, place, 0), notes.append, changed)
        await running.look()
        place.write_text(POLICY.format("b"), encoding="utf-8")
        watching = asyncio.ensure_future(running._watch())
        running._look_again()
        async with asyncio.timeout(60):
            while len(asked) < 3 or len(notes) < 2:
                await asyncio.sleep(0.001)
        # It is known now.
        running._look_again()
        await asyncio.sleep(0.05)
        watching.cancel()
        return decides.bundle.revision

    revision = asyncio.run(whole())
    assert asked == [revision] * 3
    assert [revision in note for note in notes] == [True] * 2
    assert notes[-1].endswith("decides")
