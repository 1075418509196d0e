"""`penstock moderator type`: event types come, move, get other names and go while rules are in force."""

from dataclasses import replace
from typing import Any

import click

from penstock.apps.cli.moderator.changes import STRATEGIES
from penstock.apps.cli.moderator.execution import Acting, acting, acting_options
from penstock.apps.cli.moderator.output import conflicts_data, proposal_data, show_proposals, show_rule_conflicts
from penstock.apps.cli.moderator.sources import EVENT
from penstock.apps.cli.shared.groups import Verbs, example
from penstock.apps.cli.shared.options import JSON
from penstock.apps.cli.shared.session import CommandSession, say_json
from penstock.errors import RefusedError
from penstock.model.names import TypeKey
from penstock.moderator.rules.steps import AddType, MoveType, RemoveType, RenameType, Strategy
from penstock.moderator.settlement.type_changes import collisions, propose_move

_BELOW = click.option("--below", metavar="TYPE", **EVENT, help="The type that it hangs on; without it, it is a root.")


@click.group("type", cls=Verbs)
def type_() -> None:
    """Change the tree of event types, with rules in place."""


@type_.command()
@click.argument("name")
@_BELOW
@acting_options
@click.pass_obj
@example("penstock moderator type add Line.Dry --below Line --key plant.key")
def add(session: CommandSession, /, *, name: str, below: str | None, **how: Any) -> None:
    """Add an event type; it is of the owner of the type that it hangs on, or of `owner/NAME`."""
    with acting(session, **how) as act:
        parent = None if below is None else act.source.event(below)
        act.do(AddType(_new(act, name, parent), parent))


@type_.command()
@click.argument("name", **EVENT)
@click.option("--below", metavar="TYPE", **EVENT, help="The type that it hangs on from then on.")
@click.option("--root", is_flag=True, help="Let it hang on no type.")
@click.option("--by", "strategy", type=STRATEGIES, help="The way out that is chosen, where rules would collide.")
@acting_options
@click.pass_obj
@example("penstock moderator type move Line.Dry --below Line.Paint --key plant.key --dry-run")
def move(
    session: CommandSession, /, *, name: str, below: str | None, root: bool, strategy: str | None, **how: Any
) -> None:
    """Move an event type, with all below it.

    Conflicts that this would create are shown, with ways out, and nothing is moved unless one of these is chosen.
    """
    if (below is None) is not root:
        raise click.UsageError("say where it goes: --below TYPE, or --root")
    with acting(session, **how) as act:
        to = MoveType(act.source.event(name), None if below is None else act.source.event(below))
        try:
            act.do(to if strategy is None else _by(act, to, Strategy(strategy)))
        except RefusedError as error:
            if error.code == "moderator.conflict":
                _show_collisions(act, to)
            raise


def _by(act: Acting, to: MoveType, strategy: Strategy) -> MoveType:
    """Return the request for a move by a way out, with all who have to agree."""
    with act.book.rehearsal(act.session.now):
        ways = propose_move(act.book.base, to)
    relaxed = next((way.relaxed for way in ways if way.strategy is strategy), frozenset())
    return replace(to, strategy=strategy, consents=relaxed)


def _show_collisions(act: Acting, to: MoveType) -> None:
    with act.book.rehearsal(act.session.now):
        found = collisions(act.book.base, to)
        ways = propose_move(act.book.base, to, act.source.customs.subscribers)
    if act.output == JSON:
        say_json(
            {
                "written": False,
                "conflicts": [conflicts_data(rule, conflicts, act.source) for rule, conflicts in found],
                "proposals": [proposal_data(way, act.source.cast) for way in ways],
            }
        )
        return
    for rule, conflicts in found:
        show_rule_conflicts(rule, conflicts, act.source)
    show_proposals("what moves", ways, act.source)


@type_.command()
@click.argument("name", **EVENT)
@click.argument("new")
@acting_options
@click.pass_obj
@example("penstock moderator type rename Line.Dry Line.Drying --key plant.key")
def rename(session: CommandSession, /, *, name: str, new: str, **how: Any) -> None:
    """Give an event type another name; rules and log entries follow."""
    with acting(session, **how) as act:
        event = act.source.event(name)
        act.do(RenameType(event, _new(act, new, event)))


@type_.command()
@click.argument("name", **EVENT)
@acting_options
@click.pass_obj
@example("penstock moderator type remove Line.Dry --key plant.key")
def remove(session: CommandSession, /, *, name: str, **how: Any) -> None:
    """Remove an event type: the types below it hang on its parent from then on, and the rules on it end."""
    with acting(session, **how) as act:
        act.do(RemoveType(act.source.event(name)))


def _new(act: Acting, written: str, beside: TypeKey | None) -> TypeKey:
    owner, slash, name = written.rpartition("/")
    if slash:
        return TypeKey(act.source.cast.principal(owner), name)
    return TypeKey(act.asker() if beside is None else beside.owner, name)
