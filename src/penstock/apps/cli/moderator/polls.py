"""`penstock moderator poll|vote|tally|polls`: ask the publishers that a proposal affects, vote, and count the votes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from penstock.apps.cli.moderator.changes import STRATEGIES
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
from penstock.apps.cli.shared.files import read_sexp, within
from penstock.apps.cli.shared.nats_options import nats_login, nats_login_option
from penstock.apps.cli.shared.options import (
    WHO,
    KeyOptions,
    NamesOption,
    OutputFile,
    parse_duration,
)
from penstock.apps.cli.shared.session import CommandSession, Warned, warn
from penstock.apps.cli.shared.stores import dry_run_option
from penstock.apps.cli.shared.terminal import Shown, grid_table, show
from penstock.authority.limits import POLL_LONGEST
from penstock.authority.polls import Polls, polls_name, read_polls
from penstock.authority.polls_network import Policy, refusals, tightenings
from penstock.authority.rulebook import RuleBook
from penstock.codec.sexp import advanced, transport
from penstock.crypto import SigningKey
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.fabric.nats_login import NatsLogin
from penstock.model.instants import parse_end
from penstock.model.principals import Principal
from penstock.moderator.limits import POLL_VOTES
from penstock.moderator.polls import Ballot, Poll, PollQuestion, Vote, VoterResponse, cast, cast_again
from penstock.moderator.rules.steps import Strategy
from penstock.store.ledgers.ledgers import Store
from penstock.store.ledgers.memory import TriedRecords
from penstock.trust.signed import Claim, SignedValue, read_signed

if TYPE_CHECKING:
    from penstock.apps.cli.moderator.poll_network import Network


# ----------------------------------------------------------------------------------------------------------------------
# Shared: the NATS servers that carry a poll, and signed questions and votes in files.


V = TypeVar("V", bound=Claim)


@option_class
class NatsOptions:
    """The NATS servers that carry a poll."""

    servers: tuple[str, ...] = option(
        "--nats",
        multiple=True,
        envvar="PENSTOCK_NATS",
        metavar="URL",
        help="Send the poll over these NATS servers (default: $PENSTOCK_NATS). Can be repeated.",
    )
    login_files: tuple[str, ...] = nats_login_option()

    def login(self) -> NatsLogin | None:
        """Return the login for the named servers, or None. Raises `MalformedError` (`cli.usage`)."""
        found = nats_login("--nats", self.servers, self.login_files)
        return found if self.servers else None


def read_said(file: str, kind: type[V]) -> SignedValue[V]:
    """Read a signed question or vote, and verify it. Raises what `read_sexp`, `read_signed` and verifying raise."""
    value = read_sexp(file)
    with within(file):
        return read_signed(value, kind).verify()


def unknown_poll(wanted: str) -> RefusedError:
    """Return the error for a poll that does not exist, or whose digits are ambiguous."""
    return RefusedError("poll.unknown", f"no single poll begins with `{wanted[:80]}`", hint="give more of its digits")


# ----------------------------------------------------------------------------------------------------------------------
# `penstock moderator vote`: answer a moderator who asks how to settle a rule.


_POLICIES: Final[dict[str, Policy]] = {"tighten": tightenings, "refuse": refusals}


@option_class
class _Vote:
    question: str | None = argument(required=False)
    accept: tuple[str, ...] = option(
        "--accept", multiple=True, type=STRATEGIES, help="Approve this proposal. Can be repeated."
    )
    relax: tuple[str, ...] = option(
        "--relax",
        multiple=True,
        type=STRATEGIES,
        help="Approve this proposal, by which your own rule requires less. Can be repeated.",
    )
    refuse: bool = option("--refuse", is_flag=True, help="Refuse everything.")
    number: int | None = option(
        "--number",
        type=click.IntRange(1, POLL_VOTES),
        help="Number the vote, one more than your last (default: by the file that is replaced, or 1).",
    )
    auto: str | None = option(
        "--auto", type=click.Choice([*_POLICIES]), help="Answer all questions in this way, until stopped."
    )
    moderator_name: str | None = option(
        "--moderator", **WHO, help="Answer questions of this moderator; required with --nats."
    )
    key: KeyOptions
    names: NamesOption
    nats: NatsOptions
    destination: OutputFile
    output: str = output_option()


@command(
    example="""
