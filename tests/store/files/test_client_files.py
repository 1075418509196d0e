"""What a program loads from files to connect."""

from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock
from penstock.apps.cli.main import cli
from penstock.codec.sexp import canonical
from penstock.errors import PenstockError
from penstock.store.files.client_files import OmittedArguments
from penstock.store.files.contexts import ConnectionContext, ContextFile, contexts_path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheap_passphrases: None) -> Path:  # so
    """A folder with what the command line writes: keys, a type, and two certificates."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "certs").mkdir()
    (tmp_path / "word").write_text("open sesame\n")
    for line in (
        "key new grid.key --name grid",
        "key new city.key --name city --passphrase-file word",
        "type new org.grid.Reading --key grid.key --attribute power:float --out reading.type",
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


# What a client leaves out.

CONTEXT = ConnectionContext(
    broker="penstock://127.0.0.1:1",
    broker_principal="ed25519:b",
    network="ed25519:a/demo",
    key="/demo/reader.key",
    credentials=(__file__,),  # a file that exists
    names="/demo/names.toml",
)


@pytest.fixture
def in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a context in use."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_NAMES", raising=False)
    ContextFile(contexts_path(), "demo", {"demo": CONTEXT}).save()


@pytest.mark.usefixtures("in_use")
def test_a_context_has_everything() -> None:
    omitted = OmittedArguments()
    assert [omitted.find(name) for name in ("url", "network", "key")] == [CONTEXT.broker, CONTEXT.network, CONTEXT.key]
    assert (omitted.credential_files(), omitted.names_file()) == (CONTEXT.credentials, CONTEXT.names)
    assert omitted.broker_principal() == CONTEXT.broker_principal


@pytest.mark.usefixtures("in_use")
def test_certificates_go_with_their_key_and_an_identity_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    other_key = OmittedArguments()
    other_key.find("url")
    assert (other_key.credential_files(), other_key.broker_principal()) == ((), CONTEXT.broker_principal)
    other_broker = OmittedArguments()
    other_broker.find("key")
    assert (other_broker.credential_files(), other_broker.broker_principal()) == (CONTEXT.credentials, None)
    monkeypatch.setenv("PENSTOCK_KEY", "mine.key")
    of_environment = OmittedArguments()
    assert (of_environment.find("key"), of_environment.find("url")) == ("mine.key", CONTEXT.broker)
    assert of_environment.credential_files() == ()


@pytest.mark.usefixtures("in_use")
def test_the_environment_comes_before_the_context_in_use_and_after_a_chosen_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("KEY", "CREDENTIALS", "NAMES"):
        monkeypatch.setenv(f"PENSTOCK_{name}", name.lower())
    found, chosen = OmittedArguments(), OmittedArguments("demo")
    assert (found.find("url"), found.find("key"), found.credential_files(), found.names_file()) == (
        *(CONTEXT.broker, "key"),
        *(("credentials",), None),
    )
    assert (chosen.find("key"), chosen.credential_files(), chosen.names_file()) == (
        *(CONTEXT.key, CONTEXT.credentials),
        CONTEXT.names,
    )


@pytest.mark.usefixtures("in_use")
def test_a_context_is_not_read_if_the_environment_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts_path().write_text("not TOML at all")
    for name in ("BROKER", "NETWORK", "KEY"):
        monkeypatch.setenv(f"PENSTOCK_{name}", name.lower())
    omitted = OmittedArguments()
    assert [omitted.find(name) for name in ("url", "network", "key")] == ["broker", "network", "key"]
    assert (omitted.credential_files(), omitted.names_file(), omitted.broker_principal()) == ((), None, None)
