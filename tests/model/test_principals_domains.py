"""Domains: a broker group or a domain group, never both (section 5.1.4 of the dissertation)."""

import pytest

from penstock.errors import MalformedError
from penstock.model.principals import KEY, THRESHOLD, Domain, Principal


def who(number: int) -> Principal:
    return Principal(bytes([number]) * 32)


# Figure 5.4: the privileged brokers and clients of an organisation in a sub-domain of their own.
PAYROLL = Domain("Pay Roll", who(1), brokers=(who(2),), clients=(who(3),))
STAFF = Domain("Staff", who(4), brokers=(who(5), who(6)), clients=(who(7),))
COMPANY = Domain("Company", who(8), subdomains=(PAYROLL, STAFF))


def test_figure_5_4() -> None:
    assert not COMPANY.is_broker_group
    assert PAYROLL.is_broker_group
    assert list(COMPANY.members()) == [who(n) for n in (8, 1, 2, 3, 4, 5, 6, 7)]
    assert list(PAYROLL.members()) == [who(1), who(2), who(3)]


def test_everybody_is_at_home_in_the_innermost_domain() -> None:
    homes = {1: PAYROLL, 2: PAYROLL, 3: PAYROLL, 4: STAFF, 5: STAFF, 6: STAFF, 7: STAFF, 8: COMPANY}
    for number, domain in homes.items():
        assert COMPANY.home(who(number)) is domain
    assert COMPANY.home(who(9)) is None
    assert PAYROLL.home(who(8)) is None


def test_sub_domains_nest() -> None:
    holding = Domain("Holding", who(9), subdomains=(COMPANY, Domain("Other", who(10))))
    assert holding.home(who(2)) is PAYROLL
    assert holding.home(who(10)) is holding.subdomains[1]
    assert len(list(holding.members())) == 10


def test_a_new_domain_is_an_empty_broker_group() -> None:
    domain = Domain("New", who(1))
    assert domain.is_broker_group
    assert list(domain.members()) == [who(1)]


def test_never_both_brokers_and_sub_domains() -> None:
    with pytest.raises(MalformedError) as error:
        Domain("Company", who(8), brokers=(who(9),), subdomains=(PAYROLL,))
    assert error.value.code == "domain.mixed"
    with pytest.raises(MalformedError) as error:
        Domain("Company", who(8), brokers=(who(9),), clients=(who(10),), subdomains=(PAYROLL,))
    assert error.value.code == "domain.mixed"


def test_clients_connect_to_local_brokers() -> None:
    with pytest.raises(MalformedError) as error:
        Domain("Company", who(8), clients=(who(9),), subdomains=(PAYROLL,))
    assert error.value.code == "domain.clients"


@pytest.mark.parametrize(
    ("brokers", "clients"),
    [
        ((who(1),), ()),
        ((), (who(1),)),
        ((who(2), who(2)), ()),
        ((), (who(2), who(2))),
        ((who(2),), (who(2),)),
    ],
)
def test_nobody_stands_twice_in_a_domain(brokers: tuple[Principal, ...], clients: tuple[Principal, ...]) -> None:
    with pytest.raises(MalformedError) as error:
        Domain("Twice", who(1), brokers, clients)
    assert error.value.code == "domain.duplicate"


@pytest.mark.parametrize(
    "subdomains",
    [
        (PAYROLL, PAYROLL),
        (Domain("Same service", who(8)),),
        (PAYROLL, Domain("Same broker", who(9), brokers=(who(2),))),
        (PAYROLL, Domain("Broker and client", who(9), clients=(who(2),))),
        (Domain("Deep", who(9), subdomains=(PAYROLL,)), Domain("Flat", who(10), brokers=(who(2),))),
    ],
)
def test_nobody_stands_twice_in_the_tree(subdomains: tuple[Domain, ...]) -> None:
    with pytest.raises(MalformedError) as error:
        Domain("Company", who(8), subdomains=subdomains)
    assert error.value.code == "domain.duplicate"


def test_the_scheme_does_not_make_another_principal() -> None:
    with pytest.raises(MalformedError) as error:
        Domain("Twice", Principal(bytes(32), KEY), brokers=(Principal(bytes(32), THRESHOLD),))
    assert error.value.code == "domain.duplicate"
