"""A rule book as a whole: create it from a file, show its log, verify it, export it to a file."""

from dataclasses import replace

import click

from penstock.apps.cli.moderator.changes import WhoOptions, nobody
from penstock.apps.cli.moderator.output import step_data, step_row
from penstock.apps.cli.moderator.sources import (
    LEDGER,
    BookOptions,
    Cast,
    held,
    load_bundle,
    load_rules,
    named_store,
    no_effect_option,
    store_at,
)
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
    until_answered,
)
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.files import write_bytes
from penstock.apps.cli.shared.names import NameBook, remembering
from penstock.apps.cli.shared.options import KeyOptions, NamesOption, OutputFile, open_key, passphrase_option
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.stores import counting, dry_run_option, head_text, parse_heads
from penstock.apps.cli.shared.terminal import grid_table
from penstock.authority.rulebook import RuleBook
from penstock.codec.sexp import transport
from penstock.codec.yaml_text import write_yaml
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.model.principals import Principal
from penstock.moderator.base.base import RuleBase
from penstock.moderator.files.founding import Founding
from penstock.moderator.files.rule_bundle import from_founding, join, sign_bundle, to_founding
from penstock.moderator.files.rule_file import RuleFile, principal_of, write_rule_file
from penstock.moderator.rules.steps import RuleStatus
from penstock.moderator.settlement.undo import undone
from penstock.store.files.strict_tables import check_petname
from penstock.store.ledgers.ledgers import EMPTY
from penstock.trust.signed import sign_value

_MANY = 50


@option_class
class _Init:
    file: str = argument()
    who: WhoOptions
    unsigned: bool = option(
        "--unsigned",
        is_flag=True,
        help="Accept requests without signatures: to try it out, or if everybody trusts everybody.",
    )
    why: str = option("--why", default="", metavar="TEXT", help="Record this reason in the log.")
    dry_run: bool = dry_run_option()
    book: BookOptions
    output: str = output_option()


@command(
    example="""
penstock moderator init rules.yaml --store sqlite:rules.db --key plant.key
penstock moderator init rules.yaml --store sqlite:try.db --unsigned --as plant
"""
)
def init(session: CommandSession, options: _Init) -> CommandAnswer:
    """Create a rule book. You are its moderator.

    The rule book starts with the tree, attributes, profiles and customs in FILE.

    With --unsigned, principals that you do not know yet are remembered by their names in FILE, so that --as accepts
    them.

    The rules in FILE are stated by their publishers: `penstock moderator add --from FILE --key …`.
    """
    names = options.book.names.load()
    rules = load_rules(options.file, names)
    if options.unsigned is (options.who.key_file is not None):
        raise MalformedError(
            "cli.usage",
            "either the moderator signs, or nothing is signed",
            hint="give --key FILE, or --unsigned --as WHO",
        )
    key = options.who.key()
    if key is None and options.who.as_who is None:
        raise nobody()
    moderator = key.principal if key is not None else _somebody(options.who.as_who or "", names, rules)
    ledger = options.book.ledger
    store_url = named_store(options.book.store_url)
    founding = to_founding(rules, ledger, moderator, session.now, unsigned=key is None)
    if options.dry_run:
        url = _free(store_url, ledger)
    else:
        with store_at(store_url, create=True) as store:
            url = store.url
            if key is None:
                RuleBook.create_unsigned(store.ledger(ledger), founding, session.now, options.why)
            else:
                signed = sign_value(founding, key).unverified()
                RuleBook.create(store.ledger(ledger), signed, session.now, options.why)
    if options.unsigned:
        _remember(rules, names, options.book.names.names_file, dry_run=options.dry_run)
    types, stated = len(rules.vocabulary.tree.parents), len(rules.stated)
    data = {
        "store": url,
        "ledger": ledger,
        "written": not options.dry_run,
        "moderator": str(moderator),
        "types": types,
        "rules_to_state": stated,
    }
    shown = [
        f"{'would begin' if options.dry_run else 'began'} `{ledger}` in {url}",
        f"{counted(types, 'event type')}; {counted(stated, 'rule')} in {options.file} for their publishers to state",
    ]
    return CommandAnswer(data, shown)


