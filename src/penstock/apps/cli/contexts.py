"""`penstock context`: what daily commands connect with, stored under names."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from penstock.apps.cli.shared.broker_client import complete_context
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.options import WHO, NamesOption
from penstock.apps.cli.shared.session import Verbs
from penstock.apps.cli.shared.terminal import Shown, fact_table, grid_table
from penstock.broker.wire.transports import address_of
from penstock.errors import MalformedError, RefusedError
from penstock.store.files.contexts import (
    VARIABLE,
    ConnectionContext,
    ContextFile,
    changing_contexts,
    check_context_name,
)
from penstock.store.files.files import read_file
from penstock.store.files.name_book import names_file

_HEADINGS = {"type_file": "type", "broker_principal": "broker identity"}


@click.group(cls=Verbs)
def context() -> None:
    """Store what to connect with, so that daily commands need no options.

    A context holds a broker, a network, and the paths of a key, certificates, petnames and an event type. Options and
    environment variables override it. $PENSTOCK_CONTEXT names the context of one shell; if it is empty, none is used.
    """


@option_class
class _Add:
    name: str = argument(metavar="NAME")
    broker: str = option("--broker", default="", metavar="URL", help="Connect to penstock://HOST:PORT.")
    broker_principal: str = option("--broker-principal", default="", **WHO, help="Require this broker identity.")
    network: str = option("--network", default="", metavar="OWNER/NAME", help="Use this network.")
    key_file: str = option("--key", default="", metavar="FILE", help="Connect with this private key.")
    credentials: tuple[str, ...] = option(
        "--credential", multiple=True, metavar="FILE", help="Show the broker these certificates. Can be repeated."
    )
    type_file: str = option(
        "--type-file",
        default="",
        metavar="FILE",
        help="Publish and subscribe to this signed type by default.",
    )
    use: bool = option("--use", is_flag=True, help="Use it from now on. The first context is always used.")
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace a context of this name.")
    dry_run: bool = option("--dry-run", is_flag=True, help="Do everything except write the file.")
    output: str = output_option()
    names: NamesOption


@command(
    context,
    "add",
    example="penstock context add demo --broker penstock://127.0.0.1:7600 --network acme/demo --key reader.key --use",
)
def add(options: _Add) -> CommandAnswer:
    """Add a context. Its files must exist; their paths are stored, and nothing of what they contain."""
    check_context_name(options.name)
    names = options.names.load()
    broker = names.principal(options.broker_principal) if options.broker_principal else None
    if options.broker:
        address_of(options.broker, broker, None)
    book = Path(names_file(options.names.names_file))
    made = ConnectionContext(
        broker=options.broker,
        broker_principal="" if broker is None else str(broker),
        network=str(names.network(options.network)) if options.network else "",
        key=_existing(options.key_file),
        credentials=tuple(map(_existing, options.credentials)),
        names=str(book.absolute()) if book.is_file() else "",
        type_file=_existing(options.type_file),
    )
    if not (made.broker or made.network or made.key):
        raise MalformedError("cli.usage", "the context is empty", hint="give --broker, --network or --key")
    with changing_contexts(dry_run=options.dry_run) as stored:
        if options.name in stored.contexts and not options.overwrite:
            raise RefusedError(
                "context.exists", f"there is a context `{options.name}`", hint="choose another name, or say --overwrite"
            )
        use = options.use or not stored.current
        current = options.name if use else stored.current
        changed = replace(stored, current=current, contexts={**stored.contexts, options.name: made})
        _save(changed, dry_run=options.dry_run)
    done = f"{'would add' if options.dry_run else 'added'} context {options.name}{', which is now in use' * use}"
    data = {"name": options.name, **made.as_dict(), "current": use, "written": not options.dry_run}
    return CommandAnswer(data, [done])


def _existing(file: str) -> str:
    if not file:
        return ""
    read_file(file)
    return str(Path(file).absolute())


def _save(changed: ContextFile, *, dry_run: bool) -> None:
    if not dry_run:
        changed.save()


@option_class
class _Use:
    name: str = argument(metavar="NAME", shell_complete=complete_context)
    dry_run: bool = option("--dry-run", is_flag=True, help="Do everything except write the file.")
    output: str = output_option()


@command(context, "use", example="penstock context use demo-reader")
def use(options: _Use) -> CommandAnswer:
    """Use a context from now on."""
    with changing_contexts(dry_run=options.dry_run) as stored:
        stored.get(options.name)
        _save(replace(stored, current=options.name), dry_run=options.dry_run)
    line = f"{'would use' if options.dry_run else 'using'} context {options.name}"
    return CommandAnswer({"name": options.name, "written": not options.dry_run}, [line])


@option_class
class _Show:
    name: str | None = argument(metavar="[NAME]", required=False, shell_complete=complete_context)
    output: str = output_option()
    names: NamesOption


@command(context, "show", example="penstock context show")
def show(options: _Show) -> CommandAnswer:
    """Show a context (default: the one in use)."""
    stored = ContextFile.load()
    name = options.name or _in_use(stored)
    if not name:
        raise RefusedError("context.unknown", "no context is in use", hint="choose one: `penstock context use NAME`")
    found = stored.get(name)
    names = options.names.load(found.names or None)

    def shown() -> Iterator[Shown]:
        yield fact_table([("context", name), *((_HEADINGS.get(key, key), _words(value)) for key, value in facts())])

    def facts() -> Iterator[tuple[str, object]]:
        for key, value in found.as_dict().items():
            owner, slash, rest = str(value).partition("/")
            yield key, f"{names.show_text(owner)}{slash}{rest}" if key == "network" else value

    return CommandAnswer({"name": name, "current": name == _in_use(stored), **found.as_dict()}, shown())


def _in_use(stored: ContextFile) -> str:
    return os.environ.get(VARIABLE, stored.current)


def _words(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


@option_class
class _List:
    output: str = output_option()


@command(context, "list", example="penstock context list")
def list_(options: _List) -> CommandAnswer:  # noqa: ARG001  # `-o` is read where the answer is printed
    """List the contexts, and mark the one in use."""
    stored = ContextFile.load()
    current = _in_use(stored)
    data = {
        "current": current or None,
        "file": str(stored.path),
        "contexts": [{"name": name, **one.as_dict()} for name, one in stored.contexts.items()],
    }
    rows = [
        ("*" if name == current else "", name, one.broker, one.network.rpartition("/")[2], one.key)
        for name, one in sorted(stored.contexts.items())
    ]
    shown = [grid_table(("", "context", "broker", "network", "key"), rows)] if rows else ["there is no context"]
    return CommandAnswer(data, shown)


@option_class
class _RemoveCredential:
    name: str = argument(metavar="NAME", shell_complete=complete_context)
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    dry_run: bool = option("--dry-run", is_flag=True, help="Do everything except write the file.")
    output: str = output_option()


@command(context, "remove-credential", example="penstock context remove-credential demo-reader old.cert")
def remove_credential(options: _RemoveCredential) -> CommandAnswer:
    """Remove certificates from a context. FILE need not exist any more, and stays if it does."""
    with changing_contexts(dry_run=options.dry_run) as stored:
        found = stored.get(options.name)
        unwanted = {Path(file).resolve() for file in options.files}
        left = tuple(file for file in found.credentials if Path(file).resolve() not in unwanted)
        unknown = unwanted - {Path(file).resolve() for file in found.credentials}
        if unknown:
            raise RefusedError(
                "context.credential",
                f"context `{options.name}` does not name {min(unknown)}",
                hint=f"`penstock context show {options.name}` lists its certificates",
            )
        contexts = {**stored.contexts, options.name: replace(found, credentials=left)}
        _save(replace(stored, contexts=contexts), dry_run=options.dry_run)
    count = len(found.credentials) - len(left)
    line = f"{'would remove' if options.dry_run else 'removed'} {counted(count, 'certificate')} from {options.name}"
    return CommandAnswer({"name": options.name, "credentials": [*left], "written": not options.dry_run}, [line])


@option_class
class _Remove:
    name: str = argument(metavar="NAME", shell_complete=complete_context)
    dry_run: bool = option("--dry-run", is_flag=True, help="Do everything except write the file.")
    output: str = output_option()


@command(context, "remove", example="penstock context remove demo-reader")
def remove(options: _Remove) -> CommandAnswer:
    """Remove a context. The files that it names stay."""
    with changing_contexts(dry_run=options.dry_run) as stored:
        stored.get(options.name)
        left = {name: one for name, one in stored.contexts.items() if name != options.name}
        current = "" if stored.current == options.name else stored.current
        _save(replace(stored, current=current, contexts=left), dry_run=options.dry_run)
    line = f"{'would remove' if options.dry_run else 'removed'} context {options.name}"
    return CommandAnswer({"name": options.name, "written": not options.dry_run}, [line])
