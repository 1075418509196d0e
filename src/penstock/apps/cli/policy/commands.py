"""`penstock pdp`: decisions by attribute-based policies, of a request in a file or by a service."""

from collections.abc import Sequence

import click

from penstock.apps.cli.policy.analysis import analyse, diff, residual
from penstock.apps.cli.policy.combining import combine
from penstock.apps.cli.policy.files import check, convert, fmt, read_request_file, read_root, run_tests
from penstock.apps.cli.policy.serve import serve
from penstock.apps.cli.shared import options
from penstock.apps.cli.shared.groups import Verbs, example
from penstock.apps.cli.shared.options import JSON
from penstock.apps.cli.shared.session import CommandSession, say, say_block, say_json
from penstock.errors import RefusedError
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide
from penstock.policy.engine.repository import Repository, check_policies
from penstock.policy.language.results import Obligation, Response, Result, XacmlDecision
from penstock.policy.syntax.json.requests import write_response
from penstock.policy.syntax.xml import requests as xml_requests

XML = "xml"
_MARKS = {XacmlDecision.PERMIT: "✓", XacmlDecision.DENY: "✗"}


@click.group(cls=Verbs)
def pdp() -> None:
    """Decide by attribute-based policies."""


pdp.add_command(serve)


@pdp.command()
@click.argument("request_file", metavar="REQUEST", default="-")
@click.option(
    "--policy", "policy_file", required=True, metavar="FILE", help="The policy or policy set, in XML or text."
)
@click.option("--refer", "referred", multiple=True, metavar="FILE", help="A policy that it refers to; repeat it.")
@options.at_option
@options.output_option(XML)
@click.pass_obj
@example(
    """
penstock pdp evaluate request.xml --policy records.xml
penstock pdp evaluate request.json --policy root.xml --refer records.xml --refer billing.xml -o json
"""
)
def evaluate(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    request_file: str,
    policy_file: str,
    referred: tuple[str, ...],
    at: str | None,
    output: str,
) -> None:
    """Decide the REQUEST in a file, in XML or in the JSON profile; - is standard input.

    The status is 0 where everything that is asked is permitted, and 1 otherwise. With -o xml or json the answer is a
    response of XACML. What goes wrong with a policy is Indeterminate, and is told with its reason.
    """
    root = read_root(policy_file)
    others = [read_root(file) for file in referred]
    check_policies([root], others)
    known = Repository(others)
    request = read_request_file(request_file)
    response = decide(CompiledPolicy(root).evaluate, request, options.moment(at, session), known)
    if output == JSON:
        found = write_response(response)
        say_json(found if isinstance(found, dict) else {})
    elif output == XML:
        say_block(xml_requests.write_response(response).decode())
    else:
        for result in response.results:
            _show(result)
    _check(response)


def _show(result: Result) -> None:
    reason = f": {result.status.message}" if result.status.message else ""
    say(f"{_MARKS.get(result.decision, '?')} {result.decision.value}{reason}")
    for one in result.status.missing:
        say(f"  missing: {one.id} ({one.of}) of {one.category}")
    for word, duties in (("obligation", result.obligations), ("advice", result.advice)):
        _show_duties(word, duties)
    for policy in result.policies:
        say(f"  {'policy set' if policy.is_set else 'policy'} {policy.id} {policy.version}")


def _show_duties(word: str, duties: Sequence[Obligation]) -> None:
    for duty in duties:
        say(f"  {word} {duty.id}")
        for one in duty.assigned:
            say(f"    {one.id} = {one.of.write(one.value)}")


def _check(response: Response) -> None:
    denied = [result for result in response.results if result.decision is not XacmlDecision.PERMIT]
    if denied:
        raise RefusedError("pdp.not-permitted", f"the answer is {denied[0].decision.plain}")


@click.group(cls=Verbs)
def policy() -> None:
    """Attribute-based policies: check them."""


policy.add_command(analyse)
policy.add_command(diff)
policy.add_command(residual)


for _command in (check, fmt, convert, run_tests, combine):
    policy.add_command(_command)
