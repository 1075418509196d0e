"""Reduction of chains: the rule of the paper (section 2.6.1) against a naive reading of it, and the links at fault."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.kit import CURRENT, DAY, FUTURE, NOW, PAST, grant, name, naming, passing, refused, tag, who

from penstock.errors import RefusedError
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Authorisation, Certificate, Threshold
from penstock.trust.discovery import FiveTuple, ReductionCache, reduce_chain, reduce_pair
from penstock.trust.limits import CHAIN_LENGTH
from penstock.trust.tags import NOTHING, intersect, matches
from penstock.trust.validity import ALWAYS, Validity

#: every request that the tags below can tell apart
REQUESTS = [(b"q", letter) for letter in (b"a", b"b", b"c", b"d")]
TAGS = ["(*)", "(q)", "(q a)", "(q (* set a b))", "(q (* set b c d))", "(q (* prefix c))", "(* set (q a) (q d))", "(r)"]
VALIDITIES = [ALWAYS, CURRENT, PAST, FUTURE, Validity.between(NOW, NOW + DAY), Validity.between(None, NOW)]
MOMENTS = [NOW + days * DAY for days in (-40, -20, -1, 0, 1, 20, 40)]


def five(certificate: Certificate) -> FiveTuple:
    statement = certificate.statement
    assert isinstance(statement, Authorisation)
    return FiveTuple(
        statement.issuer,
        statement.subject,
        statement.propagate,
        statement.tag,
        statement.validity,
        (certificate.id,),
    )


def naive(chain: Sequence[FiveTuple]) -> FiveTuple | None:
    """Apply the rule to the first certificate and the reduction of all below it: the other end than the code."""
    if len(chain) == 1:
        return chain[0]
    upper, lower = chain[0], naive(chain[1:])
    if lower is None or upper.subject != lower.issuer or not upper.propagate:
        return None
    authority, validity = intersect(upper.tag, lower.tag), upper.validity.intersect(lower.validity)
    if authority is None or validity is None:
        return None
    return FiveTuple(upper.issuer, lower.subject, lower.propagate, authority, validity, upper.because + lower.because)


@st.composite
def chains(draw: st.DrawFn) -> list[Certificate]:
    chain = []
    for position in range(draw(st.integers(1, 6))):
        issuer = position if draw(st.integers(0, 12)) else draw(st.integers(0, 6))
        chain.append(
            grant(
                issuer,
                position + 1,
                tag(draw(st.sampled_from(TAGS))),
                propagate=bool(draw(st.integers(0, 12))),
                validity=draw(st.sampled_from(VALIDITIES)),
            )
        )
    return chain


@given(chains())
@settings(deadline=None, max_examples=examples(200))
def test_a_chain_reduces_as_the_rule_says(chain: list[Certificate]) -> None:
    expected = naive([five(certificate) for certificate in chain])
    try:
        found = reduce_chain(chain)
    except RefusedError as error:
        assert expected is None, error.code  # noqa: PT017  # some chains are refused, others are not
        return
    assert expected is not None
    assert (found.issuer, found.subject, found.propagate) == (expected.issuer, expected.subject, expected.propagate)
    assert found.because == expected.because == tuple(certificate.id for certificate in chain)
    for request in REQUESTS:
        assert matches(request, found.tag) == matches(request, expected.tag)
        assert matches(request, found.tag) == all(matches(request, five(link).tag) for link in chain)
    for moment in MOMENTS:
        assert found.validity.contains(moment) == all(five(link).validity.contains(moment) for link in chain)


@given(chains())
@settings(deadline=None, max_examples=examples(50))
def test_the_memo_answers_the_same(chain: list[Certificate]) -> None:
    cache = ReductionCache()
    try:
        expected = reduce_chain(chain)
    except RefusedError as error:
        for _ in range(2):
            with refused(error.code):
                cache.reduce(chain)
        assert len(cache) == 0
        return
    assert cache.reduce(chain) == cache.reduce(chain) == expected
    assert len(cache) == 1


def test_one_step() -> None:
    upper, lower = five(passing(1, 2, tag("(q)"))), five(grant(2, 3, tag("(q a)")))
    both = reduce_pair(upper, lower)
    assert both == FiveTuple(who(1), who(3), False, tag("(q a)"), ALWAYS, upper.because + lower.because)
    assert reduce_pair(lower, upper) is None
    assert reduce_pair(five(grant(1, 2)), lower) is None


PITO, MET, BROKER = 1, 2, 3
T1, T2 = (event_tag(who(PITO), f"uk.gov.pito.{name}", None, [Right.SUBSCRIBE]) for name in ("T1", "T2"))


def test_a_blanket_capability_gives_what_the_domain_has() -> None:
    """Figure 5.2: what is wider below is cut to what is above."""
    blanket = grant(MET, BROKER, event_tag())
    assert reduce_chain([passing(PITO, MET, T1), blanket]).tag == T1


def test_a_blanket_capability_serves_new_rights_unchanged() -> None:
    """Figure 5.3: the domain gets another right, and the broker's certificate stays as it is."""
    blanket = grant(MET, BROKER)
    for right in (T1, T2):
        assert reduce_chain([passing(PITO, MET, right), blanket]).tag == right


