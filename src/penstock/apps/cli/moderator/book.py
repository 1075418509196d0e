"""A rule book as a whole: founded from a file, its log shown, all of it verified."""

from dataclasses import dataclass
from typing import Any

import click

from penstock.apps.cli.moderator.execution import nobody, who_options
from penstock.apps.cli.moderator.output import step_data, step_row
from penstock.apps.cli.moderator.sources import (
    asking_option,
    book_options,
    load_rules,
    named_store,
    opened_book,
    store_at,
)
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.groups import example
from penstock.apps.cli.shared.names import NameBook, load_names, remembering
from penstock.apps.cli.shared.options import JSON, key_options, open_key, output_option
from penstock.apps.cli.shared.session import CommandSession, say_json
from penstock.apps.cli.store.options import counting, dry_run_option, head_text, parse_heads
from penstock.authority.rulebook import RuleBook
from penstock.crypto import SigningKey
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.model.principals import Principal
from penstock.moderator.files.rule_bundle import to_founding
from penstock.moderator.files.rule_file import RuleFile, principal_of
from penstock.moderator.settlement.undo import undone
from penstock.store.files.strict_tables import check_petname
from penstock.store.ledgers.records import EMPTY
from penstock.trust.signed import sign_value

_MANY = 50


@click.command()
@click.argument("file")
@who_options
@click.option("--unsigned", is_flag=True, help="Take requests without signatures: for a try, or where all trust all.")
@click.option("--why", default="", metavar="TEXT", help="Why, for whoever reads the log.")
@dry_run_option
@book_options
@output_option()
@click.pass_obj
@example(
    """
penstock moderator init rules.yaml --store sqlite:rules.db --key plant.key
penstock moderator init rules.yaml --store sqlite:try.db --unsigned --as plant
"""
)
def init(session: CommandSession, /, *, file: str, **how: Any) -> None:
    """Begin a rule book; you are its moderator.

    It begins with what FILE says of the tree, the attributes, profiles and customs.

    Without signatures, whom you do not know is remembered by the name in FILE, so that --as takes it.

    The rules of FILE are for those to state whose rules they are: `penstock moderator add --from FILE --key …`.
    """
    names = load_names(how["names_file"])
    beginning = _Beginning.of(file, names, **how)
    rules = beginning.rules
    url = beginning.begin(session)
    if how["unsigned"]:
        _remember(rules, names, how["names_file"], dry_run=how["dry_run"])
    if how["output"] == JSON:
        say_json(
            {
                "store": url,
                "ledger": beginning.ledger,
                "written": not beginning.dry_run,
                "moderator": str(beginning.moderator),
                "types": len(rules.vocabulary.tree.parents),
                "rules_to_state": len(rules.stated),
            }
        )
        return
    paint.line(f"{'would begin' if beginning.dry_run else 'began'} `{beginning.ledger}` in {url}")
    types, stated = len(rules.vocabulary.tree.parents), len(rules.stated)
    paint.line(f"{counted(types, 'event type')}; {counted(stated, 'rule')} in {file} for their publishers to state")


@dataclass(frozen=True, slots=True)
class _Beginning:
    """A rule book that is to be begun."""

    rules: RuleFile
    store_url: str
    ledger: str
    moderator: Principal
    key: SigningKey | None
    why: str
    dry_run: bool

    @classmethod
    def of(  # noqa: PLR0913  # one argument an option
        cls,
        file: str,
        names: NameBook,
        *,
        key_file: str | None,
        passphrase_file: str | None,
        as_who: str | None,
        unsigned: bool,
        why: str,
        dry_run: bool,
        store_url: str | None,
        ledger: str,
        names_file: str | None,
        output: str,
    ) -> "_Beginning":
        del names_file, output
        rules = load_rules(file, names)
        if unsigned is (key_file is not None):
            raise MalformedError(
                "cli.usage", "the moderator signs, or nothing is signed", hint="give --key FILE, or --unsigned --as WHO"
            )
        key = None if key_file is None else open_key(key_file, passphrase_file)
        if key is None and as_who is None:
            raise nobody()
        moderator = key.principal if key is not None else _somebody(as_who or "", names, rules)
        return cls(rules, named_store(store_url), ledger, moderator, key, why, dry_run)

    def begin(self, session: CommandSession) -> str:
        """Begin it, unless that is rehearsed; return where."""
        unsigned = self.key is None
        founding = to_founding(self.rules, self.ledger, self.moderator, session.now, unsigned=unsigned)
        if self.dry_run:
            return self._free()
        with store_at(self.store_url, create=True) as store:
            ledger = store.ledger(self.ledger)
            if self.key is None:
                RuleBook.create_unsigned(ledger, founding, session.now, self.why)
            else:
                RuleBook.create(ledger, sign_value(founding, self.key).unverified(), session.now, self.why)
            return store.url

    def _free(self) -> str:
        """Return where it would begin. Raises `RefusedError` (`moderator.book-exists`)."""
        try:
            with store_at(self.store_url) as store:
                url, taken = store.url, store.ledger(self.ledger).head() != EMPTY
        except FailedError as error:
            if error.code != "store.missing":
                raise
            # Only files can be missing, and their names hold no password.
            return self.store_url
        if taken:
            raise RefusedError(
                "moderator.book-exists", f"there is something in `{self.ledger}` already", hint="choose another name"
            )
        return url


