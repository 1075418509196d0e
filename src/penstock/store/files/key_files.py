"""Files with keys: key rings, key-encryption keys, and the log of a key manager.

A key ring holds epoch keys by scope and epoch, wrapped under a key-encryption key:

    file     "penstock-key-ring-1" and a line feed, id of the key-encryption key (8), salt (16), box
    box      the scopes, wrapped (AES-256-GCM, `wrapping`); everything before it is authenticated too
    scope    length (2), name, number of keys (4), and for each: epoch (8), key (32)

Scopes and epochs are inside the box: keys are bound to them, no key can be removed unnoticed, and nobody without the
key-encryption key learns what the ring holds. A file is replaced atomically, under a new salt. A file does not show how
recent it is: whoever can write it can put an older one back.
"""

import asyncio
import fcntl
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from struct import error as _StructError  # noqa: N812  # it is an exception
from typing import Final

from penstock.codec.sexp import advanced, parse
from penstock.crypto.passphrases import RandomBytes
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.wrapping import (
    ID_BYTES,
    SALT_BYTES,
    SECRET_BYTES,
    ProtectedKek,
    Secret,
    StoredKek,
    kek_id,
    kek_to_sexp,
    parse_kek,
    unwrap,
    wrap,
)
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.store.files.files import (
    check_secret,
    create_file,
    new_file,
    read_file,
    reason,
    replace_file,
    sync_folder,
    within,
)
from penstock.store.limits import STORE_LIMITS, StoreLimits

MAGIC: Final = b"penstock-key-ring-1\n"
"""The first bytes of every key ring."""
_HEAD: Final = len(MAGIC) + ID_BYTES
_CONTEXT: Final = b"ring"
_NAME: Final = Struct(">H")
_COUNT: Final = Struct(">I")
_KEY: Final = Struct(f">Q{SECRET_BYTES}s")


def read_key_ring(path: Path, kek: Secret, *, limits: StoreLimits = STORE_LIMITS) -> KeyRing:
    """Read a key ring.

    Raises `FailedError` and `LimitError` (codes of `read_file`), `MalformedError` (`keys.ring`) if it is not a key ring
    of this version, and `RefusedError`: `keys.wrong-kek` for one under another key-encryption key, `keys.unopened` for
    one that was changed or cut.
    """
    data = read_file(str(path), limits.key_ring_bytes)
    with within(str(path)):
        return decode_key_ring(data, kek)


def write_key_ring(path: Path, ring: KeyRing, kek: Secret, random: RandomBytes) -> None:
    """Replace a key ring file atomically. Raises `FailedError` (`file.unwritable`)."""
    replace_file(path, encode_key_ring(ring, kek, random))


def encode_key_ring(ring: KeyRing, kek: Secret, random: RandomBytes) -> bytes:
    """Return the bytes of a key ring."""
    head, salt = MAGIC + kek_id(kek), random(SALT_BYTES)
    return head + salt + wrap(kek, _write(ring), salt, _CONTEXT, head)


def decode_key_ring(data: bytes, kek: Secret) -> KeyRing:
    """Decode a key ring. Raises what `read_key_ring` raises."""
    head, salt, box = data[:_HEAD], data[_HEAD : _HEAD + SALT_BYTES], data[_HEAD + SALT_BYTES :]
    if not head.startswith(MAGIC) or not box:
        raise MalformedError("keys.ring", "not a key ring, or one of another version", hint="check which file it is")
    if head != MAGIC + kek_id(kek):
        raise RefusedError(
            "keys.wrong-kek",
            "this key ring is encrypted with another key-encryption key",
            hint="give the one that it was written with: `penstock key show` tells of both files which it is",
        )
    ring = KeyRing()
    try:
        content = unwrap(kek, box, salt, _CONTEXT, head)
    except RefusedError as error:
        error.hint = "the key ring was changed or cut; take a copy of it, or get the keys again"
        raise
    for scope, epoch, key in _read(content):
        ring.put(scope, epoch, key)
    return ring


def kek_of(data: bytes) -> bytes | None:
    """Return the id of the key that a key ring is encrypted with; None if the bytes are not a key ring."""
    return data[len(MAGIC) : _HEAD] if data.startswith(MAGIC) and len(data) > _HEAD else None


def _write(ring: KeyRing) -> bytes:
    held: dict[str, list[bytes]] = defaultdict(list)
    for scope, epoch, key in ring.items():
        held[scope].append(_KEY.pack(epoch, key.expose()))
    parts: list[bytes] = []
    for scope, keys in sorted(held.items()):
        name = scope.encode()
        parts += [_NAME.pack(len(name)), name, _COUNT.pack(len(keys)), *sorted(keys)]
    return b"".join(parts)


def _read(content: bytes) -> Iterator[tuple[str, int, Secret]]:
    """Parse the unwrapped data. Penstock wrote it: any other form was written by another program."""
    place = 0
    try:
        while place < len(content):
            start = place + _NAME.size
            end = start + _NAME.unpack_from(content, place)[0]
            scope = content[start:end].decode()
            place = end + _COUNT.size
            for _ in range(_COUNT.unpack_from(content, end)[0]):
                epoch, key = _KEY.unpack_from(content, place)
                place += _KEY.size
                yield scope, epoch, Secret(key)
    except (_StructError, UnicodeDecodeError):
        raise MalformedError("keys.ring", "the content of this key ring is not a key ring") from None


