"""Everything that a person reads avoids the words that new readers stumbled over."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: the word or phrase, and what to write instead
BANNED = {
    r"octets?": "byte",
    r"for ever|forever": "without expiry, indefinitely",
    r"anew": "again, re-…",
    r"(?:is|are|was|be) true of|holds? of": "matches",
    r"what (?:a|the) \w+ comes to": "the effective …, the result of …",
    r"ways? out": "proposal, fix",
    r"collid(?:es?|ed|ing)|collisions?": "conflict",
    r"whose word": "who is authorised",
    r"go(?:es)? by|went by": "uses, is configured by",
    r"nobody answers": "cannot connect to HOST:PORT",
    r"what is to be": "actions, outputs, messages to send",
    r"dear(?:er|est)?": "expensive",
    r"t(?:ake|akes|aking|ook) note": "record",
    r"(?:is|are|was|were|be|been|being) told": "receive, learn",
    r"at once": "immediately; at the same time",
    r"spare[sd]?|sparing": "avoid, save",
    r"the one door": "the only entry point",
    r"whom(?:ever|soever)?": "name the subject",
    r"(?<!there )(?:is|are|was|were) no (?!longer\b|more\b|less\b|larger\b)\w+": "is not a …",
    r"kn(?:ow|ows|ew) no|sa(?:y|ys|id) nothing of": "does not know a …, does not mention",
}
WORDS = re.compile(r"\b(?:" + "|".join(BANNED) + r")\b", re.IGNORECASE)
#: names in code, which a reader looks up, and terms of the RFCs on S-expressions and of cryptography
ALLOWED = re.compile(r"`[^`\n]*`|LENGTH:octets|collision-resistant|\b(?:sample|SELECT|INSERT)\b.*\boctets\b")
#: files and folders that are not clean yet; remove what you have cleaned
UNCLEAN: set[str] = set()


def test_the_words_are_found() -> None:
    found = "An octet is no byte; for ever; there is no way out of it, and it is no longer told to whom."
    assert [match.group() for match in WORDS.finditer(found)] == ["octet", "is no byte", "for ever", "way out", "whom"]


def documents() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def modules() -> list[Path]:
    found = (path for folder in ("src", "examples", "tests", "tools") for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if path != Path(__file__))


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what a person reads in a file, with the line: of a module its comments, docstrings and messages."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), start=1)
        return
    if not WORDS.search(text):
        # To read a module as a tree takes long.
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for number, line in enumerate(node.value.splitlines()):
                yield node.lineno + number, line


def is_clean(path: Path) -> bool:
    return not any(path.is_relative_to(ROOT / unclean) for unclean in UNCLEAN)


@pytest.mark.parametrize("paths", [documents(), modules()], ids=["documents", "modules"])
def test_banned_words_are_not_used(paths: list[Path]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in paths
        if is_clean(path)
        for number, line in prose(path)
        for match in WORDS.finditer(ALLOWED.sub("", line))
    ]
    assert found == []


def test_what_is_called_unclean_is_there() -> None:
    assert [unclean for unclean in UNCLEAN if not (ROOT / unclean).exists()] == []
