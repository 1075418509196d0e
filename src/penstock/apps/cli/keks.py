"""`penstock key new-kek` and `new-ring`: what keys of sealed events lie under, and a ring of new ones."""

from pathlib import Path

import click

from penstock.apps.cli.files import check_target
from penstock.apps.cli.groups import example
from penstock.apps.cli.names import load_names
from penstock.apps.cli.options import JSON, names_option, output_option, passphrase
from penstock.apps.cli.seal_options import Types, kek_passphrase_option, load_kek, types_options
from penstock.apps.cli.session import Session, say, say_json
from penstock.crypto.kek import StoredKek, kek_id, new_kek, protect_kek
from penstock.crypto.seal_keys import KeyRing, column_scope, label_scope
from penstock.crypto.wrapping import SECRET_BYTES, Secret
from penstock.store.keks import create_kek
from penstock.store.key_rings import write_key_ring

_FIRST_EPOCH = 1


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
@output_option()
@names_option
@click.pass_obj
@example("penstock key new-ring plates.ring --kek plates.kek --type numberplate.type")
def new_ring(  # noqa: PLR0913  # one argument an option
    session: Session,
    *,
    file: str,
    type_files: tuple[str, ...],
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    kek_file: str,
    kek_passphrase_file: str | None,
    output: str,
    names_file: str | None,
) -> None:
    """Make a key ring in FILE with new keys, drawn at random, for types and all their attributes.

    It is for events that are sealed in files and opened by whom you give the ring: brokers get their keys from a key
    group, and do not know these.
    """
    check_target(file, overwrite=False, lasting=True)
    types = Types.load(load_names(names_file), type_files, parent, previous, session.now)
    kek, ring = load_kek(kek_file, kek_passphrase_file), KeyRing()
    for event_type in types.by_name.values():
        labels = [label_scope(event_type.key)] if event_type.blinded else []
        own = (column_scope(event_type.key, a.id) for a in event_type.attributes)
        for scope in (str(event_type.key), *labels, *own):
            ring.put(scope, _FIRST_EPOCH, Secret(session.random(SECRET_BYTES)))
    write_key_ring(Path(file), ring, kek, session.random)
    _say_written(file, kek, output, keys=len([*ring.items()]))


def _say_written(file: str, kek: Secret, output: str, **more: object) -> None:
    if output == JSON:
        say_json({"file": file, "kek": kek_id(kek).hex(), **more})
        return
    say(f"wrote {file}")
    say(f"key-encryption key  {kek_id(kek).hex()}")
