"""What all tests share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def suites() -> Path:
    """Return the folder of test material that others wrote; skip where there is none."""
    name = os.environ.get("PENSTOCK_SUITES", "")
    if not name:
        pytest.skip("PENSTOCK_SUITES is not set: the suites of others are not run, our own cases are")
    folder = Path(name)
    if not folder.is_dir():
        pytest.skip(f"PENSTOCK_SUITES names no folder: {name}")
    return folder
