"""Reduction of chains: the rule of the paper (section 2.6.1) against a naive reading of it."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.kit import CURRENT, DAY, FUTURE, NOW, PAST, grant, name, passing, tag, who

from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Authorisation, Certificate, Threshold
from penstock.trust.discovery import FiveTuple, reduce_pair
from penstock.trust.tags import NOTHING, Tag, intersect, matches
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


def reduced(chain: Sequence[Certificate]) -> FiveTuple | None:
    """Reduce a chain from its first certificate on, one pair after the other."""
    first, *rest = map(five, chain)
    for lower in rest:
        if (both := reduce_pair(first, lower)) is None:
            return None
        first = both
    return first


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
    found = reduced(chain)
    if found is None or expected is None:
        assert found is expected is None
        return
    assert (found.issuer, found.subject, found.propagate) == (expected.issuer, expected.subject, expected.propagate)
    assert found.because == expected.because == tuple(certificate.id for certificate in chain)
    for request in REQUESTS:
        assert matches(request, found.tag) == matches(request, expected.tag)
        assert matches(request, found.tag) == all(matches(request, five(link).tag) for link in chain)
    for moment in MOMENTS:
        assert found.validity.contains(moment) == all(five(link).validity.contains(moment) for link in chain)


def test_one_step() -> None:
    upper, lower = five(passing(1, 2, tag("(q)"))), five(grant(2, 3, tag("(q a)")))
    both = reduce_pair(upper, lower)
    assert both == FiveTuple(who(1), who(3), False, tag("(q a)"), ALWAYS, upper.because + lower.because)
    assert reduce_pair(lower, upper) is None
    assert reduce_pair(five(grant(1, 2)), lower) is None
    assert reduce_pair(five(passing(1, name(2, "a"))), lower) is None
    assert reduce_pair(five(passing(1, Threshold(1, (who(2),)))), lower) is None
    assert reduce_pair(five(passing(1, 2, NOTHING)), lower) is None


PITO, MET, BROKER = 1, 2, 3
T1, T2 = (event_tag(who(PITO), f"uk.gov.pito.{name}", None, [Right.SUBSCRIBE]) for name in ("T1", "T2"))


def tag_of(chain: Sequence[Certificate]) -> Tag | None:
    found = reduced(chain)
    return None if found is None else found.tag


def test_a_blanket_capability_gives_what_the_domain_has() -> None:
    """Figure 5.2: what is wider below is cut to what is above."""
    blanket = grant(MET, BROKER, event_tag())
    assert tag_of([passing(PITO, MET, T1), blanket]) == T1


def test_a_blanket_capability_serves_new_rights_unchanged() -> None:
    """Figure 5.3: the domain gets another right, and the broker's certificate stays as it is."""
    blanket = grant(MET, BROKER)
    for right in (T1, T2):
        assert tag_of([passing(PITO, MET, right), blanket]) == right


def test_a_wider_certificate_below_never_widens() -> None:
    narrow = event_tag(who(PITO), "uk.gov.pito.T1", "7", [Right.SUBSCRIBE])
    chain = [passing(PITO, MET, narrow, CURRENT), passing(MET, 4, tag("(*)")), grant(4, BROKER, event_tag(who(PITO)))]
    found = reduced(chain)
    assert found is not None
    assert found.tag == narrow
    assert found.validity == CURRENT
