"""Read what a program needs to connect: its key, its credentials and event types, from files, variables and contexts.

`penstock.load_key`, `penstock.load_credentials` and `penstock.load_type` are these functions.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from shlex import quote
from typing import Final, TypeAlias

from penstock.codec.sexp import parse
from penstock.crypto.keys import ProtectedKey, PublicKey, SigningKey, passphrase_bytes, read_key
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.store.files.contexts import ConnectionContext, context_in_use, contexts_path, load_context
from penstock.store.files.files import check_secret, read_file, within
from penstock.store.files.name_book import ENVIRONMENT as NAMES
from penstock.trust.credentials import Credentials, read_credentials
from penstock.trust.event_types import UnverifiedType, read_type

FilePath: TypeAlias = str | PathLike[str]

#: the variables that the command line reads too, and the fields of a context, by the argument of `connect`
VARIABLES: Final = {"url": "PENSTOCK_BROKER", "network": "PENSTOCK_NETWORK", "key": "PENSTOCK_KEY"}
CREDENTIALS: Final = "PENSTOCK_CREDENTIALS"
_FIELDS: Final = {"url": "broker", "network": "network", "key": "key"}


@dataclass(slots=True)
class OmittedArguments:
    """Find what a client leaves out: in the environment, then in the context in use.

    A chosen context comes before the environment. Otherwise a context is read only if the environment does not say
    where the broker is, which network is meant, or where the key is. `context` is empty until then.
    """

    chosen: str | None = None
    #: what to write for each argument, for hints
    written: Mapping[str, str] = field(default_factory=lambda: {name: f"{name}=" for name in VARIABLES})
    context: ConnectionContext = field(default_factory=ConnectionContext)
    _found: set[str] = field(default_factory=set)

    def find(self, argument: str) -> str:
        """Return an omitted argument. Raises `MalformedError` (`client.environment`) and as `load_context`."""
        variable = VARIABLES[argument]
        given = os.environ.get(variable, "")
        if given and self.chosen is None:
            return given
        self.context = load_context(self.chosen)
        found: str = getattr(self.context, _FIELDS[argument])
        if not found and not given:
            raise MalformedError(
                "client.environment",
                f"the {_FIELDS[argument]} is missing: `{variable}` is not set, and no context in use has it",
                hint=f"give `{self.written[argument]}`, set `{variable}`, or add a context: `penstock context add`, or "
                "`penstock init` for a new network",
            )
        if found:
            self._found.add(argument)
        return found or given

    def broker_principal(self) -> str | None:
        """Return the identity that the context requires of its broker, if the address has come from it."""
        return self.context.broker_principal or None if "url" in self._found else None

    def credential_files(self) -> tuple[str, ...]:
        """Return the certificate files of the environment, or of the context if the key has come from it.

        Raises `FailedError` (`file.missing`) if the context names a file that was deleted.
        """
        if "key" in self._found and self._before(CREDENTIALS):
            for file in self.context.credentials:
                if not Path(file).exists():
                    named = f"the context `{context_in_use(self.chosen)}` in {contexts_path()} names it"
                    hint = f"{named}: restore the file, or delete its path"
                    raise FailedError("file.missing", f"there is no file `{file}`", hint=hint)
            return self.context.credentials
        return tuple(filter(None, os.environ.get(CREDENTIALS, "").split(os.pathsep)))

    def context_option(self) -> tuple[str, ...]:
        """Return the option that names the context, if anything was found in one."""
        return (f"--context {quote(context_in_use(self.chosen))}",) if self._found else ()

    def names_file(self) -> str | None:
        """Return the context's file of petnames, unless the environment names one."""
        return self.context.names or None if self._before(NAMES) else None

    def _before(self, variable: str) -> bool:
        return self.chosen is not None or variable not in os.environ


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
