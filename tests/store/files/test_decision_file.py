"""A decision file grows by whole lines, or the decision is not answered."""

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.errors import FailedError
from penstock.guard import DecisionRecord, Effect
from penstock.guard.decision_log import read_record
from penstock.model import Principal, TypeName
from penstock.store import DecisionFile
from penstock.trust.capabilities import Right

RECORD = DecisionRecord(
    id="d1",
    source="broker",
    time=datetime(2026, 5, 1, 12, tzinfo=UTC),
    principal=Principal(bytes(32)),
    action=Right.SUBSCRIBE,
    resource=TypeName(Principal(bytes(32)), "org.plant.Reading"),
    effect=Effect.DENY,
    revision="policy:é",
    took=41,
)


def test_records_are_lines_in_order(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    records = [replace(RECORD, id=f"d{number}") for number in range(3)]
    for entry in records:
        DecisionFile(path)(entry)
    assert [read_record(line) for line in path.read_bytes().splitlines()] == records
    assert path.read_bytes().endswith(b"\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_crash_cut_off_is_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text('{"specversion":"1.0","id":"d')
    sink = DecisionFile(path)
    sink(RECORD)
    sink(RECORD)
    torn, *whole = path.read_text(encoding="utf-8").splitlines()
    assert torn == '{"specversion":"1.0","id":"d'
    assert [read_record(line) for line in whole] == [RECORD, RECORD]


def test_a_file_that_was_moved_away_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    sink = DecisionFile(path)
    sink(RECORD)
    path.rename(tmp_path / "yesterday.jsonl")
    sink(replace(RECORD, id="d2"))
    assert read_record(path.read_bytes()).id == "d2"


def fails(*arguments: object) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("name", "call"), [("write", fails), ("fsync", fails), ("write", lambda file, data: len(data) - 1)]
)
def test_what_is_not_safe_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[..., int]
) -> None:
    monkeypatch.setattr(os, name, call)
    with pytest.raises(FailedError) as caught:
        DecisionFile(tmp_path / "decisions.jsonl")(RECORD)
    assert caught.value.code == "log.write"


@pytest.mark.parametrize("name", ["", "nowhere/decisions.jsonl"])
def test_a_place_that_cannot_be_written_to_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(FailedError) as caught:
        DecisionFile(tmp_path / name)(RECORD)
    assert caught.value.code == "log.write"


def test_many_records_are_made_safe_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "decisions.jsonl", []
    fsync = os.fsync

    def noted(file: int) -> None:
        synced.append(os.fstat(file).st_ino)
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    sink = DecisionFile(path)
    for _ in range(5):
        sink.append(RECORD)
    assert synced == []
    first = path.stat().st_ino
    # What was written before the file was moved away is made safe too.
    path.rename(tmp_path / "yesterday.jsonl")
    sink.append(RECORD)
    sink.sync()
    assert synced[:2] == [first, path.stat().st_ino]
    synced.clear()
    sink.sync()
    assert synced == []


def test_what_could_not_be_made_safe_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = DecisionFile(tmp_path / "decisions.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(FailedError):
            sink(RECORD)
    sink.sync()
