"""`penstock moderator poll|tally|polls`: a moderator asks those affected by a way out; `vote` is in `votes`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import click

from penstock.apps.cli.moderator.poll_output import (
    kept_data,
    kept_row,
    poll_name,
    question_data,
    show_ended,
    show_question,
    vote_data,
    vote_text,
)
from penstock.apps.cli.moderator.sources import Cast, book_options, existing_store, from_book
from penstock.apps.cli.moderator.votes import nats_login, nats_options, read_said, unknown_poll, vote
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.files import Destination, within
from penstock.apps.cli.shared.groups import example
from penstock.apps.cli.shared.names import load_names
from penstock.apps.cli.shared.options import JSON, key_options, open_key, output_option, write_options
from penstock.apps.cli.shared.session import CommandSession, Warned, say_block, say_json, warn
from penstock.apps.cli.store.options import dry_run_option
from penstock.authority.polls import Polls, polls_name, read_polls
from penstock.authority.rulebook import RuleBook
from penstock.codec.sexp import advanced, transport
from penstock.crypto import SigningKey
from penstock.errors import LimitError, MalformedError
from penstock.fabric.nats_login import NatsLogin
from penstock.model.instants import parse_end
from penstock.model.limits import DEFAULT_LIMITS
from penstock.moderator.polls import Poll, Vote, VoterResponse
from penstock.store.ledgers.ledgers import Store
from penstock.store.ledgers.memory import TriedRecords

_PERIOD: Final = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@contextmanager
def _opened(
    key: SigningKey, store_url: str | None, ledger: str, names_file: str | None, *, dry_run: bool = False
) -> Iterator[tuple[Polls, Cast]]:
    with existing_store(store_url) as kept:
        store = Store(TriedRecords(kept.records)) if dry_run else kept
        book = RuleBook.open(store.ledger(ledger))
        polls = Polls(store.ledger(polls_name(ledger)), book, key)
        yield polls, from_book(book, store.url, load_names(names_file)).cast


@click.command()
@click.argument("rule", required=False)
@click.option(
    "--deadline", metavar="TIME", help="Until when votes count: 30m, 12h, 7d, or a time such as 2026-05-01T12:00Z."
)
@key_options
@book_options
@nats_options
@write_options
@output_option()
@click.pass_obj
@example(
    """
penstock moderator poll r2 --deadline 2d --key plant.key --out r2.question
penstock moderator poll r2 --deadline 30m --key plant.key --nats nats://localhost:4222
penstock moderator poll --key plant.key --nats nats://localhost:4222
"""
)
def poll(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    rule: str | None,
    deadline: str | None,
    key_file: str,
    passphrase_file: str | None,
    servers: tuple[str, ...],
    login_files: tuple[str, ...],
    out: str | None,
    overwrite: bool,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Ask those affected how RULE, which collides, is settled.

    Asked are all whose rules a way out would change. A way out is taken if more than half of those who stated them
    approve of it, and each whose own rule it relaxes has signed a consent. Silence refuses. With --nats they are asked
    there, and what was chosen is done at the deadline; a poll that was interrupted goes on by the same command without
    RULE. Otherwise the question goes to a file, and `tally` takes the votes.
    """
    login = nats_login(servers, login_files)
    if (rule is None) is not (deadline is None) or (rule is None and login is None):
        raise MalformedError("cli.usage", "which rule, and until when?", hint="give RULE and --deadline TIME")
    destination = Destination.free(out, overwrite=overwrite, dry_run=dry_run)
    asked = None if rule is None or deadline is None else (rule, _deadline(deadline, session.now))
    with _opened(open_key(key_file, passphrase_file), **where) as (polls, cast):
        if dry_run and asked is not None:
            question = polls.plan(asked[0], session.now, asked[1])
            if output == JSON:
                say_json({**question_data(None, question, cast), "written": False})
            else:
                show_question(None, question, cast)
        elif login is not None:
            _wait(session, login, polls, asked, cast, as_json=output == JSON)
        elif asked is not None:
            _hand_out(polls.ask(asked[0], session.now, asked[1]), destination, cast, output)


def _hand_out(poll: Poll, destination: Destination, cast: Cast, output: str) -> None:
    """Write a question that goes to the voters as a file."""
    signed = poll.question
    destination.put(signed.to_sexp())
    if output == JSON:
        data = {**question_data(poll.id, signed.value, cast), "question": transport(signed.to_sexp()).decode()}
        say_json({**data, **destination.as_dict()})
    elif destination.file is None:
        say_block(advanced(signed.to_sexp()))
    else:
        show_question(poll.id, signed.value, cast)
        paint.line(destination.line())


