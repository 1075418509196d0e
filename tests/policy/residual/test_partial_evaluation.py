"""What is left of a policy matches an event just where the policy permits the request with that event in it."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.kit import NOW
from tests.policy.random_events import IDS, NAMES, SPECS, EventMaker
from tests.policy.random_policies import ATTRIBUTES, VALUES, Maker

from penstock.errors import EvaluationError, MalformedError, RefusedError
from penstock.model.values import AttributeSpec, Kind, Ranged, Scalar, Schema
from penstock.policy.combining import DecisionTuple
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, NoSources, Repository
from penstock.policy.language.datatypes import BOOLEAN, DATE_TIME, DOUBLE, INTEGER, STRING, DataType
from penstock.policy.language.event_attributes import (
    ENVIRONMENT_FACT,
    EVENT,
    EventNames,
    data_type_of,
    environment_facts,
)
from penstock.policy.language.policies import Designator, Policy, PolicyReference, PolicySet, Root, RuleEffect
from penstock.policy.language.requests import ENVIRONMENT as MOMENT
from penstock.policy.language.requests import SUBJECT, Facts, key_of
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.policy.residual.partial_evaluation import Residual, ResidualCase, residual
from penstock.policy.residual.request_attributes import RequestTerm
from penstock.policy.syntax.text.policies import read_text_policy
from penstock.selector import ALWAYS, parse
from penstock.selector import evaluate as select

#: numbers that are none are met by refusing
NUMBERS = {DOUBLE: [0.0, 1.5]}
OPEN = {
    key_of(*one): AttributeSpec(kind)
    for one, kind in zip(ATTRIBUTES, (Kind.STRING, Kind.STRING, Kind.INTEGER, Kind.FLOAT), strict=True)
}
SHORT = {attribute: name for name, attribute in IDS.items()}
ROLE = key_of(SUBJECT, "urn:example:role", STRING)
POLICE: Facts = {ROLE: ("police",)}
ENVIRONMENT: Schema = {
    "time": AttributeSpec(Kind.TIMESTAMP),
    "hour": AttributeSpec(Kind.INTEGER, Ranged(0, 23)),
    "on_duty": AttributeSpec(Kind.BOOLEAN),
}
CLOCK = "urn:oasis:names:tc:xacml:1.0:environment:current"
_DECLARED = "".join(
    f'attribute {name} {{ category = resource id = "{EVENT}{name}" type = {data_type_of(spec.kind)} }}\n'
    for name, spec in SPECS.items()
)
_OTHERS = """
    attribute role { category = subject id = "urn:example:role" type = string }
    attribute now { category = environment id = "CLOCK-dateTime" type = dateTime }
    attribute clock { category = environment id = "CLOCK-time" type = time }
    attribute oclock { category = environment id = "urn:penstock:environment:hour" type = integer }
