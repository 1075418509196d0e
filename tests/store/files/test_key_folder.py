"""A log in a folder: what every log does, and what a crash, other processes and other users leave behind."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.broker.key_log_suite import KeyLogSuite, Opens

from penstock.broker.keys.log import KeyLog
from penstock.errors import FailedError
from penstock.store.files.key_folder import KeyFolder


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
from penstock.store.files.key_folder import KeyFolder
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
