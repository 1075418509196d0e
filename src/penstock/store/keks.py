"""Files of key-encryption keys: for their owner alone, written once, and read by nodes, commands and jobs alike."""

from pathlib import Path

from penstock.codec.sexp import advanced, parse
from penstock.crypto.kek import ProtectedKek, StoredKek, kek_to_sexp, parse_kek
from penstock.crypto.wrapping import Secret
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.store.files import check_secret, create_file, read_file, within
from penstock.store.key_rings import MAGIC


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
    """Write a file that must not exist yet: what lies under a lost key is lost.

    Raises `RefusedError` (`file.exists`) and `FailedError` (`file.unwritable`).
    """
    value = kek.to_sexp() if isinstance(kek, ProtectedKek) else kek_to_sexp(kek)
    create_file(path, advanced(value).encode() + b"\n")