# ----------------------------------------------------------------------------------------------------------------------
# Files of key-encryption keys: readable by their owner only, written once, and read by nodes, commands and jobs.


def read_kek(path: Path, passphrase: bytes | None = None) -> Secret:
    """Read a key-encryption key, with its passphrase if it has one.

    Raises `FailedError`, `MalformedError` (`keys.kek` and codes of S-expressions and key files), `RefusedError`
    (`file.exposed`, `key.passphrase`; `keys.kek-passphrase` if none was given).
    """
    stored = read_stored_kek(path)
    with within(str(path)):
        if isinstance(stored, Secret):
            return stored
        if passphrase is None:
            raise RefusedError(
                "keys.kek-passphrase",
                "this key-encryption key has a passphrase",
                hint="nobody can be asked here: give the passphrase, or a key without one",
            )
        return stored.open(passphrase)


def read_stored_kek(path: Path) -> StoredKek:
    """Read a file of either form. Raises what `read_kek` raises, except about passphrases."""
    check_secret(path)
    try:
        data = read_file(str(path))
    except FailedError as error:
        if error.code == "file.missing":
            error.hint = "check the path; `penstock sealing new-kek` makes a key-encryption key"
        raise
    with within(str(path)):
        if data.startswith(MAGIC):
            raise MalformedError(
                "keys.kek",
                "this is a key ring, not the key-encryption key that encrypts it",
                hint="give the ring where keys are asked for, and here what `penstock sealing new-kek` made",
            )
        return parse_kek(parse(data))


def create_kek(path: Path, kek: StoredKek) -> None:
    """Create a key-encryption key file, which must not exist yet: data under a lost key is lost.

    Raises `RefusedError` (`file.exists`) and `FailedError` (`file.unwritable`).
    """
    value = kek.to_sexp() if isinstance(kek, ProtectedKek) else kek_to_sexp(kek)
    create_file(path, advanced(value).encode() + b"\n")


_SUFFIX: Final = ".record"
_DIGITS: Final = 16
_LOCK: Final = "lock"
_NEW: Final = ".new"


class KeyFolder:
    """A key manager's log: a folder with one file per record, each complete and safe on the disk.

    A record is written under a temporary name, synced, and then linked to its own name. The system does that
    atomically and once: of two processes that write to the same place, one is refused. Temporary files that a crash
    left behind are ignored and removed. A lock, which ends with its process, separates writers from those who forget.

    Processes of one machine can share the folder. Only its owner can read it. File access runs in a thread. Raises
    `FailedError` (`keys.log-folder`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record if the log has `number` records before it; otherwise write nothing and return False."""
        return await asyncio.to_thread(self._append, number, record)

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records from a number on, or from the first one that still exists."""
        return await asyncio.to_thread(self._read, number)

    async def forget(self, number: int) -> None:
        """Delete all records before a number."""
        await asyncio.to_thread(self._forget, number)

    async def close(self) -> None:
        """Do nothing: nothing is open between two calls."""

    def _append(self, number: int, record: bytes) -> bool:
        with self._failing(), self._locked():
            if number != self._end():
                return False
            new = self.path / _NEW
            with new_file(new) as stream:
                stream.write(record)
            try:
                # Fails if the name exists, even if another process ignores the lock.
                os.link(new, self._file(number))
            except FileExistsError:
                return False
            finally:
                new.unlink()
            sync_folder(self.path)
            return True

    def _read(self, number: int) -> list[bytes]:
        with self._failing():
            # Usually there is nothing new, and one system call shows it.
            if not self.path.is_dir() or (number and self._is_end(number)):
                return []
            with self._locked():
                return [self._file(place).read_bytes() for place in self._numbers() if place >= number]

    def _forget(self, number: int) -> None:
        with self._failing(), self._locked():
            # In order, so that the remaining records are without gaps.
            for place in self._numbers():
                if place < number < self._end():
                    self._file(place).unlink()
            sync_folder(self.path)

    def _is_end(self, number: int) -> bool:
        return self._file(number - 1).exists() and not self._file(number).exists()

    def _end(self) -> int:
        return max(self._numbers(), default=-1) + 1

    def _numbers(self) -> list[int]:
        names = (path.stem for path in self.path.iterdir() if path.suffix == _SUFFIX)
        return sorted(int(name) for name in names if len(name) == _DIGITS and name.isdecimal())

    def _file(self, number: int) -> Path:
        return self.path / f"{number:0{_DIGITS}}{_SUFFIX}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self.path.is_dir():
            self.path.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self.path.parent)
        handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                # A process died while it was writing this.
                (self.path / _NEW).unlink()
            yield
        finally:
            os.close(handle)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _failed(self.path, reason(error)) from error


def _failed(path: Path, why: str) -> FailedError:
    hint = "no key changes before it can be written: make room, or give the folder back to the node's user"
    return FailedError("keys.log-folder", f"the key log in `{path}` cannot be used: {why}", hint=hint)
