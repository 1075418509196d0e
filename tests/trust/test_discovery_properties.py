"""Discovery against brute force, on small random bags with names, quorums, dates and cycles."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.chains_model import MOMENTS, PEOPLE, REQUESTS, Oracle, bags
from tests.trust.kit import NOW, who

from penstock.model.principals import Principal
from penstock.trust.certificates import Certificate, Threshold
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import discover
from penstock.trust.tags import ANY, intersect, matches, parse_tag

Bag = tuple[list[Certificate], list[Threshold]]


def roots(quorums: list[Threshold]) -> list[Principal]:
    return [who(1), *(quorum.principal for quorum in quorums)]


@given(bags())
@settings(deadline=None, max_examples=examples(250))
def test_what_is_found_is_what_follows(bag: Bag) -> None:
    """Complete and sound: for every root, principal, request and moment, with and without the right to pass on."""
    certificates, quorums = bag
    credentials = Credentials.of(*certificates, quorums=quorums)
    everyone = [*map(who, PEOPLE), *(quorum.principal for quorum in quorums)]
    for root in roots(quorums):
        found = {principal: discover(credentials, root, principal, ANY, NOW) for principal in everyone}
        for request in REQUESTS:
            for moment in MOMENTS:
                expected = Oracle(certificates, quorums, request, [NOW, moment]).reach(root)
                for principal, findings in found.items():
                    assert not findings.truncated
                    for propagate in (False, True):
                        granted = any(
                            matches(request, grant.tag)
                            and grant.validity.contains(moment)
                            and (grant.propagate or not propagate)
                            for grant in findings.grants
                        )
                        assert granted == ((principal, propagate) in expected), (request, moment, propagate)


@given(bags())
@settings(deadline=None, max_examples=examples(120))
def test_a_grant_names_all_that_it_rests_on(bag: Bag) -> None:
    """Sound in `because` too: the certificates that a grant names suffice for all of it."""
    certificates, quorums = bag
    credentials = Credentials.of(*certificates, quorums=quorums)
    for root in roots(quorums):
        for principal in map(who, PEOPLE):
            for grant in discover(credentials, root, principal, ANY, NOW).grants:
                named = [certificate for certificate in certificates if certificate.id in grant.because]
                assert len({*grant.because}) == len({certificate.id for certificate in named})
                for request in REQUESTS:
                    for moment in MOMENTS:
                        if matches(request, grant.tag) and grant.validity.contains(moment):
                            reached = Oracle(named, quorums, request, [NOW, moment]).reach(root)
                            assert (principal, grant.propagate) in reached


@given(bags(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=examples(60))
def test_the_order_of_a_bag_does_not_matter(bag: Bag, shuffle: random.Random) -> None:
    certificates, quorums = bag
    mixed = list(certificates)
    shuffle.shuffle(mixed)
    for principal in map(who, PEOPLE):
        one, other = (
            discover(Credentials.of(*order, quorums=quorums), who(1), principal, ANY, NOW).grants
            for order in (certificates, mixed)
        )
        for request in REQUESTS:
            for moment in MOMENTS:
                first, second = (
                    {g.propagate for g in grants if matches(request, g.tag) and g.validity.contains(moment)}
                    for grants in (one, other)
                )
                assert max(first, default=None) == max(second, default=None)


@given(bags(), st.sampled_from(REQUESTS))
@settings(deadline=None, max_examples=examples(60))
def test_a_narrower_question_has_the_narrower_answer(bag: Bag, request: tuple[bytes, bytes]) -> None:
    certificates, quorums = bag
    credentials = Credentials.of(*certificates, quorums=quorums)
    asked = parse_tag(request)
    for principal in map(who, PEOPLE):
        wide = discover(credentials, who(1), principal, ANY, NOW).grants
        narrow = discover(credentials, who(1), principal, asked, NOW).grants
        assert all(grant.tag == asked for grant in narrow)
        assert bool(narrow) == any(intersect(grant.tag, asked) is not None for grant in wide)
