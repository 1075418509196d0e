"""What the commands share that sign event types and topics, show them, and verify them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.apps.cli.shared.commands import CommandAnswer, option, option_class
from penstock.apps.cli.shared.credentials import ShownType, load_credentials
from penstock.apps.cli.shared.describe import Wording, validity_text
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import KeyOptions, NamesOption, OutputFile
from penstock.codec.sexp import transport
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.model.names import NetworkName
from penstock.model.principals import THRESHOLD, Principal
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, VerifiedType


@option_class
class TypeSigningOptions:
    """With which right a type is signed."""

    credentials: tuple[str, ...] = option(
        "--credential",
        multiple=True,
        metavar="FILE",
        help="Add certificates that give you the right to do so; they become part of the type.",
    )
    unchecked: bool = option("--unchecked", is_flag=True, help="Sign it even if a verifier would refuse it.")


@dataclass(frozen=True, slots=True)
class TypeSigner:
    """A type or topic to sign: its owner, the credentials, and the output."""

    names: NameBook
    key: KeyOptions
    signing: TypeSigningOptions
    destination: OutputFile

    @classmethod
    def of(
        cls, key: KeyOptions, signing: TypeSigningOptions, destination: OutputFile, names: NamesOption
    ) -> "TypeSigner":
        """Read what the options name, except the key. Raises what reading raises."""
        book = names.load()
        destination.check()
        return cls(book, key, signing, destination)

    def owner(self, written: str | None, key: SigningKey) -> Principal:
        """Return whose it is to be: the signing key's, unless somebody else was written."""
        return key.principal if written is None else self.names.principal(written)

    def credentials_for(self, owner: Principal, written: str | None) -> Credentials:
        """Read the credentials; say early, in the words of the command line, what a verifier would miss of a quorum.

        Raises `RefusedError` (`type.forged`), and what reading them raises.
        """
        bag = load_credentials(self.signing.credentials)
        if not self.signing.unchecked and owner.scheme == THRESHOLD and owner not in bag.thresholds():
            raise RefusedError(
                "type.forged",
                "a type that a quorum owns carries the quorum among its credentials, and this one would not",
                hint=f"give the quorum's file, such as `--credential {written}`, and the certificates of its members",
            )
        return bag

    def finish(
        self, signed: UnverifiedType, what: str, data: Mapping[str, object], lines: Iterable[str]
    ) -> CommandAnswer:
        """Write what was signed, and return the answer: `data` and the signed `what` to programs, lines to people."""
        value = signed.to_sexp()
        return self.destination.answer(value, {**data, what: transport(value).decode()}, lines)


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
