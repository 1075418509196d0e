"""`penstock pep`: ask decision points for decisions, as an enforcement point does, and cache their answers."""

import asyncio
import json
import signal
import time
from typing import Final

import click

from penstock.apps.answer_links import AnswerLinks
from penstock.apps.cli.shared.commands import CommandAnswer, command, option, option_class, output_option, wants_data
from penstock.apps.cli.shared.decision_options import (
    DropNotes,
    FabricOptions,
    QuestionOptions,
    answer_data,
    decision_answer,
    fulfil_option,
    log_line,
    wait_option,
)
from penstock.apps.cli.shared.files import read_bytes, within
from penstock.apps.cli.shared.names import NameBook, load_names
from penstock.apps.cli.shared.options import Duration, KeyOptions, NamesOption
from penstock.apps.cli.shared.session import Verbs
from penstock.apps.cli.shared.terminal import show
from penstock.authority.decisions.enforcement_point import AskPath, EnforcementPoint, PointAddress
from penstock.authority.decisions.modes import AnswerMode, AskedDecision
from penstock.authority.decisions.questions import AccessQuestion, read_question
from penstock.authority.decisions.recycling import Recycled
from penstock.authority.decisions.secondary_point import MAX_AGE, SecondaryPoint, SecondarySettings, explain_recycled
from penstock.authority.decisions.shared_cache import SharedCache
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, RefusedError
from penstock.fabric.addresses import EMBEDDED
from penstock.policy.syntax.json.requests import read_json

_LONGEST: Final = 60


@click.group(cls=Verbs)
def pep() -> None:
    """Ask decision points whether access is permitted."""


@option_class
class _Ask:
    question: QuestionOptions
    key: KeyOptions
    fabric: FabricOptions
    points: tuple[str, ...] = option(
        "--point",
        multiple=True,
        metavar="HOST:PORT=WHO",
        help="Ask this decision point directly, without the fabric. Can be repeated.",
    )
    listen: str | None = option(
        "--straight-back", metavar="HOST:PORT", help="Let answers come straight back to this address (default: fabric)."
    )
    mode: str = option(
        "--mode",
        default="first",
        show_default=True,
        metavar="MODE",
        help="Combine answers: first, newest:SECONDS, n:NUMBER or tuple:SECONDS:ID.",
    )
    timeout: float = wait_option(_LONGEST, "2s", "Refuse if there is no decision within this time.")
    understood: tuple[str, ...] = fulfil_option()
    output: str = output_option()
    names: NamesOption


@command(
    pep,
    example="""
penstock pep ask --fabric nats://localhost:4222 --key pep.key --owner hospital --credential points.certs \\
  --subject user:alice --action read --resource record:7 --set subject.role=doctor
penstock pep ask --point 127.0.0.1:7450=pdp1 --key pep.key --owner hospital --credential points.certs \\
  --request question.json -o json
""",
)
def ask(options: _Ask) -> CommandAnswer:
    """Ask decision points for one decision. The exit status is 0 if access is permitted, and 1 otherwise.

    The request is signed with --key. Answers count if their signer may decide about the resource: the owner itself, or
    who has a certificate (`penstock cert issue --decisions OWNER/TYPE:ID --right decide`) in --credential. A Permit
    with obligations permits only if you fulfil them all. Without an answer in time nothing is permitted.
    """
    question, mode = options.question.read(), AnswerMode.parse(options.mode)
    key, names = options.key.open(), load_names(options.names.names_file)
    return decision_answer(_asked(options, question, mode, key, names), options.understood)


async def _asked(
    options: _Ask, question: AccessQuestion, mode: AnswerMode, key: SigningKey, names: NameBook
) -> AskedDecision:
    owner = options.fabric.owner_of(names, key.principal)
    points = [_point(text, names) for text in options.points]
    path = AskPath.DIRECT if points else AskPath.STRAIGHT_BACK if options.listen else AskPath.FABRIC
    host, _, port = (options.listen or "").rpartition(":")
    if options.listen and (not host or not port.isdigit()):
        raise MalformedError("cli.usage", f"`{options.listen[:80]}` is not HOST:PORT")
    if path is not AskPath.DIRECT and options.fabric.fabric is None:
        raise MalformedError("cli.usage", "there is nobody to ask", hint="give --fabric, or --point")
    async with (
        options.fabric.opened() as fabric,
        AnswerLinks(key, owner, host.strip("[]"), int(port or 0)) as links,
        EnforcementPoint(
            fabric,
            key,
            options.fabric.rights(owner),
            path=path,
            mode=mode,
            timeout=options.timeout,
            links=links,
            points=points,
        ) as point,
    ):
        return await point.ask(question)


def _point(text: str, names: NameBook) -> PointAddress:
    place, equals, who = text.rpartition("=")
    if not equals:
        raise MalformedError("cli.usage", f"`{text[:80]}` is not HOST:PORT=WHO")
    return PointAddress(place, names.principal(who))


# ----------------------------------------------------------------------------------------------------------------------
# `penstock pep explain`: how an answer follows from others.


