"""`penstock key`: make keys and quorums, and see which principals they are."""

from collections.abc import Iterator
from pathlib import Path

import click

from penstock.apps.cli.files import (
    SECRET,
    STDIN,
    Destination,
    as_text,
    check_distinct,
    check_target,
    read_sexp,
    write_bytes,
)
from penstock.apps.cli.groups import Verbs, example
from penstock.apps.cli.keks import new_kek_command, new_ring, show_kek
from penstock.apps.cli.namebook import remembering
from penstock.apps.cli.names import Names, load_names, read_party
from penstock.apps.cli.names import names_file as names_path
from penstock.apps.cli.options import JSON, WHO, names_option, output_option, passphrase, write_options
from penstock.apps.cli.session import Session, say, say_block, say_json
from penstock.codec.sexp import advanced
from penstock.crypto import ProtectedKey, PublicKey, SigningKey, new_key, private_key_to_sexp, protect, read_key
from penstock.errors import FailedError, PenstockError
from penstock.model.principals import Principal
from penstock.store.files import reason
from penstock.trust.subjects import Threshold, subject_to_sexp

_OF_BROKERS = dict.fromkeys(("status", "join", "rotate", "evict", "forget", "fetch"), "penstock keys")


@click.group(cls=Verbs, elsewhere=_OF_BROKERS)
def key() -> None:
    """Keys to sign with, and the principals that they are.

    Keys that brokers hold of sealed types are another thing: `penstock keys`.
    """


@key.command("new")
@click.argument("file")
@click.option("--public", "public_file", metavar="FILE", help="Write the public key to this file as well.")
@click.option("--name", "petname", metavar="NAME", help="Remember the principal under this name of yours.")
@click.option("--passphrase", "protected", is_flag=True, help="Ask for a passphrase and keep the key under it.")
@click.option("--passphrase-file", metavar="FILE", help="Keep the key under the passphrase in this file's first line.")
@click.option("--overwrite", "--force", is_flag=True, help="Replace files that exist. The old key is lost.")
@click.option("--dry-run", is_flag=True, help="Do everything but write the files.")
@output_option()
@names_option
@click.pass_obj
@example(
    """
penstock key new pito.key --public pito.pub --name pito
penstock key new root.key --passphrase   # asks for a passphrase
"""
)
def new(  # noqa: PLR0913  # one argument an option
    session: Session,
    *,
    file: str,
    public_file: str | None,
    petname: str | None,
    protected: bool,
    passphrase_file: str | None,
    overwrite: bool,
    dry_run: bool,
    output: str,
    names_file: str | None,
) -> None:
    """Make a new Ed25519 key in FILE, which only you can read.

    With --overwrite, --name gives the name to the new key also where another one has it.
    """
    check_distinct(file, public_file, None if petname is None else names_path(names_file))
    check_target(file, overwrite=overwrite, for_key=True)
    if public_file is not None:
        check_target(public_file, overwrite=overwrite)
    made = new_key(session.random)
    stored = private_key_to_sexp(made)
    if protected or passphrase_file is not None:
        secret = passphrase(passphrase_file, f"New passphrase of {file}", confirm=True)
        stored = protect(made, secret, session.random).to_sexp()
    with remembering(petname, made.principal, names_file, replace=overwrite, dry_run=dry_run):
        if not dry_run:
            write_bytes(file, as_text(stored), mode=SECRET, overwrite=overwrite, for_key=True)
            if public_file is not None:
                write_bytes(public_file, as_text(made.public.to_sexp()), overwrite=overwrite)
    if output == JSON:
        say_json(
            _described(made.public)
            | {"file": file, "protected": isinstance(read_key(stored), ProtectedKey), "written": not dry_run}
        )
        return
    say(f"{'would write' if dry_run else 'wrote'} {file}")
    say(f"principal  {made.principal}")


@key.command("show")
@click.argument("file")
@click.option("--public", "public_file", metavar="FILE", help="Write the public key to this file.")
@click.option("--overwrite", is_flag=True, help="Replace a file that exists.")
@click.option("--dry-run", is_flag=True, help="Do everything but write the file.")
@output_option("sexp")
@names_option
@example("penstock key show pito.key --public pito.pub")
def show(  # noqa: PLR0913  # one argument an option
    *, file: str, public_file: str | None, overwrite: bool, dry_run: bool, output: str, names_file: str | None
) -> None:
    """Show the principal and the public key of a key FILE, and never its private half.

    Of a key-encryption key, and of a key ring that lies under one, it shows which key-encryption key it is.
    """
    # Such keys have no public half, and standard input is read but once.
    if public_file is None and file != STDIN and show_kek(file, output):
        return
    names = load_names(names_file)
    value = read_sexp(file)
    party = read_party(value, file)
    if isinstance(party, Threshold):
        _show_quorum(party, names, output)
        return
    stored = read_key(value)
    public = stored if isinstance(stored, PublicKey) else stored.public
    if public_file is not None:
        check_target(public_file, overwrite=overwrite)
        if not dry_run:
            write_bytes(public_file, as_text(public.to_sexp()), overwrite=overwrite)
    if output == JSON:
        say_json(_described(public) | {"kind": _kind(stored)} | _petname(public.principal, names))
    elif output == "sexp":
        say_block(advanced(public.to_sexp()))
    else:
        if public.principal in names.petnames:
            say(f"name        {names.show(public.principal)}")
        say(f"principal   {public.principal}")
        say(f"short       {public.principal.short}")
        say(f"public key  {public.raw.hex()}")
        say(f"file        {_kind(stored)}")
        if public_file is not None:
            say(f"{'would write' if dry_run else 'wrote'} {public_file}")


