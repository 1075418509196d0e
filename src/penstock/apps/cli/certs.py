"""`penstock cert`: issue certificates, look at them, verify them."""

from collections.abc import Callable

import click

from penstock.apps.cli import options, paint
from penstock.apps.cli.describe import Wording, statement_data
from penstock.apps.cli.files import Destination
from penstock.apps.cli.granting import Wanted, check_comment, doubts, subject_of, validity_of
from penstock.apps.cli.groups import Verbs, example
from penstock.apps.cli.names import load_names
from penstock.apps.cli.options import JSON, SEXP, moment, open_key
from penstock.apps.cli.session import Session, Warned, one_answer, say, say_block, say_json, warn
from penstock.apps.cli.showing import Judged, judge_bag, show_bag
from penstock.apps.cli.trusted import load_event_type, read_bag
from penstock.codec.sexp import advanced, transport
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.trust.capabilities import flags
from penstock.trust.certificates import Authorisation, Naming, Statement
from penstock.trust.certificates import issue as sign
from penstock.trust.credentials import Credentials


@click.group(cls=Verbs)
def cert() -> None:
    """Certificates: who gives which right to whom."""


def subject_options(function: options.F) -> options.F:
    """Add the options that say whom a certificate is for, and while it is valid."""
    for option in (
        click.option("--comment", default="", metavar="TEXT", help="A remark for readers; it is signed too."),
        click.option("--days", type=click.IntRange(min=1), metavar="N", help="How many days it is valid."),
        click.option("--not-after", metavar="TIME", help="The last moment at which it is valid."),
        click.option("--not-before", metavar="TIME", help="The first moment at which it is valid."),
        click.option("--member", "members", multiple=True, help="A member of the quorum; repeat it.", **options.WHO),
        click.option("--threshold", type=int, metavar="K", help="For any K of the members together."),
        click.option("--to-name", "to_names", multiple=True, metavar="NAME", help="For a name of yours, or of --to's."),
        click.option("--to", **options.WHO, help="For a principal, one of your names, or a key or quorum file."),
    ):
        function = option(function)
    return function


@cert.command()
@options.key_options
@subject_options
@click.option("--network", metavar="OWNER/NAME", help="A network; * for all, or for all of one owner.")
@click.option("--type", "type_name", metavar="OWNER/PATTERN", help="Event types; * matches any part of the name.")
@click.option("--tag", metavar="SEXP", help="A right of another vocabulary, as an S-expression.")
@options.type_file_options
@click.option("--version", metavar="VERSION", help="One version of the type only.")
@click.option("--right", "rights", multiple=True, type=options.RIGHT, help="A right; repeat it.")
@click.option("--all-rights", is_flag=True, help="Every right there is.")
@click.option("--attribute", "attributes", multiple=True, metavar="NAME|ID", help="Only this attribute; repeat it.")
@click.option("--force", "forced", multiple=True, metavar="NAME=VALUE", help="Force the value of an attribute.")
@click.option("--where", multiple=True, metavar="SELECTOR", help="Only events for which this is true.")
@click.option("--when", multiple=True, metavar="CONDITION", help="Only while this is true of the environment.")
@click.option("--propagate", is_flag=True, help="The subject may pass the right on.")
@options.write_options
@options.output_option()
@options.names_option
@click.pass_obj
@example(
    """
penstock cert issue --key ccs.key --to billing --type-file numberplate.type \\
    --right subscribe --attribute numberplate --attribute timestamp --days 365 --out billing.cert
penstock cert issue --key met.key --to-name "Met Brokers" --network "pito/UK Police Network" --right connect
"""
)
def issue(  # noqa: PLR0913  # one argument an option
    session: Session,
    *,
    key_file: str,
    passphrase_file: str | None,
    to: str | None,
    to_names: tuple[str, ...],
    threshold: int | None,
    members: tuple[str, ...],
    not_before: str | None,
    not_after: str | None,
    days: int | None,
    comment: str,
    network: str | None,
    type_name: str | None,
    tag: str | None,
    type_file: str | None,
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    version: str | None,
    rights: tuple[str, ...],
    all_rights: bool,
    attributes: tuple[str, ...],
    forced: tuple[str, ...],
    where: tuple[str, ...],
    when: tuple[str, ...],
    propagate: bool,
    out: str | None,
    overwrite: bool,
    dry_run: bool,
    output: str,
    names_file: str | None,
) -> None:
    """Give a right to somebody.

    The right is on a network (connect, install) or on event types (publish, subscribe, manage and its single
    operations). Attributes, forced values and selectors need --type-file, so that their names are known.
    """
    names = load_names(names_file)
    event_type = load_event_type(type_file, parent, previous, session.now)
    asked = Wanted(
        network=network,
        type_name=type_name,
        tag=tag,
        version=version,
        rights=rights,
        all_rights=all_rights,
        attributes=attributes,
        forced=forced,
        where=where,
        when=when,
    )
    wanted = asked.to_tag(names, event_type)
    validity = validity_of(session.now, not_before, not_after, days)

    def state(key: SigningKey) -> Statement:
        subject = subject_of(names, key.principal, to=to, to_names=to_names, threshold=threshold, members=members)
        return Authorisation(key.principal, subject, wanted, propagate, validity, check_comment(comment))

    issue_certificate(
        session,
        state,
        key_file,
        passphrase_file,
        Wording(names, event_type),
        Destination.free(out, overwrite=overwrite, dry_run=dry_run),
        output,
        tuple(asked.doubts()),
    )


