"""Connection contexts: what a client connects with, stored under a name in the user's configuration folder.

    current = "demo-reader"

    [contexts.demo-reader]
    broker = "penstock://127.0.0.1:7600"
    network = "ed25519:…/demo"
    key = "/home/ada/demo/keys/reader.key"

The file contains names and paths, and never a key. Only its owner can read it.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from penstock.errors import FailedError, MalformedError, RefusedError, did_you_mean
from penstock.store.files.files import locked, read_file, reason, replace_file, within
from penstock.store.files.strict_tables import Strict

VARIABLE: Final = "PENSTOCK_CONTEXT"
_CODE: Final = "context.malformed"
_FILE: Final = Strict(
    syntax=_CODE, unknown=_CODE, missing=_CODE, value=_CODE, zone=_CODE, help="`penstock context add` writes this file"
)
_LENGTH: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionContext:
    """What a client connects with. Empty fields are not set. Paths are absolute, and principals are written in full."""

    broker: str = ""
    broker_principal: str = ""
    network: str = ""
    key: str = ""
    credentials: tuple[str, ...] = ()
    names: str = ""
    type_file: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return the fields that are set, as plain data."""
        found = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found if value}


@dataclass(frozen=True, slots=True)
class ContextFile:
    """All contexts of a user, and the name of the one in use (empty: none)."""

    path: Path
    current: str = ""
    contexts: Mapping[str, ConnectionContext] = field(default_factory=dict)

    @classmethod
    def load(cls) -> "ContextFile":
        """Read the user's contexts; there are none without a file.

        Raises `MalformedError` (`context.malformed`) and `FailedError` (`file.*`).
        """
        path = contexts_path()
        if not path.is_file():
            return cls(path)
        with within(str(path)):
            table = _FILE.parse(read_file(str(path)))
            _FILE.known("the file", table, ("current", "contexts"))
            written = _FILE.table("contexts", table.get("contexts", {}))
            found = {name: _read(name, _FILE.table(name, one)) for name, one in written.items()}
            return cls(path, _FILE.text("current", table["current"]) if "current" in table else "", found)

    def get(self, name: str) -> ConnectionContext:
        """Return a context. Raises `RefusedError` (`context.unknown`)."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise RefusedError(
                "context.unknown",
                f"there is no context `{name[:80]}`",
                hint=did_you_mean(
                    name, self.contexts, f"the contexts are: {known}. Add one with `penstock context add`"
                ),
            )
        return self.contexts[name]

    def save(self) -> None:
        """Replace the file. Raises `FailedError` (`file.unwritable`) and `MalformedError` (`context.malformed`)."""
        lines = [f"current = {_quoted(self.current)}"] if self.current else []
        for name, one in self.contexts.items():
            lines += ["", f"[contexts.{_quoted(name)}]"]
            for key, value in one.as_dict().items():
                written = f"[{', '.join(map(_quoted, value))}]" if isinstance(value, list) else _quoted(str(value))
                lines.append(f"{key} = {written}")
        _make_folder(self.path.parent)
        replace_file(self.path, "\n".join([*lines, ""]).lstrip("\n").encode())


@contextmanager
def changing_contexts(*, dry_run: bool = False) -> Iterator[ContextFile]:
    """Load the contexts for a change, and hold their lock until it is saved: no other program's change is lost.

    Raises `FailedError` (`context.locked`, `file.unwritable`) and as `ContextFile.load`.
    """
    path = contexts_path()
    if dry_run:
        yield ContextFile.load()
        return
    _make_folder(path.parent)
    with locked(path, "context.locked"):
        yield ContextFile.load()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FailedError("file.unwritable", f"`{folder}` cannot be written: {reason(error)}") from error


def contexts_path() -> Path:
    """Return the user's file of contexts, in `$XDG_CONFIG_HOME` or `~/.config`."""
    # The XDG specification says that relative paths are ignored.
    chosen = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    folder = chosen if chosen.is_absolute() else Path.home() / ".config"
    return folder / "penstock" / "contexts.toml"


def context_in_use(chosen: str | None = None) -> str:
    """Return the name of the chosen context, of that in `$PENSTOCK_CONTEXT`, or of the one in use; empty for none.

    Raises as `ContextFile.load`.
    """
    name = os.environ.get(VARIABLE) if chosen is None else chosen
    return ContextFile.load().current if name is None else name


def load_context(chosen: str | None = None) -> ConnectionContext:
    """Return the context that `context_in_use` names. It is empty without any.

    An empty name chooses no context at all. Raises as `ContextFile.load` and `ContextFile.get`.
    """
    name = context_in_use(chosen)
    return ContextFile.load().get(name) if name else ConnectionContext()


def check_context_name(name: str) -> None:
    """Raise `MalformedError` (`context.malformed`) if a context cannot have this name."""
    if not name or not name.isprintable() or len(name) > _LENGTH:
        raise MalformedError(
            _CODE, f"`{name[:80]}` cannot be the name of a context", hint=f"use 1 to {_LENGTH} printable characters"
        )


def _read(name: str, table: dict[str, object]) -> ConnectionContext:
    _FILE.known(f"context `{name}`", table, (one.name for one in fields(ConnectionContext)))
    credentials = _FILE.texts("credentials", table.pop("credentials", []))
    return ConnectionContext(credentials=credentials, **{key: _FILE.text(key, value) for key, value in table.items()})


def _quoted(text: str) -> str:
    """Return a TOML string. A JSON string is one if it contains no character that TOML forbids."""
    if not text.isprintable():
        raise MalformedError(_CODE, "a context contains printable text only", hint="choose other names and paths")
    return json.dumps(text, ensure_ascii=False)