def _free(store_url: str, ledger: str) -> str:
    """Return the URL at which a rule book would begin. Raises `RefusedError` (`moderator.book-exists`)."""
    try:
        with store_at(store_url) as store:
            url, taken = store.url, store.ledger(ledger).head() != EMPTY
    except FailedError as error:
        if error.code != "store.missing":
            raise
        # Only files can be missing, and their names contain no password.
        return store_url
    if taken:
        raise RefusedError("moderator.book-exists", f"the ledger `{ledger}` is not empty", hint="choose another name")
    return url


def is_petname(name: str) -> bool:
    """Return whether a name can be a petname."""
    try:
        check_petname(name)
    except MalformedError:
        return False
    return True


def _somebody(word: str, names: NameBook, rules: RuleFile) -> Principal:
    for principal, name in rules.names.items():
        if name == word:
            return principal
    return names.principal(word)


def _remember(rules: RuleFile, names: NameBook, names_file: str | None, *, dry_run: bool) -> None:
    """Store the names of a file that are still free: without a key, a principal is known by its name alone."""
    for principal, name in rules.names.items():
        if name not in names.by_name and principal == principal_of(name) and is_petname(name):
            with remembering(name, principal, names_file, replace=False, dry_run=dry_run):
                pass


@option_class
class _Log:
    last: int = option(
        "--last",
        type=click.IntRange(min=1),
        default=_MANY,
        show_default=True,
        metavar="N",
        help="Show this many steps.",
    )
    book: BookOptions
    dry_run: bool = no_effect_option()
    output: str = output_option()


@command(example="penstock moderator log --store sqlite:rules.db --last 10")
def log(options: _Log) -> CommandAnswer:
    """Show the last steps, who requested them and why.

    To see what a step changed, run `penstock moderator explain --step N`, or use `-o json`.
    """
    source, book = until_answered(options.book.opened())
    steps, void = book.base.steps[-options.last :], undone(book.base)
    undone_by = {number: by.number for number, by in void.items()}
    rows = [step_row(step, source.cast, void) for step in steps]

    def data() -> dict[str, object]:
        shown = [{**step_data(step, source.cast), "undone_by": undone_by.get(step.number)} for step in steps]
        return {"store": source.where, "steps": shown}

    table = grid_table(("step", "when", "who", "asked to", "what came of it", "why"), rows)
    return CommandAnswer(data, [table if rows else "no steps yet"])


@option_class
class _Verify:
    heads: tuple[str, ...] = option(
        "--head",
        multiple=True,
        metavar="HEAD",
        help="Compare with a head that you noted, as LEDGER:NUMBER:HASH. Can be repeated.",
    )
    book: BookOptions
    output: str = output_option()


@command(example="penstock moderator verify --store sqlite:rules.db")
def verify(options: _Verify) -> CommandAnswer:
    """Verify the chain, signatures and steps of a rule book.

    Each step must be the result of its request, and the request must be signed by somebody who may make it.
    """
    known = parse_heads(options.heads).get(options.book.ledger, EMPTY)
    with options.book.opened() as (source, book), counting("verified") as progress:
        head = book.verify(known, progress)
        steps = book.base.next_number - 1
    noted = head_text(options.book.ledger, head)
    data = {"ok": True, "store": source.where, "steps": steps, "changes": head.number, "head": noted}
    return CommandAnswer(data, [f"✓ {counted(steps, 'step')}, each as its signature says  {noted}"])


@option_class
class _Keep:
    key: KeyOptions
    book: BookOptions
    output: str = output_option()


@command(example="penstock moderator keep --key plant.key")
def keep(options: _Keep) -> CommandAnswer:
    """Save a snapshot, from which the rule book opens quickly.

    Only the moderator can save one, and signs it: others then open the book without reading all steps before it.
    `penstock moderator verify` ignores snapshots.
    """
    with options.book.opened() as (source, book):
        book.keep(options.key.open())
        steps, head = book.base.next_number - 1, head_text(options.book.ledger, book.head)
    data = {"kept": True, "store": source.where, "steps": steps, "head": head}
    return CommandAnswer(data, [f"✓ kept what {counted(steps, 'step')} came to  {head}"])


# ----------------------------------------------------------------------------------------------------------------------
# Rule bases as files: signed by each publisher, combined, and written as YAML.


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
    """Return the rules of a rule book: those that were stated and have not ended, or the forms in force."""
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
