"""`penstock cert`: issue certificates, look at them, verify them."""

from typing import Any

import click

from penstock.apps.cli import options, paint
from penstock.apps.cli.describe import Wording
from penstock.apps.cli.granting import Wanted
from penstock.apps.cli.groups import Verbs, example
from penstock.apps.cli.issuing import Issuing, subject_options
from penstock.apps.cli.names import load_names
from penstock.apps.cli.options import JSON, SEXP, moment
from penstock.apps.cli.session import Session, one_answer, say_block, say_json
from penstock.apps.cli.showing import Judged, judge_bag, show_bag
from penstock.apps.cli.trusted import load_event_type, read_bag
from penstock.codec.sexp import advanced
from penstock.errors import RefusedError
from penstock.model.principals import Principal
from penstock.trust.certificates import Authorisation, Naming, Statement
from penstock.trust.subjects import Subject


@click.group(cls=Verbs)
def cert() -> None:
    """Certificates: who gives which right to whom."""


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
penstock cert issue --key met.key --to-name "Met Brokers" --network "pito/UK Police Network" \\
    --right connect --right broker
"""
)
def issue(  # noqa: PLR0913  # one argument an option
    session: Session,
    /,
    *,
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
    **issuing: Any,
) -> None:
    """Give a right to somebody.

    The right is on a network (connect, install) or on event types: publish and subscribe; manage and its single
    operations; for brokers route, which is to carry events; and of sealed types keys, which is to manage them, and
    history, which is to fetch old ones. Attributes, forced values and selectors need --type-file, so that their names
    are known.
    """
    made = Issuing.of(session, **issuing)
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
    wanted = asked.to_tag(made.names, event_type)

    def state(issuer: Principal, subject: Subject) -> Statement:
        return Authorisation(issuer, subject, wanted, propagate, made.validity, made.comment)

    made.issue(state, event_type, tuple(asked.doubts()))


@cert.command()
@click.argument("local_name", metavar="NAME")
@options.key_options
@subject_options
@options.write_options
@options.output_option()
@options.names_option
@click.pass_obj
@example('penstock cert name "Met Brokers" --key met.key --to broker1 --days 30 --out broker1.cert')
def name(
    session: Session,
    /,
    *,
    local_name: str,
    **issuing: Any,
) -> None:
    """Say that NAME, in your own name space, means somebody.

    Several such certificates make a group: a right that is given to the name is given to all of them.
    """
    made = Issuing.of(session, **issuing)
    written = local_name.encode("utf-8", "surrogateescape")
    if not written:
        raise click.UsageError("a name is not empty")

    def state(issuer: Principal, subject: Subject) -> Statement:
        return Naming(issuer, written, subject, made.validity, made.comment)

    made.issue(state)


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
