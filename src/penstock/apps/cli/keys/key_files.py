"""`penstock key`: make keys and quorums, and show which principals they stand for."""

from collections.abc import Iterator
from pathlib import Path

import click

from penstock.apps.cli.keys.key_rings import kek_answer
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.files import (
    SECRET,
    STDIN,
    as_text,
    check_distinct,
    check_target,
    read_sexp,
    write_bytes,
)
from penstock.apps.cli.shared.names import NameBook, remembering
from penstock.apps.cli.shared.names import names_file as names_path
from penstock.apps.cli.shared.options import SEXP, WHO, NamesOption, OutputFile, passphrase
from penstock.apps.cli.shared.session import CommandSession, Verbs
from penstock.codec.sexp import advanced
from penstock.crypto import ProtectedKey, PublicKey, SigningKey, new_key, private_key_to_sexp, protect, read_key
from penstock.errors import FailedError, PenstockError
from penstock.model.principals import Principal
from penstock.store.files.files import reason
from penstock.store.files.name_book import read_party
from penstock.trust.certificates import Threshold, subject_to_sexp

_OF_SEALING = dict.fromkeys(("join", "rotate", "evict", "forget", "fetch"), "penstock sealing")


@click.group(cls=Verbs, elsewhere=_OF_SEALING)
def key() -> None:
    """Manage signing keys and the identities they stand for.

    To manage the keys of sealed types, use `penstock sealing`.
    """


@option_class
class _New:
    file: str = argument()
    public_file: str | None = option("--public", metavar="FILE", help="Write the public key to this file too.")
    petname: str | None = option("--name", metavar="NAME", help="Remember the principal under this name.")
    protected: bool = option("--passphrase", is_flag=True, help="Ask for a passphrase and encrypt the key with it.")
    passphrase_file: str | None = option(
        "--passphrase-file", metavar="FILE", help="Encrypt the key with the passphrase in the first line of this file."
    )
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace files that exist. The old key is lost.")
    dry_run: bool = option("--dry-run", is_flag=True, help="Do everything except write the files.")
    output: str = output_option()
    names: NamesOption


@command(
    key,
    "new",
    example="""
penstock key new pito.key --public pito.pub --name pito
penstock key new root.key --passphrase   # asks for a passphrase
""",
)
def new(session: CommandSession, options: _New) -> CommandAnswer:
    """Make a new Ed25519 key in FILE, which only you can read.

    With --overwrite, --name moves an existing name to the new key.
    """
    chosen = options.names.names_file
    check_distinct(options.file, options.public_file, None if options.petname is None else names_path(chosen))
    check_target(options.file, overwrite=options.overwrite, for_key=True)
    if options.public_file is not None:
        check_target(options.public_file, overwrite=options.overwrite)
    made = new_key(session.random)
    stored = private_key_to_sexp(made)
    if options.protected or options.passphrase_file is not None:
        secret = passphrase(options.passphrase_file, f"New passphrase of {options.file}", confirm=True)
        stored = protect(made, secret, session.random).to_sexp()
    with remembering(options.petname, made.principal, chosen, replace=options.overwrite, dry_run=options.dry_run):
        if not options.dry_run:
            write_bytes(options.file, as_text(stored), mode=SECRET, overwrite=options.overwrite, for_key=True)
            if options.public_file is not None:
                write_bytes(options.public_file, as_text(made.public.to_sexp()), overwrite=options.overwrite)
    protected = isinstance(read_key(stored), ProtectedKey)
    data = _described(made.public) | {"file": options.file, "protected": protected, "written": not options.dry_run}
    done = f"{'would write' if options.dry_run else 'wrote'} {options.file}"
    return CommandAnswer(data, [done, f"principal  {made.principal}"])


@option_class
class _Show:
    file: str = argument()
    public_file: str | None = option("--public", metavar="FILE", help="Write the public key to this file.")
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace a file that exists.")
    dry_run: bool = option("--dry-run", is_flag=True, help="Do everything except write the file.")
    output: str = output_option(SEXP)
    names: NamesOption


