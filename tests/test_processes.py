"""Tests in several processes are run, shown and counted as in one, and what belongs together stays in one process."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFTEST = """
from tests.processes import Crew

def pytest_runtestloop(session):
    Crew(session, 3, lambda nodeid: "group" if "group" in nodeid else None).run()
    return True
"""
TESTS = """
import os
import pytest

@pytest.fixture(scope="session", autouse=True)
def session():
    yield
    print("torn down")

@pytest.mark.parametrize("number", range(20))
def test_single(number, tmp_path):
    print("printed", number)
    (tmp_path / "file").touch()
    assert number != 7

@pytest.mark.parametrize("number", range(10))
def test_group(number, tmp_path_factory):
    (tmp_path_factory.getbasetemp() / "group").touch(exist_ok=bool(number))

@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    (tmp_path_factory.getbasetemp() / "shared").touch()

@pytest.mark.parametrize("number", range(10))
def test_shares(number, shared):
    pass
"""


def run(folder: Path, tests: str) -> tuple[int, str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(tests)
    line = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "--basetemp", "temporary"]
    # What other plugins need takes a second to load.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_all_tests_run_and_groups_stay_together(tmp_path: Path) -> None:
    status, said = run(tmp_path, TESTS)
    assert (status, "1 failed, 39 passed" in said) == (1, True), said
    # What the failed one printed, and nothing of the others but where the session of a process ended.
    assert "printed 7" in said
    assert "printed 8" not in said
    for name in ("group", "shared"):
        assert len(list((tmp_path / "temporary").glob(f"gw*/{name}"))) == 1


def test_a_process_that_ends_is_a_failed_test_and_the_end_of_the_run(tmp_path: Path) -> None:
    status, said = run(tmp_path, "import os\n\ndef test_fine():\n    pass\n\ndef test_ends():\n    os._exit(0)\n")
    assert status == 1, said
    assert "test_ends - the process that ran this test has ended" in said
    assert "1 failed, 1 passed" in said
