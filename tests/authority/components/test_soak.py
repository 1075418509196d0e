"""Components as processes over NATS that join, leave and are killed at random while PEPs ask and policies change.

`SOAK_SECONDS`, `SOAK_PROCESSES` and `SOAK_SEED` say for how long, how many, and which random choices.
"""

import asyncio
import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from tests.authority.components.kit import TABLE, administration, pap
from tests.authority.components.points.test_points import policy
from tests.authority.components.soak_process import LEVELS, PREFIX, USERS
from tests.copies import MODULE, Copy

from penstock.authority.components.administration.administration_point import AdministrationComponent
from penstock.authority.components.exchange.samples import RoleConfiguration
from penstock.authority.components.points.component import JOIN_WAITS
from penstock.fabric.nats import NatsFabric
from penstock.fabric.tasks import waited_for
from penstock.testing.nats import NatsServer

if TYPE_CHECKING:
    from penstock.errors import PenstockError

#: of 60 processes, in the proportions of Table 5; the last one is refused whenever it asks to join
SHARES: Final = (("plp", "LR(1)", 5), ("pip", "IR(1)", 11), ("pdp", "DR(1)", 16), ("pep", "ER(1)", 27))
WHOLE: Final = 60
STRANGER: Final = ("stranger", "DR(1)")
#: seconds after the chaos in which everybody must have joined and be answered
PATIENCE: Final = 300.0
Line = Mapping[str, Any]


# ----------------------------------------------------------------------------------------------------------------------
# Policies, and what they give.


def revision(number: int) -> RoleConfiguration:
    """Return the role of PDPs with a revision of its policy."""
    body = f"""apply deny-overrides target clause sort == "account"
        rule look {{ {"deny" if number % 2 else "permit"} target clause does == "look" }}
        rule withdraw {{ permit target clause does == "withdraw" condition rank > {number % USERS} }}
        rule limit {{ deny target clause does == "withdraw" condition rank <= {number % USERS} }}"""
    changed = policy("accounts", body, changed=float(number + 1), revision=str(number))
    return msgspec.structs.replace(TABLE["DR(1)"], policies=(changed,))


def effect_of(number: int, action: str, user: int) -> str:
    """Return what a revision gives, without an engine."""
    permits = number % 2 == 0 if action == "look" else user > number % USERS
    return "Permit" if permits else "Deny"


@dataclass(slots=True)
class InForce:
    """When a revision was in force: since its expected time, until the base time of the next one."""

    since: float
    until: float = float("inf")


def wrong_decisions(lines: Iterable[Line], revisions: Sequence[InForce]) -> list[Line]:
    """Return the decisions that no policy gives which was in force between the question and its decision.

    Without information in time a withdrawal is Indeterminate, which permits nothing.
    """
    return [line for line in lines if line["what"] == "decided" and not _is_given(line, revisions)]


def _is_given(line: Line, revisions: Sequence[InForce]) -> bool:
    if line["effect"] == "Indeterminate":
        return bool(line["action"] == "withdraw")
    numbers = {int(one) for one in line["revisions"]}
    return len(numbers) == 1 and all(
        line["effect"] == effect_of(number, line["action"], line["user"])
        and revisions[number].since <= line["time"]
        and line["asked"] <= revisions[number].until
        for number in numbers
    )


def lost_joins(lines: Iterable[Line], ended: float) -> list[Line]:
    """Return the requests to join of one process that neither ended nor were reported, though there was time for it."""
    waiting: Line | None = None
    found = []
    for line in (*lines, {"what": "killed", "time": ended}):
        if (
            waiting is not None
            and line["what"] in ("killed", "left")
            and line["time"] > waiting["time"] + 2 * JOIN_WAITS
        ):
            found.append(waiting)
        if line["what"] in ("joined", "refused", "left") or line.get("code") == "component.join-waits":
            waiting = None
        if line["what"] == "joining":
            waiting = line
    return found


def decided(
    effect: str, action: str = "look", asked: float = 5.0, at: float = 6.0, by: tuple[str, ...] = ("1",)
) -> Line:
    return {
        "what": "decided",
        "time": at,
        "asked": asked,
        "user": 3,
        "action": action,
        "effect": effect,
        "revisions": by,
    }


