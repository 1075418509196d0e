"""`penstock cert`: issue certificates, look at them, verify them."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import click

from penstock.apps.cli.certs.grants import Issuing, RightOptions, SubjectOptions
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    one_answer,
    option,
    option_class,
    output_option,
)
from penstock.apps.cli.shared.credentials import CredentialFiles, read_bag
from penstock.apps.cli.shared.describe import Wording, date_problem, statement_data
from penstock.apps.cli.shared.options import SEXP, AtOption, KeyOptions, NamesOption, OutputFile, TypeFileOptions
from penstock.apps.cli.shared.session import CommandSession, Verbs
from penstock.apps.cli.shared.terminal import Shown, TreeLine, fact_table, trees
from penstock.codec.sexp import advanced
from penstock.crypto import digest
from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import instant_key
from penstock.model.principals import Principal
from penstock.trust.certificates import (
    Authorisation,
    Name,
    NameCertificate,
    Statement,
    Subject,
    Threshold,
    UnverifiedCertificate,
    certificate_id,
    read_statement,
    verify_certificate,
)
from penstock.trust.credentials import Damaged
from penstock.trust.limits import CHAIN_LENGTH
from penstock.trust.validity import State

# ----------------------------------------------------------------------------------------------------------------------
# Certificates on the screen: one in full, several as a tree of grants.


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


def show_bag(
    judged: list[Judged], quorums: tuple[Threshold, ...], wording: Wording, *, in_full: bool
) -> Iterator[Shown]:
    """Yield one certificate in full, several as a tree."""
    if not judged and not quorums:
        yield "nothing: no certificate and no quorum"
        return
    if in_full or len(judged) == 1:
        for index, one in enumerate(judged):
            if index:
                yield ""
            yield fact_table(_facts(one, wording))
    else:
        yield from trees(_forest(judged, wording))
    for quorum in quorums:
        yield fact_table([("quorum", wording.subject(quorum)), ("principal", str(quorum.principal))])


def _facts(one: Judged, wording: Wording) -> list[tuple[str, str]]:
    state = f"✗ {one.problem} [{one.code}]" if one.code else "✓ signed and valid"
    return [("certificate", one.id), *wording.statement(one.statement), ("state", state)]


def _forest(judged: list[Judged], wording: Wording) -> list[TreeLine]:
    """Hang each certificate below those that lead to its issuer; what nothing leads to stands at the top."""
    by_issuer: dict[Principal, list[Judged]] = {}
    for one in judged:
        by_issuer.setdefault(one.statement.issuer, []).append(one)
    shown: set[str] = set()

    def grow(node: TreeLine, principal: Principal, depth: int) -> None:
        for one in by_issuer.get(principal, ()):
            if one.id in shown:
                continue
            shown.add(one.id)
            child = TreeLine(_line(one, wording))
            node.children.append(child)
            # Cycles end because each certificate is shown once; a long chain goes on at the top.
            if depth < CHAIN_LENGTH:
                for reached in _reached(one.statement.subject):
                    grow(child, reached, depth + 1)

    led_to = {
        reached for one in judged for reached in _reached(one.statement.subject) if reached != one.statement.issuer
    }
    roots: list[TreeLine] = []
    for principal in [*(issuer for issuer in by_issuer if issuer not in led_to), *by_issuer]:
        node = TreeLine(wording.who(principal))
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
    """Issue, show and verify certificates, which grant rights."""


@option_class
class _Issue:
    key: KeyOptions
    subject: SubjectOptions
    right: RightOptions
    propagate: bool = option("--propagate", is_flag=True, help="Let the subject pass the right on.")
    destination: OutputFile
    output: str = output_option()
    names: NamesOption


@command(
    cert,
    example="""
penstock cert issue --key ccs.key --to billing --type-file numberplate.type \\
    --right subscribe --attribute numberplate --attribute timestamp --days 365 --out billing.cert
penstock cert issue --key met.key --to-name "Met Brokers" --network "pito/UK Police Network" \\
    --right connect --right broker
