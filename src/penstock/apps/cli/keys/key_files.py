"""`penstock key`: make keys and quorums, and see which principals they are."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import click

from penstock.apps.cli.sealed.options import Types, kek_passphrase_option, load_kek, load_ring, types_options
from penstock.apps.cli.shared.files import (
    SECRET,
    STDIN,
    Destination,
    as_text,
    check_distinct,
    check_target,
    read_bytes,
    read_sexp,
    write_bytes,
)
from penstock.apps.cli.shared.groups import Verbs, example
from penstock.apps.cli.shared.names import NameBook, load_names, remembering
from penstock.apps.cli.shared.names import names_file as names_path
from penstock.apps.cli.shared.options import JSON, WHO, names_option, output_option, passphrase, write_options
from penstock.apps.cli.shared.session import CommandSession, say, say_block, say_json
from penstock.codec.sexp import advanced
from penstock.crypto import ProtectedKey, PublicKey, SigningKey, new_key, private_key_to_sexp, protect, read_key
from penstock.crypto.kek import ProtectedKek, StoredKek, kek_id, new_kek, protect_kek
from penstock.crypto.seal_keys import KeyRing, column_scope, label_scope
from penstock.crypto.wrapping import SECRET_BYTES, Secret
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.model.principals import Principal
from penstock.model.types import EventType, Sealing
from penstock.store.files.files import reason
from penstock.store.files.key_rings import create_kek, kek_of, read_stored_kek, write_key_ring
from penstock.store.files.name_book import read_party
from penstock.trust.subjects import Threshold, subject_to_sexp

# ----------------------------------------------------------------------------------------------------------------------
# `penstock key new-kek` and `new-ring`: what keys of sealed events lie under, and a ring of new ones.


_FIRST_EPOCH = 1
_KEK_FILES = (b"(kek", b"(protected-kek")


@click.command("new-kek")
@click.argument("file")
@click.option("--passphrase", "protected", is_flag=True, help="Ask for a passphrase and keep the key under it.")
@click.option("--passphrase-file", metavar="FILE", help="Keep the key under the passphrase in this file's first line.")
@output_option()
@click.pass_obj
@example("penstock key new-kek plates.kek")
def new_kek_command(
    session: CommandSession, *, file: str, protected: bool, passphrase_file: str | None, output: str
) -> None:
    """Make a new key-encryption key in FILE, which only you can read.

    Key rings, and the logs of key managers, lie under such a key. It is never replaced: what lies under a lost key is
    lost. Nodes and jobs cannot be asked for a passphrase; give them a key without one.
    """
    check_target(file, overwrite=False, lasting=True)
    kek = new_kek(session.random)
    stored: StoredKek = kek
    if protected or passphrase_file is not None:
        secret = passphrase(passphrase_file, f"New passphrase of {file}", confirm=True)
        stored = protect_kek(kek, secret, session.random)
    create_kek(Path(file), stored)
    _say_written(file, kek, output, protected=stored is not kek)


@click.command("new-ring")
@click.argument("file")
@types_options
@click.option("--kek", "kek_file", required=True, envvar="PENSTOCK_KEK", metavar="FILE", help="What it will lie under.")
@kek_passphrase_option
@click.option("--from", "source", metavar="RING", help="Take the keys from this ring, of all epochs, and draw none.")
@click.option("--from-kek", metavar="FILE", help="What that ring lies under (default: the same as this one).")
@click.option("--attribute", "attributes", multiple=True, metavar="NAME", help="With --from: only this one; repeat it.")
@output_option()
@names_option
@click.pass_obj
@example(
    """
penstock key new-ring plates.ring --kek plates.kek --type numberplate.type
penstock key new-ring office.ring --kek office.kek --type numberplate.type --from plates.ring --from-kek plates.kek \\
    --attribute location --attribute timestamp
"""
)
def new_ring(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    *,
    file: str,
    type_files: tuple[str, ...],
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    kek_file: str,
    kek_passphrase_file: str | None,
    source: str | None,
    from_kek: str | None,
    attributes: tuple[str, ...],
    output: str,
    names_file: str | None,
) -> None:
    """Make a key ring in FILE with new keys, drawn at random, for types and all their attributes.

    It is for events that are sealed in files and opened by whom you give the ring: brokers get their keys from a key
    group, and do not know these. With --from it gets keys of a ring that you have, for somebody who is to read less
    than you: those of the types, which open ids and times, and of some attributes, or of all. Give such a ring a
    key-encryption key of its own: who has yours can open your ring too.
    """
    if source is None and (attributes or from_kek is not None):
        raise MalformedError("cli.usage", "--attribute and --from-kek say what to take from a ring", hint="give --from")
    check_target(file, overwrite=False, lasting=True)
    types = Types.load(load_names(names_file), type_files, parent, previous, session.now).by_name.values()
    kek = load_kek(kek_file, kek_passphrase_file)
    if source is None:
        ring = _drawn((scope for one in types for scope in _scopes(one, ())), session)
    else:
        whole = load_ring(source, from_kek or kek_file, kek_passphrase_file if from_kek is None else None)
        ring = _taken(whole, types, attributes)
    write_key_ring(Path(file), ring, kek, session.random)
    _say_written(file, kek, output, keys=len([*ring.items()]))


def _scopes(event_type: EventType, attributes: tuple[str, ...]) -> Iterator[str]:
    """Yield what there are keys of: all, or the type and some attributes.

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
    """Return what a ring has of some types, which must be there, and so must attributes that are named.

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
        "seal.unknown-key", f"the ring has no key of `{name}`", hint="take it from a ring that has, or do without"
    )


def show_kek(file: str, output: str) -> bool:
    """Show which key-encryption key a file holds, or lies under if it is a key ring; say whether it is one of them.

    Raises `MalformedError` (`keys.kek`) for a key-encryption key that was changed.
    """
    data = read_bytes(file)
    under = kek_of(data)
    if under is not None:
        _say_kek(file, "key ring", under, output)
        return True
    if not data.lstrip().startswith(_KEK_FILES):
        return False
    stored = read_stored_kek(Path(file))
    if isinstance(stored, ProtectedKek):
        _say_kek(file, "key-encryption key, under a passphrase", stored.id, output)
    else:
        _say_kek(file, "key-encryption key", kek_id(stored), output)
    return True


def _say_kek(file: str, kind: str, found: bytes, output: str) -> None:
    if output == JSON:
        say_json({"file": file, "kind": kind, "kek": found.hex()})
        return
    say(f"file                {kind}")
    say(f"key-encryption key  {found.hex()}")


def _say_written(file: str, kek: Secret, output: str, **more: object) -> None:
    if output == JSON:
        say_json({"file": file, "kek": kek_id(kek).hex(), **more})
        return
    say(f"wrote {file}")
    say(f"key-encryption key  {kek_id(kek).hex()}")


# ----------------------------------------------------------------------------------------------------------------------
# `penstock key`: make keys and quorums, and see which principals they are.


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
    session: CommandSession,
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


def _show_quorum(quorum: Threshold, names: NameBook, output: str) -> None:
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


def _petname(principal: Principal, names: NameBook) -> dict[str, object]:
    return {"name": names.petnames[principal]} if principal in names.petnames else {}


def _kind(stored: PublicKey | SigningKey | ProtectedKey) -> str:
    if isinstance(stored, PublicKey):
        return "public"
    return "protected" if isinstance(stored, ProtectedKey) else "private"


key.add_command(new_kek_command)
key.add_command(new_ring)