def is_petname(name: str) -> bool:
    """Say whether something can be a petname."""
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
    """Keep the names of a file that stand for nobody else: whoever asks without a key is known by a name alone."""
    for principal, name in rules.names.items():
        if name not in names.by_name and principal == principal_of(name) and is_petname(name):
            with remembering(name, principal, names_file, replace=False, dry_run=dry_run):
                pass


@click.command()
@click.option("--last", type=click.IntRange(min=1), default=_MANY, show_default=True, metavar="N", help="How many.")
@book_options
@asking_option
@output_option()
@example("penstock moderator log --store sqlite:rules.db --last 10")
def log(*, last: int, output: str, **where: Any) -> None:
    """Show the last steps, who asked for them and why.

    What changed in each is in `penstock moderator explain --step N`, and in `-o json`.
    """
    with opened_book(**where) as (source, book):
        steps = book.base.steps[-last:]
        void = undone(book.base)
        if output == JSON:
            undone_by = {number: by.number for number, by in void.items()}
            told = [{**step_data(step, source.cast), "undone_by": undone_by.get(step.number)} for step in steps]
            say_json({"store": source.where, "steps": told})
            return
        rows = [step_row(step, source.cast, void) for step in steps]
        if rows:
            paint.grid(("step", "when", "who", "asked to", "what came of it", "why"), rows)
        else:
            paint.line("no steps yet")


@click.command()
@click.option("--head", "heads", multiple=True, metavar="HEAD", help="A head that you noted, as LEDGER:NUMBER:HASH.")
@book_options
@output_option()
@example("penstock moderator verify --store sqlite:rules.db")
def verify(*, heads: tuple[str, ...], output: str, **where: Any) -> None:
    """Verify chain, signatures and steps of a rule book.

    Each step has to be what comes of its request, and that to be signed by somebody who may ask for it.
    """
    known = parse_heads(heads).get(where["ledger"], EMPTY)
    with opened_book(**where) as (source, book), counting("verified") as told:
        head = book.verify(known, told)
        steps = book.base.next_number - 1
    noted = head_text(where["ledger"], head)
    if output == JSON:
        say_json({"ok": True, "store": source.where, "steps": steps, "changes": head.number, "head": noted})
    else:
        paint.line(f"✓ {counted(steps, 'step')}, each as its signature says  {noted}")


@click.command()
@key_options
@book_options
@output_option()
@example("penstock moderator keep --key plant.key")
def keep(*, key_file: str, passphrase_file: str | None, output: str, **where: Any) -> None:
    """Keep a snapshot, from which the rule book opens quickly.

    It is the moderator's to keep, who signs it: others open the book from it without reading all steps before it.
    `penstock moderator verify` goes by the steps alone.
    """
    with opened_book(**where) as (source, book):
        book.keep(open_key(key_file, passphrase_file))
        steps, head = book.base.next_number - 1, head_text(where["ledger"], book.head)
    if output == JSON:
        say_json({"kept": True, "store": source.where, "steps": steps, "head": head})
    else:
        paint.line(f"✓ kept what {counted(steps, 'step')} came to  {head}")
