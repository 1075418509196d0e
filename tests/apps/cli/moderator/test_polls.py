"""`penstock moderator poll`, `vote`, `tally` and `polls`: by files, and over a NATS server."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.apps.conftest import NOW, Ran, Shell

from penstock.apps.cli.shared.broker_client import talk
from penstock.testing.nats import NatsServer

STORE = ("--store", "sqlite:rules.db")
RULES = """
scope: upward
types:
  Line:
  Press: Line
subscribers:
  attributes:
    role: [engineer, worker]
    machine: [M, N]
"""
HOUR = timedelta(hours=1)
_MADE: dict[str, bytes] = {}


@pytest.fixture
def plant(penstock: Shell) -> Shell:
    """A rule book in which dora asks for more than acme and bolt demand."""
    if not _MADE:
        for who in ("plant", "acme", "bolt", "dora", "eve"):
            penstock.ok("key", "new", f"{who}.key", "--name", who)
        Path("rules.yaml").write_text(RULES, "utf-8")
        penstock.ok("moderator", "init", "rules.yaml", *STORE, "--key", "plant.key")
        for who, rule in (("acme", "a"), ("bolt", "b")):
            state(penstock, who, rule, "role = 'engineer'")
        assert state(penstock, "dora", "d", "machine = 'M'").code == "moderator.rejected"
        _MADE.update({path.name: path.read_bytes() for path in penstock.folder.iterdir()})
    for name, data in _MADE.items():
        Path(name).write_bytes(data)
    return penstock


def state(shell: Shell, who: str, rule: str, demanded: str, event: str = "Press") -> Ran:
    words = ("--event", event, "--fnc-s", demanded, "--key", f"{who}.key")
    return shell("moderator", "add", rule, *words, *STORE)


def ask(shell: Shell, *more: str) -> Ran:
    return shell.ok("moderator", "poll", "d", "--deadline", "1h", "--key", "plant.key", *STORE, *more)


def vote(shell: Shell, who: str, *answer: str) -> Ran:
    return shell(
        "moderator", "vote", "d.question", *answer, "--key", f"{who}.key", "--out", f"{who}.vote", "--overwrite"
    )


def tally(shell: Shell, *files: str) -> Ran:
    return shell("moderator", "tally", *files, "--key", "plant.key", *STORE)


def in_force(shell: Shell) -> dict[str, str]:
    rules = shell.ok("moderator", "show", *STORE, "-o", "json").json["rules"]
    return {each["stated"]["id"]: each["form"]["fnc_s"] for each in rules if each["form"]}


def test_by_files(plant: Shell) -> None:
    rehearsed = ask(plant, "--dry-run", "-o", "json").json
    assert (rehearsed["written"], rehearsed["poll"]) == (False, None)
    assert "nobody has been asked" in plant.ok("moderator", "show-polls", *STORE).out
    asked = ask(plant, "--out", "d.question").out
    assert "3 publishers asked" in asked
    assert "delete-attributes: relaxes the rules of" in asked
    assert "machine = 'M'" in plant.ok("moderator", "vote", "d.question", "--key", "bolt.key").out
    assert vote(plant, "acme", "--accept", "add-attributes").status == 0
    assert vote(plant, "bolt", "--refuse").status == 0
    assert "acme: approves of add-attributes" in tally(plant, "acme.vote", "--dry-run").out
    assert plant.ok("moderator", "show-polls", *STORE, "-o", "json").json["polls"][0]["votes"] == []
    assert "acme: approves of add-attributes" in tally(plant, "acme.vote", "bolt.vote", "acme.vote").out
    assert vote(plant, "bolt", "--accept", "add-attributes", "--number", "2").status == 0
    plant.now = NOW + HOUR / 2
    assert "open, 2 of 3 votes" in tally(plant, "bolt.vote").out
    plant.now = NOW + HOUR
    before = Path("rules.db").read_bytes()
    rehearsed = tally(plant, "--dry-run").out
    assert tally(plant, "--dry-run", "-o", "json").json["written"] is False
    assert Path("rules.db").read_bytes() == before
    ended = tally(plant).out
    assert rehearsed == ended + "nothing of this was written\n"
    assert "dora: silent, which refuses" in ended
    assert "2 of 3 approve of add-attributes: step 4" in ended
    assert set(in_force(plant).values()) == {"machine = 'M' AND role = 'engineer'"}
    (shown,) = plant.ok("moderator", "show-polls", *STORE, "-o", "json").json["polls"]
    assert (shown["chosen"], shown["step"], shown["open"]) == ("add-attributes", 4, False)
    assert "2 of 3 approve" in plant.ok("moderator", "show-polls", shown["poll"][:8], *STORE).out
    plant.ok("moderator", "verify", *STORE)


def test_to_relax_a_rule_has_to_be_said(plant: Shell) -> None:
    ask(plant, "--out", "d.question")
    assert vote(plant, "acme", "--accept", "delete-attributes").code == "poll.consent"
    assert vote(plant, "acme", "--relax", "add-attributes").code == "poll.consent"
    for who in ("acme", "bolt", "dora"):
        assert vote(plant, who, "--relax", "delete-attributes").status == 0
    assert tally(plant, "acme.vote", "bolt.vote", "dora.vote").status == 0
    plant.now = NOW + HOUR
    assert "3 of 3 approve of delete-attributes: step 4" in tally(plant).out
    assert set(in_force(plant).values()) == {"TRUE"}


def test_a_rule_of_several_is_relaxed_by_all_of_them(plant: Shell) -> None:
    words = ("--event", "Line", "--fnc-s", "role = 'engineer'", "--publisher", "acme", "--publisher", "eve")
    plant.ok("moderator", "add", "j", *words, *STORE, "--key", "acme.key", "--out", "j.request")
    plant.ok("moderator", "agree", "--request", "j.request", "--key", "eve.key", *STORE, "--out", "eve.consent")
    plant.ok("moderator", "take", "j.request", "--consent", "eve.consent", *STORE)
    state(plant, "dora", "d2", "machine = 'N'", "Line")
    asked = plant.ok(
        *("moderator", "poll", "d2", "--deadline", "1h", "--key", "plant.key", *STORE, "--out", "d.question")
    )
    assert "4 publishers asked: acme, bolt, dora, eve" in asked.out
    for who in ("acme", "dora", "eve"):
        assert vote(plant, who, "--relax", "delete-attributes").status == 0
    assert tally(plant, "acme.vote", "dora.vote", "eve.vote").status == 0
    plant.now = NOW + HOUR
    assert "2 of 3 approve of delete-attributes: step" in tally(plant).out


def test_to_vote_again_replaces_a_vote(plant: Shell) -> None:
    ask(plant, "--out", "d.question")
    again = ("--accept", "add-attributes")
    for said, number in ((("--refuse",), 1), (again, 2), (again, 2), (("--refuse",), 3), (again, 4)):
        assert vote(plant, "acme", *said, "-o", "json").json["number"] == number
    assert "[poll.contradicted]" not in tally(plant, "acme.vote").err
    other = ("vote", "d.question", "--refuse", "--key", "acme.key", "--number", "4", "--out", "other.vote")
    plant.ok("moderator", *other)
    assert "[poll.contradicted]" in tally(plant, "other.vote").err


def test_what_does_not_count(plant: Shell) -> None:
    ask(plant, "--out", "d.question")
    assert vote(plant, "eve", "--accept", "add-attributes").code == "poll.not-asked"
    words = ("vote", "d.question", "--accept", "add-attributes")
    assert plant("moderator", *words, "--key", "acme.key", "--moderator", "eve").code == "poll.not-moderator"
    assert vote(plant, "acme", "--accept", "add-attributes").status == 0
    Path("bad.vote").write_bytes(Path("acme.vote").read_bytes().replace(b'(number "1")', b'(number "2")'))
    assert tally(plant, "bad.vote").code == "evolution.signature-mismatch"
    plant.now = NOW + HOUR
    assert vote(plant, "acme", "--refuse").code == "poll.closed"
    assert tally(plant, "acme.vote").code == "poll.closed"
    assert "nothing was chosen" in tally(plant).out
    assert in_force(plant) == {"a": "role = 'engineer'", "b": "role = 'engineer'"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("poll", "d", "--key", "plant.key", *STORE), "cli.usage"),
        (("poll", "--key", "plant.key", *STORE), "cli.usage"),
        (("poll", "d", "--deadline", "31d", "--key", "plant.key", *STORE), "poll.limit"),
        (("poll", "d", "--deadline", "soon", "--key", "plant.key", *STORE), "date.malformed"),
        (("poll", "d", "--deadline", "2026-04-30", "--key", "plant.key", *STORE), "evolution.malformed"),
        (("poll", "d", "--deadline", "1h", "--key", "acme.key", *STORE), "poll.not-moderator"),
        (("poll", "a", "--deadline", "1h", "--key", "plant.key", *STORE), "moderator.not-rejected"),
        (("poll", "d", "--deadline", "1h", "--key", "plant.key", "--nats", "http://x", *STORE), "cli.usage"),
        (("poll", "d", "--deadline", "1h", "--key", "plant.key", "--nats-login", "nkey", *STORE), "cli.usage"),
        (("show-polls", "ff", *STORE), "poll.unknown"),
        (("vote", "--key", "acme.key"), "cli.usage"),
        (("vote", "--key", "acme.key", "--auto", "refuse"), "cli.usage"),
        (("vote", "--key", "acme.key", "--nats", "nats://127.0.0.1:1"), "cli.usage"),
        (("vote", "x", "--key", "acme.key", "--refuse", "--accept", "follow"), "cli.usage"),
    ],
)
def test_bad_input(plant: Shell, words: tuple[str, ...], code: str) -> None:
    assert plant("moderator", *words).code == code


def test_over_nats(plant: Shell, server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll is asked, interrupted and gone on with; what is answered in between counts."""
    monkeypatch.setenv("PENSTOCK_NATS", server.url)
    key = ("--key", "plant.key", *STORE)
    monkeypatch.setattr("penstock.apps.cli.moderator.poll_network.until", interrupted)
    stopped = plant.ok("moderator", "poll", "d", "--deadline", "4s", *key)
    assert "open, 0 of 3 votes" in stopped.out
    monkeypatch.undo()
    monkeypatch.setenv("PENSTOCK_NATS", server.url)
    monkeypatch.chdir(plant.folder)

    def voter(who: str, *answer: str) -> Ran:
        return plant.ok("moderator", "vote", *answer, "--moderator", "plant", "--key", f"{who}.key")

    (open_,) = voter("acme", "-o", "json").json["polls"]
    assert "how should d be settled?" in voter("acme", open_["poll"][:6]).out
    assert "voted: approves of add-attributes" in voter("acme", open_["poll"][:6], "--accept", "add-attributes").out
    assert "voted: refuses everything" in voter("bolt", open_["poll"], "--refuse").out
    monkeypatch.setattr("penstock.apps.cli.moderator.poll_network.talk", briefly)
    assert "you: approves of add-attributes" in voter("dora", "--auto", "tighten").out
    monkeypatch.setattr("penstock.apps.cli.moderator.poll_network.talk", talk)
    changed = voter("bolt", open_["poll"], "--accept", "add-attributes", "-o", "json").json
    assert (changed["number"], changed["sent"]) == (2, True)
    ended = plant.ok("moderator", "poll", *key)
    assert "3 of 3 approve of add-attributes: step 4" in ended.out
    assert "no poll is open" in plant.ok("moderator", "poll", *key).out
    assert set(in_force(plant).values()) == {"machine = 'M' AND role = 'engineer'"}


async def interrupted(stop: Any, work: Any) -> None:
    """Do as if somebody had pressed Ctrl-C immediately."""
    work.close()
    stop.set()


def briefly(conversation: Callable[[asyncio.Event], Awaitable[object]]) -> None:
    """Do as if somebody had pressed Ctrl-C after a while."""

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.7, stop.set)
        await conversation(stop)

    asyncio.run(run())
