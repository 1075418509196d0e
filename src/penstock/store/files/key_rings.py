"""Key rings in files: epoch keys by scope and epoch, wrapped under a key-encryption key.

    file     "penstock-key-ring-1" and a line feed, id of the key-encryption key (8), salt (16), box
    box      the scopes, wrapped (AES-256-GCM, `wrapping`) in the context of all that stands before it
    scope    length (2), name, number of keys (4), and for each: epoch (8), key (32)

Scopes and epochs are inside: a key is bound to them, no key can be missing unnoticed, and who has no key-encryption key
does not learn what is held. A file is replaced as a whole, under a new salt. Which version of a ring it is cannot be
seen from it: who can write the file can put an older one back.
"""

from collections import defaultdict
from collections.abc import Iterator
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
from penstock.store.files.files import check_secret, create_file, read_file, replace_file, within
from penstock.store.limits import STORE_LIMITS, StoreLimits

MAGIC: Final = b"penstock-key-ring-1\n"
"""What every key ring begins with."""
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
    """Return the key ring of some bytes. Raises what `read_key_ring` raises."""
    head, salt, box = data[:_HEAD], data[_HEAD : _HEAD + SALT_BYTES], data[_HEAD + SALT_BYTES :]
    if not head.startswith(MAGIC) or not box:
        raise MalformedError("keys.ring", "not a key ring, or one of another version", hint="check which file it is")
    if head != MAGIC + kek_id(kek):
        raise RefusedError(
            "keys.wrong-kek",
            "this key ring lies under another key-encryption key",
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
    """Parse the unwrapped data. We wrote it: any other form was written by another program."""
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
# Files of key-encryption keys: for their owner alone, written once, and read by nodes, commands and jobs alike.


def read_kek(path: Path, passphrase: bytes | None = None) -> Secret:
    """Read a key-encryption key; one under a passphrase needs it.

    Raises `FailedError`, `MalformedError` (`keys.kek` and codes of S-expressions and key files), `RefusedError`
    (`file.exposed`, `key.passphrase`; `keys.kek-passphrase` where none was given).
    """
    stored = read_stored_kek(path)
    with within(str(path)):
        if isinstance(stored, Secret):
            return stored
        if passphrase is None:
            raise RefusedError(
                "keys.kek-passphrase",
                "this key-encryption key lies under a passphrase",
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
            error.hint = "check the path; `penstock key new-kek` makes a key-encryption key"
        raise
    with within(str(path)):
        if data.startswith(MAGIC):
            raise MalformedError(
                "keys.kek",
                "this is a key ring, and not the key-encryption key that it lies under",
                hint="give the ring where keys are asked for, and here what `penstock key new-kek` made",
            )
        return parse_kek(parse(data))


def create_kek(path: Path, kek: StoredKek) -> None:
    """Create a key-encryption key file, which must not exist yet: data under a lost key is lost.

    Raises `RefusedError` (`file.exists`) and `FailedError` (`file.unwritable`).
    """
    value = kek.to_sexp() if isinstance(kek, ProtectedKek) else kek_to_sexp(kek)
    create_file(path, advanced(value).encode() + b"\n")