def _show_quorum(quorum: Threshold, names: Names, output: str) -> None:
    if output == JSON:
        say_json(_described_quorum(quorum))
    elif output == "sexp":
        say_block(advanced(subject_to_sexp(quorum)))
    else:
        say(f"principal   {quorum.principal}")
        say(f"quorum      {quorum.k} of {len(quorum.subjects)}")
        for member in quorum.subjects:
            say(f"member      {names.show(member) if isinstance(member, Principal) else member}")


@key.command("list")
@click.argument("folder", default=".")
@output_option()
@names_option
@example("penstock key list ~/keys")
def list_(*, folder: str, output: str, names_file: str | None) -> None:
    """List the key files in a FOLDER, and the names that you know principals by."""
    names = load_names(names_file)
    found = list(_keys_in(folder))
    if output == JSON:
        say_json(
            {
                "keys": [
                    {"file": file, "kind": kind, "principal": str(who)} | _petname(who, names)
                    for file, kind, who in found
                ],
                "names": {name: str(principal) for name, principal in names.by_name.items()},
            }
        )
        return
    width = max((len(file) for file, _, _ in found), default=0)
    for file, kind, who in found:
        name = names.petnames.get(who, "")
        say(f"{file:{width}}  {kind:9}  {who.short}  {name}".rstrip())
    here = {who for _, _, who in found}
    for name, who in names.by_name.items():
        if who not in here:
            say(f"{'':{width}}  {'name':9}  {who.short}  {name}")


def _keys_in(folder: str) -> Iterator[tuple[str, str, Principal]]:
    try:
        paths = sorted(Path(folder).iterdir())
    except (OSError, ValueError) as error:
        raise FailedError("file.unreadable", f"`{folder}` cannot be read: {reason(error)}") from None
    for path in paths:
        try:
            # Keys are small, and other files of a folder are not ours to complain about.
            if path.is_file() and 0 < path.stat().st_size < 65_536:
                value = read_sexp(str(path))
                party = read_party(value, str(path))
                if isinstance(party, Threshold):
                    yield str(path), "quorum", party.principal
                else:
                    stored = read_key(value)
                    yield str(path), _kind(stored), stored.principal
        except (PenstockError, OSError):
            continue


@key.command("quorum")
@click.option("--threshold", "k", type=int, required=True, metavar="K", help="How many members must agree.")
@click.option("--member", "members", multiple=True, required=True, **WHO, help="A member; repeat it.")
@click.option("--name", "petname", metavar="NAME", help="Remember the quorum under this name of yours.")
@write_options
@output_option()
@names_option
@example("penstock key quorum --threshold 2 --member pito --member met --member ccs --out council.quorum")
def quorum(  # noqa: PLR0913  # one argument an option
    *,
    k: int,
    members: tuple[str, ...],
    petname: str | None,
    out: str | None,
    overwrite: bool,
    dry_run: bool,
    output: str,
    names_file: str | None,
) -> None:
    """Make a principal that any K of its members are together; its file is accepted wherever a principal is."""
    names = load_names(names_file)
    made = Threshold(k, tuple(names.subject(member) for member in members))
    destination = Destination.free(out, overwrite=overwrite, dry_run=dry_run)
    check_distinct(out, None if petname is None else names_path(names_file))
    with remembering(petname, made.principal, names_file, replace=overwrite, dry_run=dry_run):
        destination.put(subject_to_sexp(made))
    if output == JSON:
        say_json(_described_quorum(made) | destination.as_dict())
    elif out is None:
        say_block(advanced(subject_to_sexp(made)))
    else:
        say(destination.line())
        say(f"principal  {made.principal}")


def _described(public: PublicKey) -> dict[str, object]:
    return {
        "principal": str(public.principal),
        "short": public.principal.short,
        "public_key": public.raw.hex(),
    }


def _described_quorum(made: Threshold) -> dict[str, object]:
    return {
        "principal": str(made.principal),
        "short": made.principal.short,
        "threshold": made.k,
        "members": [str(member) for member in made.subjects],
        "kind": "quorum",
    }


def _petname(principal: Principal, names: Names) -> dict[str, object]:
    return {"name": names.petnames[principal]} if principal in names.petnames else {}


def _kind(stored: PublicKey | SigningKey | ProtectedKey) -> str:
    if isinstance(stored, PublicKey):
        return "public"
    return "protected" if isinstance(stored, ProtectedKey) else "private"


key.add_command(new_kek_command)
key.add_command(new_ring)
