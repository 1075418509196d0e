"""Domain files: what they say, and what is wrong with them."""

from pathlib import Path

import pytest
from tests.guard.london import NOW
from tests.trust.kit import refused

from penstock.apps.acs.config import EXAMPLE, load_domain, read_domain_file

LEAST = 'name = "grid"\nkey = "grid.key"\nlisten = "127.0.0.1:0"\nstore = "sqlite:grid.db"\n'


def test_the_example_is_a_domain_file() -> None:
    file = read_domain_file(EXAMPLE)
    assert (file.name, file.store, file.administrators) == ("grid", "sqlite:grid.db", ("alice",))
    # What is commented out can be written too, before the first table.
    whole = "\n".join(line.removeprefix("# ") for line in EXAMPLE.split("\n[names]")[0].splitlines() if " = " in line)
    lines = [line for line in whole.splitlines() if not line.startswith("signer")]
    assert read_domain_file("\n".join(lines)).broker


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("name = ", "acs.file-syntax"),
        ("", "acs.file-missing"),
        (LEAST.replace('name = "grid"', ""), "acs.file-missing"),
        (LEAST + "port = 1", "acs.file-unknown-key"),
        (LEAST + 'tls_cert = "x"', "acs.file-missing"),
        (LEAST + 'broker = "penstock://127.0.0.1:1"', "acs.file-missing"),
        (LEAST + "signer = []", "acs.file-value"),
        (LEAST + "administrators = 1", "acs.file-value"),
        (LEAST.replace("127.0.0.1:0", "here"), "acs.file-value"),
        (LEAST + "[names]\n'a/b' = 'x'", "petname.malformed"),
    ],
)
def test_what_is_wrong(text: str, code: str) -> None:
    with refused(code):
        read_domain_file(text)


def test_files_are_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "domain.toml"
    path.write_text(LEAST)
    loaded = load_domain(str(path), NOW)
    assert loaded.store == f"sqlite:{tmp_path}/grid.db"
    assert loaded.key_file == f"{tmp_path}/grid.key"
    for more, code in (
        ('administrators = ["nobody"]', "acs.file-principal"),
        ('types = ["*.type"]', "acs.file-no-match"),
        ('network = "grid"\nbroker = "penstock://127.0.0.1:1"', "acs.file-value"),
    ):
        path.write_text(LEAST + more)
        with refused(code):
            load_domain(str(path), NOW)


def test_programs_and_their_arguments_are_not_shown() -> None:
    file = read_domain_file(LEAST + 'signer = ["sign", "--pin", "1234"]')
    assert file.signer[-1] == "1234"
    assert "1234" not in repr(file)
