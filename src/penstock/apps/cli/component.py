"""`penstock component`: run components of a domain, and ask through one of them."""

import asyncio
from typing import Final

import click

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.component_process import ask_through, host_components, open_plan
from penstock.apps.cli.shared.decision_options import QuestionOptions, decision_answer, fulfil_option, wait_option
from penstock.apps.cli.shared.options import passphrase_option
from penstock.apps.cli.shared.session import Verbs

_LONGEST: Final = 600


@click.group(cls=Verbs)
def component() -> None:
    """Run authorization components of a domain, and ask through one of them."""


@option_class
class _Up:
    file: str = argument()
    ids: tuple[str, ...] = argument(nargs=-1, required=False, metavar="[ID]...")
    passphrase_file: str | None = passphrase_option()
    output: str = output_option()


@command(
    component,
    example="""
penstock component up machines.toml
penstock component up bank.toml pdp-1 pdp-2
""",
)
def up(options: _Up) -> CommandAnswer | None:
    """Run the components of FILE, or those with these ids, in this process, until it is stopped.

    FILE is a domain plan or a component file. Each component asks the PAPs of its domain for its role, and prints a
    line when it has joined. What it refuses is printed to standard error. SIGTERM and SIGINT let all of them leave. The
    exit status is 1 if every component was refused.
    """
    asyncio.run(host_components(open_plan(options.file), options.ids, options.passphrase_file))
    return None


@option_class
class _Ask:
    file: str = argument()
    id: str = argument()
    question: QuestionOptions
    timeout: float = wait_option(_LONGEST, "10s", "Wait at most this long until the component has joined.")
    take_over: bool = option(
        "--take-over", is_flag=True, help="Ask as ID itself: if a component with this ID runs, it loses its role."
    )
    understood: tuple[str, ...] = fulfil_option()
    passphrase_file: str | None = passphrase_option()
    output: str = output_option()


@command(
    component,
    example="""
penstock component ask bank.toml atm --subject customer:alice --action withdraw --resource account:a-1 \\
  --set action.amount=100
""",
)
def ask(options: _Ask) -> CommandAnswer:
    """Ask for one decision through the PEP with this ID. The exit status is 0 if access is permitted, and 1 otherwise.

    A PEP with the key and the role of ID joins the domain, asks, and leaves. Its own id begins with `ID-ask-`, so a
    component that runs as ID is not disturbed. If the fabric lets only ID itself write (`penstock domain
    nats-permissions`), use --take-over, or a component file with a PEP that does not run elsewhere. If FILE does not
    name a fabric that connects processes, all of its components run in this process meanwhile. Without a decision in
    time nothing is permitted.
    """
    question, loaded = options.question.read(), open_plan(options.file)
    asking = ask_through(
        loaded, options.id, question, options.timeout, options.passphrase_file, take_over=options.take_over
    )
    return decision_answer(asking, options.understood)
