"""Policies that go together: no two with one id and version, nothing that is not there, and no set within itself."""

from dataclasses import replace

import pytest
from tests.policy.kit import NOW, policy, request, rule

from penstock.errors import MalformedError
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide, plainly
from penstock.policy.engine.lookup import Repository, check_policies
from penstock.policy.language.policies import Policy, PolicyReference, PolicySet, Root
from penstock.policy.language.results import XacmlDecision

FIRST = "urn:oasis:names:tc:xacml:1.0:policy-combining-algorithm:first-applicable"


def named(name: str, version: str = "1.0", effect: str = "Permit") -> Policy:
    found = policy(rule(effect=effect))
    assert isinstance(found, Policy)
    return replace(found, id=name, version=version)


def a_set(name: str, *members: Root | PolicyReference, version: str = "1.0") -> PolicySet:
    return PolicySet(name, version, FIRST, members)


def to(name: str, version: str | None = None, *, a_set: bool = True) -> PolicyReference:
    return PolicyReference(name, a_set, version)


def refused(roots: list[Root], referred: list[Root]) -> str:
    with pytest.raises(MalformedError) as caught:
        check_policies(roots, referred)
    assert caught.value.hint
    return caught.value.code


def test_two_policies_with_one_id_and_version_are_refused_wherever_they_stand() -> None:
    one, other = named("p"), named("p", effect="Deny")
    assert refused([one, other], []) == "xacml.duplicate"
    assert refused([one], [other]) == "xacml.duplicate"
    assert refused([], [one, other]) == "xacml.duplicate"
    assert refused([a_set("s", one, other)], []) == "xacml.duplicate"
    assert refused([a_set("s", a_set("left", one), a_set("right", other))], []) == "xacml.duplicate"
    assert refused([a_set("s", a_set("left", one))], [a_set("t", other)]) == "xacml.duplicate"
    assert refused([a_set("s", a_set("s"))], []) == "xacml.duplicate"


def test_versions_and_kinds_are_told_apart() -> None:
    check_policies([a_set("p", named("p"), named("p", "1.1"))], [named("p", "2.0"), a_set("p", version="2.0")])


def test_a_reference_must_find_something() -> None:
    assert refused([a_set("s", to("p", a_set=False))], []) == "xacml.unknown"
    assert refused([a_set("s", to("p", a_set=True))], [named("p")]) == "xacml.unknown"
    assert refused([a_set("s", to("p", "2.*", a_set=False))], [named("p")]) == "xacml.unknown"
    assert refused([a_set("s", a_set("t", to("p", a_set=False)))], []) == "xacml.unknown"
    # What nobody refers to yet may be referred to after the next change of another file.
    assert refused([named("x")], [a_set("s", to("p", a_set=False))]) == "xacml.unknown"
    # What stands within a set is found only in it.
    assert refused([a_set("s", named("p"), to("p", a_set=False))], []) == "xacml.unknown"
    check_policies([a_set("s", to("p", "1.*", a_set=False))], [named("p")])


def test_a_ring_of_references_is_refused() -> None:
    assert refused([a_set("s", to("s"))], []) == "xacml.cycle"
    assert refused([], [a_set("s", to("s"))]) == "xacml.cycle"
    assert refused([a_set("s", to("a"))], [a_set("a", to("b")), a_set("b", a_set("c", to("a")))]) == "xacml.cycle"
    check_policies([a_set("s", to("a"), to("b"))], [a_set("a", to("b")), a_set("b", named("p"))])


def test_references_are_followed_once_each() -> None:
    rungs: list[Root] = [a_set(f"s{one}", to(f"s{one + 1}"), to(f"s{one + 1}")) for one in range(60)]
    check_policies([], [*rungs, a_set("s60")])


def test_a_set_can_refer_to_an_older_version_of_itself() -> None:
    older, newer = a_set("s", named("p")), a_set("s", to("s", "1.0"), version="2.0")
    check_policies([newer], [older])
    for way in (plainly, lambda root: CompiledPolicy(root).evaluate):
        (result,) = decide(way(newer), request(), NOW, Repository([older])).results
        assert result.decision is XacmlDecision.PERMIT
    assert refused([newer], [a_set("s", to("s", "2.0"))]) == "xacml.cycle"
