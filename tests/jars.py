"""The jars that `tools/jars.py` fetches."""

from pathlib import Path

import pytest
from tests.scripts import load_script


def fetched_jars(name: str) -> Path:
    """Return the folder of the jars of a list; skip where they cannot be fetched."""
    module = load_script("tools/jars.py")
    try:
        return Path(module.fetch(name))
    except module.UnavailableError as error:
        pytest.skip(str(error))
