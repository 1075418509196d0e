"""`penstock statement`: sign, show and send validity statements, which certificates with on-line tests need."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import click

from penstock.apps.cli.shared.broker_client import ClientOptions, talk
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.credentials import load_statements, read_bag
from penstock.apps.cli.shared.describe import Wording, counted, instant_text
from penstock.apps.cli.shared.options import SEXP, Duration, KeyOptions, NamesOption, OutputFile
from penstock.apps.cli.shared.session import CommandSession, Verbs
from penstock.apps.cli.shared.terminal import Shown, fact_table
from penstock.codec.sexp import advanced, transport
from penstock.errors import MalformedError
from penstock.trust.credentials import UnverifiedCredentials
from penstock.trust.limits import STAMP_PERIOD
from penstock.trust.signed import SignedValue, statements_to_sexp
from penstock.trust.statements import (
    ActiveRevocation,
    Heartbeat,
    OneTimeAnswer,
    StatementAuthor,
    TimedStatement,
    ValidityClaim,
)

_KINDS: Final = ("crl", "reval", "active", "heartbeat")
_CERTIFICATE: Final = "cert:"


@click.group(cls=Verbs)
def statement() -> None:
    """Sign, show and send validity statements about certificates."""


@option_class
class _New:
    kind: str = argument(type=click.Choice(_KINDS))
    key: KeyOptions
    certificates: tuple[str, ...] = option(
        "--certificate",
        multiple=True,
        metavar="FILE|ID",
        help="List this certificate, or all certificates of a file. Can be repeated.",
    )
    period: float = option(
        "--for",
        type=Duration(STAMP_PERIOD / 1_000, above=0),
        default="1h",
        show_default=True,
        metavar="DURATION",
        help="Set how long it is valid.",
    )
    after: tuple[str, ...] = option(
        "--after",
        multiple=True,
        metavar="FILE",
        help="Follow your earlier statements in this file. Can be repeated.",
    )
    successors: tuple[str, ...] = option(
        "--successor", multiple=True, metavar="FILE", help="Add certificates that replace the listed ones."
    )
    destination: OutputFile
    output: str = output_option()
    names: NamesOption


@command(
    statement,
    example="""
