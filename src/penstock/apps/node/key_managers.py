"""The table `[keys]` of a node file: a key manager that runs with the broker, its log, and what secrets lie under."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from penstock.broker.keys.group import Refreshing
from penstock.broker.keys.log import KeyLog
from penstock.broker.limits import BrokerLimits
from penstock.codec.sexp import parse
from penstock.crypto.wrapping import Secret, parse_kek
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.fabric.nats_login import NatsLogin
from penstock.store.files.files import within
from penstock.store.files.key_files import KeyFolder, read_kek
from penstock.store.files.strict_tables import Strict
from penstock.trust.limits import KEY_BLOCKS, STAMP_PERIOD

_KEYS: Final = frozenset(
    ("log", "folder", "name", "copies", "kek", "replicas", "epoch_seconds", "epoch_blocks", "longest_seconds")
)
_ENVIRONMENT: Final = "env:"
_CREDENTIAL: Final = "credential:"
#: where systemd puts credentials
_CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"
_NAME_LENGTH: Final = 32
#: servers that a stream can be on
_MOST_COPIES: Final = 5


class LogKind(StrEnum):
    """Where a key manager keeps its log: in a folder, or in a stream of the NATS servers."""

    FILE = "file"
    NATS = "nats"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysFile:
    """A key manager, as a node file describes it. Times are in milliseconds, as limits are."""

    log: LogKind = LogKind.FILE
    #: of a log in a folder; without one, `keys` in the folder for state
    folder: str = ""
    #: of a log in a stream, which replicas share, and on how many servers it is
    name: str = "keys"
    copies: int = 1
    kek: str
    replicas: tuple[str, ...] = ()
    refreshing: Refreshing


def read_keys(file: Strict, table: Mapping[str, object], *, nats: bool, limits: BrokerLimits) -> KeysFile:
    """Read the table. Raises `MalformedError` (`node.unknown-key`, `node.missing`, `node.value`)."""
    file.known("`keys`", table, _KEYS)
    kind = file.text(_in("log"), table.get("log", LogKind.FILE))
    if kind not in tuple(LogKind):
        raise file.wrong(_in("log"), " or ".join(f"`{one}`" for one in LogKind))
    if kind == LogKind.NATS and not nats:
        raise MalformedError(file.missing, "a log of keys on NATS lacks `[nats]` with its servers", hint=file.help)
    name = file.text(_in("name"), table.get("name", "keys"))
    if not (name.isascii() and name.isalnum() and len(name) <= _NAME_LENGTH):
        raise file.wrong(_in("name"), f"at most {_NAME_LENGTH} letters and digits")
    return KeysFile(
        log=LogKind(kind),
        folder=file.text(_in("folder"), table["folder"]) if "folder" in table else "",
        name=name,
        copies=_whole(file, "copies", table.get("copies", 1), _MOST_COPIES),
        kek=file.text(_in("kek"), file.needed("`keys`", table, "kek")),
        replicas=file.texts(_in("replicas"), table.get("replicas", [])),
        refreshing=_refreshing(file, table, limits),
    )


def _refreshing(file: Strict, table: Mapping[str, object], limits: BrokerLimits) -> Refreshing:
    most = STAMP_PERIOD // 1000
    period = _whole(file, "epoch_seconds", table.get("epoch_seconds", limits.key_epoch // 1000), most)
    longest = _whole(file, "longest_seconds", table.get("longest_seconds", limits.key_longest // 1000), most)
    if longest < period:
        raise file.wrong(_in("longest_seconds"), "no less than `keys.epoch_seconds`")
    blocks = _whole(file, "epoch_blocks", table.get("epoch_blocks", limits.key_blocks), KEY_BLOCKS)
    return replace(Refreshing.by(limits), period=period * 1000, blocks=blocks, longest=longest * 1000)


def _in(name: str) -> str:
    return f"keys.{name}"


def _whole(file: Strict, name: str, value: object, most: int) -> int:
    if type(value) is not int or not 0 < value <= most:
        raise file.wrong(_in(name), f"a whole number from 1 to {most}")
    return value


def find_kek(word: str, folder: Path) -> Secret:
    """Return the key-encryption key that `kek` means: a file, a variable of the environment, or a credential.

    Raises as `read_kek`, and `FailedError` (`keys.no-kek`).
    """
    if word.startswith(_ENVIRONMENT):
        return _from_environment(word.removeprefix(_ENVIRONMENT))
    if word.startswith(_CREDENTIAL):
        given = os.environ.get(_CREDENTIALS)
        if given is None:
            raise FailedError(
                "keys.no-kek",
                "there are no credentials: this process was not started with any",
                hint="have the service manager load it, or name a file",
            )
        return read_kek(Path(given) / word.removeprefix(_CREDENTIAL))
    return read_kek(folder / word)


def _from_environment(name: str) -> Secret:
    text = os.environ.get(name)
    if text is None:
        raise FailedError("keys.no-kek", f"the variable `{name[:80]}` is not set", hint="set it, or name a file")
    with within(f"${name}"):
        stored = parse_kek(parse(text.encode("utf-8", "surrogateescape")))
    if not isinstance(stored, Secret):
        raise RefusedError(
            "keys.kek-passphrase",
            "this key-encryption key lies under a passphrase",
            hint="nobody can be asked here: give a key without one",
        )
    return stored


async def open_log(file: KeysFile, state: Path, folder: Path, nats: NatsLogin | None, prefix: str) -> KeyLog:
    """Open the log of a key manager. Raises, for one on NATS, as `NatsLog.open`."""
    if file.log is LogKind.FILE or nats is None:
        return KeyFolder(folder / file.folder if file.folder else state / "keys")
    from penstock.fabric.nats_log import NatsLog  # noqa: PLC0415  # nats-py is an extra

    return await NatsLog.open(nats, file.name, prefix=prefix, copies=file.copies)
