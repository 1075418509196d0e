"""`penstock name`: your own names for principals."""

from pathlib import Path

import click

from penstock.apps.cli.shared.groups import Verbs, example
from penstock.apps.cli.shared.names import NameBook, complete_who, forget, load_names, remembering
from penstock.apps.cli.shared.names import names_file as file_of_names
from penstock.apps.cli.shared.options import JSON, names_option, output_option
from penstock.apps.cli.shared.session import say, say_json


@click.group(cls=Verbs)
def name() -> None:
    """Your own names for principals."""


@name.command("add")
@click.argument("petname", metavar="NAME")
@click.argument("who", shell_complete=complete_who)
@click.option("--overwrite", is_flag=True, help="Use the name for WHO also where you know somebody else by it.")
@click.option("--dry-run", is_flag=True, help="Do everything but write the file.")
@output_option()
@names_option
@example("penstock name add met met.pub")
def add(  # noqa: PLR0913  # one argument an option
    *, petname: str, who: str, overwrite: bool, dry_run: bool, output: str, names_file: str | None
) -> None:
    """Remember WHO, a principal or a key or quorum file, under a NAME of yours."""
    names = load_names(names_file) if Path(file_of_names(names_file)).exists() else NameBook.of({})
    principal = names.principal(who)
    with remembering(petname, principal, names_file, replace=overwrite, dry_run=dry_run):
        pass
    if output == JSON:
        say_json({"name": petname, "principal": str(principal), "written": not dry_run})
    else:
        say(f"{petname}  {principal}")


@name.command("remove")
@click.argument("petname", metavar="NAME", shell_complete=complete_who)
@click.option("--dry-run", is_flag=True, help="Do everything but write the file.")
@output_option()
@names_option
@example("penstock name remove met")
def remove(*, petname: str, dry_run: bool, output: str, names_file: str | None) -> None:
    """Forget a NAME; nothing but the name is lost."""
    forget(petname, names_file, dry_run=dry_run)
    if output == JSON:
        say_json({"name": petname, "written": not dry_run})
    else:
        say(f"{'would forget' if dry_run else 'forgot'} {petname}")


@name.command("list")
@output_option()
@names_option
@example("penstock name list")
def list_(*, output: str, names_file: str | None) -> None:
    """List your names and whom they mean."""
    names = load_names(names_file)
    if output == JSON:
        say_json({"names": {known: str(principal) for known, principal in names.by_name.items()}})
        return
    width = max(map(len, names.by_name), default=0)
    for known, principal in names.by_name.items():
        say(f"{known:{width}}  {principal}")
