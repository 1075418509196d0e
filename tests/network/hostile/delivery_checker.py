"""Checks what brokers delivered, from their own logs: nothing after a revocation was complete or after the last stamp.

Each broker writes numbered lines (`tests.network.broker_process`): its starts, owners' time-stamps, deliveries. Whoever
ran the network says which brokers were started and how often, from when to when which reader may not get anything, and
what readers got. `faults` compares the two:

- `late`: a delivery to a reader while it may not get anything
- `unstamped`: a delivery at a broker that had no stamp of the owner, or whose last one had run out
- `missing line`: a number is not there, or a line cannot be read
- `missing log`: a broker that was started has no log, or not a line for each start
- `unlogged`: a reader got an event that no log speaks of
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fault:
    """Something that must not be."""

    kind: str
    text: str


@dataclass(frozen=True)
class Ban:
    """A time in which a reader may not get anything: from when its revocation was complete to when it got a right."""

    reader: str
    begin: float
    end: float = float("inf")


@dataclass
class Account:
    """What whoever ran the network knows."""

    #: how often each log's broker was started
    starts: Counter[Path] = field(default_factory=Counter)
    bans: list[Ban] = field(default_factory=list)
    #: ids of events, by their reader
    received: dict[str, set[str]] = field(default_factory=dict)
    #: whether the owner issues stamps, and seconds by which clocks may differ
    stamped: bool = False
    skew: float = 0.0


@dataclass
class _Log:
    """What one log holds."""

    deliveries: list[Mapping[str, Any]] = field(default_factory=list)
    starts: int = 0
    faults: list[Fault] = field(default_factory=list)


def faults(account: Account) -> list[Fault]:
    """Return all faults that the logs show."""
    found: list[Fault] = []
    logged: dict[str, set[str]] = {}
    for path, starts in sorted(account.starts.items()):
        if not path.exists():
            found.append(Fault("missing log", f"{path} is not there"))
            continue
        log = _read(path, account)
        found += log.faults
        if log.starts < starts:
            found.append(Fault("missing log", f"{path} has {log.starts} starts, and there were {starts}"))
        found += _late(path, log.deliveries, account.bans)
        for line in log.deliveries:
            logged.setdefault(line["to"], set()).update(line["ids"])
    for reader, ids in account.received.items():
        unlogged = ids - logged.get(reader, set())
        if unlogged:
            found.append(Fault("unlogged", f"{reader} got {len(unlogged)} events that no log has: {min(unlogged)}"))
    return found


def _read(path: Path, account: Account) -> _Log:
    log = _Log()
    stamp: float | None = None
    for number, line in enumerate(_lines(path), 1):
        if line is None or line.get("line") != number:
            log.faults.append(Fault("missing line", f"line {number} of {path} is not there"))
            break
        if "started" in line:
            log.starts += 1
        elif "until" in line:
            stamp = max(stamp or 0.0, line["until"])
        else:
            log.deliveries.append(line)
            if account.stamped and (stamp is None or line["at"] > stamp + account.skew):
                ran_out = "there was no stamp" if stamp is None else f"the last stamp had run out at {stamp}"
                text = f"line {number} of {path}: a delivery at {line['at']}, when {ran_out}"
                log.faults.append(Fault("unstamped", text))
    return log


def _lines(path: Path) -> Iterator[Mapping[str, Any] | None]:
    """Yield the lines of a log, None for what cannot be read."""
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        yield line if isinstance(line, dict) else None


def _late(path: Path, deliveries: Iterable[Mapping[str, Any]], bans: Iterable[Ban]) -> Iterator[Fault]:
    banned: dict[str, list[Ban]] = {}
    for ban in bans:
        banned.setdefault(ban.reader, []).append(ban)
    for line in deliveries:
        for ban in banned.get(line["to"], ()):
            if ban.begin < line["at"] < ban.end:
                text = f"line {line['line']} of {path}: {line['to']} got events at {line['at']}, banned at {ban.begin}"
                yield Fault("late", text)


def deliveries(paths: Iterable[Path]) -> int:
    """Return how many events the logs say were delivered."""
    return sum(len(line["ids"]) for path in paths for line in _lines(path) if line is not None and "ids" in line)
