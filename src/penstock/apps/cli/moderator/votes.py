"""`penstock moderator vote`: a publisher answers a moderator that asks how a rule is to be settled."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.apps.cli.moderator.changes import STRATEGIES
from penstock.apps.cli.moderator.poll_output import question_data, show_question, vote_data, vote_text
from penstock.apps.cli.moderator.sources import Cast
from penstock.apps.cli.shared import options
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.files import Destination, read_sexp, within
from penstock.apps.cli.shared.groups import example
from penstock.apps.cli.shared.names import load_names
from penstock.apps.cli.shared.options import (
    JSON,
    WHO,
    key_options,
    names_option,
    open_key,
    output_option,
    write_options,
)
from penstock.apps.cli.shared.session import CommandSession, say_block, say_json
from penstock.authority.polls_publisher import Ballot, Policy, refusals, tightenings
from penstock.codec.sexp import advanced, transport
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.fabric.nats_login import LoginError, NatsLogin, address
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.principals import Principal
from penstock.moderator.polls import PollQuestion, Vote, cast, cast_again
from penstock.moderator.rules.steps import Strategy
from penstock.trust.signed import Claim, SignedValue, read_signed

if TYPE_CHECKING:
    from penstock.apps.cli.moderator.poll_network import Network


# ----------------------------------------------------------------------------------------------------------------------
# What the commands about polls share: the NATS servers that carry one, and files with what somebody has signed.


V = TypeVar("V", bound=Claim)
_LOGIN: Final = ("credentials", "nkey", "token_file", "tls_ca", "tls_cert", "tls_key")


def nats_options(function: options.F) -> options.F:
    """Add `--nats` and `--nats-login`."""
    for option in (
        click.option(
            "--nats-login",
            "login_files",
            multiple=True,
            metavar="WHAT=FILE",
            help=f"What the servers want to see: {', '.join(_LOGIN)}; repeat it.",
        ),
        click.option(
            "--nats",
            "servers",
            multiple=True,
            envvar="PENSTOCK_NATS",
            metavar="URL",
            help="NATS servers that carry the poll; repeat it ($PENSTOCK_NATS).",
        ),
    ):
        function = option(function)
    return function


def nats_login(servers: tuple[str, ...], login_files: tuple[str, ...]) -> NatsLogin | None:
    """Return how to get into the servers that were named, if any. Raises `MalformedError` (`cli.usage`)."""
    files = dict(each.partition("=")[::2] for each in login_files)
    if not all(files.values()) or not set(files) <= set(_LOGIN) or (files and not servers):
        raise MalformedError(
            "cli.usage", "--nats-login is WHAT=FILE, beside --nats", hint=f"WHAT is {', '.join(_LOGIN)}"
        )
    try:
        return NatsLogin(tuple(map(address, servers)), **files) if servers else None
    except LoginError as error:
        raise MalformedError(
            "cli.usage", "--nats is no address of a server", hint="such as nats://localhost:4222"
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


@click.command()
@click.argument("question", required=False)
@click.option("--accept", multiple=True, type=STRATEGIES, help="A way out that you approve of; repeat it.")
@click.option("--relax", multiple=True, type=STRATEGIES, help="One by which your own rule may demand less; repeat it.")
@click.option("--refuse", is_flag=True, help="Refuse everything.")
@click.option(
    "--number",
    type=click.IntRange(1, DEFAULT_LIMITS.poll_votes),
    help="One more than that of your last vote (default: that of the file which is replaced decides, or 1).",
)
@click.option("--auto", type=click.Choice([*_POLICIES]), help="Answer all questions so, until stopped.")
@click.option("--moderator", "moderator_name", **WHO, help="Whose questions you answer; needed with --nats.")
@key_options
@names_option
@nats_options
@write_options
@output_option()
@click.pass_obj
@example(
    """
