"""`penstock cert`: issue certificates, look at them, verify them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from penstock.apps.cli.certs.grants import Issuing, Wanted, subject_options
from penstock.apps.cli.shared import options
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.credentials import CredentialFiles, load_event_type, read_bag
from penstock.apps.cli.shared.describe import Wording, date_problem, statement_data
from penstock.apps.cli.shared.groups import Verbs, example
from penstock.apps.cli.shared.names import load_names
from penstock.apps.cli.shared.options import JSON, SEXP, moment
from penstock.apps.cli.shared.session import CommandSession, one_answer, say_block, say_json
from penstock.codec.sexp import advanced
from penstock.crypto import digest
from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import instant_key
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.principals import Principal
from penstock.trust.certificates import (
    Authorisation,
    NameCertificate,
    Statement,
    UnverifiedCertificate,
    certificate_id,
    read_statement,
    verify_certificate,
)
from penstock.trust.credentials import Damaged
from penstock.trust.subjects import Name, Subject, Threshold
from penstock.trust.validity import State

# ----------------------------------------------------------------------------------------------------------------------
# Certificates on the screen: one in full, several as a tree of who gave what to whom.


@dataclass(frozen=True, slots=True)
class Judged:
    """What a certificate says, and what is wrong with it: nothing, or a code and words."""

    id: str
    statement: Statement
    code: str = ""
    problem: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        data = {"id": self.id, "ok": not self.code, **statement_data(self.statement)}
        return data | ({"code": self.code, "problem": self.problem} if self.code else {})


def judge_bag(bag: CredentialFiles, now: datetime) -> list[Judged]:
    """Judge every certificate of a bag. Raises what is wrong with one that cannot be read at all."""
    return [
        *(judge(certificate, now) for certificate in bag.credentials.certificates),
        *map(_judge_damaged, bag.damaged),
    ]


def _judge_damaged(one: Damaged) -> Judged:
    """Take what a changed certificate says for what it is: words that nobody signed."""
    if isinstance(one.error, MalformedError):
        raise one.error
    problem = f"not verified: {one.error.message}"
    return Judged(certificate_id(digest(one.body)), read_statement(one.body), one.error.code, problem)


def judge(certificate: UnverifiedCertificate, now: datetime) -> Judged:
    """Check the signature, then the dates. On-line tests are not asked here."""
    id_, statement = certificate.id, certificate.statement
    try:
        verify_certificate(certificate)
    except RefusedError as error:
        return Judged(id_, statement, error.code, error.message)
    state = statement.validity.state(instant_key(now))
    if state is State.VALID:
        return Judged(id_, statement)
    return Judged(id_, statement, f"cert.{state}", date_problem(f"cert.{state}", statement.validity))


def show_bag(judged: list[Judged], quorums: tuple[Threshold, ...], wording: Wording, *, in_full: bool) -> None:
    """Show one certificate in full, several as a tree."""
    if not judged and not quorums:
        paint.line("nothing: no certificate and no quorum")
        return
    if in_full or len(judged) == 1:
        for index, one in enumerate(judged):
            if index:
                paint.line()
            paint.facts(_facts(one, wording))
    else:
        paint.tree(_forest(judged, wording))
    for quorum in quorums:
        paint.facts([("quorum", wording.subject(quorum)), ("principal", str(quorum.principal))])


def _facts(one: Judged, wording: Wording) -> list[tuple[str, str]]:
    state = f"✗ {one.problem} [{one.code}]" if one.code else "✓ signed and valid"
    return [("certificate", one.id), *wording.statement(one.statement), ("state", state)]


def _forest(judged: list[Judged], wording: Wording) -> list[paint.TreeLine]:
    """Hang each certificate below those that lead to its issuer; what nothing leads to stands at the top."""
    by_issuer: dict[Principal, list[Judged]] = {}
    for one in judged:
        by_issuer.setdefault(one.statement.issuer, []).append(one)
    shown: set[str] = set()

    def grow(node: paint.TreeLine, principal: Principal, depth: int) -> None:
        for one in by_issuer.get(principal, ()):
            if one.id in shown:
                continue
            shown.add(one.id)
            child = paint.TreeLine(_line(one, wording))
            node.children.append(child)
            # Cycles end because each certificate is shown once; a long chain goes on at the top.
            if depth < DEFAULT_LIMITS.chain_length:
                for reached in _reached(one.statement.subject):
                    grow(child, reached, depth + 1)

    led_to = {
        reached for one in judged for reached in _reached(one.statement.subject) if reached != one.statement.issuer
    }
    roots: list[paint.TreeLine] = []
    for principal in [*(issuer for issuer in by_issuer if issuer not in led_to), *by_issuer]:
        node = paint.TreeLine(wording.who(principal))
        grow(node, principal, 0)
        if node.children:
            roots.append(node)
    return roots


def _reached(subject: Subject) -> list[Principal]:
    match subject:
        case Principal():
            return [subject]
        case Name():
            return []
        case Threshold():
            return [principal for member in subject.subjects for principal in _reached(member)]


def _line(one: Judged, wording: Wording) -> str:
    mark = f"✗ {one.problem}" if one.code else "✓"
    # The issuer is the node above.
    text = wording.line(one.statement).split(" ", 1)[-1]
    return f"{mark} {text}"


# ----------------------------------------------------------------------------------------------------------------------
# `penstock cert`: issue certificates, look at them, verify them.


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
    session: CommandSession,
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
    session: CommandSession,
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
        return NameCertificate(issuer, written, subject, made.validity, made.comment)

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
    session: CommandSession,
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
def verify(
    session: CommandSession, *, files: tuple[str, ...], at: str | None, output: str, names_file: str | None
) -> None:
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