def _wait(  # noqa: PLR0913  # what it works with
    session: CommandSession,
    login: NatsLogin,
    polls: Polls,
    asked: tuple[str, datetime] | None,
    cast: Cast,
    *,
    as_json: bool,
) -> None:
    """Ask over NATS servers, and tell what came of it."""
    from penstock.apps.cli.moderator.poll_network import Network, show_progress  # noqa: PLC0415  # nats-py is an extra

    def told(poll: Poll) -> None:
        if not as_json:
            show_progress(poll, cast)

    ended = Network(login, session, cast).ask_and_wait(polls, asked, told)
    if as_json:
        say_json({"polls": [kept_data(kept, cast) for kept in ended]})
        return
    if not ended:
        paint.line("no poll is open")
    for kept in ended:
        show_ended(kept, cast)


def _deadline(text: str, now: datetime) -> datetime:
    """Return a time that is written as such, or as a period from now.

    Raises `MalformedError` (`date.malformed`) and `LimitError` (`poll.limit`).
    """
    found = _PERIOD.fullmatch(text)
    if found is None:
        return parse_end(text)
    period = timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
    if period > timedelta(seconds=DEFAULT_LIMITS.poll_longest):
        raise LimitError("poll.limit", f"`{text}` is too long", hint=f"at most {DEFAULT_LIMITS.poll_longest} seconds")
    return now + period


@click.command()
@click.argument("votes", nargs=-1, metavar="[VOTE]...")
@key_options
@book_options
@dry_run_option
@output_option()
@click.pass_obj
@example("penstock moderator tally acme.vote bolt.vote --key plant.key")
def tally(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    votes: tuple[str, ...],
    key_file: str,
    passphrase_file: str | None,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Count votes from files; close the polls that are due.

    What a poll has chosen is done when it is closed. A vote counts if it is taken in before the deadline; taken in
    again it changes nothing.
    """
    read = [(file, read_said(file, Vote)) for file in votes]
    with _opened(open_key(key_file, passphrase_file), **where, dry_run=dry_run) as (polls, cast):
        heard = []
        for file, vote in read:
            with within(file):
                found = polls.hear(vote.unverified(), session.now)
            heard.append(vote_data(vote.value, found.question.value, cast))
            who = cast.show(vote.value.voter)
            if output != JSON:
                paint.line(f"{who}: {vote_text(vote.value, found.question.value)}")
            if found.tally().answers[vote.value.voter] is VoterResponse.CONTRADICTED:
                said = f"{who} has said two things at once, which refuses, until a vote comes with a higher --number"
                warn(Warned("poll.contradicted", said))
        ended = polls.advance(session.now)
        if output == JSON:
            say_json({"heard": heard, "ended": [kept_data(kept, cast) for kept in ended], "written": not dry_run})
            return
        for kept in ended:
            show_ended(kept, cast)
        waiting = [kept for kept in polls.kept.values() if kept.open]
        for kept in waiting:
            paint.line(f"poll {poll_name(kept.poll.id)}: {kept_row(kept, session.now)[-1]}")
        if not ended and not waiting and not heard:
            paint.line("no poll is open, and there is nothing to count")
        elif dry_run:
            paint.line("nothing of this was written")


@click.command()
@click.argument("wanted", required=False, metavar="[POLL]")
@book_options
@output_option()
@click.pass_obj
@example("penstock moderator polls")
def polls(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    wanted: str | None,
    store_url: str | None,
    ledger: str,
    names_file: str | None,
    output: str,
) -> None:
    """List all polls, or show POLL with its question and votes."""
    cast = Cast(load_names(names_file))
    with existing_store(store_url) as store:
        founding = RuleBook.open(store.ledger(ledger)).founding
        found = [
            kept
            for poll_id, kept in read_polls(store.ledger(polls_name(ledger)), founding).items()
            if wanted is None or poll_id.hex().startswith(wanted.lower())
        ]
    if wanted is not None and len(found) != 1:
        raise unknown_poll(wanted)
    if output == JSON:
        say_json({"polls": [kept_data(kept, cast) for kept in found]})
    elif wanted is not None:
        show_question(found[0].poll.id, found[0].poll.question.value, cast)
        show_ended(found[0], cast)
    elif found:
        paint.grid(("poll", "rule", "deadline", "state"), [kept_row(kept, session.now) for kept in found])
    else:
        paint.line("nobody has been asked anything yet")


COMMANDS: Final = (poll, vote, tally, polls)
