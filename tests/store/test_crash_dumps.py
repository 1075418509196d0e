"""Processes that hold keys leave no memory behind when they crash."""

import subprocess
import sys
from pathlib import Path

#: allow dumps of any size, as far as one may
BEGIN = """\
import os, resource
_, most = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (most, most))
"""
TELL = """\
print(resource.getrlimit(resource.RLIMIT_CORE)[0])
print(open("/proc/self/coredump_filter").read() if os.path.exists("/proc/self/coredump_filter") else 0)
"""
READ = """\
from penstock.pipeline.sealed.log import KeyFiles
try:
    KeyFiles("absent", "absent").read()
except Exception as error:
    assert error.code == "file.missing", error
"""
SET = "from penstock.store.crash_dumps import withhold_memory; withhold_memory()\n"


def run(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def test_a_task_that_reads_keys_allows_no_dumps(tmp_path: Path) -> None:
    ran = run(BEGIN + READ + TELL, tmp_path)
    limit, kept = ran.stdout.split()[-2:]
    assert limit in ("0", "1"), ran.stderr
    assert int(kept, 16) == 0


def test_a_crash_leaves_nothing(tmp_path: Path) -> None:
    ran = run(f"{BEGIN}{SET}os.abort()", tmp_path)
    assert ran.returncode < 0
    assert not list(tmp_path.iterdir())


def test_a_limit_that_is_lower_still_stays(tmp_path: Path) -> None:
    ran = run(f"{BEGIN}resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n{SET}{TELL}", tmp_path)
    assert ran.stdout.split()[0] == "0", ran.stderr
