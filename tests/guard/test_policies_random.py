"""Random policies, combined with certificates, show of random events what the standard says, attribute by attribute."""

from datetime import timedelta
from functools import reduce

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.guard.london import BILLING, MALLORY, MET, NOW, PITO, TYPE, V8516, transit
from tests.guard.policy_kit import ask, police, policy

from penstock.crypto import SigningKey
from penstock.guard import CapabilityAuthority, Delivery, Effect, EventRequest, environment
from penstock.guard.policies import Policies, PolicyCombining, Subjects
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, NoSources
from penstock.policy.language.event_attributes import environment_facts, event_names
from penstock.policy.language.policies import Root
from penstock.policy.language.results import XacmlDecision
from penstock.trust.capabilities import Right

PLATES, PLACES = ("AE05 XYZ", "SECRET"), ("Victoria", "Dover", None)
#: what a rule may ask for: events, the moment, who it is, which attribute; some of it fails
CONDITIONS = st.sampled_from(
    [
        'place == "Dover"',
        'place[required] == "Dover"',
        'plate == "SECRET"',
        "plate == place",
        'seen < "2027-01-01T00:00:00Z":dateTime',
        "hour < 18",
        'now < "18:00:00Z":time',
        '"police" in role',
        'part == "location"',
        'string-starts-with("nu", part)',
        'stranger[required] == "x"',
        'does == "subscribe"',
    ]
)
NEGATED = st.builds(lambda yes, word: word if yes else f"not ({word})", st.booleans(), CONDITIONS)
WHOLE = st.lists(NEGATED, min_size=1, max_size=3).flatmap(
    lambda some: st.sampled_from([" and ", " or "]).map(lambda word: word.join(f"({one})" for one in some))
)
TARGETS = st.sampled_from(["", 'target clause place == "Dover"', 'target clause part == "numberplate"'])
RULES = st.builds(
    lambda effect, target, condition: f"{effect} {target} condition {condition}",
    st.sampled_from(["permit", "deny"]),
    TARGETS,
    WHOLE,
)
ALGORITHMS = ["deny-overrides", "permit-overrides", "first-applicable", "deny-unless-permit", "permit-unless-deny"]
ROOTS = st.builds(
    lambda rules, apply: policy(*rules, apply=apply),
    st.lists(RULES | st.sampled_from(["permit", "deny"]), min_size=1, max_size=3),
    st.sampled_from(ALGORITHMS),
)
EVERYTHING = frozenset(TYPE.by_name)
OTHERS = {MET: EVERYTHING, BILLING: frozenset({"numberplate", "timestamp"}), MALLORY: frozenset[str]()}
NAMES = event_names(TYPE)


def combined(combining: PolicyCombining, says: XacmlDecision, *, certified: bool) -> bool:
    permits, tolerates = says is XacmlDecision.PERMIT, says in {XacmlDecision.PERMIT, XacmlDecision.NOT_APPLICABLE}
    match combining:
        case PolicyCombining.BOTH:
            return certified and permits
        case PolicyCombining.RESTRICT:
            return certified and tolerates
        case PolicyCombining.ALONE:
            return permits
        case PolicyCombining.EITHER:
            return permits or (certified and tolerates)


@settings(deadline=None, max_examples=examples(150))
@given(
    root=ROOTS,
    combining=st.sampled_from([*PolicyCombining]),
    who=st.sampled_from([*OTHERS]),
    plate=st.sampled_from(PLATES),
    place=st.sampled_from(PLACES),
    hours=st.sampled_from([0, 8]),
    officer=st.booleans(),
)
def test_each_attribute_is_shown_where_the_standard_says_so(  # noqa: PLR0917  # what a case is made of
    root: Root,
    combining: PolicyCombining,
    who: SigningKey,
    plate: str,
    place: str | None,
    hours: int,
    officer: bool,
) -> None:
    bag = police(who, PITO) if officer else police(who, MALLORY)
    policies = Policies.of(root, combining=combining, owners=[PITO.principal])
    # What was answered to others before changes nothing.
    for before in (police(MET, PITO), police(MET, MALLORY)):
        ask(policies, MET, bag=before)
    ask(policies, MET, Right.PUBLISH)
    decision = ask(policies, who, bag=bag)
    now = NOW + timedelta(hours=hours)
    event = transit(plate, place)
    seen = Delivery(decision.restriction, TYPE)(event, environment(now)) if decision.effect is Effect.PERMIT else None
    shown = set() if seen is None else {name for name, value in seen.values.items() if value is not None}
    (known,) = Subjects(CapabilityAuthority(bag), (), policies.asked).known(
        EventRequest(who.principal, Right.SUBSCRIBE, V8516, NOW)
    )
    expected = set()
    for attribute in TYPE.attributes:
        parts = (known.facts, NAMES.of(attribute), NAMES.facts(event.values), environment_facts(environment(now)))
        facts = reduce(lambda one, two: {**one, **two}, parts)
        says = evaluate(root, Context(None, now, NoSources(), facts)).decision
        has = event.values.get(attribute.id) is not None
        if has and combined(combining, says, certified=attribute.name in OTHERS[who]):
            expected.add(attribute.name)
    assert shown == expected
