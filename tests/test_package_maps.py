"""The docstring of each package names its modules, and the architecture page names files that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "penstock"
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))
ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"


def modules(package: Path) -> Iterator[str]:
    """Yield the names of a package's modules and sub-packages, except `limits` and private ones."""
    for path in sorted(package.iterdir()):
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and not path.name.startswith("_"):
            yield path.stem


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.relative_to(SOURCE.parent)))
def test_the_docstring_of_a_package_names_its_modules(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    named = {name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", docstring)}
    assert {*modules(package)} - {"limits"} - named == set()


def test_the_files_that_answer_questions_exist() -> None:
    _, _, rest = ARCHITECTURE.read_text(encoding="utf-8").partition("## Where is what\n")
    files = re.findall(r"`([\w/]+\.py)`", rest.partition("\n## ")[0])
    assert len(files) > 20
    assert [file for file in files if not (SOURCE / file).is_file()] == []
