"""`penstock key new-kek` and `new-ring`: what keys of sealed events lie under, and a ring of new ones."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import click

from penstock.apps.cli.files import check_target, read_bytes
from penstock.apps.cli.groups import example
from penstock.apps.cli.names import load_names
from penstock.apps.cli.options import JSON, names_option, output_option, passphrase
from penstock.apps.cli.seal_options import Types, kek_passphrase_option, load_kek, load_ring, types_options
from penstock.apps.cli.session import Session, say, say_json
from penstock.crypto.kek import ProtectedKek, StoredKek, kek_id, new_kek, protect_kek
from penstock.crypto.seal_keys import KeyRing, column_scope, label_scope
from penstock.crypto.wrapping import SECRET_BYTES, Secret
from penstock.errors import MalformedError, RefusedError
from penstock.model.types import EventType, Sealing
from penstock.store.keks import create_kek, read_stored_kek
from penstock.store.key_rings import kek_of, write_key_ring

_FIRST_EPOCH = 1
_KEK_FILES = (b"(kek", b"(protected-kek")


@click.command("new-kek")
@click.argument("file")
@click.option("--passphrase", "protected", is_flag=True, help="Ask for a passphrase and keep the key under it.")
@click.option("--passphrase-file", metavar="FILE", help="Keep the key under the passphrase in this file's first line.")
@output_option()
@click.pass_obj
@example("penstock key new-kek plates.kek")
def new_kek_command(session: Session, *, file: str, protected: bool, passphrase_file: str | None, output: str) -> None:
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
    session: Session,
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


def _drawn(scopes: Iterable[str], session: Session) -> KeyRing:
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
