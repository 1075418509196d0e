"""Rule bases as files: signed by each for its own, put together, and written as YAML."""

from dataclasses import replace

from penstock.apps.cli.moderator.sources import LEDGER, BookOptions, Cast, held, load_bundle, load_rules
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.files import write_bytes
from penstock.apps.cli.shared.options import NamesOption, OutputFile, open_key, passphrase_option
from penstock.apps.cli.shared.session import CommandSession
from penstock.codec.sexp import transport
from penstock.codec.yaml_text import write_yaml
from penstock.model.principals import Principal
from penstock.moderator.base.base import RuleBase
from penstock.moderator.files.founding import Founding
from penstock.moderator.files.rule_bundle import from_founding, join, sign_bundle, to_founding
from penstock.moderator.files.rule_file import RuleFile, write_rule_file
from penstock.moderator.rules.steps import RuleStatus

_LIVE = (RuleStatus.IN_FORCE, RuleStatus.REJECTED, RuleStatus.WAITING, RuleStatus.LEFT)


@option_class
class _Sign:
    file: str = argument()
    key_files: tuple[str, ...] = option(
        "--key", multiple=True, required=True, metavar="FILE", help="Sign with this private key. Can be repeated."
    )
    passphrase_file: str | None = passphrase_option()
    found: bool = option(
        "--found",
        is_flag=True,
        help="Sign the tree, attributes and profiles too, as the moderator (with the first key).",
    )
    names: NamesOption
    destination: OutputFile
    output: str = output_option()


@command(example="penstock moderator sign rules.yaml --key acme.key --out acme.rules")
def sign(session: CommandSession, options: _Sign) -> CommandAnswer:
    """Sign your rules in FILE as a bundle that others can verify.

    Each organisation signs its own rules, and `penstock moderator export` joins the bundles. All commands that accept a
    rule base in a file also accept a bundle.
    """
    names, destination = options.names.load(), options.destination
    destination.check()
    rules = load_rules(options.file, names)
    keys = [open_key(key_file, options.passphrase_file) for key_file in options.key_files]
    founding = to_founding(rules, LEDGER, keys[0].principal, session.now) if options.found else None
    bundle = sign_bundle(rules, keys, founding)
    value, ids = bundle.to_sexp(), [rule.value.id for rule in bundle.rules]
    data = {"rules": ids, "found": options.found, "bundle": transport(value).decode()}
    line = f"{counted(len(bundle.rules), 'signed rule')} of {len(rules.stated):,} in {options.file}"
    return destination.answer(value, data, [line])


@option_class
class _Export:
    bundles: tuple[str, ...] = argument(nargs=-1)
    in_force: bool = option(
        "--in-force",
        is_flag=True,
        help="Write only the rules of the rule book that are in force, in their current form.",
    )
    book: BookOptions
    destination: OutputFile
    output: str = output_option()


@command(
    example="""
penstock moderator export plant.rules acme.rules bolt.rules --out rules.yaml
penstock moderator export --store sqlite:rules.db --out rules.yaml
"""
)
def export(session: CommandSession, options: _Export) -> CommandAnswer:
    """Write a rule base as YAML, from BUNDLES or from a rule book.

    Every signature in BUNDLES is verified, and one of them must contain the tree and the attributes (`sign --found`).
    """
    destination = options.destination
    destination.check()
    names = options.book.names.load()
    if options.bundles:
        verified = join(map(load_bundle, options.bundles)).verify()
        rules = _named(verified, Cast(names))
    else:
        with options.book.opened() as (source, book), held(book, session.now):
            rules = _named(_of_book(book.founding, book.base, in_force=options.in_force), source.cast)
    text = write_yaml(write_rule_file(rules))
    if destination.written and destination.out is not None:
        write_bytes(destination.out, text.encode(), overwrite=destination.overwrite)
    data = {"rules": [request.rule.id for request in rules.stated], "yaml": text, **destination.as_dict()}
    done = [destination.line(), counted(len(rules.stated), "rule")]
    return CommandAnswer(data, text.rstrip("\n").split("\n") if destination.out is None else done)


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
