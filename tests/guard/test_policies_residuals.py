"""What is left of a policy, as a restriction: each event shows just what the policy permits of it."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.kit import NOW
from tests.policy.random_events import IDS, NAMES, TYPE, EventMaker

from penstock.errors import RefusedError
from penstock.guard import Delivery, environment, policies
from penstock.guard.environment import ENVIRONMENT
from penstock.guard.policies import Residuals
from penstock.guard.restriction import NOTHING, Branch, Restriction, When
from penstock.model import Event, EventType, TransitEvent
from penstock.model.values import Scalar
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, NoSources, Repository
from penstock.policy.language.datatypes import STRING
from penstock.policy.language.event_attributes import ATTRIBUTE_NAME, EVENT
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import Designator, Match, PolicyReference, PolicySet, Root, Target, function_of
from penstock.policy.language.requests import RESOURCE, SUBJECT, SUBJECT_ID, Facts, key_of
from penstock.policy.language.results import XacmlDecision
from penstock.policy.syntax.text.policies import read_text_policy
from penstock.selector import parse
from penstock.trust.capabilities import Right

DENY_OVERRIDES = "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:deny-overrides"
DECLARED = f"""
attribute role {{ category = subject id = "urn:example:role" type = string }}
attribute which {{ category = resource id = "{ATTRIBUTE_NAME}" type = string }}
attribute count {{ category = resource id = "{EVENT}count" type = integer }}
attribute hour {{ category = environment id = "urn:penstock:environment:hour" type = integer }}
"""


def policy(*rules: str) -> Root:
    return read_text_policy(f"{DECLARED} policy p {{ apply permit-overrides {' '.join(rules)} }}")


def left(root: Root, *understood: str, known: Facts | None = None) -> Restriction:
    residuals = Residuals(root, understood=frozenset(understood))
    return residuals.restriction(known or {}, Right.SUBSCRIBE, TYPE, environment=ENVIRONMENT)


class AttributeMaker(EventMaker):
    """Makes policies that tell attributes apart."""

    def target(self) -> Target:
        if not self.rarely(3):
            return super().target()
        which = Designator(RESOURCE, ATTRIBUTE_NAME, STRING)
        names = self.random.sample([*IDS], 3)
        return (tuple((Match(function_of(f"{V1}string-equal"), name, STRING, which),) for name in names),)


def permitted(root: Root, known: Facts, values: Mapping[str, Scalar], name: str) -> bool:
    facts = {**known, **NAMES.of(TYPE.by_name[name]), **NAMES.facts(values)}
    outcome = evaluate(root, Context(None, NOW, NoSources(), facts))
    return outcome.decision is XacmlDecision.PERMIT and not outcome.obligations


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 40))
def test_events_show_what_is_permitted_of_them(seed: int) -> None:
    maker = AttributeMaker(seed)
    root, known = maker.policy(), maker.known()
    try:
        restriction = Residuals(root).restriction(known, Right.SUBSCRIBE, TYPE)
    except RefusedError:
        return
    deliver = Delivery(restriction, TYPE)
    for _ in range(5):
        values = maker.event()
        seen = deliver(TransitEvent(TYPE.key, TYPE.ancestors, values, "e", NOW), environment(NOW))
        shown = {name for name, value in (seen.values if seen else {}).items() if value is not None}
        there = {name for name in TYPE.by_name if IDS[name] in values}
        assert shown == {name for name in there if permitted(root, known, values, name)}


def test_attributes_are_apart_where_a_policy_tells_them_apart() -> None:
    root = policy(
        'rule a { permit target clause which == "text" or which == "other" condition count > 1 }',
        'rule b { permit target clause which == "level" }',
    )
    where = parse("count > 1").rename(IDS)
    ids = {name: TYPE.by_name[name].id for name in TYPE.by_name}
    assert left(root) == Restriction(
        (
            Branch(action=Right.SUBSCRIBE, attributes=frozenset((ids["text"], ids["other"])), where=where),
            Branch(action=Right.SUBSCRIBE, attributes=frozenset((ids["level"],))),
        )
    )
    assert left(root).because == ("policy:p",)


def test_all_attributes_go_with_an_event_where_it_does_not() -> None:
    (branch,) = left(policy("rule a { permit condition count > 1 and hour < 9 }")).branches
    assert branch.attributes is None
    assert branch.where == parse("count > 1").rename(IDS)
    assert branch.when == When(condition=parse("hour < 9"))


def test_what_has_to_be_done_and_is_not_understood_is_not_permitted() -> None:
    root = policy("rule a { permit condition count > 1 on permit { obligation log } }")
    assert left(root) == NOTHING
    assert len(left(root, "log").branches) == 1


def test_a_moment_is_asked_for_each_event() -> None:
    deliver = Delivery(left(policy("rule a { permit condition hour < 9 }")), TYPE)
    event = Event.of(TYPE, {"count": 1}).to_transit()
    assert deliver(event, {"hour": 8, "time": NOW}) is not None
    assert deliver(event, {"hour": 9, "time": NOW}) is None
    assert deliver(event, {"time": NOW}) is None


# --- for many --------------------------------------------------------------------------------------------------------


class Counting(Repository):
    """Counts how often policies are looked at."""

    def __init__(self, *roots: Root) -> None:
        super().__init__(roots)
        self.count = 0

    def policy(self, reference: PolicyReference) -> Root:
        self.count += 1
        return super().policy(reference)


def referring(*rules: str) -> tuple[Root, Counting]:
    root = PolicySet("s", "1.0", DENY_OVERRIDES, (PolicyReference("p", to_set=False),))
    return root, Counting(policy(*rules))


def somebody(name: str, role: str) -> Facts:
    return {key_of(SUBJECT, SUBJECT_ID, STRING): (name,), key_of(SUBJECT, "urn:example:role", STRING): (role,)}


def test_what_is_known_of_many_is_asked_once() -> None:
    root, sources = referring('rule a { permit target clause role == "police" condition count > 1 }')
    left = Residuals(root, sources)
    found = {left.restriction(somebody(f"s{n}", "police"), Right.SUBSCRIBE, TYPE) for n in range(9)}
    assert (len(found), sources.count) == (1, 1)
    assert left.restriction(somebody("s1", "guest"), Right.SUBSCRIBE, TYPE) == NOTHING
    assert sources.count == 2
    left.restriction(somebody("s1", "police"), Right.PUBLISH, TYPE)
    assert sources.count == 3
    left.restriction(somebody("s1", "police"), Right.SUBSCRIBE, TYPE, environment=ENVIRONMENT)
    assert sources.count == 4


def test_refusals_are_kept_too() -> None:
    root, sources = referring("rule a { permit condition count * count > 4 }")
    left = Residuals(root, sources)
    for n in range(3):
        with pytest.raises(RefusedError) as refused:
            left.restriction(somebody(f"s{n}", "police"), Right.SUBSCRIBE, TYPE)
        assert refused.value.fields["construct"] == "function `integer-multiply`"
    assert sources.count == 1


def test_not_more_are_kept_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    root, sources = referring('rule a { permit condition role == "police" }')
    left = Residuals(root, sources)
    monkeypatch.setattr(policies, "RESIDUAL_KEPT", 2)
    for role in ("a", "b", "a", "c", "a"):
        left.restriction(somebody("s", role), Right.SUBSCRIBE, TYPE)
    # The last one is new again: when there was no room for `c`, all were forgotten.
    assert sources.count == 4


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1 << 40))
def test_what_is_kept_is_what_would_be_found(seed: int) -> None:
    maker = AttributeMaker(seed)
    root = maker.policy()
    left = Residuals(root)

    def found(ask: Callable[[Facts, Right, EventType], Restriction], known: Facts) -> Restriction | str:
        try:
            return ask(known, Right.SUBSCRIBE, TYPE)
        except RefusedError as error:
            return error.code

    for _ in range(6):
        known = maker.known()
        assert found(left.restriction, known) == found(Residuals(root).restriction, known)


def test_what_cannot_be_said_is_refused() -> None:
    with pytest.raises(RefusedError) as refused:
        left(policy("rule a { permit condition count * count > 4 }"))
    assert refused.value.code == "policy.residual-fragment"
