"""What a stranger wrote never begins a line of its own, and never drives the terminal, whichever field it stands in."""

from pathlib import Path

import pytest
from tests.apps.conftest import Shell

BAD = "a\n✓ FORGED\x1b[2J\u202e\u2028\r"
WIDE = ("--type-file", "plate.type", "--right", "subscribe")
FIELDS: dict[str, tuple[str, ...]] = {
    "comment": ("issue", "--to", "met", *WIDE, "--comment", BAD),
    "forced value": ("issue", "--to", "met", *WIDE, "--set", f"plate={BAD}"),
    "selector": ("issue", "--to", "met", *WIDE, "--where", f"plate = '{BAD}'"),
    "condition": ("issue", "--to", "met", *WIDE, "--when", f"hour < 24 OR '{BAD}' = 'b'"),
    "tag": ("issue", "--to", "met", "--tag", '(say "a\\nx FORGED\\x1b[2J\\r")'),
    "name of another": ("issue", "--to-name", BAD, *WIDE),
    "name": ("issue-name", BAD, "--to", "met"),
}


@pytest.fixture
def files(penstock: Shell) -> Shell:
    for name in ("pito", "met"):
        penstock.ok("key", "new", f"{name}.key", "--name", name)
    attributes = ("plate:string", f"zone:string:{BAD}|b")
    given = [part for attribute in attributes for part in ("--attribute", attribute)]
    penstock.ok("type", "new", "uk.Plate", "--key", "pito.key", *given, "--out", "plate.type")
    return penstock


def check(text: str) -> None:
    for line in text.split("\n"):
        assert line.isprintable(), line
        assert not line.lstrip(" └├│─").startswith(("✓ FORGED", "x FORGED", "FORGED")), line


@pytest.mark.parametrize("field", FIELDS)
def test_one_field_is_one_line(files: Shell, field: str) -> None:
    verb, *more = FIELDS[field]
    summary = files.ok("cert", verb, *more, "--key", "pito.key", "--out", "x.cert")
    explain = ("explain", "--type-file", "plate.type", "--principal", "met", "--right", "subscribe")
    for ran in (
        summary,
        files.ok("cert", "show", "x.cert"),
        files.ok("cert", "show", "x.cert", "x.cert", "--long"),
        files.ok("cert", "verify", "x.cert"),
        files.ok("cert", "show", "x.cert", "-o", "sexp"),
        files.ok("sexp", "show", "x.cert"),
        files(*explain, "--credential", "x.cert"),
        files("explain", "--type", "pito/uk.Plate@0", *explain[3:], "--credential", "x.cert"),
    ):
        check(ran.out)
        check(ran.err)


def test_values_of_a_type_selectors_and_file_names(files: Shell) -> None:
    for line in (
        ("type", "show", "plate.type"),
        ("selector", "check", f"a = '{BAD}'"),
        ("selector", "satisfiable", f"a = '{BAD}'", "--attribute", "a:string"),
        ("cert", "show", BAD),
        ("key", "show", BAD),
        ("key", "new", f"{BAD}.key"),
        ("explain", "--principal", BAD, "--right", BAD),
    ):
        ran = files(*line)
        check(ran.out)
        check(ran.err)
    assert Path(f"{BAD}.key").exists()
    check(files.ok("key", "list").out)
