"""`penstock moderator vote`: a publisher answers a moderator that asks how a rule is to be settled."""

from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from penstock.apps.cli.moderator.changes import STRATEGIES
from penstock.apps.cli.moderator.poll_output import question_data, show_question, vote_data, vote_text
from penstock.apps.cli.moderator.sources import Cast
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.files import read_sexp, within
from penstock.apps.cli.shared.options import WHO, KeyOptions, NamesOption, OutputFile
from penstock.apps.cli.shared.session import CommandSession
from penstock.authority.polls_publisher import Policy, refusals, tightenings
from penstock.codec.sexp import advanced, transport
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.fabric.nats_login import LoginError, NatsLogin, address
from penstock.model.principals import Principal
from penstock.moderator.limits import POLL_VOTES
from penstock.moderator.polls import Ballot, PollQuestion, Vote, cast, cast_again
from penstock.moderator.rules.steps import Strategy
from penstock.trust.signed import Claim, SignedValue, read_signed

if TYPE_CHECKING:
    from penstock.apps.cli.moderator.poll_network import Network


# ----------------------------------------------------------------------------------------------------------------------
# What the commands about polls share: the NATS servers that carry one, and files with what somebody has signed.


V = TypeVar("V", bound=Claim)
_LOGIN: Final = ("credentials", "nkey", "token_file", "tls_ca", "tls_cert", "tls_key")


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
    login_files: tuple[str, ...] = option(
        "--nats-login",
        multiple=True,
        metavar="WHAT=FILE",
        help=f"Log in to the servers with a file: {', '.join(_LOGIN)}. Can be repeated.",
    )

    def login(self) -> NatsLogin | None:
        """Return how to get into the servers that were named, if any. Raises `MalformedError` (`cli.usage`)."""
        files = dict(each.partition("=")[::2] for each in self.login_files)
        if not all(files.values()) or not set(files) <= set(_LOGIN) or (files and not self.servers):
            raise MalformedError(
                "cli.usage", "--nats-login is WHAT=FILE, beside --nats", hint=f"WHAT is {', '.join(_LOGIN)}"
            )
        try:
            return NatsLogin(tuple(map(address, self.servers)), **files) if self.servers else None
        except LoginError as error:
            raise MalformedError(
                "cli.usage", "--nats is not an address of a server", hint="such as nats://localhost:4222"
            ) from error


def read_said(file: str, kind: type[V]) -> SignedValue[V]:
    """Read what somebody has signed, and verify it. Raises what `read_sexp`, `read_signed` and verifying raise."""
    value = read_sexp(file)
    with within(file):
        return read_signed(value, kind).verify()


def unknown_poll(wanted: str) -> RefusedError:
    """Return the error for a poll that is not there, or of which too little is said."""
    return RefusedError("poll.unknown", f"no one poll begins with `{wanted[:80]}`", hint="give more of its digits")


# ----------------------------------------------------------------------------------------------------------------------
# `penstock moderator vote`: a publisher answers a moderator that asks how a rule is to be settled.


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
    """Somebody who is asked, as the options say. Raises `MalformedError` (`cli.usage`), and what reading raises."""

    def __init__(self, session: CommandSession, options: _Vote) -> None:
        if options.refuse and (options.accept or options.relax):
            raise MalformedError("cli.usage", "--refuse stands alone", hint="what you do not name you refuse")
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
            raise MalformedError("cli.usage", "which question?", hint="give its file, or --nats URL")
        if self._login is not None and options.number is not None:
            raise MalformedError("cli.usage", "--number is for files", hint="over NATS votes are numbered for you")
        self._key = options.key.open()

    def find(self, wanted: str) -> SignedValue[PollQuestion]:
        """Return the question that is meant, of the moderator that is meant."""
        if self._login is None:
            found = read_said(wanted, PollQuestion)
        else:
            matching = [each for each in self.open() if each.digest.hex().startswith(wanted.lower())]
            if len(matching) != 1:
                raise unknown_poll(wanted)
            found = matching[0]
        if self._moderator not in (None, found.value.moderator):
            raise RefusedError("poll.not-moderator", "somebody else asks this", hint="check who sent you the question")
        return found

    def open(self) -> tuple[SignedValue[PollQuestion], ...]:
        """Return all that is asked over NATS."""
        return self._network().questions(self._whose(), self._key.principal)

    def show(self, found: tuple[SignedValue[PollQuestion], ...]) -> CommandAnswer:
        """Return questions."""
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
        """Return what is known of earlier votes: those that the servers have, or the one in the file to be replaced."""
        if self._login is not None:
            return self._network().own_votes(asked, self._key.principal)
        file = self._destination.out
        if file is None or not Path(file).exists():
            return ()
        try:
            return (read_said(file, Vote),)
        except PenstockError:
            # Whatever it is, it is to be replaced.
            return ()

    def answer_all(self, policy: Policy) -> None:
        """Answer by a policy until stopped."""
        self._network().answer_all(self._whose(), self._key, policy)

    def _whose(self) -> Principal:
        if self._moderator is None:
            raise MalformedError("cli.usage", "whose questions?", hint="give --moderator WHO")
        return self._moderator

    def _network(self) -> "Network":
        from penstock.apps.cli.moderator.poll_network import Network  # noqa: PLC0415  # nats-py is an extra

        if self._login is None:
            raise MalformedError("cli.usage", "which servers?", hint="give --nats URL")
        return Network(self._login, self._session, self._cast)
