"""The owner's chain as a file: it only grows, one process at a time goes on with it, and a crash cannot fork it."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.codec.sexp import transport
from penstock.crypto import SigningKey
from penstock.errors import FailedError, PenstockError, RefusedError
from penstock.model import Principal
from penstock.store.files.policy_files import ChainFile, ChainState, HeldChain, PolicyFolder, read_chain
from penstock.trust.policy_events import PolicyEvent, RequireStamps, Revoke
from penstock.trust.policy_state import PolicyAuthor
from penstock.trust.signed import SignedValue, sign_value

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
OWNER, OTHER = SigningKey(b"\x01" * 32), SigningKey(b"\x02" * 32)
ID = "cert:" + "a" * 52


def signed(count: int = 3, key: SigningKey = OWNER) -> list[SignedValue[PolicyEvent]]:
    author = PolicyAuthor(key)
    return [author.change(NOW + timedelta(seconds=i), Revoke((ID,))) for i in range(count)]


def lines(*events: SignedValue[PolicyEvent]) -> list[bytes]:
    return [transport(event.to_sexp()) + b"\n" for event in events]


@pytest.fixture
def file(tmp_path: Path) -> ChainFile:
    return ChainFile(tmp_path / "owner.chain")


def code(held: HeldChain, key: SigningKey = OWNER) -> str:
    try:
        held.check(key.principal)
    except RefusedError as error:
        return error.code
    return ""


def test_what_was_appended_is_there(file: ChainFile) -> None:
    events = signed()
    with file.hold() as held:
        held.append(events[:1])
        held.append(events[1:])
        assert code(held) == ""
    found = file.read()
    assert (found.events, found.number, found.head, found.owner) == (
        tuple(events),
        *(3, events[-1].digest),
        OWNER.principal,
    )
    assert file.path.read_bytes() == b"".join(lines(*events))
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_it_is_on_the_disk_before_append_returns(file: ChainFile, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda _handle: synced.append(file.path.read_bytes()))
    with file.hold() as held:
        held.append(signed(1))
    # The file with all that is in it, and the folder with its name.
    assert synced == [b"".join(lines(*signed(1)))] * 2


def test_one_process_at_a_time(file: ChainFile) -> None:
    with file.hold(), pytest.raises(RefusedError) as caught:
        file.hold()
    assert caught.value.code == "evolution.busy"
    with file.hold():
        pass


def test_a_file_that_takes_the_place_of_the_one_that_is_held(file: ChainFile) -> None:
    with file.hold():
        file.path.rename(file.path.with_suffix(".old"))
        with file.hold() as other:
            assert not other.chain.events


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_an_event_that_was_cut_off_while_it_was_written(file: ChainFile, cut: int) -> None:
    events = signed()
    with file.hold() as held:
        held.append(events[:2])
        held.note(handed_in=2)
    whole = file.path.read_bytes()
    with file.path.open("ab") as stream:
        stream.write(lines(events[2])[0][:cut])
    found = file.read()
    assert (found.torn, found.number, found.size) == (True, 2, len(whole))
    with file.hold() as held:
        assert code(held) == ""
        assert held.cut()
        assert not held.cut()
        assert file.path.read_bytes() == whole
        held.append(events[2:])
    assert file.read().number == 3


def test_a_line_that_lost_its_end_alone_is_whole(file: ChainFile) -> None:
    events = signed()
    file.path.write_bytes(b"".join(lines(*events[:2]))[:-1])
    assert not file.read().torn
    with file.hold() as held:
        held.append(events[2:])
    assert file.path.read_bytes() == b"".join(lines(*events))


def test_what_was_cut_off_is_kept_where_somebody_may_have_been_told(file: ChainFile) -> None:
    file.path.write_bytes(b"".join(lines(*signed()))[:-20])
    with file.hold() as held:
        assert code(held) == "evolution.torn"
        held.note(handed_in=3)
        assert code(held) == "evolution.old-chain"
    assert file.read().torn


def test_a_checkpoint_is_there_as_a_whole_or_not_at_all(file: ChainFile) -> None:
    first = signed(1)
    author = PolicyAuthor(OWNER)
    author.resume(first)
    begin = author.change(NOW, RequireStamps(), checkpoint=1)
    rest = author.change(NOW, Revoke((ID,)))
    file.path.write_bytes(b"".join(lines(*first, begin)))
    found = file.read()
    assert (found.torn, found.number, found.size) == (True, 1, len(lines(*first)[0]))
    file.path.write_bytes(b"".join(lines(*first, begin, rest)))
    found = file.read()
    assert (found.problem, found.number) == (None, 3)
    assert [event.value.number for event in found.since(0)] == [2, 3]
    assert [event.value.number for event in found.since(2)] == [3]
    # What a broker has kept begins with a checkpoint.
    assert read_chain(b"".join(lines(begin, rest))).number == 3


def forged() -> bytes:
    """Return an event of the owner under the signature of somebody else."""
    (event,) = signed(1)
    other = sign_value(PolicyEvent(OTHER.principal, 1, event.value.previous, NOW, ()), OTHER).to_sexp()
    assert isinstance(other, tuple)
    return transport((b"sequence", event.body, other[2])) + b"\n"


def backwards() -> bytes:
    first, second = signed(2)
    earlier = PolicyEvent(OWNER.principal, 2, first.digest, NOW - timedelta(days=1), second.value.changes)
    return b"".join(lines(first, sign_value(earlier, OWNER)))


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"(junk)\n", 1, "evolution.malformed"),
        (b"\n", 1, "sexp.truncated"),
        (b"{AAAA}\n", 1, "sexp.syntax"),
        (b"".join(lines(*signed()[1:])), 1, "evolution.not-next"),
        (b"".join(lines(signed()[0], signed()[2])), 2, "evolution.not-next"),
        (b"".join(lines(signed()[0], *signed(2, OTHER)[1:])), 2, "evolution.other-owner"),
        (b" " + b"".join(lines(*signed())), 1, "evolution.malformed"),
        (forged(), 1, "evolution.signature-mismatch"),
        (backwards(), 2, "evolution.backwards"),
    ],
)
def test_a_file_that_does_not_hold(file: ChainFile, data: bytes, line: int, reason: str) -> None:
    file.path.write_bytes(data)
    with pytest.raises(RefusedError) as caught:
        file.hold()
    assert (caught.value.code, caught.value.fields) == ("evolution.broken", {"line": line, "reason": reason})
    assert file.path.read_bytes() == data
    # Nobody is locked out by it.
    file.path.write_bytes(b"")
    with file.hold():
        pass


def test_only_what_follows_is_appended(file: ChainFile) -> None:
    with file.hold() as held:
        held.append(signed(1))
        with pytest.raises(RefusedError) as caught:
            held.append(signed(1))
    assert caught.value.code == "evolution.not-next"
    assert file.read().number == 1


def test_a_disk_that_is_full_leaves_what_was_there(file: ChainFile, monkeypatch: pytest.MonkeyPatch) -> None:
    events = signed()
    with file.hold() as held:
        held.append(events[:1])
        before = file.path.read_bytes()
        write = os.write

        def full(handle: int, data: bytes) -> int:
            if len(data) < 100:
                raise OSError(28, "no space")
            return write(handle, bytes(data)[:50])

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(FailedError) as caught:
            held.append(events[1:2])
        monkeypatch.undo()
        assert caught.value.code == "file.unwritable"
        assert file.path.read_bytes() == before
        held.append(events[1:])


def test_what_is_kept_beside_the_chain(file: ChainFile) -> None:
    author = PolicyAuthor(OWNER)
    event = author.change(NOW, RequireStamps())
    stamp = author.stamp(NOW, 10_000)
    with file.hold() as held:
        assert held.state == ChainState()
        held.append([event])
        held.note(handed_in=1)
        held.note(stamp=stamp)
        held.note(handed_in=0)
        assert code(held) == ""
        assert code(held, OTHER) == "evolution.other-owner"
    assert file.state() == ChainState(1, stamp)
    assert "Principal" not in repr(file.state())
    # An old copy of the chain beside the last state.
    file.path.write_bytes(b"")
    with file.hold() as held:
        assert code(held) == "evolution.old-chain"
    file.beside.write_bytes(transport(ChainState(0, stamp).to_sexp()))
    with file.hold() as held:
        assert code(held) == "evolution.old-chain"


@pytest.mark.parametrize("data", [b"(junk)", b"(chain-state)", b"(chain-state (handed-in -1))", b"(chain-state"])
def test_a_state_that_is_none(file: ChainFile, data: bytes) -> None:
    file.beside.write_bytes(data)
    with pytest.raises(PenstockError) as caught:
        file.hold()
    assert caught.value.code in {"evolution.chain-state", "evolution.malformed", "sexp.truncated"}


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FailedError) as caught:
        ChainFile(tmp_path / "absent" / "owner.chain").hold()
    assert caught.value.code == "file.unwritable"


ONE, TWO = Principal(bytes(32)), Principal(bytes([1]) * 32)


def test_the_last_snapshot_of_each_owner_is_kept(tmp_path: Path) -> None:
    folder = PolicyFolder(tmp_path)
    folder.save(ONE, b"first")
    folder.save(TWO, b"other")
    folder.save(ONE, b"second")
    assert sorted(folder.load()) == [b"other", b"second"]
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_what_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FailedError) as caught:
        PolicyFolder(tmp_path / "absent").save(ONE, b"first")
    assert caught.value.code == "file.unwritable"


def test_a_write_that_was_cut_off_leaves_what_was_there(tmp_path: Path) -> None:
    folder = PolicyFolder(tmp_path)
    folder.save(ONE, b"first")
    kept = next(tmp_path.iterdir())
    kept.with_name(f".{kept.name}.0123456789abcdef").write_bytes(b"sec")
    assert list(folder.load()) == [b"first"]


def test_the_brokers_that_were_seen(tmp_path: Path) -> None:
    folder = PolicyFolder(tmp_path)
    assert folder.load_brokers() == b""
    folder.save_brokers(b"first")
    folder.save_brokers(b"second")
    assert folder.load_brokers() == b"second"
    # They are not taken for a snapshot of an owner.
    assert list(folder.load()) == []
    (tmp_path / "brokers.seen").unlink()
    (tmp_path / "brokers.seen").mkdir()
    with pytest.raises(FailedError, match=r"brokers\.seen"):
        folder.load_brokers()


def test_statements_of_issuers_are_stored_and_removed(tmp_path: Path) -> None:
    folder = PolicyFolder(tmp_path)
    folder.save(ONE, b"policy")
    folder.save_statements(ONE, b"first")
    folder.save_statements(TWO, b"other")
    folder.save_statements(ONE, b"second")
    assert (sorted(folder.load_statements()), list(folder.load())) == ([b"other", b"second"], [b"policy"])
    folder.save_statements(ONE, b"")
    folder.save_statements(ONE, b"")
    assert list(folder.load_statements()) == [b"other"]
