"""What MkDocs asks while it builds the site: the page with all public names of the Python packages."""

import importlib
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

MODULES = ("penstock", "penstock.errors", "penstock.selector", "penstock.spark", "penstock.testing")


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
