"""Components of a small domain join, leave, are rejected and reconfigured; the whole one has the paper's numbers."""

from penstock.authority.components.exchange.topics import ComponentKind
from penstock.simulate.experiments.component_domain import DomainSize, members, role_rules, role_table, run_domain

SMALL = DomainSize((4, 3, 1, 1), (2, 2, 1, 1), rejected=1, left=1, reconfigurations=1, groups=1)


def test_the_domain_has_the_numbers_of_table_5() -> None:
    size, table = DomainSize(), role_table(DomainSize())
    assert size.total == 1046
    assert role_rules(size).count("activate ") == len(table) == 320
    assert len({(role.write, role.read, number) for number, role in table.items()}) == 320
    assert sum(len(role.policies) for role in table.values()) == 100
    assert sum(len(role.combining) for role in table.values()) == 120
    assert sum(len(role.priorities) for role in table.values()) == 120
    assert {f"{kind}" for _, kind, _ in members(size)} == {"PEP", "PDP", "PIP", "PLP"}


def test_a_small_domain_ends_its_conf_and_reconf_processes() -> None:
    found = run_domain(SMALL)
    assert dict(found.joined) == {
        ComponentKind.PEP: 3,
        ComponentKind.PDP: 3,
        ComponentKind.PIP: 1,
        ComponentKind.PLP: 1,
    }
    assert (found.left, dict(found.rejected), found.waiting) == (1, {"component.rejected": 1}, 0)
    assert found.reconfigured == 1
