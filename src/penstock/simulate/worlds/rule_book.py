"""A moderator's rule book in a database: publishers state and withdraw rules at the same time, and readers follow.

Each publisher signs a request, and repeats it until it knows what became of it: an answer of the database can be lost.

Steps:

- `state PUBLISHER TYPE LIST`: a publisher states a rule about a type, for subscribers of a list.
- `withdraw PUBLISHER`: a publisher withdraws its last rule.
- `read READER`: a reader applies what it has not seen yet.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.authority.rulebook import RuleBook
from penstock.authority.rulebook_state import same_state
from penstock.crypto import SigningKey
from penstock.errors import FailedError, PenstockError
from penstock.model.names import TypeKey
from penstock.model.profiles import ProfileSchema, alphabetic, numeric
from penstock.model.tree import TypeTree
from penstock.moderator.files.founding import Founding
from penstock.moderator.rules.rules import PublishRule
from penstock.moderator.rules.steps import Add, Request, WithdrawRule
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.selector import ALWAYS, parse
from penstock.simulate.scenario import SimulationStep
from penstock.simulate.simulation import Simulation
from penstock.simulate.worlds.records import STORE, opened
from penstock.simulate.worlds.world import ProcessTasks
from penstock.store.ledgers.memory import MemoryRecords
from penstock.trust.signed import UnverifiedValue, sign_value

if TYPE_CHECKING:
    from penstock.authority.rulebook_records import ModeratorRequest

_PUBLISHERS: Final = ("publisher1", "publisher2", "publisher3")
_READERS: Final = ("reader1", "reader2")
_TYPES: Final = ("plant", "line1", "line2", "robot1", "robot2")
_LISTS: Final = ("role = 'engineer'", "company = 'A'", "company = 'B'", "age < 40", "role = 'worker' AND company = 'A'")
#: seconds between two tries, and after which a request is not tried again
_PAUSE: Final = 1.0
#: the share of appends between which and their reading another publisher is served
_RACES: Final = 0.3


def _key(name: str) -> SigningKey:
    return SigningKey(name.encode().ljust(32, b"."))


_MODERATOR: Final = _key("moderator")


def _type(name: str) -> TypeKey:
    return TypeKey(_MODERATOR.principal, name)


_VOCABULARY: Final = Vocabulary(
    TypeTree.of(
        {
            _type("plant"): None,
            _type("line1"): _type("plant"),
            _type("line2"): _type("plant"),
            _type("robot1"): _type("line1"),
            _type("robot2"): _type("line2"),
        }
    ),
    ProfileSchema({"company": alphabetic("A", "B")}),
    ProfileSchema({"role": alphabetic("engineer", "worker"), "company": alphabetic("A", "B"), "age": numeric(0, 120)}),
)


class RuleBookWorld:
    """See the module. Options: `size`."""

    name = "rule-book"
    fault_kinds = ("partition", "loss", "slow", "stop", "crash", "skew", "jump")
    fault_amounts: Mapping[str, tuple[float, ...]] = {}
    fault_targets: Mapping[str, tuple[str, ...]] = {
        **dict.fromkeys(("partition", "loss", "stop", "crash"), (*_PUBLISHERS, *_READERS, STORE)),
        **dict.fromkeys(("slow", "skew", "jump"), (*_PUBLISHERS, *_READERS)),
    }
    step_kinds: Mapping[str, tuple[str, ...]] = {
        "state": ("PUBLISHER", "TYPE", "LIST"),
        "withdraw": ("PUBLISHER",),
        "read": ("READER",),
    }
    option_names = ()
    seconds = 60.0
    processes = (*_PUBLISHERS, *_READERS, STORE)

    def __init__(self, options: Mapping[str, int]) -> None:
        del options
        self._records = MemoryRecords()
        self._books: dict[str, RuleBook] = {}
        #: what each publisher has yet to ask for, which is on its disk, and the request that it has signed
        self._queues: dict[str, deque[tuple[str, Request]]] = {name: deque() for name in _PUBLISHERS}
        self._signed: dict[str, UnverifiedValue[ModeratorRequest]] = {}
        self._rules: dict[str, list[str]] = {name: [] for name in _PUBLISHERS}
        self._racing = False

    def steps(self, random: Random, size: int, within: float) -> tuple[SimulationStep, ...]:
        """Draw a workload. No two steps have the same time, which is the name of a request."""
        found = []
        for milliseconds in random.sample(range(round(1000 * within)), size):
            at = milliseconds / 1000
            kind = random.choices(("state", "withdraw", "read"), (5, 2, 3))[0]
            if kind == "state":
                place = str(random.randrange(len(_LISTS)))
                arguments: tuple[str, ...] = (random.choice(_PUBLISHERS), random.choice(_TYPES), place)
            else:
                arguments = (random.choice(_PUBLISHERS if kind == "withdraw" else _READERS),)
            found.append(SimulationStep(at, kind, arguments))
        return tuple(sorted(found, key=lambda step: step.at))

    # --- Processes -----------------------------------------------------------------------------------------------

    async def start(self, simulation: Simulation) -> None:
        """Found the rule book, and start all processes."""
        self._simulation = simulation
        self._tasks = ProcessTasks(simulation)
        await self.restart(STORE)
        now = simulation.clock("moderator").date()
        founding = sign_value(Founding("rules", _MODERATOR.principal, now, _VOCABULARY), _MODERATOR)
        RuleBook.create(opened(self._records, simulation, STORE).ledger("rules"), founding.unverified(), now)
        for process in (*_PUBLISHERS, *_READERS):
            await self.restart(process)

    async def restart(self, process: str) -> None:
        """Start a process again, with what is on its disk."""
        # A reader, or the database, does nothing by itself.
        self._books.pop(process, None)
        self._tasks.start(process, self._work(process) if process in _PUBLISHERS else asyncio.sleep(0))

    def _book(self, process: str) -> RuleBook:
        """Return the rule book as a process has it, opened if it is not open. Raises as `RuleBook.open`."""
        found = self._books.get(process)
        if found is None:
            store = opened(self._records, self._simulation, process, self._meanwhile(process))
            found = self._books[process] = RuleBook.open(store.ledger("rules"))
        return found

    def _meanwhile(self, process: str) -> Callable[[], None]:
        def race() -> None:
            """Let another publisher be faster."""
            request = self._queues[process][0][0]
            race = self._simulation.random(f"race of {process} {request}")
            if self._racing or race.random() >= _RACES:
                return
            self._racing = True
            try:
                others = [name for name in _PUBLISHERS if name != process and self._simulation.runs(name)]
                if others:
                    self._serve(race.choice(others))
            finally:
                self._racing = False

        return race

    async def _work(self, process: str) -> None:
        while True:
            if not self._serve(process):
                await asyncio.sleep(_PAUSE)
            await asyncio.sleep(0.01)

    def _serve(self, process: str) -> bool:
        """Try the next request of a publisher; return whether it is known what became of it."""
        queue, note = self._queues[process], self._simulation.note
        if not queue:
            return False
        name, request = queue[0]
        try:
            book, now = self._book(process), self._simulation.clock(process).date()
            book.refresh()
            signed = self._signed.get(process)
            if signed is None:
                signed = self._signed[process] = book.sign(_key(process), request, now, name).unverified()
            book.take(signed, now)
        except FailedError as error:
            note(process, "unknown", change=name, how=error.code)
            return False
        except PenstockError as error:
            applied = error.code == "moderator.repeated"
            note(process, "acknowledged" if applied else "refused", of="rules", change=name, how=error.code)
        else:
            note(process, "acknowledged", of="rules", change=name, how="taken")
        queue.popleft()
        del self._signed[process]
        return True

    # --- Steps ---------------------------------------------------------------------------------------------------

    async def perform(self, step: SimulationStep) -> None:
        """Perform a step in the process that does it."""
        process = step.arguments[0]
        if not self._simulation.runs(process):
            return
        if step.name == "read":
            self._tasks.start(process, self._read(process))
            return
        # Not by a counter: the same step has the same name, and meets the same races, if others are left out.
        name = f"c{step.at:g}"
        if step.name == "state":
            _, about, place = step.arguments
            principal = _key(process).principal
            rule = PublishRule(name, _type(about), (principal,), principal, ALWAYS, parse(_LISTS[int(place)]))
            self._rules[process].append(name)
            self._queues[process].append((name, Add(rule)))
        elif self._rules[process]:
            self._queues[process].append((name, WithdrawRule(self._rules[process].pop())))

    async def _read(self, process: str) -> None:
        try:
            book = self._book(process)
            book.refresh()
        except PenstockError as error:
            self._simulation.note(process, "unread", how=error.code)
        else:
            self._simulation.note(process, "read", number=book.head.number)

    # --- The end -------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until all requests are answered, and note what every process has."""
        end = self._simulation.time + 120
        while any(self._queues.values()) and self._simulation.time < end:
            await asyncio.sleep(1)
        verified: RuleBook | None = None
        for process in (*_PUBLISHERS, *_READERS):
            book = self._book(process)
            book.refresh()
            if verified is None:
                book.verify()
                verified = book
            # All read the same ledger: what it leads to is computed once, and each one's state is compared with that.
            same = same_state(verified._view.state, book._view.state)  # noqa: SLF001  # the whole state
            changes = tuple(change.why for change in book.ledger.read(2) if change.why.startswith("c"))
            rules = ",".join(f"{name}={one.status}" for name, one in sorted(book.base.standings.items()))
            self._simulation.note(process, "holds", of="rules", changes=changes)
            self._simulation.note(process, "replica", of="rules", state=f"{book.head.hash.hex()[:16]} {same} {rules}")
            for change in changes:
                self._simulation.note(process, "applied", reader=process, event=change)
