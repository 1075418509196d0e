"""`penstock moderator type`: event types come, move, get other names and go while rules are in force."""

from dataclasses import replace
from itertools import chain

import click

from penstock.apps.cli.moderator.changes import STRATEGIES
from penstock.apps.cli.moderator.execution import Acting, ActingOptions
from penstock.apps.cli.moderator.output import conflicts_data, proposal_data, show_proposals, show_rule_conflicts
from penstock.apps.cli.moderator.sources import EVENT
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class
from penstock.apps.cli.shared.groups import Verbs
from penstock.apps.cli.shared.session import CommandSession
from penstock.errors import RefusedError
from penstock.model.names import TypeKey
from penstock.moderator.rules.steps import AddType, MoveType, RemoveType, RenameType, Strategy
from penstock.moderator.settlement.type_changes import collisions, propose_move


@click.group("type", cls=Verbs)
def type_() -> None:
    """Change the tree of event types, with rules in place."""


@option_class
class _Add:
    name: str = argument()
    below: str | None = option(
        "--below", metavar="TYPE", **EVENT, help="Put it below this type (default: make it a root)."
    )
    acting: ActingOptions


@command(type_, example="penstock moderator type add Line.Dry --below Line --key plant.key")
def add(session: CommandSession, options: _Add) -> CommandAnswer:
    """Add an event type, owned by the owner of the type above it, or by `owner/NAME`."""
    act = options.acting.begin(session)
    parent = None if options.below is None else act.source.event(options.below)
    return act.do(AddType(_new(act, options.name, parent), parent))


@option_class
class _Move:
    name: str = argument(**EVENT)
    below: str | None = option("--below", metavar="TYPE", **EVENT, help="Move it below this type.")
    root: bool = option("--root", is_flag=True, help="Make it a root.")
    strategy: str | None = option("--by", type=STRATEGIES, help="Apply this proposal if rules would conflict.")
    acting: ActingOptions


@command(type_, example="penstock moderator type move Line.Dry --below Line.Paint --key plant.key --dry-run")
def move(session: CommandSession, options: _Move) -> CommandAnswer:
    """Move an event type, with all types below it.

    Conflicts that the move would create are shown with proposals, and nothing is moved unless you choose one of these.
    """
    if (options.below is None) is not options.root:
        raise click.UsageError("say where it goes: --below TYPE, or --root")
    act = options.acting.begin(session)
    to = MoveType(act.source.event(options.name), None if options.below is None else act.source.event(options.below))
    try:
        return act.do(to if options.strategy is None else _by(act, to, Strategy(options.strategy)))
    except RefusedError as error:
        if error.code == "moderator.conflict":
            return _collisions(act, to, error)
        raise


def _by(act: Acting, to: MoveType, strategy: Strategy) -> MoveType:
    """Return the request for a move by a proposal, with all who have to agree."""
    with act.book.rehearsal(act.session.now):
        ways = propose_move(act.book.base, to)
    relaxed = next((way.relaxed for way in ways if way.strategy is strategy), frozenset())
    return replace(to, strategy=strategy, consents=relaxed)


def _collisions(act: Acting, to: MoveType, error: RefusedError) -> CommandAnswer:
    with act.book.rehearsal(act.session.now):
        found = collisions(act.book.base, to)
        ways = propose_move(act.book.base, to, act.source.customs.subscribers)
    data = {
        "written": False,
        "conflicts": [conflicts_data(rule, conflicts, act.source) for rule, conflicts in found],
        "proposals": [proposal_data(way, act.source.cast) for way in ways],
    }
    shown = (part for rule, conflicts in found for part in show_rule_conflicts(rule, conflicts, act.source))
    return CommandAnswer(data, chain(shown, show_proposals("what moves", ways, act.source)), error)


@option_class
class _Rename:
    name: str = argument(**EVENT)
    new: str = argument()
    acting: ActingOptions


@command(type_, example="penstock moderator type rename Line.Dry Line.Drying --key plant.key")
def rename(session: CommandSession, options: _Rename) -> CommandAnswer:
    """Rename an event type. Rules and log entries follow."""
    act = options.acting.begin(session)
    event = act.source.event(options.name)
    return act.do(RenameType(event, _new(act, options.new, event)))


@option_class
class _Remove:
    name: str = argument(**EVENT)
    acting: ActingOptions


@command(type_, example="penstock moderator type remove Line.Dry --key plant.key")
def remove(session: CommandSession, options: _Remove) -> CommandAnswer:
    """Remove an event type. The types below it move to its parent, and the rules on it end."""
    act = options.acting.begin(session)
    return act.do(RemoveType(act.source.event(options.name)))


def _new(act: Acting, written: str, beside: TypeKey | None) -> TypeKey:
    owner, slash, name = written.rpartition("/")
    if slash:
        return TypeKey(act.source.cast.principal(owner), name)
    return TypeKey(act.asker() if beside is None else beside.owner, name)