@option_class
class _Explain:
    question: QuestionOptions
    after: str = option(
        "--after",
        required=True,
        metavar="FILE",
        help="Ask these questions first, one in each line as AuthZEN writes it; - is standard input.",
    )
    key: KeyOptions
    fabric: FabricOptions
    timeout: float = wait_option(
        _LONGEST, "5s", "Wait at most this long for each answer, and for a heartbeat of the decision points."
    )
    output: str = output_option()
    names: NamesOption


@command(
    pep,
    example="""
penstock pep explain --after asked.jsonl --fabric nats://localhost:4222 --key pep.key --owner hospital \\
  --credential points.certs --subject user:bob --action read --resource record:7 --set subject.role=doctor
""",
)
def explain(options: _Explain) -> CommandAnswer:
    """Show whether an answer follows from other answers, from which, and by which rule.

    The questions in --after are asked, and their answers are kept as a secondary decision point beside an enforcement
    point keeps them. Then the question is answered from them alone: because it is the same, because of roles or labels
    if the decision points declare them, or because an answer says for which requests it holds. The exit status is 1 if
    nothing follows: an enforcement point would ask.
    """
    question = options.question.read()
    data = read_bytes(options.after)
    with within(options.after):
        asked = [_line(line) for line in data.splitlines() if line.strip()]
    key, names = options.key.open(), load_names(options.names.names_file)
    recycled = asyncio.run(_recycled(options, question, asked, key, names))
    if recycled is None:
        error = RefusedError(
            "pep.not-recycled",
            "no answer follows from these: an enforcement point would ask",
            hint="ask more questions with --after; decision points declare `pdp serve --roles` or `--labels`",
        )
        return CommandAnswer({"recycled": False}, (), error)
    return CommandAnswer(
        {
            "recycled": True,
            "effect": recycled.effect,
            "rule": recycled.rule,
            "over": [*recycled.over],
            "answers": [{"question": one.question.text, **answer_data(one.answer)} for one in recycled.premises],
        },
        explain_recycled(question, recycled),
    )


def _line(line: bytes) -> AccessQuestion:
    found = read_json(line)
    return read_question(found if isinstance(found, dict) else {})


async def _recycled(
    options: _Explain, question: AccessQuestion, asked: list[AccessQuestion], key: SigningKey, names: NameBook
) -> Recycled | None:
    rights = options.fabric.rights(options.fabric.owner_of(names, key.principal))
    async with options.fabric.opened() as fabric:
        if fabric is None:
            raise MalformedError("cli.usage", "there is nobody to ask", hint="give --fabric")
        async with (
            SecondaryPoint(fabric, key, rights.may_decide, None) as secondary,
            EnforcementPoint(fabric, key, rights, timeout=options.timeout, secondary=secondary) as point,
        ):
            for one in asked[:1]:
                # A decision point is followed after its first answer.
                await point.ask(one)
                await secondary.followed(options.timeout)
            for one in asked:
                await point.ask(one)
            return secondary.find(question)


# ----------------------------------------------------------------------------------------------------------------------
# `penstock pep serve-cache`: a cache of answers for all enforcement points.


@option_class
class _Cache:
    key: KeyOptions
    fabric: FabricOptions
    max_age: float = option(
        "--max-age",
        type=Duration(_LONGEST, above=0.0),
        default=f"{MAX_AGE:g}s",
        show_default=True,
        metavar="DURATION",
        help="Use the answers of a decision point only while its last heartbeat is younger than this.",
    )
    output: str = output_option()
    names: NamesOption


@command(
    pep,
    example="""
penstock pep serve-cache --fabric nats://localhost:4222 --key cache.key --owner hospital --credential points.certs \\
  --credential askers.certs
""",
)
def serve_cache(options: _Cache) -> None:
    """Answer what was asked before over a fabric, with the decision points' own answers and signatures, until stopped.

    The cache learns from requests and answers that pass on the fabric, and follows the decision points' updates and
    heartbeats: an answer that may not hold any more is dropped. Enforcement points need not know of it, and believe the
    signatures of the decision points alone. It answers those who may ask, and keeps the answers of those who may
    decide, by the certificates in --credential. --key only signs its reports on what updates dropped. It prints a line
    when it is ready.
    """
    key, names = options.key.open(), load_names(options.names.names_file)
    if options.fabric.fabric in (None, EMBEDDED):
        raise MalformedError(
            "cli.usage", "a cache for others needs their fabric", hint="give --fabric nats://… or dds://…"
        )
    asyncio.run(_cached(options, key, names))


async def _cached(options: _Cache, key: SigningKey, names: NameBook) -> None:
    rights = options.fabric.rights(options.fabric.owner_of(names, key.principal))
    settings = SecondarySettings(max_age=options.max_age, note=DropNotes(log_line, time.monotonic))
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with options.fabric.opened() as fabric:
        if fabric is None:
            return
        async with SharedCache(fabric, key, rights, settings=settings):
            place = options.fabric.fabric
            as_data = json.dumps({"cache": str(key.principal), "fabric": place})
            # One line, because the program that started it waits for it.
            show([as_data if wants_data() else f"✓ {key.principal.short} answers what was asked before over {place}"])
            await stopped.wait()
