"""Hooks of the site's build: the page of public names, and pages that the navigation names with a `*`."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

import penstock

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

MODULES = ("penstock", "penstock.errors", "penstock.selector", "penstock.spark", "penstock.testing")


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Replace patterns in the navigation by the pages that match them, and show the version."""
    config.copyright = f"Penstock {penstock.__version__}"
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def _expanded(nav: object, docs: Path) -> list[object]:
    """Return a level of the navigation with its patterns replaced."""
    found: list[object] = []
    for entry in nav if isinstance(nav, list) else []:
        if isinstance(entry, dict):
            found.append({title: _expanded(to, docs) if isinstance(to, list) else to for title, to in entry.items()})
        elif "*" in entry:
            found += [str(page.relative_to(docs)) for page in sorted(docs.glob(entry))]
        else:
            found.append(entry)
    return found


def on_files(files: Files, config: "MkDocsConfig") -> Files:
    """Add the page of public names, which mkdocstrings fills from the docstrings."""
    parts = ["# Public names\n\nEvery name that [the public API](api.md) exports, from its docstring.\n"]
    shown: set[object] = set()
    for module in map(importlib.import_module, MODULES):
        names = [name for name in module.__all__ if id(getattr(module, name)) not in shown]
        shown |= {id(getattr(module, name)) for name in names}
        parts += [f"## `{module.__name__}`\n", *(f"::: {module.__name__}.{name}\n" for name in names)]
    files.append(File.generated(config, "reference/names.md", content="\n".join(parts)))
    return files
