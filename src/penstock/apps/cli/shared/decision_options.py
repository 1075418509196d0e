"""Options of decision and enforcement points on a fabric: the fabric, the owner, certificates; and what they log."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Final

from penstock.apps.cli.shared.commands import option, option_class
from penstock.apps.cli.shared.credentials import load_credentials
from penstock.apps.cli.shared.files import read_sexp, within
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import WHO, nats_login, nats_login_option
from penstock.apps.cli.shared.session import aside
from penstock.authority.decisions.cloud_events import read_key_id
from penstock.authority.decisions.questions import Entity
from penstock.authority.decisions.rights import DecisionRights
from penstock.crypto import PublicKey
from penstock.errors import MalformedError, PenstockError
from penstock.fabric import Fabric
from penstock.fabric.addresses import DDS, EMBEDDED, open_fabric
from penstock.fabric.nats_login import NatsLogin
from penstock.model.principals import Principal


@option_class
class FabricOptions:
    """The fabric, the owner of the decisions, and certificates."""

    fabric: str | None = option(
        "--fabric",
        metavar="URL",
        envvar="PENSTOCK_FABRIC",
        help=f"Use the fabric of these NATS servers, or of a DDS domain (dds://HOST/DOMAIN), or `{EMBEDDED}` for one"
        " inside this process.",
    )
    login_files: tuple[str, ...] = nats_login_option()
    prefix: str = option(
        "--fabric-prefix",
        default="penstock",
        show_default=True,
        metavar="WORD",
        help="Begin the subjects of NATS, or the names of DDS topics, with this.",
    )
    owner: str | None = option(
        "--owner", help="Name the owner of the decisions, whose certificates count (default: the key's).", **WHO
    )
    certificates: tuple[str, ...] = option(
        "--credential",
        multiple=True,
        metavar="FILE",
        help="Read certificates that say who may decide and who may ask. Can be repeated.",
    )

    def login(self) -> NatsLogin | None:
        """Return the login to the NATS servers, if they are the fabric. Raises `MalformedError` (`cli.usage`)."""
        if self.fabric is None or self.fabric == EMBEDDED or self.fabric.startswith(DDS):
            return None
        return nats_login("--fabric", (self.fabric,), self.login_files)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Fabric | None]:
        """Open the fabric, if there is one. Raises `MalformedError` (`cli.usage`), and as `open_fabric`."""
        login = self.login()
        if self.fabric is None:
            yield None
        else:
            async with await open_fabric(login or self.fabric, prefix=self.prefix) as fabric:
                yield fabric

    def owner_of(self, names: NameBook, key: Principal) -> Principal:
        """Return the owner of the decisions. Raises as `NameBook.principal`."""
        return key if self.owner is None else names.principal(self.owner)

    def rights(self, owner: Principal) -> DecisionRights:
        """Return the rights that the certificates give. Raises as `load_credentials`."""
        return DecisionRights(owner, load_credentials(self.certificates))


#: seconds in which requests that are dropped for one reason are reported once
_NOTED: Final = 60.0


class DropNotes:
    """Report why requests are dropped, each code once a minute: strangers must not be able to fill the log."""

    def __init__(self, note: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._note = note
        self._clock = clock
        self._noted: dict[str, float] = {}

    def __call__(self, error: PenstockError) -> None:
        """Report an error, or not."""
        now = self._clock()
        if now - self._noted.get(error.code, -inf) >= _NOTED:
            self._noted[error.code] = now
            self._note(f"requests or answers are dropped: {error.code}")


def log_line(line: str) -> None:
    """Print a line with the time on standard error."""
    aside(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}")


def read_resource(text: str, what: str) -> Entity:
    """Read `TYPE:ID`. Raises `MalformedError` (`cli.usage`)."""
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise MalformedError("cli.usage", f"`{text[:80]}` is not a {what}", hint="write TYPE:ID, as document:report-7")
    return Entity(kind, name)


def public_key(text: str) -> PublicKey:
    """Read a public key: a file, or its 32 bytes in Base64. Raises `MalformedError`, and as `read_sexp`."""
    if not Path(text).is_file():
        return read_key_id(text)
    value = read_sexp(text)
    with within(text):
        return PublicKey.from_sexp(value)
