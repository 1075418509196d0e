"""Every function that the page about the life of an event names is there."""

import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "life-of-an-event.md"
NAMES = sorted(set(re.findall(r"`(penstock(?:\.\w+)+)`", PAGE.read_text("utf-8"))))


def find(name: str) -> object:
    """Return what a dotted name stands for: a module, or something in one. Raises `AttributeError`."""
    path, rest = name, list[str]()
    while True:
        try:
            found: object = import_module(path)
        except ModuleNotFoundError:
            path, _, last = path.rpartition(".")
            rest.insert(0, last)
            continue
        for word in rest:
            found = getattr(found, word)
        return found


@pytest.mark.parametrize("name", NAMES)
def test_it_exists(name: str) -> None:
    assert find(name) is not None


def test_the_path_is_on_the_page() -> None:
    assert len(NAMES) > 25
    for wrong in ("penstock.broker.core.event_path.EventPath.gone", "penstock.broker.core.nowhere.EventPath"):
        with pytest.raises(AttributeError):
            find(wrong)


def test_the_files_on_the_page_exist() -> None:
    for file in re.findall(r"`(penstock/[\w/]+\.py)`", PAGE.read_text("utf-8")):
        assert (PAGE.parents[2] / "src" / file).is_file()
