"""The jars that `tools/jars.py` fetches."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def jars_module() -> ModuleType:
    """Return `tools/jars.py`."""
    spec = importlib.util.spec_from_file_location("jars", ROOT / "tools" / "jars.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fetched_jars(name: str) -> Path:
    """Return the folder of the jars of a list; skip where they cannot be fetched."""
    module = jars_module()
    try:
        return Path(module.fetch(name))
    except module.UnavailableError as error:
        pytest.skip(str(error))
