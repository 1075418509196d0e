"""Key rings and key-encryption keys in files, and the folder of a key manager's log."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.key_log_suite import KeyLogSuite, Opens

from penstock.broker.keys.log import KeyLog
from penstock.crypto.passphrases import Cost
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.wrapping import Secret, protect_kek, wrap
from penstock.errors import FailedError, LimitError, MalformedError, PenstockError, RefusedError
from penstock.store.files.key_files import (
    KeyFolder,
    create_kek,
    decode_key_ring,
    encode_key_ring,
    read_kek,
    read_key_ring,
    write_key_ring,
)
from penstock.store.limits import StoreLimits

KEK = Secret(bytes(range(32)))
SCOPES = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.dictionaries(st.integers(0, 2**64 - 1), st.binary(min_size=32, max_size=32), min_size=1, max_size=4),
    max_size=4,
)


def ring_of(held: dict[str, dict[int, bytes]]) -> KeyRing:
    ring = KeyRing()
    for scope, keys in held.items():
        for epoch, key in keys.items():
            ring.put(scope, epoch, Secret(key))
    return ring


RING = ring_of({"a/Plate": {0: b"1" * 32, 7: b"2" * 32}, "a/Plate#plate": {7: b"3" * 32}})
WHOLE = encode_key_ring(RING, KEK, bytes)


def keys_of(ring: KeyRing) -> list[tuple[str, int, bytes]]:
    return sorted((scope, epoch, key.expose()) for scope, epoch, key in ring.items())


@given(SCOPES)
def test_what_is_written_is_read_back(held: dict[str, dict[int, bytes]]) -> None:
    ring = ring_of(held)
    assert keys_of(decode_key_ring(encode_key_ring(ring, KEK, token_bytes), KEK)) == keys_of(ring)


def test_a_file_is_replaced_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "plates.ring"
    write_key_ring(path, KeyRing(), KEK, token_bytes)
    first = path.read_bytes()
    write_key_ring(path, RING, KEK, token_bytes)
    assert keys_of(read_key_ring(path, KEK)) == keys_of(RING)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["plates.ring"]
    write_key_ring(path, KeyRing(), KEK, token_bytes)
    assert path.read_bytes() != first, "the same content lies under another salt"


def test_neither_keys_nor_scopes_are_in_the_clear() -> None:
    assert b"Plate" not in WHOLE
    assert b"1111" not in WHOLE


@given(st.integers(0, 8 * len(WHOLE) - 1))
def test_no_changed_bit_is_read(bit: int) -> None:
    changed = bytearray(WHOLE)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PenstockError) as caught:
        decode_key_ring(bytes(changed), KEK)
    assert caught.value.code in ("keys.ring", "keys.wrong-kek", "keys.unopened")


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3))
def test_nothing_that_was_cut_or_continued_is_read(length: int, tail: bytes) -> None:
    for changed in (WHOLE[:length], WHOLE + b"\0" + tail):
        with pytest.raises(PenstockError) as caught:
            decode_key_ring(changed, KEK)
        assert caught.value.code in ("keys.ring", "keys.unopened", "keys.wrong-kek")


@given(st.binary(max_size=200))
def test_no_octets_break_the_reader(octets: bytes) -> None:
    """Also those that whoever holds the key-encryption key has wrapped."""
    for data in (octets, WHOLE[:28] + octets, WHOLE[:44] + wrap(KEK, octets, bytes(16), b"ring", WHOLE[:28])):
        with suppress(MalformedError, RefusedError):
            decode_key_ring(data, KEK)


def test_errors_say_what_is_wrong_and_with_which_file(tmp_path: Path) -> None:
    path = tmp_path / "plates.ring"
    write_key_ring(path, RING, KEK, token_bytes)
    with pytest.raises(RefusedError) as wrong:
        read_key_ring(path, Secret(bytes(32)))
    assert wrong.value.code == "keys.wrong-kek"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RefusedError) as cut:
        read_key_ring(path, KEK)
    assert cut.value.code == "keys.unopened"
    assert all("plates.ring" in caught.value.message for caught in (wrong, cut))
    with pytest.raises(LimitError):
        read_key_ring(path, KEK, limits=StoreLimits(key_ring_bytes=100))
    with pytest.raises(FailedError):
        read_key_ring(tmp_path / "absent", KEK)


STORED_KEK = Secret(bytes(range(32)))


def test_a_key_is_read_back_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    create_kek(tmp_path / "ring.kek", STORED_KEK)
    assert read_kek(tmp_path / "ring.kek") == STORED_KEK
    assert (tmp_path / "ring.kek").stat().st_mode & 0o777 == 0o600


def test_a_key_under_a_passphrase_needs_it(tmp_path: Path) -> None:
    path = tmp_path / "ring.kek"
    create_kek(path, protect_kek(STORED_KEK, b"sesame", bytes, Cost(1, 8 << 10)))
    assert read_kek(path, b"sesame") == STORED_KEK
    for passphrase, code in ((None, "keys.kek-passphrase"), (b"sesam", "key.passphrase")):
        with pytest.raises(RefusedError) as caught:
            read_kek(path, passphrase)
        assert caught.value.code == code
        assert "ring.kek" in caught.value.message


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    create_kek(tmp_path / "ring.kek", STORED_KEK)
    with pytest.raises(RefusedError) as caught:
        create_kek(tmp_path / "ring.kek", Secret(bytes(32)))
    assert caught.value.code == "file.exists"
    assert read_kek(tmp_path / "ring.kek") == STORED_KEK


def test_what_cannot_be_read_or_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(FailedError) as caught:
        create_kek(tmp_path / "absent" / "ring.kek", STORED_KEK)
    assert caught.value.code == "file.unwritable"
    with pytest.raises(FailedError) as missing:
        read_kek(tmp_path / "ring.kek")
    assert missing.value.code == "file.missing"
    (tmp_path / "ring.kek").write_text("(kek)")
    with pytest.raises(MalformedError) as malformed:
        read_kek(tmp_path / "ring.kek")
    assert malformed.value.code == "keys.kek"


class TestKeyFolder(KeyLogSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "keys"

    def opens(self) -> Opens:
        async def open_it() -> KeyLog:
            return KeyFolder(self.path)

        return open_it

    def test_what_a_crash_cut_off_counts_for_nothing(self) -> None:
        async def test(log: KeyLog, opens: Opens) -> None:
            await log.append(0, b"whole")
            (self.path / ".new").write_bytes(b"hal")
            again = await opens()
            assert list(await again.read(0)) == [b"whole"]
            assert await again.append(1, b"next")
            assert list(await log.read(0)) == [b"whole", b"next"]
            assert {path.name for path in self.path.iterdir()} == {
                "lock",
                "0000000000000000.record",
                "0000000000000001.record",
            }

        self.run(test)

    def test_only_its_owner_may_look(self) -> None:
        async def test(log: KeyLog, _: Opens) -> None:
            await log.append(0, b"record")
            assert self.path.stat().st_mode & 0o777 == 0o700
            assert {path.stat().st_mode & 0o777 for path in self.path.iterdir()} == {0o600}

        self.run(test)

    def test_other_files_are_nobodys_business(self) -> None:
        async def test(log: KeyLog, _: Opens) -> None:
            await log.append(0, b"record")
            for name in ("notes.txt", "1.record", "x000000000000001.record"):
                (self.path / name).write_text("hello")
            assert list(await log.read(0)) == [b"record"]
            assert await log.append(1, b"next")

        self.run(test)

    def test_a_folder_that_cannot_be_used(self) -> None:
        async def test(log: KeyLog, _: Opens) -> None:
            self.path.write_text("a file")
            with pytest.raises(FailedError) as caught:
                await log.append(0, b"record")
            assert caught.value.code == "keys.log-folder"

        self.run(test)


WRITER = """
import asyncio, sys
from pathlib import Path
from penstock.store.files.key_files import KeyFolder
async def main():
    log, number = KeyFolder(Path(sys.argv[1])), 0
    print("ready", flush=True)
    while True:
        number += await log.append(number, sys.argv[2].encode() * 4096) or len(await log.read(number))
        await asyncio.sleep(0.002)
asyncio.run(main())
"""


def test_processes_that_write_at_once_and_are_killed_leave_whole_records_in_a_row(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(folder), name], stdout=subprocess.PIPE)
        for name in ("a", "b")
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    log = KeyFolder(folder)
    while len({record[:1] for record in asyncio.run(log.read(0))}) < 2:
        pass
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        assert writer.stdout is not None
        writer.stdout.close()
    records = asyncio.run(log.read(0))
    assert {len(record) for record in records} == {4096}
    assert {record[:1] for record in records} == {b"a", b"b"}
    assert asyncio.run(log.append(len(records), b"next"))
    numbers = sorted(int(path.stem) for path in folder.glob("*.record"))
    assert numbers == list(range(len(records) + 1))
