"""Plant a bug: change one line of a function of production code."""

import importlib
import inspect
import textwrap
from functools import reduce
from typing import Any

import pytest


def plant(patch: pytest.MonkeyPatch, target: str, line: str, instead: str) -> None:
    """Write a line of a function (`module:Class.method`) in another way. It must be there once."""
    module_name, _, path = target.partition(":")
    module = importlib.import_module(module_name)
    *owners, name = path.split(".")
    owner: Any = reduce(getattr, owners, module)
    function = inspect.unwrap(getattr(owner, name))
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    places = [place for place, found in enumerate(lines) if found.strip() == line]
    assert len(places) == 1, f"{target} does not have this line once: {line}"
    lines[places[0]] = lines[places[0]].replace(line, instead)
    made: dict[str, Any] = {}
    code = compile("\n".join(lines), inspect.getfile(function), "exec", dont_inherit=True)
    exec(code, vars(module), made)  # noqa: S102  # the code of the function, with one line changed
    patch.setattr(owner, name, made[name])
