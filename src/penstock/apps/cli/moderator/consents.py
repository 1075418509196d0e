"""What takes more than one to decide: requests that others carry to the moderator, and consents to them."""

from datetime import timedelta
from typing import Any

import click

from penstock.apps.cli.moderator.changes import STRATEGIES, resolving
from penstock.apps.cli.moderator.execution import Acting, acting, read_consent, refuse_rejected
from penstock.apps.cli.moderator.output import plan_data, show_plan
from penstock.apps.cli.moderator.sources import book_options
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.files import Destination, read_sexp, within
from penstock.apps.cli.shared.groups import example
from penstock.apps.cli.shared.options import JSON, key_options, output_option, write_options
from penstock.apps.cli.shared.session import CommandSession, say_block, say_json
from penstock.authority.signed_requests import ModeratorRequest
from penstock.codec.sexp import advanced, transport
from penstock.errors import MalformedError
from penstock.moderator.rules.steps import Note, Strategy, Undo
from penstock.moderator.settlement.addition import Plan
from penstock.moderator.settlement.consents import Consent, subject_of
from penstock.trust.signed import UnverifiedValue, read_signed, sign_value

_DAYS = 7


@click.command()
@click.argument("rule", required=False)
@click.option("--by", "strategy", type=STRATEGIES, help="The way out for RULE that you agree to.")
@click.option("--request", "request_file", metavar="FILE", help="A request that somebody else signed (--out).")
@click.option("--undo", type=click.IntRange(min=1), metavar="STEP", help="That STEP is undone.")
@click.option("--days", type=click.IntRange(1, 366), default=_DAYS, show_default=True, metavar="N", help="How long.")
@key_options
@book_options
@write_options
@output_option()
@click.pass_obj
@example(
    """
penstock moderator agree r2 --by delete-attributes --key bolt.key --out bolt.consent
penstock moderator agree --request r7.request --key bolt.key --out bolt.consent
penstock moderator agree --undo 7 --key bolt.key --out bolt.consent
"""
)
def agree(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    rule: str | None,
    strategy: str | None,
    request_file: str | None,
    undo: int | None,
    days: int,
    key_file: str,
    passphrase_file: str | None,
    out: str | None,
    overwrite: bool,
    dry_run: bool,
    output: str,
    **where: Any,
) -> None:
    """Agree to what somebody else asks for.

    That is a way out by which your rule demands less, a request that needs more than one, or that a step is undone
    because of which your rule demands more now.
    What would come of it is shown, and that alone is agreed to: it does not count where something else would by then.
    """
    asked = [request_file is not None, undo is not None, rule is not None or strategy is not None]
    if sum(asked) != 1 or (rule is None) is not (strategy is None):
        raise MalformedError(
            "cli.usage", "agree to one thing", hint="give RULE and --by, --request FILE, or --undo STEP"
        )
    destination = Destination.free(out, overwrite=overwrite, dry_run=dry_run)
    who: dict[str, Any] = {"key_file": key_file, "passphrase_file": passphrase_file, "as_who": None}
    with acting(session, dry_run=True, output=output, **who, **where) as act:
        plan = _planned(act, rule, strategy, request_file, undo)
        consent = Consent(
            act.book.id,
            act.asker(),
            subject_of(plan.step),
            # That time has passed is not written yet.
            act.book.base.next_number - (1 if act.passed is None else 2),
            (session.now + timedelta(days=days)).replace(microsecond=0),
        )
        value = sign_value(consent, act.key()).to_sexp()
        destination.put(value)
        if output == JSON:
            data = plan_data(plan, act.source, written=False)
            say_json({**data, "consent": transport(value).decode(), **destination.as_dict()})
            return
        if destination.file is None:
            say_block(advanced(value))
            return
        show_plan(plan, act.source, done=False)
        paint.line(destination.line())


def _planned(act: Acting, rule: str | None, strategy: str | None, request_file: str | None, undo: int | None) -> Plan:
    """Plan what is agreed to."""
    if request_file is not None:
        asked = read_request(request_file).value
        return act.book.plan(asked.request, Note(asked.by, act.session.now, asked.why))
    if undo is not None:
        return act.book.plan(Undo(undo), act.note())
    return act.book.plan(resolving(act, rule or "", Strategy(strategy or "")), act.note())


@click.command()
@click.argument("file")
@click.option("--consent", "consents", multiple=True, metavar="FILE", help="What others agreed to; repeat it.")
@click.option("--dry-run", is_flag=True, help="Show what would come of it, and change nothing.")
@book_options
@output_option()
@click.pass_obj
@example("penstock moderator take r7.request --consent bolt.consent")
def take(
    session: CommandSession, /, *, file: str, consents: tuple[str, ...], dry_run: bool, output: str, **where: Any
) -> None:
    """Take a request that somebody signed with --out."""
    asked = read_request(file)
    agreed = tuple(map(read_consent, consents))
    who: dict[str, Any] = {"key_file": None, "passphrase_file": None, "as_who": None}
    with acting(session, dry_run=dry_run, output=output, **who, **where) as act:
        refuse_rejected(act.source, act.carry(asked, agreed), written=act.written)


def read_request(file: str) -> UnverifiedValue[ModeratorRequest]:
    """Read a signed request. Raises what `read_sexp` and `read_signed` raise."""
    value = read_sexp(file)
    with within(file):
        return read_signed(value, ModeratorRequest)
