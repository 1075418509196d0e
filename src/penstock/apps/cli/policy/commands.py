"""`penstock pdp`: decisions by attribute-based policies, of a request in a file or by a service."""

from collections.abc import Iterator

import click

from penstock.apps.cli.policy.analysis import analyse, diff, residual
from penstock.apps.cli.policy.combining import combine
from penstock.apps.cli.policy.files import check, convert, fmt, read_request_file, read_root, run_tests
from penstock.apps.cli.policy.serve import serve
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.groups import Verbs
from penstock.apps.cli.shared.options import AtOption
from penstock.apps.cli.shared.session import CommandSession
from penstock.errors import RefusedError
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide
from penstock.policy.engine.repository import Repository, check_policies
from penstock.policy.language.results import Result, XacmlDecision
from penstock.policy.syntax.json.requests import write_response
from penstock.policy.syntax.xml import requests as xml_requests

XML = "xml"
_MARKS = {XacmlDecision.PERMIT: "✓", XacmlDecision.DENY: "✗"}


@click.group(cls=Verbs)
def pdp() -> None:
    """Decide by attribute-based policies."""


pdp.add_command(serve)


@option_class
class _Evaluate:
    request_file: str = argument(metavar="REQUEST", default="-")
    policy_file: str = option(
        "--policy", required=True, metavar="FILE", help="Decide by this policy or policy set, in XML or text."
    )
    referred: tuple[str, ...] = option(
        "--refer", multiple=True, metavar="FILE", help="Read a policy that it refers to. Can be repeated."
    )
    at: AtOption
    output: str = output_option(XML)


@command(
    pdp,
    example="""
penstock pdp evaluate request.xml --policy records.xml
penstock pdp evaluate request.json --policy root.xml --refer records.xml --refer billing.xml -o json
""",
)
def evaluate(session: CommandSession, options: _Evaluate) -> CommandAnswer:
    """Decide the REQUEST in a file, in XML or in the JSON profile; - reads standard input.

    The exit status is 0 if everything is permitted, and 1 otherwise. With -o xml or json the answer is an XACML
    response. Errors in a policy are Indeterminate, and are shown with their reason.
    """
    root = read_root(options.policy_file)
    others = [read_root(file) for file in options.referred]
    check_policies([root], others)
    known = Repository(others)
    request = read_request_file(options.request_file)
    response = decide(CompiledPolicy(root).evaluate, request, options.at.moment(session), known)
    denied = [result for result in response.results if result.decision is not XacmlDecision.PERMIT]
    error = RefusedError("pdp.not-permitted", f"the answer is {denied[0].decision.plain}") if denied else None
    if options.output == XML:
        return CommandAnswer({}, xml_requests.write_response(response).decode().split("\n"), error)
    data = write_response(response)
    shown = (line for result in response.results for line in _show(result))
    return CommandAnswer(data if isinstance(data, dict) else {}, shown, error)


def _show(result: Result) -> Iterator[str]:
    reason = f": {result.status.message}" if result.status.message else ""
    yield f"{_MARKS.get(result.decision, '?')} {result.decision.value}{reason}"
    for one in result.status.missing:
        yield f"  missing: {one.id} ({one.of}) of {one.category}"
    for word, duties in (("obligation", result.obligations), ("advice", result.advice)):
        for duty in duties:
            yield f"  {word} {duty.id}"
            yield from (f"    {assigned.id} = {assigned.of.write(assigned.value)}" for assigned in duty.assigned)
    for policy in result.policies:
        yield f"  {'policy set' if policy.is_set else 'policy'} {policy.id} {policy.version}"


@click.group(cls=Verbs)
def policy() -> None:
    """Check, convert, test and analyse attribute-based policies."""


policy.add_command(analyse)
policy.add_command(diff)
policy.add_command(residual)


for _command in (check, fmt, convert, run_tests, combine):
    policy.add_command(_command)
