"""Read what a program needs to connect, from files and the environment: its key, its credentials, and event types.

`penstock.load_key`, `penstock.load_credentials` and `penstock.load_type` are these functions.
"""

import os
from os import PathLike
from pathlib import Path
from typing import Final, TypeAlias

from penstock.codec.sexp import parse
from penstock.crypto.keys import ProtectedKey, PublicKey, SigningKey, passphrase_bytes, read_key
from penstock.errors import MalformedError, RefusedError
from penstock.store.files.files import check_secret, read_file, within
from penstock.trust.credentials import Credentials, read_credentials
from penstock.trust.event_types import UnverifiedType, read_type

FilePath: TypeAlias = str | PathLike[str]

#: the variables that the command line reads too, by the argument of `connect`
VARIABLES: Final = {"url": "PENSTOCK_BROKER", "network": "PENSTOCK_NETWORK", "key": "PENSTOCK_KEY"}
CREDENTIALS: Final = "PENSTOCK_CREDENTIALS"


def from_environment(argument: str) -> str:
    """Return the value of an omitted argument from the environment. Raises `MalformedError` (`client.environment`)."""
    variable = VARIABLES[argument]
    found = os.environ.get(variable)
    if not found:
        raise MalformedError(
            "client.environment",
            f"`{argument}` is not given, and `{variable}` is not set",
            hint=f"give `{argument}=`, or set `{variable}`",
        )
    return found


def environment_credentials() -> Credentials:
    """Return the credentials in the files that the environment names, if any. Raises as `load_credentials`."""
    return load_credentials(*filter(None, os.environ.get(CREDENTIALS, "").split(os.pathsep)))


def load_key(path: FilePath, passphrase: str | bytes | None = None) -> SigningKey:
    """Return the private key in a file that `penstock key new` wrote.

    Raises `FailedError` (`file.*`), `RefusedError` (`file.exposed`; `key.passphrase` if the passphrase is missing or
    wrong) and `MalformedError` (`key.public-only` and what reading a key raises).
    """
    name = str(path)
    data = read_file(name)
    with within(name):
        stored = read_key(parse(data))
        if not isinstance(stored, PublicKey):
            check_secret(name)
        if isinstance(stored, ProtectedKey):
            if passphrase is None:
                raise RefusedError("key.passphrase", "the key has a passphrase", hint="give it as `passphrase=`")
            return stored.open(passphrase_bytes(passphrase) if isinstance(passphrase, str) else passphrase)
        if isinstance(stored, SigningKey):
            return stored
        raise MalformedError("key.public-only", "a public key cannot sign", hint="give the private key")


def load_credentials(*paths: FilePath) -> Credentials:
    """Read and verify the certificates in files and folders.

    Raises `FailedError` (`file.*`), `RefusedError` if a signature does not verify, and what reading one raises.
    """
    found = Credentials()
    for path in map(Path, paths):
        for file in sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]:
            data = read_file(str(file))
            with within(str(file)):
                found += read_credentials(data).verify()
    return found


def load_type(path: FilePath) -> UnverifiedType:
    """Return the signed event type in a file; `Client.subscribe` and `Client.advertise` take it, and verify it.

    Raises `FailedError` (`file.*`) and what reading a type raises.
    """
    name = str(path)
    data = read_file(name)
    with within(name):
        return read_type(data)