@cert.command()
@click.argument("local_name", metavar="NAME")
@options.key_options
@subject_options
@options.write_options
@options.output_option()
@options.names_option
@click.pass_obj
@example('penstock cert name "Met Brokers" --key met.key --to broker1 --days 30 --out broker1.cert')
def name(  # noqa: PLR0913  # one argument an option
    session: Session,
    *,
    local_name: str,
    key_file: str,
    passphrase_file: str | None,
    to: str | None,
    to_names: tuple[str, ...],
    threshold: int | None,
    members: tuple[str, ...],
    not_before: str | None,
    not_after: str | None,
    days: int | None,
    comment: str,
    out: str | None,
    overwrite: bool,
    dry_run: bool,
    output: str,
    names_file: str | None,
) -> None:
    """Say that NAME, in your own name space, means somebody.

    Several such certificates make a group: a right that is given to the name is given to all of them.
    """
    names = load_names(names_file)
    validity = validity_of(session.now, not_before, not_after, days)
    written = local_name.encode("utf-8", "surrogateescape")
    if not written:
        raise click.UsageError("a name is not empty")

    def state(key: SigningKey) -> Statement:
        subject = subject_of(names, key.principal, to=to, to_names=to_names, threshold=threshold, members=members)
        return Naming(key.principal, written, subject, validity, check_comment(comment))

    issue_certificate(
        session,
        state,
        key_file,
        passphrase_file,
        Wording(names),
        Destination.free(out, overwrite=overwrite, dry_run=dry_run),
        output,
    )


def issue_certificate(  # noqa: PLR0913, PLR0917  # what the commands that sign certificates share
    session: Session,
    state: Callable[[SigningKey], Statement],
    key_file: str,
    passphrase_file: str | None,
    wording: Wording,
    destination: Destination,
    output: str,
    more: tuple[Warned, ...] = (),
) -> None:
    """Sign what `state` says, warn about what should be known of it, write it, and answer."""
    key = open_key(key_file, passphrase_file)
    statement = state(key)
    certificate = sign(statement, key)
    warnings = [*(Warned(flag.code, flag.message) for flag in flags(statement)), *doubts(statement, session.now), *more]
    warn(*warnings)
    value = Credentials.of(certificate).to_sexp()
    destination.put(value)
    if output == JSON:
        say_json(
            {
                "id": certificate.id,
                **statement_data(statement),
                "warnings": [warning.as_dict() for warning in warnings],
                "certificate": transport(value).decode(),
                **destination.as_dict(),
            }
        )
    elif destination.file is None:
        say_block(advanced(value))
    else:
        say(destination.line())
        say(wording.line(statement))


@cert.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--long", "in_full", is_flag=True, help="Show every certificate in full, also where there are several.")
@options.type_file_options
@options.at_option
@options.output_option(SEXP)
@options.names_option
@click.pass_obj
@example("penstock cert show met.cert\npenstock cert show *.cert   # several: a tree of who gave what to whom")
def show(  # noqa: PLR0913  # one argument an option
    session: Session,
    *,
    files: tuple[str, ...],
    in_full: bool,
    type_file: str | None,
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    at: str | None,
    output: str,
    names_file: str | None,
) -> None:
    """Show what certificates say, and whether they are signed and valid.

    Showing is no verdict: the exit status is 0 also where a certificate is expired or forged.
    """
    names = load_names(names_file)
    bag = read_bag(files)
    if output == SEXP:
        say_block(advanced(bag.to_sexp()))
        return
    now = moment(at, session)
    judged = judge_bag(bag, now)
    if output == JSON:
        say_json(
            {"certificates": [one.as_dict() for one in judged], "quorums": [str(q.principal) for q in bag.quorums]}
        )
        return
    event_type = load_event_type(type_file, parent, previous, now)
    show_bag(judged, bag.quorums, Wording(names, event_type), in_full=in_full)


@cert.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@options.at_option
@options.output_option()
@options.names_option
@click.pass_obj
@example("penstock cert verify met.cert --at 2026-12-31T23:59Z && echo good")
def verify(session: Session, *, files: tuple[str, ...], at: str | None, output: str, names_file: str | None) -> None:
    """Check the signatures and the dates of certificates, now or at another time."""
    with one_answer({"ok": False, "certificates": []}, as_json=output == JSON):
        wording = Wording(load_names(names_file))
        judged = judge_bag(read_bag(files), moment(at, session))
    bad = [one for one in judged if one.code]
    if output == JSON:
        say_json({"ok": not bad and bool(judged), "certificates": [one.as_dict() for one in judged]})
    else:
        _tick(judged, wording)
    if not judged:
        raise RefusedError("cert.none", "there is no certificate to verify", hint="give a file that holds one")
    if bad:
        raise RefusedError(
            bad[0].code,
            f"{len(bad)} of {len(judged)} certificates cannot be used: {bad[0].problem}",
            certificate=bad[0].id,
        )


def _tick(judged: list[Judged], wording: Wording) -> None:
    for one in judged:
        mark = f"✗ {one.problem} [{one.code}]" if one.code else "✓"
        paint.line(f"{mark}  {wording.line(one.statement)}")
