"""Every error code is documented, and every documented code can occur."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LITERAL = re.compile(r'"([a-z]+(?:\.[a-z](?:[a-z0-9-]*[a-z0-9])?)+)"')
RAISED = re.compile(r'(?:Error|\bProblem|\bFlag|\bRefusal)\(\s*"([a-z]+)[."]')
#: built for a kind of file, from what its codes begin with
FILES = {
    r'Strict\.of\("([a-z.-]+)"': ("syntax", "unknown-key", "missing", "value"),
    r'Strict\.of\("([a-z.-]+)".*zone="zone"': ("zone",),
    r'NameErrors\.of\("([a-z.-]+)"': ("no-match", "limit", "twice", "principal"),
}
#: built from the state of a validity
BUILT = {"cert.expired", "cert.not-yet-valid", "foreign.expired", "foreign.not-yet-valid"}
#: files, keys of a mapping file that look like codes, and attributes of attributes
NOT_CODES = {"broker.creds", "broker.key", "broker.toml"}
NOT_CODES |= {"event.id", "event.source", "event.time", "event.name", "event.owner.digest"}
NOT_CODES |= {"subject.id", "subject.type", "mapping.toml", "policy.toml"}
NOT_CODES |= {"fabric.dds", "fabric.kafka", "fabric.keep", "fabric.nats"}


@cache
def codes_in_source() -> set[str]:
    """Collect string literals that look like a code of a family that some error is raised with."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    literals = {code for text in texts for code in LITERAL.findall(text)}
    families = {family for text in texts for family in RAISED.findall(text)}
    for pattern, words in FILES.items():
        beginnings = [found for text in texts for found in re.findall(pattern, text)]
        literals |= {f"{beginning}{word}" for beginning in beginnings for word in words}
    return {literal for literal in literals if literal.split(".")[0] in families} - NOT_CODES


def codes_in_reference() -> set[str]:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `([a-z0-9.-]+)` \|", page, re.MULTILINE))


def test_every_code_is_documented() -> None:
    assert codes_in_source() - codes_in_reference() == set()


def test_every_documented_code_can_occur() -> None:
    assert codes_in_reference() - codes_in_source() - BUILT == set()
