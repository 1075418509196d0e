"""`penstock name`: your own names for principals."""

from pathlib import Path

import click

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.names import NameBook, complete_who, forget, remembering
from penstock.apps.cli.shared.names import names_file as file_of_names
from penstock.apps.cli.shared.options import NamesOption
from penstock.apps.cli.shared.session import Verbs


@click.group(cls=Verbs)
def name() -> None:
    """Manage your own names for principals."""


@option_class
class _Add:
    petname: str = argument(metavar="NAME")
    who: str = argument(shell_complete=complete_who)
    overwrite: bool = option(
        "--overwrite", is_flag=True, help="Use the name for WHO even if it already means another principal."
    )
    dry_run: bool = option("--dry-run", is_flag=True, help="Do everything except write the file.")
    output: str = output_option()
    names: NamesOption


@command(name, "add", example="penstock name add met met.pub")
def add(options: _Add) -> CommandAnswer:
    """Remember WHO, a principal or a key or quorum file, under NAME."""
    chosen = options.names.names_file
    names = options.names.load() if Path(file_of_names(chosen)).exists() else NameBook.of({})
    principal = names.principal(options.who)
    with remembering(options.petname, principal, chosen, replace=options.overwrite, dry_run=options.dry_run):
        pass
    data = {"name": options.petname, "principal": str(principal), "written": not options.dry_run}
    return CommandAnswer(data, [f"{options.petname}  {principal}"])


@option_class
class _Remove:
    petname: str = argument(metavar="NAME", shell_complete=complete_who)
    dry_run: bool = option("--dry-run", is_flag=True, help="Do everything except write the file.")
    output: str = output_option()
    names: NamesOption


@command(name, "remove", example="penstock name remove met")
def remove(options: _Remove) -> CommandAnswer:
    """Forget NAME. Only the name is lost."""
    forget(options.petname, options.names.names_file, dry_run=options.dry_run)
    line = f"{'would forget' if options.dry_run else 'forgot'} {options.petname}"
    return CommandAnswer({"name": options.petname, "written": not options.dry_run}, [line])


@option_class
class _List:
    output: str = output_option()
    names: NamesOption


@command(name, "list", example="penstock name list")
def list_(options: _List) -> CommandAnswer:
    """List your names and the principals they stand for."""
    names = options.names.load()
    width = max(map(len, names.by_name), default=0)
    known = {name: str(principal) for name, principal in names.by_name.items()}
    return CommandAnswer({"names": known}, (f"{name:{width}}  {principal}" for name, principal in known.items()))
