"""`penstock sealing new-kek` and `new-ring`: key-encryption keys, and rings of keys for sealed events, in files."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from penstock.apps.cli.sealed import TypesOptions, kek_passphrase_option, load_kek, load_ring
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.files import check_target, read_bytes
from penstock.apps.cli.shared.options import NamesOption, passphrase
from penstock.apps.cli.shared.session import CommandSession
from penstock.crypto.seal_keys import KeyRing, column_scope, label_scope
from penstock.crypto.wrapping import SECRET_BYTES, ProtectedKek, Secret, StoredKek, kek_id, new_kek, protect_kek
from penstock.errors import MalformedError, RefusedError
from penstock.model.types import EventType, Sealing
from penstock.store.files.key_files import create_kek, kek_of, read_stored_kek, write_key_ring

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


@command(name="new-kek", example="penstock sealing new-kek plates.kek")
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
    name="new-ring",
    example="""
penstock sealing new-ring plates.ring --kek plates.kek --type-file numberplate.type
penstock sealing new-ring office.ring --kek office.kek --type-file numberplate.type --from plates.ring \\
    --from-kek plates.kek --attribute location --attribute timestamp
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
