"""What the commands share that sign event types and topics, show them, and verify them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import click

from penstock.apps.cli.shared import options
from penstock.apps.cli.shared.credentials import ShownType, load_credentials
from penstock.apps.cli.shared.describe import Wording, validity_text
from penstock.apps.cli.shared.files import Destination
from penstock.apps.cli.shared.names import NameBook, load_names
from penstock.apps.cli.shared.options import JSON, open_key
from penstock.apps.cli.shared.session import CommandSession, say, say_block, say_json
from penstock.codec.sexp import advanced, transport
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.model.names import NetworkName
from penstock.model.principals import THRESHOLD, Principal
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, VerifiedType


def signing_options(function: options.F) -> options.F:
    """Add the options of the commands that sign a type."""
    for option in (
        click.option("--unchecked", is_flag=True, help="Sign it even where a verifier would refuse it."),
        click.option(
            "--credential",
            "credentials",
            multiple=True,
            metavar="FILE",
            help="Certificates that give you the right to do so; they become part of the type.",
        ),
    ):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSigner:
    """A type or topic that is to be signed: for whom, with which credentials, and where it goes."""

    session: CommandSession
    names: NameBook
    credentials: tuple[str, ...]
    unchecked: bool
    destination: Destination
    output: str
    _open: Callable[[], SigningKey]

    @classmethod
    def of(  # noqa: PLR0913  # one argument an option
        cls,
        session: CommandSession,
        *,
        key_file: str,
        passphrase_file: str | None,
        credentials: tuple[str, ...],
        unchecked: bool,
        out: str | None,
        overwrite: bool,
        dry_run: bool,
        output: str,
        names_file: str | None,
    ) -> "TypeSigner":
        """Take in the options of `key_options`, `signing_options` and `write_options`. Raises what reading raises."""
        return cls(
            session=session,
            names=load_names(names_file),
            credentials=credentials,
            unchecked=unchecked,
            destination=Destination.free(out, overwrite=overwrite, dry_run=dry_run),
            output=output,
            _open=lambda: open_key(key_file, passphrase_file),
        )

    def key(self) -> SigningKey:
        """Open the key. Raises as `open_key`."""
        return self._open()

    def owner(self, written: str | None, key: SigningKey) -> Principal:
        """Return whose it is to be: the signing key's, unless somebody else was written."""
        return key.principal if written is None else self.names.principal(written)

    def credentials_for(self, owner: Principal, written: str | None) -> Credentials:
        """Read the credentials; say early, in the words of the command line, what a verifier would miss of a quorum.

        Raises `RefusedError` (`type.forged`), and what reading them raises.
        """
        bag = load_credentials(self.credentials)
        if not self.unchecked and owner.scheme == THRESHOLD and owner not in bag.thresholds():
            raise RefusedError(
                "type.forged",
                "a type that a quorum owns carries the quorum among its credentials, and this one would not",
                hint=f"give the quorum's file, such as `--credential {written}`, and the certificates of its members",
            )
        return bag

    def finish(self, signed: UnverifiedType, what: str, data: Mapping[str, object], lines: Iterable[str]) -> None:
        """Write what was signed, and answer: `data` and the signed `what` to programs, lines to people."""
        value = signed.to_sexp()
        self.destination.put(value)
        if self.output == JSON:
            say_json({**data, what: transport(value).decode(), **self.destination.as_dict()})
        elif self.destination.file is None:
            say_block(advanced(value))
        else:
            say(self.destination.line())
            for line in lines:
                say(line)


def shown_problem(shown: ShownType) -> dict[str, object]:
    """Return what is wrong with a signature at first sight, as plain data."""
    return {"code": shown.code, "problem": shown.problem} if shown.code else {}


def shown_facts(shown: ShownType, names: NameBook) -> list[tuple[str, str]]:
    """Return what a file says of its signature, for people."""
    unverified = shown.unverified
    facts = [("signed by", f"{names.show(unverified.key.principal)} (not verified here)")]
    if unverified.credentials.certificates:
        facts.append(("credentials", str(len(unverified.credentials.certificates))))
    if shown.code:
        facts.append(("state", f"✗ not verified: {shown.problem} [{shown.code}]"))
    return facts


def verified_facts(
    verified: VerifiedType, unverified: UnverifiedType, wording: Wording, place: NetworkName | None
) -> list[tuple[str, str]]:
    """Return who signed a type, through which certificates they may, where, and until when that holds, for people."""
    owns = ", the owner" if verified.signer == verified.event_type.name.owner else ""
    chain = [one for one in unverified.credentials.certificates if one.id in verified.because]
    facts = [("signed by", f"{wording.who(verified.signer)}{owns}")]
    facts += [("through" if not index else "", f"✓ {wording.line(one.statement)}") for index, one in enumerate(chain)]
    if place is not None:
        facts.append(("installable", f"on {wording.who(place.owner)}/{place.name}"))
    return [*facts, ("valid", validity_text(verified.validity))]
