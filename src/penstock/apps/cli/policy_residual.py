"""`penstock policy residual`: what is left of a policy for events, where everything else is known."""

import click

from penstock.apps.cli import options
from penstock.apps.cli.attributes import parse_schema, split_pair
from penstock.apps.cli.groups import example
from penstock.apps.cli.options import JSON
from penstock.apps.cli.policy_analysis import refer_option
from penstock.apps.cli.policy_files import read_root
from penstock.apps.cli.policy_requests import read_request_file
from penstock.apps.cli.session import Session, say, say_json
from penstock.apps.cli.trusted import load_event_type, need_type
from penstock.errors import RefusedError
from penstock.guard.environment import environment_schema
from penstock.guard.residuals import residual_restriction
from penstock.guard.restriction import Restriction
from penstock.model.types import EventType
from penstock.policy.datatypes import STRING
from penstock.policy.event_attributes import action_facts, event_names, type_facts
from penstock.policy.repository import Repository, check_policies
from penstock.policy.requests import SUBJECT, Facts, key_of
from penstock.trust.capabilities import Right


@click.command()
@click.argument("file", metavar="FILE")
@options.type_file_options
@click.option(
    "--right",
    type=click.Choice([Right.SUBSCRIBE.value, Right.PUBLISH.value]),
    default=Right.SUBSCRIBE.value,
    show_default=True,
    help="What is asked for.",
)
@click.option("--subject", "subjects", multiple=True, metavar="ID=TEXT", help="An attribute of who asks; repeat it.")
@click.option("--request", "request_file", metavar="FILE", help="What else is known: a request, in XML or JSON.")
@click.option("--fact", "facts", multiple=True, metavar="NAME:KIND", help="A fact that brokers know; repeat it.")
@click.option(
    "--obligation", "understood", multiple=True, metavar="ID", help="An obligation that brokers meet; repeat it."
)
@refer_option
@options.output_option()
@click.pass_obj
@example(
    """
penstock policy residual plates.policy --type-file numberplate.type \\
    --subject urn:penstock:subject:owner-role=billing
"""
)
def residual(  # noqa: PLR0913  # one argument an option
    session: Session,
    /,
    *,
    file: str,
    type_file: str | None,
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    right: str,
    subjects: tuple[str, ...],
    request_file: str | None,
    facts: tuple[str, ...],
    understood: tuple[str, ...],
    referred: tuple[str, ...],
    output: str,
) -> None:
    """Show what the policy in FILE permits of events, as a restriction, where all else is known.

    A broker decides so once, when somebody subscribes or wants to publish, and asks each event no more than what is
    shown. The type and what is asked for are known by themselves. A policy that asks of events what selectors cannot
    say is refused, and what that is is named: brokers then ask it about each event. The status is 1 where nothing is
    permitted.
    """
    event_type = need_type(load_event_type(type_file, parent, previous, session.now), "what a policy permits of events")
    known: Facts = {
        **({} if request_file is None else read_request_file(request_file).facts()),
        **_of_subject(subjects),
        **action_facts(Right(right)),
        **type_facts(event_type),
    }
    root, others = read_root(file), [read_root(one) for one in referred]
    check_policies([root], others)
    restriction = residual_restriction(
        root,
        known,
        Right(right),
        event_type,
        names=event_names(event_type),
        environment=environment_schema(parse_schema(facts)),
        sources=Repository(others),
        understood=frozenset(understood),
    )
    if output == JSON:
        say_json({"type": str(event_type.name), "right": right, **restriction.as_dict(event_type)})
    else:
        _show(restriction, event_type)
    if not restriction.branches:
        raise RefusedError("pdp.not-permitted", f"no event of `{event_type.name.name}` is permitted")


def _of_subject(written: tuple[str, ...]) -> Facts:
    found: dict[str, tuple[str, ...]] = {}
    for pair in written:
        name, value = split_pair(pair, "ID=TEXT")
        found[name] = (*found.get(name, ()), value)
    return {key_of(SUBJECT, name, STRING): values for name, values in found.items()}


def _show(restriction: Restriction, event_type: EventType) -> None:
    names = {attribute.id: attribute.name for attribute in event_type.attributes}
    for branch in restriction.branches:
        shown = [attribute.name for attribute in event_type.attributes if branch.shows(attribute.id)]
        say(f"✓ {'all attributes' if branch.attributes is None else ', '.join(shown)}")
        told = branch.as_dict(names)
        for place in ("where", "when"):
            if place in told:
                say(f"    {place} {told[place]}")
        say(f"    by {', '.join(one.removeprefix('policy:') for one in branch.because)}")