@pytest.mark.parametrize(
    ("line", "right"),
    [
        (decided("Deny"), True),
        (decided("Permit"), False),
        (decided("Permit", "withdraw"), True),
        (decided("Indeterminate", "withdraw"), True),
        (decided("Indeterminate"), False),
        (decided("NotApplicable", "withdraw"), False),
        (decided("Deny", by=()), False),
        (decided("Permit", by=("0",)), False),
        (decided("Permit", by=("0",), asked=3.5), True),
        (decided("Deny", asked=2.0, at=2.5), False),
        (decided("Deny", asked=2.0, at=3.5), True),
    ],
)
def test_a_wrong_decision_is_found(line: Line, right: bool) -> None:
    # Revision 1 is expected at 3, and its base time is 4.
    revisions = [InForce(0.0, 4.0), InForce(3.0)]
    assert wrong_decisions([line], revisions) == ([] if right else [line])


def test_a_lost_join_is_found() -> None:
    joining, waits = {"what": "joining", "time": 1.0}, {"what": "note", "time": 11.0, "code": "component.join-waits"}
    assert lost_joins([joining], 100.0) == [joining]
    assert lost_joins([joining], 12.0) == []
    assert lost_joins([joining, waits], 100.0) == []
    assert lost_joins([joining, {"what": "joined", "time": 2.0}], 100.0) == []
    assert lost_joins([joining, {"what": "left", "time": 100.0}], 101.0) == [joining]


# ----------------------------------------------------------------------------------------------------------------------
# The soak.


