"""Name a store on the command line, write and read heads of ledgers, and show them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from penstock.apps.cli.shared.commands import option
from penstock.apps.cli.shared.describe import instant_text, value_text
from penstock.apps.cli.shared.terminal import Shown, grid_table, showing
from penstock.errors import MalformedError
from penstock.store.ledgers.ledgers import LedgerHead, Progress, check_ledger_name

#: how the argument that names a store is written
STORE: Final[dict[str, Any]] = {"metavar": "STORE", "envvar": "PENSTOCK_STORE"}


def dry_run_option() -> Any:
    """Declare `--dry-run`."""
    return option("--dry-run", is_flag=True, help="Do everything except write.")


_HEAD: Final = re.compile(r"([^:]+):([1-9][0-9]{0,17}):([0-9a-f]{64})", re.ASCII)


def check_lasting(store_url: str) -> None:
    """Check that a store is not in memory. Raises `MalformedError` (`store.memory`)."""
    if store_url == "memory:":
        raise MalformedError(
            "store.memory",
            "a store in memory ends with the command, and nothing would be kept",
            hint="name a file, `sqlite:PATH`, or a database, `postgresql://USER@HOST/DATABASE`",
        )


def head_text(ledger: str, head: LedgerHead) -> str:
    """Return a head as `--head` reads it."""
    return f"{ledger}:{head.number}:{head.hash.hex()}"


def parse_heads(words: tuple[str, ...]) -> dict[str, LedgerHead]:
    """Read heads that were noted. Raises `MalformedError` (`store.value`)."""
    heads: dict[str, LedgerHead] = {}
    for word in words:
        found = _HEAD.fullmatch(word)
        if found is None or found[1] in heads:
            raise MalformedError(
                "store.value",
                f"`{word[:80]}` is not a head, or the second one of a ledger",
                hint="write `LEDGER:NUMBER:HASH`, as `penstock log verify` prints it",
            )
        check_ledger_name(found[1])
        heads[found[1]] = LedgerHead(int(found[2]), bytes.fromhex(found[3]))
    return heads


def head_data(ledger: str, head: LedgerHead) -> dict[str, object]:
    """Return a head as plain data."""
    when = None if head.when is None else value_text(head.when)
    return {"ledger": ledger, "changes": head.number, "head": head_text(ledger, head), "last": when}


def heads_table(heads: Mapping[str, LedgerHead]) -> Shown:
    """Return ledgers as a table."""
    if not heads:
        return "no ledgers yet"
    rows = [
        (name, str(head.number), "" if head.when is None else instant_text(head.when), head.hash.hex())
        for name, head in heads.items()
    ]
    return grid_table(("ledger", "changes", "last", "hash of the last"), rows)


@contextmanager
def counting(what: str) -> Iterator[Progress]:
    """Show on a terminal how many changes were processed."""
    done = [0]

    def count_one(_number: int) -> None:
        done[0] += 1

    with showing(lambda: f"{what}: {done[0]:,} changes"):
        yield count_one
