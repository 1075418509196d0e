"""Limits of node files: code reads each, tests set each, only few places make them, and none reads a default's field.

Tests of what a limit changes stand beside those of the code that it bounds, and in `tests/broker/test_limits.py`.
"""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import penstock
from penstock.apps.node.config import read_node_file
from penstock.apps.node.limits import FIXED, SETTABLE, NodeLimits, node_limits
from penstock.errors import MalformedError

SOURCE = Path(penstock.__file__).parent
LEAST = 'network = "a/b"\nkey = "k"\nlisten = "127.0.0.1:1"\n'
#: who makes limits that a node file sets: the reader of node files, clients, decision points, and what tests use
MAKERS = (
    "apps/node/limits.py",
    "apps/node/dev_network.py",
    "apps/answer_links.py",
    "broker/client/client.py",
    "simulate/",
    "testing/",
)
TEXTS = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
READS = {name for text in TEXTS.values() for name in re.findall(r"limits\.(\w+)", text)}
#: limits that are given to `QuarantineFolder`, whose tests give it others
OF_FOLDERS = {"quarantine_blocks", "quarantine_bytes"}
PAGE = Path(__file__).parents[3] / "docs/reference/node-file.md"


def found_in(pattern: str) -> dict[str, list[str]]:
    """Return the lines of the source, without doctests, that have something like this, by file."""
    line = re.compile(rf"^(?! *>>>).*(?:{pattern}).*$", re.MULTILINE)
    found = ((file, line.findall(text)) for file, text in TEXTS.items())
    return {file: matches for file, matches in found if matches}


def value(limits: NodeLimits, name: str) -> object:
    return getattr(limits.broker if hasattr(limits.broker, name) else limits, name)


@pytest.mark.parametrize("name", SETTABLE)
def test_each_is_set_by_a_node_file_and_read_by_code(name: str) -> None:
    before = value(NodeLimits(), name)
    assert before != 1
    assert value(read_node_file(f"{LEAST}[limits]\n{name} = 1\n").limits, name) == 1
    assert name in READS


def test_each_is_set_by_a_test_of_what_it_changes() -> None:
    texts = [path.read_text() for path in Path(__file__).parents[2].rglob("*.py")]
    given = {name for text in texts for name in re.findall(r"\b(\w+)=", text)}
    assert [name for name in SETTABLE if name not in given | OF_FOLDERS] == []


def test_nothing_else_makes_them() -> None:
    found = found_in(r"\b(?:BrokerLimits|NodeLimits)\(|=(?:BrokerLimits|NodeLimits)\b")
    assert len(found) >= len(MAKERS)
    assert [file for file in found if not file.startswith(MAKERS)] == []


def test_no_code_reads_a_field_of_a_default_instance() -> None:
    assert found_in(r"\b[A-Z_]+_LIMITS\.|(?:^ *|\.)\w+ = [A-Z_]+_LIMITS$") == {}


@pytest.mark.parametrize("name", sorted(FIXED))
def test_others_cannot_be_set(name: str) -> None:
    with pytest.raises(MalformedError) as error:
        read_node_file(f"{LEAST}[limits]\n{name} = 1\n")
    assert error.value.code == "node.fixed-limit"


@pytest.mark.parametrize("name", [name for name, most in SETTABLE.items() if most < 1 << 40])
def test_what_other_brokers_refuse_cannot_be_raised(name: str) -> None:
    assert value(node_limits({name: SETTABLE[name]}), name) == value(NodeLimits(), name)
    with pytest.raises(MalformedError) as error:
        read_node_file(f"{LEAST}[limits]\n{name} = {SETTABLE[name] + 1}\n")
    assert error.value.code == "node.value"


def test_the_reference_has_all_of_them_with_their_defaults() -> None:
    section = PAGE.read_text().partition("\n## Limits\n")[2].partition("\n## ")[0]
    told: dict[str, str] = {}
    for names, values in re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", section, re.MULTILINE):
        told |= dict(zip(re.findall(r"`(\w+)`", names), values.split("; "), strict=True))
    shared = {name for name, most in SETTABLE.items() if most < 1 << 40}
    assert told == {name: f"{value(NodeLimits(), name):,}" + "†" * (name in shared) for name in SETTABLE}


def test_no_name_has_two_meanings() -> None:
    own = {one.name for one in fields(NodeLimits)}
    assert not own & {one.name for one in fields(type(NodeLimits().broker))}
