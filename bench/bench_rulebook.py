"""A signed rule book of 100,000 rules: what one more costs from the command line, beside an empty book of its types.

Every step is signed by its publisher and chained as in any book. The steps are written without being planned one by
one, and the moderator signs the snapshot that they come to. The commands run as processes of their own; the times
are those of the processor, start-up included.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from harness import Result, at_most, observed
from penstock.authority.limits import AUTHORITY_LIMITS
from penstock.authority.rulebook import RuleBook
from penstock.authority.rulebook_records import ModeratorRequest, SignedRequest, Snapshots, found, take
from penstock.authority.rulebook_state import Book, BookState, Rights, RuleBookFold
from penstock.codec.sexp import canonical
from penstock.crypto import SigningKey, private_key_to_sexp
from penstock.model.principals import Principal
from penstock.moderator.base.base import RuleBase
from penstock.moderator.base.tables import Image
from penstock.moderator.files.founding import Founding
from penstock.moderator.rules.steps import Add, Delta, Note, RuleChange, RuleState, RuleStatus, Step
from penstock.simulate.experiments.rule_worlds import RuleCandidate, RuleWorld
from penstock.store.ledgers.ledgers import NewChange
from penstock.store.ledgers.urls import open_store
from penstock.store.limits import StoreLimits
from penstock.trust.signed import sign_value

LEDGER = "moderator"
LEVELS = 10
RULES = 100_000
PUBLISHERS = 100
ROUNDS = 7
PROGRAM = Path(sys.executable).parent / "penstock"
MODERATOR = SigningKey((1).to_bytes(32, "big"))


@cache
def key(number: int) -> SigningKey:
    return SigningKey((1_000 + number).to_bytes(32, "big"))


class Books:
    """An empty book and a large one, in files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = RuleWorld(LEVELS)
        self.now = datetime.now(UTC)
        self.founding = Founding(LEDGER, MODERATOR.principal, self.now, self.world.vocabulary)
        self._id = self.founding.digest
        self.key = folder / "publisher.key"
        self.key.write_bytes(canonical(private_key_to_sexp(key(1))))
        self.key.chmod(0o600)
        for name in ("empty", "large"):
            with open_store(self.url(name), create=True) as store:
                RuleBook.create(store.ledger(LEDGER), sign_value(self.founding, MODERATOR).unverified(), self.now)
        self._fill()

    def url(self, name: str) -> str:
        return f"sqlite:{self.folder / name}.db"

    def _fill(self) -> None:
        serials: dict[Principal, int] = {}
        rules: dict[str, RuleState] = {}
        with open_store(self.url("large")) as store:
            ledger = store.ledger(LEDGER)
            entries: list[NewChange] = []
            for number, candidate in enumerate(self.world.draw(RULES, seed=1, publishers=PUBLISHERS), 1):
                entries += self._entries(number, candidate, serials, rules)
                if len(entries) >= StoreLimits().store_batch or number == RULES:
                    ledger.append(ledger.head(), entries)
                    entries = []
            types = dict(self.world.vocabulary.tree.parents)
            image = Image(rules, types, {}, frozenset(), {}, frozenset(types), RULES)
            base = RuleBase.resume(self.founding.vocabulary, self.founding.mode, image, lambda _: ())
            begun = found(sign_value(self.founding, MODERATOR).unverified(), Note(MODERATOR.principal, self.now)).after
            rights = Rights(self.founding, serials, AUTHORITY_LIMITS)
            fold, snapshots = RuleBookFold(ledger), Snapshots(ledger)
            data = fold.dump(BookState(Book(self.founding, base, rights, begun, self.now)))
            with snapshots.signed_by(MODERATOR):
                ledger.keep_snapshot(fold.name, ledger.head(), snapshots.wrap(ledger.head(), data))

    def _entries(
        self, number: int, candidate: RuleCandidate, serials: dict[Principal, int], rules: dict[str, RuleState]
    ) -> Iterator[NewChange]:
        signing = key(candidate.publisher)
        who = signing.principal
        rule = replace(self.world.rule(candidate), publishers=(who,), stated_by=who)
        serials[who] = serials.get(who, 0) + 1
        rules[rule.id] = RuleState(rule, RuleStatus.IN_FORCE, rule)
        asked = sign_value(ModeratorRequest(self._id, who, serials[who], self.now, Add(rule)), signing).unverified()
        delta = Delta(rules={rule.id: RuleChange(None, rules[rule.id])})
        step = Step(number, Note(who, self.now), Add(rule), delta)
        yield from take(step, SignedRequest(asked), self.now).entries(AUTHORITY_LIMITS)

    def add(self, name: str, candidate: RuleCandidate) -> float:
        """Return the seconds that it takes to state a rule."""
        condition = self.world.function(candidate.demanded).text
        about = ("--event", self.world.keys[candidate.event].name, "--fnc-s", condition)
        return self.run(name, "add", candidate.id, *about, "--key", str(self.key))

    def run(self, name: str, *words: str) -> float:
        command = [str(PROGRAM), "moderator", *words, "--store", self.url(name)]
        before = _used()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder)  # noqa: S603  # our own
        return _used() - before


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compared(books: Books, name: str, candidates: Sequence[RuleCandidate]) -> tuple[float, str]:
    times = [(books.add("empty", each), books.add("large", each)) for each in candidates]
    empty, large = (statistics.median(side) for side in zip(*times, strict=True))
    return large / empty, f"{name}: {empty:.2f} s into an empty book, {large:.2f} s into one of {RULES:,}"


def run() -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        books = Books(Path(folder))
        # The first command of each finds nothing of the database in memory.
        first, *more = books.world.draw(1 + ROUNDS, seed=2, prefix="more")
        compared(books, "first", [first])
        ratio, detail = compared(books, "one rule", more)
        roots = [RuleCandidate(f"root{number}", 1, 1, books.world.demanded(1)) for number in range(3)]
        high, above = compared(books, "one rule at the root, above all others", roots)
        shown = books.run("large", "show") / books.run("empty", "show")
        return [
            at_most("rulebook-one-rule", ratio, 2, detail),
            at_most("rulebook-one-rule-at-the-root", high, 2, above),
            observed("rulebook-show", shown, f"the first rules of {RULES:,} shown, beside those of an empty book"),
        ]
