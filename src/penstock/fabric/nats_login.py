"""Log in to a NATS server: addresses, TLS and secrets, the same for the fabric and for JetStream on Spark.

Secrets are in files, whose paths are given. They are never in an address, so that no message and no `repr` shows them.
Errors here say what failed, and callers give them their own error codes. This module does not need nats-py.
"""

import secrets
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

#: random bytes in the inbox name of each connection
_INBOX_BYTES: Final = 16


class LoginError(Exception):
    """Invalid login settings; `option` names the setting, not its value."""

    def __init__(self, option: str) -> None:
        super().__init__(option)
        self.option = option


class UnreadableError(LoginError):
    """A file with a secret cannot be read."""


class HandshakeError(LoginError):
    """The TLS handshake failed; `option` is the reason."""


class NotInstalledError(LoginError):
    """A package that nats-py needs is not installed."""


class AddressError(LoginError):
    """The address of a server is invalid."""


class SecretError(AddressError):
    """An address contains a user or a password."""


@dataclass(frozen=True)
class NatsLogin:
    """The servers' addresses and the login files; an empty path means none."""

    urls: tuple[str, ...]
    credentials: str = field(default="", repr=False)
    nkey: str = field(default="", repr=False)
    token_file: str = field(default="", repr=False)
    tls_ca: str = field(default="", repr=False)
    tls_cert: str = field(default="", repr=False)
    tls_key: str = field(default="", repr=False)
    tls_hostname: str = ""
    #: the prefix of this user's inboxes, as the server's permissions require
    inbox: str = "_INBOX"

    @property
    def servers(self) -> str:
        """The servers' addresses, for messages."""
        return ", ".join(self.urls)

    def token(self) -> str | None:
        """Return the token in the token file. Raises `UnreadableError`."""
        if not self.token_file:
            return None
        try:
            return Path(self.token_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableError("tokenFile") from error

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None if TLS is not configured. Raises `UnreadableError`."""
        wanted = self.tls_ca or self.tls_cert or any(url.startswith("tls:") for url in self.urls)
        if not wanted:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
            if self.tls_cert:
                context.load_cert_chain(self.tls_cert, self.tls_key or None)
        except OSError as error:  # ssl.SSLError is one
            raise UnreadableError("tlsCa, tlsCert or tlsKey") from error
        return context

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Client.connect`. Raises `UnreadableError`."""
        given = {
            "user_credentials": self.credentials,
            "nkeys_seed": self.nkey,
            "token": self.token(),
            "tls": self.tls(),
            "tls_hostname": self.tls_hostname,
        }
        # Other clients cannot guess the inbox, so they cannot read the responses.
        fixed = {"servers": list(self.urls), "inbox_prefix": f"{self.inbox}.{secrets.token_hex(_INBOX_BYTES)}"}
        return fixed | {key: value for key, value in given.items() if value}


def address(text: str) -> str:
    """Return an address with scheme and port. Raises `AddressError`, `SecretError`.

    >>> address("broker")
    'nats://broker:4222'
    """
    try:
        parts = urlsplit(text if "://" in text else f"nats://{text}")
        port = parts.port
    except ValueError as error:
        raise AddressError("url") from error
    if parts.username is not None or parts.password is not None or "@" in text:
        raise SecretError("url")
    if parts.scheme not in ("nats", "tls") or not parts.hostname or parts.path not in ("", "/"):
        raise AddressError("url")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or 4222}"
