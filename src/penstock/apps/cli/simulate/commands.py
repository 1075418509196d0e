"""`penstock simulate`: the list of its verbs."""

import click

from penstock.apps.cli.shared.session import Verbs
from penstock.apps.cli.simulate.plans import calibrate, domain


@click.group(cls=Verbs)
def simulate() -> None:
    """Run the real system in virtual time, to try plans."""


for _verb in (domain, calibrate):
    simulate.add_command(_verb)
