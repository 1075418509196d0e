"""Every error code is documented, and every documented code can occur."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"[a-z]+(?:\.[a-z][a-z0-9-]*)+")
#: built from the state of a validity
BUILT = {"cert.expired", "cert.not-yet-valid"}
#: a file, keys of a mapping file that look like codes, and attributes of attributes
NOT_CODES = {"broker.toml", "event.id", "event.source", "event.time", "event.name", "event.owner.digest"}


@cache
def codes_in_source() -> set[str]:
    """Collect string literals that look like a code of a family that some error is raised with."""
    literals: set[str] = set()
    families: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        # To read a module as a tree takes long, and not all of them have something that looks like a code.
        for node in ast.walk(ast.parse(text)) if CODE.search(text) else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                literals.add(node.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                first = node.args[0]
                named = node.func.id.endswith("Error") or node.func.id in ("Problem", "Flag", "Refusal")
                if named and isinstance(first, ast.Constant) and isinstance(first.value, str):
                    families.add(first.value.split(".")[0])
    return {literal for literal in literals if literal.split(".")[0] in families} - NOT_CODES


def codes_in_reference() -> set[str]:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `([a-z0-9.-]+)` \|", page, re.MULTILINE))


def test_every_code_is_documented() -> None:
    assert codes_in_source() - codes_in_reference() == set()


def test_every_documented_code_can_occur() -> None:
    assert codes_in_reference() - codes_in_source() - BUILT == set()