penstock moderator vote r2.question --accept add-attributes --key acme.key --out acme.vote
penstock moderator vote --moderator plant --key acme.key --nats nats://localhost:4222
penstock moderator vote 3f9a --relax delete-attributes --moderator plant --key acme.key --nats nats://localhost:4222
penstock moderator vote --auto tighten --moderator plant --key acme.key --nats nats://localhost:4222
"""
)
def vote(session: CommandSession, options: _Vote) -> CommandAnswer | None:
    """Answer a moderator who asks how to settle a rule.

    QUESTION is a file, or with --nats the first digits of a poll. Without an answer the question is shown; with --nats
    and no QUESTION, all open ones. Name with --relax each proposal that may relax your own rule: this is signed as your
    consent. You refuse every proposal that you do not name. Before the deadline you can vote again, over NATS, or with
    --overwrite for the file of your last vote. Otherwise give --number: two different votes with the same number count
    as a refusal. --auto does not replace votes that you cast yourself.
    """
    voter = _Voter(session, options)
    if voter.policy is not None:
        voter.answer_all(voter.policy)
        return None
    if options.question is None:
        return voter.show(voter.open())
    found = voter.find(options.question)
    return voter.show((found,)) if voter.ballot is None else voter.answer(found, voter.ballot)


class _Voter:
    """A voter, as the options describe it. Raises `MalformedError` (`cli.usage`), and what reading raises."""

    def __init__(self, session: CommandSession, options: _Vote) -> None:
        if options.refuse and (options.accept or options.relax):
            raise MalformedError(
                "cli.usage", "--refuse excludes --accept and --relax", hint="proposals that you do not name are refused"
            )
        names = options.names.load()
        self._session, self._number, self._destination = session, options.number, options.destination
        self._cast, self._dry_run = Cast(names), options.destination.dry_run
        self._login = options.nats.login()
        self._moderator = None if options.moderator_name is None else names.principal(options.moderator_name)
        options.destination.check()
        given = options.refuse or options.accept or options.relax
        approves, consents = (frozenset(map(Strategy, words)) for words in (options.accept, options.relax))
        self.ballot = Ballot(approves, consents) if given else None
        self.policy = None if options.auto is None else _POLICIES[options.auto]
        if self._login is None and (options.question is None or options.auto is not None):
            raise MalformedError("cli.usage", "no question is given", hint="give its file, or --nats URL")
        if self._login is not None and options.number is not None:
            raise MalformedError("cli.usage", "--number is for files", hint="over NATS votes are numbered for you")
        self._key = options.key.open()

    def find(self, wanted: str) -> SignedValue[PollQuestion]:
        """Return the question that is wanted, of the moderator that is wanted."""
        if self._login is None:
            found = read_said(wanted, PollQuestion)
        else:
            matching = [each for each in self.open() if each.digest.hex().startswith(wanted.lower())]
            if len(matching) != 1:
                raise unknown_poll(wanted)
            found = matching[0]
        if self._moderator not in (None, found.value.moderator):
            raise RefusedError(
                "poll.not-moderator", "another moderator asks this question", hint="check who sent you the question"
            )
        return found

    def open(self) -> tuple[SignedValue[PollQuestion], ...]:
        """Return all open questions over NATS."""
        return self._network().questions(self._whose(), self._key.principal)

    def show(self, found: tuple[SignedValue[PollQuestion], ...]) -> CommandAnswer:
        """Return questions as an answer."""
        data = {"polls": [question_data(each.digest, each.value, self._cast) for each in found]}
        shown = [part for each in found for part in show_question(each.digest, each.value, self._cast)]
        return CommandAnswer(data, shown or ["nothing is asked of you"])

    def answer(self, asked: SignedValue[PollQuestion], ballot: Ballot) -> CommandAnswer:
        """Vote, and return the answer."""
        if asked.value.deadline <= self._session.now:
            raise RefusedError("poll.closed", "the deadline of the poll has passed", hint="it counts as silence")
        sent = self._login is not None and not self._dry_run
        if sent:
            signed = self._network().send(asked, self._key, ballot)
        else:
            signed = self._sign(asked, ballot)
            self._destination.put(signed.to_sexp())
        data = {
            **vote_data(signed.value, asked.value, self._cast),
            "vote": transport(signed.to_sexp()).decode(),
            **self._destination.as_dict(),
            "sent": sent,
        }
        if self._login is None and self._destination.out is None and not self._dry_run:
            return CommandAnswer(data, advanced(signed.to_sexp()).split("\n"))
        done = "voted" if sent else "would vote" if self._destination.out is None else self._destination.line()
        return CommandAnswer(data, [f"{done}: {vote_text(signed.value, asked.value)}"])

    def _sign(self, asked: SignedValue[PollQuestion], ballot: Ballot) -> SignedValue[Vote]:
        """Sign a vote that is not sent."""
        if self._number is not None:
            return cast(asked, self._key, ballot, number=self._number)
        return cast_again(asked, self._key, ballot, self._earlier(asked))

    def _earlier(self, asked: SignedValue[PollQuestion]) -> tuple[SignedValue[Vote], ...]:
        """Return earlier votes: those on the servers, or the one in the file to be replaced."""
        if self._login is not None:
            return self._network().own_votes(asked, self._key.principal)
        file = self._destination.out
        if file is None or not Path(file).exists():
            return ()
        try:
            return (read_said(file, Vote),)
        except PenstockError:
            # Whatever the file contains, it is replaced.
            return ()

    def answer_all(self, policy: Policy) -> None:
        """Answer by a policy until stopped."""
        self._network().answer_all(self._whose(), self._key, policy)

    def _whose(self) -> Principal:
        if self._moderator is None:
            raise MalformedError("cli.usage", "no moderator is given", hint="give --moderator WHO")
        return self._moderator

    def _network(self) -> "Network":
        from penstock.apps.cli.moderator.poll_network import Network  # noqa: PLC0415  # nats-py is an extra

        if self._login is None:
            raise MalformedError("cli.usage", "no servers are given", hint="give --nats URL")
        return Network(self._login, self._session, self._cast)


# ----------------------------------------------------------------------------------------------------------------------
# `penstock moderator poll|tally|show-polls`: ask the publishers that a proposal affects, and count their votes.


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
        raise MalformedError("cli.usage", "no rule or no deadline is given", hint="give RULE and --deadline TIME")
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

        def on_poll(poll: Poll) -> None:
            if not as_json:
                show_progress(poll, cast)

        as_json = wants_data()
        ended = Network(login, session, cast).ask_and_wait(polls, asked, on_poll)
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
    """Return a time that is given as such, or as a period from now.

    Raises `MalformedError` (`date.malformed`) and `LimitError` (`poll.limit`).
    """
    seconds = parse_duration(text)
    if seconds is None:
        return parse_end(text)
    if seconds > POLL_LONGEST:
        raise LimitError("poll.limit", f"`{text}` is too long", hint=f"at most {POLL_LONGEST} seconds")
    return now + timedelta(seconds=seconds)


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
            # It counts now, whatever the next one results in.
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
class _ShowPolls:
    wanted: str | None = argument(required=False, metavar="[POLL]")
    book: BookOptions
    output: str = output_option()


@command(name="show-polls", example="penstock moderator show-polls")
def show_polls(session: CommandSession, options: _ShowPolls) -> CommandAnswer:
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


COMMANDS: Final = (poll, vote, tally, show_polls)