@command(key, "show", example="penstock key show pito.key --public pito.pub")
def show(options: _Show) -> CommandAnswer:
    """Show the principal and the public key of a key FILE, and never its private half.

    For a key-encryption key, and for a key ring, it shows the id of the key-encryption key.
    """
    # Such keys have no public half, and standard input can be read only once.
    if options.public_file is None and options.file != STDIN and (kek := kek_answer(options.file)) is not None:
        return kek
    names = options.names.load()
    value = read_sexp(options.file)
    party = read_party(value, options.file)
    if isinstance(party, Threshold):
        if options.output == SEXP:
            return CommandAnswer({}, advanced(subject_to_sexp(party)).split("\n"))
        members = (names.show(member) if isinstance(member, Principal) else member for member in party.subjects)
        facts = [f"principal   {party.principal}", f"quorum      {party.k} of {len(party.subjects)}"]
        return CommandAnswer(_described_quorum(party), [*facts, *(f"member      {member}" for member in members)])
    stored = read_key(value)
    public = stored if isinstance(stored, PublicKey) else stored.public
    if options.public_file is not None:
        check_target(options.public_file, overwrite=options.overwrite)
        if not options.dry_run:
            write_bytes(options.public_file, as_text(public.to_sexp()), overwrite=options.overwrite)
    if options.output == SEXP:
        return CommandAnswer({}, advanced(public.to_sexp()).split("\n"))
    shown = [f"name        {names.show(public.principal)}"] if public.principal in names.petnames else []
    shown += [
        f"principal   {public.principal}",
        f"short       {public.principal.short}",
        f"public key  {public.raw.hex()}",
        f"file        {_kind(stored)}",
    ]
    if options.public_file is not None:
        shown.append(f"{'would write' if options.dry_run else 'wrote'} {options.public_file}")
    return CommandAnswer(_described(public) | {"kind": _kind(stored)} | _petname(public.principal, names), shown)


@option_class
class _List:
    folder: str = argument(default=".")
    output: str = output_option()
    names: NamesOption


@command(key, "list", example="penstock key list ~/keys")
def list_(options: _List) -> CommandAnswer:
    """List the key files in a FOLDER, and your names for principals."""
    names = options.names.load()
    found = list(_keys_in(options.folder))
    data = {
        "keys": [
            {"file": file, "kind": kind, "principal": str(who)} | _petname(who, names) for file, kind, who in found
        ],
        "names": {name: str(principal) for name, principal in names.by_name.items()},
    }
    width, here = max((len(file) for file, _, _ in found), default=0), {who for _, _, who in found}
    shown = [
        *(
            f"{file:{width}}  {kind:9}  {who.short}  {names.petnames.get(who, '')}".rstrip()
            for file, kind, who in found
        ),
        *(f"{'':{width}}  {'name':9}  {who.short}  {name}" for name, who in names.by_name.items() if who not in here),
    ]
    return CommandAnswer(data, shown)


def _keys_in(folder: str) -> Iterator[tuple[str, str, Principal]]:
    try:
        paths = sorted(Path(folder).iterdir())
    except (OSError, ValueError) as error:
        raise FailedError("file.unreadable", f"`{folder}` cannot be read: {reason(error)}") from None
    for path in paths:
        try:
            # Keys are small, and other files in the folder are ignored.
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


@option_class
class _NewQuorum:
    k: int = option("--threshold", type=int, required=True, metavar="K", help="Require this many members to agree.")
    members: tuple[str, ...] = option(
        "--member", multiple=True, required=True, **WHO, help="Add a member. Can be repeated."
    )
    petname: str | None = option("--name", metavar="NAME", help="Remember the quorum under this name.")
    destination: OutputFile
    output: str = output_option()
    names: NamesOption


@command(
    key,
    "new-quorum",
    example="penstock key new-quorum --threshold 2 --member pito --member met --member ccs --out council.quorum",
)
def new_quorum(options: _NewQuorum) -> CommandAnswer:
    """Make a principal that stands for any K of its members; its file is accepted wherever a principal is."""
    names, destination = options.names.load(), options.destination
    made = Threshold(options.k, tuple(names.subject(member) for member in options.members))
    destination.check()
    chosen, replace, dry_run = options.names.names_file, destination.overwrite, destination.dry_run
    check_distinct(destination.out, None if options.petname is None else names_path(chosen))
    with remembering(options.petname, made.principal, chosen, replace=replace, dry_run=dry_run):
        return destination.answer(subject_to_sexp(made), _described_quorum(made), [f"principal  {made.principal}"])


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


def _petname(principal: Principal, names: NameBook) -> dict[str, object]:
    return {"name": names.petnames[principal]} if principal in names.petnames else {}


def _kind(stored: PublicKey | SigningKey | ProtectedKey) -> str:
    if isinstance(stored, PublicKey):
        return "public"
    return "protected" if isinstance(stored, ProtectedKey) else "private"
