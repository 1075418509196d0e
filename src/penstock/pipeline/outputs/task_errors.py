"""Recover errors that tasks raised on purpose: Spark passes on only their text."""

import re
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.errors import FailedError, LimitError, MalformedError, PenstockError, RefusedError

CLOSED_LOG: Final = "seal.closed-log"
NO_ROW: Final = "evaluate.row"
_KINDS: Final = {kind.__name__: kind for kind in (FailedError, LimitError, MalformedError, RefusedError)}
#: as Python writes an error below what led to it
_WORDS: Final = re.compile(
    rf"^\s*penstock\.errors\.({'|'.join(_KINDS)}): (.*) \[([a-z0-9-]+(?:\.[a-z0-9-]+)+)\]\s*$", re.MULTILINE
)
_HINTS: Final = {
    CLOSED_LOG: "`penstock pipeline unseal` sets aside what does not open",
    NO_ROW: "correct the line or take it out, and run the job again",
}


def closed_log(code: str) -> FailedError:
    """Return the error for a log that is to be read as a whole, and has a block that is not."""
    return FailedError(CLOSED_LOG, f"a block of the sealed log does not open: {code}", hint=_HINTS[CLOSED_LOG])


def raise_in_task(code: str, words: Column) -> Column:
    """Return a column that fails whatever asks for its value, as a task that raises `MalformedError` does."""
    kind = MalformedError.__name__
    return F.raise_error(F.concat(F.lit(f"\npenstock.errors.{kind}: "), words, F.lit(f" [{code}]\n")))


def raised_by_task(error: PySparkException) -> PenstockError | None:
    """Return the error that a task raised on purpose, if Spark failed because of it."""
    found = _WORDS.findall(str(error))
    if not found:
        return None
    kind, message, code = found[-1]
    return _KINDS[kind](code, message, hint=_HINTS.get(code, "its log says more: give a file with --spark-log"))
