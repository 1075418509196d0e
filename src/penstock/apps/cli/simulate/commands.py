"""`penstock simulate`: the list of its verbs."""

import click

from penstock.apps.cli.shared.session import Verbs
from penstock.apps.cli.simulate.plans import calibrate, domain, network
from penstock.apps.cli.simulate.scenarios import explore, run


@click.group(cls=Verbs)
def simulate() -> None:
    """Run the real system in virtual time, to search for faults and to try plans."""


for _verb in (run, explore, domain, network, calibrate):
    simulate.add_command(_verb)
