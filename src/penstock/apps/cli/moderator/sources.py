"""Find the rules that a command is about: in a file, or in a rule book in a store."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from penstock.apps.cli.shared.commands import option, option_class
from penstock.apps.cli.shared.files import read_bytes, read_sexp, within
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import NamesOption
from penstock.apps.cli.shared.session import SPOKEN, Warned, speak, warn
from penstock.apps.cli.shared.stores import check_lasting
from penstock.authority.rulebook import RuleBook
from penstock.codec.sexp import parse
from penstock.codec.yaml_text import read_yaml
from penstock.errors import FailedError, MalformedError, PenstockError, did_you_mean
from penstock.model.instants import instant_key
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.moderator.base.base import RuleBase
from penstock.moderator.files.rule_bundle import RuleBundle, read_bundle
from penstock.moderator.files.rule_file import RuleFile, joined, read_rule_file
from penstock.moderator.rules.steps import CLOCK, NO_CHANGE, Note, RuleState
from penstock.moderator.settlement.addition import Customs
from penstock.moderator.settlement.undo import plan
from penstock.store.ledgers.ledgers import Store
from penstock.trust.validity import State

#: the default ledger of a rule book in a store
LEDGER: Final = "moderator"
#: the time at which rules of a file are stated if only their names are needed
_EVER: Final = datetime(2000, 1, 1, tzinfo=UTC)
_ALL_OF_THEM: Final = "`penstock moderator show` has all of them"


@option_class
class BookOptions:
    """Options for the rule book that a command is about."""

    store_url: str | None = option(
        "--store",
        metavar="STORE",
        envvar="PENSTOCK_STORE",
        help="Use the rule book in this store, such as sqlite:rules.db (default: $PENSTOCK_STORE).",
    )
    ledger: str = option(
        "--ledger", metavar="NAME", default=LEDGER, show_default=True, help="Use this rule book of the store."
    )
    names: NamesOption

    @contextmanager
    def opened(self, own: Principal | None = None) -> Iterator[tuple["RuleSource", RuleBook]]:
        """Open the rule book; `own` is the principal of the key that is used with it.

        Raises `MalformedError` (`cli.usage`), and what stores and `RuleBook.open` raise.
        """
        names = self.names.load()
        with existing_store(self.store_url) as store:
            book = RuleBook.open(store.ledger(self.ledger), own=own)
            yield from_book(book, store.url, names), book

    @contextmanager
    def opened_at(self, now: datetime) -> Iterator["RuleSource"]:
        """Open the rule book for a question, with the rules that hold at a time. Raises as `opened`."""
        with self.opened() as (source, book), held(book, now):
            yield from_book(book, source.where, source.cast.names)


@option_class
class RuleSourceOptions:
    """Options for the rules that a command is about: in a file, or in a rule book."""

    file: str | None = option(
        "-f", "--file", metavar="FILE", help="Read the rules from this file (default: from the store)."
    )
    book: BookOptions

    @contextmanager
    def opened(self, now: datetime) -> Iterator["RuleSource"]:
        """Open the rules. Raises `MalformedError` (`cli.usage`), and what files and stores raise."""
        if self.file is None:
            with self.book.opened_at(now) as source:
                yield source
            return
        if _typed("store_url"):
            raise MalformedError("cli.usage", "--file and --store exclude each other", hint="give one of them")
        yield from_file(self.file, self.book.names.load(), now)


def no_effect_option() -> Any:
    """Declare `--dry-run` for questions, so that all commands of the moderator accept it."""
    return option("--dry-run", is_flag=True, help="Have no effect: this command never changes anything.")


def complete_rule(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the id of a rule."""
    return _complete_from(context, incomplete, lambda base: (*base.standings, *base.wishes))