penstock statement new crl --key ccs.key --certificate billing.cert --for 1h --out now.crl
penstock statement new crl --key ccs.key --for 1h --after now.crl --out next.crl
penstock statement new heartbeat --key ccs.key --for 30s --after revoked.statement --out beat.statement
""",
)
def new(session: CommandSession, options: _New) -> CommandAnswer:
    """Sign a validity statement for certificates that name your key in an on-line test.

    A crl lists the certificates that are revoked, a reval those that are still valid, both for a period. An active
    revocation lists those that are revoked from now on; heartbeats confirm the last one. Give your earlier
    statements with --after: periods of one issuer must not overlap, and revocations are numbered.
    """
    options.destination.check()
    listed = frozenset(_listed(options.certificates))
    successors = read_bag(options.successors).credentials
    earlier = load_statements(options.after)
    author = StatementAuthor(options.key.open())
    author.resume(earlier)
    signed = _sign(author, options, listed, successors, session.now)
    value = statements_to_sexp((signed,))
    data = {**_data(signed), "statement": transport(value).decode()}
    return options.destination.answer(value, data, [fact_table(_facts(signed, Wording(options.names.load())))])


def _sign(
    author: StatementAuthor,
    options: _New,
    listed: frozenset[str],
    successors: UnverifiedCredentials,
    now: datetime,
) -> SignedValue[ValidityClaim]:
    period = timedelta(seconds=options.period)
    match options.kind:
        case "crl":
            return author.revocation_list(now, period, listed, successors)
        case "reval":
            return author.revalidation(now, period, listed, successors)
        case "active":
            return author.revoke(now, listed, successors)
    if listed or successors.certificates:
        raise MalformedError("cli.usage", "a heartbeat lists no certificates", hint="sign an active revocation first")
    return author.heartbeat(now, period)


def _listed(written: Iterable[str]) -> Iterator[str]:
    for one in written:
        if one.startswith(_CERTIFICATE) and not Path(one).exists():
            yield one
        else:
            yield from (certificate.id for certificate in read_bag([one]).credentials.certificates)


@option_class
class _Show:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    output: str = output_option(SEXP)
    names: NamesOption


@command(statement, example="penstock statement show now.crl")
def show(options: _Show) -> CommandAnswer:
    """Show what validity statements say. Their signatures are verified."""
    found = load_statements(options.files)
    if options.output == SEXP:
        return CommandAnswer({}, advanced(statements_to_sexp(found)).split("\n"))
    wording = Wording(options.names.load())

    def shown() -> Iterator[Shown]:
        for index, one in enumerate(found):
            if index:
                yield ""
            yield fact_table(_facts(one, wording))

    return CommandAnswer({"statements": [_data(one) for one in found]}, shown())


@option_class
class _Send:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    client: ClientOptions
    output: str = output_option()


@command(statement, example="penstock statement send now.crl --key ccs.key --broker penstock://127.0.0.1:7600")
def send(options: _Send) -> CommandAnswer:
    """Send validity statements to a broker, which publishes them to all brokers that need them.

    Connect as their issuer, or as a principal whose certificates need them.
    """
    found = load_statements(options.files)
    call = options.client.call()

    async def talking(_stop: object) -> None:
        async with call.client() as client:
            for one in found:
                await client.evolve(one.to_bytes())

    talk(talking)
    return CommandAnswer({"sent": len(found)}, [f"sent {counted(len(found), 'statement')}"])


def _data(signed: SignedValue[ValidityClaim]) -> dict[str, object]:
    value = signed.value
    data: dict[str, object] = {"kind": value.HEAD.decode(), "issuer": str(value.issuer), "digest": signed.digest.hex()}
    match value:
        case TimedStatement():
            data |= {"not_before": value.not_before.isoformat(), "not_after": value.not_after.isoformat()}
        case Heartbeat():
            data |= {"number": value.number, "time": value.time.isoformat(), "until": value.until.isoformat()}
        case ActiveRevocation():
            data |= {"number": value.number, "time": value.time.isoformat()}
        case OneTimeAnswer():
            data |= {"time": value.time.isoformat(), "verifier": str(value.verifier), "revoked": value.revoked}
    if isinstance(value, TimedStatement | ActiveRevocation):
        data["certificates"] = sorted(value.certificates)
    if isinstance(value, OneTimeAnswer):
        data["certificates"] = [value.certificate]
    if isinstance(value, TimedStatement | ActiveRevocation | OneTimeAnswer):
        data["successors"] = [certificate.id for certificate in value.successors.certificates]
    return data


def _facts(signed: SignedValue[ValidityClaim], wording: Wording) -> list[tuple[str, str]]:
    value = signed.value
    facts = [("statement", value.HEAD.decode()), ("issuer", wording.who(value.issuer))]
    match value:
        case TimedStatement():
            facts.append(("valid", f"{instant_text(value.not_before)} to {instant_text(value.not_after)}"))
        case Heartbeat():
            facts += [("valid", f"until {instant_text(value.until)}"), ("revocation", str(value.number))]
        case ActiveRevocation():
            facts += [("time", instant_text(value.time)), ("revocation", str(value.number))]
        case OneTimeAnswer():
            facts += [("time", instant_text(value.time)), ("answer", "revoked" if value.revoked else "valid")]
    if isinstance(value, TimedStatement | ActiveRevocation):
        facts += [("certificate", one) for one in sorted(value.certificates)] or [("certificates", "none")]
    if isinstance(value, OneTimeAnswer):
        facts += [("certificate", value.certificate), ("verifier", wording.who(value.verifier))]
    return facts
