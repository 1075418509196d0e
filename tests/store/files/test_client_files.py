"""What a program loads from files to connect."""

from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock
from penstock.apps.cli.main import cli
from penstock.codec.sexp import canonical
from penstock.errors import PenstockError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheap_passphrases: None) -> Path:  # so
    """A folder with what the command line writes: keys, a type, and two certificates."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "certs").mkdir()
    (tmp_path / "word").write_text("open sesame\n")
    for line in (
        "key new grid.key --name grid",
        "key new city.key --name city --passphrase-file word",
        "type define org.grid.Reading --key grid.key --attribute power:float --out reading.type",
        "cert issue --key grid.key --to city --type-file reading.type --right subscribe --out certs/a.cert",
        "cert issue --key grid.key --to city --type-file reading.type --right publish --out certs/b.cert",
    ):
        done = CliRunner().invoke(cli, line.split())
        assert done.exit_code == 0, (line, done.output)
    (tmp_path / "grid.pub").write_bytes(canonical(penstock.load_key("grid.key").public.to_sexp()))
    return tmp_path


def refused(code: str, path: Path, *word: str) -> None:
    with pytest.raises(PenstockError) as caught:
        penstock.load_key(path, *word)
    assert caught.value.code == code
    assert path.name in caught.value.message


def test_keys(folder: Path) -> None:
    grid = penstock.load_key(folder / "grid.key")
    assert grid == penstock.load_key(str(folder / "grid.key"))
    assert penstock.load_key("city.key", "open sesame") == penstock.load_key("city.key", b"open sesame")
    refused("key.passphrase", folder / "city.key")
    refused("key.passphrase", folder / "city.key", "open barley")
    refused("key.public-only", folder / "grid.pub")
    refused("file.missing", folder / "moon.key")
    (folder / "grid.key").chmod(0o644)
    refused("file.exposed", folder / "grid.key")


def test_credentials_of_files_and_folders(folder: Path) -> None:
    first = penstock.load_credentials(folder / "certs" / "a.cert")
    both = penstock.load_credentials(folder / "certs")
    assert (len(first), len(both)) == (1, 2)
    assert set(first) < set(both)
    assert penstock.load_credentials("certs/a.cert", "certs/b.cert") == both
    with pytest.raises(PenstockError):
        penstock.load_credentials("grid.key")


def test_types(folder: Path) -> None:
    found = penstock.load_type(folder / "reading.type")
    assert found.definition.name.owner == penstock.load_key("grid.key").principal
    assert found.definition.name.name == "org.grid.Reading"
