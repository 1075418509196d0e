"""What takes more than one to decide: requests that others carry to the moderator, and consents to them."""

from datetime import timedelta
from itertools import chain

import click

from penstock.apps.cli.moderator.changes import STRATEGIES, resolving
from penstock.apps.cli.moderator.execution import Acting, ActingOptions, WhoOptions, read_consent
from penstock.apps.cli.moderator.output import plan_data, show_plan
from penstock.apps.cli.moderator.sources import BookOptions
from penstock.apps.cli.shared.commands import (
    JSON,
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
)
from penstock.apps.cli.shared.files import read_sexp, within
from penstock.apps.cli.shared.options import KeyOptions, OutputFile
from penstock.apps.cli.shared.session import CommandSession
from penstock.authority.signed_requests import ModeratorRequest
from penstock.codec.sexp import advanced, transport
from penstock.errors import MalformedError
from penstock.moderator.rules.steps import Note, Strategy, Undo
from penstock.moderator.settlement.addition import Plan
from penstock.moderator.settlement.consents import Consent, subject_of
from penstock.trust.signed import UnverifiedValue, read_signed, sign_value

_DAYS = 7


@option_class
class _Agree:
    rule: str | None = argument(required=False)
    strategy: str | None = option("--by", type=STRATEGIES, help="Agree to this proposal for RULE.")
    request_file: str | None = option(
        "--request", metavar="FILE", help="Agree to a request that somebody else signed (--out)."
    )
    undo: int | None = option("--undo", type=click.IntRange(min=1), metavar="STEP", help="Agree that STEP is undone.")
    days: int = option(
        "--days",
        type=click.IntRange(1, 366),
        default=_DAYS,
        show_default=True,
        metavar="N",
        help="Let the consent be valid for this many days.",
    )
    key: KeyOptions
    book: BookOptions
    destination: OutputFile
    output: str = output_option()


@command(
    example="""
penstock moderator agree r2 --by delete-attributes --key bolt.key --out bolt.consent
penstock moderator agree --request r7.request --key bolt.key --out bolt.consent
penstock moderator agree --undo 7 --key bolt.key --out bolt.consent
"""
)
def agree(session: CommandSession, options: _Agree) -> CommandAnswer:
    """Sign your consent to what somebody else requests.

    Consent is needed for a proposal by which your rule requires less, for a request that needs several people, and to
    undo a step because of which your rule requires more now. The command shows the result, and you agree to this result
    only: the consent does not count if the result would be different by then.
    """
    asked = [
        options.request_file is not None,
        options.undo is not None,
        options.rule is not None or options.strategy is not None,
    ]
    if sum(asked) != 1 or (options.rule is None) is not (options.strategy is None):
        raise MalformedError(
            "cli.usage", "agree to one thing", hint="give RULE and --by, --request FILE, or --undo STEP"
        )
    destination = options.destination
    destination.check()
    who = WhoOptions(key_file=options.key.key_file, passphrase_file=options.key.passphrase_file, as_who=None)
    act = _only(who, options.book, dry_run=True).begin(session)
    plan = _planned(act, options)
    consent = Consent(
        act.book.id,
        act.asker(),
        subject_of(plan.step),
        # That time has passed is not written yet.
        act.book.base.next_number - (1 if act.passed is None else 2),
        (session.now + timedelta(days=options.days)).replace(microsecond=0),
    )
    value = sign_value(consent, act.key()).to_sexp()
    destination.put(value)
    data = {
        **plan_data(plan, act.source, written=False),
        "consent": transport(value).decode(),
        **destination.as_dict(),
    }
    if destination.out is None:
        return CommandAnswer(data, advanced(value).split("\n"))
    return CommandAnswer(data, chain(show_plan(plan, act.source, done=False), [destination.line()]))


def _only(who: WhoOptions, book: BookOptions, *, dry_run: bool) -> ActingOptions:
    """Return options that say who asks in which rule book, and nothing else."""
    return ActingOptions(
        who=who, why="", consents=(), out=None, overwrite=False, dry_run=dry_run, book=book, output=JSON
    )


def _planned(act: Acting, options: _Agree) -> Plan:
    """Plan what is agreed to."""
    if options.request_file is not None:
        asked = read_request(options.request_file).value
        return act.book.plan(asked.request, Note(asked.by, act.session.now, asked.why))
    if options.undo is not None:
        return act.book.plan(Undo(options.undo), act.note())
    return act.book.plan(resolving(act, options.rule or "", Strategy(options.strategy or "")), act.note())


@option_class
class _Take:
    file: str = argument()
    consents: tuple[str, ...] = option(
        "--consent", multiple=True, metavar="FILE", help="Read a consent of somebody else. Can be repeated."
    )
    dry_run: bool = option("--dry-run", is_flag=True, help="Show the result, and change nothing.")
    book: BookOptions
    output: str = output_option()


@command(example="penstock moderator take r7.request --consent bolt.consent")
def take(session: CommandSession, options: _Take) -> CommandAnswer:
    """Apply a request that somebody signed with --out."""
    asked = read_request(options.file)
    agreed = tuple(map(read_consent, options.consents))
    nobody = WhoOptions(key_file=None, passphrase_file=None, as_who=None)
    return _only(nobody, options.book, dry_run=options.dry_run).begin(session).carry(asked, agreed)


def read_request(file: str) -> UnverifiedValue[ModeratorRequest]:
    """Read a signed request. Raises what `read_sexp` and `read_signed` raise."""
    value = read_sexp(file)
    with within(file):
        return read_signed(value, ModeratorRequest)
