"""Programs that change one domain at the same time, until somebody kills them or enough changes were made.

    python domain_writer.py URL ROUND WRITERS GOAL FOLDER

Each adds and removes members, issues and revokes. When a request is acknowledged, it writes the numbers and hashes of
its changes to a file: what stands there must never be lost. They are forked from one, and are one process group.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from typing import TypeVar

from penstock.authority.domain.domain_changes import AddMember, DomainChange, MemberKind, RemoveMember, RevokeIssued
from penstock.authority.domain.domain_ledger import DomainLedger, RecordedChange
from penstock.authority.domain.domain_state import DomainRequest, IssueRequest, Operation
from penstock.codec.sexp import canonical
from penstock.crypto import SigningKey
from penstock.errors import FailedError, PenstockError
from penstock.store.ledgers.urls import open_store
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.validity import ALWAYS

LEDGER = "domain/crash"
DOMAIN = SigningKey(bytes(31) + b"\7")
TAG = event_tag(DOMAIN.principal, "a.T", None, [Right.SUBSCRIBE])

T = TypeVar("T")


def fingerprint(change: DomainChange) -> str:
    """Return what tells one change from all others."""
    return sha256(canonical(change.to_sexp())).hexdigest()


def main() -> int:
    url, number, writers, goal, folder = sys.argv[1:]
    children: list[int] = []
    for index in range(int(writers)):
        if (child := os.fork()) == 0:
            run(url, (int(number), index), int(goal), f"{folder}/{number}.{index}.ack")
            return 0
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def run(url: str, who: tuple[int, int], goal: int, file: str) -> None:
    """Be one of the writers."""
    acknowledged = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open_store(url) as store:
        domain = patiently(lambda: DomainLedger.create(store.ledger(LEDGER), "crash", DOMAIN, datetime.now(UTC)))
        for count, operation in enumerate(wanted(domain, who)):
            if domain.head.number >= goal:
                return
            nonce = bytes(who) + count.to_bytes(8)
            lines = "".join(f"{one.number} {fingerprint(one.change)}\n" for one in ask(domain, operation, nonce))
            os.write(acknowledged, lines.encode())


def wanted(domain: DomainLedger, who: tuple[int, int]) -> Iterator[Operation]:
    """Yield what one of the writers asks for, on and on."""
    count = 0
    while True:
        member = SigningKey(bytes(who) + count.to_bytes(8) + bytes(22)).principal
        yield AddMember(member, MemberKind.CLIENT, f"{who[0]}-{who[1]}-{count}")
        yield IssueRequest(member, TAG, ALWAYS)
        if count % 3 == 0:
            yield RemoveMember(member)
        else:
            mine = [one.id for one in domain.state.issued.values() if one.certificate.statement.subject == member]
            yield RevokeIssued(tuple(mine[-1:]))
        count += 1


def ask(domain: DomainLedger, operation: Operation, nonce: bytes) -> tuple[RecordedChange, ...]:
    """Ask for something once, whatever comes between."""
    while True:
        try:
            return domain.ask(DomainRequest(DOMAIN.principal, operation, "a writer", nonce), datetime.now(UTC))
        except FailedError:
            # It is open whether it was applied: the same request again, which counts once.
            time.sleep(0.05)
        except PenstockError as error:
            if error.code in ("acs.repeated", "acs.busy"):
                return ()
            raise


def patiently(opened: Callable[[], T]) -> T:
    """Open something as soon as its store can be reached."""
    while True:
        try:
            return opened()
        except FailedError:
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
