"""Contexts in the user's configuration folder: written for their owner alone, and read strictly."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FailedError, PenstockError
from penstock.store.files import files
from penstock.store.files.contexts import (
    ConnectionContext,
    ContextFile,
    changing_contexts,
    check_context_name,
    contexts_path,
    load_context,
)

DEMO = ConnectionContext(broker="penstock://127.0.0.1:7600", network="ed25519:x/demo", key="/demo/reader.key")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty configuration folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def refused(code: str) -> None:
    with pytest.raises(PenstockError) as caught:
        load_context()
    assert caught.value.code == code


def write(text: str) -> None:
    contexts_path().parent.mkdir(exist_ok=True)
    contexts_path().write_text(text)


def test_without_a_file_there_are_none(config: Path) -> None:
    assert ContextFile.load() == ContextFile(config / "penstock" / "contexts.toml")
    assert load_context() == ConnectionContext()


def test_the_folder_follows_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    for folder in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", folder)
        assert contexts_path() == Path("/home/ada/.config/penstock/contexts.toml")


@pytest.mark.usefixtures("config")
def test_only_the_owner_can_read_the_file() -> None:
    before = os.umask(0)
    try:
        ContextFile(contexts_path(), "demo", {"demo": DEMO}).save()
    finally:
        os.umask(before)
    assert stat.S_IMODE(contexts_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(contexts_path().parent.stat().st_mode) == 0o700


@pytest.mark.usefixtures("config")
def test_which_context_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ConnectionContext(broker="penstock://127.0.0.1:7601")
    ContextFile(contexts_path(), "demo", {"demo": DEMO, "other": other}).save()
    assert load_context() == DEMO
    assert load_context("other") == other
    monkeypatch.setenv("PENSTOCK_CONTEXT", "other")
    assert load_context() == other
    assert load_context("demo") == DEMO
    # An empty name means none at all.
    assert load_context("") == ConnectionContext()
    monkeypatch.setenv("PENSTOCK_CONTEXT", "")
    assert load_context() == ConnectionContext()
    monkeypatch.setenv("PENSTOCK_CONTEXT", "moon")
    refused("context.unknown")


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    "text",
    [
        "current = 3",
        "curent = 'demo'",
        "contexts = []",
        "[contexts.demo]\nbrokr = 'penstock://127.0.0.1:7600'",
        "[contexts.demo]\nkey = 3",
        "[contexts.demo]\nkey = ''",
        "[contexts.demo]\ncredentials = 'a.cert'",
        "[contexts",
    ],
)
def test_a_malformed_file_is_refused(text: str) -> None:
    write(text)
    refused("context.malformed")


@pytest.mark.usefixtures("config")
def test_a_context_in_use_that_is_gone_is_refused() -> None:
    write("current = 'gone'")
    refused("context.unknown")


@pytest.mark.parametrize("name", ["", "a\nb", "a" * 65])
def test_names_that_a_context_cannot_have(name: str) -> None:
    with pytest.raises(PenstockError) as caught:
        check_context_name(name)
    assert caught.value.code == "context.malformed"


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.builds(ConnectionContext, broker=st.text(), key=st.text(), credentials=st.lists(st.text()).map(tuple)),
        max_size=3,
    )
)
def test_what_was_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, contexts: dict[str, ConnectionContext]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        made = ContextFile(contexts_path(), next(iter(contexts), ""), contexts)
        texts = [*contexts, *(part for one in contexts.values() for part in (one.broker, one.key, *one.credentials))]
        if all(map(str.isprintable, texts)):
            made.save()
            assert ContextFile.load() == made
        else:
            with pytest.raises(PenstockError):
                made.save()
            assert not contexts_path().exists()


@pytest.mark.usefixtures("config")
def test_programs_at_the_same_time_lose_nothing() -> None:
    def add(number: int) -> None:
        with changing_contexts() as stored:
            made = ConnectionContext(broker=f"penstock://127.0.0.1:{7600 + number}")
            replace(stored, contexts={**stored.contexts, f"c{number}": made}).save()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(12)))
    assert set(ContextFile.load().contexts) == {f"c{number}" for number in range(12)}


@pytest.mark.usefixtures("config")
def test_a_change_waits_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "WAIT", 0.0)
    with changing_contexts(), pytest.raises(FailedError) as caught, changing_contexts():
        pass
    assert caught.value.code == "context.locked"
    # Nothing is locked where nothing is written.
    with changing_contexts(), changing_contexts(dry_run=True):
        pass