@dataclass
class _Started:
    process: "subprocess.Popen[bytes]"
    path: Path
    #: when it was seen that it had ended, and when it was killed
    ended: float | None = None
    killed: float | None = None

    def lines(self) -> list[Line]:
        """Return what it wrote; the last line may be under way."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


@dataclass
class Soak:
    """Processes, and the revisions of the policy."""

    url: str
    folder: Path
    roles: Mapping[str, str]
    random: random.Random
    current: dict[str, _Started] = field(default_factory=dict)
    before: list[_Started] = field(default_factory=list)
    revisions: list[InForce] = field(default_factory=lambda: [InForce(0.0)])
    acts: Counter[str] = field(default_factory=Counter)
    waiting: "list[asyncio.Future[None]]" = field(default_factory=list)

    def start(self, name: str) -> None:
        """Start a process if it has ended."""
        path = self.folder / f"{name}-{len(self.before)}.jsonl"
        if name in self.current:
            if not self.has_ended(name):
                return
            self.before.append(self.current[name])
        words = [MODULE, "tests.authority.components.soak_process", name, self.roles[name], self.url, str(path)]
        with path.with_suffix(".errors").open("wb") as errors:
            process = Copy[bytes](words, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        self.current[name] = _Started(process, path)
        self.acts["start"] += 1

    def has_ended(self, name: str) -> bool:
        """Return whether a process has ended, and record when that was seen."""
        one = self.current[name]
        if one.ended is None and one.process.poll() is not None:
            one.ended = time.time()
        return one.ended is not None

    def end(self, name: str, how: str) -> None:
        """Let a process leave, or kill it."""
        if self.has_ended(name):
            return
        self.acts[how] += 1
        one = self.current[name]
        if how == "kill":
            one.process.kill()
            one.killed = time.time()
        else:
            one.process.terminate()

    async def change(self, owner: AdministrationComponent) -> None:
        """Announce the next revision; the one before is in force until the base time."""
        number = await owner.reconfigure({"DR(1)": revision(len(self.revisions))})
        before, expected = self.revisions[-1], owner.expected_time(number)
        self.revisions.append(InForce(time.time() if expected is None else expected))
        self.acts["change"] += 1

        async def follow() -> None:
            before.until = await owner.base_time(number)

        self.waiting.append(waited_for(follow()))

    async def chaos(self, owner: AdministrationComponent, seconds: float) -> None:
        """Start, end and change at random."""
        end, names, again = time.time() + seconds, [*self.roles], time.time() + 5.0
        for name in names:
            self.start(name)
            await asyncio.sleep(0.02)
        while time.time() < end:
            name = self.random.choice(names)
            if self.has_ended(name) or self.random.random() < 0.6:
                self.start(name)
            else:
                self.end(name, self.random.choice(("leave", "kill")))
            if time.time() > again:
                await self.change(owner)
                again = time.time() + self.random.uniform(3.0, 20.0)
            await asyncio.sleep(self.random.uniform(0.0, 0.5))

    async def recover(self, patience: float) -> list[str]:
        """Start everybody, and return who has not joined, or gets no decision, after a long time."""
        began, missing = time.time(), [*self.roles]
        while missing and time.time() < began + patience:
            for name in missing:
                self.start(name)
            await asyncio.sleep(2.0)
            missing = [name for name in missing if not self._works(name, began)]
        return missing

    def _works(self, name: str, since: float) -> bool:
        lines = self.current[name].lines()
        if name == STRANGER[0]:
            return any(line["what"] == "refused" for line in lines)
        if self.roles[name] == "ER(1)":
            return any(line["what"] == "decided" and line["asked"] > since for line in lines)
        return any(line["what"] == "joined" for line in lines)

    async def close(self) -> None:
        """Let all leave, and wait for it."""
        for name in self.current:
            self.end(name, "leave")
        for one in self.current.values():
            await asyncio.to_thread(one.process.wait, PATIENCE)
            one.ended = one.ended or time.time()
        for waiting in self.waiting:
            waiting.cancel()


@dataclass(frozen=True)
class SoakFindings:
    """What went wrong: who does not work at the end, wrong decisions, lost joins, and what processes report."""

    missing: list[str]
    wrong: list[Line]
    lost: list[tuple[str, Line]]
    errors: dict[str, str]
    shown: dict[str, object]

    def __bool__(self) -> bool:
        return bool(self.missing or self.wrong or self.lost or self.errors)


@pytest.mark.long
def test_components_join_leave_and_are_killed(server: NatsServer, tmp_path: Path) -> None:
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    many = int(os.environ.get("SOAK_PROCESSES", str(WHOLE)))
    seed = int(os.environ.get("SOAK_SEED", str(time.time_ns())))
    found = soak_for(server, tmp_path, seconds, many, seed)
    assert not found, found


@pytest.mark.long
@pytest.mark.parametrize("fault", ["old-policy", "silent-join"])
def test_a_planted_fault_is_found(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("SOAK_FAULT", fault)  # of the processes
    found = soak_for(server, tmp_path, 20.0, 12, 1, patience=2 * JOIN_WAITS + 5.0)
    assert found.wrong if fault == "old-policy" else (found.lost and found.missing == ["pip0"])


def soak_for(
    server: NatsServer, tmp_path: Path, seconds: float, many: int, seed: int, *, patience: float = PATIENCE
) -> SoakFindings:
    roles = {f"{kind}{n}": role for kind, role, share in SHARES for n in range(max(1, share * many // WHOLE))}
    settings = administration(*roles.items(), table={**TABLE, "DR(1)": revision(0)}, levels=LEVELS)
    chosen = random.Random(seed)  # noqa: S311  # what happens when
    soak = Soak(server.url, tmp_path, {**roles, STRANGER[0]: STRANGER[1]}, chosen)
    notes: list[PenstockError] = []

    async def whole() -> list[str]:
        async with (
            await NatsFabric.connect(server.url, prefix=PREFIX) as fabric,
            pap(fabric, settings, note=notes.append) as owner,
        ):
            try:
                await soak.chaos(owner, seconds)
                return await soak.recover(patience)
            finally:
                await soak.close()

    missing = asyncio.run(whole())
    every = [*soak.before, *soak.current.values()]
    lines = [line for one in every for line in one.lines()]
    wrong = wrong_decisions(lines, soak.revisions)
    lost = [
        (one.path.name, line)
        for one in every
        for line in lost_joins(one.lines(), one.killed or one.ended or time.time())
    ]
    errors = {one.path.name: text for one in every if (text := one.path.with_suffix(".errors").read_text())}
    shown = {
        "seed": seed,
        "processes": len(soak.roles),
        "acts": dict(soak.acts),
        "lines": dict(Counter(line["what"] for line in lines)),
        "effects": dict(Counter(line["effect"] for line in lines if line["what"] == "decided")),
        "undecided": dict(Counter(line["code"] for line in lines if line["what"] == "undecided")),
        "notes": dict(Counter(line["code"] for line in lines if line["what"] == "note")),
        "notes of the PAP": dict(Counter(error.code for error in notes)),
        "revisions": len(soak.revisions),
    }
    print(json.dumps(shown, indent=1))  # noqa: T201  # `pytest -rP` shows it
    (tmp_path / "revisions.json").write_text(json.dumps([(one.since, one.until) for one in soak.revisions]))
    return SoakFindings(missing, wrong, lost, errors, shown)
