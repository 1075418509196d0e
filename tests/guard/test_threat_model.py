"""The threat model names tests and codes that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "threat-model.md").read_text(encoding="utf-8")


def test_the_tests_that_it_names_are_there() -> None:
    named = set(re.findall(r"`(tests/[^`]+)`", PAGE))
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []


def test_the_codes_that_it_names_can_occur() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"`([a-z]+\.[a-z-]+)`", PAGE)) - {"cert.expired", "cert.not-yet-valid"}  # from a State
    assert len(named) > 20
    assert [code for code in sorted(named) if f'"{code}"' not in source] == []