def complete_event(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of an event type."""
    return _complete_from(context, incomplete, lambda base: (event.name for event in base.tree.parents))


def _complete_from(
    context: click.Context, incomplete: str, words: Callable[[RuleBase], Iterable[str]]
) -> list[CompletionItem]:
    given = context.params
    book = BookOptions(
        store_url=given.get("store_url"),
        ledger=given.get("ledger") or LEDGER,
        names=NamesOption(names_file=given.get("names_file")),
    )
    try:
        with context.scope(cleanup=False), RuleSourceOptions(file=given.get("file"), book=book).opened(_EVER) as source:
            return [CompletionItem(word) for word in sorted(words(source.base)) if word.startswith(incomplete)]
    except PenstockError:
        return []


#: how arguments that name a rule or an event type are written and completed
RULE: Final[dict[str, Any]] = {"shell_complete": complete_rule}
EVENT: Final[dict[str, Any]] = {"shell_complete": complete_event}


@dataclass(frozen=True, slots=True)
class Cast:
    """Names of principals, in both directions: the reader's names first, then those of a file."""

    names: NameBook
    called: Mapping[Principal, str] = field(default_factory=dict)

    def show(self, principal: Principal) -> str:
        """Return the name of a principal."""
        if principal == CLOCK:
            return "the clock"
        if principal in self.names.petnames:
            return self.names.show(principal)
        return self.called.get(principal, principal.short)

    def principal(self, word: str) -> Principal:
        """Return the principal that a word names. Raises what `NameBook.principal` raises."""
        if word not in self.names.by_name:
            for principal, name in self.called.items():
                if name == word:
                    return principal
        return self.names.principal(word)

    def speak(self, text: str) -> str:
        """Return a text with names instead of the short forms of principals."""
        for principal, name in self.called.items():
            text = text.replace(principal.short, name)
        return speak(text, self.names.spoken())


@dataclass(frozen=True, slots=True)
class RuleSource:
    """The rule base of a command, and the principals that are known."""

    #: its name in answers
    where: str
    base: RuleBase
    customs: Customs
    cast: Cast
    #: principals whose profiles are known: in any role, as publishers, and as subscribers
    known: Mapping[Principal, Profile] = field(repr=False)
    known_publishers: Mapping[Principal, Profile] = field(default_factory=dict, repr=False)
    subscribers: Mapping[Principal, Profile] = field(default_factory=dict, repr=False)
    #: the line of each rule in a file, by its id
    lines: Mapping[str, int] = field(default_factory=dict, repr=False)
    #: the options with which another command is about the same rules
    option: str = ""

    @property
    def profiles(self) -> Mapping[Principal, Profile]:
        """The profiles of all known principals, and of the publishers of all rules in force."""
        return _complete(self.known, self.base)

    @property
    def publishers(self) -> Mapping[Principal, Profile]:
        """The profiles of all known publishers, and of those of all rules in force."""
        return _complete(self.known_publishers, self.base)

    def event(self, word: str) -> TypeKey:
        """Return the event type that a word means: its name, or `owner/name` if several have that name."""
        return find_event(self.base, self.cast, word)


def find_event(base: RuleBase, cast: Cast, word: str) -> TypeKey:
    """Return the event type of a tree that a word means.

    Raises `MalformedError` (`moderator.unknown-type`, `moderator.ambiguous-type`) and what `Cast.principal` raises.
    """
    owner, slash, name = word.rpartition("/")
    found = [event for event in base.tree.parents if event.name == name]
    if slash:
        of = cast.principal(owner)
        found = [event for event in found if event.owner == of]
    if len(found) > 1:
        raise MalformedError(
            "moderator.ambiguous-type",
            f"several owners have an event type `{name[:80]}`",
            hint=f"write `{cast.show(found[0].owner)}/{name}`",
        )
    if not found:
        hint = did_you_mean(name, (event.name for event in base.tree.parents), _ALL_OF_THEM)
        raise MalformedError("moderator.unknown-type", f"there is no event type `{word[:80]}`", hint=hint)
    return found[0]


def known_standing(base: RuleBase, rule_id: str) -> RuleState:
    """Return the state of a rule. Raises `MalformedError` (`moderator.unknown-rule`) with similar ids."""
    try:
        return base.standing(rule_id)
    except MalformedError as error:
        if rule_id in base.wishes:
            raise MalformedError(
                "moderator.unknown-rule", f"`{rule_id}` is a subscriber's rule, which never conflicts"
            ) from error
        error.hint = did_you_mean(rule_id, base.standings, _ALL_OF_THEM)
        raise


@contextmanager
def held(book: RuleBook, now: datetime) -> Iterator[None]:
    """Update the rules in force to those that hold now. The log is unchanged: this is not written as a step."""
    with book.rehearsal(now) as passed:
        delta = NO_CHANGE if passed is None else passed.step.delta
    if delta != NO_CHANGE:
        warn(Warned("moderator.due", "periods have ended or begun; `penstock moderator pass` records that"))
    with book.base.draft() as draft:
        draft.change(delta)
        yield


def existing_store(store_url: str | None) -> Store:
    """Open the named store, which should contain a rule book. Raises as `named_store` and `open_store`."""
    url = named_store(store_url)
    try:
        return store_at(url)
    except FailedError as error:
        if error.code == "store.missing":
            error.hint = (
                f"check the name; `penstock moderator init FILE --store {url} --key …` begins a rule book there"
            )
        raise


def store_at(url: str, *, create: bool = False) -> Store:
    """Open a store. Raises what `open_store` raises."""
    # SQLAlchemy takes half a second to import, which commands about files should not pay.
    from penstock.store.ledgers.urls import open_store  # noqa: PLC0415

    return open_store(url, create=create)


def named_store(store_url: str | None) -> str:
    """Return the named store. Raises `MalformedError` (`cli.usage`) if none is named, and as `check_lasting`."""
    if store_url is None:
        takes_file = "file" in click.get_current_context().params
        raise MalformedError(
            "cli.usage",
            "no rules are given",
            hint="give --store sqlite:PATH, or set PENSTOCK_STORE" + ("; or --file FILE" if takes_file else ""),
        )
    check_lasting(store_url)
    return store_url


def from_book(book: RuleBook, url: str, names: NameBook, base: RuleBase | None = None) -> RuleSource:
    """Return a rule book as a source of rules; `base` is its state if not that of now."""
    founding = book.founding
    return RuleSource(
        where=url,
        base=book.base if base is None else base,
        customs=founding.customs,
        cast=Cast(names),
        known=joined(founding.known_publishers, founding.known_subscribers),
        known_publishers=founding.known_publishers,
        subscribers=founding.known_subscribers,
    )


def from_file(file: str, names: NameBook, now: datetime) -> RuleSource:
    """Return the rules of a file, stated in their order at one time. Raises what reading and stating them raises."""
    rules = load_rules(file, names)
    base = RuleBase(rules.vocabulary, rules.mode)
    for request in rules.stated:
        rule = request.rule
        if rule.validity.state(instant_key(now)) is not State.EXPIRED:
            with at_line(file, rules, rule.id):
                base.apply(plan(base, request, Note(rule.stated_by, now), rules.customs).step)
    return RuleSource(
        where=file,
        base=base,
        customs=rules.customs,
        cast=Cast(names, rules.names),
        known=rules.profiles,
        known_publishers=rules.publishers,
        subscribers=rules.subscribers,
        lines=rules.lines,
        option=f" --file {file}",
    )


def load_rules(file: str, names: NameBook) -> RuleFile:
    """Read a rule base from a file: YAML, or a bundle of signed rules, which is verified.

    Raises what `read_bytes`, `read_yaml`, `read_rule_file`, `read_bundle` and `RuleBundle.verify` raise.
    """
    data = read_bytes(file)
    if data.lstrip().startswith(b"("):
        with within(file):
            return read_bundle(parse(data)).verify()
    with within(file):
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise MalformedError("yaml.malformed", "the text is not in UTF-8") from error
        rules = read_rule_file(read_yaml(text), names.by_name)
    # Errors name principals by their short form, and a file can have names for them.
    spoken = click.get_current_context().meta.setdefault(SPOKEN, {})
    spoken |= {who.short: name for who, name in rules.names.items() if who.short not in spoken}
    return rules


def load_bundle(file: str) -> RuleBundle:
    """Read signed rules from a file. Raises what `read_sexp` and `read_bundle` raise."""
    value = read_sexp(file)
    with within(file):
        return read_bundle(value)


@contextmanager
def at_line(file: str, rules: RuleFile, rule_id: str) -> Iterator[None]:
    """Add the line of a rule to an error about it."""
    line = rules.lines.get(rule_id)
    with within(file):
        try:
            yield
        except PenstockError as error:
            error.message = f"line {line}: {error.message}" if line else error.message
            raise


def _complete(profiles: Mapping[Principal, Profile], base: RuleBase) -> Mapping[Principal, Profile]:
    """Add publishers with empty profiles, if profiles have no attributes."""
    if base.detector.vocabulary.publishers.attributes:
        return profiles
    publishers = {each for rule in base.detector.rules.values() for each in rule.publishers}
    return {**dict.fromkeys(publishers, Profile({})), **profiles}


def _typed(parameter: str) -> bool:
    """Return whether an option was given on the command line, and not by the environment."""
    return click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE
