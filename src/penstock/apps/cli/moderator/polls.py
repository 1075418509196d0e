"""`penstock moderator poll|tally|polls`: a moderator asks those affected by a proposal; `vote` is in `votes`."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import chain
from typing import Final

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
from penstock.apps.cli.moderator.sources import BookOptions, Cast, existing_store, from_book
from penstock.apps.cli.moderator.votes import NatsOptions, read_said, unknown_poll, vote
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
    until_answered,
    wants_data,
)
from penstock.apps.cli.shared.files import within
from penstock.apps.cli.shared.options import KeyOptions, OutputFile
from penstock.apps.cli.shared.session import CommandSession, Warned, warn
from penstock.apps.cli.shared.terminal import Shown, grid_table, show
from penstock.apps.cli.store.options import dry_run_option
from penstock.authority.limits import POLL_LONGEST
from penstock.authority.polls import Polls, polls_name, read_polls
from penstock.authority.rulebook import RuleBook
from penstock.codec.sexp import advanced, transport
from penstock.crypto import SigningKey
from penstock.errors import LimitError, MalformedError
from penstock.model.instants import parse_end
from penstock.moderator.polls import Poll, Vote, VoterResponse
from penstock.store.ledgers.ledgers import Store
from penstock.store.ledgers.memory import TriedRecords

_PERIOD: Final = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@contextmanager
def _opened(key: SigningKey, where: BookOptions, *, dry_run: bool = False) -> Iterator[tuple[Polls, Cast]]:
    with existing_store(where.store_url) as kept:
        store = Store(TriedRecords(kept.records)) if dry_run else kept
        book = RuleBook.open(store.ledger(where.ledger))
        polls = Polls(store.ledger(polls_name(where.ledger)), book, key)
        yield polls, from_book(book, store.url, where.names.load()).cast


@option_class
class _Poll:
    rule: str | None = argument(required=False)
    deadline: str | None = option(
        "--deadline", metavar="TIME", help="Count votes until then: 30m, 12h, 7d, or a time such as 2026-05-01T12:00Z."
    )
    key: KeyOptions
    book: BookOptions
    nats: NatsOptions
    destination: OutputFile
    output: str = output_option()


@command(
    example="""
