"""Rule bases as files: signed by each for its own, put together, and written as YAML."""

from dataclasses import replace
from typing import Any

import click

from penstock.apps.cli.moderator.sources import LEDGER, Cast, book_options, held, load_bundle, load_rules, opened_book
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.files import Destination, write_bytes
from penstock.apps.cli.shared.groups import example
from penstock.apps.cli.shared.names import load_names
from penstock.apps.cli.shared.options import (
    JSON,
    names_option,
    open_key,
    output_option,
    passphrase_option,
    write_options,
)
from penstock.apps.cli.shared.session import CommandSession, say_block, say_json
from penstock.codec.sexp import advanced, transport
from penstock.codec.yaml_text import write_yaml
from penstock.model.principals import Principal
from penstock.moderator.base.base import RuleBase
from penstock.moderator.files.founding import Founding
from penstock.moderator.files.rule_bundle import from_founding, join, sign_bundle, to_founding
from penstock.moderator.files.rule_file import RuleFile, write_rule_file
from penstock.moderator.rules.steps import RuleStatus

_LIVE = (RuleStatus.IN_FORCE, RuleStatus.REJECTED, RuleStatus.WAITING, RuleStatus.LEFT)


@click.command()
@click.argument("file")
@click.option("--key", "key_files", multiple=True, required=True, metavar="FILE", help="A private key; repeat it.")
@passphrase_option
@click.option("--found", is_flag=True, help="Sign the tree, attributes and profiles too, as the moderator (first key).")
@names_option
@write_options
@output_option()
@click.pass_obj
@example("penstock moderator sign rules.yaml --key acme.key --out acme.rules")
def sign(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    file: str,
    key_files: tuple[str, ...],
    passphrase_file: str | None,
    found: bool,
    names_file: str | None,
    out: str | None,
    overwrite: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Sign your rules of FILE: a bundle that others can verify.

    Of several organisations each signs its own, and `penstock moderator export` puts the bundles together. All commands
    that take a rule base in a file take a bundle too.
    """
    names = load_names(names_file)
    destination = Destination.free(out, overwrite=overwrite, dry_run=dry_run)
    rules = load_rules(file, names)
    keys = [open_key(key_file, passphrase_file) for key_file in key_files]
    founding = to_founding(rules, LEDGER, keys[0].principal, session.now) if found else None
    bundle = sign_bundle(rules, keys, founding)
    value = bundle.to_sexp()
    destination.put(value)
    if output == JSON:
        ids = [rule.value.id for rule in bundle.rules]
        say_json({"rules": ids, "found": found, "bundle": transport(value).decode(), **destination.as_dict()})
    elif destination.file is None:
        say_block(advanced(value))
    else:
        paint.line(destination.line())
        paint.line(f"{counted(len(bundle.rules), 'signed rule')} of {len(rules.stated):,} in {file}")


@click.command()
@click.argument("bundles", nargs=-1)
@click.option("--in-force", is_flag=True, help="Of a rule book: only rules in force, in the form in which they are.")
@book_options
@write_options
@output_option()
@click.pass_obj
@example(
    """
penstock moderator export plant.rules acme.rules bolt.rules --out rules.yaml
penstock moderator export --store sqlite:rules.db --out rules.yaml
"""
)
def export(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    bundles: tuple[str, ...],
    in_force: bool,
    out: str | None,
    overwrite: bool,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Write a rule base as YAML, from BUNDLES or a rule book.

    Every signature in BUNDLES is verified, and one of them has to say what the rules may speak about (`sign --found`).
    """
    destination = Destination.free(out, overwrite=overwrite, dry_run=dry_run)
    names = load_names(where["names_file"])
    if bundles:
        verified = join(map(load_bundle, bundles)).verify()
        rules = _named(verified, Cast(names))
    else:
        with opened_book(**where) as (source, book), held(book, session.now):
            rules = _named(_of_book(book.founding, book.base, in_force=in_force), source.cast)
    text = write_yaml(write_rule_file(rules))
    if destination.written and destination.file is not None:
        write_bytes(destination.file, text.encode(), overwrite=overwrite)
    if output == JSON:
        say_json({"rules": [request.rule.id for request in rules.stated], "yaml": text, **destination.as_dict()})
    elif destination.file is None:
        say_block(text.rstrip("\n"))
    else:
        paint.line(destination.line())
        paint.line(f"{counted(len(rules.stated), 'rule')}")


def _of_book(founding: Founding, base: RuleBase, *, in_force: bool) -> RuleFile:
    """Return what a rule book has come to: what was stated and is not over, or the forms in force."""
    standings = [each for _, each in sorted(base.standings.items())]
    wishes = [each.stated for _, each in sorted(base.wishes.items()) if each.status in _LIVE]
    if in_force:
        rules = tuple(each.form for each in standings if each.form is not None)
    else:
        rules = tuple(each.stated for each in standings if each.status in _LIVE)
    return replace(from_founding(founding, rules, tuple(wishes)), vocabulary=base.detector.vocabulary)


def _named(rules: RuleFile, cast: Cast) -> RuleFile:
    known: dict[Principal, str] = {who: cast.show(who) for who in _everybody(rules)}
    return replace(rules, names=known)


def _everybody(rules: RuleFile) -> set[Principal]:
    found = {event.owner for event in rules.vocabulary.tree.parents} | {rules.owner}
    found |= {*rules.publishers, *rules.subscribers}
    for rule in rules.rules:
        found |= {rule.stated_by, *rule.publishers}
    for wish in rules.subscriptions:
        found |= {wish.stated_by, wish.subscriber}
    return found