penstock moderator vote r2.question --accept add-attributes --key acme.key --out acme.vote
penstock moderator vote --moderator plant --key acme.key --nats nats://localhost:4222
penstock moderator vote 3f9a --relax delete-attributes --moderator plant --key acme.key --nats nats://localhost:4222
penstock moderator vote --auto tighten --moderator plant --key acme.key --nats nats://localhost:4222
"""
)
def vote(session: CommandSession, /, **how: Any) -> None:
    """Answer a moderator that asks how a rule is settled.

    QUESTION is a file, or with --nats the first digits of a poll. Without an answer the question is shown; with --nats
    and no QUESTION, all that are open. What would relax your own rule has to be named by --relax, and is signed as your
    consent; what you do not name you refuse. To vote again, before the deadline, replaces your vote: over NATS, or
    where --overwrite replaces the file with your last one. Else give --number: two of one number that differ refuse.
    What you answer yourself is not replaced by --auto.
    """
    voter = _Voter(session, **how)
    if voter.policy is not None:
        voter.answer_all(voter.policy)
    elif voter.question is None:
        voter.show(voter.open())
    elif voter.ballot is None:
        voter.show((voter.find(voter.question),))
    else:
        voter.answer(voter.find(voter.question), voter.ballot)


class _Voter:
    """Somebody who is asked, as the options say. Raises `MalformedError` (`cli.usage`), and what reading raises."""

    def __init__(  # noqa: PLR0913  # one argument an option
        self,
        session: CommandSession,
        *,
        question: str | None,
        accept: tuple[str, ...],
        relax: tuple[str, ...],
        refuse: bool,
        number: int | None,
        auto: str | None,
        moderator_name: str | None,
        key_file: str,
        passphrase_file: str | None,
        names_file: str | None,
        servers: tuple[str, ...],
        login_files: tuple[str, ...],
        out: str | None,
        overwrite: bool,
        dry_run: bool,
        output: str,
    ) -> None:
        if refuse and (accept or relax):
            raise MalformedError("cli.usage", "--refuse stands alone", hint="what you do not name you refuse")
        names = load_names(names_file)
        self._session, self.question, self._number, self._output = session, question, number, output
        self._cast, self._dry_run = Cast(names), dry_run
        self._login = nats_login(servers, login_files)
        self._moderator = None if moderator_name is None else names.principal(moderator_name)
        self._destination = Destination.free(out, overwrite=overwrite, dry_run=dry_run)
        given = refuse or accept or relax
        self.ballot = Ballot(frozenset(map(Strategy, accept)), frozenset(map(Strategy, relax))) if given else None
        self.policy = None if auto is None else _POLICIES[auto]
        if self._login is None and (question is None or auto is not None):
            raise MalformedError("cli.usage", "which question?", hint="give its file, or --nats URL")
        if self._login is not None and number is not None:
            raise MalformedError("cli.usage", "--number is for files", hint="over NATS votes are numbered for you")
        self._key = open_key(key_file, passphrase_file)

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

    def show(self, found: tuple[SignedValue[PollQuestion], ...]) -> None:
        """Show questions."""
        if self._output == JSON:
            say_json({"polls": [question_data(each.digest, each.value, self._cast) for each in found]})
            return
        for each in found:
            show_question(each.digest, each.value, self._cast)
        if not found:
            paint.line("nothing is asked of you")

    def answer(self, asked: SignedValue[PollQuestion], ballot: Ballot) -> None:
        """Vote."""
        if asked.value.deadline <= self._session.now:
            raise RefusedError("poll.closed", "the deadline of the poll has passed", hint="it counts as silence")
        sent = self._login is not None and not self._dry_run
        if sent:
            signed = self._network().send(asked, self._key, ballot)
        else:
            signed = self._sign(asked, ballot)
            self._destination.put(signed.to_sexp())
        if self._output == JSON:
            said = {"vote": transport(signed.to_sexp()).decode(), **self._destination.as_dict()}
            say_json({**vote_data(signed.value, asked.value, self._cast), **said, "sent": sent})
        elif self._login is None and self._destination.file is None and not self._dry_run:
            say_block(advanced(signed.to_sexp()))
        else:
            file = self._destination.file
            done = "voted" if sent else "would vote" if file is None else self._destination.line()
            paint.line(f"{done}: {vote_text(signed.value, asked.value)}")

    def _sign(self, asked: SignedValue[PollQuestion], ballot: Ballot) -> SignedValue[Vote]:
        """Sign a vote that is not sent."""
        if self._number is not None:
            return cast(asked, self._key, ballot.approves, ballot.consents, number=self._number)
        return cast_again(asked, self._key, ballot.approves, ballot.consents, self._earlier(asked))

    def _earlier(self, asked: SignedValue[PollQuestion]) -> tuple[SignedValue[Vote], ...]:
        """Return what is known of earlier votes: those that the servers have, or the one in the file to be replaced."""
        if self._login is not None:
            return self._network().own_votes(asked, self._key.principal)
        file = self._destination.file
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