penstock moderator poll r2 --deadline 2d --key plant.key --out r2.question
penstock moderator poll r2 --deadline 30m --key plant.key --nats nats://localhost:4222
penstock moderator poll --key plant.key --nats nats://localhost:4222
"""
)
def poll(session: CommandSession, options: _Poll) -> CommandAnswer | None:
    """Ask those affected how to settle RULE, which conflicts with others.

    All whose rules a proposal would change are asked. A proposal is applied if more than half of those who stated these
    rules approve it, and each whose own rule it relaxes has signed a consent. No answer counts as a refusal. With
    --nats they are asked over NATS, and the chosen proposal is applied at the deadline. To continue an interrupted
    poll, run the command again without RULE. Without --nats the question is written to a file, and `tally` counts the
    votes.
    """
    login = options.nats.login()
    destination, rule, deadline = options.destination, options.rule, options.deadline
    if (rule is None) is not (deadline is None) or (rule is None and login is None):
        raise MalformedError("cli.usage", "which rule, and until when?", hint="give RULE and --deadline TIME")
    destination.check()
    asked = None if rule is None or deadline is None else (rule, _deadline(deadline, session.now))
    polls, cast = until_answered(_opened(options.key.open(), options.book))
    if destination.dry_run and asked is not None:
        question = polls.plan(asked[0], session.now, asked[1])
        return CommandAnswer(
            {**question_data(None, question, cast), "written": False}, show_question(None, question, cast)
        )
    if login is not None:
        from penstock.apps.cli.moderator.poll_network import Network, show_progress  # noqa: PLC0415  # nats-py is an extra

        def told(poll: Poll) -> None:
            if not as_json:
                show_progress(poll, cast)

        as_json = wants_data()
        ended = Network(login, session, cast).ask_and_wait(polls, asked, told)
        shown = [part for kept in ended for part in show_ended(kept, cast)]
        return CommandAnswer({"polls": [kept_data(kept, cast) for kept in ended]}, shown or ["no poll is open"])
    return None if asked is None else _handed_out(polls.ask(asked[0], session.now, asked[1]), destination, cast)


def _handed_out(poll: Poll, destination: OutputFile, cast: Cast) -> CommandAnswer:
    """Write a question that goes to the voters as a file, and return the answer."""
    value = poll.question.to_sexp()
    destination.put(value)
    data = {**question_data(poll.id, poll.question.value, cast), "question": transport(value).decode()}
    done = chain(show_question(poll.id, poll.question.value, cast), [destination.line()])
    return CommandAnswer(
        {**data, **destination.as_dict()}, advanced(value).split("\n") if destination.out is None else done
    )


def _deadline(text: str, now: datetime) -> datetime:
    """Return a time that is written as such, or as a period from now.

    Raises `MalformedError` (`date.malformed`) and `LimitError` (`poll.limit`).
    """
    found = _PERIOD.fullmatch(text)
    if found is None:
        return parse_end(text)
    period = timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
    if period > timedelta(seconds=POLL_LONGEST):
        raise LimitError("poll.limit", f"`{text}` is too long", hint=f"at most {POLL_LONGEST} seconds")
    return now + period


@option_class
class _Tally:
    votes: tuple[str, ...] = argument(nargs=-1, metavar="[VOTE]...")
    key: KeyOptions
    book: BookOptions
    dry_run: bool = dry_run_option()
    output: str = output_option()


@command(example="penstock moderator tally acme.vote bolt.vote --key plant.key")
def tally(session: CommandSession, options: _Tally) -> CommandAnswer:
    """Count votes from files, and close the polls that are due.

    When a poll is closed, the chosen proposal is applied. A vote counts if it is read before the deadline. Reading it
    again changes nothing.
    """
    read = [(file, read_said(file, Vote)) for file in options.votes]
    polls, cast = until_answered(_opened(options.key.open(), options.book, dry_run=options.dry_run))
    heard = []
    for file, cast_vote in read:
        with within(file):
            found = polls.hear(cast_vote.unverified(), session.now)
        heard.append(vote_data(cast_vote.value, found.question.value, cast))
        who = cast.show(cast_vote.value.voter)
        if not wants_data():
            # It counts now, whatever comes of the next one.
            show([f"{who}: {vote_text(cast_vote.value, found.question.value)}"])
        if found.tally().answers[cast_vote.value.voter] is VoterResponse.CONTRADICTED:
            said = f"{who} has cast contradicting votes, which refuses, until a vote comes with a higher --number"
            warn(Warned("poll.contradicted", said))
    ended = polls.advance(session.now)
    waiting = [kept for kept in polls.kept.values() if kept.open]
    lines = [f"poll {poll_name(kept.poll.id)}: {kept_row(kept, session.now)[-1]}" for kept in waiting]
    if not ended and not waiting and not heard:
        lines.append("no poll is open, and there is nothing to count")
    elif options.dry_run:
        lines.append("nothing of this was written")
    results = (part for kept in ended for part in show_ended(kept, cast))
    data = {"heard": heard, "ended": [kept_data(kept, cast) for kept in ended], "written": not options.dry_run}
    return CommandAnswer(data, chain(results, lines))


@option_class
class _Polls:
    wanted: str | None = argument(required=False, metavar="[POLL]")
    book: BookOptions
    output: str = output_option()


@command(example="penstock moderator polls")
def polls(session: CommandSession, options: _Polls) -> CommandAnswer:
    """List all polls, or show POLL with its question and votes."""
    cast, wanted, ledger = Cast(options.book.names.load()), options.wanted, options.book.ledger
    with existing_store(options.book.store_url) as store:
        founding = RuleBook.open(store.ledger(ledger)).founding
        found = [
            kept
            for poll_id, kept in read_polls(store.ledger(polls_name(ledger)), founding).items()
            if wanted is None or poll_id.hex().startswith(wanted.lower())
        ]
    if wanted is not None and len(found) != 1:
        raise unknown_poll(wanted)
    shown: Iterable[Shown] = ["nobody has been asked anything yet"]
    if wanted is not None:
        question = show_question(found[0].poll.id, found[0].poll.question.value, cast)
        shown = chain(question, show_ended(found[0], cast))
    elif found:
        rows = [kept_row(kept, session.now) for kept in found]
        shown = [grid_table(("poll", "rule", "deadline", "state"), rows)]
    return CommandAnswer({"polls": [kept_data(kept, cast) for kept in found]}, shown)


COMMANDS: Final = (poll, vote, tally, polls)
