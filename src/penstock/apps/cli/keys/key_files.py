"""`penstock key`: make keys, quorums and key rings, and show which principals they stand for."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import click

from penstock.apps.cli.sealed import TypesOptions, kek_passphrase_option, load_kek, load_ring
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.files import (
    SECRET,
    STDIN,
    as_text,
    check_distinct,
    check_target,
    read_bytes,
    read_sexp,
    write_bytes,
)
from penstock.apps.cli.shared.names import NameBook, remembering
from penstock.apps.cli.shared.names import names_file as names_path
from penstock.apps.cli.shared.options import SEXP, WHO, NamesOption, OutputFile, passphrase
from penstock.apps.cli.shared.session import CommandSession, Verbs
from penstock.codec.sexp import advanced
from penstock.crypto import ProtectedKey, PublicKey, SigningKey, new_key, private_key_to_sexp, protect, read_key
from penstock.crypto.seal_keys import KeyRing, column_scope, label_scope
from penstock.crypto.wrapping import SECRET_BYTES, ProtectedKek, Secret, StoredKek, kek_id, new_kek, protect_kek
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.model.principals import Principal
from penstock.model.types import EventType, Sealing
from penstock.store.files.files import reason
from penstock.store.files.key_files import create_kek, kek_of, read_stored_kek, write_key_ring
from penstock.store.files.name_book import read_party
from penstock.trust.certificates import Threshold, subject_to_sexp

_OF_BROKERS = dict.fromkeys(("status", "join", "rotate", "evict", "forget", "fetch"), "penstock keys")


@click.group(cls=Verbs, elsewhere=_OF_BROKERS)
def key() -> None:
    """Manage signing keys and the identities they stand for.

    To manage the keys of sealed types at brokers, use `penstock keys`.
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
    overwrite: bool = option(
        "--overwrite", "--force", is_flag=True, help="Replace files that exist. The old key is lost."
    )
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
class _Quorum:
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
    "quorum",
    example="penstock key quorum --threshold 2 --member pito --member met --member ccs --out council.quorum",
)
def quorum(options: _Quorum) -> CommandAnswer:
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


# ----------------------------------------------------------------------------------------------------------------------
# `penstock key new-kek` and `new-ring`: key-encryption keys, and rings of keys for sealed events.


_FIRST_EPOCH = 1
_KEK_FILES = (b"(kek", b"(protected-kek")


@option_class
class _NewKek:
    file: str = argument()
    protected: bool = option("--passphrase", is_flag=True, help="Ask for a passphrase and encrypt the key with it.")
    passphrase_file: str | None = option(
        "--passphrase-file", metavar="FILE", help="Encrypt the key with the passphrase in the first line of this file."
    )
    output: str = output_option()


@command(key, "new-kek", example="penstock key new-kek plates.kek")
def new_kek_command(session: CommandSession, options: _NewKek) -> CommandAnswer:
    """Make a new key-encryption key in FILE, which only you can read.

    Key rings, and the logs of key managers, are encrypted with such a key. It is never replaced: what it encrypts is
    lost with it. Nodes and jobs cannot ask for a passphrase; give them a key without one.
    """
    check_target(options.file, overwrite=False, lasting=True)
    kek = new_kek(session.random)
    stored: StoredKek = kek
    if options.protected or options.passphrase_file is not None:
        secret = passphrase(options.passphrase_file, f"New passphrase of {options.file}", confirm=True)
        stored = protect_kek(kek, secret, session.random)
    create_kek(Path(options.file), stored)
    return _written(options.file, kek, protected=stored is not kek)


@option_class
class _NewRing:
    file: str = argument()
    types: TypesOptions
    kek_file: str = option(
        "--kek", required=True, envvar="PENSTOCK_KEK", metavar="FILE", help="Encrypt it with this key-encryption key."
    )
    kek_passphrase_file: str | None = kek_passphrase_option()
    source: str | None = option(
        "--from", metavar="RING", help="Copy the keys of all epochs from this ring (default: draw new ones)."
    )
    from_kek: str | None = option(
        "--from-kek", metavar="FILE", help="Decrypt the --from ring with this key-encryption key (default: as --kek)."
    )
    attributes: tuple[str, ...] = option(
        "--attribute",
        multiple=True,
        metavar="NAME",
        help="Copy keys of this attribute only (default: all). Can be repeated.",
    )
    output: str = output_option()
    names: NamesOption


