"""What policies learn about who asks, and while it is true."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from tests.guard.london import BAG, CCS, MET, NOW, PITO, TYPE, V8516, name, transit
from tests.guard.policy_kit import ask, policy
from tests.trust.kit import refused

from penstock.guard import CapabilityAuthority, Delivery, EventRequest, environment
from penstock.guard.limits import AGREED_BRANCHES
from penstock.guard.policies import Policies, Subjects, periods
from penstock.model import Domain
from penstock.policy.language.event_attributes import SUBJECT_DOMAIN, SUBJECT_OWNER_ROLE, SUBJECT_RIGHT, SUBJECT_ROLE
from penstock.policy.language.requests import SUBJECT, Facts
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Name
from penstock.trust.credentials import Credentials
from penstock.trust.limits import TrustLimits
from penstock.trust.validity import ALWAYS, Validity

DAY, INSTANT = timedelta(days=1), timedelta(microseconds=1)
ASKED = frozenset({SUBJECT_ROLE, SUBJECT_OWNER_ROLE, SUBJECT_RIGHT})


def told(facts: Facts) -> dict[str, tuple[object, ...]]:
    return {key.id.rpartition(":")[2]: values for key, values in facts.items() if key.category == SUBJECT}


def known(
    bag: Credentials, now: datetime | None = NOW, asked: frozenset[str] = ASKED, *domains: Domain
) -> list[tuple[Validity, dict[str, tuple[object, ...]]]]:
    subjects = Subjects(CapabilityAuthority(bag), domains, asked)
    request = EventRequest(MET.principal, Right.SUBSCRIBE, V8516, now)
    return [(one.period, told(one.facts)) for one in subjects.known(request)]


def test_roles_are_names_by_whoever_gives_them() -> None:
    bag = Credentials.of(
        name(PITO, b"police", MET.principal),
        name(CCS, b"friends", MET.principal),
        # A name for everybody that another name means.
        name(PITO, b"trusted", Name(CCS.principal, (b"friends",))),
        name(PITO, b"others", CCS.principal),
    )
    ((_, facts),) = known(bag)
    assert facts["owner-role"] == ("police", "trusted")
    assert set(facts["role"]) == {f"{PITO.principal}/police", f"{PITO.principal}/trusted", f"{CCS.principal}/friends"}


def test_more_names_than_are_followed_are_none() -> None:
    limits = TrustLimits(chain_length=1)
    chained = Credentials.of(
        name(PITO, b"a", Name(CCS.principal, (b"b",))),
        name(CCS, b"b", MET.principal),
    )
    request = EventRequest(MET.principal, Right.SUBSCRIBE, V8516, NOW)
    with refused("chain.limit"):
        CapabilityAuthority(chained, limits=limits).roles(request)
    assert len(CapabilityAuthority(chained).roles(request)) == 2


def test_what_nobody_asks_for_is_not_looked_up() -> None:
    ((_, facts),) = known(BAG + Credentials.of(name(PITO, b"police", MET.principal)), NOW, frozenset())
    assert facts.keys() == {"subject-id"}


def test_rights_are_those_without_conditions() -> None:
    ((_, facts),) = known(BAG)
    assert facts["right"] == ("subscribe",)


def test_homes_are_innermost_first() -> None:
    inner = Domain("London", MET.principal)
    outer = Domain("UK", PITO.principal, subdomains=(inner,))
    ((_, facts),) = known(BAG, NOW, frozenset({SUBJECT_DOMAIN}), outer)
    assert facts["domain"] == ("London", "UK")


def test_for_a_moment_what_is_valid_then_counts() -> None:
    over = name(PITO, b"police", MET.principal, Validity.between(NOW - 2 * DAY, NOW - DAY))
    ((period, facts),) = known(Credentials.of(over))
    assert period == ALWAYS
    assert "role" not in facts


def test_a_history_is_told_apart_by_periods() -> None:
    begin, end = NOW - DAY, NOW + DAY
    bag = Credentials.of(name(PITO, b"police", MET.principal, Validity.between(begin, end)))
    before, within, after = known(bag, None)
    assert [facts.get("owner-role") for _, facts in (before, within, after)] == [None, ("police",), None]
    assert (before[0].ends, within[0].starts, within[0].ends, after[0].starts) == (
        begin - INSTANT,
        begin,
        end,
        end + INSTANT,
    )


def test_an_event_is_judged_by_the_roles_of_its_time() -> None:
    role = name(PITO, b"police", MET.principal, Validity.between(NOW - DAY, NOW + DAY))
    plates = Policies.of(policy('permit target clause role == "police"'))
    decision = ask(plates, MET, bag=BAG + Credentials.of(role), now=None)
    delivery = Delivery(decision.require(), TYPE)
    for days, sees in ((-2, False), (-1, True), (0, True), (1, True), (2, False)):
        assert (delivery(transit(), environment(NOW + days * DAY)) is not None) is sees


def test_periods_cover_all_times_once() -> None:
    ends = [Validity.between(NOW, NOW + DAY), Validity.between(NOW + DAY), Validity.between(None, NOW), ALWAYS]
    found = [*periods(ends, None)]
    assert found[0].starts is None
    assert found[-1].ends is None
    for one, two in pairwise(found):
        assert one.ends is not None
        assert one.ends + INSTANT == two.starts
    assert [*periods(ends, NOW)] == [ALWAYS]
    # The first and the last instant that there are.
    edges = Validity.between(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
    assert [*periods([edges], None)] == [ALWAYS]


def test_too_many_periods() -> None:
    many = [Validity.between(NOW + n * DAY) for n in range(AGREED_BRANCHES)]
    with refused("guard.periods"):
        [*periods(many, None)]
