"""Programs that change one rule book at the same time, until somebody kills them or enough steps were taken.

    python book_writer.py URL ROUND WRITERS GOAL FOLDER

Each has a key of its own and states rules that conflict with those of the others, resolves, withdraws and undoes them.
When a step is acknowledged, it writes its number and the digest of its record to a file: what stands there must never
be lost. They are forked from one, which has imported everything, and are one process group.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import sha256

from penstock.authority.rulebook import RuleBook
from penstock.crypto import SigningKey
from penstock.errors import FailedError, PenstockError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import ProfileSchema, alphabetic
from penstock.model.tree import TypeTree
from penstock.moderator.base.records import to_record
from penstock.moderator.files.founding import Founding
from penstock.moderator.rules.rules import PublishRule
from penstock.moderator.rules.steps import Add, Request, Resolve, Step, Strategy, Undo, WithdrawRule
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.selector import parse
from penstock.store.ledgers.ledgers import Store
from penstock.store.ledgers.urls import open_store
from penstock.trust.signed import sign_value

LEDGER = "rules"
MODERATOR = SigningKey(bytes(31) + b"\1")
EVENTS = tuple(TypeKey(MODERATOR.principal, name) for name in ("X", "A", "B", "AA"))
FUNCTIONS = ("role = 'engineer'", "role = 'worker'", "role = 'engineer' AND company = 'A'", "company = 'A'")


def begin(store: Store) -> RuleBook:
    """Begin the rule book that the writers change."""
    top, one, other, below = EVENTS
    people = ProfileSchema({"role": alphabetic("engineer", "worker"), "company": alphabetic("A", "B")})
    words = Vocabulary(TypeTree.of({top: None, one: top, other: top, below: one}), ProfileSchema({}), people)
    founding = Founding(LEDGER, MODERATOR.principal, datetime.now(UTC), words)
    return RuleBook.create(store.ledger(LEDGER), sign_value(founding, MODERATOR).unverified(), datetime.now(UTC))


def fingerprint(step: Step) -> str:
    """Return what tells one step from all others."""
    record = to_record(step)
    return sha256(b"\0".join((record.kind.encode(), record.before, record.after))).hexdigest()


def main() -> int:
    url, number, writers, goal, folder = sys.argv[1:]
    children: list[int] = []
    # What reads functions is imported when the first one is read.
    parse(FUNCTIONS[0])
    for index in range(int(writers)):
        if (child := os.fork()) == 0:
            key = SigningKey(bytes([int(number), index]) + bytes(30))
            run(url, key, int(goal), f"{folder}/{number}.{index}.ack")
            return 0
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def run(url: str, key: SigningKey, goal: int, file: str) -> None:
    """Be one of the writers."""
    acknowledged = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open_store(url) as store:
        book = patiently(lambda: RuleBook.open(store.ledger(LEDGER)))
        for request in wanted(book, key.principal):
            if book.base.next_number > goal:
                return
            step = ask(book, key, request)
            if step is not None:
                os.write(acknowledged, f"{step.number} {fingerprint(step)}\n".encode())


def wanted(book: RuleBook, who: Principal) -> Iterator[Request]:
    """Yield what one of the writers asks for, on and on."""
    count = 0
    while True:
        rule_id = f"{who.short[8:16]}-{count}"
        function = parse(FUNCTIONS[count % len(FUNCTIONS)])
        yield Add(PublishRule(rule_id, EVENTS[count * 7 % len(EVENTS)], (who,), who, fnc_s=function))
        yield Resolve(rule_id, Strategy.ADD)
        mine = [step.number for step in book.base.steps[-5:] if step.note.who == who]
        yield Undo(mine[-1]) if mine and count % 3 == 0 else WithdrawRule(rule_id)
        count += 1


def ask(book: RuleBook, key: SigningKey, request: Request) -> Step | None:
    """Ask for something, once, whatever comes between; None where it is refused."""
    signed = book.sign(key, request, datetime.now(UTC)).unverified()
    while True:
        try:
            return book.take(signed, datetime.now(UTC)).step
        except FailedError:
            # It is open whether it was taken: the same request again, which counts once.
            time.sleep(0.05)
        except PenstockError as error:
            if error.code != "moderator.repeated":
                return None
            return next(step for step in reversed(book.base.steps) if step.note.who == key.principal)


def patiently(opened: Callable[[], RuleBook]) -> RuleBook:
    """Open a book as soon as its store can be reached."""
    while True:
        try:
            return opened()
        except FailedError:
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
