"""Commits: what an output says about itself and about its complete batches. Nothing here needs Spark.

`job/` says which job's output it is, `commits/@batch=N/` which batches are complete: one line of JSON each.
"""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from penstock.errors import FailedError, MalformedError, RefusedError

BATCH: Final = "@batch"
COMMITS: Final = "commits"
OUTPUT: Final = "output"
"""The key in a commit for the output that it belongs to."""

TO: Final = "to"
"""The key in a note for the tables that the main rows also go to, and in a commit for how many rows each has of it."""

Said: TypeAlias = dict[str, object]
"""The content of a commit. Every job adds `counts`, a table of numbers that can be added up."""
CHECKPOINT: Final = "checkpoint"
PREPARED: Final = "prepared"
"""The part of an output that describes batches whose rows are complete, and are on their way to tables."""
JOB: Final = "job"
CLOSED: Final = "closed"
"""The key in a commit for the attributes that are null because their keys are missing."""
EVENTS: Final = "events"
QUARANTINED: Final = "quarantine"
REFUSED: Final = "refused"
DECISIONS: Final = "decisions"
RECORDS: Final = "decision records"
"""The count of log records: a decision, and its enforcement, are two records."""
UNKNOWN_TYPE: Final = "pipeline.unknown-type"
OF_UNKNOWN_TYPE: Final = "of unknown type"
"""The count of events that nobody received because the policy does not know their type."""


def commit_line(batch: int, said: Mapping[str, object]) -> str:
    """Return the line of a commit."""
    return json.dumps({"batch": batch, **said}, ensure_ascii=False, separators=(",", ":"))


def read_commit(line: str) -> tuple[int, Said]:
    """Read the line of a commit. Raises `MalformedError` (`layout.manifest`)."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or type(found.get("batch")) is not int:
        raise MalformedError("layout.manifest", "a commit cannot be read", hint="do not edit the folder `commits`")
    return found["batch"], found


def read_note(line: str) -> Said:
    """Read the note of an output; an empty one if it cannot be read."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def add_up(said: Iterable[Said]) -> dict[str, int]:
    """Add up the counts of some batches."""
    found: dict[str, int] = {}
    for one in said:
        for name, count in counts_of(one).items():
            found[name] = found.get(name, 0) + count
    return found


def counts_of(said: Mapping[str, object]) -> dict[str, int]:
    """Return the counts that are said of a batch. Raises `MalformedError` (`layout.manifest`)."""
    counts = said.get("counts")
    if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
        raise MalformedError("layout.manifest", "a commit has no counts", hint="do not edit the folder `commits`")
    return counts


def names_said(said: Iterable[Said], what: str) -> tuple[str, ...]:
    """Return all names that some commits say of something."""
    found = [one.get(what) for one in said]
    return tuple(dict.fromkeys(str(name) for names in found if isinstance(names, list) for name in names))


def check_sum(whole: int, parts: Mapping[str, int]) -> None:
    """Check that nothing was lost or doubled. Raises `FailedError` (`pipeline.lost`)."""
    if whole != sum(parts.values()):
        raise FailedError(
            "pipeline.lost",
            f"{whole} events were read, and {' + '.join(str(count) for count in parts.values())} came out",
            hint="do not use the output of this run; run it again",
        )


# --- Where an output may be written ----------------------------------------------------------------------------------


def check_free(path: str, found: Said | None, *, foreign: bool, continues: Said | None, overwrite: bool) -> None:
    """Check that an output may be written: `found` is the note at its path, `foreign` says that other files are there.

    A run that was stopped `continues` its own output; nothing else is overwritten without `overwrite`. Raises
    `RefusedError` (`pipeline.exists`, `pipeline.foreign` for a folder of somebody else).
    """
    if foreign:
        raise RefusedError(
            "pipeline.foreign",
            f"`{path}` holds something that no job has written",
            hint="choose a folder that does not exist",
        )
    goes_on = found is not None and continues is not None and continues.items() <= {TO: [], **found}.items()
    if found is not None and not overwrite and not goes_on:
        raise RefusedError(
            "pipeline.exists",
            f"`{path}` holds the output of `{str(found.get('job'))[:20]}` already",
            hint="choose another folder, or say --overwrite",
        )


def check_apart(path: str, files: str | None) -> None:
    """Check that the files that a job reads do not stand in its output: it would be cleared before they are read.

    Raises `RefusedError` (`pipeline.own-input`).
    """
    if files is not None and f"{_place(files)}/".startswith(f"{_place(path)}/"):
        raise RefusedError(
            "pipeline.own-input",
            f"`{path}` contains the input of the job, and is not overwritten",
            hint="choose another folder for the output",
        )


def _place(path: str) -> str:
    """Return a path in a normal form, if it is on this machine."""
    local = path.removeprefix("file://").removeprefix("file:")
    return path.rstrip("/") if "://" in local else os.path.realpath(local)


def no_input(path: str) -> FailedError:
    """Return the error for a folder without a complete output of a job."""
    return FailedError(
        "pipeline.no-input",
        f"`{path}` holds no complete output of a job",
        hint="give the folder that `penstock pipeline ingest` or `admit` wrote",
    )