""",
)
def issue(session: CommandSession, options: _Issue) -> CommandAnswer:
    """Grant a right to a subject.

    A right is on a network (connect, broker, install) or on event types: publish and subscribe; manage and its single
    operations; route, for brokers that carry events; and for sealed types keys, to manage them, and history, to fetch
    old ones. Attributes, forced values and selectors need --type-file, so that their names are known.
    """
    made = Issuing.of(session, options.key, options.subject, options.destination, options.names)
    event_type = options.right.of_type.load(session.now)
    wanted = options.right.to_tag(made.names, event_type)

    def state(issuer: Principal, subject: Subject) -> Statement:
        return Authorisation(issuer, subject, wanted, options.propagate, made.validity, made.comment)

    return made.issue(state, event_type, tuple(options.right.doubts()))


@option_class
class _Name:
    local_name: str = argument(metavar="NAME")
    key: KeyOptions
    subject: SubjectOptions
    destination: OutputFile
    output: str = output_option()
    names: NamesOption


@command(cert, example='penstock cert name "Met Brokers" --key met.key --to broker1 --days 30 --out broker1.cert')
def name(session: CommandSession, options: _Name) -> CommandAnswer:
    """Define NAME in your own name space.

    Several such certificates make a group: a right that is granted to the name is granted to all its members.
    """
    made = Issuing.of(session, options.key, options.subject, options.destination, options.names)
    written = options.local_name.encode("utf-8", "surrogateescape")
    if not written:
        raise click.UsageError("a name is not empty")

    def state(issuer: Principal, subject: Subject) -> Statement:
        return NameCertificate(issuer, written, subject, made.validity, made.comment)

    return made.issue(state)


@option_class
class _Show:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    in_full: bool = option("--long", is_flag=True, help="Show every certificate in full, even if there are several.")
    of_type: TypeFileOptions
    at: AtOption
    output: str = output_option(SEXP)
    names: NamesOption


@command(cert, example="penstock cert show met.cert\npenstock cert show *.cert   # several: a tree of grants")
def show(session: CommandSession, options: _Show) -> CommandAnswer:
    """Show what certificates say, and whether they are signed and valid.

    The exit status is 0 even if a certificate is expired or forged: use `penstock cert verify` to decide.
    """
    names = options.names.load()
    bag = read_bag(options.files)
    if options.output == SEXP:
        return CommandAnswer({}, advanced(bag.to_sexp()).split("\n"))
    now = options.at.moment(session)
    judged = judge_bag(bag, now)
    data = {"certificates": [one.as_dict() for one in judged], "quorums": [str(q.principal) for q in bag.quorums]}

    def shown() -> Iterator[Shown]:
        wording = Wording(names, options.of_type.load(now))
        yield from show_bag(judged, bag.quorums, wording, in_full=options.in_full)

    return CommandAnswer(data, shown())


@option_class
class _Verify:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    at: AtOption
    output: str = output_option()
    names: NamesOption


@command(cert, example="penstock cert verify met.cert --at 2026-12-31T23:59Z && echo good")
def verify(session: CommandSession, options: _Verify) -> CommandAnswer:
    """Check the signatures and dates of certificates, now or at another time."""
    with one_answer({"ok": False, "certificates": []}):
        wording = Wording(options.names.load())
        judged = judge_bag(read_bag(options.files), options.at.moment(session))
    bad = [one for one in judged if one.code]
    error = None
    if not judged:
        error = RefusedError("cert.none", "there is no certificate to verify", hint="give a file that holds one")
    elif bad:
        error = RefusedError(
            bad[0].code,
            f"{len(bad)} of {len(judged)} certificates cannot be used: {bad[0].problem}",
            certificate=bad[0].id,
        )
    data = {"ok": not bad and bool(judged), "certificates": [one.as_dict() for one in judged]}
    lines = (f"{_mark(one)}  {wording.line(one.statement)}" for one in judged)
    return CommandAnswer(data, lines, error)


def _mark(one: Judged) -> str:
    return f"✗ {one.problem} [{one.code}]" if one.code else "✓"
