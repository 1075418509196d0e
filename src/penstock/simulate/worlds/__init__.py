"""Worlds: parts of the real system that a simulation starts, gives work to, and checks.

- `world` says what a world is.
- `components`: PAPs, PEPs, PDPs and PIPs of one domain.
- `brokers`: brokers and their clients, where requests come and go, or rights do.
- `sealing`: brokers that seal events, and get and lose keys.
- `decisions`: enforcement points that recycle the answers of decision points.
- `roles`: roles of two domains that rest on each other, and statements about their validity.
- `rule_book`: a moderator's rule book; `records` is the database that it is in.
"""

from collections.abc import Callable, Mapping
from typing import Final

from penstock.simulate.worlds.brokers import BrokersWorld, FabricBrokersWorld, RevocationWorld
from penstock.simulate.worlds.components import ComponentsWorld
from penstock.simulate.worlds.decisions import DecisionsWorld
from penstock.simulate.worlds.roles import RolesWorld
from penstock.simulate.worlds.rule_book import RuleBookWorld
from penstock.simulate.worlds.sealing import ReplicasWorld, SealingWorld
from penstock.simulate.worlds.world import SimulationWorld

WORLDS: Final[Mapping[str, Callable[[Mapping[str, int]], SimulationWorld]]] = {
    world.name: world
    for world in (
        *(BrokersWorld, RevocationWorld, FabricBrokersWorld, SealingWorld, ReplicasWorld),
        *(ComponentsWorld, DecisionsWorld, RolesWorld, RuleBookWorld),
    )
}
