"""Explanations name what decided, with the values that were seen, and their decision is the engine's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.engine.test_trace import algorithms
from tests.policy.kit import NOW
from tests.policy.random_policies import Maker
from tests.policy.whole_policies import Whole

from penstock.apps.cli import conformance
from penstock.errors import MalformedError
from penstock.policy.analysis.explanation import DecisionExplanation, explain
from penstock.policy.engine.decide import decide, plainly
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, Repository
from penstock.policy.language.datatypes import INTEGER, STRING
from penstock.policy.language.policies import PolicyReference, PolicySet, Root
from penstock.policy.language.requests import (
    ENVIRONMENT,
    RESOURCE,
    SUBJECT,
    Attributes,
    Key,
    Request,
    attribute,
    key_of,
)
from penstock.policy.language.results import PolicyOutcome
from penstock.policy.syntax.forms import read_policies

POLICIES = """\
attribute role { category = subject id = "urn:example:role" type = string }
attribute hour { category = environment id = "urn:example:hour" type = integer }
attribute ward { category = resource id = "urn:example:ward" type = string }

policyset hospital {
    apply deny-overrides
    policy records {
        apply first-applicable
        target clause ward == "a" or ward == "b"
        variable night = hour < 8 or hour > 17
        rule chiefs { permit target clause role == "chief" }
        rule nights { deny condition role == "nurse" and night on deny { obligation log { hour = hour } } }
        rule others { permit }
    }
    policy billing {
        apply deny-unless-permit
        target clause ward == "office"
        rule clerks { permit target clause role == "clerk" }
    }
    policy everyone { apply permit-overrides rule all { permit } }
}
"""
DOCUMENT = read_policies(POLICIES.encode())
ROOT = DOCUMENT.policies[0]
NAMES = {one.key: name for name, one in DOCUMENT.attributes.items()}
ROLE = key_of(SUBJECT, "urn:example:role", STRING)
HOUR = key_of(ENVIRONMENT, "urn:example:hour", INTEGER)
WARD = key_of(RESOURCE, "urn:example:ward", STRING)


def explained(facts: dict[Key, tuple[Any, ...]], **more: Any) -> DecisionExplanation:
    (found,) = explain(ROOT, Request.of_facts(facts), NOW, names=NAMES, **more)
    return found


def test_the_path_has_the_values_that_were_seen() -> None:
    found = explained({ROLE: ("nurse",), HOUR: (20,), WARD: ("a",)})
    assert found.outcome.decision.value == "Deny"
    top = found.path
    assert top is not None
    (records,) = top.children
    (nights,) = records.children
    assert [(one.kind, one.id, one.combining) for one in (top, records, nights)] == [
        ("policy set", "hospital", "deny-overrides"),
        ("policy", "records", "first-applicable"),
        ("rule", "nights", ""),
    ]
    assert [(one.text, one.holds, [*map(str, one.values)]) for one in records.tests] == [
        ('ward == "a"', True, ['ward = "a"'])
    ]
    assert [(one.text, one.holds, [*map(str, one.values)]) for one in nights.tests] == [
        ('role == "nurse"', True, ['role = "nurse"']),
        ("hour < 8 or hour > 17", True, ["hour = 20"]),
    ]
    assert [(one.id, one.assigned[0].value) for one in found.outcome.obligations] == [("log", 20)]


def test_others_are_explained_in_the_order_of_the_policy() -> None:
    found = explained({ROLE: ("nurse",), HOUR: (20,), WARD: ("a",)})
    # The others are behind the policy that denies, so they are not evaluated.
    assert [(one.place, one.decision, one.tests) for one in found.others[1:]] == [
        (("hospital", "records", "others"), None, ()),
        (("hospital", "billing"), None, ()),
        (("hospital", "everyone"), None, ()),
    ]
    (test,) = found.others[0].tests
    assert (test.text, test.holds, str(test.values[0])) == ('role == "chief"', False, 'role = "nurse"')
    day = explained({ROLE: ("nurse",), HOUR: (9,), WARD: ("a",)})
    texts = {one.place[-1]: [test.text for test in one.tests] for one in day.others}
    assert texts["nights"] == ["hour < 8 or hour > 17"]
    assert texts["billing"] == ['ward == "office"']
    everyone = next(one for one in day.others if one.id == "everyone")
    assert (everyone.decision, everyone.tests) == (day.outcome.decision, ())


def test_the_list_is_bounded() -> None:
    facts = {ROLE: ("nurse",), HOUR: (20,), WARD: ("a",)}
    found = explained(facts, most=1)
    assert (len(found.others), found.left_out) == (1, 3)
    assert explained(facts, most=None).left_out == 0


def test_a_default_is_named() -> None:
    found = explained({ROLE: ("guest",), WARD: ("office",)})
    assert found.path is not None
    (billing,) = found.path.children
    assert billing.children == ()
    assert billing.note == "deny-unless-permit decides so if no rule decides otherwise"


def test_tests_end_with_the_clause_that_decides() -> None:
    text = 'policy p { apply deny-overrides target clause role == "a" clause role == "b" rule r { permit } }'
    root = read_policies(f"{POLICIES.partition('policyset')[0]}{text}".encode()).policies[0]
    (found,) = explain(root, Request(()), NOW, changes=False)
    assert found.path is not None
    assert [(one.text, one.holds, str(one.values[0])) for one in found.path.tests] == [
        ('role == "a"', False, "role is missing")
    ]
    assert (found.path.children, found.others) == ((), ())


def test_an_error_is_named() -> None:
    found = explained({ROLE: ("nurse", "clerk"), WARD: ("a",)})
    assert found.outcome.decision.indeterminate
    assert found.path is not None
    (nights,) = found.path.children[0].children
    (test,) = nights.tests
    assert (test.holds, bool(test.error), str(test.values[0])) == (None, True, 'role = "nurse", "clerk"')
    assert nights.note == found.outcome.status.message


def test_what_would_change_the_decision() -> None:
    found = explained({ROLE: ("nurse",), HOUR: (20,), WARD: ("a",)})
    changes = {*found.change_texts()}
    assert changes == {
        ('role other than "nurse"', "Permit"),
        ("hour between 8 and 17", "Permit"),
        ('ward other than "a", "b" and "office"', "Permit"),
    }
    assert explained({ROLE: ("nurse",)}, changes=False).changes is None


def test_long_values_are_cut() -> None:
    found = explained({ROLE: tuple(f"{'x' * 200}{number}" for number in range(20)), WARD: ("a",)}, changes=False)
    (seen,) = found.others[0].tests[0].values
    assert (len(seen.values), seen.more) == (8, 12)
    assert max(map(len, seen.values)) < 90


def test_each_decision_of_a_request_is_explained() -> None:
    roles = tuple(Attributes(SUBJECT, (attribute(ROLE.id, STRING, role),)) for role in ("chief", "nurse"))
    rest = (
        Attributes(RESOURCE, (attribute(WARD.id, STRING, "a"),)),
        Attributes(ENVIRONMENT, (attribute(HOUR.id, INTEGER, 20),)),
    )
    found = explain(ROOT, Request((*roles, *rest)), NOW, changes=False)
    assert [one.outcome.decision.value for one in found] == ["Permit", "Deny"]


def test_a_request_that_cannot_be_evaluated_has_no_path() -> None:
    wrong = Request((Attributes(SUBJECT, id="a"),), references=(("b",),))
    (found,) = explain(ROOT, wrong, NOW)
    assert found.path is None
    assert found.as_dict()["decision"] == "Indeterminate{DP}"
    assert found.outcome == PolicyOutcome(found.outcome.decision, decide(plainly(ROOT), wrong, NOW).results[0].status)


def test_a_policy_with_an_issuer_is_not_explained() -> None:
    root = read_policies(b'policy p { issuer "me" apply deny-overrides rule r { permit } }').policies[0]
    with pytest.raises(MalformedError) as caught:
        next(explain(root, Request(()), NOW))
    assert caught.value.code == "xacml.issuer"


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 40))
def test_any_policy_is_explained(seed: int) -> None:
    maker = Maker(seed)
    root = algorithms(maker, maker.policy_set())
    sources = Repository([maker.policy()])
    facts = maker.facts()
    (found,) = explain(root, Request.of_facts(facts), NOW, sources, changes=seed % 4 == 0)
    expected = evaluate(root, Context(Request.of_facts(facts), NOW, sources))
    assert found.outcome == expected
    assert found.as_dict()["decision"] == expected.decision.value
    for one in found.changes.found if found.changes else ():
        assert evaluate(root, Context(one.applied(found.request), NOW, sources)).decision is one.decision


def without_issuers(root: Root) -> Root:
    if isinstance(root, PolicySet):
        members = (one if isinstance(one, PolicyReference) else without_issuers(one) for one in root.members)
        root = replace(root, members=tuple(members))
    return replace(root, issuer=None)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1 << 40))
def test_policies_with_everything_are_explained(seed: int) -> None:
    root = without_issuers(Whole(seed).root())
    (found,) = explain(root, Request(()), NOW, changes=False)
    assert found.outcome == evaluate(root, Context(Request(()), NOW, Repository()))
    assert found.as_dict()


class Explaining:
    """Decides by a policy, and compares the explanation with the decision."""

    explained = 0

    def __init__(self, root: Root) -> None:
        self.root = root

    def evaluate(self, context: Context) -> PolicyOutcome:
        expected = evaluate(self.root, context)
        changes = Explaining.explained % 8 == 0
        (found,) = explain(self.root, context.request, context.now, context.sources, changes=changes)
        assert found.outcome == expected
        for one in found.changes.found if found.changes else ():
            asked = Context(one.applied(context.request), context.now, context.sources)
            assert evaluate(self.root, asked).decision is one.decision
        Explaining.explained += 1
        return expected


def test_the_suite_is_explained(suites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "CompiledPolicy", Explaining)
    ran = [*conformance.run_suite(suites / "xacml-3.0", NOW)]
    assert [one for one in ran if one.differences] == []
    assert Explaining.explained > 250