""".replace("CLOCK", CLOCK)


def policy(*inside: str, apply: str = "first-applicable", name: str = "p") -> Root:
    return read_text_policy(f"{_DECLARED}{_OTHERS}policy {name} {{ apply {apply} {' '.join(inside)} }}")


def permits(condition: str) -> Root:
    return policy(f"rule r {{ permit condition {condition} }}")


def shown(found: Residual) -> list[str]:
    return [case.where.rename(SHORT).text for case in found.cases]


def left(root: Root, known: Facts = POLICE, environment: Schema | None = None) -> list[str]:
    return shown(residual(root, known, NAMES, environment=environment))


# --- against the plain evaluator -------------------------------------------------------------------------------------


def whole(root: Root, known: Facts, event: dict[str, Scalar]) -> PolicyOutcome:
    return evaluate(root, Context(None, NOW, NoSources(), {**known, **NAMES.facts(event)}))


def holding(found: Residual, event: dict[str, Scalar]) -> list[ResidualCase]:
    def holds(case: ResidualCase) -> bool:
        try:
            return select(case.where, event) is True
        except EvaluationError:
            return False

    return [case for case in found.cases if holds(case)]


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 1 << 40))
@example(319)  # obligations that depend on the event
def test_it_permits_what_the_policy_permits(seed: int) -> None:
    maker = EventMaker(seed)
    root: Root = maker.policy_set() if maker.rarely(3) else maker.policy()
    known = maker.known()
    try:
        found = residual(root, known, NAMES)
    except RefusedError:
        return
    for _ in range(12):
        event = maker.event()
        outcome, cases = whole(root, known, event), holding(found, event)
        assert len(cases) == (outcome.decision is XacmlDecision.PERMIT), event
        for case in cases:
            assert case.obligations == outcome.obligations
            assert set(case.advice) <= set(outcome.advice)
    # Numbers that are none are met by refusing.
    event = maker.event(nan=True)
    assert not holding(found, event) or whole(root, known, event).decision is XacmlDecision.PERMIT


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 1 << 40))
def test_permit_and_deny_over_attributes_of_the_request(seed: int) -> None:
    maker = Maker(seed)
    root: Root = maker.policy_set() if maker.rarely(3) else maker.policy()
    unknown = {key: spec for key, spec in OPEN.items() if not maker.rarely(3)}
    facts = {key_of(*one): maker.facts().get(key_of(*one), ()) for one in ATTRIBUTES}
    for effect in RuleEffect:
        try:
            found = residual(root, facts, EventNames({}), effect=effect, unknown=unknown)
        except RefusedError:
            continue
        for _ in range(8):
            values = {key: maker.random.choice([None, *NUMBERS.get(key.of, VALUES[key.of])]) for key in unknown}
            request = {**facts, **{key: () if one is None else (one,) for key, one in values.items()}}
            outcome = evaluate(root, Context(None, NOW, NoSources(), request))
            row = {RequestTerm(key).name: one for key, one in values.items()}
            cases = holding(found, row)
            assert len(cases) == (outcome.decision is XacmlDecision.of(effect))
            assert [case.obligations for case in cases] in ([], [outcome.obligations])


def test_open_attributes_have_the_names_of_requests() -> None:
    root = policy('rule r { deny condition role == "guest" }')
    open_role = {ROLE: AttributeSpec(Kind.STRING)}
    denied = residual(root, {}, NAMES, effect=RuleEffect.DENY, unknown=open_role)
    assert shown(denied) == ["\"subject.properties.urn:example:role\" = 'guest'"]
    assert residual(root, {}, NAMES, unknown=open_role).cases == ()
    with pytest.raises(MalformedError) as caught:
        residual(root, {}, NAMES, unknown={ROLE: AttributeSpec(Kind.INTEGER)})
    assert caught.value.code == "policy.request-attribute"


def test_random_policies_are_worth_asking() -> None:
    seen: dict[str, int] = {}
    for seed in range(250):
        maker = EventMaker(seed)
        root, known = maker.policy(), maker.known()
        try:
            found = residual(root, known, NAMES)
        except RefusedError as error:
            what = error.code
        else:
            what = "never" if not found.cases else "always" if shown(found) == ["TRUE"] else "sometimes"
        seen[what] = seen.get(what, 0) + 1
    assert seen["sometimes"] > 25
    assert seen["never"] + seen["sometimes"] + seen["always"] > 150


# --- what it says ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ('text == "a"', "text = 'a'"),
        ('not (text == "a")', "text <> 'a'"),
        ('text in ["a", "b"]', "text IN ('a', 'b')"),
        ('"a" in text', "text = 'a'"),
        ('not ("a" in text)', "text IS NULL OR text <> 'a'"),
        ('string-starts-with("50%", text)', "text LIKE '50\\%%' ESCAPE '\\'"),
        ('string-contains("", text)', "text IS NOT NULL"),
        ("string-bag-size(text) == 0", "text IS NULL"),
        ("string-bag-size(text) == 2", None),
        ('string-one-and-only(string-bag("x", text)) == "x"', None),
        ('string-one-and-only(string-bag(text)) == "x"', "text = 'x'"),
        ("text == other", "text = other"),
        ("text == text", "text IS NOT NULL"),
        ("open", "open"),
        ("not open", "NOT open"),
        (f"count < {1 << 70}", "count IS NOT NULL"),
        (f"count == {1 << 70}", None),
        ('at < "2026-05-01T12:00:00.0000005Z":dateTime', "at <= TIMESTAMP '2026-05-01 12:00:00+00:00'"),
        ('at > "12026-05-01T12:00:00Z":dateTime', None),
        ('weight < "INF":double', "weight <= 1.7976931348623157e+308"),
        # That it is there would not do: it may be no number.
        ('weight <= "INF":double', "weight <= 1.7976931348623157e+308 OR weight > 1.7976931348623157e+308"),
        (
            "string-bag-size(text) == 1 and not any-of-any(function string-equal, text, other)",
            "text IS NOT NULL AND (other IS NULL OR text <> other)",
        ),
        # What selectors have no words for is tried with all values that there are.
        ('string-normalize-to-lower-case(level) == "a"', "level = 'a'"),
        ('string-regexp-match("a|b", level)', "level IN ('a', 'b')"),
        ("hour * hour == 4", "hour = 2"),
        # Values that the type does not allow are not permitted.
        ("hour * hour != 4", "hour IN (0, 1, 3)"),
        ('role == "police" and count > 1', "count > 1"),
        ('role == "guest" and count > 1', None),
        ('role == "police" or count > 1', "TRUE"),
    ],
)
def test_conditions_become_selectors(condition: str, expected: str | None) -> None:
    assert left(permits(condition)) == ([] if expected is None else [expected])


def test_an_error_is_no_permission_whatever_stands_around_it() -> None:
    root = policy("rule r { deny condition count > 1 }", apply="permit-unless-deny")
    # Where the number is missing the rule fails, and this algorithm permits.
    assert left(root) == ["count IS NULL OR count <= 1"]
    root = policy("rule r { deny condition count > 1 }", "rule s { permit }", apply="deny-overrides")
    assert left(root) == ["count <= 1"]


def test_values_that_the_type_does_not_allow_are_not_permitted() -> None:
    root = policy("rule r { deny condition hour * hour == 4 }", apply="permit-unless-deny")
    found = residual(root, {}, NAMES)
    permitted = [hour for hour in (None, 0, 1, 2, 3, 4, -1) if holding(found, {IDS["hour"]: hour})]
    assert permitted == [None, 0, 1, 3]


def test_what_is_written_is_read_back() -> None:
    for seed in range(40):
        maker = EventMaker(seed)
        try:
            found = residual(maker.policy(), maker.known(), NAMES)
        except RefusedError:
            continue
        for case in found.cases:
            assert parse(case.where.text) == case.where


def test_it_says_the_same_each_time() -> None:
    root = policy('rule a { permit target clause text == "a" or text == "b" clause level == "a" or count > 3 }')
    assert {tuple(left(root)) for _ in range(5)} == {("text IN ('a', 'b') AND (level = 'a' OR count > 3)",)}


# --- obligations -----------------------------------------------------------------------------------------------------


def told(found: Residual) -> dict[str, list[str]]:
    return {case.where.rename(SHORT).text: [one.id for one in case.obligations] for case in found.cases}


def test_obligations_go_with_what_is_permitted() -> None:
    root = policy(
        'rule a { permit condition count > 1 on permit { obligation log { "x" = role } advice hint } }',
        "on permit { obligation always }",
    )
    found = residual(root, POLICE, NAMES)
    assert told(found) == {"count > 1": ["log", "always"]}
    assert [one.value for one in found.cases[0].obligations[0].assigned] == ["police"]
    assert len(found.cases[0].advice) == 1


def test_obligations_that_depend_on_the_event_make_cases() -> None:
    root = policy(
        "rule a { permit condition open on permit { obligation log } }",
        "rule b { permit condition count > 1 }",
        apply="permit-overrides",
    )
    assert sorted(told(residual(root, {}, NAMES)).items()) == [
        ("(open IS NULL OR (NOT open)) AND count > 1", []),
        ("open", ["log"]),
    ]


def test_an_obligation_that_tells_of_the_event_is_outside() -> None:
    root = policy('rule a { permit condition count > 1 on permit { obligation log { "x" = text } } }')
    with pytest.raises(RefusedError) as refused:
        left(root)
    assert (refused.value.code, refused.value.fields["construct"]) == (
        "policy.residual-fragment",
        "an obligation with values of the event",
    )
    # An advice may be left out.
    advised = policy('rule a { permit condition count > 1 on permit { advice hint { "x" = text } } }')
    assert [case.advice for case in residual(advised, {}, NAMES).cases] == [()]


# --- combining, references, moments ----------------------------------------------------------------------------------


def test_decision_tuples_combine_what_is_left() -> None:
    one = policy("rule a { permit condition open on permit { obligation first } }", name="one")
    two = policy("rule b { deny condition count > 1 }", name="two")
    most = DecisionTuple.of({"P": "#P > 0 and #D = 0", "D": "#D > 0", "NA": "#P = 0 and #D = 0", "IN": "none"})
    assert isinstance(one, Policy)
    assert isinstance(two, Policy)
    root = PolicySet("s", "1.0", most.id, (one, two))
    assert told(residual(root, {}, NAMES)) == {"open AND (count IS NULL OR count <= 1)": ["first"]}
    other = policy("rule b { permit condition count > 1 on permit { obligation second } }", name="two")
    assert isinstance(other, Policy)
    cases = residual(replace(root, members=(one, other)), {}, NAMES).cases
    assert sorted([one.id for one in case.obligations] for case in cases) == [
        ["first"],
        ["first", "second"],
        ["second"],
    ]


def test_policies_are_found_elsewhere() -> None:
    root = PolicySet(
        "s",
        "1.0",
        "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:permit-overrides",
        (PolicyReference("p", to_set=False), PolicyReference("missing", to_set=False)),
    )
    found = residual(root, {}, NAMES, sources=Repository([permits("open")]))
    assert shown(found) == ["open"]
    assert [one.id for one in found.policies] == ["p", "s"]


def test_a_set_within_itself_permits_nothing() -> None:
    combining = "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:deny-overrides"
    root = PolicySet("s", "1.0", combining, (PolicyReference("s", to_set=True),))
    assert residual(root, {}, NAMES, sources=Repository([root])).cases == ()


def test_the_moment_becomes_a_condition_of_its_own() -> None:
    root = permits('open and now > "2026-05-01T12:00:00Z":dateTime and not (oclock < 9)')
    (case,) = residual(root, {}, NAMES, environment=ENVIRONMENT).cases
    assert case.where.rename(SHORT).text == "open"
    assert case.when.text == "time > TIMESTAMP '2026-05-01 12:00:00+00:00' AND hour >= 9"


class MomentMaker(EventMaker):
    """Makes policies that ask for the moment too."""

    def designator(self, of_type: DataType | None = None) -> Designator:
        known = [
            (f"{ENVIRONMENT_FACT}hour", INTEGER),
            (f"{ENVIRONMENT_FACT}on_duty", BOOLEAN),
            (f"{CLOCK}-dateTime", DATE_TIME),
        ]
        moments = [one for one in known if of_type in (None, one[1])]
        if not moments or not self.rarely(3):
            return super().designator(of_type)
        return Designator(MOMENT, *self.random.choice(moments), must_be_present=self.rarely(3))

    def moment(self) -> dict[str, Scalar]:
        found: dict[str, Scalar] = {"time": self.random.choice([NOW, NOW + timedelta(hours=2)])}
        if not self.rarely(4):
            found["hour"] = self.random.randrange(4)
        return found if self.rarely(4) else {**found, "on_duty": self.rarely(2)}


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 40))
def test_cases_and_their_moments_say_what_the_policy_says(seed: int) -> None:
    maker = MomentMaker(seed)
    root, known = maker.policy(), maker.known()
    try:
        found = residual(root, known, NAMES, environment=ENVIRONMENT)
    except RefusedError:
        return
    for _ in range(12):
        event, moment = maker.event(), maker.moment()
        now = moment["time"]
        assert isinstance(now, datetime)
        facts = {**known, **NAMES.facts(event), **environment_facts(moment)}
        outcome = evaluate(root, Context(None, now, NoSources(), facts))
        held = [case for case in holding(found, event) if select(case.when, moment) is True]
        assert bool(held) is (outcome.decision is XacmlDecision.PERMIT), (event, moment)
        assert all(case.obligations == outcome.obligations for case in held)


@pytest.mark.parametrize(
    ("condition", "construct"),
    [
        ('clock > "09:00:00":time', f"attribute `{CLOCK}-time`, which changes with time"),
        ('now > "2026-05-01T12:00:00Z":dateTime', f"attribute `{CLOCK}-dateTime`, which changes with time"),
        ("oclock > 3", "attribute `urn:penstock:environment:hour`, which changes with time"),
        ('string-regexp-match("a|b", text)', "function `string-regexp-match`"),
        ("count + 1 > 2", "function `integer-add`"),
        ('weight == "NaN":double', "equality with NaN"),
    ],
)
def test_what_selectors_cannot_say_is_named(condition: str, construct: str) -> None:
    with pytest.raises(RefusedError) as refused:
        left(permits(condition))
    assert (refused.value.code, refused.value.fields["construct"]) == ("policy.residual-fragment", construct)
    assert refused.value.fields["element"] == "rule `r` of policy `p`"


def test_what_is_not_asked_does_not_matter() -> None:
    root = policy('rule r { permit target clause role == "guest" condition count + 1 > 2 }', "rule s { permit }")
    assert left(root) == ["TRUE"]
    assert residual(root, POLICE, NAMES).asked == {ROLE}


def test_too_much_is_told() -> None:
    rules = [f'rule r{n} {{ permit condition text == "{str(n) * 500}" }}' for n in range(40)]
    with pytest.raises(RefusedError) as refused:
        left(policy(*rules))
    assert refused.value.code == "policy.residual-limit"


def test_what_follows_is_not_said() -> None:
    rules = [f'rule r{n} {{ permit condition count > {n} and text in ["a", "{n}"] }}' for n in (0, 1, 5)]
    ways = ["(count > 0 AND text IN ('a', '0'))", "(count > 1 AND text = '1')", "(count > 5 AND text = '5')"]
    assert left(policy(*rules)) == [" OR ".join(ways)]


def test_many_rules_stay_few_words() -> None:
    rules = [f"rule r{n} {{ {'permit' if n % 2 else 'deny'} condition count == {n} and open }}" for n in range(60)]
    odd = ", ".join(str(n) for n in range(1, 60, 2))
    assert left(policy(*rules)) == [f"open AND count IN ({odd})"]


def test_no_case_without_permission() -> None:
    assert residual(policy("rule r { deny }"), {}, NAMES) == Residual((), (), frozenset())
    found = residual(policy("rule r { permit }"), {}, NAMES)
    assert found.cases == (ResidualCase(ALWAYS),)