@command(
    key,
    "new-ring",
    example="""
penstock key new-ring plates.ring --kek plates.kek --type numberplate.type
penstock key new-ring office.ring --kek office.kek --type numberplate.type --from plates.ring --from-kek plates.kek \\
    --attribute location --attribute timestamp
""",
)
def new_ring(session: CommandSession, options: _NewRing) -> CommandAnswer:
    """Make a key ring in FILE with new random keys for types and all their attributes.

    Such a ring is for events that are sealed in files and opened by those who have the ring: brokers get their keys
    from a key group, and do not know these. With --from, the ring gets keys of another ring, for somebody who may read
    less than you: those of the types, which open ids and times, and of some attributes, or of all. Use a separate
    key-encryption key for such a ring: whoever has yours can open your ring too.
    """
    if options.source is None and (options.attributes or options.from_kek is not None):
        raise MalformedError("cli.usage", "--attribute and --from-kek say what to take from a ring", hint="give --from")
    check_target(options.file, overwrite=False, lasting=True)
    types = options.types.load(options.names.load(), session.now).by_name.values()
    kek = load_kek(options.kek_file, options.kek_passphrase_file)
    if options.source is None:
        ring = _drawn((scope for one in types for scope in _scopes(one, ())), session)
    else:
        secret = options.kek_passphrase_file if options.from_kek is None else None
        whole = load_ring(options.source, options.from_kek or options.kek_file, secret)
        ring = _taken(whole, types, options.attributes)
    write_key_ring(Path(options.file), ring, kek, session.random)
    return _written(options.file, kek, keys=len([*ring.items()]))


def _scopes(event_type: EventType, attributes: tuple[str, ...]) -> Iterator[str]:
    """Yield the scopes that have keys: all, or the type and some attributes.

    Raises `MalformedError` (`type.unknown-attribute`) and `RefusedError` (`seal.level`).
    """
    if attributes and event_type.sealing is Sealing.EVENT:
        raise RefusedError(
            "seal.level",
            f"events of `{event_type.name.name}` are sealed as a whole: their key opens all attributes",
            hint="`penstock type edit --seal attribute` makes a version with a key for each",
        )
    yield str(event_type.key)
    if event_type.blinded:
        yield label_scope(event_type.key)
    for one in map(event_type.attribute, attributes) if attributes else event_type.attributes:
        yield column_scope(event_type.key, one.id)


def _drawn(scopes: Iterable[str], session: CommandSession) -> KeyRing:
    ring = KeyRing()
    for scope in scopes:
        ring.put(scope, _FIRST_EPOCH, Secret(session.random(SECRET_BYTES)))
    return ring


def _taken(whole: KeyRing, types: Collection[EventType], attributes: tuple[str, ...]) -> KeyRing:
    """Return the keys of some types in a ring. The types, and attributes that are named, must be there.

    Raises `RefusedError` (`seal.unknown-key`) and as `_scopes`.
    """
    wanted = {scope for one in types for scope in _scopes(one, attributes)}
    ring = KeyRing()
    for scope, epoch, key in whole.items():
        if scope in wanted:
            ring.put(scope, epoch, key)
    held = {scope for scope, _, _ in ring.items()}
    for one in types:
        if str(one.key) not in held:
            raise _missing(one.name.name)
        for name in attributes:
            if column_scope(one.key, one.attribute(name).id) not in held:
                raise _missing(name)
    return ring


def _missing(name: str) -> RefusedError:
    return RefusedError(
        "seal.unknown-key",
        f"the ring has no key of `{name}`",
        hint="use a ring that has it, or leave the attribute out",
    )


def kek_answer(file: str) -> CommandAnswer | None:
    """Return the id of the key-encryption key in a file, or of a key ring's; None for other files.

    Raises `MalformedError` (`keys.kek`) for a key-encryption key that was changed.
    """
    data = read_bytes(file)
    kind, found = "key ring", kek_of(data)
    if found is None:
        if not data.lstrip().startswith(_KEK_FILES):
            return None
        stored = read_stored_kek(Path(file))
        if isinstance(stored, ProtectedKek):
            kind, found = "key-encryption key, under a passphrase", stored.id
        else:
            kind, found = "key-encryption key", kek_id(stored)
    shown = [f"file                {kind}", f"key-encryption key  {found.hex()}"]
    return CommandAnswer({"file": file, "kind": kind, "kek": found.hex()}, shown)


def _written(file: str, kek: Secret, **more: object) -> CommandAnswer:
    shown = [f"wrote {file}", f"key-encryption key  {kek_id(kek).hex()}"]
    return CommandAnswer({"file": file, "kek": kek_id(kek).hex(), **more}, shown)