def test_a_wider_certificate_below_never_widens() -> None:
    narrow = event_tag(who(PITO), "uk.gov.pito.T1", "7", [Right.SUBSCRIBE])
    chain = [passing(PITO, MET, narrow, CURRENT), passing(MET, 4, tag("(*)")), grant(4, BROKER, event_tag(who(PITO)))]
    found = reduce_chain(chain)
    assert found.tag == narrow
    assert found.validity == CURRENT


def test_chain_of_one() -> None:
    assert reduce_chain([grant(1, 2, tag("(q a)"), validity=CURRENT)]).validity == CURRENT


@pytest.mark.parametrize(
    ("chain", "code", "at_fault"),
    [
        ([grant(1, 2), grant(2, 3)], "chain.no-propagate", 1),
        ([passing(1, 2), grant(3, 4)], "chain.not-linked", 1),
        ([passing(1, 2), passing(2, 1), grant(2, 3)], "chain.not-linked", 2),
        ([passing(1, name(1, "a")), grant(2, 3)], "chain.not-linked", 1),
        ([passing(1, Threshold(1, (who(2),))), grant(2, 3)], "chain.not-linked", 1),
        ([passing(1, 2, tag("(q a)")), grant(2, 3, tag("(q b)"))], "chain.no-authority", 1),
        ([passing(1, 2, tag("(q a)")), passing(2, 3), grant(3, 4, tag("(r)"))], "chain.no-authority", 2),
        ([passing(1, 2, NOTHING), grant(2, 3)], "chain.no-authority", 0),
        ([passing(1, 2, validity=PAST), grant(2, 3, validity=FUTURE)], "chain.no-validity", 1),
    ],
)
def test_the_link_at_fault_is_named(chain: list[Certificate], code: str, at_fault: int) -> None:
    with refused(code) as caught:
        reduce_chain(chain)
    assert caught.value.fields["certificate"] == chain[at_fault].id


def test_a_right_to_nothing_is_no_right() -> None:
    with refused("chain.no-authority"):
        reduce_chain([grant(1, 2, NOTHING)])


def test_a_name_certificate_is_no_link() -> None:
    with refused("chain.not-linked"):
        reduce_chain([passing(1, 2), naming(2, "a", 3)])


def test_the_length_of_a_chain() -> None:
    with refused("chain.empty"):
        reduce_chain([])
    there, back = passing(1, 2), passing(2, 1)
    longest = [there, back] * (CHAIN_LENGTH // 2)
    assert reduce_chain(longest).subject == who(1)
    with refused("chain.limit"):
        reduce_chain([*longest, there])


def test_the_memo_is_bounded_and_forgets_the_least_recently_used() -> None:
    cache = ReductionCache(2)
    first, second, third = ([grant(1, number)] for number in (2, 3, 4))
    reduced = cache.reduce(first)
    cache.reduce(second)
    assert cache.reduce(first) is reduced
    cache.reduce(third)
    assert len(cache) == 2
    assert cache.reduce(first) is reduced
    empty = ReductionCache(0)
    assert empty.reduce(first) == empty.reduce(first) == reduced
    assert len(empty) == 0
