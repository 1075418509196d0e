"""`penstock policy acl`: which users may read and write which topics at all, as access control lists of a server."""

from typing import Final

import click

from penstock.apps.cli.shared.commands import CommandAnswer, command, option, option_class, output_option
from penstock.apps.cli.shared.events import split_pair
from penstock.apps.cli.shared.session import CommandSession
from penstock.model.principals import Principal
from penstock.pipeline.enforce.policy import load_policy
from penstock.pipeline.kafka.acl import acl_of

_FOR: Final = ("kafka",)


@option_class
class _Acl:
    server: str = option("--for", required=True, type=click.Choice(_FOR), help="Write lists for this kind of server.")
    policy_file: str = option("--policy", required=True, metavar="FILE", help="Read this policy file of the pipeline.")
    users: tuple[str, ...] = option(
        "--user",
        multiple=True,
        metavar="NAME=USER",
        help="Call a principal, or a name of the policy file, so at the server (default: its name). Can be repeated.",
    )
    prefix: str = option(
        "--topic-prefix", default="", metavar="TEXT", help="Begin the names of topics with this (default: nothing)."
    )
    bootstrap: str = option(
        "--bootstrap-server",
        default="localhost:9092",
        show_default=True,
        metavar="HOST:PORT",
        help="Name this server in the commands.",
    )
    output: str = output_option()


@command(
    example="""
penstock policy acl --for kafka --policy policy.toml
penstock policy acl --for kafka --policy policy.toml --user statistics=stats-service -o json
"""
)
def acl(session: CommandSession, options: _Acl) -> CommandAnswer:
    """Write access control lists that refuse the users that a policy refuses altogether.

    A list says who may read or write a topic, which has the name of an event type. It cannot say which rows,
    attributes, values or times a policy means. The comments list what each entry lacks: let brokers, views or jobs
    enforce it.
    """
    policy = load_policy(options.policy_file, session.now)
    by_name = {name: principal for principal, name in policy.names.items()}
    pairs = [split_pair(one, "NAME=USER") for one in options.users]
    users = {by_name.get(name) or Principal.parse(name): user for name, user in pairs}
    entries = acl_of(policy, users, options.prefix)
    lines = [f"# {policy.revision}"]
    for entry in entries:
        lines += [f"# not held: {word}" for word in entry.lacks]
        lines.append(entry.command(options.bootstrap))
    data = {"revision": policy.revision, "entries": [entry.as_dict() for entry in entries]}
    return CommandAnswer(data, lines)
