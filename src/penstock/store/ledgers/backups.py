"""Back up a store to one file, in the same format for all adapters: one S-expression per line, in transport form.

    (penstock-backup 1)
    (ledger <name> <number of changes> <hash of the last> <its time>)    for each ledger, followed by its changes:
    (change <number> <microseconds since 1970> <who> <kind> <why> <hash> [(before <bytes>)] [(after <bytes>)])
    (end <SHA-256 of all lines before>)

A backup can be taken while others write: the heads of all ledgers are read in one moment, and earlier changes never
change. The whole file is verified before any line of it is restored. Snapshots are not included: they are a cache.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, Final

from penstock.codec.sexp import SExp, head, parse, text, transport
from penstock.errors import MalformedError, RefusedError
from penstock.store.files.files import replace_file_by, unreadable, within
from penstock.store.ledgers.ledgers import (
    EMPTY,
    LedgerHead,
    Progress,
    Row,
    Store,
    broken,
    check_ledger_name,
    head_of,
    head_ticks,
    quiet,
    to_row,
    verify_row,
)
from penstock.store.limits import STORE_LIMITS, StoreLimits

_FORM: Final[SExp] = (b"penstock-backup", b"1")
_LINE: Final = 4 << 20


def write_backup(store: Store, path: Path, progress: Progress = quiet) -> Mapping[str, LedgerHead]:
    """Write a store to a file that only its owner can read, and return the heads in it.

    Raises `RefusedError` (`store.broken`): a broken ledger is not backed up; and `FailedError` (`file.unwritable`).
    """
    heads = store.heads()
    replace_file_by(path, _sealed(_lines(store, heads, progress)))
    return heads


def read_backup(
    path: Path, progress: Progress = quiet, *, limits: StoreLimits = STORE_LIMITS
) -> Mapping[str, LedgerHead]:
    """Verify a whole file, and return the heads in it.

    Raises `MalformedError` (`store.backup`), `RefusedError` (`store.broken`) and `FailedError` (`file.*`).
    """
    heads: dict[str, LedgerHead] = {}
    with _opened(path) as stream, within(str(path)):
        for part in _parts(stream, limits):
            if part.ledger in heads:
                raise _no_backup("a ledger stands in it twice")
            deque(part.rows(progress), maxlen=0)
            heads[part.ledger] = part.head
    return heads


def restore_backup(
    path: Path, store: Store, progress: Progress = quiet, *, limits: StoreLimits = STORE_LIMITS
) -> Mapping[str, LedgerHead]:
    """Restore the ledgers of a file into a store, each atomically. Ledgers that the store has already are kept.

    So an interrupted restore is completed by running it again. Raises as `read_backup`, and `RefusedError`
    (`store.not-empty`) if a ledger in the store has other changes.
    """
    heads = read_backup(path, limits=limits)
    put_back(path, heads, store, progress, limits=limits)
    return heads


def put_back(
    path: Path,
    heads: Mapping[str, LedgerHead],
    store: Store,
    progress: Progress = quiet,
    *,
    limits: StoreLimits = STORE_LIMITS,
) -> None:
    """Restore a file that was read (`restore_backup`). Each change is verified again when it is written."""
    missing = verify_room(heads, store)
    with _opened(path) as stream, within(str(path)):
        for part in _parts(stream, limits):
            rows = part.rows(progress)
            if part.ledger in missing:
                store.records.append(part.ledger, EMPTY, part.head, rows)
            else:
                deque(rows, maxlen=0)


def verify_room(heads: Mapping[str, LedgerHead], store: Store) -> set[str]:
    """Return the ledgers that a store lacks. Raises `RefusedError` (`store.not-empty`) if one has other changes."""
    there = store.heads()
    for ledger in heads.keys() & there.keys():
        if there[ledger] != heads[ledger]:
            raise RefusedError(
                "store.not-empty",
                f"`{ledger}` has changes already, and not those of the backup",
                hint="restore into a new store",
                ledger=ledger,
            )
    return heads.keys() - there.keys()


@dataclass(frozen=True, slots=True)
class _Part:
    """A ledger of a file; its rows must be consumed before the next part is read."""

    ledger: str
    head: LedgerHead
    lines: Iterator[SExp]

    def rows(self, progress: Progress) -> Iterator[Row]:
        last = EMPTY
        for line in self.lines:
            row = _row(line)
            last = verify_row(self.ledger, last, row).head
            progress(last.number)
            yield row
            if last.number == self.head.number:
                break
        if last != self.head or last.when != self.head.when:
            raise broken(self.ledger, last.number + 1, "is missing, or not the one that the backup names")


def _lines(store: Store, heads: Mapping[str, LedgerHead], progress: Progress) -> Iterator[bytes]:
    yield _line(_FORM)
    for ledger, wanted in heads.items():
        yield _line((b"ledger", ledger.encode(), b"%d" % wanted.number, wanted.hash, b"%d" % head_ticks(wanted)))
        last = EMPTY
        for change in store.ledger(ledger).read(1, wanted.number):
            yield _line(_change(to_row(change)))
            last = change.head
            progress(last.number)
        if last != wanted:
            raise broken(ledger, wanted.number, "is not the one that the head names")


def _sealed(lines: Iterator[bytes]) -> Iterator[bytes]:
    digest = sha256()
    for line in lines:
        digest.update(line)
        yield line
    yield _line((b"end", digest.digest()))


def _line(value: SExp) -> bytes:
    return transport(value) + b"\n"


def _change(row: Row) -> SExp:
    states: list[SExp] = []
    for name, value in ((b"before", row.before), (b"after", row.after)):
        if value is not None:
            states.append((name, value))
    texts = (row.who.encode(), row.kind.encode(), row.why.encode())
    return (b"change", b"%d" % row.number, b"%d" % row.at, *texts, row.hash, *states)


def _row(line: SExp) -> Row:
    match line:
        case (b"change", bytes(number), bytes(at), who, kind, why, bytes(digest), *states) if len(states) <= 2:
            found = {name: value for state in states for name, value in (_state(state),)}
            if len(found) == len(states):
                return Row(
                    *(_number(number), _number(at), text(who), text(kind), text(why)),
                    *(found.get(b"before"), found.get(b"after"), digest),
                )
    raise _no_backup("a line is not a change")


def _state(state: SExp) -> tuple[bytes, bytes]:
    match state:
        case (b"before" | b"after" as name, bytes(value)):
            return name, value
    raise _no_backup("a line is not a change")


def _number(digits: bytes) -> int:
    if not digits.removeprefix(b"-").isdigit() or len(digits) > 18:
        raise _no_backup("a number is none")
    return int(digits)


def _parts(stream: BinaryIO, limits: StoreLimits) -> Iterator[_Part]:
    lines = _values(stream, limits)
    if next(lines, None) != _FORM:
        raise _no_backup("it begins in another way")
    for line in lines:
        match line:
            case (b"ledger", name, bytes(number), bytes(digest), bytes(at)):
                ledger = text(name)
                check_ledger_name(ledger, limits)
                if _number(number) < 1:
                    raise _no_backup("a ledger without changes")
                yield _Part(ledger, head_of(_number(number), digest, _number(at)), lines)
            case _:
                raise _no_backup("a ledger is missing")


def _values(stream: BinaryIO, limits: StoreLimits) -> Iterator[SExp]:
    """Yield the lines' values, and compare the lines with the digest at the end."""
    allowed = replace(limits, sexp_bytes=_LINE)
    digest = sha256()
    for line in takewhile(bool, iter(lambda: stream.readline(_LINE), b"")):
        value = parse(line.removesuffix(b"\n"), limits=allowed)
        if head(value) == b"end":
            if value != (b"end", digest.digest()) or stream.read(1):
                raise _no_backup("its end does not fit to it")
            return
        digest.update(line)
        yield value
    raise _no_backup("its end is missing")


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise unreadable(str(path), error) from None


def _no_backup(what: str) -> MalformedError:
    return MalformedError("store.backup", f"the backup is not complete: {what}", hint="take another one")
