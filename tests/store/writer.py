"""Programs that add changes to one ledger at the same time, until somebody kills them or enough are there.

    python writer.py URL ROUND WRITERS GOAL FOLDER

Each adds batches of two to eight changes, whose reasons say which batch they are of and how large it is. When a batch
is acknowledged, it writes the number and hash of each of its changes to a file: what stands there must never be lost.
They are forked from one, which has imported everything, and are one process group.
"""

import os
import sys
import time
from datetime import UTC, datetime

from penstock.errors import FailedError, RefusedError
from penstock.model.principals import Principal
from penstock.store.ledgers.ledgers import Change, Ledger, NewChange, Store
from penstock.store.ledgers.urls import open_store

LEDGER = "rules"
WHO = Principal(b"\1" * 32)


def main() -> int:
    url, batch, writers, goal, folder = sys.argv[1:]
    children: list[int] = []
    for number in range(int(writers)):
        if (child := os.fork()) == 0:
            run(url, f"{batch}.{number}", int(goal), f"{folder}/{batch}.{number}.ack")
            return 0
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def run(url: str, name: str, goal: int, file: str) -> None:
    """Be one of the writers."""
    acknowledged = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with opened(url) as store:
        ledger = store.ledger(LEDGER)
        batch = 0
        while (changes := write(ledger, f"{name}-{batch}", 2 + batch % 7, goal)) is not None:
            lines = "".join(f"{change.number} {change.hash.hex()}\n" for change in changes)
            os.write(acknowledged, lines.encode())
            batch += 1


def opened(url: str) -> Store:
    """Open the store. Others may have begun long ago, and their server may have been killed since."""
    while True:
        try:
            return open_store(url)
        except FailedError as error:
            if error.code != "store.failed":
                raise
            time.sleep(0.05)


def write(ledger: Ledger, batch: str, size: int, goal: int) -> tuple[Change, ...] | None:
    """Add a batch, once, whatever comes between; None when the goal is reached."""
    entries = [
        NewChange(who=WHO, when=datetime.now(UTC), kind="test", why=f"{batch} {size}", after=bytes(100))
        for _ in range(size)
    ]
    unsure_since = None
    while True:
        try:
            head = ledger.head()
            if unsure_since is not None:
                kept = tuple(one for one in ledger.read(unsure_since + 1) if one.why == entries[0].why)
                if kept:
                    return kept
            if head.number >= goal:
                return None
            try:
                return ledger.append(head, entries)
            except FailedError:
                unsure_since = head.number if unsure_since is None else unsure_since
        except RefusedError as error:
            if error.code != "store.conflict":
                raise
        except FailedError:
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
