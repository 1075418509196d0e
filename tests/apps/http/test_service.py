"""A running service announces another bundle until it is known."""

import asyncio
from pathlib import Path

import pytest

from penstock.apps.http import service
from penstock.apps.http.bundles import Bundle, load
from penstock.apps.http.service import DecisionService, RunningService, ServiceConfig, ServiceSettings
from penstock.errors import FailedError
from penstock.fabric.tasks import in_background

POLICY = "policy all {{ apply deny-unless-permit rule {} {{ permit }} }}"


@pytest.mark.parametrize("watch", [0.0, 0.001])
@pytest.mark.parametrize("back", [False, True])
def test_a_revision_that_could_not_be_announced_is_announced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, back: bool, watch: float
) -> None:
    """Who goes back to what was announced last announces it too: part of the other one may have been heard."""
    monkeypatch.setattr(service, "_AGAIN", 0.001)
    place, asked, notes, away = tmp_path / "all.policy", list[str](), list[str](), True

    async def changed(bundle: Bundle) -> None:
        asked.append(bundle.revision)
        if away:
            raise FailedError("fabric.unreachable", "the server does not answer")

    def written(rule: str) -> Bundle:
        place.write_text(POLICY.format(rule), encoding="utf-8")
        return load(place)

    async def whole() -> str:
        nonlocal away
        decides = DecisionService(written("a"), ServiceSettings("http://test"))
        running = RunningService(decides, ServiceConfig("127.0.0.1", 0, place, watch), notes.append, changed)
        watching = in_background("watching", running._watch())
        latest = written("b")
        running._look_again()
        async with asyncio.timeout(60):
            while len(asked) < 3:
                await asyncio.sleep(0.001)
            if back:
                latest = written("a")
                running._look_again()
            away = False
            while notes[-1:] != [f"revision {latest.revision} decides"]:
                await asyncio.sleep(0.001)
        watching.cancel()
        return latest.revision

    revision = asyncio.run(whole())
    assert asked[-1] == revision
    assert notes[-1] == f"revision {revision} decides"
    assert len(notes) == len({*notes}), "each problem is reported once"
