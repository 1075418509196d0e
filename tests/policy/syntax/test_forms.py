"""Policies in any form: how the form is recognised, and how policies of others get their ids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.kit import NOW
from tests.policy.random_policies import Maker
from tests.policy.syntax.cedar.random_cedar import CedarMaker

from penstock.errors import PenstockError
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide
from penstock.policy.language.policies import Policy, PolicyReference, PolicySet, inner_policies
from penstock.policy.language.requests import Request
from penstock.policy.syntax.forms import PolicyForm, compile_policy, form_of, read_root
from penstock.policy.syntax.json.policies import write_json_policy
from penstock.policy.syntax.text.policy_writer import write_text
from penstock.policy.syntax.xml.policies import read_policy, write_policy

ANYBODY = b"permit (principal, action, resource);"
ONE = b"policy p { apply deny-overrides rule r { permit } }"


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b"\xef\xbb\xbf <Policy/>", PolicyForm.XML),
        (b" {}", PolicyForm.JSON),
        (ONE, PolicyForm.TEXT),
        (b"// permit\n" + ONE, PolicyForm.TEXT),
        (b"permitted", PolicyForm.TEXT),
        (b"// only a comment", PolicyForm.TEXT),
        (b"", PolicyForm.TEXT),
        (ANYBODY, PolicyForm.CEDAR),
        (b"\xef\xbb\xbf// one\n  // two\n" + ANYBODY, PolicyForm.CEDAR),
        (b'@id("a") ' + ANYBODY, PolicyForm.CEDAR),
        (b"forbid(principal, action, resource);", PolicyForm.CEDAR),
    ],
)
def test_how_a_file_begins_says_its_form(data: bytes, form: PolicyForm) -> None:
    assert form_of(data) is form


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 1 << 40))
def test_a_compiled_policy_decides_as_its_source_in_each_language(seed: int) -> None:
    maker = Maker(seed)
    source = maker.policy()
    request = Request.of_facts(maker.facts())
    expected = decide(CompiledPolicy(source).evaluate, request, NOW).results[0].decision
    for written in (write_text(source).encode(), write_policy(source), write_json_policy(source)):
        compiled = read_policy(write_policy(compile_policy(written, "bank-3", "7")))
        assert (compiled.id, compiled.version) == ("bank-3", "7")
        assert decide(CompiledPolicy(compiled).evaluate, request, NOW).results[0].decision is expected
    cedar = CedarMaker(seed)
    text, asked = cedar.policies().encode(), cedar.request()[2].request()
    found = read_policy(write_policy(compile_policy(text, "bank-4", "1")))
    assert found.id == "bank-4"
    assert (
        decide(CompiledPolicy(found).evaluate, asked, NOW).results[0].decision
        is decide(CompiledPolicy(read_root(text)).evaluate, asked, NOW).results[0].decision
    )


def test_policies_within_get_numbers() -> None:
    text = b"""policyset s { apply deny-overrides
        policy p { apply deny-overrides rule r { permit } }
        policyset t { apply permit-overrides policy p { apply deny-overrides rule r { deny } } }
    }"""
    found = compile_policy(text, "bank-3", "7")
    assert [one.id for one in inner_policies(found)] == ["bank-3", "bank-3.1", "bank-3.2", "bank-3.2.1"]


def test_policies_of_others_are_complete_and_have_no_issuer() -> None:
    rule = Policy("p", "1.0", "urn:oasis:names:tc:xacml:3.0:rule-combining-algorithm:deny-overrides", ())
    overrides = "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:deny-overrides"
    refers = PolicySet("s", "1.0", overrides, (rule, PolicyReference("q", to_set=False)))
    issued = Policy(rule.id, rule.version, rule.combining, (), issuer="me")
    for root, code in ((refers, "policy.reference"), (issued, "xacml.issuer")):
        with pytest.raises(PenstockError) as caught:
            compile_policy(write_policy(root), "bank-3", "7")
        assert caught.value.code == code
