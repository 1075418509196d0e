"""The public API changes on purpose alone: names and signatures are written down in `public_api.txt`."""

import ast
import difflib
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.scripts import load_script

import penstock
import penstock.testing

CHANGED = """
The public API is not what tests/public_api.txt says. Programs rely on it; docs/reference/api.md says what may change.
If the change is meant, run `python tools/public_api.py`, look at the difference, and add a line to CHANGELOG.md.
"""


def tool() -> ModuleType:
    return load_script("tools/public_api.py")


def test_names_and_signatures_are_those_that_were_written_down() -> None:
    made = tool()
    written, found = made.FILE.read_text(encoding="utf-8"), made.public_api()
    difference = difflib.unified_diff(written.splitlines(), found.splitlines(), "written", "found", lineterm="", n=0)
    assert written == found, CHANGED + "\n".join(difference)


@pytest.mark.parametrize("module", ["penstock", "penstock.spark", "penstock.testing"])
def test_type_checkers_see_what_programs_import(module: str) -> None:
    found = importlib.import_module(module)
    assert found.__file__ is not None
    tree = ast.parse(Path(found.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is not None
    }
    assert sorted(seen) == sorted(found.__all__)
    assert len(set(found.__all__)) == len(found.__all__)
    for name, home in seen.items():
        assert getattr(found, name) is getattr(importlib.import_module(home or ""), name)


def test_every_public_name_is_in_the_list_of_its_module() -> None:
    assert set(penstock.__all__) <= set(dir(penstock))
    for module in (penstock, penstock.testing):
        with pytest.raises(AttributeError, match="nothing"):
            module.nothing  # noqa: B018  # that it is not there


def test_every_public_name_has_a_docstring() -> None:
    for module in tool().MODULES:
        found = importlib.import_module(module)
        for name in found.__all__:
            doc = getattr(found, name).__doc__
            # A dataclass without a docstring gets its signature for one.
            assert doc, name
            assert not doc.startswith(f"{name}("), name


def test_without_spark_the_facade_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyspark'] = None\nimport penstock.spark"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "penstock[spark]" in done.stderr
